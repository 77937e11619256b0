"""What waiting costs: the price of a call, the rule when it no longer pays, and what is told."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import scope_torch as st
from scope_torch.bounds.base import Beta
from scope_torch.results.worth import in_vain
from scope_torch.search.optimizer import TraceRow
from scope_torch.search.payoff import ExpectedReturn
from scope_torch.space_search.minima import Moments

PRICE = {"nano": 0.0001, "mini": 0.0004, "pro": 0.01}
SKILL = {"nano": 0.6, "mini": 0.9, "pro": 1.0}
SECONDS = {"nano": 1.0, "mini": 2.0, "pro": 4.0}


def app(models, question):
    luck = random.Random(f"{sorted(models.items())} {question}")
    is_right = all(luck.random() < SKILL[llm] for llm in models.values())
    return {
        "output": question.upper() if is_right else "?",
        "cost_usd": sum(PRICE[m] for m in models.values()),
        "outcomes": {"latency_s": sum(SECONDS[m] for m in models.values())},
    }


def selected(system=app, **changes):
    given = {
        "models": {"plan": list(PRICE), "answer": list(PRICE)},
        "dataset": [(f"q{i}", f"Q{i}") for i in range(40)],
        "metric": st.metrics.exact_match,
        "reference": "pro",
        "max_quality_loss": 0.2,
        "budget_usd": 5,
        "deployment_queries": 20_000,
        "repeats": 0,
        "progress": False,
    }
    return st.select(system, **given | changes)


def call_usd(result):
    import json

    settings = json.loads((result.run_dir / "settings.json").read_text())
    return settings["optimizer"].get("call_usd")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "at_a_time"), [({}, 1), ({"concurrency": 4}, 4), ({"batch_size": 2}, 2)]
)
def test_a_call_costs_its_share_of_an_hour(width, at_a_time, tmp_path):
    """Runs of the reference take 8 s, 4 for each module."""
    result = selected(hour_usd=90, run_dir=tmp_path, **width)
    assert call_usd(result) == pytest.approx(90 / 3600 * 8 / at_a_time, rel=1e-12)
    again = selected(hour_usd=90, run_dir=tmp_path, **width)
    assert [*again.history] == [*result.history]


@pytest.mark.slow
def test_dear_time_ends_a_search_earlier(tmp_path):
    free, none, dear = (
        selected(hour_usd=hour, run_dir=tmp_path / str(hour)) for hour in (None, 0, 1e5)
    )
    assert [*none.history] == [*free.history]
    assert call_usd(free) is None
    assert len(dear.history) < len(free.history)
    assert dear.report["expected_return"] <= 1


@pytest.mark.slow
def test_a_reference_from_an_older_run_without_times(tmp_path):
    """It is asked again, which says how long a run takes; a free hour needs no time."""

    def untimed(models, question):
        found = app(models, question)
        return found["output"], found["cost_usd"]

    older = selected(system=untimed, run_dir=tmp_path / "older")
    later = {"system": untimed, "continue_from": older.run_dir}
    assert selected(hour_usd=0, **later).choice == older.choice
    with pytest.raises(st.InputError, match="hour_usd=90: nobody knows how long a run takes"):
        selected(hour_usd=90, **later)
    later |= {"hour_usd": 90, "repeats": 3, "run_dir": tmp_path / "later"}
    first, again = selected(**later), selected(**later)
    assert call_usd(first) > 0
    assert [*again.history] == [*first.history]


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "ten"])
def test_wrong_prices_of_time_are_refused(wrong):
    with pytest.raises(st.InputError, match="hour_usd"):
        selected(hour_usd=wrong)


def test_a_better_quality_has_no_price():
    best = {"objective": "quality", "constraints": ["cost_usd <= 0.01 cap 0.1"]}
    with pytest.raises(st.InputError, match=r"hour_usd=60.* nobody knows what a better quality"):
        selected(hour_usd=60, max_quality_loss=None, **best)


def test_it_belongs_to_the_default_search():
    with pytest.raises(st.InputError, match=r"hour_usd=60: that is for the default search"):
        selected(hour_usd=60, optimizer=lambda problem: st.make_scope(problem, base="nano"))


def test_the_return_counts_the_call():
    """H P E[(u_out - c)+] / (n (E[c] + w)), of the table of the module."""
    moments = Moments(*torch.tensor([0.002, 0.001, -0.1, -0.2], dtype=torch.float64))
    beta, u_out = Beta(3.0, 3.0), 0.01

    def value(w):
        return float(ExpectedReturn(40, 1000.0, call_usd=w).returns(moments, beta, u_out))

    assert value(0.006) == pytest.approx(value(0.0) * 0.002 / (0.002 + 0.006), rel=1e-12)
    with pytest.raises(st.InputError, match="call_usd=-1"):
        ExpectedReturn(40, 1000.0, call_usd=-1)


def told(costs, ends, H=10_000.0, objective="cost"):
    """Of a search whose theta_out were at these costs until these numbers of calls."""
    starts = [0, *ends[:-1]]
    rows = [TraceRow(t, 0.0, 0.0, "improved", (k,)) for k, t in enumerate(starts)]
    rows.append(TraceRow(ends[-1], 0.0, 0.0, "stopped", (len(costs) - 1,)))
    return SimpleNamespace(
        problem=SimpleNamespace(objective=objective, theta_ref=(0,)),
        recommendation=SimpleNamespace(theta=(len(costs) - 1,)),
        report={} if H is None else {"deployment_queries": H},
        evidence=SimpleNamespace(cost_usd=lambda theta: SimpleNamespace(value=costs[theta[0]])),
        trace=rows,
    )


def test_what_the_last_calls_saved_is_told():
    """Of 0.01, 0.00209, 0.002 USD: the last step saves 0.9 USD in 10,000 queries."""
    found = in_vain(told([0.01, 0.00209, 0.002], [500, 3000, 4000]))
    assert found.startswith(
        "; the last 3,500 of 4,000 calls saved less than 1 USD in 10,000 queries"
    )
    assert in_vain(told([0.01, 0.00211, 0.002], [500, 3000, 4000])) == ""  # 1,000 of 4,000
    assert "last 2,500" in in_vain(told([0.01, 0.00211, 0.002], [500, 1500, 4000]))
    found = told([0.01, 0.002], [100, 4000])
    found.trace = found.trace[1:]  # theta_out was found in Calibrate
    assert "last 3,900 of 4,000" in in_vain(found)
    assert in_vain(told([0.01, 0.002], [100, 1099])) == ""  # too few calls to wonder
    assert in_vain(told([0.01, None], [100, 4000])) == ""
    assert in_vain(told([0.01, 0.002], [100, 4000], H=None)) == ""
    assert in_vain(told([0.01, 0.002], [100, 4000], objective="quality")) == ""


@pytest.mark.slow
def test_a_result_tells_it(tmp_path):
    result = selected(deployment_queries=1e7, budget_usd=30, run_dir=tmp_path)
    assert result.why.endswith(in_vain(result))
    longer = replace(result, trace=[*result.trace[:-1], replace(result.trace[-1], t=10**5)])
    assert longer.why.endswith("hour_usd= counts what waiting costs")
