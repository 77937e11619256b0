"""The table of a result, its disagreements with the reference, and its figure."""

import time
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import polars
import pytest
from matplotlib.collections import PathCollection
from results_for_tests import (
    RESULTS,
    answers_of,
    best_quality,
    joint,
    random_search,
    task,
    with_margin,
)

from scope_torch import SelectionProblem, make_scope, run
from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.observation import History, Observation
from scope_torch.results.estimate import Evidence
from scope_torch.results.held_out import HeldOut
from scope_torch.results.page.turns import candidates
from scope_torch.results.table import looked_at, table_of
from scope_torch.search.optimizer import Recommendation


def codes_of(result, row):
    return result.problem.codes([row[module] for module in result.problem.modules])


@pytest.mark.parametrize("make", RESULTS)
def test_each_configuration_once_with_its_answers(make):
    result = make()
    problem, table = result.problem, result.table()
    rows = {codes_of(result, row): row for row in table.iter_rows(named=True)}
    assert rows.keys() == {o.theta for o in result.history} | {problem.theta_ref}
    assert len(rows) == len(table)
    for theta, row in rows.items():
        answers = answers_of(result, theta)
        is_measured = theta == problem.theta_ref
        assert row["queries"] == (problem.num_queries if is_measured else len(answers))
        for name in ("cost", "quality"):
            value = row["cost_usd" if name == "cost" else name]
            assert row[f"{name}_lower"] <= value + 1e-12
            assert row[f"{name}_upper"] is None or value <= row[f"{name}_upper"] + 1e-12
        if len(answers) == problem.num_queries and theta != problem.theta_ref:
            costs, qualities = zip(*answers.values(), strict=True)
            assert row["cost_usd"] == pytest.approx(sum(costs) / len(answers))
            assert row["quality"] == pytest.approx(sum(qualities) / len(answers))
            assert row["quality_lower"] == row["quality_upper"] == row["quality"]
        if theta != problem.theta_ref:
            sure = sum(quality for _, quality in answers.values()) / problem.num_queries
            left = 1 - len(answers) / problem.num_queries
            assert sure - 1e-12 <= row["quality_lower"]
            assert row["quality_upper"] <= sure + left + 1e-12
    assert table["cost_usd"].is_sorted()


@pytest.mark.parametrize("make", RESULTS)
def test_the_status_is_how_the_turn_ended(make):
    result = make()
    s_0, out = result.problem.s_0, result.recommendation.theta
    status = {codes_of(result, r): r["status"] for r in result.table().iter_rows(named=True)}
    assert status[out] == "choice"
    if out != result.problem.theta_ref:
        assert status[result.problem.theta_ref] == "reference"
    was_out = {row.theta_out for row in result.trace}
    last = {row.theta_cand: row for row in result.trace if row.theta_cand is not None}
    for theta, said in status.items():
        answers = answers_of(result, theta)
        if said == "dropped: too poor" and make is not best_quality:
            mean = sum(q for _, q in answers.values()) / len(answers)
            known = len(answers) == result.problem.num_queries
            assert mean < s_0 if known else last[theta].lower_g > 0
        if said == "dropped: too dear" and len(answers) < result.problem.num_queries:
            assert last[theta].lower_c_usd > last[theta].u_out_usd
        if said in ("certified", "accepted"):
            assert theta in was_out
        if said == "not tried":
            assert theta not in last
        if said == "undecided":
            assert last[theta].event != "pruned"


def test_what_promises_too_little_for_its_certificate_is_neither_too_poor_nor_too_dear():
    result = with_margin()
    status = {codes_of(result, r): r["status"] for r in result.table().iter_rows(named=True)}
    given_up = [row for row in result.trace if row.event == "pruned"]
    neither = {r.theta_cand for r in given_up if r.lower_g <= 0 and r.lower_c_usd <= r.u_out_usd}
    assert len(neither) >= 3
    assert {status[theta] for theta in neither} == {"not certified"}
    turns = candidates(result.trace, 60, (0, 9.0), is_open=False)
    assert {turn.outcome for turn in turns if turn.theta in neither} == {"pruned"}


def test_the_counts_of_one_search():
    assert Counter(joint().table()["status"]) == {
        "dropped: too poor": 9,
        "dropped: too dear": 1,
        "undecided": 1,
        "not tried": 10,
        "choice": 1,
        "certified": 1,
        "reference": 1,
    }


@pytest.mark.slow
def test_a_table_of_1500_candidates_takes_no_longer_than_its_rows():
    """Four times as many candidates take about four times as long, not sixteen times."""
    llms = tuple(f"llm{i}" for i in range(40))
    values = {"reference_quality": 0.9, "reference_cost_usd": 1.0, "epsilon": 0.05}
    problem = SelectionProblem("big", ("a", "b"), (llms, llms), 20, (39, 39), **values)

    def table(number):
        history = type(joint().history)()
        for i in range(number):
            for q in range(20):
                history.append(Observation((i // 40, i % 40), q, 0.01 + i, float(q % 2)))
        evidence = Evidence(problem, history, (), {}, None)
        began = time.perf_counter()
        found = table_of(evidence, Recommendation((0, 0), "observed"))
        return len(found), time.perf_counter() - began

    table(10)
    for _ in range(4):  # other work on the machine slows one of them down
        (few, first), (many, second) = table(375), table(1500)
        assert (few, many) == (376, 1501)
        if second < 8 * first:
            break
    assert second < 8 * first


def test_a_module_that_is_called_like_a_column():
    problem, evaluator, _ = task()
    problem = replace(problem, modules=("quality", "status"))
    result = run(problem, make_scope(problem, base="small", seed=1), evaluator, 0.1)
    assert result.table().columns[:3] == ["module:quality", "module:status", "queries"]


def test_other_outcomes_have_a_column_where_they_were_measured():
    problem = task().problem
    other = tuple(0 if code else 1 for code in problem.theta_ref)
    seen = [
        Observation(other, 0, 0.1, 1.0, outcomes={"latency_s": 2.0, "status": 7.0}),
        Observation(other, 0, 0.1, 1.0, replicate=1, outcomes={"latency_s": 4.0, "status": 7.0}),
        Observation(other, 1, 0.1, 1.0, latency_s=9.0),
        Observation(other, 2, 0.0, 0.0, failed="app"),
    ]
    limits = [at_most("latency_s", 5, cap=90), at_most("status", 8, cap=90)]
    known = {"latency_s": 1.5, "status": 3.0}
    limited = replace(problem, constraints=limits, reference_outcomes=known)
    for searched, names in ((problem, ["latency_s"]), (limited, ["latency_s", "outcome:status"])):
        history = History()
        for one in seen:
            history.append(one)
        table = table_of(
            Evidence(searched, history, [], {}, None), Recommendation(other, "observed")
        )
        assert table.columns[-len(names) - 2 : -2] == names
        rows = {row["status"]: row for row in table.iter_rows(named=True)}
        is_limited = len(names) > 1  # a failed run then counts as the cap
        assert rows["choice"]["latency_s"] == ((3 + 9 + 90) / 3 if is_limited else 6.0)
        assert rows["reference"]["latency_s"] == (1.5 if is_limited else None)
        if is_limited:
            assert rows["choice"]["outcome:status"] == (7 + 90) / 2
    assert "latency_s" not in joint().table().columns


def test_an_outcome_with_a_cap_counts_in_the_table_as_in_the_search():
    """At most the cap, and the worst of a failed run: as the reference's average does."""
    latencies = 1.0, 1.0, 100.0
    problem = SelectionProblem(
        *("x", ("a",), (("mini", "pro"),), 4, (1,), 1.0, 0.2),
        epsilon=0.5,
        constraints=[at_most("latency_s", 4, cap=9)],
        reference_outcomes={"latency_s": 2.0},
    )
    runs = [Observation((0,), q, 0.1, 1.0, latency_s=s) for q, s in enumerate(latencies)]
    history = History()
    for one in [*runs, Observation((0,), 3, 0.1, 0.0, failed="app")]:
        history.append(one)
    evidence = Evidence(problem, history, [], {}, None)
    assert evidence.outcome((0,), "latency_s") == (1 + 1 + 9 + 9) / 4
    assert evidence.outcome((1,), "latency_s") == 2.0


def test_disagreements_are_the_queries_of_different_quality():
    result = joint()
    theirs = result.problem.reference_answers
    mine = answers_of(result, result.recommendation.theta)
    inputs = [f"question {q}" for q in range(60)]
    out, ref = result.recommendation.theta, result.problem.theta_ref
    answers = {(out, 8): "mine", (ref, 8): {"text": "theirs"}}
    golds = [f"gold {q}" for q in range(60)]
    found = replace(result, queries=inputs, answers=answers, expected=golds).disagreements()
    expected = {q for q, (_, quality) in mine.items() if quality != theirs[q][1]}
    assert set(found["query"]) == expected
    assert len(found) == len(expected) > 3
    for row in found.iter_rows(named=True):
        q = row["query"]
        assert (row["input"], row["expected"]) == (f"question {q}", f"gold {q}")
        assert (row["cost_usd_choice"], row["quality_choice"]) == mine[q]
        assert (row["cost_usd_reference"], row["quality_reference"]) == theirs[q]
        assert row["answer_choice"] == ("mine" if q == 8 else None)
        assert row["answer_reference"] == ("{'text': 'theirs'}" if q == 8 else None)
    worse = (found["quality_choice"] - found["quality_reference"]).to_list()
    assert worse == sorted(worse)


def test_half_a_surrogate_pair_in_an_answer():
    result, half = joint(), ["cut \ud83d"] * 60
    answers = {(result.recommendation.theta, q): half[0] for q in range(60)}
    found = replace(result, queries=half, answers=answers, expected=half).disagreements()
    for name in ("input", "expected", "answer_choice"):
        assert set(found[name]) == {"cut ?"}


def test_a_measured_reference_goes_before_told_averages():
    result = joint()
    theta = result.problem.theta_ref
    reference = [Observation(theta, q, 0.5, 0.25) for q in range(60)]
    found = replace(result, reference=reference).disagreements()
    assert len(found) == 60
    assert set(found["quality_reference"]) == {0.25}
    assert found.columns == [
        "query",
        "quality_choice",
        "quality_reference",
        "cost_usd_choice",
        "cost_usd_reference",
    ]
    assert found.schema["cost_usd_choice"] == polars.Float64


@pytest.mark.slow
def test_a_notebook_shows_pictures_and_tables():
    """Without pyplot, whose backend for notebooks shows figures where it was asked to."""
    result = joint()
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    choice = [Observation((0,), q, 0.01, 1.0) for q in range(40)]
    held_out = HeldOut(40, choice, [Observation((1,), q, 0.1, q > 3) for q in range(40)])
    bill = replace(result.bill, known_usd=1.0, num_known=3, prices={"<m>": {"at": "today"}})
    for shown, words in [
        (result.pareto(), ["basis", "USD/query", result.pareto().by_loss[0].basis]),
        (bill, ["total", "not paid", "&lt;m&gt;", "today"]),
        (held_out, ["choice", "1.00", "0.90", "0.1 (-0.06"]),
    ]:
        table = shown._repr_html_()
        ElementTree.fromstring(table)  # well-formed
        assert all(word in table for word in words), table


def test_disagreements_need_the_answers_of_the_reference():
    result = joint()
    unknown = replace(result, problem=replace(result.problem, reference_answers=None))
    with pytest.raises(InputError, match=r"only their averages.*reference_answers=\["):
        unknown.disagreements()


def test_a_kept_reference_agrees_with_itself():
    assert len(joint(0.05).disagreements()) == 0


@pytest.mark.parametrize(
    "make", [*RESULTS[::2], *(pytest.param(make, marks=pytest.mark.slow) for make in RESULTS[1::2])]
)
def test_the_figure_shows_each_configuration(make, tmp_path):
    result = make()
    path = tmp_path / "result.png"
    figure = result.plot(path)
    assert path.stat().st_size > 10_000
    (axes,) = figure.axes
    points = [c for c in axes.collections if isinstance(c, PathCollection)]
    assert sum(len(c.get_offsets()) for c in points) == len(result.table())
    handles, labels = axes.get_legend_handles_labels()
    assert {"reference", "looked at", "Pareto front"} <= set(labels)
    choice = next(
        handle for handle, label in zip(handles, labels, strict=True) if "choice, " in label
    )
    x, y = choice.get_offsets()[0]
    assert (x / 1000, y) == pytest.approx((result.cost_usd.value, result.quality.value))
    for line in axes.collections:
        if line not in points and hasattr(line, "get_segments"):
            for segment in line.get_segments():
                assert (segment[:, 1] >= 0).all()
                assert (segment[:, 1] <= 1).all()


@pytest.mark.slow
def test_figures_of_little_are_drawn(tmp_path):
    for result in (joint(1e-9), joint(0.05)):
        result.plot(tmp_path / "few.pdf")
    random_search().plot(tmp_path / "random.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"few.pdf", "random.svg"}


def test_one_configuration_that_is_free():
    values = {"reference_quality": 0.5, "reference_cost_usd": 1.0, "epsilon": 0.05}
    problem = SelectionProblem("one", ("a",), (("x",),), 4, (0,), **values)
    history = type(joint().history)()
    history.append(Observation((0,), 0, 0.0, 1.0))
    evidence = Evidence(problem, history, (), {}, None)
    (row,) = looked_at(evidence, Recommendation((0,), "reference"))
    assert (row["status"], row["queries"], row["cost_usd"]) == ("choice", 4, 1.0)


def test_a_figure_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        joint().plot(tmp_path / "missing" / "figure.png")
