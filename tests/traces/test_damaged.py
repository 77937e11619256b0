"""Rules, damaged logs, and logs that give no reference: an error names the mend."""

import contextlib
import dataclasses
import gzip
import json
import math
import sys

import pytest
from hypothesis import strategies as st
from reliability.fuzzing import fuzzed

from scope_torch.cli.import_traces import main
from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces.opentelemetry import read_otlp, read_printed
from scope_torch.traces.reading import FORMATS, Traces, read_traces
from scope_torch.traces.reference import LoggedReference, load_reference, save_reference
from scope_torch.traces.report import report
from scope_torch.traces.span import Score, Span
from scope_torch.traces.summary import LoggedQuery, TraceRules, summarize
from scope_torch.traces.tokens import used

PRICES = PriceList({name: LLMInfo(name, 1.0, 2.0) for name in ("nano", "pro")})


def call(trace: str, name: str = "c", parent: str | None = "b", llm: str = "nano", **more) -> Span:
    more.setdefault("usage", used(1_000_000, 500_000))
    return Span(trace, name, parent, f"chat {llm}", is_call=True, llm=llm, **more)


def whole(trace: str, llm: str = "nano", module: str = "plan", **more) -> list[Span]:
    spans = [Span(trace, "a", None, "answer"), Span(trace, "b", "a", module)]
    return [*spans, call(trace, llm=llm, **more)]


def summed(spans, scores=(), **rules):
    return summarize(Traces(list(spans), list(scores)), TraceRules(prices=PRICES, **rules))


def observation(**more) -> dict:
    row = {"trace_id": "t", "id": "c", "type": "GENERATION", "provided_model_name": "nano"}
    return row | more


def rows_of(*rows, tmp_path) -> Traces:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_traces([path])


def test_two_llms_in_a_module_are_not_one_reference():
    spans = [*whole("1"), *whole("2"), *whole("3", "pro")]
    with pytest.raises(InputError, match=r"'plan' ran nano in 2 traces, pro in 1 .*--most-freq"):
        summed(spans)
    summary = summed(spans, most_frequent=True)
    assert summary.models == {"plan": "nano"}
    assert summary.num_traces == 2
    assert summary.left_out == {"ran another LLM than the most frequent": 1}
    assert summary.cost_usd == 2.0  # a million prompt tokens at 1 USD, half a million at 2 USD


def test_a_call_below_the_root_has_the_name_of_its_own_span():
    summary = summed([Span("t", "a", None, "answer"), call("t", parent="a")])
    assert summary.models == {"chat nano": "nano"}


def test_spans_without_one_around_them_stand_below_the_trace():
    spans = [Span("t", "a", None, "plan"), Span("t", "b", None, "solve")]
    spans += [call("t", "c", "a"), call("t", "d", "b", "pro")]
    assert summed(spans).models == {"plan": "nano", "solve": "pro"}


def test_a_framework_puts_a_span_between():
    spans = [*whole("t")[:2], Span("t", "s", "b", "RunnableSequence"), call("t", parent="s")]
    assert list(summed(spans).modules) == ["RunnableSequence"]
    assert list(summed(spans, name_of="top").modules) == ["plan"]


def test_an_attribute_of_a_span_around_names_the_module():
    spans = whole("t")
    spans[1] = Span("t", "b", "a", "step 7", attributes={"graph.node.name": "plan"})
    assert list(summed(spans, module_attribute="graph.node.name").modules) == ["plan"]
    spans[2] = dataclasses.replace(spans[2], attributes={"graph.node.name": " "})
    assert list(summed(spans, module_attribute="graph.node.name").modules) == ["plan"]


def test_a_call_that_two_libraries_have_logged_counts_once():
    spans = [*whole("t"), call("t", "inner", "c")]
    module = summed(spans).modules["plan"]
    assert (module.calls, module.prompt_tokens) == (1, 1_000_000)


def test_a_trace_that_is_cut_is_left_out():
    spans = [*whole("1"), *whole("2")[1:]]  # the root of the second one is missing
    summary = summed(spans)
    assert (summary.num_traces, list(summary.modules)) == (1, ["plan"])
    assert summary.left_out == {"not whole: a span around others is missing": 1}
    orphans = [Span("3", "x", "gone", "plan"), Span("3", "y", "gone", "solve"), call("3", "z", "x")]
    assert summed([*whole("1"), *orphans]).left_out == summary.left_out


def test_another_service_made_the_span_around_the_root():
    spans = whole("t")
    spans[0] = Span("t", "a", "elsewhere", "answer")
    assert list(summed(spans).modules) == ["plan"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"usage": None}, "with a call that reports neither tokens nor a cost"),
        ({"llm": None}, "with a call that does not name its LLM"),
        ({"name": "x", "parent": "x"}, "with spans around each other in a circle"),
    ],
)
def test_a_trace_without_numbers_is_left_out_and_counted(bad, reason):
    damaged = [call("2", **bad)] if "parent" in bad else [*whole("2")[:2], call("2", **bad)]
    assert summed([*whole("1"), *damaged]).left_out == {reason: 1}
    with pytest.raises(InputError, match=r"no trace is left \(1 "):
        summed(damaged)


def test_traces_of_one_query_are_averaged():
    spans = [
        *whole("1", attributes={"q": 7}, usage=used(1_000_000, 0)),
        *whole("2", attributes={"q": 7}, usage=used(3_000_000, 0)),
    ]
    scores = [Score("1", "ok", 1.0), Score("2", "ok", 0.0), Score("other", "ok", 0.3)]
    summary = summed(spans, scores, query_attribute="q")
    assert summary.queries == [LoggedQuery("7", 2, 2.0, 0.5, None)]
    with pytest.raises(InputError, match=r"trace 1 has no attribute 'p'; .*--query-attribute"):
        summed(spans, query_attribute="p")


def test_several_scores_need_a_choice():
    scores = [Score("1", "ok", 1.0), Score("1", "tone", 0.5), Score("1", "tone", 0.7)]
    with pytest.raises(InputError, match=r"ok \(1 traces\), tone \(1 traces\); choose .*--score"):
        summed(whole("1"), scores)
    assert summed(whole("1"), scores, score="tone").quality == pytest.approx(0.6)
    with pytest.raises(InputError, match="no trace has the score 'toen'; the scores are: ok"):
        summed(whole("1"), scores, score="toen")


def test_scores_have_a_range():
    scores = [Score("1", "stars", 4.0)]
    with pytest.raises(InputError, match=r"outside 0 to 1; .*--score-range"):
        summed(whole("1"), scores)
    assert summed(whole("1"), scores, score_range=(1.0, 5.0)).quality == 0.75


def test_an_attribute_is_the_quality():
    spans = whole("1")
    spans[0] = Span("1", "a", None, "answer", attributes={"grade": "0.25"})
    assert summed(spans, score_attribute="grade").quality == 0.25


def test_an_llm_without_a_price(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(observation(usage_details={"input": 9, "output": 1})))
    main([str(path)])
    assert "cost unknown: no price is known for nano (give --prices" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([str(path), "--to", str(tmp_path / "reference.json")])
    assert "no price is known for nano; give --prices" in capsys.readouterr().err
    prices = tmp_path / "prices.toml"
    prices.write_text(
        'version = 1\n[[llm]]\nname = "nano"\ninput_usd_per_mtok = 1\noutput_usd_per_mtok = 2\n'
    )
    main([str(path), "--prices", str(prices), "--to", str(tmp_path / "reference.json")])
    said = json.loads((tmp_path / "reference.json").read_text())
    assert said["cost_usd"] == pytest.approx(11e-6, abs=1e-18)
    with pytest.raises(InputError, match="has no cost or no score in the log"):
        load_reference(tmp_path / "reference.json").averages()


@pytest.mark.parametrize(
    ("attributes", "tokens"),
    [
        ({"gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 7}, (90, 7, 0)),
        ({"gen_ai.usage.prompt_tokens": 90, "gen_ai.usage.completion_tokens": 7}, (90, 7, 0)),
        ({"llm.usage.prompt_tokens": 90, "llm.usage.completion_tokens": 7}, (90, 7, 0)),
        ({"llm.token_count.prompt": 90, "llm.token_count.completion": 7}, (90, 7, 0)),
        (
            {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.cache_read.input_tokens": 80},
            (90, 0, 80),
        ),
        # Some libraries leave cached tokens out of the prompt.
        (
            {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.cache_read_input_tokens": 80},
            (90, 0, 80),
        ),
        ({"gen_ai.usage.input_tokens": "90", "gen_ai.usage.output_tokens": 7.0}, (90, 7, 0)),
        ({"gen_ai.usage.input_tokens": -1, "gen_ai.usage.output_tokens": True}, None),
    ],
)
def test_current_and_older_names_of_tokens(attributes, tokens):
    row = {"context": {"trace_id": "t", "span_id": "s"}, "name": "chat"}
    (span,) = read_printed({**row, "attributes": {"gen_ai.request.model": "nano", **attributes}})
    assert span.llm == "nano"
    assert (span.usage[:3] if span.usage else None) == tokens


@pytest.mark.parametrize("operation", ["invoke_agent", "embeddings", "execute_tool"])
def test_other_operations_are_no_calls(operation):
    attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": "nano"}
    row = {"context": {"trace_id": "t", "span_id": "s"}, "attributes": attributes}
    assert [span.is_call for span in read_printed(row)] == [False]


def test_values_of_otlp_are_decoded():
    def of(kind, value):
        return {"key": kind, "value": {kind: value}}

    pair = {"values": [{"key": "k", "value": {"intValue": "3"}}]}
    attributes = [of("intValue", "5"), of("kvlistValue", pair), {"key": 3}, "x"]
    array = {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}
    row = {"traceId": "t", "spanId": "s", "attributes": [*attributes, of("arrayValue", array)]}
    (span,) = read_otlp(row)
    wanted = {"intValue": "5", "kvlistValue": {"k": "3"}, "arrayValue": [0.5, True]}
    assert span.attributes == {**wanted, "kvlistValue.k": "3"}


@pytest.mark.parametrize(
    ("more", "tokens", "usd"),
    [
        ({"usage_details": {"input": 9, "input_cached_tokens": 1, "output": 7}}, (10, 7, 1), None),
        ({"usage_details": {"input": 86, "cache_read_input_tokens": 14}}, (100, 0, 14), None),
        ({"usage_details": {"output": 9, "output_reasoning_tokens": 30}}, (0, 39, 0), None),
        ({"usageDetails": {"prompt_tokens": 100, "completion_tokens": 9}}, (100, 9, 0), None),
        ({"usage": {"input": 100, "output": 9, "unit": "TOKENS"}}, (100, 9, 0), None),
        ({"promptTokens": 100, "completionTokens": 9}, (100, 9, 0), None),
        ({"usage_details": '{"input": "100", "output": "9"}'}, (100, 9, 0), None),
        ({"usage": {"input": 1}, "cost_details": {"input": 0.25, "output": 0.5}}, (1, 0, 0), 0.75),
        ({"usage_details": {"input": 1}, "total_cost": 0}, (1, 0, 0), None),  # no price was known
        ({"usage_details": {"input": 1}, "calculatedTotalCost": 0.5}, (1, 0, 0), 0.5),
    ],
)  # fmt: skip
def test_usage_of_langfuse(more, tokens, usd, tmp_path):
    (span,) = rows_of(observation(**more), tmp_path=tmp_path).spans
    assert (span.usage[:3], span.cost_usd) == (tokens, usd)


def test_a_whole_trace_of_langfuse(tmp_path):
    scores = [
        {"traceId": "t", "name": "ok", "value": True, "dataType": "BOOLEAN"},
        {"traceId": "t", "name": "tone", "value": 0, "dataType": "CATEGORICAL"},
        {"subject": {"kind": "trace", "id": "t"}, "name": "ok", "value": 0.5},
        {"trace_id": "t", "name": "ok", "value": "good"},
    ]
    trace = {"id": "t", "observations": [observation(usage={"input": 5})], "scores": scores}
    traces = rows_of({"data": [trace]}, tmp_path=tmp_path)
    assert traces.scores == [Score("t", "ok", 1.0), Score("t", "ok", 0.5)]
    assert traces.unread[0].endswith("line 1: a score whose value='good' is no number")
    assert summed(traces.spans, traces.scores).quality == 0.75


def test_a_run_of_langsmith_with_its_children(tmp_path):
    usage = {"input_tokens": 90, "output_tokens": 7, "input_token_details": {"cache_read": 80}}
    child = {
        "id": "c",
        "run_type": "llm",
        "outputs": {"usage_metadata": usage},
        "inputs": {"model": "nano"},
    }
    child["dotted_order"] = "2026Zt.2026Zc"
    root = {
        "id": "t",
        "trace_id": "t",
        "run_type": "chain",
        "name": "answer",
        "child_runs": [child],
    }
    root["feedback_stats"] = {"ok": {"n": 1, "avg": 0.5}, "text": {"n": 1, "avg": None}, "x": 3}
    traces = rows_of(root, tmp_path=tmp_path)
    assert [(s.trace, s.parent, s.llm) for s in traces.spans] == [
        ("t", None, None),
        ("t", "t", "nano"),
    ]
    assert traces.spans[1].usage[:3] == (90, 7, 80)
    assert traces.scores == [Score("t", "ok", 0.5, "t", 1.0)]


def test_lines_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    rows = [json.dumps(observation(usage={"input": 5})), "{cut", "3", '{"hello": 1}', "[" * 100_000]
    rows += [json.dumps(observation(trace_id=5)), json.dumps({"context": {}})]
    rows += [json.dumps({"traceId": 5, "id": "c", "type": "SPAN"})]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    traces = read_traces([path])
    assert len(traces.spans) == 1
    reasons = [named.removeprefix(f"{path}, ") for named in traces.unread]
    assert [reason.split(":")[0] for reason in reasons] == [f"line {n}" for n in range(2, 9)]
    assert "trace_id=5 must be a text" in reasons[4]
    assert "traceId=5 must be a text" in reasons[6]


def test_values_that_span_lines(tmp_path):
    path = tmp_path / "log.json"
    rows = [observation(id=name, usage={"input": 5}) for name in "ab"]
    path.write_text(
        "\ufeff" + json.dumps(rows, indent=2) + "\n{cut\n" + json.dumps(rows[0], indent=1)
    )
    traces = read_traces([path])
    assert [span.id for span in traces.spans] == ["a", "b", "a"]
    line = json.dumps(rows, indent=2).count("\n") + 2
    assert traces.unread[0].startswith(f"{path}, line {line}: no JSON")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no span can be read; give an export of"),
        ("{}", r"line 1: no span or score of a known format: it has no keys \(looked for OpenT"),
        ("\x00\xff", "is not utf-8"),
    ],
)
def test_nothing_to_read(content, told, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=told):
        read_traces([path])
    with pytest.raises(InputError, match="cannot read"):
        read_traces([tmp_path / "absent.jsonl"])


def test_two_formats_may_hold_one_call_twice(tmp_path):
    run = {"id": "t", "trace_id": "t", "run_type": "llm", "prompt_tokens": 5}
    rows = (observation(usage={"input": 5}), run)
    with pytest.raises(InputError, match=r"langfuse \(1 spans\), langsmith \(1 spans\).*--format"):
        rows_of(*rows, tmp_path=tmp_path)
    traces = read_traces([tmp_path / "rows.jsonl"], "langsmith")
    assert (len(traces.spans), traces.num_unread) == (1, 1)


def test_a_circle_of_spans_ends():
    spans = [Span("t", "a", "b", "x"), Span("t", "b", "a", "y"), call("t", parent="a")]
    assert summed([*whole("1"), *spans]).num_traces == 1


def test_a_query_that_was_not_logged():
    reference = LoggedReference({"plan": "nano"}, [LoggedQuery("q", 1, 0.5, 1.0, None)])
    assert reference.only(["q", "q"]).averages()["num_queries"] == 2
    numbered = LoggedReference({}, [LoggedQuery("7", 1, 0.5, 1.0, None)])
    assert [query.id for query in numbered.only([7]).queries] == ["7"]  # a data set's own numbers
    with pytest.raises(InputError, match="no query of the log is called 'p'; leave"):
        reference.only(["p"])


@pytest.mark.parametrize(
    "damage",
    [{"queries": []}, {"queries": [{}]}, {"queries": 3}, {"queries": [{"id": "q", "quality": 2}]}],
)
def test_a_damaged_reference(damage, tmp_path):
    path = save_reference(tmp_path / "reference.json", summed(whole("t")), {})
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(InputError, match="write it with scope-torch import"):
        load_reference(path)


@pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")
def test_the_reference_is_for_its_owner_alone(tmp_path):
    """Its queries may be what people have asked."""
    path = save_reference(tmp_path / "reference.json", summed(whole("t")), {})
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_reference_is_a_json_file(tmp_path):
    with pytest.raises(InputError, match=r"must be a \*.json file"):
        save_reference(tmp_path / "reference.toml", summed(whole("t")), {})


@pytest.mark.parametrize("low_high", [("1", "1"), ("5", "1"), ("0", "inf"), ("nan", "1")])
def test_a_range_that_is_none(low_high, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["log.jsonl", "--score-range", *low_high])
    assert "the first must be below the second" in capsys.readouterr().err
    for low, high in (map(float, low_high), (-math.inf, 1.0), (-1e308, 1e308)):
        with pytest.raises(InputError, match="both must be finite"):
            summed(whole("1"), score_range=(low, high))


def test_import_is_a_command(tmp_path, monkeypatch, capsys):
    from scope_torch.cli.run import main as scope_torch

    path = tmp_path / "log.jsonl"
    path.write_text(
        json.dumps(observation(provided_model_name="gpt-4o", usage={"input": 1_000_000}))
    )
    monkeypatch.setattr(sys, "argv", ["scope-torch", "import", str(path)])
    scope_torch()
    assert "gpt-4o" in capsys.readouterr().out


# Rows that are read; hypothesis writes other values into them.
ROWS = [
    observation(usage_details={"input": 5}, cost_details={}, metadata={}, name="x", level="ERROR"),
    {"trace_id": "t", "name": "ok", "value": 1, "data_type": "NUMERIC", "subject": {}},
    {"run_type": "llm", "id": "r", "trace_id": "t", "dotted_order": "Z", "feedback_stats": {}},
    {"context": {"trace_id": "t", "span_id": "s"}, "attributes": {}, "events": [], "status": {}},
    {"traceId": "t", "spanId": "s", "attributes": [], "startTimeUnixNano": "1", "parent_id": "s"},
    {"resourceSpans": [{"scopeSpans": [{"spans": []}]}], "data": [], "child_runs": []},
    {"gen_ai.request.model": "nano", "gen_ai.usage.input_tokens": 5, "evaluations.0.evaluation": 1},
    {"key": "gen_ai.request.model", "value": {"stringValue": "nano"}, "arrayValue": {"values": []}},
    {"context.trace_id": "t", "context.span_id": "s", "attributes.llm": {}, "span_kind": "LLM"},
    {"trace_id": "t", "span_id": "s", "attributes": [], "status_code": "ERROR", "spans": []},
    {"id": "t", "timestamp": "", "tags": [], "observationCount": 1, "ok": [1], "trace": {}},
    {"resource_spans": [{"scope_spans": [{"spans": []}], "scope": {"name": "ai"}}], "llm": {}},
    {"token_count": {"prompt": 5}, "cache_read_tokens": 5, "unit": "CHARACTERS", "total": 10},
    {"total_cost": 0, "prompt_tokens": 5, "error": "", "start_time": "", "extra": {}, "usage": {}},
    {"run_type": "llm", "id": "r", "trace_id": "t", "outputs": {"usage_metadata": {}},
     "input_token_details": {"audio": 1}, "output_token_details": {}, "input_audio_tokens": 3},
    {"generations": [[{"message": {"kwargs": {"response_metadata": {}}}}]], "message": {},
     "kwargs": {}, "response_metadata": {}, "service_tier": "flex", "server_tool_use": {}},
]  # fmt: skip
KEYS = st.sampled_from(sorted({key for row in ROWS for key in row} | {"spans", "avg"}))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
SCALARS |= st.sampled_from(
    ["GENERATION", "llm", "t", "1e999", "9" * 400, "2026-01-01T00:00:00", "{"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)
CHANGES = st.dictionaries(KEYS, VALUES | st.sampled_from(ROWS) | st.just(ROWS), max_size=4)
CHANGED = st.builds(lambda row, change: row | change, st.sampled_from(ROWS), CHANGES)


LINES = st.lists(VALUES | CHANGED, max_size=5), st.binary(max_size=10)


@pytest.mark.slow
@fuzzed(st.tuples(*LINES, st.sampled_from(["auto", *FORMATS])), 200, 4000)
def test_any_lines_give_traces_or_an_input_error(drawn, folder):
    rows, junk, format = drawn
    path = folder / "log.jsonl"
    lines = [json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join([*lines, junk]))
    with contextlib.suppress(InputError):
        traces = read_traces([path], format)
        summary = summarize(traces, TraceRules(prices=PRICES))
        assert summary.num_traces >= 1
        assert report(summary, traces)


@pytest.mark.parametrize(
    "told",
    [
        *("2026-01-05 12:00:00 UTC", "2026-01-05T12:00:00 Z", " 2026-01-05T14:00:00+02:00\n"),
        *("2026-01-05T12:00:00Z", 1767614400.0, 1767614400, 1767614400e3),
    ],
)
def test_a_time_is_read_however_it_is_written(told, tmp_path):
    (span,) = rows_of(observation(start_time=told), tmp_path=tmp_path).spans
    assert span.start == 1_767_614_400.0


@pytest.mark.parametrize("told", [7, 7.5, 1e300, True, "noon", "UTC", "Z", "", None])
def test_what_is_no_time_is_none(told, tmp_path):
    (span,) = rows_of(observation(start_time=told), tmp_path=tmp_path).spans
    assert span.start is None
