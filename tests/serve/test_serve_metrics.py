"""`GET /metrics`: read back by the rules of Prometheus' text format; who gets it."""

import re

import pytest
from serve.fake_upstream import FakeUpstream, Say, Status
from serve.serve_cases import CHOICE, PATHS, body_of, post, serving

from scope_torch.llm.billing import Usage
from scope_torch.serve.ledger import Ledger
from scope_torch.serve.metrics import metrics_text

SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"\n]|"(?:[^"\\\n]|\\[\\"n])*")*)\})? (\S+)'
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
MEANS = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parsed(text: str) -> dict:
    """{(name, labels): value}; each line is a comment or a sample, and each name has one type."""
    assert text.endswith("\n")
    found, types = {}, {}
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            kind, name, about = line[2:].split(" ", 2)
            assert kind in ("HELP", "TYPE")
            if kind == "TYPE":
                assert name not in types
                types[name] = about
            continue
        name, inside, value = SAMPLE.fullmatch(line).groups()
        pairs, rest = [], inside or ""
        while rest:
            label = LABEL.match(rest)
            meant = re.sub(r"\\.", lambda sign: MEANS[sign[0]], label[2])
            pairs.append((label[1], meant))
            rest = rest[label.end() :]
        key = name, *(text for _, text in pairs)
        assert key not in found
        assert types[name] == ("counter" if name.endswith("_total") else "gauge")
        found[key] = float(value)
    return found


def scraped(endpoint, headers=None):
    return post(f"{endpoint.url}/metrics", b"", headers or {}, method="GET")


def test_what_was_billed_is_told(upstream):
    chosen = {"planner": "medium", "solver": "large"}
    nexts = [{"planner": "small", "solver": "tiny"}]
    with serving(upstream.url, chosen=chosen, fallbacks=nexts) as endpoint:
        assert parsed(scraped(endpoint).body.decode()) == {("scope_torch_active_entry",): 0.0}
        url = f"{endpoint.url}/v1{PATHS[0]}"
        post(url, body_of(PATHS[0]))
        upstream.answer = lambda r: Status(503) if r["model"] == "medium" else Say()
        for module in ("planner", "planner", "solver"):
            assert post(url, body_of(PATHS[0], module)).status == 200
        got = scraped(endpoint)
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(got.body.decode())
    assert found["scope_torch_active_entry",] == 1
    assert found["scope_torch_fallbacks_total", "planner", "medium", "503"] == 1
    names = {"calls", "failed", "prompt_tokens", "cached_tokens", "completion_tokens"}
    bills = endpoint.ledger.by_llm()
    assert bills.keys() == {("planner", "medium"), ("planner", "small"), ("solver", "tiny")}
    for key, bill in bills.items():
        for name in names | {"cost_usd", "estimated_usd"}:
            assert found[f"scope_torch_{name}_total", *key] == getattr(bill, name)
    assert len(found) == 3 * 7 + 2
    assert found["scope_torch_calls_total", "planner", "medium"] == 2
    assert found["scope_torch_failed_total", "planner", "medium"] == 1


def test_names_that_are_hostile():
    names = ['a"} 7\n', "b\\", 'c\\"', "\\n", "line\nscope_torch_x 1", "{}=,", "größe", "", " "]
    ledger = Ledger()
    for number, name in enumerate(names):
        ledger.book(name, Usage(number, 1), 0.5, llm=name[::-1])
        ledger.fall_back(name, name, "503")
    found = parsed(metrics_text(ledger, 3))
    for number, name in enumerate(names):
        assert found["scope_torch_prompt_tokens_total", name, name[::-1]] == number
        assert found["scope_torch_fallbacks_total", name, name, "503"] == 1
    assert len(found) == len(names) * 8 + 1


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "a\rb", "\u2028", "\x1b[31m"])
def test_signs_that_cannot_be_printed_are_replaced(name):
    ledger = Ledger()
    ledger.book("m", None, 0.0, llm=name)
    text = metrics_text(ledger, 0)
    assert text.encode()
    assert not set(name) & set("\ud800\x00\r\u2028\x1b") & set(text)
    assert len(parsed(text)) == 8


def test_costs_are_not_for_everybody(upstream, monkeypatch):
    monkeypatch.setenv("UPSTREAM_KEY", "sk-of-the-upstream-789")
    upstream.answer = lambda _: Status(503, b'{"error": "sk-of-the-upstream-789"}')
    settings = {"token": "a-token", "api_key_env": "UPSTREAM_KEY", "chosen": CHOICE}
    with serving(upstream.url, **settings) as endpoint:
        token = {"Authorization": "Bearer a-token"}
        post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0]), token)
        assert scraped(endpoint).status == 401
        assert scraped(endpoint, {"Authorization": "Bearer other"}).status == 401
        assert scraped(endpoint, token | {"Host": "evil.example"}).status == 403
        assert scraped(endpoint, token | {"Origin": "https://evil.example"}).status == 403
        got = scraped(endpoint, token)
        assert got.status == 200
        assert b"sk-of" not in got.body
        assert b"a-token" not in got.body
        for method in ("POST", "DELETE", "PUT"):
            assert post(f"{endpoint.url}/metrics", b"", token, method=method).status == 405
        for path in ("/v1/metrics", "/q/1-a/metrics", "/metrics/", "/metrics/x"):
            assert post(endpoint.url + path, b"", token, method="GET").status == 404
    assert len(upstream.requests) == 1


def test_a_search_is_told_too():
    with FakeUpstream() as upstream, serving(upstream.url) as endpoint:
        with endpoint.query(CHOICE) as query:
            post(query.base_url + PATHS[0], body_of(PATHS[0]))
        found = parsed(scraped(endpoint).body.decode())
    assert found["scope_torch_calls_total", "planner", "medium"] == 1
    assert found["scope_torch_active_entry",] == 0
