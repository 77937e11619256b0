"""What code changes while it runs, such as a memo or a counter: that is no part of what it is."""

from __future__ import annotations

import ast
import copy
import dis
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

_CONTAINERS = MutableMapping, MutableSequence, MutableSet, np.ndarray
_CHANGING = {
    *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
    *("extendleft", "fill", "insert", "intersection_update", "move_to_end", "pop", "popitem"),
    *("popleft", "remove", "reverse", "rotate", "setdefault", "sort", "subtract"),
    *("symmetric_difference_update", "update"),
}


class Change(NamedTuple):
    """A change in place.

    Args:
        root: The variable whose value changes, or a part of it; "" for what a call returned.
        path: Names of attributes, from the variable to the part.
        attribute: The attribute that is set anew; "" if the part itself is changed.
    """

    root: str
    path: tuple[str, ...]
    attribute: str = ""


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A code and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def named_by(codes: Iterable[CodeType], *operations: str) -> set[str]:
    """Names in these operations of bytecode."""
    return {i.argval for c in codes for i in dis.get_instructions(c) if i.opname in operations}


def changes_in(source: str) -> Iterator[Change]:
    """What a function changes in place: by `x[k] = ...`, `x.append(...)`, `x.y = ...`.

    A variable that was set to another one, or to an attribute, stands for it. What is passed to
    another function is not looked for.

    Examples:
        >>> list(changes_in("def f(x): memo.setdefault(x, []).append(x); box.count += 1"))
        [Change(root='box', path=(), attribute='count'), Change(root='memo', path=(), attribute='')]
    """
    nodes = list(ast.walk(ast.parse(source)))
    meant: dict[str, ast.expr] = {}
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Name | ast.Attribute):
            meant |= {one.id: value for one in targets if isinstance(one, ast.Name)}
    found: set[Change] = set()
    for node in nodes:
        attribute = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.value if node.func.attr in _CHANGING else None
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed = node.value
            attribute = node.attr if isinstance(node, ast.Attribute) else ""
        else:
            continue
        if changed is not None and (place := _place(changed, meant)) is not None:
            found.add(Change(*place, attribute))
    yield from sorted(found)


def _place(node: ast.expr, meant: dict[str, ast.expr]) -> tuple[str, tuple[str, ...]] | None:
    """The variable and the attributes that lead to a value, or to what holds it."""
    names: list[str] = []
    followed: set[str] = set()
    while not isinstance(node, ast.Name) or (node.id in meant and node.id not in followed):
        if isinstance(node, ast.Name):
            followed.add(node.id)
            node = meant[node.id]
        elif isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):  # of what x[k] holds, x is the holder
            names.clear()
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # x.get(k)
            names.clear()
            node = node.func.value
        else:
            return ("", tuple(names)) if isinstance(node, ast.Call) else None
    return node.id, tuple(names)


def is_container(value: Any) -> bool:
    """Whether a value may be filled by code, and emptied."""
    return isinstance(value, _CONTAINERS)


def emptied(value: Any) -> Any:
    """A copy of a container without its content; what cannot be emptied is told by its kind."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1)[:0]
    try:
        empty = copy.copy(value)
        empty.clear()
    except Exception:
        return f"a {type(value).__qualname__}"
    return empty
