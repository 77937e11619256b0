"""Abacus: the plan search, the frontier of a module, and the whole loop written down again."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import CountingEvaluator, make_task, task_of

from scope_torch.baselines.abacus import Abacus
from scope_torch.baselines.abacus_module import LLMEstimate, ModuleFrontier, PairTotals, keepers
from scope_torch.baselines.pareto_plan import Option, cheapest_plan
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.testing import OptimizerConformance


class TestAbacus(OptimizerConformance):
    @pytest.fixture(params=[{}, {"k": 1, "j": 2, "reuse_base": True, "remeasure_base": False}],
                    ids=["default", "other"])  # fmt: skip
    def make_optimizer(self, request):
        return lambda problem, seed: Abacus(problem, seed=seed, **request.param)


COSTS = st.integers(-3, 6).map(lambda x: x / 4)  # few values: ties are common, sums are exact
FACTORS = st.sampled_from([0.25, 0.5, 1.0, 1.5])
OPTIONS = st.lists(
    st.lists(st.tuples(COSTS, FACTORS), min_size=1, max_size=4), min_size=1, max_size=4
)


@pytest.mark.slow
@given(OPTIONS, st.sampled_from([0.01, 0.2, 0.5, 1.0, 2.0]))
def test_the_cheapest_plan_is_the_one_of_an_exhaustive_search(values, threshold):
    options = [[Option(m, *v) for m, v in enumerate(module)] for module in values]
    plan = cheapest_plan(options, 0.5, threshold)
    best = None
    for combination in itertools.product(*options):
        cost = sum(o.cost_usd for o in combination)
        quality = 0.5 * math.prod(o.quality for o in combination)
        if quality > threshold and (best is None or (cost, -quality) < best):
            best = cost, -quality
    if best is None:
        assert plan is None
    else:
        assert plan is not None
        assert (plan.cost_usd, -plan.quality) == best
        chosen = [module[llm] for module, llm in zip(options, plan.theta, strict=True)]
        assert sum(o.cost_usd for o in chosen) == plan.cost_usd
        assert 0.5 * math.prod(o.quality for o in chosen) == plan.quality


def test_the_threshold_must_be_exceeded():
    options = [[Option(0, 1.0, 0.5), Option(1, 2.0, 1.0)]]
    assert cheapest_plan(options, 1.0, 0.5) == ((1,), 2.0, 1.0)
    assert cheapest_plan(options, 1.0, 1.0) is None


def test_equal_plans_are_chosen_by_the_order_given():
    options = [Option(m, 1.0, 1.0) for m in (2, 0, 1)]
    assert cheapest_plan([options, options[::-1]], 1.0, 0.5).theta == (2, 1)


ESTIMATES = st.dictionaries(
    st.integers(1, 6),
    st.tuples(st.floats(0, 1), st.floats(0.1, 2), st.integers(1, 30)),
    min_size=1,
)


@pytest.mark.slow
@given(ESTIMATES)
def test_the_pruning_rule_is_the_one_specified(values):
    estimates = {0: LLMEstimate(0.5, 1.0, 0)} | {m: LLMEstimate(*v) for m, v in values.items()}
    total = sum(n for _, _, n in values.values())
    mean = {m: (e.cost_usd, e.quality) for m, e in estimates.items()}
    alpha = [0.5 * (max(x) - min(x)) for x in zip(*mean.values(), strict=True)]
    half = {m: [a * math.sqrt(math.log(total) / e.n) if e.n else 0.0 for a in alpha]
            for m, e in estimates.items()}  # fmt: skip
    pareto = [
        m for m in mean if not any(o[0] < mean[m][0] and o[1] > mean[m][1] for o in mean.values())
    ]
    expected = set(pareto)
    for m in mean:
        optimistic = mean[m][0] - half[m][0], mean[m][1] + half[m][1]
        beaten = [
            p
            for p in pareto
            if mean[p][0] + half[p][0] < optimistic[0] and mean[p][1] - half[p][1] > optimistic[1]
        ]
        if not beaten:
            expected.add(m)
    assert keepers(estimates) == expected


def frontier(k=2, num_queries=100, num_llms=5, remeasure_base=True) -> ModuleFrontier:
    order = list(range(1, num_llms))
    return ModuleFrontier(0, 1.0, order, k, num_queries, remeasure_base=remeasure_base)


def test_estimates_follow_chains_in_the_order_first_measured():
    module = frontier()
    module.add(1, 0, PairTotals(4, quality=3.0, base_quality=2.0, cost_usd=2.0, base_cost_usd=4.0))
    module.add(2, 1, PairTotals(2, quality=1.0, base_quality=2.0, cost_usd=3.0, base_cost_usd=1.0))
    module.add(1, 2, PairTotals(6, quality=4.0, base_quality=3.0, cost_usd=1.0, base_cost_usd=7.0))
    module.add(2, 1, PairTotals(1, quality=1.0, base_quality=1.0, cost_usd=1.0, base_cost_usd=1.0))
    module.estimate({})
    q_1, c_1 = 3.5 / 2.5, 1.0 + (2.0 - 4.0) / 4
    q_2, c_2 = q_1 * 2.5 / 3.5, c_1 + (4.0 - 2.0) / 3  # from what LLM 1 had before
    q_1 = (4 * q_1 + 6 * q_2 * 4.5 / 3.5) / 10
    c_1 = (4 * c_1 + 6 * (c_2 + (1.0 - 7.0) / 6)) / 10
    assert module.estimates[0] == (1.0, 1.0, 0)
    assert module.estimates[1] == pytest.approx((c_1, q_1, 10))
    assert module.estimates[2] == pytest.approx((c_2, q_2, 3))
    module.estimate({0: 0.7, 2: 0.2})  # what is metered replaces the differences
    assert module.estimates[0] == (0.7, 1.0, 0)
    assert module.estimates[2].cost_usd == 0.2
    assert module.estimates[2].quality == pytest.approx(q_2)


def measured(module, llm, n, quality, cost):
    """Adds n pairs whose ratio of qualities and average cost, with the half added, are as given."""
    module.add(llm, 0, PairTotals(n, quality * (n + 0.5) - 0.5, n, cost * n, n))


def test_dominated_llms_make_room_return_and_exhausted_ones_do_not():
    module = frontier(k=2, num_queries=40)
    assert module.frontier == [1, 2]
    measured(module, 1, 30, 1.5, 0.2)
    measured(module, 2, 30, 0.3, 1.8)  # far worse than LLM 1 in both
    module.estimate({})
    assert module.update_frontier() == [2]
    assert module.frontier == [1, 3]
    module.add(2, 0, PairTotals(5, 400.0, 1.0, -500.0, 5.0))
    measured(module, 3, 40, 1.0, 0.5)  # on every query: it leaves for good
    module.estimate({})
    assert module.update_frontier() == [1]
    assert module.frontier == [2, 4]


def test_the_base_is_the_best_and_stays_when_tied():
    module = frontier(k=4)
    module.add(3, 0, PairTotals(2, 1.0, 1.0, 0.0, 0.0))
    module.add(2, 0, PairTotals(2, 1.0, 1.0, 0.0, 0.0))
    module.estimate({})
    module.update_base()
    assert module.base == 0
    module.add(2, 0, PairTotals(2, 2.0, 1.0, 0.0, 0.0))
    module.add(3, 0, PairTotals(2, 2.0, 1.0, 0.0, 0.0))
    module.estimate({})
    module.update_base()
    assert module.base == 2  # before 3 in the seeded order
    assert module.next_pair() == (1, 2)
    for llm in (1, 3, 4):
        module.add(llm, 2, PairTotals(9, 0.0, 9.0, 0.0, 0.0))
    assert module.next_pair() == (2, 0)  # the base is measured against theta_0
    module = frontier(k=1, remeasure_base=False)
    module.base = 1
    assert module.next_pair() is None


def separable(num_queries=30, best=1.0):
    """Qualities that multiply and costs that add up exactly; `best` raises LLM 2 of the first."""
    factor = [np.array([1.0, 0.99, 0.5 * best, 0.2]), np.array([1.0, 0.6, 0.97])]
    price = [np.array([5.0, 1.0, 0.5, 6.0]), np.array([4.0, 1.0, 2.0])]
    quality = 0.8 * factor[0][:, None] * factor[1][None, :]
    cost = (price[0][:, None] + price[1][None, :]) * 1e-3
    grid = np.ones(num_queries)
    return task_of(cost[..., None] * grid, quality[..., None] * grid, (0, 0), 0.1)


@pytest.mark.parametrize("seed", range(4))
def test_finds_the_optimum_where_its_assumptions_hold(seed):
    task = separable()
    result = run(task.problem, Abacus(task.problem, seed=seed), task.evaluator(), 1e9)
    assert result.recommendation.theta == (1, 2)
    assert result.recommendation.basis == "estimated"
    assert result.stop_reason == "every LLM is measured on every query, or dominated"
    assert result.report["estimated_cost_usd"] == pytest.approx(3e-3)


def test_the_other_modules_hold_the_llms_of_highest_quality():
    task = separable(best=2.4)
    optimizer = Abacus(task.problem, seed=0)
    result = run(task.problem, optimizer, task.evaluator(), 1e9)
    assert result.report["base"] == {"module0": "llm2", "module1": "llm0"}
    last = [o.theta for o in result.history][-100:]
    assert {theta[0] for theta in last if theta[1] != 0} == {2}


@pytest.mark.parametrize(("j", "step"), [(4, 1), (2, 3), (100, 1)])
def test_iterations_are_pairs_that_differ_in_one_module(j, step):
    task = make_task(2, (4, 3), 10, graded=False)
    optimizer, seen, turns = Abacus(task.problem, seed=1, j=j, step=step), {}, []
    while requests := optimizer.ask():
        half = len(requests) // 2
        (base,), (swap,) = ({r.theta for r in part} for part in (requests[:half], requests[half:]))
        (i,) = [m for m in range(2) if base[m] != swap[m]]
        queries = [r.query for r in requests[half:]]
        assert queries == [r.query for r in requests[:half]]
        done = seen.setdefault((i, swap[i]), [])
        assert not set(done) & set(queries)
        assert len(queries) == min(step if done else j, 10 - len(done))
        done += queries
        turns.append(i)
        optimizer.tell([task.observe(request) for request in requests])
    assert turns[:4] == [0, 1, 0, 1]
    orders = list(seen.values())
    longest = max(orders, key=len)
    assert all(order == longest[: len(order)] for order in orders)  # the same shuffled list
    assert sorted(longest) == list(range(10))


def test_reused_base_runs_are_not_repeated():
    task = make_task(3, (4, 3), 8)
    paid = {}
    for reuse in (False, True):
        evaluator = CountingEvaluator(task)
        optimizer = Abacus(task.problem, seed=0, reuse_base=reuse)
        run(task.problem, optimizer, evaluator, 1e9)
        paid[reuse] = evaluator.paid
    assert max(r.replicate for r in paid[False]) > 0
    assert paid[True].total() < paid[False].total()


def test_metered_costs_replace_differences():
    task = separable()

    class Metered(CountingEvaluator):
        def evaluate(self, requests):
            for o in super().evaluate(requests):
                parts = (o.cost_usd / 4, 3 * o.cost_usd / 4)
                yield Observation(o.theta, o.query, o.cost_usd, o.quality, o.replicate,
                                  module_cost_usd=parts)  # fmt: skip

    reports = {}
    for module_cost in ("metered", "difference"):
        optimizer = Abacus(task.problem, seed=0, module_cost=module_cost)
        reports[module_cost] = run(task.problem, optimizer, Metered(task), 1e9).report
    assert reports["difference"]["estimated_cost_usd"] == pytest.approx(3e-3)
    assert reports["metered"]["estimated_cost_usd"] != pytest.approx(3e-3, rel=1e-3)


def test_an_iteration_cut_short_changes_nothing():
    task = make_task(1, (4, 3), 10)
    whole = run(task.problem, Abacus(task.problem, seed=0), task.evaluator(), 1e9)
    row = next(row for row in whole.trace if row.event == "improved")
    optimizer = Abacus(task.problem, seed=0)
    result = run(task.problem, optimizer, task.evaluator(), row.from_budget_usd * 0.999)
    assert result.recommendation.basis == "reference"
    assert not [row for row in result.trace if row.event == "improved"]
    optimizer = Abacus(task.problem, seed=0)
    result = run(task.problem, optimizer, task.evaluator(), row.from_budget_usd)
    assert result.recommendation.theta == row.theta_out


def test_the_listing_of_llms_does_not_decide_the_order():
    task = make_task(0, (12,), 20)
    first = {Abacus(task.problem, seed=s).ask()[-1].theta for s in range(12)}
    assert len(first) > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k=0 must be a whole number >= 1"),
        ({"k": 2.5}, "k=2.5 must be a whole number"),
        ({"step": math.nan}, "step=nan must be a whole number"),
        ({"j": 0}, "j=0"),
        ({"step": -1}, "step=-1"),
        ({"module_cost": "guess"}, "module_cost='guess' must be"),
        ({"seed": 2**63}, "64 bits"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Abacus(make_task(0, (2, 2), 4).problem, **{"seed": 0, **settings})


def test_spaces_without_a_choice_end_at_once():
    task = make_task(0, (1, 1), 3)
    result = run(task.problem, Abacus(task.problem, seed=0), task.evaluator(), 1.0)
    assert not len(result.history)
    assert result.recommendation.basis == "reference"
