"""eq:beta-def: the bounds of the paper's theorem.

| symbol | here | unit |
| --- | --- | --- |
| B_c, B_g, bounds on RKHS norms (ass:rkhs) | `B_c`, `B_g` | cost units, quality |
| R_c, R_g, sub-Gaussian constants (ass:observation) | `R_c`, `R_g` | cost units, quality |
| gamma(J_max), information gain | `gain` | nats |
| beta_c, beta_g | `beta` | USD, quality |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from scope_torch.bounds.assumptions import assumptions
from scope_torch.bounds.base import Beta, number_or_rule
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem


class TheoryBounds:
    """eq:beta-def: valid with probability 1 - delta under the paper's assumptions.

    beta = sqrt(Q) (B + R / sqrt(lam) sqrt(2 (gamma(J_max) + log(2 Q / delta)))).

    The 2 stands for cost and constraint. With K constraints it is 1 + K: all bounds hold together.

    `InformationGain` gives this to the letter. `RealisedGain` puts the information I_q in the
    observations of query q in the place of gamma(J_max), which bounds it
    (lem:kernel-self-normalized): |l - mu_bar| <= 1/Q sum_q b_q sigma_q <= sqrt(sum_q b_q^2)
    sigma_bar with b_q = B + R / sqrt(lam) sqrt(2 (I_q + log(2 Q / delta))). These bounds are never
    wider, and need no search for gamma.

    Args:
        problem: Gives Q, and c(theta_0) as the default cost unit.
        gain: gamma(J), or an upper bound on it, for the surrogate's kernel and lambda; or
            `RealisedGain`.
        R_c: Sub-Gaussian constant of the cost noise, in cost units (ass:observation).
        R_g: The same of the quality noise, in units of quality; of every grade.
        B_c: Bound on the RKHS norm of l_c(., q), in cost units (ass:rkhs).
        B_g: The same of l_g(., q), in units of quality; of every constraint, in grades. `eligible`:
            the smallest for which some theta has L_g <= -1 after Calibrate, as in the paper's
            experiments (sec:exp); then nothing is proven. The noise alone is often wide enough,
            and B_g 0.
        delta: Failure probability, in (0, 1).
        cost_unit: USD that count as one cost unit; None for c(theta_0), or for 1 if quality is the
            objective. R_c, B_c and lambda mean
            little in raw USD of order 1e-3.
        rho: None for one process for each query. A number in [0, 1) for the joint process of all
            queries (docs/joint.md): B then bounds its norm, and its noise has variance
            lam (1 - rho).

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
        B_g: float | str = 1.0,
        delta: float = 1e-4,
        cost_unit: float | None = None,
        rho: float | None = None,
    ) -> None:
        if cost_unit is None:
            cost_unit = problem.reference_cost_usd if problem.objective == "cost" else 1.0
        self._rule_g = number_or_rule("B_g", B_g, ("eligible",))
        for name, value in {"B_c": B_c, "cost_unit": cost_unit}.items():
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
        self._num_outputs = 1 + problem.num_constraints
        shared = rho or 0.0
        self._noise = math.sqrt(2 / (gain.lam * (1 - shared)))
        self._prior = (
            1 / problem.num_queries if rho is None else rho + (1 - rho) / problem.num_queries
        )
        self.gain, self.rho = gain, rho
        self.R_c, self.R_g, self.B_c = R_c, R_g, B_c
        self.B_g = 0.0 if isinstance(self._rule_g, str) else self._rule_g
        self._slope: float | None = None  # beta_g that B_g has to give; until it does
        self.delta, self.cost_unit = delta, cost_unit
        self._last = self.beta(0)

    def fit(self, surrogate: Any, least_slope: Callable[[], float]) -> None:  # noqa: ARG002
        """Tunes B_g if it is to be tuned; else the coefficients follow from the assumptions."""
        if isinstance(self._rule_g, str):
            # A little more, so that rounding cannot make the theta that decides it ineligible.
            self._slope = max(0.0, least_slope()) * (1 + 1e-9)

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:
        """beta_{zeta,t} of eq:beta-def; see `ConfidenceBounds.beta`."""
        if isinstance(self.gain, InformationGain):
            gains = [self.gain.gamma(j_max)]
        else:
            gains = information or [0.0]
        union = math.log(self._num_outputs * self._num_processes / self.delta)
        roots = [self._noise * math.sqrt(gain + union) for gain in gains]
        times = self._num_processes / len(gains)
        if self._slope is not None:
            self.B_g = _norm_of(self._slope, times, [self.R_g * root for root in roots])
            self._slope = None
        c, g = (
            math.sqrt(times * math.fsum((B + R * root) ** 2 for root in roots))
            for B, R in ((self.B_c, self.R_c), (self.B_g, self.R_g))
        )
        self._last = Beta(c * self.cost_unit, g)
        return self._last

    def widen(self) -> bool:
        """False: the coefficients follow from the assumptions."""
        return False

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        names = ("R_c", "R_g", "B_c", "delta", "cost_unit")
        values = {name: getattr(self, name) for name in names} | {"B_g": self._rule_g}
        more = {} if self.rho is None else {"rho": self.rho}
        return {"mode": self.mode, "gain": self.gain.name, "lam": self.gain.lam, **values, **more}

    def report(self) -> dict[str, Any]:
        """b_c (USD) and b_g of the last observation, delta and the assumptions."""
        beta = self._last
        return {
            "mode": self.mode,
            "b_c": beta.c * math.sqrt(self._prior),
            "b_g": beta.g * math.sqrt(self._prior),
            **({"B_g": self.B_g} if isinstance(self._rule_g, str) else {}),
            "delta": self.delta,
            "assumptions": assumptions(self.settings()),
        }


def _norm_of(beta: float, times: float, noise: Sequence[float]) -> float:
    """The B >= 0 for which sqrt(times sum_q (B + noise_q)^2) = beta; 0 if the noise is enough."""
    mean = math.fsum(noise) / len(noise)
    spread = math.fsum((value - mean) ** 2 for value in noise) / len(noise)
    return max(0.0, math.sqrt(max(0.0, beta**2 / (times * len(noise)) - spread)) - mean)
