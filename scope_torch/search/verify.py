"""The model on trial: what would refute it is asked, cheapest first.

A search ends because its model says that nothing else pays. What the model says of configurations
that differ from all observed ones in several modules is extrapolation: Calibrate changes one module
at a time. So there are rounds of verification. A round observes, once each, for every LLM of every
module the configuration with it that should be cheapest and was never observed, by a(theta), the
sum over modules of `CostScale`. The cheapest come first, for a share of what the observations so
far have cost. Then scale and hyperparameters are fitted again.

A round comes when no candidate would pay if the system had 10 Q queries to answer, that is when
none is expected to save about a tenth of its cost; and when nothing is left; but not before there
was a candidate since the last round. When that is does not depend on H (`deployment_queries`): a
search with a larger H, or budget, begins with the search of a smaller one.

After the last round, the fit alone is made again where nothing pays, if there are a tenth more
observations than at the last one: "nothing pays" is not said by an old fit, and a search that
continues this one (`continue_from`) begins with about the fit that it ended with.

No promise rests on it: a certificate counts the answers of a candidate's own turn alone.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from scope_torch.allowed import Allowed
from scope_torch.errors import InputError
from scope_torch.model.cost_scale import CostScale
from scope_torch.model.joint import JointSurrogate
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.choice import no_margin
from scope_torch.search.parts import Minima
from scope_torch.search.payoff import ExpectedReturn

SHARE = 0.05  # of what all observations have cost, for one round
HORIZON = 10  # times Q: queries to answer, at which no candidate pays when a round comes
_MOST_TRIED = 1000  # configurations that are seen or not allowed, before an LLM is passed over

Theta = tuple[int, ...]


class Verification:
    """Asks what would refute the model.

    Args:
        problem: What is searched.
        surrogate: Its model, with relative costs.
        rounds: How often at most.
        margin: `next_margin` of the certificate.

    Raises:
        InputError: If `rounds` is not a whole number of at least 0.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        surrogate: JointSurrogate,
        rounds: int,
        margin: Callable[[], float] = no_margin,
    ) -> None:
        if not (rounds >= 0 and rounds % 1 == 0):
            raise InputError(f"verify={rounds} must be a whole number >= 0: rounds, or 0 for none")
        self._problem, self._surrogate, self._rounds = problem, surrogate, rounds
        Q = problem.num_queries
        self._pays = ExpectedReturn(Q, HORIZON * Q, surrogate.relative_cost, margin)
        self._done = 0
        self._is_new = True  # whether there was a candidate since the last round
        self._usd = self._asked_usd = 0.0
        self._expected: dict[Theta, float] = {}  # USD, of what is asked
        self._factors: list[float] = []  # cost over what was expected

    def record(self, observation: Observation) -> None:
        """Every observation of this search."""
        self._usd += observation.cost_usd
        expected = self._expected.pop(observation.theta, None)
        if expected is not None:
            self._asked_usd += observation.cost_usd
            if observation.cost_usd > 0:
                self._factors.append(observation.cost_usd / expected)

    def is_due(self, candidate: Any, minima: Minima) -> bool:
        """Whether a round comes before theta_cand: no candidate pays, and the model is untried.

        Args:
            candidate: theta_cand, a `JointCandidate`.
            minima: Of the bounds at which it was chosen.
        """
        if self._done == self._rounds and not self._surrogate.is_stale:
            return False
        due = self._is_new and not self._pays.goes_on(candidate, minima)
        self._is_new = True  # if it is not due, theta_cand is asked
        return due

    def requests(self, order: Sequence[int], left: Allowed) -> list[Request]:
        """What a round asks; nothing if it is not due, or nothing is cheap enough.

        Args:
            order: The queries; every round takes the next one.
            left: Which configurations may be chosen.
        """
        chosen: list[Request] = []
        if self._done < self._rounds and self._is_new:
            scale, usd = self._surrogate.scale, SHARE * self._usd
            seen = {self._problem.theta_ref, *map(tuple, self._surrogate.observed().tolist())}
            for theta in cheapest_with_each(scale, left, seen):
                query = self._query(theta, order)
                usd -= scale.at(theta)
                if usd < 0:
                    break
                if query is not None:
                    chosen.append(Request(theta, query))
            self._expected = {theta: scale.at(theta) for theta, _, _ in chosen}
            self._done += 1
        self._is_new = False
        return chosen

    def _query(self, theta: Theta, order: Sequence[int]) -> int | None:
        """The query of this round, or the next one on which `theta` can be observed."""
        offered = set(self._problem.queries_of(theta)) if self._problem.offered else None
        first = self._done % len(order)
        for query in (*order[first:], *order[:first]):
            if offered is None or query in offered:
                return query
        return None

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        return {"verify": self._rounds}

    def report(self) -> dict[str, Any]:
        """What was verified, JSON-serialisable.

        `typical_factor` is the median of how far a cost was from a(theta), as a factor of 1 or
        more.
        """
        factors = [max(f, 1 / f) for f in self._factors]
        return {
            "verified": {
                "rounds": self._done,
                "configurations": len(self._factors),
                "cost_usd": self._asked_usd,
                "typical_factor": statistics.median(factors) if factors else None,
            }
        }


def cheapest_with_each(scale: CostScale, left: Allowed, seen: Collection[Theta]) -> list[Theta]:
    """For every LLM of every module, the cheapest configuration with it that was not observed.

    Args:
        scale: a(theta), which says what is cheap.
        left: Which configurations may be chosen.
        seen: Those that were observed.

    Returns:
        Distinct configurations, the cheapest first. Of two that cost the same, the one with the
        smaller codes comes first.
    """
    sizes = left.space.sizes
    fixed = [(i, llm) for i, size in enumerate(sizes) for llm in range(size)]
    if left.is_listed and (index := left.index) is not None:
        codes = left.space.unrank(index)
        ranks = torch.tensor([left.space.index_of(theta) for theta in seen], dtype=torch.int64)
        a = scale.of(codes).masked_fill_(torch.isin(index, ranks), math.inf)
        found: set[Theta] = set()
        for i, llm in fixed:
            least, best = torch.where(codes[:, i] == llm, a, math.inf).min(0)
            if math.isfinite(least):
                found.add(tuple(codes[best].tolist()))
    else:
        first = (_first_of(_completions(scale, i, llm), left, seen) for i, llm in fixed)
        found = {theta for theta in first if theta is not None}
    return sorted(found, key=lambda theta: (scale.at(theta), theta))


def _first_of(thetas: Iterator[Theta], left: Allowed, seen: Collection[Theta]) -> Theta | None:
    for _, theta in zip(range(_MOST_TRIED), thetas, strict=False):
        if theta not in seen and left(theta):
            return theta
    return None


def _completions(scale: CostScale, module: int, llm: int) -> Iterator[Theta]:
    """All configurations with this LLM in this module, in the order of the sum of their terms."""
    terms = [t.tolist() for t in scale.terms]
    ranked = [sorted(range(len(t)), key=t.__getitem__) for t in terms]
    ranked[module] = [llm]
    start: Theta = (0,) * len(ranked)

    def entry(ranks: Theta) -> tuple[float, Theta, Theta]:
        theta = tuple(of[rank] for of, rank in zip(ranked, ranks, strict=True))
        return math.fsum(t[code] for t, code in zip(terms, theta, strict=True)), theta, ranks

    heap, pushed = [entry(start)], set[Theta]([start])
    while heap:
        _, theta, ranks = heapq.heappop(heap)
        yield theta
        for i, rank in enumerate(ranks):
            following = (*ranks[:i], rank + 1, *ranks[i + 1 :])
            if rank + 1 < len(ranked[i]) and following not in pushed:
                pushed.add(following)
                heapq.heappush(heap, entry(following))
