"""The kernels of fused.py against the passes of torch, in Triton's interpreter without a card."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from long_runs import only_long
from tables import make_task

from scope_torch.bounds.base import Beta
from scope_torch.methods import make_scope_joint
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.runs.runner import run
from scope_torch.space import ConfigSpace
from scope_torch.space_search import device_joint
from scope_torch.space_search.device_joint import DeviceJointPosterior

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read once, where the kernels are made
pytest.importorskip("triton")
fused = importlib.import_module("scope_torch.space_search.fused")
slow = pytest.mark.slow


def surrogate_of(sizes, relative_cost, seed=0, num_constraints=1):
    """Answers of all queries at theta_0, and of some at others: cheaper, and often worse."""
    rng, space = np.random.default_rng(seed), ConfigSpace(sizes)
    out = TensorJointSurrogate(
        space, HammingMatern52Kernel(), 9, 1e-2, device=DEVICE, relative_cost=relative_cost,
        num_constraints=num_constraints,
    )  # fmt: skip
    worth = [rng.uniform(0.2, 1.0, size) for size in sizes]
    every = space.sample(min(40, space.size), torch.Generator().manual_seed(seed))
    for i, theta in enumerate(every):
        level = np.mean([of[code] for of, code in zip(worth, theta, strict=True)])
        for query in rng.permutation(9)[: 9 if i == 0 else rng.integers(1, 9)].tolist():
            cost, g = 0.01 * level * rng.uniform(0.9, 1.1), 0.5 - level + 0.05 * rng.normal()
            out.observe(theta, query, cost, g, *rng.normal(size=num_constraints - 1) - 0.5)
    return out


def both(surrogate, allowed=None, has_margin=False):
    sums = DeviceSums(surrogate.space, surrogate.kernel, DEVICE)
    made = [
        kind(surrogate, sums, has_margin, allowed)
        for kind in (fused.FusedJointPosterior, DeviceJointPosterior)
    ]
    for posterior in made:
        posterior.update()
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "relative_cost", "forbids", "num_constraints"),
    [
        ((6, 5), False, True, 1),
        ((3, 1, 7), True, True, 1),
        ((5, 3, 3), True, False, 3),
        ((4, 3, 2, 3, 2), True, False, 1),
        pytest.param((4, 3, 2, 5, 3), True, False, 1, marks=[slow, only_long]),
        pytest.param((4, 3, 2, 5, 3), False, True, 2, marks=[slow, only_long]),
        pytest.param((2, 3, 2, 2, 2, 3, 2), True, True, 1, marks=[slow, only_long]),
    ],
    ids=str,
)
def test_bounds_and_choices_are_those_of_torch(
    sizes, relative_cost, forbids, num_constraints, monkeypatch
):
    monkeypatch.setattr(fused, "BLOCK", 4)
    monkeypatch.setattr(fused, "_FEW", 4)  # less than there are blocks
    surrogate = surrogate_of(sizes, relative_cost, num_constraints=num_constraints)
    allowed = None
    if forbids:
        mask = torch.rand(surrogate.space.size, generator=torch.Generator().manual_seed(1)) > 0.3
        allowed = SimpleNamespace(mask=mask)
    ours, plain = both(surrogate, allowed, has_margin=True)
    assert ours.least_slope() == pytest.approx(plain.least_slope(), rel=1e-12)
    torch.testing.assert_close(ours.variance, plain.variance, rtol=0, atol=1e-14)
    usd = 1.0 if relative_cost else 0.01
    chosen = 0
    for b, theta_out, u_out in [(1.0, None, 1.0), (2.0, 3, 0.02), (0.5, 5, 0.006), (3.0, 0, 0.003)]:
        beta = Beta(b * (1.0 if relative_cost else usd), b)
        found, expected = (one.lower_bounds(beta, u_out, theta_out) for one in (ours, plain))
        finite = expected.c.isfinite()
        assert torch.equal(found.c.isfinite(), finite)
        torch.testing.assert_close(found.c[finite], expected.c[finite], rtol=1e-12, atol=1e-15)
        at = slice(None)
        for one, other in zip(found._moments(at), expected._moments(at), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert found.least_c == pytest.approx(expected.least_c, rel=1e-12)
        assert found.least_g == pytest.approx(expected.least_g, rel=1e-11)
        for margin in (0.0, 0.05):
            if expected.least_c < np.inf and bool((expected._g <= -margin).any()):
                seeds = [one.most_promising(margin, 1e-4, seed=3) for one in (found, expected)]
                assert seeds[0] == seeds[1]
                seeds = [one.argmin_c(-margin, 1e-3, seed=3) for one in (found, expected)]
                assert seeds[0] == seeds[1]
                chosen += 1
    assert chosen >= 3


@only_long
@slow
def test_ties_are_decided_as_by_torch(monkeypatch):
    """Where little is known, configurations that nobody asked are equal in hundreds."""
    monkeypatch.setattr(fused, "BLOCK", 4)
    surrogate = surrogate_of((9, 8, 7), relative_cost=True)
    surrogate = TensorJointSurrogate(
        surrogate.space, HammingMatern52Kernel(), 3, 1e-2, device=DEVICE, relative_cost=True
    )
    for query in range(3):
        surrogate.observe((0, 0, 0), query, 0.01, -0.1)
    ours, plain = both(surrogate)
    for seed in range(5):
        found, expected = (one.lower_bounds(Beta(2.0, 2.0), 0.02, None) for one in (ours, plain))
        assert found.most_promising(0.0, 1e-4, seed) == expected.most_promising(0.0, 1e-4, seed)


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from scope_torch.space_search import fused

constants = {"RELATIVE": True, "FORBIDS": True, "BEFORE": 23, "LAST": 23, "BLOCK": 512}
constants["HAS_ERFC"] = True
whole = {"size": "i32", "table_size": "i32", "theta_out": "i32"}
others = {"forbidden": "*u8", "leads": "*i64"}
for kernel in (fused._tried_kernel, fused._bounds_kernel, fused._promise_kernel):
    signature = {
        name: "constexpr" if name in constants else (whole | others).get(name, "*fp64")
        for name in kernel.arg_names
    }
    values = {name: value for name, value in constants.items() if name in kernel.arg_names}
    made = triton.compile(ASTSource(kernel, signature, values), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in made.asm and ".f64" in made.asm["ptx"]
    assert ".f32.f64" not in made.asm["ptx"], kernel.__name__  # nothing is rounded to float32
print("compiled")
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_card_that_is_not_here():
    """The interpreter takes what the compiler refuses."""
    names = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", COMPILED], env=names, capture_output=True, text=True, check=False
    )
    assert made.stdout == "compiled\n", made.stderr


def test_whether_triton_works_is_tried(monkeypatch):
    fused.works_on.cache_clear()
    assert fused.works_on(torch.device(DEVICE))
    assert fused.works_on.cache_info().currsize == 1
    fused.works_on.cache_clear()

    class NoCompiler:
        def __getitem__(self, _):
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(fused, "_tried_kernel", NoCompiler())
    assert not fused.works_on(torch.device(DEVICE))
    fused.works_on.cache_clear()
    monkeypatch.setattr(fused, "works_on", lambda _: False)
    cuda, made = torch.device("cuda"), device_joint.joint_posterior_class
    assert made(cuda, 3) is DeviceJointPosterior
    monkeypatch.setattr(fused, "works_on", lambda _: True)
    assert made(cuda, 3) is fused.FusedJointPosterior
    assert made(cuda, 1) is made(torch.device("cpu"), 3) is DeviceJointPosterior
    monkeypatch.setattr(device_joint, "find_spec", lambda _: None)
    assert made(cuda, 3) is DeviceJointPosterior


@pytest.mark.parametrize("part", ["means", "forms"])
def test_what_is_no_number_is_told(part):
    ours, _ = both(surrogate_of((4, 3, 5), relative_cost=True))
    if part == "means":
        ours._means[1, 17] = np.nan
    else:
        ours._state.forms[0, 1, 2] = np.nan
    with pytest.raises(RuntimeError, match="not positive definite"):
        ours.lower_bounds(Beta(2.0, 2.0), 0.01, None)


@pytest.mark.slow
def test_a_search_asks_the_same(monkeypatch):
    task = make_task(1, (4, 3), 6)

    def asked():
        optimizer = make_scope_joint(task.problem, base="llm0", device=DEVICE, surrogate="tensor")
        kinds = type(optimizer.belief.posterior)
        return kinds, list(run(task.problem, optimizer, task.evaluator(), task.budget(5)).history)

    with monkeypatch.context() as patch:
        patch.setattr(device_joint, "joint_posterior_class", lambda *_: DeviceJointPosterior)
        plain, expected = asked()
    monkeypatch.setattr(device_joint, "joint_posterior_class", lambda *_: fused.FusedJointPosterior)
    kind, found = asked()
    assert (plain, kind) == (DeviceJointPosterior, fused.FusedJointPosterior)
    assert found == expected
