"""The posterior kept up to date on all of Theta against regression from scratch, step by step."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from test_kernels import Twins, WeightedOverlap
from test_per_query import MATERN, RBF, all_codes, loo_ratios

from scope_torch.bounds import Beta
from scope_torch.model import hamming_sums as hamming_grid
from scope_torch.model import incremental
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid, make_grid
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace
from scope_torch.space_search import minima, variances
from scope_torch.space_search.grid import GridPosterior

# What making all variances exact is said to cost: so they are made one by one, or all at once.
PATHS = {"as it is": None, "one by one": math.inf, "all at once": -1.0}


class Driven:
    """A surrogate with its posterior on Theta, the history told to it, and the reference's word."""

    def __init__(self, sizes, num_queries, lam=1e-4, kernel=MATERN, device="cpu", grid=None):
        self.sizes, self.num_queries, self.lam, self.kernel = sizes, num_queries, lam, kernel
        space = ConfigSpace(sizes)
        self.surrogate = QuerySurrogate(space, kernel[0], num_queries, lam, device)
        self.grid = (grid or make_grid)(space, kernel[0], device)
        self.posterior = GridPosterior(self.surrogate, self.grid)
        self.history: list[naive.Record] = []
        self.targets = all_codes(sizes)
        self.choices = 0

    def tell(self, records) -> None:
        for record in records:
            self.history.append(record)
            self.surrogate.observe(*record)

    def check(self) -> None:
        self.posterior.update()
        expected = self.expected()
        before = self.posterior.upper_variance.cpu().numpy()
        assert (before >= expected[2] - 1e-12).all()
        for theta_out in (None, len(self.targets) // 2):
            self.check_lower_bounds(expected, theta_out)
        names = ("mean_c", "mean_g", "variance")
        observed = [getattr(self.posterior, name).cpu().numpy() for name in names]
        np.testing.assert_allclose(observed[0], expected[0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(observed[1], expected[1], rtol=0, atol=1e-9)
        np.testing.assert_allclose(observed[2], expected[2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.sqrt(observed[2]), np.sqrt(expected[2]), rtol=0, atol=1e-9)

    def check_lower_bounds(self, expected, theta_out) -> None:
        u_out = float(np.median(expected[0]))
        lower_c = expected[0] - 0.7 * np.sqrt(expected[2])
        lower_g = expected[1] - 3.0 * np.sqrt(expected[2])
        if theta_out is not None:
            lower_c[theta_out] = np.inf
        lower = self.posterior.lower_bounds(Beta(0.7, 3.0), u_out, theta_out)
        # A minimum must be that of the expected bounds, moved by no more than rounding.
        least_c = [min(lower_c[lower_g <= x], default=np.inf) for x in (1e-8, -1e-8)]
        assert least_c[0] - 1e-8 <= lower.least_c <= least_c[1] + 1e-8
        least_g = [min(lower_g[lower_c <= u_out + x], default=np.inf) for x in (1e-8, -1e-8)]
        assert least_g[0] - 1e-8 <= lower.least_g <= least_g[1] + 1e-8
        for seed, most_g in enumerate(
            (lower_g.min() + 1e-7, float(np.quantile(lower_g, 0.37)) + 1e-7, 0.0)
        ):
            if most_g <= 0 and np.isfinite(lower_c[lower_g <= most_g - 1e-8]).any():
                chosen = lower.argmin_c(float(most_g), 0.5, seed)
                self.check_choice(chosen, lower_c, lower_g, most_g, seed)
        exact = self.posterior.is_exact(torch.arange(len(lower_c))).cpu().numpy()
        assert (lower.c.cpu().numpy() <= lower_c + 1e-8).all()
        assert (lower.g.cpu().numpy() <= lower_g + 1e-8).all()
        np.testing.assert_allclose(lower.c.cpu()[exact], lower_c[exact], rtol=0, atol=1e-8)
        np.testing.assert_allclose(lower.g.cpu()[exact], lower_g[exact], rtol=0, atol=1e-8)

    def check_choice(self, chosen, lower_c, lower_g, most_g, seed) -> None:
        """The tied configuration of least hash; another only where rounding decides."""
        eligible = np.where(lower_g <= most_g, lower_c, np.inf)
        width = 1e-9 * max(abs(eligible.min()), 0.5)
        assert (
            eligible[chosen] <= eligible.min() + 2 * width or abs(lower_g[chosen] - most_g) < 1e-8
        )
        tied = (eligible <= eligible.min() + width).nonzero()[0].tolist()
        near = np.abs(eligible - eligible.min() - width) < 0.9 * width
        if (np.abs(lower_g - most_g) < 1e-8).any() or (near & (eligible > eligible.min())).any():
            return
        self.choices += 1
        assert chosen == min(
            tied, key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64)
        )

    def expected(self):
        if not isinstance(self.kernel[0], WeightedOverlap):
            arguments = (self.targets, self.num_queries, self.lam, self.kernel[1])
            return naive.aggregate(self.history, *arguments)
        total = np.zeros((3, len(self.targets)))
        for q in range(self.num_queries):
            rows = [row for row in self.history if row[1] == q]
            x, y = np.array([row[0] for row in rows]), np.array([row[2:] for row in rows])
            total[2] += 1 / self.num_queries**2
            if rows:
                gram = overlap(x, x) + self.lam * np.eye(len(x))
                k = overlap(x, self.targets)
                total[:2] += (k.T @ np.linalg.solve(gram, y)).T / self.num_queries
                total[2] -= (k * np.linalg.solve(gram, k)).sum(0) / self.num_queries**2
        return total

    def check_each_query(self, min_queries: int = 2) -> None:
        for theta in self.targets[:: max(1, len(self.targets) // 5)]:
            at = self.surrogate.at(theta.tolist())
            for q in range(self.num_queries):
                fit = naive.query_gp(self.history, q, theta[None], self.lam, self.kernel[1])
                np.testing.assert_allclose([row[q] for row in at], np.ravel(fit), atol=1e-9)
        ratios = loo_ratios(self.history, min_queries, self.lam, self.kernel[1])
        observed = self.surrogate.leave_one_out(min_queries)
        np.testing.assert_allclose(observed.T, np.reshape(ratios, (-1, 2)), rtol=1e-7, atol=1e-8)


def overlap(a, b) -> np.ndarray:
    """The kernel of `WeightedOverlap`, retyped."""
    weight = 1 / np.arange(1, a.shape[1] + 1)
    return np.exp(-((a[:, None, :] != b[None, :, :]) @ weight))


def records(rng, sizes, num_queries, count, fresh=0.5) -> list[naive.Record]:
    """Random observations; a configuration not `fresh` is one of the first few of Theta."""
    out = []
    for _ in range(count):
        pick = rng.random() < fresh
        theta = tuple(int(rng.integers(size if pick else min(2, size))) for size in sizes)
        y = float(rng.lognormal()), float(rng.uniform(-1, 1))
        out.append((theta, int(rng.integers(num_queries)), *y))
    return out


def force(monkeypatch, path: str) -> None:
    if PATHS[path] is not None:
        for grid in (HammingGrid, DirectGrid):
            monkeypatch.setattr(grid, "form_operations", lambda *_: PATHS[path])


CASES = [
    *((sizes, MATERN, None) for sizes in [(4,), (1,), (3, 1), (2, 4, 3), (1, 3, 1, 2)]),
    ((3, 2, 3), RBF, None),
    ((3, 2, 3), MATERN, DirectGrid),
    ((2, 1, 4), (WeightedOverlap(), None), None),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("sizes", "kernel", "grid"), CASES, ids=lambda value: str(value)[:12])
def test_random_sequences(sizes, kernel, grid, path, monkeypatch, device):
    """Single observations, batches, repeats, nothing new, late configurations on old queries."""
    force(monkeypatch, path)
    rng = np.random.default_rng(math.prod(sizes))
    driven = Driven(sizes, 5, 1e-4, kernel, device, grid)
    if isinstance(kernel[0], WeightedOverlap):
        assert isinstance(driven.grid, DirectGrid)
    for step in range(15):
        batch = [1, 1, 4, 0, 1, 9][step % 6]
        driven.tell(records(rng, sizes, 5, batch, fresh=0.2 if step < 8 else 0.9))
        if step % 7 == 3 and driven.history:  # a repeat alone
            driven.tell([driven.history[int(rng.integers(len(driven.history)))]])
        driven.check()
    if kernel[1] is not None:
        driven.check_each_query()


def candidates_one_by_one(driven: Driven, rng, count: int):
    """What SCOPE's j-loop does: a configuration on some queries, each observed once."""
    space = list(itertools.product(*(range(size) for size in driven.sizes)))
    for position in rng.permutation(len(space))[:count]:
        queries = rng.permutation(driven.num_queries)[: int(rng.integers(1, 6))]
        yield [(space[position], int(q), *rng.uniform(-1, 1, 2).tolist()) for q in queries]


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("lam", [1e-6, 1e-2])
@pytest.mark.slow
def test_few_variances_are_needed(lam, followed, monkeypatch, device):
    """In a search most of them are not looked at, or all are followed; neither way do they drift.

    Whether they are followed depends on how much work that is said to be.
    """
    monkeypatch.setattr(HammingGrid, "sum_operations", lambda *_: 0 if followed else math.inf)
    monkeypatch.setattr(minima, "CHUNK", 7)
    monkeypatch.setattr(minima, "AT_ONCE", 2)
    monkeypatch.setattr(variances, "DECISIVE", 5)
    driven = Driven((5, 4, 5), 12, lam, MATERN, device)
    made_exact, kept_exact, of = 0, 0, 0
    for step, batch in enumerate(candidates_one_by_one(driven, np.random.default_rng(1), 90)):
        driven.tell(batch)
        if step % 9 == 8:
            driven.check()
            continue
        driven.posterior.update()
        expected = driven.expected()
        kept = driven.posterior.is_exact(torch.arange(100)).cpu().numpy()
        kept_exact += int(kept.sum())
        variance = driven.posterior.upper_variance.cpu().numpy()
        np.testing.assert_allclose(variance[kept], expected[2][kept], rtol=0, atol=1e-12)
        assert (variance >= expected[2] - 1e-12).all()
        driven.check_lower_bounds(expected, step)
        made_exact += int(driven.posterior.is_exact(torch.arange(100)).sum())
        of += 100
    assert (made_exact > 0.9 * of) if followed else (made_exact < 0.5 * of)
    assert 0 < kept_exact < made_exact or followed
    assert driven.choices > 50
    driven.check_each_query()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5, 4, 5), (3, 3, 2, 3)])
def test_what_decides_nothing_is_lowered_too(sizes, device):
    """Upper bounds fall with the variance where none was ever made exact: never below, and near."""
    driven = Driven(sizes, 12, 1e-4, MATERN, device)
    for batch in candidates_one_by_one(driven, np.random.default_rng(2), 40):
        driven.tell(batch)
        driven.posterior.update()
        upper, exact = driven.posterior.upper_variance.cpu().numpy(), driven.expected()[2]
        assert not driven.posterior.is_exact(torch.arange(len(exact))).any()
        assert (upper >= exact - 1e-12).all()
    assert (1 / 12 - upper).mean() > 0.8 * (1 / 12 - exact).mean()


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_seems_best_may_all_be_infeasible(at_once, monkeypatch, device):
    """Bounds that are too low by different amounts, so that the first guesses are all wrong."""
    monkeypatch.setattr(minima, "CHUNK", 5)
    monkeypatch.setattr(minima, "AT_ONCE", at_once)
    force(monkeypatch, "one by one")
    driven = Driven((4, 4, 4), 3, 1e-3, MATERN, device)
    rng = np.random.default_rng(0)
    for theta in rng.permutation(64)[:20]:
        codes = tuple(driven.targets[theta].tolist())
        driven.tell([(codes, q, float(rng.uniform(0, 0.1)), 0.9) for q in range(3)])
    driven.check()
    assert driven.choices > 0


@pytest.mark.parametrize("feasible", [True, False])
def test_least_values_at_the_limit(feasible, device):
    """L_g = 0 counts as feasible, L_c = u_out as an improvement; nothing gives +inf."""
    driven = Driven((3,), 2, 1e-4, MATERN, device)
    driven.tell([((0,), 0, 0.1, 0.1)])
    driven.posterior.update()
    driven.posterior.mean_c[:] = torch.tensor([3.0, 1.0, 2.0])
    driven.posterior.mean_g[:] = torch.tensor([-1.0, 1e-30, 0.0]) if feasible else 5.0
    lower = driven.posterior.lower_bounds(Beta(0.0, 0.0), 2.0, None)
    assert lower.least_c == (2.0 if feasible else np.inf)
    assert lower.least_g == (0.0 if feasible else 5.0)
    assert driven.posterior.lower_bounds(Beta(0.0, 0.0), 0.5, None).least_g == np.inf
    without = driven.posterior.lower_bounds(Beta(0.0, 0.0), 2.0, 2)
    assert without.least_c == (3.0 if feasible else np.inf)
    assert driven.posterior.mean_c.tolist() == [3.0, 1.0, 2.0]


def test_a_change_of_too_many_terms_is_summed_anew(monkeypatch):
    monkeypatch.setattr(incremental, "UPDATES_KEPT", 1)
    driven = Driven((3, 2), 4)
    for theta in ((0, 0), (1, 1), (0, 1)):
        for q in range(4):
            driven.tell([(theta, q, 0.5, 0.1 * q)])
            driven.surrogate.num_observations()
        driven.check()
    driven.check_each_query(1)


def test_no_variance_is_below_0_where_llms_are_the_same():
    """By rounding it would be, and the half-width `eligible` no number."""
    driven = Driven((4, 4, 4), 3, lam=1e-9, kernel=(Twins(), None))
    rng = np.random.default_rng(0)
    for *theta, q in itertools.product(range(4), range(4), range(4), range(3)):
        driven.tell([(tuple(theta), q, 1e-3, float(rng.random()))])
    driven.posterior.update()
    assert driven.posterior.least_slope() > 0
    assert driven.posterior.variance.min() >= 0


@pytest.mark.parametrize("sizes", [(4, 3), (3, 1, 4), (2, 3, 1, 2), (1, 1), (5,)])
def test_sums_over_large_spaces_go_slab_by_slab(sizes, monkeypatch, device):
    """The way of more than a million entries, on few; and results put where they are wanted."""
    rng, space = np.random.default_rng(0), ConfigSpace(sizes)
    codes = space.unrank(torch.tensor(rng.permutation(space.size)[:6])).to(device)
    weights = torch.tensor(rng.normal(size=len(codes)), device=device)
    matrix = weights.outer(weights)
    monkeypatch.setattr(hamming_grid, "_LARGE", 0)
    k = naive._gram(all_codes(sizes), codes.cpu().numpy(), naive.matern52)
    total = k @ weights.cpu().numpy()
    for make in (HammingGrid, DirectGrid):
        grid = make(space, MATERN[0], device)
        memory = torch.full((space.size,), math.nan, dtype=torch.float64, device=device)
        for out in (None, memory):
            for got, expected in (
                (lambda out=out, grid=grid: grid.weighted_sum(codes, weights, out), total),
                (lambda out=out, grid=grid: grid.quadratic_form(codes, matrix, out), total**2),
            ):
                values = got()
                np.testing.assert_allclose(values.cpu(), expected, rtol=0, atol=1e-12)
                assert out is None or values.data_ptr() == out.data_ptr()
