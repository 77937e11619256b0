"""Searches with answers that flip: how often anything infeasible was ever certified."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flips import Flipped

from scope_torch.bounds.betting import BettingSequence, share_of_delta
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task

DELTA = 0.1


def search(seed, flips, declared, epsilon=0.1, num_queries=40):
    """One search in a world of its own: whether it certified anything, and anything infeasible."""
    task = synthetic_task(num_queries=num_queries, world_seed=seed, epsilon=epsilon)
    _, answers = (truth.flatten() for truth in task.evaluator.truth())
    quality = flips + (1 - 2 * flips) * answers
    space = task.problem.space
    reference = float(quality[space.index_of(task.problem.theta_ref)])
    problem = replace(task.problem, reference_quality=reference, reference_answers=None)
    optimizer = make_scope_joint(
        problem,
        base="small",
        seed=seed,
        device="cpu",
        certificate_flips=declared,
        bounds={"delta": DELTA},
    )
    budget_usd = 0.6 * num_queries * problem.reference_cost_usd
    result = run(problem, optimizer, Flipped(task.evaluator, flips, seed), budget_usd=budget_usd)
    feasible = quality >= problem.s_0 - 1e-12
    out = {space.index_of(row.theta_out) for row in result.trace if row.theta_out is not None}
    return result.recommendation.basis == "certified", not all(bool(feasible[at]) for at in out)


def wrong_and_certified(searches, flips, declared):
    outcomes = [search(seed, flips, declared) for seed in range(searches)]
    certified, wrong = np.array(outcomes).sum(0)
    return wrong / searches, certified / searches


def test_few_searches_with_flips():
    wrong, certified = wrong_and_certified(12, 0.02, 0.02)
    assert wrong == 0
    assert certified > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.02, 0.1])
def test_wrong_certificates_are_as_rare_as_promised(flips):
    wrong, certified = wrong_and_certified(1000, flips, flips)
    assert wrong <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / 1000)
    assert certified > {0.02: 0.3, 0.1: 0.05}[flips]


@pytest.mark.slow
def test_undeclared_flips_break_the_promise():
    """So the simulation can tell."""
    wrong, _ = wrong_and_certified(100, 0.1, 0.0)
    assert wrong > DELTA


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.02, 0.1])
def test_the_luckiest_of_many_candidates_is_no_more_often_wrong(flips):
    """The union bound under attack: 300 candidates at the worst expectations, the luckiest first.

    A candidate that starts well is kept, another one is given up after ten answers. The budget of
    delta is that of all 300 together.
    """
    rng, runs, num, s_0 = np.random.default_rng(1), 400, 60, 0.7
    usual = math.ceil((s_0 - flips) * num / (1 - 2 * flips) - 1e-9) - 1
    mu = np.where(np.arange(num) < usual, 1 - flips, flips)
    wrong = 0
    for _ in range(runs):
        for k in range(1, 301):
            outcomes = (rng.random(num) < mu)[rng.permutation(num)].astype(float)
            if outcomes[:10].sum() < 8:
                continue
            sequence = BettingSequence(num, s_0, share_of_delta(k, DELTA, 20), flips)
            if any(sequence.update(x) for x in outcomes):
                wrong += 1
                break
    assert 0 < wrong / runs <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / runs)
