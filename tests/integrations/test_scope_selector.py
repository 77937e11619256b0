"""ScopeSelector inside AgentOpt's package: its classes, its tracker, its reports."""

import logging
import os
import random
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from integration.doc_pages import DOCS, blocks
from llm.fake_endpoint import FakeEndpoint, count_tokens, only_loopback  # noqa: F401

import scope_torch as st
from scope_torch.integrations.agentopt import ScopeSelector
from scope_torch.llm.prices import LLMInfo

agentopt = pytest.importorskip(
    "agentopt", reason="agentopt-py is not installed: pip install 'scope-torch[peers]'"
)

ROOT = Path(__file__).resolve().parents[2]
# As in AgentOpt's list, which lacks o1; the published price of gpt-4o-mini is less than half.
USD_PER_MTOK = {"gpt-4o-mini": (0.4, 1.6), "gpt-4o": (2.5, 10.0), "o1": (15.0, 60.0)}
LLMS = list(USD_PER_MTOK)
SKILL = {"gpt-4o-mini": 0.7, "gpt-4o": 0.97, "o1": 1.0}
DATASET = [(f"question {i}", "yes") for i in range(40)]
PRICE_OF_O1 = {"o1": {"input_price": 15.0, "output_price": 60.0}}


def answer_of(llm, text):
    return "yes" if random.Random(f"{llm} {text}").random() < SKILL[llm] else "no"


def answer(request):
    return answer_of(request["model"], request["messages"][0]["content"])


@pytest.fixture
def server():
    with FakeEndpoint(answer) as serving:
        yield serving


@pytest.fixture
def client():
    with httpx.Client() as shared:
        yield shared


@pytest.fixture
def agent(server, client):
    """The class of an agent, as AgentOpt's users write it."""

    class PlanAndSolve:
        def __init__(self, models):
            self.models = models

        def ask(self, node, text):
            asked = {"model": self.models[node], "messages": [{"role": "user", "content": text}]}
            reply = client.post(f"{server.url}/chat/completions", json=asked)
            return reply.json()["choices"][0]["message"]["content"]

        def run(self, question):
            plan = self.ask("planner", f"Plan: {question}")
            return self.ask("solver", f"Solve: {question} by {plan}")

    return PlanAndSolve


def directly(models, question):
    """The same application for `select`, which wants tokens by module."""
    plan_text = f"Plan: {question}"
    plan = answer_of(models["planner"], plan_text)
    solve_text = f"Solve: {question} by {plan}"
    texts = {"planner": plan_text, "solver": solve_text}
    return answer_of(models["solver"], solve_text), {
        node: (count_tokens(text), 1) for node, text in texts.items()
    }


def arguments(agent, **more):
    given = {
        "agent": agent,
        "models": {"planner": LLMS, "solver": LLMS},
        "eval_fn": lambda expected, actual: expected == actual,
        "dataset": DATASET,
        "tracker": agentopt.LLMTracker(cache=False),
        "model_prices": PRICE_OF_O1,
    }
    return given | more


@pytest.fixture
def quiet(capsys):
    """Runs a selector; AgentOpt's own print while they work."""

    def results_of(selector, **flags):
        results = selector.select_best(**flags)
        capsys.readouterr()
        return results

    return results_of


@pytest.mark.parametrize("name", ["BruteForceModelSelector", "ScopeSelector"])
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


def test_the_page_shows_a_program_that_runs(agent, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for AgentOpt's cache
    (program,) = [b.content for b in blocks(DOCS / "howto/from-agentopt.md") if b.language == "py"]
    names = {"MyAgent": agent, "LLMS": ["gpt-4o-mini", "gpt-4o"], "dataset": DATASET}
    names["eval_fn"] = lambda expected, actual: expected == actual
    exec(program, names)
    printed = capsys.readouterr().out
    assert f"Best: {names['results'].get_best().model_name}" in printed
    assert "Use planner=" in printed or "Keep the reference" in printed


@pytest.mark.parametrize("seed", [0, 3])
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
        **settings,
    )
    assert results.get_best_combo() == expected.llms
    assert len(expected.history) > len(DATASET)
    for ours, theirs in zip(selector.result.history, expected.history, strict=True):
        assert ours.request == theirs.request
        assert ours.quality == theirs.quality
        assert ours.cost_usd == pytest.approx(theirs.cost_usd, rel=1e-12)
    assert selector.result.bill.total_usd == pytest.approx(expected.bill.total_usd, rel=1e-12)


def _facts(results):
    return [(one.model_name, one.accuracy, one.price, one.is_best) for one in results]


def test_parallel_asks_at_once_and_finds_the_same(agent, server, quiet):
    """One seed and one batch size give one result, at any concurrency."""
    alone = quiet(ScopeSelector(**arguments(agent), batch_size=4))
    assert server.max_in_flight == 1
    together = threading.Event()

    def wait_for_another(request):
        if server.in_flight > 1:
            together.set()
        together.wait(10)
        return answer(request)

    server._answer = wait_for_another
    selector = ScopeSelector(**arguments(agent), batch_size=4)
    many = quiet(selector, parallel=True, max_concurrent=4)
    assert together.is_set()
    assert 1 < server.max_in_flight <= 4
    assert _facts(many) == _facts(alone)


@pytest.mark.parametrize("parallel", [False, True])
def test_an_asynchronous_agent(agent, quiet, parallel):
    """AgentOpt's own selectors take one with parallel=True only."""

    class Asynchronous(agent):
        async def run(self, question):
            return super().run(question)

    expected = quiet(ScopeSelector(**arguments(agent), batch_size=1))
    found = quiet(ScopeSelector(**arguments(Asynchronous), batch_size=1), parallel=parallel)
    assert _facts(found) == _facts(expected)


def test_a_failed_sample_has_score_0_and_its_cost(agent, quiet, caplog):
    class Fragile(agent):
        def run(self, question):
            answer = super().run(question)
            if self.models["solver"] == "o1" and question == "question 7":
                raise TimeoutError(question)
            return answer

    only = {"planner": ["gpt-4o"], "solver": ["gpt-4o", "o1"]}
    theirs = quiet(agentopt.BruteForceModelSelector(**arguments(Fragile, models=only)))
    selector = ScopeSelector(
        **arguments(Fragile, models=only), reference={"planner": "gpt-4o", "solver": "o1"}
    )
    with caplog.at_level(logging.WARNING):
        ours = quiet(selector)
    left_out = next(one for one in theirs if "solver=o1" in one.model_name)
    counted = next(one for one in ours if "solver=o1" in one.model_name)
    assert (left_out.num_samples, counted.num_samples) == (39, 40)
    assert counted.datapoint_results[7].score == 0
    assert counted.datapoint_results[7].output_tokens == {"gpt-4o": 1, "o1": 1}
    assert counted.accuracy == pytest.approx(left_out.accuracy * 39 / 40)
    assert selector.result.num_failed == 1
    assert "1 failed" in str(selector.result)
    assert "1 samples failed and have score 0" in caplog.text


def test_a_combination_whose_agent_cannot_be_made_has_score_0(agent, quiet, caplog):
    class Picky(agent):
        def __init__(self, models):
            if models["solver"] == "gpt-4o-mini":
                raise ValueError("no tools")
            super().__init__(models)

    results = quiet(ScopeSelector(**arguments(Picky)))
    failed = [one for one in results if "solver=gpt-4o-mini" in one.model_name]
    assert failed
    assert {one.accuracy for one in failed} == {0.0}
    assert "solver=gpt-4o-mini] the agent cannot be made: no tools" in caplog.text
    assert results.get_best().accuracy > 0.9


def test_an_agent_is_made_once_for_a_combination(agent, quiet):
    made = []

    class Counted(agent):
        def __init__(self, models):
            made.append(tuple(models.values()))
            super().__init__(models)

    results = quiet(ScopeSelector(**arguments(Counted)), parallel=True, max_concurrent=4)
    assert len(made) == len(set(made)) == len(results)


def test_published_prices_stand_in_for_those_that_agentopt_lacks(agent, quiet):
    selector = ScopeSelector(**arguments(agent, model_prices=None))
    results = quiet(selector)
    assert (
        quiet(agentopt.BruteForceModelSelector(**arguments(agent, model_prices=None))) is not None
    )
    assert all(one.price is not None for one in results)
    assert results.selection_cost > 0
    assert selector.result.problem.theta_ref == (2, 2)  # o1, the dearest


def test_agentopts_cache_makes_replies_free_but_not_in_the_budget(agent, server, quiet):
    tracker = agentopt.LLMTracker(cache_dir=None)
    selector = ScopeSelector(**arguments(agent, tracker=tracker))
    results = quiet(selector)
    asked = {(r["model"], r["messages"][0]["content"]) for r in server.requests}
    assert len(server.requests) == len(asked)  # a plan that two combinations share is asked once
    assert results.selection_cost < selector.result.bill.total_usd


def test_a_run_goes_on_from_its_directory(agent, server, quiet, tmp_path):
    first = quiet(ScopeSelector(**arguments(agent), run_dir=tmp_path))
    asked = len(server.requests)
    selector = ScopeSelector(**arguments(agent), run_dir=tmp_path)
    again = quiet(selector)
    assert len(server.requests) == asked
    assert again.results == first.results
    assert _facts(again) == _facts(first)
    assert selector.result.replayed > 0


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


def test_min_quality_in_the_place_of_a_loss(agent, quiet):
    selector = ScopeSelector(**arguments(agent), min_quality=0.6)
    quiet(selector)
    assert selector.result.problem.s_0 == 0.6


def test_the_best_quality_within_bounds_on_cost_and_seconds(agent, quiet):
    limits = ["cost_usd <= 0.00005 cap 0.001", "latency_s <= 20 cap 100"]
    selector = ScopeSelector(**arguments(agent), objective="quality", constraints=limits)
    best = quiet(selector).get_best()
    assert best.price <= 0.00005  # o1 costs twice as much in either node
    every = quiet(agentopt.BruteForceModelSelector(**arguments(agent)))
    assert best.accuracy == max(one.accuracy for one in every if one.price <= 0.00005)


def test_a_tracker_that_another_selector_has_used(agent, quiet):
    expected = quiet(ScopeSelector(**arguments(agent)))
    tracker = agentopt.LLMTracker(cache=False)
    quiet(agentopt.BruteForceModelSelector(**arguments(agent, tracker=tracker)))
    selector = ScopeSelector(**arguments(agent, tracker=tracker))
    assert _facts(quiet(selector)) == _facts(expected)
    with pytest.raises(st.InputError, match=r"To select again, make another"):
        selector.select_best()


def test_candidates_that_are_objects(agent, quiet):
    """AgentOpt names them by `model` or the like."""

    class ByName(agent):
        def __init__(self, models):
            super().__init__({node: llm["model"] for node, llm in models.items()})

    objects = [{"model": name, "temperature": 0} for name in LLMS]
    models = {"planner": objects, "solver": objects}
    found = quiet(ScopeSelector(**arguments(ByName, models=models)))
    assert _facts(found) == _facts(quiet(ScopeSelector(**arguments(agent))))


def test_two_candidates_with_one_name_are_refused(agent):
    models = {"planner": [{"model": "o1", "top_p": p} for p in (0.5, 1)], "solver": LLMS}
    with pytest.raises(st.InputError, match=r"two candidates of 'planner' have the same name"):
        ScopeSelector(**arguments(agent, models=models)).select_best()


def test_an_unknown_price_is_refused_before_any_call(agent, server):
    models = {"planner": ["mine"], "solver": LLMS}
    with pytest.raises(st.InputError, match=r"no price is known for 'mine'; give model_prices="):
        ScopeSelector(**arguments(agent, models=models)).select_best()
    assert server.requests == []


def test_calls_that_the_tracker_cannot_see_are_refused_at_once(server):
    """As of openai >= 3, which sends by httpx2."""
    called = []

    class Unseen:
        def __init__(self, models):
            pass

        def run(self, question):
            called.append(question)
            return "yes"

    send = httpx.Client.send
    selector = ScopeSelector(**arguments(Unseen))
    with pytest.raises(st.InputError, match=r"saw no call of an LLM.*openai<3"):
        selector.select_best()
    assert len(called) == 1
    assert httpx.Client.send is send  # AgentOpt has taken its patch off


def test_unknown_settings_are_refused(agent):
    send = httpx.Client.send
    with pytest.raises(st.InputError, match=r"takes no concurrency, method; .*batch_size"):
        ScopeSelector(**arguments(agent), method="auto", concurrency=3)
    assert httpx.Client.send is send


def test_without_agentopt_the_selector_says_what_to_install():
    code = (
        "import sys; sys.modules['agentopt'] = None\n"
        "import scope_torch.integrations.agentopt as module\n"
        "module.ScopeSelector()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: ScopeSelector needs agentopt-py: pip install 'scope-torch[peers]'"
    )


def test_the_package_imports_no_agentopt():
    code = "import scope_torch, sys; scope_torch.select; print('agentopt' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


OPENAI_APP = """
import sys
from agentopt import LLMTracker
from openai import OpenAI
from scope_torch.integrations.agentopt import ScopeSelector

class Agent:
    def __init__(self, models):
        self.models, self.client = models, OpenAI(base_url=sys.argv[1], api_key="none")

    def run(self, question):
        messages = [{"role": "user", "content": question}]
        reply = self.client.chat.completions.create(model=self.models["solver"], messages=messages)
        return reply.choices[0].message.content

results = ScopeSelector(
    Agent, {"solver": ["gpt-4o-mini", "gpt-4o"]}, lambda expected, actual: expected == actual,
    [(f"question {i}", "yes") for i in range(30)], tracker=LLMTracker(cache=False),
).select_best()
print(results.get_best_combo(), results.selection_cost)
"""


def run_app(url, *folders):
    """The end of its output and of its errors."""
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])])
    done = subprocess.run(
        [sys.executable, "-c", OPENAI_APP, url],
        env={**os.environ, "PYTHONPATH": path, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(os.environ.get("SCOPE_OPENAI2", ""), "openai").is_dir(),
    reason="needs a folder with openai 2: pip install --target FOLDER 'openai<3'",
)
def test_agentopt_sees_the_calls_of_openai_2(server):
    printed, errors = run_app(server.url, os.environ["SCOPE_OPENAI2"])
    assert printed.startswith("{'solver': 'gpt-4o"), errors
    usd = server.billed_usd({name: LLMInfo(name, *price) for name, price in USD_PER_MTOK.items()})
    assert float(printed.split()[-1]) == pytest.approx(usd)


@pytest.mark.slow
def test_agentopt_sees_no_call_of_openai_3(server):
    if not version("openai").startswith("3."):
        pytest.skip(f"openai {version('openai')} is installed, not 3")
    printed, errors = run_app(server.url)
    assert printed == ""
    assert "AgentOpt's tracker saw no call of an LLM" in errors
    assert len(server.requests) == 1
