"""Reads files of tables into frames: what identifies a row is text, the rest may become numbers.

| file | |
| --- | --- |
| CSV | the separator is comma, semicolon, tab or bar, whichever shows the keys or splits the header most; UTF-8, or UTF-16 with its mark |
| JSON | one object in a line, or one list of them |
| Parquet | |

All may be gzipped. The content tells which it is, not the name.
"""  # noqa: E501 - a table

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from scope_torch.errors import InputError
from scope_torch.observation import unique_keys
from scope_torch.tasks._parquet import decoded_bytes
from scope_torch.tasks.files import MAX_BYTES, read_decompressed, too_large

# polars panics on bytes that its Rust code did not expect.
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
# What follows from the bytes of a file, whatever they are.
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError, csv.Error, *POLARS_ERRORS)
_HEADER_BYTES = 1_000_000
_SEPARATORS = ",;\t|"
_UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
_FOREIGN = {  # first bytes of files that cannot be read: what they are, and the mend
    b"PK\x03\x04": "an Excel workbook or a zip archive; save the sheet as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV in UTF-8",
    b"ARROW1": "an Arrow file; save it as Parquet",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it, or compress it by gzip",
    b"BZh": "compressed by bzip2; unpack it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it, or compress it by gzip",
}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = r"^(\s*[+-]?\d*),(\d+([eE][+-]?\d+)?\s*)$"
_OF_EXCEL = re.compile(r'"?sep=."?\s*', re.IGNORECASE)  # may be its first line
_POINT = _DECIMAL_COMMA.replace(",", r"\.")
_AS_TEXT: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), str)
_AS_TEXT["object_pairs_hook"] = unique_keys


def read_frame(
    path: Path,
    keys: Sequence[str],
    max_bytes: int = MAX_BYTES,
    header_bytes: int = _HEADER_BYTES,
    numbers: Sequence[str] = (),
) -> pl.DataFrame:
    """Reads a table, see above; rows without any value are left out.

    Args:
        path: The file.
        keys: Columns of identifiers: text as it is in the file, so that 4.10 is not 4.1; null where
            there is none. Absent ones are not missed.
        max_bytes: Largest size, decompressed; of Parquet, of its columns.
        header_bytes: Largest size of the first line of CSV.
        numbers: Columns of numbers, which may have decimal commas; none: all other columns.

    Raises:
        InputError: If it cannot be read, or is too large; the message says how to mend it.
    """
    try:
        content = read_decompressed(path, max_bytes)
        begin = bytes(content.getbuffer()[:8])
        for magic, words in _FOREIGN.items():
            if begin.startswith(magic):
                raise InputError(f"{path} is {words}")
        if begin.startswith(b"PAR1"):
            frame = _read_parquet(content, path, max_bytes)
        else:
            if begin.startswith(_UTF_16):
                content = io.BytesIO(str(content.getbuffer(), "utf-16").encode())
            first = bytes(content.getbuffer()[:100]).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
            if first in (b"{", b"["):
                frame = _read_json(content, first == b"[")
            else:
                frame = _read_csv(content, path, keys, numbers, header_bytes)
        return _without_blanks(frame, keys)
    except _UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot read {path} as CSV, JSON or Parquet: {reason(error)}; save it as CSV in UTF-8"
        ) from error


def _read_csv(
    content: io.BytesIO,
    path: Path,
    keys: Sequence[str],
    numbers: Sequence[str],
    header_bytes: int,
) -> pl.DataFrame:
    """All cells as text: a column of numbers and `NaN` would else be one of other text."""
    text, skipped = _first_line(content, path, header_bytes), 0
    if _OF_EXCEL.fullmatch(text):
        content, skipped = io.BytesIO(content.read()), 1
        text = _first_line(content, path, header_bytes)
    separator = _separator(text, keys)
    names = Counter(name for name in next(csv.reader([text], delimiter=separator), []) if name)
    if twice := [name for name, number in names.items() if number > 1]:
        raise InputError(f"{path} has two columns {twice[0]!r}; delete one, or rename it")
    content.seek(0)
    try:
        frame = pl.read_csv(content, separator=separator, infer_schema=False)
    except pl.exceptions.ComputeError as error:
        if (line := _too_long(content, separator)) is None:
            raise
        raise InputError(
            f"{path}, line {line + skipped} has more cells than the header; put a text with "
            f"{separator!r} in quotes"
        ) from error
    if separator != ";":
        return frame
    others = [name for name in frame.columns if name not in keys]  # of names, a comma is a part
    used = [name for name in others if name in numbers]
    return frame.with_columns(_with_points(frame.select(used or others)))


def _first_line(content: io.BytesIO, path: Path, most_bytes: int) -> str:
    line = content.readline(most_bytes + 1)
    if len(line) > most_bytes:
        raise InputError(f"{path} is no table: its first line is above {most_bytes} bytes")
    return str(line, "utf-8-sig", "replace")


def _with_points(frame: pl.DataFrame) -> pl.DataFrame:
    """With decimal points for commas; as it is, so that it has no numbers, if it has both.

    Beside 0.5, 1,234 has four digits; beside 0,5, 1.234 may have, in another column, too.
    """
    commas, points = (
        frame.select(pl.any_horizontal(pl.all().str.contains(form).any())).item()
        for form in (_DECIMAL_COMMA, _POINT)
    )
    changed = pl.all().str.replace(_DECIMAL_COMMA, "$1.$2")
    return frame if commas and points else frame.with_columns(changed)


def _too_long(content: io.BytesIO, separator: str) -> int | None:
    """Where the first row ends that has more cells than the header; None if there is none."""
    text = io.StringIO(str(content.getbuffer(), "utf-8-sig", "replace"), newline="")
    rows = csv.reader(text, delimiter=separator)
    header = next(rows, [])
    return next((rows.line_num for row in rows if len(row) > len(header)), None)


def _separator(header: str, keys: Sequence[str]) -> str:
    """The one that shows most keys, then that splits the header most; of equal ones the first."""

    def parts(separator: str) -> tuple[int, int]:
        try:
            names = next(csv.reader([header], delimiter=separator), [])
            return len(set(keys).intersection(names)), len(names)
        except csv.Error:  # of bytes that are no table; polars says what is wrong with them
            return 0, 0

    return max(_SEPARATORS, key=parts)


def _read_json(content: io.BytesIO, is_list: bool) -> pl.DataFrame:
    """All cells as text, as they are in the file."""
    columns: dict[str, list[str | None]] = {}
    count = 0
    for row in _objects(content, is_list):
        for name, value in row.items():
            cells = columns.setdefault(name, [])
            cells.extend([None] * (count - len(cells)))
            is_text = value is None or isinstance(value, str)
            cells.append(value if is_text else json.dumps(value))
        count += 1
    padded = {name: cells + [None] * (count - len(cells)) for name, cells in columns.items()}
    return pl.DataFrame(padded, dict.fromkeys(padded, pl.String))


def _objects(content: io.BytesIO, is_list: bool) -> Iterator[dict[str, Any]]:
    for number, line in enumerate([content.getvalue()] if is_list else content, 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line.decode("utf-8-sig"), **_AS_TEXT)
        except InputError as error:
            raise ValueError(f"line {number}: {error}") from error
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from error
        for row in found if is_list else [found]:
            if not isinstance(row, dict):
                raise ValueError(f"line {number} has {row!r:.60} in the place of an object")
            yield row


def _read_parquet(content: io.BytesIO, path: Path, max_bytes: int) -> pl.DataFrame:
    """Reads a Parquet file if its own summary, and then its texts, are within the limit.

    A column may repeat one text without repeating its bytes; its names are repeated later.
    """
    if decoded_bytes(content.getbuffer()) > max_bytes:
        raise too_large(path, max_bytes)
    frame = pl.read_parquet(content)
    texts = frame.select(pl.col(pl.String).str.len_bytes().sum())
    if sum(texts.row(0) if len(texts.columns) else ()) > max_bytes:
        raise too_large(path, max_bytes)
    return frame


def _without_blanks(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The rows that have a value; empty cells and NaN are null, and keys are text."""
    floats, texts = pl.col(pl.Float32, pl.Float64), pl.col(pl.String)
    frame = frame.with_columns(floats.fill_nan(None))
    frame = frame.with_columns(pl.when(texts.str.strip_chars() != "").then(texts))
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null())) if frame.columns else frame
    return frame.with_columns(pl.col(name).cast(pl.String) for name in {*keys} & {*frame.columns})


def with_numbers(
    frame: pl.DataFrame, path: Path, columns: Mapping[str, str], amounts: Collection[str] = ()
) -> pl.DataFrame:
    """Turns columns into numbers, truth values into 0 and 1, and NaN into null.

    Args:
        frame: From `read_frame`.
        path: Its file, for error messages.
        columns: The columns, and the name of each in the file.
        amounts: Those in which a truth value is a mistake.

    Raises:
        InputError: If a value is no number.
    """
    for name, name_in_file in columns.items():
        column = frame[name]
        if column.dtype.is_nested():
            raise InputError(
                f"{path}: column {name_in_file!r} is of {column.dtype}, not of numbers"
            )
        if column.dtype.is_temporal():  # its numbers would be nanoseconds or days
            raise InputError(
                f"{path}: column {name_in_file!r} is of {column.dtype}; save it as a number, such "
                "as seconds"
            )
        text = column.str.strip_chars() if column.dtype == pl.String else column
        if name in amounts and text.dtype == pl.Boolean:
            text = pl.Series([None] * len(text), dtype=pl.Float64)
        elif text.dtype == pl.String and name not in amounts:
            text = text.str.to_lowercase().replace({"true": "1", "false": "0"})
        cast = text.cast(pl.Float64, strict=False)
        bad = column.filter(cast.is_null() & column.is_not_null())
        if len(bad):
            mend = "leave the cell empty if there is none"
            if "," in str(bad[0]):
                mend = "write all numbers with a point, or all with a comma between semicolons"
            raise InputError(
                f"{path}: column {name_in_file!r} has {bad[0]!r}, which is not a number; {mend}"
            )
        frame = frame.with_columns(cast.fill_nan(None).alias(name))
    return frame


def in_order(identifiers: pl.Series) -> pl.Series:
    """Sorted identifiers: by number if all are numbers, so that 10 comes after 9; else as text."""
    texts: list[str] = identifiers.to_list()
    if not all(map(_NUMBER.fullmatch, texts)):
        return identifiers.sort()
    return pl.Series(sorted(texts, key=lambda text: (Decimal(text), text)), dtype=pl.String)


def reason(error: BaseException) -> str:
    """The first line of an error, or its kind."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
