"""ScopeSelector where something is missing: samples, agents, prices, calls that nobody sees."""

import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from integrations.agentopt_cases import LLMS, USD_PER_MTOK, arguments, facts

import scope_torch as st
from scope_torch.integrations.agentopt import ScopeSelector
from scope_torch.llm.prices import LLMInfo

agentopt = pytest.importorskip(
    "agentopt", reason="agentopt-py is not installed: pip install 'scope-torch[peers]'"
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_agent_is_made_once_for_a_combination(agent, quiet):
    made = []

    class Counted(agent):
        def __init__(self, models):
            made.append(tuple(models.values()))
            super().__init__(models)

    results = quiet(ScopeSelector(**arguments(Counted)), parallel=True, max_concurrent=4)
    assert len(made) == len(set(made)) == len(results)


@pytest.mark.slow
def test_a_tracker_that_another_selector_has_used(agent, quiet):
    expected = quiet(ScopeSelector(**arguments(agent)))
    tracker = agentopt.LLMTracker(cache=False)
    quiet(agentopt.BruteForceModelSelector(**arguments(agent, tracker=tracker)))
    selector = ScopeSelector(**arguments(agent, tracker=tracker))
    assert facts(quiet(selector)) == facts(expected)
    with pytest.raises(st.InputError, match=r"To select again, make another"):
        selector.select_best()


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
