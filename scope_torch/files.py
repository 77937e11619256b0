"""How this package writes files: in one step, and never through a link.

A directory of a run may come from somebody else. A link in it, with the name of a file that is
written there, would lead to a file of yours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, Protocol
from weakref import WeakSet

from scope_torch.errors import InputError, cannot_write

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none, and lets few users make links
# A spreadsheet would calculate such a text. Those with ' in front are marked again, so that
# `plain_text` gives every text back.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_DEVICE = "it is a device or a pipe; name a file"
MARK = r"^'('*[=+\-@\t\r])"  # what `plain_text` puts the group in the place of


class _Closes(Protocol):
    def close(self) -> object: ...


_not_for_children = WeakSet[_Closes]()


def is_path(value: Any) -> bool:
    """Whether it is a path; an empty text would be the current folder."""
    return isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value)


def path_of(name: str, value: Any) -> Path:
    """The path that an argument has.

    Raises:
        InputError: If it is none.
    """
    if not is_path(value):
        raise InputError(f"{name}={value!r} must be a path")
    return Path(value)


def no_link(path: str, flags: int) -> int:
    """An `opener` for `open` that refuses a link."""
    return os.open(path, flags | _NO_LINK, 0o666)


def for_owner(path: str, flags: int) -> int:
    """An `opener` that refuses a link, and makes a file that only its owner may read.

    It is for answers and what was paid for them. The rights of a file that is there stay.
    """
    return os.open(path, flags | _NO_LINK, 0o600)


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Generator[IO[bytes], None, None]:
    """A file to write, which takes the place of `path` at the end; after an error nothing changes.

    Readers see the old or the new content, never a part of it. Several writers may replace the same
    file: the last one stays, with the rights of the first. A link at `path` is replaced, not
    followed.

    Args:
        path: The file.
        private: Whether only its owner may read it.

    Raises:
        InputError: If the file cannot be written.

    Examples:
        >>> with replacing(Path("page.html")) as file:
        ...     _ = file.write(b"<p>new")
        >>> Path("page.html").read_text()
        '<p>new'
    """
    if _is_device(path):
        raise InputError(f"cannot write {path}: {_DEVICE}")
    # Nobody can know the name before. The end of the name says whose file was left by a power cut.
    temporary = path.with_name(f".{secrets.token_hex(8)}.{path.name[-40:]}.tmp")
    opener = for_owner if private else no_link
    try:
        with open(temporary, "xb", opener=opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file under this name
        if not private and path.is_file() and not path.is_symlink():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replaces a file in one step; see `replacing`.

    Args:
        path: The file.
        content: Bytes, or a text, which becomes UTF-8; half of a surrogate pair becomes `?`.
        private: Whether only its owner may read it.

    Raises:
        InputError: If the file cannot be written.
    """
    with replacing(path, private=private) as file:
        file.write(content.encode(errors="replace") if isinstance(content, str) else content)


def close_in_children(file: _Closes) -> None:
    """Closes a file or socket in each child that is forked: what it holds ends with this process.

    Workers of a pool inherit what is open here. They may live on, with its lock or its port.
    """
    _not_for_children.add(file)


def _close_in_child() -> None:
    for file in list(_not_for_children):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def check_folder(path: Path, name: str = "") -> None:
    """Refuses a file that cannot be written, before anything is paid for what it will hold.

    Args:
        path: The file.
        name: Of the argument that gives it, for the message.

    Raises:
        InputError: If it is a folder, or is in none that may be written into.
    """
    if not path.parent.is_dir():
        why = f"{path.parent} is not a folder"
    elif path.is_dir():
        why = "it is a folder; name a file in it"
    elif _is_device(path):
        why = _DEVICE
    elif not os.access(path.parent, os.W_OK):
        why = f"no file can be written into {path.parent}"
    else:
        return
    raise InputError(f"{name} {path}: {why}".lstrip())


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it; an InputError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def inside(folder: Path, *names: str) -> Path:
    """A folder or file below `folder`, to be written.

    Raises:
        InputError: If one of the names is a link, which may lead out of `folder`.

    Examples:
        >>> inside(Path("outputs"), "measured", "0-1").as_posix()
        'outputs/measured/0-1'
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink():
            raise cannot_write(path, OSError(errno.ELOOP, ""))
    return path


def plain(values: Any) -> Any:
    """The values with numbers and arrays of numpy and torch as Python's, which JSON can hold.

    Examples:
        >>> import numpy as np
        >>> plain({"seed": np.int64(3), "weights": (np.float32(0.5), [np.ones(2)])})
        {'seed': 3, 'weights': (0.5, [[1.0, 1.0]])}
    """
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        found = [plain(value) for value in values]
        return tuple(found) if isinstance(values, tuple) else found
    return values.tolist() if hasattr(values, "tolist") else values


def cell_of(value: Any) -> Any:
    """A value as a cell of a CSV file: a text that a spreadsheet would calculate gets ' in front.

    Numbers stay numbers, also those in a text. `plain_text` is the way back.

    Examples:
        >>> [cell_of(value) for value in ("@cf/llama", "=1+1", -0.5, "-0.5", "nano", None)]
        ["'@cf/llama", "'=1+1", -0.5, '-0.5', 'nano', None]
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _is_number(value)
    return f"'{value}" if is_formula else value


def plain_text(cell: str) -> str:
    """The text of a cell that `cell_of` has made.

    Examples:
        >>> plain_text("'@cf/llama"), plain_text("nano"), plain_text("'s")
        ('@cf/llama', 'nano', "'s")
    """
    return re.sub(MARK, r"\1", cell)


def _is_device(path: Path) -> bool:
    """Whether a device, a pipe or a socket is there, or a link to one, as /dev/stdout is.

    A file in the place of /dev/null would break the whole machine, and root may put it there.
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        in_dev = path.absolute().parent == Path("/dev")
        return in_dev or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
