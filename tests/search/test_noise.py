"""Answers that flip: the choice, and the rule that gives up, know what can be certified."""

import math
from collections import Counter

import pytest
import torch
from flips import Flipped
from tables import make_task

from scope_torch.bounds.base import Beta
from scope_torch.bounds.betting import BettingSequence, flips_of_repeats
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.search.certificate import ByBounds, BySequence
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.space_search.minima import LowerBounds

PROBLEM = make_task(0, (3, 3), 40, graded=False).problem


class Known:
    """A posterior whose means and standard deviations are given."""

    def __init__(self, c, mean_g, sigma_g):
        self._c, self.mean_g, self._sigma_g = c, mean_g, sigma_g

    def fill_lower(self, at, beta, c, g):
        c.copy_(self._c[at])
        g.copy_(self.mean_g[at] - beta.g * self._sigma_g[at])

    def make_exact(self, index):
        raise AssertionError("all are exact")

    def is_exact(self, index):
        return torch.ones(len(index), dtype=torch.bool)


def minima(seed, u_out=0.6):
    rng = torch.Generator().manual_seed(seed)
    c, mean_g, sigma_g = torch.rand(3, 200, generator=rng, dtype=torch.float64)
    posterior = Known(c + 0.01, mean_g - 0.3, sigma_g / 10)
    lower = torch.empty(2, 200, dtype=torch.float64)
    return posterior, LowerBounds(posterior, lower, Beta(3.0, 3.0), u_out, None)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1, 0.25])
def test_the_most_promising_can_be_certified_at_the_margin(seed, margin):
    posterior, lower = minima(seed)
    value = []
    for c, g, mean in zip(lower.c, lower.g, posterior.mean_g, strict=True):
        sigma = float(mean - g) / 3
        probability = min(0.5, 0.5 * math.erfc(float(mean + margin) / sigma / math.sqrt(2)))
        promise = probability * (0.6 - float(c)) / float(c)
        value.append(promise if g <= -margin and c <= 0.6 else -math.inf)
    choice = MostPromising(lambda: margin)
    assert choice.next_iteration(3, lower.least_g) == 3
    assert value[choice.select(3, lower, 0.0, seed)] == pytest.approx(max(value), rel=1e-12)
    assert choice.next_iteration(3, -margin) is None
    assert choice.next_iteration(3, -margin - 1e-9) == 3


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


def test_the_margin_of_a_certificate_is_that_of_its_next_candidate():
    generator = torch.Generator().manual_seed(0)
    certificate, margins = BySequence(PROBLEM, 0.1, 0.02), []
    for k in range(1, 200):
        margins.append(certificate.next_margin())
        test = certificate.begin(k, generator)
        assert test.margin == margins[-1]
    assert 0 < margins[0] < margins[-1]
    assert margins == sorted(margins)
    assert certificate.report()["next_margin"] == certificate.next_margin()


@pytest.mark.parametrize("certificate", [BySequence(PROBLEM, 0.1), ByBounds()])
def test_without_flips_there_is_no_margin(certificate):
    assert certificate.next_margin() == 0
    assert certificate.begin(1, torch.Generator()).margin == 0
    assert "next_margin" not in certificate.report()


def test_repeats_take_a_tenth_of_delta():
    certificate = BySequence(PROBLEM, 0.1, repeats=(1, 30))
    assert certificate.flips == flips_of_repeats(1, 30, 0.01)
    share = 0.09 * math.log(20.5) / (21 * math.log(21) ** 2)
    alone = BettingSequence(40, PROBLEM.s_0, share, certificate.flips)
    assert certificate.next_margin() == pytest.approx(alone.margin, rel=1e-12)
    assert certificate.report()["repeats"] == [1, 30]
    assert certificate.settings()["sequence_repeats"] == [1, 30]
    assert certificate.settings()["sequence_delta"] == 0.1


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_flips_made_of_repeats(make):
    optimizer = make(
        PROBLEM,
        base="llm0",
        device="cpu",
        certificate="sequence",
        certificate_flips="auto",
        reference_repeats=[0, 40],
    )
    assert optimizer.settings()["sequence_repeats"] == [0, 40]
    assumptions = " ".join(optimizer.report()["assumptions"])
    assert "the reference answered 40 queries twice, 0 of them otherwise" in assumptions
    assert 0 < optimizer.settings()["sequence_flips"] < 0.2
    for wrong, message in [
        ({"certificate_flips": "auto"}, "ask the reference all queries a second time"),
        ({"reference_repeats": [0, 40]}, "auto needs the repeats, and they need auto"),
        ({"certificate_flips": "often"}, "certificate_flips='often' must be a number, or auto"),
        ({"certificate_flips": "auto", "reference_repeats": [1]}, "must be two whole numbers"),
        ({"certificate_flips": "0.7"}, "certificate_flips=0.7 must lie in"),
    ]:
        with pytest.raises(InputError, match=message):
            make(PROBLEM, base="llm0", device="cpu", certificate="sequence", **wrong)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_candidate_ends_once_it_cannot_reach_the_margin(make):
    """It is certified, or its L_g has risen above the margin, and it is rarely tried again."""
    task, flips = make_task(5, (5, 4), 80, graded=False), 0.02
    settings = {"certificate": "sequence", "certificate_flips": flips, "bounds": {"delta": 0.1}}
    optimizer = make(task.problem, base="llm0", seed=1, device="cpu", **settings)
    result = run(task.problem, optimizer, Flipped(task.evaluator(), flips, 3), task.budget(60))
    share = lambda k: 0.1 * math.log(20.5) / ((k + 20) * math.log(k + 20) ** 2)  # noqa: E731
    k, margin, completed = 0, 0.0, Counter()
    for row in result.trace:
        if row.event == "selected":
            k += 1
            margin = BettingSequence(80, task.problem.s_0, share(k), flips).margin
        if row.event == "pruned":
            dearer = row.lower_c_usd > row.u_out_usd
            assert dearer or row.lower_g > -margin
        if row.event == "completed":
            completed[row.theta_cand] += 1
    assert k > 3
    assert max(completed.values(), default=0) <= 2
