"""Rounds of verification: what they ask, when they come, and what they are worth."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from scope_torch.allowed import Allowed
from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.cost_scale import CostScale
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.search.calibrate import calibrate
from scope_torch.search.front import turns
from scope_torch.search.stopping import NO_LONGER_PAYS
from scope_torch.search.verify import HORIZON, SHARE, cheapest_with_each
from scope_torch.tasks.synthetic import synthetic_task

NAMES = ("a", "b", "c")


def scale_of(rng, sizes):
    terms = tuple(torch.from_numpy(rng.lognormal(0, 1, size)) for size in sizes)
    return CostScale(terms, 0.01)


def naive(scale, sizes, allows, seen):
    """For every LLM of every module the cheapest, by looking at all."""
    found = set()
    for i, llm in itertools.chain.from_iterable(
        [(i, llm) for llm in range(size)] for i, size in enumerate(sizes)
    ):
        left = [
            (sum(float(t[code]) for t, code in zip(scale.terms, theta, strict=True)), theta)
            for theta in itertools.product(*map(range, sizes))
            if theta[i] == llm and theta not in seen and allows(theta)
        ]
        if left:
            found.add(min(left)[1])
    return sorted(found, key=lambda theta: (scale.at(theta), theta))


@pytest.mark.parametrize("kind", ["all", "list", "rule", "list without an LLM"])
@pytest.mark.parametrize("sizes", [(4,), (3, 5), (4, 3, 3)])
def test_the_cheapest_with_each_llm(sizes, kind):
    rng = np.random.default_rng(len(kind) + len(sizes))
    every = list(itertools.product(*map(range, sizes)))
    some = {every[k] for k in rng.choice(len(every), max(2, len(every) // 2), replace=False)}
    modules, llms = NAMES[: len(sizes)], [[str(v) for v in range(size)] for size in sizes]
    if kind == "all":
        left, allows = Allowed(modules, llms, None), lambda _: True
    elif kind == "rule":

        def rule(of):
            return tuple(int(of[m]) for m in modules) in some

        left, allows = Allowed(modules, llms, rule), some.__contains__
    else:
        left, allows = Allowed(modules, llms, tuple(sorted(some))), some.__contains__
        if "without" in kind:
            left, allows = (
                left.without_llms([(0, 1)]),
                lambda theta: theta in some and theta[0] != 1,
            )
    for _ in range(5):
        scale = scale_of(rng, sizes)
        seen = {every[k] for k in rng.choice(len(every), len(every) // 3, replace=False)}
        assert cheapest_with_each(scale, left, seen) == naive(scale, sizes, allows, seen)


def test_a_space_too_large_to_enumerate():
    sizes = (30,) * 8
    left = Allowed("abcdefgh", [[str(v) for v in range(30)]] * 8, None)
    scale = scale_of(np.random.default_rng(0), sizes)
    best = tuple(int(terms.argmin()) for terms in scale.terms)
    found = cheapest_with_each(scale, left, {best})
    assert len(found) == len(set(found)) > 200
    assert best not in found
    for i, llm in itertools.product(range(8), range(30)):
        if llm != best[i]:
            assert (*best[:i], llm, *best[i + 1 :]) in found


@functools.cache
def misleading_table(seed, num_queries=40):
    """Costs that are a product over the modules, and a query's own luck.

    Two or three cheap LLMs cost far less together than any sum over the modules of what one of them
    changes; a fifth of the configurations is good enough.
    """
    rng = np.random.default_rng(seed)
    llms = ("base", *(f"llm{k}" for k in range(10)), "frontier")
    factors = np.exp(rng.uniform(-2, 1, (3, len(llms))))
    factors[:, 0], factors[:, -1] = 1.0, 6.0
    cost = 1e-4 * np.einsum("i,j,k->ijk", *factors)[..., None]
    cost = cost * rng.lognormal(0, 0.4, (*cost.shape[:3], num_queries))
    level = rng.uniform(0.6, 0.97, cost.shape[:3])
    level[-1, -1, -1] = 0.97
    quality = (rng.random(cost.shape) < level[..., None]).astype(float)
    queries = tuple(map(str, range(num_queries)))
    return RecordedTable(NAMES, (llms,) * 3, queries, cost, quality)


@functools.cache
def searched(seed, **options):
    table = misleading_table(seed)
    problem = table.problem("misleading", ("frontier",) * 3, 0.1)
    optimizer = make_scope_joint(
        problem, base="base", seed=seed, device="cpu", budget_usd=1.0, **options
    )
    optimizer.fits, refit = [], optimizer.belief.refit
    optimizer.belief.refit = lambda: (optimizer.fits.append(1), refit())
    result = run(problem, optimizer, TableEvaluator(table), budget_usd=1.0)
    optimizer.belief.refit = refit
    return optimizer, result


@pytest.mark.parametrize("number", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_what_one_change_at_a_time_cannot_tell_is_found(number):
    """Without verification many searches end far from the optimum, by the scale of 0.1.0."""
    near = dict.fromkeys((0, 3), 0)
    for rounds, seed in itertools.product(near, range(number)):
        _, result = searched(seed, verify=rounds, cost_scale="least_squares")
        told = result.summary()
        near[rounds] += told["true_cost_usd"] <= 1.1 * told["optimal_cost_usd"]
    assert near[3] >= number - 1
    assert near[0] <= near[3] - number // 4


@pytest.mark.slow
def test_a_round_asks_the_cheapest_for_its_share():
    optimizer, result = searched(1)
    history, begins = result.history, [row.t for row in result.trace if row.event == "verifying"]
    assert 1 <= len(begins) <= 3
    asked_usd, asked = 0.0, 0
    for number, begin in enumerate(begins):
        end = next(row.t for row in result.trace if row.t > begin)
        round_of = [history[t] for t in range(begin, end)]
        before = [history[t] for t in range(begin)]
        assert {o.query for o in round_of} == {optimizer._query_order[number]}
        assert not {o.theta for o in round_of} & {o.theta for o in before}
        # By expectation it is at most its share; what it cost is near that.
        assert sum(o.cost_usd for o in round_of) <= 3 * SHARE * sum(o.cost_usd for o in before)
        asked_usd += sum(o.cost_usd for o in round_of)
        asked += len(round_of)
    told = result.report["verified"]
    assert (told["rounds"], told["configurations"]) == (len(begins), asked)
    assert told["cost_usd"] == pytest.approx(asked_usd, rel=1e-12)
    assert told["typical_factor"] > 1


def test_answers_of_a_round_are_of_no_turn():
    """A certificate counts the answers of a candidate's own turn."""
    _, result = searched(1)
    per_turn = [qualities for _, qualities in turns(result.trace, result.history)]
    t = next(row.t for row in result.trace if row.event == "calibrated")
    in_rounds = result.report["verified"]["configurations"]
    assert sum(map(len, per_turn)) == len(result.history) - t - in_rounds


@pytest.mark.slow
def test_a_larger_horizon_begins_with_the_search_of_a_smaller_one():
    table = misleading_table(2)
    problem = table.problem("misleading", ("frontier",) * 3, 0.1)
    asked = []
    for number in (1.0 * HORIZON, 2e3, 1e9):
        given = replace(problem, deployment_queries=number)
        optimizer = make_scope_joint(given, base="base", seed=2, device="cpu")
        result = run(optimizer.problem, optimizer, TableEvaluator(table), budget_usd=1.0)
        asked.append([(o.theta, o.query) for o in result.history])
    assert result.report["verified"]["rounds"] > 0
    assert asked[1][: len(asked[0])] == asked[0]
    assert asked[2][: len(asked[1])] == asked[1]


@pytest.mark.slow
def test_widened_bounds_are_narrow_again_after_a_round():
    optimizer, _ = searched(3)
    bounds = optimizer.belief.bounds
    assert bounds.widen()
    optimizer.belief.refit()
    assert bounds.beta(1).g == 3.0


@pytest.mark.slow
def test_a_round_asks_only_what_can_be_observed():
    """Where a configuration lacks queries, it is asked on one that it has."""
    table = misleading_table(1)
    cost, quality = table.cost_usd.copy(), table.quality.copy()
    rng = np.random.default_rng(1)
    gone = rng.random(cost.shape) < 0.01
    gone[-1, -1, -1] = False
    cost[gone] = quality[gone] = math.nan
    holes = RecordedTable(table.modules, table.llms, table.queries, cost, quality, partial=True)
    problem = holes.problem("holes", ("frontier",) * 3, 0.1)
    optimizer = make_scope_joint(problem, base="base", seed=0, device="cpu", budget_usd=0.1)
    result = run(problem, optimizer, TableEvaluator(holes), budget_usd=0.1)
    (begin,) = [row.t for row in result.trace if row.event == "verifying"]
    asked = [o.query for o in result.history[begin:]][: result.report["verified"]["configurations"]]
    assert set(asked) > {optimizer._query_order[0]}  # a hole was met
    for o in result.history:
        assert not gone[(*o.theta, o.query)]


def test_nothing_is_verified_where_it_was_not_asked_for():
    problem = synthetic_task().problem
    theory, cap = {"mode": "theory"}, "cost_usd <= 0.005 cap 0.1"
    best = replace(problem, objective="quality", epsilon=None, constraints=[cap])
    for optimizer in (
        make_scope(problem, base="small"),
        make_scope_joint(problem, base="small", verify=0),
        make_scope_joint(problem, base="small", bounds=theory, rho=0.5),
        make_scope_joint(best, base="small"),
    ):
        assert "verified" not in optimizer.report()
    assert "calibration_queries" not in make_scope_joint(best, base="small").settings()


def test_the_default_is_told():
    settings = make_scope_joint(synthetic_task().problem, base="small").settings()
    told = ("verify", "calibration_queries", "cost_scale")
    assert [settings[name] for name in told] == [1, 4, "regression"]
    earlier = dict(zip(told, (0, None, "least_squares"), strict=True))
    optimizer = make_scope_joint(synthetic_task().problem, base="small", **earlier)
    assert not {*told} & optimizer.settings().keys()


@pytest.mark.parametrize("wrong", [{"verify": -1}, {"verify": 1.5}, {"calibration_queries": 0}])
def test_wrong_numbers(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name}={value} must be"):
        make_scope_joint(synthetic_task().problem, base="small", **wrong)


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        (lambda _: 0.5, 30 + 15 + 8 * 2),  # after four queries, and half of them are right
        (lambda q: float(q >= 4), 30 + 15 + 8 * 2 + 4 * 4 + 2 * 8),  # 32 of 93 are right by then
        (lambda _: 0.0, 30 + 15 + 8 * 2 + 4 * 4 + 2 * 8 + 1 * 16 + 1 * 18),  # never: all fifty
    ],
)
def test_calibrate_ends_once_it_has_enough(right, expected):
    asked = []

    def observe(requests):
        asked.extend(requests)
        of = [(r.theta, r.query, right(r.query)) for r in requests]
        return [Observation(t, q, cost_usd=0.1, quality=quality) for t, q, quality in of]
        yield

    pool = [(k,) for k in range(30)]
    assert list(calibrate(pool, range(50), observe=observe, enough=(4, 0.3))) == []
    assert len(asked) == expected


@pytest.mark.slow
def test_calibrate_of_a_search_looks_at_a_few_queries():
    table = misleading_table(0)
    problem = table.problem("misleading", ("frontier",) * 3, 0.1)
    asked = {}
    for number in (4, None):
        optimizer = make_scope_joint(problem, base="base", seed=5, calibration_queries=number)
        asked[number] = set()
        while True:
            requests = optimizer.ask()
            if any(row.event == "calibrated" for row in optimizer.trace):
                break
            optimizer.tell(list(TableEvaluator(table).evaluate(requests)))
            asked[number] |= {request.query for request in requests}
    assert asked[4] == set(optimizer._query_order[:4])
    assert asked[None] == set(range(40))


@pytest.mark.slow
def test_no_search_ends_on_an_old_fit():
    """After the last round, the fit alone is made again where a round would come."""
    fits_alone = 0
    for seed in (1, 2, 5):
        optimizer, result = searched(seed)
        if result.stop_reason == NO_LONGER_PAYS:
            assert not optimizer.belief.surrogate.is_stale
        rounds = sum(row.event == "verifying" for row in result.trace)
        assert rounds <= 1
        fits_alone += len(optimizer.fits) > rounds
    assert fits_alone >= 2
