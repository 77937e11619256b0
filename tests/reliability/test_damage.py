"""Bits that flip, lines that are edited, directories that vanish: an error or the same result."""

import functools
import json
import logging
import random
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from live_cases import live_on, say, sweep, values
from llm.fake_endpoint import FakeEndpoint, Hold, Say, only_loopback  # noqa: F401
from long_runs import IS_LONG
from reliability.children import journaled, stable
from reliability.fuzzing import damaged, fuzzed, tried
from reliability.test_disk import FullFile
from tables import CountingEvaluator, make_task

from scope_torch.cli import watch
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.results.hashes import with_hashes
from scope_torch.runs import journal as journal_module
from scope_torch.runs import runner
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.directory import finished_summary, read_settings
from scope_torch.runs.earlier import known_from
from scope_torch.runs.finished import load_runs
from scope_torch.runs.journal import Journal
from scope_torch.runs.recorded import RecordedRun, read_run

TASK = make_task(1, (3, 3), 6)
BUDGET = TASK.budget(3.2)
MADE = [Observation((1, 0), q, 0.1 + q / 7, 0.5, latency_s=0.25) for q in range(3)]
MANY = 1000 if IS_LONG else 200
FLIPS = [40, pytest.param(MANY, marks=pytest.mark.slow)]  # of each file


class Free(CountingEvaluator):
    """Its observations wait in memory."""

    free = True


def search(evaluator, run_dir, callbacks=()):
    scope = TASK.scope(1)
    return runner.run(TASK.problem, scope, evaluator, BUDGET, run_dir=run_dir, callbacks=callbacks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "scope" / "seed=1"
    search(CountingEvaluator(TASK), run_dir)
    return run_dir


def flipped(whole: Path, name: str, rng: random.Random, folder: Path) -> Path:
    """A copy of a run with one bit of a file flipped."""
    copy = folder / "scope" / "seed=1"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    content = bytearray((copy / name).read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (copy / name).write_bytes(content)
    return copy


def seen(run: RecordedRun) -> tuple:
    return run.observations, run.rows, run.result, run.settings


@pytest.mark.slow
@pytest.mark.parametrize("count", FLIPS)
def test_a_bit_of_the_journal_that_flips_changes_nothing_in_silence(whole, tmp_path, caplog, count):
    rng, refused = random.Random(count), 0
    before = seen(read_run(whole))
    for _ in range(count):
        copy = flipped(whole, "journal.jsonl", rng, tmp_path)
        shown, reason = tried(read_run, copy)
        assert f"{copy}/journal.jsonl" in reason if shown is None else seen(shown) == before
        caplog.clear()
        evaluator = CountingEvaluator(TASK)
        with caplog.at_level(logging.WARNING):
            result, reason = tried(search, evaluator, copy)
        if result is None:
            assert f"{copy}/journal.jsonl: line " in reason
            refused += 1
            continue
        assert stable(copy) == stable(whole)
        assert journaled(copy) == journaled(whole)
        assert bool(evaluator.paid) == ("cut short by a crash or damaged" in caplog.text)
    assert refused > count / 2


@pytest.mark.parametrize("count", FLIPS)
def test_a_bit_of_a_result_that_flips_changes_nothing_in_silence(whole, tmp_path, count):
    rng, refused = random.Random(count), 0
    before = seen(read_run(whole))
    settings = read_settings(whole / "settings.json")
    result = json.loads((whole / "result.json").read_text())
    for _ in range(count):
        copy = flipped(whole, "result.json", rng, tmp_path)
        assert finished_summary(copy, settings) in (None, result)
        shown, reason = tried(read_run, copy)
        reported, reason_too = tried(load_runs, copy)
        if shown is None:
            assert reported is None
            assert "result.json" in reason
            assert "result.json" in reason_too
            refused += 1
            continue
        assert seen(shown) == before
        ((run,),) = reported[0].values()
        assert run.result == result
    assert refused > count / 2


@pytest.mark.parametrize("count", FLIPS)
def test_a_bit_of_the_settings_that_flips_changes_nothing_in_silence(whole, tmp_path, count):
    """Also before the run has finished, when no other file has their hash."""
    rng, refused = random.Random(count), 0
    before, evaluator = read_run(whole), CountingEvaluator(TASK)
    known = known_from(whole, TASK.problem, evaluator).observations
    for _ in range(count):
        copy = flipped(whole, "settings.json", rng, tmp_path)
        (copy / "result.json").unlink()
        shown, reason = tried(read_run, copy)
        found, why = tried(known_from, copy, TASK.problem, evaluator)
        if shown is None:
            assert found is None
            assert "settings.json" in reason
            assert "settings.json" in why
            refused += 1
            continue
        assert (shown.problem, shown.method.recorded) == (before.problem, before.method.recorded)
        assert found.observations == known
    assert refused > count / 2


def test_a_damaged_result_is_made_anew_from_the_journal(whole, tmp_path):
    copy = flipped(whole, "result.json", random.Random(0), tmp_path)
    evaluator = CountingEvaluator(TASK)
    search(evaluator, copy)
    assert not evaluator.paid
    assert stable(copy) == stable(whole)


@pytest.mark.parametrize("keep", [["settings_hash"], ["settings_hash", "result_hash", "timing"]])
def test_a_result_of_a_few_keys_is_no_finished_run(whole, tmp_path, keep):
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    settings = read_settings(copy / "settings.json")
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps({key: result[key] for key in keep}))
    assert finished_summary(copy, settings) is None
    for reader in (read_run, load_runs):
        with pytest.raises(InputError, match=r"result\.json is damaged \(task is missing\); move"):
            reader(copy)


def test_a_result_of_an_early_version_is_read(whole, tmp_path):
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    result = json.loads((copy / "result.json").read_text())
    del result["result_hash"], result["timing"]["hash"]
    (copy / "result.json").write_text(json.dumps(result))
    assert read_run(copy).result == result
    settings = read_settings(copy / "settings.json")
    assert finished_summary(copy, settings) == result


@pytest.mark.parametrize("unused", [(), ("surplus_usd", "surplus", "lost_usd", "num_lost")])
def test_what_calls_in_flight_have_cost_is_covered_by_a_hash(whole, tmp_path, unused):
    """Earlier versions had it in `result_hash`."""
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    written = with_hashes(json.loads((copy / "result.json").read_text()), unused)
    (copy / "result.json").write_text(json.dumps(written))
    assert read_run(copy).result == written
    (copy / "result.json").write_text(json.dumps(written | {"surplus_usd": 7.0}))
    with pytest.raises(InputError, match=r"does not match its hashes"):
        read_run(copy)


def without_checksum(line: str) -> str:
    return line[: line.index(',"crc"')] + "}"


def test_a_journal_of_an_early_version_is_resumed_and_gets_checksums(whole, tmp_path):
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    lines = (whole / "journal.jsonl").read_text().splitlines()
    old = "".join(without_checksum(line) + "\n" for line in lines[:9])
    (copy / "journal.jsonl").write_text(old)
    search(CountingEvaluator(TASK), copy)
    assert stable(copy) == stable(whole)
    assert journaled(copy) == journaled(whole)
    content = (copy / "journal.jsonl").read_text()
    assert content.startswith(old)
    assert content.count('"crc"') == len(lines) - 9


def test_a_line_without_checksum_after_lines_with_one_is_refused(tmp_path):
    lines = [o.to_json() for o in MADE]
    lines[1] = without_checksum(lines[1])
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"line 2 is damaged \(without the checksum"):
        Journal(tmp_path / "journal.jsonl")


def test_every_bit_of_a_line_is_covered():
    line = replace(MADE[0], outcomes={"output_tokens": 240.0}).to_json().encode()
    for at in range(len(line)):
        for bit in range(8):
            changed = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
            made, _ = tried(Observation.from_json, changed.decode("latin-1"))
            assert made is None, changed


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"cost_usd":-5', "cost_usd=-5"), ('"cost_usd":Infinity', "cost_usd=inf"),
        ('"cost_usd":"0.1"', "not an observation"), ('"cost_usd":null', "not an observation"),
        ('"cost_usd":1,"cost_usd":0.1', "'cost_usd' is there twice"),
        ('"cost_usd":1,"module_cost_usd":[-1]', "not an observation"),
        ('"cost_usd":1,"module_cost_usd":[Infinity]', "not an observation"),
        ('"cost_usd":1,"csc":"00000000"', "not an observation"),
        ('"cost_usd":1,"crc":"00000000"', "its checksum is"),
    ],
)  # fmt: skip
def test_values_that_no_run_has_written_are_refused(field, words):
    with pytest.raises(InputError) as caught:
        Observation.from_json('{"theta":[0],"query":0,"quality":0.5,' + field + "}")
    assert words in str(caught.value)


# `watch`

FILES = ("journal.jsonl", "trace.csv", "result.json", "settings.json", "error.log")


@functools.cache
def files() -> dict[str, bytes]:
    """The files of a run that failed once and finished later."""
    with tempfile.TemporaryDirectory() as folder:
        search(CountingEvaluator(TASK), folder)
        Path(folder, "error.log").write_text("ValueError: é")
        return {name: Path(folder, name).read_bytes() for name in FILES}


@fuzzed(
    st.sampled_from(FILES).flatmap(
        lambda name: st.tuples(st.just(name), damaged(files()[name], 2), st.booleans())
    ),
    30,
    3000,
)
@pytest.mark.slow
def test_pages_of_damaged_files(drawn, folder):
    name, content, finished = drawn
    for other, whole in files().items():
        (folder / other).write_bytes(content if other == name else whole)
    if not finished:
        (folder / "result.json").unlink()
    page, reason = tried(watch.write_page, folder, folder / "watch.html", None)
    assert page is not None or name in reason or "settings.json" in reason


ODD: list[tuple[str, Any]] = [
    ("settings.json", b"[]"), ("settings.json", b"null"), ("settings.json", b"\xff"),
    ("settings.json", b'{"budget_usd": 1}'), ("result.json", b"[]"), ("result.json", b"{}"),
    ("result.json", b'{"settings_hash": "0"}'), ("result.json", b"\xff"),
    ("journal.jsonl", b"\xff\n{}\n"), ("journal.jsonl", b"null\n{}\n"),
    ("trace.csv", b"\xff\r\n\r\n"), ("trace.csv", b'"' * 3 + b"x" * 140_000 + b"\r\n1\r\n"),
    ("trace.csv", b"t,event\r\n1,improved\r\n"), ("trace.csv", b"a\0b\r\n1\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), ODD)
def test_watch_names_a_damaged_file_and_the_mend(whole, tmp_path, capsys, name, content):
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    (copy / name).write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        watch.main([str(copy)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert name in said
    assert len(said.splitlines()) == 1
    assert "restore it" in said or "restore the file" in said or "move it away" in said


# A full disk and a directory that vanishes


@pytest.mark.slow
def test_calls_in_flight_at_a_full_disk_are_not_paid_for_again(tmp_path, monkeypatch):
    gate, paid = threading.Event(), []

    def answer(request):
        paid.append(json.dumps(request, sort_keys=True))
        return say(request) if len(paid) <= 9 else Hold(gate, Say(say(request)))

    class Full(FullFile):
        def write(self, content: bytes) -> int:
            gate.set()
            return super().write(content)

    def full(path, mode, **settings):
        return Full(open(path, mode, **settings), 0, True)

    with FakeEndpoint(answer) as endpoint:
        with monkeypatch.context() as patch, live_on(endpoint, tmp_path) as live:
            patch.setattr(journal_module, "open", full, raising=False)
            with pytest.raises(InputError, match=r"journal\.jsonl: No space left on device"):
                sweep(live, tmp_path / "run")
        before = len(paid)
        with live_on(endpoint, tmp_path) as live:
            again = sweep(live, tmp_path / "run")
        assert 9 < before < len(paid)
        assert len(set(paid)) == len(paid)
        with live_on(endpoint, tmp_path) as live:
            assert values(again) == values(sweep(live, None))


class Deletes(Callback):
    """Deletes the directory of the run after so many observations."""

    def __init__(self, run_dir: Path, after: int) -> None:
        self.run_dir, self.left = run_dir, after

    def observed(self, observation, spend_usd):
        self.left -= 1
        if self.left == 0:
            shutil.rmtree(self.run_dir)


@pytest.mark.parametrize(("kind", "most"), [(CountingEvaluator, 11), (Free, 20)])
def test_a_search_whose_directory_is_deleted_stops_at_once(tmp_path, kind, most):
    run_dir, evaluator = tmp_path / "run", kind(TASK)
    with pytest.raises(InputError) as caught:
        search(evaluator, run_dir, callbacks=[Deletes(run_dir, 10)])
    assert f"{run_dir} was deleted during the search" in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert evaluator.paid.total() <= most
    assert not run_dir.exists()
