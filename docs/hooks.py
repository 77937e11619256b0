"""Adds to the site: executed notebooks, benchmark results, configuration keys, modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from config_keys import configuration
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from modules import with_modules

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / "build" / "notebooks"  # by `make notebooks`
MOVED = {  # addresses that others may have kept
    "multiruns.html": "howto/multiruns.html",
    "live.html": "howto/live.html",
    "howto/own-endpoint.html": "live.html",
    "explanation/reading-a-result.html": "../reference/files.html",
}
KEYS = "<!-- the keys of conf/ -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages that are not files in docs/."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    files.append(File.generated(config, "benchmarks.md", content=results))
    for old, new in MOVED.items():
        moved = f'<meta http-equiv="refresh" content="0; url={new}">'
        files.append(File.generated(config, old, content=moved))
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        for name, content in _notebook(source):
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Points links to files outside docs/ at their pages; inserts keys and modules."""
    here = PurePosixPath(page.file.src_uri).parent

    def onto_page(link: re.Match[str]) -> str:
        inside = _resolve(here, link[1])
        if inside is None:
            return link[0]
        return f"]({'../' * len(here.parts)}{inside}{link[2] or ''})"

    markdown = re.sub(r"\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)", onto_page, markdown)
    if KEYS in markdown:
        markdown = markdown.replace(KEYS, "\n".join(configuration()))
    return with_modules(markdown)


def _resolve(here: PurePosixPath, target: str) -> str | None:
    """The page of a file outside docs/; None for a file in docs/."""
    path = (ROOT / "docs" / here / target).resolve().relative_to(ROOT)
    if path == Path("benchmarks/RESULTS.md"):
        return "benchmarks.md"
    if path.parent == Path("notebooks"):
        return path.with_suffix(".md").as_posix()
    return None


def _notebook(source: Path) -> Iterator[tuple[str, str | bytes]]:
    """An executed notebook as a page with its figures."""
    from nbconvert import MarkdownExporter

    executed = EXECUTED / source.with_suffix(".ipynb").name
    if not executed.exists() or executed.stat().st_mtime < source.stat().st_mtime:
        raise PluginError(f"{executed} is missing or old; run `make notebooks`")
    page, resources = MarkdownExporter().from_filename(str(executed))
    for name, content in resources["outputs"].items():
        figure = f"{source.stem}_{name}"
        page = page.replace(f"]({name})", f"]({figure})")
        yield figure, content
    yield f"{source.stem}.md", page
