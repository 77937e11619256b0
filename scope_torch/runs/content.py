"""What a value is, as plain data: a dataclass by its fields, a `Path` by what its file holds."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import numpy as np

PLAIN = str, int, float, type(None)
_ADDRESS = " at 0x"  # in the `repr` of an object that does not say what it is


class Unknowable(TypeError):
    """A value has a part whose content cannot be told, such as an open file or a client."""


def digest_of(text: str) -> str:
    """16 hex digits for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def json_of(plain: Any) -> str:
    """Plain data as text."""
    return json.dumps(plain, sort_keys=True)


def described(value: Any, of_code: Callable[[Any], Any]) -> Any:
    """A value as plain data; what JSON does not know has its kind in angle brackets.

    Args:
        value: Plain data, or what is made of it.
        of_code: Describes a function.

    Raises:
        Unknowable: If a part of it has no content that another process could compare.
    """

    def told(one: Any) -> Any:
        return described(one, of_code)

    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [told(one) for one in cast(list[Any], value)]
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        pairs: list[Any] = [[told(key), told(one)] for key, one in items]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return {"<dict>": sorted(pairs, key=json_of)}
    if isinstance(value, set | frozenset):
        return {"<set>": sorted(map(json_of, map(told, cast(set[Any], value))))}
    if isinstance(value, bytes | bytearray):
        return {"<bytes>": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Path):
        return _file(value)
    if isinstance(value, type):
        return {"<class>": value.__qualname__}
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | functools.partial):
        return of_code(value)
    torch: Any = sys.modules.get("torch")  # seconds to import, and without it there is no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        bits = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
        return {"<tensor>": [str(value.dtype), list(value.shape), told(bits.numpy())]}
    if isinstance(value, np.ndarray | np.generic):
        is_of_objects = value.dtype.hasobject
        told = told(value.tolist() if is_of_objects else value.tobytes())
        return {"<array>": [str(value.dtype), list(value.shape), told]}
    return _parts(value, told)


def _file(path: Path) -> Any:
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            return {"<folder>": [path.name, [[str(f.relative_to(path)), _sha(f)] for f in files]]}
        return {"<file>": [path.name, _sha(path)]} if path.exists() else {"<path>": str(path)}
    except OSError as error:
        raise Unknowable(f"{path}, which cannot be read ({error.strerror})") from None


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parts(value: Any, told: Callable[[Any], Any]) -> Any:
    """An object by that of which `pickle` would make it anew; nothing is pickled."""
    name = type(value).__qualname__
    try:
        reduced = copyreg.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(4) if reduced is None else reduced(value)
    except RecursionError:
        raise
    except Exception:
        raise Unknowable(f"a value of type {name}") from None
    if isinstance(parts, str):
        return {f"<{name}>": parts}
    make, given, *rest = parts
    state, items, pairs = (*rest, None, None, None)[:3]
    more = state is not None or items is not None or pairs is not None or len(given) > 1
    if not more and _ADDRESS in repr(value):
        raise Unknowable(f"a value of type {name}")
    made: list[Any] = [getattr(make, "__qualname__", ""), list(given), state]
    made += [None if several is None else list(several) for several in (items, pairs)]
    return {f"<{name}>": told(made)}
