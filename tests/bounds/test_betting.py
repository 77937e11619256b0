"""Certificates by betting: exact where arithmetic decides, and as rare an error as promised."""

import itertools
import math

import numpy as np
import pytest
from long_runs import only_long
from tables import make_task

from scope_torch.bounds.betting import BettingSequence, share_of_delta
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run

MAKERS = (make_scope, make_scope_joint)


def first_certified(outcomes, s_0, delta):
    """How many outcomes it took; None if all were not enough."""
    sequence = BettingSequence(len(outcomes), s_0, delta)
    told = [sequence.update(float(y)) for y in outcomes]
    return told.index(True) + 1 if any(told) else None


@pytest.mark.parametrize("seed", range(5))
def test_the_capital_is_what_the_bets_make_it(seed):
    rng = np.random.default_rng(seed)
    outcomes, s_0, delta = rng.random(40), 0.3 + 0.05 * seed, 0.05
    expected = None
    for t in range(1, 41):
        left = 40 * s_0 - outcomes[:t].sum()
        mixture = 0.0
        for phi in np.arange(0.05, 0.96, 0.05):
            capital = 1.0
            for i in range(t):
                most = (40 * s_0 - outcomes[:i].sum()) / (40 - i)
                capital *= 1 + phi / most * (outcomes[i] - most)
            mixture += capital / 19
        if mixture >= 1 / delta or left <= 0:
            expected = t
            break
    assert first_certified(outcomes, s_0, delta) == expected


def test_no_order_of_few_outcomes_beats_the_promise():
    """All orders of all 0/1 outcomes whose average is below s_0: exact, not simulated."""
    num, s_0, delta = 8, 0.5, 0.3
    for ones in range(4):
        orders = list(itertools.combinations(range(num), ones))
        wrong = 0
        for where in orders:
            outcomes = np.zeros(num)
            outcomes[list(where)] = 1
            wrong += first_certified(outcomes, s_0, delta) is not None
        assert wrong / len(orders) <= delta
    assert wrong > 0  # of three ones: the promise is not kept by never certifying


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("graded", [False, True])
def test_errors_are_as_rare_as_promised(delta, graded):
    rng, wrong = np.random.default_rng(int(100 * delta)), 0
    runs, num, s_0 = 700, 60, 0.6
    for _ in range(runs):
        outcomes = rng.random(num) if graded else (np.arange(num) < 35).astype(float)
        if graded:
            outcomes *= (s_0 - 1e-6) / outcomes.mean()
            outcomes = outcomes.clip(max=1.0)
        wrong += first_certified(rng.permutation(outcomes), s_0, delta) is not None
    assert outcomes.mean() < s_0
    assert wrong / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert wrong > 0


@pytest.mark.slow
def test_better_configurations_are_certified_earlier_and_all_at_last():
    rng, medians = np.random.default_rng(0), []
    for ones in (70, 80, 95):
        outcomes = (np.arange(100) < ones).astype(float)
        times = [first_certified(rng.permutation(outcomes), 0.7, 0.05) for _ in range(60)]
        assert None not in times
        medians.append(np.median(times))
    assert medians[0] > 90  # exactly s_0: nearly all must be seen
    assert medians[2] < 30
    assert medians == sorted(medians, reverse=True)


def test_the_shares_of_all_candidates_add_up():
    last = 100_000
    shares = [share_of_delta(k, 0.1) for k in range(1, last)]
    constant = 0.1 / (shares[0] * 2 * math.log(2) ** 2)
    # 1 / (x log(x)^2) falls and has the integral -1 / log(x): at most so much is left.
    rest = 0.1 / constant / math.log(last)
    assert 0.09995 < sum(shares) + rest < 0.1
    assert shares == sorted(shares, reverse=True)


def test_a_certificate_is_kept_until_the_average_is_known_to_be_less():
    """Evidence against an average below s_0 is not taken back by later outcomes that are bad."""
    outcomes = np.array([1.0] * 12 + [0.0] * 38)  # the rare misleading order
    sequence = BettingSequence(50, 0.55, 0.05)
    told = [sequence.update(y) for y in outcomes]
    first = told.index(True)
    assert 0 < first < 12
    out = range(49, -1, -1)  # outcomes that are still out
    known = [outcomes[: 50 - left].sum() + left < 50 * 0.55 for left in out]
    assert told[first:] == [not less for less in known[first:]]
    assert sequence.refuted
    capital = np.zeros(19)
    for t, y in enumerate(outcomes):
        most = (50 * 0.55 - outcomes[:t].sum()) / (50 - t)
        capital += np.log1p(np.arange(0.05, 0.96, 0.05) * (y - most) / most)
    final = np.exp(capital).mean()
    assert final < 1 / 0.05


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.slow
@only_long
def test_a_search_certifies_by_its_sequences(make):
    """And its queries are in an order of their own for every candidate."""
    task = make_task(3, (4, 3), 30, graded=False)
    optimizer = make(
        task.problem,
        base="llm0",
        seed=1,
        device="cpu",
        certificate="sequence",
        bounds={"delta": 0.1},
        gap_tolerance=None,
    )
    result = run(task.problem, optimizer, task.evaluator(), task.budget(40))
    assert optimizer.settings()["sequence_delta"] == 0.1
    assert "at least 1 - 0.1" in " ".join(result.report["assumptions"])
    assert result.report["certificate"] == "sequence"
    history = [(o.theta, o.query, o.quality) for o in result.history]
    rows = [
        row
        for row in result.trace
        if row.event in ("selected", "verifying", "pruned", "completed", "improved")
    ]
    orders, k, certified = [], 0, []
    for i, row in enumerate(rows):
        if row.event != "selected":
            continue
        k += 1
        ends = ("pruned", "completed", "verifying", "selected")  # its turn may not have begun
        end = next((r for r in rows[i + 1 :] if r.event in ends), None)
        told = history[row.t : end.t if end else None]
        assert {theta for theta, _, _ in told} <= {row.theta_cand}
        orders.append([query for _, query, _ in told])
        share = 0.1 / (2.11 * (k + 1) * math.log(k + 1) ** 2)
        sequence = BettingSequence(30, task.problem.s_0, share)
        told_so = [sequence.update(quality) for _, _, quality in told]
        if any(told_so):
            certified.append((row.theta_cand, row.t + told_so.index(True) + 1))
    assert len({tuple(order[:3]) for order in orders if len(order) > 2}) > 3
    improved = [row for row in rows if row.event == "improved"]
    assert improved
    for row in improved:
        assert any(theta == row.theta_cand and t <= row.t for theta, t in certified)
    theta = result.recommendation.theta
    assert task.mean_quality[np.ravel_multi_index(theta, task.sizes)] >= task.problem.s_0 - 1e-12
