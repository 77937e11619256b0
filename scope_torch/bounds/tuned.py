"""Half-widths set after Calibrate, by rules of this project."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from scope_torch.bounds.assumptions import WIDENING, assumptions
from scope_torch.bounds.base import Beta, number_or_rule, positive
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.problem import SelectionProblem

MIN_LOO_QUERIES = 6
RULES_G = ("eligible", "loo", "loo_widening")
RULES_C = ("loo", "reference_fraction")
_LEAST_ERROR = 1e-6


class TunedBounds:
    """Half-widths set once after Calibrate, by rules of this project.

    In the paper's experiments (sec:exp) B_c and B_g of eq:beta-def are tuned before the main loop,
    so that some configuration is eligible at i = 1; it says no more. Here b = beta / sqrt(Q) is set
    as a whole, in the place of eq:beta-def.

    Args:
        problem: Gives Q and c(theta_0).
        b_g: A half-width in units of quality, or a rule. `eligible`: the smallest for which some
            theta has L_g <= -1, the paper's words taken literally. `loo`: the largest
            leave-one-out error, see `QuerySurrogate.leave_one_out`. `loo_widening`: the same at
            first, times 1.5 whenever nothing can improve on theta_out while budget remains, up to
            the value of `eligible`. With several constraints, the last two give each its own
            half-width, the others one for all, in grades.
        b_c: A half-width in USD, or a rule. `loo`: as for b_g. `reference_fraction`: a fraction of
            c(theta_0).
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
        self._rule_g = number_or_rule("b_g", b_g, RULES_G)
        self._rule_c = number_or_rule("b_c", b_c, RULES_C)
        if problem.objective == "quality" and b_c == "reference_fraction":
            self._rule_c = "loo"  # the loss is 1 - quality, and no fraction of a cost
        self._reference_fraction = positive("reference_fraction", reference_fraction)
        self._num_queries = problem.num_queries
        self._fraction_usd = self._reference_fraction * problem.reference_cost_usd
        self._without_loo = "reference_fraction" if problem.objective == "cost" else "one"
        self._b: Beta | None = None
        self._widest = 0.0
        self._widened: list[float] = []
        self._rules: dict[str, str] = {}

    def fit(self, surrogate: QuerySurrogate, least_slope: Callable[[], float]) -> None:
        """Sets b_c and b_g; see `ConfidenceBounds.fit`."""
        loo = surrogate.leave_one_out(MIN_LOO_QUERIES)
        rule_c, rule_g = self._rule_c, self._rule_g
        units: tuple[float, ...] = ()
        if loo.shape[1]:
            loo_c, *each_g = loo.amax(1).tolist()
            loo_g, units = _of_the_first(each_g)
        else:
            # Without Calibrate, or with fewer queries, there is nothing to leave out.
            loo_c = loo_g = math.nan
            rule_c = self._without_loo if rule_c == "loo" else rule_c
            rule_g = "eligible" if rule_g in ("loo", "loo_widening") else rule_g
        eligible = 0.0
        if rule_g in ("eligible", "loo_widening"):
            # A little more, so that rounding cannot make the theta that decides it ineligible.
            eligible = max(0.0, least_slope() / math.sqrt(self._num_queries)) * (1 + 1e-9)
        by_rule_c = {"loo": loo_c, "reference_fraction": self._fraction_usd, "one": 1.0}
        by_rule_g = {"eligible": eligible, "loo": loo_g, "loo_widening": loo_g}
        b_c = by_rule_c[rule_c] if isinstance(rule_c, str) else rule_c
        b_g = by_rule_g[rule_g] if isinstance(rule_g, str) else rule_g
        is_own = isinstance(rule_g, str) and rule_g != "eligible"
        self._b = Beta(b_c, b_g, units=units if is_own else ())
        self._widest = eligible if rule_g == "loo_widening" else b_g
        self._rules = {"b_c": _used(self._rule_c, rule_c), "b_g": _used(self._rule_g, rule_g)}

    def widen(self) -> bool:
        """Makes b_g 1.5 times as large, up to `eligible`; only with the rule `loo_widening`.

        A b_g of 0, where the surrogate was never wrong, becomes that at once.
        """
        if self._b is None or self._b.g >= self._widest:
            return False
        self._b = self._b._replace(g=min(WIDENING * self._b.g or math.inf, self._widest))
        self._widened.append(self._b.g)
        return True

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:  # noqa: ARG002
        """sqrt(Q) b; only `fit` and `widen` change it.

        Raises:
            RuntimeError: Before `fit`.
        """
        if self._b is None:
            raise RuntimeError("beta() before fit(): tuned bounds are set after Calibrate")
        root_q = math.sqrt(self._num_queries)
        return self._b._replace(c=root_q * self._b.c, g=root_q * self._b.g)

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        return {
            "mode": self.mode,
            "b_g": self._rule_g,
            "b_c": self._rule_c,
            "reference_fraction": self._reference_fraction,
        }

    def report(self) -> dict[str, Any]:
        """Half-widths (b_c in USD; None if Calibrate was cut short), rules and assumptions."""
        b = self._b
        units = b.units if b and b.units else ()
        return {
            "mode": self.mode,
            "b_c": None if b is None else b.c,
            "b_g": None if b is None else b.g,
            **({"b_g_units": list(units)} if units else {}),
            "b_rules": self._rules,
            "b_g_widened": list(self._widened),
            "delta": None,
            "assumptions": assumptions(self.settings()),
        }


def _of_the_first(errors: list[float]) -> tuple[float, tuple[float, ...]]:
    """The half-width of the first constraint, and those of all in units of it; none if it is one.

    One that the surrogate knows exactly has a millionth of the largest: a unit is not 0.
    """
    if len(errors) == 1:
        return errors[0], ()
    errors = [max(error, _LEAST_ERROR * max(errors)) for error in errors]
    return errors[0], tuple(error / errors[0] if errors[0] > 0 else 1.0 for error in errors)


def _used(asked: float | str, used: float | str) -> str:
    """The rule that gave a half-width, in words."""
    if asked == used:
        return str(used) if isinstance(used, str) else "given"
    return f"{used} ({asked} found no configuration with {MIN_LOO_QUERIES} observed queries)"
