"""`scope-torch evaluate --on search`: a live run gets c_bf and V, and `report` shows them."""

import contextlib
import csv
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
from airport_llms import airport_llm, few_airports  # noqa: F401
from live_cases import Script
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.cli import evaluate
from scope_torch.cli.report import _panels, report
from scope_torch.runs.directory import write_json
from scope_torch.runs.finished import load_runs
from scope_torch.runs.journal import Journal
from scope_torch.runs.recorded import read_run

BUDGET_USD = 0.003
LLMS = ["GPT-4.1 Nano", "GPT-5.2", "Qwen3-Next-80B-A3B", "gemma-3-4b"]
SEARCH = ["task=airport_city", "evaluator=live", "llm.concurrency=8", "llm.backoff_s=0"]
SEARCH += ["task.num_queries=12", "task.epsilon=0.1"]


class Airports(Script):
    """`Script`, but with the replies of `airport_llm`."""

    def __call__(self, request: dict):
        answer = super().__call__(request)
        return airport_llm(request) if isinstance(answer, str) else answer


@pytest.fixture
def measure_run(cli, capsys):
    """Runs `scope-torch evaluate` on a search; returns exit status, stdout and stderr."""

    def call(endpoint, run_dir: Path, *options: str, changed: str = "") -> tuple[int, str, str]:
        status = 0
        task = [*SEARCH, f"llm.base_url={endpoint.url}", *filter(None, [changed])]
        try:
            evaluate.main(["--run", str(run_dir), "--on", "search", *options, "--", *task])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    """Where the files of the search are kept for the tests that come later."""
    return tmp_path_factory.mktemp("searched")


@pytest.fixture
def search(cli, searched, tmp_path):
    """A run whose result changes several times, and the store of its answers."""

    def call(endpoint: FakeEndpoint) -> Path:
        if not (searched / "outputs").exists():
            given = [f"llm.base_url={endpoint.url}", f"budget_usd={BUDGET_USD}", "method=scope"]
            status, _, err = cli(*SEARCH, *given)
            assert (status, err) == (0, "")
            shutil.copytree(tmp_path, searched, dirs_exist_ok=True)
        shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
        (path,) = Path("outputs").rglob("result.json")
        return path.parent

    return call


def measured(run_dir: Path) -> dict:
    return json.loads((run_dir / "measured.json").read_text())


@pytest.mark.slow
def test_a_live_run_is_measured_and_reported(search, measure_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # figures take their time
    monkeypatch.delitem(sys.modules, "scope_torch.results.plotting", raising=False)
    with FakeEndpoint(airport_llm) as endpoint:
        run_dir = search(endpoint)
        assert "(measured)" not in report(Path("outputs"))
        assert load_runs(Path("outputs"))[1] == []
        asked = len(endpoint.requests)
        status, out, err = measure_run(endpoint, run_dir, "--out", "copy.json")
        assert (status, err) == (0, "")
        paid = len(endpoint.requests)
        assert measure_run(endpoint, run_dir)[:2] == (0, out)
        assert len(endpoint.requests) == paid
        status, again, _ = measure_run(endpoint, run_dir, "--repeats", "2")
        assert status == 0
        assert len(endpoint.requests) > paid  # the store keeps no answer to a second draw
        run = read_run(run_dir)
        thetas = list(dict.fromkeys(recorded.row.theta_out for recorded in run.rows))
        assert len(thetas) > 2
        assert paid - asked < 12 * 3 * (len(thetas) - 1)  # what the search has paid is stored
    content = json.loads(Path("copy.json").read_text())
    twice = measured(run_dir)
    assert [one["repeats"] for one in twice["results"]] == [0] + [2] * (len(thetas) - 1)
    for one, two in zip(content["results"], twice["results"], strict=True):
        assert two["quality"] == one["quality"]  # the endpoint always answers the same
        assert two["quality_se"] == (None if two["repeats"] == 0 else 0)
    check_curve(run, content)
    assert f"{content['results'][-1]['quality']:.3f}" in out
    assert "each once on 12 queries" in out
    assert "each 2 times on 12 queries" in again
    assert re.search(r"\| c_bf, USD/1000 +\|", out)
    assert re.search(r"\| parse +\| [\d.]+ \(", out)
    assert re.search(r"\| all +\| [\d.]+ ", out)
    text = report(Path("outputs"))
    assert re.search(r"\| airport_city +\| scope [^|]*\(measured\) \| 1 ", text)
    assert "the truth is unknown; each result of the search was run" in text
    (panel,) = _panels(load_runs(Path("outputs"))[0]).values()
    assert panel.title == "airport_city: one run (measured)"
    (row,) = csv.DictReader(Path("outputs/runs.csv").read_text().splitlines())
    assert float(row["violation"]) == pytest.approx(twice["curve"][-1]["violation"])
    reference = run.problem.reference_cost_usd
    for step in twice["curve"]:
        share = float(row[f"cost_{100 * step['share_of_budget']:.0f}"])
        assert share == pytest.approx(step["best_feasible_cost_usd"] / reference)
    assert row["measured_repeats"] == "2"
    last = twice["results"][thetas.index(run.rows[-1].row.theta_out)]
    assert float(row["feasible"]) == (last["quality"] >= run.problem.s_0)


def check_curve(run, content) -> None:
    """The numbers of `measured.json`, from its configurations and the trace by hand."""
    values = {
        tuple(one["theta"].values()): (one["cost_usd"], one["quality"])
        for one in content["results"]
    }
    steps = [(0.0, run.problem.theta_ref)]
    steps += [(r.row.from_budget_usd, r.row.theta_out) for r in run.rows]
    for step in content["curve"]:
        budget, best, shortfall = step["budget_usd"], math.inf, 0.0
        ends = [start for start, _ in steps[1:]] + [math.inf]
        for (start, theta), end in zip(steps, ends, strict=True):
            cost, quality = values[tuple(run.problem.names(theta).values())]
            if start <= budget and start < end and quality >= run.problem.s_0:
                best = min(best, cost)
            lasted = max(0.0, min(budget, end) - start)
            shortfall += lasted * max(0.0, 1 - quality / run.problem.s_0)
        assert budget == pytest.approx(step["share_of_budget"] * BUDGET_USD)
        assert step["best_feasible_cost_usd"] == pytest.approx(best)
        assert step["violation"] == pytest.approx(shortfall / budget, abs=1e-12)


class InterruptedBar:
    """A progress bar at whose 15th step the user presses Ctrl-C."""

    def __init__(self, **_) -> None:
        self.steps = 0

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def update(self) -> None:
        self.steps += 1
        if self.steps == 15:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_after_ctrl_c_a_measurement_goes_on(search, measure_run, monkeypatch):
    script = Airports()
    with FakeEndpoint(script) as endpoint:
        run_dir = search(endpoint)
        before = sum(script.paid.values())
        with monkeypatch.context() as patch:
            patch.setattr(evaluate, "tqdm", InterruptedBar)
            status, out, err = measure_run(endpoint, run_dir, "--repeats", "2")
        assert (status, out) == (130, "")
        assert "interrupted; the same command goes on" in err
        kept = [p.read_text().count("\n") for p in run_dir.glob("measured/*/*/journal.jsonl")]
        assert sum(kept) >= 15
        assert measure_run(endpoint, run_dir, "--repeats", "2")[0] == 0
        resumed = sum(script.paid.values()) - before
        found = measured(run_dir)
        after = {p: p.read_text() for p in run_dir.glob("measured/*/*/journal.jsonl")}
        assert measure_run(endpoint, run_dir, "--repeats", "2")[0] == 0
        assert measured(run_dir) == found
        assert all(path.read_text() == text for path, text in after.items())
        run_dir.joinpath("measured").rename("away")
        Path("responses.sqlite").rename("old.sqlite")
        assert measure_run(endpoint, run_dir, "--repeats", "2")[0] == 0
    # Without a stop it asks for the same number of calls, and 12 x 3 for the reference.
    assert sum(script.paid.values()) - before - resumed == resumed + 36
    lines = [line for text in after.values() for line in text.splitlines()]
    assert len(lines) == 2 * 12 * (len(found["results"]) - 1)


@pytest.mark.slow
def test_an_interrupted_measurement_pays_for_nothing_twice(search, measure_run):
    script, left = Airports(), [math.inf]

    def trouble(request: dict, number: int):
        left[0] -= 1
        return Status(401, message="expired") if left[0] < 0 else None

    script.trouble = trouble
    with FakeEndpoint(script) as endpoint:
        run_dir = search(endpoint)
        before = sum(script.paid.values())
        left[0] = 25
        status, out, err = measure_run(endpoint, run_dir, "--repeats", "2")
        assert (status, out) == (2, "")
        assert "answered 401" in err
        assert err.count("\n") == 1
        assert not (run_dir / "measured.json").exists()
        first = sum(script.paid.values())
        assert before < first <= before + 25
        left[0] = math.inf
        assert measure_run(endpoint, run_dir, "--repeats", "2")[0] == 0
        resumed, total = measured(run_dir), sum(script.paid.values())
        (run_dir / "measured").rename("away")
        Path("responses.sqlite").rename("old.sqlite")
        assert measure_run(endpoint, run_dir, "--repeats", "2")[0] == 0
    # Anew, with the reference: 12 queries, 3 calls each.
    assert sum(script.paid.values()) - total == total - before + 36
    assert measured(run_dir)["curve"] == resumed["curve"]


@pytest.mark.slow
def test_calls_without_a_reply_are_told(search, measure_run):
    script, left = Airports(), [0]

    def trouble(request: dict, number: int):
        left[0] -= 1
        return Status(500) if left[0] > 0 else None

    script.trouble = trouble
    with FakeEndpoint(script) as endpoint:
        run_dir = search(endpoint)
        left[0] = 4
        options = {"changed": "llm.retries=0"}
        status, out, _ = measure_run(endpoint, run_dir, "--repeats", "2", **options)
        assert status == 0
        told = f"3 answers failed and count as wrong; without {run_dir / 'measured'} they are asked"
        assert told in out
        assert told in measure_run(endpoint, run_dir, "--repeats", "2", **options)[1]
        (run_dir / "measured").rename("away")
        assert "failed" not in measure_run(endpoint, run_dir, "--repeats", "2", **options)[1]


@pytest.mark.slow
def test_a_run_that_went_on_is_measured_again(search, measure_run):
    with FakeEndpoint(airport_llm) as endpoint:
        run_dir = search(endpoint)
        measure_run(endpoint, run_dir)
        content = measured(run_dir)
        content["results"].pop()
        write_json(run_dir / "measured.json", {k: v for k, v in content.items() if k != "hash"})
        groups, remarks = load_runs(Path("outputs"))
        (run,) = groups[next(iter(groups))]
        assert run.curve is None
        assert "violation" not in run.measures()
        assert remarks == [f"went on after it was measured, measure it again: {run_dir}"]
        measure_run(endpoint, run_dir)
        assert load_runs(Path("outputs"))[1] == []


@pytest.mark.slow
def test_a_run_of_another_task_is_refused(search, measure_run):
    with FakeEndpoint(airport_llm) as endpoint:
        run_dir = search(endpoint)
        status, out, err = measure_run(endpoint, run_dir, changed="task.num_queries=11")
    assert (status, out) == (2, "")
    assert "give the arguments of that run: its task, LLMs and queries" in err
    assert err.count("\n") == 1
    assert not (run_dir / "measured").exists()


@pytest.mark.slow
def test_a_known_truth_stays_the_truth(cli, undrawn, capsys):
    """A simulated run can be measured too; `report` shows what is known."""
    task = ["task=data_imputation", f"task.llms=[{','.join(LLMS)}]", "task.epsilon=0.3"]
    search_only = ["base=gemma-3-4b", "budget_usd=1", "method=scope"]
    assert cli(*task, *search_only)[0] == 0
    (path,) = Path("outputs").rglob("result.json")
    before = report(Path("outputs"))
    evaluate.main(["--run", str(path.parent), "--on", "search", "--", *task])
    out = capsys.readouterr().out
    assert len(measured(path.parent)["results"]) > 1
    assert "in the paper, on held-out queries: reference 4.28, result of SCOPE 0.1;" in out
    content = measured(path.parent)
    run = read_run(path.parent)
    assert run.curve is not None
    for step in content["curve"]:
        assert step["violation"] == pytest.approx(float(run.curve.violation(step["budget_usd"])))
    assert report(Path("outputs")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--theta", "nano", "nano", "--on", "search"], "--on search needs --run"),
        (["--run", "absent", "--on", "search"], "absent is not the directory of a run"),
        (["--run", "absent", "--repeats", "2"], "--repeats 2 needs --on search"),
    ],
)
def test_wrong_arguments_are_one_line(cli, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        evaluate.main([*arguments, "--", "task=synthetic"])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_running_search_and_one_without_results_are_refused(cli, capsys):
    task = ["task=synthetic", "task.num_queries=7"]
    assert cli(*task, "budget_usd=0.05")[0] == 0
    (path,) = Path("outputs").rglob("trace.csv")
    arguments = ["--run", str(path.parent), "--on", "search", "--", *task]
    with (
        contextlib.closing(Journal(path.with_name("journal.jsonl"))),
        pytest.raises(SystemExit) as stop,
    ):
        evaluate.main(arguments)
    assert stop.value.code == 2
    assert "is still running; wait until it ends" in capsys.readouterr().err
    path.unlink()
    with pytest.raises(SystemExit) as stop:
        evaluate.main(arguments)
    assert stop.value.code == 2
    assert "has no trace.csv with results; run the search first" in capsys.readouterr().err
