"""Searches in processes of their own, which may be killed; each starts with torch imported."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

from forked import forking

from scope_torch.cli.compose import compose
from scope_torch.cli.registry import config_dir
from scope_torch.cli.run import build, main
from scope_torch.observation import Observation, Request
from scope_torch.runs import journal, runner
from scope_torch.runs import source as observation_source
from scope_torch.tracking.curves import CurvePlot
from scope_torch.tracking.progress import ProgressBar

ROOT = Path(__file__).resolve().parents[2]
METHODS = sorted(p.stem for p in (Path(config_dir(), "method")).glob("*.yaml"))
TASK = ["task=synthetic", "task.num_queries=5", "base=mini", "budget_usd=0.09"]
MORE = {"safeopt": ["method.gp.n_init=4"]}  # or it finds nothing safe to observe
_WATCHED = {module.__file__ for module in (journal, observation_source, runner)} | {__file__}


def started(function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Calls a function of a module in a process forked from one that has only imported."""
    process = forking().Process(target=function, args=arguments)
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    """Exit status of a process; minus the signal that ended it."""
    process.join(240)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the child hangs")
    return process.exitcode


def in_child(function: Callable[..., None], *arguments: Any) -> int:
    """Exit status of a call; see `started`."""
    return ended(started(function, *arguments))


class Billing:
    """An evaluator for real money: what it has taken for an observation is on the disk first."""

    concurrency = 1

    def __init__(self, evaluator: Any, bill: Path) -> None:
        self._evaluator, self._bill = evaluator, bill

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        for observation in self._evaluator.evaluate(requests):
            with open(self._bill, "a") as file:
                file.write(json.dumps(observation.request) + "\n")
                file.flush()
                os.fsync(file.fileno())
            yield observation

    def fingerprint(self) -> str:
        return self._evaluator.fingerprint()


class Fuse:
    """Kills this process at the n-th call that the runner, the journal or the evaluator makes."""

    def __init__(self, at: int | None) -> None:
        self.count, self._at = 0, at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename in _WATCHED:
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


def search(method: str, run_dir: Path, bill: Path, kill_at: int | None) -> None:
    """A whole search, unless it is killed; leaves the number of its calls beside the bill."""
    cfg = compose([*TASK, f"method={method}", *MORE.get(method, [])])
    task = build(cfg.task)
    optimizer = build(
        cfg.method, problem=task.problem, kernel=build(cfg.kernel), seed=0, device="cpu"
    )
    fuse = Fuse(kill_at)
    sys.setprofile(fuse)
    evaluator = Billing(task.evaluator, bill)
    runner.run(task.problem, optimizer, evaluator, cfg.budget_usd, run_dir=run_dir)
    sys.setprofile(None)
    bill.with_suffix(".calls").write_text(str(fuse.count))


def command_line(arguments: list[str], folder: Path) -> None:
    """`scope-torch ARGUMENTS` in a folder; `out` and `err` are left beside it.

    No figure is drawn, as by the fixture `cli`: it takes longer than the run.
    """
    CurvePlot.end = lambda *_: None
    for number, name in (1, "out"), (2, "err"):
        log = folder.with_name(f"{folder.name}.{name}")
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` has ignored
    sys.argv = ["scope-torch", *arguments]
    main()


def signalled(arguments: list[str], folder: Path, numbers: list[int], ignored: bool) -> None:
    """`command_line` that is sent these signals at its 20th observation."""
    left = [20]

    def observed(self: ProgressBar, observation: Observation, spend_usd: float) -> None:
        left[0] -= 1
        if left[0] == 0:
            try:
                os.kill(os.getpid(), numbers[0])
            finally:  # the first raises
                for number in numbers[1:]:
                    os.kill(os.getpid(), number)

    ProgressBar.observed = observed
    if ignored:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    command_line(arguments, folder)


def said(folder: Path) -> tuple[str, str]:
    """Standard output and error of `command_line`."""
    out, err = (folder.with_name(f"{folder.name}.{name}").read_text() for name in ("out", "err"))
    return out, err


def billed(bill: Path) -> Counter[Request]:
    lines = bill.read_text().splitlines() if bill.exists() else []
    requests = (json.loads(line) for line in lines)
    return Counter(Request(tuple(theta), query, number) for theta, query, number in requests)


def journaled(run_dir: Path) -> list[Observation]:
    """The whole lines of a journal."""
    path = run_dir / "journal.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Observation.from_json(line) for line in lines]


def stable(run_dir: Path) -> dict[str, Any]:
    """The content of result.json that equal runs share."""
    result = json.loads((run_dir / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("timing", "paths")}
