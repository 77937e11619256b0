"""Makes scope_torch/data/airport_city.csv.gz from the package airportsdata (MIT).

`python scripts/make_airport_city.py [FILE]`; needs `pip install airportsdata==20260905`.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from scope_torch.errors import InputError
from scope_torch.tasks.airport_city import COLUMNS
from scope_torch.tasks.grading import ascii_fold, folded

VERSION = "20260905"
DEFAULT_PATH = Path(__file__).parents[1] / "scope_torch" / "data" / "airport_city.csv.gz"

# Queries of each stratum: in `named` a small LLM can read the city, in `unnamed` it must know it.
QUOTAS = {
    "named": {"search": 45, "held_out": 27},
    "partial": {"search": 45, "held_out": 27},
    "unnamed": {"search": 60, "held_out": 36},
}
NUM_OTHERS = 1500  # of the pool: airports that are not called international
_GENERIC = frozenset(
    {"international", "airport", "intl", "regional", "national", "of", "the", "de"}
)
_SPELLING = 0.72  # above it, two words are taken for spellings of one name

Airport = dict[str, str]
Places = set[tuple[str, str]]


def main() -> None:
    """Entry point; exits with 2 if airportsdata is absent or of another version."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PATH
    try:
        rows = choose(load_airports())
    except InputError as error:
        print(f"make_airport_city: {error}", file=sys.stderr)
        sys.exit(2)
    path.write_bytes(compress(rows))
    print(f"{path}: {len(rows)} rows, {path.stat().st_size} bytes")


def load_airports() -> list[Airport]:
    """All airports with an IATA code and a city, in ASCII.

    Raises:
        InputError: If airportsdata is absent or of another version.
    """
    try:
        import airportsdata  # pyright: ignore[reportMissingImports] - only this script needs it
    except ImportError as error:
        raise InputError(f"no airportsdata; pip install airportsdata=={VERSION}") from error
    if airportsdata.__version__ != VERSION:
        raise InputError(
            f"airportsdata {airportsdata.__version__} would make other data; "
            f"pip install airportsdata=={VERSION}"
        )
    names = {"id": "icao", "subdivision": "subd"}
    text = ("id", "name", "iata", "country", "subdivision", "city")
    airports = [
        {column: ascii_fold(str(row[names.get(column, column)])).strip() for column in text}
        for row in airportsdata.load("IATA").values()
    ]
    return [row | {"stratum": stratum(row)} for row in airports if row["city"] and row["id"]]


def stratum(airport: Airport) -> str:
    """How much of the city's name an airport's record reveals.

    Returns:
        `named`: the name contains the city; `partial`: it contains one word of the city, or the
        subdivision contains the city; `unnamed`: neither.
    """
    name, city, subdivision = (folded(airport[key]) for key in ("name", "city", "subdivision"))
    if f" {city} " in f" {name} ":
        return "named"
    shared = {word for word in city.split() if len(word) > 3} & set(name.split())
    if shared or f" {city} " in f" {subdivision} ":
        return "partial"
    return "unnamed"


def choose(airports: Iterable[Airport]) -> list[Airport]:
    """Chooses the queries and the pool by a hash of the IATA code.

    No two queries have the same city, so no city is both searched on and held out.

    Returns:
        Rows by split, then by hash: the same for the same version of airportsdata.
    """
    ranked = sorted(airports, key=lambda row: _rank(row["iata"]))
    known = [row for row in ranked if "international" in row["name"].lower()]
    queries = list(_queries(known, _places(ranked)))
    chosen = {row["iata"] for row in queries}
    pool = [row for row in known if row["iata"] not in chosen]
    others = [row for row in ranked if "international" not in row["name"].lower()]
    pool += others[:NUM_OTHERS]
    rows = queries + [row | {"split": "pool"} for row in pool]
    order = ("search", "held_out", "pool")
    return sorted(rows, key=lambda row: (order.index(row["split"]), _rank(row["iata"])))


def compress(rows: Iterable[Airport]) -> bytes:
    """Content of the file; equal rows and an equal zlib give equal bytes."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode("ascii"), compresslevel=9, mtime=0)


def _queries(known: Iterable[Airport], places: Places) -> Iterator[Airport]:
    left = {name: dict(quota) for name, quota in QUOTAS.items()}
    cities: set[tuple[str, str]] = set()
    for row in known:
        city = (row["country"], folded(row["city"]))
        quota = left[row["stratum"]]
        open_splits = [split for split, count in quota.items() if count]
        if not open_splits or city in cities or not _askable(row, places):
            continue
        # To the split that is furthest from full, so that both are spread over the ranking.
        split = max(open_splits, key=lambda s: quota[s] / QUOTAS[row["stratum"]][s])
        quota[split] -= 1
        cities.add(city)
        yield row | {"split": split}
    if unfilled := {name: quota for name, quota in left.items() if any(quota.values())}:
        raise InputError(f"too few airports for {unfilled}; lower QUOTAS")


def _places(airports: Iterable[Airport]) -> Places:
    """Cities and subdivisions with their country."""
    return {
        (row["country"], folded(row[key])) for row in airports for key in ("city", "subdivision")
    }


def _askable(airport: Airport, places: Places) -> bool:
    """Whether an LLM can know the city, and the city has only one spelling."""
    name, city = (folded(airport[key]).split() for key in ("name", "city"))
    if not re.fullmatch(r"[A-Za-z' .-]+", airport["city"]) or "island" in city:
        return False
    if airport["stratum"] == "named":
        return bool(set(name) - set(city) - _GENERIC)
    if city[-1] == "city":  # most of these are as often written without the word
        return False
    if airport["stratum"] == "unnamed" and any(
        (airport["country"], word) in places for word in name
    ):
        return False  # the name of a large city for an airport in its suburb
    shown = [*name, *folded(airport["subdivision"]).split()]
    return not any(
        _SPELLING < difflib.SequenceMatcher(None, ours, theirs).ratio() < 1
        for ours in city
        for theirs in shown
        if min(len(ours), len(theirs)) > 3
    )


def _rank(iata: str) -> str:
    return hashlib.sha256(f"airport-city:{iata}".encode()).hexdigest()


if __name__ == "__main__":
    main()
