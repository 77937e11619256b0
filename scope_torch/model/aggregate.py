"""Posteriors: of the average over queries, of each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
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

    codes: Tensor
    weights: Tensor
    matrix: Tensor
    constant: float


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
