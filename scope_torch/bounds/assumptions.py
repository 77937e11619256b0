"""The assumptions under which "certified" holds, in words: one place for all promises of results.

Everything is made from settings, so that a recorded run can be explained too.
"""

from __future__ import annotations

import math
from typing import Any, Literal

_NOT_BY_BOUNDS = (
    "certificates do not depend on the bounds; u_out, the gap and the choice of candidates do"
)
WIDENING = 1.5  # factor of beta each time that bounds are widened
MOST_WIDENINGS = 100  # to 4e17 times: its square is a number still


def bounds_in(settings: dict[str, Any]) -> dict[str, Any] | None:
    """The settings of the bounds of SCOPE; None in those of another method, whatever it calls so.

    Args:
        settings: The `settings()` of any method.
    """
    found = settings.get("bounds")
    return found if isinstance(found, dict) and "mode" in found else None


def basis_of(settings: dict[str, Any]) -> Literal["certified", "accepted (tuned)"]:
    """Whether a configuration that passed the certificate is certified, or only accepted.

    Certified carries a proven probability: the answers themselves prove it, or bounds by theory do.
    Bounds whose half-widths were set or fitted by observations prove none.

    Args:
        settings: The `settings()` of SCOPE.

    Examples:
        >>> basis_of({"bounds": {"mode": "tuned"}})
        'accepted (tuned)'
        >>> basis_of({"bounds": {"mode": "tuned"}, "sequence_delta": 0.05})
        'certified'
        >>> basis_of({"bounds": {"mode": "theory", "B_g": "eligible"}})
        'accepted (tuned)'
    """
    by_answers = "sequence_delta" in settings or "population_delta" in settings
    bounds = settings["bounds"]
    is_proven = by_answers or (bounds["mode"] == "theory" and bounds["B_g"] != "eligible")
    return "certified" if is_proven else "accepted (tuned)"


def certificate_in(settings: dict[str, Any]) -> dict[str, Any]:
    """What the report of a search says of its certificate: the kind, delta, how often answers flip.

    Args:
        settings: The `settings()` of SCOPE.

    Examples:
        >>> certificate_in({"sequence_delta": 0.05, "sequence_variance": 0.1875})
        {'certificate': 'sequence', 'delta': 0.05, 'flips': 0.25}
        >>> certificate_in({"population_delta": 0.1})
        {'certificate': 'population', 'delta': 0.1}
    """
    if "population_delta" in settings:
        return {"certificate": "population", "delta": settings["population_delta"]}
    if "sequence_delta" not in settings:
        delta = (bounds_in(settings) or {}).get("delta")  # of a theorem
        return {} if delta is None else {"delta": delta}
    found = {"certificate": "sequence", "delta": settings["sequence_delta"]}
    if (variance := settings.get("sequence_variance")) is not None:
        return {**found, "flips": flips_by(variance)}
    return {**found, **({"flips": flips} if (flips := settings["sequence_flips"]) else {})}


def flips_by(variance: float) -> float:
    """How often an answer of 0 or 1 is another than usual, by its variance from call to call."""
    return (1 - math.sqrt(max(0.0, 1 - 4 * variance))) / 2


def certified_by(settings: dict[str, Any]) -> list[str]:
    """The assumptions under which "certified" holds.

    Args:
        settings: The `settings()` of SCOPE.
    """
    of_bounds = assumptions(settings["bounds"])
    if "population_delta" in settings:
        return [*_population(settings["population_delta"]), _NOT_BY_BOUNDS, *of_bounds]
    if "sequence_delta" not in settings:
        meaning = (
            f"{basis_of(settings)} means that U_g(theta_out) <= 0: while the bounds hold, the "
            "average quality over these queries is at least s_0"
        )
        return [*of_bounds, meaning]
    return [*_sequences(settings), _NOT_BY_BOUNDS, *of_bounds]


def assumptions(settings: dict[str, Any]) -> list[str]:
    """The assumptions under which the bounds hold.

    Args:
        settings: The `settings()` of the bounds.
    """
    of_mode = {"tuned": _tuned, "credible": _credible, "theory": _theory}
    return of_mode.get(settings["mode"], _own)(settings)


def _own(settings: dict[str, Any]) -> list[str]:
    return [f"the bounds, {settings['mode']}, are your own: no probability is proven of them here"]


def _tuned(_settings: dict[str, Any]) -> list[str]:
    return [
        "b_c and b_g were set from the observations of Calibrate: the bounds carry no proven "
        "probability",
        "they hold where |g - mu_bar_g| <= b_g sigma_rms and |c - mu_bar_c| <= b_c sigma_rms",
    ]


def _credible(settings: dict[str, Any]) -> list[str]:
    b, widenings = settings["b"], settings["widenings"]
    often = {0: "never widened", 1: "widened once"}.get(
        widenings, f"widened up to {widenings} times"
    )
    if widenings:
        often += f", to +-{WIDENING**widenings * b:g} sd, if the search would stop early"
    return [
        "cost and quality are draws of Gaussian processes; rho, amplitude and the scale of costs "
        "were fitted to the observations",
        "answers of 0 or 1 are not Gaussian: the bounds carry no proven probability",
        f"intervals are +-{b:g} sd around the mean, {often}; U_g is {settings['b_certify']:g} sd "
        "above the mean",
    ]


def _theory(settings: dict[str, Any]) -> list[str]:
    rho = settings.get("rho")
    kernel = "" if rho is None else f" in the joint kernel with rho={rho:g}"
    each = "each query's" if rho is None else "the"
    if isinstance(settings["B_g"], str):
        norm = "B_g, which was tuned after Calibrate and need not be such a bound"
        then = "if it is one,"
    else:
        norm, then = f"B_g={settings['B_g']:g}", "then"
    return [
        f"observation noise is conditionally sub-Gaussian with R_c={settings['R_c']:g} cost units, "
        f"R_g={settings['R_g']:g} (ass:observation)",
        f"the RKHS norm{kernel} of {each} cost is at most B_c={settings['B_c']:g} cost units, of "
        f"{each} constraint at most {norm} (ass:rkhs)",
        f"one cost unit is {settings['cost_unit']:g} USD",
        f"{then} all bounds hold together with probability at least "
        f"1 - {settings['delta']:g} (cla:bounds)",
    ]


def _sequences(settings: dict[str, Any]) -> list[str]:
    average, vary = "average", []
    if "sequence_passes" in settings:
        average = "expected average"
        noise = "answers may vary from call to call in any way, each independently of the others"
        if "sequence_repeats" in settings:
            changed, asked = settings["sequence_repeats"]
            vary = [
                f"the reference answered {asked} queries twice, {changed} of them otherwise the "
                "second time; this decides only what is tried: every certified configuration was "
                "asked again itself"
            ]
    elif settings["sequence_flips"] == 0:
        noise = "the same call always gets the same answer"
    else:  # a run of an earlier version
        noise = (
            "an answer differs from its usual value with probability at most "
            f"{settings['sequence_flips']:g}"
        )
    return [
        f"with probability at least 1 - {settings['sequence_delta']:g}, every certified "
        f"configuration has an {average} quality over these queries of at least s_0, whatever the "
        "model says",
        f"this needs outcomes in [0, 1] that do not depend on the order of the calls; {noise}",
        *vary,
    ]


def _population(delta: float) -> list[str]:
    return [
        f"with probability at least 1 - {delta:g}, every certified configuration has an expected "
        "quality of at least (1 - epsilon) times the reference's, or the least one that was asked "
        "for, on the distribution that these queries were drawn from, whatever the model says",
        "this needs queries that are independent draws from that distribution, as tomorrow's will "
        "be, and qualities in [0, 1] that do not depend on the order of the calls; answers may "
        "vary from call to call",
    ]
