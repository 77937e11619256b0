"""Entity resolution on Amazon-Google: do two product descriptions mean the same product?

The grade of a pair is 1 if the answer is right, so quality is accuracy. The paper names no metric
for this task. UniDM reports F1, which is no average over queries, so no search for an average can
bound it. Beware of accuracy: one pair in ten matches, and an LLM that always says no is right on
the other nine. `balanced` leaves as many of these as there are matches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset, Query
from scope_torch.tasks.files import check_count, find_folder, read_rows
from scope_torch.tasks.grading import yes_or_no

Split = Literal["train", "valid", "test"]

COUNTS = {"train": 6874, "valid": 2293, "test": 2293}
ATTRIBUTES = ("title", "manufacturer", "price")
SOURCE = (
    "Structured/Amazon-Google of the DeepMatcher data sets (tableA.csv, tableB.csv, train.csv, "
    "valid.csv, test.csv)"
)


def amazon_google(
    folder: str = "amazon_google",
    *,
    search: Split = "test",
    held_out: Split = "valid",
    balanced: bool = False,
    check_counts: bool = True,
) -> Dataset:
    """2293 pairs of products for the search, 234 of which match, and as many held-out pairs.

    Args:
        folder: Folder with tableA.csv, tableB.csv and the pairs of each split. A relative path is
            looked up in the working directory, in `$SCOPE_DATA_DIR` and in `./data`.
        search: Split of the queries of the search.
        held_out: Split of the queries that the search never sees.
        balanced: Whether only as many pairs that do not match are taken as match, the first ones,
            in turn with those that do.
        check_counts: Whether the splits must have the published numbers of pairs.

    Raises:
        InputError: If a file is absent, lacks a column or has another number of pairs, or if a pair
            names a product that is not in its table.
    """
    for split in (search, held_out):
        if split not in COUNTS:
            raise InputError(f"split {split!r} must be one of {list(COUNTS)}")
    if search == held_out:
        raise InputError(
            f"search and held_out are both {search!r}; choose two splits, or the search would see "
            "the held-out queries"
        )
    path = find_folder(folder, SOURCE)
    tables = (_table(path / "tableA.csv"), _table(path / "tableB.csv"))
    queries, held_out_queries = (
        read_pairs(path / f"{split}.csv", tables, check_counts) for split in (search, held_out)
    )
    if balanced:
        queries, held_out_queries = _balanced(queries), _balanced(held_out_queries)
    return Dataset("amazon_google", queries, held_out_queries, yes_or_no)


def _balanced(pairs: tuple[Query, ...]) -> tuple[Query, ...]:
    matches, others = ([q for q in pairs if bool(q.gold) is gold] for gold in (True, False))
    return tuple(pair for two in zip(matches, others, strict=False) for pair in two)


def read_pairs(
    path: Path, tables: tuple[dict[str, dict[str, str]], ...], check_counts: bool = True
) -> tuple[Query, ...]:
    """Reads the pairs of a split.

    Args:
        path: File of the split, with the columns ltable_id, rtable_id and label.
        tables: Products of both tables, by id.
        check_counts: See `amazon_google`.

    Raises:
        InputError: See `amazon_google`.
    """
    rows = read_rows(path, ("ltable_id", "rtable_id", "label"))
    if check_counts:
        check_count(path, "pairs", len(rows), COUNTS[path.stem])
    queries = []
    for number, row in enumerate(rows, start=1):
        product_ids = (row["ltable_id"], row["rtable_id"])
        for product_id, table, name in zip(product_ids, tables, ("tableA", "tableB"), strict=True):
            if product_id not in table:
                raise InputError(
                    f"{path}: pair {number} names {product_id!r}, which {name}.csv does not have; "
                    "take all files from one source"
                )
        if row["label"] not in ("0", "1"):
            raise InputError(
                f"{path}: pair {number} has label {row['label']!r}, not 0 or 1; download it again"
            )
        a, b = (dict(table[key]) for key, table in zip(product_ids, tables, strict=True))
        queries.append(Query({"entity_a": a, "entity_b": b}, int(row["label"])))
    return tuple(queries)


def _table(path: Path) -> dict[str, dict[str, str]]:
    rows = read_rows(path, ("id", *ATTRIBUTES))
    return {row["id"]: {name: row[name] for name in ATTRIBUTES} for row in rows}
