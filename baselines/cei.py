"""Constrained expected improvement (cEI; Gardner et al. 2014, theory in arXiv 2505.11323)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.baselines.dataset_model import DatasetModel, maximum, mean_and_sigma
from scope_torch.baselines.gp import GPSettings, SurrogateOptimizer
from scope_torch.baselines.reduced_space import ReducedSpace
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem

Incumbent = Literal["observed", "posterior_mean"]


class CEI(SurrogateOptimizer):
    """Evaluates the maximiser of log EI + log PoF; recommends the best observed feasible.

    With u = (f+ - m_c) / sigma_c: EI = sigma_c (phi(u) + u Phi(u)), PoF = Phi(-m_g / sigma_g), or
    the product of these over several constraints.
    While no datum is feasible there is no f+; then log PoF alone is maximised.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        incumbent: f+ is the least average cost among the data with g <= 0 (`observed`), or the
            least posterior mean m_c among the data with m_g <= 0 (`posterior_mean`).
        stop_below: Stop once no configuration that is not evaluated yet has an EI PoF of this
            much, EI in units of z_c (1e-12, say); 0: never.
        mask_repeats: Whether to evaluate no configuration twice.
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
        >>> search = CEI(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        incumbent: Incumbent = "observed",
        stop_below: float = 0.0,
        mask_repeats: bool = False,
        gp: GPSettings | Mapping[str, Any] | None = None,
        kernel: Kernel | None = None,
        device: torch.device | str | None = None,
        name: str = "cei",
    ) -> None:
        if incumbent not in ("observed", "posterior_mean"):
            raise InputError(f"incumbent={incumbent!r} must be observed or posterior_mean")
        if not (math.isfinite(stop_below) and stop_below >= 0):
            raise InputError(f"stop_below={stop_below} must be a number >= 0; 1e-12 is usual")
        super().__init__(problem, seed=seed, name=name, gp=gp, kernel=kernel, device=device)
        self.incumbent: Incumbent = incumbent
        self.stop_below, self.mask_repeats = stop_below, mask_repeats
        self._without_incumbent = 0

    def _choose(self) -> tuple[int, ...] | None:
        model = self.gp.model()
        best_f = self._best_f(model)
        acquisition = self._acquisition(model, best_f)
        among = self._not_evaluated(model.reduced) if self.mask_repeats else None
        if not self.mask_repeats and (allowed := self._allowed(model.reduced)) is not None:
            among = allowed.nonzero().squeeze(-1)
        if among is not None and not len(among):
            return self._stop("every configuration was evaluated")
        if (
            best_f is not None
            and self.stop_below
            and self._is_exhausted(acquisition, model.reduced)
        ):
            return self._stop(f"max EI PoF is below stop_below={self.stop_below:g}")
        self._without_incumbent += best_f is None
        best, values = maximum(acquisition, model.reduced, among)
        return self._first(values, best, model.reduced)

    def _is_exhausted(self, acquisition: AcquisitionFunction, reduced: ReducedSpace) -> bool:
        """Whether EI PoF is below `stop_below` wherever nothing was evaluated."""
        fresh = self._not_evaluated(reduced)
        if not len(fresh):
            return True
        log_ei_in_z = maximum(acquisition, reduced, fresh)[0] + math.log(self.gp_settings.amp_c)
        return log_ei_in_z < math.log(self.stop_below)

    def _not_evaluated(self, reduced: ReducedSpace) -> Tensor:
        """Classes of configurations that are no datum; a datum shares its class with no other."""
        data = reduced.rank(self.gp.surrogate.observed())
        fresh = self._allowed(reduced)
        if fresh is None:
            fresh = torch.ones(reduced.space.size, dtype=torch.bool, device=data.device)
        return fresh.index_fill_(0, data, False).nonzero().squeeze(-1)

    def _acquisition(self, model: DatasetModel, best_f: float | None) -> AcquisitionFunction:
        outputs = range(1, model.num_outputs)  # their probabilities are multiplied
        feasible: dict[int, tuple[float | None, float | None]] = dict.fromkeys(outputs, (None, 0.0))
        if best_f is None:
            return LogProbabilityOfFeasibility(model, feasible)
        # BoTorch would keep a Python float in single precision.
        f = torch.tensor(best_f, dtype=torch.float64)
        return LogConstrainedExpectedImprovement(model, f, 0, feasible, maximize=False)

    def _best_f(self, model: DatasetModel) -> float | None:
        """f+ in units of amp_c; None if no datum is feasible."""
        data = self.data()
        if self.incumbent == "observed":
            costs = [e.cost_usd / self.gp.amp_c_usd for e in data if e.is_feasible]
            return min(costs, default=None)
        if not data:
            return None
        thetas = torch.tensor([e.theta for e in data], device=self.gp.surrogate.device)
        mean_c, *mean_g = mean_and_sigma(model, thetas.double().unsqueeze(-2))[0].unbind(-1)
        feasible = torch.stack(mean_g).amax(0) <= 0
        return float(mean_c[feasible].min()) if feasible.any() else None

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        return {
            **super().settings(),
            "incumbent": self.incumbent,
            "stop_below": self.stop_below,
            "mask_repeats": self.mask_repeats,
        }

    def report(self) -> dict[str, Any]:
        """For result.json: also the number of choices without a feasible datum."""
        return {**super().report(), "choices_without_incumbent": self._without_incumbent}
