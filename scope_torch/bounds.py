"""Confidence bounds on average cost and constraint (eq:lcb-ours, eq:beta-def)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gpytorch.kernels import Kernel

from scope_torch.confidence_sequence import sequence_assumptions
from scope_torch.errors import InputError
from scope_torch.information_gain import InformationGain, RealisedGain
from scope_torch.kernels import describe_kernel
from scope_torch.problem import SelectionProblem
from scope_torch.surrogate import QuerySurrogate

MIN_LOO_QUERIES = 6
WIDENING = 1.5
RULES_G = ("eligible", "loo", "loo_widening")
RULES_C = ("loo", "reference_fraction")


class Beta(NamedTuple):
    """beta_c in USD and beta_g in units of quality; L, U = mu_bar -+ beta sigma_bar.

    `certify` is the coefficient of U_g; None, as in the paper: beta_g.
    """

    c: float
    g: float
    certify: float | None = None


class ConfidenceBounds(Protocol):
    """The coefficients of the confidence bounds, as a function of the observations.

    b_zeta = beta_zeta / sqrt(Q) is the half-width at a configuration about which nothing is known,
    because the root mean square over queries of sigma_hat is 1 there.
    """

    mode: str

    @property
    def gain(self) -> InformationGain | RealisedGain | None:
        """The information gain they use, for one kernel and lambda; None if they use none."""
        ...

    def fit(self, surrogate: QuerySurrogate, least_slope: Callable[[], float]) -> None:
        """Called once, after Calibrate, before the first selection.

        Args:
            surrogate: The surrogate after Calibrate.
            least_slope: The least beta_g for which some theta has L_g <= -1; costly.
        """
        ...

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:
        """beta_{zeta,t}.

        Args:
            j_max: How often the query observed most often has been observed.
            information: 1/2 log det(I + K / lam) of what was observed, in nats: of every query, or
                of the one process of the joint surrogate.
        """
        ...

    def widen(self) -> bool:
        """Called when no configuration can improve on theta_out any more while budget remains.

        Returns:
            Whether beta_g has grown; it never falls.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """Mode, half-widths and the assumptions under which "certified" holds."""
        ...


class TheoryBounds:
    """eq:beta-def: valid with probability 1 - delta under the paper's assumptions.

    With `InformationGain`, to the letter. With `RealisedGain`, gamma(J_max) gives way to the
    information I_q in what was observed on query q, which lem:kernel-self-normalized bounds it by:
    |l - mu_bar| <= 1/Q sum_q b_q sigma_q <= sqrt(sum_q b_q^2) sigma_bar, b_q = B + R / sqrt(lam)
    sqrt(2 (I_q + log(2 Q / delta))). That is never wider, and needs no search for gamma.

    Args:
        problem: Gives Q, and c(theta_0) as the default cost unit.
        gain: gamma(J), or an upper bound on it, for the surrogate's kernel and lambda; or
            `RealisedGain`.
        R_c: Sub-Gaussian constant of the cost noise, in cost units (ass:observation).
        R_g: The same of the quality noise, in units of quality.
        B_c: Bound on the RKHS norm of l_c(., q), in cost units (ass:rkhs).
        B_g: The same of l_g(., q), in units of quality.
        delta: Failure probability, in (0, 1).
        cost_unit: USD that count as one cost unit; None for c(theta_0). R_c, B_c and lambda mean
            little in raw USD of order 1e-3.
        rho: None for a process for each query; else that of one process for all of them
            (docs/joint.md), whose norm B bounds and whose noise has variance lam (1 - rho).

    Raises:
        InputError: If a value is outside its range.
    """

    mode = "theory"

    def __init__(
        self,
        problem: SelectionProblem,
        gain: InformationGain | RealisedGain,
        *,
        R_c: float = 1e-3,
        R_g: float = 1e-3,
        B_c: float = 1.0,
        B_g: float = 1.0,
        delta: float = 1e-4,
        cost_unit: float | None = None,
        rho: float | None = None,
    ) -> None:
        cost_unit = problem.reference_cost_usd if cost_unit is None else cost_unit
        for name, value in {"B_c": B_c, "B_g": B_g, "cost_unit": cost_unit}.items():
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name}={value} must be a positive number")
        for name, value in {"R_c": R_c, "R_g": R_g}.items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} must be a number >= 0")
        if not 0 < delta < 1:
            raise InputError(f"delta={delta} must lie in (0, 1)")
        if rho is not None and not 0 <= rho < 1:
            raise InputError(f"rho={rho} must lie in [0, 1)")
        if rho is not None and isinstance(gain, InformationGain):
            raise InputError("gain=maximum: gamma is known for single queries; set gain=realised")
        self._num_processes = problem.num_queries if rho is None else 1
        shared = rho or 0.0
        self._noise = math.sqrt(2 / (gain.lam * (1 - shared)))
        self._prior = (
            1 / problem.num_queries if rho is None else rho + (1 - rho) / problem.num_queries
        )
        self.gain, self.rho = gain, rho
        self.R_c, self.R_g, self.B_c, self.B_g = R_c, R_g, B_c, B_g
        self.delta, self.cost_unit = delta, cost_unit
        self._last = self.beta(0)

    def fit(self, surrogate: QuerySurrogate, least_slope: Callable[[], float]) -> None:
        """Nothing is fitted: the coefficients follow from the assumptions."""

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:
        """See eq:beta-def."""
        if isinstance(self.gain, InformationGain):
            gains = [self.gain.gamma(j_max)]
        else:
            gains = information or [0.0]
        union = math.log(2 * self._num_processes / self.delta)
        roots = [self._noise * math.sqrt(gain + union) for gain in gains]
        times = self._num_processes / len(gains)
        c, g = (
            math.sqrt(times * math.fsum((B + R * root) ** 2 for root in roots))
            for B, R in ((self.B_c, self.R_c), (self.B_g, self.R_g))
        )
        self._last = Beta(c * self.cost_unit, g)
        return self._last

    def widen(self) -> bool:
        """Never: the coefficients follow from the assumptions."""
        return False

    def settings(self) -> dict[str, Any]:
        """See `ConfidenceBounds`."""
        names = ("R_c", "R_g", "B_c", "B_g", "delta", "cost_unit")
        values = {name: getattr(self, name) for name in names}
        more = {} if self.rho is None else {"rho": self.rho}
        return {"mode": self.mode, "gain": self.gain.name, "lam": self.gain.lam, **values, **more}

    def report(self) -> dict[str, Any]:
        """See `ConfidenceBounds`; b_c (USD) and b_g are those of the last observation."""
        beta = self._last
        return {
            "mode": self.mode,
            "b_c": beta.c * math.sqrt(self._prior),
            "b_g": beta.g * math.sqrt(self._prior),
            "delta": self.delta,
            "assumptions": assumptions(self.settings()),
        }


class TunedBounds:
    """Half-widths set once after Calibrate, as in the paper's experiments (sec:exp).

    Args:
        problem: Gives Q and c(theta_0).
        b_g: A half-width in units of quality, or a rule: `eligible`, the smallest for which some
            theta has L_g <= -1 at i = 1 (the paper's words taken literally); `loo`, see
            `QuerySurrogate.leave_one_out`, the maximum over configurations; `loo_widening`, the
            same to begin with, and half as much again whenever nothing can improve on theta_out
            any more while budget remains, up to the value of `eligible`.
        b_c: A half-width in USD, or a rule: `loo`; `reference_fraction`, a fraction of c(theta_0).
        reference_fraction: That fraction.

    Raises:
        InputError: If a number is not positive or a rule is unknown.
    """

    mode = "tuned"
    gain = None

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        b_g: float | str = "loo_widening",
        b_c: float | str = "reference_fraction",
        reference_fraction: float = 1 / 30,
    ) -> None:
        self._rule_g = _parse("b_g", b_g, RULES_G)
        self._rule_c = _parse("b_c", b_c, RULES_C)
        self._reference_fraction = positive("reference_fraction", reference_fraction)
        self._num_queries = problem.num_queries
        self._fraction_usd = self._reference_fraction * problem.reference_cost_usd
        self._b: Beta | None = None
        self._widest = 0.0
        self._widened: list[float] = []
        self._how: dict[str, str] = {}

    def fit(self, surrogate: QuerySurrogate, least_slope: Callable[[], float]) -> None:
        """Sets b_c and b_g; see `ConfidenceBounds.fit`."""
        loo = surrogate.leave_one_out(MIN_LOO_QUERIES)
        worst: list[float] | None = loo.amax(1).tolist() if loo.shape[1] else None
        rule_c, rule_g = self._rule_c, self._rule_g
        if worst is None:
            # Without Calibrate, or with fewer queries, there is nothing to leave out.
            rule_c = "reference_fraction" if rule_c == "loo" else rule_c
            rule_g = "eligible" if rule_g in ("loo", "loo_widening") else rule_g
        left_out = (None, None) if worst is None else worst
        by_rule_c = {"loo": left_out[0], "reference_fraction": self._fraction_usd}
        eligible = 0.0
        if rule_g in ("eligible", "loo_widening"):
            # A little more, so that rounding cannot make the theta that decides it ineligible.
            eligible = max(0.0, least_slope() / math.sqrt(self._num_queries)) * (1 + 1e-9)
        by_rule_g = {"eligible": eligible, "loo": left_out[1], "loo_widening": left_out[1]}
        b_c = by_rule_c[rule_c] if isinstance(rule_c, str) else rule_c
        b_g = by_rule_g[rule_g] if isinstance(rule_g, str) else rule_g
        assert b_c is not None
        assert b_g is not None
        self._b = Beta(b_c, b_g)
        self._widest = eligible if rule_g == "loo_widening" else b_g
        self._how = {"b_c": _how(self._rule_c, rule_c), "b_g": _how(self._rule_g, rule_g)}

    def widen(self) -> bool:
        """See `ConfidenceBounds.widen`; only with the rule `loo_widening`."""
        if self._b is None or self._b.g >= self._widest:
            return False
        self._b = self._b._replace(g=min(WIDENING * self._b.g, self._widest))
        self._widened.append(self._b.g)
        return True

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:  # noqa: ARG002
        """See `ConfidenceBounds.beta`; changed by `fit` and `widen` only.

        Raises:
            RuntimeError: Before `fit`.
        """
        if self._b is None:
            raise RuntimeError("beta() before fit(): tuned bounds are set after Calibrate")
        root_q = math.sqrt(self._num_queries)
        return Beta(root_q * self._b.c, root_q * self._b.g)

    def settings(self) -> dict[str, Any]:
        """See `ConfidenceBounds`."""
        return {
            "mode": self.mode,
            "b_g": self._rule_g,
            "b_c": self._rule_c,
            "reference_fraction": self._reference_fraction,
        }

    def report(self) -> dict[str, Any]:
        """See `ConfidenceBounds`; b_c in USD. Both are None if Calibrate was cut short."""
        b = self._b or (None, None)
        return {
            "mode": self.mode,
            "b_c": b[0],
            "b_g": b[1],
            "b_rules": self._how,
            "b_g_widened": list(self._widened),
            "delta": None,
            "assumptions": assumptions(self.settings()),
        }


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
    sequences = sequence_assumptions(settings["sequence_delta"], settings["sequence_flips"])
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


def check_made_for(bounds: ConfidenceBounds, kernel: Kernel, lam: float, num_modules: int) -> None:
    """Raises InputError if the bounds use the information gain of another kernel or lambda."""
    gain = bounds.gain
    if gain is None:
        return
    same = describe_kernel(gain.kernel, num_modules) == describe_kernel(kernel, num_modules)
    if gain.lam != lam or not same:
        raise InputError(
            f"lam={lam}, {type(kernel).__name__} are not what the bounds were made for: "
            f"lam={gain.lam}, {type(gain.kernel).__name__}"
        )


def positive(name: str, value: float | str) -> float:
    """A number as the command line gives it.

    Raises:
        InputError: If it is not one, or not positive.
    """
    return float(_parse(name, value, ()))


def _parse(name: str, value: float | str, rules: tuple[str, ...]) -> float | str:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        if value in rules:
            return value
        known = f" or one of {', '.join(rules)}" if rules else ""
        raise InputError(f"{name}={value!r} must be a positive number{known}") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name}={value} must be a positive number")
    return number


def _how(asked: float | str, used: float | str) -> str:
    if asked == used:
        return str(used) if isinstance(used, str) else "given"
    return f"{used} ({asked} found no configuration with {MIN_LOO_QUERIES} observed queries)"
