"""Whole live runs with faults, failures and interrupts; nothing is paid for twice."""

import json
import math
import queue
import re
import threading
import zlib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from live_cases import (
    LLMS,
    Script,
    call_usd,
    identity,
    live_on,
    most_usd,
    prompt_of,
    say,
    search,
    sweep,
    values,
)
from llm.client_cases import all_said
from llm.fake_endpoint import (
    Cut,
    FakeEndpoint,
    Say,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.errors import InputError
from scope_torch.evaluators import window
from scope_torch.observation import Observation
from scope_torch.results.result import RunResult
from scope_torch.runs.callbacks import Callback

KEY = "sk-canary-55e0c1d7b4"


def journaled(run_dir) -> list[Observation]:
    return [Observation.from_json(x) for x in (run_dir / "journal.jsonl").read_text().splitlines()]


class Faults:
    """Faults in first attempts, chosen by the request; keeps the cost each answer should have."""

    kinds = (
        *("429", "500", "malformed", "empty", "no usage", "cut", "dropped", "refused"),
        *["fine"] * 12,
    )

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.exact_usd = self.estimated_usd = 0.0
        self._lock = threading.Lock()

    def __call__(self, request: dict, number: int):
        kind = self.kinds[zlib.crc32(f"{identity(request)} {number}".encode()) % len(self.kinds)]
        with self._lock:
            self.seen[kind] += 1
            if kind in ("malformed", "no usage", "cut", "dropped"):
                self.estimated_usd += most_usd(request)
            elif kind in ("fine", "empty"):
                self.exact_usd += call_usd(request, "" if kind == "empty" else None)
        return {
            "429": Status(429, headers={"Retry-After": "7"}),
            "500": Status(500, b"<html>"),
            "malformed": Status(200, b'{"choices": [{"mess'),
            "empty": Say(""),
            "no usage": Say(say(request), usage=None),
            "cut": Cut(say(request)),
            "dropped": Cut(of_body=0.0),
            "refused": Status(400),
        }.get(kind)


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.slow
def test_faults_sprinkled_over_a_run_of_scope(tmp_path, retries):
    faults, waits = Faults(), []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    settings = {"retries": retries, "backoff_s": 0.25, "sleep": sleep}
    with FakeEndpoint(Script(faults)) as endpoint, live_on(endpoint, tmp_path, **settings) as live:
        result = search(live, tmp_path / "run", budget_usd=0.01, batch_size=4)
        total = live.store.total_billed_usd()
    assert set(Faults.kinds) == set(faults.seen)
    assert len(result.history) > 20
    assert all(math.isfinite(o.cost_usd) and 0 <= o.quality <= 1 for o in result.history)
    assert {o.quality > 0 for o in result.history} == {True, False}
    # every answer was billed by the counted tokens, by the documented estimate, or not at all
    billed = faults.exact_usd + faults.estimated_usd
    assert live.client.billed_usd == pytest.approx(billed) == pytest.approx(total)
    assert live.client.estimated_usd == pytest.approx(faults.estimated_usd)
    assert live.store.billed_usd == pytest.approx(billed)
    spend = result.history.spend_usd + result.surplus_usd
    assert spend == pytest.approx(billed + live.store.replayed_usd)
    # after a 429 a call is sent again, even with no other retries
    assert (7.0 in waits, 0.25 in waits) == (True, retries > 0)
    # other requests wait for what is left of the 7 s, or for their turn
    retries_s = {7.0, *(0.25 * 2.0**number for number in range(20))}
    assert sum(wait in retries_s for wait in waits) == live.client.num_retries


class Whole(NamedTuple):
    """An undisturbed run, and the calls that it paid for."""

    result: RunResult
    paid: Counter


@pytest.fixture(scope="module", name="whole")
def fixture_of_an_undisturbed_run(tmp_path_factory) -> Whole:
    script = Script()
    with FakeEndpoint(script) as endpoint, live_on(endpoint, tmp_path_factory.mktemp("w")) as live:
        return Whole(search(live, None), script.paid)


class Outage:
    """Replies to so many requests, then answers with `trouble` until the test ends that."""

    def __init__(self, good: int, trouble: Status | Cut) -> None:
        self.good, self.trouble, self.mended = good, trouble, False
        self._lock = threading.Lock()

    def __call__(self, request: dict, number: int):
        with self._lock:
            self.good -= 1
            return None if self.mended or self.good >= 0 else self.trouble


@pytest.mark.parametrize(  # 30 of 429 take two minutes, nearly all of it waiting
    ("trouble", "failures"), [(Status(503), 30), (Status(429, headers={"Retry-After": "0"}), 8)]
)
@pytest.mark.slow
def test_a_short_outage_leaves_no_trace_in_the_result(tmp_path, whole, trouble, failures):
    """It ends before it is fatal; calls that failed are sent again, not counted as wrong."""
    outage = Outage(25, trouble)

    def until_mended(request: dict, number: int):
        outage.mended = outage.mended or outage.good < -failures
        return outage(request, number)

    script = Script(until_mended)
    with FakeEndpoint(script) as endpoint, live_on(endpoint, tmp_path, retries=1) as live:
        result = search(live, tmp_path / "run")
    assert outage.good < -failures
    assert values(result) == values(whole.result)
    assert script.paid == whole.paid


ENDS = [
    (Status(401, message="no"), {}, "401: it does not accept the key"),
    pytest.param(Status(403), {}, "answered 403", marks=pytest.mark.slow),
    (Status(404, message="The model m0 does not exist"), {}, "The model m0 does not exist"),
    pytest.param(Status(402), {}, "no credit is left", marks=pytest.mark.slow),
    # One, or more that were in flight.
    (Status(503), {"max_failures_in_a_row": 1}, "calls in a row have failed"),
    (Cut(of_body=0.0), {"max_failures_in_a_row": 1}, "was lost"),
]


@pytest.mark.parametrize(("trouble", "settings", "message"), ENDS)
@pytest.mark.parametrize("good", [25])
@pytest.mark.slow
def test_a_run_that_an_outage_ends_is_resumed_to_the_same_result(
    tmp_path, whole, trouble, settings, message, good
):
    outage = Outage(good, trouble)
    script = Script(outage)
    with FakeEndpoint(script) as endpoint:
        with live_on(endpoint, tmp_path, **settings) as live:
            with pytest.raises(InputError) as caught:
                search(live, tmp_path / "run")
            assert message in str(caught.value)
            assert "\n" not in str(caught.value)
            billed = live.store.billed_usd
        kept = len(journaled(tmp_path / "run"))
        outage.mended = True
        with live_on(endpoint, tmp_path, **settings) as live:
            again = search(live, tmp_path / "run")
            billed += live.store.billed_usd
            assert live.store.total_billed_usd() == pytest.approx(billed)
    assert values(again) == values(whole.result)
    assert again.recommendation == whole.result.recommendation
    assert again.replayed == kept
    assert (kept > 0) == (good > 0)
    assert script.paid == whole.paid


@pytest.mark.parametrize("status", [401, 404])
def test_what_was_in_flight_when_a_call_failed_for_good_is_journaled(tmp_path, status):
    """One query fails in its first call; the other three of the window end after that."""
    failed = threading.Event()

    def trouble(request: dict, number: int):
        if "query1 " in prompt_of(request):
            failed.set()
            return Status(status)
        assert failed.wait(20)
        return None

    raises = pytest.raises(InputError, match=str(status))
    with FakeEndpoint(Script(trouble)) as endpoint, live_on(endpoint, tmp_path) as live, raises:
        sweep(live, tmp_path / "run")
    kept = journaled(tmp_path / "run")
    # only requests taken before the failing call had failed
    assert {0, 2, 3} <= {o.query for o in kept} <= {0, 2, 3, 4, 5}
    assert all(o.quality > 0 for o in kept)


class Interrupting(Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def observed(self, observation, spend_usd):
        self.after -= 1
        if self.after == 0:
            raise KeyboardInterrupt


def interrupted_wait(monkeypatch, after: int) -> None:
    """The user presses Ctrl-C in the wait for a call."""

    class Interrupted(queue.SimpleQueue):
        waits = 0

        def get(self, timeout: float):
            Interrupted.waits += 1
            if Interrupted.waits == after:
                raise KeyboardInterrupt
            return super().get()

    fake = SimpleNamespace(SimpleQueue=Interrupted, Empty=queue.Empty)
    monkeypatch.setattr(window, "queue", fake)


@pytest.mark.parametrize(("where", "after"), [("callback", 1), ("wait", 9), ("callback", 18)])
@pytest.mark.slow
def test_after_ctrl_c_nothing_is_paid_twice(tmp_path, whole, monkeypatch, where, after):
    script = Script()
    with FakeEndpoint(script) as endpoint:
        with live_on(endpoint, tmp_path) as live, monkeypatch.context() as patch:
            if where == "wait":
                interrupted_wait(patch, after)
            callbacks = [Interrupting(after)] if where == "callback" else []
            with pytest.raises(KeyboardInterrupt):
                search(live, tmp_path / "run", callbacks)
            assert live.client.in_flight == live.store.in_flight == 0
        kept = journaled(tmp_path / "run")
        assert len(kept) >= after - (where == "wait")
        # every paid call belongs to an observation that was kept
        assert sum(sum(o.module_cost_usd) for o in kept) == pytest.approx(
            live.store.billed_usd + live.store.replayed_usd
        )
        with live_on(endpoint, tmp_path) as live:
            again = search(live, tmp_path / "run")
    assert again.replayed == len(kept)
    assert values(again) == values(whole.result)
    assert script.paid == whole.paid


@pytest.mark.slow
def test_after_ctrl_c_in_a_batch_calls_in_flight_are_journaled(tmp_path):
    script = Script()
    with FakeEndpoint(script) as endpoint:
        with live_on(endpoint, tmp_path) as live, pytest.raises(KeyboardInterrupt):
            sweep(live, tmp_path / "run", callbacks=[Interrupting(1)])
        kept, asked = journaled(tmp_path / "run"), dict(script.asked)
        assert 1 <= len(kept) < 12
        with live_on(endpoint, tmp_path) as live:
            result = sweep(live, tmp_path / "run")
            assert result.replayed == len(kept)
    assert len(result.history) == 12
    assert max(script.asked.values()) == 1
    assert len(asked) < len(script.asked)


@pytest.mark.slow
def test_a_journal_is_resumed_from_another_place_but_not_with_other_prices(tmp_path):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        whole = sweep(live, tmp_path / "run")
    with FakeEndpoint(say) as other:
        with live_on(other, tmp_path, store="new", concurrency=1) as live:
            again = sweep(live, tmp_path / "run")
        assert values(again) == values(whole)
        dearer = {**LLMS, "llm0": replace(LLMS["llm0"], output_usd_per_mtok=9.0)}
        raises = pytest.raises(InputError, match="other settings: evaluator")
        with live_on(other, tmp_path, llms=dearer) as live, raises:
            sweep(live, tmp_path / "run")
        assert other.requests == []


@pytest.mark.slow
def test_a_journal_is_resumed_with_its_metric_alone(tmp_path, caplog):
    """The prices and the queries are the same; an earlier version did not record the metric."""
    with FakeEndpoint(say) as endpoint:
        with live_on(endpoint, tmp_path) as live:
            whole = sweep(live, tmp_path / "run")
        requests = len(endpoint.requests)
        with (
            live_on(endpoint, tmp_path, metric=lambda *_: 1.0, store="new") as live,
            pytest.raises(InputError, match=r"the metric was grade \w+, now .*Restore the metric"),
        ):
            sweep(live, tmp_path / "run")
        path = tmp_path / "run" / "settings.json"
        hashed = r', graded by grade \w+|,\s*"hash": "\w+"'
        path.write_text(re.sub(hashed, "", path.read_text()))
        with live_on(endpoint, tmp_path, store="new") as live:
            assert values(sweep(live, tmp_path / "run")) == values(whole)
        assert len(endpoint.requests) == requests
    assert "recorded less of the metric" in caplog.text
    assert ", graded by grade " in path.read_text()


@pytest.mark.slow
def test_the_key_is_nowhere(tmp_path, monkeypatch, capsys, caplog):
    """Neither in files nor in output, of a run that fails and of one that succeeds."""
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    caplog.set_level("DEBUG")
    troubles = [Status(500, message=f"bad key {KEY}"), Status(429, message=KEY), Status(400)]
    said = []
    for number, trouble in enumerate([*troubles, Status(401, message=f"Incorrect key: {KEY}")]):
        script, folder = Script(Outage(5 * number, trouble)), tmp_path / str(number)
        settings = {"key": "CANARY_API_KEY", "max_failures_in_a_row": 3}
        with FakeEndpoint(script, key=KEY) as endpoint:
            with live_on(endpoint, folder, **settings) as live:
                with pytest.raises(InputError) as caught:
                    search(live, folder / "run")
                said += [all_said(caught.value), repr(live.client), repr(live.store)]
            assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
            script.trouble = lambda *_: None
            with live_on(endpoint, folder, **settings) as live:
                sweep(live, folder / "good")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"journal.jsonl", "settings.json", "result.json", "replies.sqlite"} <= names
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    texts = [*said, *capsys.readouterr(), caplog.text]
    assert [text for text in texts if KEY in text] == []
    assert any("answered 401" in text for text in said)


@pytest.mark.slow
def test_results_and_settings_name_no_address(tmp_path):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        sweep(live, tmp_path / "run")
    for name in ("settings.json", "result.json"):
        assert endpoint.url not in json.dumps(json.loads((tmp_path / "run" / name).read_text()))
