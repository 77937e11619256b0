"""`print(result)`, its `repr`, its HTML, and the page about results."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from results_for_tests import (
    RESULTS,
    best_quality,
    half_certified,
    joint,
    random_search,
)

from scope_torch import SelectionProblem, make_scope, run
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import History, Observation
from scope_torch.results.held_out import HeldOut
from scope_torch.results.words import in_words

ROOT = Path(__file__).resolve().parents[2]


def kept():
    return joint(0.05)


def held_out(number):
    sides = [[Observation((i, 0), q, 0.004, 1.0 * (q > i)) for q in range(number)] for i in (0, 1)]
    return HeldOut(number, *sides)


@pytest.mark.slow
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("make", [*RESULTS, random_search, kept])
def test_six_short_lines(make, more):
    result = make()
    if more:
        observations = [Observation(result.problem.theta_ref, 0, 0.123456, 1.0)]
        fields = {"reference": observations, "probe": observations, "surplus_usd": 0.0123}
        result = replace(result, **fields, held_out=held_out(1000), num_failed=1234)
    assert max(map(len, str(result).splitlines())) < 110
    lines = str(result).replace("\n  ", " ").splitlines()  # a long line goes on, indented
    assert len(lines) == 6
    assert not any(line.endswith("...") for line in lines)
    assert lines[0].startswith(("Use ", "Keep the reference "))
    assert lines[1].startswith("quality ")
    assert lines[2].startswith("certified" if result.certified else "not certified")
    assert re.fullmatch(r"searched [\d,]+ configurations, looked at .*; stopped: .*", lines[3])
    assert lines[4].startswith("bill ")
    assert lines[5].endswith('.save("models.json")')
    assert "\n" not in repr(result)
    assert len(repr(result)) < 110


def test_the_words_of_a_certified_choice():
    assert str(half_certified()).splitlines()[:3] == [
        "Use module_1=nano, module_2=nano: "
        "99.6% cheaper (0.261 instead of 60.6 USD per 1,000 queries)",
        "quality 0.45 against 0.44 (at least 0.351, with 95% confidence)",
        "certified with 95% confidence on these 400 queries, if answers do not vary",
    ]


def test_the_words_of_a_kept_reference():
    lines = str(kept()).splitlines()
    assert lines[0] == (
        "Keep the reference frontier in both modules: nothing cheaper was certified "
        "(43.1 USD per 1,000 queries)"
    )
    assert lines[2] == (
        "not certified: nothing cheaper than the reference was, and the budget is spent"
    )


def test_the_words_of_the_best_quality():
    lines = str(best_quality()).splitlines()
    assert lines[0] == (
        "Use module_1=medium, module_2=medium: quality 0.70 instead of 0.59, "
        "3.32 USD per 1,000 queries"
    )
    assert lines[2].endswith("its constraint holds")


def test_a_front_is_offered_only_where_there_is_one():
    result = best_quality()
    assert str(result).splitlines()[-1].startswith("more: .table() .plot() ")
    with pytest.raises(InputError, match=r"has no front: run.. makes one if a bound on quality is"):
        result.pareto()
    assert "more: .table() .pareto() .plot() " in str(joint())


def test_the_expected_return_of_another_usd():
    result = joint(0.05)
    more = replace(result, report={**result.report, "expected_return": 34.567})
    assert more.why.endswith("; another USD of search is expected to return 34.6 USD")
    done = replace(more, stop_reason="no candidate is expected to save more than finding out costs")
    assert "another USD" not in done.why


def test_the_bill_line_has_all_that_was_paid():
    result = replace(joint(), surplus_usd=0.0123, num_failed=3)
    spend = sum(o.cost_usd for o in result.history)
    expected = f"bill {spend + 0.0123:.2f} USD: search {spend:.2f}, in flight 0.012; 3 failed"
    assert str(result).splitlines()[4] == expected


def test_a_choice_that_is_dearer():
    result = best_quality()
    problem = replace(result.problem, objective="cost", epsilon=0.05, constraints=())
    dear = replace(
        result, problem=replace(problem, reference_cost_usd=0.001, reference_answers=None)
    )
    assert "232% dearer (3.32 instead of 1 USD" in str(dear)


def test_held_out_queries_have_their_place():
    result = replace(half_certified(), held_out=held_out(20))
    assert str(result).splitlines()[2] == (
        "certified with 95% confidence on these 400 queries, if answers do not vary; "
        "held out: 0.95 against 0.90"
    )


def test_names_that_html_would_take_for_tags():
    problem = SelectionProblem(
        name="<b>",
        modules=("<script>",),
        llms=(("a&b", "<i>"),),
        num_queries=1,
        theta_ref=(1,),
        reference_quality=1.0,
        reference_cost_usd=1.0,
        epsilon=0.1,
    )
    result = replace(joint(), problem=problem, history=History(), trace=(), front=None)
    out = replace(result.recommendation, theta=(0,), basis="observed")
    page = replace(result, recommendation=out)._repr_html_()
    assert "&lt;script&gt;=a&amp;b" in page
    assert page.count("<tr>") == 6
    assert "<script>" not in page


@pytest.mark.parametrize("number", [1, 2, 5, 40])
def test_many_modules_fit(number):
    rng = np.random.default_rng(number)
    llms = {f"module number {i}": f"some-llm-{rng.integers(99)}" for i in range(number)}
    for room in (20, 60, 100):
        text = in_words(llms, room)
        assert len(text) <= max(room, 55)
        named = text.count("=")
        left = number - named
        assert (f"and {left} more module" in text) == (left > 0)


def test_theta_of_one_configuration():
    problem = SelectionProblem(
        name="one",
        modules=("answer",),
        llms=(("mini",),),
        num_queries=5,
        theta_ref=("mini",),
        reference_quality=0.8,
        reference_cost_usd=0.01,
        epsilon=0.05,
    )
    evaluator = FunctionEvaluator(problem, lambda _, q: (float(q > 0), 0.01), list(range(5)))
    result = run(problem, make_scope(problem, base="mini"), evaluator, 1.0)
    lines = str(result).splitlines()
    assert lines[0].startswith("Keep the reference answer=mini")
    assert lines[3].startswith("searched 1 configuration, looked at 1 in ")
    assert result.table()["status"].to_list() == ["choice"]
    result.plot()


def test_the_file_of_the_result_has_what_was_measured():
    result = joint()
    keys = result.summary().keys()
    assert "held_out" not in keys
    assert "reference_usd" not in keys
    observations = [Observation(result.problem.theta_ref, q, 0.02, 1.0) for q in range(60)]
    more = replace(result, reference=observations, held_out=held_out(20)).summary()
    assert more["reference_usd"] == pytest.approx(1.2)
    assert more["held_out"]["quality_difference"] == pytest.approx(0.05)
    json.dumps(more, allow_nan=False)


@pytest.mark.slow
def test_the_page_about_results_shows_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/howto/result.md").read_text()
    blocks = re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL)
    names, printed, compared = {"__name__": "page"}, None, 0
    for language, content in blocks:
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(content, "result.md", "exec"), names)
            printed = out.getvalue()
        else:
            assert printed == content
            compared += 1
    assert compared >= 5


def test_a_result_that_saves_under_a_wrong_name_says_the_right_ones(tmp_path):
    with pytest.raises(InputError, match=r"litellm\.yaml"):
        joint().save(tmp_path / "choice.ini")
