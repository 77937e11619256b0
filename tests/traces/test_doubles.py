"""What is logged twice counts once, and what looks like it counts."""

import json
from dataclasses import replace

import pytest

from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces.reading import Traces, read_traces
from scope_torch.traces.report import report
from scope_torch.traces.span import Span
from scope_torch.traces.summary import TraceRules, summarize

PRO, FLASH = LLMInfo("pro", 1.0, 10.0), LLMInfo("flash", 0.1, 1.0)  # USD per million tokens
RULES = TraceRules(prices=PriceList({PRO.name: PRO, FLASH.name: FLASH}))
PROMPT, SAID, SMALL_PROMPT, SMALL_SAID = 20_000, 2_000, 1_000, 100
OF_PRO, OF_FLASH = (PROMPT + 10 * SAID) / 1e6, (0.1 * SMALL_PROMPT + SMALL_SAID) / 1e6


def call(name, parent, llm="pro", prompt=PROMPT, said=SAID, **more):
    usage = None if prompt is None else Usage(prompt, said)
    return Span("t", name, parent, name, is_call=True, llm=llm, usage=usage, **more)


def cost(*spans):
    return summarize(Traces([Span("t", "root", None, "answer"), *spans]), RULES).cost_usd


def small(name, parent, **more):
    return call(name, parent, "flash", SMALL_PROMPT, SMALL_SAID, **more)


@pytest.mark.parametrize(
    "between",
    [[], [Span("t", "s", "outer", "step")], [Span("t", "s", "outer", "use", is_apart=True)]],
    ids=["call", "span", "tool"],
)
def test_a_call_around_that_of_another_agent_counts(between):
    """ADK: tools and other agents run inside the span of the call that asked for them."""
    inner = small("inner", "s" if between else "outer")
    assert cost(call("outer", "root"), *between, inner) == pytest.approx(OF_PRO + OF_FLASH)


def test_a_tool_may_use_more_than_the_call_that_asked_for_it():
    tool = Span("t", "s", "outer", "use", is_apart=True)
    inner = call("inner", "s")
    assert cost(small("outer", "root"), tool, inner) == pytest.approx(OF_PRO + OF_FLASH)


@pytest.mark.parametrize("between", [[], [Span("t", "s", "outer", "step")]])
def test_a_call_that_two_libraries_have_logged_counts_once(between):
    inside = "s" if between else "outer"
    assert cost(call("outer", "root"), *between, call("inner", inside)) == pytest.approx(OF_PRO)
    several = small("one", inside), small("two", inside)
    whole = call("outer", "root", "flash", 2 * SMALL_PROMPT, 2 * SMALL_SAID)
    assert cost(whole, *between, *several) == pytest.approx(2 * OF_FLASH)


@pytest.mark.parametrize("between", [[], [Span("t", "s", "outer", "step")]])
def test_a_larger_call_of_another_llm_inside_a_call_is_another_one(between):
    """Of functions that are logged as calls, one calls the other."""
    outer, inner = small("outer", "root"), call("inner", "s" if between else "outer")
    assert cost(outer, *between, inner) == pytest.approx(OF_PRO + OF_FLASH)
    told = [call(n, at, llm, None, cost_usd=usd) for n, at, llm, usd in (
        ("a", "root", "flash", 0.125), ("b", "a", "pro", 0.5))]  # fmt: skip
    assert cost(*told) == 0.625


@pytest.mark.parametrize("name", ["PRO", "openai/pro", "pro-2026-08-06", "us.maker.pro-v1:0"])
def test_a_call_by_another_name_that_was_tried_again_counts_once(name):
    outer = call("outer", "root", name)
    tries = call("first", "outer", failed=True), call("second", "outer")
    assert cost(outer, *tries) == pytest.approx(2 * OF_PRO)
    told = [call(n, at, llm, None, cost_usd=usd) for n, at, llm, usd in (
        ("a", "root", name, 0.125), ("b", "a", "pro", 0.5))]  # fmt: skip
    assert cost(*told) == 0.5  # two libraries count differently
    outer = call("outer", "root", "a name of Azure")  # the last attempt is what it reports
    assert cost(outer, *tries) == pytest.approx(2 * OF_PRO)


def test_three_libraries():
    nested = call("outer", "root"), call("middle", "outer"), call("inner", "middle")
    assert cost(*nested) == pytest.approx(OF_PRO)
    assert cost(*nested, small("other", "middle")) == pytest.approx(OF_PRO + OF_FLASH)


def test_the_one_that_reports_something_counts():
    silent = call("inner", "outer", prompt=None)
    assert cost(call("outer", "root"), silent) == pytest.approx(OF_PRO)
    assert cost(call("outer", "root", prompt=None), call("inner", "outer")) == pytest.approx(OF_PRO)
    told = [call(n, at, prompt=None, cost_usd=0.5) for n, at in (("a", "root"), ("b", "a"))]
    assert cost(*told) == 0.5
    other = call("b", "a", "flash", prompt=None, cost_usd=0.125)
    assert cost(told[0], other) == 0.625


def read(rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_traces([path])


def printed(id, parent, name, **attributes):
    context = {"trace_id": "t", "span_id": id}
    told = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return {"context": context, "parent_id": parent, "name": name, "attributes": told}


def chat(id, parent, prompt=PROMPT, said=SAID):
    used = {"usage__input_tokens": prompt, "usage__output_tokens": said}
    return printed(id, parent, "chat", operation__name="chat", request__model="pro", **used)


@pytest.mark.parametrize("operation", ["guardrail_check", "unknown"])
def test_a_span_of_another_operation_is_no_call(tmp_path, operation):
    """OpenAI's agents: guardrails, lists of MCP tools and spans of one's own."""
    other = printed("g", "root", "check", operation__name=operation)
    rows = [printed("root", None, "answer"), chat("c", "root"), other]
    assert summarize(read(rows, tmp_path), RULES).cost_usd == pytest.approx(OF_PRO)
    other["attributes"]["gen_ai.request.model"] = "pro"
    with pytest.raises(Exception, match="neither tokens nor a cost"):
        summarize(read(rows, tmp_path), RULES)


@pytest.mark.parametrize(
    "step",
    [
        printed("s", "outer", "execute_tool researcher"),
        printed("s", "outer", "researcher", operation__name="execute_tool"),
        printed("s", "outer", "agent_run [researcher]"),
        printed("s", "outer", "researcher") | {"span_kind": "AGENT"},
    ],
)
def test_tools_and_agents_of_opentelemetry(tmp_path, step):
    rows = [printed("root", None, "answer"), chat("outer", "root"), step, chat("inner", "s")]
    assert summarize(read(rows, tmp_path), RULES).cost_usd == pytest.approx(2 * OF_PRO)


def generation(id="c", parent=None, **more):
    kind = {"type": "GENERATION", "model": "pro", "name": "plan"}
    return {"traceId": "t", "id": id, "parentObservationId": parent} | kind | more


def graded(value, **more):
    return {"traceId": "t", "name": "ok", "value": value, "dataType": "NUMERIC"} | more


COST = {"totalCost": 0.5}


@pytest.mark.parametrize(
    ("scores", "quality"),
    [
        ([graded(0, id="s", updatedAt="2026-01-01"), graded(1, id="s", updatedAt="2026-01-02")], 1),
        ([graded(1, id="s", updatedAt="2026-01-02"), graded(0, id="s", updatedAt="2026-01-01")], 1),
        ([graded(0, id="a"), graded(1, id="b"), graded(1, id="b")], 0.5),
        ([graded(0), graded(1)], 0.5),  # without identifiers each one counts
    ],
)
def test_a_score_that_is_there_twice_counts_once(tmp_path, scores, quality):
    summary = summarize(read([generation(**COST), *scores], tmp_path), RULES)
    assert summary.quality == quality


def run(id="c", **more):
    return {"id": id, "trace_id": "t", "run_type": "llm", "inputs": {"model": "pro"}} | more


@pytest.mark.parametrize("later_first", [False, True])
def test_runs_exported_before_and_after_a_grade(tmp_path, later_first):
    rows = [run(total_cost=0.5, feedback_stats={"ok": {"n": n, "avg": n / 4}}) for n in (1, 2)]
    summary = summarize(read(rows[::-1] if later_first else rows, tmp_path), RULES)
    assert (summary.quality, summary.cost_usd) == (0.5, 0.5)


@pytest.mark.parametrize("later_first", [False, True])
def test_of_a_span_that_is_there_twice_the_complete_one_counts(tmp_path, later_first):
    tokens = {"prompt_tokens": PROMPT, "completion_tokens": SAID}
    rows = [run(status="pending"), run(**tokens)]
    rows = rows[::-1] if later_first else rows
    assert summarize(read(rows, tmp_path), RULES).cost_usd == pytest.approx(OF_PRO)


def test_the_report_says_where_the_cost_is_from():
    spans = [
        Span("t", "root", None, "answer"),
        call("a", "root", failed=True),
        call("b", "root", prompt=None, cost_usd=0.5),
        call("c", "root", prompt=None, failed=True),
    ]
    said = report(summarize(Traces(spans), RULES), Traces(spans))
    assert "(tokens times prices for 1 of 2 calls, recorded for the others)" in said
    assert "2 calls failed; 1 without tokens or a cost, which count as free" in said
    said = report(summarize(Traces(spans[:3]), RULES), Traces(spans[:3]))
    assert "1 call failed\n" in said


def test_a_failed_call_that_tells_its_cost_alone_has_cost_that():
    lost = call("lost", "b", llm=None, prompt=None, failed=True, cost_usd=0.5)
    of_module = [Span("t", "b", "root", "plan"), call("a", "b"), lost]
    assert cost(*of_module) == pytest.approx(OF_PRO + 0.5)
    summary = summarize(Traces([Span("t", "root", None, "answer"), *of_module]), RULES)
    assert summary.models == {"plan": "pro"}
    assert (summary.modules["plan"].calls, summary.modules["plan"].failed) == (2, 1)
    # No call names the LLM of its module: the cost is that of the query alone.
    other = [call("a", "root"), call("lost", "root", None, None, failed=True, cost_usd=0.5)]
    assert cost(*other) == pytest.approx(OF_PRO + 0.5)
    spans = [Span("t", "root", None, "answer"), *other]
    assert summarize(Traces(spans), RULES).models == {"a": "pro"}
    with pytest.raises(InputError, match="1 with a call that does not name its LLM"):
        cost(other[1])
    with pytest.raises(InputError, match="1 with a call that does not name its LLM"):
        cost(other[0], call("lost", "root", None, failed=True, cost_usd=0.5))  # of tokens


def test_a_failed_call_without_a_name_ran_no_other_llm():
    spans = [Span("t", "root", None, "answer"), call("a", "root")]
    more = [replace(span, trace="u") for span in spans]
    lost = replace(call("a2", "root", None, None, failed=True, cost_usd=0.5), name="a")
    other = [replace(span, trace="v", llm=span.llm and "flash") for span in spans]
    rules = replace(RULES, most_frequent=True)
    summary = summarize(Traces([*spans, lost, *more, *other]), rules)
    assert (summary.num_traces, summary.models) == (2, {"a": "pro"})


@pytest.mark.parametrize("is_later_first", [False, True])
def test_of_a_call_that_was_exported_twice_the_later_counts_count(is_later_first):
    """Both have ended; one was written before the reply was counted."""
    both = [call("c", "root", said=10, seconds=1.0), call("c", "root", seconds=1.0)]
    assert cost(*(both[::-1] if is_later_first else both)) == pytest.approx(OF_PRO)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([Span("t", "root", None, "answer", 10.0, 2.0)], 2.0),
        ([Span("t", "root", None, "answer", 10.0, 0.01)], 1.5),  # it only hands on the question
        ([Span("t", "root", None, "answer")], 1.0),
        ([], 2.0),
    ],
)
def test_a_span_that_an_evaluation_adds_later_takes_no_time(spans, seconds):
    """It made the latency of a query a day, and a constraint relative to it says nothing."""
    top = "root" if spans else None
    first = Span("t", "look", top, "look up", 9.5, 0.5)
    late = [Span("t", "late", top, "helpfulness", 86_400.0, 1.0, is_apart=True)] * bool(spans)
    found = summarize(Traces([*spans, first, call("c", top, start=10.5, seconds=1.0), *late]))
    assert found.queries[0].seconds == seconds
