"""CONFIG: constrained lower confidence bounds (Xu et al., ICML 2023, arXiv 2211.00162)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.dataset_model import maximum, mean_and_sigma
from scope_torch.baselines.gp import GPSettings, SurrogateOptimizer
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem

Incumbent = Literal["bof", "last_queried"]


class Betas(NamedTuple):
    """Multipliers of sigma in L_c and L_g."""

    c: float
    g: float


class ConstrainedLowerBound(AcquisitionFunction):
    """-L_c where L_g <= 0 for every constraint, and -inf elsewhere; to be maximised.

    A mask, not a penalty: a large penalty rounds away the differences between costs, and hides that
    no configuration is eligible.

    Args:
        model: Outputs c and g, one for each constraint.
        beta_c: Multiplier of sigma in L_c = m_c - beta_c sigma_c.
        beta_g: Multiplier of sigma in L_g = m_g - beta_g sigma_g.
    """

    def __init__(self, model: Model, beta_c: float, beta_g: float) -> None:
        super().__init__(model)
        self.beta_c, self.beta_g = beta_c, beta_g

    def forward(self, X: Tensor) -> Tensor:
        """Values at `b x 1 x d` points: `b`."""
        mean, sigma = mean_and_sigma(self.model, X)
        lower_c = mean[..., 0] - self.beta_c * sigma[..., 0]
        lower_g = mean[..., 1:] - self.beta_g * sigma[..., 1:]
        return (-lower_c).masked_fill((lower_g > 0).any(-1), -math.inf)


class CONFIG(SurrogateOptimizer):
    """Evaluates argmin L_c subject to L_g <= 0; without such a theta it declares infeasibility.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        beta: beta in L = m - beta sigma, for both functions: a number (3 in the authors' code), or
            `theory`: B + R / sqrt(lam) sqrt(2 (gamma_{t-1} + 1 + ln(2 / delta))). This is the form
            of Chowdhury and Gopalan (2017) for any lambda (theirs is 1 + 2 / T); the two functions
            (1 + K with K constraints) share delta.
        B_c: For `theory`: bound on the RKHS norm of z_c / amp_c.
        B_g: For `theory`: bound on the RKHS norm of z_g / amp_g.
        R_c: For `theory`: sub-Gaussian constant of the noise of z_c / amp_c.
        R_g: For `theory`: sub-Gaussian constant of the noise of z_g / amp_g.
        delta: For `theory`: failure probability, in (0, 1).
        incumbent: theta_out is the best observed feasible configuration (`bof`), or the last one
            evaluated (`last_queried`), about which the authors' guarantees are. Both are reported.
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
        >>> search = CONFIG(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    default_gp = GPSettings(amp_c=0.2, amp_g=0.15)

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        beta: float | str = 3.0,
        B_c: float = 1.0,
        B_g: float = 1.0,
        R_c: float = 1e-3,
        R_g: float = 1e-3,
        delta: float = 1e-4,
        incumbent: Incumbent = "bof",
        gp: GPSettings | Mapping[str, Any] | None = None,
        kernel: Kernel | None = None,
        device: torch.device | str | None = None,
        name: str = "config_bo",
    ) -> None:
        _check_beta(beta)
        if incumbent not in ("bof", "last_queried"):
            raise InputError(f"incumbent={incumbent!r} must be bof or last_queried")
        for key, value in {"B_c": B_c, "B_g": B_g, "R_c": R_c, "R_g": R_g}.items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{key}={value} must be a number >= 0")
        if not 0 < delta < 1:
            raise InputError(f"delta={delta} must lie in (0, 1)")
        super().__init__(problem, seed=seed, name=name, gp=gp, kernel=kernel, device=device)
        self.beta, self.incumbent = beta, incumbent
        self.B_c, self.B_g, self.R_c, self.R_g, self.delta = B_c, B_g, R_c, R_g, delta
        self._num_outputs = 1 + problem.num_constraints
        self._gain = None
        if beta == "theory":
            surrogate = self.gp.surrogate
            self._gain = InformationGain(
                problem.space, self.gp.kernel, surrogate.lam, surrogate.device
            )
        self._betas: Betas | None = None
        self._declared_infeasible_at: int | None = None

    def _choose(self) -> tuple[int, ...] | None:
        model = self.gp.model()
        self._betas = self.betas()
        acquisition = ConstrainedLowerBound(model, *self._betas)
        allowed = self._allowed(model.reduced)
        among = None if allowed is None else allowed.nonzero().squeeze(-1)
        best, values = maximum(acquisition, model.reduced, among)
        if best == -math.inf:
            self._declared_infeasible_at = self.t
            return self._stop("declared infeasible: no configuration has L_g <= 0")
        return self._first(values, best, model.reduced, self._cost_scale)

    def betas(self) -> Betas:
        """beta_c and beta_g, given the data so far."""
        if self._gain is None:
            return Betas(float(self.beta), float(self.beta))
        gamma = self._gain.gamma(int(self.gp.surrogate.num_observations()))
        noise = math.sqrt(
            2 * (gamma + 1 + math.log(self._num_outputs / self.delta)) / self._gain.lam
        )
        return Betas(self.B_c + self.R_c * noise, self.B_g + self.R_g * noise)

    def _completed(self, evaluation: Evaluation) -> None:
        if self.incumbent == "bof":
            super()._completed(evaluation)
        else:
            self.gp.observe(evaluation)
            self._conclude(evaluation.theta, "estimated", evaluation)

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        names = ("beta", "B_c", "B_g", "R_c", "R_g", "delta", "incumbent")
        return {**super().settings(), **{name: getattr(self, name) for name in names}}

    def report(self) -> dict[str, Any]:
        """For result.json: also theta_out by either rule, and when infeasibility was declared."""
        last = self.evaluations[-1].theta if self.evaluations else self.problem.theta_ref
        return {
            **super().report(),
            "best_observed_feasible": list(self.best_observed_feasible().theta),
            "last_queried": list(last),
            "beta_c": None if self._betas is None else self._betas.c,
            "beta_g": None if self._betas is None else self._betas.g,
            "declared_infeasible_at": self._declared_infeasible_at,
        }


def _check_beta(beta: float | str) -> None:
    number = isinstance(beta, int | float) and math.isfinite(beta) and beta >= 0
    if not number and beta != "theory":
        raise InputError(f"beta={beta!r} must be a number >= 0, or theory")
