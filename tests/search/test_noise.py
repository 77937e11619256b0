"""Answers that flip: the choice, and the rule that gives up, know what can be certified."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from flips import Flipped
from tables import make_task

from scope_torch.bounds.assumptions import certified_by
from scope_torch.bounds.base import Beta
from scope_torch.bounds.fresh import PASSES, FreshBet, excess
from scope_torch.bounds.repeats import Repeats
from scope_torch.constraints import at_least
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.runs.runner import run
from scope_torch.search.certificate import ByBounds, BySequence
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.search.fresh import ByFreshAnswers
from scope_torch.space import ConfigSpace
from scope_torch.space_search.device_grid import DeviceMinima, Ties
from scope_torch.space_search.device_joint import FewMinima
from scope_torch.space_search.minima import LowerBounds, Moments

PROBLEM = make_task(0, (3, 3), 40, graded=False).problem


class Known:
    """A posterior whose means and standard deviations are given."""

    def __init__(self, c, mean_g, sigma_g):
        self._c, self.mean_g, self._sigma_g = c, mean_g, sigma_g
        self.mean_c = c + 0.1

    def bounds(self, b):
        return self._c, self.mean_g - b * self._sigma_g

    def fill_lower(self, at, beta, c, g):
        c.copy_(self._c[at])
        g.copy_(self.mean_g[at] - beta.g * self._sigma_g[at])

    def make_exact(self, index):
        raise AssertionError("all are exact")

    def is_exact(self, index):
        return torch.ones(len(index), dtype=torch.bool)


def minima(seed, kind="enumerated", u_out=0.6):
    rng = torch.Generator().manual_seed(seed)
    c, mean_g, sigma_g = torch.rand(3, 200, generator=rng, dtype=torch.float64)
    posterior = Known(c + 0.01, mean_g - 0.3, sigma_g / 10)
    lower, of = torch.empty(2, 200, dtype=torch.float64), (Beta(3.0, 3.0), u_out, None)
    enumerated = LowerBounds(posterior, lower, *of)
    if kind == "enumerated":
        return posterior, enumerated
    means = torch.stack([posterior.mean_c, posterior.mean_g])
    ties = Ties(DeviceSums(ConfigSpace((200,)), HammingMatern52Kernel(), "cpu"))
    if kind == "device":
        return posterior, DeviceMinima(torch.cat([lower, lower[:1]]), means, *of, ties)
    c, g = lower
    eligible = torch.where(g <= 0, c, math.inf)

    def moments(at):
        return Moments(means[0][at], c[at], means[1][at], g[at])

    return posterior, FewMinima([eligible, means[1], g], *of, moments, ties)


KINDS = ["enumerated", "device", "few"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1, 0.25])
def test_the_most_promising_can_be_certified_at_the_margin(seed, margin, kind):
    posterior, lower = minima(seed, kind)
    c_of, g_of = posterior.bounds(3.0)
    value = []
    for c, g, mean in zip(c_of, g_of, posterior.mean_g, strict=True):
        sigma = float(mean - g) / 3
        probability = min(0.5, 0.5 * math.erfc(float(mean + margin) / sigma / math.sqrt(2)))
        promise = probability * (0.6 - float(c)) / float(c)
        value.append(promise if g <= -margin and c <= 0.6 else -math.inf)
    choice = MostPromising(lambda: margin)
    assert choice.next_iteration(3, float(g_of.min())) == 3
    assert value[choice.select(3, lower, 0.0, seed)] == pytest.approx(max(value), rel=1e-12)
    assert choice.next_iteration(3, -margin) is None
    assert choice.next_iteration(3, -margin - 1e-9) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_minima_looks_at_all_of_theta(kind):
    posterior, lower = minima(3, kind)
    c, g = posterior.bounds(3.0)

    def function(moments):
        return (2 - moments.lower_c) * (1 - moments.lower_g) / (1 + moments.mean_c)

    values = (2 - c) * (1 - g) / (1 + posterior.mean_c)
    value, index = lower.whole.largest(function)
    assert value == pytest.approx(float(values.max()), rel=1e-12)
    assert index == int(values.argmax())
    assert lower.whole.value(function, 7) == pytest.approx(float(values[7]), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_cost_among_those_below_the_margin(seed):
    _, lower = minima(seed)
    choice = LeastCost(1 / 3, lambda: 0.05)
    i = choice.next_iteration(1, lower.least_g)
    assert i is not None
    limit = -(i ** (-1 / 3)) - 0.05
    assert lower.least_g <= limit
    assert i == 1 or lower.least_g > -((i - 1) ** (-1 / 3)) - 0.05
    at = choice.select(i, lower, 0.0, seed)
    assert lower.c[at] == lower.c[lower.g <= limit].min()
    assert choice.next_iteration(1, -0.05) is None
    assert choice.next_iteration(1, -0.05 - 1e-300) is None


def told(certificate, passes, seed=0):
    """Begins a candidate and tells it passes over all queries; whether it asks for another."""
    test = certificate.begin(1, torch.Generator().manual_seed(seed))
    answers = []
    for grades in passes:
        certified = [test.update(row, math.inf) for row in grades]
        answers.append((certified[-1], test.again()))
        assert certified[:-1] in ([False] * (len(grades) - 1), [certified[-1]] * (len(grades) - 1))
    test.end()
    return answers


def ones(number, num=40):
    return [(1.0,)] * number + [(0.0,)] * (num - number)


S_0 = math.ceil(40 * PROBLEM.s_0)  # ones that reach the threshold


def test_passes_are_those_of_a_bet_at_three_quarters_of_what_is_left():
    certificate = ByFreshAnswers(PROBLEM, 0.1, 0.02)
    passes = [ones(S_0 + 2), ones(S_0 + 3), ones(S_0 + 4), ones(S_0 + 3)]
    bet, expected = FreshBet(PROBLEM.s_0, np.array(passes[0])[:, 0]), [(False, True)]
    for grades in passes[1:]:
        bet.settle(np.array(grades)[:, 0])
        won = bet.log_capital >= math.log(1 / 0.075)
        expected.append((won, not won))
        if won:
            break
    assert told(certificate, passes[: len(expected)]) == expected
    assert expected[-1] == (True, False)
    assert certificate.purse.left == pytest.approx(0.025, rel=1e-12)
    certificate.begin(2, torch.Generator())
    assert certificate.purse.left == pytest.approx(0.1, rel=1e-12)  # a stake that won comes back


def test_a_candidate_at_the_threshold_is_not_asked_again():
    certificate = ByFreshAnswers(PROBLEM, 0.1, 0.02)
    assert told(certificate, [ones(S_0 - 1)]) == [(False, False)]
    assert certificate.purse.left == 0.1


def test_a_bet_that_has_lost_half_ends_and_one_that_is_broken_off_has_lost_all():
    certificate = ByFreshAnswers(PROBLEM, 0.1, 0.02)
    assert told(certificate, [ones(S_0 + 2), ones(S_0 - 8)]) == [(False, True), (False, False)]
    test = certificate.begin(2, torch.Generator())
    left = certificate.purse.left
    assert 0.025 < left < 0.0626
    for row in ones(S_0 + 2):
        test.update(row, 0.0)
    assert test.again()
    test.update((1.0,), 0.0)
    beside = certificate.begin(3, torch.Generator())  # while the other one is open
    assert certificate.purse.left == pytest.approx(left / 4, rel=1e-12)
    test.end()
    beside.end()
    certificate.begin(4, torch.Generator())
    assert certificate.purse.left == pytest.approx(left / 4, rel=1e-12)


def test_bets_that_are_open_at_once_share_the_purse():
    certificate = ByFreshAnswers(PROBLEM, 0.1, 0.02)
    tests = [certificate.begin(k, torch.Generator()) for k in (1, 2)]
    for test, left in zip(tests, [0.025, 0.00625], strict=True):
        for row in ones(S_0 + 2):
            test.update(row, 0.0)
        assert test.again()
        assert certificate.purse.left == pytest.approx(left, rel=1e-12)
    for row in ones(S_0 + 2):
        tests[0].update(row, 0.0)
    tests[0].end()
    certificate.begin(3, torch.Generator())
    left = certificate.purse.left
    assert 0.00625 < left <= 0.08125 + 1e-12  # the first stake, or what is left of it
    tests[1].end()
    certificate.begin(4, torch.Generator())
    assert certificate.purse.left >= left


def test_no_candidate_is_asked_for_ever():
    certificate = ByFreshAnswers(PROBLEM, 1e-9, 0.02)
    answers = told(certificate, [ones(S_0 + 1)] * (PASSES + 1))
    assert [again for _, again in answers] == [True] * PASSES + [False]
    assert not any(certified for certified, _ in answers)


def test_every_constraint_must_win_with_one_stake():
    problem = replace(PROBLEM, constraints=[at_least("safety", 0.5)])
    certificate = ByFreshAnswers(problem, 0.1, 0.02)
    good, poor = [(1.0, 1.0)] * 40, [(1.0, float(i < 21)) for i in range(40)]
    assert told(certificate, [poor, poor, poor]) == [(False, True)] * 3
    both = [(1.0, float(i < 10)) for i in range(40)]
    assert told(certificate, [both]) == [(False, False)]  # after its first pass
    left = certificate.purse.left
    bet = FreshBet(0.5, np.array(poor)[:, 1])
    bet.settle(np.array(poor)[:, 1])
    bet.settle(np.array(poor)[:, 1])
    assert 0 < bet.log_capital < 1
    assert left == pytest.approx(0.1, rel=1e-12)  # what was staked came back, and no more
    assert told(certificate, [good, good])[-1] == (True, False)


def test_the_margin_follows_the_purse_and_what_answers_vary():
    certificate = ByFreshAnswers(PROBLEM, 0.1, 0.02)
    assert certificate.variance == pytest.approx(0.02 * 0.98, rel=1e-12)
    assert certificate.next_margin() == excess(40, certificate.purse.stake, certificate.variance)
    before = certificate.next_margin()
    told(certificate, [ones(40), ones(30)])
    assert certificate.variance == pytest.approx((30 * 0.0196 + 5) / 70, rel=1e-12)
    test = certificate.begin(2, torch.Generator())
    assert certificate.next_margin() > before
    noise = math.sqrt(certificate.variance / 40)
    assert test.margin == pytest.approx(max(0.0, certificate.next_margin() - noise), rel=1e-12)
    assert certificate.report()["next_margin"] == certificate.next_margin()
    assert certificate.settings() == ByFreshAnswers(PROBLEM, 0.1, 0.02).settings()


@pytest.mark.parametrize("certificate", [BySequence(PROBLEM, 0.1), ByBounds()])
def test_without_flips_there_is_no_margin(certificate):
    assert certificate.next_margin() == 0
    test = certificate.begin(1, torch.Generator())
    assert test.margin == 0
    assert not test.again()
    assert "next_margin" not in certificate.report()


REPEATS = Repeats((1.0,) * 30, (0.0,) * 3 + (1.0,) * 27)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_what_repeats_of_the_reference_say(make):
    settings = {"base": "llm0", "device": "cpu", "certificate": "sequence"}
    auto = {"certificate_flips": "auto", "reference_repeats": [3, 30]}
    for more in ({"certificate_flips": REPEATS}, auto):
        optimizer = make(PROBLEM, **settings, **more)
        report = optimizer.report()
        assert report["repeats"] == [3, 30]
        p = report["flips"]
        assert p * (1 - p) == pytest.approx((1.5 + 0.25) / 31, rel=1e-12)
        assert optimizer.settings()["sequence_repeats"] == [3, 30]
        assert optimizer.rules.known.answers_vary
        assumptions = " ".join(report["assumptions"])
        assert "answers may vary from call to call in any way" in assumptions
        assert "the reference answered 30 queries twice, 3 of them otherwise" in assumptions
        assert "was asked again itself" in assumptions
    for none in (0, None, "0"):
        optimizer = make(PROBLEM, **settings, certificate_flips=none)
        assert not optimizer.rules.known.answers_vary
        assert "flips" not in optimizer.report()
        assert "the same call always gets the same" in " ".join(optimizer.report()["assumptions"])
    unchanged = make(PROBLEM, **settings, certificate_flips=Repeats((1.0,) * 30, (1.0,) * 30))
    p = unchanged.report()["flips"]  # none of 30 is not none
    assert p * (1 - p) == pytest.approx(0.25 / 31, rel=1e-12)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"certificate_flips": "auto"}, "ask the reference about 30 queries a second time"),
        ({"reference_repeats": [0, 40]}, "auto needs the repeats, and they need auto"),
        ({"certificate_flips": "often"}, "certificate_flips='often' must be a number, or auto"),
        ({"certificate_flips": "0.7"}, "certificate_flips=0.7 must lie in"),
        *(
            ({"certificate_flips": "auto", "reference_repeats": counts}, "must be two whole")
            for counts in ([1], [3, 2], [-1, 5], [0, 0], [1.5, 4], [2, 4.5])
        ),
    ],
)
def test_impossible_flips(make, wrong, message):
    with pytest.raises(InputError, match=message):
        make(PROBLEM, base="llm0", device="cpu", certificate="sequence", **wrong)


def test_an_explanation_of_a_run_of_an_earlier_version():
    settings = {"bounds": {"mode": "tuned"}, "sequence_delta": 0.05, "sequence_flips": 0.02}
    assert "with probability at most 0.02" in " ".join(certified_by(settings))


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_continued_search_gets_no_old_answer_as_a_fresh_one(in_flight):
    """An evaluator that keeps its answers tells them apart by their number, as a store does."""
    task, number = make_task(5, (3, 3), 30, graded=False), Counter()
    settings = {"base": "llm0", "certificate_flips": 0.03, "bounds": {"delta": 0.4}}
    first = make_scope_joint(task.problem, seed=1, **settings)
    june = list(
        run(task.problem, first, Flipped(task.evaluator(), 0.03, 3), task.budget(60)).history
    )
    number.update((one.theta, one.query) for one in june)
    second = make_scope_joint(task.problem, seed=2, known=june, in_flight=in_flight, **settings)
    july = run(task.problem, second, Flipped(task.evaluator(), 0.03, 4), task.budget(60)).history
    assert any(number[one.theta, one.query] for one in july)
    for one in july:
        assert one.replicate == number[one.theta, one.query]
        number[one.theta, one.query] += 1


@pytest.mark.parametrize(
    ("make", "batch_size"), [(make_scope, 1), (make_scope_joint, 7), (make_scope_joint, None)]
)
@pytest.mark.slow
def test_candidates_are_asked_again_and_certified_by_fresh_answers(make, batch_size):
    """What a search asked, taken apart: every certificate is that of a bet on its own answers."""
    task, flips = make_task(5, (5, 4), 80, graded=False), 0.03
    settings = {"certificate": "sequence", "certificate_flips": flips, "bounds": {"delta": 0.1}}
    optimizer = make(
        task.problem, base="llm0", seed=1, device="cpu", batch_size=batch_size, **settings
    )
    result = run(task.problem, optimizer, Flipped(task.evaluator(), flips, 3), task.budget(60))
    begun, certified = 0, 0
    for row in result.trace:
        if row.event == "selected":
            begun = row.t
        if row.event == "improved":
            answers = result.history[begun : row.t]
            assert {o.theta for o in answers} == {row.theta_cand}
            passes = [answers[i : i + 80] for i in range(0, len(answers), 80)]
            assert 2 <= len(passes) <= PASSES + 1
            assert all({o.query for o in one} == set(range(80)) for one in passes)
            first, *fresh = [
                np.array([o.quality for o in sorted(one, key=lambda o: o.query)]) for one in passes
            ]
            bet = FreshBet(task.problem.s_0, first)
            for one in fresh:
                bet.settle(one)
            assert bet.log_capital >= math.log(1 / 0.075) - 1e-9
            certified += 1
    assert certified > 0
    completed = Counter(row.theta_cand for row in result.trace if row.event == "completed")
    assert max(completed.values(), default=0) <= 2


class Kept(Flipped):
    """An evaluator that gives a kept answer to a repeated call."""

    deterministic = True

    def remember(self, observations):
        raise NotImplementedError

    def repeats(self, observations):
        return []


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_kept_answers_are_no_fresh_ones(make):
    task = make_task(0, (3, 3), 40, graded=False)
    evaluator = Kept(task.evaluator(), 0.0, 0)
    settings = {"base": "llm0", "device": "cpu", "certificate": "sequence"}
    with pytest.raises(InputError, match="deterministic=True of the evaluator gives a kept answer"):
        run(PROBLEM, make(PROBLEM, certificate_flips=0.1, **settings), evaluator, budget_usd=1.0)
    result = run(PROBLEM, make(PROBLEM, **settings), evaluator, budget_usd=1.0)
    assert result.recommendation.basis in ("certified", "reference")
