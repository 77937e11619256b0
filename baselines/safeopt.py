"""SafeOpt (Sui et al. 2015): the version of its authors' code, and the original with L."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from torch import Tensor

from baselines.dataset_level import Evaluation
from baselines.gp import DatasetGP, GPSettings, ReducedPosterior, SurrogateOptimizer
from baselines.reduced_space import ReducedSpace
from baselines.table_model import evaluate, marginals
from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.problem import SelectionProblem


class ConfidenceWidth(AcquisitionFunction):
    """2 beta sigma, the larger of the values for c and g; to be maximised.

    Args:
        model: Outputs c and g, in units of amp.
        beta: Half-width of a confidence interval in sigma.
    """

    def __init__(self, model: Model, beta: float) -> None:
        super().__init__(model)
        self.beta = beta

    def forward(self, X: Tensor) -> Tensor:
        """Values at `b x 1 x d` points: `b`."""
        variance = marginals(self.model, X).variance.squeeze(-2)
        return 2 * self.beta * variance.amax(-1).sqrt()


@dataclass(frozen=True)
class Bounds:
    """Confidence bounds and safe set, by flat index of `reduced`, in units of amp.

    Args:
        reduced: Theta, with the interchangeable configurations merged.
        lower_c: L_c.
        upper_c: U_c.
        lower_g: L_g.
        upper_g: U_g.
        width: w, the larger of U_c - L_c and U_g - L_g.
        safe: S, the safe set (bool).
    """

    reduced: ReducedSpace
    lower_c: Tensor
    upper_c: Tensor
    lower_g: Tensor
    upper_g: Tensor
    width: Tensor
    safe: Tensor

    @property
    def maximisers(self) -> Tensor:
        """The safe configurations that may be the cheapest safe one (bool)."""
        return self.safe & (self.lower_c <= self.upper_c[self.safe].min())

    def on(self, reduced: ReducedSpace) -> Bounds:
        """These bounds on a finer reduced space."""
        names = ("lower_c", "upper_c", "lower_g", "upper_g", "width", "safe")
        values = [self.reduced.expand(getattr(self, name), reduced) for name in names]
        return Bounds(reduced, *values)


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
        gp: `GPSettings`, or a mapping of some of them; None for the defaults.
        kernel: k; None for Matern 5/2 of the Hamming distance.
        device: Device of the algebra over Theta; None for CUDA if present.
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
        self._posterior: ReducedPosterior | None = None
        self._bounds: Bounds | None = None
        self._stalled = False
        self._expander_tests = 0

    def _choose(self) -> tuple[int, ...] | None:
        if self._bounds is None:
            self._refresh()
            if self._theta_out != self.problem.theta_ref:
                self._trace("improved")
        assert self._bounds is not None
        bounds = self._bounds
        maximisers = bounds.maximisers
        expanders = self._expander() if self.lipschitz is None else self._lipschitz_expanders()
        eligible = maximisers | expanders
        if not eligible.any():
            return self._stop(
                "the intersected intervals contradict each other: beta or lipschitz is too small"
            )
        reference = int(bounds.reduced.rank(self._codes(self.problem.theta_ref)))
        known = self.gp.surrogate.num_observed(self.problem.theta_ref) > 0
        if known and eligible[reference] and int(eligible.sum()) == 1:
            self._stalled = True
            return self._stop("stalled: theta_0 alone can be evaluated safely, and is known")
        return self._least(torch.where(eligible, -bounds.width, math.inf), bounds.reduced)

    def _codes(self, theta: tuple[int, ...]) -> Tensor:
        return torch.tensor(theta, device=self.gp.surrogate.device)

    def _completed(self, evaluation: Evaluation) -> None:
        before = self._theta_out
        self.gp.observe(evaluation)
        self._refresh()
        event = "improved" if before != self._theta_out else "completed"
        self._trace(event, theta_cand=evaluation.theta, num_queries=self.problem.num_queries)

    def _refresh(self) -> None:
        """Recomputes bounds, safe set and theta_out from all evaluations."""
        posterior = self.gp.posterior()
        reduced, half = posterior.reduced, self.beta * posterior.sigma
        acquisition = ConfidenceWidth(posterior.as_botorch_model(), self.beta)
        bounds = Bounds(
            reduced,
            posterior.mean_c - half,
            posterior.mean_c + half,
            posterior.mean_g - half,
            posterior.mean_g + half,
            evaluate(acquisition, reduced.space.size, half.device),
            posterior.mean_g + half < 0,
        )
        if self.lipschitz is not None:
            bounds = self._intersected(bounds)
        bounds.safe[reduced.rank(self._codes(self.problem.theta_ref))] = True
        self._posterior, self._bounds = posterior, bounds
        upper_c = torch.where(bounds.safe, bounds.upper_c, math.inf)
        self._set_theta_out(self._least(upper_c, reduced, self._cost_scale), "estimated")

    def _intersected(self, new: Bounds) -> Bounds:
        """Intersects the intervals with the previous ones, and grows the previous S by L."""
        if self._bounds is None:
            safe = torch.zeros_like(new.safe)
            safe[new.reduced.rank(self._codes(self.problem.theta_ref))] = True
            old = new
        else:
            old = self._bounds.on(new.reduced)
            safe = old.safe
        lower_c = torch.maximum(new.lower_c, old.lower_c)
        upper_c = torch.minimum(new.upper_c, old.upper_c)
        lower_g = torch.maximum(new.lower_g, old.lower_g)
        upper_g = torch.minimum(new.upper_g, old.upper_g)
        radius = self._radius(upper_g).masked_fill(~safe, -1)
        safe = within_radius(radius, new.reduced.space.sizes) >= 0
        width = torch.maximum(upper_c - lower_c, upper_g - lower_g)
        return Bounds(new.reduced, lower_c, upper_c, lower_g, upper_g, width, safe)

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
        unsafe = torch.where(bounds.safe, far, 0).to(torch.int8)
        distance = -within_radius(unsafe, bounds.reduced.space.sizes)
        return bounds.safe & (distance <= self._radius(bounds.lower_g))

    def _expander(self) -> Tensor:
        """Mask of the class of the most uncertain expander; empty if there is none (bool)."""
        assert self._bounds is not None
        assert self._posterior is not None
        bounds, sigma = self._bounds, self._posterior.sigma
        maximisers, width = bounds.maximisers, bounds.width
        widest = width[maximisers].max()
        amp = max(self.gp_settings.amp_c, self.gp_settings.amp_g)
        untested = bounds.safe & ~maximisers & (2 * sigma * amp > self.tau)
        untested &= width > widest + 1e-9 * widest.clamp_min(1)
        unsafe, found = ~bounds.safe, torch.zeros_like(untested)
        while untested.any():
            best = width[untested].max()
            tied = untested & (width >= best - 1e-9 * best.clamp_min(1))
            for index in bounds.reduced.in_tie_order(tied, self.seed):
                self._expander_tests += 1
                if certifies(self.gp, self._posterior, index, unsafe, self.beta):
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
            size = int(self._bounds.reduced.expand(self._bounds.safe).sum())
        more = {"stalled": self._stalled, "safe_set": size, "expander_tests": self._expander_tests}
        return {**super().report(), **more}


def certifies(
    gp: DatasetGP, posterior: ReducedPosterior, index: int, unsafe: Tensor, beta: float
) -> bool:
    """Whether observing g(theta) = L_g(theta) would bring U_g of an unsafe x to 0 or below.

    A rank-one update. With kappa the posterior covariance of x and theta, m and v the mean and
    variance at x, m_e and v_e those at theta:

        m' = m + kappa / (v_e + lam) (L_g(theta) - m_e),   v' = v - kappa^2 / (v_e + lam).

    Among interchangeable x, the one that shares most LLMs with theta has the largest kappa and the
    lowest bound. In the reduced space interchangeable LLMs are equal, so it holds that x.

    Args:
        gp: The data.
        posterior: Their posterior.
        index: Flat index of theta in `posterior.reduced`.
        unsafe: The unsafe x, by flat index of `posterior.reduced` (bool).
        beta: Half-width of the intervals in sigma.
    """
    data, reduced = gp.surrogate.aggregate(), posterior.reduced
    mean, sigma = posterior.mean_g, posterior.sigma
    theta = reduced.space.unrank(torch.tensor([index], device=sigma.device))
    codes = torch.cat([reduced.relabel(data.codes), theta])
    cross = gp.kernel(theta.double(), codes[:-1].double()).to_dense()[0]
    weights = torch.cat([-data.matrix @ cross, cross.new_ones(1)])
    kappa = make_grid(reduced.space, gp.kernel, sigma.device).weighted_sum(codes, weights)
    gain = kappa / (sigma[index].square() + gp.surrogate.lam)
    new_mean = mean - gain * beta * sigma[index]
    new_variance = sigma.square() - kappa * gain
    return bool((unsafe & (new_mean + beta * new_variance.sqrt() <= 0)).any())


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
