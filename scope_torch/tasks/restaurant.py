"""Data imputation on the Restaurant data: the city of a restaurant from its other attributes."""

from __future__ import annotations

from pathlib import Path

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset
from scope_torch.tasks.files import check_count, find_folder, read_rows
from scope_torch.tasks.grading import ExactMatch, unpunctuated
from scope_torch.tasks.imputation import NUM_RECORDS, imputation_queries

COLUMNS: tuple[str, ...] = ("name", "addr", "city", "phone", "type")
COUNTS = {"train": 622, "valid": 156, "test": 86}
SOURCE = (
    "fz.arff of the RIDDLE repository (restaurant.tar.gz), split into train.csv, valid.csv and "
    "test.csv by scripts/prepare_data.py restaurant"
)


def restaurant(
    folder: str = "restaurant",
    *,
    num_records: int = NUM_RECORDS,
    search: str = "valid",
    check_counts: bool = True,
) -> Dataset:
    """Restaurant-dev (156 queries) for the search, and Restaurant-test (86 held-out queries).

    The gold is the city as the data spell it: "new york" and "new york city" are two answers.

    Args:
        folder: Folder with train.csv, valid.csv and test.csv. A relative path is looked up in the
            working directory, in `$SCOPE_DATA_DIR` and in `./data`.
        num_records: Number of training rows retrieved for each query.
        search: Which of the two is searched: `valid`, as in the paper, or `test`; the other one is
            held out.
        check_counts: Whether the files must have the published numbers of rows.

    Raises:
        InputError: If a file is absent, lacks a column, or has another number of rows, or `search`
            is neither.
    """
    splits = {"valid": ("valid", "test"), "test": ("test", "valid")}
    if search not in splits:
        raise InputError(f"search={search!r} must be one of {list(splits)}")
    rows = read_splits(find_folder(folder, SOURCE), check_counts)
    searched, held_out = (
        imputation_queries(rows[split], rows["train"], "city", num_records)
        for split in splits[search]
    )
    return Dataset("restaurant", searched, held_out, ExactMatch(unpunctuated))


def read_splits(folder: Path, check_counts: bool = True) -> dict[str, list[dict[str, str]]]:
    """Reads the three files.

    Returns:
        Rows by split (train, valid, test), each with the attributes of `COLUMNS`.

    Raises:
        InputError: See `restaurant`.
    """
    splits: dict[str, list[dict[str, str]]] = {}
    for split, expected in COUNTS.items():
        path = folder / f"{split}.csv"
        rows = read_rows(path, COLUMNS)
        if check_counts:
            check_count(path, "rows", len(rows), expected)
        for number, row in enumerate(rows, start=1):
            if not row["city"]:
                raise InputError(f"{path}: row {number} has no city; remove it or fill it in")
        splits[split] = [{name: row[name] for name in COLUMNS} for row in rows]
    return splits
