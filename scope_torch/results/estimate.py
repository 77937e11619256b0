"""Average cost and quality of a configuration on the queries searched on, and how sure they are.

Every `Estimate` says in `basis` what its interval means. From the best evidence to the least:

| evidence | value | interval |
| --- | --- | --- |
| all Q queries answered | their average | that value, if answers do not change |
| theta_0 | its average, as measured or given | that value; of a sample, as in the last row |
| certified by sequence | the model's mean | see below; each end with probability 1 - delta |
| bounds of the model | its mean after the search, or the answers' | its bounds: no probability |
| some queries answered | average of the answers | all other answers 0, or all 1: certain |

Bounds of the model are about the answers given. If answers vary from call to call, two standard
errors of that are added at each end, by all answers that were asked for again.

An interval never says more than the last row excludes. With `certificate=sequence` the betting
sequence that certified theta_out is asked again, for the largest threshold that it certifies with
the candidate's share of delta: this is the lower end. The upper end is the same with 1 - quality in
the place of quality. Thresholds hold all at once, see `scope_torch.search.front`, so looking for
the largest costs nothing. If answers flip, the certificate says only that the expected quality is
at least s_0, and there is no upper end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import stdev
from typing import Any, NamedTuple

from scope_torch.constraints import COST, QUALITY
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import level, plain
from scope_torch.search.averages import AllAverages
from scope_torch.search.front import FrontRow, FrontTable, Interval, turns
from scope_torch.search.optimizer import Recommendation, TraceRow

_ROUNDING = 1e-12
_LATENCY = "latency_s"
MODEL = "bounds of the model, no probability"
REFERENCE = "the reference"


class Estimate(NamedTuple):
    """A number with an interval.

    Attributes:
        value: Best guess; None if nothing is known.
        lower: Lower end of the interval; None if unknown.
        upper: Upper end of the interval; None if unknown.
        basis: What the interval means.

    Examples:
        >>> print(Estimate(0.9667, 0.9477, 1.0, "certified with 95% confidence"))
        0.967 (0.947 to 1, certified with 95% confidence)
        >>> print(Estimate(0.5, 0.5, 0.5, "all 40 queries answered"))
        0.5 (all 40 queries answered)
    """

    value: float | None
    lower: float | None = None
    upper: float | None = None
    basis: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left to guess."""
        return self.value is not None and self.lower == self.value == self.upper

    @property
    def interval_in_words(self) -> str:
        """Its ends, rounded to the safe side; "" if both are unknown."""
        if self.lower is None and self.upper is None:
            return ""
        if self.upper is None:
            return f"at least {plain(self.lower or 0.0, side='down')}"
        if self.lower is None:
            return f"at most {plain(self.upper, side='up')}"
        return f"{plain(self.lower, side='down')} to {plain(self.upper, side='up')}"

    def __str__(self) -> str:
        interval = "" if self.is_exact else self.interval_in_words
        about = ", ".join(part for part in (interval, self.basis) if part)
        value = "unknown" if self.value is None else plain(self.value)
        return f"{value} ({about})" if about else value


class Evidence:
    """What the observations, the trace and the model say of each configuration.

    Args:
        problem: What was searched.
        history: All observations.
        trace: The changes in the search.
        report: Values that the method recorded.
        front: See `front_of`; None if the problem has further constraints.
        known: Observations of earlier searches.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> evidence = Evidence(problem, result.history, result.trace, result.report, result.front)
        >>> print(evidence.quality(problem.theta_ref))
        0.45 (the reference)
    """

    def __init__(
        self,
        problem: SelectionProblem,
        history: History,
        trace: Sequence[TraceRow],
        report: Mapping[str, Any],
        front: FrontTable | None,
        known: Sequence[Observation] = (),
    ) -> None:
        self.problem, self.history, self.trace, self.report = problem, history, trace, report
        self.answers = AllAverages(problem.num_queries)
        self._of: dict[tuple[int, ...], list[Observation]] = {}
        self._known_thetas = {observation.theta for observation in known} | set(
            problem.offered or ()  # their answers are not in a random order of all queries
        )
        for observation in (*known, *history):
            self.answers.add(observation)
            self._of.setdefault(observation.theta, []).append(observation)
        self.tried = {row.theta_cand for row in trace}
        self.answers_vary = self.answers.vary(report)
        self.last: dict[tuple[int, ...], TraceRow] = {}
        for row in trace:
            if row.theta_cand is not None and row.upper_c_usd is not None:
                self.last[row.theta_cand] = row
        self._rows: dict[tuple[int, ...], FrontRow] = {}
        for row in () if front is None else (*front.by_loss, *front.points, front.choice):
            if row is not None and row.cost_interval is not None:
                self._rows[row.theta] = row

    def num_answered(self, theta: tuple[int, ...]) -> int:
        """Queries that the configuration has answered, of those searched on."""
        return self.problem.num_queries - self.answers[theta].num_left

    def is_known(self, theta: tuple[int, ...]) -> bool:
        """Whether its averages are known: all queries answered, and answers do not change."""
        return self.answers[theta].num_left == 0 and not self.answers_vary

    def is_feasible(self, theta: tuple[int, ...]) -> bool:
        """Whether it is known on all queries, and its averages satisfy every constraint."""
        if not self.is_known(theta):
            return False
        grades: dict[int, list[tuple[float, ...]]] = {}
        for o in self._of[theta]:
            grades.setdefault(o.query, []).append(self.problem.grades(o))
        of_query = [[math.fsum(v) / len(v) for v in zip(*g, strict=True)] for g in grades.values()]
        means = [math.fsum(column) / len(column) for column in zip(*of_query, strict=True)]
        return max(self.problem.violations(means)) <= _ROUNDING

    def runs(self, theta: tuple[int, ...]) -> Sequence[Observation]:
        """Its observations, of earlier searches too."""
        return self._of.get(theta, [])

    @cached_property
    def measured(self) -> list[str]:
        """The other outcomes that tell something: of the constraints, and the latency if known."""
        both = ((limit.outcome, limit.name) for limit in self.problem.others)
        names = dict.fromkeys(name for pair in both for name in pair)
        known = any(o.outcome(_LATENCY) is not None for of in self._of.values() for o in of)
        names |= dict.fromkeys([_LATENCY] if known else [])
        return [name for name in names if name not in (QUALITY, COST)]

    def outcome(self, theta: tuple[int, ...], name: str) -> float | None:
        """Its average of an outcome, in its unit, on the queries answered; None if unknown.

        Where `name` is that of a constraint: of what counts for it, so at most its cap; for one on
        a quantile the share of its runs that are within the bound.
        """
        if theta == self.problem.theta_ref and name in self.problem.reference_outcomes:
            return self.problem.reference_outcomes[name]
        limit = {limit.name: limit for limit in self.problem.others}.get(name)
        of_query: dict[int, list[float]] = {}
        for o in self._of.get(theta, ()):
            value = o.outcome(name if limit is None else limit.outcome)
            if limit is not None and (value is not None or o.failed is not None):
                value = limit.of(o)
            if value is not None:
                of_query.setdefault(o.query, []).append(value)
        means = [math.fsum(values) / len(values) for values in of_query.values()]
        return math.fsum(means) / len(means) if means else None

    def quality(self, theta: tuple[int, ...]) -> Estimate:
        """Its average quality on the queries searched on, in [0, 1]."""
        answers, row = self.answers[theta], self._rows.get(theta)
        if theta == self.problem.theta_ref:
            return self._of_reference(self.problem.reference_quality, 1.0)
        if self.is_known(theta):
            return _exactly(answers.quality, self._counted(theta))
        n, Q = self.num_answered(theta), self.problem.num_queries
        mean, sure = answers.quality if n else None, self._sure_quality(theta)
        return _estimate(row.quality if row else mean, sure, self._model_quality(theta), n, Q)

    def cost_usd(self, theta: tuple[int, ...]) -> Estimate:
        """Its average cost in USD of the queries searched on."""
        answers, row = self.answers[theta], self._rows.get(theta)
        if theta == self.problem.theta_ref:
            return self._of_reference(self.problem.reference_cost_usd, math.inf)
        if self.is_known(theta):
            return _exactly(answers.cost_usd, self._counted(theta))
        n, Q = self.num_answered(theta), self.problem.num_queries
        least = answers.cost_usd * n / Q if n and not self.answers_vary else 0.0
        mean = answers.cost_usd if n else None
        model = self._model_cost(theta)
        return _estimate(row.cost_usd if row else mean, (least, math.inf), model, n, Q)

    def _of_reference(self, value: float, most: float) -> Estimate:
        """An average of theta_0, whose answers are in [0, most]."""
        n, Q = self.problem.reference_queries, self.problem.num_queries
        if n is None:
            return _exactly(value, REFERENCE)
        sure = (
            (0.0, most) if self.answers_vary else (value * n / Q, (value * n + most * (Q - n)) / Q)
        )
        return _estimate(value, sure, None, n, Q)

    def reference_error(self, answers: Sequence[Observation], changed: bool) -> float:
        """Standard error of c(theta_0) in USD, if answers are a sample, or vary; 0 if it is known.

        Args:
            answers: Of theta_0, one to each query that was asked.
            changed: Whether second answers of theta_0 were others: they cost something else, too.
        """
        n, of_all = len(answers), self.problem.reference_queries is None
        if of_all and n:
            of_cost, _ = self.answers.deviations(self.report)
            return self.problem.reference_cost_usd * of_cost / math.sqrt(n)
        share = 0.0 if changed else n / self.problem.num_queries
        costs = [one.cost_usd for one in answers]
        return stdev(costs) * math.sqrt((1 - share) / n) if n > 1 else 0.0

    def quality_of_choice(self, out: Recommendation) -> Estimate:
        """The quality of theta_out, with the interval that its certificate gives."""
        found = self.quality(out.theta)
        if out.basis != "certified" or found.is_exact or self.problem.objective == "quality":
            return found
        if self.report.get("certificate") == "population":
            return found  # it speaks of tomorrow's queries
        s_0, delta = self.problem.s_0, self.report.get("delta")
        lower, upper = self._sure_quality(out.theta)
        if self.report.get("certificate") == "sequence" and not self.answers_vary:
            ends = self._by_sequences(out.theta)
            lower, upper = max(lower, ends[0]), min(upper, ends[1])
        lower = max(s_0, lower)
        upper = max(lower, upper)
        value = s_0 if found.value is None else min(max(found.value, lower), upper)
        with_delta = "" if delta is None else f" with {level(delta)} confidence"
        return Estimate(value, lower, upper, "certified" + with_delta)

    def cost_of_choice(self, out: Recommendation) -> Estimate:
        """The cost of theta_out: its own answers count, not the model's mean.

        They are compared with theta_0's on the same queries: the ratio, times c(theta_0).
        """
        found, reference = self.cost_usd(out.theta), self.problem.reference_answers
        queries = {answer.query for answer in self._of.get(out.theta, ())}
        if found.is_exact or out.theta == self.problem.theta_ref or reference is None:
            return found
        theirs = math.fsum(reference[query][0] for query in queries)
        if not theirs:
            return found
        own = self.answers[out.theta].cost_usd * len(queries)
        value = self.problem.reference_cost_usd * own / theirs
        lower, upper = found.lower or 0.0, found.upper
        return found._replace(
            value=value,
            lower=min(lower, value),
            upper=None if upper is None else max(upper, value),
        )

    def _sure_quality(self, theta: tuple[int, ...]) -> Interval:
        """Bounds that hold whatever the open queries are answered."""
        return self.answers.sure_quality(theta, self.answers_vary)

    @cached_property
    def turns(self) -> list[tuple[tuple[int, ...], list[float]]]:
        """The candidates with their qualities, see `scope_torch.search.front.turns`."""
        return list(turns(self.trace, self.history, self._known_thetas))

    def _by_sequences(self, theta: tuple[int, ...]) -> Interval:
        """The ends that the betting sequences of theta, as the k-th candidate, certify."""
        from scope_torch.bounds.betting import largest_threshold, share_of_delta  # slow to import

        lower, upper, Q = 0.0, 1.0, self.problem.num_queries
        for k, (candidate, qualities) in enumerate(self.turns, 1):
            if candidate == theta:
                share = share_of_delta(k, self.report["delta"])
                lower = max(lower, largest_threshold(qualities, Q, share))
                upper = min(upper, 1 - largest_threshold([1 - q for q in qualities], Q, share))
        return lower, upper

    def _counted(self, theta: tuple[int, ...]) -> str:
        n, Q = self.num_answered(theta), self.problem.num_queries
        return f"all {Q} queries answered" if n == Q else f"{n} of {Q} queries answered"

    def _model_quality(self, theta: tuple[int, ...]) -> Interval | None:
        """Bounds of the model: after the search if the front has them, else of its last turn."""
        row, last = self._rows.get(theta), self.last.get(theta)
        if row is not None:
            return row.quality_interval
        if last is None:
            return None
        _, luck = self.answers.luck(theta, self.answers.deviations(self.report))
        if self.problem.objective == "quality":  # of 1 - quality
            return _both(last.lower_c_usd, last.upper_c_usd, luck, 1.0)
        s_0 = self.problem.s_0
        return None if self.problem.others else _both(last.lower_g, last.upper_g, luck, s_0)

    def _model_cost(self, theta: tuple[int, ...]) -> Interval | None:
        row, last = self._rows.get(theta), self.last.get(theta)
        if row is not None:
            return row.cost_interval
        if last is None or self.problem.objective == "quality":
            return None
        luck, _ = self.answers.luck(theta, self.answers.deviations(self.report))
        return _both(last.lower_c_usd, last.upper_c_usd, luck)


def savings_of(
    cost: Estimate, reference_usd: float, ends: tuple[float, float] | None = None
) -> Estimate:
    """1 - cost / reference: the saving as a fraction, below 0 if it costs more.

    Args:
        cost: Average cost of a query in USD.
        reference_usd: c(theta_0) in USD.
        ends: What it may be, if it is an estimate; None if it is known.

    Examples:
        >>> print(savings_of(Estimate(0.25, 0.2, 0.4, "10 of 40 queries answered"), 1.0))
        0.75 (0.6 to 0.8, 10 of 40 queries answered)
    """

    def saved(usd: float | None, of_usd: float) -> float | None:
        return None if usd is None or not of_usd > 0 else 1 - usd / of_usd

    if cost.is_exact and cost.basis == REFERENCE:
        ends = None  # compared with itself
    low, high = ends or (reference_usd, reference_usd)
    values = saved(cost.value, reference_usd), saved(cost.upper, low), saved(cost.lower, high)
    return Estimate(*values, cost.basis)


def _exactly(value: float, basis: str) -> Estimate:
    return Estimate(value, value, value, basis)


def _both(
    lower: float | None, upper: float | None, luck: float, minus_from: float | None = None
) -> Any:
    """An interval, wider by `luck`, or that of `minus_from` - x; None if an end is unknown."""
    if lower is None or upper is None:
        return None
    lower, upper = lower - luck, upper + luck
    return (lower, upper) if minus_from is None else (minus_from - upper, minus_from - lower)


def _estimate(
    value: float | None, sure: Interval, model: Interval | None, num_answered: int, Q: int
) -> Estimate:
    """The value and the bounds of the model, moved into what is sure.

    Args:
        value: None if nothing was observed.
        sure: What the answers alone say; the upper end may be infinite.
        model: Bounds of the model, if there are any.
        num_answered: Queries answered.
        Q: Of so many.
    """
    answered, (lower, upper) = f"{num_answered} of {Q} queries answered", sure
    if model is not None:
        lower, upper = (min(max(end, sure[0]), sure[1]) for end in model)
        answered = f"{MODEL}; {answered}"
    if value is not None:
        value = min(max(value, lower), upper)
    return Estimate(value, lower, upper if math.isfinite(upper) else None, answered)
