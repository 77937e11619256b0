"""Searches with three constraints: how often anything infeasible was ever certified."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from constrained import CAP, OutcomeEvaluator, feasible
from long_runs import IS_LONG, SEARCHES, among_others, only_long

from scope_torch.constraints import at_least, at_most
from scope_torch.methods import make_scope_joint
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run

DELTA, SIZES, Q = 0.1, (4, 4), 40
NEEDED = 30  # of 40 answers that must be good, for each constraint


def world(seed, hopeless, quantile=False):
    """Every configuration but theta_0 misses one constraint by one answer; or none does.

    Costs are random, below that of theta_0, so that every configuration is worth a look.
    """
    rng = np.random.default_rng([seed, 5])
    good = np.ones((3, *SIZES, Q))
    for theta in itertools.product(range(4), range(4)):
        if theta == (3, 3):
            continue
        short = rng.integers(3) if hopeless else -1
        for k in range(3):
            bad = Q - NEEDED + 1 if k == short else int(rng.integers(0, 4))
            good[k][theta][rng.permutation(Q)[:bad]] = 0.0
    cost = rng.lognormal(-7, 0.7, size=SIZES)[..., None] * rng.lognormal(0, 0.2, size=(*SIZES, Q))
    cost[3, 3] = 2 * cost.max()
    least = NEEDED / Q
    fast = at_most("latency_s", CAP * (1 - least), cap=CAP)
    if quantile:
        fast = at_most("latency_s", CAP, quantile=least)
    problem = SelectionProblem(
        name="three",
        modules=("a", "b"),
        llms=(tuple("pqrs"),) * 2,
        num_queries=Q,
        theta_ref=(3, 3),
        reference_quality=1.0,
        reference_cost_usd=float(cost[3, 3].mean()),
        # A good latency is 0 s, a bad one above the cap.
        constraints=(at_least("quality", least), fast, at_least("safety", least)),
        reference_outcomes={fast.name: float(quantile), "safety": 1.0},
    )
    latency = np.where(good[1] > 0, 0.0, 3 * CAP)
    return problem, OutcomeEvaluator(problem, cost, good[0], latency, good[2])


def search(seed, hopeless, watched=3, in_flight=1, quantile=False):
    """Whether one search certified anything, and anything infeasible.

    Args:
        seed: Of world and search.
        hopeless: See `world`.
        watched: How many of the constraints the search knows.
        in_flight: Calls in flight; above 1 several candidates are open at once.
        quantile: Whether the latency is bounded by its p75, not by its mean.
    """
    problem, evaluator = world(seed, hopeless, quantile)
    ok = feasible(problem, evaluator)
    known = replace(problem, constraints=problem.constraints[:watched])
    how = {"seed": seed, "device": "cpu", "bounds": {"delta": DELTA}, "in_flight": in_flight}
    method = make_scope_joint(known, base="p", **how)
    result = run(known, method, evaluator, budget_usd=6 * Q * problem.reference_cost_usd)
    out = {problem.space.index_of(row.theta_out) for row in result.trace}
    return result.recommendation.basis == "certified", not all(ok[at] for at in out)


def shares(searches, hopeless, **changes):
    return np.mean([search(seed, hopeless, **changes) for seed in range(searches)], 0)


@pytest.mark.parametrize(
    ("in_flight", "quantile", "searches"),
    [
        among_others(1, False, (6, 3)),
        (8, False, (3, 1)),
        among_others(1, True, (6, 3)),
    ],
)
@pytest.mark.slow
def test_few_searches_of_hopeless_worlds(in_flight, quantile, searches):
    how = {"in_flight": in_flight, "quantile": quantile}
    certified, wrong = shares(searches[0], True, **how)
    assert certified == wrong < 0.5
    certified, wrong = shares(searches[1], False, **how)
    assert certified > 0.8
    assert wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize(("in_flight", "quantile"), [(1, False), (32, False), (1, True)])
@only_long
def test_wrong_certificates_are_as_rare_as_promised(in_flight, quantile):
    """Although nothing of delta is divided among the constraints."""
    _, wrong = shares(SEARCHES, True, in_flight=in_flight, quantile=quantile)
    assert wrong <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / SEARCHES)


@pytest.mark.slow
def test_a_constraint_that_nobody_watches_is_violated():
    """So the simulation can tell: of 8 wrong at the rate DELTA, 5 have a chance of 0.0004."""
    _, wrong = shares(24 if IS_LONG else 8, True, watched=2)
    assert wrong > 0.5
