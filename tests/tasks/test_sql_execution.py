import hashlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.sql_execution import (
    QueryFailed,
    QueryLimits,
    check_database,
    distinct_rows,
)

SHORT = QueryLimits(seconds=0.3, rows=1_000, bytes=10_000_000)
COUNT_UP = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "an odd #name?.sqlite"  # all of it special in a URI
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, "y"), (2, "y")])
        connection.execute("CREATE VIEW v AS SELECT a FROM t")
        connection.commit()
    return path


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT * FROM t", {(1, "x"), (2, "y")}),
        ("SELECT a FROM v;", {(1,), (2,)}),
        ("WITH w AS (SELECT MAX(a) m FROM t) SELECT m FROM w -- done", {(2,)}),
        (f"{COUNT_UP} SELECT x FROM r LIMIT 3", {(1,), (2,), (3,)}),
        ("SELECT RANK() OVER (ORDER BY a) FROM t", {(1,), (2,)}),
        ("SELECT STRFTIME('%Y', '2020-05-01'), IIF(1, 2, 3)", {("2020", 2)}),
        ("SELECT a FROM t WHERE a > 9", set()),
        ("SELECT CAST(x'ff' AS TEXT)", {("\udcff",)}),  # no UTF-8, as in some databases
    ],
)
def test_reads(database, sql, rows):
    assert distinct_rows(database, sql, SHORT) == rows


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "-- a comment",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE t",
        "SELEC a FROM t",
        "SELECT nothing FROM t",
        "SELECT 'a\0b'",
        "SELECT '\ud800'",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
        "SELECT 1 " * 50_000,
        "INSERT INTO t VALUES (3, 'z')",
        "INSERT INTO t VALUES (3, 'z') RETURNING a",
        "UPDATE t SET a = 0",
        "DELETE FROM t",
        "DROP TABLE t",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "ALTER TABLE t RENAME TO u",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "SAVEPOINT s",
        "PRAGMA user_version = 3",
        "PRAGMA table_info(t)",
        "SELECT * FROM pragma_table_info('t')",
        "ATTACH ':memory:' AS m",
        "SELECT load_extension('evil')",
        "SELECT writefile('evil', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT hex(zeroblob(1000000000))",
    ],
)
def test_refuses(database, sql):
    before = hashlib.sha256(database.read_bytes()).digest()
    with pytest.raises(QueryFailed):
        distinct_rows(database, sql, SHORT)
    assert hashlib.sha256(database.read_bytes()).digest() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


@pytest.mark.parametrize("statement", ["ATTACH '{}' AS m", "VACUUM INTO '{}'"])
def test_makes_no_file(database, tmp_path, statement):
    evil = tmp_path / "evil.db"
    with pytest.raises(QueryFailed):
        distinct_rows(database, statement.format(evil), SHORT)
    assert not evil.exists()


@pytest.mark.parametrize(
    "sql",
    [
        f"{COUNT_UP} SELECT COUNT(*) FROM r",
        f"{COUNT_UP} SELECT x FROM r ORDER BY -x",
        "SELECT COUNT(*) FROM " + ", ".join(f"t t{i}" for i in range(40)),
        "WITH RECURSIVE r(x) AS (SELECT REPLACE(HEX(ZEROBLOB(400000)), '0', 'a') UNION ALL "
        "SELECT x FROM r) SELECT COUNT(*) FROM r WHERE x LIKE '%a%a%a%a%a%a%a%b'",
    ],
)
def test_cuts_off_what_runs_on(database, sql):
    start = time.monotonic()
    with pytest.raises(QueryFailed, match=r"longer than 0\.3 s"):
        distinct_rows(database, sql, SHORT)
    assert time.monotonic() - start < 5


def test_limits_what_is_fetched(database):
    with pytest.raises(QueryFailed, match="more than 1000 rows"):
        distinct_rows(database, f"{COUNT_UP} SELECT x FROM r", SHORT)
    with pytest.raises(QueryFailed, match="bytes"):
        distinct_rows(database, f"{COUNT_UP} SELECT x || HEX(ZEROBLOB(400000)) FROM r", SHORT)
    same = f"{COUNT_UP} SELECT 1 FROM r LIMIT 5000"  # a set of one row
    assert distinct_rows(database, same, SHORT) == {(1,)}


def test_leaves_nothing_behind_for_the_next_query(database):
    with pytest.raises(QueryFailed):
        distinct_rows(database, f"{COUNT_UP} SELECT COUNT(*) FROM r", SHORT)
    assert distinct_rows(database, "SELECT COUNT(*) FROM t", SHORT) == {(3,)}


def test_an_absent_or_bad_database_fails(tmp_path):
    bad = tmp_path / "bad.sqlite"
    with pytest.raises(QueryFailed):
        distinct_rows(bad, "SELECT 1", SHORT)
    with pytest.raises(InputError, match="no database"):
        check_database(bad)
    bad.write_bytes(b"<html>not found</html>")
    with pytest.raises(QueryFailed):
        distinct_rows(bad, "SELECT * FROM sqlite_master", SHORT)
    with pytest.raises(InputError, match=r"bad\.sqlite is not a SQLite database; download"):
        check_database(bad)


def test_a_database_with_changes_beside_it_is_refused(database):
    check_database(database)
    database.with_name(database.name + "-wal").write_bytes(b"")
    check_database(database)
    database.with_name(database.name + "-wal").write_bytes(b"changes")
    with pytest.raises(InputError, match="-wal holds changes"):
        check_database(database)
