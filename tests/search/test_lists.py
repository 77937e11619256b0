"""A search over a list makes the choices of a search over Theta of which the rest is masked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from constrained import constrained_task
from tables import make_task
from test_kernels import WeightedOverlap

from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model import list_sums
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.search.hypervolume import non_dominated

SIZES = (4, 3, 4)


def listed(problem: SelectionProblem, seed: int, count: int = 20, holes: bool = False):
    """The problem with a random list in place of Theta; some of it with few queries."""
    rng = np.random.default_rng(seed)
    at = rng.permutation(problem.space.size)[:count].tolist()
    base = (0,) * problem.space.num_modules
    thetas = {*map(problem.space.theta_at, at), problem.theta_ref, base}
    offered = {}
    if holes:
        for theta in sorted(thetas - {problem.theta_ref})[::3]:
            count = int(rng.integers(1, problem.num_queries))
            offered[theta] = rng.permutation(problem.num_queries)[:count].tolist()
    return replace(problem, allowed=sorted(thetas), offered=offered or None)


def ties(seed: int):
    """A task with equal LLMs: in each module two are the same, in cost and in quality."""
    table = make_task(seed, SIZES, 8, graded=False).table
    cost, quality = table.cost_usd.copy(), table.quality.copy()
    for axis in range(len(SIZES)):
        for values in (cost, quality):
            np.moveaxis(values, axis, 0)[1] = np.moveaxis(values, axis, 0)[2]
    alike = replace(table, cost_usd=cost, quality=quality)
    theta = np.unravel_index(quality.mean(-1).argmax(), SIZES)
    names = [llms[code] for llms, code in zip(table.llms, theta, strict=True)]
    return alike.problem("ties", names, 0.15), TableEvaluator(alike)


def task(case: str, seed: int):
    if case == "constraints":
        problem, evaluator = constrained_task(seed, SIZES, 8)
    elif case == "ties":
        problem, evaluator = ties(seed)
    else:
        made = make_task(seed, SIZES, 8)
        problem, evaluator = made.problem, made.evaluator()
    if case == "quality":
        cap = f"cost_usd <= {0.5 * problem.reference_cost_usd} cap {problem.reference_cost_usd}"
        problem = replace(problem, objective="quality", epsilon=None, constraints=[cap])
    return listed(problem, seed, holes=case == "holes"), evaluator


def both(make, case, seed, monkeypatch, **how):
    """Runs over the list and over the masked Theta, in this order."""
    problem, evaluator = task(case, seed)
    budget, results = 8 * 8 * problem.reference_cost_usd, []
    for pays in (0, 1 << 60):
        monkeypatch.setattr(list_sums, "_PAYS", pays)
        optimizer = make(problem, base=["llm0"] * len(SIZES), seed=seed, **how)
        results.append((optimizer, run(problem, optimizer, evaluator, budget)))
    return results


def check(results):
    (_, ours), (_, theirs) = results
    assert list(ours.history) == list(theirs.history)
    assert len(ours.trace) == len(theirs.trace) > 2
    for one, other in zip(ours.trace, theirs.trace, strict=True):
        assert (one.event, one.t, one.theta_out) == (other.event, other.t, other.theta_out)
        assert one.u_out_usd == pytest.approx(other.u_out_usd, rel=1e-9)
    assert ours.settings == theirs.settings  # so that journals are continued
    assert ours.recommendation.theta == theirs.recommendation.theta
    if not ours.problem.others:
        rows, others = (result.pareto() for result in (ours, theirs))
        assert [r.theta for r in rows.by_loss] == [r.theta for r in others.by_loss]
        ours, theirs = ([r.cost_usd for r in one.by_loss] for one in (rows, others))
        assert ours == pytest.approx(theirs, rel=1e-9)


CASES = ["plain", "holes", "ties", "constraints", "quality"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("make", "seed"), [(make_scope, 0), (make_scope_joint, 1)])
def test_the_choices_of_the_masked_grid(make, case, seed, monkeypatch):
    results = both(make, case, seed, monkeypatch)
    check(results)
    spaces = [result.report["selection"]["space_search"] for _, result in results]
    assert spaces == ["list", "grid"]
    sizes = [len(optimizer.estimates().mean_c) for optimizer, _ in results]
    assert sizes == [len(results[0][1].problem.allowed), 48]


@pytest.mark.parametrize(
    ("make", "how", "case"),
    [
        (make_scope, {"surrogate": "tensor", "device": "cpu"}, "plain"),
        (make_scope, {"surrogate": "tensor", "device": "cpu"}, "holes"),
        (make_scope_joint, {"surrogate": "tensor", "device": "cpu"}, "holes"),
        (make_scope_joint, {"surrogate": "tensor", "device": "cpu"}, "ties"),
        (make_scope, {"kernel": WeightedOverlap()}, "ties"),
        (make_scope_joint, {"kernel": WeightedOverlap()}, "holes"),
        (make_scope_joint, {"budget_usd": 1.0}, "plain"),
    ],
)
@pytest.mark.slow
def test_on_a_device_and_with_other_kernels(make, how, case, monkeypatch):
    if "kernel" in how:  # there a list is always better than Theta
        monkeypatch.setattr(list_sums, "HammingKernel", object)
    check(both(make, case, 1, monkeypatch, **how))


LARGE = (40, 40, 40, 40, 40, 40)  # 4.1e9 configurations


def large(seed: int, num_modules: int = 6, count: int = 200):
    """A list of about `count` in a Theta that nothing can enumerate."""
    rng = np.random.default_rng(seed)
    sizes = LARGE[:1] * num_modules
    price = 10 ** rng.uniform(-5, -3, size=(num_modules, 40))
    skill = rng.uniform(0, 1, size=(num_modules, 40))
    llms = [f"llm{code}" for code in range(40)]
    best = tuple(skill.argmax(1).tolist())
    thetas = {best, *(tuple(rng.integers(40, size=num_modules).tolist()) for _ in range(count))}
    names = [f"m{i}" for i in range(num_modules)]

    def answer(theta, query):
        noise = np.random.default_rng([*theta, query])
        quality = np.mean([skill[i, llm] for i, llm in enumerate(theta)])
        usd = sum(price[i, llm] for i, llm in enumerate(theta)) * noise.lognormal(0, 0.2)
        return float(usd), float(noise.uniform() < quality)

    answers = np.array([answer(best, query) for query in range(20)])
    problem = SelectionProblem(
        name="large",
        modules=tuple(names),
        llms=(llms,) * num_modules,
        num_queries=20,
        theta_ref=best,
        reference_cost_usd=float(answers[:, 0].mean()),
        reference_quality=float(answers[:, 1].mean()),
        epsilon=0.3,
        allowed=sorted(thetas),
    )
    assert problem.space.sizes == sizes

    def system(assignment, query):
        usd, quality = answer(problem.codes(list(assignment.values())), query)
        return quality, usd

    return problem, FunctionEvaluator(problem, system, list(range(20)), name="large")


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
@pytest.mark.parametrize("seed", range(2))
def test_in_a_theta_that_cannot_be_enumerated(make, seed, tmp_path):
    """As by branch and bound, whose journals are continued."""
    problem, evaluator = large(seed)
    base = list(problem.names(problem.rule.nearest((0,) * 6)).values())
    budget, results = 10 * 20 * problem.reference_cost_usd, []
    for how in ("branch_and_bound", "auto"):
        optimizer = make(problem, base=base, seed=seed, space_search=how)
        path = tmp_path / "run"
        results.append(run(problem, optimizer, evaluator, budget, run_dir=path))
    assert results[1].replayed == len(results[1].history) == len(results[0].history) > 20
    assert results[0].recommendation.theta == results[1].recommendation.theta
    assert [r.report["selection"]["space_search"] for r in results] == ["branch_and_bound", "list"]
    for one, other in zip(results[0].trace, results[1].trace, strict=True):
        assert (one.event, one.t, one.theta_out) == (other.event, other.t, other.theta_out)


@pytest.mark.slow
def test_the_front_of_a_list():
    """All of it is observed in the end, so that the front is the true one."""
    problem, evaluator = large(12, count=12)
    base = list(problem.names(problem.rule.nearest((0,) * 6)).values())
    optimizer = make_scope_front(problem, base=base)
    result = run(problem, optimizer, evaluator, 1e3 * problem.reference_cost_usd)
    requests = [[Request(t, q) for q in range(20)] for t in problem.allowed]
    answers = [list(evaluator.evaluate(of_one)) for of_one in requests]
    cost, quality = (
        [float(np.mean([getattr(o, name) for o in of_one])) for of_one in answers]
        for name in ("cost_usd", "quality")
    )
    best = {problem.allowed[i] for i in non_dominated(cost, quality)}
    assert len(best) > 2
    assert best <= {o.theta for o in result.history} <= set(problem.allowed)
    assert set(optimizer.front) == best


@pytest.mark.slow
def test_more_modules_than_branch_and_bound_takes(monkeypatch):
    """Another kernel, too; and nothing of the size of Theta is ever made."""
    problem, evaluator = large(3, num_modules=11)  # 4e17 configurations
    made, arange = [], torch.arange
    monkeypatch.setattr(torch, "arange", lambda *a, **k: made.append(a) or arange(*a, **k))
    base = list(problem.names(problem.rule.nearest((0,) * 11)).values())
    optimizer = make_scope_joint(problem, base=base, kernel=WeightedOverlap())
    result = run(problem, optimizer, evaluator, 5 * 20 * problem.reference_cost_usd)
    assert result.report["selection"]["space_search"] == "list"
    assert problem.is_allowed(result.recommendation.theta)
    assert all(max(a) <= 1000 for a in made)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_the_device_is_picked_by_the_length_of_the_list(make, monkeypatch):
    """A list of 20 of 250,000 configurations is no work for a GPU."""
    sizes: list[int] = []

    def pick(device, size):
        sizes.append(size)
        return torch.device("cpu")

    monkeypatch.setattr("scope_torch.methods.pick_device", pick)
    problem = make_task(0, (250, 10, 100), 1).problem
    thetas = [(i, 0, 0) for i in range(20)]
    few = replace(problem, allowed=sorted({*thetas, problem.theta_ref}))
    make(problem, initial_pool="random")
    make(few, initial_pool="random")
    assert sizes[0] == 250_000
    assert 20 <= sizes[1] <= 21
