"""The scale of costs by regression of their logarithms, with what the LLMs of modules share.

    log c(theta, q) = log a(theta) + e(theta) + log t_q + noise,    a(theta) = sum_i exp(terms_i)

| symbol | here | prior |
| --- | --- | --- |
| terms_i[m], log USD of LLM m in module i | `terms` | normal: a part of the module's (standard |
| | | deviation 1), one of the LLM's in all modules (3), one of its own (0.4); |
| | | of other factors one each (0.7), and then one of the choice's own (0.2) |
| e(theta), interactions, one for each configuration | `tau2`, their variance | |
| log t_q, of the query | `log_t` | 0.5 |
| noise of one answer | `s2`, its variance | |

Costs are prices times tokens: an LLM that is cheap in one module is cheap in the others, and one
answer may be long. So logarithms are compared, and one long answer does not make an LLM dear. After
changes of one module at a time nothing says which module of the base costs how much; the prior
does. How far costs are from a(theta) at configurations that were not observed follows from the same
model: `CostScale.variance`.

The terms are those of largest posterior density. tau maximises the marginal likelihood of the
linearised model times a prior. docs/joint.md derives both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scope_torch.factors import LLM
from scope_torch.model.cost_scale import LEAST_OBSERVED, Costs, CostScale, by_configuration
from scope_torch.space import ConfigSpace

# Prior standard deviations of logarithms; chosen on development data (docs/results-development.md).
_MODULE, _LLM, _PAIR, _QUERY = 1.0, 3.0, 0.4, 0.5
_FACTOR, _CHOICE = 0.7, 0.2  # of choices that are more than an LLM
_NOISE, _NOISE_COUNT = 0.5, 2.0  # a guess of the noise, and the observations that it is worth
_TAU, _TAU_SPREAD = 0.3, 0.7  # median of tau, and standard deviation of its logarithm
_TAUS = np.geomspace(0.05, 2.0, 16)
_MANY = 200  # terms: beyond, only those that were seen are fitted, since time goes with the cube
_ROUNDS = 10  # of the terms in turn with everything else
_DRAWS = 512  # configurations over which the variance is averaged
_MOST_VARIANCE = 1.0  # of log c / a: a factor of 20 at three standard deviations

Array = NDArray[np.float64]


def regress_costs(
    space: ConfigSpace,
    costs: Costs,
    scale_if_free: float = 1.0,
    llms: Sequence[Sequence[str]] | None = None,
) -> CostScale:
    """Fits a(theta), the typical cost of a query, with its uncertainty.

    Args:
        space: Theta.
        costs: (theta, query, USD), at least one.
        scale_if_free: `least` in USD if every cost is 0, as in `fit_cost_scale`.
        llms: For each module the names of its LLMs; the same name is the same LLM. None: no LLM is
            in two modules.
    """
    thetas, which, query, usd = by_configuration(costs)
    count, per_query = np.bincount(which), np.bincount(query)
    average = np.bincount(which, usd) / count
    if not average.any():
        return CostScale(CostScale.one(space).terms, scale_if_free)
    least = LEAST_OBSERVED * average[average > 0].min()
    log_c = np.log(np.maximum(usd, least))
    columns, covariance = _columns(space, np.array(thetas)), _prior_covariance(space, llms)
    seen = np.unique(columns) if len(covariance) > _MANY else np.arange(len(covariance))
    columns = np.searchsorted(seen, columns)
    precision = np.asarray(np.linalg.inv(covariance[np.ix_(seen, seen)]), dtype=np.float64)
    prior = np.full(len(seen), np.log(np.median(average[average > 0]) / space.num_modules))
    terms, log_t = prior.copy(), np.zeros(len(per_query))
    s2, tau2 = _NOISE**2, _TAU**2
    variance = tau2 + s2 / count
    shares, log_a = _shares(terms, columns)
    for _ in range(_ROUNDS):
        y = log_c - log_t[query]  # of a(theta), e(theta) and noise
        mean = np.bincount(which, y) / count
        squares = _NOISE_COUNT * _NOISE**2 + ((y - mean[which]) ** 2).sum()
        s2 = squares / (_NOISE_COUNT + len(y) - len(count))
        z = mean - log_a - shares @ (prior - terms)
        tau2 = _interactions(shares, z, s2 / count, precision)
        variance = tau2 + s2 / count
        terms = _most_likely_terms(terms, columns, mean, variance, prior, precision)
        shares, log_a = _shares(terms, columns)
        e = tau2 / variance * (mean - log_a)
        of_query = np.bincount(query, log_c - log_a[which] - e[which])
        log_t = of_query / (per_query + s2 / _QUERY**2)
        log_t -= np.average(log_t, weights=per_query)
    typical = np.average(np.bincount(which, log_c) / count - log_a, weights=1 / variance)
    gained = shares.T @ (shares / variance[:, None])
    posterior = np.asarray(np.linalg.inv(gained + precision), dtype=np.float64)
    if len(seen) < len(covariance):  # the others follow those that were seen
        gain = covariance[:, seen] @ precision
        terms = prior[0] + gain @ (terms - prior)
        posterior = covariance - gain @ covariance[seen] + gain @ posterior @ gain.T
    terms += typical + (s2 + np.average(log_t**2, weights=per_query)) / 2  # mean, not median
    predicted = tau2 + _variance_of_terms(space, terms, posterior)
    offsets = np.cumsum([0, *space.sizes])
    parts = tuple(torch.from_numpy(np.exp(terms[i:j])) for i, j in pairwise(offsets))
    return CostScale(parts, float(least), math.expm1(min(predicted, _MOST_VARIANCE)))


def _columns(space: ConfigSpace, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the terms of configurations are: `n x num_modules`."""
    return codes + np.cumsum([0, *space.sizes[:-1]])


def _shares(terms: Array, columns: NDArray[np.int64]) -> tuple[Array, Array]:
    """The share of each term in a(theta), its derivative by the term, `n x P`; and log a, `n`."""
    usd = np.exp(terms[columns])
    a = usd.sum(1)
    shares = np.zeros((len(columns), len(terms)))
    np.put_along_axis(shares, columns, usd / a[:, None], axis=1)
    return shares, np.log(a)


def _most_likely_terms(
    terms: Array,
    columns: NDArray[np.int64],
    mean: Array,
    variance: Array,
    prior: Array,
    precision: Array,
) -> Array:
    """The mode of terms ~ N(prior, 1 / precision) given mean ~ N(log a, variance); from `terms`."""
    root, sd = np.linalg.cholesky(precision).T, np.sqrt(variance)

    def errors(terms: Array) -> Array:
        log_a = _shares(terms, columns)[1]
        return np.concatenate([(log_a - mean) / sd, root @ (terms - prior)])

    def slopes(terms: Array) -> Array:
        return np.concatenate([_shares(terms, columns)[0] / sd[:, None], root], dtype=np.float64)

    jac: Any = slopes  # declared as a str
    return np.asarray(least_squares(errors, terms, jac, method="lm").x)


def _prior_covariance(space: ConfigSpace, llms: Sequence[Sequence[str]] | None) -> Array:
    """The prior covariance of all terms: `P x P`."""
    module = np.repeat(np.arange(space.num_modules), space.sizes)
    unknown = map(str, range(len(module)))
    choices = [LLM(name) for name in (unknown if llms is None else chain(*llms))]
    in_module, of_llm = _same(module.tolist()), _same([one.llm for one in choices])
    covariance: Array = _MODULE**2 * in_module + _LLM**2 * of_llm + _PAIR**2 * in_module * of_llm
    factors = {name for one in choices for name in one.factors}
    for name in sorted(factors):
        covariance += _FACTOR**2 * _same([repr(one.factors.get(name)) for one in choices])
    if factors:
        covariance += _CHOICE**2 * np.eye(len(module))
    return covariance


def _same(values: Sequence[Any]) -> Array:
    """1 where two are equal, else 0: `P x P`."""
    codes = np.unique(np.array(values), return_inverse=True)[1]
    same: Array = np.equal.outer(codes, codes).astype(np.float64)
    return same


def _interactions(shares: Array, z: Array, noise: Array, precision: Array) -> float:
    """tau^2 that maximises the density of z = shares times terms + e + noise, and its prior.

    Args:
        shares: `n x P`.
        z: `n` means of logarithms, where terms have mean 0.
        noise: `n` variances.
        precision: Of the terms, `P x P`.
    """

    def log_density(tau: float) -> float:
        variance = tau**2 + noise
        root = np.linalg.cholesky(shares.T @ (shares / variance[:, None]) + precision)
        explained = np.linalg.solve(root, shares.T @ (z / variance))
        log_det = np.log(variance).sum() + 2 * np.log(np.diag(root)).sum()
        of_tau = (math.log(tau / _TAU) / _TAU_SPREAD) ** 2
        return float(-0.5 * ((z**2 / variance).sum() - explained @ explained + log_det + of_tau))

    return float(max(_TAUS, key=log_density)) ** 2


def _variance_of_terms(space: ConfigSpace, terms: Array, covariance: Array) -> float:
    """Posterior variance of log a(theta), averaged over configurations drawn with one seed."""
    generator = np.random.default_rng(0)
    codes = np.stack([generator.integers(size, size=_DRAWS) for size in space.sizes], axis=1)
    shares = _shares(terms, _columns(space, codes))[0]
    return float(np.einsum("np,np->n", shares @ covariance, shares).mean())
