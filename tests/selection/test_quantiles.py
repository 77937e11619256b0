"""`select` with a bound on a quantile: what is chosen, certified, and shown."""

import html
from dataclasses import replace

import pytest

import scope_torch as st
from scope_torch.results.doubt import doubt_of
from scope_torch.results.page.page import page_of, view_of_result

Q = 80
MEAN, TAIL = "latency_s <= 4 cap 30", "p95(latency_s) <= 8"
SLOW = {"nano": 10, "mini": 40, "pro": Q}  # every so manieth query takes 20 s, the others 0.5 s


def app(models, number):
    llm = models["answer"]
    seconds = 20.0 if number % SLOW[llm] == 0 else 0.5
    usd = {"nano": 0.001, "mini": 0.002, "pro": 0.03}[llm]
    return {"output": number, "cost_usd": usd, "outcomes": {"latency_s": seconds}}


def selected(*constraints, **changes):
    how = {
        "models": {"answer": ["nano", "mini", "pro"]},
        "reference": "pro",
        "dataset": [(number, number) for number in range(Q)],
        "metric": st.metrics.exact_match,
        "max_quality_loss": 0.05,
        "budget_usd": 20,
        "constraints": constraints,
    }
    return st.select(app, **(how | changes))


@pytest.mark.slow
def test_a_tail_is_too_long_although_the_mean_is_fine():
    assert selected(MEAN).choice == {"answer": "nano"}
    result = selected(MEAN, TAIL)
    assert result.choice == {"answer": "mini"}
    assert result.recommendation.basis == "certified"
    assert result.problem.reference_outcomes == {"latency_s": pytest.approx(0.74375), TAIL: 79 / 80}


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["cost_usd", "quality"])
def test_cost_and_quality_have_quantiles_too(outcome):
    """All runs of mini cost 0.002 USD, and all are right."""
    text = {"cost_usd": "p50(cost_usd) >= 0.002", "quality": "p1(quality) >= 1"}[outcome]
    assert selected(text).choice == {"answer": "mini" if outcome == "cost_usd" else "nano"}


@pytest.mark.slow
def test_a_share_of_runs_is_shown_as_one():
    result = selected(TAIL)
    number = len({one.query for one in result.history if one.theta == result.recommendation.theta})
    assert number == Q  # with 2 slow runs of 80
    assert f"; {TAIL}: 97.5% of runs" in str(result).replace("\n  ", " ")
    page = html.unescape(page_of(view_of_result(result, None))).replace("≤", "<=")
    assert f"{TAIL}: 97.5% of runs (choice), 98.8% of runs (reference)" in page
    row = {row["status"]: row for row in result.table().iter_rows(named=True)}
    assert (row["choice"][TAIL], row["reference"][TAIL]) == (0.975, 79 / 80)
    assert row["choice"]["latency_s"] == pytest.approx((2 * 20 + 78 * 0.5) / Q)


@pytest.mark.slow
def test_a_reference_whose_tail_is_too_long_is_told():
    result = selected("p99(latency_s) <= 8")
    assert result.choice == {"answer": "pro"}
    assert doubt_of(result) == (
        "but the reference itself breaks p99(latency_s) <= 8 (98.8% of runs)"
    )
    some = replace(result.problem, epsilon=None, reference_queries=40, constraints=[
        "quality >= 0.5", "p99(latency_s) <= 8",
    ])  # fmt: skip
    assert doubt_of(replace(result, problem=some)).endswith("(98.8% of runs on 40 of 80 queries)")


@pytest.mark.slow
def test_a_stopped_selection_goes_on(tmp_path):
    whole = selected(TAIL, run_dir=tmp_path)
    (tmp_path / "result.json").unlink()
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = selected(TAIL, run_dir=tmp_path)
    assert again.recommendation == whole.recommendation
    assert journal.read_bytes() == b"".join(lines)
