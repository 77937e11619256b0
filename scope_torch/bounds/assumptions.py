"""What "certified" rests on, in words: one place for the promises that results make."""

from __future__ import annotations

from typing import Any


def certified_by(settings: dict[str, Any]) -> list[str]:
    """What "certified" rests on.

    Args:
        settings: The `settings()` of SCOPE.
    """
    told = assumptions(settings["bounds"])
    if "sequence_delta" not in settings:
        meaning = (
            "certified means that U_g(theta_out) <= 0: while the bounds hold, the average quality "
            "over these queries is at least s_0"
        )
        return [*told, meaning]
    sequences = _of_sequences(settings["sequence_delta"], settings["sequence_flips"])
    return [*sequences, "only u_out, the gap and what was evaluated rest on bounds", *told]


def assumptions(settings: dict[str, Any]) -> list[str]:
    """What the bounds rest on.

    Args:
        settings: The `settings()` of bounds.
    """
    if settings["mode"] == "tuned":
        return [
            "b_c and b_g were tuned on the observations of Calibrate, as in the paper's "
            "experiments: the bounds carry no proven probability",
            "they hold where |g - mu_bar_g| <= b_g sigma_rms and |c - mu_bar_c| <= b_c sigma_rms",
        ]
    if settings["mode"] == "credible":
        return [
            "cost and quality are draws of Gaussian processes whose rho, amplitude and scale of "
            "costs were fitted to the observations; 0/1 answers are not Gaussian: the bounds carry "
            "no proven probability",
            f"they are the mean -+ {settings['b']:g} standard deviations, half as many again when "
            f"nothing is left to improve, at most {settings['widenings']} times; "
            f"{settings['b_certify']:g} between the mean and U_g",
        ]
    names = ("R_c", "R_g", "B_c", "B_g", "delta", "cost_unit")
    R_c, R_g, B_c, B_g, delta, cost_unit = (settings[name] for name in names)
    rho = settings.get("rho")
    whose = "of every query's" if rho is None else f"in the joint kernel with rho={rho:g} of the"
    return [
        f"observation noise is conditionally sub-Gaussian with R_c={R_c:g} cost units, "
        f"R_g={R_g:g} (ass:observation)",
        f"the RKHS norm {whose} cost is at most B_c={B_c:g} cost units, of the constraint at most "
        f"B_g={B_g:g} (ass:rkhs)",
        f"one cost unit is {cost_unit:g} USD",
        f"then all bounds hold together with probability at least 1 - {delta:g} (cla:bounds)",
    ]


def _of_sequences(delta: float, flips: float) -> list[str]:
    """What "certified" rests on then."""
    if flips == 0:
        noise = "the same call is always answered the same"
    elif flips < 0.5:
        noise = f"are 0 or 1, each otherwise than usually with probability at most {flips:g}"
    else:
        noise = "vary independently from call to call"
    return [
        f"with probability at least 1 - {delta:g}, whatever costs and qualities are, every "
        "configuration certified has an average quality over these queries of at least s_0",
        f"if outcomes lie in [0, 1], do not depend on the order of the calls, and {noise}",
    ]
