"""The source of a function that runs, and whether it belongs to an installed package."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import sysconfig
from collections import defaultdict
from contextlib import suppress
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
    if file is None:
        return module != "__main__"
    is_python = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return is_python or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def is_own(value: Any, home: str) -> bool:
    """Whether the code behind a name may change with yours: it is not that of a package."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and (module == home or not _installed(module))


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
