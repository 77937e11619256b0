"""The aggregate surrogate as a BoTorch model, for BoTorch's acquisition functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import to_linear_operator
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior


class AggregateModel(Model):
    """Two outputs, the average cost c (USD) and constraint g (quality), with equal covariance.

    The posterior is eq:scope-mean-variance, fixed at construction: make a new model after new
    observations. GPyTorch raises a variance below 1e-10 to that value, with a warning; this can
    happen if lam / Q is below 1e-10. SCOPE's own bounds do not pass through here.

    Args:
        posterior: The collapsed aggregate.
        kernel: The kernel of the aggregate.
    """

    def __init__(self, posterior: AggregatePosterior, kernel: Kernel) -> None:
        super().__init__()
        self._aggregate = posterior
        self._kernel = kernel

    @property
    def num_outputs(self) -> int:
        """Cost and constraint."""
        return 2

    @property
    def batch_shape(self) -> torch.Size:
        """No batch of models."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Callable[[Posterior], Posterior] | PosteriorTransform | None = None,
    ) -> Posterior:
        """Joint posterior of the averages at the points of a batch.

        Args:
            X: `b x q_batch x num_modules` codes (float64).
            output_indices: Outputs to return; default both.
            observation_noise: Must be False: an average over queries is never observed directly.
            posterior_transform: Applied to the result.

        Returns:
            Posterior over `b x q_batch x m` values.

        Raises:
            ValueError: If observation noise is asked for.
        """
        if observation_noise is not False:
            raise ValueError("the aggregate has no observation noise: observation_noise=False")
        codes = self._aggregate.codes.double()
        k = self._kernel(X, codes.expand(*X.shape[:-2], *codes.shape)).to_dense()
        prior = self._aggregate.constant * self._kernel(X, X).to_dense()
        covariance = prior - k @ self._aggregate.matrix @ k.transpose(-1, -2)
        outputs = [0, 1] if output_indices is None else output_indices
        normals = [
            # As an operator, so that nothing is factorised: points of a batch may coincide.
            MultivariateNormal(k @ self._aggregate.weights[zeta], to_linear_operator(covariance))
            for zeta in outputs
        ]
        joint = (
            normals[0]
            if len(normals) == 1
            else MultitaskMultivariateNormal.from_independent_mvns(normals)
        )
        posterior = GPyTorchPosterior(joint)
        return posterior if posterior_transform is None else posterior_transform(posterior)
