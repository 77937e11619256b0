"""Constraints on averages of what a run of the system yields: quality, latency, tokens, safety.

| symbol | here | unit |
| --- | --- | --- |
| y, an outcome of one run, such as its latency | `Observation.outcomes` | its own, such as s |
| [low, high], its range | `Constraint.low`, `Constraint.high` | likewise |
| x in [0, 1], its grade: 1 is best | `Constraint.grade` | 1 |
| tau, the least average grade | `Constraint.threshold` | 1 |
| g = tau - average x, at most 0 if the constraint holds (problem-main) | | 1 |

A grade makes all constraints alike. That of quality is quality itself, so g is that of the paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scope_torch.errors import InputError

QUALITY, COST = "quality", "cost_usd"
Kind = Literal[">=", "<="]
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TEXT = re.compile(
    rf"\s*(?P<outcome>[A-Za-z_]\w*)\s*(?P<kind><=|>=)\s*(?P<value>{_NUMBER})"
    rf"(?P<relative>\s*\*\s*reference)?(?:\s+cap\s+(?P<cap>{_NUMBER}))?"
    rf"(?:\s+in\s+\[\s*(?P<low>{_NUMBER})\s*,\s*(?P<high>{_NUMBER})\s*\])?\s*"
)
_FORM = "latency_s <= 2 cap 10, safety >= 0.99, or quality >= 0.95 * reference"


@dataclass(frozen=True)
class Constraint:
    """A bound on the average of an outcome over the queries; made by `at_least` and `at_most`.

    Args:
        outcome: `quality`, `cost_usd`, or the name of one of `Observation.outcomes`.
        kind: `>=` or `<=`.
        value: The bound, in units of the outcome; or the factor of theta_0's average.
        is_relative: Whether `value` is that factor.
        low: Least possible outcome.
        high: Largest possible outcome, or the largest that counts.
        is_cap: Whether a larger outcome counts as `high`; otherwise it is refused.

    Raises:
        InputError: If the bound is outside the range, or the range is empty.

    Examples:
        >>> print(at_most("latency_s", 2, cap=10))
        latency_s <= 2 cap 10
        >>> Constraint.parse("latency_s <= 2 cap 10") == at_most("latency_s", 2, cap=10)
        True
        >>> at_most("latency_s", 2, cap=10).grade(4.0), at_most("latency_s", 2, cap=10).threshold
        (0.6, 0.8)
    """

    outcome: str
    kind: Kind
    value: float
    is_relative: bool = False
    low: float = 0.0
    high: float = 1.0
    is_cap: bool = False

    def __post_init__(self) -> None:
        numbers = self.value, self.low, self.high
        if not re.fullmatch(r"[A-Za-z_]\w*", self.outcome):
            raise InputError(
                f"outcome={self.outcome!r} must be a name of letters, digits and _, as latency_s"
            )
        if not all(map(math.isfinite, numbers)) or self.low >= self.high:
            raise InputError(
                f"{self}: the value and the range must be numbers, and the range not empty"
            )
        if self.is_relative and not self.value > 0:
            raise InputError(f"{self}: the factor of theta_0's average must be positive")
        if not self.is_relative and not self.low <= self.value <= self.high:
            raise InputError(
                f"{self}: the bound must lie in the range [{self.low:g}, {self.high:g}] of "
                f"{self.outcome}; widen the range by within=, or say by cap= how much counts"
            )

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """A constraint from its text; the inverse of `str`.

        Raises:
            InputError: If the text is no constraint.
        """
        match = _TEXT.fullmatch(text)
        if not match:
            raise InputError(f"constraint {text!r}: write it as {_FORM}")
        value, relative = float(match["value"]), match["relative"] is not None
        cap = None if match["cap"] is None else float(match["cap"])
        within = None if match["low"] is None else (float(match["low"]), float(match["high"]))
        bound, factor = (None, value) if relative else (value, None)
        if match["kind"] == ">=":
            if cap is not None:
                raise InputError(f"constraint {text!r}: only <= takes a cap; write in [low, high]")
            return at_least(match["outcome"], bound, relative_to_reference=factor, within=within)
        return at_most(
            match["outcome"], bound, relative_to_reference=factor, within=within, cap=cap
        )

    def __str__(self) -> str:
        reference = " * reference" if self.is_relative else ""
        text = f"{self.outcome} {self.kind} {self.value:.12g}{reference}"
        if self.is_cap:
            return f"{text} cap {self.high:.12g}"
        if (self.low, self.high) != (0.0, 1.0):
            return f"{text} in [{self.low:.12g}, {self.high:.12g}]"
        return text

    @property
    def threshold(self) -> float:
        """Tau, the least average grade.

        Raises:
            InputError: If the constraint is relative; see `resolved`.
        """
        if self.is_relative:
            raise InputError(f"{self}: theta_0's average {self.outcome} is not known")
        return self._grade(self.value)

    def grade(self, outcome: float) -> float:
        """X in [0, 1] of one outcome, in units of the outcome.

        Raises:
            InputError: If the outcome is outside its range.
        """
        if not (self.low <= outcome <= self.high or (self.is_cap and outcome > self.high)):
            raise InputError(
                f"{self.outcome}={outcome} must lie in [{self.low:g}, {self.high:g}], the range of "
                f"the constraint {self}" + (" (more counts as its cap)" if self.is_cap else "")
            )
        return self._grade(min(outcome, self.high))

    def _grade(self, outcome: float) -> float:
        if self.kind == ">=":
            # Quality is its own grade, to the last bit.
            return (outcome - self.low) / (self.high - self.low)
        return (self.high - outcome) / (self.high - self.low)

    def outcome_of(self, grade: float) -> float:
        """The outcome, in its own unit, that has the grade; the inverse of `grade`."""
        width = (self.high - self.low) * grade
        return self.low + width if self.kind == ">=" else self.high - width

    def violation(self, outcome: float) -> float:
        """By how much an average outcome, in its own unit, violates the bound, relative to it.

        0 if the constraint holds. Relative to the width of the range where the bound is 0.
        """
        excess = self.value - outcome if self.kind == ">=" else outcome - self.value
        return max(excess, 0.0) / (abs(self.value) or self.high - self.low)

    def resolved(self, reference: Mapping[str, float]) -> Constraint:
        """This constraint with an absolute bound.

        Args:
            reference: theta_0's average of each outcome, in units of the outcome.

        Raises:
            InputError: If it is relative, and the average is not there or the bound falls outside
                the range.
        """
        if not self.is_relative:
            return self
        if self.outcome not in reference:
            raise InputError(
                f"{self}: theta_0's average {self.outcome} is not known; give it in "
                "reference_outcomes, or write an absolute bound"
            )
        return replace(self, value=self.value * reference[self.outcome], is_relative=False)


def at_least(
    outcome: str,
    value: float | None = None,
    *,
    relative_to_reference: float | None = None,
    within: tuple[float, float] | None = None,
) -> Constraint:
    """The average of an outcome must be at least a value.

    Args:
        outcome: `quality`, or the name of one of `Observation.outcomes`.
        value: In units of the outcome.
        relative_to_reference: Instead of `value`: a factor of theta_0's average.
        within: The range of the outcome; None for [0, 1].

    Raises:
        InputError: If not exactly one of `value` and `relative_to_reference` is given, or the
            value is outside the range.

    Examples:
        >>> print(at_least("quality", relative_to_reference=0.95))
        quality >= 0.95 * reference
    """
    low, high = within or (0.0, 1.0)
    bound, is_relative = _bound(outcome, value, relative_to_reference)
    return Constraint(outcome, ">=", bound, is_relative, float(low), float(high))


def at_most(
    outcome: str,
    value: float | None = None,
    *,
    relative_to_reference: float | None = None,
    within: tuple[float, float] | None = None,
    cap: float | None = None,
) -> Constraint:
    """The average of an outcome must be at most a value.

    Args:
        outcome: `cost_usd`, or the name of one of `Observation.outcomes`.
        value: In units of the outcome.
        relative_to_reference: Instead of `value`: a factor of theta_0's average.
        within: The range of the outcome; None for [0, 1].
        cap: Instead of `within`, for an outcome from 0 up without a largest value, such as a
            latency: more than the cap counts as the cap. The constraint, and everything that is
            certified of it, is about the average of min(outcome, cap).

    Raises:
        InputError: If not exactly one of `value` and `relative_to_reference` is given, both `cap`
            and `within` are, or the value is outside the range.

    Examples:
        >>> print(at_most("output_tokens", relative_to_reference=1.2, cap=4000))
        output_tokens <= 1.2 * reference cap 4000
    """
    if cap is not None and within is not None:
        raise InputError(f"{outcome}: give cap={cap} or within={within}, not both")
    bound, is_relative = _bound(outcome, value, relative_to_reference)
    low, high = (0.0, cap) if cap is not None else (within or (0.0, 1.0))
    return Constraint(
        outcome, "<=", bound, is_relative, float(low), float(high), is_cap=cap is not None
    )


def _bound(outcome: str, value: float | None, factor: float | None) -> tuple[float, bool]:
    if (value is None) == (factor is None):
        raise InputError(
            f"{outcome}: give either a value or relative_to_reference, got {value} and {factor}"
        )
    return (float(value), False) if value is not None else (float(factor or 0.0), True)


def limits_if_cost(
    constraints: Sequence[Constraint], epsilon: float | None, reference: Mapping[str, float]
) -> tuple[Constraint, ...]:
    """All constraints where the cost is minimised, with absolute bounds; that on quality first.

    Args:
        constraints: As given.
        epsilon: Tolerated relative loss of quality; None if one of them is on quality.
        reference: theta_0's average of each outcome.

    Raises:
        InputError: If they do not fit together.
    """
    named = _names(constraints)
    if (QUALITY in named) == (epsilon is not None):
        raise InputError(
            f"epsilon={epsilon}, constraints={_texts(constraints)}: bound the quality either by "
            "epsilon or by a constraint, as quality >= 0.8"
        )
    if COST in named:
        raise InputError(
            f"constraints={_texts(constraints)}: the cost is minimised; set objective=quality to "
            "bound it"
        )
    of_quality = [c for c in constraints if c.outcome == QUALITY]
    if epsilon is not None:
        of_quality = [at_least(QUALITY, relative_to_reference=1 - epsilon)]
    others = [c for c in constraints if c.outcome != QUALITY]
    first, *_ = limits = tuple(c.resolved(reference) for c in (*of_quality, *others))
    is_quality = first.kind == ">=" and (first.low, first.high) == (0.0, 1.0)
    if not is_quality or not 0 < first.value <= reference[QUALITY]:
        raise InputError(
            f"{first}: quality lies in [0, 1], and its bound must be a least value above 0 and at "
            f"most {reference[QUALITY]:g}, the quality of theta_0"
        )
    return limits


def limits_if_quality(
    constraints: Sequence[Constraint], epsilon: float | None, reference: Mapping[str, float]
) -> tuple[Constraint, ...]:
    """As `limits_if_cost`, where the quality is maximised: that on the cost is the first."""
    named = _names(constraints)
    of_cost = [c for c in constraints if c.outcome == COST]
    if epsilon is not None or not of_cost or of_cost[0].kind != "<=":
        leave_out = "" if epsilon is None else f"leave out epsilon={epsilon} (null), and "
        raise InputError(
            f"objective=quality, constraints={_texts(constraints)}: {leave_out}bound the cost of a "
            "query, as cost_usd <= 0.002 cap 0.02"
        )
    if QUALITY in named:
        raise InputError(f"constraints={_texts(constraints)}: the quality is maximised")
    others = [c for c in constraints if c.outcome != COST]
    return tuple(c.resolved(reference) for c in (*of_cost, *others))


def _names(constraints: Sequence[Constraint]) -> list[str]:
    named = [constraint.outcome for constraint in constraints]
    if len(set(named)) < len(named):
        raise InputError(f"constraints={_texts(constraints)}: one for each outcome")
    return named


def _texts(constraints: Sequence[Constraint]) -> list[str]:
    return [str(constraint) for constraint in constraints]
