"""Each line of the page about wrong results names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/what-can-go-wrong.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| what", "| ---"))
]


def test_the_page_has_lines():
    assert len(ROWS) >= 19


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_line_has_its_tests(row):
    names = re.findall(r"`([\w/]+(?:\.py|/))`", row[2])
    assert names
    for name in names:
        path = ROOT / "tests" / name
        files = sorted(path.glob("test_*.py")) if name.endswith("/") else [path]
        assert files
        assert all("\ndef test_" in file.read_text() for file in files)
