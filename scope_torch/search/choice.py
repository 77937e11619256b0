"""Which configuration is evaluated next (line alg:scope-main:select)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scope_torch.errors import InputError
from scope_torch.search.parts import Minima

_MOST_LOG_I = 600.0  # a larger i is needed only where least_g is 0 up to rounding
LEAST_PRICE = 1e-6  # L_c as a fraction of u_out


def no_margin() -> float:
    """Without noise a configuration that is feasible can be certified."""
    return 0.0


class LeastCost:
    """The paper's choice: argmin L_c subject to L_g <= -i^-alpha.

    Args:
        alpha: Exponent of the dynamic constraint, in (0, 1/2); None for the constraint L_g <= 0 in
            every iteration.
        margin: `next_margin` of the certificate, 0 unless answers vary: L_g + margin takes the
            place of L_g.

    Raises:
        InputError: If alpha is outside its range.
    """

    def __init__(self, alpha: float | None, margin: Callable[[], float] = no_margin) -> None:
        if alpha is not None and not 0 < alpha < 0.5:
            raise InputError(f"alpha={alpha} must lie in (0, 1/2)")
        self.alpha, self._margin = alpha, margin

    def limit(self, i: int) -> float:
        """Largest L_g of an eligible configuration in iteration i: -i^-alpha - margin."""
        return (0.0 if self.alpha is None else -(i**-self.alpha)) - self._margin()

    def next_iteration(self, i: int, least_g: float) -> int | None:
        """The first i' >= i with least_g <= -i'^-alpha - margin; see `Choice`."""
        slack = -(least_g + self._margin())
        if slack <= 0:
            return None
        if self.alpha is not None and least_g > self.limit(i):
            log_i = -math.log(slack) / self.alpha
            if log_i > _MOST_LOG_I:
                return None
            i = max(i, math.floor(math.exp(log_i)) - 1)
            while least_g > self.limit(i):
                i += 1 + (i >> 40)
        return i

    def select(self, i: int, minima: Minima, scale: float, seed: int) -> int:
        """See `Choice`."""
        return minima.argmin_c(self.limit(i), scale, seed)

    def settings(self) -> dict[str, Any]:
        """See `Choice`."""
        return {} if self.alpha is None else {"alpha": self.alpha}


class MostPromising:
    """The most P(g <= -margin) (u_out - L_c) / L_c with L_g <= -margin and L_c <= u_out.

    It is the expected saving for each USD that an evaluation costs: P(g <= -margin) is the
    probability that the configuration can be certified, u_out - L_c the most that it can save. All
    configurations whose mean of g is at most -margin count as equally probable, so that
    uncertainty never makes one seem worse.

    Args:
        margin: `next_margin` of the certificate; 0 unless answers vary.
    """

    def __init__(self, margin: Callable[[], float] = no_margin) -> None:
        self._margin = margin

    def next_iteration(self, i: int, least_g: float) -> int | None:
        """See `Choice`; the constraint is the same in every iteration."""
        return None if least_g >= -self._margin() else i

    def select(
        self,
        i: int,  # noqa: ARG002
        minima: Minima,
        scale: float,  # noqa: ARG002
        seed: int,
    ) -> int:
        """See `Choice`; exact, ties as in `first_tied`."""
        return minima.most_promising(self._margin(), LEAST_PRICE * minima.u_out, seed)

    def settings(self) -> dict[str, Any]:
        """See `Choice`."""
        return {}
