"""Lower bounds on functions of a configuration, for all completions of a prefix.

| symbol | here | |
| --- | --- | --- |
| l(theta) = k_D(theta)^T w - beta sigma(theta) | `Form` | cost or constraint |
| a f(m, sigma), a lognormal cost | `LognormalCost` | facts 4 and 5 |
| t, the point of the tangent | `Prefixes.tangent` | facts 1 to 3 in branch_and_bound.py |

A lognormal cost is a product: a(theta), a sum of a term for each module, times f, the lower bound
on the relative cost. Two facts make a form of it:

4. f(m, sigma) = m phi(sigma / m) with phi(x) = exp(-b s - s^2 / 2), s^2 = log(1 + x^2), which is
   convex for b >= 1. (For b < 1 that of b = 1 is lower.) So f >= alpha m - slope sigma for any
   tangent of phi. It is linear in m, the mean of the relative cost.
5. If a >= a_0 and f >= f_0, then (a - a_0) (f - f_0) >= 0, so a f >= f_0 a + a_0 (f - f_0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.space_search.prefixes import LabelledPosterior, SubsetTables

_ROUNDING = 1e-12  # of a bound, relative to its summands
_CONVEX_FROM = 1.0  # phi is convex if b is at least that


class Linear(NamedTuple):
    """A lower bound on a function on the completions of some prefixes: a constant plus tables."""

    tables: SubsetTables
    constant: Tensor  # `r`
    entries: Tensor  # `num_entries x r`
    magnitude: Tensor  # `r`, size of the summands, for rounding
    terms: Tensor | None = None  # `num_slots x r`, a further table for each module
    floor: Tensor | None = None  # `labels x r`, another bound on the children

    def plus(self, other: Linear, mu: Tensor | float) -> Linear:
        """This one and `mu` times the other; `r` multipliers that are not negative."""
        terms = self.terms
        if other.terms is not None:
            terms = mu * other.terms if terms is None else terms + mu * other.terms
        return Linear(
            self.tables,
            self.constant + mu * other.constant,
            self.entries + mu * other.entries,
            self.magnitude + mu * other.magnitude,
            terms,
        )

    def times(self, factor: Tensor) -> Linear:
        """This one, without further tables, times `r` factors that are not negative."""
        return Linear(
            self.tables, factor * self.constant, factor * self.entries, factor * self.magnitude
        )

    def by_module(self) -> tuple[Tensor, Tensor]:
        """Tables of the open modules, `num_slots x r`, and a bound for each prefix, `r`."""
        table = self.tables.by_module(self.entries)
        if self.terms is not None:
            table += self.terms
        least = torch.stack([table[at].amin(0) for at in self.tables.slices]).sum(0)
        return table, self.constant + least - _ROUNDING * self.magnitude

    def children(self, table: Tensor, lower: Tensor) -> Tensor:
        """Bounds with the first open module assigned: `labels x r`; arguments of `by_module`."""
        first = table[self.tables.slices[0]]
        bound = first + (lower - first.amin(0))
        return bound if self.floor is None else bound.maximum(self.floor)

    def spread(self) -> Tensor:
        """By how much the table of each open module varies: `open modules x r`, one prefix."""
        table = self.by_module()[0]
        return torch.cat([table[at].amax(0) - table[at].amin(0) for at in self.tables.slices])


class Tangent(NamedTuple):
    """An upper bound on sigma: at_most - (matrix_t / sigma)^T k; `r` prefixes."""

    sigma: Tensor  # `r`, at t
    matrix_t: Tensor  # `n x r`
    at_most: Tensor  # `r`


class Prefixes:
    """Prefixes of one length, and what bounds on functions of their completions share.

    Args:
        posterior: The averages, in labels.
        labels: `r x num_modules` labels, of which those of `assigned` count.
        assigned: The modules that are fixed.
        open_modules: The others, in the order in which they will be assigned.
    """

    def __init__(
        self,
        posterior: LabelledPosterior,
        labels: Tensor,
        assigned: Sequence[int],
        open_modules: tuple[int, ...],
    ) -> None:
        self.posterior, self.labels = posterior, labels
        self.assigned, self.open_modules = assigned, open_modules
        self.tables = posterior.tables(open_modules)
        differences = posterior.differences
        self.matches = posterior.matches(labels, assigned)
        self._k = differences[0][self.matches]
        # t is about the k_D of a completion drawn at random.
        by_chance = sum(1 / posterior.sizes[i] for i in open_modules)
        self.t = self._k + by_chance * differences[1][self.matches]
        self._tangents: dict[int, Tangent] = {}

    def tangent(self, output: int) -> Tangent:
        """The tangent of sigma of one output at t (fact 1)."""
        if output not in self._tangents:
            matrix, constant = self.posterior.variances[output]
            matrix_t = matrix @ self.t
            square = (self.t * matrix_t).sum(0)
            sigma = (constant - square).clamp_min(1e-9 * constant).sqrt()
            at_most = (sigma + (constant + square) / sigma) / 2
            self._tangents[output] = Tangent(sigma, matrix_t, at_most)
        return self._tangents[output]

    def form(
        self, weights: Tensor, beta: float | Tensor, output: int, limit: float = 0.0
    ) -> Linear:
        """A bound on weights^T k - beta sigma - limit; weights are `n` or `n x r`, beta >= 0."""
        sigma, matrix_t, at_most = self.tangent(output)
        if weights.ndim == 1:
            weights = weights[:, None]
        weights = weights + beta / sigma * matrix_t
        constant = (weights * self._k).sum(0) - beta * at_most
        magnitude = weights.abs().sum(0) + beta * at_most + abs(limit)
        entries = self.tables.entries(weights, self.matches, self.posterior.differences)
        return Linear(self.tables, constant - limit, entries, magnitude)


class Bounded(Protocol):
    """A function of the configuration that has lower bounds on prefixes."""

    def at(self, posterior: LabelledPosterior, labels: Tensor, k: Tensor) -> Tensor:
        """Values at `r` configurations with kernel `k`, `n x r`."""
        ...

    def linear(self, prefixes: Prefixes, limit: float) -> Linear:
        """A lower bound on the function less `limit`."""
        ...


class Form(NamedTuple):
    """theta -> k_D(theta)^T weights - beta sigma(theta); a `Bounded`."""

    weights: Tensor  # `n`
    beta: float
    output: int = 0  # whose sigma it is

    def at(self, posterior: LabelledPosterior, labels: Tensor, k: Tensor) -> Tensor:  # noqa: ARG002
        """Values at `r` configurations with kernel `k`, `n x r`."""
        return self.weights @ k - self.beta * posterior.sigma(k, self.output)

    def linear(self, prefixes: Prefixes, limit: float) -> Linear:
        """A lower bound on the form less `limit` (facts 1 and 2)."""
        return prefixes.form(self.weights, self.beta, self.output, limit)


class LognormalCost(NamedTuple):
    """theta -> L_c in USD if costs are relative, see `lognormal_bound`; a `Bounded`.

    Args:
        weights: `n`, of the mean of c / a - 1.
        b: Standard deviations of log(c / a) below its mean.
        terms: USD for each label of each module; a(theta) is their sum, or `least` if more.
        least: USD.
    """

    weights: Tensor
    b: float
    terms: tuple[Tensor, ...]
    least: float

    def at(self, posterior: LabelledPosterior, labels: Tensor, k: Tensor) -> Tensor:
        """Values in USD at `r` configurations with kernel `k`, `n x r`."""
        mean = (self.weights @ k + 1).clamp_min(LEAST_MEAN)
        return self._a(labels, range(len(self.terms))) * _lower(mean, posterior.sigma(k, 0), self.b)

    def linear(self, prefixes: Prefixes, limit: float) -> Linear:
        """A lower bound in USD on L_c less `limit` (facts 4 and 5)."""
        f, least_f = self._relative(prefixes)
        open_terms = [self.terms[i] for i in prefixes.open_modules]
        assigned = self._sum(prefixes.labels, prefixes.assigned)
        others = sum(float(terms.min()) for terms in open_terms[1:])
        of_child = (open_terms[0][:, None] + assigned + others).clamp_min(self.least)
        least_a = of_child.amin(0)
        return Linear(
            f.tables,
            least_f * assigned + least_a * (f.constant - least_f) - limit,
            least_a * f.entries,
            least_a * (f.magnitude + 2 * least_f) + abs(limit),
            torch.cat(open_terms)[:, None] * least_f,
            of_child * least_f * (1 - _ROUNDING) - limit,
        )

    def _relative(self, prefixes: Prefixes) -> tuple[Linear, Tensor]:
        """A lower bound on f, and a positive one for each prefix, `r`."""
        mean = (self.weights @ prefixes.t + 1).clamp_min(LEAST_MEAN)
        b = max(self.b, _CONVEX_FROM)  # the bound of a larger b is lower
        alpha, slope = _tangent_of_phi(prefixes.tangent(0).sigma / mean, b)
        relative = prefixes.form(self.weights, 0.0, 0, -1.0)
        minus_sigma = prefixes.form(torch.zeros_like(self.weights), 1.0, 0)
        f = relative.times(alpha).plus(minus_sigma, slope)
        # Where sigma varies much, the tangent may be below 0; f of the worst of both is not.
        prior = math.sqrt(prefixes.posterior.variances[0][1])
        most_sigma = (-minus_sigma.by_module()[1]).clamp(0.0, prior)
        lowest = _lower(relative.by_module()[1].clamp_min(LEAST_MEAN), most_sigma, b)
        return f, f.by_module()[1].maximum(lowest)

    def _a(self, labels: Tensor, modules: Sequence[int]) -> Tensor:
        return self._sum(labels, modules).clamp_min(self.least)

    def _sum(self, labels: Tensor, modules: Sequence[int]) -> Tensor:
        total = torch.zeros(len(labels), dtype=torch.float64)
        for i in modules:
            total += self.terms[i][labels[:, i]]
        return total


def _lower(mean: Tensor, sigma: Tensor, b: float) -> Tensor:
    """`lognormal_bound`, b standard deviations below the mean of the logarithm."""
    v = (sigma / mean).square().log1p()
    return mean * torch.exp(-b * v.sqrt() - v / 2)


def _tangent_of_phi(x: Tensor, b: float) -> tuple[Tensor, Tensor]:
    """The tangent alpha - slope y <= phi(y) at x > 0: alpha and slope, both positive.

    phi(y) = exp(-b s - s^2 / 2) with s^2 = log(1 + y^2), so ds/dy = y / (s (1 + y^2)).
    """
    square = x.square()
    s = square.log1p().sqrt()
    phi = torch.exp(-b * s - s.square() / 2)
    slope = phi * (b + s) * x / (s * (1 + square))
    return phi + slope * x, slope
