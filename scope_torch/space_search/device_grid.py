"""The averages on all of Theta, their bounds and minima, in few launches on a device.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| mu_bar_c, mu_bar_g (eq:scope-mean-variance) | `mean_c`, `mean_g` | `|Theta|` | USD, quality |
| sigma_bar^2 | `variance` | `|Theta|` | |
| L_c, L_g, L_c again (eq:lcb-ours) | `DeviceMinima` | `3 x |Theta|` | USD, quality |
| min{L_c : L_g <= 0}, min{L_g : L_c <= u_out} | `least_c`, `least_g` | | USD, quality |

Each launch and each wait costs as much as reading megabytes, so all variances are exact, and
nothing is looked at in parts. L_c stands on both sides of L_g: rows 0 and 1 are then the objectives
of both minima, and rows 1 and 2 their constraints. Ties are decided by a table of `tie_rank`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.space import tie_rank
from scope_torch.space_search.grid import Enumerated, forbidden, least_allowed, worst_of
from scope_torch.space_search.minima import Moments, negative_promise

_TIE = 1e-9  # as in `tie_width`
_MOST_FOLLOWED = 64  # rows that a variance is followed by, before it is made anew


class DevicePosterior(Enumerated):
    """As `GridPosterior`, on a device.

    Args:
        surrogate: The per-query surrogate.
        sums: Sums of its kernel over Theta.
        allowed: Which configurations may be chosen; None for all.

    Attributes:
        variance: `|Theta|` values of sigma_bar^2 (float64), all exact.

    Examples:
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> from scope_torch.space import ConfigSpace
        >>> space, kernel = ConfigSpace((2, 2)), HammingMatern52Kernel()
        >>> surrogate = TensorSurrogate(space, kernel, 1, lam=1e-6)
        >>> posterior = DevicePosterior(surrogate, DeviceSums(space, kernel, "cpu"))
        >>> surrogate.observe((0, 1), query=0, y_c=0.002, y_g=-0.1)
        >>> posterior.update()
        >>> posterior.mean_c.argmax()
        tensor(1)
    """

    def __init__(
        self, surrogate: TensorSurrogate, sums: DeviceSums, allowed: Allowed | None = None
    ) -> None:
        self._forbidden = forbidden(allowed, sums.device)
        self._surrogate, self._sums, self._ties = surrogate, sums, Ties(sums)
        self._rows = self._means = self.variance = torch.empty(0)  # rows: all means
        self._units: Sequence[float] = ()  # of the constraints in `_means`
        self._prior = self._ties.to_device([1 / surrogate.num_queries])
        self._seen = (0, 0)  # the mark of the rows that the variance knows
        self._num_followed = _MOST_FOLLOWED + 1  # nothing is known

    def update(self) -> None:
        """Brings means and variance up to the last observation told to the surrogate."""
        surrogate, Q = self._surrogate, self._surrogate.num_queries
        rows, self._seen = surrogate.rows_since(self._seen)
        self._sums.add_configurations(surrogate.codes())
        w, S = surrogate.gps.w, surrogate.gps.S
        if rows is not None and self._can_follow(len(rows)):
            weights = torch.cat([w, w[:1], *(row[None] / Q for row in rows)])
            self._rows, falls = self._sums.sums(weights).tensor_split([len(w) + 1])
            for fall in falls:
                self.variance.addcmul_(fall, fall, value=-1)
            self._num_followed += len(rows)
        else:
            self._rows = self._sums.sums(torch.cat([w, w[:1]]))
            (self.variance,) = self._sums.forms(S[None], self._prior, -1 / Q**2)
            self._num_followed = 0
        self.variance.clamp_(min=0.0)  # rounding
        self._measure_in(surrogate.units())

    def _measure_in(self, units: Sequence[float]) -> None:
        """From now on these are the units of the constraints, see `with_worst`."""
        self._units = units
        self._means = with_worst(self._rows, self._surrogate.num_constraints, units)

    def _can_follow(self, num_rows: int) -> bool:
        """Whether to lower the variance by squares of so many rows moves fewer bytes than anew."""
        if self._num_followed + num_rows > _MOST_FOLLOWED:
            return False  # rounding adds up
        return self._sums.bytes_of_squares(num_rows) < self._sums.bytes_of_forms(1)

    @property
    def mean_c(self) -> Tensor:
        """`|Theta|` values of mu_bar_c in USD (float64)."""
        return self._means[0]

    @property
    def mean_g(self) -> Tensor:
        """`|Theta|` values of mu_bar_g (float64), of the worst in the units of the last bounds."""
        return self._means[1]

    def least_slope(self) -> float:
        """min{(mu_bar_g + 1) / sigma_bar}: the least beta_g for which some L_g is at most -1."""
        self._measure_in(self._surrogate.units())
        return least_allowed((self.mean_g + 1) / self.variance.sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> DeviceMinima:
        """L_c and L_g on all of Theta, and their minima; arguments as in `LowerBounds`."""
        space, units = self._sums.space, beta.units or self._surrogate.units()
        if units != self._units:
            self._measure_in(units)
        self._surrogate.look_beside(None if theta_out is None else space.theta_at(theta_out))
        half = self._ties.to_device([-beta.c, -beta.g, -beta.c])[:, None]
        lower = torch.addcmul(self._means, half, self.variance.sqrt())
        if self._forbidden is not None:
            lower.masked_fill_(self._forbidden, math.inf)
        return DeviceMinima(lower, self._means, beta, u_out, theta_out, self._ties)


def with_worst(rows: Tensor, num_constraints: int, units: Sequence[float]) -> Tensor:
    """The rows with one in place of those of the constraints, see `worst_of`.

    Args:
        rows: Of the cost, of each constraint, and perhaps more: `m x |Theta|`.
        num_constraints: K.
        units: Of each constraint; none for 1 everywhere.
    """
    if num_constraints == 1:
        return rows
    cost, of_constraints, more = rows.tensor_split([1, 1 + num_constraints])
    return torch.cat([cost, worst_of(of_constraints, units)[None], more])


class Ties:
    """`tie_rank` of all of Theta, made once for a seed, and other constants of the device.

    Args:
        sums: Sums over Theta.

    Attributes:
        inf: +inf.
        last: The largest int64.
    """

    def __init__(self, sums: DeviceSums) -> None:
        self._size, self._device = sums.space.size, sums.device
        self.inf = self.to_device([math.inf])[0]
        self.last = torch.tensor(torch.iinfo(torch.int64).max).to(self._device)
        self._rank: tuple[int, Tensor] | None = None

    def to_device(self, values: list[float]) -> Tensor:
        """A few numbers as a tensor on the device."""
        return torch.tensor(values, dtype=torch.float64).to(self._device)

    def rank(self, seed: int) -> Tensor:
        """`|Theta|` keys (int64)."""
        if self._rank is None or self._rank[0] != seed:
            self._rank = seed, tie_rank(torch.arange(self._size, device=self._device), seed)
        return self._rank[1]


class WholeOnDevice:
    """Minima whose moments are all exact, and are on the device."""

    _theta_out: int | None

    @abstractmethod
    def _moments(self, at: slice | int) -> Moments:
        """At one flat index, or on all of Theta."""

    @property
    def whole(self) -> WholeOnDevice:
        """See `Minima`."""
        return self

    def value(self, function: Callable[[Moments], Tensor], index: int) -> float:
        """Value of a function of the moments at a flat index."""
        if index == self._theta_out:
            return 0.0
        return float(function(Moments(*torch.stack(self._moments(index)).cpu())))

    def largest(self, function: Callable[[Moments], Tensor]) -> tuple[float, int]:
        """The largest value of a function of the moments on Theta, and its flat index."""
        values = function(self._moments(slice(None)))
        if self._theta_out is not None:
            values[self._theta_out].fill_(0.0)
        value, index = values.max(0)
        return float(value), int(index)


class DeviceMinima(WholeOnDevice):
    """As `LowerBounds`, from variances that are all exact.

    Args:
        lower: L_c, L_g and L_c again: `3 x |Theta|`, theta_out still among them; written over.
        means: mu_bar_c and mu_bar_g: `2 x |Theta|` or more.
        beta: beta_c in USD and beta_g.
        u_out: Upper bound on c(theta_out) in USD; +inf to look at all of Theta.
        theta_out: Flat index of theta_out, which cannot improve on itself: its L_c is +inf; None
            for no exception.
        ties: Constants of Theta.

    Attributes:
        c: `|Theta|` values of L_c in USD (float64).
        g: `|Theta|` values of L_g.
        least_c: min{L_c : L_g <= 0} in USD; +inf if nothing is feasible.
        least_g: min{L_g : L_c <= u_out}; +inf if nothing can improve on theta_out.
        is_exact: True.
    """

    is_exact = True

    def __init__(
        self,
        lower: Tensor,
        means: Tensor,
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        ties: Ties,
    ) -> None:
        self.beta, self.u_out, self._ties = beta, u_out, ties
        self._means, self._theta_out = means, theta_out
        self.c, self.g = lower[:2]
        if theta_out is not None:
            lower[0::2, theta_out].fill_(math.inf)
        limits = ties.to_device([0.0, u_out])[:, None]
        least = torch.where(lower[1:] <= limits, lower[:2], ties.inf).amin(1)
        self.least_c, self.least_g = least.tolist()

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; see `LowerBounds`."""
        return self._first(self.c, most_g, scale, seed)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising configuration; see `LowerBounds.most_promising`."""
        moments = self._means[1], self.g, self.c
        values = negative_promise(*moments, self.beta.g, margin, self.u_out, least_price)
        return self._first(values, -margin, 0.0, seed)

    def _first(self, objective: Tensor, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least objective subject to L_g <= `most_g`; ties as in `tie_rank`."""
        values = torch.where(self.g <= most_g, objective, self._ties.inf)
        best = values.amin()
        tied = values <= best.add(best.abs().clamp_(min=scale), alpha=_TIE)
        return int(torch.where(tied, self._ties.rank(seed), self._ties.last).argmin())

    def _moments(self, at: slice | int) -> Moments:
        return Moments(self._means[0][at], self.c[at], self._means[1][at], self.g[at])
