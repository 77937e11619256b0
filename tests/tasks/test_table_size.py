"""Files that decode to far more than their size: they are refused before they fill the memory."""

import gzip
import io
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from long_runs import among_others

from scope_torch.errors import InputError
from scope_torch.tasks._parquet import decoded_bytes
from scope_torch.tasks.files import MAX_BYTES, read_text
from scope_torch.tasks.table import load_table

TABLE = "answer,query,quality,cost_usd\nmini,a,1,0.1\npro,a,1,0.2\n"
LOADED = """
import resource, sys
from scope_torch.errors import InputError
from scope_torch.tasks.table import load_table
load_table(sys.argv[2], ["answer"])  # what all tables need
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_table(sys.argv[1], ["answer"], **eval(sys.argv[3]))
except InputError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def zeros_gz(path: Path) -> None:
    chunk = bytes(10_000_000)
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(120):
            file.write(chunk)


def texts_parquet(path: Path) -> None:
    frame = pl.DataFrame({"answer": ["x" * 1_000_000 + str(i) for i in range(1200)]})
    frame.write_parquet(path, compression="zstd")


def numbers_parquet(path: Path) -> None:
    columns = [pl.lit(0.0).alias(name) for name in ("answer", "query", "quality", "cost_usd")]
    pl.select(pl.repeat(0, 40_000_000, dtype=pl.UInt8).alias("x")).select(
        *columns, "x"
    ).write_parquet(path)


def repeated_parquet(path: Path) -> None:
    """Each text is in the file once; a row of a table would hold a copy."""
    names = pl.DataFrame({"answer": ["x" * 1_000_000]}).select(pl.all().repeat_by(1200).explode())
    names.write_parquet(path)


def refused(tmp_path: Path, path: Path, **options: int) -> tuple[str, int]:
    """What is said of a table, and how far the memory grew."""
    small = tmp_path / "small.csv"
    small.write_text(TABLE)
    command = [sys.executable, "-c", LOADED, str(path), str(small), repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told, grown = done.stdout.splitlines()
    return told, int(grown)


@pytest.mark.parametrize(
    "make",
    [
        zeros_gz,
        among_others(texts_parquet),
        numbers_parquet,
        among_others(repeated_parquet),
    ],
)
@pytest.mark.slow
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path, make):
    path = tmp_path / "bomb"
    make(path)
    assert path.stat().st_size < 10_000_000
    told, grown = refused(tmp_path, path, max_bytes=100_000_000)
    assert told.startswith(f"{path} decodes to more than max_bytes=100000000; leave out columns")
    assert told.endswith("raise the limit of a table with task.max_bytes")
    assert grown < 300_000_000


@pytest.mark.parametrize("first", [b"\0", among_others(b","), among_others(b"x")])
@pytest.mark.slow
def test_a_first_line_that_is_too_long_is_no_header(tmp_path, first):
    (tmp_path / "bomb").write_bytes(gzip.compress(first * 50_000_000))
    told, grown = refused(tmp_path, tmp_path / "bomb")
    assert told == f"{tmp_path / 'bomb'} is no table: its first line is above 1000000 bytes"
    assert grown < 150_000_000


@pytest.mark.slow
def test_the_default_limit(tmp_path):
    zeros_gz(tmp_path / "bomb")
    told, grown = refused(tmp_path, tmp_path / "bomb")
    assert f"max_bytes={MAX_BYTES}" in told
    assert grown < 1.5 * MAX_BYTES


@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz", "runs.parquet"])
def test_the_limit_is_on_what_is_decoded(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        pl.read_csv(io.StringIO(TABLE)).write_parquet(path)
        size = max(path.stat().st_size, decoded_bytes(path.read_bytes()))
    else:
        size = len(TABLE)
        path.write_bytes(gzip.compress(TABLE.encode()) if name.endswith("gz") else TABLE.encode())
    assert load_table(path, ["answer"], max_bytes=size).queries == ("a",)
    with pytest.raises(InputError, match=f"max_bytes={size - 1};"):
        load_table(path, ["answer"], max_bytes=size - 1)


def test_texts_have_the_same_limit(tmp_path, monkeypatch):
    path = tmp_path / "questions.json"
    path.write_bytes(gzip.compress(b"[" + b" " * 1000 + b"]"))
    assert len(read_text(path)) == 1002
    monkeypatch.setattr("scope_torch.tasks.files.read_decompressed.__defaults__", (1000,))
    with pytest.raises(InputError, match="decodes to more than max_bytes=1000"):
        read_text(path)


def test_times_are_no_numbers(tmp_path):
    """Theirs would be microseconds, or days."""
    frame = pl.DataFrame({"plan": ["a", "b"], "query": ["1", "1"], "quality": [1.0, 1.0]})
    cost, seconds = pl.Series("cost_usd", [0.5, 0.25]), timedelta(seconds=1)
    frame = frame.with_columns(cost, pl.Series("latency_s", [seconds, 2 * seconds]))
    frame.write_parquet(tmp_path / "runs.parquet")
    with pytest.raises(InputError, match=r"'latency_s' is of Duration.*save it as a number"):
        load_table(tmp_path / "runs.parquet", ["plan"], outcome_columns=["latency_s"])


@pytest.mark.parametrize("compression", ["zstd", "snappy", "uncompressed"])
@pytest.mark.parametrize("num_rows", [0, 3, 3000])
def test_the_footer_counts_what_is_decoded(compression, num_rows):
    names, numbers, lists = (
        [f"{i}" * 50 for i in range(num_rows)],
        [0.5] * num_rows,
        [[1]] * num_rows,
    )
    types = {"name": pl.String, "x": pl.Float64, "y": pl.List(pl.Int64)}
    frame = pl.DataFrame({"name": names, "x": numbers, "y": lists}, schema=types)
    file = io.BytesIO()
    frame.write_parquet(file, compression=compression, row_group_size=1000)
    found = decoded_bytes(file.getvalue())
    assert frame["name"].str.len_bytes().sum() <= found
    assert 16 * num_rows <= found <= 2 * frame.estimated_size() + 1000


@pytest.mark.parametrize(
    "content",
    [b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0PAR1", b"PAR1" + b"\x1c" * 9000 + b"\x28\x23\0\0PAR1",
     b"PAR1" + b"\xff" * 99 + b"\x63\0\0\0PAR1", b"PAR1\xff\xff\xff\xffPAR1"],
)  # fmt: skip
def test_a_damaged_footer_is_one_line(tmp_path, content):
    path = tmp_path / "runs.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="the footer of the Parquet file is damaged"):
        load_table(path, ["answer"])


def test_a_path_may_be_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(TABLE)
    assert load_table("runs.csv", ["answer"]).llms == (("mini", "pro"),)
    with pytest.raises(InputError, match=r"cannot read nowhere\.csv"):
        load_table("nowhere.csv", ["answer"])
