"""Data sets that are frames: of pandas, polars or pyarrow, or from Hugging Face."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

from scope_torch.errors import InputError

_NAMES = "input", "expected"


def elements_of(dataset: Any, with_expected: bool) -> Any:
    """The elements of a data set; of a frame its inputs, or pairs (input, expected).

    Args:
        dataset: A frame with the columns `input` and `expected`, or with just as many columns as
            are needed; those of other names are taken in this order. Anything else comes back as
            it is.
        with_expected: Whether pairs are needed.

    Raises:
        InputError: If it is a frame with other columns, or with a missing value.
    """
    if hasattr(dataset, "collect"):  # it is lazy
        dataset = dataset.collect()
    names = getattr(dataset, "column_names", getattr(dataset, "columns", None))
    if names is None:
        return dataset
    names, needed = list(names), list(_NAMES if with_expected else _NAMES[:1])
    others = [name for name in names if name not in needed]
    lacking = [name for name in needed if name not in names]
    if not names:
        raise InputError("dataset is empty; give at least one input")
    if len(others) < len(lacking):
        missing = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        raise InputError(f"dataset has only the columns {names}: {missing}")
    if lacking and len(others) != len(lacking):
        raise InputError(
            f"dataset has the columns {names}; rename those to use to {' and '.join(needed)}, such "
            f"as {dict(zip(others, lacking, strict=False))}"
        )
    renamed = dict(zip(lacking, others, strict=False))
    chosen = [renamed.get(name, name) for name in needed]
    if twice := [name for name in chosen if names.count(name) > 1]:  # pandas gives a frame for it
        raise InputError(f"dataset has two columns {twice[0]!r}; rename one, or leave it out")
    try:
        columns = [_values(dataset[name]) for name in chosen]
    except (TypeError, NotImplementedError) as error:  # as of a stream of Hugging Face
        raise InputError(
            f"the columns of dataset={dataset!r:.60} cannot be read ({error}); load it as a whole, "
            "without streaming"
        ) from error
    for name, values in zip(chosen, columns, strict=True):
        for number, value in enumerate(values):
            if _is_missing(value):
                raise InputError(f"dataset[{name!r}] has no value in row {number}; leave it out")
    return list(zip(*columns, strict=True)) if with_expected else columns[0]


def by_position(queries: Any) -> Any:
    """Queries as a journal numbers them; a Series of pandas would be asked by its labels.

    Raises:
        InputError: If they have no order, or are a frame of pandas, which is asked by its columns.
    """
    of_pandas = hasattr(queries, "iloc")
    if isinstance(queries, Mapping | Set) or (of_pandas and hasattr(queries, "columns")):
        raise InputError(
            f"queries is a {type(queries).__name__}, which is not asked by position; give a list, "
            "such as frame['input'].to_list()"
        )
    return list(queries) if of_pandas else queries


def _values(column: Any) -> list[Any]:
    for name in ("to_pylist", "to_list"):  # iterating makes a list in a cell a Series of polars
        if hasattr(column, name):
            return getattr(column, name)()
    return list(column)


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")  # of pandas
