"""What is known of theta_0, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scope_torch.constraints import QUALITY, Constraint
from scope_torch.errors import InputError

REFERENCE_DELTA = 0.025  # that theta_0 is better than its sample bounds: half of a search's delta
_ROUNDING = 1e-6  # relative; of the reference's averages


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
    if relative or all(one.outcome != QUALITY for one in constraints):
        raise InputError(
            f"reference_queries={number}, constraints={relative}: averages of some queries are "
            "estimates, and nothing can be relative to them; bound the quality, and all else, by "
            "numbers, as quality >= 0.8"
        )
