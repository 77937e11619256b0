"""Tasks on matrices: one file for quality, one for cost, and which column is which configuration.

This is how research repositories keep recorded runs. A row is a query, a column a configuration:

| query | a | b |
| --- | --- | --- |
| q1 | 1 | 0 |
| q2 | 1 | 1 |

and a JSON file says the LLM of each module of a column: `{"a": {"plan": "pro", "judge": "pro"},
"b": {"plan": "mini", "judge": "pro"}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import unique_keys
from scope_torch.space import by_module
from scope_torch.tasks import Task
from scope_torch.tasks.files import MAX_BYTES, find_data, read_decompressed
from scope_torch.tasks.frames import POLARS_ERRORS, read_frame, with_numbers
from scope_torch.tasks.table import OnMissing, listed_configurations, table_of

_HEADER_BYTES = 20_000_000
_QUALITY, _COST = "quality", "cost_usd"
Columns = dict[str, dict[str, str]]


def matrix_task(
    *,
    name: str,
    quality_path: str,
    cost_path: str,
    columns_path: str,
    reference: Sequence[str],
    epsilon: float,
    outcome_paths: Mapping[str, str] | None = None,
    query_column: str = "query",
    on_missing: OnMissing = "error",
    configurations: str | None = None,
    num_queries: int | None = None,
    source: str = "",
    max_bytes: int = MAX_BYTES,
) -> Task:
    r"""A task on matrices; `load_matrices` describes the files.

    Relative paths are looked up in the working directory, in `$SCOPE_DATA_DIR` and in `./data`.

    Args:
        name: Name of the task.
        quality_path: Matrix of qualities in [0, 1].
        cost_path: Matrix of costs in USD.
        columns_path: JSON with the LLM of each module of each column.
        reference: theta_0, one LLM name for each module.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        outcome_paths: Matrices of other numbers by name, such as `latency_s`.
        query_column: Column of query identifiers.
        on_missing: See `load_table`; a cell is missing if it is empty in one of the matrices, or if
            its configuration has no column.
        configurations: See `table_task`.
        num_queries: Use only the first queries, this many; None for all.
        source: Where to get the files, for the error message.
        max_bytes: Largest size of each file, decompressed.

    Raises:
        InputError: If a file is absent or damaged, or lacks the reference or that many queries.

    Examples:
        >>> files = {
        ...     "quality.csv": "query,a,b\nq1,0,1\nq2,1,1\n",
        ...     "cost.csv": "query,a,b\nq1,0.001,0.01\nq2,0.001,0.02\n",
        ...     "columns.json": '{"a": {"answer": "mini"}, "b": {"answer": "pro"}}',
        ... }
        >>> _ = [Path(path).write_text(text) for path, text in files.items()]
        >>> task = matrix_task(
        ...     name="demo", quality_path="quality.csv", cost_path="cost.csv",
        ...     columns_path="columns.json", reference=["pro"], epsilon=0.1,
        ... )
        >>> task.problem.llms, task.problem.reference_cost_usd
        ((('mini', 'pro'),), 0.015)
    """
    if configurations is not None and on_missing != "restrict":
        raise InputError(f"task.configurations={configurations} needs task.on_missing=restrict")
    if not isinstance(outcome_paths or {}, Mapping):
        raise InputError(
            f"task.outcome_paths={outcome_paths!r} must name files: {{latency_s: latency.csv}}"
        )
    paths = {_QUALITY: quality_path, _COST: cost_path, **(outcome_paths or {})}
    if len(paths) < 2 + len(outcome_paths or {}):
        raise InputError(f"task.outcome_paths must not name {_QUALITY} or {_COST} again")
    table = load_matrices(
        {outcome: find_data(path, source) for outcome, path in paths.items()},
        find_data(columns_path, source),
        query_column=query_column,
        on_missing=on_missing,
        max_bytes=max_bytes,
    )
    if configurations is not None:
        table = listed_configurations(table, find_data(configurations, source))
    if num_queries is not None:
        table = table.first(num_queries)
    return Task(table.problem(name, reference, epsilon), TableEvaluator(table))


def load_matrices(
    paths: Mapping[str, Path],
    columns_path: Path | str,
    *,
    query_column: str = "query",
    on_missing: OnMissing = "error",
    max_bytes: int = MAX_BYTES,
) -> RecordedTable:
    """Reads matrices; the table is the one that `load_table` reads from the same runs.

    All matrices have the same queries and the same columns, in any order.

    Args:
        paths: Files as `load_table` reads them, of `quality` (in [0, 1]), `cost_usd` (in USD)
            and other outcomes.
        columns_path: JSON: {column: {module: LLM}}, every module in every column.
        query_column: Column of query identifiers.
        on_missing: See `load_table`.
        max_bytes: Largest size of each file, decompressed.

    Raises:
        InputError: If a file, a column or a value cannot be used; the message names it.
    """
    columns = _read_columns(Path(columns_path), max_bytes)
    frames = {
        outcome: _matrix(path, query_column, columns, max_bytes, outcome == _COST)
        for outcome, path in paths.items()
    }
    queries, first = frames[_QUALITY][query_column], paths[_QUALITY]
    for outcome, frame in frames.items():
        _check_queries(frame[query_column], paths[outcome], queries, first)
    modules = list(next(iter(columns.values())))
    if query_column in modules or set(paths) & {query_column, *modules}:
        raise InputError(
            f"{columns_path}: the modules {modules} and the outcomes {list(paths)} need names of "
            f"their own, other than {query_column!r}"
        )
    rows = _rows(frames, columns, query_column)
    return table_of(rows, first, modules, query_column, list(paths), on_missing, max_bytes)


def _rows(frames: Mapping[str, pl.DataFrame], columns: Columns, query_column: str) -> pl.DataFrame:
    """One row for each (configuration, query), as in a table."""
    queries = frames[_QUALITY].select(query_column)
    parts: list[pl.DataFrame] = []
    for column, llms in columns.items():
        numbers = {
            outcome: queries.join(frame, on=query_column, how="left", maintain_order="left")[column]
            for outcome, frame in frames.items()
        }
        named = (pl.lit(llm).alias(module) for module, llm in llms.items())
        parts.append(queries.with_columns(*named, **numbers))
    return pl.concat(parts)


def _matrix(
    path: Path, query_column: str, columns: Columns, max_bytes: int, are_costs: bool
) -> pl.DataFrame:
    """The queries, and the numbers of all configurations; a truth value is no cost."""
    frame = read_frame(path, [query_column], max_bytes, _HEADER_BYTES)
    if query_column not in frame.columns:
        raise InputError(
            f"{path} has no column {query_column!r}; name that of the queries, "
            f"task.query_column={frame.columns[0] if frame.columns else 'query'}"
        )
    there = [column for column in frame.columns if column != query_column]
    for column in there:
        if column not in columns:
            raise InputError(
                f"{path} has a column {column!r}, of which the JSON of the columns says nothing; "
                "add it there, or delete it"
            )
    if lacking := [column for column in columns if column not in there]:
        raise InputError(
            f"{path} has no column {lacking[0]!r}, which the JSON of the columns names; delete it "
            "there: a configuration without a column was not recorded"
        )
    queries = frame[query_column]
    if queries.null_count():
        raise InputError(f"{path}: column {query_column!r} has an empty cell; fill it")
    if (repeated := queries.filter(queries.is_duplicated())).len():
        raise InputError(f"{path} has query {repeated[0]!r} twice; keep one row for each")
    try:
        amounts = there if are_costs else ()
        return with_numbers(frame, path, {column: column for column in there}, amounts)
    except POLARS_ERRORS as error:
        raise InputError(f"{path}: {error}; make its columns numbers") from error


def _check_queries(queries: pl.Series, path: Path, first: pl.Series, first_path: Path) -> None:
    for one, here, there in ((first, path, queries), (queries, first_path, first)):
        known = {*there}
        if lacking := [query for query in one if query not in known]:
            raise InputError(
                f"{here} lacks query {lacking[0]!r}; add its row, with empty cells if it was not "
                "recorded"
            )


def _read_columns(path: Path, max_bytes: int) -> Columns:
    """{column: {module: LLM}}, the modules of each column in the order of the first."""
    try:
        found: Any = json.loads(
            read_decompressed(path, max_bytes).read().decode("utf-8-sig"),
            object_pairs_hook=unique_keys,
        )
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(found, dict) or not found or not all(map(_is_named, found.values())):
        raise InputError(
            f'{path}: give an object such as {{"column": {{"module": "LLM"}}}}, with the LLM of '
            "each module for every column"
        )
    modules = list(next(iter(found.values())))
    columns = {
        column: dict(
            zip(modules, by_module(llms, modules, f"{path}: column {column!r}"), strict=True)
        )
        for column, llms in found.items()
    }
    column_of: dict[tuple[str, ...], str] = {}
    for column, llms in columns.items():
        other = column_of.setdefault(tuple(llms.values()), column)
        if other != column:
            raise InputError(
                f"{path}: columns {other!r} and {column!r} are the same configuration, {llms}; "
                "keep one"
            )
    return columns


def _is_named(llms: Any) -> bool:
    return isinstance(llms, dict) and bool(llms) and all(isinstance(v, str) for v in llms.values())
