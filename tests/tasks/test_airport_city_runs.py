"""The recorded table of UniDM-DI on airport_city that comes with the package."""

import csv
import gzip
import itertools
from importlib.resources import files

import pytest

from scope_torch.cli.compose import compose_task
from scope_torch.errors import InputError
from scope_torch.llm.prices import load_llms
from scope_torch.tasks.airport_city import airport_city

PATH = files("scope_torch") / "data" / "airport_city_runs.csv.gz"
MODULES = ("parse", "cloze", "answer")


@pytest.fixture(scope="module")
def rows():
    return list(csv.DictReader(gzip.decompress(PATH.read_bytes()).decode().splitlines()))


@pytest.fixture(scope="module")
def problem():
    return compose_task(["task=airport_city"]).problem


def test_it_is_complete_and_small(rows, problem):
    assert len(PATH.read_bytes()) < 3_000_000
    every = itertools.product(problem.llms[0], repeat=3)
    queries = {row["query"] for row in rows}
    expected = {(*theta, query) for theta in every for query in queries}
    assert {(*(row[m] for m in MODULES), row["query"]) for row in rows} == expected
    assert len(rows) == len(expected) == 64 * problem.num_queries
    assert queries == {str(q) for q in range(problem.num_queries)}
    assert problem.num_queries <= len(airport_city().queries)


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


def test_a_part_of_it(problem):
    part = compose_task(["task=airport_city", "task.num_queries=10"]).problem
    assert (part.num_queries, part.llms) == (10, problem.llms)
    assert part.reference_cost_usd != problem.reference_cost_usd


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.num_queries=99", "num_queries=99 must be 1 to 98"),
        ("task.llms=[SmolLM2-135M]", "has runs of .*1.5B few-shot"),
    ],
)
def test_what_was_not_recorded_is_refused(override, message):
    with pytest.raises(InputError, match=message):
        compose_task(["task=airport_city", override])


def test_it_is_a_task(problem):
    """The reference is neither best nor useless, and a feasible one costs much less."""
    assert problem.names(problem.theta_ref) == dict.fromkeys(MODULES, "Qwen2.5-Coder-1.5B few-shot")
    assert 0.2 < problem.reference_quality < 0.9
    task = compose_task(["task=airport_city"])
    cost, quality = task.evaluator.truth()
    feasible = quality >= problem.s_0 - 1e-12
    assert cost[feasible].min() < 0.7 * problem.reference_cost_usd
    assert feasible.sum() < 0.5 * feasible.numel()
