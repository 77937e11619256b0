"""Which attributes of a class its author wrote, and are no work of Python."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from types import FunctionType
from typing import Any

from scope_torch.runs.content import PLAIN, Unknowable, described
from scope_torch.runs.functions import is_own

CACHED = type(functools.lru_cache(len))
_MADE_IN = "<string>", dataclasses.__file__  # methods of a dataclass
_OF_DATACLASS = "init", "repr", "eq", "order", "unsafe_hash", "frozen"  # arguments
_OF_FIELD = "name", "init", "repr", "hash", "compare", "kw_only"
_INSIDE = "__func__", "fget", "func"  # of class methods, properties, cached properties


def inside(value: Any, looks_behind: bool) -> Any:
    """The function in a method of a class or a property; another value as it is.

    Args:
        value: Of an attribute.
        looks_behind: Whether what `partial` holds counts, and a function with a cache: earlier
            versions did not see them.
    """
    if looks_behind and isinstance(value, functools.partial):
        return value
    if looks_behind and isinstance(value, CACHED):
        return value.__wrapped__
    return next((getattr(value, name) for name in _INSIDE if hasattr(value, name)), value)


def is_written(name: str, value: Any, kind: type, looks_behind: bool) -> bool:
    """Whether an attribute is code or plain, and not made of fields, see `fields_of`.

    Earlier versions took `__repr__` for code of yours, and Python 3.13 adds `__replace__`.
    """
    is_special = name.startswith("__") and name != "__call__"
    if isinstance(value, FunctionType):
        if not (is_special and hasattr(kind, "__dataclass_fields__")):
            return True
        inner = inspect.unwrap(value) if looks_behind else value
        code = getattr(inner, "__code__", value.__code__)
        return code.co_filename not in (_MADE_IN if looks_behind else _MADE_IN[:1])
    return not is_special and isinstance(value, (*PLAIN, list, tuple, dict, set))


def fields_of(kind: type) -> list[Any]:
    """What a dataclass makes its methods of; empty for another class.

    Its own fields alone: those of a package are known by its name.
    """
    if "__dataclass_fields__" not in vars(kind):
        return []
    above = [getattr(base, "__dataclass_fields__", {}) for base in kind.__mro__[1:]]
    params: Any = getattr(kind, "__dataclass_params__", None)
    told: list[Any] = [[getattr(params, name, None) for name in _OF_DATACLASS]]
    for one in dataclasses.fields(kind):
        if not any(one is fields.get(one.name) for fields in above):
            given = [
                [] if x is dataclasses.MISSING else [x] for x in (one.default, one.default_factory)
            ]
            told.append([*(getattr(one, name) for name in _OF_FIELD), *given])
    return told


def is_object(name: str, value: Any, kind: type) -> bool:
    """Whether an attribute is an object with content: a pattern, a `frozenset`, one of your class.

    What is told elsewhere is not: members of an enum, fields of a dataclass.
    """
    is_special = name == "_abc_impl" or (name.startswith("__") and name != "__call__")
    if is_special or isinstance(kind, enum.EnumType):
        return False
    if dataclasses.is_dataclass(kind) and name in {one.name for one in dataclasses.fields(kind)}:
        return False
    if is_own(type(value), kind.__module__):
        return True
    if isinstance(value, functools.partial):  # from Python 3.13 on it has `__get__`, too
        return True
    if hasattr(type(value), "__get__"):  # slots, and what makes a `namedtuple`
        return False
    try:
        described(value, str)
    except (Unknowable, RecursionError):  # such as a lock
        return False
    return True
