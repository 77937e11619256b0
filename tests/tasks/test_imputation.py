import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.airport_city import airport_city
from scope_torch.tasks.imputation import imputation_queries
from scope_torch.tasks.lexical import LexicalIndex
from scope_torch.tasks.restaurant import COLUMNS, restaurant

POOL = [
    {"name": "blue cafe", "phone": "212/1", "city": "new york"},
    {"name": "red cafe", "phone": "404/2", "city": "atlanta"},
    {"name": "green inn", "phone": "404/3", "city": "atlanta"},
    {"name": "404 house", "phone": "818/4", "city": "reno"},
]


def test_the_most_similar_records_come_first():
    index = LexicalIndex(POOL)
    found = index.nearest({"name": "Réd bar", "phone": "404/9"}, 3)
    assert [i for i, _ in found] == [1, 2]  # 404 counts as a phone, not as a name
    assert index.nearest(POOL[2], 1) == [(2, 1.0)]
    assert index.nearest({"name": "", "phone": "?"}, 3) == []


def test_ties_go_to_the_first():
    index = LexicalIndex([{"a": "x"}] * 5)
    assert [i for i, _ in index.nearest({"a": "x"}, 3)] == [0, 1, 2]


def test_queries_hide_the_answer():
    row = {"name": "grey inn", "phone": "404/7", "city": "savannah"}
    (query,) = imputation_queries([row], POOL, "city")
    assert query.gold == "savannah"
    assert query.fields["target"] == {"name": "grey inn", "phone": "404/7"}
    assert query.fields["attribute"] == "city"
    # The last record shares no word with the row; it fills the third place.
    assert query.fields["records"] == [POOL[2], POOL[1], POOL[0]]
    assert "savannah" not in json.dumps(query.fields)


@pytest.mark.parametrize("number", [-1, 2.5, True])
def test_a_number_of_records_that_cannot_be_is_refused(number):
    """-1 would take all of the pool but one, a call for each."""
    row = {"name": "grey inn", "phone": "404/7", "city": "savannah"}
    with pytest.raises(InputError, match=rf"num_records={number} must be a whole number >= 0"):
        imputation_queries([row], POOL, "city", number)


def test_the_answer_cannot_steer_the_retrieval():
    rows = [{"name": "inn", "phone": "1", "city": city} for city in ("reno", "atlanta")]
    first, second = imputation_queries(rows, POOL, "city")
    assert first.fields["records"] == second.fields["records"]


@pytest.mark.slow
def test_retrieval_is_the_same_in_every_process():
    code = (
        "from scope_torch.tasks.airport_city import airport_city;"
        "import hashlib;"
        "print(hashlib.sha256(repr(airport_city().queries).encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    here = hashlib.sha256(repr(airport_city().queries).encode()).hexdigest()
    assert other.stdout.strip() == here


def write(folder: Path, **contents: str) -> str:
    row = "a,1 b st.,la,213,cafe"
    for split in ("train", "valid", "test"):
        content = contents.get(split, f"{','.join(COLUMNS)}\n" + f"{row}\n" * 4)
        (folder / f"{split}.csv").write_text(content)
    return str(folder)


@pytest.mark.parametrize(
    ("output", "quality"),
    [("LA", 1), (' "la". ', 1), ("**La**", 1), ("los angeles", 0), ("l.a.", 0), ("", 0)],
)
def test_restaurant_metric(tmp_path, output, quality):
    dataset = restaurant(write(tmp_path), check_counts=False)
    assert dataset.metric(output, dataset.queries[0]) == quality


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,addr,phone,type\n", "valid.csv has no column 'city'; its columns are"),
        ("", "valid.csv has no column 'name'; its columns are"),
        ("name,addr,city,phone,type\na,b,la,2\n", "line 2: 4 values for 5 columns; download"),
        ('name,addr,city,phone,type\na,b,la,2,"caf', "line 2: unexpected end of data"),
        ("name,addr,city,phone,type\na,b, ,2,x\n", "row 1 has no city; remove it or fill it in"),
    ],
)
def test_restaurant_names_bad_files(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as caught:
        restaurant(write(tmp_path, valid=content), check_counts=False)
    assert "\n" not in str(caught.value)


def test_restaurant_names_counts_and_absent_files(tmp_path):
    folder = write(tmp_path)
    with pytest.raises(InputError, match=r"train.csv: 4 rows, but the data set has 622"):
        restaurant(folder)
    (tmp_path / "test.csv").unlink()
    with pytest.raises(InputError, match=r"cannot read .*test.csv .*; download it again"):
        restaurant(folder, check_counts=False)
    with pytest.raises(InputError, match="search='train' must be one of"):
        restaurant(folder, search="train")
    with pytest.raises(InputError, match=r"no data folder 'absent' .*RIDDLE"):
        restaurant("absent")


@pytest.mark.slow
def test_real_restaurant(real_folder):
    folder = real_folder("restaurant")
    dataset = restaurant(folder)
    assert (len(dataset.queries), len(dataset.held_out)) == (156, 86)
    with (Path(folder) / "train.csv").open(newline="") as file:
        train = list(csv.DictReader(file))
    other = restaurant(folder, search="test")
    assert (other.queries, other.held_out) == (dataset.held_out, dataset.queries)
    for query in (*dataset.queries, *dataset.held_out):
        assert set(query.fields["target"]) == {"name", "addr", "phone", "type"}
        assert len(query.fields["records"]) == 3
        assert all(record in train for record in query.fields["records"])
        assert dataset.metric(query.gold, query) == 1
    known = [any(r["city"] == q.gold for r in q.fields["records"]) for q in dataset.queries]
    assert 0.7 < sum(known) / len(known) < 0.95
