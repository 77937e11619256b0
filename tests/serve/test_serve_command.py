"""`scope-torch serve` in a process of its own: a choice for good."""

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import openai
import pytest
from serve.fake_upstream import Say, Status
from serve.serve_cases import MESSAGES, PATHS, body_of, message_of, post, wait_until

from scope_torch.serve.endpoint import Endpoint

PRICES = """
version = 1
price_source = "test"
price_date = "2026-11-21"
[[llm]]
name = "medium"
input_usd_per_mtok = 1.0
output_usd_per_mtok = 4.0
cached_input_usd_per_mtok = 0.25
[[llm]]
name = "small"
model = "vendor/small-1"
input_usd_per_mtok = 0.1
output_usd_per_mtok = 0.4
"""
CHOSEN = {"planner": "medium", "solver": "small"}


def write(folder, models: object) -> list[str]:
    (folder / "models.json").write_text(json.dumps(models))
    (folder / "prices.toml").write_text(PRICES)
    return ["--models", str(folder / "models.json"), "--prices", str(folder / "prices.toml")]


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "scope_torch.cli.run", "serve", "--port", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_choice_is_served_until_an_interrupt(tmp_path, upstream, monkeypatch, sign):
    monkeypatch.setenv("UPSTREAM_KEY", "sk-of-the-upstream-123")
    arguments = write(tmp_path, {"version": 1, "models": CHOSEN})
    more = ["--base-url", upstream.url, "--api-key-env", "UPSTREAM_KEY"]
    with start(*arguments, *more) as process:
        url = process.stdout.readline().split()[0]
        lines = [process.stdout.readline() for _ in CHOSEN]
        assert lines == ["  scope/planner -> medium\n", "  scope/solver -> small\n"]
        with openai.OpenAI(base_url=url, api_key="own") as client:
            for module in CHOSEN:
                client.chat.completions.create(model=f"scope/{module}", messages=MESSAGES)
        assert message_of(post(url + PATHS[0], body_of(PATHS[0], "gpt"))).startswith("there is no")
        gate = threading.Event()
        upstream.answer = lambda _: Say(gate=gate)
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(post, url + PATHS[0], body_of(PATHS[0]))
            wait_until(lambda: len(upstream.served) == 3)
            process.send_signal(sign)  # while a request is in flight
            threading.Timer(0.3, gate.set).start()
            assert got.result().status == 200
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    total = sum(upstream.usd_by_tag().values())
    assert out.splitlines()[0] == f"3 calls, {total:.6g} USD"
    assert out.splitlines()[1].startswith("  planner: 2 calls (0 failed), ")
    assert upstream.headers[0]["authorization"] == "Bearer sk-of-the-upstream-123"


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"models": CHOSEN}, "gives no LLM for each module (version=None must be 1)"),
        ({"version": 2, "models": CHOSEN}, "version=2 must be 1"),
        ([], "gives no LLM for each module"),
        ({"version": 1}, "gives no LLM for each module ('models'); write it with result.save()"),
        ({"version": 1, "models": {}}, "gives no LLM for each module; write it with"),
        ({"version": 1, "models": {"planner": 3}}, "gives no LLM for each module"),
        ({"version": 1, "models": {"planner": "gpt-nobody-knows"}}, "gpt-nobody-knows"),
    ],
)
def test_a_file_that_is_no_choice(tmp_path, capsys, models, told):
    from scope_torch.cli.serve import main

    with pytest.raises(SystemExit) as ended:
        main([*write(tmp_path, models), "--base-url", "http://127.0.0.1:1/v1"])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_file_that_does_not_exist(tmp_path, capsys):
    from scope_torch.cli.serve import main

    with pytest.raises(SystemExit) as ended:
        main(["--models", str(tmp_path / "no.json"), "--base-url", "http://127.0.0.1:1/v1"])
    assert ended.value.code == 2
    assert "cannot read" in capsys.readouterr().err


def test_options_of_the_endpoint(tmp_path, capsys, monkeypatch):
    from scope_torch.cli import serve

    arguments = [*write(tmp_path, {"version": 1, "models": CHOSEN}), "--port", "0"]
    arguments += ["--base-url", "http://127.0.0.1:1/v1", "--allowed-host", "host.docker.internal"]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    made = []
    monkeypatch.setattr(serve, "Endpoint", lambda *a, **k: made.append(k) or Endpoint(*a, **k))
    waiting = SimpleNamespace(Event=lambda: SimpleNamespace(wait=interrupted))
    monkeypatch.setattr(serve, "threading", waiting)
    monkeypatch.setattr(serve, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15))
    with pytest.raises(SystemExit) as ended:
        serve.main([*arguments, "--token-env", "NO_TOKEN_HERE"])
    assert ended.value.code == 2
    assert "$NO_TOKEN_HERE is not set" in capsys.readouterr().err
    monkeypatch.setenv("MY_TOKEN", "a-token-of-mine")
    serve.main([*arguments, "--token-env", "MY_TOKEN", "--no-stream-usage"])
    shown = capsys.readouterr().out
    assert "a-token-of-mine" not in shown
    assert made[-1]["asks_for_usage"] is False
    assert made[-1]["allowed_hosts"] == ["host.docker.internal"]
    assert made[-1]["token"] == "a-token-of-mine"
    serve.main(arguments)
    assert "  with the key " in capsys.readouterr().out


def served(monkeypatch, capsys, arguments, ask):
    """What is printed while `ask` is called with the endpoint."""
    from scope_torch.cli import serve

    made = []

    def wait() -> None:
        ask(made[0])
        raise KeyboardInterrupt

    def make(*args: object, **settings: object) -> Endpoint:
        made.append(Endpoint(*args, **settings))
        return made[0]

    waiting = SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait))
    monkeypatch.setattr(serve, "Endpoint", make)
    monkeypatch.setattr(serve, "threading", waiting)
    monkeypatch.setattr(serve, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15))
    serve.main([*arguments, "--port", "0"])
    return capsys.readouterr().out.splitlines()


def test_fallbacks_of_a_file_are_served(tmp_path, upstream, monkeypatch, capsys):
    nexts = [{"models": {"planner": "small", "solver": "medium"}, "basis": "certified"}]
    file = {"version": 1, "models": CHOSEN, "fallbacks": nexts}

    def ask(endpoint):
        upstream.answer = lambda r: Status(503) if down and r["model"] == "medium" else Say()
        for down in (False, True, True, False):
            for module in ("planner",) if down else CHOSEN:
                assert post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0], module)).status == 200

    arguments = [*write(tmp_path, file), "--base-url", upstream.url, "--timeout-s", "20"]
    lines = served(monkeypatch, capsys, arguments, ask)
    assert lines[1:4] == [
        "  scope/planner -> medium", "  scope/solver -> small",
        "  where an LLM fails: planner=small, solver=medium",
    ]  # fmt: skip
    total, planner, by, solver, followed = lines[4:]
    assert total.startswith("7 calls, ")
    assert planner.startswith("  planner: 5 calls (1 failed), ")
    assert by == "    3 of 5 by small (was medium: 503)"
    assert solver.startswith("  solver: 2 calls (0 failed), ")
    assert followed == "    1 of 2 by medium (was small, another module fell back)"


def test_a_file_without_fallbacks_is_served_as_before(tmp_path, upstream, monkeypatch, capsys):
    upstream.answer = lambda _: Status(503)
    arguments = [*write(tmp_path, {"version": 1, "models": CHOSEN}), "--base-url", upstream.url]

    def ask(endpoint):
        for _ in range(2):
            assert post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0])).status == 503

    lines = served(monkeypatch, capsys, arguments, ask)
    assert lines[1:] == [
        "  scope/planner -> medium", "  scope/solver -> small", "2 calls, 0 USD",
        "  planner: 2 calls (2 failed), 0 + 0 tokens, 0 USD",
    ]  # fmt: skip
    assert [request["model"] for request in upstream.requests] == ["medium", "medium"]
