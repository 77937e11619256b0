"""Constraints on averages of what a run of the system yields: quality, latency, tokens, safety.

| symbol | here | unit |
| --- | --- | --- |
| an outcome of one run, such as its latency | `Observation.outcome` | its own, such as s |
| y, what counts of it | `Constraint.counted` | likewise; 1 if a quantile is bounded |
| [low, high], the range of y | `Constraint.low`, `Constraint.high` | likewise |
| x in [0, 1], its grade: 1 is best | `Constraint.grade` | 1 |
| tau, the least average grade | `Constraint.threshold` | 1 |
| g = tau - average x, at most 0 if the constraint holds (problem-main) | | 1 |

A grade makes all constraints alike. That of quality is quality itself, so g is that of the paper.
`p95(latency_s) <= 8` says that at least 95% of the runs take at most 8 s. This bounds an average
too: y is 1 for such a run and 0 for another one, and the least average is 0.95.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.observation import Observation

QUALITY, COST = "quality", "cost_usd"
Kind = Literal[">=", "<="]
_OUTSIDE = 1e-6  # of the range, as for a quality: the cosine similarity 1.0000002 of float32
_ROUNDING = 1e-12  # of an average grade: one of exactly tau is enough, as for certificates
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NAME = r"[^\W\d]\w*"
_OF_NAME = "letters, digits and _ alone, a digit not first"
_TEXT = re.compile(
    rf"\s*(?:p(?P<percent>\d+\.?\d*)\(\s*)?(?P<outcome>{_NAME})(?(percent)\s*\))"
    rf"\s*(?P<kind><=|>=)\s*(?P<value>{_NUMBER})"
    rf"(?P<relative>\s*\*\s*reference)?(?:\s+cap\s+(?P<cap>{_NUMBER}))?"
    rf"(?:\s+in\s+\[\s*(?P<low>{_NUMBER})\s*,\s*(?P<high>{_NUMBER})\s*\])?\s*"
)
_FORM = "latency_s <= 2 cap 10, p95(latency_s) <= 8, safety >= 0.99, or quality >= 0.95 * reference"


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
        per_run: For a quantile: what a run must keep, as ("<=", 8.0), in units of the outcome.
            What is averaged is then 1 for a run that does, else 0, and `value` is the least share
            of such runs. None: the outcome itself is averaged.

    Raises:
        InputError: If the bound is outside the range, or the range is empty.

    Examples:
        >>> print(at_most("latency_s", 2, cap=10))
        latency_s <= 2 cap 10
        >>> Constraint.parse("latency_s <= 2 cap 10") == at_most("latency_s", 2, cap=10)
        True
        >>> at_most("latency_s", 2, cap=10).grade(4.0), at_most("latency_s", 2, cap=10).threshold
        (0.6, 0.8)
        >>> tail = Constraint.parse("p95(latency_s) <= 8")
        >>> tail.grade(4.0), tail.grade(9.0), tail.threshold
        (1.0, 0.0, 0.95)
    """

    outcome: str
    kind: Kind
    value: float
    is_relative: bool = False
    low: float = 0.0
    high: float = 1.0
    is_cap: bool = False
    per_run: tuple[Kind, float] | None = None

    def __post_init__(self) -> None:
        numbers = self.value, self.low, self.high, *(self.per_run or ())[1:]
        if not re.fullmatch(_NAME, self.outcome):
            raise InputError(f"outcome={self.outcome!r} must be a name of {_OF_NAME}, as latency_s")
        if not all(map(math.isfinite, numbers)) or self.low >= self.high:
            raise InputError(
                f"{self}: the value and the range must be numbers, and the range not empty"
            )
        if self.per_run is not None and not 0 < self.value < 1:
            raise InputError(f"{self}: a quantile must lie between p0 and p100, and be neither")
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
            raise InputError(
                f"constraint {text!r}: write it as {_FORM}; the name of an outcome has {_OF_NAME}"
            )
        if match["kind"] == ">=" and match["cap"] is not None:
            raise InputError(f"constraint {text!r}: only <= takes a cap; write in [low, high]")
        numbers = "value", "cap", "low", "high", "percent"
        told = {name: float(match[name]) for name in numbers if match[name] is not None}
        value = told["value"]
        bound, factor = (None, value) if match["relative"] else (value, None)
        within = (told["low"], told["high"]) if "low" in told else None
        quantile = told["percent"] / 100 if "percent" in told else None
        kind = ">=" if match["kind"] == ">=" else "<="
        return _made(match["outcome"], kind, bound, factor, within, told.get("cap"), quantile)

    def __str__(self) -> str:
        if self.per_run is not None:
            kind, bound = self.per_run
            percent = 100 * (self.value if kind == "<=" else 1 - self.value)
            short = f"{percent:.10f}".rstrip("0").rstrip(".")
            return f"p{short}({self.outcome}) {kind} {bound:.12g}"
        reference = " * reference" if self.is_relative else ""
        text = f"{self.outcome} {self.kind} {self.value:.12g}{reference}"
        if self.is_cap:
            return f"{text} cap {self.high:.12g}"
        if (self.low, self.high) != (0.0, 1.0):
            return f"{text} in [{self.low:.12g}, {self.high:.12g}]"
        return text

    @property
    def name(self) -> str:
        """What its average is called in `reference_outcomes`, tables and files.

        The outcome; for a quantile, whose average is a share of runs, the text of the constraint.
        """
        return self.outcome if self.per_run is None else str(self)

    @property
    def is_share(self) -> bool:
        """Whether its average is a share of runs, in the place of an outcome."""
        return self.per_run is not None

    @property
    def threshold(self) -> float:
        """Tau, the least average grade.

        Raises:
            InputError: If the constraint is relative; see `resolved`.
        """
        if self.is_relative:
            raise InputError(f"{self}: theta_0's average {self.outcome} is not known")
        return self._grade(self.value)

    def of(self, run: Observation) -> float:
        """What counts of a run; the worst if it failed and has no such outcome.

        Raises:
            InputError: If the outcome is missing or outside its range.
        """
        outcome, where = run.outcome(self.outcome), f"theta={list(run.theta)}, query={run.query}"
        if outcome is None and run.failed is None:
            known = [QUALITY, COST, *(run.outcomes or ())]
            raise InputError(
                f"{where}: no {self.outcome!r} was observed, which the constraint {self} needs, "
                f"but {known}"
            )
        try:
            return self.outcome_of(0.0) if outcome is None else self.counted(outcome)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def counted(self, outcome: float) -> float:
        """What counts of an outcome: no more than the cap, or whether a run keeps its bound.

        Raises:
            InputError: If the outcome is outside its range.
        """
        return self._checked(outcome) if self.per_run is None else float(self._keeps(outcome))

    def counted_all(self, outcomes: Any) -> Any:
        """`counted` of an array or tensor of outcomes (float64), whose range nobody checks.

        NaN, of what was never recorded, stays NaN.
        """
        if self.per_run is None:
            return outcomes.clip(max=self.high) if self.is_cap else outcomes
        return self._keeps(outcomes) + 0.0 * outcomes

    def _keeps(self, outcome: Any) -> Any:
        """Whether an outcome, or each of an array, is within the bound of a run."""
        assert self.per_run is not None
        kind, bound = self.per_run
        return outcome <= bound if kind == "<=" else outcome >= bound

    def _checked(self, number: float) -> float:
        """A number that counts, at most the cap, if it is in the range but for rounding."""
        margin = _OUTSIDE * (self.high - self.low)
        in_range = self.low - margin <= number <= self.high + margin
        if not (in_range or (self.is_cap and number > self.high)):
            raise InputError(
                f"{self.name}={number} must lie in [{self.low:g}, {self.high:g}], the range of "
                f"the constraint {self}" + (" (more counts as its cap)" if self.is_cap else "")
            )
        return min(max(number, self.low), self.high)

    def grade(self, outcome: float) -> float:
        """X in [0, 1] of the outcome of a run, in units of the outcome.

        Raises:
            InputError: If the outcome is outside its range.
        """
        return self._grade(self.counted(outcome))

    def grade_of(self, average: float) -> float:
        """X in [0, 1] of an average of what counts.

        Raises:
            InputError: If it is outside the range.
        """
        return self._grade(self._checked(average))

    def _grade(self, average: float) -> float:
        if self.kind == ">=":
            # Quality is its own grade, to the last bit.
            return (average - self.low) / (self.high - self.low)
        return (self.high - average) / (self.high - self.low)

    def outcome_of(self, grade: float) -> float:
        """The average of what counts that has the grade; the inverse of `grade_of`."""
        width = (self.high - self.low) * grade
        return self.low + width if self.kind == ">=" else self.high - width

    def violation(self, average: float) -> float:
        """By how much an average of what counts violates the bound, relative to it.

        0 if the constraint holds. Relative to the width of the range where the bound is 0.
        """
        if self.holds(average):
            return 0.0
        return abs(average - self.value) / (abs(self.value) or self.high - self.low)

    def holds(self, average: Any) -> Any:
        """Whether an average of what counts keeps the bound, but for rounding; not if it is NaN.

        Args:
            average: In units of the outcome; also a tensor of averages.
        """
        excess = self.value - average if self.kind == ">=" else average - self.value
        return excess <= _ROUNDING * (self.high - self.low)

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
    quantile: float | None = None,
) -> Constraint:
    """The average of an outcome, or a quantile, must be at least a value.

    Args:
        outcome: `quality`, or the name of one of `Observation.outcomes`.
        value: In units of the outcome.
        relative_to_reference: Instead of `value`: a factor of theta_0's average.
        within: The range of the outcome; None for [0, 1].
        quantile: Bounds this quantile, in (0, 1): at most this share of the runs has less than
            `value`. It needs no range. None bounds the average.

    Raises:
        InputError: If not exactly one of `value` and `relative_to_reference` is given, or the
            value is outside the range.

    Examples:
        >>> print(at_least("quality", relative_to_reference=0.95))
        quality >= 0.95 * reference
        >>> print(at_least("score", 3, quantile=0.05))
        p5(score) >= 3
    """
    return _made(outcome, ">=", value, relative_to_reference, within, None, quantile)


def at_most(
    outcome: str,
    value: float | None = None,
    *,
    relative_to_reference: float | None = None,
    within: tuple[float, float] | None = None,
    cap: float | None = None,
    quantile: float | None = None,
) -> Constraint:
    """The average of an outcome, or a quantile, must be at most a value.

    Args:
        outcome: `cost_usd`, or the name of one of `Observation.outcomes`.
        value: In units of the outcome.
        relative_to_reference: Instead of `value`: a factor of theta_0's average.
        within: The range of the outcome; None for [0, 1].
        cap: Instead of `within`, for an outcome from 0 up without a largest value, such as a
            latency: more than the cap counts as the cap. The constraint, and everything that is
            certified of it, is about the average of min(outcome, cap).
        quantile: Bounds this quantile, in (0, 1): at least this share of the runs has at most
            `value`. It needs no cap or range. None bounds the average.

    Raises:
        InputError: If not exactly one of `value` and `relative_to_reference` is given, both `cap`
            and `within` are, or the value is outside the range.

    Examples:
        >>> print(at_most("output_tokens", relative_to_reference=1.2, cap=4000))
        output_tokens <= 1.2 * reference cap 4000
        >>> print(at_most("latency_s", 8, quantile=0.95))
        p95(latency_s) <= 8
    """
    return _made(outcome, "<=", value, relative_to_reference, within, cap, quantile)


def _made(
    outcome: str,
    kind: Kind,
    value: float | None,
    factor: float | None,
    within: tuple[float, float] | None,
    cap: float | None,
    quantile: float | None,
) -> Constraint:
    if quantile is not None:
        if value is None or any(one is not None for one in (factor, within, cap)):
            raise InputError(
                f"a quantile of {outcome}: a run is within the bound or not, so bound it by a "
                f"number, without * reference, cap or range, as p95({outcome}) {kind} 8"
            )
        share = round(quantile if kind == "<=" else 1 - quantile, 12)  # 1 - 0.05 has 17 digits
        return Constraint(outcome, ">=", share, per_run=(kind, float(value)))
    if cap is not None and within is not None:
        raise InputError(f"{outcome}: give cap={cap} or within={within}, not both")
    if (value is None) == (factor is None):
        raise InputError(
            f"{outcome}: give either a value or relative_to_reference, got {value} and {factor}"
        )
    bound, is_relative = (factor or 0.0, True) if value is None else (value, False)
    low, high = map(float, (0.0, cap) if cap is not None else within or (0.0, 1.0))
    return Constraint(outcome, kind, float(bound), is_relative, low, high, cap is not None)
