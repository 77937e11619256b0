import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from systems.fake_client import FakeClient

from scope_torch.errors import InputError
from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Request
from scope_torch.systems.graph import CompoundSystem, Module
from scope_torch.tasks import sql_execution
from scope_torch.tasks.bird import ExecutionAccuracy
from scope_torch.tasks.dataset import Query
from scope_torch.tasks.sql_execution import (
    QueryFailed,
    QueryLimits,
    all_rows,
    check_database,
    close_workers,
    distinct_rows,
)

SHORT = QueryLimits(seconds=0.3, rows=1_000, bytes=10_000_000)
SMALL = QueryLimits(seconds=60, rows=1_000, bytes=10_000_000)
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


@pytest.mark.slow
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
        distinct_rows(database, f"{COUNT_UP} SELECT x FROM r", SMALL)
    with pytest.raises(QueryFailed, match="bytes"):
        distinct_rows(database, f"{COUNT_UP} SELECT x || HEX(ZEROBLOB(400000)) FROM r", SMALL)
    same = f"{COUNT_UP} SELECT 1 FROM r LIMIT 5000"  # a set of one row
    assert distinct_rows(database, same, SMALL) == {(1,)}


@pytest.mark.slow
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


# Each is one step of SQLite, or memory that grows at every step.
ENDLESS = {
    "one function": "SELECT length(printf('%.*c', 2000000000, 'x'))",
    "a search in blobs": (
        "WITH RECURSIVE b(x) AS (SELECT zeroblob(900000)), n(i) AS (SELECT 1 UNION ALL "
        "SELECT i + 1 FROM n LIMIT 9000) SELECT sum(instr(x, substr(x, 1, 400000 + i) || x'01')) "
        "FROM b, n"
    ),
    "a doubling": (
        "WITH RECURSIVE r(x, n) AS (SELECT hex(randomblob(9000)), 0 UNION ALL "
        "SELECT x, n + 1 FROM r JOIN (SELECT 1 UNION ALL SELECT 2)) SELECT count(*) FROM r"
    ),
}
PEAK = """
import resource, sys
from scope_torch.tasks.sql_execution import QueryFailed, QueryLimits, close_workers, distinct_rows
path, sql = sys.argv[1:]
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
try:
    distinct_rows(path, sql, QueryLimits(seconds=1.0, memory_bytes=200_000_000))
except QueryFailed as error:
    print(error)
print(own, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
close_workers()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.mark.parametrize("sql", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.slow
def test_a_query_ends_within_its_time_and_memory(database, sql):
    command = [sys.executable, "-c", PEAK, str(database), sql]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told, *sizes = done.stdout.splitlines()
    assert told in ("longer than 1.0 s", "more than 200000000 bytes of memory")
    before, after, of_children = map(int, " ".join(sizes).split())
    assert after - before < 20_000_000
    assert of_children < max(after, 200_000_000) + 20_000_000  # it counts the parent's at the start


def test_values_come_back_whole(database):
    sql = (
        "SELECT NULL, 9223372036854775807, -9223372036854775808, 0.1, 9e999, -9e999, 9e999 - 9e999,"
        " x'00ff', x'', 'ä\U0001f600', CAST(x'ff61' AS TEXT), '', '{\"hex\": 1}', char(10, 34)"
    )
    largest = float("inf")
    values = (None, 2**63 - 1, -(2**63), 0.1, largest, -largest, None, b"\x00\xff", b"",
              "ä\U0001f600", "\udcffa", "", '{"hex": 1}', '\n"')  # fmt: skip
    assert distinct_rows(database, sql, SHORT) == {values}
    assert all_rows(database, "SELECT a AS x, b FROM t ORDER BY a", SHORT) == (
        ["x", "b"],
        [(1, "x"), (2, "y"), (2, "y")],
    )


def workers() -> list[int]:
    """The processes that wait for a query."""
    return [worker._process.pid for worker in sql_execution._idle]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a zombie has ended, whoever has to reap it
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} is alive"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_process_runs_many_queries(database):
    close_workers()
    for number in range(5):
        assert distinct_rows(database, f"SELECT {number}", SHORT) == {(number,)}
    (pid,) = workers()
    with pytest.raises(QueryFailed, match="longer than"):
        distinct_rows(database, f"{COUNT_UP} SELECT COUNT(*) FROM r", SHORT)
    assert workers() == []  # the one that ran too long was ended
    assert not is_alive(pid)


def test_queries_of_many_threads_are_not_mixed_up(database):
    with ThreadPoolExecutor(6) as pool:
        numbers = [*range(60)]
        found = pool.map(lambda n: distinct_rows(database, f"SELECT {n}, a FROM t"), numbers)
        assert list(found) == [{(n, 1), (n, 2)} for n in numbers]
    assert 1 <= len(workers()) <= 6


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_a_process_ended_by_somebody_else_is_replaced(database):
    distinct_rows(database, "SELECT 1", SHORT)
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    assert distinct_rows(database, "SELECT a FROM t", SHORT) == {(1,), (2,)}


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="POSIX")
def test_signals_for_the_parent_do_not_end_a_query(database):
    distinct_rows(database, "SELECT 1", SHORT)
    pids = workers()
    for pid in pids:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    assert distinct_rows(database, "SELECT 2", SHORT) == {(2,)}
    assert workers() == pids


@pytest.mark.slow
def test_no_process_outlives_the_metric(database):
    close_workers()
    metric = ExecutionAccuracy(SHORT)
    for end in (metric.close, lambda: None):
        distinct_rows(database, "SELECT 1", SHORT)
        (pid,) = workers()
        end()
        if end == metric.close:
            wait_until_dead(pid)
    del metric, end
    wait_until_dead(pid)


def test_no_process_outlives_the_evaluator(database):
    """The metric itself is still in use."""
    close_workers()
    metric = ExecutionAccuracy(SHORT)
    sql, prices = "SELECT a FROM t", {"a": LLMInfo("a", 1.0, 1.0)}
    system = CompoundSystem("toy", (Module("m", ("q",), lambda *_: [], lambda *_: sql, str, 1),))
    query = Query({"q": "?"}, {"sql": sql, "database": str(database)})
    evaluator = LiveEvaluator(["m"], [["a"]], system, [query], metric, prices, FakeClient({}))
    (observation,) = evaluator.evaluate([Request((0,), 0)])
    assert observation.quality == 1.0
    (pid,) = workers()
    evaluator.close()
    wait_until_dead(pid)
    assert workers() == []


OUTLIVE = """
import os, sys, threading
from scope_torch.tasks import sql_execution
from scope_torch.tasks.sql_execution import QueryLimits, distinct_rows
path, how = sys.argv[1:]
distinct_rows(path, "SELECT 1")
(worker,) = sql_execution._idle
print(worker._process.pid, flush=True)
if how == "busy":
    endless = "SELECT length(printf('%.*c', 2000000000, 'x'))"
    limits = QueryLimits(seconds=2.0)
    threading.Thread(target=distinct_rows, args=(path, endless, limits), daemon=True).start()
    while sql_execution._idle:
        pass
if how != "exit":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
@pytest.mark.parametrize("how", ["exit", "killed", "busy"])
@pytest.mark.slow
def test_no_process_outlives_the_interpreter(database, how):
    command = [sys.executable, "-c", OUTLIVE, str(database), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if how == "exit" else -signal.SIGKILL), done.stderr
    wait_until_dead(int(done.stdout))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
@pytest.mark.slow
def test_a_fork_has_processes_of_its_own(database):
    distinct_rows(database, "SELECT 1", SHORT)
    before = workers()
    code = (
        "import os, sys\n"
        "from scope_torch.tasks import sql_execution as s\n"
        "s.distinct_rows(sys.argv[1], 'SELECT 1')\n"
        "if os.fork() == 0:\n"
        "    os._exit(len(s._idle))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), len(s._idle))\n"
    )
    command = [sys.executable, "-c", code, str(database)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "1"]
    assert workers() == before
