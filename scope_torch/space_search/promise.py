"""The most promising configuration of a Theta too large to enumerate (docs/joint.md).

| symbol | here | unit |
| --- | --- | --- |
| m, mean of gbar plus the margin | `Promise.weights_g` | quality |
| sigma, standard deviation of gbar | `Promise.output_g` | quality |
| z = max(m, 0) / sigma; P = `upper_tail(z)` | | |
| L, the lower bound on the cost; u, u_out | `Promise.cost`, `u_out` | USD |
| tau, a promise that is known to be reached | `-reach` | |
| Psi(z) = u P / (P + tau), most that L can be | `Bands.most` | USD |

The promise P (u / L - 1) is at least tau where L <= Psi(z). The interval [0, beta] of z is cut
into bands. In a band [z_0, z_1] a line lies above Psi: L <= Psi(z) <= I - kappa (z - z_0). As
m <= z sigma, and sigma is at most its largest value s on the completions of a prefix,

    m - z_0 sigma + s / kappa (L - I) <= 0.

That is a sum of forms, so its least value over all completions has a bound (facts 1 to 3 in
branch_and_bound.py). Where the bound is above 0 in all bands, no completion is as promising as
tau. Where it is v <= 0, none is more promising than the tau' whose line has height I + v kappa / s.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scope_torch.space_search.branch_and_bound import NUMBERS, BestFirst, Children
from scope_torch.space_search.linear import Bounded, Linear
from scope_torch.space_search.minima import upper_tail
from scope_torch.space_search.prefixes import LabelledPosterior

_NUM_BANDS = 24
_CELLS = 32  # of a band, where the line above Psi is found
_SLACK = 1e-12  # of tau, for rounding
_LEAST_SIGMA = 1e-12  # in units of quality


class Promise(NamedTuple):
    """The objective -P(g <= -margin) (u_out - L_c) / L_c, and the constraint L_g <= -margin.

    Args:
        cost: L_c in USD.
        weights_g: `n`, of the mean of gbar.
        output_g: Whose sigma is that of gbar.
        beta_g: Standard deviations from the mean of gbar to L_g.
        margin: In units of quality.
        u_out: In USD.
        least_price: What L_c counts as at least, in USD.
    """

    cost: Bounded
    weights_g: Tensor
    output_g: int
    beta_g: float
    margin: float
    u_out: float
    least_price: float

    def at(self, posterior: LabelledPosterior, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The objective at `r x num_modules` labels, and by how much L_g exceeds -margin."""
        k = posterior.kernel(labels)
        mean = self.weights_g @ k + self.margin
        sigma = posterior.sigma(k, self.output_g)
        price = self.cost.at(posterior, labels, k).clamp_min(self.least_price)
        z = mean.clamp_min(0.0) / sigma.clamp_min(_LEAST_SIGMA)
        objective = upper_tail(z) * (1 - self.u_out / price)
        return objective, (mean - self.beta_g * sigma).clamp_min(0.0)

    def at_most(self, least_z: Tensor, least_c: Tensor) -> Tensor:
        """Most that the promise can be, at least 0, where z and L_c are at least these."""
        saving = self.u_out / least_c.clamp_min(self.least_price) - 1
        return upper_tail(least_z) * saving.clamp_min(0.0)


class Bands(NamedTuple):
    """Lines above Psi on the `num` bands of z, for one tau."""

    edges: Tensor  # `num + 1`
    most: Tensor  # `num + 1`, Psi at the edges, USD
    kappa: Tensor  # `num`, USD for a unit of z
    intercept: Tensor  # `num`, USD
    left: Tensor  # `num x cells`, edges of the cells
    right: Tensor  # `num x cells`

    @classmethod
    def of(cls, promise: Promise, tau: float) -> Bands:
        """The bands for a promise of `tau` at least 0."""
        z = torch.linspace(0, promise.beta_g, _NUM_BANDS * _CELLS + 1, dtype=torch.float64)
        probable = upper_tail(z)
        psi = promise.u_out * probable / (probable + tau * (1 - _SLACK))
        psi[psi < promise.least_price] = -math.inf  # a price is never so low
        edges, most = z[::_CELLS], psi[::_CELLS]
        flat = 1e-3 * promise.u_out / promise.beta_g  # any slope gives a line
        falls = torch.where(most[1:] > -math.inf, most[:-1] - most[1:], most[:-1])
        kappa = torch.where(falls > -math.inf, falls / edges.diff(), flat).clamp_min(flat)
        left, right = z[:-1].view(-1, _CELLS), z[1:].view(-1, _CELLS)
        # Psi falls: in a cell it is at most Psi at its left, the line least at its right.
        above = psi[:-1].view(-1, _CELLS) + kappa[:, None] * (right - edges[:-1, None])
        return cls(edges, most, kappa, above.amax(1), left, right)

    def at_most(self, promise: Promise, band: Tensor, height: Tensor) -> Tensor:
        """Most that promises can be whose lines in `band` are as high as `height` (USD)."""
        z = self.right[band] - self.edges[band, None]
        least_c = height[:, None] - self.kappa[band, None] * z
        return promise.at_most(self.left[band], least_c).amax(1)


class PromiseSearch(BestFirst):
    """Best-first search for the most promising configuration.

    Args:
        posterior: Gives k_D and sigma.
        promise: The objective.
        how: The other arguments of `BestFirst`.
    """

    def __init__(self, posterior: LabelledPosterior, promise: Promise, **how: Any) -> None:
        self._promise = promise
        self._made: tuple[float, Bands] | None = None
        super().__init__(posterior, **how)

    def _values_at(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._promise.at(self._posterior, labels)

    def _bands(self) -> Bands:
        """The bands for what is known to be reached."""
        tau = max(-self._reach, 0.0)
        if self._made is None or self._made[0] != tau:
            self._made = tau, Bands.of(self._promise, tau)
        return self._made[1]

    def _parts(self, labels: Tensor, depth: int) -> _Parts:
        prefixes, promise = self._prefixes(labels, depth), self._promise
        zero = torch.zeros_like(promise.weights_g)
        mean = prefixes.form(promise.weights_g, 0.0, promise.output_g, -promise.margin)
        minus_sigma = prefixes.form(zero, 1.0, promise.output_g)
        prior = math.sqrt(prefixes.posterior.variances[promise.output_g][1])
        most = (-minus_sigma.by_module()[1]).clamp(_LEAST_SIGMA, prior)
        return _Parts(mean, minus_sigma, promise.cost.linear(prefixes, 0.0), most)

    def _first_multiplier(self, root: Tensor) -> Tensor:
        parts, bands = self._parts(root, 0), self._bands()
        possible = (bands.most[:-1] > -math.inf).nonzero().squeeze(-1)
        lower = parts.in_bands(bands, possible).by_module()[1]
        spread = parts.in_bands(bands, possible[lower.argmin()][None]).spread()
        self._order = tuple(spread.argsort(descending=True, stable=True).tolist())
        return torch.zeros(1, dtype=torch.float64)

    def _bound(self, labels: Tensor, depth: int, mu: Tensor) -> Children:
        parts, bands = self._parts(labels, depth), self._bands()
        least_z, least_c = parts.children()
        bound = torch.full_like(least_z, math.inf)
        lowest, at = torch.full_like(mu, math.inf), parts.cost.by_module()[0]
        alive = least_z <= bands.edges[1:, None, None]
        alive &= least_c <= bands.most[:-1, None, None]  # `bands x labels x r`
        possible = alive.flatten(1).any(1).nonzero().squeeze(-1).flip(0)
        at_once = max(1, NUMBERS // (parts.cost.tables.num_numbers * len(labels)))
        for band in possible.split(at_once) if len(possible) else ():
            in_bands = parts.in_bands(bands, band)
            table, lower = in_bands.by_module()
            value = in_bands.children(table, lower).unflatten(1, (len(band), -1)).movedim(1, 0)
            some = alive[band] & (value <= 0)
            which, label, prefix = some.nonzero().unbind(-1)
            # As promising as tau' is possible only where its line is at least so high.
            height = bands.intercept[band, None, None] + value * (
                bands.kappa[band, None, None] / parts.most_sigma
            )
            most = self._promise.at_most(
                least_z[label, prefix].maximum(bands.edges[band[which]]), least_c[label, prefix]
            )
            most = most.minimum(bands.at_most(self._promise, band[which], height[some]))
            value = torch.full_like(value, math.inf).masked_scatter(some, -most)
            bound = bound.minimum(value.amin(0))
            least, first = lower.view(len(band), -1).min(0)
            table = table.view(len(table), len(band), -1)[:, first, torch.arange(len(mu))]
            at, lowest = torch.where(least < lowest, table, at), least.minimum(lowest)
        completed = labels.clone()
        for i, slots in zip(self._order[depth:], parts.cost.tables.slices, strict=True):
            completed[:, i] = at[slots].argmin(0)
        return Children(bound.T.contiguous(), mu, completed)


class _Parts(NamedTuple):
    """Bounds on the parts of the promise, on the completions of `r` prefixes."""

    mean: Linear  # m
    minus_sigma: Linear
    cost: Linear  # L
    most_sigma: Tensor  # `r`, s

    def children(self) -> tuple[Tensor, Tensor]:
        """Lower bounds on z and L of the children: `labels x r` each."""
        mean, minus_sigma, cost = (
            part.children(*part.by_module()) for part in (self.mean, self.minus_sigma, self.cost)
        )
        sigma = (-minus_sigma).minimum(self.most_sigma).clamp_min(_LEAST_SIGMA)
        return mean.clamp_min(0.0) / sigma, cost

    def in_bands(self, bands: Bands, band: Tensor) -> Linear:
        """What must not be above 0 in some bands: a column for each band and prefix."""
        z, mu = bands.edges[band, None], self.most_sigma / bands.kappa[band, None]
        intercept = bands.intercept[band, None]
        cost, minus_sigma = self.cost, self.minus_sigma

        def sum_of(mean: Tensor, minus_sigma: Tensor, cost: Tensor) -> Tensor:
            of_all = mean[..., None, :] + z * minus_sigma[..., None, :] + mu * cost
            return of_all.flatten(-2)

        return Linear(
            self.mean.tables,
            sum_of(self.mean.constant, minus_sigma.constant, cost.constant - intercept),
            sum_of(self.mean.entries, minus_sigma.entries, cost.entries[:, None]),
            sum_of(self.mean.magnitude, minus_sigma.magnitude, cost.magnitude + intercept.abs()),
            None if cost.terms is None else (mu * cost.terms[:, None]).flatten(-2),
        )
