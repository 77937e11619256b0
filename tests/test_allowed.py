"""Rules and lists of configurations that may be chosen."""

from dataclasses import replace

import pytest
import torch

import scope_torch as st
from scope_torch.allowed import Allowed
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import optimal_cost
from scope_torch.runs.runner import run_settings
from scope_torch.search.calibrate import InitialPool
from scope_torch.search.known import Known
from scope_torch.tasks.synthetic import synthetic_task

LLMS = ("nano", "mini", "pro")
PROBLEM = SelectionProblem(
    name="p",
    modules=("planner", "critic"),
    llms=(LLMS, LLMS),
    num_queries=4,
    theta_ref=("pro", "mini"),  # pyright: ignore[reportArgumentType]
    reference_quality=0.8,
    reference_cost_usd=0.02,
    epsilon=0.05,
)


def differ(llms):
    return llms["planner"] != llms["critic"]


def test_a_rule():
    problem = replace(PROBLEM, allowed=differ)
    assert problem.is_allowed((0, 1))
    assert not problem.is_allowed((1, 1))
    assert problem.num_allowed == 6
    mask = problem.allowed_mask()
    assert mask is not None
    assert mask.view(3, 3).tolist() == [[i != j for j in range(3)] for i in range(3)]


def test_nothing_is_forbidden():
    assert PROBLEM.rule is None
    assert PROBLEM.allowed_mask() is None
    assert PROBLEM.num_allowed == 9
    assert PROBLEM.is_allowed((1, 1))


def test_a_list_of_codes_names_and_dicts():
    listed = [(2, 1), ("nano", "mini"), {"critic": "pro", "planner": "nano"}, [2, 1]]
    problem = replace(PROBLEM, allowed=listed)
    assert problem.allowed == ((0, 1), (0, 2), (2, 1))
    assert problem.num_allowed == 3
    assert problem.is_allowed((0, 2))
    assert not problem.is_allowed((0, 0))
    assert replace(problem, epsilon=0.1).allowed == problem.allowed
    assert replace(PROBLEM, allowed=listed[:3]) == problem


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        (lambda llms: llms["planner"] != "pro", r"theta_0, {'planner': 'pro', 'critic': 'mini'}"),
        ([("nano", "nano")], "theta_0"),
        ([], "with at least theta_0"),
        ([("nano", "max")], r"allowed\[0\]: 'max' is not a candidate of module 'critic'"),
        ([{"planner": "nano"}], r"allowed\[0\] has the keys \['planner'\]"),
        ([(0, 3)], r"allowed\[0\]=\[0, 3\]"),
        (lambda _: 1 / 0, r"ZeroDivisionError .* for {'planner': 'pro', 'critic': 'mini'}"),
        (lambda _: "yes", r"returned 'yes' for {'planner': 'pro', 'critic': 'mini'}"),
    ],
)
def test_refusals(allowed, text):
    with pytest.raises(InputError, match=text):
        replace(PROBLEM, allowed=allowed)


def test_a_rule_that_fails_later_names_the_configuration():
    problem = replace(PROBLEM, allowed=lambda llms: None if llms["planner"] == "nano" else True)
    with pytest.raises(InputError, match=r"returned None for {'planner': 'nano', 'critic'"):
        problem.allowed_mask()


def test_calibrate_takes_who_is_nearest():
    """The base itself need not be allowed; every LLM of every module is there."""
    pool = InitialPool(replace(PROBLEM, allowed=differ), "base", (0, 0))
    generator = torch.Generator().manual_seed(0)
    drawn = pool.draw(PROBLEM.space, generator)
    assert drawn == [(0, 1), (1, 0), (2, 0), (0, 2)]
    everything = InitialPool(replace(PROBLEM, allowed=lambda _: True), "base", (0, 0))
    assert everything.draw(PROBLEM.space, generator) == PROBLEM.space.neighbours((0, 0))
    few = InitialPool(replace(PROBLEM, allowed=[(2, 1), (1, 2)]), "base", (0, 0))
    assert sorted(few.draw(PROBLEM.space, generator)) == [(1, 2), (2, 1)]


def test_random_pools_are_of_what_is_allowed():
    pool = InitialPool(replace(PROBLEM, allowed=differ), "random", None)
    drawn = pool.draw(PROBLEM.space, torch.Generator().manual_seed(0))
    assert len(set(drawn)) == len(drawn) == 5
    assert all(planner != critic for planner, critic in drawn)


def huge(rule) -> Allowed:
    modules = [f"m{i}" for i in range(10)]
    return Allowed(modules, [list(map(str, range(16)))] * 10, rule)


def test_a_space_that_cannot_be_enumerated():
    rule = huge(lambda llms: llms["m0"] != llms["m9"])
    assert rule.mask is None
    assert rule.index is None
    assert rule.count is None
    assert rule.nearest((0,) * 10) == (1, *(0,) * 9)
    pool = rule.around((0,) * 10, rule.space.neighbours((0,) * 10)[1:])
    assert len(pool) == 1 + 10 * 15 - 1  # (1, 0, ..., 0) stands for the base too
    assert all(theta[0] != theta[9] for theta in pool)
    drawn = rule.sample(20, torch.Generator().manual_seed(0))
    assert len(set(drawn)) == 20
    assert all(map(rule, drawn))
    listed = Allowed([f"m{i}" for i in range(10)], [list(map(str, range(16)))] * 10, tuple(drawn))
    assert listed.count == 20
    assert listed.mask is None
    assert listed.nearest((0,) * 10) in drawn


def test_settings_tell_rules_apart():
    def settings(**changed):
        task = synthetic_task(num_queries=4)
        problem = replace(task.problem, **changed)

        class Quiet:
            def settings(self):
                return {}

        return run_settings(problem, Quiet(), task.evaluator, 1.0)["problem"]  # type: ignore[arg-type]

    same_0 = settings(allowed=lambda llms: llms["module_1"] != "nano")
    same_1 = settings(allowed=lambda llms: not llms["module_1"].startswith("nano"))
    other = settings(allowed=lambda llms: llms["module_2"] != "nano")
    assert same_0 == same_1 != other
    assert len(same_0["allowed"]) == 16
    assert "allowed" not in settings()
    names = [huge(lambda llms: llms["m0"] == "1"), huge(lambda llms: llms["m0"] == "2")]
    assert names[0].digest() != names[1].digest()


def test_what_is_known_of_earlier_is_not_returned_where_it_is_forbidden():
    answers = [Observation((0, 0), q, 0.001, 1.0) for q in range(4)]
    assert Known(PROBLEM, answers).take_best() == (0, 0)
    assert Known(replace(PROBLEM, allowed=differ), answers).take_best() is None


@pytest.mark.slow
def test_select_passes_it_on():
    """The cheapest configuration is good enough, and forbidden."""
    asked = set()

    def app(models, text):
        asked.add((models["planner"], models["critic"]))
        usd = {"nano": 0.001, "mini": 0.002, "pro": 0.03}
        return text.upper(), usd[models["planner"]] + usd[models["critic"]]

    result = st.select(
        app,
        models={"planner": LLMS, "critic": LLMS},
        reference={"planner": "pro", "critic": "mini"},
        dataset=[(text, text.upper()) for text in ["one", "two", "three"] * 10],
        metric=st.metrics.exact_match,
        max_quality_loss=0.1,
        budget_usd=5,
        allowed=differ,
    )
    assert result.choice in (
        {"planner": "nano", "critic": "mini"},
        {"planner": "mini", "critic": "nano"},
    )
    assert all(planner != critic for planner, critic in asked)


def test_the_optimum_is_of_what_is_allowed():
    cost = torch.arange(9, dtype=torch.float64)
    quality = torch.ones(9, dtype=torch.float64)
    assert optimal_cost(PROBLEM, (cost, quality)) == 0
    assert optimal_cost(replace(PROBLEM, allowed=differ), (cost, quality)) == 1
