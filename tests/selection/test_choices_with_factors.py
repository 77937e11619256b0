"""`select` where a module chooses LLM, effort and prompt: the same facts on every way through."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

import scope_torch as st
from scope_torch.factors import product

USD, STEPS = {"nano": 0.0002, "mini": 0.001, "pro": 0.01}, {"low": 1, "high": 3}
SKILL = {"nano": 0.5, "mini": 0.92, "pro": 0.97}
PLAN = {"llm": list(USD), "effort": list(STEPS), "prompt": ["v1", "v2"]}
REFERENCE = {"plan": "pro effort=high prompt=v2", "answer": "mini"}


def app(models, question):
    plan = models["plan"]
    skill = SKILL[plan.llm] * (1 if plan.prompt == "v2" else 0.7)
    is_right = random.Random(f"{plan.llm} {question}").random() < skill
    return question.upper() if is_right else "?", USD[plan.llm] * STEPS[plan.effort] + 0.0001


def arguments(**changes):
    questions = [f"question {i}" for i in range(40)]
    given = {
        "models": {"plan": PLAN, "answer": ["nano", "mini"]},
        "dataset": [(one, one.upper()) for one in questions],
        "metric": st.metrics.exact_match,
        "reference": REFERENCE,
        "max_quality_loss": 0.1,
        "budget_usd": 8,
        "deployment_queries": 1000,
        "progress": False,
    }
    return given | changes


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return st.select(app, **arguments(run_dir=tmp_path_factory.mktemp("run")))


@pytest.mark.slow
def test_a_choice_is_found_and_says_its_factors(result):
    assert result.choice["plan"] == "mini effort=low prompt=v2"
    assert result.choice["plan"].prompt == "v2"
    assert "Use plan=mini effort=low prompt=v2, answer=" in str(result)
    settings = json.loads((result.run_dir / "settings.json").read_text())
    assert settings["optimizer"]["kernel"]["name"] == "FactorKernel"


def test_the_preflight_asks_each_value_once(result):
    """Theta_0; nano, mini, low, v2 with the other LLM of `answer`, and it is 5 runs, not 12."""
    plan = st.select(app, **arguments(), dry_run=True)
    assert "in 5 runs" in str(plan)
    assert plan.num_configurations == 24


@pytest.mark.slow
def test_it_goes_on_where_it_was(result, tmp_path):
    again = st.select(app, **arguments(run_dir=result.run_dir))
    assert again.choice == result.choice
    assert [*again.history] == [*result.history]


@pytest.mark.slow
def test_lists_of_choices_and_other_threads_are_the_same(result):
    same = arguments(
        models={"plan": product(**PLAN), "answer": ["nano", "mini"]},
        reference=[product(**PLAN)[-1], "mini"],
        executor=ThreadPoolExecutor,
    )
    found = st.select(app, **same)
    assert found.choice == result.choice
    assert [*found.history] == [*result.history]


@pytest.mark.slow
def test_a_rule_reads_where_an_llm_runs():
    """Mini runs in the US alone, so the next best is chosen."""
    regions = {"nano": "eu", "mini": "us", "pro": "eu"}
    plan = [st.LLM(one, prompt="v2", effort="low", region=regions[one]) for one in PLAN["llm"]]
    found = st.select(
        app,
        **arguments(
            models={"plan": plan, "answer": ["mini"]},
            reference=[plan[-1], "mini"],
            allowed=lambda llms: llms["plan"].region == "eu",
        ),
    )
    assert found.choice["plan"].region == "eu"
    assert {found.problem.names(o.theta)["plan"].region for o in found.history} == {"eu"}


@pytest.mark.parametrize("name", ["models.json", "models.yaml", "scope.env", "report.html"])
def test_files_say_the_factors(result, name, tmp_path):
    path = result.save(tmp_path / name)
    if name == "report.html":
        assert "mini effort=low prompt=v2" in path.read_text()
        return
    read = st.load_models(path)
    assert read == result.choice
    assert (read["plan"].llm, read["plan"].effort, read["plan"].prompt) == ("mini", "low", "v2")
    assert type(read["answer"]) is str


def test_litellm_is_told_what_it_knows(tmp_path):
    models = {
        "plan": st.LLM("gpt-5.2", effort="low", max_tokens=500),
        "think": st.LLM("claude-haiku-4-5", thinking_tokens=2048, temperature=1),
        "quick": st.LLM("claude-haiku-4-5", thinking_tokens=0),
        "answer": "gpt-5-nano",
    }
    from scope_torch.results.saving import save_models

    path = save_models(tmp_path / "litellm.yaml", models, {})
    listed = yaml.safe_load(path.read_text())["model_list"]
    claude = "anthropic/claude-haiku-4-5"
    assert [entry["litellm_params"] for entry in listed] == [
        {"model": "openai/gpt-5.2", "reasoning_effort": "low", "max_tokens": 500},
        {"model": claude, "temperature": 1, "thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"model": claude, "thinking": {"type": "disabled"}},
        {"model": "openai/gpt-5-nano"},
    ]
    read = st.load_models(path)
    assert read["think"].factors == {"temperature": 1, "thinking_tokens": 2048}
    assert read["quick"].factors == {"thinking_tokens": 0}
    assert read["plan"].factors == {"effort": "low", "max_tokens": 500}
    with pytest.raises(st.InputError, match=r"LiteLLM knows no prompt.*\.json"):
        save_models(tmp_path / "litellm.yaml", {"plan": st.LLM("mini", prompt="v1")}, {})


def test_a_gate_reads_the_factors_from_names(result, tmp_path):
    path = result.save(tmp_path / "models.json")
    given = {key: arguments()[key] for key in ("dataset", "metric", "progress")}
    new = {"plan": "nano effort=low prompt=v2", "answer": "nano"}
    found = st.check(app, new, reference=path, max_quality_loss=0.1, budget_usd=3, **given)
    assert found.verdict == "fail"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": {"plan": {"effort": ["low"]}, "answer": ["nano"]}}, "need llm"),
        ({"models": {"plan": {"llm": "nano"}, "answer": ["nano"]}}, "llm='nano': give the list"),
        ({"reference": {"plan": "pro", "answer": "mini"}}, "'pro', which is not among"),
        ({"models": PLAN, "reference": "pro"}, "factors need a module, models={'answer': {'llm':"),
    ],
)
def test_wrong_factors_are_named(changes, message):
    with pytest.raises(st.InputError, match=message):
        st.select(app, **arguments(**changes))
