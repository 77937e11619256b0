"""The ask/tell protocol shared by SCOPE and its competitors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any, Literal, Protocol

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.stopping import NEARLY

Basis = Literal["certified", "accepted (tuned)", "observed", "estimated", "reference"]
Observing = Generator[Sequence[Request], Sequence[Observation], Sequence[Observation]]
Steps = Generator[Sequence[Request] | None, Sequence[Observation], None]
Reason = Generator[Sequence[Request] | None, Sequence[Observation], str | None]  # to stop


@dataclass(frozen=True)
class Recommendation:
    """theta_out and why.

    Args:
        theta: Codes of theta_out.
        basis: `certified` with a proven probability, `accepted (tuned)` by bounds that have none,
            best `observed`, `estimated` by a surrogate, or still the `reference` theta_0.
        u_out_usd: Upper bound on c(theta_out) in USD at the time it was chosen, if there is one.
        gap_usd: Upper bound on c(theta_out) - c(theta_star) in USD, if there is one.
    """

    theta: tuple[int, ...]
    basis: Basis
    u_out_usd: float | None = None
    gap_usd: float | None = None

    def __post_init__(self) -> None:  # of an optimizer of one's own it may be a list, or of numpy
        object.__setattr__(self, "theta", tuple(map(index, self.theta)))


@dataclass(frozen=True)
class TraceRow:
    """State of a search after observation `t`, written when something changes.

    Args:
        t: Number of observations so far.
        from_budget_usd: Their cost without the last one, in USD: the least budget whose run gets
            here, because the observation that crosses the budget is still made.
        spend_usd: Their cost in USD.
        event: What happened: `calibrated`, `widened`, `selected`, `improved`, `withdrawn`,
            `pruned`, `completed`, `verifying` or `stopped`.
        theta_out: Codes of the recommendation.
        u_out_usd: See `Recommendation`.
        gap_usd: See `Recommendation`.
        iteration: The paper's i.
        theta_cand: Codes of the candidate under evaluation.
        num_queries: Queries of the candidate observed in this iteration so far.
        lower_c_usd: L_c(theta_cand) in USD at this t, or of theta_out where there is no candidate.
        upper_c_usd: U_c of the same.
        lower_g: L_g of the same, in units of quality.
        upper_g: U_g of the same.
    """

    t: int
    from_budget_usd: float
    spend_usd: float
    event: str
    theta_out: tuple[int, ...]
    u_out_usd: float | None = None
    gap_usd: float | None = None
    iteration: int | None = None
    theta_cand: tuple[int, ...] | None = None
    num_queries: int | None = None
    lower_c_usd: float | None = None
    upper_c_usd: float | None = None
    lower_g: float | None = None
    upper_g: float | None = None

    @property
    def excluded(self) -> Literal["quality", "cost"] | None:
        """What the bounds exclude: that the candidate is feasible, or that it beats theta_out.

        To save less than 0.01% is not to beat it.

        None: neither of both. It may be given up all the same: it promises less than a certificate
        needs, or an LLM of it was dropped.
        """
        if self.lower_g is not None and self.lower_g > 0:
            return "quality"
        if self.lower_c_usd is None or self.u_out_usd is None:
            return None
        return "cost" if self.lower_c_usd > NEARLY * self.u_out_usd else None


def asked(requests: Sequence[Request]) -> Observing:
    """Asks for all of `requests`, and returns the answers."""
    return (yield requests)


def checked(requests: Sequence[Request], problem: SelectionProblem) -> Sequence[Request]:
    """The requests of a search, before they are paid.

    Raises:
        InputError: If one is no pair of the problem, its configuration is not allowed, or they are
            no list.
    """
    given: Any = requests
    is_list, Q = isinstance(given, Sequence), problem.num_queries
    if wrong := [one for one in given if not _is_pair(one, Q)] if is_list else [given]:
        raise InputError(
            f"the search asks for {wrong[0]!r}; let it ask for a list of Request(theta, query), "
            f"theta a tuple of codes, query from 0 to {Q - 1}: whole numbers (of tensors .tolist())"
        )
    for theta in {request.theta for request in requests}:
        if not problem.is_allowed(problem.space.check(theta, "theta of a request")):
            raise InputError(
                f"the search asks for {problem.names(theta)}, which `allowed` refuses; let it ask "
                "only where problem.is_allowed(theta)"
            )
    return requests


def _is_pair(request: Any, num_queries: int) -> bool:
    if not (isinstance(request, Request) and isinstance(request.theta, tuple)):
        return False
    numbers = *request.theta, request.query
    return all(isinstance(n, Integral) for n in numbers) and 0 <= request.query < num_queries


class Described(Protocol):
    """What a callback is told of a search."""

    @property
    def name(self) -> str:
        """Of the method."""
        ...

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is asked, JSON-serialisable."""
        ...


class Optimizer(Protocol):
    """A search that asks for observations and is told them.

    Deterministic given its seed and the observations, so that a run resumes by replaying a
    journal.

    Examples:
        >>> from scope_torch.methods import make_scope
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> optimizer: Optimizer = make_scope(task.problem, base="small")
        >>> observations = list(task.evaluator.evaluate(optimizer.ask()))
        >>> optimizer.tell(observations)
        >>> optimizer.t == len(observations), optimizer.recommend().basis
        (True, 'reference')
    """

    name: str
    problem: SelectionProblem
    t: int  # number of observations told
    trace: list[TraceRow]  # appended to, never replaced
    stop_reason: str | None

    def ask(self) -> Sequence[Request]:
        """(theta, query) pairs to observe next, possibly in parallel; empty when finished."""
        ...

    def tell(self, observations: Sequence[Observation]) -> None:
        """Results in the asked order; fewer than asked means that the budget is exhausted."""
        ...

    def recommend(self) -> Recommendation:
        """The configuration to use, after what has been told."""
        ...

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is asked, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """What the method wants recorded with the result, JSON-serialisable."""
        ...


class SequentialOptimizer(ABC):
    """An optimizer written as one generator, so that the code reads like the algorithm.

    `_search` yields lists of requests and receives the observations. A bare `yield` says that all
    observations are taken in and that costly work follows. For every observation `_search` calls
    `_record` first; `_trace` adds a row to the trace, `_stop` ends the search.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> class Once(SequentialOptimizer):
        ...     name = "once"
        ...     def _search(self):
        ...         for observation in (yield [Request((0, 0), 5)]):
        ...             self._record(observation)
        ...         return self._stop("one observation is enough")
        ...     def recommend(self):
        ...         return Recommendation((0, 0), "observed")
        >>> optimizer = Once()
        >>> optimizer.tell(list(synthetic_task().evaluator.evaluate(optimizer.ask())))
        >>> optimizer.ask(), optimizer.t, optimizer.stop_reason
        ([], 1, 'one observation is enough')
    """

    name: str
    problem: SelectionProblem

    def __init__(self) -> None:
        self.trace: list[TraceRow] = []
        self.stop_reason: str | None = None
        self.t = 0
        self.spend_usd = 0.0
        self.from_budget_usd = 0.0
        self._steps = self._search()
        self._asked: Sequence[Request] | None = None
        self._next: Sequence[Request] | None = None
        self._finished = False

    @abstractmethod
    def _search(self) -> Steps:
        """The algorithm. Sets `stop_reason` if it returns."""

    @abstractmethod
    def recommend(self) -> Recommendation:
        """See `Optimizer.recommend`."""

    def ask(self) -> Sequence[Request]:
        """See `Optimizer.ask`. Asking twice without telling returns the same requests."""
        if self._asked is None:
            while self._next is None and not self._finished:
                self._advance(None)
            self._asked, self._next = self._next or [], None
        return self._asked

    def tell(self, observations: Sequence[Observation]) -> None:
        """See `Optimizer.tell`.

        Raises:
            InputError: If the observations are not what was asked for, in that order.
        """
        asked = self._asked or []
        expected = 0 < len(observations) <= len(asked)
        for told, request in zip(observations, asked, strict=False):
            expected &= told.query == request.query and told.theta == request.theta
        if not expected:
            pairs = [(o.theta, o.query) for o in observations[:3]]
            raise InputError(f"told {pairs}..., but asked for {list(asked[:3])}...")
        self._asked = None
        self._advance(observations)

    def _advance(self, observations: Sequence[Observation] | None) -> None:
        try:
            if observations is None:
                self._next = next(self._steps)
            else:
                self._next = self._steps.send(observations)
        except StopIteration:
            self._finished = True

    def _observe(self, requests: Sequence[Request]) -> Observing:
        """Asks, and records each answer: `answers = yield from self._observe(requests)`."""
        observations = yield requests
        for observation in observations:
            self._record(observation)
        return observations

    def _record(self, observation: Observation) -> None:
        """Counts an observation and what was paid for it."""
        self.t += 1
        self.from_budget_usd = self.spend_usd
        self.spend_usd += observation.paid_usd

    def _trace(self, event: str, **values: Any) -> None:
        """Adds a row to the trace: what is recommended now, and further columns of `TraceRow`."""
        out = self.recommend()
        state = (event, out.theta, out.u_out_usd, out.gap_usd)
        row = TraceRow(self.t, self.from_budget_usd, self.spend_usd, *state, **values)
        self.trace.append(row)

    def _stop(self, reason: str) -> None:
        """Ends the search: `return self._stop(...)` in `_search`."""
        self.stop_reason = reason
        self._trace("stopped")
