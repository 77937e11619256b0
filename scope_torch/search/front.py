"""The front after a search: for every loss of quality, the cheapest configuration.

Each row says what it rests on:

| basis | |
| --- | --- |
| `observed` | all Q queries were observed: cost and quality are known averages |
| `certified` | the average is at least the threshold, with probability 1 - delta, see below |
| `reference` | theta_0, whose averages are known beforehand |
| `estimated` | it looks best by the surrogate's means: not certified, at any probability |

A row is `certified` in two cases. theta_out is, for losses down to the epsilon of the search, if
the search certified it. And every candidate of a search with `certificate=sequence` has answers in
random order and a share delta_k of delta: its betting sequence (`BettingSequence`) is asked again
with other thresholds. Let m be its true average. Only thresholds above m can be certified wrongly.
The sequence of a higher threshold never has more capital, so if any is wrong, those just above m
are, which has a probability of at most delta_k. So all thresholds of all candidates hold at once
with probability 1 - delta, theta_out included. If answers vary (`certificate_flips`), neither one
answer for each query nor these sequences say enough: then only theta_out is `certified`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from scope_torch.html_table import html_table
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.averages import AllAverages
from scope_torch.search.failing import uses_any
from scope_torch.search.hypervolume import non_dominated
from scope_torch.search.optimizer import Optimizer, TraceRow
from scope_torch.space import position_of

LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)  # relative to s(theta_0)
_MOST = 10_000_000  # configurations; with more, a look at all of Theta takes seconds
_ROUNDING = 1e-12
_HEAD = "loss", "basis", "USD/query", "quality", "LLMs"

Interval = tuple[float, float]


class Estimates(NamedTuple):
    """What a search believes of all averages, when it has ended.

    `mean_c` (USD) and `mean_g` (units of quality) are by flat index, `|Theta|` each, or by position
    in the rising flat indices `listed`, or None if nothing is enumerated. `bounds` gives L_c, U_c
    (USD), L_g and U_g of one configuration by the names of `TraceRow`.
    """

    mean_c: Tensor | None
    mean_g: Tensor | None
    bounds: Callable[[tuple[int, ...]], dict[str, float]]
    listed: Tensor | None = None


def estimates_of(
    posterior: Any, bounds: Callable[[tuple[int, ...]], dict[str, float]]
) -> Estimates:
    """`Estimates` by a posterior on Theta, which takes in the last observations.

    Args:
        posterior: A `Posterior`; one that enumerates Theta, or a list, has `mean_c`, `mean_g` and
            `listed`.
        bounds: See `Estimates`.
    """
    posterior.update()
    mean_c, mean_g, listed = (
        getattr(posterior, name, None) for name in ("mean_c", "mean_g", "listed")
    )
    return Estimates(mean_c, mean_g, bounds, listed)


@runtime_checkable
class HasEstimates(Protocol):
    """An optimizer with a surrogate."""

    def estimates(self) -> Estimates | None:
        """See `Estimates`; None if there is no surrogate yet. Call it after the search alone."""
        ...


@dataclass(frozen=True)
class FrontRow:
    """One configuration of the front.

    Args:
        llms: The LLM of each module.
        theta: Its codes.
        basis: See the table of this module; of `FrontTable.choice` that of theta_out.
        cost_usd: Average cost in USD, known or estimated.
        quality: Average quality, known or estimated.
        cost_interval: Bounds of the cost in USD; None if there is no surrogate.
        quality_interval: Bounds of the quality, likewise. A `certified` row: the lower one is the
            threshold, if that is higher.
        epsilon: The relative loss of quality that the row answers; None in `FrontTable.points`.
        threshold: (1 - epsilon) s(theta_0), likewise.
    """

    llms: dict[str, str]
    theta: tuple[int, ...]
    basis: str
    cost_usd: float
    quality: float
    cost_interval: Interval | None
    quality_interval: Interval | None
    epsilon: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class FrontTable:
    """The front of one search, made by `front_of`.

    Args:
        by_loss: For each loss, the cheapest configuration that is known or certified to be good
            enough, at worst theta_0; and then the one that looks cheapest, if it looks cheaper.
        points: Of theta_0 and all configurations observed at least once, those that no other beats
            in both cost and quality, by rising cost.
        choice: theta_out as the search sees it at its end.
    """

    by_loss: tuple[FrontRow, ...]
    points: tuple[FrontRow, ...]
    choice: FrontRow | None = None

    def to_json(self) -> dict[str, Any]:
        """As in `result.json`."""
        return {
            "by_loss": [_row_json(row) for row in self.by_loss],
            "points": [_row_json(row) for row in self.points],
        }

    def __str__(self) -> str:
        return "\n".join(
            f"{loss:>5}  {basis:<10} {cost:>10}  {quality:>7}  {llms}"
            for loss, basis, cost, quality, llms in (_HEAD, *self._cells())
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(self._cells(), _HEAD)

    def _cells(self) -> Iterator[tuple[str, str, str, str, str]]:
        for row in (*self.by_loss, *self.points):
            loss = "" if row.epsilon is None else f"{row.epsilon:.0%}"
            llms = ", ".join(f"{module}={llm}" for module, llm in row.llms.items())
            yield loss, row.basis, f"{row.cost_usd:.3g}", f"{row.quality:.3f}", llms


def front_of(
    problem: SelectionProblem,
    optimizer: Optimizer,
    history: History,
    losses: Sequence[float] = LOSSES,
    known: Sequence[Observation] = (),
) -> FrontTable | None:
    """The front that a finished search has found; None if quality is not the only constraint.

    Args:
        problem: What was searched.
        optimizer: The search, when it has ended. Its surrogate takes in the last observations.
        history: All its observations.
        losses: The relative losses of quality to answer.
        known: Observations of earlier searches.

    Examples:
        >>> from scope_torch import make_scope_joint, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = make_scope_joint(task.problem, base="small", seed=1)
        >>> result = run(task.problem, search, task.evaluator, budget_usd=3.0)
        >>> rows = result.pareto().by_loss
        >>> [(row.epsilon, row.basis) for row in rows if row.basis != "estimated"][-1]
        (0.2, 'certified')
    """
    if problem.others:
        return None
    if problem.reference_queries is not None and problem.epsilon is None:
        losses = ()  # nobody knows what a loss is relative to
    return _Maker(problem, optimizer, history, known).table(losses)


class _Maker:
    """What `front_of` needs to know of a search."""

    def __init__(
        self,
        problem: SelectionProblem,
        optimizer: Optimizer,
        history: History,
        known: Sequence[Observation],
    ) -> None:
        self._problem, self._report = problem, optimizer.report()
        self._optimizer, self._history = optimizer, history
        self._answers = AllAverages(problem.num_queries)
        for observation in (*known, *history):
            self._answers.add(observation)
        # Answers of what is offered are not in a random order of all queries either.
        self._known_thetas = {one.theta for one in known} | set(problem.offered or ())
        self._answers_vary = self._answers.vary(self._report)
        self._deviations = self._answers.deviations(self._report)
        found = optimizer.estimates() if isinstance(optimizer, HasEstimates) else None
        self._listed = None if found is None or found.listed is None else found.listed.cpu()
        is_small = self._listed is not None or problem.space.size <= _MOST
        self._estimates = found if is_small else None
        self._mean_c = self._mean_q = torch.zeros(0)
        if found is not None and found.mean_c is not None and found.mean_g is not None:
            self._mean_c, self._mean_q = found.mean_c.cpu(), problem.s_0 - found.mean_g.cpu()
            for theta, _ in self._answers:  # they may exclude what the model expects
                if (at := position_of(problem.space.index_of(theta), self._listed)) is not None:
                    self._mean_q[at].clamp_(*self._answers.sure_quality(theta, self._answers_vary))

    def table(self, losses: Sequence[float]) -> FrontTable:
        thresholds = [(1 - loss) * self._problem.most_reference_quality for loss in losses]
        certified = self._certified(thresholds)
        by_loss: list[FrontRow] = []
        for loss, threshold in zip(losses, thresholds, strict=True):
            known = (row for row in self._known() if row.quality >= threshold - _ROUNDING)
            rows = [self._reference(), *known]
            for theta, most in certified.items():
                if most >= threshold and not (self._is_out(theta) or self._is_known(theta)):
                    rows.append(self._row(theta, "certified", threshold))
            safe = min(rows, key=lambda row: row.cost_usd)
            best = self._looks_best(threshold)
            for row in (safe, *([best] if best and best.cost_usd < safe.cost_usd else [])):
                by_loss.append(replace(row, epsilon=loss, threshold=threshold))
        return FrontTable(tuple(by_loss), self._points(), self._choice())

    def _choice(self) -> FrontRow | None:
        """theta_out; None if neither answers nor a model say anything about it."""
        out = self._optimizer.recommend()
        if out.theta == self._problem.theta_ref:
            return self._reference()
        is_seen = self._answers[out.theta].num_left < self._problem.num_queries
        return self._row(out.theta, out.basis) if is_seen or len(self._mean_c) else None

    def _points(self) -> tuple[FrontRow, ...]:
        reference = self._reference()
        seen = [theta for theta, _ in self._answers if theta != reference.theta]
        seen = [one for one in seen if not self._is_out(one)]
        values = [(reference.cost_usd, reference.quality), *map(self._means, seen)]
        kept = non_dominated([cost for cost, _ in values], [quality for _, quality in values])
        rows = [self._row(seen[i - 1]) if i else reference for i in kept]  # slow: intervals
        out = self._optimizer.recommend()
        if out.basis == "certified":
            certified = self._row(out.theta, out.basis, self._problem.s_0)
            rows = [certified if row.theta == out.theta else row for row in rows]
        return tuple(rows)

    def _is_out(self, theta: tuple[int, ...]) -> bool:
        """Whether it may not be chosen, or an LLM was dropped: a failed call is no bargain."""
        dropped = uses_any(self._problem.names(theta), self._report.get("dropped", {}))
        return dropped or not self._problem.is_allowed(theta)

    def _known(self) -> Iterator[FrontRow]:
        known = (theta for theta, _ in self._answers if self._is_known(theta))
        yield from (self._row(theta) for theta in known if not self._is_out(theta))

    def _reference(self) -> FrontRow:
        p = self._problem
        cost, quality = p.reference_cost_usd, p.reference_quality
        names = p.names(p.theta_ref)
        if (n := p.reference_queries) is None:
            return _exactly(names, p.theta_ref, "reference", cost, quality)
        sure = quality * n / p.num_queries, 1 - (1 - quality) * n / p.num_queries
        of_cost, _ = self._intervals(p.theta_ref)
        if of_cost is not None:
            of_cost = min(of_cost[0], cost), max(of_cost[1], cost)
        of_quality = (0.0, 1.0) if self._answers_vary else sure
        return FrontRow(names, p.theta_ref, "reference", cost, quality, of_cost, of_quality)

    def _row(
        self, theta: tuple[int, ...], basis: str = "estimated", at_least: float = 0.0
    ) -> FrontRow:
        """A configuration with its averages if they are known, else as the surrogate sees it."""
        names, (cost, quality) = self._problem.names(theta), self._means(theta)
        if self._is_known(theta):
            return _exactly(names, theta, "observed", cost, quality)
        of_cost, of_quality = self._intervals(theta)
        if of_quality is not None:
            of_quality = max(of_quality[0], at_least), max(of_quality[1], at_least)
            quality = min(max(quality, of_quality[0]), of_quality[1])
        if of_cost is not None:
            cost = min(max(cost, of_cost[0]), of_cost[1])
        return FrontRow(names, theta, basis, cost, quality, of_cost, of_quality)

    def _is_known(self, theta: tuple[int, ...]) -> bool:
        return self._answers[theta].num_left == 0 and not self._answers_vary

    def _means(self, theta: tuple[int, ...]) -> tuple[float, float]:
        """Known averages; else of the surrogate if it is enumerated, else of the answers."""
        at = position_of(self._problem.space.index_of(theta), self._listed)
        if at is not None and len(self._mean_c) and not self._is_known(theta):
            return max(0.0, float(self._mean_c[at])), min(1.0, max(0.0, float(self._mean_q[at])))
        return self._answers[theta].cost_usd, self._answers[theta].quality

    def _intervals(self, theta: tuple[int, ...]) -> tuple[Interval | None, Interval | None]:
        if self._estimates is None:
            return None, None
        bounds, s_0 = self._estimates.bounds(theta), self._problem.s_0
        usd, luck = self._answers.luck(theta, self._deviations)
        cost = max(0.0, bounds["lower_c_usd"] - usd), max(0.0, bounds["upper_c_usd"] + usd)
        ends = s_0 - bounds["upper_g"] - luck, s_0 - bounds["lower_g"] + luck
        least, most = self._answers.sure_quality(theta, self._answers_vary)
        quality = [min(most, max(least, end)) for end in ends]
        return (cost if math.isfinite(cost[1]) else None), (quality[0], quality[1])

    def _looks_best(self, threshold: float) -> FrontRow | None:
        """The cheapest by the surrogate's means; None without an enumerated surrogate."""
        if not len(self._mean_c):
            return None
        cost = torch.where(self._mean_q >= threshold - _ROUNDING, self._mean_c, math.inf)
        space, listed = self._problem.space, self._listed
        if (at := position_of(space.index_of(self._problem.theta_ref), listed)) is not None:
            cost[at] = math.inf  # what it costs is known
        if listed is None and (mask := self._problem.allowed_mask()) is not None:
            cost[~mask] = math.inf
        codes = None if listed is None else space.unrank(listed)
        for module, names in self._report.get("dropped", {}).items():
            number = self._problem.modules.index(module)
            for code in map(self._problem.llms[number].index, names):
                if codes is None:
                    cost.view(space.sizes).select(number, code).fill_(math.inf)
                else:
                    cost[codes[:, number] == code] = math.inf
        at = int(cost.argmin())
        if not math.isfinite(float(cost[at])):
            return None
        return self._row(space.theta_at(at if listed is None else int(listed[at])))

    def _certified(self, thresholds: Sequence[float]) -> dict[tuple[int, ...], float]:
        """The largest threshold that is certified, of each configuration that has one."""
        from scope_torch.bounds.betting import BettingSequence, share_of_delta  # slow to import

        certified: dict[tuple[int, ...], float] = {}
        out = self._optimizer.recommend()
        if out.basis == "certified":
            certified[out.theta] = self._problem.s_0
        if self._report.get("certificate") != "sequence" or self._answers_vary:
            return certified
        of_turns = turns(self._optimizer.trace, self._history, self._known_thetas)
        for k, (theta, qualities) in enumerate(of_turns, 1):
            share = share_of_delta(k, self._report["delta"])
            for threshold in sorted(thresholds):
                sequence = BettingSequence(self._problem.num_queries, threshold, share)
                if not sequence.certifies(qualities):
                    break
                certified[theta] = max(threshold, certified.get(theta, 0.0))
        return certified


def turns(
    trace: Sequence[TraceRow], history: History, known: Collection[tuple[int, ...]] = ()
) -> Iterator[tuple[tuple[int, ...], list[float]]]:
    """Each candidate of a search, with its qualities in the order of the j-loop.

    Several may be open at once, each configuration one time.

    Args:
        trace: The changes in the search.
        history: All its observations.
        known: Candidates that answered earlier searches too, or that cannot be observed on all
            queries. Their new answers alone are in no random order, so they are left out.
    """
    times: dict[tuple[int, ...], list[int]] = {}
    for t, observation in enumerate(history):
        times.setdefault(observation.theta, []).append(t)
    end, next_turn = len(history), dict[tuple[int, ...], int]()
    found: list[tuple[tuple[int, ...], list[float]]] = []
    for row in reversed(trace):
        if row.event == "verifying":  # its requests are nobody's turn
            end = row.t
            next_turn.clear()
        elif row.event == "selected" and (theta := row.theta_cand) is not None:
            within = range(row.t, next_turn.get(theta, end))
            next_turn[theta] = row.t
            own = [] if theta in known else [t for t in times.get(theta, ()) if t in within]
            found.append((theta, [history[t].quality for t in own]))
    return reversed(found)


def _exactly(
    llms: dict[str, str], theta: tuple[int, ...], basis: str, cost_usd: float, quality: float
) -> FrontRow:
    """A row whose averages are known."""
    both = (cost_usd, cost_usd), (quality, quality)
    return FrontRow(llms, theta, basis, cost_usd, quality, both[0], both[1])


def _row_json(row: FrontRow) -> dict[str, Any]:
    values = dict(row.__dict__)
    del values["theta"]
    return {name: value for name, value in values.items() if value is not None}
