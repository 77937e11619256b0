"""What the reference showed when it was asked some of its queries a second time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scope_torch.errors import InputError

_SAME = 1e-9  # grades closer than this are equal
_DELTA = 0.05  # of the interval


@dataclass(frozen=True)
class Repeats:
    """Two grades of one configuration on each of some queries, from two calls.

    Args:
        first: `n >= 1` grades in [0, 1], one for each query.
        second: The grades of the second calls, in the same order.

    Raises:
        InputError: If there are no grades, not equally many, or one lies outside [0, 1].

    Examples:
        >>> repeats = Repeats((1.0, 0.0, 1.0, 1.0), (1.0, 0.0, 0.0, 1.0))
        >>> repeats.asked, repeats.changed, repeats.rate, repeats.variance
        (4, 1, 0.25, 0.125)
        >>> [round(end, 3) for end in repeats.interval]
        [0.006, 0.806]
    """

    first: tuple[float, ...]
    second: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.first or len(self.first) != len(self.second):
            raise InputError(
                f"repeats have {len(self.first)} first and {len(self.second)} second grades; give "
                "both grades of each query that was asked twice, and at least one query"
            )
        for grade in (*self.first, *self.second):
            if not 0 <= grade <= 1:
                raise InputError(f"the grade {grade} of a repeated answer must lie in [0, 1]")

    @property
    def asked(self) -> int:
        """Number of queries that were asked twice."""
        return len(self.first)

    @property
    def changed(self) -> int:
        """Number of queries whose second grade differs from the first."""
        return sum(abs(a - b) > _SAME for a, b in zip(self.first, self.second, strict=True))

    @property
    def rate(self) -> float:
        """The part of the queries whose grade changed, in [0, 1]."""
        return self.changed / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Of the chance that a grade changes: 95%, by Clopper and Pearson."""
        from scipy.stats import beta  # slow to import

        changed, same = self.changed, self.asked - self.changed
        low = float(beta.ppf(_DELTA / 2, changed, same + 1)) if changed else 0.0
        high = float(beta.ppf(1 - _DELTA / 2, changed + 1, same)) if same else 1.0
        return low, high

    @property
    def variance(self) -> float:
        """Estimated variance of a grade from call to call, averaged over queries; at most 1/2.

        It is half the mean squared difference of the two grades, which is unbiased.
        """
        squares = ((a - b) ** 2 for a, b in zip(self.first, self.second, strict=True))
        return math.fsum(squares) / (2 * self.asked)
