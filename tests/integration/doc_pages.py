"""Markdown pages taken apart: fenced blocks, commands, links."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SLUG = re.compile(r"[^\w\- ]")


class Block(NamedTuple):
    """A fenced block; `path` is the file that the text before it names last, if it names one."""

    language: str
    content: str
    path: str | None


def blocks(page: Path) -> list[Block]:
    found, start = [], 0
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        named = re.findall(rf"`([\w/.-]+\.{fence[1]})`", text[start : fence.start()])
        found.append(Block(fence[1], fence[2], named[-1] if named else None))
        start = fence.end()
    return found


def python(page: Path) -> list[str]:
    return [block.content for block in blocks(page) if block.language == "python"]


def write_files(page: Path, directory: Path) -> list[Path]:
    """Writes the YAML and TOML files that a page shows."""
    written = []
    for block in blocks(page):
        if block.language in ("yaml", "toml") and block.path:
            path = directory / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.content)
            written.append(path)
    return written


def commands(page: Path) -> Iterator[list[str]]:
    """Arguments of every `scope-torch` in the blocks of a page."""
    for block in blocks(page):
        if block.language:
            continue
        for line in block.content.replace("\\\n", " ").splitlines():
            if line.startswith("scope-torch "):
                words = shlex.split(line.partition(" && ")[0], comments=True)
                yield [word for word in words[1:] if word != "..."]


def links(page: Path) -> list[str]:
    """Targets of the links and pictures of a page that are not on the web."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in targets if not target.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """What GitHub and mkdocs make of the headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {_SLUG.sub("", heading.lower()).replace(" ", "-") for heading in headings}
