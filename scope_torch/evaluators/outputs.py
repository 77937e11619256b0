"""What an application returned, kept to be read after the search."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from scope_torch.files import for_owner

logger = logging.getLogger(__name__)

Key = tuple[tuple[str, ...], int]
FILE = "outputs.jsonl"  # in the directory of a run


class Outputs(Mapping[Key, Any]):
    """Outputs by the LLMs of a run, in the order of the modules, and the position of its item.

    The last output of a pair counts. They decide nothing: a file that is damaged or missing, or
    cannot be written, only leaves gaps.

    Args:
        path: A file of JSON lines to which each output is appended, and whose outputs are known
            from the beginning; an output that is not plain data is written as text. None keeps
            them in memory only.

    Examples:
        >>> outputs = Outputs()
        >>> outputs.keep(["nano", "pro"], 3, "42")
        >>> outputs[("nano", "pro"), 3]
        '42'
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known, self._has_warned = dict[Key, Any](), False
        self._is_cut = False  # whether the last line may be
        try:
            if path is not None and path.exists():
                self._known.update(_read(path))
                self._is_cut = path.read_bytes()[-1:] not in (b"", b"\n")
        except OSError as error:
            self._warn("read", error)

    def __getitem__(self, key: Key) -> Any:
        return self._known[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, llms: Sequence[str], number: int, output: Any) -> None:
        """Keeps an output; any thread may call it. What cannot be written is warned of once."""
        with self._lock:
            self._known[tuple(llms), number] = output
            if self._path is None:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                line = _line({"llms": list(llms), "number": number, "output": output})
                with open(self._path, "a", encoding="utf-8", opener=for_owner) as file:
                    file.write("\n" * self._is_cut + line)
                self._is_cut = False
            except Exception as error:  # also what a method of the output raises
                self._is_cut = True
                self._warn("written", error)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s cannot be %s (%s): outputs will be missing there, which decide nothing",
                self._path,
                what,
                error,
            )


def _line(entry: dict[str, Any]) -> str:
    """A line of the file."""
    output = entry["output"]
    try:
        text = json.dumps({**entry, "exact": _is_exact(output)}, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or a cycle
        text = json.dumps({**entry, "output": str(output), "exact": False})
    return text + "\n"


def exact_outputs(path: Path) -> dict[Key, Any]:
    """The outputs in a file that are just what the application returned, and no text of it."""
    if not path.exists():
        return {}
    last = {key: (output, exact) for key, output, exact in _entries(path)}
    return {key: output for key, (output, exact) in last.items() if exact}


def _is_exact(output: Any) -> bool:
    """Whether an output comes back from the file as it was."""
    if type(output) is list:
        return all(map(_is_exact, cast(list[Any], output)))
    if type(output) is dict:
        pairs = cast(dict[Any, Any], output).items()
        return all(type(key) is str and _is_exact(value) for key, value in pairs)
    return output is None or type(output) in (str, int, float, bool)


def _read(path: Path) -> Iterator[tuple[Key, Any]]:
    return ((key, output) for key, output, _ in _entries(path))


def _entries(path: Path) -> Iterator[tuple[Key, Any, bool]]:
    """The entries of a file, and whether each is exact; the last line may be cut."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            key = tuple(entry["llms"]), int(entry["number"])
            yield key, entry["output"], entry.get("exact") is True
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
