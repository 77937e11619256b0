"""A choice with fallbacks: what moves the endpoint to another configuration, and what does not."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from serve.fake_upstream import FakeUpstream, Say, Status
from serve.serve_cases import CHOICE, PATHS, body_of, message_of, post, serving, wait_until

from scope_torch.errors import InputError
from scope_torch.serve.endpoint import Endpoint

CHAT = PATHS[0]
CHOSEN = {"planner": "medium", "solver": "medium"}
NEXT = {"planner": "small", "solver": "tiny"}
LAST = {"planner": "large", "solver": "large"}


class Troubled:
    """Answers of an upstream some of whose LLMs fail."""

    def __init__(self, **of_llms: object) -> None:
        self.of_llms = {"vendor/small-1" if k == "small" else k: v for k, v in of_llms.items()}

    def __call__(self, request: dict) -> object:
        reply = self.of_llms.get(request["model"], Say())
        return reply() if callable(reply) else reply


@contextmanager
def failing(chain=(CHOSEN, NEXT, LAST), *, settings=None, **of_llms):
    """Upstream, endpoint and a clock in front of LLMs that fail."""
    now, (chosen, *fallbacks) = [1000.0], chain
    with (
        FakeUpstream(Troubled(**of_llms)) as upstream,
        serving(upstream.url, chosen=chosen, fallbacks=fallbacks, **(settings or {})) as endpoint,
    ):
        endpoint.chain._clock = lambda: now[0]
        yield upstream, endpoint, now


def ask(endpoint, module="planner", path=CHAT, **more):
    return post(f"{endpoint.url}/v1{path}", body_of(path, f"scope/{module}", **more))


def asked(upstream):
    return [request["model"] for request in upstream.requests]


def error(code, status=400):
    return Status(status, json.dumps({"error": {"message": "no", "code": code}}).encode())


TRIGGERS = {
    "500": Status(500), "502": Status(502), "503": Status(503), "529": Status(529),
    "408": Status(408), "404": error("model_not_found", 404), "410": Status(410),
    "429": Status(429, headers={"retry-after": "60"}),
    "429 ": Status(429, headers={"retry-after-ms": "9000"}),
    "model_decommissioned": error("model_decommissioned"),
    "model_not_found": error("model_not_found"),
    "502 ": error(502, 200),
    "connection": Say(cut_after=0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "stream"),
    [(reason, False) for reason in TRIGGERS]
    + [(reason, True) for reason in TRIGGERS if reason != "connection"],  # cut after its status
)
def test_what_moves_the_endpoint(reason, stream, caplog):
    with failing(medium=TRIGGERS[reason]) as (upstream, endpoint, _):
        got = ask(endpoint, stream=stream)
        assert asked(upstream) == ["medium", "vendor/small-1"]
        assert got.status == 200
        assert b"fine" in got.body
        assert b"[DONE]" in got.body or not stream
        assert endpoint.chain.active == 1
    bills, told = endpoint.ledger.by_llm(), reason.strip()
    assert {key: (b.calls, b.failed) for key, b in bills.items()} == {
        ("planner", "medium"): (1, 1), ("planner", "small"): (1, 0)
    }  # fmt: skip
    assert bills["planner", "medium"].cost_usd == bills["planner", "medium"].estimated_usd
    assert (bills["planner", "medium"].cost_usd > 0) == (reason == "connection")
    assert endpoint.ledger.by_module()["planner"].calls == 2
    assert endpoint.ledger.fallbacks() == {("planner", "medium", told): 1}
    (line,) = [r.getMessage() for r in caplog.records if "failed" in r.getMessage()]
    assert line == f"planner: 'medium' failed ({told}), so 'small' is asked"


@pytest.mark.parametrize(
    "reply",
    [
        *(Status(status, b'{"error": {"message": "no"}}') for status in (400, 402, 403, 413, 422)),
        Status(404, b'{"detail": "Not Found"}'), error("no_such_file", 404), error(404, 200),
        error("model_not_found", 403), error("context_length_exceeded"), error(400, 200),
        Status(401), Status(429), Status(429, headers={"retry-after": "2"}),
        Status(429, headers={"retry-after-ms": "2000"}),
        Status(301, headers={"location": "http://127.0.0.1:1/v1"}),
        Say('{"error": {"code": 503}}'),
    ],
)  # fmt: skip
def test_what_the_application_gets(reply):
    """It can mend these, or waits by itself; a redirect is the operator's."""
    with failing() as (upstream, endpoint, _):
        upstream.answer = lambda _: reply
        got = ask(endpoint)
        assert len(upstream.requests) == 1
        status = getattr(reply, "status", 200)
        assert got.status == (502 if status == 301 else status)
        assert endpoint.chain.active == 0
    assert endpoint.ledger.fallbacks() == {}


@pytest.mark.parametrize("path", PATHS)
def test_each_api_falls_back(path):
    with failing(medium=Status(503)) as (upstream, endpoint, _):
        assert ask(endpoint, path=path).status == 200
        assert asked(upstream) == ["medium", "vendor/small-1"]
        assert upstream.paths == [f"/v1{path}"] * 2


def test_a_second_429_is_one_too_many():
    with failing(medium=Status(429)) as (upstream, endpoint, now):
        assert [ask(endpoint).status, ask(endpoint).status] == [429, 200]
        assert asked(upstream) == ["medium", "medium", "vendor/small-1"]
        now[0] += 31
        assert ask(endpoint).status == 200
        now[0] += 31
        upstream.answer = lambda _: Say()
        assert ask(endpoint).status == 200
        for _ in range(2):
            upstream.answer = Troubled(medium=Status(429))
            assert ask(endpoint).status == 429  # it had answered since
            upstream.answer = lambda _: Say()
            assert ask(endpoint).status == 200
    with failing(medium=Status(429)) as (upstream, endpoint, now):
        assert ask(endpoint).status == 429
        now[0] += 31
        assert ask(endpoint).status == 429  # long ago


def test_a_timeout_moves_the_endpoint():
    gate = threading.Event()
    try:
        with failing(medium=Say(gate=gate), settings={"timeout_s": 1.0}) as (up, endpoint, _):
            assert ask(endpoint).status == 200
            assert asked(up) == ["medium", "vendor/small-1"]
            gate.set()
    finally:
        gate.set()
    assert endpoint.ledger.fallbacks() == {("planner", "medium", "timeout"): 1}
    assert endpoint.ledger.by_llm()["planner", "medium"].estimated_usd > 0  # it may be paid for


def test_a_stream_that_breaks_is_not_repeated():
    with failing(medium=Say("w " * 50, cut_after=20)) as (upstream, endpoint, _):
        got = ask(endpoint, stream=True)
        assert got.cut
        assert asked(upstream) == ["medium"]
        assert got.body.count(b"w ") >= 10
        assert not ask(endpoint, stream=True).cut
        assert asked(upstream) == ["medium", "vendor/small-1"]
    assert endpoint.ledger.fallbacks() == {}
    assert endpoint.ledger.by_llm()["planner", "medium"].failed == 1


def test_all_modules_follow_one_configuration():
    with failing(chain=(CHOSEN, NEXT), medium=Status(503)) as (upstream, endpoint, _):
        for module in ("planner", "solver", "planner", "solver"):
            assert ask(endpoint, module).status == 200
        assert asked(upstream) == ["medium", "vendor/small-1", "tiny", "vendor/small-1", "tiny"]
    assert endpoint.ledger.fallbacks() == {("planner", "medium", "503"): 1}


def test_after_the_cool_down_one_request_tries_the_choice():
    gate = threading.Event()
    with failing(chain=(CHOSEN, NEXT), medium=Status(503)) as (upstream, endpoint, now):
        ask(endpoint)
        now[0] += 29.9
        ask(endpoint)
        assert asked(upstream)[1:] == ["vendor/small-1"] * 2
        now[0] += 0.2
        ask(endpoint)  # it still fails
        assert asked(upstream)[3:] == ["medium", "vendor/small-1"]
        now[0] += 29.9
        ask(endpoint)
        assert asked(upstream)[5:] == ["vendor/small-1"]
        now[0] += 0.2
        upstream.answer = Troubled(medium=Say(gate=gate))
        with ThreadPoolExecutor(1) as pool:
            trying = pool.submit(ask, endpoint)
            wait_until(lambda: len(upstream.requests) == 7)
            ask(endpoint)  # the others wait for what it finds
            ask(endpoint, "solver")
            gate.set()
            assert trying.result().status == 200
        assert asked(upstream)[6:] == ["medium", "vendor/small-1", "tiny"]
        assert endpoint.chain.active == 0
        ask(endpoint, "solver")
        assert asked(upstream)[9:] == ["medium"]
    assert endpoint.ledger.fallbacks() == {("planner", "medium", "503"): 2}


def test_an_upstream_says_how_long_it_is_left_alone():
    limited = Status(429, headers={"retry-after": "120"})
    with failing(chain=(CHOSEN, NEXT), medium=limited) as (upstream, endpoint, now):
        ask(endpoint)
        for seconds, active in ((119, 1), (2, 0)):
            now[0] += seconds
            assert endpoint.chain.active == active
        upstream.answer = Troubled(medium=Status(503, headers={"retry-after": "9" * 30}))
        ask(endpoint)
        now[0] += 3601
        assert endpoint.chain.active == 0


def test_the_last_error_is_passed_on():
    """Then nobody tries the whole chain again for each request."""
    last = Status(500, b'{"error": {"message": "the last"}}', {"x-request-id": "r7"})
    trouble = {"medium": Status(503), "small": Status(410), "large": last}
    with failing(**trouble) as (upstream, endpoint, _):
        got = ask(endpoint)
        assert (got.status, message_of(got), got.headers["x-request-id"]) == (500, "the last", "r7")
        assert asked(upstream) == ["medium", "vendor/small-1", "large"]
        assert ask(endpoint).status == 503
        assert asked(upstream)[3:] == ["medium"]
        upstream.answer = lambda _: Say()
        assert ask(endpoint).status == 200  # the choice works again, and is asked
        assert (asked(upstream)[4:], endpoint.chain.active) == (["medium"], 0)
    assert endpoint.ledger.fallbacks() == {
        ("planner", "medium", "503"): 1, ("planner", "small", "410"): 1
    }  # fmt: skip


def test_an_upstream_that_is_away():
    with serving("http://127.0.0.1:1/v1", chosen=CHOSEN, fallbacks=[NEXT]) as endpoint:
        got = ask(endpoint)
    assert got.status == 502
    assert "cannot be reached" in message_of(got)
    bill = endpoint.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.cost_usd) == (2, 2, 0.0)
    assert endpoint.ledger.fallbacks() == {("planner", "medium", "connection"): 1}


def test_nobody_is_asked_for_an_application_that_has_hung_up():
    gate = threading.Event()

    def late():
        gate.wait(30)
        return Status(503)

    with failing(medium=late) as (upstream, endpoint, _):
        parts = urlsplit(endpoint.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        connection.request("POST", f"/v1{CHAT}", json.dumps(body_of(CHAT)).encode())
        wait_until(lambda: upstream.requests)
        connection.close()
        wait_until(lambda: not endpoint._server.server_state.connections)
        gate.set()
        wait_until(lambda: endpoint.ledger.by_module())
        wait_until(lambda: not endpoint._server.server_state.tasks)
        assert asked(upstream) == ["medium"]
        assert endpoint.chain.active == 1
    assert endpoint.ledger.fallbacks() == {}


def test_another_llm_is_another_request():
    with failing(medium=Status(503)) as (upstream, endpoint, _):
        url, key = f"{endpoint.url}/v1{CHAT}", {"Idempotency-Key": "k", "X-Title": "t"}
        assert post(url, body_of(CHAT), key).status == 200
        assert [h.get("idempotency-key") for h in upstream.headers] == ["k", None]
        assert [h["x-title"] for h in upstream.headers] == ["t", "t"]


def test_queries_of_a_search_have_no_fallback():
    with failing(medium=Status(503)) as (upstream, endpoint, _):
        with endpoint.query(CHOICE) as query:
            assert post(query.base_url + CHAT, body_of(CHAT)).status == 503
        assert asked(upstream) == ["medium"]
        assert endpoint.chain.active == 0
    assert query.ledger.by_llm()["planner", "medium"].failed == 1


def test_a_choice_without_fallbacks_is_served_as_before():
    with failing(chain=(CHOSEN,), medium=Status(503)) as (upstream, endpoint, _):
        assert [ask(endpoint).status for _ in range(3)] == [503] * 3
        upstream.answer = lambda _: Say()
        assert ask(endpoint, "solver").status == ask(endpoint).status == 200
        assert asked(upstream) == ["medium"] * 5


def test_the_body_follows_the_llm_that_is_asked():
    """Its name at the upstream, and what the price list says of it, are those of the fallback."""
    with failing(medium=Status(503)) as (upstream, endpoint, _):
        post(f"{endpoint.url}/v1{CHAT}", body_of(CHAT, metadata={"tag": "a"}, stream=True))
        first, second = upstream.requests
        assert second == {**first, "model": "vendor/small-1"}
        assert endpoint.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()["a"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fallbacks": [NEXT]}, "give chosen="),
        ({"chosen": CHOSEN, "fallbacks": [{"planner": "small"}]}, "LLM for each of"),
        ({"chosen": CHOSEN, "fallbacks": [{}]}, "no module has an LLM"),
        ({"chosen": CHOSEN, "fallbacks": [NEXT | {"solver": "nobody"}]}, "nobody"),
        ({"chosen": CHOSEN, "cool_down_s": -1}, "cool_down_s=-1 must be"),
        ({"chosen": CHOSEN, "cool_down_s": float("nan")}, "cool_down_s=nan must be"),
    ],
)
def test_fallbacks_that_cannot_be(settings, told):
    from serve.fake_upstream import prices

    with pytest.raises(InputError, match=told):
        Endpoint("http://127.0.0.1:1/v1", prices=prices(), **settings)


def test_a_fallback_that_the_api_cannot_ask_is_left_out(caplog):
    """Else an outage of the choice is an error of the request, and the last one is never asked."""
    cannot = {"planner": "small thinking_tokens=2000", "solver": "tiny"}
    with failing((CHOSEN, cannot, LAST), medium=Status(503)) as (upstream, endpoint, _):
        assert [ask(endpoint).status for _ in range(2)] == [200, 200]
        assert asked(upstream) == ["medium", "large", "large"]
    assert "fallback 'small thinking_tokens=2000' of 'planner' cannot be asked" in caplog.text
