"""Ctrl-C: once stops a live search cleanly, twice at once; both can be resumed. And clocks."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from airport_llms import airport_llm
from live_cases import LLMS, Script, live_on, search, values
from llm.fake_endpoint import (
    FakeEndpoint,
    Hold,
    Say,
    only_loopback,  # noqa: F401
)
from reliability.children import (
    ROOT,
    command_line,
    ended,
    in_child,
    journaled,
    said,
    signalled,
    stable,
    started,
)

from scope_torch.cli.interrupts import InterruptedSummary, second_interrupt_ends
from scope_torch.methods import make_scope
from scope_torch.tasks.synthetic import synthetic_task


def arguments(url: str) -> list[str]:
    fixed = ["task=airport_city", "evaluator=live", f"llm.base_url={url}", "llm.concurrency=2"]
    return [*fixed, "task.num_queries=6", "budget_usd=0.0003", "method.batch_size=2"]


def more(url: str) -> list[str]:
    """With a budget that always pays for two more calls."""
    return [one for one in arguments(url) if "budget" not in one] + ["budget_usd=0.0012"]


class Gate:
    """Answers like `airport_llm`; after `good` requests it holds them until `opened`."""

    def __init__(self, good: int) -> None:
        self.good, self.opened, self.paid = good, threading.Event(), Counter()
        self._lock = threading.Lock()

    def __call__(self, request: dict):
        with self._lock:
            self.good -= 1
            self.paid[json.dumps(request, sort_keys=True)] += 1
        return (
            airport_llm(request) if self.good >= 0 else Hold(self.opened, Say(airport_llm(request)))
        )


def until(condition) -> None:
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it does not happen")


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_live_search_interrupted_while_it_waits(tmp_path, times):
    folders = [tmp_path / name for name in ("whole", "run")]
    for folder in folders:
        folder.mkdir()
    whole, gate = Gate(10**9), Gate(40)
    with FakeEndpoint(whole) as endpoint:
        assert in_child(command_line, more(endpoint.url), folders[0]) == 0
    with FakeEndpoint(gate) as endpoint:
        process = started(command_line, more(endpoint.url), folders[1])
        until(lambda: gate.good == -2)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        until(lambda: "waiting for the 2 calls in flight" in said(folders[1])[1])
        if times == 1:
            gate.opened.set()
        else:
            os.kill(process.pid, signal.SIGINT)
        assert ended(process) == 130
        out, err = said(folders[1])
        assert "Traceback" not in err
        (run_dir,) = (path.parent for path in folders[1].rglob("journal.jsonl"))
        assert not (run_dir / "result.json").exists()
        kept = journaled(run_dir)
        if times == 1:
            assert f"on {len(kept)} observations" in out
            assert "airport_city scope_joint, interrupted: parse: " in out
            assert "the same command goes on" in err
        else:
            assert not gate.opened.is_set()  # it did not wait
            assert "stopped at once" in err
            gate.opened.set()
        assert in_child(command_line, more(endpoint.url), folders[1]) == 0
    (whole_dir,) = (path.parent for path in folders[0].rglob("result.json"))
    assert stable(run_dir) == stable(whole_dir)
    assert [o.request for o in journaled(run_dir)][: len(kept)] == [o.request for o in kept]
    lost = gate.paid - whole.paid
    assert not whole.paid - gate.paid
    assert lost.total() == (0 if times == 1 else 2)  # calls that were cut off are made once more


STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SYNTHETIC = ["task=synthetic", "budget_usd=1"]


@pytest.mark.parametrize("number", STOPPING[1:])
def test_a_signal_stops_a_search_as_ctrl_c_does(tmp_path, number):
    (tmp_path / "run").mkdir()
    assert in_child(signalled, SYNTHETIC, tmp_path / "run", [number], False) == 128 + number
    out, err = said(tmp_path / "run")
    assert out.startswith("synthetic scope_joint, interrupted: module_1: ")
    assert err.endswith("interrupted; the same command goes on where this one stopped\n")
    assert "Traceback" not in err
    (path,) = (tmp_path / "run").rglob("journal.jsonl")
    assert len(journaled(path.parent)) == 20
    assert not (path.parent / "result.json").exists()


def test_an_interrupt_is_none_the_less_one_if_nobody_reads(monkeypatch):
    """As in `scope-torch ... | tee log`: Ctrl-C ends `tee` too."""
    reader, writer = os.pipe()
    os.close(reader)
    task = synthetic_task(num_queries=5)
    summary = InterruptedSummary(Path("run"))
    summary.start(task.problem, make_scope(task.problem, base="nano", seed=0), 1.0)
    with open(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        summary.close(KeyboardInterrupt())


def test_a_second_signal_of_any_kind_ends_at_once(tmp_path):
    (tmp_path / "run").mkdir()
    numbers = [signal.SIGTERM, signal.SIGHUP]
    assert in_child(signalled, SYNTHETIC, tmp_path / "run", numbers, False) == 128 + signal.SIGHUP
    assert "stopped at once" in said(tmp_path / "run")[1]


@pytest.mark.slow
def test_signals_that_are_ignored_stay_ignored(tmp_path):
    (tmp_path / "run").mkdir()
    assert in_child(signalled, SYNTHETIC, tmp_path / "run", STOPPING[1:], True) == 0
    assert list((tmp_path / "run").rglob("result.json"))


def test_a_handler_of_the_user_is_left_alone():
    before = {number: signal.getsignal(number) for number in STOPPING}

    def own(*_):
        """Of the user."""

    try:
        signal.signal(signal.SIGTERM, own)
        with second_interrupt_ends():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGHUP) is not before[signal.SIGHUP]
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGHUP) is before[signal.SIGHUP]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


CLOSED = """
import os, pathlib, pty, signal, sys, time
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "scope_torch.cli.run", *sys.argv[1:]])
while not any(path.stat().st_size for path in pathlib.Path().rglob("journal.jsonl")):
    time.sleep(0.01)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_search_whose_terminal_is_closed_stops_cleanly(tmp_path):
    """Its output has nowhere to go."""
    arguments = ["task=synthetic", "budget_usd=9999", "method.gap_tolerance=null"]
    command = [sys.executable, "-c", CLOSED, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{128 + signal.SIGHUP}\n", "")
    (path,) = tmp_path.rglob("journal.jsonl")
    assert journaled(path.parent)


POLARS = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import polars
polars.read_csv(b"a\\n1")
from scope_torch.evaluators.window import in_window
from scope_torch.observation import Observation, Request

def interrupt():
    for _ in range(2):
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
    os._exit(3)
threading.Thread(target=interrupt, daemon=True).start()
try:
    begin = lambda request, call: call.set_running_or_notify_cancel()
    list(in_window(begin, [Request((0,), 0)], 1))
except KeyboardInterrupt:
    os._exit(0)
"""


@pytest.mark.slow
def test_an_interrupt_is_noticed_although_polars_restarts_waits():
    """Its own handler of SIGINT has waits for locks go on, for ever if no call ends."""
    command = [sys.executable, "-c", POLARS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "waiting for the 1 calls in flight" in done.stderr


def test_the_handler_is_only_put_where_python_has_its_own():
    default = signal.getsignal(signal.SIGINT)
    with second_interrupt_ends():
        assert signal.getsignal(signal.SIGINT) is not default
    assert signal.getsignal(signal.SIGINT) is default
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell script
    try:
        with second_interrupt_ends():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, default)


@pytest.mark.slow
def test_an_interrupted_search_says_where_it_stands(cli, monkeypatch):
    left = [20]

    def observed(self, observation, spend_usd):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("scope_torch.cli.run.ProgressBar.observed", observed)
    default = signal.getsignal(signal.SIGINT)
    try:
        status, out, err = cli("task=synthetic")
    finally:
        signal.signal(signal.SIGINT, default)
    assert status == 130
    assert err == "interrupted; the same command goes on where this one stopped\n"
    first, second, third = out.splitlines()
    assert first.startswith("synthetic scope_joint, interrupted: module_1: ")
    kept = journaled(Path(third.strip()))
    spend = sum(o.cost_usd for o in kept[:-1])  # the last was not counted yet
    assert second == f"  spent {spend:.3g} of 6 USD on {len(kept) - 1} observations"


@pytest.mark.slow
def test_clocks_that_jump_change_nothing(tmp_path, monkeypatch):
    """Whatever the time of day is said to be while calls are made and claimed."""
    rng = random.Random(0)
    scripts, results = (Script(), Script()), []
    for script, folder in zip(scripts, (tmp_path / "steady", tmp_path / "jumping"), strict=True):
        if folder.name == "jumping":
            monkeypatch.setattr(time, "time", lambda: 1.7e9 + rng.uniform(-1e9, 1e9))
        with FakeEndpoint(script) as endpoint, live_on(endpoint, folder, llms=LLMS) as live:
            results.append(search(live, folder / "run", batch_size=4))
    assert values(results[0]) == values(results[1])
    assert scripts[0].paid == scripts[1].paid
