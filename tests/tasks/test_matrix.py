"""Matrices of queries and configurations, as research repositories keep them."""

import csv
import gzip
import itertools
import json
import random

import polars as pl
import pytest

from scope_torch.errors import InputError
from scope_torch.methods import make_scope
from scope_torch.runs.runner import run
from scope_torch.tasks.matrix import matrix_task
from scope_torch.tasks.table import table_task

LLMS = {"mini": 0.001, "nano": 0.0002, "pro": 0.01}
MODULES = ("plan", "solve")
QUERIES = [f"q{number}" for number in range(30)]
GIVEN = {"name": "runs", "reference": ["pro", "pro"], "epsilon": 0.2}
PATHS = {"quality_path": "quality.csv", "cost_path": "cost.csv", "columns_path": "columns.json"}


def recorded():
    """Rows of a table."""
    luck = random.Random(4)
    for llms in itertools.product(LLMS, repeat=2):
        for query in QUERIES:
            yield {
                **dict(zip(MODULES, llms, strict=True)),
                "query": query,
                "quality": int(luck.random() < 0.5 + 0.25 * sum(llm != "nano" for llm in llms)),
                "cost_usd": sum(LLMS[llm] for llm in llms) * (1 + luck.random()),
                "latency_s": luck.random(),
            }


ROWS = list(recorded())


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def matrix(outcome, rows=ROWS):
    """The rows of a matrix: one for each query, its columns named `plan/solve`."""
    found = {}
    for row in rows:
        found.setdefault(row["query"], {"query": row["query"]})[f"{row['plan']}/{row['solve']}"] = (
            row[outcome]
        )
    return list(found.values())


def columns():
    return {f"{one}/{two}": {"plan": one, "solve": two} for one in LLMS for two in LLMS}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv("quality.csv", matrix("quality"))
    write_csv("cost.csv", matrix("cost_usd")[::-1])  # the order of rows does not matter
    (tmp_path / "columns.json").write_text(json.dumps(columns()))
    return tmp_path


def searched(task):
    search = make_scope(task.problem, base="nano", seed=2, device="cpu")
    return run(task.problem, search, task.evaluator, budget_usd=0.5)


def test_a_search_is_the_one_on_the_table_of_the_same_runs(files):
    write_csv("runs.csv", ROWS)
    write_csv("latency.csv", matrix("latency_s"))
    outcomes = {"latency_s": "latency.csv"}
    made = matrix_task(**GIVEN, **PATHS, outcome_paths=outcomes)
    same = table_task(
        **GIVEN, path="runs.csv", module_columns=MODULES, outcome_columns=["latency_s"]
    )
    assert made.problem == same.problem
    assert made.evaluator.fingerprint() == same.evaluator.fingerprint()
    results = [searched(task) for task in (made, same)]
    assert list(results[0].history) == list(results[1].history)
    assert results[0].history[0].outcomes.keys() == {"latency_s"}
    assert len(results[0].history) > 30


def test_other_formats_and_names(files):
    rows = [{"question": row.pop("query"), **row} for row in matrix("quality")]
    pl.DataFrame(rows).write_parquet("quality.parquet")
    rows = [{"question": row.pop("query"), **row} for row in matrix("cost_usd")]
    write_csv("cost.csv", rows)
    (files / "cost.csv.gz").write_bytes(gzip.compress((files / "cost.csv").read_bytes()))
    paths = PATHS | {"quality_path": "quality.parquet", "cost_path": "cost.csv.gz"}
    made = matrix_task(**GIVEN, **paths, query_column="question", num_queries=7)
    assert made.problem.num_queries == 7
    assert made.problem.modules == MODULES


def test_queries_that_are_numbers_are_in_their_order(files):
    for name, outcome in (("quality.csv", "quality"), ("cost.csv", "cost_usd")):
        write_csv(name, [row | {"query": int(row["query"][1:])} for row in matrix(outcome)])
    made = matrix_task(**GIVEN, **PATHS)
    assert made.evaluator.table.queries == tuple(map(str, range(30)))


def without_a_column(files):
    """`mini/mini` was never run, and `nano/nano` not on the first query."""
    for name, outcome in (("quality.csv", "quality"), ("cost.csv", "cost_usd")):
        rows = matrix(outcome)
        rows[0]["nano/nano"] = None
        write_csv(name, [{k: v for k, v in row.items() if k != "mini/mini"} for row in rows])
    named = {column: llms for column, llms in columns().items() if column != "mini/mini"}
    (files / "columns.json").write_text(json.dumps(named))


def test_holes_are_refused_dropped_or_searched_around(files):
    without_a_column(files)
    with pytest.raises(InputError, match=r"31 cells are missing.*'plan': 'mini', 'solve': 'mini'"):
        matrix_task(**GIVEN, **PATHS)
    with pytest.raises(InputError, match="no query was run under every configuration"):
        matrix_task(**GIVEN, **PATHS, on_missing="drop_queries")
    problem = matrix_task(**GIVEN, **PATHS, on_missing="restrict").problem
    assert not problem.is_allowed((0, 0))
    assert list(problem.queries_of((1, 1))) == list(range(1, 30))
    (files / "listed.json").write_text('[["pro", "pro"], ["mini", "pro"]]')
    listed = matrix_task(**GIVEN, **PATHS, on_missing="restrict", configurations="listed.json")
    assert listed.problem.rule.count == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nano/nano": {"planner": "nano", "solve": "nano"}}, r"'nano/nano' has the keys .*'plan'"),
        ({"mini/nano": {"plan": "mini", "solve": "mini"}}, "'mini/mini' and 'mini/nano' are the"),
        ({"x": {"plan": "x", "solve": "x"}}, "quality.csv has no column 'x'"),
        ({"mini/nano": {"plan": "mini", "solve": 3}}, "give an object such as"),
        ({"mini/nano": "mini"}, "give an object such as"),
    ],
)
def test_damaged_columns_are_refused(files, change, message):
    (files / "columns.json").write_text(json.dumps(columns() | change))
    with pytest.raises(InputError, match=message):
        matrix_task(**GIVEN, **PATHS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"pro/pro"', '"pro/prp"', "quality.csv has a column 'pro/pro', of which the JSON"),
        ('"mini/nano"', '"mini/mini"', "'mini/mini' is there twice"),
        ("{", "", "as JSON"),
        ("plan", "query", "need names of their own, other than 'query'"),
    ],
)
def test_a_damaged_json_is_refused(files, old, new, message):
    (files / "columns.json").write_text(json.dumps(columns()).replace(old, new))
    with pytest.raises(InputError, match=message):
        matrix_task(**GIVEN, **PATHS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"cost.csv lacks query 'q29'"),
        (lambda rows: [*rows, rows[0]], r"cost.csv has query 'q0' twice"),
        (lambda rows: [rows[0] | {"query": "new"}, *rows], r"quality.csv lacks query 'new'"),
        (lambda rows: [rows[0] | {"query": None}, *rows[1:]], r"'query' has an empty cell"),
        (lambda rows: [rows[0] | {"pro/pro": -1}, *rows[1:]], r"cost_usd=-1.0 at .*must be"),
        (lambda rows: [rows[0] | {"pro/pro": "much"}, *rows[1:]], r"'pro/pro' has 'much'"),
        (lambda rows: [row | {"more": 1} for row in rows], r"cost.csv has a column 'more'"),
        (
            lambda rows: [{k: v for k, v in row.items() if k != "query"} for row in rows],
            r"no column 'query'; name that of the queries, task.query_column=mini/mini",
        ),
        (lambda rows: [row | {"query": i} for i, row in enumerate(rows)], r"lacks query 'q0'"),
    ],
)
def test_damaged_matrices_are_refused(files, change, message):
    write_csv("cost.csv", change(matrix("cost_usd")))
    with pytest.raises(InputError, match=message):
        matrix_task(**GIVEN, **PATHS)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b"query\n", b"PAR1broken"])
def test_files_that_are_no_matrix_are_refused(files, content):
    (files / "cost.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"cost\.csv"):
        matrix_task(**GIVEN, **PATHS)


def test_a_mark_of_utf_8_before_the_columns(files):
    path = files / "columns.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert matrix_task(**GIVEN, **PATHS).problem.num_queries == 30


def test_a_truth_value_is_no_cost(files):
    rows = matrix("cost_usd")
    rows[3]["nano/nano"] = "true"
    write_csv("cost.csv", rows)
    with pytest.raises(InputError, match="'true', which is not a number"):
        matrix_task(**GIVEN, **PATHS)


@pytest.mark.slow
def test_a_bomb_is_refused(files):
    (files / "cost.csv").write_bytes(gzip.compress(b"query," + b"a" * 30_000_000))
    with pytest.raises(InputError, match=r"cost\.csv"):
        matrix_task(**GIVEN, **PATHS, max_bytes=1_000_000)
    with pytest.raises(InputError, match="its first line is above"):
        matrix_task(**GIVEN, **PATHS)


def test_what_is_named_wrongly_is_refused(files):
    with pytest.raises(InputError, match="must name files"):
        matrix_task(**GIVEN, **PATHS, outcome_paths=["latency.csv"])
    with pytest.raises(InputError, match="must not name quality"):
        matrix_task(**GIVEN, **PATHS, outcome_paths={"quality": "cost.csv"})
    with pytest.raises(InputError, match=r"needs task\.on_missing=restrict"):
        matrix_task(**GIVEN, **PATHS, configurations="listed.json")
    with pytest.raises(InputError, match=r"no data file 'gone\.csv'"):
        matrix_task(**GIVEN, **(PATHS | {"cost_path": "gone.csv"}))
