"""The batched model of all queries against naive regression, GPyTorch and the incremental model."""

import itertools
import math
from unittest.mock import create_autospec

import gpytorch
import naive
import numpy as np
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.optim import optimize_acqf_discrete
from tables import make_task
from test_per_query import CASES, MATERN, all_codes, gpytorch_reference, random_history

from scope_torch.bounds import Beta
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.botorch_queries import QueryModel
from scope_torch.model.gpytorch_model import QueryGPs, with_room
from scope_torch.model.incremental import Factors
from scope_torch.model.kernels import kernel_matrix
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.runs.runner import run
from scope_torch.search.candidate import QueryCandidate
from scope_torch.space import ConfigSpace


def told(kind, history, sizes, num_queries, lam, kernel, device="cpu"):
    surrogate = kind(ConfigSpace(sizes), kernel, num_queries, lam, device)
    for row in history:
        surrogate.observe(*row)
    return surrogate


def by_candidate(rng, sizes, num_queries, count, lam) -> list[list[naive.Record]]:
    """Configurations observed on some queries each, some of them again."""
    thetas = all_codes(sizes)[rng.permutation(math.prod(sizes))[: max(2, count // 2)]].tolist()
    level = rng.normal(size=(len(thetas), num_queries))
    rounds = []
    for at in rng.integers(len(thetas), size=count).tolist():
        queries = rng.permutation(num_queries)[: int(rng.integers(1, num_queries + 1))].tolist()
        y = [level[at, q] + math.sqrt(lam) * rng.normal(size=2) for q in queries]
        told = zip(queries, y, strict=True)
        rounds.append([(tuple(thetas[at]), q, float(c), float(g)) for q, (c, g) in told])
    return rounds


def flat(rounds) -> list[naive.Record]:
    return list(itertools.chain.from_iterable(rounds))


@pytest.mark.parametrize(("sizes", "num_queries", "count", "lam", "kernel"), CASES)
def test_all_at_once(sizes, num_queries, count, lam, kernel, device):
    """By the Cholesky decomposition: naive regression, and GPyTorch's own batch."""
    history = random_history(sizes, num_queries, count, 3)
    surrogate = told(TensorSurrogate, history, sizes, num_queries, lam, kernel[0], device)
    targets = all_codes(sizes)
    reference = gpytorch_reference(history, targets, num_queries, lam, kernel[0])
    posterior = surrogate.of_queries()(torch.tensor(targets, device=device))
    assert posterior.batch_shape == (num_queries,)
    assert posterior.mean.dtype == torch.float64
    mean = posterior.mean.cpu().numpy()
    variance = posterior.covariance_matrix.diagonal(dim1=-2, dim2=-1).cpu().numpy()
    np.testing.assert_allclose(mean, np.moveaxis(reference[:2], 0, -1), rtol=0, atol=1e-9)
    expected = np.tile(reference[2], (1, 2))  # of all costs, then of all constraints
    np.testing.assert_allclose(variance, expected, rtol=0, atol=1e-9)
    for q, theta in itertools.product(range(num_queries), targets[:3]):
        fit = naive.query_gp(history, q, theta[None], lam, kernel[1])
        at = surrogate.at(theta.tolist())
        np.testing.assert_allclose([row[q] for row in at], np.ravel(fit), rtol=0, atol=1e-9)


@pytest.mark.parametrize("lam", [1e-9, 1e-6, 0.25])
@pytest.mark.parametrize("first", [0, 3])
def test_row_by_row(lam, first, device):
    """Rows appended, repeats among them, past the first 64 rows and columns."""
    sizes, num_queries, rng = (5, 4, 5), 7, np.random.default_rng(1)
    rounds = by_candidate(rng, sizes, num_queries, 150, lam)
    setting = (sizes, num_queries, lam, MATERN[0])
    tensor = told(TensorSurrogate, flat(rounds[:first]), *setting, device)
    plain = told(QuerySurrogate, flat(rounds[:first]), *setting)
    for records in rounds[first:]:
        tensor.at(records[0][0])
        for record in records:
            tensor.observe(*record)
            plain.observe(*record)
        assert tensor.num_observed(records[0][0]) > 0
    gps = tensor.of_queries()
    assert gps.F.shape[1] > with_room(1)
    assert len(tensor.codes()) < gps.rows <= 2 * len(tensor.codes())  # repeats have rows
    one, other = tensor.aggregate(), plain.aggregate()
    assert one.codes.tolist() == other.codes.tolist()
    torch.testing.assert_close(one.weights.cpu(), other.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.matrix.cpu(), other.matrix, rtol=0, atol=1e-12)
    # The information is a logarithm of a variance over lambda, both near 0.
    expected = pytest.approx(plain.information(), abs=1e-14 / lam + 1e-9)
    assert tensor.information() == expected
    history, targets = flat(rounds), all_codes(sizes)[::7]
    naively = naive.aggregate(history, targets, num_queries, lam, MATERN[1])
    for j, theta in enumerate(targets):
        mean_c, mean_g, variance = tensor.at(theta.tolist())
        assert float(mean_c.mean()) == pytest.approx(naively[0][j], abs=1e-9)
        assert float(mean_g.mean()) == pytest.approx(naively[1][j], abs=1e-9)
        assert float(variance.sum()) / num_queries**2 == pytest.approx(naively[2][j], abs=1e-12)


@pytest.mark.parametrize("lam", [1e-9, 1e-2])
@pytest.mark.parametrize("theta_out", [(0, 1), (2, 2)])  # observed before, and not
def test_theta_out_in_the_middle_of_the_j_loop(lam, theta_out, device):
    """It follows the answers of theta_cand, and nothing is taken in on the device."""
    sizes, num_queries, rng = (3, 3), 6, np.random.default_rng(2)
    history = [((0, 1), q, 0.1 * q, 0.2) for q in (0, 1, 2)]
    setting = (sizes, num_queries, lam, MATERN[0])
    tensor = told(TensorSurrogate, history, *setting, device)
    plain = told(QuerySurrogate, history, *setting)
    tensor.look_beside(theta_out)
    QueryCandidate(tensor, (1, 1), range(num_queries))
    rows = tensor.gps.rows
    for q in (1, 5, 0, 3):
        record = ((1, 1), q, *rng.normal(size=2).tolist())
        tensor.observe(*record)
        plain.observe(*record)
        found = QueryCandidate(tensor, theta_out, range(num_queries))
        assert tensor.gps.rows == rows
        expected = QueryCandidate(plain, theta_out, range(num_queries))
        beta = Beta(2.0, 3.0)
        assert found.lower_c(beta) == pytest.approx(expected.lower_c(beta), abs=1e-9)
        assert found.upper_g(beta) == pytest.approx(expected.upper_g(beta), abs=1e-9)
        assert found.information == pytest.approx(expected.information, abs=1e-9)
    for one, other in zip(tensor.at(theta_out), plain.at(theta_out), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    tensor.observe((1, 1), 0, 0.3, 0.3)  # a second answer: all is taken in
    plain.observe((1, 1), 0, 0.3, 0.3)
    for one, other in zip(tensor.at(theta_out), plain.at(theta_out), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_what_the_others_ask_for():
    rng, sizes = np.random.default_rng(2), (3, 4, 2)
    history = flat(by_candidate(rng, sizes, 6, 30, 1e-4))
    setting = (history, sizes, 6, 1e-4, MATERN[0])
    tensor, plain = told(TensorSurrogate, *setting), told(QuerySurrogate, *setting)
    close = {"rtol": 0, "atol": 1e-9}
    np.testing.assert_allclose(tensor.total(), plain.total(), **close)
    np.testing.assert_allclose(tensor.sum_of_inverses(), plain.sum_of_inverses(), **close)
    torch.testing.assert_close(tensor.leave_one_out(2), plain.leave_one_out(2), **close)
    assert tensor.num_observations().tolist() == plain.num_observations().tolist()
    for one, other in zip(tensor.sum_of_squares(), plain.sum_of_squares(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    gps = tensor.of_queries()
    assert gps.train_inputs[0].shape == (6, len(tensor.codes()), 3)
    count = 1e-4 / gps.noise
    assert count.sum() == pytest.approx(len(history))
    y = gps.train_targets[:, count > 0]
    assert float((y[0] * count[count > 0]).sum()) == pytest.approx(sum(row[2] for row in history))


def test_the_collapse_is_the_average_of_the_posteriors():
    """eq:scope-mean-variance: means and covariances of all queries, averaged."""
    history = random_history((3, 4), 5, 40, 6)
    gps = told(TensorSurrogate, history, (3, 4), 5, 1e-4, MATERN[0]).of_queries()
    X = torch.tensor(all_codes((3, 4)))
    of_queries, aggregate = gps(X), gps.aggregate()
    k = kernel_matrix(MATERN[0], X, aggregate.codes)
    mean = of_queries.mean.mean(0)
    torch.testing.assert_close(k @ aggregate.weights.T, mean, rtol=0, atol=1e-12)
    of_cost = of_queries.covariance_matrix[:, : len(X), : len(X)]
    prior = aggregate.constant * kernel_matrix(MATERN[0], X, X)
    found = prior - k @ aggregate.matrix @ k.T
    torch.testing.assert_close(found, of_cost.sum(0) / 5**2, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_search_asks_the_model_and_nothing_else(make, monkeypatch):
    """Each candidate is one solution by the model, each batch of answers one row of it."""
    spies, task = {}, make_task(2, (5, 4, 3), 8)
    for name in ("condition", "solve", "append"):
        method = getattr(QueryGPs, name)
        spies[name] = create_autospec(method, side_effect=method)
        monkeypatch.setattr(QueryGPs, name, spies[name])
    monkeypatch.setattr(
        Factors, "update", create_autospec(Factors.update, side_effect=RuntimeError)
    )
    optimizer = make(task.problem, base="llm0", surrogate="tensor")
    history = run(task.problem, optimizer, task.evaluator(), task.budget(5)).history
    surrogate = optimizer.belief.surrogate
    gps = getattr(surrogate, "queries", surrogate).of_queries()
    assert isinstance(gps, QueryGPs)
    assert 10 < spies["solve"].call_count <= len(history)
    assert spies["append"].call_count > spies["condition"].call_count > 0
    told_it = surrogate.num_observations().sum() if make is make_scope else len(history)
    assert float((gps.lam / gps.noise).sum()) == pytest.approx(float(told_it))


def test_nothing_observed():
    surrogate = TensorSurrogate(ConfigSpace((2, 3)), MATERN[0], 4, 1e-6)
    mean_c, mean_g, variance = surrogate.at((1, 2))
    assert mean_c.tolist() == mean_g.tolist() == [0.0] * 4
    assert variance.tolist() == [1.0] * 4
    assert surrogate.aggregate().codes.shape == (0, 2)
    prior = surrogate.of_queries().forward(torch.tensor([[0, 0], [1, 2]]))
    assert prior.covariance_matrix[0, 1] == pytest.approx(naive.matern52(np.array(2.0)))


def test_a_botorch_model_of_every_query():
    sizes, rng = (3, 3), np.random.default_rng(4)
    history = flat(by_candidate(rng, sizes, 5, 12, 1e-2))
    surrogate = told(TensorSurrogate, history, sizes, 5, 1e-2, MATERN[0])
    model = QueryModel(surrogate.of_queries())
    assert (model.num_outputs, model.batch_shape) == (2, (5,))
    points = torch.tensor(all_codes(sizes), dtype=torch.float64)
    one = model.posterior(points[:, None, None])  # each point alone, for every query
    assert one.mean.shape == (9, 5, 1, 2)
    noisy = model.posterior(points[:4], observation_noise=True)
    plain = model.posterior(points[:4])
    torch.testing.assert_close(noisy.variance, plain.variance + 1e-2)
    for q, (j, theta) in itertools.product(range(5), enumerate(all_codes(sizes))):
        mean_c, mean_g, variance = naive.query_gp(history, q, theta[None], 1e-2, MATERN[1])
        expected = [float(mean_c[0]), float(mean_g[0])]
        assert one.mean[j, q, 0].tolist() == pytest.approx(expected, abs=1e-9)
        assert one.variance[j, q, 0].tolist() == pytest.approx([float(variance[0])] * 2, abs=1e-9)
    # An acquisition averages over the batch, as BoTorch's users do it.
    with gpytorch.settings.cholesky_max_tries(1):
        acquisition = qLogExpectedImprovement(
            model, best_f=0.0, objective=LinearMCObjective(torch.tensor([-1.0, 0.0]).double())
        )
        assert acquisition(points[:, None, None]).shape == (9, 5)
    with pytest.raises(ValueError, match="output_indices must be None"):
        model.posterior(points, output_indices=[0])


def test_the_average_is_optimised_by_botorch():
    sizes, rng = (3, 4), np.random.default_rng(5)
    history = flat(by_candidate(rng, sizes, 5, 8, 1e-2))
    model = told(TensorSurrogate, history, sizes, 5, 1e-2, MATERN[0]).as_botorch_model()
    points = torch.tensor(all_codes(sizes), dtype=torch.float64)
    cheap = ScalarizedPosteriorTransform(torch.tensor([-1.0, 0.0]).double())
    acquisition = qLogExpectedImprovement(model, best_f=0.0, posterior_transform=cheap)
    best, value = optimize_acqf_discrete(acquisition, q=1, choices=points)
    every = torch.stack([acquisition(point[None, None]) for point in points])
    assert best.tolist() == points[[int(every.argmax())]].tolist()
    assert float(value) == pytest.approx(float(every.max()))
