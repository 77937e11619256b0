"""Finds and reads data files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from scope_torch.errors import InputError

MAX_BYTES = 1_000_000_000  # of a data file, decompressed
_CHUNK_BYTES = 1 << 20


def find_data(path: str, source: str = "") -> Path:
    """Finds a data file: in the working directory, `$SCOPE_DATA_DIR`, `./data`, or the package.

    Args:
        path: Path of the file, absolute or relative to one of these folders.
        source: Where to get the file, for the error message.

    Raises:
        InputError: If there is no such file; the message names the paths that were tried.
    """
    if not path:
        raise InputError("task.path is empty: name the table, e.g. task.path=runs.csv")
    candidates = _candidates(path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise _not_found("file", path, candidates, source)


def find_folder(path: str, source: str = "") -> Path:
    """Finds a folder with data in the same places as `find_data`.

    Raises:
        InputError: If there is no such folder; the message names the paths that were tried.
    """
    candidates = _candidates(path)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise _not_found("folder", path, candidates, source)


def _candidates(path: str) -> list[Path]:
    folders = [Path()]
    if data_dir := os.environ.get("SCOPE_DATA_DIR"):
        folders.append(Path(data_dir))
    folders += [Path("data"), Path(str(files("scope_torch"))) / "data"]
    return [folder / path for folder in folders]


def _not_found(kind: str, path: str, candidates: Sequence[Path], source: str) -> InputError:
    tried = ", ".join(str(candidate) for candidate in candidates)
    hint = f"; source: {source}" if source else ""
    return InputError(
        f"no data {kind} {path!r} (tried {tried}); put it into ./data or set SCOPE_DATA_DIR{hint}"
    )


def read_decompressed(path: Path, max_bytes: int = MAX_BYTES) -> io.BytesIO:
    """Content of a file, plain or gzipped; stops reading at the limit.

    Args:
        path: The file.
        max_bytes: Largest number of bytes, after decompression.

    Raises:
        InputError: If the file has more.
        OSError, EOFError, zlib.error: If it cannot be read.
    """
    content = io.BytesIO()
    with path.open("rb") as file:
        stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        while chunk := stream.read(_CHUNK_BYTES):
            content.write(chunk)
            if content.tell() > max_bytes:
                raise too_large(path, max_bytes)
    content.seek(0)
    return content


def too_large(path: Path, max_bytes: int) -> InputError:
    """The error about a file that decodes to more than `max_bytes`."""
    return InputError(
        f"{path} decodes to more than max_bytes={max_bytes}; leave out columns and rows that are "
        "not needed, or raise the limit of a table with task.max_bytes"
    )


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Reads a text file, plain or gzipped.

    Raises:
        InputError: If the file is absent, cut short, in another encoding, or above `MAX_BYTES`.
    """
    try:
        return str(read_decompressed(path).getbuffer(), encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not {encoding} at byte {error.start}; convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads a CSV file with a header, plain or gzipped.

    Args:
        path: The file, in UTF-8, with or without a byte order mark; blank lines are skipped.
        columns: Columns that the file must have; other columns are read as well.

    Returns:
        Each row as values by column, without white space around the values.

    Raises:
        InputError: If the file cannot be read, a column is missing or a row is cut short.
    """
    text = io.StringIO(read_text(path).removeprefix("\ufeff"), newline="")
    reader = csv.reader(text, skipinitialspace=True, strict=True)
    rows: list[dict[str, str]] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            raise InputError(f"{path} has no column {missing[0]!r}; its columns are {header}")
        for cells in reader:
            if len(cells) < 2 and not "".join(cells).strip():
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(cells)} values for {len(header)} "
                    "columns; download it again"
                )
            rows.append(dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; make it a CSV file, or download it again"
        ) from error
    return rows


def check_count(path: Path, kind: str, count: int, expected: int) -> None:
    """Raises InputError if a data file does not have the published number of rows.

    Args:
        path: The file or folder, for the error message.
        kind: Name of the rows in the error message, such as "pairs".
        count: Their number.
        expected: The published number.
    """
    if count != expected:
        raise InputError(
            f"{path}: {count} {kind}, but the data set has {expected}; download it again, or say "
            "check_counts=false to use a part"
        )
