"""Fallbacks of a choice: each is certified, the cheapest come first, and files hold them."""

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
import yaml
from results_for_tests import (
    RESULTS,
    answers_of,
    best_quality,
    half_accepted,
    half_certified,
    joint,
    random_search,
    task,
    tuned,
    with_constraint,
)

from scope_torch import make_scope_joint, run, select
from scope_torch.errors import InputError
from scope_torch.observation import History, Observation
from scope_torch.results.estimate import Evidence
from scope_torch.results.fallbacks import Fallback, fallbacks_of
from scope_torch.results.saving import load_chain, load_models
from scope_torch.search.optimizer import Recommendation, TraceRow
from scope_torch.tasks.synthetic import synthetic_task

ALL = [*RESULTS, random_search]


def found_in(result, number):
    return fallbacks_of(result.evidence, result.recommendation, number)


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
def test_each_is_known_to_be_feasible(made):
    """Known by a plain loop over its answers, or theta_0; the truth agrees."""
    result = made()
    problem = result.problem
    found, _ = found_in(result, 9)
    for one in found:
        theta = problem.codes(list(one.models.values()))
        truth = float(result.truth[1][problem.space.index_of(theta)])
        assert truth >= problem.s_0 - 1e-12
        if one.basis == "reference":
            assert theta == problem.theta_ref
            continue
        assert one.basis == "observed"  # in these searches
        answers = answers_of(result, theta).values()
        assert len(answers) == problem.num_queries
        cost, quality = (math.fsum(v) / len(answers) for v in zip(*answers, strict=True))
        assert (one.cost_usd, one.quality) == pytest.approx((cost, quality))
        if problem.objective == "quality":
            assert cost <= 0.005
    assert len(found) == len({tuple(one.models.values()) for one in found})
    assert result.choice not in [one.models for one in found]
    losses = [problem.loss(one.cost_usd, one.quality) for one in found]
    assert losses == sorted(losses)


def test_nothing_feasible_is_left_out():
    """With numbers beyond all LLMs, there is one for each LLM that has one in a module."""
    result = random_search()
    problem = result.problem
    good = {problem.theta_ref}
    for theta in {o.theta for o in result.history}:
        answers = answers_of(result, theta).values()
        if len(answers) == problem.num_queries:
            quality = math.fsum(quality for _, quality in answers) / len(answers)
            good |= {theta} if quality >= problem.s_0 - 1e-12 else set()
    found, missing = found_in(result, 99)
    for number, (module, chosen) in enumerate(result.choice.items()):
        others = {problem.names(theta)[module] for theta in good} - {chosen}
        assert {one.models[module] for one in found} - {chosen} == others
        assert missing[module] == 99 - len(others)
        for llm in others:  # the cheapest with it, of those without the chosen LLM if there are any
            costs = {}
            for theta in good:
                names = problem.names(theta)
                if names[module] == llm:
                    cost = result.evidence.cost_usd(theta).value
                    costs[theta] = (chosen in names.values(), cost)
            best = min(costs, key=costs.__getitem__)
            assert problem.names(best) in [one.models for one in found]
        assert problem.modules[number] == module


def test_how_many():
    result = random_search()
    few, missing = found_in(result, 1)
    more, _ = found_in(result, 2)
    assert missing == {}
    assert [one for one in more if one in few] == few
    for module, chosen in result.choice.items():
        assert len({one.models[module] for one in few} - {chosen}) >= 1
        assert len({one.models[module] for one in more} - {chosen}) >= 2
        assert any(chosen not in one.models.values() for one in few)


def test_what_is_only_accepted_stands_in_for_nothing():
    for made in (tuned, half_accepted):
        result = made()
        rows = {row.theta_out for row in result.trace} - {result.problem.theta_ref}
        assert rows
        found, missing = found_in(result, 1)
        assert [one.basis for one in found] == ["reference"]
        assert missing == {}


@pytest.mark.slow
def test_what_was_certified_for_tomorrow_before_stands_in():
    """Also if it has not answered all queries; what looks well on today's alone does not."""
    problem, evaluator, _ = synthetic_task(num_queries=400, epsilon=0.05)
    options = {"certificate": "population", "query_pool": 60, "calibration_queries": None}
    result = run(
        problem, make_scope_joint(problem, base="small", seed=0, **options), evaluator, 6.0
    )
    (before,) = {row.theta_out for row in result.trace} - {
        problem.theta_ref, result.recommendation.theta
    }  # fmt: skip
    assert 0 < result.evidence.num_answered(before) < 400
    found, _ = found_in(result, 9)
    assert [one.basis for one in found] == ["certified", "reference"]
    assert problem.codes(list(found[0].models.values())) == before
    todays = [theta for theta, _ in result.evidence.answers if result.evidence.is_feasible(theta)]
    assert set(todays) - {before, problem.theta_ref, result.recommendation.theta}


def test_which_of_many():
    """Against the rule said anew: all configurations are observed, at costs by chance."""
    draw = random.Random(2)
    means = {"reference_quality": 0.5, "reference_cost_usd": 1.0}
    problem = replace(task(3, 0.05)[0], reference_answers=None, **means)
    sizes = problem.space.sizes
    reference = problem.names(problem.theta_ref)
    for _ in range(20):
        history = History()
        thetas = [t for t in itertools.product(*map(range, sizes)) if t != problem.theta_ref]
        thetas = draw.sample(thetas, draw.randint(1, 12))
        costs = {tuple(reference.items()): 1.0}
        for theta in thetas:
            cost = draw.random()
            costs[tuple(problem.names(theta).items())] = cost
            for query in range(3):
                history.append(Observation(theta, query, cost_usd=cost, quality=1.0))
        out = Recommendation(thetas[0], "certified")
        choice = problem.names(out.theta)
        del costs[tuple(choice.items())]
        number = draw.randint(1, 3)
        expected = set()
        for module, llm in choice.items():
            best = {}  # by the other LLM: whether it uses `llm` all the same, cost, configuration
            for one, cost in costs.items():
                key = llm in dict(one).values(), cost, one
                best[dict(one)[module]] = min(best.get(dict(one)[module], key), key)
            best.pop(llm, None)
            expected |= {one for _, _, one in sorted(best.values())[:number]}
        found, _ = fallbacks_of(Evidence(problem, history, [], {}, None), out, number)
        names = [tuple(one.models.items()) for one in found]
        assert names == sorted(expected, key=costs.__getitem__)


def with_names(names, thetas, number):
    """Fallbacks of (0, 0) where all of these are always right, and later ones are dearer."""
    means = {"reference_quality": 0.5, "reference_cost_usd": 1.0}
    problem = replace(task(3, 0.05)[0], reference_answers=None, llms=(names, names), **means)
    history = History()
    for at, theta in enumerate(thetas, 1):
        for query in range(3):
            history.append(Observation(theta, query, cost_usd=0.01 * at, quality=1.0))
    out = Recommendation((0, 0), "certified")
    return fallbacks_of(Evidence(problem, history, [], {}, None), out, number)


def test_another_effort_is_no_other_llm():
    names = ("a effort=low", "a effort=high", "b effort=low", "c", "c prompt=v1")
    found, _ = with_names(names, [(0, 0), (1, 1), (0, 1), (1, 2), (2, 3), (4, 4)], 1)
    # (1, 2) has another LLM in module_2 only, and a all the same.
    assert [tuple(one.models.values()) for one in found] == [("b effort=low", "c")]


def test_a_prompt_that_serve_cannot_change_stands_in_for_nothing():
    """The application keeps its own prompt, so another one would be served uncertified."""
    names = ("a prompt=v2", "b prompt=v1", "b effort=low prompt=v2", "c", "d prompt=v2 region=eu")
    found, missing = with_names(names, [(0, 0), (1, 0), (3, 0), (4, 0), (0, 2), (2, 0)], 2)
    chosen, with_b = "a prompt=v2", "b effort=low prompt=v2"
    assert [tuple(one.models.values()) for one in found] == [(chosen, with_b), (with_b, chosen)]
    assert missing == {"module_1": 1, "module_2": 1}


def by_hand(num_answers, *, flips=None, known=False, dropped=(), **changes):
    """A candidate whose first answers are all right, and that was dropped: it costs too much."""
    problem = replace(task(60, 0.05)[0], **changes)
    theta, out = (2, 2), Recommendation((0, 0), "certified")
    answers = [
        Observation(theta, q, cost_usd=0.01, quality=1.0, outcomes={"steps": 1.0})
        for q in range(num_answers)
    ]
    history, start = History(), TraceRow(0, 0.0, 0.0, "selected", problem.theta_ref)
    for answer in answers:
        history.append(answer)
    trace = [replace(start, theta_cand=theta)]
    report = {"certificate": "sequence", "delta": 0.05, "flips": flips}
    report["dropped"] = {"module_1": dropped}
    before = [replace(answers[0], query=59)] if known else []
    evidence = Evidence(problem, history, trace, report, None, before)
    found, _ = fallbacks_of(evidence, out, 9)
    return [one.basis for one in found if one.models == problem.names(theta)]


def test_a_betting_sequence_says_that_a_dearer_one_is_certified():
    assert by_hand(20) == ["certified"]
    assert by_hand(2) == []
    assert by_hand(20, flips=0.1) == []
    name = task()[0].names((2, 2))["module_1"]
    assert by_hand(20, dropped=[name]) == []  # it worked, and does not any more
    assert by_hand(20, known=True) == []  # its answers are in no random order
    limits = {"constraints": ["steps <= 5 cap 10"], "reference_outcomes": {"steps": 1.0}}
    assert by_hand(20, **limits) == []  # the sequence knows nothing of the steps
    assert by_hand(20, offered={(2, 2): list(range(20))}) == []


def test_a_reference_that_breaks_a_constraint_is_none():
    found, missing = found_in(with_constraint(), 1)
    assert [one for one in found if one.basis == "reference"] == []
    assert missing.keys() == {"module_1", "module_2"}
    assert [one.basis for one in found_in(best_quality(), 9)[0]] == ["observed"]


def test_files_hold_them(tmp_path, caplog):
    result = joint()
    found, missing = found_in(result, 2)
    assert missing == {"module_1": 1}
    for name, read in (("models.json", json.loads), ("models.yaml", yaml.safe_load)):
        caplog.clear()
        path = result.save(tmp_path / name, fallbacks=2)
        content = read(path.read_text())
        assert [Fallback(**one) for one in content["fallbacks"]] == found
        assert content["fallbacks_missing"] == missing
        assert load_chain(path) == [result.choice, *(one.models for one in found)]
        assert load_models(path) == result.choice
        (record,) = caplog.records
        assert "fallbacks=2: other LLMs are certified for fewer, 1 in module_1" in record.message
    caplog.clear()
    content = json.loads(half_certified().save(tmp_path / "a.json", fallbacks=1).read_text())
    assert content["fallbacks"]
    assert "fallbacks_missing" not in content
    assert caplog.records == []
    plain = json.loads(result.save(tmp_path / "b.json").read_text())
    assert not {"fallbacks", "fallbacks_missing"} & plain.keys()
    assert load_chain(tmp_path / "b.json") == [result.choice]


@pytest.mark.parametrize("name", [".env", "a.env", "litellm.yaml", "litellm_config.yml", "a.html"])
def test_files_that_cannot_hold_them(tmp_path, name):
    with pytest.raises(InputError, match="cannot hold fallbacks"):
        joint().save(tmp_path / name, fallbacks=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [-1, 1.5, True, "2", None])
def test_numbers_that_cannot_be(tmp_path, number):
    with pytest.raises(InputError, match="must be a whole number"):
        joint().save(tmp_path / "models.json", fallbacks=number)


@pytest.mark.parametrize(
    "fallbacks",
    [
        "x", 3, None, [3], [{}], [{"models": {}}], [{"models": {"a": "x"}}],
        [{"models": {"a": "x", "b": "y", "c": "z"}}], [{"models": {"a": "x", "b": ""}}],
        [{"models": {"a": "x", "b": 3}}], [{"models": {"a": "x", "b": "y"}}, {"models": "ab"}],
    ],
)  # fmt: skip
def test_damaged_fallbacks(tmp_path, fallbacks):
    content = {"version": 1, "models": {"a": "u", "b": "v"}, "fallbacks": fallbacks}
    (tmp_path / "models.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"gives no LLM for each module.*result.save"):
        load_chain(tmp_path / "models.json")


@pytest.mark.slow
def test_a_reference_whose_sample_is_below_the_least_quality_is_none(tmp_path, caplog):
    def app(models, number):
        right, usd = {"mini": (9, 0.001), "pro": (6, 0.01)}[models["a"]]
        return number % 10 < right, usd

    how = {"models": {"a": ["mini", "pro"]}, "reference": "pro", "dataset": range(100)}
    found = select(app, **how, base="mini", budget_usd=5, min_quality=0.8, progress=False)
    assert found.choice == {"a": "mini"}
    found.save(tmp_path / "models.json", fallbacks=1)
    assert load_chain(tmp_path / "models.json") == [{"a": "mini"}]
    assert "fallbacks=1" in caplog.text
