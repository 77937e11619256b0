"""ScopeSelector inside AgentOpt's package: its classes, its tracker, its reports."""

import threading

import pytest
from integration.doc_pages import DOCS, blocks
from integrations.agentopt_cases import (
    DATASET,
    LLMS,
    USD_PER_MTOK,
    answer,
    answer_of,
    arguments,
    facts,
)
from llm.fake_endpoint import count_tokens

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.integrations import agentopt as integration
from scope_torch.integrations.agentopt import ScopeSelector
from scope_torch.llm.prices import LLMInfo

agentopt = pytest.importorskip(
    "agentopt", reason="agentopt-py is not installed: pip install 'scope-torch[peers]'"
)


def directly(models, question):
    """The same application for `select`, which wants tokens by module."""
    plan_text = f"Plan: {question}"
    plan = answer_of(models["planner"], plan_text)
    solve_text = f"Solve: {question} by {plan}"
    texts = {"planner": plan_text, "solver": solve_text}
    return answer_of(models["solver"], solve_text), {
        node: (count_tokens(text), 1) for node, text in texts.items()
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param("BruteForceModelSelector", marks=pytest.mark.slow), "ScopeSelector"],
)
@pytest.mark.slow
def test_one_word_is_the_difference(name, agent, quiet, capsys, tmp_path):
    selector = getattr(agentopt, name, ScopeSelector)(**arguments(agent))
    assert isinstance(selector, agentopt.BaseModelSelector)
    results = quiet(selector)
    assert isinstance(results, agentopt.SelectionResults)
    best = results.get_best()
    assert isinstance(best, agentopt.ModelResult)
    assert [one.model_name for one in results if one.is_best] == [best.model_name]
    assert results.get_best_combo().keys() == {"planner", "solver"}
    assert set(results.get_best_combo().values()) <= set(LLMS)
    assert results.get_by_attribute("combination") == results.results
    assert best.num_samples == len(DATASET)
    assert [one.datapoint_index for one in best.datapoint_results] == list(range(len(DATASET)))
    assert best.accuracy == sum(one.score for one in best.datapoint_results) / len(DATASET)
    assert best.total_output_tokens == 2 * len(DATASET)
    assert best.latency_seconds > 0
    assert results.selection_wall_time_seconds > 0
    # Without AgentOpt's cache every call was paid.
    assert results.selection_cost == pytest.approx(sum(r.price * r.num_samples for r in results))

    results.print_summary()
    assert f"Best: {best.model_name}" in capsys.readouterr().out
    results.export_config(tmp_path / "models.yaml")
    text = (tmp_path / "models.yaml").read_text()
    assert f"#   solver: {results.get_best_combo()['solver']}" in text


@pytest.mark.slow
def test_reports_agree_with_brute_force(agent, quiet):
    """On combinations that answered all samples: accuracy, tokens and price are AgentOpt's own."""
    every = quiet(agentopt.BruteForceModelSelector(**arguments(agent)))
    ours = quiet(ScopeSelector(**arguments(agent)))
    known = {one.model_name: one for one in every}
    complete = [one for one in ours if one.num_samples == len(DATASET)]
    assert len(complete) >= 2  # the reference and the choice
    for one in complete:
        other = known[one.model_name]
        assert one.accuracy == pytest.approx(other.accuracy)
        assert one.price == pytest.approx(other.price)
        assert (one.input_tokens, one.output_tokens) == (other.input_tokens, other.output_tokens)
    threshold = 0.95 * known["planner=o1 + solver=o1"].accuracy  # the dearest is the reference
    enough = [one for one in every if one.accuracy >= threshold]
    assert ours.get_best().model_name == min(enough, key=lambda one: one.price).model_name
    assert ours.selection_cost < every.selection_cost


@pytest.mark.slow
def test_the_page_shows_a_program_that_runs(agent, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for AgentOpt's cache
    (program,) = [b.content for b in blocks(DOCS / "howto/from-agentopt.md") if b.language == "py"]
    names = {"MyAgent": agent, "LLMS": ["gpt-4o-mini", "gpt-4o"], "dataset": DATASET}
    names["eval_fn"] = lambda expected, actual: expected == actual
    exec(program, names)
    printed = capsys.readouterr().out
    assert f"Best: {names['results'].get_best().model_name}" in printed
    assert "Use planner=" in printed or "Keep the reference" in printed


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_choice_and_spend_are_those_of_select(agent, quiet, seed):
    settings = {"budget_usd": 0.05, "seed": seed, "deployment_queries": 10_000.0}
    selector = ScopeSelector(**arguments(agent), reference="o1", **settings)
    results = quiet(selector)
    expected = st.select(
        directly,
        models={"planner": LLMS, "solver": LLMS},
        dataset=DATASET,
        metric=lambda expected, output: expected == output,
        reference="o1",
        max_quality_loss=0.05,
        prices={name: LLMInfo(name, *usd) for name, usd in USD_PER_MTOK.items()},
        repeats=0,
        **settings,
    )
    assert results.get_best_combo() == expected.choice
    assert len(expected.history) > len(DATASET)
    for ours, theirs in zip(selector.result.history, expected.history, strict=True):
        assert ours.request == theirs.request
        assert ours.quality == theirs.quality
        assert ours.cost_usd == pytest.approx(theirs.cost_usd, rel=1e-12)
    assert selector.result.bill.total_usd == pytest.approx(expected.bill.total_usd, rel=1e-12)


@pytest.mark.slow
def test_parallel_asks_at_once_and_finds_the_same(agent, server, quiet):
    """One seed and one batch size give one result, at any concurrency."""
    alone = quiet(ScopeSelector(**arguments(agent), batch_size=4))
    assert server.max_in_flight == 1
    together = threading.Event()

    def wait_for_another(request):
        if server.in_flight > 1:
            together.set()
        together.wait(0.5)  # the first run of a selection is alone
        return answer(request)

    server._answer = wait_for_another
    selector = ScopeSelector(**arguments(agent), batch_size=4)
    many = quiet(selector, parallel=True, max_concurrent=4)
    assert together.is_set()
    assert 1 < server.max_in_flight <= 4
    assert facts(many) == facts(alone)


@pytest.mark.parametrize("parallel", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_an_asynchronous_agent(agent, quiet, parallel):
    """AgentOpt's own selectors take one with parallel=True only."""

    class Asynchronous(agent):
        async def run(self, question):
            return super().run(question)

    expected = quiet(ScopeSelector(**arguments(agent), batch_size=1))
    found = quiet(ScopeSelector(**arguments(Asynchronous), batch_size=1), parallel=parallel)
    assert facts(found) == facts(expected)


@pytest.mark.slow
def test_published_prices_stand_in_for_those_that_agentopt_lacks(agent, quiet):
    selector = ScopeSelector(**arguments(agent, model_prices=None))
    results = quiet(selector)
    few = arguments(agent, model_prices=None, dataset=DATASET[:3])
    assert quiet(agentopt.BruteForceModelSelector(**few)) is not None
    assert all(one.price is not None for one in results)
    assert results.selection_cost > 0
    assert selector.result.problem.theta_ref == (2, 2)  # o1, the dearest


@pytest.mark.slow
def test_agentopts_cache_makes_replies_free_but_not_in_the_budget(agent, server, quiet):
    tracker = agentopt.LLMTracker(cache_dir=None)
    selector = ScopeSelector(**arguments(agent, tracker=tracker))
    results = quiet(selector)
    asked = {(r["model"], r["messages"][0]["content"]) for r in server.requests}
    assert len(server.requests) == len(asked)  # a plan that two combinations share is asked once
    assert results.selection_cost < selector.result.bill.total_usd


@pytest.mark.slow
def test_a_run_goes_on_from_its_directory(agent, server, quiet, tmp_path):
    first = quiet(ScopeSelector(**arguments(agent), run_dir=tmp_path))
    asked = len(server.requests)
    selector = ScopeSelector(**arguments(agent), run_dir=tmp_path)
    again = quiet(selector)
    assert len(server.requests) == asked
    assert again.results == first.results
    assert facts(again) == facts(first)
    assert selector.result.replayed > 0


@pytest.mark.slow
def test_held_out_samples_and_callbacks(agent, quiet):
    ended = []

    class Ended(st.Callback):
        def end(self, result):
            ended.append(result)

    selector = ScopeSelector(**arguments(agent), holdout=0.25, callbacks=[Ended()])
    results = quiet(selector)
    assert len(ended) == 1
    assert selector.result.held_out.num_queries == 10
    numbers = [one.datapoint_index for one in results.get_best().datapoint_results]
    assert len(numbers) == 30
    assert numbers == sorted(numbers)
    assert max(numbers) > 30


@pytest.mark.slow
def test_min_quality_in_the_place_of_a_loss(agent, quiet):
    selector = ScopeSelector(**arguments(agent), min_quality=0.6)
    quiet(selector)
    assert selector.result.problem.s_0 == 0.6


def test_what_is_a_goal_for_quality():
    limits = {"constraints": ["answer_quality >= 0.5"]}
    assert integration._settings(None, 1.0, limits)["max_quality_loss"] == integration._LOSS
    limits = {"constraints": ["quality >= 0.5"]}
    assert integration._settings(None, 1.0, limits)["max_quality_loss"] is None


@pytest.mark.slow
def test_the_best_quality_within_bounds_on_cost_and_seconds(agent, quiet):
    limits = ["cost_usd <= 0.00005 cap 0.001", "latency_s <= 20 cap 100"]
    selector = ScopeSelector(**arguments(agent), objective="quality", constraints=limits)
    best = quiet(selector).get_best()
    assert best.price <= 0.00005  # o1 costs twice as much in either node
    every = quiet(agentopt.BruteForceModelSelector(**arguments(agent)))
    assert best.accuracy == max(one.accuracy for one in every if one.price <= 0.00005)


@pytest.mark.slow
def test_candidates_that_are_objects(agent, quiet):
    """AgentOpt names them by `model` or the like."""

    class ByName(agent):
        def __init__(self, models):
            super().__init__({node: llm["model"] for node, llm in models.items()})

    objects = [{"model": name, "temperature": 0} for name in LLMS]
    models = {"planner": objects, "solver": objects}
    found = quiet(ScopeSelector(**arguments(ByName, models=models)))
    assert facts(found) == facts(quiet(ScopeSelector(**arguments(agent))))


@pytest.mark.slow
def test_metric_version_is_the_users_and_a_judge_is_refused(agent, quiet):
    settings = {"reference": "o1", "budget_usd": 0.05, "seed": 0}
    selector = ScopeSelector(**arguments(agent), **settings, metric_version="of the user")
    assert quiet(selector).get_best_combo() == selector.result.choice
    with pytest.raises(InputError, match="ScopeSelector takes no judge"):
        ScopeSelector(**arguments(agent), **settings, judge="gpt-4o")


@pytest.mark.slow
def test_a_choice_that_an_earlier_search_knew_is_reported(agent, quiet, tmp_path):
    settings = {"reference": "o1", "seed": 0, "deployment_queries": 10_000.0}
    first = ScopeSelector(**arguments(agent), **settings, budget_usd=0.5, run_dir=tmp_path / "1")
    quiet(first)
    second = ScopeSelector(
        **{**arguments(agent), **settings},
        budget_usd=0.5,
        run_dir=tmp_path / "2",
        continue_from=tmp_path / "1",
    )
    assert quiet(second).get_best_combo() == second.result.choice
