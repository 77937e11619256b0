"""Calibrate (alg:bound-calibration): rounds, order, halving and ties."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import task_of

from scope_torch.observation import Observation, Request
from scope_torch.search.calibrate import calibrate
from scope_torch.space import ConfigSpace

Pool = list[tuple[int, ...]]


def pool_of(size: int) -> Pool:
    return [(code,) for code in range(size)]


def play(pool: Pool, query_order: list[int], quality, cost=1.0):
    """The requests of every round, given values that broadcast to `len(pool) x num_queries`."""
    shape = (len(pool), len(query_order))
    quality, cost = np.broadcast_to(quality, shape), np.broadcast_to(cost, shape)
    rounds, steps = [], calibrate(pool, query_order)
    requests = next(steps)
    while True:
        rounds.append(requests)
        at = [(*theta, query) for theta, query, _ in requests]
        told = [Observation((c,), q, float(cost[c, q]), float(quality[c, q])) for c, q in at]
        try:
            requests = steps.send(told)
        except StopIteration:
            return rounds


def column(*values: float) -> np.ndarray:
    """The same value on every query."""
    return np.array(values)[:, None]


def configurations(requests: list[Request]) -> Pool:
    """Configurations of a round in the order of their first request."""
    return list(dict.fromkeys(request.theta for request in requests))


@pytest.mark.parametrize(
    ("num_queries", "prefixes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 4]),
        (5, [1, 2, 4, 5]),
        (16, [1, 2, 4, 8, 16]),
        (17, [1, 2, 4, 8, 16, 17]),
    ],
)
def test_rounds_double_the_queries_and_halve_the_pool(num_queries, prefixes):
    order = [(7 * k + 3) % num_queries for k in range(num_queries)]  # 7 divides no size above
    rounds = play(pool_of(11), order, column(*(code / 11 for code in range(11))))
    assert len(rounds) == math.ceil(math.log2(num_queries)) + 1
    size, seen = 11, 0
    for requests, prefix in zip(rounds, prefixes, strict=True):
        survivors = [(code,) for code in range(11 - size, 11)]  # the best have the largest codes
        expected = [(theta, q) for theta in survivors for q in order[seen:prefix]]
        assert [(r.theta, r.query) for r in requests] == expected
        size, seen = math.ceil(size / 2), prefix
    assert seen == num_queries


@pytest.mark.parametrize("num_queries", [1, 2, 3, 5, 16])
def test_survivors_of_the_last_round_are_observed_once_on_every_query(num_queries):
    rounds = play(pool_of(10), list(range(num_queries)), column(*(code / 10 for code in range(10))))
    seen = Counter((r.theta, r.query) for requests in rounds for r in requests)
    assert set(seen.values()) == {1}
    for theta in configurations(rounds[-1]):
        assert {q for t, q in seen if t == theta} == set(range(num_queries))


def test_the_paper_sizes_end_with_one_configuration():
    pool = ConfigSpace((4, 4, 4)).neighbours((0, 0, 0))
    assert len(pool) == 10
    assert pool[:5] == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (0, 1, 0)]
    positions = pool_of(len(pool))
    rounds = play(positions, list(range(16)), quality=0.5)
    assert [len(configurations(requests)) for requests in rounds] == [10, 5, 3, 2, 1]
    assert [len(requests) for requests in rounds] == [10, 5, 6, 8, 8]


def test_quality_ranks_by_the_total_over_all_queries_so_far():
    # (0,) wins the first query narrowly, (1,) is far better on the second and third.
    quality = [[0.6, 0.1, 0.1, 0.5], [0.5, 0.9, 0.9, 0.5], [0.4, 0.8, 0.8, 0.5]]
    rounds = play(pool_of(3), [0, 1, 2, 3], quality)
    assert [configurations(r) for r in rounds] == [[(0,), (1,), (2,)], [(0,), (1,)], [(1,)]]


def test_survivors_stay_in_pool_order():
    rounds = play(pool_of(6), [0, 1], column(0.1, 0.7, 0, 0.9, 0, 0.8))
    assert configurations(rounds[1]) == [(1,), (3,), (5,)]


def test_ties_go_to_the_lower_cost():
    rounds = play(pool_of(4), [0, 1], quality=1.0, cost=column(4.0, 1.0, 3.0, 2.0))
    assert configurations(rounds[1]) == [(1,), (3,)]


def test_ties_in_quality_and_cost_go_to_the_pool_order():
    pool = [(3,), (1,), (2,), (0,)]
    assert configurations(play(pool, [0, 1], quality=1.0)[1]) == [(3,), (1,)]


def test_quality_goes_before_cost():
    rounds = play(pool_of(2), [0, 1], quality=column(0.5, 0.6), cost=column(0.0, 9.0))
    assert configurations(rounds[1]) == [(1,)]


def test_totals_are_exact_so_that_equal_sums_tie():
    # Left to right, 0.1 + 0.2 + 0.3 exceeds 0.3 + 0.2 + 0.1 by an ulp; the cheaper must win.
    quality = np.zeros((8, 5))
    quality[0, :3], quality[1, :3] = [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]
    rounds = play(pool_of(8), list(range(5)), quality, cost=column(*range(8, 0, -1)))
    assert configurations(rounds[2]) == [(0,), (1,)]
    assert configurations(rounds[3]) == [(1,)]


@pytest.mark.slow
@given(st.data())
def test_agrees_with_the_pseudocode_retyped(data):
    num_queries = data.draw(st.integers(1, 20))
    size = data.draw(st.integers(1, 9))
    values = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    row = st.lists(values, min_size=num_queries, max_size=num_queries)
    quality = data.draw(st.lists(row, min_size=size, max_size=size))
    cost = data.draw(st.lists(row, min_size=size, max_size=size))
    order = data.draw(st.permutations(range(num_queries)))
    rounds = play(pool_of(size), order, quality, cost)
    alive = list(range(size))
    for j, requests in enumerate(rounds, start=1):
        prefix = order[: min(2 ** (j - 1), num_queries)]
        new = prefix[2 ** (j - 2) if j > 1 else 0 :]
        assert [(r.theta, r.query) for r in requests] == [((a,), q) for a in alive for q in new]
        score = {a: -sum(quality[a][q] for q in prefix) for a in alive}
        paid = {a: sum(cost[a][q] for q in prefix) for a in alive}
        rank = {a: (score[a], paid[a], a) for a in alive}
        alive = sorted(sorted(alive, key=rank.get)[: (len(alive) + 1) // 2])


def tied_task(seed: int):
    """Eleven configurations of a base and its neighbours, 0/1 qualities of which many are equal."""
    rng = np.random.default_rng(seed)
    quality = (rng.random((6, 6, 1)) < 0.7) & (rng.random((6, 6, 8)) < 0.9)
    quality[5, 5] = True
    cost = rng.choice([0.1, 0.2, 0.3], (6, 6, 1)) * np.ones(8)
    return task_of(cost, quality.astype(float), (5, 5))


def played(task, seed: int, **settings) -> list[list[Request]]:
    """The requests of each round of Calibrate, of a whole search."""
    optimizer = task.scope(seed, **settings)
    rounds = []
    for _ in range(4):  # ceil(log2 8) + 1
        rounds.append(list(optimizer.ask()))
        optimizer.tell([task.observe(request) for request in rounds[-1]])
    return rounds


def pool_in_order(task, seed: int, initial_pool: str) -> tuple[Pool, list[int]]:
    """Theta_init in the order in which ties are broken, and the queries in theirs."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randperm(8, generator=generator).tolist()
    if initial_pool == "base":
        b0, b1 = task.base
        pool = [(b0, b1), *((a, b1) for a in range(6) if a != b0)]
        pool += [(b0, b) for b in range(6) if b != b1]
    else:
        pool = task.problem.space.sample(11, generator)
    return pool, queries


@pytest.mark.parametrize("initial_pool", ["base", "random"])
def test_ties_are_broken_by_the_rule_retold(initial_pool):
    """Who is better than whom, pair by pair; the better half are those that few are better than."""
    broken = 0
    for seed in range(5):
        task = tied_task(seed)
        rounds = played(task, seed, initial_pool=initial_pool)
        pool, queries = pool_in_order(task, seed, initial_pool)
        alive, seen = pool, 0
        for j, requests in enumerate(rounds):
            asked = queries[:1] if j == 0 else queries[2 ** (j - 1) : 2**j]
            assert requests == [Request(theta, q) for theta in alive for q in asked]
            seen += len(asked)
            answers = {t: [task.observe(Request(t, q)) for q in queries[:seen]] for t in alive}
            quality = {t: sum(a.quality for a in answers[t]) for t in alive}
            cost = {t: round(sum(a.cost_usd for a in answers[t]), 9) for t in alive}

            def better(a, b, quality=quality, cost=cost, order=pool):
                if quality[a] != quality[b]:
                    return quality[a] > quality[b]
                if cost[a] != cost[b]:
                    return cost[a] < cost[b]
                return order.index(a) < order.index(b)

            places = (len(alive) + 1) // 2
            kept = [a for a in alive if sum(better(b, a) for b in alive) < places]
            broken += any(quality[a] == quality[b] for a in kept for b in set(alive) - set(kept))
            alive = kept
    assert broken > 5  # ties decided who survived
