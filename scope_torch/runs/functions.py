"""The source of a function that runs, what it imports, and whether a package has it."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from scope_torch.runs.changes import codes_in
from scope_torch.runs.content import described, json_of

_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda


@functools.lru_cache(maxsize=4096)
def _installed(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" if file is None else _is_installed(file)


def _is_installed(file: str) -> bool:
    is_python = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return is_python or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def is_own(value: Any, home: str) -> bool:
    """Whether the code behind a name may change with yours: it is not that of a package."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and (module == home or not _installed(module))


def imports_in(source: str, package: str | None) -> dict[str, Any]:
    """What imports inside a function give to its variables, from modules that are yours.

    A module that was not imported yet is imported, as the function would do.

    Args:
        source: Of the function.
        package: That imports with dots begin from.
    """
    found: dict[str, Any] = {}
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                if (module := _yours(one.name)) is not None:
                    found[one.asname or top] = module if one.asname else sys.modules[top]
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            with suppress(ImportError):  # more dots than there are packages
                name = importlib.util.resolve_name(name, package)
            if (module := _yours(name)) is not None:
                for one in node.names:
                    if hasattr(module, one.name) or _yours(f"{name}.{one.name}") is not None:
                        found[one.asname or one.name] = getattr(module, one.name)
    return found


def _yours(name: str) -> ModuleType | None:
    """A module that a function imports; None if a package has it, or if it cannot be imported."""
    top = name.partition(".")[0]
    with suppress(Exception):  # the function may do without, or say it better
        spec = None if top == __name__.partition(".")[0] else importlib.util.find_spec(top)
        if spec is not None:
            files = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
            if files and not any(map(_is_installed, filter(None, files))):
                return import_module(name)
    return None


def modules_behind(source: str, scope: Mapping[str, Any], home: str) -> dict[str, ModuleType]:
    """Modules of yours that a function reaches through others, by their path: `lib.grading`.

    Args:
        source: Of the function.
        scope: What its variables hold.
        home: Name of its module.
    """
    found: dict[str, ModuleType] = {}
    for node in _nodes(source):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        path, value = getattr(node, "id", ""), scope.get(getattr(node, "id", ""))
        for name in names:
            if not isinstance(value, ModuleType):
                break
            path, value = f"{path}.{name}", vars(value).get(name)
            if isinstance(value, ModuleType) and is_own(value, home):
                found[path] = value
    return found


@functools.lru_cache(maxsize=4096)
def _nodes(source: str) -> list[ast.AST]:
    kinds = ast.Import | ast.ImportFrom | ast.Attribute
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def bytecode_of(code: CodeType) -> Any:
    """What runs where no source is known; other versions of Python have other bytecode."""
    constants = [
        bytecode_of(c) if isinstance(c, CodeType) else described(c, str) for c in code.co_consts
    ]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    numbers = [*sys.version_info[:2], code.co_argcount, code.co_kwonlyargcount, code.co_flags]
    return {"<bytecode>": [numbers, code.co_code.hex(), constants, *map(list, names)]}


def source_of(function: FunctionType) -> str | None:
    """The source of a function without comments and docstrings.

    None if it is not found, if another function on its line could be meant, or if the file is not
    what runs, because it was edited since.
    """
    file = function.__code__.co_filename
    if (known := _insource_of(function, file)) is None:
        linecache.checkcache(file)  # it may have been read before the function was loaded anew
        known = _insource_of(function, file)
    return known


def _insource_of(function: FunctionType, file: str) -> str | None:
    code = function.__code__
    nodes, codes = _read("".join(linecache.getlines(file, function.__globals__)), file)
    same = [json_of(bytecode_of(c)) for c in codes.get(code.co_firstlineno, ())]
    here = nodes.get(code.co_firstlineno, ())
    if len(here) != 1 or json_of(bytecode_of(code)) not in same:
        return None
    return ast.unparse(_bare(here[0]))


@functools.lru_cache(maxsize=16)
def _read(source: str, file: str) -> tuple[dict[int, list[ast.AST]], dict[int, list[CodeType]]]:
    """The functions of a file by their first line: as source, and as code."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # of notebooks
    nodes, codes = defaultdict[int, list[ast.AST]](list), defaultdict[int, list[CodeType]](list)
    with suppress(SyntaxError, ValueError, RecursionError):
        for code in codes_in(compile(source, file, "exec", flags, dont_inherit=True)):
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
