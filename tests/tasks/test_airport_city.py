import gzip
from collections import Counter

import pytest

from scope_torch.tasks.airport_city import airport_city, read_airports
from scope_torch.tasks.grading import ascii_fold, folded
from scripts import make_airport_city


def test_sizes_and_strata():
    rows = read_airports()
    assert make_airport_city.DEFAULT_PATH.stat().st_size < 100_000
    assert gzip.decompress(make_airport_city.DEFAULT_PATH.read_bytes()).isascii()
    counts = Counter((row["split"], row["stratum"]) for row in rows)
    for stratum, quota in make_airport_city.QUOTAS.items():
        for split, count in quota.items():
            assert counts[split, stratum] == count
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(make_airport_city.stratum(row) == row["stratum"] for row in rows)


def test_no_query_has_the_city_of_another():
    rows = [row for row in read_airports() if row["split"] != "pool"]
    assert len({(row["country"], folded(row["city"])) for row in rows}) == len(rows) == 240


@pytest.mark.slow
def test_fields():
    dataset = airport_city()
    assert (len(dataset.queries), len(dataset.held_out)) == (150, 90)
    asked = {q.fields["target"]["iata"] for q in (*dataset.queries, *dataset.held_out)}
    for query in (*dataset.queries, *dataset.held_out):
        assert set(query.fields) == {"records", "target", "attribute"}
        assert set(query.fields["target"]) == {"name", "iata", "country", "subdivision"}
        assert len(query.fields["records"]) == 3
        assert not any(record["iata"] in asked for record in query.fields["records"])
        assert dataset.metric(query.gold, query) == 1
        assert dataset.metric("", query) == 0


@pytest.mark.slow
def test_records_help_without_telling():
    dataset = airport_city()
    for queries in (dataset.queries, dataset.held_out):
        known = [any(r["city"] == q.gold for r in q.fields["records"]) for q in queries]
        assert sum(known) / len(known) < 0.15
        same_country = [
            any(r["country"] == q.fields["target"]["country"] for r in q.fields["records"])
            for q in queries
        ]
        assert sum(same_country) > 0.8 * len(queries)


@pytest.mark.parametrize(
    ("name", "subdivision", "city", "stratum"),
    [
        ("Cleveland-Hopkins International Airport", "Ohio", "Cleveland", "named"),
        ("Kuwait International Airport", "", "Kuwait City", "partial"),
        ("Halim International Airport", "Jakarta Raya", "Jakarta", "partial"),
        ("Vnukovo International Airport", "Oblast", "Moscow", "unnamed"),
        ("Vanoise Airport", "", "Van", "unnamed"),  # words, not letters
    ],
)
def test_stratum(name, subdivision, city, stratum):
    row = {"name": name, "subdivision": subdivision, "city": city}
    assert make_airport_city.stratum(row) == stratum


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("São Paulo.", "sao paulo"),
        (" St. John's ", "st johns"),
        ("Xi’an", "xian"),
        ("Łódź / Tromsø", "lodz tromso"),
        ("Ad-Dammam", "ad dammam"),
        ("北京", ""),
    ],
)
def test_folded(text, expected):
    assert folded(text) == expected
    assert ascii_fold(text).isascii()


def test_the_shipped_file_is_what_the_script_makes():
    airportsdata = pytest.importorskip("airportsdata")
    if airportsdata.__version__ != make_airport_city.VERSION:
        pytest.skip(f"needs airportsdata {make_airport_city.VERSION}")
    made = make_airport_city.compress(make_airport_city.choose(make_airport_city.load_airports()))
    shipped = make_airport_city.DEFAULT_PATH.read_bytes()
    assert gzip.decompress(made) == gzip.decompress(shipped)
    assert made[4:8] == bytes(4)  # no time stamp
