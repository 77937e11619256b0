"""Searches that continue from older ones: how often they certified what is infeasible."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from long_runs import SEARCHES, among_others

from scope_torch.bounds.betting import BettingSequence
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run

DELTA, SIZES, Q = 0.1, (4, 4), 40
NEEDED = 30  # of 40 answers that must be good
LLMS = (tuple("pqrs"),) * 2
NEW = 2  # the code of the LLM that the older search lacks


def hopeless(seed, is_sample):
    """Every configuration but theta_0 is infeasible, by one good answer, and cheaper than theta_0.

    If the queries are a sample, it is infeasible in expectation, by half an answer. Answers do not
    vary. The prices of the second search are others.
    """
    rng = np.random.default_rng([seed, 6])
    good = np.ones((*SIZES, Q))
    for theta in itertools.product(range(4), range(4)):
        bad = rng.permutation(Q)[: Q - NEEDED + 1]
        if is_sample:
            bad = rng.random(Q) < (Q - NEEDED + 0.5) / Q
        if theta != (3, 3):
            good[theta][bad] = 0.0
    cost = rng.lognormal(-7, 0.7, size=SIZES)[..., None] * rng.lognormal(0, 0.2, size=(*SIZES, Q))
    cost[3, 3] = 2 * cost.max()
    factors = rng.lognormal(0, 0.5, size=(4, 1, 1)) * rng.lognormal(0, 0.5, size=(4, 1))
    return good, cost, np.minimum(cost * factors, cost[3, 3].max() * 2)


def problem_of(llms, cost, good):
    theta_ref = tuple(names.index("s") for names in llms)
    answers = list(zip(cost[theta_ref].tolist(), good[theta_ref].tolist(), strict=True))
    return SelectionProblem(
        name="continued",
        modules=("a", "b"),
        llms=llms,
        num_queries=Q,
        theta_ref=theta_ref,
        reference_quality=float(good[theta_ref].mean()),
        reference_cost_usd=float(cost[theta_ref].mean()),
        epsilon=1 - NEEDED / Q,
        reference_answers=answers,
    )


def searched(problem, cost, good, make, **settings):
    table = RecordedTable(problem.modules, problem.llms, tuple(map(str, range(Q))), cost, good)
    optimizer = make(problem, base="p", device="cpu", bounds={"delta": DELTA}, **settings)
    budget_usd = 6 * Q * problem.reference_cost_usd
    return run(problem, optimizer, TableEvaluator(table), budget_usd)


def continued(seed, make, certificate):
    """Whether a search without an LLM, and the one that continues it, certified anything.

    Both have the same seed.
    """
    good, old_cost, cost = hopeless(seed, certificate == "population")
    kept = [code for code in range(4) if code != NEW]
    small = np.ix_(kept, kept, range(Q))
    llms = (tuple(LLMS[0][code] for code in kept),) * 2
    settings = {"seed": seed, "certificate": certificate}
    older = problem_of(llms, old_cost[small], good[small])
    before = searched(older, old_cost[small], good[small], make, **settings)
    problem = problem_of(LLMS, cost, good)
    known = [
        replace(o, theta=theta, cost_usd=float(cost[(*theta, o.query)]), replicate=0)
        for o in before.history
        if o.replicate == 0
        for theta in [tuple(kept[code] for code in o.theta)]
    ]
    after = searched(problem, cost, good, make, known=known, **settings)
    assert after.report["known"]["observations"] == len(known) > 0
    return [
        any(row.theta_out != result.problem.theta_ref for row in result.trace)
        for result in (before, after)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "certificate"),
    [
        (make_scope, "sequence"),
        among_others(make_scope_joint, "population"),
        among_others(make_scope, "population"),
        among_others(make_scope_joint, "sequence"),
    ],
)
def test_continued_searches_are_wrong_at_most_as_often_as_promised(make, certificate):
    """At most delta, and three standard deviations of so many searches."""
    wrong = np.mean([continued(seed, make, certificate)[1] for seed in range(SEARCHES)])
    print(f"{make.__name__}, {certificate}: {SEARCHES} searches, wrong {wrong:.1%}")
    assert wrong <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / SEARCHES)


@pytest.mark.slow
def test_some_continued_searches():
    assert np.mean([continued(seed, make_scope_joint, "sequence")[1] for seed in range(4)]) <= 0.5


def chosen_for_its_answers(rng, fresh_order):
    """Whether the sequence of the luckiest of 100 infeasible candidates certifies it.

    The older search saw the first half of the answers of each, in one order.
    """
    answers = (np.arange(Q) < NEEDED - 1).astype(float)
    candidates = np.array([rng.permutation(answers) for _ in range(100)])
    lucky = candidates[candidates[:, : Q // 2].sum(1).argmax()]
    order = rng.permutation(Q) if fresh_order else np.arange(Q)
    sequence = BettingSequence(Q, NEEDED / Q, DELTA)
    return any(sequence.update(lucky[query]) for query in order)


@pytest.mark.slow
def test_old_answers_count_only_in_an_order_that_is_drawn_afresh():
    """In the order in which they were found, the luckiest answers come first."""
    rng = np.random.default_rng(0)
    wrong = {
        fresh: np.mean([chosen_for_its_answers(rng, fresh) for _ in range(1000)])
        for fresh in (True, False)
    }
    assert wrong[True] <= DELTA
    assert wrong[False] > 3 * DELTA


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_the_order_of_a_continued_search_is_not_that_of_the_older_one(make):
    """Also if both have the same seed: the order depends on all that is known."""
    good, cost, _ = hopeless(0, is_sample=False)
    problem = problem_of(LLMS, cost, good)

    def first_queries(known):
        search = make(problem, seed=3, initial_pool="random", certificate="sequence", known=known)
        search.ask()
        return [
            search.rules.turn(1, (0, 1), search._query_order, search._generator).trial.order
            for _ in range(3)
        ]

    one = Observation((0, 0), 0, cost_usd=0.1, quality=1.0)
    orders = [first_queries(known) for known in ([], [one], [replace(one, query=1)])]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[1] == first_queries([one])
