"""Whether a search still pays: what finding out saves later, against what it costs now.

| symbol | here | unit |
| --- | --- | --- |
| H | `deployment_queries`, queries that the system will answer | |
| P | probability of g <= -margin, at most 1/2 as in `MostPromising` | |
| E[(u_out - c)+] | `expected_saving`, of a query | USD |
| n = P Q + 2 (1 - P) | queries until a candidate is certified (at most Q) or given up | |
| w | `call_usd`, what waiting for a call costs | USD |
| H P E[(u_out - c)+] / (n (E[c] + w)) | `returns` | USD for each USD |

The search goes on while the best candidate returns more than 1. So the rule needs no number of its
own, and wider bounds are tried just as long as one of the configurations that they admit pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scope_torch.bounds.base import Beta
from scope_torch.errors import InputError
from scope_torch.model.cost_scale import expected_saving
from scope_torch.search.choice import LEAST_PRICE, no_margin
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.parts import Minima
from scope_torch.space_search.minima import INELIGIBLE, Moments, probability

_GIVEN_UP = 2.0  # queries until a candidate is given up; the mean of earlier ones stopped too early
_BUDGETS = 100.0  # budgets that c(theta_0) H is worth, if nobody says what H is


def derived_deployment(budget_usd: float, reference_cost_usd: float) -> float:
    """H if nobody says it: the search may spend a hundredth of what theta_0 would cost.

    Args:
        budget_usd: Lambda.
        reference_cost_usd: c(theta_0).

    Examples:
        >>> derived_deployment(2.0, 0.004)
        50000.0
    """
    return _BUDGETS * budget_usd / reference_cost_usd


class ExpectedReturn:
    """What the best configuration is expected to save for each USD that finding out costs.

    It is the `Payoff` of scope_joint.

    Args:
        num_queries: Q.
        deployment_queries: H, positive.
        lognormal: Whether L_c is that of a lognormal distribution, see `expected_saving`.
        margin: `next_margin` of the certificate.
        call_usd: What waiting for a call costs, in USD; at least 0.

    Raises:
        InputError: If `call_usd` is no such number.
    """

    def __init__(
        self,
        num_queries: int,
        deployment_queries: float,
        lognormal: bool = True,
        margin: Callable[[], float] = no_margin,
        call_usd: float = 0.0,
    ) -> None:
        if not 0 <= call_usd < math.inf:
            raise InputError(f"call_usd={call_usd} must be a number of USD, at least 0")
        self.deployment_queries, self._call_usd = deployment_queries, call_usd
        self._num_queries, self._lognormal, self._margin = num_queries, lognormal, margin
        self._best: float | None = None  # return of the last look
        self._pays: int | None = None  # flat index of a configuration that did

    def goes_on(self, candidate: JointCandidate, minima: Minima) -> bool:
        """Whether theta_cand, or else any other configuration, returns more than 1.

        Configurations beyond the bounds count too: the bounds are widened once nothing within
        them is left. If Theta is too large to enumerate, theta_cand stands for all, with L_c in
        place of the mean of its cost.

        Args:
            candidate: theta_cand.
            minima: Of the bounds at which it was chosen.
        """
        beta, whole = minima.beta, minima.whole

        def returns(moments: Moments) -> Tensor:
            return self.returns(moments, beta, minima.u_out)

        mean_c, lower_c = candidate.mean_c, candidate.lower_c(beta)
        if whole is None:  # theta_cand was chosen for its L_c
            mean_c = lower_c
        values = mean_c, lower_c, candidate.mean_g, candidate.lower_g(beta)
        self._best = float(returns(Moments(*torch.tensor(values, dtype=torch.float64))))
        if whole is None:
            return self._best > 1
        # Most often one of two configurations pays, and nobody has to look at all of Theta.
        if self._best <= 1 and self._pays is not None:
            self._best = max(self._best, whole.value(returns, self._pays))
        if self._best <= 1:
            self._best, self._pays = whole.largest(returns)
        return self._best > 1

    def returns(self, moments: Moments, beta: Beta, u_out: float) -> Tensor:
        """Expected saving in USD for each USD of finding out, of the shape of the moments.

        Args:
            moments: Of the configurations.
            beta: Which L_c and L_g were made with.
            u_out: In USD.
        """
        _, lower_c, mean_g, lower_g = moments
        lower_c = lower_c.clamp_max(INELIGIBLE)
        mean_c = torch.maximum(moments.mean_c, lower_c)  # bounds of relative costs keep off 0
        P = probability(mean_g, lower_g, beta.g, self._margin())
        n = P * self._num_queries + (1 - P) * _GIVEN_UP
        saving = expected_saving(mean_c, lower_c, beta.c, u_out, self._lognormal)
        # Finite where LLMs are free.
        price = n * (mean_c.clamp_min(LEAST_PRICE * u_out) + self._call_usd)
        return self.deployment_queries * P * saving.clamp_min(0.0) / price

    def settings(self) -> dict[str, Any]:
        """The price of waiting, if it has one, JSON-serialisable."""
        return {"call_usd": self._call_usd} if self._call_usd else {}

    def report(self) -> dict[str, Any]:
        """H, and the return of the last look in USD for each USD, JSON-serialisable."""
        return {"deployment_queries": self.deployment_queries, "expected_return": self._best}
