"""Minima of the lower confidence bounds over Theta, exact although most variances are not.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| L_c, L_g (eq:lcb-ours) | `c`, `g` | `|Theta|` each | USD, quality |
| min{L_c : L_g <= 0} | `least_c` | | USD |
| min{L_g : L_c <= u_out} | `least_g` | | quality |

The variances behind L_c and L_g are upper bounds, so L_c and L_g are never above the exact lower
bounds. Best first: the variance of the current best is made exact until the best is exact; what
is then above it can only rise, so the minimum is that of the exact bounds. About 20 variances of
6.4 million are made exact this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scope_torch.bounds.base import Beta
from scope_torch.space import first_tied, position_of, tie_width

CHUNK = 1 << 16  # configurations at a time: two threads share more than 2^15 of them
AT_ONCE = 32  # variances first made exact together, since one alone costs as much
INELIGIBLE = 1e300  # more than any bound, in USD or units of quality
_LEAST_SIGMA = 1e-12  # in units of quality
Objective = Callable[[slice | Tensor], Tensor]


class Moments(NamedTuple):
    """Of several configurations, of one shape (float64)."""

    mean_c: Tensor  # USD
    lower_c: Tensor  # L_c in USD; +inf for theta_out
    mean_g: Tensor  # units of quality
    lower_g: Tensor  # L_g


class BoundedPosterior(Protocol):
    """A posterior on all of Theta whose variances are upper bounds, some of them exact."""

    @property
    def mean_c(self) -> Tensor:
        """`|Theta|` values of mu_bar_c in USD (float64)."""
        ...

    @property
    def mean_g(self) -> Tensor:
        """`|Theta|` values of mu_bar_g (float64)."""
        ...

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """Puts L_c (USD) and L_g at the configurations `at` into `c` and `g`."""
        ...

    def make_exact(self, index: Tensor) -> bool:
        """Makes variances exact at flat indices; True if all of Theta has become exact."""
        ...

    def is_exact(self, index: Tensor) -> Tensor:
        """Where the variance is exact: `len(index)` booleans."""
        ...


class LowerBounds:
    """Lower confidence bounds on all of Theta, and their exact minima.

    Args:
        posterior: Up to date.
        lower: Memory for L_c and L_g: `2 x |Theta|`.
        beta: beta_c in USD and beta_g.
        u_out: Upper bound on c(theta_out) in USD; +inf to look at all of Theta.
        theta_out: Flat index of theta_out, which cannot improve on itself: its L_c is +inf; None
            for no exception.
        forbidden: `|Theta|` booleans, configurations that may not be chosen: their L_c and L_g are
            +inf; None for none.
        listed: Flat indices, rising, where a list is enumerated in place of Theta: its length is
            then |Theta| here. None for all of Theta.

    Attributes:
        c: `|Theta|` values of L_c in USD (float64), too low where the variance is not exact.
        g: `|Theta|` values of L_g, likewise.
        beta: As given.
        u_out: As given.
        least_c: min{L_c : L_g <= 0}, the least that c(theta_star) can be; +inf if nothing is
            feasible. Exact.
        least_g: min{L_g : L_c <= u_out}, of all that can still improve on theta_out; +inf if
            nothing can. Exact.
        is_exact: True.
        chunks: Theta in slices of flat indices.
        beyond: What knows of all of Theta, where this is a part of it; None: this does.
    """

    is_exact = True
    beyond: Any = None

    def __init__(
        self,
        posterior: BoundedPosterior,
        lower: Tensor,
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        forbidden: Tensor | None = None,
        listed: Tensor | None = None,
    ) -> None:
        self._listed = listed
        theta_out = None if theta_out is None else position_of(theta_out, listed)
        self._posterior, self.beta, self._forbidden = posterior, beta, forbidden
        self.u_out, self._theta_out = u_out, theta_out
        self.c, self.g = lower
        size = len(self.c)
        chunk = CHUNK if self.c.device.type == "cpu" else size
        self.chunks = [slice(start, start + chunk) for start in range(0, size, chunk)]
        self._scratch = torch.empty(min(chunk, size), dtype=torch.float64, device=self.c.device)
        # Lower bounds on the minima of the chunks.
        self._chunk_least_c = [math.inf] * len(self.chunks)  # of min{L_c : L_g <= 0}
        self._chunk_least_g = [math.inf] * len(self.chunks)  # of min{L_g : L_c <= u_out}
        self._fill()
        self.least_c, _ = self._search(self.c.__getitem__, self.g, 0.0, self._chunk_least_c)
        self.least_g, _ = self._search(self.g.__getitem__, self.c, u_out, self._chunk_least_g)

    @property
    def whole(self) -> Any:
        """See `Minima`."""
        return self.beyond or self

    def value(self, function: Callable[[Moments], Tensor], index: int) -> float:
        """Value of a function of the moments at the flat index `index`, exactly."""
        at = torch.tensor([position_of(index, self._listed)], device=self.c.device)
        if not self._posterior.is_exact(at).all():
            self._make_exact(at)
        return float(function(self._moments(at)))

    def largest(self, function: Callable[[Moments], Tensor]) -> tuple[float, int]:
        """The largest value of a function of the moments on Theta, exactly, and its flat index.

        Args:
            function: Never falls if L_c and L_g do, and is never below 0.
        """

        def negative(at: slice | Tensor) -> Tensor:
            return -function(self._moments(at))

        chunk_least = [-math.inf] * len(self.chunks)
        self._refine(negative, chunk_least, math.inf)
        least, tied = self._search(negative, self.g, math.inf, chunk_least)
        return -least, int(self._flat(tied[:1]))

    def _moments(self, at: slice | Tensor) -> Moments:
        posterior = self._posterior
        return Moments(posterior.mean_c[at], self.c[at], posterior.mean_g[at], self.g[at])

    def _refine(self, objective: Objective, least: list[float], most_g: float = 0.0) -> None:
        """Raises lower bounds on a negative objective to what the bounds so far say, best first.

        Args:
            objective: As in `_argmin`.
            least: A lower bound on its minimum in each chunk; written over.
            most_g: As in `_argmin`.
        """
        best = 0.0
        for k in sorted(range(len(least)), key=least.__getitem__):
            if least[k] > best:
                break
            at = self.chunks[k]
            least[k] = least_of(within(objective(at), self.g[at], most_g))
            best = min(best, least[k])

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; ties as in `first_tied`.

        Args:
            most_g: At least one configuration must be eligible.
            scale: See `tie_width`; in USD.
            seed: See `first_tied`.
        """
        return self._argmin(self.c.__getitem__, self._chunk_least_c, scale, seed, most_g)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising configuration, exactly; see `MostPromising`.

        Args:
            margin: L_g must be at most -margin, for at least one configuration.
            least_price: What L_c counts as at least, in USD.
            seed: See `first_tied`.
        """

        def negative(at: slice | Tensor) -> Tensor:
            moments = self._posterior.mean_g[at], self.g[at], self.c[at]
            return negative_promise(*moments, self.beta.g, margin, self.u_out, least_price)

        # In each chunk the least possible value: probability and price at their best at once.
        least = [(1 - self.u_out / max(c, least_price)) / 2 for c in self._chunk_least_c]
        self._refine(negative, least, -margin)
        return self._argmin(negative, least, 0.0, seed, -margin)

    def _argmin(
        self,
        objective: Objective,
        chunk_least: Sequence[float],
        scale: float,
        seed: int,
        most_g: float = 0.0,
    ) -> int:
        """Flat index of the least objective subject to L_g <= `most_g`, exactly.

        Args:
            objective: Values at some configurations, made of `c` and `g`: where they are too low,
                it must not be too high.
            chunk_least: A lower bound on the minimum of every chunk.
            scale: See `tie_width`; in the unit of the objective.
            seed: Decides ties, see `first_tied`.
            most_g: At least one configuration must be eligible.
        """

        def width(best: float) -> float:
            return tie_width(best, scale)

        _, tied = self._search(objective, self.g, most_g, chunk_least, width)
        return first_tied(self._flat(tied), seed)

    def _flat(self, at: Tensor) -> Tensor:
        """Flat indices of positions."""
        return at if self._listed is None else self._listed[at]

    def _fill(self) -> None:
        """Makes the bounds, and their minima in every chunk."""
        for k, at in enumerate(self.chunks):
            c, g = self.c[at], self.g[at]
            self._fill_lower(at, c, g)
            if self._theta_out is not None and at.start <= self._theta_out < at.stop:
                self.c[self._theta_out] = math.inf
            scratch = self._scratch[: len(c)]
            self._chunk_least_c[k] = least_of(within(c, g, 0.0, out=scratch))
            self._chunk_least_g[k] = least_of(within(g, c, self.u_out, out=scratch))

    def _make_exact(self, index: Tensor) -> None:
        """Raises some bounds to the exact ones; the minima of their chunks may now be too low."""
        if self._posterior.make_exact(index):
            self._fill()
            return
        c, g = self.c.new_empty(2, len(index))
        self._fill_lower(index, c, g)
        self.c[index], self.g[index] = c, g
        if self._theta_out is not None:
            self.c[self._theta_out] = math.inf

    def _fill_lower(self, at: slice | Tensor, c: Tensor, g: Tensor) -> None:
        """`BoundedPosterior.fill_lower`, and +inf where nothing may be chosen."""
        self._posterior.fill_lower(at, self.beta, c, g)
        if self._forbidden is not None:
            c.masked_fill_(self._forbidden[at], math.inf)
            g.masked_fill_(self._forbidden[at], math.inf)

    def _search(
        self,
        objective: Objective,
        constraint: Tensor,
        limit: float,
        chunk_least: Sequence[float],
        width: Callable[[float], float] = lambda _: 0.0,
    ) -> tuple[float, Tensor]:
        """The least objective subject to constraint <= limit, exactly, and where it is attained.

        Best first: compute the exact variance of the current best until the best is exact. Once an
        exact value is known, everything that seems better is made exact at once.

        Args:
            objective: See `_argmin`.
            constraint: `self.c` or `self.g`.
            limit: Largest value of the constraint.
            chunk_least: See `_argmin`.
            width: How far above a minimum a configuration ties with it.

        Returns:
            The minimum, +inf if nothing is within the limit, and flat indices within `width`.
        """
        reach = -math.inf  # the least exact value so far, and its ties
        at_once = AT_ONCE
        while True:
            best, near = self._scan(objective, constraint, limit, chunk_least, reach, width)
            if best == math.inf:
                return best, torch.empty(0, dtype=torch.int64, device=constraint.device)
            tied = _up_to(best + width(best), near)
            if self._posterior.is_exact(tied).all():
                return best, tied
            some = min(near, key=lambda part: part.least).values
            some = float(some.topk(min(at_once, len(some)), largest=False).values[-1])
            wanted = reach if reach > -math.inf else min(some, INELIGIBLE / 2)
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
        chunk_least: Sequence[float],
        reach: float,
        width: Callable[[float], float],
    ) -> tuple[float, list[_Chunk]]:
        """The least objective by the bounds so far, and the chunks that come near it or `reach`."""
        best, near = math.inf, []
        for k in sorted(range(len(chunk_least)), key=chunk_least.__getitem__):
            if chunk_least[k] == math.inf or chunk_least[k] > max(best + width(best), reach):
                break
            at = self.chunks[k]
            values = within(objective(at), constraint[at], limit)
            near.append(_Chunk(at.start, least_of(values), values))
            best = min(best, near[-1].least)
        return best, near


class _Chunk(NamedTuple):
    """The objective on a slice of Theta."""

    start: int
    least: float
    values: Tensor  # `INELIGIBLE` and more where the constraint does not hold


def probability(mean_g: Tensor, lower_g: Tensor, b: float, margin: float) -> Tensor:
    """P(g <= -margin) of a normal g, at most 1/2.

    Args:
        mean_g: Means, of any shape.
        lower_g: L_g, which is `b` standard deviations below the mean.
        b: beta_g.
        margin: In units of quality.
    """
    sigma_g = ((mean_g - lower_g) / b).clamp_min_(_LEAST_SIGMA)
    return upper_tail((mean_g + margin).clamp_min_(0.0) / sigma_g)


def upper_tail(z: Tensor) -> Tensor:
    """P(Z >= z) of a standard normal Z; torch's ndtr(-z) is 0 from z = 8.3 on."""
    return torch.special.erfc(z / math.sqrt(2)).mul_(0.5)


def negative_promise(
    mean_g: Tensor,
    lower_g: Tensor,
    lower_c: Tensor,
    b: float,
    margin: float,
    u_out: float,
    least_price: float,
) -> Tensor:
    """-P(g <= -margin) (u_out - L_c) / L_c, the objective of `MostPromising`.

    Args:
        mean_g: See `probability`.
        lower_g: See `probability`.
        lower_c: L_c in USD.
        b: See `probability`.
        margin: See `probability`.
        u_out: In USD.
        least_price: What L_c counts as at least, in USD.
    """
    return probability(mean_g, lower_g, b, margin) * (1 - u_out / lower_c.clamp_min(least_price))


def within(values: Tensor, constraint: Tensor, limit: float, out: Tensor | None = None) -> Tensor:
    """`values` where constraint <= limit, and `INELIGIBLE` more elsewhere.

    A sum, because torch.where takes six times as long over a mask without a pattern.
    """
    out = torch.empty_like(values) if out is None else out
    torch.gt(constraint, limit, out=out)  # 0.0 or 1.0
    return torch.add(values, out, alpha=INELIGIBLE, out=out)


def least_of(values: Tensor) -> float:
    """The minimum of the values of `within`; +inf if none is within the limit."""
    least = float(values.min())
    return least if least < INELIGIBLE / 2 else math.inf


def _up_to(limit: float, chunks: Sequence[_Chunk]) -> Tensor:
    """Flat indices of the values up to `limit`."""
    return torch.cat(
        [
            chunk.start + (chunk.values <= limit).nonzero().squeeze(-1)
            for chunk in chunks
            if chunk.least <= limit
        ]
    )
