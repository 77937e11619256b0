"""The reference covers the package: every public module has a place on a page."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ("scope_torch.cli.",)  # on reference/command-line.md


@pytest.fixture
def pages(monkeypatch):
    """The module that puts modules onto pages."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import modules

    return modules


def test_every_module_is_in_the_reference_once(pages):
    texts = [pages.with_modules(page.read_text()) for page in pages.PAGES.glob("*.md")]
    names = [name for text in texts for name in pages.named(text)]
    public = {name for name in pages.public_modules() if not name.startswith(ELSEWHERE)}
    assert len(public) > 150
    assert public - set(names) == set()
    assert len(names) == len(set(names))


def test_a_page_is_completed_by_the_modules_that_none_names(pages):
    page = pages.with_modules("before\n<!-- the other modules of llm/ -->\nafter")
    names = pages.named(page)
    assert page.startswith("before\n::: scope_torch.llm.")
    assert page.endswith("\nafter")
    assert "scope_torch.llm.usage" in names
    assert "scope_torch.llm.client" not in names  # its page names it
    assert not [name for name in names if "._" in name]
