"""Names the modules of a folder on its page of the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
_REST = re.compile(r"^<!-- the other modules of (\w+)/ -->$", re.MULTILINE)
_NAMED = re.compile(r"^::: (\S+)", re.MULTILINE)


def public_modules(folder: str = "") -> Iterator[str]:
    """All modules in a folder of the package, by path; the competitors, behind a link, are none."""
    for path in sorted((ROOT / "scope_torch" / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "._" not in name:
            yield name


def with_modules(markdown: str) -> str:
    """A page with a line for each module of a folder that no page names itself."""
    return _REST.sub(lambda rest: "\n\n".join(f"::: {name}" for name in _others(rest[1])), markdown)


def named(markdown: str) -> list[str]:
    """The modules that a page documents."""
    return _NAMED.findall(markdown)


@cache
def _others(folder: str) -> tuple[str, ...]:
    own = {name for page in PAGES.glob("*.md") for name in named(page.read_text())}
    return tuple(name for name in public_modules(folder) if name not in own)
