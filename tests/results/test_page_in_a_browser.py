"""The decision page in headless Chromium: nothing overflows, everything can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import matplotlib.image
import pytest
from results.pages import NOW, search

import scope_torch as st
from scope_torch.methods import make_scope_joint
from scope_torch.runs.recorded import read_run
from scope_torch.tasks.simulated import simulated_task
from scope_torch.watch.page import page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium"),
]
in_browser = pytest.mark.parametrize("name", ["table", "selection", "large", "unfinished"])
LONG = "a name of an LLM that somebody made long/with-a-version-2026-11-23-and-no-place-to-break"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    search(folder / "run")
    (folder / "table.html").write_text(page(read_run(folder / "run"), NOW))
    search(folder / "cut", budget=0.3)
    (folder / "cut" / "result.json").unlink()
    (folder / "unfinished.html").write_text(page(read_run(folder / "cut"), NOW))
    task = simulated_task(name="large", world="text_to_sql")
    method = make_scope_joint(task.problem, base="GPT-5-nano", seed=0)
    search(folder / "sim", budget=1.0, method=method, task=task)
    (folder / "large.html").write_text(page(read_run(folder / "sim"), NOW))
    price = {LONG: 1e-4, "pro": 1e-2}
    result = st.select(
        lambda models, text: (text.upper() * 60, price[models["answer"]]),
        models={"answer": list(price)},
        dataset=[(f"question {i} " + "x" * 90, "QUESTION" if i % 4 else "no") for i in range(30)],
        metric=lambda expected, output: float(output.startswith(expected)),
        reference="pro",
        max_quality_loss=0.4,
        budget_usd=3,
    )
    result.save(folder / "selection.html")
    return folder


def chromium(folder: Path, *arguments: str) -> str:
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, timeout=180, text=True).stdout


@pytest.mark.parametrize("width", [390, 1400])
@in_browser
class TestInABrowser:
    pytestmark = needs_browser

    def test_nothing_overflows(self, pages, tmp_path, name, width):
        """A frame of that width tells how wide its content is, with all folds open."""
        tells = (
            "<script>for (const d of document.querySelectorAll('details')) d.open = true;"
            "parent.postMessage([document.documentElement.scrollWidth, innerWidth,"
            " document.body.innerText.length].join(), '*')</script>"
        )
        html = (pages / f"{name}.html").read_text().replace("</body>", f"{tells}</body>")
        (tmp_path / "page.html").write_text(html)
        (tmp_path / "frame.html").write_text(
            "<script>onmessage = e => document.title = e.data</script>"
            f'<iframe src="page.html" width="{width}" height="3000" style="border:0"></iframe>'
        )
        dom = chromium(
            tmp_path, "--virtual-time-budget=4000", "--window-size=1500,1000", "--dump-dom",
            (tmp_path / "frame.html").as_uri(),
        )  # fmt: skip
        content, inner, letters = map(int, re.findall(r"<title>([\d,]+)<", dom)[0].split(","))
        assert inner == width
        assert content <= width
        assert letters > 500

    def test_it_is_drawn_light_and_dark(self, pages, tmp_path, name, width):
        brightness = []
        for mode in ("--blink-settings=preferredColorScheme=1", "--force-dark-mode"):
            picture = tmp_path / f"{len(brightness)}.png"
            size = f"--window-size={max(width, 500)},1500"
            chromium(
                tmp_path, size, mode, f"--screenshot={picture}", (pages / f"{name}.html").as_uri()
            )
            pixels = matplotlib.image.imread(picture)[..., :3]
            brightness.append(float(pixels.mean()))
            spread = pixels.max(-1) - pixels.min(-1)
            assert (spread > 0.25).mean() > 0.001  # coloured marks, not only text
        assert brightness[0] > 0.75
        assert brightness[1] < 0.3


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
def test_it_can_be_printed(pages, tmp_path):
    chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", (pages / "table.html").as_uri())
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"
    assert (tmp_path / "page.pdf").stat().st_size > 20_000


def variables(css: str) -> list[dict[str, str]]:
    """The colours of the light and of the dark page."""
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    first = dict(re.findall(r"--([\w-]+): ([^;]+);", light))
    return [first, first | dict(re.findall(r"--([\w-]+): ([^;]+);", dark))]


def luminance(rgb: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[float], other: list[float]) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(colour: str) -> list[float]:
    if colour.startswith("#"):
        return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [int(part) / 255 for part in colour.split()]


def test_texts_have_enough_contrast():
    """4.5 or more against what is behind them, also on the darkest shade of the table."""
    css = files("scope_torch.results.page").joinpath("templates", "page.css").read_text()
    shades = [float(share) for share in re.findall(r"rgb\(var\(--shade\) / ([\d.]+)\)", css)]
    assert len(shades) == 6
    for colours in variables(css):
        card, page_, poor = (rgb(colours[name]) for name in ("card", "page", "poor"))
        for name in ("ink", "soft", "a", "b", "good", "bad", "choice"):
            for behind in (card, page_):
                assert contrast(rgb(colours[name]), behind) >= 4.5, (name, colours[name])
        assert contrast(rgb(colours["soft"]), poor) >= 4.5
        for share in shades:
            shade = zip(rgb(colours["shade"]), card, strict=True)
            behind = [share * one + (1 - share) * other for one, other in shade]
            assert contrast(rgb(colours["ink"]), behind) >= 4.5, share
