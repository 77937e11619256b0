"""The surrogate of the dataset-level methods, and Theta reduced to what it tells apart."""

import dataclasses
import itertools
import math

import naive
import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf_discrete
from gp_reference import all_codes, posterior, reference_row, tie_key
from gpytorch.kernels import Kernel
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import make_task
from test_kernels import Twins

from scope_torch.baselines import dataset_model
from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.gp import DatasetGP, GPSettings
from scope_torch.baselines.reduced_space import ReducedSpace
from scope_torch.baselines.safeopt import SafeOpt
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
    model = gp_of(problem, rows, gp_settings, kernels[0], device).model()
    expand, amp_c, amp_g = model.reduced.expand, gp_settings.amp_c, gp_settings.amp_g
    theta = torch.tensor(all_codes(sizes), dtype=torch.float64, device=device)
    marginal = model.posterior(theta.unsqueeze(-2))
    sigma = model.variance.sqrt()
    assert sigma.dtype == marginal.mean.dtype == torch.float64
    for values, reference in [
        (expand(model.means[0]) * amp_c, expected.mean_c),
        (expand(model.means[1]) * amp_g, expected.mean_g),
        (expand(sigma) * amp_c, expected.sigma_c),
        (expand(sigma) * amp_g, expected.sigma_g),
        (marginal.mean[:, 0, 0] * amp_c, expected.mean_c),
        (marginal.mean[:, 0, 1] * amp_g, expected.mean_g),
        (marginal.variance[:, 0, 0].sqrt() * amp_c, expected.sigma_c),
        (marginal.variance[:, 0, 1].sqrt() * amp_g, expected.sigma_g),
    ]:
        scale = max(1e-12, float(np.abs(reference).max()))
        np.testing.assert_allclose(values.cpu(), reference, rtol=0, atol=1e-8 * scale)


@pytest.mark.parametrize("by_kernel", [0, 1 << 17])
def test_no_variance_is_below_0_where_llms_are_the_same(by_kernel, monkeypatch):
    """By rounding it would be, and SafeOpt, which takes its root, would fail."""
    monkeypatch.setattr(dataset_model, "BY_KERNEL", by_kernel)
    task = make_task(0, (4, 4), 3)
    rows = [(theta, 1e-3, 0.1 * sum(theta)) for theta in itertools.product(range(4), range(4))]
    model = gp_of(task.problem, rows, GPSettings(lam=1e-9), Twins()).model()
    assert 0 <= model.variance.min() < 1e-6


def test_the_noise_is_that_of_the_settings_and_nothing_is_jittered():
    problem = make_task(1, (3, 3), 4).problem
    for lam, amp in ((1e-9, 0.5), (1e-6, 1.0), (0.1, 2.0)):
        rows = [((1, 1), 0.01, 0.0)]
        model = gp_of(problem, rows, GPSettings(lam=lam, amp_c=amp)).model()
        variance = model.reduced.expand(model.variance)[4]
        assert float(variance) == pytest.approx(lam / (1 + lam), rel=1e-5)
        marginal = model.posterior(torch.ones(1, 2, dtype=torch.float64)).variance
        assert marginal.flatten().tolist() == pytest.approx([lam / (1 + lam)] * 2, rel=1e-5)


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
    merged, data = gp.model(), gp.surrogate.aggregate()
    grid = make_grid(problem.space, kernel)
    mean = grid.weighted_sum(data.codes, data.weights[1])
    variance = 1 - grid.quadratic_form(data.codes, data.matrix)
    expand = merged.reduced.expand
    torch.testing.assert_close(expand(merged.means[1]), mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(expand(merged.variance), variance, rtol=0, atol=1e-12)
    hamming = isinstance(kernel, HammingMatern52Kernel)
    assert merged.reduced.space.size <= ((count + 2) ** 3 if hamming else 120)
    assert hamming or merged.reduced.space.size == 120


@pytest.mark.slow
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
    assert torch.equal(reduced.rank(reduced.codes.long()), torch.arange(reduced.space.size))
    mask = torch.rand(reduced.space.size) < 0.6
    order = sorted(range(space.size), key=lambda i: tie_key(i, seed % 2**63))
    expected = [r for r in dict.fromkeys(index[i] for i in order) if mask[r]]
    assert list(reduced.in_tie_order(mask, seed % 2**63)) == expected


@pytest.mark.parametrize("kernel", [HammingMatern52Kernel(), ByModule()])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_sums_over_theta_and_the_kernel_give_the_same_posterior(kernel, count, device, monkeypatch):
    problem = make_task(1, (5, 4, 3), 4).problem
    rows = random_rows(problem, count, seed=2)
    model = gp_of(problem, rows, GPSettings(lam=1e-4), kernel, device).model()
    theta = torch.tensor(all_codes((5, 4, 3)), dtype=torch.float64, device=device)
    for X in (theta.unsqueeze(-2), theta[7:8], theta.view(4, 15, 1, 3)):
        monkeypatch.setattr(dataset_model, "BY_KERNEL", 10**9)
        by_kernel = model.posterior(X)
        monkeypatch.setattr(dataset_model, "BY_KERNEL", 0)
        by_sums = model.posterior(X)
        assert by_sums.mean.shape == by_kernel.mean.shape == (*X.shape[:-1], 2)
        torch.testing.assert_close(by_sums.mean, by_kernel.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(by_sums.variance, by_kernel.variance, rtol=0, atol=1e-12)
    pairs = theta.view(30, 2, 3)
    joint, single = model.posterior(pairs), model.posterior(pairs.unsqueeze(-2))
    torch.testing.assert_close(joint.variance, single.variance.squeeze(-2), rtol=0, atol=1e-12)
    assert float(joint.distribution.covariance_matrix[0, 0, 1]) != 0
    with pytest.raises(ValueError, match="b x 1 x d"):
        dataset_model.mean_and_sigma(model, pairs)


class OneCost(AcquisitionFunction):
    """The average cost, taken for larger than it is."""

    def forward(self, X):
        return self.model.posterior(X).mean[..., 0, 0] + 1


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_maximum_is_botorch_s_and_all_values_are_kept(batch, device, monkeypatch):
    monkeypatch.setattr(dataset_model, "BATCH", batch)
    problem = make_task(1, (20, 7), 4).problem
    model = gp_of(problem, random_rows(problem, 9, 3), GPSettings(), device=device).model()
    reduced = model.reduced
    every = torch.arange(reduced.space.size, device=device)
    for among in (every, every[5:30:3]):
        wanted = None if among is every else among
        best, values = dataset_model.maximum(OneCost(model), reduced, wanted)
        choices = reduced.codes[among].double()
        _, expected = optimize_acqf_discrete(OneCost(model), q=1, choices=choices)
        assert best == pytest.approx(float(expected), rel=0, abs=1e-12)  # sums in another order
        torch.testing.assert_close(values[among], model.means[0][among] + 1, rtol=0, atol=1e-12)
        assert int((values == -math.inf).sum()) == reduced.space.size - len(among)


SEARCHES = {
    "cei": lambda problem: CEI(problem, seed=3, device="cpu"),
    "cei, posterior mean": lambda problem: CEI(
        problem, seed=3, incumbent="posterior_mean", mask_repeats=True, device="cpu"
    ),
    "config": lambda problem: CONFIG(problem, seed=3, device="cpu"),
    "safeopt": lambda problem: SafeOpt(problem, seed=3, gp={"amp_g": 0.01}, device="cpu"),
    "safeopt, L": lambda problem: SafeOpt(
        problem, seed=3, beta=1.5, lipschitz=0.15, gp={"amp_c": 0.3, "amp_g": 0.1}, device="cpu"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_asks_for_the_same_by_sums_as_by_the_kernel(name, monkeypatch):
    asked = []
    for by_kernel, batch in ((10**9, 1 << 15), (0, 7)):
        monkeypatch.setattr(dataset_model, "BY_KERNEL", by_kernel)
        monkeypatch.setattr(dataset_model, "BATCH", batch)
        task = make_task(1, (6, 5, 4), 4)
        asked.append([o.theta for o in drive(SEARCHES[name](task.problem), task, 15 * 4)])
    assert asked[0] == asked[1]
    assert len(set(asked[0])) > 4


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
    free = CEI(task.problem, seed=0, gp=GPSettings(), device="cpu").gp.model()
    theta, cost, g = reference_row(task.problem)
    mean = free.posterior(torch.tensor([theta]).double()).mean.flatten()
    assert mean.tolist() == pytest.approx([1.0, g / task.problem.s_0], rel=1e-5)
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
        ({"n_init": math.nan}, "n_init=nan must be a whole number >= 0"),
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
    assert CEI(problem, seed=0, gp=CEI.default_gp).settings() == default


def test_a_mapping_changes_the_method_s_own_amplitudes_and_settings_replace_them():
    problem = make_task(1, (4, 3), 6).problem
    for method in (CEI, CONFIG, SafeOpt):
        own = dataclasses.asdict(method.default_gp)
        for gp, expected in [
            (None, own),
            ({}, own),
            ({"lam": 1e-4}, {**own, "lam": 1e-4}),
            ({"amp_c": 1.0, "amp_g": 1.0}, {**own, "amp_c": 1.0, "amp_g": 1.0}),
            (GPSettings(lam=1e-4), dataclasses.asdict(GPSettings(lam=1e-4))),
        ]:
            assert method(problem, seed=0, gp=gp).settings()["gp"] == expected


@pytest.mark.slow
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
