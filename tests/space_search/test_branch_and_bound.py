"""Minima by branch and bound against all of Theta, evaluated one by one."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid import Driven, records
from test_kernels import WeightedOverlap
from test_per_query import MATERN, RBF

from scope_torch.bounds import Beta
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace
from scope_torch.space_search.branch_and_bound import ConstrainedSearch, Form
from scope_torch.space_search.branched import BranchedPosterior
from scope_torch.space_search.prefixes import Classes, LabelledPosterior

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def branched(driven: Driven, max_nodes: int = 10**6) -> BranchedPosterior:
    space = ConfigSpace(driven.sizes)
    return BranchedPosterior(driven.surrogate, space, driven.kernel[0], max_nodes)


def told(sizes, num_queries, seed, count, kernel=MATERN) -> Driven:
    """Data of which some is tied: few different values, some LLMs of a module alike."""
    driven, rng = Driven(sizes, num_queries, 1e-3, kernel), np.random.default_rng(seed)
    rounded = [
        (t, q, round(c, 1), round(g, 1)) for t, q, c, g in records(rng, sizes, num_queries, count)
    ]
    driven.tell(rounded)
    driven.posterior.update()
    return driven


@pytest.mark.slow
@settings(max_examples=40)
@given(
    sizes=SIZES,
    num_queries=st.integers(1, 4),
    seed=st.integers(0, 2**20),
    count=st.integers(0, 25),
    betas=st.tuples(st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([0.0, 0.3, 5.0])),
    kernel=st.sampled_from([MATERN, RBF]),
    data=st.data(),
)
def test_equals_the_grid(sizes, num_queries, seed, count, betas, kernel, data):
    """The least values and the choice, ties included; and the least beta_g of any eligibility."""
    driven = told(sizes, num_queries, seed, count, kernel)
    grid, posterior = driven.posterior, branched(driven)
    posterior.update()
    size = math.prod(sizes)
    theta_out = data.draw(st.none() | st.integers(0, size - 1))
    quantile = data.draw(st.floats(0, 1))
    u_out = math.inf if theta_out is None else float(grid.mean_c.quantile(quantile)) + 1e-7
    beta = Beta(*betas)
    slopes = grid.least_slope(), posterior.least_slope()
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-9) or max(slopes) <= 0
    expected = grid.lower_bounds(beta, u_out, theta_out)
    lower = posterior.lower_bounds(beta, u_out, theta_out)
    lower_g = grid.mean_g - beta.g * grid.variance.sqrt()
    lower_c = grid.mean_c - beta.c * grid.variance.sqrt()
    undecided = (lower_g.abs() < 1e-9).any() or ((lower_c - u_out).abs() < 1e-9).any()
    if not undecided:
        assert lower.least_c == pytest.approx(expected.least_c, abs=1e-9)
        assert lower.least_g == pytest.approx(expected.least_g, abs=1e-9)
    assert lower.is_exact
    assert posterior.report()["exact"]
    assert posterior.report()["gap_usd"] == 0
    allowed = lower_g[lower_c <= u_out]
    most_g = min(-1e-7, float(allowed.quantile(quantile)) + 3e-7 if len(allowed) else 0.0)
    if theta_out is not None:
        lower_c[theta_out] = math.inf
    eligible = lower_c[lower_g <= most_g]
    if not eligible.isfinite().any() or ((lower_g - most_g).abs() < 1e-9).any():
        return
    chosen = lower.argmin_c(most_g, 0.5, seed)
    least = float(eligible.min())
    edge = least + 1e-9 * max(abs(least), 0.5)
    if not ((eligible - edge).abs() < 1e-12).any():
        assert chosen == expected.argmin_c(most_g, 0.5, seed)
        tied = ((lower_c <= edge) & (lower_g <= most_g)).nonzero().flatten().tolist()
        assert chosen == min(
            tied, key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64)
        )


def random_search(seed, max_nodes, sizes=(6, 5, 6, 5), count=60):
    """A search with a constraint, and the values on all of Theta."""
    driven = told(sizes, 4, seed, count)
    driven.posterior.update()
    labelled = LabelledPosterior(
        driven.surrogate.aggregate(),
        HammingMatern52Kernel(),
        ConfigSpace(sizes),
        torch.zeros(0, len(sizes), dtype=torch.int64),
    )
    weights = driven.surrogate.weights()
    sigma = driven.posterior.variance.sqrt()
    forms = Form(weights[0], 0.7), Form(weights[1], 1.0)
    values = [
        mean - form.beta * sigma
        for mean, form in zip(
            (driven.posterior.mean_c, driven.posterior.mean_g), forms, strict=True
        )
    ]
    limit = float(values[1].quantile(0.1))
    search = ConstrainedSearch(labelled, *forms, limit, starts=labelled.starts, max_nodes=max_nodes)
    least = float(values[0][values[1] <= limit].min())
    return search, labelled, values, limit, least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_limit_on_nodes_leaves_a_certified_gap(seed):
    gaps = []
    for max_nodes in (1, 2, 4, 8, 16, 10**6):
        search, _, _, _, least = random_search(seed, max_nodes)
        found = search.run()
        assert found.bound <= least + 1e-9
        assert found.value >= least - 1e-9
        assert found.num_nodes <= max_nodes
        gaps.append(found.value - found.bound)
    assert found.complete
    assert found.value == found.bound == pytest.approx(least, abs=1e-9)
    assert gaps[0] > 0
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_for_every_completion(seed):
    """Prefixes of every length, with and without a multiplier, at every configuration."""
    search, labelled, values, limit, _ = random_search(seed, 1)
    sizes = labelled.sizes
    value_at = [v.reshape(6, 5, 6, 5) for v in values]
    rng = np.random.default_rng(seed)
    for depth in range(len(sizes)):
        prefix = torch.tensor([[int(rng.integers(size)) for size in sizes] for _ in range(5)])
        objective, constraint = search._forms(prefix, depth)
        for mu in (0.0, 0.3, 4.0):
            both = objective.plus(constraint, torch.full((5,), mu))
            table, lower = both.by_module()
            children = both.children(table, lower)
            for row, labels in enumerate(prefix.tolist()):
                at = tuple(labels[:depth])
                exact = value_at[0][at] + mu * (value_at[1][at] - limit)
                by_child = exact.reshape(exact.shape[0], -1).amin(1)
                assert (children[:, row] <= by_child + 1e-9).all()
                assert children[:, row].min() == pytest.approx(float(lower[row]), abs=1e-9)
                if depth == len(sizes) - 1 and mu == 0:  # what is left is only sigma's tangent
                    assert (by_child - children[:, row]).max() < 0.5


def test_a_weighted_sum_is_bounded_exactly_where_one_module_is_open():
    search, labelled, _, _, _ = random_search(0, 1)
    search._objective = Form(search._objective.weights, 0.0)
    prefix = labelled.labels[:9]
    table, lower = search._forms(prefix, 3)[0].by_module()
    bounds = search._forms(prefix, 3)[0].children(table, lower)
    for row, labels in enumerate(prefix.tolist()):
        theta = torch.tensor([[*labels[:3], last] for last in range(labelled.sizes[3])])
        k, _ = labelled.at(theta)
        np.testing.assert_allclose(bounds[:, row], search._objective.weights @ k, atol=1e-9)


def test_interchangeable_llms_share_a_label():
    space = ConfigSpace((4, 3, 2))
    classes = Classes(space, torch.tensor([[2, 0, 0], [0, 0, 1]]))
    assert classes.sizes == (3, 2, 2)
    codes = space.unrank(torch.arange(space.size))
    labels = classes.label(codes)
    for row in itertools.product(*(range(size) for size in classes.sizes)):
        expected = (labels == torch.tensor(row)).all(-1).nonzero().flatten()
        for at_once in (1, 2, 100):
            members = torch.cat(list(classes.members(row, at_once)))
            assert members.sort().values.tolist() == expected.tolist()
        assert classes.count(row) == len(expected)
        drawn = classes.draw(row, 50, torch.Generator().manual_seed(0))
        assert set(drawn.tolist()) == set(expected.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("num_modules", [3, 7])
def test_more_ties_than_can_be_listed(num_modules):
    """Nothing is observed: all but theta_out tie, and a large space is drawn from."""
    sizes = (23,) * num_modules
    space = ConfigSpace(sizes)
    surrogate = QuerySurrogate(space, MATERN[0], 3, 1e-4)
    posterior = BranchedPosterior(surrogate, space, MATERN[0])
    lower = posterior.lower_bounds(Beta(1.0, 1.0), math.inf, 5)
    assert lower.least_c == lower.least_g == pytest.approx(-math.sqrt(1 / 3))
    chosen = [lower.argmin_c(-0.1, 1.0, seed) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(0 <= index < space.size for index in chosen)
    if num_modules == 3:
        assert chosen[0] == min(
            set(range(space.size)) - {5}, key=lambda j: naive.splitmix64(j % 2**64)
        )


def test_refusals():
    def make(sizes, kernel=MATERN[0], max_nodes=10):
        space = ConfigSpace(sizes)
        surrogate = QuerySurrogate(space, kernel, 3, 1e-4)
        return BranchedPosterior(surrogate, space, kernel, max_nodes)

    with pytest.raises(InputError, match="WeightedOverlap"):
        make((2, 2), WeightedOverlap())
    with pytest.raises(InputError, match="13 modules"):
        make((2,) * 13)
    with pytest.raises(InputError, match="max_nodes=0"):
        make((2, 2), max_nodes=0)
