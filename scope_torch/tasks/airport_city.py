"""Data imputation without a download: the city of an airport from its other attributes."""

from __future__ import annotations

from importlib.resources import as_file, files

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset
from scope_torch.tasks.files import read_rows
from scope_torch.tasks.grading import ExactMatch, folded
from scope_torch.tasks.imputation import NUM_RECORDS, imputation_queries

COLUMNS: tuple[str, ...] = (
    "split",
    "id",
    "name",
    "iata",
    "country",
    "subdivision",
    "city",
    "stratum",
)
ATTRIBUTES = ("name", "iata", "country", "subdivision", "city")


def airport_city(*, num_records: int = NUM_RECORDS) -> Dataset:
    """150 airports for the search and 90 held-out ones, with the fields of `restaurant`.

    There are three strata: the airport's name contains the city and more (30%); the name contains a
    part of the city, or the subdivision contains the city (30%); neither does (40%). Case, accents
    and punctuation do not count.

    Args:
        num_records: Airports retrieved for each query, from a separate pool.

    Raises:
        InputError: If the package's file is damaged.

    Examples:
        >>> data = airport_city()
        >>> len(data.queries), len(data.held_out)
        (150, 90)
        >>> query = data.queries[0]
        >>> query.fields["target"]["name"], query.gold
        ('Nanchang Changbei International Airport', 'Nanchang')
    """
    rows = read_airports()
    pool = [_attributes(row) for row in rows if row["split"] == "pool"]
    search, held_out = (
        imputation_queries(
            [_attributes(row) for row in rows if row["split"] == split], pool, "city", num_records
        )
        for split in ("search", "held_out")
    )
    return Dataset("airport_city", search, held_out, ExactMatch(folded))


def read_airports() -> list[dict[str, str]]:
    """Rows of scope_torch/data/airport_city.csv.gz, which scope_torch/data/README.md describes.

    Raises:
        InputError: If the file is damaged.
    """
    resource = files("scope_torch") / "data" / "airport_city.csv.gz"
    if not resource.is_file():
        raise InputError(f"{resource} is missing; install scope-torch again")
    with as_file(resource) as path:
        return read_rows(path, COLUMNS)


def _attributes(row: dict[str, str]) -> dict[str, str]:
    return {name: row[name] for name in ATTRIBUTES}
