"""Certificates about tomorrow's queries, of which the queries searched on are a sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scope_torch.bounds.betting import check_delta
from scope_torch.bounds.population import PairedSequence, least_mean, queries_needed
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem

_ORDERS = 23  # keeps these random orders apart from other uses of a seed

Theta = tuple[int, ...]


def share_of_each(problem: SelectionProblem, delta: float, num_others: int = 0) -> float:
    """The share of delta of one configuration: all but theta_0 have the same.

    It is fixed before the search. So a statement about the configuration that a search picks fails
    with probability at most `delta`, however the search picks it.

    Args:
        problem: Gives Theta.
        delta: In (0, 1).
        num_others: Configurations outside Theta that were candidates when answers were made that
            count; see `scope_torch.search.known`.
    """
    return delta / max(1, problem.space.size + num_others - 1)


def random_order(problem: SelectionProblem, theta: Theta, seed: int) -> list[int]:
    """The order in which the answers of `theta` count: uniformly random, by seed and theta."""
    rng = np.random.default_rng([_ORDERS, seed % 2**64, *theta])
    return rng.permutation(problem.num_queries).tolist()


def compared_with(problem: SelectionProblem) -> tuple[float, list[float]]:
    """The tolerated loss, and of which quality on each query.

    Of theta_0's; or of 1, if s_0 is a number: it must not depend on the queries that were drawn.
    """
    if (epsilon := problem.relative_loss) is None:
        return 1 - problem.s_0, [1.0] * problem.num_queries
    return epsilon, [quality for _, quality in problem.reference_answers or ()]


class ByPopulation:
    """By paired answers: E[s(theta, q) - (1 - epsilon) s(theta_0, q)] >= 0 over all queries.

    Or E[s(theta, q)] >= s_0, if s_0 is a number.

    The Q queries are a sample of independent draws. Each configuration has a bet of its own
    (`PairedSequence`) on its first answer to each query, in `random_order`. The chance that any
    configuration is certified whose expectation is below 0 is at most delta:

    1. For a fixed theta the pairs of its first answer and the reference's are independent draws.
       Its order depends on no answer. So its bet is won wrongly, at any time, with probability at
       most delta / (|Theta| - 1).
    2. Whether it is won depends on its answers alone. The search decides only how many of them
       are seen. So the sum over Theta bounds the chance for every way of choosing candidates, also
       by looking at the same queries.

    Answers may vary from call to call: each answer is a draw.

    Args:
        problem: Gives Q, epsilon and the answers of theta_0.
        delta: Failure probability of all configurations together, in (0, 1).
        seed: Of the search; decides the orders.
        query_pool: See `FollowsSearch`. Draws from the other queries, that nobody else has asked,
            are then what certifies most candidates.
        num_others: See `share_of_each`.

    Raises:
        InputError: If a number is outside its range, or the problem has no answers of theta_0, or
            a constraint on something else than quality.
    """

    by_answers = True

    def __init__(
        self,
        problem: SelectionProblem,
        delta: float,
        seed: int,
        query_pool: int | None = None,
        num_others: int = 0,
    ) -> None:
        check_delta(delta)
        if problem.objective != "cost" or problem.num_constraints > 1:
            raise InputError(
                "certificate=population is about a bound on quality only, not "
                f"{problem.limits[-1]}; leave that out, or take certificate=sequence"
            )
        if query_pool is not None and not 1 <= query_pool <= problem.num_queries:
            raise InputError(
                f"query_pool={query_pool} must be 1 to {problem.num_queries}: how many of the "
                "queries Calibrate looks at; leave it out (null) for all"
            )
        if problem.reference_answers is None:
            raise InputError(
                "certificate=population pairs answers with those of the reference, but "
                "reference_answers=None: give SelectionProblem the reference's cost and quality of "
                "each query (select: reference_queries=None), or take certificate=sequence"
            )
        self.delta, self.query_pool = delta, query_pool
        self._problem, self._seed = problem, seed
        self._loss, self._references = compared_with(problem)
        self._share = share_of_each(problem, delta, num_others)
        self._margin = least_mean(problem.num_queries, self._loss, self._share)
        self._step = 0.5 / problem.num_queries
        self._first: dict[Theta, dict[int, float]] = {}
        self._streams: dict[Theta, _Stream] = {}
        self._open: list[_Stream] = []  # that have not failed, or only now
        self._selected: Theta = problem.theta_ref

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by, in units of quality.

        At first what it takes at the very least (`least_mean`). A candidate that has answered all
        queries in vain would remain the most promising one for ever. So from then on a candidate
        must promise more than that one has shown.
        """
        for stream in [one for one in self._open if one.failed]:
            self._margin = max(self._margin, stream.mean + self._step)
            self._open.remove(stream)
        return self._margin

    def record(self, observation: Observation) -> None:
        """Keeps the first answer of a configuration to a query; see `FollowsSearch`."""
        answers = self._first.setdefault(observation.theta, {})
        answers.setdefault(observation.query, observation.quality)

    def select(self, theta: Theta) -> None:
        """Takes in theta_cand; see `FollowsSearch`."""
        self._selected = theta
        if theta in self._streams and self._streams[theta].failed:
            self._margin += self._step  # the model hopes on; at some margin it gives up

    def begin(self, k: int, generator: torch.Generator) -> _PopulationTest:  # noqa: ARG002
        """See `Certificate`; a configuration that is selected again goes on with its bet."""
        theta = self._selected
        if theta not in self._streams:
            self._fill_holes(theta)
            self._streams[theta] = _Stream(
                random_order(self._problem, theta, self._seed),
                self._first.setdefault(theta, {}),
                self._references,
                self._loss,
                self._share,
            )
            self._open.append(self._streams[theta])
        return _PopulationTest(self._streams[theta], self._margin)

    def _fill_holes(self, theta: Theta) -> None:
        """A query on which `theta` cannot be observed counts as one that it answers worst."""
        offered, first = set(self._problem.queries_of(theta)), self._first.setdefault(theta, {})
        for query in range(self._problem.num_queries):
            if query not in offered:
                first[query] = 0.0

    def settings(self) -> dict[str, Any]:
        """See `Certificate`; the reference's answers decide which candidate is certified."""
        answers = hashlib.sha256(repr(self._references).encode()).hexdigest()[:16]
        pool = {} if self.query_pool is None else {"query_pool": self.query_pool}
        return {"population_delta": self.delta, "reference_answers": answers, **pool}

    def report(self) -> dict[str, Any]:
        """See `Certificate`; also the candidate that came closest without a certificate.

        `more_queries` says about how many further queries would certify it, if its answers go on as
        they began; None if its average is too low.
        """
        open_streams = {
            theta: stream for theta, stream in self._streams.items() if not stream.certified
        }
        closest = None
        if open_streams:
            theta = max(open_streams, key=lambda at: open_streams[at].sequence.log_capital)
            more = open_streams[theta].more_queries()
            closest = {"theta": self._problem.names(theta), "more_queries": more}
        return {"certificate": "population", "delta": self.delta, "closest": closest}


class _Stream:
    """The bet of one configuration; goes on as far as its answers are known in its order."""

    def __init__(
        self,
        order: list[int],
        answers: dict[int, float],
        references: list[float],
        epsilon: float,
        delta: float,
    ) -> None:
        self.order, self.answers = order, answers
        self.sequence = PairedSequence(epsilon, delta)
        self.certified = False
        self._a, self._delta, self._references = 1 - epsilon, delta, references
        self._differences: list[float] = []

    def advance(self) -> bool:
        """Takes in all answers that are next in order; returns whether it is certified."""
        for query in self.order[len(self._differences) :]:
            if query not in self.answers:
                break
            self._differences.append(self.answers[query] - self._a * self._references[query])
            self.certified = self.sequence.update(self._differences[-1])
        return self.certified

    @property
    def failed(self) -> bool:
        """Whether all answers are known, and it is not certified."""
        return not self.certified and len(self._differences) == len(self.order)

    @property
    def mean(self) -> float:
        """Average of its differences so far; at least one is needed."""
        return float(np.mean(self._differences))

    def more_queries(self) -> int | None:
        """See `ByPopulation.report`."""
        seen = len(self._differences)
        needed = queries_needed(np.array(self._differences), 1 - self._a, self._delta)
        return None if needed is None else max(1, needed - seen)


class _PopulationTest:
    """The `Test` of one candidate; it reads answers where `ByPopulation` keeps them."""

    def __init__(self, stream: _Stream, margin: float) -> None:
        self._stream, self.margin = stream, margin
        self.refuted = False  # today's answers do not say
        # Answers of Calibrate count where they come in the order; the others are asked for first.
        self.order: list[int] | None = sorted(stream.order, key=stream.answers.__contains__)

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        return self._stream.advance()

    def again(self) -> bool:
        """See `Test`: never."""
        return False

    def end(self) -> None:
        """See `Test`."""
