"""A live search from the command line, on an endpoint of this machine."""

import itertools
import json
import socket
from collections import Counter
from pathlib import Path

import pytest
from airport_llms import airport_llm, few_airports  # noqa: F401
from live_cases import Script
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.cli import run as run_script
from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.observation import Observation

KEY = "sk-canary-0c4f7ad921"
BUDGET_USD = 0.0006


def arguments(url: str, *more: str) -> list[str]:
    fixed = ["task=airport_city", "evaluator=live", f"llm.base_url={url}", "llm.concurrency=8"]
    return [*fixed, "task.num_queries=12", "llm.backoff_s=0", f"budget_usd={BUDGET_USD}", *more]


class Airports(Script):
    """`Script`, but with the replies of `airport_llm`."""

    def __call__(self, request: dict):
        answer = super().__call__(request)
        return airport_llm(request) if isinstance(answer, str) else answer


def files(directory: str = "outputs") -> tuple[dict, list[Observation]]:
    """Content of result.json, without what may differ between equal runs, and the journal."""
    (path,) = Path(directory).rglob("result.json")
    result = json.loads(path.read_text())
    del result["timing"], result["paths"]
    return result, journal(directory)


def journal(directory: str = "outputs") -> list[Observation]:
    (path,) = Path(directory).rglob("journal.jsonl")
    return [Observation.from_json(line) for line in path.read_text().splitlines()]


def is_one_line(status: int, err: str) -> bool:
    lines = err.strip().splitlines()
    return status == 2 and len(lines) == 1 and lines[0].startswith("scope-torch: ")


@pytest.fixture(name="closed")
def fixture_of_closed_evaluators(monkeypatch) -> list[LiveEvaluator]:
    closed, close = [], LiveEvaluator.close

    def closing(self: LiveEvaluator) -> None:
        close(self)
        closed.append(self)

    monkeypatch.setattr(LiveEvaluator, "close", closing)
    return closed


@pytest.mark.slow
def test_a_live_search_finishes_and_is_not_repeated(cli, closed):
    with FakeEndpoint(airport_llm) as endpoint:
        status, out, err = cli(*arguments(endpoint.url))
        asked = len(endpoint.requests)
        assert (status, err) == (0, "")
        result, observations = files()
        assert cli(*arguments(endpoint.url))[0] == 0
        assert len(endpoint.requests) == asked > 60
    assert len(set(map(id, closed))) == 2
    assert endpoint.max_in_flight <= 8
    assert all(request["cache_prompt"] is False for request in endpoint.requests)
    assert "airport_city scope_joint seed 0: parse: " in out
    assert result["num_queries"] == 12
    assert 0.5 < result["reference_quality"] <= 1
    assert result["spend_usd"] + result["surplus_usd"] == pytest.approx(
        sum(o.cost_usd for o in observations)
    )
    assert result["stop_reason"] != "budget" or result["spend_usd"] > BUDGET_USD
    assert all(len(o.module_tokens) == len(o.module_cost_usd) == 3 for o in observations)
    assert Path("responses.sqlite").is_file()


@pytest.mark.slow
def test_deploy_evaluates_held_out_queries(cli, closed):
    with FakeEndpoint(airport_llm) as endpoint:
        assert cli(*arguments(endpoint.url, "deploy=true"))[0] == 0
        (path,) = Path("outputs").rglob("deployment.json")
        deployed = json.loads(path.read_text())
        asked = len(endpoint.requests)
        assert [len(evaluator.queries) for evaluator in closed] == [10, 12]
        assert cli(*arguments(endpoint.url, "deploy=true"))[0] == 0
        assert len(endpoint.requests) == asked
    for which in ("theta_out", "reference"):
        assert deployed[which]["num_queries"] == 10
        assert 0 <= deployed[which]["quality"] <= 1
        assert deployed[which]["cost_usd"] > 0
    assert deployed["theta_out"]["cost_usd"] <= deployed["reference"]["cost_usd"]


@pytest.mark.slow
def test_held_out_calls_without_a_reply_are_no_wrong_answers(cli):
    is_down, numbers = False, itertools.count()

    def answer(request: dict):
        return Status(500) if is_down and next(numbers) % 3 == 0 else airport_llm(request)

    with FakeEndpoint(answer) as endpoint:
        words = arguments(endpoint.url, "llm.retries=0")
        assert cli(*words)[0] == 0
        is_down = True
        status, _, err = cli(*words, "deploy=true")
        assert is_one_line(status, err)
        assert "calls on held-out queries gave no reply, so " in err
        assert not list(Path("outputs").rglob("deployment.json"))
        is_down = False
        assert cli(*words, "deploy=true")[0] == 0
    (path,) = Path("outputs").rglob("deployment.json")
    assert json.loads(path.read_text())["reference"]["quality"] > 0


@pytest.fixture(scope="module")
def kept() -> list:
    """The undisturbed run, made by the first test that asks for it."""
    return []


@pytest.fixture(name="whole")
def fixture_of_an_undisturbed_run(cli, kept) -> tuple[dict, list[Observation], Counter]:
    if not kept:
        script = Airports()
        with FakeEndpoint(script) as endpoint:
            store = "llm.store=whole.sqlite"
            assert cli(*arguments(endpoint.url, store, "output_dir=whole"))[0] == 0
        kept.append((*files("whole"), script.paid))
    return kept[0]


def seen(observations: list[Observation]) -> dict:
    return {o.request: (o.cost_usd, o.quality) for o in observations}


@pytest.mark.slow
def test_after_an_outage_the_same_command_goes_on(cli, whole):
    """The key is refused after 80 calls: 36 for the reference, the others for the search."""
    left = [80]

    def trouble(request: dict, number: int):
        left[0] -= 1
        return Status(401, message=f"Incorrect API key provided: {KEY}") if left[0] < 0 else None

    script = Airports(trouble)
    with FakeEndpoint(script) as endpoint:
        status, out, err = cli(*arguments(endpoint.url))
        assert is_one_line(status, err)
        assert "answered 401" in err
        assert KEY not in out + err
        assert not list(Path("outputs").rglob("result.json"))
        kept = journal()
        script.trouble = lambda *_: None
        assert cli(*arguments(endpoint.url))[0] == 0
    result, observations = files()
    assert 0 < len(kept) < len(observations)
    assert observations[: len(kept)] == kept
    assert result == whole[0]
    assert seen(observations) == seen(whole[1])
    assert script.paid == whole[2]


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(cli, whole, monkeypatch):
    left = [15]

    def observed(self, observation, spend_usd):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    script = Airports()
    with FakeEndpoint(script) as endpoint:
        with monkeypatch.context() as patch:
            patch.setattr(run_script.ProgressBar, "observed", observed)
            status, _, err = cli(*arguments(endpoint.url))
        assert status == 130
        assert "interrupted; the same command goes on" in err
        kept = journal()
        assert len(kept) >= 15
        assert cli(*arguments(endpoint.url))[0] == 0
    result, observations = files()
    assert result == whole[0]
    assert seen(observations) == seen(whole[1])
    assert script.paid == whole[2]


@pytest.fixture(name="dead_url")
def fixture_of_a_dead_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.mark.slow
def test_a_dead_port_is_one_line(cli, dead_url):
    status, out, err = cli(*arguments(dead_url, "llm.retries=0"))
    assert is_one_line(status, err)
    assert "was lost (ConnectError): see whether it runs, and base_url" in err
    assert out == ""
    assert not list(Path("outputs").rglob("journal.jsonl"))


@pytest.mark.slow
def test_a_tracker_that_is_lost_is_noticed_before_the_reference_is_paid(cli, dead_url):
    pytest.importorskip("mlflow")
    with FakeEndpoint(airport_llm) as endpoint:
        lost = "tracking=mlflow", f"tracking.uri={dead_url.removesuffix('/v1')}"
        status, _, err = cli(*arguments(endpoint.url, *lost))
        assert endpoint.requests == []
    assert is_one_line(status, err)
    assert "no server answers" in err
    assert "nothing was paid yet" in err


@pytest.mark.slow
def test_an_endpoint_that_only_fails_is_one_line(cli):
    with FakeEndpoint([Status(500)]) as endpoint:
        status, _, err = cli(*arguments(endpoint.url, "llm.retries=0"))
    assert is_one_line(status, err)
    assert "no call of the reference was answered; see whether" in err
    assert not list(Path("outputs").rglob("journal.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("llm.base_url=null", "llm.base_url"),
        ("llm.retires=2", "retires"),
        ("llm.timeout_s=0", "timeout_s=0"),
        ("llm.api_key_env=UNSET_KEY", "$UNSET_KEY"),
        ("evaluator=typo", "evaluator='typo'"),
        ("task.dataset=port", "no data set 'port'"),
        ("task.llms=[GPT-9]", "'GPT-9'"),
        ("task.reference=[GPT-9]", "'GPT-9'"),
        ("task.num_queries=0", "num_queries=0"),
        ("base=GPT-9", "'GPT-9'"),
        ("task.epsilon=1", "epsilon=1"),
        ('task.constraints=["latency_s <= 0.5 * reference cap 60"]', "write an absolute bound"),
        ("task.objective=pareto", "method=scope_front searches the front"),
        ("deployment_queries=0", "deployment_queries=0.0 must be a positive number"),
        ("budget_usd=0", "budget_usd=0.0 must be a positive number"),
        ("continue_from=nowhere", "continue_from=nowhere is not the directory of a run"),
    ],
)
def test_bad_settings_are_one_line_before_a_search(cli, monkeypatch, argument, named):
    monkeypatch.delenv("UNSET_KEY", raising=False)
    with FakeEndpoint(airport_llm) as endpoint:
        status, _, err = cli(*arguments(endpoint.url, argument))
        assert endpoint.requests == []
    assert is_one_line(status, err)
    assert named in err


@pytest.mark.slow
def test_a_method_that_continues_nothing_is_named_before_the_reference_is_paid(cli):
    with FakeEndpoint(airport_llm) as endpoint:
        more = "continue_from=outputs/june", "method=random_search"
        status, _, err = cli(*arguments(endpoint.url, *more))
        assert endpoint.requests == []
    assert is_one_line(status, err)
    assert "method=random_search uses no observations of earlier runs" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([], "the bound must lie in the range [0, 1] of latency_s"),
        (["method=abacus"], "abacus knows a bound on quality only"),
        (["method=cei"], "theta_0's average latency_s is not known"),
        (["method.certificate=population"], "take certificate=sequence"),
        (["task.objective=quality"], "cost_usd"),
    ],
)
def test_constraints_that_cannot_be_kept_are_named_before_the_reference_is_paid(cli, more, named):
    limit = "latency_s <= 5 cap 60" if more else "latency_s <= 5"
    with FakeEndpoint(airport_llm) as endpoint:
        status, _, err = cli(*arguments(endpoint.url, f"task.constraints=['{limit}']", *more))
        assert endpoint.requests == []
    assert is_one_line(status, err)
    assert named in err


@pytest.mark.slow
def test_the_key_is_in_no_file_and_no_output(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CANARY_KEY", KEY)
    with FakeEndpoint(airport_llm, key=KEY) as endpoint:
        status, out, err = cli(*arguments(endpoint.url, "llm.api_key_env=CANARY_KEY"))
        assert status == 0
        assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"journal.jsonl", "result.json", "responses.sqlite"} <= {p.name for p in written}
    assert not any(KEY.encode() in path.read_bytes() for path in written)
    assert KEY not in out + err
