"""What a value is, as text: equal for equal values in every process.

Plain data is its JSON. Other values are told by their parts, a function by its code and by what the
code reads. A run knows by such texts whether its queries and its metric are still the same.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

from scope_torch.errors import InputError
from scope_torch.runs.attributes import CACHED, fields_of, inside, is_object, is_written
from scope_torch.runs.changes import Change, changes_in, codes_in, emptied, is_container, named_by
from scope_torch.runs.content import PLAIN, Unknowable, described, digest_of, json_of
from scope_torch.runs.functions import bytecode_of, imports_in, is_own, modules_behind, source_of

_MAKES = "__init__", "__post_init__", "__new__"
_LOOKS_UP = {"getattr", "__getattribute__", "__dict__", "vars"}


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
        return json_of(_described(value))
    except RecursionError:
        raise Unknowable(f"a value of type {type(value).__qualname__} that holds itself") from None


def identity_of(function: Callable[..., Any], version: str | None = None) -> str:
    """Name of a function with a hash of its code, or with the version that its author gives.

    Comments, docstrings and white space do not count. What the code reads does: defaults,
    variables and functions around it, what an object or a `partial` holds; not what it changes
    itself, such as a memo (an object may leave out more by `__getstate__`). Installed packages are
    known by their names alone.

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
    return identities_of(function, version)[0]


def identities_of(function: Callable[..., Any], version: str | None = None) -> list[str]:
    """See `identity_of`; then what earlier versions would have said.

    The latest did not look behind imports inside functions and packages, nor at objects in classes.

    Raises:
        InputError: See `identity_of`.
    """
    named: Any = function
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__qualname__", type(named).__qualname__)
    if version is not None:
        return [f"{name} version {version}"]
    try:
        texts = [_texts_of(function, True)[0], *_texts_of(function, False)]
    except Exception as error:  # whatever an attribute of an object may raise
        raise InputError(
            f"it cannot be told by its code which function {name} is ({error!r}); give "
            "metric_version='1', and another one after each change"
        ) from error
    return list(dict.fromkeys(f"{name} {digest_of(text)}" for text in texts))


def _texts_of(function: Callable[..., Any], looks_behind: bool) -> list[str]:
    """What a function is; then as earlier versions told it, the last one with a memo's content."""
    first = _Code(looks_behind=looks_behind)  # finds what is changed anywhere, before it is told
    texts = [json_of(first.of(function, ""))]
    texts.insert(0, json_of(_Code(first=first, looks_behind=looks_behind).of(function, "")))
    used = _used_by(function, looks_behind)
    if used is not None:
        (first := _Code(used, looks_behind=looks_behind)).of(function, "")
        texts.insert(0, json_of(_Code(used, first, looks_behind=looks_behind).of(function, "")))
    return texts


def _described(value: Any) -> Any:
    return described(value, lambda function: _Code().of(function, ""))


def _used_by(function: Callable[..., Any], looks_behind: bool) -> set[Any] | None:
    """The code that a call may run, and names in it: also those of methods that it may run.

    None if that cannot be told: code that looks names up may run any method.
    """
    used, before = set[Any](), -1
    while before < len(used):
        before = len(used)
        _Code(used, looks=True, looks_behind=looks_behind).of(function, "")
    return None if used & _LOOKS_UP else used


class _Code:
    """Tells callables by their code and what it reads; each of them once.

    Args:
        used: By a call, see `_used_by`. What other methods change, such as a `configure`, counts.
            None: a call may run all.
        first: Has read the same before. What it saw changed is left out.
        looks: Whether it adds to what is used, and reads no other method.
        above: Identities of what is being told while this tells a part of it.
        looks_behind: Whether imports inside functions, modules that packages lead to, and objects
            in classes are read too, which earlier versions did not.

    Attributes:
        filled: By identity the containers that code fills.
        rebound: Variables that code sets, by their scope; attributes, by their object.
    """

    def __init__(
        self,
        used: set[Any] | None = None,
        first: _Code | None = None,
        looks: bool = False,
        above: frozenset[int] = frozenset(),
        looks_behind: bool = False,
    ) -> None:
        self._used, self._looks, self._above = used, looks, above
        self._looks_behind = looks_behind
        self._number: dict[int, int] = {}
        self._alive: list[Any] = []  # what has a number, so that nothing else gets its identity
        self.filled: dict[int, Any] = {}  # with the values, which live as long
        self.rebound = set[tuple[int, str]]()
        self._first = first
        self._filled = {} if first is None else first.filled
        self._rebound = set[tuple[int, str]]() if first is None else first.rebound

    def of(self, value: Any, home: str) -> Any:
        """A value as plain data.

        Args:
            value: What the code of a module reads.
            home: Name of this module, whose own functions and classes count if it is installed.
        """
        if id(value) in self._number:
            return {"<again>": self._number[id(value)]}
        if id(value) in self._above:
            return {"<again>": "above"}
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, ModuleType):
            return {"<module>": value.__name__}
        if isinstance(value, Path):  # a file of answers, of a cache: it may change while it is used
            return {"<path>": str(value)}
        self._number[id(value)] = len(self._number)
        self._alive.append(value)
        above = self._above
        self._above = above | {id(value)}
        try:
            return self._told(value, home)
        finally:
            self._above = above

    def _told(self, value: Any, home: str) -> Any:
        if id(value) in self._filled:
            value = emptied(value)
        if isinstance(value, functools.partial):
            if isinstance(value.func, FunctionType):
                self._mark(
                    value.func,
                    dict(zip(_arguments(value.func), value.args, strict=False)) | value.keywords,
                )
            return {"<partial>": self._each([value.func, value.args, value.keywords], home)}
        if isinstance(value, MethodType):
            return {"<method>": self._each([value.__func__, value.__self__], home)}
        if isinstance(value, CACHED):
            return self.of(value.__wrapped__, home)
        if isinstance(value, list | tuple | dict):
            with suppress(TypeError, ValueError, RecursionError):  # many are plain, and fast so
                return {"<data>": digest_of(json_of(self._without_filled(value)))}
        if isinstance(value, list | tuple):
            return self._each(value, home)
        if isinstance(value, dict):
            pairs = cast(dict[Any, Any], value).items()
            return {"<dict>": [[self._data(key), self.of(one, home)] for key, one in pairs]}
        own = not home or is_own(value, home)
        if isinstance(value, FunctionType | type) and own:
            return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        if callable(value) and hasattr(value, "__qualname__"):
            return {"<name>": f"{getattr(value, '__module__', '')}.{value.__qualname__}"}
        return self._object(value, home)

    def _without_filled(self, value: Any) -> Any:
        """Plain data, in which what code fills is empty."""
        if not self._filled or isinstance(value, PLAIN):
            return value
        if id(value) in self._filled:
            return emptied(value)
        if isinstance(value, list | tuple):
            return [self._without_filled(one) for one in cast(list[Any], value)]
        if isinstance(value, dict):
            pairs = cast(dict[Any, Any], value).items()
            return {key: self._without_filled(one) for key, one in pairs}
        return value

    def _each(self, values: Any, home: str) -> list[Any]:
        return [self.of(value, home) for value in values]

    def _object(self, value: Any, home: str) -> Any:
        """Data by its content; an object of your class by the class and its attributes."""
        kind = type(value)
        if not home or (kind.__module__ != "builtins" and is_own(kind, home)):
            state = _state(value)
            set_anew = named_by(
                [c for m in self._methods(kind, value) for c in codes_in(m.__code__)], "STORE_ATTR"
            )
            for name in set_anew | {n for of, n in self._rebound if of == id(value)}:
                state.pop(name, None)
            home = kind.__module__
            fields = {name: self.of(state[name], home) for name in sorted(state)}
            return {"<object>": [self.of(kind, home), fields]}
        return self._data(value)

    def _data(self, value: Any) -> Any:
        """Data that code reads, by its content or, if it has none, by its kind."""
        try:
            return described(value, self._inside)
        except (Unknowable, RecursionError):
            return {"<object>": type(value).__qualname__}

    def _inside(self, function: Any) -> Any:
        """A function in data; there it does not matter what was told before."""
        new = _Code(above=self._above, looks_behind=self._looks_behind)
        return (self if self._looks else new).of(function, "")

    def _class(self, kind: type) -> Any:
        """The code of a class, of those above it, and its attributes."""
        found: dict[str, Any] = {}
        self._methods(kind, kind)
        for base in kind.__mro__[:-1]:
            if base is not kind and not is_own(base, kind.__module__):
                found[base.__qualname__] = None
                continue
            if self._looks_behind and (fields := fields_of(base)):
                found[f"{base.__qualname__} fields"] = self.of(fields, base.__module__)
            for name, value in sorted(vars(base).items()):
                value = inside(value, self._looks_behind)
                is_left_out = (id(base), name) in self._rebound
                if self._looks and isinstance(value, FunctionType):
                    is_left_out = name in _MAKES or not self._may_run(kind, name, value)
                is_told = is_written(name, value, base, self._looks_behind) or (
                    self._looks_behind and is_object(name, value, base)
                )
                if is_told and not is_left_out:
                    found[f"{base.__qualname__}.{name}"] = self.of(value, base.__module__)
        return {"<class>": found}

    def _may_run(self, kind: type, name: str, method: FunctionType) -> bool:
        """Whether a call may run a method: a special one, or one that code names.

        The code of packages, which is not read, may run all that a class of theirs has.
        """
        if self._used is None or not all(is_own(b, kind.__module__) for b in kind.__mro__[:-1]):
            return True
        return name.startswith("__") or name in self._used or method.__code__ in self._used

    def _methods(self, kind: type, value: Any) -> list[FunctionType]:
        """Those that may change a value in a call; what they change in place is noted."""
        found: list[FunctionType] = []
        for base in kind.__mro__:
            for name, one in vars(base).items():
                method = inside(one, self._looks_behind)
                is_method = isinstance(method, FunctionType) and name not in _MAKES
                if not is_method or not self._may_run(kind, name, method):
                    continue
                if is_own(base, kind.__module__):
                    self._mark(method, dict.fromkeys(("", *_arguments(method)[:1]), value))
                if method is one or self._first is not None:  # earlier versions saw no others
                    found.append(method)
        return found

    def _mark(self, function: FunctionType, scope: Mapping[str, Any]) -> None:
        """Notes what a function changes of the values that its variables have."""
        home = function.__module__
        for root, path, attribute in _changes(function):
            places = [scope.get(root)]
            for name in path:
                places.append(inspect.getattr_static(places[-1], name, None))
            if attribute:
                self.rebound.add((id(places[-1]), attribute))
            for place in places:
                is_code = isinstance(place, (*PLAIN, ModuleType, FunctionType, type))
                if is_container(place) or not (is_code or is_own(type(place), home)):
                    self.filled[id(place)] = place

    def _function(self, function: FunctionType) -> Any:
        home, code = function.__module__, function.__code__
        read: dict[str, Any] = {}
        scope = dict.fromkeys(code.co_names, id(function.__globals__))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            scope[name] = id(cell)
            with suppress(ValueError):  # not filled yet
                read[name] = cell.cell_contents
        codes = list(codes_in(code))
        if self._looks and self._used is not None:
            self._used |= {code, *(n for c in codes for n in (*c.co_names, *_flat(c.co_consts)))}
        used = named_by(codes, "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
        read |= {name: function.__globals__[name] for name in used & function.__globals__.keys()}
        changed = named_by(codes, "STORE_GLOBAL", "STORE_DEREF")
        self.rebound |= {(scope.get(name, id(function.__globals__)), name) for name in changed}
        changed |= {name for name in read if (scope.get(name), name) in self._rebound}
        source = source_of(function)
        behind: dict[str, Any] = {}
        if self._looks_behind and source is not None:
            behind = imports_in(source, function.__globals__.get("__package__"))
        given = zip(_arguments(function)[::-1], (function.__defaults__ or ())[::-1], strict=False)
        self._mark(function, behind | read | dict(given) | (function.__kwdefaults__ or {}))
        told = {name: self.of(read[name], home) for name in sorted(read.keys() - changed)}
        for name, module in sorted(read.items()):
            if isinstance(module, ModuleType) and is_own(module, home):
                members = {n for c in codes for n in c.co_names} & vars(module).keys()
                told[name] = {n: self.of(vars(module)[n], home) for n in sorted(members)}
        if self._looks_behind and source is not None:
            behind |= modules_behind(source, behind | read, home)
            names = {n for c in codes for n in c.co_names}
            for name, one in sorted(behind.items()):
                told[f"import {name}"] = self._imported(one, names, home)
        defaults = [function.__defaults__, function.__kwdefaults__]
        return {
            "<function>": [
                source or bytecode_of(code),
                told,
                self._each(defaults, home),
            ]
        }

    def _imported(self, value: Any, names: set[str], home: str) -> Any:
        """A value that code imports; a module by those of its variables that code names."""
        if not isinstance(value, ModuleType) or not is_own(value, home):
            return self.of(value, home)
        scope = vars(value)
        rebound = {name for of, name in self._rebound if of in (id(scope), id(value))}
        return {n: self.of(scope[n], home) for n in sorted(names & scope.keys() - rebound)}


def _flat(constants: Iterable[Any]) -> Iterator[Any]:
    """Constants of code, also those in tuples."""
    for one in constants:
        yield one
        if isinstance(one, tuple | frozenset):
            yield from _flat(cast(tuple[Any, ...], one))


def _arguments(function: FunctionType) -> tuple[str, ...]:
    """Those that have a position."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _state(value: Any) -> dict[str, Any]:
    """Attributes of an object, or what it says of them by `__getstate__`."""
    state = value.__getstate__()
    parts: Any = state if isinstance(state, tuple) else (state,)  # those in slots come second
    if not all(part is None or isinstance(part, dict) for part in parts):
        return {"": state}
    return {name: one for part in parts if part for name, one in part.items()}


@functools.lru_cache(maxsize=4096)
def _changes(function: FunctionType) -> tuple[Change, ...]:
    """What it changes in place; nothing is known without its source."""
    source = source_of(function)
    return () if source is None else tuple(changes_in(source))
