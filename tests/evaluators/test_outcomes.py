"""Named outcomes of simulated systems, of functions and of live systems."""

import statistics
from dataclasses import replace

import pytest
import torch

from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import load_llms
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem

LLMS = ["GPT-5.2", "gemma-3-12b", "Gemini 2.5 Flash"]


def world(**changed) -> World:
    return World(load_worlds()["data_imputation"], load_llms(), llms=LLMS, **changed)


def simulated(**changed) -> SimulatedEvaluator:
    return SimulatedEvaluator(world(), **{"outcomes": True, **changed})


def test_all_packaged_llms_have_a_speed():
    assert all(llm.tokens_per_s > 0 < llm.first_token_s for llm in load_llms().values())


def test_latency_is_first_tokens_and_output_over_speed_of_all_modules():
    evaluator = simulated(cost_noise=0.0)
    (made,) = evaluator.evaluate([Request((0, 1, 2), 7)])
    codes = [torch.tensor(c) for c in (0, 1, 2)]
    written = [float(w) for w in world().module_output_tokens(codes, torch.tensor(7))]
    infos = [load_llms()[name] for name in LLMS]
    seconds = sum(i.first_token_s + w / i.tokens_per_s for i, w in zip(infos, written, strict=True))
    assert made.outcomes == pytest.approx({"latency_s": seconds, "output_tokens": sum(written)})
    # the same tokens that the cost is made of
    read = world().module_costs(codes, torch.tensor(7))
    assert made.module_cost_usd == pytest.approx([float(cost) for cost in read])


@pytest.mark.slow
def test_true_outcomes_are_the_averages_without_noise():
    evaluator = simulated(cost_noise=0.0)
    some = evaluator.evaluate([Request((2, 1, 0), q) for q in range(9)])
    bound = statistics.median(one.outcomes["latency_s"] for one in some)
    limits = [
        at_most("latency_s", 5, cap=15),
        at_most("output_tokens", 1e5, cap=1e6),
        at_most("cost_usd", 1e-3, cap=1),
        at_most("latency_s", bound, quantile=0.9),
    ]
    truth, queries = evaluator.true_outcomes(limits), evaluator.world.num_queries
    for theta in [(0, 0, 0), (2, 1, 0)]:
        made = list(evaluator.evaluate([Request(theta, q) for q in range(queries)]))
        flat = theta[0] * 9 + theta[1] * 3 + theta[2]
        for limit, means in zip(limits, truth, strict=True):
            assert means.shape == (27,)
            seen = [{**o.outcomes, "cost_usd": o.cost_usd}[limit.outcome] for o in made]
            average = sum(min(one, limit.high) for one in seen) / queries
            if limit.is_share:
                average = sum(one <= bound for one in seen) / queries
                assert theta[0] == 0 or 0.1 < average < 0.9
            assert average == pytest.approx(float(means[flat]), rel=1e-12)
            assert evaluator.average_outcome(theta, limit) == pytest.approx(average, rel=1e-12)
    with pytest.raises(InputError, match="simulated systems have cost_usd"):
        evaluator.true_outcomes([at_most("safety", 0.5)])


def test_outcomes_are_the_same_in_any_order_and_differ_by_replicate():
    requests = [
        Request(theta, q, r) for theta in [(0, 1, 2), (1, 1, 1)] for q in (3, 9) for r in (0, 1)
    ]
    forward = {o.request: o.outcomes for o in simulated().evaluate(requests)}
    backward = {o.request: o.outcomes for o in simulated().evaluate(requests[::-1])}
    assert forward == backward
    assert forward[Request((0, 1, 2), 3, 0)] != forward[Request((0, 1, 2), 3, 1)]


def test_outcomes_change_nothing_else():
    plain, named = simulated(outcomes=False), simulated()
    requests = [Request((0, 1, 2), q) for q in range(5)]
    made = list(named.evaluate(requests))
    assert [replace(o, outcomes=None) for o in made] == list(plain.evaluate(requests))
    assert plain.fingerprint() != named.fingerprint()


def test_an_llm_without_speed_is_refused_only_if_outcomes_are_asked_for():
    llms = load_llms()
    llms["gemma-3-12b"] = replace(llms["gemma-3-12b"], tokens_per_s=None)
    drawn = World(load_worlds()["data_imputation"], llms, llms=LLMS)
    SimulatedEvaluator(drawn)
    with pytest.raises(InputError, match=r"speed of gemma-3-12b .* tokens_per_s"):
        SimulatedEvaluator(drawn, outcomes=True)


@pytest.mark.parametrize("value", ["tokens_per_s = 0", "first_token_s = -1", 'tokens_per_s = "x"'])
def test_a_speed_that_cannot_be_is_refused(tmp_path, value):
    path = tmp_path / "llms.toml"
    priced = '[[llm]]\nname = "a"\ninput_usd_per_mtok = 1\noutput_usd_per_mtok = 1\n'
    path.write_text(f"version = 1\n{priced}{value}\n")
    with pytest.raises(InputError, match=value.split()[0]):
        load_llms(path)


def function(answer) -> FunctionEvaluator:
    llm = "GPT-5.2"
    problem = SelectionProblem(
        "p", ("add",), ((llm,),), 1, theta_ref=(0,), reference_quality=1.0,
        reference_cost_usd=0.01, epsilon=0.1,
    )  # fmt: skip
    return FunctionEvaluator(problem, lambda _a, _q: answer, [0], prices=load_llms())


@pytest.mark.parametrize("cost", [{"cost_usd": 0.5}, {"tokens": {"add": (10, 5)}}])
def test_a_function_may_return_outcomes(cost):
    answer = {"quality": 1.0, **cost, "outcomes": {"seconds": 2, "words": 7.5}}
    (made,) = function(answer).evaluate([Request((0,), 0)])
    assert made.outcomes == {"seconds": 2.0, "words": 7.5}
    del answer["outcomes"]
    (plain,) = function(answer).evaluate([Request((0,), 0)])
    assert plain == replace(made, outcomes=None)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ({"seconds": float("nan")}, "seconds=nan must be a finite number"),
        ({"seconds": "3"}, "seconds='3' must be a finite number"),
        ([3.0], "must map names to numbers"),
        ({"": 3.0}, "not empty"),
    ],
)
def test_outcomes_that_cannot_be_used_are_refused(outcomes, words):
    answer = {"quality": 1.0, "cost_usd": 0.5, "outcomes": outcomes}
    with pytest.raises(InputError, match=words) as caught:
        list(function(answer).evaluate([Request((0,), 0)]))
    assert "the system returned" in str(caught.value)
