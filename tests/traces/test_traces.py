"""Logs of real libraries give the modules, tokens, USD and scores that were really there."""

import json
import math
from pathlib import Path

import pytest

from scope_torch.cli.import_traces import main
from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces.reading import read_traces
from scope_torch.traces.reference import load_reference
from scope_torch.traces.summary import TraceRules, summarize

FIXTURES = Path(__file__).parent / "fixtures"
BILLED = json.loads((FIXTURES / "billed.json").read_text())
LLMS = {"plan": "gpt-4o-mini", "solve": "gpt-4o"}
RECORDED = ("langfuse", "langsmith")
# The upstream's prices, as in make_fixtures.py: prompt, cached prompt, completion.
OWN = {
    "gpt-4o-mini": LLMInfo("gpt-4o-mini", 0.15, 0.6, cached_input_usd_per_mtok=0.075),
    "gpt-4o": LLMInfo("gpt-4o", 2.5, 10.0, cached_input_usd_per_mtok=1.25),
}
EXACT = 1e-12


def summary_of(name: str, **rules):
    rules.setdefault("prices", PriceList(OWN))
    return summarize(read_traces([FIXTURES / f"{name}.jsonl"]), TraceRules(**rules))


def usd_without_cache(module: str, bill: dict) -> float:
    """The instrumentation of OpenTelemetry leaves the cached tokens of chat completions out."""
    llm = OWN[LLMS[module]]
    prompt = bill["prompt_tokens"] * llm.input_usd_per_mtok
    return (prompt + bill["completion_tokens"] * llm.output_usd_per_mtok) / 1e6


@pytest.mark.parametrize("name", BILLED)
def test_the_numbers_are_those_that_the_upstream_has_billed(name):
    summary = summary_of(name)
    assert summary.models == LLMS
    has_cached = name not in ("otlp", "console")
    for module, bill in BILLED[name].items():
        found = summary.modules[module]
        assert found.prompt_tokens == bill["prompt_tokens"]
        assert found.completion_tokens == bill["completion_tokens"]
        assert found.calls - found.failed == bill["calls"]
        assert found.cached_tokens == (bill["cached_tokens"] if has_cached else 0)
        usd = bill["cost_usd"] if has_cached else usd_without_cache(module, bill)
        assert found.cost_usd == pytest.approx(usd, abs=EXACT)
        assert found.traces == 4
        assert found.seconds > 0
    total = math.fsum(module.cost_usd for module in summary.modules.values())
    assert summary.cost_usd * 4 == pytest.approx(total, abs=EXACT)


@pytest.mark.parametrize("name", BILLED)
def test_one_call_failed_and_one_module_was_called_twice(name):
    modules = summary_of(name).modules
    assert (modules["plan"].calls, modules["plan"].failed) == (5, 1)
    assert (modules["solve"].calls, modules["solve"].failed) == (5, 0)


@pytest.mark.parametrize("name", BILLED)
def test_the_score_is_the_quality(name):
    summary = summary_of(name)
    assert (summary.score, summary.quality) == ("correct", 0.75)
    assert sorted(query.quality for query in summary.queries) == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "attribute"),
    [(name, "question" if name in RECORDED else "app.question") for name in BILLED],
)
def test_an_attribute_names_the_queries(name, attribute):
    summary = summary_of(name, query_attribute=attribute)
    assert {q.id: q.quality for q in summary.queries} == {
        "q0": 1.0,
        "q1": 1.0,
        "q2": 0.0,
        "q3": 1.0,
    }
    dearest = max(summary.queries, key=lambda query: query.cost_usd)
    assert dearest.id == "q1"  # which called `solve` twice


@pytest.mark.parametrize("name", BILLED)
def test_the_cost_says_where_it_comes_from(name):
    priced = sum(module.priced for module in summary_of(name).modules.values())
    assert priced == (0 if name in RECORDED else 9)


@pytest.mark.parametrize("name", RECORDED)
def test_tokens_can_be_priced_anew(name):
    double = {
        key: LLMInfo(
            key, 2 * llm.input_usd_per_mtok, 2 * llm.output_usd_per_mtok, None, None, 2 * c
        )
        for key, llm in OWN.items()
        if (c := llm.cached_input_usd_per_mtok) is not None
    }
    once = summary_of(name).cost_usd
    assert summary_of(name, prices=PriceList(double)).cost_usd == once
    anew = summary_of(name, prices=PriceList(double), reprice=True).cost_usd
    assert anew == pytest.approx(2 * once, abs=EXACT)


def test_a_call_is_named_by_the_span_that_the_user_chooses():
    assert list(summary_of("otlp", name_of="top").modules) == ["plan", "solve"]
    own = summary_of("otlp", name_of="own")
    assert own.models == {"chat gpt-4o-mini": "gpt-4o-mini", "chat gpt-4o": "gpt-4o"}
    by_attribute = summary_of("otlp", module_attribute="gen_ai.request.model")
    assert by_attribute.models == {llm: llm for llm in LLMS.values()}
    with pytest.raises(InputError, match="no call has the attribute 'typo', nor has a span around"):
        summary_of("otlp", module_attribute="typo")


def test_the_same_spans_twice_count_once():
    twice = summarize(read_traces([FIXTURES / "otlp.jsonl"] * 2), TraceRules(prices=PriceList(OWN)))
    assert twice.modules == summary_of("otlp").modules
    assert twice.notes == [
        "22 spans are there twice, and count once",
        "4 scores are there twice, and the latest counts",
    ]
    assert twice.queries == summary_of("otlp").queries


def test_otlp_and_the_console_say_the_same():
    assert summary_of("otlp").models == summary_of("console").models
    costs = [summary_of(name).cost_usd for name in ("otlp", "console")]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("name", BILLED)
def test_the_file_gives_the_reference_back(name, tmp_path, capsys):
    path = tmp_path / "reference.json"
    main([str(FIXTURES / f"{name}.jsonl"), "--to", str(path)])
    out = capsys.readouterr().out
    assert f"written: {path}" in out
    assert "4 queries in 4 traces" in out
    assert "quality 0.75 (score 'correct' of all queries)" in out
    reference = load_reference(path)
    assert dict(reference) == LLMS
    averages = reference.averages()
    said = json.loads(path.read_text())
    assert averages["reference_cost_usd"] == said["cost_usd"] > 0
    assert averages["reference_quality"] == 0.75
    last = said["queries"][-1]
    assert reference.only([last["id"]]).answers() == [(last["cost_usd"], last["quality"])]
    assert said["format"] == (name if name in RECORDED else "opentelemetry")


def test_a_fixture_is_small():
    sizes = {path.name: path.stat().st_size for path in FIXTURES.iterdir()}
    assert len(sizes) == 7
    assert max(sizes.values()) < 60_000
