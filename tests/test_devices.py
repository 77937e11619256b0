"""Every method that takes a device, on one that is not there (see pretend_gpu.py).

What would fail on CUDA fails here: products of integer matrices, operands on two devices. Sums with
repeated indices are made in a random order, as on CUDA, so a choice that depended on their rounding
would differ between runs.
"""

import functools
from collections import Counter
from functools import partial

import numpy as np
import pretend_gpu
import pytest
import torch
from constrained import constrained_task
from gpytorch.kernels import Kernel
from long_runs import among_others
from pretend_gpu import PretendGpu
from tables import make_task

from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
from scope_torch.baselines.safeopt import SafeOpt
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.cli.build import check_device
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.runs.runner import run
from scope_torch.space import ConfigSpace
from scope_torch.space_search.device_grid import DevicePosterior
from scope_torch.space_search.device_joint import DeviceJointPosterior
from scripts.count_launches import count_steps, with_three_constraints

# Every ordinary step from one selection to the next: launches, waits, bytes, bytes to the CPU,
# modelled seconds. Of those to the CPU most are matrices of Q x Q, for the j-loop of scope_joint.
BARS = {"scope": (40, 3, 3e9, 5e4, 1e-3), "scope_joint": (75, 4, 5.6e9, 6.5e5, 1.8e-3)}

needs_pretended = pytest.mark.skipif(
    not pretend_gpu.IS_AVAILABLE, reason="torch before 2.10 cannot pretend a device"
)


class _Card:
    """A real card, as a log that sees nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.errors, self.launches = [], Counter(unknown=1000)


@pytest.fixture(
    params=[
        pytest.param(("gpu", PretendGpu), marks=needs_pretended, id="pretended"),
        *([pytest.param(("cuda", _Card), id="cuda")] if torch.cuda.is_available() else []),
    ]
)
def card(request):
    """The name of a device, and what is entered to use it."""
    return request.param


THEORY = {"mode": "theory", "B_c": 0.1, "B_g": 0.3, "R_c": 1e-5, "R_g": 1e-5}
SAFE = {"n_init": 4}
METHODS = {
    "scope": lambda p, d: make_scope(p, base="llm0", device=d),
    "incremental": lambda p, d: make_scope(p, base="llm0", surrogate="incremental", device=d),
    "scope_rand": lambda p, d: make_scope(p, initial_pool="random", device=d),
    "scope_coarse": lambda p, d: make_scope(p, initial_pool="none", prune=False, device=d),
    "eligible": lambda p, d: make_scope(p, base="llm0", bounds={"b_g": "eligible"}, device=d),
    "theory": lambda p, d: make_scope(p, base="llm0", bounds=THEORY, device=d),
    "sequence": lambda p, d: make_scope(p, base="llm0", certificate="sequence", device=d),
    "branch_and_bound": lambda p, d: make_scope(
        p, base="llm0", space_search="branch_and_bound", device=d
    ),
    "scope_joint": lambda p, d: make_scope_joint(p, base="llm0", device=d),
    "cei": lambda p, d: CEI(p, seed=0, device=d),
    "config_bo": lambda p, d: CONFIG(p, seed=0, device=d),
    "safeopt": lambda p, d: SafeOpt(p, seed=0, gp=SAFE, device=d),
}
QUICK = ("scope", "theory", "branch_and_bound", "scope_joint", "safeopt")


@pytest.mark.parametrize(
    ("name", "graded"),
    [
        pytest.param(name, graded, marks=[] if graded and name in QUICK else pytest.mark.slow)
        for name in METHODS
        for graded in (True, False)
    ],
)
def test_the_search_of_the_cpu(name, graded, card):
    device, entered = card
    task = make_task(1, (4, 3), 6, graded=graded)
    budget = task.budget(5)
    plain = METHODS[name](task.problem, "cpu")
    expected = run(task.problem, plain, task.evaluator(), budget)
    with entered() as log:
        optimizer = METHODS[name](task.problem, device)
        found = run(task.problem, optimizer, task.evaluator(), budget)
    assert log.errors == []
    assert log.launches.total() > 50
    assert list(found.history) == list(expected.history)
    assert found.recommendation.theta == expected.recommendation.theta
    assert found.stop_reason == expected.stop_reason
    for row, other in zip(optimizer.trace, plain.trace, strict=True):
        assert row.event == other.event
        assert (row.gap_usd is None) == (other.gap_usd is None)
        assert row.gap_usd is None or row.gap_usd == pytest.approx(other.gap_usd, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"certificate": "bounds"}, {"rho": 0.3, "bounds": THEORY}], ids=str
)
def test_the_joint_surrogate_where_the_search_chooses_the_queries(settings, card):
    """Of queries that are equally informative the device may take another: see docs/gpu.md."""
    device, entered = card
    task = make_task(1, (4, 3), 6)
    with entered() as log:
        optimizer = make_scope_joint(task.problem, base="llm0", device=device, **settings)
        found = run(task.problem, optimizer, task.evaluator(), task.budget(5))
    assert log.errors == []
    plain = make_scope_joint(task.problem, base="llm0", device="cpu", **settings)
    expected = run(task.problem, plain, task.evaluator(), task.budget(5))
    assert found.recommendation.theta == expected.recommendation.theta


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scope", "scope_joint", "cei", "config", "safeopt"])
def test_several_constraints(name, card):
    """The search of the CPU, with the processes of the queries on the device, too."""
    device, entered = card
    problem, evaluator = constrained_task(8)
    base = list(problem.names(problem.theta_ref).values())
    make = {
        "scope": partial(make_scope, base=base),
        "scope_joint": partial(make_scope_joint, base=base),
        "cei": partial(CEI, seed=0, mask_repeats=True),
        "config": partial(CONFIG, seed=0),
        "safeopt": partial(SafeOpt, seed=0),
    }[name]
    budget = 60 * float(evaluator.cost.mean())
    expected = run(problem, make(problem, device="cpu"), evaluator, budget)
    with entered() as log:
        optimizer = make(problem, device=device)
        found = run(problem, optimizer, evaluator, budget)
    assert log.errors == []
    assert log.launches.total() > 20
    if name.startswith("scope"):
        kind = DeviceJointPosterior if name == "scope_joint" else DevicePosterior
        assert isinstance(optimizer.belief.posterior, kind)
    assert list(found.history) == list(expected.history)
    assert found.recommendation.theta == expected.recommendation.theta


class Weighted(Kernel):
    """One of a user's own, with a buffer."""

    has_lengthscale = False

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.tensor([1.0, 0.5], dtype=torch.float64))

    def forward(self, x1, x2, diag=False, **_):
        if not diag:
            x1, x2 = x1[..., :, None, :], x2[..., None, :, :]
        return torch.exp(-((x1 != x2) * self.weights).sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_kernel_with_numbers_of_its_own_may_be_on_another_device(make, card):
    device, entered = card
    task = make_task(1, (4, 3), 6)
    expected = run(
        task.problem,
        make(task.problem, base="llm0", kernel=Weighted()),
        task.evaluator(),
        task.budget(5),
    )
    with entered() as log:
        optimizer = make(task.problem, base="llm0", kernel=Weighted(), device=device)
        found = run(task.problem, optimizer, task.evaluator(), task.budget(5))
    assert log.errors == []
    assert list(found.history) == list(expected.history)


def test_a_device_without_numbers_is_refused():
    with pytest.raises(InputError, match="device='meta' cannot be used"):
        check_device("meta")


@pytest.mark.parametrize("grid", [HammingGrid, DirectGrid])
def test_sums_over_theta(grid, card):
    device, entered = card
    space, kernel = ConfigSpace((4, 3, 5)), HammingMatern52Kernel()
    generator = torch.Generator().manual_seed(0)
    codes = space.unrank(torch.randperm(space.size, generator=generator)[:20])
    weights = torch.randn(20, dtype=torch.float64, generator=generator)
    matrix = torch.outer(weights, weights)
    cpu = grid(space, kernel)
    expected = cpu.weighted_sum(codes, weights), cpu.quadratic_form(codes, matrix)
    with entered() as log:
        gpu = grid(space, kernel, device)
        on = [x.to(device) for x in (codes, weights, matrix)]
        found = gpu.weighted_sum(on[0], on[1]).cpu(), gpu.quadratic_form(on[0], on[2]).cpu()
    assert log.errors == []
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_surrogate_and_leave_one_out(card):
    device, entered = card
    space, kernel = ConfigSpace((3, 3)), HammingMatern52Kernel()

    def filled(device):
        surrogate = QuerySurrogate(space, kernel, 8, 1e-4, device)
        generator = torch.Generator().manual_seed(1)
        for _ in range(90):
            at, query = torch.randint(9, (2,), generator=generator).tolist()
            y = torch.rand(2, generator=generator).tolist()
            surrogate.observe(space.theta_at(at), query % 8, *y)
        return surrogate

    expected = filled("cpu")
    with entered() as log:
        surrogate = filled(device)
        aggregate, ratios = surrogate.aggregate(), surrogate.leave_one_out()
        found = [x.cpu() for x in (aggregate.codes, aggregate.weights, aggregate.matrix)]
    assert log.errors == []
    wanted = expected.aggregate()
    for one, other in zip(found, (wanted.codes, wanted.weights, wanted.matrix), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    torch.testing.assert_close(ratios, expected.leave_one_out())


@pytest.mark.parametrize("sizes", [(3, 4), (26, 26, 26)])  # all of it in the pool, and not
def test_information_gain(sizes, card):
    device, entered = card
    space, kernel = ConfigSpace(sizes), HammingMatern52Kernel()
    expected = InformationGain(space, kernel, 1e-3).gamma(6)
    with entered() as log:
        found = InformationGain(space, kernel, 1e-3, device).gamma(6)
    assert log.errors == []
    assert found == pytest.approx(expected, rel=1e-9)


@needs_pretended
def test_what_the_device_refuses():
    with PretendGpu() as log:
        whole = torch.arange(6, device="gpu").reshape(2, 3)
        assert log.errors == []
        assert (whole @ whole.T).cpu().tolist() == [[5, 14], [14, 50]]
        assert "no CUDA kernel" in log.errors.pop()
        assert (whole.double() @ whole.T.double()).sum().item() == 83
        assert log.errors == []
        _ = whole.double() * torch.ones(3, dtype=torch.float64)
        assert "two devices" in log.errors.pop()
        with pytest.raises(TypeError, match="can't convert a device tensor"):
            whole.numpy()
    assert log.waits["_local_scalar_dense"] == 1
    assert log.copies["to host"] == 1
    assert log.launches["mm"] == 2
    assert log.bytes["mm"] >= 2 * 8 * (6 + 6 + 4)
    assert log.seconds() > log.launches.total() * 4e-6


@needs_pretended
def test_the_order_of_repeated_additions_is_not_fixed():
    values = torch.tensor([1.0, 1e16, -1e16, 1.0, 3.0], dtype=torch.float64)
    sums = set()
    with PretendGpu():
        for _ in range(40):
            to = torch.zeros(1, dtype=torch.float64, device="gpu")
            index = torch.zeros(5, dtype=torch.int64, device="gpu")
            sums.add(to.index_add_(0, index, values.to("gpu")).item())
    assert len(sums) > 1


count_once = functools.cache(count_steps)


@pytest.mark.parametrize("method", BARS)
@pytest.mark.parametrize("world", ["data_imputation", among_others("data_transformation")])
@pytest.mark.slow
@needs_pretended
def test_a_step_in_few_launches(world, method):
    """N = 3 and 5, 23 LLMs, 156 and 102 queries; also a step that finds a better theta_out."""
    steps = count_once(world, method)
    assert steps.errors == []
    ordinary, early = steps.of("ordinary"), steps.of("theta_0 only")
    assert len(ordinary) >= 5
    assert len(ordinary) + len(early) >= 0.9 * len(steps.kinds) - 1
    assert any(
        found and kind == "ordinary"
        for found, kind in zip(steps.improved, steps.kinds, strict=True)
    )
    # Where bounds of many configurations change at once, a step may look twice.
    bars = np.array(BARS[method])
    for part in (ordinary, early):
        if len(part):
            most = np.quantile(part, 0.9, axis=0)
            assert (most <= bars).all(), most
            assert (part <= 1.25 * bars).all(), part.max(0)
    # With the steps that are not ordinary, but the first.
    launches, waits, *others = steps.work[1:].mean(0)
    assert ([round(launches), round(waits), *others] <= bars).all()


@pytest.mark.parametrize("method", BARS)
@pytest.mark.slow
@needs_pretended
def test_a_step_with_several_constraints_in_few_launches_more(method):
    """Three constraints, which one model and one pass over Theta serve."""
    steps = count_steps("data_imputation", method, with_three_constraints("data_imputation"))
    assert steps.errors == []
    assert len(steps.work) > 20
    most = np.median(steps.of("ordinary"), axis=0)
    assert (most - [10, 0, 0, 0, 0] <= np.array(BARS[method])).all(), most
