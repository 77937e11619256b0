"""The decision page: it says what the result says, and loads nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from results.pages import EVIL, NOW, TASK, Page, search

import scope_torch as st
from scope_torch.baselines.cei import CEI
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.results.digits import usd
from scope_torch.results.page.page import page_of
from scope_torch.results.page.turns import candidates
from scope_torch.results.page.view import View
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.recorded import read_run
from scope_torch.tasks import Task
from scope_torch.tasks.constrained import with_constraints
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.watch.page import page
from scope_torch.watch.reading import result_of_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished")
    return run_dir, search(run_dir)


def shown(run_dir: Path, **more) -> Page:
    return Page(page(read_run(run_dir), NOW, **more))


@pytest.mark.slow
def test_the_page_loads_nothing_and_escapes_everything(finished):
    html = page(read_run(finished[0]), NOW)
    seen = Page(html)
    attributes = {name for _, attrs in seen.tags for name in attrs}
    assert not attributes & {"src", "href", "srcset", "action", "data", "xlink:href"}
    assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import|https?:", html)
    assert [tag for tag, _ in seen.tags].count("script") == 1  # it copies the choice
    for name in (EVIL, "plan & <b>think</b>", "<i>task</i>"):
        assert name in seen.text
        assert name not in html


@pytest.mark.slow
def test_no_character_hides_or_turns_what_follows():
    names = "\u202eevil", "nul\0", "esc\x1b[31m", "tab\t"
    problem = replace(TASK.problem, modules=("a", names[0]), name="".join(names[1:]))
    seen = Page(page_of(View(search(None, task=TASK._replace(problem=problem)), "finished", NOW)))
    assert "\ufffdevil" in seen.text
    assert "nul\ufffdesc\ufffd[31mtab\t" in seen.text
    assert not {"\u202e", "\0", "\x1b"} & set(seen.text)


def test_it_can_be_read_without_its_script(finished):
    run_dir, result = finished
    html = re.sub(r"<script>.*?</script>", "", page(read_run(run_dir), NOW), flags=re.DOTALL)
    assert result.problem.modules[0] in Page(html).text
    (button,) = [attrs for tag, attrs in Page(html).tags if tag == "button"]
    assert "hidden" in button  # the script shows it
    (copied,) = re.findall(r'<pre id="choice">(.*?)</pre>', html, re.DOTALL)
    assert json.loads(Page(f"<p>{copied}</p>").text) == result.choice


def test_the_first_sentences_are_those_of_the_result(finished):
    run_dir, result = finished
    words = shown(run_dir).words()
    choice, quality, grounds, *_ = str(result).splitlines()
    for sentence in (choice, quality[1:], grounds[1:]):
        assert sentence in words
    for llm in result.choice.values():
        assert llm in words
    for name, amount in result.bill.amounts.items():
        assert (name in words) == (amount > 0) or name in ("reference", "again")  # words


@pytest.mark.slow
def test_how_long_the_calls_take_one_by_one_and_many_at_a_time(finished, tmp_path):
    class Timed(TableEvaluator):
        def evaluate(self, requests):
            for one in super().evaluate(requests):
                yield replace(one, latency_s=60.0)

    result = search(tmp_path, task=Task(TASK.problem, Timed(TASK.evaluator.table)))
    number = len(result.history)
    assert 90 < number < 720
    assert result.summary()["timing"]["call_seconds"] == 60 * number
    hours = f"{number / 60:.1f} hours, with 8 at least {number / 8:.0f} minutes, with 32 at least"
    assert f"waiting, one call at a time{hours}" in shown(tmp_path).words()
    kept = list(result.history)[:10]
    assert replace(result, repeats=kept).call_seconds == 60 * (number - 10)
    assert "waiting, one" not in shown(finished[0]).words()  # nobody timed them
    assert finished[1].summary()["timing"]["call_seconds"] == 0


def test_symbols_of_the_paper_are_folded_away(finished):
    seen = shown(finished[0])
    assert not re.search(r"theta|θ|Θ|s_0|u_out|U_g|epsilon", seen.unfolded)
    assert "θ_out" in seen.text
    assert "u_out" in seen.text
    for line in finished[1].summary()["assumptions"]:
        assert line.replace("theta_", "θ_").replace("<=", "≤") in seen.text


def test_each_configuration_is_drawn_once_with_a_possible_interval(finished):
    run_dir, result = finished
    rows = result.table().to_dicts()
    html = page(read_run(run_dir), NOW)
    wide = html[html.index('<div class="wide">') : html.index('<div class="narrow">')]
    points = re.findall(r'<(?:circle|path) class="point (\w+)".*?<title>(.*?)</title>', wide)
    assert len(points) == len(rows) == len({hint for _, hint in points})
    styles = [style for style, _ in points]
    assert styles[-2:] == ["reference", "choice"]
    left, right, top, bottom = 64.0, 942.0, 83.0, 418.0
    for ends in re.findall(r'class="whisker \w+" d="M([\d.]+) ([\d.]+)([HV])([\d.]+)"', wide):
        x, y, kind, end = float(ends[0]), float(ends[1]), ends[2], float(ends[3])
        assert left <= x <= right
        assert top - 0.1 <= y <= bottom + 0.1
        assert left <= end <= right if kind == "H" else top - 0.1 <= end <= bottom + 0.1


def test_the_table_of_losses_is_the_front(finished):
    run_dir, result = finished
    words = shown(run_dir).words()
    assert "If you accept a loss of quality of" in words
    for row in result.pareto().by_loss:
        if row.epsilon in (0.01, 0.05, 0.1, 0.2):
            assert f"{row.quality:.2f}" in words
    proven = [row for row in result.pareto().by_loss if row.basis == "estimated"]
    assert ("looks good, not proven" in words) == bool(proven)


def test_the_heatmap_counts_different_queries(finished):
    run_dir, result = finished
    queries = {o.query for o in result.history if o.theta[0] == 0}
    html = page(read_run(run_dir), NOW)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', html, re.DOTALL)
    first = {Page(f"<p>{name}</p>").text: cells for name, cells in rows}
    cell = first[result.problem.llms[0][0]].split("</td>")[0]
    assert f"{len(queries)} quer" in cell
    assert len(rows) == len(result.problem.llms[0])


@pytest.mark.slow
def test_what_was_saved_is_what_is_read(finished, tmp_path):
    run_dir, result = finished
    path = result.save(tmp_path / "new" / "report.html")
    saved, read = Page(path.read_text()), shown(run_dir)

    def without_time(text):
        """Nor what the directory does not know: theta_0's answers, which the table has."""
        words = re.sub(r"read \S+ \S+ from \S+", "", " ".join(text.split()))
        return re.sub(r"Where choice and reference disagree.*(?=What this rests on)", "", words)

    assert without_time(saved.text) == without_time(read.text)
    recorded = result_of_run(read_run(run_dir))
    assert recorded.quality == result.quality
    assert recorded.cost_usd == result.cost_usd
    assert str(recorded) == str(result)


@pytest.mark.slow
def test_what_a_selection_measured_is_there(tmp_path):
    def app(models, text):
        right = models["answer"] != "nano" or len(text) % 5
        return text.upper() if right else EVIL * 20, {"nano": 1e-4, "mini": 2e-4, "pro": 1e-2}[
            models["answer"]
        ]

    result = st.select(
        app,
        models={"answer": ["nano", "mini", "pro"]},
        dataset=[(f"{10**i}", f"{10**i}".upper()) for i in range(40)],
        metric=st.metrics.exact_match,
        reference="pro",
        max_quality_loss=0.4,
        budget_usd=3,
        holdout=0.25,
        deployment_queries=10_000_000,
        run_dir=tmp_path / "run",
        allowed=lambda llms: llms["answer"] != "mini",
    )
    assert result.choice == {"answer": "nano"}
    seen = Page(result.save(tmp_path / "report.html").read_text())
    for word in ("reference", "preflight", "held out"):
        assert f"{word}" in seen.words()
    assert "disagree" in seen.words()
    assert EVIL in seen.text
    assert seen.of_class("answer")  # long answers are folded
    read = shown(tmp_path / "run").words()
    assert "searched 2 configurations" in str(result)
    assert "searched 2 configurations" in str(result_of_run(read_run(tmp_path / "run")))
    for name, amount in result.bill.amounts.items():
        assert (f"{name}{usd(amount)} USD" in read) == (amount > 0)
    assert f"total{usd(result.bill.total_usd)} USD" in read


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["cost", "quality"])
def test_constraints_and_the_other_objective(tmp_path, objective):
    task = synthetic_task(num_queries=40)
    limit = "cost_usd <= 0.01 cap 0.1"
    texts = [limit] if objective == "quality" else []
    task = with_constraints(task, texts, objective)
    result = search(tmp_path, method=make_scope_joint(task.problem, base="small"), task=task)
    words = shown(tmp_path).words()
    assert str(result).splitlines()[0] in words
    assert ("at most 10 USD" in words) == (objective == "quality")


@pytest.mark.slow
def test_a_method_without_bounds_has_a_page_too(tmp_path):
    result = search(tmp_path, method=CEI(TASK.problem, seed=0))
    seen = shown(tmp_path)
    assert "This method certifies nothing" in seen.text
    assert "Optimality gap" not in seen.text
    recorded = read_run(tmp_path)
    rows = [row.row for row in recorded.rows]
    seen_all = len(recorded.observations), recorded.spend_usd
    turns = candidates(rows, result.problem.num_queries, seen_all, is_open=False)
    evaluated = sum(row.event in ("completed", "improved") for row in rows)
    assert sum(turn.outcome == "completed" for turn in turns) == evaluated > 3


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.3, 3.0])
def test_candidates_that_were_open_at_once(tmp_path, budget):
    method = make_scope_joint(TASK.problem, base="small", seed=1, in_flight=6)
    result = search(tmp_path, method=method, budget=budget)
    assert shown(tmp_path).text.count("queries observed until pruned") >= 1
    rows, Q = result.trace, result.problem.num_queries
    found = candidates(rows, Q, (0, 9.0), is_open=False, overlap=True)
    ended = [row for row in rows if row.event in ("pruned", "completed")]
    told = [turn for turn in found if turn.outcome != "cut short"]
    by_end = sorted((turn.last.t, turn.theta, turn.num_queries) for turn in told)
    assert by_end == sorted((row.t, row.theta_cand, row.num_queries) for row in ended)
    assert [turn.theta for turn in found] == [
        row.theta_cand for row in rows if row.event == "selected"
    ]
    assert (len(told) < len(found)) == (result.stop_reason == "budget")


def test_a_run_that_found_nothing_keeps_the_reference(tmp_path):
    search(tmp_path, budget=0.001)
    seen = shown(tmp_path)
    assert "Keep the reference" in seen.words()
    assert seen.of_class("keep")


def test_every_candidate_is_counted_as_it_ended(finished):
    recorded = read_run(finished[0])
    trace = [r.row for r in recorded.rows]
    seen = len(recorded.observations), recorded.spend_usd
    found = candidates(trace, recorded.problem.num_queries, seen, is_open=False)
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


class Looks(Callback):
    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.pages = run_dir, []

    def observed(self, observation, spend_usd):
        if len(self.pages) < 400 and len(self.pages) % 10 == 0:
            self.pages.append(shown(self.run_dir, refresh_s=2))
        else:
            self.pages.append(self.pages[-1])


@pytest.mark.slow
def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    looks = Looks(tmp_path)
    search(tmp_path, budget=0.6, callbacks=[looks])
    assert {seen.refresh() for seen in looks.pages} == {"2"}
    assert all("running" in seen.text for seen in looks.pages)
    assert all("so far: the search has not ended" in seen.words() for seen in looks.pages)
    assert "Keep the reference" in looks.pages[0].words()
    assert any("Likely, not proven" in seen.words() for seen in looks.pages)
    assert any("in progress" in seen.text for seen in looks.pages)
    assert "accepted (tuned) means" in looks.pages[0].text


def test_a_run_that_crashed_is_shown_with_its_error(tmp_path):
    search(tmp_path, budget=0.5)
    (tmp_path / "result.json").unlink()
    assert "interrupted" in shown(tmp_path).text
    (tmp_path / "error.log").write_text(f"Traceback\nValueError: {EVIL}\n")
    seen = shown(tmp_path)
    assert "failed" in seen.text
    assert f"ValueError: {EVIL}" in seen.unfolded


@pytest.mark.slow
def test_a_result_of_an_earlier_version_has_a_page(tmp_path):
    """Without `estimates` the interval of the certificate is not computed again."""
    task = synthetic_task(num_queries=40)
    search(tmp_path, method=make_scope_joint(task.problem, base="small"), task=task)
    path = tmp_path / "result.json"
    content = json.loads(path.read_text())
    del content["estimates"], content["result_hash"], content["timing"]["hash"]
    path.write_text(json.dumps(content))
    recorded = result_of_run(read_run(tmp_path))
    assert recorded.quality.lower == task.problem.s_0 or recorded.quality.is_exact
    assert shown(tmp_path).words()


def test_scope_without_a_trace_is_shown():
    """A page right after the start: nothing was observed."""
    task = synthetic_task(num_queries=20)
    search_ = make_scope(task.problem, base="nano")
    result = search(None, budget=1e-9, method=search_, task=task)
    assert "Keep the reference" in str(result)


@pytest.mark.slow
def test_a_row_that_a_phone_stacks_names_each_of_its_cells(tmp_path):
    """The style shows these names where it hides the head of the table."""
    price = {"mini": 1e-4, "pro": 1e-2}
    result = st.select(
        lambda models, text: (text if models["answer"] == "pro" else "", price[models["answer"]]),
        models={"answer": list(price)},
        dataset=[(f"question {i}", f"question {i}") for i in range(30)],
        metric=lambda expected, output: float(expected == output or expected[-1] != "0"),
        reference="pro",
        max_quality_loss=0.4,
        budget_usd=3,
    )
    html = result.save(tmp_path / "report.html").read_text()
    (table,) = re.findall(r'<table class="stacked">.*?</table>', html, re.DOTALL)
    heads = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table)
    rows = table.split("<tr>")[2:]
    assert len(rows) == 3
    for row in rows:
        assert re.findall(r'<td[^>]* data-name="([^"]*)"', row) == heads
        assert row.count("<td") == len(heads) == 7
