"""compound_task: its settings, the measured reference, and bad input."""

import asyncio
import statistics

import pytest
from airport_llms import airport_llm, few_airports  # noqa: F401
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.errors import InputError
from scope_torch.llm.prices import load_llms
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.deployment import deploy
from scope_torch.tasks.live import compound_task

LLMS = ["SmolLM2-135M", "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B"]
MODULES = ("parse", "cloze", "answer")
PRICES = {name: llm for name, llm in load_llms("local_llms.toml").items() if name in LLMS}


@pytest.fixture(name="make")
def fixture_of_tasks(tmp_path):
    """Makes tasks, and closes them."""
    tasks = []

    def make(endpoint, store="replies.sqlite", llm=None, **settings):
        given = {
            "name": "airports",
            "dataset": "airport_city",
            "reference": [LLMS[-1]],
            "epsilon": 0.05,
            "price_file": "local_llms.toml",
            "llms": LLMS,
            "num_queries": 6,
            "llm": {"base_url": endpoint.url, "api_key_env": None, "store": str(tmp_path / store)}
            | {"backoff_s": 0.0, "retries": 1, **(llm or {})},
        }
        tasks.append(compound_task(**{**given, **settings}))
        return tasks[-1]

    yield make
    for task in tasks:
        asyncio.run(task.evaluator.client.close())
        task.evaluator.close()


@pytest.mark.slow
def test_a_task_on_the_airports(make):
    with FakeEndpoint(airport_llm) as endpoint:
        task = make(endpoint)
        billed = endpoint.billed_usd(PRICES)
        problem = task.problem
        assert isinstance(problem, SelectionProblem)
        assert (problem.modules, problem.llms) == (MODULES, (tuple(LLMS),) * 3)
        assert (problem.theta_ref, problem.num_queries) == ((2, 2, 2), 6)
        assert len(endpoint.requests) == 6 * 3
        assert problem.reference_cost_usd == pytest.approx(billed / 6)
        observed = list(task.evaluator.evaluate([Request((2, 2, 2), q) for q in range(6)]))
        assert len(endpoint.requests) == 18
        assert problem.reference_quality == statistics.fmean(o.quality for o in observed) > 0.5
        deployed = deploy(task.held_out(), (0, 2, 2))
        assert deployed["num_queries"] == 10
        assert 0.5 < deployed["quality"] <= 1
        asked, later = (
            {str(r["messages"]) for r in part if "Fill in" in str(r)}
            for part in (endpoint.requests[:18], endpoint.requests[18:])
        )
        assert (len(asked), len(later), asked & later) == (6, 10, set())


@pytest.mark.slow
def test_the_reference_is_measured_once(make):
    with FakeEndpoint(airport_llm) as endpoint:
        first = make(endpoint)
        asked = len(endpoint.requests)
        assert first.evaluator.client.billed_usd > 0
        second = make(endpoint)
        assert len(endpoint.requests) == asked
        assert second.problem == first.problem
        assert second.evaluator.fingerprint() == first.evaluator.fingerprint()
        assert second.evaluator.client.billed_usd == 0
        make(endpoint, store="new.sqlite")
        assert len(endpoint.requests) == 2 * asked


def test_a_known_reference_is_not_measured(make):
    with FakeEndpoint(airport_llm) as endpoint:
        task = make(endpoint, reference_quality=0.9, reference_cost_usd=0.25, reference=LLMS)
        assert endpoint.requests == []
    problem = task.problem
    assert (problem.reference_quality, problem.reference_cost_usd) == (0.9, 0.25)
    assert problem.theta_ref == (0, 1, 2)


@pytest.mark.slow
def test_a_candidate_may_have_factors(make):
    large, low = LLMS[2], f"{LLMS[2]} effort=low temperature=0.5"
    with FakeEndpoint(airport_llm) as endpoint:
        task = make(endpoint, llms=[*LLMS, low], reference=[low], num_queries=2)
        assert task.problem.llms == ((*LLMS, low),) * 3
        asked = [(r["model"], r["reasoning_effort"], r["temperature"]) for r in endpoint.requests]
        assert set(asked) == {(PRICES[large].model, "low", 0.5)}
        assert task.problem.reference_cost_usd == pytest.approx(endpoint.billed_usd(PRICES) / 2)
        list(task.evaluator.evaluate([Request((0, 0, 0), 0)]))
        assert "reasoning_effort" not in endpoint.requests[-1]


def test_a_refused_reference_is_one_line(make):
    with FakeEndpoint([Status(404, message="no such model")]) as endpoint:
        with pytest.raises(InputError, match=r"404 .no such model.*price list") as caught:
            make(endpoint)
        assert len(endpoint.requests) <= 8
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_settings_reach_the_client(make, monkeypatch):
    monkeypatch.setenv("AIRPORT_KEY", "sk-airports")
    llm = {"api_key_env": "AIRPORT_KEY", "concurrency": 3, "extra_body": {"cache_prompt": False}}
    with FakeEndpoint(airport_llm, key="sk-airports") as endpoint:
        task = make(endpoint, llm=llm)
        assert all(request["cache_prompt"] is False for request in endpoint.requests)
    assert task.evaluator.concurrency == 3
    assert endpoint.max_in_flight <= 3


def test_what_else_is_wrong_is_found_before_the_reference_is_paid(make):
    def refuse(problem):
        assert (problem.theta_ref, problem.num_queries) == ((2, 2, 2), 6)
        raise InputError("base='GPT-9'")

    with FakeEndpoint(airport_llm) as endpoint:
        with pytest.raises(InputError, match="GPT-9"):
            make(endpoint, before_paying=refuse)
        assert endpoint.requests == []


BAD = [
    ({"dataset": "port"}, "no data set 'port'", "airport_city"),
    ({"evaluator": "typo"}, "evaluator='typo'", "must be live or recorded"),
    ({"evaluator": "recorded"}, "no recorded runs of airports", "give task.table"),
    ({"llms": [*LLMS, "GPT-9"]}, "'GPT-9'", "there are"),
    ({"llms": [LLMS[0], *LLMS]}, "lists an LLM twice", LLMS[0]),
    ({"reference": ["GPT-9"]}, "'GPT-9' is not a candidate", "choose one of"),
    ({"reference": LLMS[:2]}, str(LLMS[:2]), "name one LLM for each of"),
    ({"reference": []}, "reference=[]", "name one LLM for each of"),
    ({"price_file": "absent.toml"}, "absent.toml", "cannot read"),
    ({"epsilon": 2.0}, "epsilon=2.0", "(0, 1)"),
    ({"num_queries": 0}, "num_queries=0", "at least one"),
    ({"num_queries": -1}, "num_queries=-1", "at least one"),
    ({"data": {"num_recrods": 2}}, "'num_recrods'", "num_records"),
    ({"system": {"slots": "x"}}, "'slots'", "takes no"),
    ({"dataset": "tde", "data": {"check_counts": "no"}}, "check_counts='no'", "true or false"),
    ({"reference_quality": 1.5, "reference_cost_usd": 1.0}, "reference_quality=1.5", "(0, 1]"),
    ({"reference_quality": 0.5}, "reference_cost_usd=None", "both, or neither"),
    ({"llm": {"base_url": None}}, "llm.base_url", "http://"),
    ({"llm": {"base_url": "localhost"}}, "base_url", "http"),
    ({"llm": {"typo": 1}}, "llm.typo", "not a setting"),
    ({"llm": {"concurrency": 0}}, "concurrency=0", "at least 1"),
    ({"llm": {"retries": -1}}, "retries=-1", "at least 0"),
    ({"llm": {"api_key_env": "UNSET_KEY"}}, "$UNSET_KEY is not set", "api_key_env"),
    ({"llm": {"store": "/dev/null/x"}}, "/dev/null", "name a"),
]


@pytest.mark.parametrize(("changes", "value", "mend"), BAD)
def test_bad_input_names_the_value_before_any_call(make, monkeypatch, changes, value, mend):
    monkeypatch.delenv("UNSET_KEY", raising=False)
    with FakeEndpoint(airport_llm) as endpoint:
        with pytest.raises(InputError) as caught:
            make(endpoint, **changes)
        assert endpoint.requests == []
    assert value in str(caught.value)
    assert mend in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_reference_with_lost_calls_sets_no_threshold(make):
    """They would count as wrong answers; the next run pays only for the lost calls."""
    lost = iter([True])

    def sometimes(request):
        return Status(400) if next(lost, False) else airport_llm(request)

    with FakeEndpoint(sometimes) as endpoint:
        with pytest.raises(InputError, match="1 calls of the reference gave no reply"):
            make(endpoint)
        asked = len(endpoint.requests)
        whole = make(endpoint).problem
        assert 1 <= len(endpoint.requests) - asked <= 3
    with FakeEndpoint(airport_llm) as endpoint:
        assert make(endpoint, store="other.sqlite").problem == whole
