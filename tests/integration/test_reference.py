"""The reference covers the package: every public module has a place on a page."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ("scope_torch.cli.",)  # on reference/command-line.md


def listed() -> list[str]:
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


def modules() -> set[str]:
    paths = (ROOT / "scope_torch").rglob("*.py")  # without the competitors, behind a link
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    private = {name for name in names if re.search(r"\._", name)}
    return {name for name in names - private if not name.startswith(ELSEWHERE)}


def test_every_module_is_in_the_reference_once():
    names = listed()
    assert modules() - set(names) == set()
    assert len(names) == len(set(names))
