"""The page of a run: its content, that it loads nothing, and its look in a browser."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
import sys
import threading
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest

from baselines.cei import CEI
from scope_torch.cli import watch
from scope_torch.cli.run import main as scope_torch_main
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.watch.candidates import candidates
from scope_torch.watch.chart import Chart, log_ticks, ticks
from scope_torch.watch.page import page

NOW = datetime(2026, 11, 21, 12, 0)
EVIL = '<script>alert("1")</script>'
VOID = {"meta", "path"}


def evil_task() -> Task:
    plain = synthetic_task(num_queries=30)
    table = plain.evaluator.table
    llms = tuple(EVIL if name == "medium" else name for name in plain.problem.llms[0])
    modules = ("plan & <b>think</b>", "solve")
    renamed = RecordedTable(
        modules, (llms, llms), table.queries, table.cost_usd, table.quality
    )  # fmt: skip
    problem = renamed.problem("<i>task</i>", ("frontier", "frontier"), 0.05)
    return Task(problem, TableEvaluator(renamed))


TASK = evil_task()


def search(run_dir: Path, budget: float = 2.0, callbacks=(), method=None):
    method = method or make_scope(TASK.problem, base="small", seed=0)
    return run(
        TASK.problem, method, TASK.evaluator, budget, run_dir=run_dir, callbacks=callbacks
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished")
    search(run_dir)
    return run_dir


class Page(HTMLParser):
    """Checks that tags are closed in order; collects the text and the attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or (tag == "path" and self.get_starttag_text()[-2:] != "/>"):
            self.open.append(tag)
        if tag == "meta":
            self.open.pop() if self.open[-1] == "meta" else None

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def refresh(self) -> str | None:
        metas = [attrs for tag, attrs in self.tags if tag == "meta"]
        return next((m["content"] for m in metas if m.get("http-equiv") == "refresh"), None)


def test_the_page_loads_nothing_and_escapes_everything(finished):
    html = page(read_run(finished), NOW)
    shown = Page(html)
    assert "script" not in {tag for tag, _ in shown.tags}
    attributes = {name for _, attrs in shown.tags for name in attrs}
    assert not attributes & {"src", "href", "srcset", "action", "data", "xlink:href"}
    assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import|https?:", html)
    for name in (EVIL, "plan & <b>think</b>", "<i>task</i>"):
        assert name in shown.text
        assert name not in html


def test_the_page_says_what_the_result_says(finished):
    recorded = read_run(finished)
    result, text = recorded.summary(), Page(page(recorded, NOW)).text
    assert "finished" in text
    assert f"θ_out: {result['basis']}" in text
    for llm in result["theta_out"].values():
        assert llm in text
    assert f"{result['spend_usd']:.4g} of 2 USD" in text
    assert f"{1000 * result['u_out_usd']:.4g} USD per 1000 queries" in text
    assert f"{1000 * result['gap_usd']:.4g} USD per 1000 queries" in text
    for line in result["assumptions"]:
        assert line.replace("theta_", "θ_").replace("<=", "≤") in text
    assert result["stop_reason"].replace("theta_", "θ_") in text
    for title in ("Cost of θ_out", "Average quality", "Optimality gap", "Candidates"):
        assert title in text


def test_every_candidate_is_listed_as_it_ended(finished):
    recorded = read_run(finished)
    trace = [r.row for r in recorded.rows]
    found = candidates(recorded)
    assert [turn.theta for turn in found] == [r.theta_cand for r in trace if r.event == "selected"]
    ended = [row for row in trace if row.event in ("pruned", "completed")]
    told = [turn for turn in found if turn.outcome != "cut short"]
    assert [(t.last.t, t.num_queries) for t in told] == [(r.t, r.num_queries) for r in ended]
    for turn, row in zip(told, ended, strict=True):
        reasons = {"completed": "completed"}
        if row.event == "pruned":
            reasons["pruned"] = "pruned: quality" if row.lower_g > 0 else "pruned: cost"
        assert turn.outcome == reasons[row.event]
    for turn in found:
        made = recorded.observations[turn.first.t : turn.first.t + turn.num_queries]
        assert {o.theta for o in made} <= {turn.theta}
        assert len(made) == turn.num_queries
    assert {turn.outcome for turn in found} >= {"pruned: quality", "pruned: cost"}


def test_a_method_without_bounds_has_a_page_too(tmp_path):
    search(tmp_path, method=CEI(TASK.problem, seed=0))
    recorded = read_run(tmp_path)
    text = Page(page(recorded, NOW)).text
    assert "nothing is certified" in text
    assert "Optimality gap" not in text
    num_evaluated = sum(r.row.event in ("completed", "improved") for r in recorded.rows)
    assert sum(t.outcome == "completed" for t in candidates(recorded)) == num_evaluated > 3


class Looks(Callback):
    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.pages = run_dir, []

    def observed(self, observation, spend_usd):
        if len(self.pages) < 400:
            self.pages.append(Page(page(read_run(self.run_dir), NOW, refresh_s=2)))


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    looks = Looks(tmp_path)
    search(tmp_path, budget=0.6, callbacks=[looks])
    assert "none selected yet" in looks.pages[0].text
    assert "accepted (tuned) means" in looks.pages[0].text
    assert {shown.refresh() for shown in looks.pages} == {"2"}
    assert all("running" in shown.text for shown in looks.pages)
    assert any("in progress" in shown.text for shown in looks.pages)
    assert any("θ_out: accepted (tuned)" in shown.text for shown in looks.pages)


def test_a_run_that_crashed_is_shown_with_its_error(tmp_path):
    search(tmp_path, budget=0.5)
    (tmp_path / "result.json").unlink()
    assert "interrupted" in Page(page(read_run(tmp_path), NOW)).text
    (tmp_path / "error.log").write_text(f"Traceback\nValueError: {EVIL}\n")
    shown = Page(page(read_run(tmp_path), NOW))
    assert "failed" in shown.text
    assert f"ValueError: {EVIL}" in shown.text


def test_the_command_writes_the_page_and_names_it(finished, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["scope-torch", "watch", str(finished), "--follow"])
    scope_torch_main()
    out = capsys.readouterr().out.strip()
    assert out == (finished / "watch.html").resolve().as_uri()
    assert Page((finished / "watch.html").read_text()).refresh() is None
    watch.main([str(finished), "--output", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere is not the directory of a run"),
        (["{parent}"], "name one of the 1 runs below it"),
        (["{run}", "--follow", "--every=0"], "--every=0 must be at least 0.1"),
        ([], "run_dir"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(arguments, named, tmp_path, capsys):
    search(tmp_path / "run", budget=0.1)
    filled = [a.format(parent=tmp_path, run=tmp_path / "run") for a in arguments]
    with pytest.raises(SystemExit) as stop:
        watch.main(filled)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_following_waits_for_a_run_and_ends_with_it(tmp_path):
    run_dir = tmp_path / "later"
    follower = threading.Thread(target=watch.watch, args=(run_dir, None, 0.1))
    follower.start()
    search(run_dir)
    follower.join(timeout=60)
    assert not follower.is_alive()
    shown = Page((run_dir / "watch.html").read_text())
    assert "finished" in shown.text
    assert shown.refresh() is None


def test_steps_are_drawn_where_the_values_are():
    chart = Chart("a", "x [USD]", "y", x_max=4.0, height=220)
    chart.steps([(1.0, 0.0), (2.0, 10.0)], 4.0, "a", "b")
    (path,) = re.findall(r'class="line a" d="M([^"]*)"', chart.html())
    points = [tuple(map(float, point.split())) for point in path.split("L")]
    grid = [float(y) for y in re.findall(r'class="grid" d="M60 ([\d.]+)', chart.html())]
    texts = [float(t) for t in re.findall(r'text-anchor="end">([\d.]+)<', chart.html())]
    at = dict(zip(texts, grid, strict=True))
    x_ticks = {
        float(label): float(x)
        for x, label in re.findall(r'<text x="([\d.]+)" y="197" [^>]*>([\d.]+)<', chart.html())
    }
    corners = [(1, 0), (2, 0), (2, 10), (4, 10)]
    assert points == [(pytest.approx(x_ticks[x], abs=0.1), pytest.approx(at[y], abs=0.1))
                      for x, y in corners]  # fmt: skip


@pytest.mark.parametrize("high", [1e-6, 0.03, 1.0, 7.3, 190, 2293, 1e7])
def test_ticks_are_few_and_round(high):
    found = ticks(0.0, high)
    assert 4 <= len(found) <= 7
    assert found[0] == 0
    assert found[-1] <= high * (1 + 1e-9)
    steps = {round(b - a, 12) for a, b in itertools.pairwise(found)}
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    for ratio in (1.3, 5, 200, 1e6):
        logs = log_ticks(high, high * ratio)
        assert len(logs) <= 8
        assert all(high <= y <= high * ratio for y in logs)
        assert all(round(y / 10 ** math.floor(math.log10(y) + 1e-9), 9) in (1, 2, 3, 5)
                   for y in logs)  # fmt: skip


def test_a_browser_draws_it_light_and_dark(finished, tmp_path):
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium: apt-get install chromium")
    watch.main([str(finished), "--output", str(tmp_path / "page.html")])
    brightness = []
    for mode in ("--blink-settings=preferredColorScheme=1", "--force-dark-mode"):
        picture = tmp_path / f"{len(brightness)}.png"
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,1500", mode,
            f"--screenshot={picture}", (tmp_path / "page.html").as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        pixels = matplotlib.image.imread(picture)[..., :3]
        assert pixels.shape[:2] == (1500, 1280)
        brightness.append(float(pixels.mean()))
        charts = pixels[500:1100].reshape(-1, 3)
        spread = (charts.max(1) - charts.min(1)) > 0.3
        assert spread.mean() > 0.002  # coloured lines and bars, not only text
    assert brightness[0] > 0.8
    assert brightness[1] < 0.3
