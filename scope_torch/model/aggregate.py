"""Posteriors: of the average over queries, of each query; what a surrogate tells of averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from scope_torch.model.cost_scale import CostScale


class AggregatePosterior:
    """The average over queries of the surrogates, written on the observed configurations D.

    mean_zeta(theta) = k_D(theta)^T w_zeta and
    cov(theta, theta') = constant k(theta, theta') - k_D(theta)^T V k_D(theta').
    Any surrogate of this form can be evaluated on the grid.

    Args:
        codes: `n x num_modules` distinct configurations D (int64).
        weights: `(1 + K) x n`; row 0 is w_c in USD, the others are w_g of every constraint.
        matrix: `n x n` symmetric V.
        constant: Prior variance of the average: 1/Q for independent queries.
    """

    def __init__(self, codes: Tensor, weights: Tensor, matrix: Tensor, constant: float) -> None:
        self.codes, self.weights, self.constant = codes, weights, constant
        self._matrix = matrix

    @property
    def matrix(self) -> Tensor:
        """V."""
        return self._matrix

    def variance(self, k: Tensor) -> Tensor:
        """The variance where k_D are the rows of `k`, `m x n`: `m` values."""
        return self.constant - (self.times(k) * k).sum(-1)

    def times(self, rows: Tensor) -> Tensor:
        """Rows V: `m x n`."""
        return rows @ self._matrix


class LowRank(NamedTuple):
    """V grows; the variance falls by sum_i weights_i (k_D(theta)^T rows_i)^2.

    Args:
        rows: `m x n`.
        weights: `m`, positive.
    """

    rows: Tensor
    weights: Tensor


class Averaging(Protocol):
    """A surrogate, as a search over Theta sees it: the averages, written on D.

    All outputs share one variance, or cost and constraints have one each. Where there are several
    constraints, the others have the variance of the first times the square of their unit.
    """

    @property
    def num_queries(self) -> int:
        """Q."""
        ...

    @property
    def num_constraints(self) -> int:
        """K."""
        ...

    @property
    def hyperparameters(self) -> tuple[Any, ...]:
        """What was fitted; another object once it was fitted anew: variances may have grown."""
        ...

    @property
    def cost_scale(self) -> CostScale | None:
        """What costs are relative to: c / a - 1, and c is lognormal. None: c in USD, normal."""
        ...

    def refit(self, now: bool = False) -> bool:
        """Fits what is due to be fitted, or all of it `now`; whether anything was."""
        ...

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes."""
        ...

    def weights(self) -> Tensor:
        """Of the means of cost and constraints: `(1 + K) x n`."""
        ...

    def aggregates(self) -> tuple[AggregatePosterior, ...]:
        """The averages, one for each variance; each with the means of all outputs."""
        ...

    def prior_variances(self) -> tuple[float, ...]:
        """The variances before any observation."""
        ...

    def growth_since(self, mark: Any) -> tuple[Sequence[LowRank], Any]:
        """What the V of each variance has grown by since `mark`; empty if that is not known.

        Args:
            mark: What this returned before; None for no observation.

        Returns:
            The changes, and the mark of now.
        """
        ...

    def units(self) -> tuple[float, ...]:
        """The standard deviation of each constraint, where the first has 1; empty: 1 for all."""
        ...


class QueryPosterior(NamedTuple):
    """Posterior of all queries at one configuration: `num_queries` tensors, float64, CPU.

    Args:
        mean_c: mu_hat_c in USD.
        mean_g: mu_hat_g in units of quality, of the first constraint if there are several.
        variance: sigma_hat^2.
    """

    mean_c: Tensor
    mean_g: Tensor
    variance: Tensor
