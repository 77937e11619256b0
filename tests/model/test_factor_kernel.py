"""Choices with factors: the kernel retyped from its formula, its sums over Theta, its place."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_kernels import WeightedOverlap
from torch.utils._python_dispatch import TorchDispatchMode

from scope_torch import LLM, InputError, SelectionProblem, make_scope, make_scope_joint
from scope_torch.factors import levels_of, product
from scope_torch.model.cost_regression import _prior_covariance
from scope_torch.model.direct_sums import DirectGrid
from scope_torch.model.hamming_sums import FactorGrid, make_grid
from scope_torch.model.kernels import (
    FactorKernel,
    HammingKernel,
    HammingMatern52Kernel,
    HammingRBFKernel,
    describe_kernel,
    kernel_matrix,
)
from scope_torch.search.calibrate import InitialPool
from scope_torch.space import ConfigSpace

FULL = product(llm=["a", "b", "c"], effort=["low", "high"], prompt=["v1", "v2"])
PART = [*product(llm=["a", "b"], effort=["low", "high"]), "c", LLM("c", prompt="v2")]
PLAIN = ["a", "b", "c"]
SYSTEMS = [[FULL], [PART, PLAIN], [PLAIN, PLAIN, PLAIN], [PART, FULL, PLAIN]]


def alike(one, other, names):
    """s_i of two choices, by the words of the docstring."""
    names = [LLM(name) for name in names]
    one, other = LLM(one), LLM(other)
    factors = {factor for name in names for factor in name.factors}
    weights = {"llm": 0.5} if len({name.llm for name in names}) > 1 else {}
    weights |= {f: 0.25 for f in factors if len({name.factors.get(f) for name in names}) > 1}
    total = 0.25 * (one == other)
    for factor, weight in weights.items():
        same = one.llm == other.llm
        if factor != "llm":
            same = one.factors.get(factor) == other.factors.get(factor)
        total += weight * same
    return total / (0.25 + sum(weights.values()))


def naive(base, system):
    """The kernel on Theta x Theta: the sum over all sets S of modules."""
    N = len(system)
    kappa = base.profile(N).tolist()
    a = [np.diff(kappa[::-1], m)[0] for m in range(N + 1)]
    thetas = list(itertools.product(*system))
    s = [[[alike(one, other, names) for other in names] for one in names] for names in system]
    codes = list(itertools.product(*(range(len(names)) for names in system)))
    k = np.zeros((len(thetas), len(thetas)))
    for (x, t), (y, u) in itertools.product(enumerate(codes), enumerate(codes)):
        for m in range(N + 1):
            for S in itertools.combinations(range(N), m):
                k[x, y] += a[m] * np.prod([s[i][t[i]][u[i]] for i in S])
    return k


def made(base, system):
    sizes = tuple(map(len, system))
    levels = levels_of(system) or tuple(tuple((n,) for n in range(size)) for size in sizes)
    return FactorKernel(base, levels), ConfigSpace(sizes)


@pytest.mark.parametrize("base", [HammingMatern52Kernel(), HammingRBFKernel()], ids=repr)
@pytest.mark.parametrize("system", SYSTEMS[:3], ids=len)
def test_the_kernel_is_its_formula(base, system, device):
    kernel, space = made(base, system)
    every = space.unrank(torch.arange(space.size, device=device))
    k = kernel_matrix(kernel, every, every)
    assert k.dtype == torch.float64
    np.testing.assert_allclose(k.cpu(), naive(base, system), rtol=0, atol=1e-14)
    by_gpytorch = kernel(every.double(), every.double()).to_dense()
    np.testing.assert_allclose(by_gpytorch.cpu(), k.cpu(), atol=0)
    np.testing.assert_allclose(kernel.forward(every, every, diag=True).cpu(), 1.0, atol=1e-15)
    assert torch.linalg.eigvalsh(k).min() > -1e-12


def test_without_factors_it_is_the_hamming_kernel():
    kernel, space = made(HammingMatern52Kernel(), [PLAIN] * 3)
    every = space.unrank(torch.arange(space.size))
    expected = kernel_matrix(kernel.base, every, every)
    np.testing.assert_allclose(kernel_matrix(kernel, every, every), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: str(list(map(len, system))))
def test_sums_over_theta_are_the_direct_ones(system, device):
    kernel, space = made(HammingMatern52Kernel(), system)
    grid, direct = make_grid(space, kernel, device), DirectGrid(space, kernel, device)
    assert type(grid) is FactorGrid
    rng = np.random.default_rng(0)
    for n in (0, 1, 7):
        index = torch.tensor(rng.permutation(space.size)[:n], device=device)
        codes = space.unrank(index)
        rows = torch.tensor(rng.normal(size=(3, n)), device=device)
        v = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64, device=device)
        matrix = torch.tensor(rng.normal(size=(n, n)), device=device)
        some = torch.arange(0, space.size, 3, device=device)
        both = [
            [
                one.weighted_sum(codes, rows[0]),
                one.weighted_sums(codes, rows),
                one.quadratic_form(codes, matrix),
                one.quadratic_form_at(some, codes, matrix),
                one.kernel_at(some, codes),
            ]
            for one in (grid, direct)
        ]
        for fast, slow in zip(*both, strict=True):
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-13)
        to = [torch.ones(space.size, dtype=torch.float64, device=device) for _ in both]
        for one, total in zip((grid, direct), to, strict=True):
            one.add_squares(codes, rows, v, to=total, scratch=torch.empty_like(total))
        torch.testing.assert_close(*to, rtol=0, atol=1e-13)


def test_a_base_with_a_negative_coefficient_is_refused():
    class Dip(HammingKernel):
        def at_distance(self, h):
            return torch.where(h == 1, 0.0, torch.where(h == 0, 1.0, 0.5))

    with pytest.raises(InputError, match="Dip has a negative coefficient for 2 modules"):
        made(Dip(), [PART, PLAIN])


def problem(system=(FULL, PLAIN), **changes):
    modules = tuple(f"m{i}" for i in range(len(system)))
    return SelectionProblem(
        name="factors", modules=modules, llms=system, num_queries=20,
        theta_ref=tuple(len(names) - 1 for names in system), reference_quality=0.8,
        reference_cost_usd=0.01, epsilon=0.05, **changes,
    )  # fmt: skip


def kernel_of(search):
    return search.settings()["kernel"]


def test_joint_searches_know_the_factors():
    kernel = FactorKernel(HammingMatern52Kernel(), levels_of([FULL, PLAIN]))
    search = make_scope_joint(problem(), base=[FULL[0], "a"])
    assert kernel_of(search) == describe_kernel(kernel, 2)
    assert kernel_of(search)["name"] == "FactorKernel"


@pytest.mark.parametrize(
    "changes",
    [{"space_search": "branch_and_bound"}, {"kernel": WeightedOverlap()}],
    ids=repr,
)
def test_other_kernels_stay(changes):
    assert (
        kernel_of(make_scope_joint(problem(), base=[FULL[0], "a"], **changes))["name"]
        != "FactorKernel"
    )


def test_names_that_only_look_like_factors_are_plain():
    plain = problem([[str(name) for name in FULL], PLAIN])
    assert kernel_of(make_scope_joint(plain, base=[str(FULL[0]), "a"]))["name"] != "FactorKernel"


def test_the_papers_search_knows_no_factors():
    search = make_scope(problem(), base=[FULL[0], "a"])
    assert kernel_of(search)["name"] == "HammingMatern52Kernel"
    assert len(search._initial_pool.draw(problem().space, torch.Generator())) == 1 + 11 + 2


def pool(problem, base=(0, 0), kind="base"):
    made = InitialPool(problem, kind, base, levels_of(problem.llms))
    return [tuple(problem.names(t).values()) for t in made.draw(problem.space, torch.Generator())]


def test_calibrate_changes_one_factor_at_a_time():
    assert pool(problem()) == [
        ("a effort=low prompt=v1", "a"),
        ("a effort=low prompt=v2", "a"),
        ("a effort=high prompt=v1", "a"),
        ("b effort=low prompt=v1", "a"),
        ("c effort=low prompt=v1", "a"),
        ("a effort=low prompt=v1", "b"),
        ("a effort=low prompt=v1", "c"),
    ]
    assert len(pool(problem(), kind="random")) == 7
    # Each level of PART once: b; no effort, which only c has; high; prompt v2.
    assert [one[0] for one in pool(problem([PART, ["a"]]))] == [
        "a effort=low", "a effort=high", "b effort=low", "c", "c prompt=v2",
    ]  # fmt: skip


def test_calibrate_knows_what_is_allowed():
    rule = problem(allowed=lambda llms: llms["m0"].effort == "high" or llms["m1"] != "a")
    assert pool(rule)[:3] == [
        ("a effort=low prompt=v1", "b"),
        ("a effort=low prompt=v2", "b"),
        ("a effort=high prompt=v1", "a"),
    ]


def test_costs_of_choices_share_what_they_have_in_common():
    """The prior covariance, with the standard deviations of the module's docstring."""
    system = [[LLM("a", effort=1), LLM("a", effort=2), "b"], [LLM("a", effort=1), "b"]]
    covariance = _prior_covariance(ConfigSpace((3, 2)), system)
    module, llm, pair, factor, choice = 1.0, 9.0, 0.16, 0.49, 0.04
    own = module + llm + pair + factor + choice
    np.testing.assert_allclose(np.diag(covariance), own)
    np.testing.assert_allclose(
        covariance[0], [own, own - factor - choice, module, llm + factor, 0], atol=1e-12
    )
    np.testing.assert_allclose(covariance[2], [module, module, own, 0, llm + factor], atol=1e-12)
    names = [[str(name) for name in names] for names in system]
    plain = _prior_covariance(ConfigSpace((3, 2)), names)
    np.testing.assert_allclose(plain[0], [1 + 9 + 0.16, 1, 1, 9, 0], atol=1e-12)


def test_a_problem_keeps_its_choices():
    again = replace(problem(), epsilon=0.1)
    assert again.names((1, 0))["m0"].effort == "low"
    assert again.codes(["b effort=high prompt=v1", "a"]) == (6, 0)


class _Sizes(TorchDispatchMode):
    """Notes how large the tensors are that operations make."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.seen.append(out.numel())
        return out


@pytest.mark.slow
def test_many_configurations_at_once_take_no_more_than_the_result():
    """Else a million of them take gigabytes for each module."""
    kernel = FactorKernel(HammingMatern52Kernel(), levels_of([FULL, FULL, PLAIN]))
    generator = torch.Generator().manual_seed(0)
    many = torch.randint(3, (20_000, 3), generator=generator)
    some = many[:100]
    with _Sizes() as sizes:
        whole = kernel.forward(many, some)
    assert sum(size >= whole.numel() for size in sizes.seen) == 1
    parts = [kernel.forward(part, some) for part in many.split(1_000)]
    assert torch.equal(whole, torch.cat(parts))
