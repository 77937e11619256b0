"""Tasks on recorded tables, read from CSV, JSON or Parquet files; see `frames.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from scope_torch.allowed import codes_of_list
from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.files import MARK, plain_text
from scope_torch.space import ConfigSpace
from scope_torch.tasks import Task
from scope_torch.tasks.files import MAX_BYTES, find_data, read_text
from scope_torch.tasks.frames import POLARS_ERRORS, in_order, read_frame, reason, with_numbers

OnMissing = Literal["error", "drop_queries", "restrict"]
_ON_MISSING = ("error", "drop_queries", "restrict")
_NUMBER = "_number:"  # before the names of numbers, while the table is read


def table_task(
    *,
    name: str,
    path: str,
    module_columns: Sequence[str],
    reference: Sequence[str],
    epsilon: float,
    quality_column: str = "quality",
    cost_column: str = "cost_usd",
    query_column: str = "query",
    outcome_columns: Sequence[str] = (),
    on_missing: OnMissing = "error",
    configurations: str | None = None,
    num_queries: int | None = None,
    source: str = "",
    max_bytes: int = MAX_BYTES,
) -> Task:
    r"""A task on a recorded table; `load_table` describes the file.

    Args:
        name: Name of the task.
        path: The file. A relative path is looked up in the working directory, in `$SCOPE_DATA_DIR`
            and in `./data`.
        module_columns: Columns with the LLM of each module.
        reference: theta_0, one LLM name for each module.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        quality_column: Column of qualities in [0, 1].
        cost_column: Column of costs in USD.
        query_column: Column of query identifiers.
        outcome_columns: Columns of other numbers; observations carry them by these names.
        on_missing: `error`, `drop_queries` or `restrict`; see `load_table`.
        configurations: With `restrict`, a file with the only configurations that may be chosen, see
            `listed_configurations`; None: all that were recorded. Looked up like `path`.
        num_queries: Use only the first queries of the table, this many; None for all.
        source: Where to get the file, for the error message.
        max_bytes: See `load_table`.

    Raises:
        InputError: If the file is absent or damaged, or lacks the reference or that many queries.

    Examples:
        >>> _ = Path("runs.csv").write_text(
        ...     "answer,query,quality,cost_usd\n"
        ...     "mini,q1,1,0.001\n"
        ...     "mini,q2,0,0.001\n"
        ...     "pro,q1,1,0.01\n"
        ...     "pro,q2,1,0.02\n"
        ... )
        >>> task = table_task(
        ...     name="demo", path="runs.csv", module_columns=["answer"], reference=["pro"],
        ...     epsilon=0.1,
        ... )
        >>> task.problem.llms, task.problem.reference_cost_usd
        ((('mini', 'pro'),), 0.015)
    """
    if configurations is not None and on_missing != "restrict":
        raise InputError(f"task.configurations={configurations} needs task.on_missing=restrict")
    table = load_table(
        find_data(path, source),
        module_columns,
        quality_column=quality_column,
        cost_column=cost_column,
        query_column=query_column,
        outcome_columns=outcome_columns,
        on_missing=on_missing,
        max_bytes=max_bytes,
    )
    if configurations is not None:
        table = listed_configurations(table, find_data(configurations, source))
    if num_queries is not None:
        table = table.first(num_queries)
    return Task(table.problem(name, reference, epsilon), TableEvaluator(table))


def load_table(
    path: Path | str,
    module_columns: Sequence[str],
    *,
    quality_column: str = "quality",
    cost_column: str = "cost_usd",
    query_column: str = "query",
    outcome_columns: Sequence[str] = (),
    on_missing: OnMissing = "error",
    max_bytes: int = MAX_BYTES,
) -> RecordedTable:
    """Reads a table with one row for each (configuration, query).

    LLMs are sorted by name and queries by identifier, so the order of the rows does not matter.
    Both are text: 4.10 is not 4.1. A cell is missing if it has no row, or if its cost, quality or
    outcome is empty or NaN.

    Args:
        path: CSV, JSON lines or Parquet, plain or gzipped; its content tells which.
        module_columns: Columns with the LLM of each module.
        quality_column: Column of qualities in [0, 1].
        cost_column: Column of costs in USD.
        query_column: Column of query identifiers.
        outcome_columns: Columns of other finite numbers, such as tokens or seconds.
        on_missing: `error` refuses a table with a missing cell; `drop_queries` keeps only the
            queries that were observed under every configuration; `restrict` keeps all, and only
            what was recorded is offered to a search.
        max_bytes: Largest size of the file, decompressed; of Parquet, of its columns, where a
            number counts 8 bytes.

    Raises:
        InputError: If the file, a column or a value cannot be used; the message names it.
    """
    if on_missing not in _ON_MISSING:
        raise InputError(f"on_missing={on_missing!r} must be error, drop_queries or restrict")
    if not module_columns:
        raise InputError(
            "module_columns is empty: name the columns, e.g. task.module_columns=[a,b]"
        )
    path = Path(path)
    numbers = [quality_column, cost_column, *outcome_columns]
    frame = read_frame(path, [*module_columns, query_column], max_bytes, numbers=numbers)
    return table_of(frame, path, module_columns, query_column, numbers, on_missing, max_bytes)


def table_of(
    frame: pl.DataFrame,
    path: Path,
    module_columns: Sequence[str],
    query_column: str,
    number_columns: Sequence[str],
    on_missing: OnMissing,
    max_bytes: int,
) -> RecordedTable:
    """A table from rows (configuration, query), as `load_table` describes them.

    Args:
        frame: The rows.
        path: Their file, for error messages.
        module_columns: See `load_table`.
        query_column: See `load_table`.
        number_columns: Of quality, of cost in USD, then of the other outcomes, by their names.
        on_missing: See `load_table`.
        max_bytes: See `load_table`.

    Raises:
        InputError: See `load_table`.
    """
    try:
        keys = [*module_columns, query_column]
        frame = frame.rename({name: plain_text(name) for name in frame.columns})
        frame = frame.with_columns(pl.col(pl.String).str.replace(MARK, "$1"))
        _check_columns(frame, path, [*keys, *number_columns])
        frame = _checked(frame, path, keys, {_NUMBER + name: name for name in number_columns})
        columns = list(module_columns), query_column, list(number_columns)
        return _arrays(frame, path, *columns, on_missing, max_bytes)
    except POLARS_ERRORS as error:  # values that are neither names nor numbers
        raise InputError(f"{path}: {reason(error)}; make its columns text and numbers") from error


def _checked(
    frame: pl.DataFrame, path: Path, keys: list[str], numbers: dict[str, str]
) -> pl.DataFrame:
    """The columns `keys`, and `numbers` under their new names; one row for each key."""
    frame = frame.select(
        *(pl.col(name) for name in keys),
        *(pl.col(in_file).alias(name) for name, in_file in numbers.items()),
    )
    for name in keys:
        if frame[name].null_count():
            raise InputError(f"{path}: column {name!r} has an empty cell; fill it")
    frame = with_numbers(frame, path, numbers, amounts=list(numbers)[1:2])  # costs
    repeated = frame.filter(frame.select(keys).is_duplicated())
    if len(repeated):
        row = repeated.select(keys).row(0, named=True)
        raise InputError(f"{path}: {row} has more than one row; keep one per configuration, query")
    return frame


def _check_columns(frame: pl.DataFrame, path: Path, needed: Sequence[str]) -> None:
    for name in needed:
        if name not in frame.columns:
            raise InputError(f"{path} has no column {name!r}; its columns are {frame.columns}")
    if len(set(needed)) != len(needed):
        raise InputError(f"columns {list(needed)} name one column twice")


def _arrays(
    frame: pl.DataFrame,
    path: Path,
    module_columns: list[str],
    query_column: str,
    number_columns: list[str],
    on_missing: OnMissing,
    max_bytes: int,
) -> RecordedTable:
    """Puts the cells into arrays: one axis for the queries; one for each module, or of rows."""
    # From all rows: an LLM or a query must not vanish because all its cells are empty.
    names = [frame[column].unique().sort() for column in module_columns]
    queries = in_order(frame[query_column].unique())
    frame = frame.drop_nulls()
    if not len(frame):
        raise InputError(f"{path} has no complete row")
    space = ConfigSpace(tuple(len(column) for column in names))
    partial = on_missing == "restrict"
    if not partial and len(frame) < space.size:
        raise InputError(
            f"{path} has {len(frame)} rows for {space.size} configurations: a table needs every "
            "configuration; leave out the LLMs that were not run in all combinations, or search "
            "what there is with task.on_missing=restrict"
        )
    theta = [
        frame[column].replace_strict(values, range(len(values))).to_numpy()
        for column, values in zip(module_columns, names, strict=True)
    ]
    query = frame[query_column].replace_strict(queries, range(len(queries))).to_numpy()
    rows = None
    if partial:
        rows, row_of = np.unique(np.stack(theta, 1), axis=0, return_inverse=True)
        _check_size(path, len(rows) * len(queries) * len(number_columns), max_bytes)
        shape, cells = (len(rows), len(queries)), (row_of.reshape(-1), query)
    else:
        shape, cells = (*space.sizes, len(queries)), (*theta, query)
    present = np.zeros(shape, dtype=bool)
    present[cells] = True
    numbers = {name: np.full(shape, np.nan) for name in number_columns}
    for name, values in numbers.items():
        values[cells] = frame[_NUMBER + name]
    llms = tuple(tuple(column.to_list()) for column in names)
    identifiers: tuple[str, ...] = tuple(queries.to_list())
    complete: np.ndarray = np.all(present.reshape(-1, len(queries)), axis=0)
    if not complete.all() and not partial:
        _check_missing(present, path, module_columns, llms, identifiers, complete, on_missing)
        numbers = {name: values[..., complete] for name, values in numbers.items()}
        identifiers = tuple(q for q, keep in zip(identifiers, complete, strict=True) if keep)
    quality, cost, *_ = numbers.values()
    outcomes = {name: numbers[name] for name in number_columns[2:]}
    modules = tuple(module_columns)
    arrays = cost, quality, outcomes
    return RecordedTable(modules, llms, identifiers, *arrays, partial=partial, rows=rows)


def _check_size(path: Path, num_cells: int, max_bytes: int) -> None:
    if 8 * num_cells > max_bytes:
        raise InputError(
            f"{path} has {num_cells:.3g} numbers, of 8 bytes each, with what was not recorded of "
            f"its configurations; task.max_bytes={max_bytes} is the limit: raise it"
        )


def listed_configurations(table: RecordedTable, path: Path | str) -> RecordedTable:
    """A partial table of which only some configurations may be chosen.

    Args:
        table: From `load_table` with `on_missing="restrict"`; a partial one.
        path: JSON, a list of configurations, each a list of LLM names in the order of the modules
            or an object by module; or a table (see `frames.py`) with a column for each module.

    Raises:
        InputError: If the file cannot be read, or names an LLM that the table does not have.

    Examples:
        >>> ones = np.ones((2, 2, 1))
        >>> two = (("mini", "pro"),) * 2
        >>> table = RecordedTable(("plan", "judge"), two, ("q",), ones, ones, partial=True)
        >>> _ = Path("listed.json").write_text('[["pro", "pro"], {"plan": "mini", "judge": "pro"}]')
        >>> listed_configurations(table, "listed.json").listed
        ((0, 1), (1, 1))
    """
    path = Path(path)
    named = _configurations(path, table.modules)
    try:
        listed = codes_of_list(named, table.modules, table.llms)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return replace(table, listed=listed)


def _configurations(path: Path, modules: Sequence[str]) -> list[Any]:
    try:
        text = read_text(path, "utf-8-sig").lstrip()
    except InputError:  # what is no text may still be a table
        text = ""
    try:
        listed: list[Any] = json.loads(text) if text.startswith("[") else []
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {reason(error)}") from error
    if not text.startswith("["):
        rows = read_frame(path, modules).to_dicts()
        listed = [{plain_text(k): v and plain_text(str(v)) for k, v in r.items()} for r in rows]
    if not all(isinstance(one, list | dict) for one in listed):
        raise InputError(f"{path}: each configuration must be a list of LLM names or an object")
    named = (one.values() if isinstance(one, dict) else one for one in listed)
    if not all(isinstance(name, str) for names in named for name in names):
        raise InputError(f"{path}: a configuration must name its LLMs, as texts")
    return listed


def _check_missing(
    present: np.ndarray,
    path: Path,
    modules: Sequence[str],
    llms: Sequence[Sequence[str]],
    queries: Sequence[str],
    complete: np.ndarray,
    on_missing: OnMissing,
) -> None:
    *theta, query = np.argwhere(~present)[0].tolist()
    assignment = {m: names[code] for m, names, code in zip(modules, llms, theta, strict=True)}
    count, kept = int((~present).sum()), int(complete.sum())
    missing = f"{path}: {count} cells are missing, first {assignment}, query {queries[query]}"
    mend = "search what there is with task.on_missing=restrict"
    if not kept:
        raise InputError(
            f"{missing}; no query was run under every configuration: record them, or {mend}"
        )
    if on_missing == "error":
        raise InputError(
            f"{missing}; record them, keep the {kept} complete queries with "
            f"task.on_missing=drop_queries, or {mend}"
        )
