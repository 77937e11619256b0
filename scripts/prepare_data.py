"""Checks downloaded data sets and copies them to the folder where the loaders look.

`python scripts/prepare_data.py TASK --from PATH [--to DIR]`; without arguments it lists where to
get each data set.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_torch.errors import InputError
from scope_torch.tasks import amazon_google, bird, restaurant, tde
from scope_torch.tasks.dataset import Dataset
from scope_torch.tasks.files import check_count, read_text

MINI_DEV_NAMES = ("mini_dev.json", "mini_dev_sqlite.json")
BIRD_COUNTS = {"mini_dev.json": 500, "dev.json": 1534}
SPLIT_SEED = 1234  # of the published split of the Restaurant data

Rows = list[dict[str, str]]


class _Preparation(NamedTuple):
    source: str
    prepare: Callable[[Path, Path], Dataset]


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the data are missing, damaged or of another version."""
    args = _parser().parse_args(argv)
    if args.task is None:
        print("\n".join(f"{name}: {task.source}" for name, task in TASKS.items()))
        return
    try:
        source = Path(args.source)
        if not source.is_dir():
            raise InputError(f"--from {source} is no folder; unpack what you downloaded")
        dataset = TASKS[args.task].prepare(source, Path(args.to) / args.task)
        if args.check_gold:
            _check_gold(dataset)
    except (InputError, OSError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        sys.exit(2)
    print(
        f"{args.task}: {len(dataset.queries)} queries to search on, {len(dataset.held_out)} held "
        f"out, in {Path(args.to) / args.task}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument(
        "--from", dest="source", default=".", help="folder with the downloaded files"
    )
    parser.add_argument("--to", default="data", help="./data, or the folder of $SCOPE_DATA_DIR")
    parser.add_argument(
        "--check-gold", action="store_true", help="bird: run the gold SQL of all queries (minutes)"
    )
    return parser


def prepare_bird(source: Path, to: Path) -> Dataset:
    """Copies questions and links or copies the databases.

    Args:
        source: A folder that contains, at any depth, mini_dev.json (or mini_dev_sqlite.json), the
            folder dev_databases and, for the held-out queries, dev.json.
        to: Folder to write.

    Raises:
        InputError: If a file is missing or does not have the published number of questions.
    """
    questions = {"mini_dev.json": _find(source, *MINI_DEV_NAMES)}
    if any(source.rglob("dev.json")):
        questions["dev.json"] = _find(source, "dev.json")
    db_ids: dict[str, None] = {}
    for name, path in questions.items():
        items = bird.read_questions(path)
        check_count(path, "questions", len(items), BIRD_COUNTS[name])
        db_ids |= dict.fromkeys(item["db_id"] for item in items)
    folder = _find(source, "dev_databases")
    databases = {db_id: bird.database_path(folder, db_id) for db_id in db_ids}
    for name, path in questions.items():
        _put(path, to / name)
    for db_id, path in databases.items():
        _put(path, to / "dev_databases" / db_id / path.name, link=True)
        for described in sorted((path.parent / "database_description").glob("*.csv")):
            _put(described, to / "dev_databases" / db_id / "database_description" / described.name)
    held_out = str(to / "dev.json") if "dev.json" in questions else None
    return bird.bird(str(to / "mini_dev.json"), str(to / "dev_databases"), held_out_path=held_out)


def prepare_tde(source: Path, to: Path) -> Dataset:
    """Copies the text files of both parts; see `prepare_bird`."""
    folder = _find(source, tde.SEARCH[0]).parent
    tde.tde(str(folder.resolve()))
    for name, pattern, _ in (tde.SEARCH, tde.HELD_OUT):
        for path in (folder / name).glob(pattern):
            _put(path, to / name / path.name)
    return tde.tde(str(to.resolve()))


def prepare_amazon_google(source: Path, to: Path) -> Dataset:
    """Copies both tables and the splits; see `prepare_bird`."""
    folder = _find(source, "tableA.csv", columns=("id", *amazon_google.ATTRIBUTES)).parent
    amazon_google.amazon_google(str(folder.resolve()))
    for name in ("tableA", "tableB", *amazon_google.COUNTS):
        _put(_find(folder, f"{name}.csv"), to / f"{name}.csv")
    return amazon_google.amazon_google(str(to.resolve()))


def prepare_restaurant(source: Path, to: Path) -> Dataset:
    """Copies train.csv, valid.csv and test.csv, or makes them from fz.arff; see `prepare_bird`."""
    path = _find(source, "train.csv", "fz.arff", columns=restaurant.COLUMNS)
    if not _has(path, restaurant.COLUMNS) and any(source.rglob("fz.arff")):
        path = _find(source, "fz.arff")
    if path.suffix == ".csv":
        splits = restaurant.read_splits(path.parent)
    else:
        rows = read_arff(path)
        check_count(path, "rows", len(rows), sum(restaurant.COUNTS.values()))
        splits = split_restaurant(rows)
    to.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        with (to / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(restaurant.COLUMNS), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return restaurant.restaurant(str(to.resolve()))


def read_arff(path: Path) -> Rows:
    """Reads the rows of fz.arff as attribute -> value, without the class.

    Raises:
        InputError: If an attribute is missing or a row is cut off.
    """
    lines = [line.strip() for line in read_text(path).splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    names = [line.split()[1] for line in lines if line.lower().startswith("@attribute")]
    missing = [name for name in restaurant.COLUMNS if name not in names]
    if missing:
        raise InputError(f"{path} has no attribute {missing[0]!r}; its attributes are {names}")
    rows = []
    for cells in csv.reader((line for line in lines if not line.startswith("@")), strict=True):
        if len(cells) != len(names):
            raise InputError(f"{path}: {cells} has not {len(names)} values; download it again")
        row = dict(zip(names, cells, strict=True))
        rows.append({name: row[name].strip() for name in restaurant.COLUMNS})
    return rows


def split_restaurant(rows: Rows) -> dict[str, Rows]:
    """The published split: 10% of the rows for test, then 20% of the others for validation."""
    test, rest = _sample(rows, 0.1)
    valid, train = _sample(rest, 0.2)
    return {"train": train, "valid": valid, "test": test}


def _sample(rows: Rows, share: float) -> tuple[Rows, Rows]:
    # The generator that pandas uses in DataFrame.sample, with which the split was published.
    generator = np.random.RandomState(SPLIT_SEED)
    chosen = generator.permutation(len(rows))[: round(share * len(rows))].tolist()
    others = sorted(set(range(len(rows))) - set(chosen))
    return [rows[i] for i in chosen], [rows[i] for i in others]


def _find(source: Path, *names: str, columns: Sequence[str] = ()) -> Path:
    """The first file of one of the names, of equal ones that with the columns, in the top folder.

    Raises:
        InputError: If there is none.
    """
    for name in names:
        found = [(not _has(path, columns), len(path.parts), path) for path in source.rglob(name)]
        if found:
            return min(found)[-1]
    raise InputError(f"no {' or '.join(names)} in {source}; unpack what you downloaded")


def _has(path: Path, columns: Sequence[str]) -> bool:
    """Whether a CSV file has columns; other data sets have files of the same name."""
    if not columns:
        return True
    with suppress(InputError):
        header = read_text(path).removeprefix("\ufeff").partition("\n")[0]
        return {*columns} <= {name.strip() for name in next(csv.reader([header]), [])}
    return False


def _put(path: Path, to: Path, link: bool = False) -> None:
    if to.exists() and to.samefile(path):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)
    if link:  # the databases have gigabytes
        try:
            os.link(path, to)
            return
        except OSError:
            pass
    shutil.copyfile(path, to)


def _check_gold(dataset: Dataset) -> None:
    if dataset.name != "bird":
        raise InputError("--check-gold is for bird only")
    failing = bird.failing_gold([*dataset.queries, *dataset.held_out])
    if failing:
        raise InputError(
            f"the gold SQL of {len(failing)} questions fails, first {failing[0]!r}; take questions "
            "and databases of one release"
        )


TASKS = {
    "bird": _Preparation(bird.SOURCE, prepare_bird),
    "tde": _Preparation(tde.SOURCE, prepare_tde),
    "restaurant": _Preparation(restaurant.SOURCE, prepare_restaurant),
    "amazon_google": _Preparation(amazon_google.SOURCE, prepare_amazon_google),
}


if __name__ == "__main__":
    main()
