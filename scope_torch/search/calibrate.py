"""Calibrate: Algorithm 2 (alg:bound-calibration)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from scope_torch.allowed import Allowed
from scope_torch.errors import InputError
from scope_torch.factors import Levels, changes
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem, by_module
from scope_torch.search.optimizer import Observing, Steps, asked
from scope_torch.space import ConfigSpace, everywhere

logger = logging.getLogger(__name__)

Base = str | Sequence[str] | Mapping[str, str] | None

PoolKind = Literal["base", "random", "none"]
POOLS = ("base", "random", "none")


class InitialPool:
    """Theta_init (line alg:scope-main:bc-sample-theta).

    Args:
        problem: What is searched.
        kind: `base`, the neighbours of theta_base in every module (SCOPE, eq:theta-1-def);
            `random`, as many configurations drawn uniformly (SCOPE-Rand); `none`, to skip
            Calibrate (SCOPE-Coarse). Only allowed ones; see `Allowed.around` for who stands in the
            place of a neighbour that is not.
        base: Codes of the configuration with theta_base in every module; used by `base` only. It
            need not be allowed itself.
        levels: What choices share, see `levels_of`: a neighbour then changes one factor, see
            `changes`. None: it changes the module.

    Raises:
        InputError: If the kind is unknown, or `base` is missing or not a configuration.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        kind: PoolKind,
        base: Sequence[int] | None,
        levels: Levels | None = None,
    ) -> None:
        if kind not in POOLS:
            raise InputError(f"initial_pool={kind!r} must be base, random or none")
        if kind == "base" and base is None:
            raise InputError("base=None: Calibrate needs a base LLM; name a cheap one")
        self.kind: PoolKind = kind
        self._rule, self._levels = problem.rule, levels
        self.base = problem.space.check(base or (), "base") if kind == "base" else None

    def draw(
        self, space: ConfigSpace, generator: torch.Generator, left: Allowed | None = None
    ) -> list[tuple[int, ...]]:
        """The configurations, in the order in which ties are broken.

        Args:
            space: Theta.
            generator: Of what is random.
            left: What may be chosen, if that is less than the problem allows.
        """
        rule = left or self._rule
        if self.kind == "none":
            return []
        around = self._neighbours(space, self.base or (0,) * space.num_modules)
        if self.base is not None:
            return [self.base, *around] if rule is None else rule.around(self.base, around)
        count = 1 + len(around)
        sample = space.sample if rule is None else rule.sample
        return sample(count, generator)

    def _neighbours(self, space: ConfigSpace, base: tuple[int, ...]) -> list[tuple[int, ...]]:
        if self._levels is None:
            return space.neighbours(base)[1:]
        by_module = enumerate(zip(self._levels, base, strict=True))
        return [
            (*base[:i], llm, *base[i + 1 :])
            for i, (levels, own) in by_module
            for llm in changes(levels, own)
        ]

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        return {"initial_pool": self.kind, "base": self.base}


def minus_quality(observation: Observation) -> tuple[float, ...]:
    """The only constraint of the paper, but for s_0."""
    return (-observation.quality,)


def num_requests(num_configurations: int, num_queries: int) -> int:
    """How many observations Calibrate makes of a pool of so many configurations."""
    total, done = 0, 0
    for j in range(1, math.ceil(math.log2(num_queries)) + 2):
        prefix = min(2 ** (j - 1), num_queries)
        total += num_configurations * (prefix - done)
        done, num_configurations = prefix, math.ceil(num_configurations / 2)
    return total


def calibrate(
    pool: Sequence[tuple[int, ...]],
    query_order: Sequence[int],
    *,
    observe: Callable[[list[Request]], Observing] = asked,
    g: Callable[[Observation], tuple[float, ...]] = minus_quality,
    queries_of: Callable[[tuple[int, ...]], Sequence[int]] | None = None,
    is_dropped: Callable[[tuple[int, ...]], bool] = lambda _: False,
    enough: tuple[int, float] | None = None,
) -> Steps:
    """Observes many configurations on few queries, then ever fewer on ever more.

    Each of the ceil(log2 Q) + 1 rounds doubles the queries and keeps the better half of the pool.
    (The running text of sec:calibration says ceil(log2(Q + 1)) rounds. Unless Q is a power of two,
    these would end before all queries are observed, so the pseudocode is followed.)

    Algorithm 1 then observes a candidate on all queries in an order of its own. It asks again for
    the pairs that Calibrate has observed, and Lambda counts each such repeat: the noise of a second
    answer is new. A system without noise need not be called again, see `FunctionEvaluator`.

    The paper does not say how ties of S(theta) are broken: here by the lower total cost, then by
    the order of the pool.

    Args:
        pool: Theta_init.
        query_order: The Q queries in random order.
        observe: Yields the requests whose answers are not known, and returns all answers.
        g: The constraints' values of an observation, up to a constant; of several constraints the
            one whose total is worst counts.
        queries_of: The queries on which a configuration can be observed, where these differ: a
            round then takes as many of its own, in the given order, and averages are compared
            instead of totals. None: all on all.
        is_dropped: Whether a configuration is given up, after the observations of a round.
        enough: Queries after which it ends, and the average quality that all answers must have by
            then: if few are right, the model learns little about what makes answers good. None: it
            ends after all queries, as in the paper.

    Yields:
        The requests of a round: configurations in pool order, each on the round's new queries.
    """
    num_queries = len(query_order)
    survivors = list(pool)
    values: dict[tuple[int, ...], list[tuple[float, ...]]] = {theta: [] for theta in pool}
    costs: dict[tuple[int, ...], list[float]] = {theta: [] for theta in pool}
    own = {theta: _in_order(query_order, queries_of, theta) for theta in pool}
    answered: list[float] = []
    done = 0
    for j in range(1, math.ceil(math.log2(num_queries)) + 2):  # alg:scope-main:bc-for
        prefix = min(2 ** (j - 1), num_queries)  # alg:scope-main:bc-qprefix
        # alg:scope-main:bc-foreach
        requests = [Request(t, q) for t in survivors for q in own[t][done:prefix]]
        if not requests:
            return
        observations = yield from observe(requests)
        done = prefix
        for observation in observations:
            values[observation.theta].append(g(observation))
            answered += [observation.quality] if observation.failed is None else []
            costs[observation.theta].append(observation.cost_usd)
        survivors = [theta for theta in survivors if not is_dropped(theta)]
        # Survivors share Q_j, so s_0 cancels: the total of g ranks like S(theta).
        shares = {
            theta: 1 if queries_of is None else max(1, len(values[theta])) for theta in survivors
        }
        score = {
            theta: (
                max(map(math.fsum, zip(*values[theta], strict=True)), default=0.0) / shares[theta],
                math.fsum(costs[theta]) / shares[theta],
                position,
            )
            for position, theta in enumerate(survivors)
        }
        kept = set(sorted(survivors, key=score.__getitem__)[: math.ceil(len(survivors) / 2)])
        survivors = [theta for theta in survivors if theta in kept]  # alg:scope-main:bc-halving
        if enough is not None and done >= enough[0] and _mean(answered) >= enough[1]:
            break
    if g is minus_quality:
        _warn_if_none_is_right(answered)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def _warn_if_none_is_right(qualities: Sequence[float]) -> None:
    """A model that has seen no quality but 0 expects no other.

    Args:
        qualities: Of calls that did not fail.
    """
    if qualities and not any(qualities):
        logger.warning(
            "all %d answers of Calibrate have quality 0, which tells the model nothing about what "
            "makes answers good; name another base, such as theta_0's LLMs, or give it theta_0's "
            "answers (scope_joint: learn_reference=true)",
            len(qualities),
        )


def _in_order(
    query_order: Sequence[int],
    queries_of: Callable[[tuple[int, ...]], Sequence[int]] | None,
    theta: tuple[int, ...],
) -> Sequence[int]:
    """The queries on which `theta` can be observed."""
    if queries_of is None:
        return query_order
    known = set(queries_of(theta))
    return [query for query in query_order if query in known]


def codes_of_base(
    problem: SelectionProblem, base: Base, initial_pool: PoolKind
) -> tuple[int, ...] | None:
    """Codes of theta_base; None if `initial_pool` does not need it."""
    if initial_pool != "base" or base is None:
        return None
    if isinstance(base, Mapping):
        names = by_module(base, problem.modules, "base")
    else:
        is_list = isinstance(base, Sequence) and not isinstance(base, str)
        names = base if is_list else everywhere(str(base), problem.modules, problem.llms, "base")
    return problem.codes([str(name) for name in names], "base")  # YAML may read one as a number
