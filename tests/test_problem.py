"""SelectionProblem: values that it refuses, and messages with the value and the mend."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import make_task

from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.problem import SelectionProblem, codes_of

GOOD = {
    "name": "task",
    "modules": ("reader", "writer"),
    "llms": (("a", "b", "c"), ("a", "d")),
    "num_queries": 5,
    "theta_ref": (2, 1),
    "reference_quality": 0.8,
    "reference_cost_usd": 1e-3,
    "epsilon": 0.1,
}


def problem(**changed) -> SelectionProblem:
    return SelectionProblem(**{**GOOD, **changed})


def test_threshold_and_space():
    assert problem().s_0 == pytest.approx(0.72, rel=1e-15)
    assert problem().space.sizes == (3, 2)
    assert problem().space.size == 6


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"modules": ("reader",)}, ("1 modules", "2 lists")),
        ({"llms": (("a", "b", "a"), ("a", "d"))}, ("'reader'", "'a'", "twice")),
        ({"llms": (("a", ""), ("a", "d"))}, ("'' cannot name",)),
        ({"llms": (("a", "x\ud800"), ("a", "d"))}, (r"'x\ud800' cannot name",)),
        ({"llms": ((), ("a", "d"))}, ("at least one module", "an LLM")),
        ({"modules": (), "llms": (), "theta_ref": ()}, ("at least one module",)),
        ({"num_queries": 0}, ("num_queries=0", "at least one query")),
        ({"num_queries": math.nan}, ("num_queries=nan", "a whole number >= 1")),
        ({"num_queries": math.inf}, ("num_queries=inf", "a whole number >= 1")),
        ({"num_queries": 4.5}, ("num_queries=4.5", "a whole number >= 1")),
        ({"num_queries": True}, ("num_queries=True", "a whole number >= 1")),
        ({"num_queries": "5"}, ("num_queries='5'", "a whole number >= 1")),
        ({"epsilon": 0.0}, ("epsilon=0.0", "(0, 1)")),
        ({"epsilon": 1.0}, ("epsilon=1.0", "(0, 1)")),
        ({"epsilon": math.nan}, ("epsilon=nan", "(0, 1)")),
        ({"reference_quality": 0.0}, ("reference_quality=0.0", "(0, 1]", "threshold")),
        ({"reference_quality": 1.01}, ("reference_quality=1.01", "(0, 1]")),
        ({"reference_quality": math.nan}, ("reference_quality=nan",)),
        ({"reference_cost_usd": 0.0}, ("reference_cost_usd=0.0", "positive", "free reference")),
        ({"reference_cost_usd": -1.0}, ("reference_cost_usd=-1.0", "positive")),
        ({"reference_cost_usd": math.inf}, ("reference_cost_usd=inf", "positive")),
        ({"theta_ref": (3, 1)}, ("theta_ref=[3, 1]", "(3, 2)")),
        ({"theta_ref": (-1, 1)}, ("theta_ref=[-1, 1]", "(3, 2)")),
        ({"theta_ref": (1,)}, ("theta_ref=[1]", "(3, 2)")),
    ],
)
def test_refuses_and_names_the_value(changed, words):
    with pytest.raises(InputError) as caught:
        problem(**changed)
    for word in words:
        assert word in str(caught.value)


def test_refuses_repeated_module_names():
    with pytest.raises(InputError, match="reader"):
        problem(modules=("reader", "reader"))


def test_quality_one_is_a_valid_reference():
    assert problem(reference_quality=1.0).s_0 == pytest.approx(0.9)


def test_codes_is_the_inverse_of_names():
    p = problem()
    for index in range(p.space.size):
        theta = (index // 2, index % 2)
        assigned = p.names(theta)
        assert list(assigned) == ["reader", "writer"]
        assert p.codes(list(assigned.values())) == theta


@pytest.mark.parametrize(
    ("llms", "words"),
    [
        (["a"], ("base=['a']", "['reader', 'writer']")),
        (["a", "d", "a"], ("base=['a', 'd', 'a']", "one LLM for each")),
        (["a", "b"], ("base", "'b'", "'writer'", "['a', 'd']")),
        (["x", "a"], ("base", "'x'", "'reader'", "['a', 'b', 'c']")),
    ],
)
def test_codes_refuses_and_offers_the_candidates(llms, words):
    with pytest.raises(InputError) as caught:
        problem().codes(llms, "base")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("theta", [(3, 0), (0, 2), (0, -1), (0,), (0, 0, 0)])
def test_names_refuses_what_is_not_a_configuration(theta):
    with pytest.raises(InputError, match="not a configuration"):
        problem().names(theta)


def test_is_frozen_and_comparable():
    assert problem() == problem()
    assert hash(problem()) == hash(problem())
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem().epsilon = 0.5


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), min_size=1))
def test_codes_of_any_listing(llms):
    modules = [f"m{i}" for i in range(len(llms))]
    last = [names[-1] for names in llms]
    assert codes_of(last, modules, llms, "theta") == tuple(len(names) - 1 for names in llms)


def test_problem_of_a_table_measures_the_reference():
    task = make_task(3, (3, 2), 7)
    p, table = task.problem, task.table
    assert p.reference_cost_usd == table.cost_usd[p.theta_ref].mean()
    assert p.reference_quality == table.quality[p.theta_ref].mean()
    assert p.num_queries == 7
    assert task.best_cost < 0.7 * p.reference_cost_usd
    with pytest.raises(InputError, match="reference: 'gpt' is not a candidate"):
        table.problem("t", ["gpt", "llm0"], 0.1)
    with pytest.raises(InputError, match="epsilon=2"):
        table.problem("t", ["llm0", "llm0"], 2)


FIELDS = {
    "name": "p", "modules": ("plan", "solve"), "llms": (("a", "c"), ("b", "c")), "num_queries": 3,
    "theta_ref": (1, 1), "reference_quality": 0.9, "reference_cost_usd": 1.0, "epsilon": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("theta_ref", [("c", "c"), ["c", "c"], np.array([1, 1]), (1.0, True)])
def test_a_reference_by_names_or_codes(theta_ref):
    problem = SelectionProblem(**FIELDS | {"theta_ref": theta_ref})
    assert problem == SelectionProblem(**FIELDS)
    assert {type(code) for code in problem.theta_ref} == {int}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"theta_ref": (0.5, 1)}, r"theta_ref=\[0.5, 1\] is not .* each a whole number"),
        ({"theta_ref": (float("nan"), 1)}, "theta_ref=.* each a whole number"),
        ({"theta_ref": (None, 1)}, "theta_ref=.* each a whole number"),
        ({"theta_ref": "cc"}, r"theta_ref='cc': name one LLM for each of \['plan', 'solve'\]"),
        ({"theta_ref": ("c", "a")}, "theta_ref: 'a' is not a candidate of module 'solve'"),
        ({"theta_ref": ("c", 1)}, "theta_ref: 1 is not a candidate of module 'solve'"),
        ({"llms": "nmp"}, "llms has 'nmp' in place of a list; give each module a list"),
        ({"llms": ("ac", "bc")}, "llms has 'ac' in place of a list"),
        ({"llms": {"plan": "ac", "solve": "bc"}}, "llms has 'ac' in place of a list"),
        ({"llms": {"plan": ["a"]}}, r"llms has the keys \['plan'\]; give each of \['plan', 's"),
        ({"modules": "ps"}, "modules='ps' is one text"),
    ],
)
def test_a_mistake_names_its_mend(changed, message):
    with pytest.raises(InputError, match=message):
        SelectionProblem(**FIELDS | changed)


def test_llms_by_module_in_any_order():
    problem = SelectionProblem(**FIELDS | {"llms": {"solve": ("b", "c"), "plan": ("a", "c")}})
    assert problem == SelectionProblem(**FIELDS)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_base_for_each_module(make):
    problem = SelectionProblem(**FIELDS)
    base = {"solve": "b", "plan": "a"}
    pools = [make(problem, base=given)._initial_pool.base for given in (["a", "b"], base)]
    assert pools == [(0, 0), (0, 0)]
    assert make(problem, base="c")._initial_pool.base == (1, 1)
    for wrong, message in {
        "a": r"base: 'a' is not a candidate of module 'solve', .* such as base=\[a,b\]",
        "x": r"base: 'x' is not a candidate of module 'plan', .* such as base=\[a,b\]",
        ("a",): r"base=\['a'\]: name one LLM for each of",
    }.items():
        with pytest.raises(InputError, match=message):
            make(problem, base=wrong)
    with pytest.raises(InputError, match=r"base has the keys \['plan'\]"):
        make(problem, base={"plan": "a"})


def test_a_sample_of_the_reference_bounds_the_threshold_in_numbers():
    limit = "quality >= 0.85"
    sampled = problem(reference_queries=3, constraints=(limit,))
    assert sampled.s_0 == 0.85  # above the average of three queries, which is an estimate
    assert sampled.epsilon == 0.1
    assert sampled.most_reference_quality == pytest.approx(0.85 / 0.9)
    assert [str(one) for one in sampled.limits] == [limit]
    assert problem().most_reference_quality == 0.8
    absolute = problem(epsilon=None, reference_queries=3, constraints=(limit,))
    assert absolute.s_0 == 0.85
    assert absolute.most_reference_quality == 0.8
    never_right = problem(reference_queries=3, constraints=(limit,), reference_quality=0.0)
    assert never_right.reference_quality == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reference_queries": 0}, "reference_queries=0 must be a whole number, 1 to 5"),
        ({"reference_queries": 6}, "reference_queries=6 must be a whole number, 1 to 5"),
        ({"reference_queries": 2.5}, "reference_queries=2.5 must be a whole number"),
        ({"reference_queries": 3}, "nothing can be relative to them"),
        ({"reference_queries": 3, "constraints": ("quality >= 0.9 * reference",)}, "relative"),
        ({"reference_quality": 0.0}, "reference_quality=0.0 must lie in"),
    ],
)
def test_what_is_relative_to_an_estimate_is_refused(changed, words):
    with pytest.raises(InputError, match=words):
        problem(**changed)
