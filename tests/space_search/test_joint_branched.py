"""The joint surrogate by branch and bound against all of Theta, evaluated one by one."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_per_query import MATERN, RBF

from scope_torch.bounds import Beta
from scope_torch.errors import InputError
from scope_torch.model.cost_scale import lognormal_bound
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.search.choice import MostPromising
from scope_torch.space import ConfigSpace
from scope_torch.space_search.joint_branched import JointBranchedPosterior, make_joint_search
from scope_torch.space_search.joint_grid import JointGridPosterior
from scope_torch.space_search.linear import LognormalCost, Prefixes
from scope_torch.space_search.promise import Bands, Promise, PromiseSearch

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)
NUM_QUERIES, LEAST_PRICE = 4, 1e-6


def told(sizes, seed, count, relative_cost=True, free=False, kernel=MATERN[0], noise=0.2):
    """A surrogate with tied data: few values, LLMs that are alike, LLMs never observed."""
    rng = np.random.default_rng(seed)
    surrogate = JointSurrogate(
        ConfigSpace(sizes), kernel, NUM_QUERIES, 1e-3, relative_cost=relative_cost
    )
    price = [np.round(10 ** rng.uniform(-1, 1, size), 1) for size in sizes]
    skill = [np.round(rng.normal(0, 0.5, size), 1) for size in sizes]
    for part in price:
        part[0] = 0.0 if free else part[0]
    for _ in range(count):
        theta = tuple(int(rng.integers(max(1, size - 1))) for size in sizes)
        query = int(rng.integers(NUM_QUERIES))
        usd = sum(part[llm] for part, llm in zip(price, theta, strict=True))
        g = sum(part[llm] for part, llm in zip(skill, theta, strict=True))
        usd *= math.exp(noise * round(float(rng.normal()), 1))
        surrogate.observe(theta, query, usd, round(g + 0.3 * float(rng.normal()), 1))
    return surrogate


def posteriors(surrogate, max_nodes=10**6):
    """By grid and by branch and bound, up to date."""
    grid = JointGridPosterior(surrogate, make_grid(surrogate.space, surrogate.kernel))
    branched = JointBranchedPosterior(surrogate, max_nodes)
    grid.update()
    branched.update()
    return grid, branched


def one_by_one(surrogate, beta):
    """L_c, the mean of gbar and its sigma at every configuration, retyped."""
    of_c, of_g = surrogate.aggregates()
    profile = surrogate.kernel.profile(surrogate.space.num_modules).tolist()
    codes, rows = of_c.codes.tolist(), []
    for theta in itertools.product(*map(range, surrogate.space.sizes)):
        k = np.array([profile[sum(a != b for a, b in zip(theta, d, strict=True))] for d in codes])
        mean_c, mean_g = (float(w @ k) for w in of_c.weights.numpy())
        sigma_c, sigma_g = (
            math.sqrt(max(0.0, of.constant - float(k @ of.matrix.numpy() @ k)))
            for of in (of_c, of_g)
        )
        lower_c = mean_c - beta.c * sigma_c
        if surrogate.relative_cost:
            lower_c = surrogate.scale.at(theta) * lognormal_bound(mean_c, sigma_c, -beta.c)
        rows.append((lower_c, mean_g, sigma_g))
    return (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))


def first(tied, seed):
    return min(
        tied, key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64)
    )


@settings(max_examples=60)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**20),
    count=st.integers(1, 40),
    b=st.sampled_from([0.3, 1.0, 3.0, 4.5]),
    quantiles=st.tuples(st.floats(0, 1), st.floats(0.05, 1)),
    relative_cost=st.booleans(),
    free=st.booleans(),
    noise=st.sampled_from([0.0, 0.2, 1.5]),
    kernel=st.sampled_from([MATERN[0], RBF[0]]),
    data=st.data(),
)
def test_equals_the_grid_and_the_definition(
    sizes, seed, count, b, quantiles, relative_cost, free, noise, kernel, data
):
    """Least values and both choices, ties and margins included."""
    surrogate = told(sizes, seed, count, relative_cost, free, kernel, noise)
    grid, branched = posteriors(surrogate)
    beta = Beta(b, b)
    theta_out = data.draw(st.none() | st.integers(0, math.prod(sizes) - 1))
    lower_c, mean_g, sigma_g = one_by_one(surrogate, beta)
    u_out = abs(float(lower_c.quantile(quantiles[1]))) + 1e-3
    lower_g = mean_g - b * sigma_g
    if theta_out is not None:
        lower_c[theta_out] = math.inf
    expected = grid.lower_bounds(beta, u_out, theta_out)
    lower = branched.lower_bounds(beta, u_out, theta_out)
    if (lower_g.abs() < 1e-9).any() or ((lower_c - u_out).abs() < 1e-9).any():
        return
    assert lower.least_c == pytest.approx(expected.least_c, rel=1e-9, abs=1e-9)
    assert lower.least_g == pytest.approx(expected.least_g, rel=1e-9, abs=1e-9)
    assert lower.is_exact
    allowed = lower_g[(lower_c <= u_out) & (lower_g < 0)]
    if len(allowed) == 0:
        return
    margin = max(0.0, -float(allowed.quantile(quantiles[0])) - 1e-7) * data.draw(
        st.sampled_from([0.0, 0.5, 1.0])
    )
    if ((lower_g + margin).abs() < 1e-9).any():
        return
    z = (mean_g + margin).clamp_min(0) / sigma_g.clamp_min(1e-12)
    price = lower_c.clamp_min(1e-6 * u_out)
    value = torch.special.ndtr(-z) * (1 - u_out / price)
    value[lower_g > -margin] = math.inf
    chosen = MostPromising(lambda: margin).select(1, lower, 1.0, seed)
    edge = float(value.min()) * (1 - 1e-9)
    if not ((value - edge).abs() < 1e-11 * abs(edge)).any():
        assert chosen == MostPromising(lambda: margin).select(1, expected, 1.0, seed)
        assert chosen == first((value <= edge).nonzero().flatten().tolist(), seed)
    value = torch.where(lower_g <= -margin, lower_c, math.inf)
    edge = float(value.min()) + 1e-9 * max(abs(float(value.min())), 0.5)
    if not ((value - edge).abs() < 1e-12).any():
        assert lower.argmin_c(-margin, 0.5, seed) == first(
            (value <= edge).nonzero().flatten().tolist(), seed
        )
    assert branched.report()["exact"]
    assert branched.report()["gap_usd"] == branched.report()["promise_gap"] == 0
