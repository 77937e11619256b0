"""The posterior of the averages on all of Theta, kept up to date (eq:scope-mean-variance)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scope_torch.bounds import Beta
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid, form, squares
from scope_torch.model.incremental import QuerySurrogate
from scope_torch.space import first_tied, tie_width

_CHUNK = 1 << 16  # configurations at a time: two threads share more than 2^15 of them
_DECISIVE = 256  # variances that are kept exact, because minima depended on them lately
_AT_ONCE = 32  # variances first made exact together, since one alone costs as much
_BEYOND = 1e300  # more than any bound, in USD or units of quality
_DENSE = 1 / 32  # cost of an operation of a matrix product relative to a scattered one
Objective = Callable[[slice | Tensor], Tensor]


class Change(NamedTuple):
    """A variance falls by the sum over i of weights_i (k_D(theta)^T rows_i)^2."""

    rows: Tensor  # `m x n`
    weights: Tensor  # `m`, positive

    def at_least(self) -> Tensor:
        """A row x, `n`, such that every variance falls by at least (k_D(theta)^T x)^2.

        sum_i v_i (k^T x_i)^2 >= (k^T sum_i v_i x_i)^2 / sum_i v_i (Cauchy-Schwarz); nearly equal,
        since the rows of one candidate differ little. Without rows it is 0.
        """
        return self.weights @ self.rows / self.weights.sum().clamp_min(1e-300).sqrt()


class GridPosterior:
    """mu_bar_c, mu_bar_g and sigma_bar of every configuration.

    The means are made anew by every update. The variance only falls as observations come in, so
    what an earlier update left is an upper bound: lower confidence bounds made of it are no higher
    than the true ones. `LowerBounds` makes the few variances exact that decide a minimum, and
    everything else keeps its upper bound until too many would be needed at once. What decided
    lately is kept exact, since it is likely to decide again; the others are lowered by what a
    single sum over Theta shows.

    Args:
        surrogate: The per-query surrogates.
        grid: Sums of their kernel over Theta.

    Attributes:
        mean_c: `|Theta|` values of mu_bar_c in USD (float64), written over by the next update.
        mean_g: `|Theta|` values of mu_bar_g (float64), likewise.
        upper_variance: `|Theta|` upper bounds on sigma_bar^2 (float64), some of them exact.
    """

    def __init__(self, surrogate: QuerySurrogate, grid: HammingGrid | DirectGrid) -> None:
        self._surrogate, self._grid = surrogate, grid
        self._aggregates: Sequence[AggregatePosterior] = ()
        size, device = grid.space.size, grid.device
        # Means, and lower bounds, whose memory is free until they are asked for.
        self._values = torch.empty(4, size, dtype=torch.float64, device=device)
        self._lower = self._values[2:]
        self.mean_c, self.mean_g = self._values[:2]
        self.upper_variance = torch.empty_like(self.mean_c)
        self.upper_variance.fill_(1 / surrogate.num_queries)
        self._is_exact = torch.zeros(size, dtype=torch.bool, device=device)
        self._all_exact = False
        self._num_operations = 0.0  # spent on single variances since the last update
        self._decisive = torch.empty(0, dtype=torch.int64, device=device)
        self._k = self.mean_c.new_empty(0, 0)  # of the decisive with D
        self._mark = 0  # of the columns that exact variances know

    def update(self) -> None:
        """Brings the means up to the last observation told to the surrogate."""
        self._aggregates = ()
        self._renew(self._surrogate.weights())

    @property
    def variance(self) -> Tensor:
        """`|Theta|` values of sigma_bar^2 (float64), all exact; written over by an update."""
        if not self._all_exact:
            self._make_all_exact()
        return self.upper_variance

    def settings(self) -> dict[str, Any]:
        """What decides the choices beside the surrogate: nothing."""
        return {}

    def report(self) -> dict[str, Any]:
        """See `BranchedPosterior.report`; every minimum over Theta is exact."""
        return {"space_search": "grid", "exact": True, "gap_usd": 0.0}

    def least_slope(self) -> float:
        """min{(mu_bar_g + 1) / sigma_bar}: the least beta_g for which some L_g is at most -1."""
        return float(((self.mean_g + 1) / self.variance.sqrt()).min())

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g, and what they say about the iteration.

        Args:
            beta: beta_c in USD and beta_g.
            u_out: Upper bound on c(theta_out) in USD; +inf to look at all of Theta.
            theta_out: Flat index of theta_out, which cannot improve on itself: L_c is +inf there;
                None for no exception.
        """
        return LowerBounds(self, self._lower, beta, u_out, theta_out)

    def make_exact(self, index: Tensor) -> bool:
        """Makes the variance exact at the configurations of `index`.

        Returns:
            True if it is now exact everywhere, because one by one has come to cost more.
        """
        codes = self._surrogate.observed()
        n = len(codes)
        self._num_operations += len(index) * n**2 * _DENSE
        if self._num_operations > self._grid.form_operations(n):
            self._make_all_exact()
            return True
        k = self._grid.kernel_at(index, codes)
        for variance, posterior in zip(self._variances, self._posteriors(), strict=True):
            variance[index] = posterior.constant - form(k, posterior.matrix)
        self._decisive = torch.cat([index[:_DECISIVE], self._decisive])[:_DECISIVE]
        self._k = torch.cat([k[:_DECISIVE], self._k])[:_DECISIVE]
        self._is_exact[index] = True
        return False

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """L_c (USD) and L_g at some configurations, from variances that may be too large.

        Args:
            at: Which configurations.
            beta: See `lower_bounds`.
            c: Where to put L_c.
            g: Where to put L_g.
        """
        sigma = torch.clamp(self.upper_variance[at], min=0.0, out=g).sqrt_()  # rounding
        torch.sub(self.mean_c[at], sigma, alpha=beta.c, out=c)
        torch.sub(self.mean_g[at], sigma, alpha=beta.g, out=g)

    def is_exact(self, index: Tensor) -> Tensor:
        """Where the variance is exact: `len(index)` booleans."""
        return self._is_exact[index]

    def _renew(self, weights: Tensor) -> None:
        """Makes the means, and lowers variances by what was learnt.

        Exact ones stay exact: all if all are and that is less work, or those that decided lately;
        the others are upper bounds from now on.
        """
        self._num_operations = 0.0
        changes, codes = self._changes(), self._surrogate.observed()
        new = self._grid.kernel_at(self._decisive, codes[self._k.shape[1] :])
        self._k = torch.cat([self._k, new], 1)
        follow_all = bool(changes) and self._all_exact and not self._is_dear(changes, len(codes))
        at_least = [] if follow_all else [change.at_least() for change in changes]
        rows = torch.stack([*weights, *at_least])
        self._grid.weighted_sums(codes, rows, out=self._values[: len(rows)])
        if follow_all:
            for variance, (x, v) in zip(self._variances, changes, strict=True):
                self._grid.add_squares(codes, x, -v, to=variance, scratch=self._lower[0])
                variance.clamp_(min=0.0)  # rounding
            return
        at = self._decisive if changes else self._decisive[:0]
        for variance, change, falls in zip(self._variances, changes, self._lower, strict=False):
            exact = variance[at] - squares(self._k, *change)
            variance.addcmul_(falls, falls, value=-1)
            variance[at] = exact.clamp_(min=0.0)
        self._forget_all_but(at)

    def _forget_all_but(self, index: Tensor) -> None:
        """From now on the other variances are upper bounds."""
        self._all_exact, self._decisive, self._k = False, index, self._k[: len(index)]
        self._is_exact.zero_()
        self._is_exact[index] = True

    def _is_dear(self, changes: Sequence[Change], n: int) -> bool:
        """Whether to make all variances anew would be less work."""
        operations = len(changes[0].weights) * self._grid.sum_operations(n)
        return operations > self._grid.form_operations(n)

    def _changes(self) -> Sequence[Change]:
        """Since the last update, by what each of `_variances` falls; empty: by something else."""
        columns, self._mark = self._surrogate.columns_since(self._mark)
        if columns is None:
            return ()
        rows, weights = (torch.from_numpy(part).to(self.mean_c.device) for part in columns[:2])
        return (Change(rows, weights / self._surrogate.num_queries**2),)

    @property
    def _variances(self) -> tuple[Tensor, ...]:
        """What the variances of `_posteriors` are kept in."""
        return (self.upper_variance,)

    def _posteriors(self) -> Sequence[AggregatePosterior]:
        if not self._aggregates:
            self._aggregates = (self._surrogate.aggregate(),)
        return self._aggregates

    def _make_all_exact(self) -> None:
        for variance, posterior in zip(self._variances, self._posteriors(), strict=True):
            self._grid.quadratic_form(posterior.codes, posterior.matrix, out=variance)
            variance.neg_().add_(posterior.constant)
        self._is_exact.fill_(True)
        self._all_exact = True


class LowerBounds:
    """Lower confidence bounds on all of Theta, and their exact minima.

    Args:
        posterior: Up to date.
        lower: Memory for L_c and L_g: `2 x |Theta|`.
        beta: See `GridPosterior.lower_bounds`.
        u_out: See there.
        theta_out: See there.

    Attributes:
        c: `|Theta|` values of L_c in USD (float64), too low where the variance is not exact.
        g: `|Theta|` values of L_g, likewise.
        least_c: min{L_c : L_g <= 0}, the least that c(theta_star) can be; +inf if nothing is
            feasible. Exact.
        least_g: min{L_g : L_c <= u_out}, of what can still improve on theta_out; +inf if nothing
            can. Exact.
        is_exact: True.
    """

    is_exact = True

    def __init__(
        self,
        posterior: GridPosterior,
        lower: Tensor,
        beta: Beta,
        u_out: float,
        theta_out: int | None,
    ) -> None:
        self._posterior, self._beta = posterior, beta
        self._u_out, self._theta_out = u_out, theta_out
        self.c, self.g = lower
        size = len(self.c)
        chunk = _CHUNK if self.c.device.type == "cpu" else size
        self._slices = [slice(start, start + chunk) for start in range(0, size, chunk)]
        self._scratch = torch.empty(min(chunk, size), dtype=torch.float64, device=self.c.device)
        self._min_c = [math.inf] * len(self._slices)  # min{L_c : L_g <= 0} of every chunk
        self._min_g = [math.inf] * len(self._slices)  # min{L_g : L_c <= u_out}
        self._fill()
        self.least_c, _ = self._search(self.c.__getitem__, self.g, 0.0, self._min_c)
        self.least_g, _ = self._search(self.g.__getitem__, self.c, u_out, self._min_g)

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; ties as in `argmin_tied`.

        Args:
            most_g: At least one configuration must be eligible.
            scale: See `argmin_tied`; in USD.
            seed: See `argmin_tied`.
        """
        _, tied = self._search(
            self.c.__getitem__, self.g, most_g, self._min_c, lambda best: tie_width(best, scale)
        )
        return first_tied(tied, seed)

    def _fill(self) -> None:
        """Makes the bounds, and their minima in every chunk."""
        posterior = self._posterior
        for k, at in enumerate(self._slices):
            c, g = self.c[at], self.g[at]
            posterior.fill_lower(at, self._beta, c, g)
            if self._theta_out is not None and at.start <= self._theta_out < at.stop:
                self.c[self._theta_out] = math.inf
            scratch = self._scratch[: len(c)]
            self._min_c[k] = least_of(within(c, g, 0.0, out=scratch))
            self._min_g[k] = least_of(within(g, c, self._u_out, out=scratch))

    def _make_exact(self, index: Tensor) -> None:
        """Raises some bounds to the exact ones; the minima of their chunks may now be too low."""
        posterior = self._posterior
        if posterior.make_exact(index):
            self._fill()
            return
        c, g = self.c.new_empty(2, len(index))
        posterior.fill_lower(index, self._beta, c, g)
        self.c[index], self.g[index] = c, g
        if self._theta_out is not None:
            self.c[self._theta_out] = math.inf

    def _search(
        self,
        objective: Objective,
        constraint: Tensor,
        limit: float,
        chunk_min: Sequence[float],
        width: Callable[[float], float] = lambda _: 0.0,
    ) -> tuple[float, Tensor]:
        """The least objective subject to constraint <= limit, exactly, and where it is attained.

        Bounds that are too low show the way: what seems best is made exact until what is best is
        exact. As soon as something exact is known, all that seems better is made exact at once.

        Args:
            objective: Gives values at some configurations, too low where bounds are.
            constraint: `self.c` or `self.g`.
            limit: Largest value of the constraint.
            chunk_min: A lower bound on the minimum of every chunk.
            width: How far above a minimum a configuration ties with it.

        Returns:
            The minimum, +inf if nothing is within the limit, and flat indices within `width`.
        """
        reach = -math.inf  # the least exact value so far, and what ties with it
        at_once = _AT_ONCE
        while True:
            best, near = self._scan(objective, constraint, limit, chunk_min, reach, width)
            if best == math.inf:
                return best, torch.empty(0, dtype=torch.int64, device=constraint.device)
            tied = _up_to(best + width(best), near)
            if self._posterior.is_exact(tied).all():
                return best, tied
            some = min(near, key=lambda part: part.least).values
            some = float(some.topk(min(at_once, len(some)), largest=False).values[-1])
            wanted = reach if reach > -math.inf else min(some, _BEYOND / 2)
            stale = _up_to(max(best + width(best), wanted), near)
            stale = stale[~self._posterior.is_exact(stale)]
            self._make_exact(stale)
            at_once *= 2
            exact = objective(stale)[constraint[stale] <= limit]
            if len(exact):
                reach = float(exact.min()) + width(float(exact.min()))

    def _scan(
        self,
        objective: Objective,
        constraint: Tensor,
        limit: float,
        chunk_min: Sequence[float],
        reach: float,
        width: Callable[[float], float],
    ) -> tuple[float, list[_Part]]:
        """The least objective in sight, and the chunks that come near it or `reach`."""
        best, near = math.inf, []
        for k in sorted(range(len(chunk_min)), key=chunk_min.__getitem__):
            if chunk_min[k] == math.inf or chunk_min[k] > max(best + width(best), reach):
                break
            at = self._slices[k]
            values = within(objective(at), constraint[at], limit)
            near.append(_Part(at.start, least_of(values), values))
            best = min(best, near[-1].least)
        return best, near


class _Part(NamedTuple):
    """A chunk of Theta."""

    start: int
    least: float
    values: Tensor  # of the objective; `_BEYOND` and more where the constraint does not hold


def within(values: Tensor, constraint: Tensor, limit: float, out: Tensor | None = None) -> Tensor:
    """`values` where constraint <= limit, and `_BEYOND` more elsewhere.

    A sum, because torch.where takes six times as long over a mask without a pattern.
    """
    out = torch.empty_like(values) if out is None else out
    torch.gt(constraint, limit, out=out)  # 0.0 or 1.0
    return torch.add(values, out, alpha=_BEYOND, out=out)


def least_of(values: Tensor) -> float:
    """The minimum of what `within` gave; +inf if there is nothing."""
    least = float(values.min())
    return least if least < _BEYOND / 2 else math.inf


def _up_to(limit: float, parts: Sequence[_Part]) -> Tensor:
    """Flat indices of the values up to `limit`."""
    return torch.cat(
        [
            part.start + (part.values <= limit).nonzero().squeeze(-1)
            for part in parts
            if part.least <= limit
        ]
    )
