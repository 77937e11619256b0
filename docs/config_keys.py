"""Tables of all configuration keys, in Markdown."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from scope_torch.options import DEFAULTS

ROOT = Path(__file__).resolve().parents[1]


def configuration() -> Iterator[str]:
    """One table for each dataclass of the schemas, and one for the files of conf/."""
    cli = ROOT / "scope_torch" / "cli"
    text = (cli / "task_schema.py").read_text() + (cli / "schema.py").read_text()
    registry = (cli / "registry.py").read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    options = meanings()
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    for name, prefix in _prefixes(classes, registry).items():
        about = " ".join((ast.get_docstring(classes[name]) or "").split())
        yield f"## {name}\n\n{about}\n"
        yield "| key | type | default | |\n| --- | --- | --- | --- |"
        for field in _fields(classes[name]):
            if ast.unparse(field.annotation) not in classes:
                yield _row(prefix, field, comments, options)
        yield ""
    yield "## Files of conf/\n\n| | |\n| --- | --- |"
    for path in sorted((ROOT / "conf").glob("*/*.yaml")):
        lines = path.read_text().splitlines()
        about = [line[2:] for line in lines if line.startswith("# ") and "@package" not in line]
        yield f"| `{path.parent.name}={path.stem}` | {' '.join(about)} |"


def _prefixes(classes: dict[str, ast.ClassDef], registry: str) -> dict[str, str]:
    """The prefix of each dataclass's keys: its group, or the key that holds it."""
    registered = re.findall(r'group="schema/(\w+)", name="\w+", node=(\w+)', registry)
    prefixes = {"Config": "", **{name: f"{group}." for group, name in registered}}
    for name in list(prefixes):
        for base in _bases(name, classes):
            prefixes.setdefault(base, prefixes[name])
        for field in _fields(classes[name]):
            if (kind := ast.unparse(field.annotation)) in classes and kind not in prefixes:
                prefixes[kind] = f"{prefixes[name]}{ast.unparse(field.target)}."
    return prefixes


def _bases(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The dataclasses from which one has keys."""
    for base in map(ast.unparse, classes[name].bases):
        yield base
        yield from _bases(base, classes)


def meanings() -> dict[str, str]:
    """What `scope_torch.options` says of each option."""
    tree = ast.parse((ROOT / "scope_torch" / "options.py").read_text())
    found = {}
    for node in tree.body:
        for field, text in pairwise(node.body) if isinstance(node, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return found


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
    return [field for field in fields if ast.unparse(field.target) != "_target_"]


def _row(
    prefix: str, field: ast.AnnAssign, comments: dict[int, str], options: dict[str, str]
) -> str:
    assert field.value is not None
    name = ast.unparse(field.target)
    lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
    comment = " ".join(comments[n].lstrip("# ") for n in lines if n in comments)
    comment = comment or (options.get(name, "") if prefix == "method." else "")
    kind = ast.unparse(field.annotation).replace(" | None", " or null")
    cells = [f"`{prefix}{name}`", f"`{kind}`", _default(field.value), comment]
    return "| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |"


def _default(value: ast.expr) -> str:
    """A default as it is written on the command line."""
    written = ast.unparse(value)
    special = {"MISSING": "required", "field(default_factory=list)": "`[]`"}
    special["field(default_factory=dict)"] = "`{}`"
    if written in special:
        return special[written]
    if isinstance(value, ast.Subscript):  # of DEFAULTS
        return f"`{json.dumps(DEFAULTS[ast.literal_eval(value.slice)])}`"
    if isinstance(value, ast.Constant):
        return f"`{json.dumps(value.value)}`" if value.value != "" else ""
    return f"`{written}`"
