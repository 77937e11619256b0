"""SafeOpt (Sui et al. 2015): the version of its authors' code, and the original with L."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.dataset_model import DatasetModel, maximum, mean_and_sigma
from scope_torch.baselines.gp import DatasetGP, GPSettings, SurrogateOptimizer
from scope_torch.baselines.reduced_space import ReducedSpace
from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.problem import SelectionProblem


@dataclass(frozen=True)
class Bounds:
    """Confidence bounds and safe set, by flat index of `reduced`, in units of amp.

    Args:
        reduced: Theta, with the interchangeable configurations merged.
        lower: L_c and L_g, of each constraint: `(1 + K) x size`.
        upper: U_c and U_g, likewise.
        safe: S, the safe set (bool).
    """

    reduced: ReducedSpace
    lower: Tensor
    upper: Tensor
    safe: Tensor

    @cached_property
    def width(self) -> Tensor:
        """w, the largest of U_c - L_c and U_g - L_g."""
        return (self.upper - self.lower).amax(0)

    @cached_property
    def maximisers(self) -> Tensor:
        """The safe configurations that may be the cheapest safe one (bool)."""
        return self.safe & (self.lower[0] <= self.upper[0][self.safe].min())

    def on(self, reduced: ReducedSpace) -> Bounds:
        """These bounds on a finer reduced space."""
        lower, upper = (
            torch.stack([self.reduced.expand(row, reduced) for row in rows])
            for rows in (self.lower, self.upper)
        )
        return Bounds(reduced, lower, upper, self.reduced.expand(self.safe, reduced))


class ConfidenceWidth(AcquisitionFunction):
    """Width of the wider confidence interval, that of c or that of g; to be maximised.

    Args:
        model: Outputs c and g, in units of amp.
        beta: Half-width of a confidence interval in sigma.
        within: Earlier intervals, which those of the model are intersected with; None for none.
    """

    def __init__(self, model: Model, beta: float, within: Bounds | None = None) -> None:
        super().__init__(model)
        self.beta, self.within = beta, within

    def forward(self, X: Tensor) -> Tensor:
        """Values at `b x 1 x d` points: `b`."""
        mean, sigma = mean_and_sigma(self.model, X)
        lower, upper = mean - self.beta * sigma, mean + self.beta * sigma
        if self.within is not None:
            index = self.within.reduced.rank(X.squeeze(-2).long())
            lower = torch.maximum(lower, self.within.lower[:, index].T)
            upper = torch.minimum(upper, self.within.upper[:, index].T)
        return (upper - lower).amax(-1)


class SafeOpt(SurrogateOptimizer):
    """Evaluates the most uncertain among the possible optima and the expanders of the safe set.

    Without a Lipschitz constant, S = {U_g < 0} and theta_0 is computed anew in each step. An
    expander is a safe configuration, more uncertain than any maximiser, that would certify another
    one if g were observed there at L_g; only the most uncertain expander is used.

    With a Lipschitz constant L, intervals are intersected over time, and S grows from S_{t-1} by
    U_g(x) + L d(x, x') <= 0, where d = sqrt(Hamming distance). An expander has
    L_g(x) + L d(x, x') <= 0 for some unsafe x'.

    theta_out is argmin of U_c over S; it may never have been evaluated. If theta_0 is all that is
    left to evaluate, and is known, the search stops (`stalled`): more of it would change no output.
    The search also stops if the intersected intervals are empty: then no configuration can be
    optimal.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        beta: Half-width of the intervals in sigma (2 in the authors' code).
        tau: An expander needs 2 sigma amp > tau for c or for g, in units of z.
        lipschitz: L, in units of z_g per unit of d; None for the version without.
        gp: `GPSettings`, or a mapping of those that differ from `default_gp`.
        kernel: k; None for Matern 5/2 of the Hamming distance.
        device: Device of the algebra over Theta; None for `auto`, see `pick_device`.
        name: Name in results.

    Raises:
        InputError: If a value is outside its range, or Theta is too large to enumerate.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = SafeOpt(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    default_gp = GPSettings(amp_c=1.0, amp_g=0.003)

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        beta: float = 2.0,
        tau: float = 0.1,
        lipschitz: float | None = None,
        gp: GPSettings | Mapping[str, Any] | None = None,
        kernel: Kernel | None = None,
        device: torch.device | str | None = None,
        name: str = "safeopt",
    ) -> None:
        if not (math.isfinite(beta) and beta > 0):
            raise InputError(f"beta={beta} must be a positive number")
        if not (math.isfinite(tau) and tau >= 0):
            raise InputError(f"tau={tau} must be a number >= 0")
        if lipschitz is not None and not (math.isfinite(lipschitz) and lipschitz > 0):
            raise InputError(f"lipschitz={lipschitz} must be a positive number, or null for none")
        super().__init__(problem, seed=seed, name=name, gp=gp, kernel=kernel, device=device)
        self.beta, self.tau, self.lipschitz = beta, tau, lipschitz
        self._model: DatasetModel | None = None
        self._bounds: Bounds | None = None
        self._stalled = False
        self._expander_tests = 0

    def _choose(self) -> tuple[int, ...] | None:
        if self._bounds is None:
            self._refresh()
            if self._theta_out != self.problem.theta_ref:
                self._trace("improved")
        assert self._bounds is not None
        assert self._model is not None
        bounds = self._bounds
        expanders = self._expander() if self.lipschitz is None else self._lipschitz_expanders()
        eligible = (bounds.maximisers | expanders).nonzero().squeeze(-1)
        if not len(eligible):
            return self._stop(
                "the intersected intervals contradict each other: beta or lipschitz is too small"
            )
        known = self.gp.surrogate.num_observed(self.problem.theta_ref) > 0
        if known and len(eligible) == 1 and int(eligible) == self._reference(bounds.reduced):
            self._stalled = True
            return self._stop("stalled: theta_0 alone can be evaluated safely, and is known")
        within = None if self.lipschitz is None else bounds
        acquisition = ConfidenceWidth(self._model, self.beta, within)
        widest, width = maximum(acquisition, bounds.reduced, eligible)
        return self._first(width, widest, bounds.reduced)

    def _reference(self, reduced: ReducedSpace) -> int:
        """The flat index of theta_0."""
        theta = torch.tensor(self.problem.theta_ref, device=self.gp.surrogate.device)
        return int(reduced.rank(theta))

    def _completed(self, evaluation: Evaluation) -> None:
        before = self._theta_out
        self.gp.observe(evaluation)
        self._refresh()
        event = "improved" if before != self._theta_out else "completed"
        self._trace(event, theta_cand=evaluation.theta, num_queries=self.problem.num_queries)

    def _refresh(self) -> None:
        """Recomputes bounds, safe set and theta_out from all evaluations."""
        self._model = model = self.gp.model()
        half = self.beta * model.variance.sqrt()
        lower, upper = model.means - half, model.means + half
        bounds = Bounds(model.reduced, lower, upper, (upper[1:] < 0).all(0))
        if self.lipschitz is not None:
            bounds = self._intersected(bounds)
        if (allowed := self._allowed(model.reduced)) is not None:
            bounds.safe.logical_and_(allowed)
        bounds.safe[self._reference(model.reduced)] = True
        self._bounds = bounds
        value = bounds.upper[0].masked_fill(~bounds.safe, math.inf).neg_()
        theta_out = self._first(value, float(value.max()), model.reduced, self._cost_scale)
        self._set_theta_out(theta_out, "estimated")

    def _intersected(self, new: Bounds) -> Bounds:
        """Intersects the intervals with the previous ones, and grows the previous S by L."""
        if self._bounds is None:
            safe = torch.zeros_like(new.safe)
            safe[self._reference(new.reduced)] = True
            old = new
        else:
            old = self._bounds.on(new.reduced)
            safe = old.safe
        lower, upper = torch.maximum(new.lower, old.lower), torch.minimum(new.upper, old.upper)
        radius = self._radius(upper[1:].amax(0)).masked_fill(~safe, -1)
        safe = within_radius(radius, new.reduced.space.sizes) >= 0
        return Bounds(new.reduced, lower, upper, safe)

    def _radius(self, bound_g: Tensor) -> Tensor:
        """Largest h with bound_g + L sqrt(h) <= 0; -1 if there is none (int8)."""
        assert self.lipschitz is not None
        slope = self.lipschitz / self.gp_settings.amp_g
        radius = torch.full(bound_g.shape, -1, dtype=torch.int8, device=bound_g.device)
        for h in range(self.problem.space.num_modules + 1):
            radius += bound_g + slope * math.sqrt(h) <= 0
        return radius

    def _lipschitz_expanders(self) -> Tensor:
        """Safe x with L_g(x) + L d(x, x') <= 0 for some unsafe x' (bool)."""
        assert self._bounds is not None
        bounds = self._bounds
        far = -1 - self.problem.space.num_modules
        unsafe = torch.where(self._unsafe(), 0, far).to(torch.int8)
        distance = -within_radius(unsafe, bounds.reduced.space.sizes)
        return bounds.safe & (distance <= self._radius(bounds.lower[1:].amax(0)))

    def _unsafe(self) -> Tensor:
        """What may be chosen and is not in S (bool)."""
        assert self._bounds is not None
        unsafe, allowed = ~self._bounds.safe, self._allowed(self._bounds.reduced)
        return unsafe if allowed is None else unsafe & allowed

    def _expander(self) -> Tensor:
        """Mask of the class of the most uncertain expander; empty if there is none (bool)."""
        assert self._bounds is not None
        assert self._model is not None
        bounds, sigma = self._bounds, self._model.variance.sqrt()
        maximisers, width = bounds.maximisers, bounds.width
        widest = width[maximisers].max()
        amp = max(self.gp_settings.amp_c, self.gp_settings.amp_g)
        untested = bounds.safe & ~maximisers & (2 * sigma * amp > self.tau)
        untested &= width > widest + 1e-9 * widest.clamp_min(1)
        unsafe, found = self._unsafe(), torch.zeros_like(untested)
        while untested.any():
            best = width[untested].max()
            tied = untested & (width >= best - 1e-9 * best.clamp_min(1))
            for index in bounds.reduced.in_tie_order(tied, self.seed):
                self._expander_tests += 1
                if certifies(self.gp, self._model, index, unsafe, self.beta):
                    found[index] = True
                    return found
            untested &= ~tied
        return found

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        names = ("beta", "tau", "lipschitz")
        return {**super().settings(), **{name: getattr(self, name) for name in names}}

    def report(self) -> dict[str, Any]:
        """For result.json: also the size of S, and whether the search stalled."""
        size = None
        if self._bounds is not None:
            safe = self._bounds.reduced.expand(self._bounds.safe).cpu()
            mask = self.problem.allowed_mask()
            size = int((safe if mask is None else safe & mask).sum())
        more = {"stalled": self._stalled, "safe_set": size, "expander_tests": self._expander_tests}
        return {**super().report(), **more}


def certifies(gp: DatasetGP, model: DatasetModel, index: int, unsafe: Tensor, beta: float) -> bool:
    """Whether observing g(theta) = L_g(theta) would bring U_g of an unsafe x to 0 or below.

    A rank-one update. With kappa the posterior covariance of x and theta, m and v the mean and
    variance at x, m_e and v_e those at theta:

        m' = m + kappa / (v_e + lam) (L_g(theta) - m_e),   v' = v - kappa^2 / (v_e + lam).

    Among interchangeable x, the one that shares most LLMs with theta has the largest kappa and the
    lowest bound. In the reduced space interchangeable LLMs are equal, so it holds that x.

    With several constraints v and kappa are those of each, and g is the worst.

    Args:
        gp: The data.
        model: Their posterior.
        index: Flat index of theta in `model.reduced`.
        unsafe: The unsafe x, by flat index of `model.reduced` (bool).
        beta: Half-width of the intervals in sigma.
    """
    data, reduced = gp.surrogate.aggregate(), model.reduced
    mean, variance = model.means[1:].amax(0), model.variance
    theta = reduced.space.unrank(torch.tensor([index], device=mean.device))
    codes = torch.cat([reduced.relabel(data.codes), theta])
    cross = gp.kernel(theta.double(), codes[:-1].double()).to_dense()[0]
    weights = torch.cat([-data.matrix @ cross, cross.new_ones(1)])
    kappa = make_grid(reduced.space, gp.kernel, mean.device).weighted_sum(codes, weights)
    gain = kappa / (variance[index] + gp.surrogate.lam)
    new_mean = mean - gain * beta * variance[index].sqrt()
    new_variance = variance - kappa * gain
    return bool((unsafe & (new_mean + beta * new_variance.clamp_(min=0.0).sqrt() <= 0)).any())


def within_radius(radius: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Maximum over x of radius(x) - h(x, x'), h the Hamming distance, for every x'.

    The distance is a sum over modules, so the maximum can be taken module by module.

    Args:
        radius: `|Theta|` values by flat index, of a signed dtype.
        sizes: Sizes of the modules.
    """
    grid = radius.view(sizes)
    for i in range(len(sizes)):
        grid = torch.maximum(grid, grid.amax(i, keepdim=True) - 1)
    return grid.reshape(-1)
