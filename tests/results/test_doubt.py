"""What speaks against a promise decides the light, and stands in print, page and models.json."""

import json
import random
from dataclasses import replace
from datetime import datetime

import pytest
from results_for_tests import best_quality, half_certified, joint, with_constraint

import scope_torch as st
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.doubt import doubt_of
from scope_torch.results.held_out import HeldOut
from scope_torch.results.page.page import page_of
from scope_torch.results.page.view import View

FREE = ((9, 1), (0, 0))  # tokens of LLMs that cost nothing, by module


def held_out(result, number, wrong, usd=0.001):
    """The choice is wrong on so many queries, the reference never."""
    out, theta_ref = result.recommendation.theta, result.problem.theta_ref
    choice = [Observation(out, q, usd, float(q * 7 % number >= wrong)) for q in range(number)]
    return HeldOut(number, choice, [Observation(theta_ref, q, 0.06, 1.0) for q in range(number)])


def light(result):
    return View(result, "finished", datetime(2026, 11, 25)).light


@pytest.mark.slow
@pytest.mark.parametrize(("number", "wrong", "doubted"), [(60, 33, True), (60, 0, False)])
def test_held_out_queries_below_the_threshold(number, wrong, doubted, tmp_path):
    result = half_certified()
    epsilon = result.problem.epsilon
    with_them = replace(result, held_out=held_out(result, number, wrong))
    assert light(result) == "proven"
    assert light(with_them) == ("doubted" if doubted else "proven")
    above = with_them.held_out.excess(result.problem)
    assert above.value == pytest.approx((number - wrong) / number - (1 - epsilon))
    assert above.lower <= above.value <= above.upper
    saved = json.loads(with_them.save(tmp_path / "models.json").read_text())
    assert saved["held_out"]["quality"] == (number - wrong) / number
    assert ("doubt" in saved) == doubted
    if doubted:
        line = str(with_them).splitlines()[3]
        assert line.startswith("but 60 held-out queries say otherwise: quality 0.45 against 1.00")
        page = page_of(View(with_them, "finished", datetime(2026, 11, 25)))
        assert "Proven good enough" not in page
        assert "60 held-out queries say otherwise" in page


def test_a_few_held_out_queries_contradict_nothing():
    result = half_certified()
    assert doubt_of(replace(result, held_out=held_out(result, 4, 2))) == ""


def test_a_choice_that_is_dearer_on_held_out_queries():
    result = half_certified()
    found = doubt_of(replace(result, held_out=held_out(result, 60, 0, usd=0.1)))
    assert found == (
        "but on 60 held-out queries it costs more than the reference: 100 instead of 60 USD per "
        "1,000 queries"
    )


def with_steps(result, number, of_choice):
    """The choice takes so many steps on each held-out query, and is always right."""
    found = held_out(result, number, 0)
    steps = [replace(one, outcomes={"steps": of_choice(one.query)}) for one in found.choice]
    theirs = [replace(one, outcomes={"steps": 10.0}) for one in found.reference]
    return replace(result, held_out=replace(found, choice=steps, reference=theirs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "steps", "average"),
    [
        (60, lambda _: 8.0, "8"),
        (60, lambda q: 12.0 if q % 2 else 9.0, "9.5"),  # more than its cap counts as the cap
        (60, lambda _: 2.0, None),
        (3, lambda _: 8.0, None),  # a few contradict nothing
    ],
)
def test_a_choice_that_breaks_a_constraint_on_held_out_queries(number, steps, average, tmp_path):
    result = with_constraint()
    told = with_steps(result, number, steps)
    assert result.certified
    assert light(told) == ("proven" if average is None else "doubted")
    if average is not None:
        broken = f"steps <= 5 cap 10 ({average} on average)"
        assert doubt_of(told) == f"but on {number} held-out queries it breaks {broken}"
        assert doubt_of(told) in " ".join(str(told).split())
        assert "held out: 1.00 against 1.00" in " ".join(str(told).split())
        page = page_of(View(told, "finished", datetime(2026, 11, 25)))
        assert doubt_of(told)[1:].replace("<", "&lt;") in " ".join(page.split())
        saved = json.loads(told.save(tmp_path / "models.json").read_text())
        assert saved["doubt"] == doubt_of(told)


@pytest.mark.parametrize("text", ["steps <= 0.5 * reference cap 10", "steps >= 0.5 * reference"])
def test_a_relative_constraint_is_compared_with_the_reference_on_the_held_out_queries(text):
    """Not with what the reference did on the queries of the search."""
    result = with_constraint()
    is_least = ">=" in text
    steps = 10.0 if is_least else 2.0  # of theta_0 in the search
    text += " in [0, 10]" * is_least
    problem = replace(result.problem, constraints=[text], reference_outcomes={"steps": steps})
    result = replace(result, problem=problem)

    def told(mine, theirs):
        found = with_steps(result, 60, lambda _: mine)
        other = [replace(one, outcomes={"steps": theirs}) for one in found.held_out.reference]
        return doubt_of(replace(found, held_out=replace(found.held_out, reference=other)))

    assert told(4.0, 8.0) == ""
    worse = 2.0 if is_least else 7.0
    expected = (
        f"but on 60 held-out queries it breaks {problem.constraints[0]} ({worse:g} on average)"
    )
    assert told(worse, 8.0) == expected
    assert told(*((6.0, 8.0) if is_least else (2.0, 8.0))) == ""


@pytest.mark.slow
def test_a_loss_by_a_constraint_is_compared_like_epsilon():
    """Both fail three of four held-out queries, of which a number would be broken."""
    result = half_certified()
    epsilon = result.problem.epsilon
    found = held_out(result, 60, 45)
    alike = [replace(one, theta=result.problem.theta_ref) for one in found.choice]
    hard = replace(result, held_out=replace(found, reference=alike))
    limit = f"quality >= {1 - epsilon:.12g} * reference"
    same = replace(hard, problem=replace(result.problem, epsilon=None, constraints=[limit]))
    assert same.held_out.excess(same.problem) == hard.held_out.excess(hard.problem)
    assert doubt_of(same) == doubt_of(hard) == ""
    poor = replace(same, held_out=held_out(result, 60, 33))
    assert "and a loss of 20% was allowed" in doubt_of(poor)


@pytest.mark.parametrize(("slow", "doubted"), [(30, True), (1, False)])
def test_a_share_of_held_out_runs_that_is_too_small(slow, doubted):
    result = with_constraint()
    result = replace(result, problem=replace(result.problem, constraints=["p90(steps) <= 5"]))
    told = with_steps(result, 60, lambda q: 7.0 if q < slow else 3.0)
    assert (light(told) == "doubted") == doubted
    assert ("p90(steps) <= 5 (50% of runs)" in doubt_of(told)) == doubted


def test_a_held_out_run_outside_the_range_of_a_constraint_breaks_it():
    result = with_constraint()
    limit = "steps <= 5 in [0, 10]"
    result = replace(result, problem=replace(result.problem, constraints=[limit]))
    assert f"{limit} (14 on average)" in doubt_of(with_steps(result, 60, lambda _: 14.0))
    assert doubt_of(with_steps(result, 60, lambda _: -3.0)) == ""


def test_a_failed_held_out_run_breaks_a_constraint():
    result = with_constraint()
    told = with_steps(result, 60, lambda _: 2.0)
    failed = [replace(one, outcomes=None, failed="app") for one in told.held_out.choice]
    told = replace(told, held_out=replace(told.held_out, choice=failed))
    assert "steps <= 5 cap 10 (10 on average)" in doubt_of(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usd", "wrong", "expected"),
    [
        (0.02, 0, "cost_usd <= 0.005 cap 0.1 (0.02 on average)"),
        (0.001, 0, None),
        (0.001, 40, "its quality is below the reference's: 0.33 against 1.00"),
    ],
)
def test_the_best_quality_at_a_cost_is_held_to_it(usd, wrong, expected):
    result = best_quality()
    # Its reference is within the limit; a choice may be worse than one that is not.
    problem = replace(result.problem, reference_cost_usd=0.004, reference_answers=None)
    told = replace(result, problem=problem, held_out=held_out(result, 60, wrong, usd))
    assert light(replace(told, held_out=None)) == "proven"
    assert light(told) == ("proven" if expected is None else "doubted")
    assert expected is None or expected in doubt_of(told)


@pytest.mark.slow
@pytest.mark.parametrize("used", [None, ((0, 0), (0, 0)), FREE])
def test_held_out_runs_that_cost_nothing(used):
    result = half_certified()
    found = held_out(result, 60, 0, usd=0.0)
    choice = [replace(one, module_tokens=used) for one in found.choice]
    known = replace(result, held_out=replace(found, choice=choice))
    assert doubt_of(known) == ""  # a simulation knows what is true
    told = doubt_of(replace(known, truth=None))
    assert told.startswith("but its held-out runs cost nothing (a cache?)") == (used != FREE)
    assert (told == "") == (used == FREE)


@pytest.mark.slow
def test_later_runs_that_cost_nothing():
    """Where answers vary, those that a cache replays are not fresh."""
    result = half_certified()
    theta = result.recommendation.theta
    again = History()
    for one in result.history:
        again.append(one)
        if one.theta == theta:
            again.append(replace(one, replicate=one.replicate + 1, cost_usd=0.0))
    told = doubt_of(replace(result, history=again, truth=None))
    assert told.startswith("but its later runs cost nothing (a cache?)")


def test_a_reference_that_breaks_a_constraint_is_told():
    result = with_constraint()
    problem = result.problem
    (limit,) = problem.others
    worse = {limit.outcome: limit.value + 0.1 * (limit.high - limit.value)}
    if limit.kind == ">=":
        worse = {limit.outcome: limit.value - 0.1 * (limit.value - limit.low)}
    problem = replace(problem, reference_outcomes=worse)
    kept = replace(result.recommendation, theta=problem.theta_ref, basis="reference")
    told = replace(result, problem=problem, recommendation=kept)
    assert doubt_of(told).startswith(f"but the reference itself breaks {limit} (")
    assert doubt_of(told) in str(told).replace("\n  ", " ")
    assert light(told) == "doubted"


def test_a_reference_that_costs_more_than_the_best_quality_may_is_told():
    def app(models, text):
        return text, {"nano": 0.001, "pro": 0.03}[models["answer"]]

    result = st.select(
        app,
        models={"answer": ["nano", "pro"]},
        dataset=[(text, text) for text in "abcdefgh"],
        metric=st.metrics.exact_match,
        reference="pro",
        budget_usd=5,
        objective="quality",
        constraints=["cost_usd <= 0.0005 cap 0.1"],
    )
    assert result.choice == {"answer": "pro"}
    assert doubt_of(result) == (
        "but the reference itself breaks cost_usd <= 0.0005 cap 0.1 (0.03 on average)"
    )


def test_a_reference_at_the_bound_is_no_doubt():
    result = best_quality()
    (limit,) = result.problem.limits
    kept = replace(result.recommendation, theta=result.problem.theta_ref, basis="reference")
    for times, doubted in ((1 + 1e-15, False), (1 + 1e-3, True)):
        outcomes = {"cost_usd": limit.value * times}
        problem = replace(result.problem, reference_outcomes=outcomes)
        told = doubt_of(replace(result, problem=problem, recommendation=kept))
        assert ("itself breaks" in told) is doubted


@pytest.mark.parametrize("reference", ["nano", "pro"])
def test_a_reference_that_keeps_a_cap_is_no_doubt(reference):
    """`pro` costs 0.5 USD on one query of eight, of which 0.02 count: 0.00425 on average."""

    def app(models, text):
        dear = 0.5 if text == "c" else 0.002
        right = models["answer"] == "pro" or text < "f"
        return text if right else "?", dear if models["answer"] == "pro" else 0.001

    result = st.select(
        app,
        models={"answer": ["nano", "pro"]},
        dataset=[(text, text) for text in "abcdefgh"],
        metric=st.metrics.exact_match,
        reference=reference,
        budget_usd=5,
        objective="quality",
        constraints=["cost_usd <= 0.005 cap 0.02"],
    )
    assert result.choice == {"answer": "pro"}
    assert doubt_of(result) == ""


def test_a_reference_that_holds_is_no_doubt():
    kept = joint(0.05)
    assert kept.recommendation.theta == kept.problem.theta_ref
    assert doubt_of(kept) == ""
    assert light(kept) == "keep"


def varying_search(make, seed, **settings):
    """Every cheaper configuration is right with probability 0.79, and s_0 is 0.81."""
    rng, usd = random.Random(seed), {"nano": 1e-4, "mini": 4e-4, "pro": 0.01}
    llms, queries = (tuple(usd),) * 2, list(range(40))
    problem = SelectionProblem("x", ("a", "b"), llms, 40, ("pro", "pro"), 0.9, 0.02, epsilon=0.1)

    def system(models, _):
        return float(rng.random() < 0.79), sum(usd[llm] for llm in models.values())

    search = make(problem, base="mini", seed=seed, **settings)
    return st.run(problem, search, FunctionEvaluator(problem, system, queries), 1.5)


@pytest.mark.slow
def test_answers_that_changed_in_the_search_are_told():
    """The certificate takes answers for fixed; nobody had asked the reference again."""
    result = varying_search(st.make_scope_joint, 0)
    of = {}
    for o in result.history:
        of.setdefault((o.theta, o.query), []).append(o.quality)
    again = sum(len(answers) - 1 for answers in of.values())
    assert sum(len(set(answers)) > 1 for answers in of.values()) > 0
    assert result.certified
    assert f" of {again} answers changed when they were asked for again" in doubt_of(result)
    assert light(result) == "doubted"
    assert not result.evidence.quality(result.recommendation.theta).is_exact


@pytest.mark.slow
def test_nothing_is_sure_if_a_search_was_told_that_answers_vary():
    """Although a choice by the model's bounds has answered every query."""
    results = [varying_search(st.make_scope, seed, certificate_flips=0.2) for seed in range(3)]
    assert any(result.choice != {"a": "pro", "b": "pro"} for result in results)
    for result in results:
        assert result.report["answers_vary"]
        assert not result.certified
        assert light(result) != "proven"


def test_all_modules_are_named_however_many_there_are():
    from scope_torch.results.words import lines_of

    result = half_certified()
    problem = replace(
        result.problem,
        modules=tuple(f"module_number_{i}" for i in range(2)),
        llms=tuple(tuple(f"a-rather-long-name-of-llm-{i}-{k}" for k in range(5)) for i in range(2)),
    )
    line = lines_of(replace(result, problem=problem))["choice"]
    assert max(map(len, line.splitlines())) < 110
    assert all(f"{module}=a-rather" in line for module in problem.modules)
    assert "more module" not in line
    assert "99.6% cheaper" in " ".join(line.split())
