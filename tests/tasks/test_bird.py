import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.bird import bird, failing_gold, read_questions, schema_text


def question(number: int, sql: str, db_id: str = "shop") -> dict[str, object]:
    return {
        "question_id": number,
        "db_id": db_id,
        "question": f"question {number}?",
        "evidence": "",
        "SQL": sql,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "dev_databases" / "shop" / "shop.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE "the items" (id INTEGER PRIMARY KEY, `note text` TEXT)')
        rows = [(i, f"line\none {'x' * 80}") for i in range(3)] + [(3, None), (4, b"\x00\xff")]
        connection.executemany('INSERT INTO "the items" VALUES (?, ?)', rows)
        connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, what)")
        connection.execute("INSERT INTO log (what) VALUES (CAST(x'ff41' AS TEXT))")
        connection.commit()
    items = [
        question(0, "SELECT id FROM `the items` WHERE id < 2"),
        question(1, "SELECT COUNT(*) FROM `the items`"),
        question(2, "SELECT broken"),
    ]
    (tmp_path / "mini_dev.json").write_text(json.dumps(items))
    (tmp_path / "dev.json").write_text(json.dumps([*items, question(3, "SELECT 1")]))
    return tmp_path


def load(folder: Path, **settings):
    settings = {"held_out_path": str(folder / "dev.json"), "timeout_s": 1.0, **settings}
    return bird(str(folder / "mini_dev.json"), str(folder / "dev_databases"), **settings)


def test_fields(folder):
    dataset = load(folder, max_value_chars=10)
    query = dataset.queries[0]
    assert set(query.fields) == {"question", "evidence", "db_id", "schema"}
    json.dumps(dict(query.fields)).encode()
    assert query.fields["schema"] == (
        'CREATE TABLE "the items" (id INTEGER PRIMARY KEY, `note text` TEXT);\n'
        "/* first rows of the items:\nid | note text\n0 | line one x...\n1 | line one x...\n"
        "2 | line one x...\n*/\n\n"
        "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, what);\n"
        "/* first rows of log:\nid | what\n1 | ?A\n*/"
    )
    assert all(q.fields["schema"] is query.fields["schema"] for q in dataset.queries)


def test_schema_shows_nulls_and_blobs(folder):
    text = schema_text(folder / "dev_databases/shop/shop.sqlite", sample_rows=5)
    assert "3 | NULL\n4 | <2 bytes>" in text


def test_questions_of_the_search_are_not_deployed_on(folder):
    dataset = load(folder)
    assert [q.fields["question"] for q in dataset.held_out] == ["question 3?"]
    assert len(load(folder, exclude_seen=False).held_out) == 4
    assert load(folder, held_out_path=None).held_out == ()


@pytest.mark.parametrize(
    ("sql", "quality"),
    [
        ("SELECT 1 UNION SELECT 0", 1),  # the order of rows does not matter
        ("SELECT id FROM `the items` WHERE id < 2 UNION ALL SELECT 1", 1),  # nor do repeated rows
        ("SELECT id + 0.0 FROM `the items` WHERE id < 2;", 1),  # as in BIRD: 1 == 1.0
        ("SELECT id FROM `the items`", 0),
        ("SELECT id, id FROM `the items` WHERE id < 2", 0),
        ("DROP TABLE `the items`", 0),
        ("SELECT 1; SELECT 0", 0),
        ("I do not know.", 0),
        ("", 0),
        ("WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT SUM(x) FROM r", 0),
    ],
)
def test_execution_accuracy(folder, sql, quality):
    dataset = load(folder)
    assert dataset.metric(sql, dataset.queries[0]) == quality


def test_the_gold_is_right_and_executed_once(folder, monkeypatch):
    dataset = load(folder)
    executed = []

    def counting(database, sql, limits):
        executed.append(sql)
        return frozenset({(5,)})

    monkeypatch.setattr("scope_torch.tasks.bird.distinct_rows", counting)
    for sql in ("first", "second"):
        assert dataset.metric(sql, dataset.queries[1]) == 1
    assert executed == [dataset.queries[1].gold["sql"], "first", "second"]


def test_a_gold_that_fails_gives_zero_and_is_named(folder, caplog):
    dataset = load(folder)
    broken = dataset.queries[2]
    assert dataset.metric(broken.gold["sql"], broken) == 0
    assert dataset.metric("", broken) == 0
    assert len(caplog.records) == 1
    assert failing_gold(dataset.queries) == ["question 2?"]


def test_bad_input_is_named(folder):
    path = folder / "mini_dev.json"
    cases = {
        "[{": "mini_dev.json is not JSON",
        "[]": "must be a list of questions",
        json.dumps([{"db_id": "shop"}]): "question 0 has no 'question_id'",
        json.dumps([question(0, None)]): "'SQL' of question 0 must be a text",  # type: ignore
        json.dumps([question(0, "SELECT 1", "../shop")]): "must be the name of a folder",
        json.dumps([question(0, "SELECT 1", "..")]): "no database",
        json.dumps([question(0, "SELECT 1", "absent")]): "no database .*absent.sqlite",
    }
    for content, message in cases.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message) as caught:
            load(folder)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"no data file 'absent.json' .*bird-bench"):
        bird("absent.json")
    path.write_text((folder / "dev.json").read_text())
    with pytest.raises(InputError, match="no data folder 'absent'"):
        bird(str(path), "absent", held_out_path=None)


def test_real_questions(real_folder):
    folder = Path(real_folder("bird"))
    mini_dev, dev = (read_questions(folder / name) for name in ("mini_dev.json", "dev.json"))
    assert (len(mini_dev), len(dev)) == (500, 1534)
    seen = {(item["db_id"], item["question_id"]) for item in mini_dev}
    assert len([i for i in dev if (i["db_id"], i["question_id"]) not in seen]) == 1034
