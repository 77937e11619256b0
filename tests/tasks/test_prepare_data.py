import csv
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scope_torch.tasks.restaurant import COLUMNS, read_splits, restaurant
from scripts import prepare_data

ROW = "a,1 b st.,la,213,cafe"


@pytest.fixture(autouse=True)
def _small_counts(monkeypatch):
    monkeypatch.setattr(prepare_data.restaurant, "COUNTS", {"train": 7, "valid": 2, "test": 1})
    monkeypatch.setattr(prepare_data, "BIRD_COUNTS", {"mini_dev.json": 1, "dev.json": 2})


def prepare(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    code = 0
    try:
        prepare_data.main([str(arg) for arg in args])
    except SystemExit as error:
        code = int(str(error.code))
    out, err = capsys.readouterr()
    return code, (out + err).strip()


def test_without_arguments_it_says_where_to_get_what(capsys):
    code, text = prepare(capsys)
    assert code == 0
    assert [line.partition(":")[0] for line in text.splitlines()] == list(prepare_data.TASKS)


def write_arff(folder: Path, rows: list[str]) -> None:
    names = [*COLUMNS, "class"]
    lines = ["% comment", "@relation r", *(f"@attribute {name} string" for name in names), "@data"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fz.arff").write_text("\n".join([*lines, "", *rows]))


def test_restaurant_from_arff(tmp_path, capsys):
    write_arff(tmp_path / "x", [f'"r{i} ","1, st.","la", "213","cafe",\'{i}\'' for i in range(10)])
    code, text = prepare(capsys, "restaurant", "--from", tmp_path, "--to", tmp_path / "data")
    assert (code, text.partition(",")[0]) == (0, "restaurant: 2 queries to search on")
    splits = read_splits(tmp_path / "data" / "restaurant")
    assert sorted(row["name"] for rows in splits.values() for row in rows) == [
        f"r{i}" for i in range(10)
    ]
    # The script accepts the files that it wrote.
    again = ("restaurant", "--from", tmp_path / "data", "--to", tmp_path / "again")
    assert prepare(capsys, *again)[0] == 0
    assert read_splits(tmp_path / "again" / "restaurant") == splits


def test_restaurant_leaves_the_train_csv_of_another_data_set(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.csv").write_text("ltable_id,rtable_id,label\n0,7,1\n")
    args = ("restaurant", "--from", tmp_path, "--to", tmp_path / "b")
    assert "train.csv has no column 'name'" in prepare(capsys, *args)[1]
    write_arff(tmp_path / "x", [f'"r{i}","1 st.","la","213","cafe",0' for i in range(10)])
    assert prepare(capsys, *args)[0] == 0  # from the ARFF file
    (tmp_path / "x" / "fz.arff").unlink()
    assert prepare(capsys, *args)[0] == 0  # from the files of "b"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['"r","1 st.","la"'], "has not 6 values; download it again"),
        (['"r","1 st.","la","2","cafe",0'] * 3, "3 rows, but the data set has 10"),
    ],
)
def test_restaurant_names_bad_arff(tmp_path, capsys, rows, message):
    write_arff(tmp_path, rows)
    code, text = prepare(capsys, "restaurant", "--from", tmp_path, "--to", tmp_path / "data")
    assert code == 2
    assert message in text
    assert len(text.splitlines()) == 1


def test_the_split_is_the_published_one(real_folder, monkeypatch):
    """Undoes the split of the real files; only the right rule puts equal restaurants together."""
    monkeypatch.undo()
    splits = read_splits(Path(real_folder("restaurant")))
    positions = prepare_data.split_restaurant([{"name": str(i)} for i in range(864)])
    table: dict[int, dict[str, str]] = {}
    for split, rows in splits.items():
        table |= {int(p["name"]): r for p, r in zip(positions[split], rows, strict=True)}
    phones = ["".join(filter(str.isdigit, table[i]["phone"])) for i in range(224)]
    matches = sum(a == b for a, b in zip(phones[::2], phones[1::2], strict=True))
    assert matches > 100  # of the 112 pairs that the table begins with
    shuffled = random.Random(0).sample(phones, len(phones))
    assert sum(a == b for a, b in zip(shuffled[::2], shuffled[1::2], strict=True)) < 10


def write_bird(folder: Path) -> None:
    path = folder / "MINIDEV" / "dev_databases" / "shop" / "shop.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
    (path.parent / "database_description").mkdir()
    (path.parent / "database_description" / "t.csv").write_text("original_column_name\na\n")
    keys = {"db_id": "shop", "question": "q?", "evidence": ""}
    items = [{"question_id": i, "SQL": sql, **keys} for i, sql in enumerate(["SELECT 1", "SELEC"])]
    (folder / "MINIDEV" / "mini_dev_sqlite.json").write_text(json.dumps(items[:1]))
    (folder / "dev.json").write_text(json.dumps(items))


def test_bird(tmp_path, capsys):
    write_bird(tmp_path / "x")
    args = ("bird", "--from", tmp_path / "x", "--to", tmp_path / "data")
    code, text = prepare(capsys, *args)
    assert (code, text.partition(", in")[0]) == (0, "bird: 1 queries to search on, 1 held out")
    assert (tmp_path / "data/bird/dev_databases/shop/shop.sqlite").is_file()
    assert (tmp_path / "data/bird/dev_databases/shop/database_description/t.csv").is_file()
    assert (tmp_path / "data/bird/mini_dev.json").is_file()
    code, text = prepare(capsys, *args, "--check-gold")
    assert code == 2
    assert "the gold SQL of 1 questions fails, first 'q?'" in text
    (tmp_path / "x" / "dev.json").unlink()
    assert "0 held out" in prepare(capsys, *args)[1]


def test_bird_names_what_is_missing(tmp_path, capsys):
    write_bird(tmp_path)
    args = ("bird", "--from", tmp_path, "--to", tmp_path / "data")
    (tmp_path / "MINIDEV/dev_databases/shop/shop.sqlite").unlink()
    assert "no database" in prepare(capsys, *args)[1]
    (tmp_path / "dev.json").write_text((tmp_path / "MINIDEV/mini_dev_sqlite.json").read_text())
    assert "1 questions, but the data set has 2" in prepare(capsys, *args)[1]
    (tmp_path / "MINIDEV/mini_dev_sqlite.json").unlink()
    code, text = prepare(capsys, *args)
    assert code == 2
    assert "no mini_dev.json or mini_dev_sqlite.json in" in text
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("task", ["tde", "amazon_google"])
def test_others_say_what_is_missing(tmp_path, capsys, task):
    code, text = prepare(capsys, task, "--from", tmp_path)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "unpack what you downloaded" in text
    assert "is no folder" in prepare(capsys, task, "--from", tmp_path / "absent.zip")[1]
    assert "--check-gold is for bird only" not in text


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tde", "amazon_google", "restaurant"])
def test_real_data(real_folder, tmp_path, capsys, monkeypatch, task):
    monkeypatch.undo()
    source = real_folder(task)
    code, text = prepare(capsys, task, "--from", source, "--to", tmp_path)
    assert code == 0, text
    # Prepared files may be prepared again in their place.
    assert prepare(capsys, task, "--from", tmp_path, "--to", tmp_path) == (0, text)


def test_prepared_files_are_read_by_name(tmp_path, capsys, monkeypatch):
    write_arff(tmp_path / "x", [f'"r{i}","1 st.","la","213","cafe",0' for i in range(10)])
    assert prepare(capsys, "restaurant", "--from", tmp_path / "x", "--to", tmp_path)[0] == 0
    monkeypatch.setenv("SCOPE_DATA_DIR", str(tmp_path))
    assert len(restaurant().queries) == 2
    with (tmp_path / "restaurant" / "test.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 1
