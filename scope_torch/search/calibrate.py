"""Calibrate: Algorithm 2 (alg:bound-calibration)."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, Literal

import torch

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.space import ConfigSpace

PoolKind = Literal["base", "random", "none"]
POOLS = ("base", "random", "none")


class InitialPool:
    """Theta_init (line alg:scope-main:bc-sample-theta).

    Args:
        problem: What is searched.
        kind: `base`, the neighbours of theta_base in every module (SCOPE, eq:theta-1-def);
            `random`, as many configurations drawn uniformly (SCOPE-Rand); `none`, to skip
            Calibrate (SCOPE-Coarse).
        base: Codes of the configuration with theta_base in every module; used by `base` only.

    Raises:
        InputError: If the kind is unknown, or `base` is missing or not a configuration.
    """

    def __init__(
        self, problem: SelectionProblem, kind: PoolKind, base: Sequence[int] | None
    ) -> None:
        if kind not in POOLS:
            raise InputError(f"initial_pool={kind!r} must be base, random or none")
        if kind == "base" and base is None:
            raise InputError("base=None: Calibrate needs a base LLM; name a cheap one")
        self.kind: PoolKind = kind
        self.base = problem.space.check(base or (), "base") if kind == "base" else None

    def draw(self, space: ConfigSpace, generator: torch.Generator) -> list[tuple[int, ...]]:
        """The configurations, in the order in which ties are broken."""
        if self.kind == "none":
            return []
        if self.base is not None:
            return space.neighbours(self.base)
        return space.sample(1 + sum(size - 1 for size in space.sizes), generator)

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        return {"initial_pool": self.kind, "base": self.base}


def calibrate(
    pool: Sequence[tuple[int, ...]], query_order: Sequence[int]
) -> Generator[list[Request], Sequence[Observation], None]:
    """Observes many configurations on few queries, then ever fewer on ever more.

    Each of the ceil(log2 Q) + 1 rounds doubles the queries and keeps the better half of the pool.
    (The running text of sec:calibration says ceil(log2(Q + 1)) rounds. Unless Q is a power of two,
    these would end before all queries are observed, so the pseudocode is followed.)

    Algorithm 1 then observes a candidate on all queries in an order of its own. It asks again for
    the pairs that Calibrate has observed, and Lambda counts each such repeat: the noise of a second
    answer is new. A system without noise need not be called again, see `FunctionEvaluator`.

    The paper does not say how ties of S(theta) are broken: lower total cost first, then the order
    of the pool.

    Args:
        pool: Theta_init, in the order in which ties are broken.
        query_order: The Q queries in random order.

    Yields:
        The requests of a round: configurations in pool order, each on the round's new queries.
    """
    num_queries = len(query_order)
    survivors = list(pool)
    qualities: dict[tuple[int, ...], list[float]] = {theta: [] for theta in pool}
    costs: dict[tuple[int, ...], list[float]] = {theta: [] for theta in pool}
    done = 0
    for j in range(1, math.ceil(math.log2(num_queries)) + 2):  # alg:scope-main:bc-for
        prefix = min(2 ** (j - 1), num_queries)  # alg:scope-main:bc-qprefix
        new_queries = query_order[done:prefix]
        done = prefix
        # alg:scope-main:bc-foreach
        observations = yield [Request(theta, q) for theta in survivors for q in new_queries]
        for observation in observations:
            qualities[observation.theta].append(observation.quality)
            costs[observation.theta].append(observation.cost_usd)
        # Survivors share Q_j, so s_0 cancels: the total quality ranks like S(theta).
        score = {
            theta: (-math.fsum(qualities[theta]), math.fsum(costs[theta]), position)
            for position, theta in enumerate(survivors)
        }
        kept = set(sorted(survivors, key=score.__getitem__)[: math.ceil(len(survivors) / 2)])
        survivors = [theta for theta in survivors if theta in kept]  # alg:scope-main:bc-halving
