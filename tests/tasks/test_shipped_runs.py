"""The recorded tables of UniDM's data imputation that come with the package."""

import csv
import gzip
import itertools
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from scope_torch.cli.compose import compose_task
from scope_torch.errors import InputError
from scope_torch.llm.prices import load_llms
from scope_torch.tasks.airport_city import airport_city

MODULES = ("parse", "cloze", "answer")
QUERIES = {"airport_city": 98, "restaurant": 86}


@pytest.fixture(params=QUERIES, scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def content(name):
    return (files("scope_torch") / "data" / f"{name}_runs.csv.gz").read_bytes()


@pytest.fixture(scope="module")
def rows(content):
    return list(csv.DictReader(gzip.decompress(content).decode().splitlines()))


@pytest.fixture(scope="module")
def problem(name):
    return compose_task([f"task={name}"]).problem


@pytest.mark.slow
def test_it_is_complete_and_small(name, content, rows, problem):
    assert len(content) < 3_000_000
    every = itertools.product(problem.llms[0], repeat=3)
    queries = {row["query"] for row in rows}
    expected = {(*theta, query) for theta in every for query in queries}
    assert {(*(row[m] for m in MODULES), row["query"]) for row in rows} == expected
    assert len(rows) == len(expected) == 64 * problem.num_queries
    assert queries == {str(q) for q in range(problem.num_queries)}
    assert problem.num_queries == QUERIES[name]


@pytest.mark.slow
def test_costs_are_tokens_times_notional_prices(rows):
    prices = load_llms("local_llms.toml")
    for row in rows:
        cost = sum(
            int(row[f"{m}_in_tokens"]) * prices[row[m]].input_usd_per_mtok
            + int(row[f"{m}_out_tokens"]) * prices[row[m]].output_usd_per_mtok
            for m in MODULES
        )
        assert float(row["cost_usd"]) == pytest.approx(cost * 1e-6, rel=1e-8)
        assert int(row["parse_in_tokens"]) > 0


def test_the_same_call_is_the_same_reply(rows):
    """A module's tokens depend only on its LLM and on the LLMs before it."""
    for depth in (1, 2):
        seen = {}
        for row in rows:
            key = (*(row[m] for m in MODULES[:depth]), row["query"])
            tokens = tuple(
                row[f"{m}_{kind}_tokens"] for m in MODULES[:depth] for kind in ("in", "out")
            )
            assert seen.setdefault(key, tokens) == tokens


@pytest.mark.slow
def test_it_is_a_task(name, problem):
    """The reference is neither best nor useless, and a feasible one costs much less."""
    assert problem.names(problem.theta_ref) == dict.fromkeys(MODULES, "Qwen2.5-Coder-1.5B few-shot")
    assert 0.2 < problem.reference_quality < 0.9
    task = compose_task([f"task={name}"])
    cost, quality = task.evaluator.truth()
    feasible = quality >= problem.s_0 - 1e-12
    assert cost[feasible].min() < 0.7 * problem.reference_cost_usd
    assert feasible.sum() < 0.5 * feasible.numel()


@pytest.mark.slow
def test_a_part_of_it(name, problem):
    part = compose_task([f"task={name}", "task.num_queries=10"]).problem
    assert (part.num_queries, part.llms) == (10, problem.llms)
    assert part.reference_cost_usd != problem.reference_cost_usd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.num_queries=99", "num_queries=99 must be a whole number from 1 to 98"),
        ("task.llms=[SmolLM2-135M]", "has runs of .*1.5B few-shot"),
    ],
)
def test_what_was_not_recorded_is_refused(override, message):
    with pytest.raises(InputError, match=message):
        compose_task(["task=airport_city", override])


@pytest.mark.slow
def test_airports_are_the_first_of_the_data_set():
    assert len(airport_city().queries) >= QUERIES["airport_city"]


@pytest.mark.slow
def test_the_live_search_of_restaurant_had_found_the_optimum():
    """docs/results/live.csv was written before the table was recorded."""
    path = Path(__file__).parents[2] / "docs" / "results" / "live.csv"
    with path.open(newline="") as file:
        live = next(r for r in csv.DictReader(file) if r["run"] == "restaurant_test_local")
    task = compose_task(["task=restaurant"])
    cost, quality = task.evaluator.truth()
    feasible = quality >= task.problem.s_0 - 1e-12
    best = torch.where(feasible, cost, torch.inf).flatten().argmin()
    names = task.problem.names(task.problem.space.unrank(best[None])[0].tolist())
    assert live["theta_out"] == " + ".join(names.values())
    assert float(live["cost"]) == pytest.approx(float(cost.flatten()[best]), rel=0.01)
