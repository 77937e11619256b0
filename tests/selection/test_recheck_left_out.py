"""`recheck_traces`: what is no draw is told, and is no silence where it may hide an alarm."""

import json
import random
from dataclasses import replace

import pytest

from scope_torch.errors import InputError
from scope_torch.results.rechecked import RecheckResult
from scope_torch.selection.recheck import recheck_traces
from scope_torch.traces.reading import Traces, read_traces
from scope_torch.traces.rules import TraceRules
from scope_torch.traces.span import Score, Span

CHOICE = {"answer": "mini"}
FIRST = 1_793_491_200.0  # 2026-11-01


def spans_of(number, start, **call):
    told = {"llm": "mini", "cost_usd": 0.001, **call}
    return [
        Span(f"t{number}", "a", None, "app", start=start),
        Span(f"t{number}", "b", "a", "answer", start=start),
        Span(f"t{number}", "c", "b", "chat", start=start, is_call=True, **told),
    ]


def traces(good=100, bad=50, score=lambda _: True, **call):
    """So many good traces, one an hour; then so many bad ones, whose calls are as told."""
    found = Traces()
    for number in range(good + bad):
        is_bad = number >= good
        found.spans += spans_of(number, FIRST + 3600 * number, **(call if is_bad else {}))
        if score(number):
            found.scores.append(Score(f"t{number}", "right", float(not is_bad)))
    return found


def look(log, **rules) -> RecheckResult:
    return recheck_traces(log, CHOICE, min_quality=0.9, rules=TraceRules(**rules))


@pytest.mark.parametrize("call", [{"cost_usd": None}, {"cost_usd": None, "failed": True}])
def test_a_draw_needs_no_cost_and_may_have_failed(call):
    found = look(traces(**call))
    assert (len(found.pairs), found.left_out, found.exit_status) == (150, {}, 1)
    assert (found.alarm.since, found.num_newer) == (100, 0)
    units = [replace(one, unit=one.is_call and "CHARACTERS") for one in traces(**call).spans]
    assert look(Traces(units, traces().scores)).pairs == found.pairs


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"llm": None}, "with a call that does not name its LLM"),
        ({"llm": None, "failed": True, "cost_usd": None}, "with failed calls that name no LLM"),
        ({"llm": None, "failed": True}, "with a call that does not name its LLM"),
        ({"llm": "nano"}, "ran another LLM than the most frequent"),
    ],
)
def test_newer_traces_that_are_no_draws_are_no_silence(call, why):
    found = look(traces(**call), most_frequent=True)
    assert (found.alarm, found.exit_status) == (None, 3)
    head, *lines = str(found).splitlines()
    assert head == "no alarm, but 50 newer traces left out: answer=mini"
    assert f"  left out: 50 traces {why}" in lines
    told = json.loads(json.dumps(found.to_json()))
    assert (told["left_out"], told["num_newer"]) == ({why: 50}, 50)
    assert (told["num_unread"], told["num_undated"]) == (0, 0)


def test_traces_that_were_left_out_before_the_last_draw_are_told():
    log = traces(bad=0)
    log.spans = [replace(one, llm=one.llm and "nano") if one.trace == "t7" else one
                 for one in log.spans]  # fmt: skip
    found = look(log, most_frequent=True)
    assert (found.exit_status, found.num_newer) == (0, 0)
    assert "left out: 1 trace ran another LLM than the most frequent" in str(found)
    assert str(found).startswith("no alarm: answer=mini\n")


def test_traces_without_a_score_are_told():
    found = look(traces(bad=1, score=lambda number: number < 100))
    assert (found.exit_status, found.num_newer) == (3, 1)
    assert str(found).startswith("no alarm, but 1 newer trace left out: answer=mini\n")
    assert "\n  left out: 1 trace without a score\n" in str(found)


def test_an_alarm_is_one_whatever_is_left_out():
    log = traces(score=lambda number: number < 140)
    found = look(log)
    assert (found.exit_status, found.num_newer) == (1, 10)
    assert str(found).startswith("ALARM: answer=mini\n")
    assert "left out: 10 traces without a score" in str(found)


@pytest.mark.slow
def test_grades_of_a_sample_leave_the_newest_traces_out_by_chance():
    """Of four in five that have none: twenty in a row come once in 87 looks; 21 in 108."""
    luck = random.Random(0)
    graded = {number: luck.random() < 0.2 for number in range(1000)} | {0: True, 999: True}
    between = 1000 - sum(graded.values())
    for newer in (1, 10, 15, 30, 60):
        log = traces(1000 + newer, 0, score=lambda number: graded.get(number, False))
        found = look(log)
        is_chance = (between / 1000) ** newer >= 0.01
        assert found.exit_status == (0 if is_chance else 3)
        assert found.num_newer == (0 if is_chance else newer)
        assert found.left_out == {"without a score": between + newer}
    # The time before the first grade says nothing of how often there is one.
    log = traces(1010, 0, score=lambda number: 900 <= number < 1000)
    assert (look(log).exit_status, look(log).num_newer) == (3, 10)


def test_traces_without_a_time_may_be_newer():
    log = traces(bad=0)
    log.spans += [replace(one, start=None) for one in spans_of("x", None)]
    assert look(Traces(log.spans, [*log.scores])).exit_status == 3
    log.scores.append(Score("tx", "right", 0.0))
    found = look(log)
    assert (found.exit_status, found.num_undated, len(found.pairs)) == (3, 1, 100)
    assert str(found).startswith("no alarm, but 1 trace or row without a time left out: answer")
    assert "left out: 1 trace without a time that can be read" in str(found)


def test_nothing_to_draw_says_why():
    log = traces(2, 0, score=lambda number: number)
    log.spans = [replace(one, start=None) for one in log.spans]
    why = r"\(1 without a score; 1 without a time that can be read\); export both"
    with pytest.raises(InputError, match=f"no trace has a time and a score {why}"):
        look(log)


def rows(number, start="2026-11-01 12:00:00 UTC", llm="mini"):
    of = {"trace_id": f"t{number}", "start_time": start}
    return [
        of | {"id": "a", "type": "SPAN", "name": "app"},
        of | {"id": "b", "type": "SPAN", "name": "answer", "parent_observation_id": "a"},
        of | {"id": "c", "type": "GENERATION", "parent_observation_id": "b", "model": llm},
        {"trace_id": f"t{number}", "name": "right", "value": 1, "id": f"s{number}"},
    ]


SESSION = {"sessionId": "s", "traceId": None, "name": "right", "value": 1, "id": "x"}
OTHER = {"traceId": "u", "spanId": "1", "name": "x"}


@pytest.mark.parametrize(
    ("line", "format", "status"),
    [
        ('{"cut', "auto", 3),
        (json.dumps({"trace": "t", "kind": "of another format"}), "auto", 3),
        (json.dumps({**rows(9)[2], "id": None}), "auto", 3),
        (json.dumps(SESSION), "auto", 0),  # no span
        (json.dumps(OTHER), "langfuse", 0),  # which the user left out
        (json.dumps(rows(9)[0]), "auto", 3),  # a trace of one span, with a time
        ("", "auto", 0),
    ],
)
def test_rows_that_cannot_be_read_may_be_newer(line, format, status, tmp_path):
    written = [json.dumps(row) for number in range(5) for row in rows(number)]
    if "type" in line and "GENERATION" not in line:
        line = line.replace("12:00", "13:00")
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*written, line]))
    log = read_traces([path], format)
    found = recheck_traces(log, CHOICE, min_quality=0.9)
    assert (found.exit_status, len(found.pairs)) == (status, 5)
    assert found.num_unread == log.num_unread
    assert (f"not read: {log.num_unread} row" in str(found)) == (log.num_unread > 0)


@pytest.mark.parametrize("start", ["2026-11-01 12:00:00 UTC", 1793534400.5])
def test_times_in_utc_and_in_seconds_are_of_their_day(start, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(json.dumps(row) for number in range(5) for row in rows(number, start))
    )
    found = recheck_traces(read_traces([path]), CHOICE, min_quality=0.9)
    assert found.days == ["2026-11-01"] * 5
