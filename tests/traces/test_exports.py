"""Exports and downloads of Langfuse, Phoenix and LangSmith, and files that are of no format."""

import json
from datetime import datetime
from decimal import Decimal

import polars as pl
import pytest

from scope_torch.cli.import_traces import main
from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces.parquet import missing_columns
from scope_torch.traces.reading import read_traces
from scope_torch.traces.report import report
from scope_torch.traces.span import Score
from scope_torch.traces.summary import TraceRules, summarize

PRICES = PriceList({"nano": LLMInfo("nano", 1.0, 2.0)})
ROOT = {"id": "a", "type": "SPAN", "name": "answer"}
CALL = {"id": "b", "type": "GENERATION", "model": "nano", "parentObservationId": "a"}
TOKENS = {"usageDetails": {"input": 1500, "output": 1000}}
USD = 0.0035  # of 1,500 prompt tokens and 1,000 completion tokens


def read(content, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_traces([path])


def summary_of(content, tmp_path):
    return summarize(read(content, tmp_path), TraceRules(prices=PRICES))


# Langfuse


@pytest.mark.parametrize(
    "place",
    [
        lambda rows, scores: {"observations": rows, "scores": scores},
        lambda rows, scores: {"trace": {"id": "t", "name": "answer"}, "observations": rows,
                              "scores": scores},
        lambda rows, scores: {"trace": {"id": "t", "observations": rows, "scores": scores}},
        lambda rows, scores: [{"id": "t", "timestamp": "", "tags": [], "observations": rows,
                               "scores": scores}],
        lambda rows, scores: {"data": [{"trace": {"id": "t", "observations": rows}}, *scores]},
    ],
)  # fmt: skip
def test_downloads_of_a_trace(place, tmp_path):
    of_trace = {"traceId": "t"}
    rows = [of_trace | ROOT, of_trace | CALL | TOKENS]
    score = of_trace | {"id": "s", "name": "ok", "value": 1, "dataType": "BOOLEAN", "source": "API"}
    summary = summary_of(place(rows, [score]), tmp_path)
    assert (summary.cost_usd, summary.quality) == (USD, 1.0)


def test_observations_under_a_trace_need_not_name_it(tmp_path):
    score = {"name": "ok", "value": 0.5}
    trace = {"id": "t", "observations": [ROOT, CALL | TOKENS], "scores": [score, "an identifier"]}
    traces = read({"trace": trace}, tmp_path)
    assert {span.trace for span in traces.spans} == {"t"}
    assert traces.scores == [Score("t", "ok", 0.5)]
    assert traces.num_unread == 0


def test_scores_in_columns_of_a_table(tmp_path):
    of_trace = {"traceId": "t", "traceTags": ["a"], "comments": [], "input": [1, 2], "tone": None}
    rows = [
        of_trace | ROOT | {"ok": [1], "helpful": ["True", "False"], "topic": ["sport"]},
        of_trace | CALL | TOKENS | {"ok": None},
        # The table of traces: its scores are of the trace too.
        {"id": "t", "timestamp": "", "tags": ["b"], "observationCount": 2, "ok": [0.5], "name": ""},
    ]
    traces = read(rows, tmp_path)
    assert [score[:3] for score in traces.scores] == [
        ("t", "ok", 1.0),
        ("t", "helpful", 1.0),
        ("t", "helpful", 0.0),
        ("t", "ok", 0.5),
    ]
    assert traces.num_unread == 0


def test_lists_of_an_export_are_no_scores(tmp_path):
    row = {"trace_id": "t", **ROOT, "input": [1, 2], "embedding": [0.5, 0.25]}
    assert read([row], tmp_path).scores == []


@pytest.mark.parametrize("place", [{"usage": {"unit": "CHARACTERS"}}, {"usageUnit": "characters"}])
def test_characters_are_no_tokens_and_have_no_price(place, tmp_path):
    usage = {"usage": {"input": 1500, "output": 1000, "total": 2500, **place.get("usage", {})}}
    rows = [{"traceId": "t", **ROOT}, {"traceId": "t", **CALL, **place, **usage}]
    with pytest.raises(InputError, match="1 with a call that counts CHARACTERS, not to"):
        summary_of(rows, tmp_path)
    rows[1]["totalCost"] = 0.25
    summary = summary_of(rows, tmp_path)
    assert (summary.cost_usd, summary.modules["llm"].prompt_tokens) == (0.25, 0)


# Phoenix


def phoenix(name: str, kind: str, parent: str | None, attributes: dict, status: str = "OK") -> dict:
    """A span of Phoenix's REST API, `/v1/projects/NAME/spans`."""
    return {
        "id": f"U3Bhbjo{name}",
        "name": name,
        "context": {"trace_id": "t", "span_id": name},
        "span_kind": kind,
        "parent_id": parent,
        "start_time": "2026-06-01T00:00:00+00:00",
        "end_time": "2026-06-01T00:00:02+00:00",
        "status_code": status,
        "status_message": "",
        "attributes": attributes,
        "events": [],
    }


FLAT = {
    "llm.model_name": "nano",
    "llm.token_count.prompt": 1500,
    "llm.token_count.completion": 1000,
    "evaluations.0.evaluation.name": "ok",
    "evaluations.0.evaluation.score": 1,
}
NESTED = {
    "llm": {"model_name": "nano", "token_count": {"prompt": 1500, "completion": 1000}},
    "evaluations": [{"evaluation": {"name": "ok", "score": 1}}],
}
FAILED = {"llm.invocation_parameters": '{"model": "nano"}'}


def spans_of_phoenix(attributes: dict) -> list[dict]:
    return [
        phoenix("answer", "CHAIN", None, {}),
        phoenix("plan", "CHAIN", "answer", {}),
        phoenix("first try", "LLM", "plan", FAILED, "ERROR"),
        phoenix("second try", "LLM", "plan", attributes),
    ]


def in_snake_case(span: dict) -> dict:
    """The same span of `/spans/otlpv1`, which has every kind of a value, most of them null."""
    kinds = "array_value bool_value bytes_value double_value int_value kvlist_value string_value"
    empty = dict.fromkeys(kinds.split())
    attributes = {**span["attributes"], "openinference.span.kind": span["span_kind"]}
    return {
        "attributes": [
            {
                "key": key,
                "value": empty | {"int_value" if isinstance(v, int) else "string_value": v},
            }
            for key, v in attributes.items()
        ],
        "end_time_unix_nano": 1780272002000000000,
        "events": [],
        "name": span["name"],
        "parent_span_id": span["parent_id"],
        "span_id": span["context"]["span_id"],
        "start_time_unix_nano": 1780272000000000000,
        "status": {"code": 2 if span["status_code"] == "ERROR" else 1, "message": None},
        "trace_id": "t",
    }


def dotted(span: dict) -> dict:
    """The same span as a row of Phoenix's data frame."""
    row = {key: value for key, value in span.items() if key not in ("context", "attributes", "id")}
    row |= {f"context.{key}": value for key, value in span["context"].items()}
    return row | {f"attributes.{key}": value for key, value in span["attributes"].items()}


@pytest.mark.parametrize(
    "content",
    [
        {"data": spans_of_phoenix(FLAT), "next_cursor": None},
        {"data": spans_of_phoenix(NESTED), "next_cursor": None},
        {"data": [in_snake_case(span) for span in spans_of_phoenix(FLAT)]},
        {"spans": [in_snake_case(span) for span in spans_of_phoenix(FLAT)]},
        {"resource_spans": [{"scope_spans": [
            {"spans": [in_snake_case(span) for span in spans_of_phoenix(FLAT)]}]}]},
        [dotted(span) for span in spans_of_phoenix(FLAT)],
        [dotted(span) for span in spans_of_phoenix(NESTED)],
    ],
)  # fmt: skip
def test_spans_of_phoenix(content, tmp_path):
    summary = summary_of(content, tmp_path)
    module = summary.modules["plan"]
    assert (module.llm, module.calls, module.failed) == ("nano", 2, 1)
    assert (summary.cost_usd, summary.quality, summary.left_out) == (USD, 1.0, {})
    assert module.seconds == 4.0


def test_another_kind_of_span_is_not_phoenix_s(tmp_path):
    row = phoenix("a", "CLIENT", None, FLAT)
    assert [span.is_call for span in read([row], tmp_path).spans] == [True]


# Parquet


def parquet(rows: list[dict], tmp_path, **schema):
    path = tmp_path / "log.parquet"
    pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None).write_parquet(path)
    return path


def maps(counts: dict) -> list[dict]:
    """A map as polars reads it from a Parquet file of ClickHouse."""
    return [{"key": key, "value": value} for key, value in counts.items()]


def of_langfuse() -> list[dict]:
    row = {"trace_id": "t", "level": "DEFAULT", "start_time": datetime(2026, 6, 1)}
    row |= {"end_time": datetime(2026, 6, 1, 0, 0, 2), "total_cost": None}
    root = {"id": "a", "type": "SPAN", "name": "answer", "parent_observation_id": None}
    call = {"id": "b", "type": "GENERATION", "name": "plan", "parent_observation_id": "a"}
    call |= {"provided_model_name": "nano", "usage_details": maps({"input": 1500, "output": 1000})}
    return [row | root, row | call | {"total_cost": Decimal("0.25")}]


def test_langfuse_s_observations_in_parquet(tmp_path):
    path = parquet(of_langfuse(), tmp_path, total_cost=pl.Decimal(20, 10))
    traces = read_traces([path])
    module = summarize(traces).modules["plan"]
    assert (module.cost_usd, module.prompt_tokens, module.seconds) == (0.25, 1500, 2.0)
    assert traces.notes == []


def test_langsmith_s_runs_in_parquet(tmp_path):
    counts = {"prompt_tokens": 1500, "completion_tokens": 1000, "total_cost": 0.25}
    row = {"id": "t", "run_type": "llm", "name": "plan", "trace_id": "t", "dotted_order": "1Zt"}
    row |= {"extra": json.dumps({"metadata": {"ls_model_name": "nano"}}), "error": None}
    row |= {"feedback_stats": json.dumps({"ok": {"n": 1, "avg": 0.5}}), **counts}
    traces = read_traces([parquet([row], tmp_path)])
    summary = summarize(traces)
    assert (summary.models, summary.cost_usd, summary.quality) == ({"plan": "nano"}, 0.25, 0.5)
    assert traces.notes == []


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (["usage_details", "total_cost"], "usage_details, total_cost or cost_details"),
        (["provided_model_name"], "provided_model_name"),
        (["type"], "type"),
    ],
)
def test_a_parquet_file_says_which_columns_are_missing(left_out, told, tmp_path, capsys):
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in of_langfuse()]
    path = parquet(rows, tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    said = capsys.readouterr().err
    assert f"log.parquet lacks the columns {told} of Langfuse's observations; export all of" in said


def test_a_column_that_may_be_missing_is_told_in_the_report(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "level"} for row in of_langfuse()]
    traces = read_traces([parquet(rows, tmp_path)])
    assert "lacks the columns level of Langfuse's obs" in report(summarize(traces), traces)


def test_columns_of_other_exports():
    assert missing_columns(["id", "timestamp", "tags", "name", "user_id"]) == ""
    assert "span_kind of Phoenix's spans" in missing_columns(
        [
            "context.trace_id",
            "context.span_id",
            "parent_id",
            "name",
            "status_code",
            "attributes.llm",
        ]
    )
    assert "extra of LangSmith's runs" in missing_columns(
        [
            "id",
            "run_type",
            "name",
            "error",
            "prompt_tokens",
            "completion_tokens",
            "dotted_order",
            "outputs",
        ]
    )


def test_a_damaged_parquet_file(tmp_path):
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match=r"cannot read .*log\.parquet"):
        read_traces([path])


# No format


def test_a_row_of_no_format_is_told_what_was_looked_for(tmp_path):
    row = {"spanID": "s", "operation_name": "x", "tags": [], **{f"k{n}": n for n in range(9)}}
    with pytest.raises(InputError) as caught:
        read(row, tmp_path)
    told = str(caught.value)
    assert "it has 'spanID', 'operation_name', 'tags', 'k0', 'k1', 'k2', 'k3', 'k4', ..." in told
    assert "looked for OpenTelemetry: resourceSpans, traceId and spanId, or context; Lang" in told
    assert "as JSON, JSON lines or Parquet" in told


def test_rows_of_another_format_are_told_theirs(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(json.dumps(row) for row in (ROOT | {"traceId": "t"}, {"run_type": 1}))
    )
    traces = read_traces([path], "langfuse")
    assert traces.unread[0].endswith("no span or score of langfuse, but of langsmith")


def test_rows_that_are_nested_too_deeply_are_counted(tmp_path):
    runs = {"id": "leaf", "trace_id": "t", "run_type": "llm"}
    for depth in range(150):
        runs = {"id": str(depth), "trace_id": "t", "run_type": "chain", "child_runs": [runs]}
    traces = read(runs, tmp_path)
    assert len(traces.spans) < 150
    assert "rows are nested more than 100 deep" in traces.unread[0]


@pytest.mark.parametrize("name", ["observations.csv", "traces.TSV"])
def test_a_table_of_text_names_what_to_download(tmp_path, name):
    (tmp_path / name).write_text("id,type,traceId,model\na,GENERATION,t1,gpt-4o\n")
    with pytest.raises(InputError, match=r"is a table of text, .* download JSON \(in Langfuse"):
        read_traces([tmp_path / name])
