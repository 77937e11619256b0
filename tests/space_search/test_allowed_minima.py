"""Minima over what may be chosen, by every search of Theta, against Theta looked at one by one."""

import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_branch_and_bound import told
from test_joint_branched import LEAST_PRICE, one_by_one
from test_joint_branched import told as told_joint

from scope_torch.allowed import Allowed
from scope_torch.bounds import Beta
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.list_sums import ListGrid
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.search.choice import MostPromising
from scope_torch.space import ConfigSpace
from scope_torch.space_search import allowed_classes
from scope_torch.space_search.branched import BranchedPosterior, first_of_class
from scope_torch.space_search.device_grid import DevicePosterior
from scope_torch.space_search.device_joint import DeviceJointPosterior
from scope_torch.space_search.grid import GridPosterior
from scope_torch.space_search.prefixes import Classes

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)


def rules(sizes, mask):
    """The same configurations as a rule and as a list."""
    space = ConfigSpace(sizes)
    modules = [f"m{i}" for i in range(len(sizes))]
    llms = [[f"{code}" for code in range(size)] for size in sizes]

    def rule(llm):
        return bool(mask[space.index_of([int(llm[module]) for module in modules])])

    codes = tuple(space.theta_at(index) for index in np.flatnonzero(mask))
    return Allowed(modules, llms, rule), Allowed(modules, llms, codes)


def list_grid(space, kernel, mask, rng):
    """Sums over what may be chosen, and over some more, as after holes were left out."""
    listed = mask | (rng.uniform(size=len(mask)) < 0.3)
    return ListGrid(space, kernel, torch.from_numpy(np.flatnonzero(listed)))


def first(tied, seed):
    return min(tied, key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64))


@settings(max_examples=40)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**20),
    count=st.integers(0, 25),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    data=st.data(),
)
@pytest.mark.slow
def test_of_the_paper(sizes, seed, count, share, data):
    driven, rng = told(sizes, 3, seed, count), np.random.default_rng(seed)
    mask = rng.uniform(size=math.prod(sizes)) < share
    mask[rng.integers(len(mask))] = True
    rule, listed = rules(sizes, mask)
    space, kernel, surrogate = ConfigSpace(sizes), driven.kernel[0], driven.surrogate
    tensor = TensorSurrogate(space, kernel, 3, driven.lam)
    for row in driven.history:
        tensor.observe(*row)
    found = {
        "grid": GridPosterior(surrogate, driven.grid, rule),
        "device": DevicePosterior(tensor, DeviceSums(space, kernel, "cpu"), listed),
        "rule": BranchedPosterior(surrogate, space, kernel, allowed=rule),
        "list": BranchedPosterior(surrogate, space, kernel, allowed=listed),
        "enumerated": GridPosterior(surrogate, list_grid(space, kernel, mask, rng), listed),
    }
    theta_out = data.draw(st.none() | st.sampled_from(np.flatnonzero(mask).tolist()))
    mean_c, mean_g, variance = driven.expected()
    beta, sigma = Beta(0.5, 0.3), np.sqrt(variance)
    lower_c, lower_g = mean_c - beta.c * sigma, mean_g - beta.g * sigma
    lower_c[~mask] = lower_g[~mask] = np.inf
    if theta_out is not None:
        lower_c[theta_out] = np.inf
    u_out = float(np.quantile(mean_c, 0.6)) + 1e-4
    if (abs(lower_g) < 1e-8).any() or (abs(lower_c - u_out) < 1e-8).any():
        return
    value = np.where(lower_g <= 0, lower_c, np.inf)
    edge = value.min() + 1e-9 * max(abs(value.min()), 0.5)
    for name, posterior in found.items():
        posterior.update()
        lower = posterior.lower_bounds(beta, u_out, theta_out)
        assert lower.least_c == pytest.approx(value.min(), abs=1e-8), name
        least_g = lower_g[lower_c <= u_out].min(initial=np.inf)
        assert lower.least_g == pytest.approx(least_g, abs=1e-8), name
        assert lower.is_exact
        slope = ((mean_g + 1) / sigma)[mask].min()
        assert posterior.least_slope() == pytest.approx(slope, rel=1e-6, abs=1e-6), name
        if value.min() < np.inf and not (abs(value - edge) < 9e-10 * max(edge, 0.5)).any():
            chosen = lower.argmin_c(0.0, 0.5, seed)
            assert chosen == first(np.flatnonzero(value <= edge).tolist(), seed), name


@settings(max_examples=40)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**20),
    count=st.integers(1, 40),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    relative_cost=st.booleans(),
    data=st.data(),
)
@pytest.mark.slow
def test_of_the_joint_surrogate(sizes, seed, count, share, relative_cost, data):
    surrogate, rng = told_joint(sizes, seed, count, relative_cost), np.random.default_rng(seed)
    mask = rng.uniform(size=math.prod(sizes)) < share
    mask[rng.integers(len(mask))] = True
    rule, listed = rules(sizes, mask)
    of_space = surrogate, surrogate.space, surrogate.kernel
    found = {
        "grid": GridPosterior(surrogate, make_grid(surrogate.space, surrogate.kernel), rule),
        "rule": BranchedPosterior(*of_space, allowed=rule),
        "list": BranchedPosterior(*of_space, allowed=listed),
        "enumerated": GridPosterior(surrogate, list_grid(*of_space[1:], mask, rng), listed),
    }
    for posterior in found.values():
        posterior.update()
    beta = Beta(1.0, 1.0)
    theta_out = data.draw(st.none() | st.sampled_from(np.flatnonzero(mask).tolist()))
    lower_c, mean_g, sigma_g = one_by_one(surrogate, beta)
    u_out = abs(float(lower_c.quantile(0.7))) + 1e-3
    lower_g = mean_g - beta.g * sigma_g
    lower_c[~torch.from_numpy(mask)] = lower_g[~torch.from_numpy(mask)] = math.inf
    if theta_out is not None:
        lower_c[theta_out] = math.inf
    if (lower_g.abs() < 1e-9).any() or ((lower_c - u_out).abs() < 1e-9).any():
        return
    value = torch.where(lower_g <= 0, lower_c, math.inf)
    promise = torch.special.ndtr(-mean_g.clamp_min(0) / sigma_g.clamp_min(1e-12))
    promise *= u_out / lower_c.clamp_min(LEAST_PRICE * u_out) - 1
    promise[(lower_g > 0) | (lower_c > u_out)] = -math.inf
    for name, posterior in found.items():
        lower = posterior.lower_bounds(beta, u_out, theta_out)
        least_g = min(lower_g[lower_c <= u_out].tolist(), default=math.inf)
        assert lower.least_c == pytest.approx(float(value.min()), rel=1e-8, abs=1e-8), name
        assert lower.least_g == pytest.approx(least_g, rel=1e-8, abs=1e-8), name
        if least_g < 0:
            chosen = MostPromising().select(1, lower, 1.0, seed)
            assert mask[chosen]
            assert promise[chosen] == pytest.approx(float(promise.max()), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_of_the_joint_surrogate_on_a_device(seed):
    """As on the grid; the largest value of a function too, which the payoff asks for."""
    rng, sizes = np.random.default_rng(seed), (4, 3, 4)
    plain = told_joint(sizes, seed, 30)
    tensor = TensorJointSurrogate(plain.space, plain.kernel, 4, 1e-3, relative_cost=True)
    for theta, query, c, g in plain_rows(seed, sizes):
        plain.observe(theta, query, c, g)
        tensor.observe(theta, query, c, g)
    fresh = TensorJointSurrogate(plain.space, plain.kernel, 4, 1e-3, relative_cost=True)
    same = told_rows(fresh, seed, sizes), told_rows(joint_like(plain), seed, sizes)
    mask = rng.uniform(size=48) < 0.4
    mask[0] = True
    rule, _ = rules(sizes, mask)
    device = DeviceJointPosterior(
        same[0], DeviceSums(plain.space, plain.kernel, "cpu"), False, rule
    )
    grid = GridPosterior(same[1], make_grid(plain.space, plain.kernel), rule)
    for posterior in (device, grid):
        posterior.update()
    beta, u_out = Beta(2.0, 2.0), 5.0
    ours, theirs = (p.lower_bounds(beta, u_out, None) for p in (device, grid))
    assert device.least_slope() == pytest.approx(grid.least_slope())
    assert mask[ours.largest(lambda m: (u_out - m.lower_c).clamp_min(0.0))[1]]
    for most in (ours, theirs):
        value, index = most.largest(lambda m: (u_out - m.lower_c).clamp_min(0.0))
        assert mask[index]
        assert value == pytest.approx(u_out - float(theirs.value(lambda m: m.lower_c, index)))
    if theirs.least_g < 0:
        chosen = [MostPromising().select(1, one, 1.0, seed) for one in (ours, theirs)]
        assert chosen[0] == chosen[1]
        assert mask[chosen[0]]


def plain_rows(seed, sizes):
    rng = np.random.default_rng(seed + 100)
    for _ in range(30):
        theta = tuple(int(rng.integers(size)) for size in sizes)
        yield theta, int(rng.integers(4)), float(rng.uniform(1, 9)), float(rng.normal(0, 0.3))


def told_rows(surrogate, seed, sizes):
    for row in plain_rows(seed, sizes):
        surrogate.observe(*row)
    return surrogate


def joint_like(surrogate):
    return type(surrogate)(surrogate.space, surrogate.kernel, 4, 1e-3, relative_cost=True)


def test_a_class_of_which_nobody_knows_makes_a_search_incomplete(monkeypatch):
    """A rule that allows next to nothing in a large class: the bound stays a bound."""
    monkeypatch.setattr(allowed_classes, "_TRIED", 4)
    driven = told((9, 9, 9), 2, 0, 12)
    only = (8, 8, 8)
    llms = [[str(code) for code in range(9)]] * 3
    rule = Allowed("abc", llms, lambda llm: tuple(map(int, llm.values())) == only)
    posterior = BranchedPosterior(
        driven.surrogate, ConfigSpace((9, 9, 9)), driven.kernel[0], allowed=rule
    )
    posterior.update()
    lower = posterior.lower_bounds(Beta(5.0, 50.0), math.inf, None)
    mean_c, _, variance = driven.expected()
    assert (
        lower.least_c <= (mean_c - 5.0 * np.sqrt(variance))[ConfigSpace((9, 9, 9)).index_of(only)]
    )
    assert not lower.is_exact
    assert not posterior.report()["exact"]


def test_a_tie_of_more_than_can_be_listed():
    """Of 23^9 interchangeable configurations, one that may be chosen."""
    sizes = (23,) * 9
    modules = [f"m{i}" for i in range(9)]
    rule = Allowed(modules, [list(map(str, range(23)))] * 9, lambda llm: llm["m0"] != llm["m1"])
    classes = Classes(ConfigSpace(sizes), torch.zeros(1, 9, dtype=torch.int64))
    holds = allowed_classes.AllowedClasses(rule, classes)
    labels = torch.ones(1, 9, dtype=torch.int64)
    assert holds.holds(labels) == [True]
    theta = ConfigSpace(sizes).theta_at(first_of_class(classes, labels, 3, holds))
    assert theta[0] != theta[1]
    assert 0 not in theta
