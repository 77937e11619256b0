"""The site: no warnings, and no link that leads nowhere.

Its notebooks are executed in `make test-long` alone.
"""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from long_runs import IS_LONG

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("baselines", "benchmarks", "conf", "docs", "notebooks", "scope_torch", "scripts")
SEARCH = "  - search\n"


class Page(HTMLParser):
    """Collects what a page links to, loads and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("img", "script") and values.get("src"):
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def site(tmp_path) -> Path:
    for name in ("mkdocs", "material", "mkdocstrings_handlers.python", "jupytext", "nbconvert"):
        pytest.importorskip(name, reason=f"{name} is missing: pip install -e '.[docs]'")
    copy = tmp_path
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    config = (ROOT / "mkdocs.yml").read_text()
    assert SEARCH in config
    if not IS_LONG:  # its index takes a quarter of the time, and no link leads there
        config = config.replace(SEARCH, "")
    (copy / "mkdocs.yml").write_text(config)
    paths = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "SCOPE_CACHE_DIR": str(copy / "cache")}

    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=copy, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    (copy / "build" / "notebooks").mkdir(parents=True)
    kernel = ["--execute", "--set-kernel", "python3"] if IS_LONG else []
    notebooks = sorted((copy / "notebooks").glob("*.py"))
    python("jupytext", "-q", "--to", "ipynb", *kernel, *map(str, notebooks))
    for notebook in (copy / "notebooks").glob("*.ipynb"):
        notebook.rename(copy / "build" / "notebooks" / notebook.name)
    python("mkdocs", "build", "--strict")
    return copy / "site"


def read(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def dead_links(site: Path) -> list[str]:
    """Links to pages and anchors of the site that are not there."""
    dead, pages = [], read(site)
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            found = target.exists()
            if found and parts.fragment and not parts.fragment.startswith("__"):  # of the theme
                found = unquote(parts.fragment) in pages[target].ids
            if not found:
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text("<h1 id=top></h1><a href=b.html#there></a><a href=#top></a>")
    (tmp_path / "b.html").write_text("<a href=a.html#top></a><a href=c.html></a><h2 id=here></h2>")
    assert dead_links(tmp_path) == ["a.html: b.html#there", "b.html: c.html"]


@pytest.mark.slow
def test_the_site(site):
    pages = read(site)
    assert len(pages) > 25
    assert dead_links(site) == []
    for path, page in pages.items():
        for source in page.loaded:
            parts = urlsplit(source)
            assert not parts.netloc, f"{path} loads {source}"
            assert (path.parent / unquote(parts.path)).exists(), f"{path} loads {source}"
    keys = "".join(pages[site / "reference/configuration.html"].text)
    assert "method.bounds.b_g" in keys
    assert "task=hotpotqa" in keys
    problem = pages[site / "reference/problem.html"]
    assert "scope_torch.problem.SelectionProblem" in problem.ids
    if not IS_LONG:
        return  # tests/notebooks runs them
    shown = "".join(pages[site / "notebooks/quickstart.html"].text)
    assert "certified on these 60 queries, all answered" in shown
    for name, figures in {"quickstart": 1, "reading_a_result": 2, "surrogate": 3}.items():
        loaded = pages[site / f"notebooks/{name}.html"].loaded
        assert sum(source.endswith(".png") for source in loaded) == figures
