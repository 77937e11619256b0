"""The same application by a function, by the endpoint and as a command, as a newcomer connects it.

The lines are those of docs/howto/your-application.md.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from long_runs import among_others, only_long
from openai import OpenAI
from selection import planner_solver, world
from serve.fake_upstream import LLMS, FakeUpstream

import scope_torch as st
from scope_torch.serve.current import base_url

APPLICATION = Path(planner_solver.__file__)
PAGE = Path(__file__).resolve().parents[2] / "docs/howto/your-application.md"
CONCEPTS = ["app", "models", "dataset", "metric", "reference", "budget"]


@pytest.fixture
def upstream():
    with world.upstream() as upstream:
        yield upstream


def adapters():
    """The functions `app` of the page, in its order."""
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("def app(")]


def adapter(number, upstream):
    names = {
        "OpenAI": lambda base_url=upstream.url, api_key="-": OpenAI(
            base_url=base_url, api_key=api_key
        ),
        "plan_and_solve": planner_solver.plan_and_solve,
        "base_url": base_url,
    }
    exec(compile(adapters()[number], PAGE.name, "exec"), names)
    return names["app"]


def selected(app, tmp_path, questions=world.QUESTIONS, llms=world.LLM_NAMES, **changes):
    return st.select(
        app,
        models={"planner": llms, "solver": llms},
        dataset=questions,
        metric=st.metrics.exact_match,
        reference="large",
        max_quality_loss=0.1,
        budget_usd=5,
        name="planner_solver",
        run_dir=tmp_path / "run",
        **changes,
    )


@pytest.mark.parametrize(("number", "most_lines"), [(0, 8), (1, 3)])
def test_few_lines_connect_an_application(number, most_lines):
    assert len(adapters()) == 2
    assert len(adapters()[number].strip().splitlines()) <= most_lines


def test_the_rule_of_the_page_allows_its_reference():
    (rule,) = re.findall(r"`allowed=(lambda .*?)`", PAGE.read_text())
    assert eval(rule)({"planner": "large", "solver": "large"})
    assert not eval(rule)({"planner": "large", "solver": "small"})


def test_six_words_are_enough():
    words = re.findall(r"\*\*(\w+)\*\*", PAGE.read_text().partition("## 1.")[0])
    assert words == CONCEPTS


@pytest.mark.parametrize("concurrency", [among_others(1), 8])
@pytest.mark.slow
def test_by_tokens_with_prices_and_measured(concurrency, upstream, tmp_path):
    """The same choice, and the bill of the upstream to the last digit."""
    for number, changes in enumerate([{"prices": dict(LLMS)}, {"endpoint": endpoint(upstream)}]):
        upstream.served.clear()
        app = adapter(number, upstream)
        result = selected(app, tmp_path / str(number), concurrency=concurrency, **changes)
        assert result.certified
        assert result.choice == {"planner": "medium", "solver": "medium"}
        billed = upstream.usd_by_tag()[""]
        if number:
            assert result.bill.total_usd == pytest.approx(billed, rel=1e-12)
        else:  # the app returns no cached tokens, so they are priced as fresh ones
            assert result.bill.total_usd > billed


@pytest.mark.slow
def test_an_upper_estimate_is_told(tmp_path, caplog):
    def answer(request):
        return world.answer(request)._replace(tells_usage=False)

    with FakeUpstream(answer) as silent:
        result = selected(
            adapter(1, silent), tmp_path, world.QUESTIONS[:5], endpoint=endpoint(silent)
        )
        assert result.bill.total_usd > silent.usd_by_tag()[""]
    assert "USD of the bill are an upper estimate" in caplog.text


def endpoint(upstream):
    return st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS)))


@only_long
@pytest.mark.slow
def test_a_command_without_a_line_of_adapter(upstream, tmp_path, monkeypatch):
    monkeypatch.setenv("PLANNER_MODEL", "scope/planner")
    monkeypatch.setenv("SOLVER_MODEL", "scope/solver")
    command = [sys.executable, str(APPLICATION), "{input}"]
    # Few, as a process takes a second to import its client.
    few, llms = world.QUESTIONS[1:9], world.LLM_NAMES[1:]
    result = selected(command, tmp_path, few, llms, endpoint=endpoint(upstream), concurrency=2)
    assert result.choice == {"planner": "medium", "solver": "medium"}
    assert result.bill.total_usd == pytest.approx(upstream.usd_by_tag()[""], rel=1e-12)
    assert "OPENAI_BASE_URL" not in os.environ
    # Each call of a module is on its account.
    for observation in result.history:
        assert sum(observation.module_cost_usd) == pytest.approx(observation.cost_usd, rel=1e-12)
        assert all(prompt > 0 for prompt, _ in observation.module_tokens)


def test_the_application_knows_nothing_of_the_package():
    assert "scope" not in APPLICATION.read_text()
