"""What a run says about tomorrow's queries, of which the queries searched on are a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scope_torch.bounds.population import (
    COST_CAP,
    lower_difference,
    lower_ratio,
    queries_needed,
    upper_difference,
    upper_ratio,
)
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.population import compared_with, random_order, share_of_each

DELTA = 0.05  # of a method that has none


def tomorrow(
    problem: SelectionProblem,
    observations: Iterable[Observation],
    theta: tuple[int, ...],
    delta: float | None = None,
    seed: int | None = None,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Bounds on the quality and the cost of a configuration on the distribution of the queries.

    They hold if the Q queries are independent draws from it, however `theta` was chosen: every
    configuration has a share of delta (`share_of_each`). Pairs are those of the first answer to
    each query and the reference's, in `random_order`. A query without an answer counts as answered
    in the worst way, which is safe for both bounds. In the dictionary:

    | key | |
    | --- | --- |
    | `delta` | each of the four bounds is wrong with a probability of at most this |
    | `answered` | on how many queries `theta` was observed |
    | `quality_difference` | bounds on E[s(theta, q) - (1 - epsilon) s(theta_0, q)]; on |
    | | E[s(theta, q)] - s_0 if s_0 is a number |
    | `cost_ratio` | bounds on E[c(theta, q)] / E[c(theta_0, q)]; the second is None if unknown |
    | `cost_cap_usd` | costs count up to this: four times c(theta_0) |
    | `num_capped` | how many of the costs that were paired are above the cap |
    | `more_queries` | about how many more queries would raise the bound on the difference |
    | | to 0; 0 if it is there; None if the average is too low |
    | `reason` | why the other entries but `delta` are None; None if they are not |

    Args:
        problem: With `reference_answers`.
        observations: All observations of a run, in their order.
        theta: Codes of theta_out.
        delta: Failure probability of each bound; None for 0.05.
        seed: Of the search; decides the order.
        known: The report of `Known`, if answers of earlier searches are among the observations.

    Returns:
        The dictionary, JSON-serialisable.

    Examples:
        >>> from scope_torch import make_scope_joint, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=400, epsilon=0.1)
        >>> optimizer = make_scope_joint(problem, base="nano", certificate="population")
        >>> result = run(problem, optimizer, evaluator, budget_usd=20.0)
        >>> told = tomorrow(problem, result.history, result.recommendation.theta)
        >>> [round(bound, 2) for bound in told["quality_difference"]], told["more_queries"]
        ([0.04, 0.16], 0)
    """
    delta = delta or DELTA
    if problem.objective == "quality":
        return _unknown(delta, "quality is the objective, and has no threshold")
    if theta == problem.theta_ref:
        return _unknown(delta, "theta_out is the reference")
    if problem.reference_answers is None:
        return _unknown(delta, "the reference's answers to each query are not known")
    if known is not None and not known["same_reference"]:
        return _unknown(delta, "an earlier search, whose answers are known, had another reference")
    first: dict[int, Observation] = {}
    for observation in observations:
        if observation.theta == theta:
            first.setdefault(observation.query, observation)
    order = random_order(problem, theta, seed or 0)
    share = share_of_each(problem, delta, known["num_others"] if known else 0)
    return {
        "delta": delta,
        "answered": len(first),
        **_quality(problem, first, order, share),
        **_cost(problem, first, order, share),
        "reason": None,
    }


def _unknown(delta: float, reason: str) -> dict[str, Any]:
    names = ("answered", "quality_difference", "more_queries", "cost_ratio", "cost_cap_usd")
    return {"delta": delta, **dict.fromkeys((*names, "num_capped")), "reason": reason}


def _quality(
    problem: SelectionProblem, first: dict[int, Observation], order: list[int], share: float
) -> dict[str, Any]:
    """The bounds on the difference, and the number of further queries."""
    epsilon, qualities = compared_with(problem)
    references = np.array([(1 - epsilon) * qualities[query] for query in order])

    def differences(unknown: float) -> np.ndarray:
        return np.array([first[q].quality if q in first else unknown for q in order]) - references

    low = lower_difference(differences(0.0), epsilon, share)
    high = upper_difference(differences(1.0), epsilon, share)
    more: int | None = 0
    if low < 0:
        seen = np.array([query in first for query in order], dtype=bool)
        needed = queries_needed(differences(0.0)[seen], epsilon, share)
        more = None if needed is None else max(1, needed - len(first))
    return {"quality_difference": [low, high], "more_queries": more}


def _cost(
    problem: SelectionProblem, first: dict[int, Observation], order: list[int], share: float
) -> dict[str, Any]:
    """The bounds on the ratio of costs."""
    answers = problem.reference_answers or ()
    cap = COST_CAP * problem.reference_cost_usd
    references = np.array([answers[query][0] for query in order]) / cap

    def costs(unknown: float) -> np.ndarray:
        return np.array([first[q].cost_usd / cap if q in first else unknown for q in order])

    capped = np.minimum(references, 1.0)
    low = lower_ratio(np.minimum(costs(0.0), 1.0), capped, share)
    high = upper_ratio(np.minimum(costs(1.0), 1.0), capped, share)
    return {
        "cost_ratio": [low, None if np.isinf(high) else high],
        "cost_cap_usd": cap,
        "num_capped": int((costs(0.0) > 1).sum() + (references > 1).sum()),
    }
