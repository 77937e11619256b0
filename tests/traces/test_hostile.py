"""Logs of strangers: large, deep, with control characters, surrogates and numbers beyond belief."""

import json
import sys
from collections import Counter
from dataclasses import replace
from html import escape

import pytest

from scope_torch.cli.import_traces import main
from scope_torch.errors import InputError, printable
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces import reading, report, summary, tree
from scope_torch.traces.reference import load_reference
from scope_torch.traces.span import Score, Span, of_nanoseconds
from scope_torch.traces.tokens import used

PRICES = PriceList({"nano": LLMInfo("nano", 1.0, 2.0)})
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\ud800"


def lines_executed(work) -> int:
    """How many lines of the package's modules about traces run: the same on every machine."""
    files = {module.__file__ for module in (reading, report, summary, tree)}
    seen = Counter()

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        seen[event] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen["line"]


def nested(size: int) -> list[Span]:
    """Spans each inside the one before; the inner half are calls, one of two with tokens."""
    half = size // 2
    spans = [Span("t", str(n), str(n - 1) if n else None, f"step {n}") for n in range(half)]
    return spans + [
        Span("t", str(n), str(n - 1), "chat", is_call=True, llm="nano", cost_usd=0.25,
             usage=used(9, 1) if n % 2 else None)
        for n in range(half, size)
    ]  # fmt: skip


def in_a_row(size: int) -> list[Span]:
    """Calls of modules with names of their own, deep inside one another."""
    spans = [Span("t", str(n), str(n - 1) if n else None, f"step {n}") for n in range(size)]
    return spans + [
        Span("t", f"c{n}", str(n), "chat", is_call=True, llm="nano", usage=used(9, 1))
        for n in range(size)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [nested, in_a_row])
@pytest.mark.parametrize(
    "rules", [{}, {"name_of": "top"}, {"module_attribute": "of the last"}, {"most_frequent": True}]
)
def test_work_grows_with_the_number_of_spans_and_no_faster(shape, rules):
    def work(size: int) -> int:
        *spans, last = shape(size)
        traces = reading.Traces([*spans, replace(last, attributes={"of the last": "x"})])
        asked = summary.TraceRules(prices=PRICES, **rules)
        return lines_executed(lambda: report.report(summary.summarize(traces, asked), traces))

    small, large = work(250), work(1000)
    assert large < 5 * small  # four times the spans; with all spans around each it was 16 times


@pytest.mark.slow
def test_the_work_of_reading_grows_with_the_size_of_a_file(tmp_path):
    def work(size: int) -> int:
        path = tmp_path / "log.jsonl"
        row = {"traceId": "t", "id": "c", "type": "GENERATION", "model": "nano"}
        path.write_text("\n".join([json.dumps(row, indent=1)] * size + ["{cut"] * size))
        return lines_executed(lambda: reading.read_traces([path]))

    assert work(200) < 5 * work(50)


@pytest.mark.slow
def test_twenty_thousand_nested_spans_are_read():
    found = summary.summarize(reading.Traces(nested(20_000)))
    assert sum(module.calls for module in found.modules.values()) == 1  # the innermost


def hostile_rows(text: str) -> list[dict]:
    of_trace = {"traceId": f"t{text}"}
    return [
        of_trace | {"id": f"a{text}", "type": "SPAN", "name": "answer"},
        of_trace
        | {
            "id": f"b{text}",
            "type": "SPAN",
            "name": f"plan{text}",
            "parentObservationId": f"a{text}",
        },
        of_trace
        | {"id": "c", "type": "GENERATION", "parentObservationId": f"b{text}", "totalCost": 0.25}
        | {"model": f"nano{text}", "name": f"call{text}", "metadata": {"question": f"q{text}"}},
        of_trace | {"name": f"ok{text}", "value": 1},
        {f"key{text}": 1},
    ]


def write(rows, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def is_clean(text: str) -> bool:
    return all(printable(line) == line for line in text.splitlines()) and "\r" not in text


@pytest.mark.parametrize("rules", [[], ["--query-attribute", "question"], ["--name-of", "own"]])
def test_no_control_character_of_a_log_reaches_the_terminal_or_a_file(rules, tmp_path, capsys):
    path = write(hostile_rows(ESCAPE), tmp_path)
    to = tmp_path / "reference.json"
    main([str(path), "--to", str(to), *rules])
    out = capsys.readouterr().out
    assert is_clean(out)
    assert r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\ud800" in out
    reference = load_reference(to)
    names = [*reference, *reference.values(), *(query.id for query in reference.queries)]
    assert all(is_clean(name) and is_clean(escape(name)) for name in names)
    assert len(names) == 3


def test_a_query_is_found_by_the_text_that_was_logged(tmp_path):
    question = "first line\nsecond line \x1b[2J"
    rows = hostile_rows("")[:3]
    rows[0]["metadata"] = rows[2]["metadata"] = {"question": question}
    to = tmp_path / "reference.json"
    main([str(write(rows, tmp_path)), "--query-attribute", "question", "--to", str(to)])
    assert len(load_reference(to).only([question]).queries) == 1


def test_a_reference_of_a_stranger_is_shown_with_escapes(tmp_path):
    query = {"id": f"q{ESCAPE}", "traces": 1, "cost_usd": 0.25, "quality": 1, "seconds": None}
    content = {"version": 1, "models": {f"plan{ESCAPE}": f"nano{ESCAPE}"}, "queries": [query]}
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(content))
    reference = load_reference(path)
    names = [*reference, *reference.values(), reference.queries[0].id]
    assert len(names) == 3
    assert all(map(is_clean, names))


def test_names_that_differ_in_control_characters_stay_apart(tmp_path):
    rows = [{**row, "traceId": "t"} for row in hostile_rows("\x1b")[:3]]
    other = [{**row, "traceId": "t2"} for row in hostile_rows("\x07")[:3]]
    found = summary.summarize(reading.read_traces([write([*rows, *other], tmp_path)]))
    assert list(found.modules) == [r"plan\x1b", r"plan\x07"]


@pytest.mark.parametrize(
    "rules",
    [
        ["--score", "x"],
        ["--query-attribute", "x"],
        ["--score-range", "2", "3"],
        ["--format", "langsmith"],
    ],
)
def test_no_control_character_of_a_log_is_in_an_error(rules, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(write(hostile_rows(ESCAPE), tmp_path)), *rules])
    said = capsys.readouterr().err
    assert is_clean(said)
    assert said.count("\n") == 1


def test_an_error_escapes_what_a_terminal_would_obey():
    assert str(InputError("one\ntwo\x1b[2J\ud800 é 東京")) == r"one two\x1b[2J\ud800 é 東京"


def test_lone_surrogates_of_other_formats(tmp_path, capsys):
    attributes = {"gen_ai.request.model": "nano\udfff", "operation.cost": 0.25, "\ud800": "x"}
    span = {
        "context": {"trace_id": "t", "span_id": "s"},
        "name": "\ud83d",
        "attributes": attributes,
    }
    main([str(write([span], tmp_path)), "--to", str(tmp_path / "reference.json")])
    assert r"nano\udfff" in capsys.readouterr().out
    run = {"id": "t\ud800", "trace_id": "t\ud800", "run_type": "llm", "total_cost": 0.25}
    run |= {"inputs": {"model": "nano"}, "feedback_stats": {"ok\ud800": {"avg": 1}}}
    main([str(write([run], tmp_path)), "--to", str(tmp_path / "reference.json")])
    assert r"score 'ok\\ud800'" in capsys.readouterr().out


HUGE = (1e308, "1e308", -1e308, 10**400, "9" * 400)


@pytest.mark.parametrize("huge", HUGE)
def test_numbers_beyond_belief_are_not_believed(huge, tmp_path):
    rows = [
        {"traceId": trace, "id": number, "type": "GENERATION", "model": "nano", "totalCost": huge}
        | {"costDetails": {"input": huge, "output": huge}}
        | {"usageDetails": {"input": 1500, "output": 1000, "input_cached_tokens": huge}}
        for trace in "tu"
        for number in "ab"
    ]
    traces = reading.read_traces([write(rows, tmp_path)])
    found = summary.summarize(traces, summary.TraceRules(prices=PRICES))
    assert found.cost_usd == pytest.approx(2 * 0.0035, abs=1e-15)
    assert report.report(found, traces)


@pytest.mark.parametrize("huge", HUGE)
def test_times_beyond_all_dates_are_not_known(huge, tmp_path):
    times = {"startTimeUnixNano": 0, "endTimeUnixNano": huge}
    attributes = [{"key": "gen_ai.usage.cost", "value": {"doubleValue": 0.25}}]
    attributes.append({"key": "gen_ai.request.model", "value": {"stringValue": "nano"}})
    rows = [{"traceId": "t", "spanId": s, "attributes": attributes, **times} for s in "ab"]
    found = summary.summarize(reading.read_traces([write(rows, tmp_path)]))
    assert (found.queries[0].seconds, found.cost_usd) == (None, 0.5)
    assert of_nanoseconds(huge) is None


@pytest.mark.parametrize("score_range", [(0.0, 1.0), (-8e307, 8e307), (1e308, 1.5e308)])
def test_scores_beyond_the_range_are_an_error(score_range):
    spans = [Span("t", "c", None, "plan", is_call=True, llm="nano", cost_usd=0.25)]
    scores = [Score("t", "ok", value) for value in (1.7e308, 1.7e308, -1.7e308)]
    rules = summary.TraceRules(score_range=score_range)
    with pytest.raises(InputError, match="--score-range"):
        summary.summarize(reading.Traces(spans, scores), rules)


def test_one_score_beyond_the_range_is_an_error_though_the_mean_is_within():
    spans = [Span("t", "c", None, "plan", is_call=True, llm="nano", cost_usd=0.25)]
    scores = [Score("t", "ok", value) for value in (2.0, 0.0)]
    with pytest.raises(InputError, match="outside 0 to 1"):
        summary.summarize(reading.Traces(spans, scores))
