"""What a value is, as text: equal for equal values in every process.

Plain data is its JSON. Other values are told by their parts: a dataclass by its fields, a `Path` by
the name and the content of its file, a function by its code and by what the code reads. A run
knows by such texts whether its queries and its metric are still the same.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import functools
import hashlib
import json
import linecache
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch

from scope_torch.errors import InputError

_PLAIN = str, int, float, type(None)
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
_INSIDE = "__func__", "fget", "func"  # of class methods, properties, cached properties
_CACHED = type(functools.lru_cache(len))
_ADDRESS = " at 0x"  # in the `repr` of an object that does not say what it is


class Unknowable(TypeError):
    """A value has a part whose content cannot be told, such as an open file or a client."""


def text_of(value: Any) -> str:
    """The content of a value.

    Args:
        value: Plain data, or what is made of it: dataclasses, models, sets, bytes, dates, arrays,
            images, paths of files, functions. A tuple is as good as a list.

    Raises:
        Unknowable: If a part of it has no content that another process could compare.

    Examples:
        >>> text_of({"b": (1, 2), "a": None})
        '{"a": null, "b": [1, 2]}'
        >>> text_of({3, 1}) == text_of({1, 3}) != text_of({1, 2})
        True
    """
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return _text(_described(value))
    except RecursionError:
        raise Unknowable(f"a value of type {type(value).__qualname__} that holds itself") from None


def digest_of(text: str) -> str:
    """16 hex digits for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_of(function: Callable[..., Any], version: str | None = None) -> str:
    """Name of a function with a hash of its code, or with the version that its author gives.

    Comments, docstrings and white space do not count. What the code reads does: defaults,
    variables and functions around it, what an object or a `partial` holds (an object may leave
    out its caches by `__getstate__`). Installed packages are known by their names alone.

    Args:
        function: Any callable.
        version: Goes in the place of the hash.

    Raises:
        InputError: If the code cannot be told, because objects around it raise errors.

    Examples:
        >>> identity_of(max), identity_of(lambda expected, output: 1.0, version="2")
        ('max a6dcccd0a3475c4e', '<lambda> version 2')
        >>> identity_of(lambda x: x + 1) == identity_of(lambda x: x + 2)
        False
    """
    named: Any = function
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__qualname__", type(named).__qualname__)
    if version is not None:
        return f"{name} version {version}"
    try:
        described = _text(_Code().of(function, ""))
    except Exception as error:  # whatever an attribute of an object may raise
        raise InputError(
            f"it cannot be told by its code which function {name} is ({error!r}); give "
            "metric_version='1', and another one after each change"
        ) from error
    return f"{name} {digest_of(described)}"


def _text(described: Any) -> str:
    return json.dumps(described, sort_keys=True)


def _described(value: Any) -> Any:
    """A value as plain data; what JSON does not know has its kind in angle brackets."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_described(one) for one in cast(list[Any], value)]
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        pairs: list[Any] = [[_described(key), _described(one)] for key, one in items]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return {"<dict>": sorted(pairs, key=_text)}
    if isinstance(value, set | frozenset):
        return {"<set>": sorted(map(_text, map(_described, cast(set[Any], value))))}
    if isinstance(value, bytes | bytearray):
        return {"<bytes>": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Path):
        return _file(value)
    if isinstance(value, type):
        return {"<class>": value.__qualname__}
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | functools.partial):
        return _Code().of(value, "")
    if isinstance(value, torch.Tensor):
        bits = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
        return {"<tensor>": [str(value.dtype), list(value.shape), _described(bits.numpy())]}
    if isinstance(value, np.ndarray | np.generic):
        is_of_objects = value.dtype.hasobject
        told = _described(value.tolist() if is_of_objects else value.tobytes())
        return {"<array>": [str(value.dtype), list(value.shape), told]}
    return _parts(value)


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


def _parts(value: Any) -> Any:
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
    return {f"<{name}>": _described(made)}


class _Code:
    """Tells callables by their code and what it reads; each of them once."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}

    def of(self, value: Any, home: str) -> Any:
        """A value as plain data.

        Args:
            value: What the code of a module reads.
            home: Name of this module, whose own functions and classes count if it is installed.
        """
        if id(value) in self._number:
            return {"<again>": self._number[id(value)]}
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, ModuleType):
            return {"<module>": value.__name__}
        if isinstance(value, Path):  # a file of answers, of a cache: it may change while it is used
            return {"<path>": str(value)}
        self._number[id(value)] = len(self._number)
        if isinstance(value, functools.partial):
            return {"<partial>": self._each([value.func, value.args, value.keywords], home)}
        if isinstance(value, MethodType):
            return {"<method>": self._each([value.__func__, value.__self__], home)}
        if isinstance(value, _CACHED):
            return self.of(value.__wrapped__, home)
        if isinstance(value, list | tuple | dict):
            with suppress(TypeError, ValueError, RecursionError):  # many are plain, and fast so
                return {"<data>": digest_of(json.dumps(value, sort_keys=True))}
        if isinstance(value, list | tuple):
            return self._each(value, home)
        if isinstance(value, dict):
            pairs = cast(dict[Any, Any], value).items()
            return {"<dict>": [[_of_data(key), self.of(one, home)] for key, one in pairs]}
        own = not home or _is_own(value, home)
        if isinstance(value, FunctionType | type) and own:
            return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        if callable(value) and hasattr(value, "__qualname__"):
            return {"<name>": f"{getattr(value, '__module__', '')}.{value.__qualname__}"}
        return self._object(value, home)

    def _each(self, values: Any, home: str) -> list[Any]:
        return [self.of(value, home) for value in values]

    def _object(self, value: Any, home: str) -> Any:
        """Data by its content; an object of your class by the class and its attributes."""
        kind = type(value)
        if not home or (kind.__module__ != "builtins" and _is_own(kind, home)):
            state = _state(value)
            for name in _changed_in(kind):
                state.pop(name, None)
            home = kind.__module__
            fields = {name: self.of(state[name], home) for name in sorted(state)}
            return {"<object>": [self.of(kind, home), fields]}
        return _of_data(value)

    def _class(self, kind: type) -> Any:
        """The code of a class, of those above it, and its plain attributes."""
        found: dict[str, Any] = {}
        for base in kind.__mro__[:-1]:
            if base is not kind and not _is_own(base, kind.__module__):
                found[base.__qualname__] = None
                continue
            for name, value in sorted(vars(base).items()):
                value = next((getattr(value, n) for n in _INSIDE if hasattr(value, n)), value)
                if _is_written(name, value, base):
                    found[f"{base.__qualname__}.{name}"] = self.of(value, base.__module__)
        return {"<class>": found}

    def _function(self, function: FunctionType) -> Any:
        home, code = function.__module__, function.__code__
        read: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                read[name] = cell.cell_contents
        codes = list(_codes(code))
        used = {i.argval for c in codes for i in dis.get_instructions(c) if "GLOBAL" in i.opname}
        read |= {name: function.__globals__[name] for name in used & function.__globals__.keys()}
        changed = _stored(codes, "STORE_GLOBAL", "STORE_DEREF")
        told = {name: self.of(read[name], home) for name in sorted(read.keys() - changed)}
        for name, module in sorted(read.items()):
            if isinstance(module, ModuleType) and _is_own(module, home):
                members = {n for c in codes for n in c.co_names} & vars(module).keys()
                told[name] = {n: self.of(vars(module)[n], home) for n in sorted(members)}
        defaults = [function.__defaults__, function.__kwdefaults__]
        return {
            "<function>": [_source(function) or _bytecode(code), told, self._each(defaults, home)]
        }


def _state(value: Any) -> dict[str, Any]:
    """Attributes of an object, or what it says of them by `__getstate__`."""
    state = value.__getstate__()
    parts: Any = state if isinstance(state, tuple) else (state,)  # those in slots come second
    if not all(part is None or isinstance(part, dict) for part in parts):
        return {"": state}
    return {name: one for part in parts if part for name, one in part.items()}


def _of_data(value: Any) -> Any:
    """Data that code reads, by its content or, if it has none, by its kind."""
    try:
        return _described(value)
    except (Unknowable, RecursionError):
        return {"<object>": type(value).__qualname__}


def _is_written(name: str, value: Any, kind: type) -> bool:
    """Whether an attribute of a class is its author's, and not made of others as in a dataclass."""
    is_special = name.startswith("__") and name != "__call__"
    if isinstance(value, FunctionType):
        is_made = hasattr(kind, "__dataclass_fields__") and value.__code__.co_filename == "<string>"
        return not (is_special and is_made)
    return not is_special and isinstance(value, (*_PLAIN, list, tuple, dict, set))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _stored(codes: list[CodeType], *names: str) -> set[str]:
    """Names that code changes itself, such as a counter: they are no part of what it is."""
    return {i.argval for c in codes for i in dis.get_instructions(c) if i.opname in names}


def _changed_in(kind: type) -> set[str]:
    """Attributes that an object sets after it was made."""
    methods = [
        value
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, FunctionType) and name not in ("__init__", "__post_init__")
    ]
    return _stored([c for method in methods for c in _codes(method.__code__)], "STORE_ATTR")


@functools.lru_cache(maxsize=4096)
def _installed(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module != "__main__"
    is_python = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return is_python or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _is_own(value: Any, home: str) -> bool:
    """Whether the code behind a name may change with yours: it is not that of a package."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and (module == home or not _installed(module))


def _bytecode(code: CodeType) -> Any:
    """What runs where no source is known; other versions of Python have other bytecode."""
    constants = [_bytecode(c) if isinstance(c, CodeType) else _described(c) for c in code.co_consts]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    numbers = [*sys.version_info[:2], code.co_argcount, code.co_kwonlyargcount, code.co_flags]
    return {"<bytecode>": [numbers, code.co_code.hex(), constants, *map(list, names)]}


def _source(function: FunctionType) -> str | None:
    """The source of a function without comments and docstrings.

    None if it is not found, if another function on its line could be meant, or if the file is not
    what runs, because it was edited since.
    """
    file = function.__code__.co_filename
    if (known := _in_source(function, file)) is None:
        linecache.checkcache(file)  # it may have been read before the function was loaded anew
        known = _in_source(function, file)
    return known


def _in_source(function: FunctionType, file: str) -> str | None:
    code = function.__code__
    nodes, codes = _read("".join(linecache.getlines(file, function.__globals__)), file)
    same = [_text(_bytecode(c)) for c in codes.get(code.co_firstlineno, ())]
    here = nodes.get(code.co_firstlineno, ())
    if len(here) != 1 or _text(_bytecode(code)) not in same:
        return None
    return ast.unparse(_bare(here[0]))


@functools.lru_cache(maxsize=16)
def _read(source: str, file: str) -> tuple[dict[int, list[ast.AST]], dict[int, list[CodeType]]]:
    """The functions of a file by their first line: as source, and as code."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # of notebooks
    nodes, codes = defaultdict[int, list[ast.AST]](list), defaultdict[int, list[CodeType]](list)
    with suppress(SyntaxError, ValueError, RecursionError):
        for code in _codes(compile(source, file, "exec", flags, dont_inherit=True)):
            codes[code.co_firstlineno].append(code)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, _FUNCTIONS):
                nodes[_first_line(node)].append(node)
    return nodes, codes


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _bare(node: ast.AST) -> ast.AST:
    """A copy without docstrings and decorators; these stand in what they make of the function."""
    copied = ast.parse(ast.unparse(node)).body[0]
    for inside in ast.walk(copied):
        if isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside.decorator_list = []
            if ast.get_docstring(inside) is not None:
                inside.body = inside.body[1:] or [ast.Pass()]
    return copied
