"""The surrogate of the dataset-level methods, and Theta reduced to what it tells apart."""

import dataclasses
import math

import naive
import numpy as np
import pytest
import torch
from gp_reference import all_codes, posterior, reference_row, tie_key
from gpytorch.kernels import Kernel
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import make_task

from baselines.cei import CEI
from baselines.config_bo import CONFIG
from baselines.dataset_level import Evaluation
from baselines.gp import DatasetGP, GPSettings
from baselines.reduced_space import ReducedSpace
from baselines.safeopt import SafeOpt
from baselines.table_model import TableModel, evaluate, marginals
from scope_torch.cli.registry import config_dir
from scope_torch.cli.run import build
from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.problem import SelectionProblem
from scope_torch.space import ConfigSpace
from scope_torch.testing import drive


def random_rows(problem, count, seed, repeats=True):
    """Made-up averages of random configurations, some of them observed twice."""
    generator = torch.Generator().manual_seed(seed)
    thetas = problem.space.sample(min(count, problem.space.size), generator)
    thetas += thetas[: count // 3] if repeats else []
    draws = torch.rand(len(thetas), 2, generator=generator).double()
    return [
        (theta, problem.reference_cost_usd * (0.2 + c), 0.4 * g - 0.2)
        for theta, (c, g) in zip(thetas, draws.tolist(), strict=True)
    ]


def gp_of(problem, rows, gp_settings, kernel=None, device="cpu") -> DatasetGP:
    gp = DatasetGP(problem, gp_settings, kernel or HammingMatern52Kernel(), device)
    for theta, cost, g in rows:
        gp.observe(Evaluation(theta, cost, g, ()))
    return gp


CASES = [
    (GPSettings(), (HammingMatern52Kernel(), naive.matern52)),
    (GPSettings(amp_c=0.3, amp_g=0.02), (HammingMatern52Kernel(), naive.matern52)),
    (GPSettings(units="raw", amp_c=0.004, amp_g=2.0), (HammingRBFKernel(), naive.rbf)),
    (GPSettings(lam=0.05, amp_c=3.0), (HammingRBFKernel(), naive.rbf)),
]


SPACES = [((5, 4, 3), 9), ((3, 3), 9), ((6, 1, 2), 1), ((4,), 0)]


@pytest.mark.parametrize(("gp_settings", "kernels"), CASES)
@pytest.mark.parametrize(("sizes", "count"), SPACES)
def test_posterior_equals_naive_regression_in_units_of_z(
    sizes, count, gp_settings, kernels, device
):
    problem = make_task(1, sizes, 4).problem
    rows = random_rows(problem, count, seed=3)
    expected = posterior(rows, problem, gp_settings, kernels[1])
    observed = gp_of(problem, rows, gp_settings, kernels[0], device).posterior()
    expand, amp_c, amp_g = observed.reduced.expand, gp_settings.amp_c, gp_settings.amp_g
    assert observed.sigma.dtype == torch.float64
    for values, reference in [
        (observed.mean_c * amp_c, expected.mean_c),
        (observed.mean_g * amp_g, expected.mean_g),
        (observed.sigma * amp_c, expected.sigma_c),
        (observed.sigma * amp_g, expected.sigma_g),
    ]:
        scale = max(1e-12, float(np.abs(reference).max()))
        np.testing.assert_allclose(expand(values).cpu(), reference, rtol=0, atol=1e-8 * scale)


def test_the_noise_is_that_of_the_settings_and_nothing_is_jittered():
    problem = make_task(1, (3, 3), 4).problem
    for lam, amp in ((1e-9, 0.5), (1e-6, 1.0), (0.1, 2.0)):
        rows = [((1, 1), 0.01, 0.0)]
        observed = gp_of(problem, rows, GPSettings(lam=lam, amp_c=amp)).posterior()
        variance = observed.reduced.expand(observed.sigma)[4] ** 2
        assert float(variance) == pytest.approx(lam / (1 + lam), rel=1e-5)


class ByModule(Kernel):
    """Not a function of the Hamming distance: modules have weights."""

    has_lengthscale = False

    def forward(self, x1, x2, diag=False, **params):
        weight = torch.arange(1.0, x1.shape[-1] + 1, dtype=torch.float64, device=x1.device)
        differ = (x1.unsqueeze(-2) != x2.unsqueeze(-3)).double() @ weight
        return torch.exp(-differ / 3)


@pytest.mark.parametrize("kernel", [HammingMatern52Kernel(), ByModule()])
@pytest.mark.parametrize("count", [0, 2, 7])
def test_merging_interchangeable_configurations_changes_nothing(kernel, count):
    problem = make_task(1, (6, 5, 4), 4).problem
    gp = gp_of(problem, random_rows(problem, count, seed=5), GPSettings(), kernel)
    merged, data = gp.posterior(), gp.surrogate.aggregate()
    grid = make_grid(problem.space, kernel)
    mean = grid.weighted_sum(data.codes, data.weights[1])
    variance = 1 - grid.quadratic_form(data.codes, data.matrix)
    torch.testing.assert_close(merged.reduced.expand(merged.mean_g), mean, rtol=0, atol=1e-12)
    sigma = merged.reduced.expand(merged.sigma)
    torch.testing.assert_close(sigma.square(), variance, rtol=0, atol=1e-12)
    hamming = isinstance(kernel, HammingMatern52Kernel)
    assert merged.reduced.space.size <= ((count + 2) ** 3 if hamming else 120)
    assert hamming or merged.reduced.space.size == 120


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data(), seed=st.integers(0)
)
def test_reduced_space(sizes, data, seed):
    space = ConfigSpace(tuple(sizes))
    theta = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    coarse = data.draw(st.lists(theta, max_size=3))
    fine = coarse + data.draw(st.lists(theta, max_size=2))
    codes = [torch.tensor(c, dtype=torch.int64).view(-1, len(sizes)) for c in (coarse, fine)]
    reduced, finer = (ReducedSpace(space, c, HammingMatern52Kernel()) for c in codes)
    everything = torch.tensor(all_codes(sizes))

    def key(theta, told_apart):  # what a Hamming kernel can see
        return tuple(
            code if any(c[i] == code for c in told_apart) else None
            for i, code in enumerate(theta.tolist())
        )

    keys = [key(theta, coarse) for theta in everything]
    index = reduced.rank(everything).tolist()
    assert len(set(index)) == len(set(keys)) == len(set(zip(index, keys, strict=True)))
    assert set(index) == set(range(reduced.space.size))
    values = torch.randperm(reduced.space.size)
    assert torch.equal(reduced.expand(values), values[index])
    assert torch.equal(finer.expand(reduced.expand(values, finer)), values[index])
    mask = torch.rand(reduced.space.size) < 0.6
    order = sorted(range(space.size), key=lambda i: tie_key(i, seed % 2**63))
    expected = [r for r in dict.fromkeys(index[i] for i in order) if mask[r]]
    assert list(reduced.in_tie_order(mask, seed % 2**63)) == expected


def test_table_model_is_the_table():
    generator = torch.Generator().manual_seed(0)
    mean_c, mean_g, sigma = torch.rand(3, 11, generator=generator, dtype=torch.float64)
    model = TableModel(mean_c, mean_g, sigma)
    index = torch.tensor([3.0, 10.0, 0.0], dtype=torch.float64)
    single = marginals(model, index.view(-1, 1, 1))
    assert torch.equal(single.mean[:, 0], torch.stack([mean_c, mean_g], -1)[index.long()])
    expected = sigma[index.long()].square().unsqueeze(-1).expand(-1, 2)
    torch.testing.assert_close(single.variance[:, 0], expected)
    assert model.num_outputs == 2
    assert model.batch_shape == torch.Size()
    posterior = model.posterior(index.view(-1, 1, 1))
    assert posterior.dtype == torch.float64
    assert posterior.device.type == "cpu"
    with pytest.raises(NotImplementedError, match="as_botorch_model"):
        posterior.rsample()
    for X in (index.view(1, 3, 1), index.view(1, 1, 3)):
        with pytest.raises(ValueError, match="b x 1 x 1"):
            model.posterior(X)
    with pytest.raises(ValueError, match="b x 1 x d"):
        marginals(model, index.view(1, 3, 1))
    with pytest.raises(ValueError, match="without noise"):
        model.posterior(index.view(-1, 1, 1), observation_noise=True)


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_evaluate_covers_every_point(chunk):
    class Cost(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, X):
            return marginals(self.model, X).mean[:, 0, 0]

    values = torch.rand(11, dtype=torch.float64)
    model = TableModel(values, values, values)
    assert torch.equal(evaluate(Cost(model), 11, "cpu", chunk), values)


def test_the_reference_is_free_charged_or_no_datum():
    task = make_task(1, (4, 3), 6)
    for theta0_obs in ("free", "charged", "none"):
        first, observed = theta0_obs == "charged", int(theta0_obs == "free")
        optimizer = CEI(task.problem, seed=0, gp={"theta0_obs": theta0_obs}, device="cpu")
        assert int(optimizer.gp.surrogate.num_observations()) == observed
        requests = optimizer.ask()
        assert optimizer.spend_usd == 0
        assert (requests[0].theta == task.problem.theta_ref) == first
        drive(optimizer, task, 1)
        assert int(optimizer.gp.surrogate.num_observations()) == observed + 1
    free = CEI(task.problem, seed=0, device="cpu").gp.posterior()
    theta, cost, g = reference_row(task.problem)
    at = int(free.reduced.rank(torch.tensor(theta)))
    assert float(free.mean_c[at]) == pytest.approx(1.0, rel=1e-5)
    assert float(free.mean_g[at]) == pytest.approx(g / task.problem.s_0, rel=1e-5)
    assert g == pytest.approx(-0.15 * task.problem.reference_quality)
    assert cost == task.problem.reference_cost_usd


@pytest.mark.parametrize("n_init", [1, 5, 11])
@pytest.mark.parametrize("theta0_obs", ["free", "charged"])
def test_the_initial_design_heads_the_tie_order(n_init, theta0_obs):
    for seed in range(4):
        task = make_task(1, (4, 3), 6)
        gp = {"n_init": n_init, "theta0_obs": theta0_obs}
        optimizer = CEI(task.problem, seed=seed, gp=gp, device="cpu")
        order = sorted(range(12), key=lambda index: tie_key(index, seed))
        codes = [divmod(index, 3) for index in order]
        expected = [theta for theta in codes if theta != task.problem.theta_ref]
        head = [task.problem.theta_ref] * (theta0_obs == "charged")
        asked = []
        for _ in range(n_init + len(head)):
            asked.append(optimizer.ask()[0].theta)
            optimizer.tell([task.observe(request) for request in optimizer.ask()])
        assert asked == head + expected[:n_init]


def test_an_unfinished_evaluation_is_not_in_the_surrogate():
    task = make_task(1, (4, 3), 6)
    optimizer = CEI(task.problem, seed=0, device="cpu")
    drive(optimizer, task, 18)
    requests = optimizer.ask()
    optimizer.tell([task.observe(request) for request in requests[:-1]])
    assert int(optimizer.gp.surrogate.num_observations()) == 4
    assert len(optimizer.evaluations) == 3
    assert list(optimizer.ask()) == []


@pytest.mark.parametrize(
    ("gp", "message"),
    [
        ({"units": "usd"}, "units='usd' must be relative or raw"),
        ({"theta0_obs": "yes"}, "theta0_obs='yes' must be free, charged or none"),
        ({"amp_c": 0.0}, "amp_c=0.0 must be a positive number"),
        ({"amp_g": math.inf}, "amp_g=inf must be a positive number"),
        ({"n_init": -1}, "n_init=-1 must be a whole number >= 0"),
        ({"n_init": 1.5}, "n_init=1.5 must be a whole number >= 0"),
        ({"n_init": 12}, "n_init=12: beside theta_0 there are only 11"),
        ({"lam": 1e-10}, "lam=1e-10 must be at least"),
        ({"amp": 1.0}, "unknown gp setting 'amp'; use one of"),
    ],
)
def test_bad_settings(gp, message):
    with pytest.raises(InputError, match=message) as error:
        CEI(make_task(1, (4, 3), 6).problem, seed=0, gp=gp)
    assert "\n" not in str(error.value)


def test_a_space_too_large_to_enumerate_is_refused_at_once():
    llms = tuple(f"llm{i}" for i in range(30))
    problem = SelectionProblem("big", tuple("abcdef"), (llms,) * 6, 4, (0,) * 6, 0.5, 0.01, 0.1)
    with pytest.raises(InputError, match="fewer candidate LLMs"):
        CEI(problem, seed=0)


def test_settings_tell_everything_apart():
    problem = make_task(1, (4, 3), 6).problem
    default = CEI(problem, seed=0).settings()
    changed = {"lam": 1e-4, "units": "raw", "amp_c": 2.0, "amp_g": 2.0}
    changed |= {"theta0_obs": "none", "n_init": 1}
    assert set(changed) == {f.name for f in dataclasses.fields(GPSettings)}
    for name, value in changed.items():
        assert CEI(problem, seed=0, gp={name: value}).settings() != default
    assert CEI(problem, seed=0, kernel=HammingRBFKernel()).settings() != default
    assert CEI(problem, seed=0, gp=GPSettings()).settings() == default


@pytest.mark.parametrize(
    ("name", "method"), [("cei", CEI), ("config_bo", CONFIG), ("safeopt", SafeOpt)]
)
def test_the_config_file_is_the_default(name, method):
    problem = make_task(1, (4, 3), 6).problem
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("config", overrides=[f"method={name}"])
        other = compose("config", overrides=[f"method={name}", "method.gp.amp_g=0.01"])
    built = build(cfg.method, problem=problem, seed=3, kernel=HammingRBFKernel(), device="cpu")
    expected = method(problem, seed=3, kernel=HammingRBFKernel(), device="cpu")
    assert built.settings() == expected.settings()
    changed = build(other.method, problem=problem, seed=3)
    assert changed.settings()["gp"] == {**built.settings()["gp"], "amp_g": 0.01}
