"""Finished searches that the tests of results share."""

import functools
from dataclasses import replace

from scope_torch import make_scope, make_scope_joint, run
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.tasks.synthetic import synthetic_task

QUALITY_FIRST = {
    "objective": "quality",
    "epsilon": None,
    "constraints": ["cost_usd <= 0.005 cap 0.1"],
}


@functools.cache
def task(num_queries=60, epsilon=0.05):
    return synthetic_task(num_queries=num_queries, epsilon=epsilon)


@functools.cache
def joint(budget_usd=1.0, num_queries=60, epsilon=0.05, seed=1, **settings):
    problem, evaluator, _ = task(num_queries, epsilon)
    search = make_scope_joint(problem, base="small", seed=seed, **settings)
    return run(problem, search, evaluator, budget_usd)


@functools.cache
def tuned(budget_usd=0.6, seed=1):
    problem, evaluator, _ = task()
    return run(problem, make_scope(problem, base="small", seed=seed), evaluator, budget_usd)


# The first certificate of such a search is its last.
ONE_CERTIFICATE = {"calibration_queries": None, "verify": 0, "cost_scale": "least_squares"}


@functools.cache
def half_certified(num_queries=400, epsilon=0.2, seed=1):
    """A search whose budget ends just after a candidate was certified, with queries left."""
    whole = joint(6.0, num_queries, epsilon, seed, **ONE_CERTIFICATE)
    rows = (row for row in whole.trace if row.event == "improved")
    row = next(row for row in rows if row.num_queries < num_queries)
    return joint(row.from_budget_usd * (1 + 1e-9), num_queries, epsilon, seed, **ONE_CERTIFICATE)


@functools.cache
def half_accepted():
    """The same with the bounds of `make_scope`, which have no probability."""
    row = next(row for row in tuned(1.0).trace if row.event == "improved" and row.num_queries < 55)
    return tuned(row.from_budget_usd * (1 + 1e-9))


@functools.cache
def with_margin():
    """A search that gives up what promises too little for its certificate."""
    return joint(0.3, certificate="population", epsilon=0.2)


@functools.cache
def best_quality(budget_usd=2.0):
    problem, evaluator, _ = task(80)
    problem = replace(problem, **QUALITY_FIRST)
    return run(problem, make_scope_joint(problem, base="small", seed=1), evaluator, budget_usd)


class Steps:
    """An evaluator whose observations also count steps: fewer with cheaper LLMs."""

    concurrency, free = 1, True

    def __init__(self, evaluator):
        self._evaluator = evaluator

    def evaluate(self, requests):
        for o in self._evaluator.evaluate(requests):
            yield replace(o, outcomes={"steps": float(10 - sum(o.theta))})

    def fingerprint(self):
        return "steps"


@functools.cache
def with_constraint(budget_usd=1.0):
    problem, evaluator, _ = task()
    limits = {"constraints": ["steps <= 5 cap 10"], "reference_outcomes": {"steps": 10.0}}
    problem = replace(problem, **limits)
    search = make_scope_joint(problem, base="small", seed=1)
    return run(problem, search, Steps(evaluator), budget_usd)


@functools.cache
def random_search():
    problem, evaluator, _ = task()
    return run(problem, RandomSearch(problem, seed=0), evaluator, 5.0)


RESULTS = [joint, tuned, half_certified, half_accepted, best_quality, with_constraint]


def answers_of(result, theta):
    """{query: (mean cost, mean quality)} by a plain loop."""
    found = {}
    for o in result.history:
        if o.theta == theta:
            found.setdefault(o.query, []).append((o.cost_usd, o.quality))
    return {
        query: tuple(sum(values) / len(values) for values in zip(*pairs, strict=True))
        for query, pairs in found.items()
    }
