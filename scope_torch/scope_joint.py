"""SCOPE with the joint surrogate: what one query says about a configuration, all queries share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scope_torch.bounds import WIDENING, Beta, assumptions, positive
from scope_torch.branched_posterior import BranchedBounds
from scope_torch.errors import InputError
from scope_torch.grid_posterior import GridPosterior, LowerBounds
from scope_torch.hamming_grid import make_grid
from scope_torch.joint_candidate import JointCandidate
from scope_torch.joint_grid import JointGridPosterior, JointLowerBounds
from scope_torch.joint_surrogate import JointSurrogate
from scope_torch.scope import SCOPE, Surrogate
from scope_torch.surrogate import QuerySurrogate


class CredibleBounds:
    """Means and some standard deviations of a fitted Gaussian process, for `JointSurrogate`.

    Args:
        b: Standard deviations, for what to evaluate and when to stop evaluating it.
        widenings: How often b grows by half because nothing can improve on theta_out any more while
            budget remains. A fitted model is wrong now and then by more than it says.
        b_certify: Standard deviations between the mean of g and a certificate. A candidate is
            chosen because it looks good, and looked at after every observation, so the two
            standard deviations that describe one look at one configuration are not enough.

    Raises:
        InputError: If a number is not positive, or `widenings` below 0.
    """

    mode = "credible"
    gain = None

    def __init__(self, b: float = 3.0, b_certify: float = 4.0, widenings: int = 1) -> None:
        if not (widenings >= 0 and widenings % 1 == 0):
            raise InputError(f"widenings={widenings} must be a whole number >= 0")
        self._b, self._b_certify = positive("b", b), positive("b_certify", b_certify)
        self._widenings, self._widened = widenings, 0

    def fit(self, surrogate: QuerySurrogate, least_slope: Callable[[], float]) -> None:
        """Nothing is fitted here: the joint surrogate knows its own scale."""

    def widen(self) -> bool:
        """See `ConfidenceBounds.widen`; `widenings` times."""
        if self._widened == self._widenings:
            return False
        self._widened += 1
        return True

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:  # noqa: ARG002
        """See `ConfidenceBounds.beta`."""
        b = self._b * WIDENING**self._widened
        return Beta(b, b, self._b_certify)

    def settings(self) -> dict[str, Any]:
        """See `ConfidenceBounds`."""
        return {
            "mode": self.mode,
            "b": self._b,
            "b_certify": self._b_certify,
            "widenings": self._widenings,
        }

    def report(self) -> dict[str, Any]:
        """See `ConfidenceBounds`; b and b_certify are in standard deviations."""
        half_widths = {"b_c": None, "b_g": None}
        told = {"delta": None, "assumptions": assumptions(self.settings())}
        return {**self.settings(), "widened": self._widened, **half_widths, **told}


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
