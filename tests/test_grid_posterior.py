"""The posterior kept up to date on all of Theta against regression from scratch, step by step."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from test_kernels import WeightedOverlap
from test_surrogate import MATERN, RBF, all_codes, loo_ratios

from scope_torch import grid_posterior, hamming_grid, surrogate
from scope_torch.bounds import Beta
from scope_torch.grid_posterior import GridPosterior
from scope_torch.hamming_grid import DirectGrid, HammingGrid, make_grid
from scope_torch.space import ConfigSpace
from scope_torch.surrogate import QuerySurrogate

PATHS = {"as it is": None, "updated": True, "made anew": False}


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

    def tell(self, records) -> None:
        for record in records:
            self.history.append(record)
            self.surrogate.observe(*record)

    def check(self) -> None:
        self.posterior.update()
        names = ("mean_c", "mean_g", "variance")
        observed = [getattr(self.posterior, name).cpu().numpy() for name in names]
        expected = self.expected()
        np.testing.assert_allclose(observed[0], expected[0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(observed[1], expected[1], rtol=0, atol=1e-9)
        np.testing.assert_allclose(observed[2], expected[2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.sqrt(observed[2]), np.sqrt(expected[2]), rtol=0, atol=1e-9)
        for theta_out in (None, len(self.targets) // 2):
            self.check_lower_bounds(expected, theta_out)

    def check_lower_bounds(self, expected, theta_out) -> None:
        u_out = float(np.median(expected[0]))
        lower = self.posterior.lower_bounds(Beta(0.7, 3.0), u_out, theta_out)
        lower_c = expected[0] - 0.7 * np.sqrt(expected[2])
        lower_g = expected[1] - 3.0 * np.sqrt(expected[2])
        if theta_out is not None:
            lower_c[theta_out] = np.inf
        np.testing.assert_allclose(lower.c.cpu(), lower_c, rtol=0, atol=1e-8)
        np.testing.assert_allclose(lower.g.cpu(), lower_g, rtol=0, atol=1e-8)
        c, g = lower.c.cpu().numpy(), lower.g.cpu().numpy()
        assert lower.least_c == min(c[g <= 0], default=np.inf)
        assert lower.least_g == min(g[c <= u_out], default=np.inf)
        assert lower.min_g == g.min()
        for seed, most_g in enumerate((g.min(), float(np.median(g)), g.max())):
            eligible = np.where(g <= most_g, c, np.inf)
            tied = (eligible <= eligible.min() + 1e-9 * max(abs(eligible.min()), 0.5)).nonzero()[0]
            first = min(
                tied.tolist(), key=lambda j: naive.splitmix64((j + seed * naive.GOLDEN) % 2**64)
            )
            assert lower.argmin_c(float(most_g), 0.5, seed) == first

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
    """One way to bring the variance up to date, wherever both are possible."""
    if PATHS[path] is not None:
        monkeypatch.setattr(GridPosterior, "_is_cheaper", lambda *_: PATHS[path])
        if PATHS[path]:
            real = GridPosterior.update

            def update(self):
                started = getattr(self, "_started", False)
                if not started:  # the first variance has nothing to start from
                    self._started = True
                    self.variance.fill_(1 / self._surrogate.num_queries)
                real(self)

            monkeypatch.setattr(GridPosterior, "update", update)


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


@pytest.mark.parametrize("lam", [1e-6, 1e-2])
def test_many_updates(lam, device):
    """More than the refresh allows: updates and refreshes both happen, and nothing drifts."""
    driven = Driven((5, 4, 5), 12, lam, MATERN, device)
    made_anew, real = [], driven.surrogate.aggregate

    def aggregate():
        made_anew.append(steps)
        return real()

    driven.surrogate.aggregate = aggregate
    steps = 0
    for batch in candidates_one_by_one(driven, np.random.default_rng(1), 90):
        steps += 1
        driven.tell(batch)
        if steps < 60 or steps > 85 or steps % 6 == 0:
            driven.check()
        else:
            driven.posterior.update()
    assert made_anew[0] == 1
    gaps = np.diff([*made_anew, steps + 1])
    assert gaps.max() > 3
    assert gaps.max() <= grid_posterior._REFRESH + 1
    driven.check_each_query()


def test_the_variance_is_made_anew_after_64_updates(monkeypatch):
    monkeypatch.setattr(HammingGrid, "form_operations", lambda *_: math.inf)
    driven = Driven((3, 4, 3), 8, 1e-3)
    rng, made_anew = np.random.default_rng(2), []
    real = driven.grid.quadratic_form

    def quadratic_form(*arguments, **options):
        made_anew.append(step)
        return real(*arguments, **options)

    monkeypatch.setattr(driven.grid, "quadratic_form", quadratic_form)
    batches = itertools.cycle(candidates_one_by_one(driven, rng, 36))
    seen: set[tuple] = set()
    for step in range(140):
        fresh = [row for row in next(batches)[:1] if row[:2] not in seen]
        seen.update(row[:2] for row in fresh)
        driven.tell(fresh)
        driven.posterior.update()
        if step % 32 == 0 or step in made_anew or step == 139:
            driven.check()
    assert made_anew[0] == 0
    assert max(np.diff(made_anew)) <= 65
    assert len(made_anew) >= 3


@pytest.mark.parametrize("entries", [1, 40])
def test_a_change_of_high_rank_is_applied_in_parts(entries, monkeypatch, device):
    monkeypatch.setattr(grid_posterior, "_ENTRIES", entries)
    monkeypatch.setattr(grid_posterior, "_CHUNK", 7)
    force(monkeypatch, "updated")
    driven = Driven((3, 3, 2), 10, 1e-4, MATERN, device)
    for theta in [(0, 0, 0), (1, 0, 1), (2, 2, 0)]:
        rng = np.random.default_rng(theta[0])
        driven.tell([(theta, q, *rng.uniform(-1, 1, 2).tolist()) for q in rng.permutation(10)[:7]])
        driven.check()


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


def dense(change: surrogate.LowRankChange) -> torch.Tensor:
    return change.columns @ change.weight.diag() @ change.columns.T


def test_take_change_is_the_change_of_the_matrix(device):
    """V after = V before, padded by zeros for new configurations, + U diag(w) U^T."""
    rng = np.random.default_rng(3)
    driven = Driven((3, 4, 2), 6, 1e-3, MATERN, device)
    assert driven.surrogate.take_change().columns.shape == (0, 0)
    before = driven.surrogate.aggregate().matrix
    some = 0
    for step, batch in enumerate(candidates_one_by_one(driven, rng, 24)):
        driven.tell(batch)
        if step % 3 == 2:  # V is not read between changes, or read more often than they are taken
            driven.surrogate.aggregate()
        elif step % 3 == 1:
            driven.surrogate.num_observations()
            continue
        change = driven.surrogate.take_change()
        after = driven.surrogate.aggregate().matrix
        grown = torch.nn.functional.pad(before, (0, len(after) - len(before)) * 2)
        assert change.columns.shape == (len(after), len(change.weight))
        np.testing.assert_allclose((grown + dense(change)).cpu(), after.cpu(), atol=1e-9, rtol=1e-9)
        assert (change.weight > 0).all()
        some += len(change.weight)
        before = after
        nothing = driven.surrogate.take_change()
        assert nothing.columns.shape == (len(after), 0)
    assert some > 20


def test_what_is_not_of_low_rank_says_so():
    driven = Driven((3, 2), 4)
    driven.tell([((0, 0), 1, 0.5, 0.1)])
    assert driven.surrogate.take_change().columns.shape == (1, 1)
    driven.tell([((0, 0), 1, 0.4, 0.2)])  # a repeat changes the noise of what is there
    assert driven.surrogate.take_change() is None
    assert driven.surrogate.take_change().columns.shape == (1, 0)
    driven.tell([((0, 1), 2, 0.4, 0.2), ((1, 1), 2, 0.4, 0.2)])  # two at once on one query
    assert driven.surrogate.take_change() is None
    driven.tell([((0, 1), 0, 0.4, 0.2), ((0, 1), 3, 0.4, 0.2)])  # queries with equal histories
    change = driven.surrogate.take_change()
    assert change.columns.shape == (3, 1)
    driven.check()


def test_a_change_of_too_many_terms_says_so(monkeypatch):
    monkeypatch.setattr(surrogate, "_MAX_COLUMNS", 3)
    driven = Driven((3, 2), 4)
    for q in range(3):
        driven.tell([((0, q % 2), q, 0.5, 0.1)])
        driven.surrogate.num_observations()
    assert driven.surrogate.take_change().columns.shape == (2, 3)
    for q in range(4):
        driven.tell([((1, 1), q, 0.5, 0.1)])
        driven.surrogate.num_observations()
    assert driven.surrogate.take_change() is None
    driven.check()
    driven.check_each_query(1)


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
        several = grid.weighted_sum(codes, torch.stack([weights, 2 * weights], 1))
        np.testing.assert_allclose(several.cpu(), np.stack([total, 2 * total], 1), atol=1e-12)
