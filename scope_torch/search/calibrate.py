"""Calibrate: Algorithm 2 (alg:bound-calibration)."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from scope_torch.observation import Observation, Request


def calibrate(
    pool: Sequence[tuple[int, ...]], query_order: Sequence[int]
) -> Generator[list[Request], Sequence[Observation], None]:
    """Observes many configurations on few queries, then ever fewer on ever more.

    Each of the ceil(log2 Q) + 1 rounds doubles the queries and keeps the better half of the pool.
    (The running text of sec:calibration says ceil(log2(Q + 1)) rounds; for Q not a power of two
    that would end before all queries are observed, so the pseudocode is followed.)

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
    for j in range(1, math.ceil(math.log2(num_queries)) + 2):
        prefix = min(2 ** (j - 1), num_queries)
        new_queries = query_order[done:prefix]
        done = prefix
        requests = [Request(theta, q) for theta in survivors for q in new_queries]
        observations = yield requests
        for observation in observations:
            qualities[observation.theta].append(observation.quality)
            costs[observation.theta].append(observation.cost_usd)
        # Total quality ranks like S(theta): the survivors share Q_j, so s_0 cancels.
        score = {
            theta: (-math.fsum(qualities[theta]), math.fsum(costs[theta]), position)
            for position, theta in enumerate(survivors)
        }
        kept = set(sorted(survivors, key=score.__getitem__)[: math.ceil(len(survivors) / 2)])
        survivors = [theta for theta in survivors if theta in kept]
