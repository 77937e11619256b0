"""What a program is told that returns something else, and what it has cost all the same."""

import asyncio

import numpy as np
import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation, Request
from scope_torch.runs.journal import lost_in

MEASURED = {"quality": 1.0, "module_cost_usd": {"model": 0.5}, "tokens": {"model": (1, 1)}}


def evaluator_that(returns):
    problem = st.SelectionProblem(
        "p", ("model",), (("mini", "pro"),), 1, theta_ref=(0,), reference_quality=1.0,
        reference_cost_usd=1.0, epsilon=0.1,
    )  # fmt: skip
    return FunctionEvaluator(problem, lambda *_: returns, ["x"])


REFUSED = {"quality": 1.0, "cost_usd": 0.5, "note": "a key that nobody knows"}


@pytest.mark.parametrize(
    "returned",
    [
        REFUSED,
        {"quality": 1.0, "cost_usd": 0.5, "outcomes": {"score": float("nan")}},
        {"quality": 1.0, "module_cost_usd": {"model": 0.5}, "tokens": {"model": (1, 1)}, "x": 0},
        {"quality": 1.0, "tokens": {"model": (4_000_000, 0)}, "x": 0},
        {"quality": 1.0, "module_cost_usd": {"model": 0.5}, "tokens": {"model": (1, 1)},
         "calls": {"model": 1.5}},
    ],
)  # fmt: skip
def test_what_a_refused_answer_has_cost_is_booked(returned, tmp_path):
    """The same program, started again, pays it again: the bill and the budget must know."""
    prices = {llm: LLMInfo(llm, 0.125, 1.0) for llm in ("mini", "pro")}
    for times in (1, 2):
        with pytest.raises(InputError, match="the system returned"):
            st.select(
                lambda *_: returned, models=["mini", "pro"], reference="mini", dataset=["x", "y"],
                budget_usd=9, max_quality_loss=0.1, prices=prices, run_dir=tmp_path,
            )  # fmt: skip
        assert sum(one.paid_usd for one in lost_in(tmp_path)) == pytest.approx(0.5 * times)


@pytest.mark.parametrize("leaves", [SystemExit, asyncio.CancelledError, StopIteration])
def test_what_a_call_that_leaves_says_to_have_cost_is_booked(leaves, tmp_path):
    """Another error takes the place of one that would end the search."""

    def app(models, text):
        error = leaves("enough")
        error.cost_usd = 0.5
        raise error

    with pytest.raises(RuntimeError, match="it raised"):
        st.select(
            app, models=["mini", "pro"], reference="mini", dataset=["x", "y"], budget_usd=9,
            max_quality_loss=0.1, run_dir=tmp_path,
        )  # fmt: skip
    assert [one.paid_usd for one in lost_in(tmp_path)] == [0.5]


@pytest.mark.parametrize(
    "cost",
    [
        {"cost_usd": 0.5},
        {"tokens": {"model": (4_000_000, 0)}},
        {"module_cost_usd": {"model": 0.5}, "tokens": {"model": (1, 1)}},
    ],
)
def test_what_a_run_without_an_outcome_has_cost_is_booked(cost, tmp_path):
    prices = {llm: LLMInfo(llm, 0.125, 1.0) for llm in ("mini", "pro")}
    with pytest.raises(InputError, match="the app says no 'score'"):
        st.select(
            lambda *_: {"quality": 1.0, **cost}, models=["mini", "pro"], reference="mini",
            dataset=["x", "y"], budget_usd=9, max_quality_loss=0.1, prices=prices,
            constraints=["score <= 3 cap 5"], run_dir=tmp_path,
        )  # fmt: skip
    assert sum(one.paid_usd for one in lost_in(tmp_path)) == pytest.approx(0.5)


@pytest.mark.parametrize("calls", [1.0, True, -1, float("nan"), "1", None])
def test_calls_are_whole_numbers(calls):
    with pytest.raises(InputError, match="must be whole numbers"):
        list(evaluator_that({**MEASURED, "calls": {"model": calls}}).evaluate([Request((0,), 0)]))


def test_calls_of_any_kind_can_be_written():
    found = list(
        evaluator_that({**MEASURED, "calls": {"model": np.int64(3)}}).evaluate([Request((0,), 0)])
    )
    assert Observation.from_json(found[0].to_json()) == found[0]


@pytest.mark.slow
def test_costs_and_tokens_need_no_price(tmp_path):
    """The result was lost at its end, because the bill wanted prices."""
    usd = {"mini-of-ours": 0.001, "pro-of-ours": 0.01}

    def app(models, text):
        cost, used = {"model": usd[models["model"]]}, {"model": (9, 9)}
        return {"output": text, "module_cost_usd": cost, "tokens": used}

    result = st.select(
        app, models=list(usd), reference="pro-of-ours", budget_usd=9, max_quality_loss=0.1,
        dataset=[(text, text) for text in "abcdefghijklmnopqrstuvwxyz"], run_dir=tmp_path,
        metric=st.metrics.exact_match,
    )  # fmt: skip
    assert result.choice == {"model": "mini-of-ours"}
