"""The joint posterior of the averages on all of Theta."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scope_torch.bounds import Beta
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.joint import JointSurrogate
from scope_torch.space import first_tied, tie_width
from scope_torch.space_search.grid import Change, GridPosterior, LowerBounds, least_of, within

_LEAST_PRICE = 1e-6  # L_c as a fraction of u_out
_LEAST_SIGMA = 1e-12  # in units of quality


class JointGridPosterior(GridPosterior):
    """As `GridPosterior`, with a variance for each output, costs relative to the cost scale.

    Args:
        surrogate: The joint surrogate; fitted anew by `update` when that is due.
        grid: Sums of its kernel over Theta.

    Attributes:
        upper_variance_g: `|Theta|` upper bounds on the variance of gbar; `upper_variance` are those
            of the variance of cbar / a, or of cbar in USD if costs are not relative.
    """

    def __init__(self, surrogate: JointSurrogate, grid: HammingGrid | DirectGrid) -> None:
        self._joint = surrogate
        super().__init__(surrogate.queries, grid)
        self.upper_variance_g = self.upper_variance.clone()
        self._a = torch.ones_like(self.mean_c)
        self._relative = self.mean_c  # mean of c / a - 1; else of c in USD
        self.mean_c = torch.empty_like(self._relative)
        self._fitted: object = None  # the hyperparameters that the variances belong to
        self._collapsed: object = None  # and the factorisations

    def update(self) -> None:
        """See base."""
        self._joint.refit()
        self._surrogate = self._joint.queries  # another one after a fit
        if self._fitted is not self._joint.hyperparameters:
            self._fitted = self._joint.hyperparameters
            if self._joint.relative_cost:
                self._a = self._joint.scale.everywhere().to(self._a.device)
            for variance in self._variances:  # they may have grown
                variance.fill_(math.inf)
        self._aggregates = self._joint.aggregates()
        for variance, posterior in zip(self._variances, self._aggregates, strict=True):
            variance.clamp_(max=posterior.constant)
        self._renew(self._aggregates[0].weights)
        if self._joint.relative_cost:
            torch.add(self._relative, 1.0, out=self.mean_c).mul_(self._a)  # no fresh memory
        else:
            self.mean_c.copy_(self._relative)

    def _changes(self) -> Sequence[Change]:
        """See base; empty also where `Collapsed` was made anew."""
        collapsed, n = self._joint.collapsed(), len(self._joint.queries.observed())
        known, self._collapsed = self._collapsed is collapsed, collapsed
        changes = []
        for one, hyperparameters in zip(collapsed, self._joint.hyperparameters, strict=True):
            xs, one.changes = one.changes, []
            rows = self.mean_c.new_zeros(len(xs), n)
            for row, x in zip(rows, xs, strict=True):
                row[: len(x)] = x
            _, _, factor = hyperparameters.of_average(self._joint.num_queries)
            changes.append(Change(rows, rows.new_full((len(xs),), factor)))
        return changes if known else ()

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> JointLowerBounds:
        """See base."""
        return JointLowerBounds(self, self._lower, beta, u_out, theta_out)

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """See base."""
        torch.clamp(self.upper_variance_g[at], min=0.0, out=g).sqrt_()  # rounding
        torch.sub(self.mean_g[at], g, alpha=beta.g, out=g)
        if not self._joint.relative_cost:
            torch.clamp(self.upper_variance[at], min=0.0, out=c).sqrt_()
            torch.sub(self.mean_c[at], c, alpha=beta.c, out=c)
            return
        mean = (self._relative[at] + 1).clamp_min_(LEAST_MEAN)
        v = torch.clamp(self.upper_variance[at], min=0.0, out=c).div_(mean.square()).log1p_()
        mean *= self._a[at]
        torch.mul(mean, torch.exp(v.sqrt().mul_(-beta.c) - v / 2), out=c)

    @property
    def _variances(self) -> tuple[Tensor, Tensor]:
        return self.upper_variance, self.upper_variance_g


class JointLowerBounds(LowerBounds):
    """As `LowerBounds`, with the configuration that promises most for its price."""

    def most_promising(self, seed: int) -> int:
        """Flat index of the most P(g <= 0) (u_out - L_c) / L_c with L_g <= 0 and L_c <= u_out.

        What evaluating theta can save, times the probability that it is feasible, for each USD that
        an evaluation costs. All with a mean of g of at most 0 count as equally probable, so that
        uncertainty never makes a configuration seem worse. Exact; ties as in `argmin_tied`.

        Args:
            seed: See `argmin_tied`.
        """
        # At least, if probability and price were at their best in a chunk at once.
        least = [(1 - self._u_out / max(c, self._least_price)) / 2 for c in self._min_c]
        best = 0.0
        for k in sorted(range(len(least)), key=least.__getitem__):
            if least[k] > best:
                break
            at = self._slices[k]
            least[k] = least_of(within(self._cost_benefit(at), self.g[at], 0.0))
            best = min(best, least[k])
        _, tied = self._search(
            self._cost_benefit, self.g, 0.0, least, lambda best: tie_width(best, 0.0)
        )
        return first_tied(tied, seed)

    def _cost_benefit(self, at: slice | Tensor) -> Tensor:
        """The negative of what `most_promising` maximises."""
        mean_g = self._posterior.mean_g[at]
        sigma_g = ((mean_g - self.g[at]) / self._beta.g).clamp_min_(_LEAST_SIGMA)
        probable = torch.special.ndtr(-mean_g.clamp_min(0.0) / sigma_g)
        return probable * (1 - self._u_out / self.c[at].clamp_min(self._least_price))

    @property
    def _least_price(self) -> float:
        """In USD; bounds that rest on a theorem can be below 0."""
        return _LEAST_PRICE * self._u_out
