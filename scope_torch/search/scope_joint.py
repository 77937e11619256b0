"""SCOPE with the joint surrogate: what one query says about a configuration, all queries share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.scope import SCOPE, Surrogate
from scope_torch.space_search.branched import BranchedBounds
from scope_torch.space_search.grid import GridPosterior, LowerBounds
from scope_torch.space_search.joint_grid import JointGridPosterior, JointLowerBounds


class ScopeJoint(SCOPE):
    """alg:scope-main with `JointSurrogate` (docs/joint.md). What differs from `SCOPE`:

    - The surrogate, with rho, amplitudes and the scale of costs fitted after Calibrate and again
      whenever the observations have doubled.
    - theta_cand has L_g <= 0, not <= -i^-alpha; of all these it is the one that promises most for
      its price (`JointLowerBounds.most_promising`), not the argmin of L_c (which it is, as in the
      paper, with gap_tolerance=None).
    - Every query says something about all others; the next one is the one that lowers the variance
      of g(theta_cand) most.
    - u_out starts at c(theta_0), which is known.

    Args:
        rho: See `JointSurrogate`.
        amplitude: See `JointSurrogate`.
        relative_cost: See `JointSurrogate`.
        arguments: Those of `SCOPE`; alpha is not used.

    Raises:
        InputError: See `SCOPE` and `JointSurrogate`.
    """

    def __init__(
        self,
        *args: Any,
        rho: float | None = None,
        amplitude: float | None = None,
        relative_cost: bool = True,
        **arguments: Any,
    ) -> None:
        self._model_settings: dict[str, Any] = {
            "rho": rho,
            "amplitude": amplitude,
            "relative_cost": relative_cost,
        }
        if relative_cost and arguments.get("initial_pool") == "none":
            raise InputError(
                "initial_pool=none: the scale of costs is fitted to what Calibrate observes; take "
                "base or random"
            )
        super().__init__(*args, **arguments)

    def _model(
        self,
        lam: float,
        device: torch.device,
        space_search: str,
        max_nodes: int,  # noqa: ARG002 - of branch and bound
    ) -> tuple[Surrogate, GridPosterior]:
        if space_search == "branch_and_bound":
            raise InputError("space_search=branch_and_bound: the joint surrogate needs the grid")
        space, num_queries = self.problem.space, self.problem.num_queries
        surrogate = JointSurrogate(
            space, self.kernel, num_queries, lam, device=device, **self._model_settings
        )
        return surrogate, JointGridPosterior(surrogate, make_grid(space, self.kernel, device))

    def _candidate(
        self, theta: tuple[int, ...], order: Sequence[int] | None = None
    ) -> JointCandidate:
        assert isinstance(self.surrogate, JointSurrogate)
        in_order = order is not None
        return JointCandidate(self.surrogate, theta, order or self._query_order, in_order)

    def _fit_bounds(self) -> None:
        """The surrogate knows its own scale."""

    def _select(self, i: int, lower: LowerBounds | BranchedBounds) -> tuple[int, ...]:
        assert isinstance(lower, JointLowerBounds)
        if self.gap_tolerance is None:  # to the letter of the paper
            return super()._select(i, lower)
        index = lower.most_promising(self.seed)
        return self.problem.space.theta_at(index)

    def _initial_u_out(self) -> float:
        return self.problem.reference_cost_usd

    def _limit(self, i: int) -> float:  # noqa: ARG002 - the same in every iteration
        return 0.0

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        settings = {**super().settings(), **self._model_settings}
        del settings["alpha"]  # decides nothing here
        return settings

    def report(self) -> dict[str, Any]:
        """See `Optimizer`; the hyperparameters are the last ones, amplitudes of c relative."""
        assert isinstance(self.surrogate, JointSurrogate)
        names = ("c", "g")
        fitted = {
            name: values._asdict()
            for name, values in zip(names, self.surrogate.hyperparameters, strict=True)
        }
        return {**super().report(), "hyperparameters": fitted}
