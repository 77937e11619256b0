"""The joint surrogate by branch and bound against all of Theta, evaluated one by one."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_runs import among_others
from test_per_query import MATERN, RBF

from scope_torch.bounds import Beta
from scope_torch.errors import InputError
from scope_torch.model.cost_scale import lognormal_bound
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.search.choice import MostPromising
from scope_torch.space import ConfigSpace
from scope_torch.space_search.branched import BranchedPosterior
from scope_torch.space_search.grid import GridPosterior
from scope_torch.space_search.joint_branched import make_joint_search
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


def branched_of(surrogate, max_nodes=10**6, margin=None, allowed=None):
    of_space = surrogate.space, surrogate.kernel
    return BranchedPosterior(surrogate, *of_space, max_nodes, margin, allowed)


def posteriors(surrogate, max_nodes=10**6):
    """By grid and by branch and bound, up to date."""
    grid = GridPosterior(surrogate, make_grid(surrogate.space, surrogate.kernel))
    branched = branched_of(surrogate, max_nodes)
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
    return min(tied, key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64))


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
@pytest.mark.slow
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


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 2**20), relative_cost=st.booleans(), margin=st.sampled_from([0.0, 0.2]))
def test_with_a_margin_the_sign_of_the_least_constraint_is_enough(seed, relative_cost, margin):
    surrogate = told((4, 5, 4), seed, 30, relative_cost)
    exact, few = (branched_of(surrogate, 10**6, m) for m in (None, lambda: margin))
    beta, choice = Beta(3.0, 3.0), MostPromising(lambda: margin)
    least = [p.lower_bounds(beta, 5.0, 3) for p in (exact, few)]
    assert least[0].is_exact
    assert least[1].is_exact
    assert least[1].least_g >= least[0].least_g
    assert (least[1].least_g < -margin) == (least[0].least_g < -margin)
    if least[0].least_g < -margin:
        assert choice.select(1, least[0], 1.0, seed) == choice.select(1, least[1], 1.0, seed)
    assert few.report()["exact"]


def prefixes_of(posterior, labelled, depth, seed):
    rng = np.random.default_rng(seed)
    rows = [[int(rng.integers(size)) for size in labelled.sizes] for _ in range(6)]
    order = tuple(range(len(labelled.sizes)))
    return torch.tensor(rows), order[:depth], order[depth:]


@pytest.mark.parametrize("noise", [0.1, 1.5])
@pytest.mark.parametrize("b", [0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_on_costs_hold_for_every_completion(seed, b, noise):
    surrogate = told((4, 3, 4, 3), seed, 40, noise=noise)
    _, posterior = posteriors(surrogate)
    labelled = posterior.labelled(None)
    cost = posterior.cost(labelled.classes, b)
    assert isinstance(cost, LognormalCost)
    theta = torch.tensor(list(itertools.product(*map(range, labelled.sizes))))
    exact = cost.at(labelled, theta, labelled.kernel(theta)).reshape(labelled.sizes)
    for depth in range(4):
        labels, assigned, left = prefixes_of(posterior, labelled, depth, seed)
        prefixes = Prefixes(labelled, labels, assigned, left)
        linear = cost.linear(prefixes, 0.7)
        children = linear.children(*linear.by_module())
        for row, some in enumerate(labels.tolist()):
            of_child = exact[tuple(some[:depth])]
            of_child = of_child.reshape(len(of_child), -1).amin(1) - 0.7
            assert (children[:, row] <= of_child + 1e-12).all()
            if depth == 3 and noise == 0.1 and b == 3.0:  # what is left: two tangents
                assert (children[:, row] >= of_child - 0.3 * (of_child + 0.7)).all()


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_on_the_promise_hold_for_every_completion(seed, margin):
    """Each is +inf only where nothing is within reach, and else not above the least value."""
    surrogate = told((4, 3, 4, 3), seed, 40)
    _, posterior = posteriors(surrogate)
    labelled = posterior.labelled(None)
    promise = Promise(
        posterior.cost(labelled.classes, 3.0), posterior.weights[1], 1, 3.0, margin, 8.0, 8e-6
    )
    theta = torch.tensor(list(itertools.product(*map(range, labelled.sizes))))
    value, excess = promise.at(labelled, theta)
    exact = torch.where(excess > 0, math.inf, value).reshape(labelled.sizes)
    start = theta[:1] if exact.isfinite().any() else theta[:0]
    finite = num_pruned = 0
    for depth in range(4):
        search = PromiseSearch(labelled, promise, starts=start, max_nodes=1)
        search._order = (0, 1, 2, 3)
        labels = prefixes_of(posterior, labelled, depth, seed)[0]
        bound = search._bound(labels, depth, torch.zeros(len(labels), dtype=torch.float64)).bound
        for row, some in enumerate(labels.tolist()):
            of_child = exact[tuple(some[:depth])]
            of_child = of_child.reshape(len(of_child), -1).amin(1)
            pruned = bound[row] == math.inf
            assert (of_child[pruned] > search._best).all()
            assert (bound[row][~pruned] <= of_child[~pruned] + 1e-9).all()
            finite, num_pruned = finite + int((~pruned).sum()), num_pruned + int(pruned.sum())
    assert finite > 0
    assert num_pruned > 0


@pytest.mark.parametrize("tau", [among_others(0.0), 0.01, among_others(1.0), 300.0])
@pytest.mark.slow
def test_lines_lie_above_the_most_that_costs_can_be(tau):
    promise = Promise(None, torch.zeros(0), 1, 4.5, 0.0, 2.0, 2e-6)  # pyright: ignore
    bands = Bands.of(promise, tau)
    edges, kappa, intercept = (x.tolist() for x in (bands.edges, bands.kappa, bands.intercept))
    for j, edge in enumerate(edges[:-1]):
        for z in np.linspace(edge, edges[j + 1], 999):
            p = 0.5 * math.erfc(z / math.sqrt(2))
            psi = 2.0 * p / (p + tau)
            if psi >= 2e-6:
                assert psi <= intercept[j] - kappa[j] * (z - edge) + 1e-12
                # The promise whose line is that high is the largest of the band.
                height = torch.tensor([psi + kappa[j] * (z - edge)])
                assert bands.at_most(promise, torch.tensor([j]), height) >= tau * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_limit_on_nodes_leaves_proven_gaps(seed):
    surrogate = told((6, 5, 6, 5), seed, 80)
    beta, gaps = Beta(3.0, 3.0), []
    _, proven = posteriors(surrogate)
    exact = proven.lower_bounds(beta, 6.0, None)
    best = exact.most_promising(0.0, LEAST_PRICE, 0)
    labelled = proven.labelled(None)
    promise = Promise(
        proven.cost(labelled.classes, 3.0), proven.weights[1], 1, 3.0, 0.0, 6.0, LEAST_PRICE
    )

    def value(index):
        codes = surrogate.space.unrank(torch.tensor([index]))
        return float(promise.at(labelled, labelled.classes.label(codes))[0])

    for max_nodes in (1, 2, 4, 8, 10**6):
        _, posterior = posteriors(surrogate, max_nodes)
        lower = posterior.lower_bounds(beta, 6.0, None)
        assert lower.least_c <= exact.least_c + 1e-12
        assert lower.least_g >= exact.least_g - 1e-12
        chosen = lower.most_promising(0.0, LEAST_PRICE, 0)
        report = posterior.report()
        gaps.append(report["promise_gap"])
        # The proven gap covers what the best would have been.
        assert value(best) >= value(chosen) * (1 + gaps[-1]) * (1 + 1e-9)
        assert report["most_nodes"] <= max_nodes
    assert gaps[0] > 0
    assert gaps[-1] == 0
    assert chosen == best
    assert report["exact"]
    assert not posteriors(surrogate, 1)[1].report()["incomplete_searches"]


def test_refusals():
    surrogate = told((3, 3), 0, 5)

    def make(name, max_nodes=5):
        return make_joint_search(
            surrogate, space_search=name, max_nodes=max_nodes, margin=lambda: 0.0
        )

    with pytest.raises(InputError, match="space_search='fast' must be auto"):
        make("fast")
    with pytest.raises(InputError, match="max_nodes=0"):
        make("branch_and_bound", 0)
    assert isinstance(make("auto"), GridPosterior)
    assert isinstance(make("grid"), GridPosterior)
    assert isinstance(make("branch_and_bound"), BranchedPosterior)
