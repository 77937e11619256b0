"""Variances on all of Theta: upper bounds, exact where a minimum depends on them.

| symbol | here | shape |
| --- | --- | --- |
| sigma_bar^2(theta) = b - k_D(theta)^T V k_D(theta) | `upper`, or less | `outputs x |Theta|` |
| V grows by sum_i v_i x_i x_i^T | `LowRank.rows`, `LowRank.weights` | `m x n`, `m` |

A variance only falls as observations come in, so an earlier value is an upper bound. An update
lowers all of them by what one sum over Theta shows (Cauchy-Schwarz), keeps those exact that decided
a minimum lately, by a rank-one term for each row, and leaves the others to `make_exact`. Making all
exact in every step took two to ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior, LowRank
from scope_torch.model.direct_sums import DENSE, DirectGrid, squares
from scope_torch.model.hamming_sums import HammingGrid

DECISIVE = 256  # variances that are kept exact, because minima depended on them lately


class VariancePlan(NamedTuple):
    """What an update will do to the variances.

    Args:
        changes: For each output what its V has grown by; empty if that is not known.
        sums: Rows whose weighted sums over Theta the update needs: `n` each.
        follow_all: Whether every variance is exact, and stays so.
    """

    changes: Sequence[LowRank]
    sums: Sequence[Tensor]
    follow_all: bool


class Variances:
    """The variances on all of Theta; see `Averaging`.

    Args:
        grid: Sums of the kernel over Theta.
        number: Of the variances: one that all outputs share, or one for each.

    Attributes:
        upper: `outputs x |Theta|` upper bounds (float64), some of them exact.
    """

    def __init__(self, grid: HammingGrid | DirectGrid, number: int) -> None:
        self._grid = grid
        size, device = grid.size, grid.device
        self.upper = torch.full((number, size), math.inf, dtype=torch.float64, device=device)
        self._is_exact = torch.zeros(size, dtype=torch.bool, device=device)
        self._all_exact = False
        self._num_operations = 0.0  # spent on single variances since the last update
        self._decisive = torch.empty(0, dtype=torch.int64, device=device)
        self._k = self.upper.new_empty(0, 0)  # kernel of the decisive with D

    def reset(self, prior: Sequence[float]) -> None:
        """Forgets all, for the next update to start from the variances before any observation."""
        for variance, value in zip(self.upper, prior, strict=True):
            variance.fill_(value)

    def begin_as(self, other: Variances, index: Tensor) -> None:
        """Starts from those of a larger grid at flat indices."""
        torch.index_select(other.upper, 1, index, out=self.upper)
        self._is_exact, self._all_exact = other.is_exact(index), other._all_exact

    def is_exact(self, index: Tensor) -> Tensor:
        """Where the variance is exact: `len(index)` booleans."""
        return self._is_exact[index]

    def plan(self, codes: Tensor, changes: Sequence[LowRank]) -> VariancePlan:
        """Prepares an update.

        Args:
            codes: D, `n x num_modules`.
            changes: For each output what its V has grown by since the last update; empty if that
                is not known.
        """
        self._num_operations = 0.0
        new = self._grid.kernel_at(self._decisive, codes[self._k.shape[1] :])
        self._k = torch.cat([self._k, new], 1)
        follow_all = bool(changes) and self._all_exact and not self._is_dear(changes, len(codes))
        sums = [] if follow_all else [_at_least(change) for change in changes]
        return VariancePlan(changes, sums, follow_all)

    def apply(self, plan: VariancePlan, codes: Tensor, sums: Tensor) -> None:
        """Lowers the variances.

        Args:
            plan: Made by `plan`.
            codes: D, as in `plan`.
            sums: The weighted sums of `plan.sums` over Theta, `|Theta|` each; at least one row,
                which may be written over.
        """
        if plan.follow_all:
            for variance, (x, v) in zip(self.upper, plan.changes, strict=True):
                self._grid.add_squares(codes, x, -v, to=variance, scratch=sums[0])
                variance.clamp_(min=0.0)  # rounding
            return
        at = self._decisive if plan.changes else self._decisive[:0]
        for variance, change, falls in zip(self.upper, plan.changes, sums, strict=False):
            exact = variance[at] - squares(self._k, *change)
            variance.addcmul_(falls, falls, value=-1)
            variance[at] = exact.clamp_(min=0.0)
        self._forget_all_but(at)

    def make_exact(
        self, index: Tensor, codes: Tensor, posteriors: Callable[[], Sequence[AggregatePosterior]]
    ) -> bool:
        """Makes the variances exact at the configurations of `index`.

        Args:
            index: Flat indices.
            codes: D, `n x num_modules`.
            posteriors: Gives the posterior of each output.

        Returns:
            True if they are now exact everywhere, because one by one has come to cost more.
        """
        n = len(codes)
        self._num_operations += len(index) * n**2 * DENSE
        if self._num_operations > self._grid.form_operations(n):
            self.make_all_exact(posteriors())
            return True
        k = self._grid.kernel_at(index, codes)
        for variance, posterior in zip(self.upper, posteriors(), strict=True):
            variance[index] = posterior.variance(k).clamp_(min=0.0)  # rounding
        self._decisive = torch.cat([index[:DECISIVE], self._decisive])[:DECISIVE]
        self._k = torch.cat([k[:DECISIVE], self._k])[:DECISIVE]
        self._is_exact[index] = True
        return False

    def make_all_exact(self, posteriors: Sequence[AggregatePosterior]) -> None:
        """Makes the variances exact on all of Theta, unless they are."""
        if self._all_exact:
            return
        for variance, posterior in zip(self.upper, posteriors, strict=True):
            self._grid.quadratic_form(posterior.codes, posterior.matrix, out=variance)
            variance.neg_().add_(posterior.constant).clamp_(min=0.0)
        self._is_exact.fill_(True)
        self._all_exact = True

    def _forget_all_but(self, index: Tensor) -> None:
        """From now on the other variances are upper bounds."""
        self._all_exact, self._decisive, self._k = False, index, self._k[: len(index)]
        self._is_exact.zero_()
        self._is_exact[index] = True

    def _is_dear(self, changes: Sequence[LowRank], n: int) -> bool:
        """Whether to make all variances anew would be less work."""
        operations = len(changes[0].weights) * self._grid.sum_operations(n)
        return operations > self._grid.form_operations(n)


def _at_least(change: LowRank) -> Tensor:
    """A row x, `n`, such that every variance falls by at least (k_D(theta)^T x)^2.

    sum_i v_i (k^T x_i)^2 >= (k^T sum_i v_i x_i)^2 / sum_i v_i (Cauchy-Schwarz); nearly equal, since
    the rows of one candidate differ little. Without rows it is 0.
    """
    rows, weights = change
    return weights @ rows / weights.sum().clamp_min(1e-300).sqrt()
