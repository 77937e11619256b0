"""What is known of theta_0, and the bounds that it gives constraints; checked."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_torch.constraints import COST, QUALITY, Constraint, at_least
from scope_torch.errors import InputError

REFERENCE_DELTA = 0.025  # that theta_0 is better than its sample bounds: half of a search's delta
_ROUNDING = 1e-6  # relative; of the reference's averages
_TEXT_ROUNDING = 1e-11  # relative; of a bound, whose text has 12 digits

FREE_REFERENCE = (
    "nothing is cheaper than a free reference: take one that costs something, count something else "
    "in the place of USD, such as seconds, or let select find the best quality: objective='quality'"
)


def check_cost(usd: float, *, may_be_free: bool) -> None:
    """Refuses what can be no average cost of theta_0.

    Args:
        usd: c(theta_0) in USD.
        may_be_free: Whether it may cost nothing, as where cost is not what is minimised.

    Raises:
        InputError: If it can be none.
    """
    if not (0 <= usd < math.inf and (usd > 0 or may_be_free)):
        least = "number of USD, at least 0" if may_be_free else "positive number of USD"
        why = f"; {FREE_REFERENCE}" if usd == 0 else ""
        raise InputError(f"reference_cost_usd={usd} must be a {least}{why}")


def checked_answers(
    answers: Sequence[tuple[float, float]], num_queries: int, said: Mapping[str, float]
) -> tuple[tuple[float, float], ...]:
    """theta_0's (cost in USD, quality) of each query, as plain pairs.

    Args:
        answers: As given.
        num_queries: Q.
        said: The averages that are said: `cost_usd`, then `quality`.

    Raises:
        InputError: If one is outside its range, there are more or fewer than Q, or their averages
            are others.
    """
    plain = tuple((float(cost), float(quality)) for cost, quality in answers)
    if len(plain) != num_queries:
        raise InputError(
            f"{len(plain)} reference_answers for {num_queries} queries; give one pair "
            "(cost in USD, quality) for each query, or leave them out"
        )
    for query, (cost, quality) in enumerate(plain):
        if not (0 <= cost < math.inf and 0 <= quality <= 1):
            raise InputError(
                f"reference_answers of query {query} are cost {cost}, quality {quality}; a "
                "cost is a number of USD >= 0, a quality lies in [0, 1]"
            )
    for (name, value), given in zip(said.items(), zip(*plain, strict=True), strict=True):
        mean = math.fsum(given) / len(given)
        if not math.isclose(value, mean, rel_tol=_ROUNDING):
            raise InputError(
                f"reference_{name}={value}, but its reference_answers average {mean}; give "
                "their average, or leave the answers out (reference_answers=None)"
            )
    return plain


def counted_cost(
    constraints: Sequence[Constraint],
    cost_usd: float,
    answers: Sequence[tuple[float, float]] | None,
) -> float:
    """What counts of c(theta_0) in USD under a bound on the cost: the average of min(cost, cap).

    At most that of the average, if the answers are not known.
    """
    cap = min((c.high for c in constraints if c.name == COST and c.is_cap), default=math.inf)
    if answers is None or cap == math.inf:
        return min(cost_usd, cap)
    return math.fsum(min(cost, cap) for cost, _ in answers) / len(answers)


def sample_queries(num_queries: int, number: int, seed: int) -> list[int]:
    """So many of the queries, in the order in which they are drawn.

    A larger sample of the same seed holds a smaller one, which is not paid again.
    """
    drawn = list(range(num_queries))
    random.Random(f"reference {seed}").shuffle(drawn)
    return drawn[:number]


def check_sample(number: int, num_queries: int, constraints: Sequence[Constraint]) -> None:
    """Refuses bounds that are relative to averages which are only estimated.

    Args:
        number: How many queries theta_0 has answered.
        num_queries: Q.
        constraints: Those of the problem.

    Raises:
        InputError: If one is, none is on the quality, or the number is none of 1 to Q.
    """
    if number % 1 or not 1 <= number <= num_queries:
        raise InputError(f"reference_queries={number} must be a whole number, 1 to {num_queries}")
    relative = [str(one) for one in constraints if one.is_relative]
    if relative or all(one.name != QUALITY for one in constraints):
        raise InputError(
            f"reference_queries={number}, constraints={relative}: averages of some queries are "
            "estimates, and nothing can be relative to them; bound the quality, and all else, by "
            "numbers, as quality >= 0.8"
        )


def limits_if_cost(
    constraints: Sequence[Constraint], epsilon: float | None, reference: Mapping[str, float]
) -> tuple[Constraint, ...]:
    """All constraints where the cost is minimised, with absolute bounds; that on quality first.

    Args:
        constraints: As given.
        epsilon: Tolerated relative loss of quality; None if one of them is on quality.
        reference: theta_0's average of each outcome.

    Raises:
        InputError: If they do not fit together.
    """
    named = _names(constraints)
    if (QUALITY in named) == (epsilon is not None):
        raise InputError(
            f"epsilon={epsilon}, constraints={_texts(constraints)}: bound the quality either by "
            "epsilon or by a constraint, as quality >= 0.8"
        )
    if COST in named:
        raise InputError(
            f"constraints={_texts(constraints)}: the cost is minimised; set objective=quality to "
            "bound it"
        )
    of_quality = [c for c in constraints if c.name == QUALITY]
    if epsilon is not None:
        of_quality = [at_least(QUALITY, relative_to_reference=1 - epsilon)]
    others = [c for c in constraints if c.name != QUALITY]
    first, *rest = (c.resolved(reference) for c in (*of_quality, *others))
    most = reference[QUALITY]
    if most < first.value <= most * (1 + _TEXT_ROUNDING):
        first = replace(first, value=most)
    is_quality = first.kind == ">=" and (first.low, first.high) == (0.0, 1.0)
    if not is_quality or not 0 < first.value <= most:
        raise InputError(
            f"{first}: quality lies in [0, 1], and its bound must be a least value above 0 and at "
            f"most {most:g}, the quality of theta_0"
        )
    return first, *rest


def limits_if_quality(
    constraints: Sequence[Constraint], epsilon: float | None, reference: Mapping[str, float]
) -> tuple[Constraint, ...]:
    """As `limits_if_cost`, where the quality is maximised: that on the cost is the first."""
    named = _names(constraints)
    of_cost = [c for c in constraints if c.name == COST]
    if epsilon is not None or not of_cost or of_cost[0].kind != "<=":
        leave_out = "" if epsilon is None else f"leave out epsilon={epsilon} (null), and "
        raise InputError(
            f"objective=quality, constraints={_texts(constraints)}: {leave_out}bound the cost of a "
            "query, as cost_usd <= 0.002 cap 0.02"
        )
    if QUALITY in named:
        raise InputError(f"constraints={_texts(constraints)}: the quality is maximised")
    others = [c for c in constraints if c.name != COST]
    return tuple(c.resolved(reference) for c in (*of_cost, *others))


def _names(constraints: Sequence[Constraint]) -> list[str]:
    named = [constraint.name for constraint in constraints]
    if len(set(named)) < len(named):
        raise InputError(f"constraints={_texts(constraints)}: one for each outcome")
    return named


def _texts(constraints: Sequence[Constraint]) -> list[str]:
    return [str(constraint) for constraint in constraints]
