"""Boxes of Theta: sums against the definition, and the choices of a search that looks at all."""

import functools
import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from constrained import constrained_task
from long_runs import among_others
from scipy.stats import norm
from tables import make_task
from test_hamming_sums import ArbitraryKernel, cross, tolerance
from test_joint_branched import LEAST_PRICE, told

from scope_torch.bounds import Beta
from scope_torch.methods import make_scope_joint
from scope_torch.model.hamming_sums import BoxGrid, HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.runs.runner import run
from scope_torch.search.rules import Rule
from scope_torch.space import ConfigSpace
from scope_torch.space_search import box
from scope_torch.space_search.box import BoxedPosterior, boxed
from scope_torch.space_search.grid import GridPosterior
from scope_torch.space_search.minima import upper_tail
from scope_torch.tasks.simulated import simulated_task


@pytest.mark.parametrize("kernel", [HammingMatern52Kernel(), ArbitraryKernel()])
@pytest.mark.parametrize("sizes", [(5,), (4, 3), (3, 4, 2), (3, 2, 4, 3)])
def test_sums_over_a_box(kernel, sizes):
    """D also has LLMs that the box has not."""
    rng = np.random.default_rng(len(sizes))
    llms = [np.sort(rng.choice(size, max(1, size - 1), replace=False)) for size in sizes]
    space, num_modules = ConfigSpace(sizes), len(sizes)
    codes = np.unique(rng.integers(0, sizes, (12, num_modules)), axis=0)
    within = np.array([space.index_of(theta) for theta in itertools.product(*llms)])
    K, n = cross(kernel, sizes, codes)[within], len(codes)
    rows, matrix = rng.normal(size=(3, n)), rng.normal(size=(n, n))
    matrix = matrix + matrix.T
    grid = BoxGrid(space, kernel, [torch.tensor(part) for part in llms])
    D, W = torch.tensor(codes), torch.tensor(rows)
    np.testing.assert_array_equal(grid.index, within)
    near = {"rtol": 0, "atol": tolerance(kernel, num_modules) * n**2}
    np.testing.assert_allclose(grid.weighted_sums(D, W), rows @ K.T, **near)
    form = grid.quadratic_form(D, torch.tensor(matrix))
    np.testing.assert_allclose(form, ((K @ matrix) * K).sum(1), **near)
    np.testing.assert_allclose(grid.kernel_at(torch.arange(grid.size), D), K, **near)
    squares, v = torch.zeros(grid.size, dtype=torch.float64), np.array([1.0, 0.5, 2.0])
    grid.add_squares(D, W, torch.tensor(v), squares, torch.empty_like(squares))
    np.testing.assert_allclose(squares, v @ (rows @ K.T) ** 2, **near)


def lowest(mean, sigma, b, relative):
    """L_c, retyped: that of a lognormal distribution with this mean, or of a normal one."""
    if not relative:
        return mean - b * sigma
    v = np.log1p((sigma / mean) ** 2)
    return mean * np.exp(-b * np.sqrt(v) - v / 2)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("b", [0.5, 3.0, 12.0])
def test_a_mean_that_is_enough_keeps_the_bound_above_u_out(relative, b):
    rng = np.random.default_rng(3)
    mean, sigma = 10 ** rng.uniform(-1, 2, 4000), 10 ** rng.uniform(-2, 2, 4000)
    c, u_out = lowest(mean, sigma, b, relative), 0.02
    posterior = SimpleNamespace(
        _surrogate=SimpleNamespace(cost_scale="some" if relative else None),
        _relative=torch.tensor(mean - 1),
        mean_c=torch.tensor(mean),
    )
    bounds = SimpleNamespace(c=torch.tensor(c), u_out=u_out, beta=Beta(b, b))
    least = GridPosterior.least_means(posterior, bounds).numpy() + relative
    apart = c > u_out
    assert 0.05 < apart.mean() < 0.99
    assert (least[apart] < mean[apart]).all()  # it may fall
    for share_of_sigma in (1.0, 0.7, 0.1):
        fallen = lowest(np.maximum(least, 1e-300), share_of_sigma * sigma, b, relative)
        assert (fallen[apart] > u_out).all()
    bounds.c[0] = math.inf
    assert GridPosterior.least_means(posterior, bounds)[0] == -math.inf


def always(monkeypatch):
    """Boxes in any Theta, as soon as they are smaller."""
    monkeypatch.setattr(box, "_LEAST_SIZE", 1)
    monkeypatch.setattr(box, "_SMALLER", 1.2)
    monkeypatch.setattr(box, "_WAIT", 0)  # and at once again
    counts = Counter()
    holds, cut = BoxedPosterior._holds, BoxedPosterior._cut

    def counted(self, *of):
        held = holds(self, *of)
        counts["held" if held else "opened"] += 1
        return held

    def counted_cut(self, *of):
        cut(self, *of)
        counts["cut"] += self._box is not None

    monkeypatch.setattr(BoxedPosterior, "_holds", counted)
    monkeypatch.setattr(BoxedPosterior, "_cut", counted_cut)
    return counts


@pytest.mark.parametrize("relative", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_minima_while_the_belief_changes(monkeypatch, relative):
    """New answers, other u_out, wider bounds, a cheap LLM outside: as all of Theta says."""
    counts, sizes, rng = always(monkeypatch), (6, 5, 6), np.random.default_rng(0)
    surrogates = [told(sizes, 7, 60, relative) for _ in range(2)]
    grid = HammingGrid(surrogates[0].space, surrogates[0].kernel)
    in_boxes = boxed(GridPosterior(surrogates[0], grid), surrogates[0], grid)
    assert isinstance(in_boxes, BoxedPosterior)
    other = HammingGrid(surrogates[1].space, surrogates[1].kernel)
    whole = GridPosterior(surrogates[1], other)
    price, u_out, c = [10 ** rng.uniform(-1, 1, size) for size in sizes], 0.0, torch.empty(0)
    draws = torch.Generator().manual_seed(0)
    for step in range(200):
        theta = tuple(int(rng.integers(size)) for size in sizes)
        usd = sum(part[llm] for part, llm in zip(price, theta, strict=True))
        usd *= math.exp(0.1 * rng.normal()) * (0.02 if step % 20 == 19 else 1.0)
        observation = theta, int(rng.integers(4)), usd, rng.normal(0, 0.3)
        for surrogate in surrogates:
            surrogate.observe(*observation)
        for posterior in (in_boxes, whole):
            posterior.update()
        beta = Beta(1.0, 2.0)
        mask = theta_out = None
        if step % 20 == 0:  # a box is cut while most of what will matter is left out
            for posterior in (in_boxes, whole):
                posterior.forbid(None)
            c = whole.lower_bounds(beta, math.inf, None).c.clone()
            u_out, theta_out = float(c.quantile(0.1)), int(c.argmin())
            mask = torch.rand(len(c), generator=draws) < 0.8 * (c <= u_out)
        elif step % 3 == 0:
            mask, theta_out = torch.rand(len(c), generator=draws) < 0.3, int(c.argsort()[1])
        u_out *= 0.999
        most = u_out * (1.6 if step % 20 == 7 else 1.0)
        beta = Beta(2.0 if step % 20 == 13 else 1.0, 2.0)
        if step % 20 not in (1, 16):  # else as it was before
            for posterior in (in_boxes, whole):
                posterior.forbid(mask)
        fast, slow = (one.lower_bounds(beta, most, theta_out) for one in (in_boxes, whole))
        assert fast.least_g == pytest.approx(slow.least_g, abs=1e-10)
        if min(fast.least_c, slow.least_c) <= most:
            assert fast.least_c == pytest.approx(slow.least_c, rel=1e-10)
        if slow.least_g < 0:
            of_least = slow.least_g / 2, 1.0, step
            assert fast.argmin_c(*of_least) == slow.argmin_c(*of_least)
            of_promise = 0.0, LEAST_PRICE * u_out, step
            assert fast.most_promising(*of_promise) == slow.most_promising(*of_promise)
        if step % 5 == 0:  # as many calls in flight do, before they ask whether it pays
            for posterior in (in_boxes, whole):
                posterior.forbid(None)
        at = int(rng.integers(surrogates[0].space.size))
        for function in (of_moments, functools.partial(of_moments, b=0.1)):
            assert fast.whole.value(function, at) == pytest.approx(
                slow.whole.value(function, at), rel=1e-9
            )
        if step % 15 == 0:
            largest = [one.whole.largest(of_moments) for one in (fast, slow)]
            assert largest[0] == pytest.approx(largest[1], rel=1e-9)
    assert min(counts["held"], counts["opened"], counts["cut"]) > 5, counts
    for name in ("mean_c", "mean_g", "variance"):
        torch.testing.assert_close(getattr(in_boxes, name), getattr(whole, name), rtol=0, atol=1e-9)
    assert in_boxes.least_slope() == pytest.approx(whole.least_slope(), rel=1e-9)


def test_what_a_box_is_cut_for(monkeypatch):
    always(monkeypatch)
    surrogate = told((6, 5, 6), 7, 60)
    grid = HammingGrid(surrogate.space, surrogate.kernel)
    posterior = boxed(GridPosterior(surrogate, grid), surrogate, grid)
    posterior.update()
    beta = Beta(1.0, 2.0)
    c = posterior.lower_bounds(beta, math.inf, None).c.clone()
    u_out, dear = float(c.quantile(0.05)), int(c.argmax())
    cut = posterior.lower_bounds(beta, u_out, dear)
    assert cut.beyond is None
    assert posterior._box is not None
    index = posterior._box.listed
    assert 0.05 * len(c) < len(index) < len(c) / 1.2
    assert dear in index  # it may be compared with another theta_out soon
    outside = torch.ones(len(c), dtype=torch.bool).index_fill_(0, index, False)
    assert (c[outside] > 1.25 * u_out).all()
    assert posterior._holds(beta, u_out)
    assert posterior._holds(beta._replace(c=0.5), 0.5 * u_out)
    assert not posterior._holds(beta, 1.01 * u_out)
    assert not posterior._holds(beta._replace(c=1.01), u_out)


def of_moments(moments, b=1.0):
    """Never falls if L_c and L_g do, and is at least 0."""
    return torch.exp(-b * moments.lower_c.clamp(-10, 10) - moments.lower_g.clamp(-10, 10))


TASK = make_task(3, (5, 4, 5), 12)


def search(task=TASK, evaluator=None, usd=None, **settings):
    problem = settings.pop("problem", task.problem)
    base = settings.pop("base", [names[0] for names in problem.llms])
    optimizer = make_scope_joint(problem, base=base, device="cpu", **settings)
    return run(problem, optimizer, evaluator or task.evaluator(), usd or task.budget(40))


def not_the_dearest(llm):
    return list(llm.values()).count("llm4") < 2


CASES = {
    "joint": {},
    "in flight": {"in_flight": 6},
    "its return": {"budget_usd": 3.0, "seed": 2},
    "a rule": {"problem": replace(TASK.problem, allowed=not_the_dearest)},
    "many rounds": {"verify": 3, "batch_size": None},
}


FEW = ("joint",)


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_search_asks_the_same(monkeypatch, name):
    whole = search(**CASES[name])
    counts = always(monkeypatch)
    in_boxes = search(**CASES[name])
    same(in_boxes, whole)
    assert counts["cut"], counts


class Reads(Rule):
    """Looks at the averages while a candidate is asked, and decides nothing."""

    def begin(self, search):
        self._search, self._num_learned = search, 0

    def learn(self, observation):
        self._num_learned += 1
        if self._num_learned % 3 == 0 and self._num_learned > 60:  # after Calibrate
            posterior = self._search.belief.posterior
            assert len(posterior.mean_c) == len(posterior.mean_g) == len(posterior.variance)


class ReadsEarly(Reads):
    """Looks at them before theta_cand is asked: nobody knows yet whether it pays."""

    def learn(self, observation):
        pass

    def selected(self, theta):
        posterior = self._search.belief.posterior
        assert len(posterior.mean_c) == len(posterior.mean_g) == len(posterior.variance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "seed", "settings"), [(Reads, 0, {}), (ReadsEarly, 2, {"budget_usd": 3.0})]
)
def test_a_rule_that_reads_changes_no_search(monkeypatch, rule, seed, settings):
    whole = search(make_task(seed, (5, 4, 5), 12), **settings)
    counts = always(monkeypatch)
    same(search(make_task(seed, (5, 4, 5), 12), rules=[rule()], **settings), whole)
    assert counts["cut"], counts


def test_a_least_cost_outside_the_box_is_found(monkeypatch):
    """Where quality is the objective, minima are asked for below u_out, and the gap up to it."""
    always(monkeypatch)
    surrogate = told((6, 5, 6), 7, 60)
    grid = HammingGrid(surrogate.space, surrogate.kernel)
    whole = GridPosterior(surrogate, grid)
    posterior = BoxedPosterior(GridPosterior(surrogate, grid), surrogate, grid)
    for one in (whole, posterior):
        one.update()
    found, limits = 0, (0.006, 0.02, 0.1)
    for limit, b_g in itertools.product(limits, (1.0, -3.0, -4.0)):  # few are feasible
        beta = Beta(1.0, b_g)
        u_out = float(whole.lower_bounds(beta, math.inf, None).c.quantile(limit))
        expected = whole.lower_bounds(beta, u_out, None).least_c
        posterior.lower_bounds(beta, u_out, None)  # cuts a box
        least = posterior.lower_bounds(beta, u_out, None).least_c
        assert least == pytest.approx(expected, rel=1e-12)
        found += u_out < least < math.inf
    assert found > 0


def test_the_promise_has_a_lower_tail():
    z = torch.tensor([0.0, 1.0, 5.0, 8.0, 12.0, 30.0], dtype=torch.float64)
    np.testing.assert_allclose(upper_tail(z), norm.sf(z), rtol=1e-12)


@pytest.mark.slow
def test_several_constraints_in_boxes(monkeypatch):
    problem, evaluator = constrained_task(2, sizes=(5, 4))
    settings = {"problem": problem, "evaluator": evaluator, "usd": 500 * problem.reference_cost_usd}
    whole = search(**settings)
    counts = always(monkeypatch)
    same(search(**settings), whole)
    assert counts["cut"], counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, among_others({"in_flight": 8}), among_others({"certificate_flips": 0.05})]
)
def test_a_search_of_12167_configurations_asks_the_same(monkeypatch, settings):
    task = simulated_task(name="data_imputation", world="data_imputation", world_seed=1)
    settings = {"base": "Gemini 2.5 Flash-Lite", "usd": 0.3, **settings}
    settings = {"problem": task.problem, "evaluator": task.evaluator, **settings}
    whole = search(**settings)
    monkeypatch.setattr(box, "_LEAST_SIZE", 1)
    same(search(**settings), whole)


def same(one, other):
    assert list(one.history) == list(other.history)
    assert one.recommendation.theta == other.recommendation.theta
    assert one.recommendation.basis == other.recommendation.basis
    assert one.stop_reason == other.stop_reason
    for a, b in zip(one.trace, other.trace, strict=True):
        assert (a.event, a.theta_cand) == (b.event, b.theta_cand)


@pytest.mark.slow
def test_a_space_of_one_module(monkeypatch):
    task = make_task(1, (9,), 12)
    whole = search(task)
    always(monkeypatch)
    same(search(task), whole)


def test_small_spaces_and_other_kernels_have_none():
    surrogate = told((3, 3), 0, 10)
    grid = HammingGrid(surrogate.space, surrogate.kernel)
    posterior = GridPosterior(surrogate, grid)
    assert boxed(posterior, surrogate, grid) is posterior
