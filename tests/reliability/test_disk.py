"""Disks that are full, or read-only, or hold something else than what was written."""

import contextlib
import ctypes
import errno
import fcntl
import io
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reliability.children import TASK, journaled, stable
from tables import CountingEvaluator, make_task

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.runs import journal as journal_module
from scope_torch.runs import runner
from scope_torch.runs import trace as trace_file
from scope_torch.runs.journal import Journal

TASK_OF_THREE = make_task(1, (3, 3), 6)
BUDGET = TASK_OF_THREE.budget(3.2)
MADE = [Observation((1, 0), q, 0.1 + q / 7, 0.5, latency_s=0.25) for q in range(3)]


def slow(*cases: tuple) -> list:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def search(evaluator, run_dir):
    optimizer = TASK_OF_THREE.scope(1)
    return runner.run(TASK_OF_THREE.problem, optimizer, evaluator, BUDGET, run_dir=run_dir)


class FullFile:
    """A file that takes so many bytes more; then the disk is full, also for what makes room."""

    def __init__(self, file, room: int, truncates: bool) -> None:
        self._file, self._room, self._truncates = file, room, truncates

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def write(self, content: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(content[: self._room])
        self._room -= taken
        return taken

    def truncate(self, size: int) -> int:
        if not self._truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.truncate(size)


@pytest.mark.parametrize("truncates", [True, False])
def test_a_disk_that_is_full_at_any_byte_of_a_line(tmp_path, caplog, truncates):
    line = MADE[2].to_json() + "\n"
    for room in range(len(line)):
        path = tmp_path / f"{room}.jsonl"
        journal = Journal(path)
        journal.append(MADE[:2])
        journal._file = FullFile(journal._file, room, truncates)  # type: ignore[assignment]
        with pytest.raises(InputError) as caught:
            journal.append(MADE[2:])
        assert str(path) in str(caught.value)
        assert "No space left on device; make room" in str(caught.value)
        journal.close()
        caplog.clear()
        again = Journal(path)
        whole_line = room == len(line) - 1 and not truncates  # it lacks its newline only
        assert again.recorded == MADE[: 2 + whole_line]
        torn = 0 < room < len(line) - 1 and not truncates
        assert ("dropped line 3, cut short by a crash" in caplog.text) == torn
        again.append([] if whole_line else MADE[2:])
        again.close()
        assert path.read_text().splitlines() == [o.to_json() for o in MADE]


def test_after_a_full_disk_a_search_goes_on_without_paying_twice(tmp_path, monkeypatch):
    whole = search(CountingEvaluator(TASK_OF_THREE), tmp_path / "whole")
    paid = []
    for room in (0, 500, 1000):
        disks = [room]

        def nearly_full(path, mode, disks=disks, **settings):
            file = open(path, mode, **settings)  # noqa: SIM115
            return FullFile(file, disks.pop(), True) if "b" in mode else file

        evaluator = CountingEvaluator(TASK_OF_THREE)
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "open", nearly_full, raising=False)
            with pytest.raises(InputError, match=r"journal\.jsonl: No space left on device"):
                search(evaluator, tmp_path / "run")
        paid.append(evaluator.paid)
    kept = journaled(tmp_path / "run")
    evaluator = CountingEvaluator(TASK_OF_THREE)
    again = search(evaluator, tmp_path / "run")
    assert list(again.history) == list(whole.history)
    assert len(kept) > 10
    assert not {o.request for o in kept} & set(evaluator.paid)
    # only the one that the disk did not take is paid for once more
    assert [tries.total() for tries in paid] + [evaluator.paid.total()] == [
        1, (tmp_path / "run/journal.jsonl").read_bytes()[:500].count(b"\n") + 1,
        paid[2].total(), len(again.history) - len(kept),
    ]  # fmt: skip
    assert sum(map(len, paid)) == len(kept) + 3


@pytest.mark.parametrize("file", ["settings.json", "result.json"])
def test_a_disk_that_is_full_before_a_file_is_whole(tmp_path, monkeypatch, file):
    whole = search(CountingEvaluator(TASK_OF_THREE), tmp_path / "whole")

    def fsync(fileno: int) -> None:
        if os.readlink(f"/proc/self/fd/{fileno}").endswith(f".{file}.tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(InputError, match=rf"{file}: No space left on device; make room"):
            search(CountingEvaluator(TASK_OF_THREE), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert file not in names
    assert not [name for name in names if name.endswith(".tmp")]
    evaluator = CountingEvaluator(TASK_OF_THREE)
    search(evaluator, tmp_path / "run")
    assert evaluator.paid.total() == (len(whole.history) if file == "settings.json" else 0)
    assert stable(tmp_path / "run") == stable(tmp_path / "whole")


class FullDisk(io.StringIO):
    """A file that takes so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes_left = writes

    def write(self, text: str) -> int:
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes_left -= 1
        return super().write(text)


@pytest.mark.parametrize("writes", [0, 1, 4])
def test_a_disk_without_room_for_the_trace(tmp_path, monkeypatch, writes):
    whole = search(CountingEvaluator(TASK_OF_THREE), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(trace_file, "open", lambda *_, **__: FullDisk(writes), raising=False)
        with pytest.raises(InputError, match=r"trace.csv: No space left on device; make room"):
            search(CountingEvaluator(TASK_OF_THREE), tmp_path / "run")
    kept = journaled(tmp_path / "run")
    evaluator = CountingEvaluator(TASK_OF_THREE)
    search(evaluator, tmp_path / "run")
    assert evaluator.paid.total() == len(whole.history) - len(kept)
    assert stable(tmp_path / "run") == stable(tmp_path / "whole")


def test_what_ends_a_run_is_not_hidden_by_a_full_disk(tmp_path, monkeypatch):
    class Interrupt(runner.Callback):
        def observed(self, observation, spend_usd):
            disk.writes_left = 0
            raise KeyboardInterrupt

    disk = FullDisk(1)
    monkeypatch.setattr(trace_file, "open", lambda *_, **__: disk, raising=False)
    task = TASK_OF_THREE
    with pytest.raises(KeyboardInterrupt):
        runner.run(task.problem, task.scope(1), CountingEvaluator(task), BUDGET,
                   run_dir=tmp_path, callbacks=[Interrupt()])  # fmt: skip


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """As if a disk were full: a write that goes beyond takes what fits, the next one nothing."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "named"),
    [(1600, "journal.jsonl"), *slow((100, "settings.json"), (9000, "curves.png"))],
)
def test_the_command_line_on_a_full_disk(cli, caplog, size, named):
    draw = named == "curves.png"
    assert cli(*TASK, "output_dir=whole", draw=draw)[0] == 0
    with no_file_beyond(size):
        status, out, err = cli(*TASK, "output_dir=full", draw=draw)
    assert (status, out) == (2, "")
    assert re.fullmatch(
        rf"scope-torch: cannot write \S+/full/\S+/{named}: File too large; make room.+\n", err
    )
    assert cli(*TASK, "output_dir=full", draw=draw)[0] == 0
    assert caplog.text == ""  # the journal was left whole
    run_dirs = [next(Path(name).rglob("result.json")).parent for name in ("whole", "full")]
    assert stable(run_dirs[0]) == stable(run_dirs[1])
    journals = [(run_dir / "journal.jsonl").read_bytes() for run_dir in run_dirs]
    assert journals[0] == journals[1]


@contextlib.contextmanager
def permissions_hold() -> Iterator[None]:
    """For root too: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; see capset(2)."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    assert libc.capget(header, sets) == 0
    before, sets[0] = sets[0], sets[0] & ~0b110
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
@pytest.mark.parametrize("what", ["journal.jsonl", *slow(("outputs",), ("settings.json",))])
def test_the_command_line_where_it_may_not_write(cli, what):
    protected, journal = Path.cwd(), None
    if what != "outputs":
        assert cli(*TASK)[0] == 0
        (journal,) = Path("outputs").rglob("journal.jsonl")
        (journal.parent / "result.json").unlink()
        before = journal.read_bytes()
        protected = journal if what == "journal.jsonl" else journal.parent
    mode = protected.stat().st_mode
    protected.chmod(0o444 if protected.is_file() else 0o555)
    with permissions_hold():
        status, out, err = cli(*TASK)
    protected.chmod(mode)
    assert (status, out) == (2, "")
    assert re.fullmatch(
        rf"scope-torch: cannot write \S*{what}\S*: Permission denied; choose another place, or.+\n",
        err,
    )
    if journal is not None:
        assert journal.read_bytes() == before
    assert cli(*TASK)[0] == 0


@pytest.mark.slow
def test_a_run_that_another_process_is_making_is_refused(cli):
    assert cli(*TASK)[0] == 0
    (journal,) = Path("outputs").rglob("journal.jsonl")
    (journal.parent / "result.json").unlink()
    before = {path.name: path.read_bytes() for path in journal.parent.iterdir()}
    other = Journal(journal)  # flock does not tell processes from open files
    status, _, err = cli(*TASK)
    assert status == 2
    assert re.fullmatch(r"scope-torch: \S+journal\.jsonl is in use by another .+\n", err)
    assert {path.name: path.read_bytes() for path in journal.parent.iterdir()} == before
    other.close()
    assert cli(*TASK)[0] == 0


def test_a_file_system_without_locks_is_told_from_a_run_in_use(tmp_path, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(InputError, match=r"cannot be locked: No locks available; choose"):
        Journal(tmp_path / "journal.jsonl")


def opened(path: Path) -> tuple[Journal | None, str]:
    try:
        return Journal(path), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("byte", [b"\0", b"x", b"}", b"\n", b"\xff", b"7", b"-"])
def test_a_byte_that_changed_is_dropped_refused_or_another_observation(tmp_path, caplog, byte):
    """In the last line it may be the mark of a crash; before it, it never is."""
    lines = [o.to_json().encode() for o in MADE]
    path = tmp_path / "journal.jsonl"
    for number in (2, 3):
        for at in range(len(lines[number - 1])):
            changed = list(lines)
            changed[number - 1] = lines[number - 1][:at] + byte + lines[number - 1][at + 1 :]
            content = b"\n".join(changed) + b"\n"
            path.write_bytes(content)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                journal, refused = opened(path)
            if journal is None:
                assert re.search(r"journal\.jsonl: line [23] (is damaged|repeats)", refused)
                assert path.read_bytes() == content
                continue
            journal.close()
            if "dropped line" in caplog.text:
                assert number == 3
                assert journal.recorded == MADE[:2]
            else:
                assert journal.recorded == [Observation.from_json(x.decode()) for x in changed]


def test_a_repeated_observation_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(o.to_json() + "\n" for o in [*MADE, MADE[1]]))
    with pytest.raises(InputError, match=r"journal\.jsonl: line 4 repeats .* of line 2; restore"):
        Journal(path)


@pytest.mark.parametrize(
    "value",
    [
        '"theta": [1.9, 0]', '"theta": "10"', '"theta": [true, 0]', '"theta": [-1, 0]',
        '"query": 1.5', '"query": "1"', '"query": true', '"query": -1', '"query": 1e999',
        '"cost_usd": "0.1"', '"cost_usd": true', f'"cost_usd": 1{"0" * 400}', '"cost_usd": 1e999',
        '"quality": "1"', '"quality": true', '"quality": -1', '"replicate": [0]',
        '"replicate": null', '"latency_s": "1"', '"module_cost_usd": ["1"]',
        '"module_tokens": [[-1, 2]]', f'"query": {"[" * 100_000}',
    ],
)  # fmt: skip
def test_values_of_another_kind_are_no_observation(value):
    name = value.split(":")[0]
    good = {'"theta"': "[1, 0]", '"query"': "1", '"cost_usd"': "0.1", '"quality"': "0.5"}
    rest = ", ".join(f"{key}: {text}" for key, text in good.items() if key != name)
    Observation.from_json("{" + ", ".join(f"{key}: {text}" for key, text in good.items()) + "}")
    with pytest.raises(InputError):
        Observation.from_json("{" + f"{value}, {rest}" + "}")
