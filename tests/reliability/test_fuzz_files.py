"""Files nobody meant: refused in one line, or what they seem to be."""

import contextlib
import csv
import functools
import gzip
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import strategies as st
from reliability.fuzzing import ANY_TEXT, JSON, damaged, fuzzed, tried
from tables import CountingEvaluator, make_task

from scope_torch.cli import run as run_script
from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.llm.prices import load_llms
from scope_torch.observation import Observation
from scope_torch.runs import directory as run_directory
from scope_torch.runs import runner
from scope_torch.runs.finished import load_runs
from scope_torch.runs.journal import Journal
from scope_torch.tasks.table import load_table

TASK = make_task(1, (3, 3), 6)

# Tables

ROWS = [
    {"plan": plan, "solve": solve, "query": query, "quality": (i % 7) / 6, "cost_usd": i * 1e-3}
    for i, (plan, solve, query) in enumerate(
        itertools.product(("a-nano", "c-pro"), ("a-nano", "c-pro"), range(3))
    )
]


def csv_text(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@functools.cache
def parquet() -> bytes:
    content = io.BytesIO()
    pl.DataFrame(ROWS).write_parquet(content)
    return content.getvalue()


@st.composite
def edited_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = [dict(row) for row in ROWS]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["cell", "cell", "cell", "drop", "repeat", "swap"]))
        at = draw(st.integers(0, len(rows) - 1))
        if kind == "cell":
            column = draw(st.sampled_from(list(ROWS[0])))
            rows[at][column] = draw(ANY_TEXT | st.floats() | st.integers())
        elif kind == "drop" and len(rows) > 1:
            del rows[at]
        elif kind == "repeat":
            rows.append(dict(rows[at]))
        else:
            rows.reverse()
    return rows


def loaded(path: Path, on_missing: Any = "error"):
    """A table that holds what it must, or None if it was refused in one line."""
    table, refusal = tried(load_table, path, ["plan", "solve"], on_missing=on_missing)
    if table is None:
        assert str(path) in refusal or "must be" in refusal
        return None
    shape = (*(len(names) for names in table.llms), len(table.queries))
    for values, most in (table.cost_usd, math.inf), (table.quality, 1.0):
        assert values.shape == shape
        assert np.isfinite(values).all()
        assert ((values >= 0) & (values <= most)).all()
    return table


@pytest.mark.slow
@fuzzed(st.tuples(edited_rows(), st.sampled_from(["error", "drop_queries"])), 25, 2500)
def test_tables_with_odd_cells(drawn, folder):
    rows, on_missing = drawn
    path = folder / "runs.csv"
    path.write_bytes(csv_text(rows).encode("utf-8", "replace"))
    table = loaded(path, on_missing)
    if table is not None and on_missing == "error":
        keys = [(str(row["plan"]), str(row["solve"]), str(row["query"])) for row in rows]
        # what was accepted whole had one row for each cell, and nothing is lost
        assert len(keys) == table.cost_usd.size
        assert len(set(keys)) == len(keys)
        assert table.cost_usd.sum() == pytest.approx(sum(float(r["cost_usd"]) for r in rows))


@pytest.mark.slow
@fuzzed(
    st.one_of(
        damaged(csv_text(ROWS).encode()),
        damaged(gzip.compress(csv_text(ROWS).encode(), mtime=0)),
        damaged(csv_text(ROWS).encode()).map(gzip.compress),
        damaged(parquet()),
        st.binary(max_size=60),
    ),
    60,
    1500,
)
def test_tables_of_damaged_bytes(content, folder):
    path = folder / "runs"
    path.write_bytes(content)
    loaded(path, "drop_queries")


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([[1.0]] * 12), pl.Series([{"a": 1}] * 12), pl.Series([b"x"] * 12),
        pl.Series([None] * 12), pl.Series(["2020-01-01"] * 12).str.to_date(),
        pl.Series([True] * 12), pl.Series([object()] * 12, dtype=pl.Object),
    ],
    ids=lambda column: str(column.dtype),
)  # fmt: skip
@pytest.mark.parametrize("name", list(ROWS[0]))
def test_columns_of_other_kinds(tmp_path, monkeypatch, column, name):
    frame = pl.DataFrame(ROWS).with_columns(column.alias(name))
    monkeypatch.setattr(pl, "read_csv", lambda *_, **__: frame)  # a file cannot hold all of them
    (tmp_path / "runs.csv").touch()
    loaded(tmp_path / "runs.csv")


# Price lists and worlds

PRICES = b"""version = 1
[[llm]]
name = "a"
input_usd_per_mtok = 0.1
output_usd_per_mtok = 1
cached_input_usd_per_mtok = 0.01
mmlu_pro = 71.5
takes_temperature = true
[[llm]]
name = "b"
input_usd_per_mtok = 2
output_usd_per_mtok = 8.0
prompting = "few_shot"
"""
TOML_VALUES = st.sampled_from(
    ["nan", "inf", "-1", "-0.0", "1e999", "1" * 400, "[]", "{}", '""', '"x"', "true", "1979-05-27",
     "[1, 2]", "[" * 2000, "0x10", "1_0", '"""', "{a = {b = [1]}}", "'../x'", "-1e-300"]
)  # fmt: skip


@st.composite
def other_values(draw: st.DrawFn, whole: bytes) -> bytes:
    """A TOML file with other values, or keys, in some lines."""
    lines = whole.decode().splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        key, _, value = lines[at].partition(" = ")
        new = draw(TOML_VALUES)
        lines[at] = draw(
            st.sampled_from([f"{key} = {new}", f"{new} = {value}", "", f"{key}.x = 1"])
        )
    return "\n".join(lines).encode()


@pytest.mark.slow
@fuzzed(st.one_of(other_values(PRICES), damaged(PRICES)), 80, 2000)
def test_price_lists(content, folder):
    path = folder / "prices.toml"
    path.write_bytes(content)
    llms, refusal = tried(load_llms, path)
    if llms is None:
        assert str(path) in refusal
        return
    for name, llm in llms.items():
        assert llm.name == name
        assert isinstance(name, str)
        for price in (llm.input_usd_per_mtok, llm.output_usd_per_mtok):
            assert 0 <= float(price) < math.inf
        assert isinstance(llm.takes_temperature, bool)
    assert content.count(b"name =") >= len(llms)


@functools.cache
def worlds_toml() -> bytes:
    path = Path(run_script.__file__).parents[1] / "data/worlds.toml"
    return path.read_bytes()


@fuzzed(st.one_of(other_values(worlds_toml()), damaged(worlds_toml(), 2)), 30, 500)
def test_world_files(content, folder):
    path = folder / "worlds.toml"
    path.write_bytes(content)
    worlds, refusal = tried(load_worlds, path)
    if worlds is None:
        assert str(path) in refusal
        return
    for world in worlds.values():
        assert type(world.num_queries) is int
        numbers = [v for spec in (world, *world.modules) for v in vars(spec).values()]
        assert all(math.isfinite(v) for v in numbers if isinstance(v, int | float))


# What a run left behind

OBSERVATIONS = [Observation((1, 0), q, 0.1 + q / 7, 0.5, latency_s=0.25) for q in range(4)]
JOURNAL = "".join(o.to_json() + "\n" for o in OBSERVATIONS).encode()


@pytest.mark.slow
@fuzzed(st.one_of(damaged(JOURNAL), st.binary(max_size=80)), 80, 1500)
def test_journals(content, folder):
    path = folder / "journal.jsonl"
    path.write_bytes(content)
    journal, refusal = tried(Journal, path)
    if journal is None:
        assert f"{path}: line " in refusal
        assert path.read_bytes() == content
        return
    journal.close()
    assert len({o.request for o in journal.recorded}) == len(journal.recorded)
    for o in journal.recorded:
        assert 0 <= o.quality <= 1
        assert 0 <= o.cost_usd < math.inf
        assert all(type(count) is int for count in (*o.theta, o.query, o.replicate))
    # what was not dropped stands there to the byte
    assert content.startswith(path.read_bytes().rstrip(b"\n"))


@pytest.mark.slow
@fuzzed(JSON, 60, 1000)
def test_lines_of_a_journal(value, folder):
    for content in (value, {"theta": [0], "query": 0, "cost_usd": value, "quality": 0.5},
                    {"theta": value, "query": 1, "cost_usd": 1, "quality": value}):  # fmt: skip
        with contextlib.suppress(InputError):
            made = Observation.from_json(json.dumps(content))
            assert Observation.from_json(made.to_json()) == made


HASH = run_directory.settings_hash({"a": 1})
RESULT = json.dumps({"settings_hash": HASH, "method": "m"}).encode()
SETTINGS = json.dumps({"budget_usd": 1.0, "optimizer": {"seed": 1}, "problem": {}}).encode()
AS_JSON = JSON.map(lambda value: json.dumps(value).encode())
BUDGETS = st.sampled_from([b'{"budget_usd": "x"}', b'{"budget_usd": null}', b"[" * 99999])


@fuzzed(
    st.tuples(damaged(SETTINGS) | AS_JSON | BUDGETS, damaged(RESULT) | AS_JSON | BUDGETS), 20, 300
)
def test_settings_and_results_of_a_run(drawn, folder):
    (folder / "settings.json").write_bytes(drawn[0])
    (folder / "result.json").write_bytes(drawn[1])
    summary = run_directory.finished_summary(folder, {"a": 1})
    assert summary is None or summary["settings_hash"] == HASH
    evaluator = CountingEvaluator(TASK)
    settings = (TASK.problem, TASK.scope(1), evaluator, TASK.budget(1))
    assert tried(runner.run, *settings, run_dir=folder)[0] is None  # of other settings
    assert not evaluator.paid
    tried(load_runs, folder)
