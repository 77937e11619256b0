"""theta_out costs less than theta_0 by its own answers."""

import math
import random

import pytest

import scope_torch as st
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation
from scope_torch.search.stopping import Stopping

LLMS = ("lazy", "steady", "pro")
REFERENCE_USD = 0.08  # on average

# Share and cost of the few calls of `lazy` that are paid for (caches answer the others), number of
# queries, share of those that cost the reference nothing, seed, modules.
MODEL_IS_WRONG = [(0.05, 2.56, 20, 0.5, 0, "ab"), (0.02, 5.2, 20, 0.8, 0, "ab")]


AS_BEFORE = {"calibration_queries": None, "verify": 0}  # then the model is wrong in these worlds


def searched(share, usd, num_queries, free, seed, modules, **options):
    def app(models, query):
        luck = random.Random(f"{sorted(models.items())} {query}").random()
        if set(models.values()) == {"pro"}:
            is_free = random.Random(query).random() < free
            return 1.0, 0.0 if is_free else REFERENCE_USD / (1 - free)
        if "lazy" in models.values():
            return 1.0, usd if luck < share else 0.0
        return 1.0, 1.5 * REFERENCE_USD

    queries = [f"{seed} {i}" for i in range(num_queries)]
    answers = [app(dict.fromkeys(modules, "pro"), query)[::-1] for query in queries]
    problem = st.SelectionProblem(
        name="rare",
        modules=tuple(modules),
        llms=(LLMS,) * len(modules),
        num_queries=num_queries,
        theta_ref=(2,) * len(modules),
        reference_quality=1.0,
        reference_cost_usd=math.fsum(usd for usd, _ in answers) / num_queries,
        reference_answers=tuple(answers),
        epsilon=0.1,
    )
    budget_usd = 150 * REFERENCE_USD * num_queries / 60
    optimizer = st.make_scope_joint(
        problem, base="lazy", seed=seed, budget_usd=budget_usd, **options
    )
    evaluator = FunctionEvaluator(problem, app, queries, deterministic=True)
    return st.run(problem, optimizer, evaluator, budget_usd)


@pytest.mark.parametrize("options", [{}, AS_BEFORE])
@pytest.mark.parametrize("world", MODEL_IS_WRONG)
def test_nothing_that_is_dearer_by_its_own_answers_replaces_the_reference(world, options):
    result = searched(*world, **options)
    for row in result.trace:
        if row.theta_out != result.problem.theta_ref:
            answers = result.history[: row.t]  # a repeat gives the kept answer once more
            own = {o.query: o.cost_usd for o in answers if o.theta == row.theta_out}
            reference = [result.problem.reference_answers[query][0] for query in own]
            assert math.fsum(own.values()) < math.fsum(reference)
    assert "dearer" not in str(result)


@pytest.mark.slow
def test_what_replaced_too_early_is_withdrawn():
    trace = [row for world in MODEL_IS_WRONG for row in searched(*world, **AS_BEFORE).trace]
    withdrawn = [index for index, row in enumerate(trace) if row.event == "withdrawn"]
    assert withdrawn
    for index in withdrawn:
        before, row = trace[index - 1], trace[index]
        assert before.theta_out == row.theta_cand != row.theta_out
        assert before.u_out_usd < row.u_out_usd


def test_costs_are_compared_on_the_queries_that_both_answered():
    stopping = Stopping(0.0, 0.0, (1,), [1.0, 5.0, 0.0])
    assert stopping.is_dearer((0,))  # nothing is known
    stopping.record(Observation((0,), 1, cost_usd=4.0, quality=1.0))
    assert not stopping.is_dearer((0,))  # 4 against 5
    stopping.record(Observation((0,), 2, cost_usd=1.0, quality=1.0))
    assert stopping.is_dearer((0,))  # 5 against 5
    assert not stopping.is_dearer((1,))  # theta_0
    assert not Stopping(None).is_dearer((0,))  # to the letter of the paper


def test_a_tie_is_one_on_all_queries_that_were_answered():
    stopping = Stopping(0.0, 0.0, (1,), [1.0, 5.0])
    stopping.record(Observation((0,), 1, cost_usd=5.0, quality=1.0))
    assert stopping.is_tied((0,), (1,), 3.0, 3.0)  # with theta_0
    assert not stopping.is_tied((0,), (1,), 2.9, 3.0)  # it may be cheaper
    stopping.record(Observation((2,), 1, cost_usd=5.0, quality=1.0))
    assert not stopping.is_tied((0,), (2,), 3.0, 3.0)  # whose average quality is not known
    stopping.record(Observation((2,), 0, cost_usd=0.5, quality=1.0))
    assert stopping.is_tied((0,), (2,), 3.0, 3.0)
    assert not stopping.is_tied((2,), (2,), 3.0, 3.0)
    stopping.record(Observation((0,), 0, cost_usd=0.6, quality=1.0))
    assert not stopping.is_tied((0,), (2,), 3.0, 3.0)
    assert not stopping.is_tied((0,), (1,), 3.0, 3.0)
    assert not Stopping(None).is_tied((0,), (1,), 3.0, 3.0)  # to the letter of the paper


PRICE = {"nano": 0.0001, "one": 0.001, "two": 0.001, "three": 0.001, "pro": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("deployment_queries", [None, 1e5])
def test_what_costs_the_same_by_call_is_not_answered_to_the_end(in_flight, deployment_queries):
    def app(models, query):
        luck = random.Random(f"{sorted(models.items())} {query}").random()
        wrong = 0.7 if "nano" in models.values() else 0.03 if "pro" not in models.values() else 0
        return float(luck >= wrong), sum(PRICE[llm] for llm in models.values())

    problem = st.SelectionProblem(
        name="prices by call",
        modules=("a", "b"),
        llms=(tuple(PRICE),) * 2,
        num_queries=60,
        theta_ref=(4, 4),
        reference_quality=1.0,
        reference_cost_usd=0.02,
        reference_answers=((0.02, 1.0),) * 60,
        epsilon=0.1,
        deployment_queries=deployment_queries,
    )
    search = st.make_scope_joint(problem, base="nano", in_flight=in_flight)
    evaluator = FunctionEvaluator(problem, app, list(range(60)), deterministic=True)
    result = st.run(problem, search, evaluator, 3.0)
    assert result.certified
    assert result.cost_usd.value == pytest.approx(0.002)
    of_ties = [o for o in result.history if not {0, 4} & {*o.theta}]
    assert len(of_ties) < 3 * 60  # of 9 such configurations
    told = result.table()
    status = dict(zip(told.select("a", "b").iter_rows(), told["status"], strict=True))
    assert "not certified" not in status.values()
    assert result.recommendation.gap_usd < 0.002
