"""Observations, the history, and the journal that survives a crash."""

import errno
import fcntl
import json
import logging
import math
import os
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scope_torch import observation as observation_module
from scope_torch.errors import InputError
from scope_torch.observation import History, Observation, Request
from scope_torch.runs.journal import Journal, is_locked, read_journal

ROOT = Path(__file__).resolve().parents[2]


def observation(query: int = 0, **changed) -> Observation:
    values = {"theta": (1, 0), "query": query, "cost_usd": 0.1 + query / 7, "quality": 0.5}
    return Observation(**{**values, **changed})


FULL = observation(
    4,
    replicate=2,
    latency_s=1.5,
    module_cost_usd=(0.1, 1e-300),
    module_tokens=((10, 3), (0, 2**40)),
)
NAMED = {"output_tokens": 240.0, "a b,[]:\\n": -1.5, "null": 0.0, "Länge": 1e-300}
WITH_OUTCOMES = observation(5, outcomes=NAMED, module_tokens=((1, 2),))
FIVE = [observation(0), observation(1, latency_s=0.25), FULL, observation(2), observation(3)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cost_usd": -1e-9}, ("cost_usd=-1e-09", "theta=[1, 0], query=3", ">= 0", "USD")),
        ({"cost_usd": math.nan}, ("cost_usd=nan",)),
        ({"cost_usd": math.inf}, ("cost_usd=inf",)),
        ({"quality": -0.1}, ("quality=-0.1", "theta=[1, 0], query=3", "[0, 1]", "rescale")),
        ({"quality": 1.1}, ("quality=1.1", "[0, 1]")),
        ({"quality": math.nan}, ("quality=nan",)),
        ({"quality": 1.00001}, ("quality=1.00001", "[0, 1]")),
        ({"query": 0.0}, ("query=0.0", "whole")),
        ({"theta": (0.7, 0)}, ("theta=(0.7, 0)", "whole")),
        ({"replicate": "1"}, ("replicate='1'", "whole")),
        ({"outcomes": {"tokens": math.inf}}, ("outcome tokens=inf", "finite")),
        ({"outcomes": {"tokens": math.nan}}, ("outcome tokens=nan", "finite")),
        ({"outcomes": {"tokens": "3"}}, ("outcome tokens='3'", "finite number")),
        ({"outcomes": {"": 3.0}}, ("outcome ''", "not empty")),
        ({"outcomes": {"a},{b": 3.0}}, ("outcome 'a},{b'", "without braces")),
        ({"outcomes": {7: 3.0}}, ("outcome 7", "text")),
        ({"outcomes": [3.0]}, ("outcomes=[3.0]", "map names to numbers")),
    ],
)
def test_values_out_of_range_are_refused(changed, words):
    with pytest.raises(InputError) as caught:
        observation(**{"query": 3, **changed})
    for word in words:
        assert word in str(caught.value)


def test_ends_of_the_ranges_are_accepted():
    assert observation(cost_usd=0.0, quality=0.0).quality == 0
    assert observation(quality=1.0).request == Request((1, 0), 0, 0)
    assert FULL.request == Request((1, 0), 4, 2)
    assert observation(quality=np.float32(1.0000001)).quality == 1.0


def test_whole_numbers_of_any_kind_are_written_as_they_are():
    theta = torch.tensor([1, 0])
    one = observation(theta=theta, query=np.int64(3), replicate=np.int8(2), cost_usd=0.5)
    assert one == observation(3, replicate=2, cost_usd=0.5)
    assert Observation.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"latency_s": np.float32(1.5)}, {"latency_s": 1.5}),
        ({"latency_s": torch.tensor(1.5)}, {"latency_s": 1.5}),
        ({"judge_usd": Decimal("0.5")}, {"judge_usd": 0.5}),
        ({"module_cost_usd": np.array([0.5, 0.25])}, {"module_cost_usd": (0.5, 0.25)}),
        ({"module_tokens": [[3.0, 1], [np.int64(2), 0]]}, {"module_tokens": ((3, 1), (2, 0))}),
        ({"module_calls": torch.tensor([1, 0])}, {"module_calls": (1, 0)}),
    ],
)
def test_what_is_known_besides_is_written_as_plain_numbers(given, plain):
    one = observation(**given)
    assert repr(one) == repr(observation(**plain))
    assert Observation.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "given",
    [
        {"module_tokens": ((3.5, 1),)},
        {"module_tokens": ((-1, 1),)},
        {"module_tokens": (3, 1)},
        {"module_tokens": ((math.nan, 1),)},
        {"module_calls": ("1",)},
        {"module_cost_usd": (math.nan,)},
        {"module_cost_usd": (-0.5,)},
        {"latency_s": "fast"},
    ],
)
def test_what_no_journal_gives_back_is_refused_before_it_is_written(given):
    with pytest.raises(InputError, match=next(iter(given))):
        observation(**given)


amounts = st.floats(0, 1e300, allow_subnormal=True)
observations = st.builds(
    Observation,
    theta=st.lists(st.integers(0, 50), min_size=1, max_size=6).map(tuple),
    query=st.integers(0, 10**6),
    cost_usd=amounts,
    quality=st.floats(0, 1),
    replicate=st.integers(0, 9),
    latency_s=st.none() | amounts,
    module_cost_usd=st.none() | st.lists(amounts, max_size=4).map(tuple),
    module_tokens=st.none() | st.lists(st.tuples(st.integers(0), st.integers(0))).map(tuple),
    outcomes=st.none()
    | st.dictionaries(
        st.text(min_size=1).filter(lambda name: not set("{}") & set(name)),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=3,
    ),
)


@pytest.mark.slow
@given(observations)
def test_json_is_exact(made):
    line = made.to_json()
    assert "\n" not in line
    back = Observation.from_json(line)
    assert back == made
    assert hash(back) == hash(made)
    assert back.cost_usd.hex() == made.cost_usd.hex()
    assert "null" not in line


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        '"text"',
        "{}",
        '{"theta": [0], "query": 0, "cost_usd": 1.0}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "color": "red"}',
        '{"theta": [0], "query": 0, "cost_usd": NaN, "quality": 0.5}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 1.5}',
        '{"theta": 0, "query": 0, "cost_usd": 1.0, "quality": 0.5}',
        '{"theta": [0], "query": 0, "cost_usd": "much", "quality": 0.5}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "module_tokens": [[1]]}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": 3}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": {"a": "3"}}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": {"a": true}}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": {"a": NaN}}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": {"": 1}}',
        '{"theta": [0], "query": 0, "cost_usd": 1.0, "quality": 0.5, "outcomes": {"a": 1, "a": 2}}',
    ],
)
def test_what_is_not_an_observation_is_refused(line):
    with pytest.raises(InputError):
        Observation.from_json(line)


def test_history_is_a_ledger():
    history = History()
    assert (len(history), history.spend_usd) == (0, 0.0)
    for made in FIVE:
        history.append(made)
    assert list(history) == FIVE
    assert history[2] == FULL
    assert history.spend_usd == pytest.approx(math.fsum(o.cost_usd for o in FIVE))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def write(path, made=FIVE) -> bytes:
    journal = Journal(path)
    journal.append(made)
    journal.close()
    return path.read_bytes()


def reopened(path) -> list[Observation]:
    journal = Journal(path)
    journal.close()
    return journal.recorded


def test_what_was_appended_is_read_again(path):
    journal = Journal(path)
    assert journal.recorded == []
    journal.append(FIVE[:2])
    journal.append([])
    journal.append(FIVE[2:3])
    assert len(path.read_bytes().splitlines()) == 3  # on disk before it is closed
    journal.close()
    journal = Journal(path)
    assert journal.recorded == FIVE[:3]
    journal.append(FIVE[3:])
    journal.close()
    assert reopened(path) == FIVE
    assert [json.loads(line)["query"] for line in path.read_text().splitlines()] == [0, 1, 4, 2, 3]


@pytest.mark.parametrize("encoder", [observation_module.orjson, None])
def test_named_outcomes_are_read_again_in_their_order(path, monkeypatch, encoder):
    monkeypatch.setattr(observation_module, "orjson", encoder)
    made = [WITH_OUTCOMES, observation(6), observation(7, outcomes=NAMED), observation(8)]
    write(path, made)
    assert reopened(path) == made
    assert list(reopened(path)[0].outcomes) == list(NAMED)
    with_none = observation(6, outcomes={})
    assert with_none.to_json() == observation(6).to_json()  # no outcomes, no key
    assert Observation.from_json(with_none.to_json()) == with_none


@pytest.mark.parametrize("amount", [math.nan, math.inf, 5e-324, 1e22, 0.1 + 0.2])
def test_json_of_any_number_is_read_again(monkeypatch, amount):
    odd = observation(1, latency_s=amount, module_tokens=((2**70, 0), (1, 2)))
    lines = []
    for package in (observation_module.orjson, None):  # with it, and on a bare machine
        monkeypatch.setattr(observation_module, "orjson", package)
        lines.append(odd.to_json())
        back = Observation.from_json(lines[-1])
        assert repr(back) == repr(odd)
    assert json.loads(lines[0]).keys() == json.loads(lines[1]).keys()


def test_lines_are_the_same_number_by_number_without_orjson(path, monkeypatch):
    fast = write(path)
    path.unlink()
    monkeypatch.setattr(observation_module, "orjson", None)
    plain = write(path)
    assert [json.loads(line) for line in fast.splitlines()] == [
        json.loads(line) for line in plain.splitlines()
    ]
    assert reopened(path) == FIVE


def test_what_need_not_be_durable_is_written_at_a_flush_or_at_the_end(path):
    journal = Journal(path, durable=False)
    journal.append(FIVE[:2])
    assert path.read_bytes() == b""
    journal.flush()
    journal.flush()
    assert len(path.read_bytes().splitlines()) == 2
    journal.append(FIVE[2:])
    journal.close()
    assert reopened(path) == FIVE


def test_what_need_not_be_durable_does_not_wait_for_ever(path):
    journal = Journal(path, durable=False)
    for query in range(2499):
        journal.append([observation(query)])
    assert 2000 <= len(path.read_bytes().splitlines()) < 2499
    journal.close()
    assert reopened(path) == [observation(query) for query in range(2499)]


def test_an_interrupted_flush_leaves_nothing_behind_and_can_be_made_again(path, monkeypatch):
    journal = Journal(path, durable=False)
    journal.append(FIVE[:3])

    def interrupted(content: bytes) -> None:
        journal._file.write(content[:50])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.flush()
    assert len(path.read_bytes()) == 50
    journal.append(FIVE[3:])
    journal.close()
    assert reopened(path) == FIVE


@pytest.mark.slow
def test_a_cut_at_any_byte_keeps_every_whole_line(path, caplog):
    whole = write(path)
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            recorded = reopened(path)
        # A line without its newline is whole too.
        kept = sum(end - 1 <= size for end in ends)
        assert recorded == FIVE[:kept], size
        assert path.read_bytes() == whole[: ends[kept - 1] if kept else 0], size
        clean = size in (0, *ends, *(end - 1 for end in ends))
        assert bool(caplog.records) != clean, size
        if not clean:
            assert f"dropped line {kept + 1}" in caplog.text
        journal = Journal(path)
        journal.append([observation(9)])
        journal.close()
        assert reopened(path) == [*FIVE[:kept], observation(9)], size


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\xff\xfe garbage", b"{}"])
def test_a_tail_of_garbage_is_dropped(path, tail):
    whole = write(path)
    path.write_bytes(whole + tail)
    assert reopened(path) == FIVE
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [1, 3, 4])
@pytest.mark.parametrize("damage", [b"", b"{\xff}", b'{"theta": [1', b"\0\0\0\0"])
def test_damage_before_the_last_line_is_refused_with_its_number(path, line, damage):
    lines = write(path).splitlines(keepends=True)
    lines[line - 1] = damage + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=rf"journal\.jsonl: line {line} is damaged") as caught:
        Journal(path)
    assert "restore the file" in str(caught.value)
    assert path.read_bytes() == b"".join(lines)  # untouched
    with pytest.raises(InputError, match="damaged"):  # and no longer locked
        Journal(path)


def test_a_damaged_last_line_with_a_line_end_is_dropped_too(path, caplog):
    whole = write(path)
    path.write_bytes(whole[:-10] + b"garbage}\n")
    assert reopened(path) == FIVE[:4]
    assert "dropped line 5" in caplog.text


def test_a_second_handle_is_locked_out_until_the_first_closes(path):
    first = Journal(path)
    with pytest.raises(InputError, match="in use by another process"):
        Journal(path)
    first.append(FIVE[:1])
    first.close()
    assert reopened(path) == FIVE[:1]


@pytest.mark.slow
def test_a_second_process_is_locked_out(path):
    code = f"import pathlib as p, scope_torch.runs.journal as h; h.Journal(p.Path({str(path)!r}))"
    command = [sys.executable, "-c", code]
    first = Journal(path)
    first.append(FIVE)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first.close()
    assert second.returncode == 1
    assert "in use by another process" in second.stderr
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    assert reopened(path) == FIVE


def test_the_lock_needs_no_posix(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # importing it fails, as on Windows
    first = Journal(path)
    with pytest.raises(InputError, match="in use by another process"):
        Journal(path)
    assert is_locked(path)
    first.close()
    assert not is_locked(path)
    assert list(path.parent.iterdir()) == [path]


def test_early_versions_and_this_one_keep_each_other_out(path):
    """Early versions lock the journal itself with flock."""
    with open(path, "a+b") as early:
        fcntl.flock(early, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(InputError, match="in use by another process"):
            Journal(path)
    journal = Journal(path)
    with open(path, "a+b") as early, pytest.raises(BlockingIOError):
        fcntl.flock(early, fcntl.LOCK_EX | fcntl.LOCK_NB)
    journal.close()


def test_a_look_at_the_lock_does_not_keep_a_search_out(path):
    """`watch` takes the lock for a moment."""
    write(path)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            is_locked(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(100):
            assert reopened(path) == FIVE
    finally:
        ended.set()
        watcher.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a lock cannot be asked")
def test_a_question_takes_no_lock(path, monkeypatch):
    write(path)
    monkeypatch.setattr("scope_torch.runs.journal.lock_descriptor", pytest.fail)
    assert not is_locked(path)
    with open(path, "rb") as reader:  # a question needs no right to write
        monkeypatch.setattr("os.access", lambda *_: False)
        assert not is_locked(path)
        assert reader.read(1) == b"{"
    monkeypatch.undo()
    journal = Journal(path)
    assert is_locked(path)
    assert is_locked(path)  # the first question released nothing
    with pytest.raises(InputError, match="in use by another process"):
        Journal(path)
    journal.close()
    assert not is_locked(path)


def test_a_question_that_has_no_answer_is_an_error(path, monkeypatch):
    write(path)

    def refuse(error: int) -> None:
        def failing(*_: object, **__: object) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr("builtins.open", failing)

    refuse(errno.EACCES)
    with pytest.raises(InputError, match="in use: Permission denied; make it readable"):
        is_locked(path)
    refuse(errno.ENOLCK)  # a disk without locks: then nobody has locked it
    assert not is_locked(path)


def test_a_locked_first_byte_is_a_brace(path, monkeypatch):
    """Windows lets no other process read the byte that is locked."""
    write(path)

    def refuse(_: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert read_journal(path) == FIVE


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="choose another place"):
        Journal(tmp_path)  # a directory
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="choose another place"):
        Journal(tmp_path / "file" / "journal.jsonl")
    with pytest.raises(InputError, match="No such file"):
        Journal(tmp_path / "absent" / "journal.jsonl")
