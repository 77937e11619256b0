"""The constraints' u with an additive share, against one naive Gaussian process on all pairs."""

import itertools

import numpy as np
import pytest
import torch

from scope_torch.errors import InputError
from scope_torch.factors import levels_of, product
from scope_torch.methods import make_scope_joint
from scope_torch.model.devices import joint_class
from scope_torch.model.hamming_sums import BoxGrid, make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import (
    AdditiveKernel,
    FactorKernel,
    HammingMatern52Kernel,
    MixedKernel,
    kernel_matrix,
    mixed_kernel,
)
from scope_torch.runs.runner import run
from scope_torch.space import ConfigSpace
from scope_torch.space_search.grid import GridPosterior
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import HammingKernelConformance

SIZES, Q, LAM = (3, 4, 2), 5, 1e-3
SPACE = ConfigSpace(SIZES)
THETA = np.array(list(itertools.product(*map(range, SIZES))))
SHARE = 0.4


def matern(a, b):
    d = np.sqrt((a[:, None] != b[None]).sum(-1))
    return (1 + np.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-np.sqrt(5) * d)


def of_u(a, b, zeta):
    additive = (a[:, None] == b[None]).mean(-1)
    return matern(a, b) if zeta == 0 else (1 - SHARE) * matern(a, b) + SHARE * additive


def pairs_of(history, zeta):
    theta, query = np.array([row[0] for row in history]), np.array([row[1] for row in history])
    return theta, query, np.array([row[2 + zeta] for row in history])


def naive(history, fitted, zeta):
    """Mean and variance of the average of l(theta, q) on all of Theta."""
    theta, query, y = pairs_of(history, zeta)
    rho, amplitude = fitted
    gram = rho * of_u(theta, theta, zeta)
    gram += (1 - rho) * matern(theta, theta) * (query[:, None] == query[None])
    gram += (1 - rho) * LAM * np.eye(len(y))
    cross = rho * of_u(THETA, theta, zeta) + (1 - rho) / Q * matern(THETA, theta)
    mean = cross @ np.linalg.solve(gram, y)
    variance = rho + (1 - rho) / Q - np.einsum("ti,it->t", cross, np.linalg.solve(gram, cross.T))
    return mean, amplitude**2 * variance


def random_rows(seed, count, constraints=1):
    rng = np.random.default_rng(seed)
    return [
        (
            tuple(int(rng.integers(n)) for n in SIZES),
            int(rng.integers(Q)),
            float(rng.random()),
            *map(float, rng.normal(size=constraints)),
        )
        for _ in range(count)
    ]


def surrogate_of(history, additive=SHARE, constraints=1):
    surrogate = JointSurrogate(
        SPACE,
        HammingMatern52Kernel(),
        Q,
        LAM,
        relative_cost=False,
        additive=additive,
        num_constraints=constraints,
    )
    for row in history:
        surrogate.observe(*row)
    return surrogate


def check(history, surrogate, posterior):
    fitted = surrogate.hyperparameters
    means = posterior.mean_c, posterior._moments.means[1]
    for zeta, mean in enumerate(means):
        expected, _ = naive(history, fitted[zeta], zeta)
        np.testing.assert_allclose(mean.numpy(), expected, rtol=0, atol=1e-10)
    assert (posterior.variance >= 0).all()  # all are made exact
    for zeta, variance in enumerate((posterior.upper_variance, posterior.upper_variance_g)):
        _, expected = naive(history, fitted[zeta], zeta)
        np.testing.assert_allclose(variance.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["tables", "list", "box"])
def test_all_of_theta_is_that_of_one_process(kind):
    """After fits, after single observations between them, on tables, a list and a box."""
    history = random_rows(1, 30)
    surrogate, index = surrogate_of(history), torch.arange(len(THETA))
    grid = make_grid(SPACE, HammingMatern52Kernel(), index=index if kind == "list" else None)
    if kind == "box":
        every = [torch.arange(size) for size in SIZES]
        grid = BoxGrid(SPACE, HammingMatern52Kernel(), every)
    posterior = GridPosterior(surrogate, grid)
    posterior.update()
    check(history, surrogate, posterior)
    fitted = surrogate.hyperparameters
    num_fits = 0
    for row in random_rows(2, 70):
        surrogate.observe(*row)
        history.append(row)
        posterior.update()
        check(history, surrogate, posterior)
        num_fits += surrogate.hyperparameters is not fitted
        fitted = surrogate.hyperparameters
    assert num_fits == 1


def test_a_box_is_cut_with_both_kernels():
    history = random_rows(3, 40)
    surrogate = surrogate_of(history)
    whole = GridPosterior(surrogate, make_grid(SPACE, HammingMatern52Kernel()))
    whole.update()
    llms = [torch.tensor(some) for some in ([0, 2], [1, 2, 3], [0])]
    box = whole.cut(BoxGrid(SPACE, HammingMatern52Kernel(), llms))
    for row in random_rows(4, 5):
        surrogate.observe(*row)
    whole.update()
    box.update()
    assert (whole.variance >= 0).all()
    assert (box.variance >= 0).all()
    for name in ("mean_c", "mean_g", "upper_variance", "upper_variance_g"):
        expected = getattr(whole, name)[box.listed]
        torch.testing.assert_close(getattr(box, name), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("constraints", [1, 2])
@pytest.mark.parametrize("at_first", [(), (0, 1, 2, 3, 4)])
def test_a_candidate_follows_the_process(constraints, at_first):
    """Groups opened at once or one by one; an average given the answers that have come so far."""
    history = random_rows(5, 40, constraints)
    surrogate = surrogate_of(history, constraints=constraints)
    surrogate.refit()
    fitted = surrogate.hyperparameters
    rng = np.random.default_rng(0)
    for theta in (tuple(map(int, THETA[-1])), history[0][0]):
        at, told = surrogate.at(theta, at_first), list(history)
        flat = int(SPACE.index_of(theta))
        for query in (3, 0, 4, 1):
            at.open([query])
            at.plan(query)
            row = theta, query, float(rng.random()), *map(float, rng.normal(size=constraints))
            for output, y in zip((at.cost, *at.constraints), row[2:], strict=True):
                output.update(query, y)
            told.append(row)
            for zeta, output in enumerate((at.cost, *at.constraints)):
                mean, variance = naive(told, fitted[zeta], zeta)
                assert output.mean == pytest.approx(mean[flat], abs=1e-10)
                assert output.sigma**2 == pytest.approx(variance[flat], abs=1e-10)


@pytest.mark.parametrize("zeta", [0, 1])
def test_the_marginal_likelihood_is_that_of_one_process(zeta):
    """Up to a constant, at the best amplitude; the closed form has means in place of repeats."""
    history = list({row[:2]: row for row in random_rows(6, 40)}.values())
    theta, query, y = pairs_of(history, zeta)
    rhos = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64)
    expected = []
    for rho in rhos.tolist():
        gram = rho * of_u(theta, theta, zeta) + (1 - rho) * LAM * np.eye(len(y))
        gram += (1 - rho) * matern(theta, theta) * (query[:, None] == query[None])
        square = y @ np.linalg.solve(gram, y) / len(y)
        expected.append(-0.5 * (np.linalg.slogdet(gram)[1] + len(y) * np.log(square)))
    found, _ = surrogate_of(history).log_marginal_likelihood(zeta, rhos)
    difference = found.numpy() - np.array(expected)
    np.testing.assert_allclose(difference - difference[0], 0, atol=1e-9)


def test_without_a_share_it_is_one_kernel():
    surrogate = surrogate_of(random_rows(7, 30), additive=0.0)
    surrogate.refit()
    assert surrogate.kernels[0] is surrogate.kernels[1]
    assert "additive" not in surrogate.settings()
    assert surrogate_of([]).settings()["additive"] == SHARE


class TestMixedKernel(HammingKernelConformance):
    """A sum over modules alone is not strictly positive definite."""

    @pytest.fixture
    def kernel(self):
        return MixedKernel([(0.75, HammingMatern52Kernel()), (0.25, AdditiveKernel(5))])

    @pytest.fixture
    def reference(self):
        def at(h):
            d = np.sqrt(5 * h)
            return 0.75 * (1 + d + d**2 / 3) * np.exp(-d) + 0.25 * (1 - h / 5)

        return at


def test_factors_stay_known_in_a_mixture():
    """Of what choices share each kernel knows its part."""
    levels = levels_of([product(llm=["a", "b"], effort=["low", "high"])] * 2)
    base, additive = HammingMatern52Kernel(), AdditiveKernel(2)
    mixed = mixed_kernel([(0.75, FactorKernel(base, levels)), (0.25, additive)])
    x = torch.cartesian_prod(*[torch.arange(4)] * 2)
    parts = FactorKernel(base, levels), FactorKernel(additive, levels)
    expected = sum(w * one.forward(x, x) for w, one in zip((0.75, 0.25), parts, strict=True))
    torch.testing.assert_close(mixed.forward(x, x), expected, rtol=0, atol=1e-12)
    alone = MixedKernel([(0.75, base), (0.25, additive)])
    assert not torch.equal(mixed.forward(x, x), alone.forward(x, x))


def test_what_cannot_have_a_share_says_so():
    problem = synthetic_task().problem
    with pytest.raises(InputError, match=r"additive=1\.0 must lie in \[0, 1\)"):
        make_scope_joint(problem, base="small", additive=1.0)
    with pytest.raises(InputError, match=r"additive=0\.5 needs a Theta that is enumerated"):
        make_scope_joint(problem, base="small", additive=0.5, space_search="branch_and_bound")
    with pytest.raises(InputError, match=r"additive=0\.5.*theory needs"):
        make_scope_joint(problem, base="small", additive=0.5, rho=0.3, bounds={"mode": "theory"})
    with pytest.raises(InputError, match="is not one of the Hamming distance"):
        mixed_kernel([(1.0, _Other())])
    tensor = joint_class("tensor", torch.device("cpu"), HammingMatern52Kernel())
    plain = joint_class("tensor", torch.device("cpu"), HammingMatern52Kernel(), 1, 0.5)
    assert (tensor is plain, plain) == (False, JointSurrogate)


class _Other(HammingMatern52Kernel.__mro__[2]):  # CodeKernel
    def _matrix(self, x1, x2, diag):
        return kernel_matrix(HammingMatern52Kernel(), x1, x2)


@pytest.mark.parametrize("how", [{}, {"in_flight": 4}, {"batch_size": 3}])
def test_a_search_with_a_share_certifies_what_is_true(how):
    task = synthetic_task()
    optimizer = make_scope_joint(task.problem, base="small", seed=1, additive=0.5, **how)
    result = run(task.problem, optimizer, task.evaluator, budget_usd=3.0)
    assert result.recommendation.basis == "certified"
    plain = make_scope_joint(task.problem, base="small", seed=1, **how)
    other = run(task.problem, plain, task.evaluator, budget_usd=3.0)
    assert result.recommendation.theta == other.recommendation.theta
    asked = [[(one.theta, one.query) for one in r.history] for r in (result, other)]
    assert asked[0] != asked[1]
