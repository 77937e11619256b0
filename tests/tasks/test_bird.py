import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.bird import (
    bird,
    column_descriptions,
    failing_gold,
    read_questions,
    schema_text,
)
from scope_torch.tasks.sql_execution import QueryFailed


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


def test_one_database_of_several(folder):
    """The others need not be there: here nobody has `bank`."""
    items = json.loads((folder / "dev.json").read_text())
    items += [question(4, "SELECT 1", "bank"), question(5, "SELECT 2", "bank")]
    (folder / "mini_dev.json").write_text(json.dumps([*items[:2], items[4]]))
    (folder / "dev.json").write_text(json.dumps(items))
    with pytest.raises(InputError, match=r"bank\.sqlite"):
        load(folder)
    dataset = load(folder, db_ids="shop")
    assert dataset.queries == load(folder, db_ids=["shop"]).queries
    asked = [[q.fields["question"] for q in part] for part in (dataset.queries, dataset.held_out)]
    assert asked == [["question 0?", "question 1?"], ["question 2?", "question 3?"]]
    for wrong in (["bank", "museum"], []):
        with pytest.raises(InputError, match="must be some of") as refused:
            load(folder, db_ids=wrong)
        assert "['shop', 'bank']" in str(refused.value)


HEADER = "original_column_name,column_name,column_description,data_format,value_description"


def describe(folder: Path, name: str, *rows: str, encoding: str = "utf-8") -> Path:
    """Writes a description file of the database `shop`."""
    path = folder / "dev_databases" / "shop" / "database_description" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("\r\n".join([HEADER, *rows, ""]).encode(encoding))
    return path


def test_columns_are_described_in_the_schema(folder):
    describe(
        folder,
        "The Items.csv",  # the table is called "the items"
        "note text ,remark,what was noted,text,in capitals",
        "ID,id,,integer,",
        "absent,,a column that the table does not have,text,",
    )
    log = describe(folder, "log.csv", 'what,,"what happened, at length",text,"0: no\n1: yes"')
    shown = load(folder, max_value_chars=10).queries[0].fields["schema"]
    assert shown == (
        'CREATE TABLE "the items" (id INTEGER PRIMARY KEY, `note text` TEXT);\n'
        "/* columns of the items:\nnote text: remark: what was noted. Values: in capitals\n*/\n"
        "/* first rows of the items:\nid | note text\n0 | line one x...\n1 | line one x...\n"
        "2 | line one x...\n*/\n\n"
        "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, what);\n"
        "/* columns of log:\nwhat: what happened, at length. Values: 0: no 1: yes\n*/\n"
        "/* first rows of log:\nid | what\n1 | ?A\n*/"
    )
    log.unlink()  # a table without a file has no descriptions
    again = load(folder, max_value_chars=10).queries[0].fields["schema"]
    assert again == shown.replace(
        "/* columns of log:\nwhat: what happened, at length. Values: 0: no 1: yes\n*/\n", ""
    )


def test_long_descriptions_are_cut_and_0_shows_none(folder):
    describe(folder, "log.csv", f"what,,{'y' * 400},text,seldom")
    database = folder / "dev_databases/shop/shop.sqlite"
    assert f"\nwhat: {'y' * 300}...\n" in schema_text(database)
    assert f"\nwhat: {'y' * 7}...\n" in schema_text(database, max_description_chars=7)
    assert "columns of" not in schema_text(database, max_description_chars=0)
    assert "columns of" not in load(folder, max_description_chars=0).queries[0].fields["schema"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1"])
def test_descriptions_in_any_encoding(folder, encoding):
    path = describe(folder, "log.csv", "what,,Größe in m²", encoding=encoding)
    assert column_descriptions(path) == {"what": "Größe in m²"}


def test_bytes_of_no_encoding_are_read_all_the_same(folder):
    path = describe(folder, "log.csv", "what,,caf\xe9 \x81", encoding="latin-1")
    assert column_descriptions(path) == {"what": "caf\xe9 \x81"}
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert column_descriptions(path) == {"what": "caf\xe9 \x81"}


@pytest.mark.parametrize(
    ("row", "description"),
    [
        ("what,what,kind of event,text,", "kind of event"),
        ("what, What ,What,text,", "What"),
        ("what,event,,text,", "event"),
        ("what,event,,text,1 is yes.", "event: Values: 1 is yes"),
        ("what,,ends */ the comment,text", "ends * / the comment"),
        ("what,,short row", "short row"),
        ("what,,long row,text,v,w,x", "long row. Values: v"),
    ],
)
def test_a_row_of_descriptions(folder, row, description):
    assert column_descriptions(describe(folder, "log.csv", row)) == {"what": description}


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b'"' + b"x" * 200_000])
def test_a_file_that_describes_nothing_does_no_harm(folder, content, caplog):
    path = describe(folder, "log.csv")
    path.write_bytes(content)
    assert column_descriptions(path) == {}
    assert [str(path) in record.getMessage() for record in caplog.records] == [True] * bool(content)
    assert "columns of" not in load(folder).queries[0].fields["schema"]


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


def test_a_gold_that_a_busy_machine_delays_has_more_time_than_an_output(folder, monkeypatch):
    """Else its question would have quality 0 from then on, also when the machine is idle."""
    dataset, busy = load(folder), [True]

    def delayed(_database, _sql, limits):
        if busy[0] and limits.seconds < 2 * dataset.metric.limits.seconds:
            raise QueryFailed(f"longer than {limits.seconds} s")
        return frozenset({(5,)})

    monkeypatch.setattr("scope_torch.tasks.bird.distinct_rows", delayed)
    assert dataset.metric("output", dataset.queries[1]) == 0
    busy[0] = False
    assert dataset.metric("output", dataset.queries[1]) == 1


def test_a_gold_that_fails_gives_zero_and_is_named(folder, caplog):
    dataset = load(folder)
    broken = dataset.queries[2]
    assert dataset.metric(broken.gold["sql"], broken) == 0
    assert dataset.metric("", broken) == 0
    assert len(caplog.records) == 1
    assert failing_gold(dataset.queries) == ["question 2?"]


@pytest.mark.parametrize(
    "name", ["sample_rows", "max_value_chars", "max_description_chars", "timeout_s"]
)
def test_a_number_that_cannot_be_is_refused(folder, name):
    """SQLite takes LIMIT -1 for all rows: a whole table would be in every prompt."""
    with pytest.raises(InputError, match=f"{name}=-1"):
        load(folder, **{name: -1})


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
    path.write_text("\ufeff" + (folder / "dev.json").read_text())
    assert len(load(folder).queries) == 4
    with pytest.raises(InputError, match="no data folder 'absent'"):
        bird(str(path), "absent", held_out_path=None)


def test_real_questions(real_folder):
    folder = Path(real_folder("bird"))
    mini_dev, dev = (read_questions(folder / name) for name in ("mini_dev.json", "dev.json"))
    assert (len(mini_dev), len(dev)) == (500, 1534)
    seen = {(item["db_id"], item["question_id"]) for item in mini_dev}
    assert len([i for i in dev if (i["db_id"], i["question_id"]) not in seen]) == 1034
