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
from gpytorch.settings import min_variance
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, LinearOperator
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.kernels import kernel_matrix


class ExactPosterior(GPyTorchPosterior):
    """GPyTorch's posterior without its floor under variances, 1e-10; only rounding below 0 is."""

    @property
    def variance(self) -> Tensor:
        """`b x q_batch x m` variances (float64)."""
        with min_variance(double_value=0.0):
            return super().variance


class AggregateModel(Model):
    """Averages of cost c (USD) and constraint g (quality) or several, with equal covariance.

    The posterior is eq:scope-mean-variance, fixed at construction: make a new model after new
    observations. Means and variances are exact: no jitter, and no floor. BoTorch's own acquisitions
    raise a variance below 1e-12 to that value.

    Args:
        posterior: The collapsed aggregate.
        kernel: The kernel of the aggregate, with k(theta, theta) = 1.

    Examples:
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> codes = torch.tensor([[0, 1]])
        >>> weights = torch.tensor([[0.002], [-0.1]], dtype=torch.float64)
        >>> V = torch.eye(1, dtype=torch.float64)
        >>> average = AggregatePosterior(codes, weights, V, constant=1.0)
        >>> model = AggregateModel(average, HammingMatern52Kernel())
        >>> model.posterior(codes.double()).mean
        tensor([[ 0.0020, -0.1000]], dtype=torch.float64)
    """

    def __init__(self, posterior: AggregatePosterior, kernel: Kernel) -> None:
        super().__init__()
        self._aggregate = posterior
        self._kernel = kernel

    @property
    def num_outputs(self) -> int:
        """Cost and constraints."""
        return len(self._aggregate.weights)

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
            output_indices: Outputs to return; default all.
            observation_noise: Must be False: an average over queries is never observed directly.
            posterior_transform: Applied to the result.

        Returns:
            Posterior over `b x q_batch x m` values.

        Raises:
            ValueError: If observation noise is asked for.
        """
        if observation_noise is not False:
            raise ValueError("the aggregate has no observation noise: observation_noise=False")
        mean, covariance = self.moments(X)
        if output_indices is not None:
            mean = torch.stack([mean[..., zeta] for zeta in output_indices], -1)
        # Operators, so that nothing is factorised: points of a batch may coincide.
        if (m := mean.shape[-1]) == 1:
            joint = MultivariateNormal(mean.squeeze(-1), to_linear_operator(covariance))
        else:
            joint = MultitaskMultivariateNormal(mean, independent(covariance, m), interleaved=False)
        posterior = ExactPosterior(joint)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and the covariance that all outputs share, at the points of a batch.

        Args:
            X: `b x q_batch x num_modules` codes (float64).

        Returns:
            `b x q_batch x (1 + K)` means (USD; grades) and `b x q_batch x q_batch` covariances.
        """
        data = self._aggregate
        k = kernel_matrix(self._kernel, X.flatten(end_dim=-2), data.codes)
        mean, solved = k @ data.weights.T, data.times(k)
        shape = X.shape[:-1]
        if shape[-1] == 1:  # k(theta, theta) = 1
            variance = data.constant - (solved * k).sum(-1)
            return mean.view(*shape, -1), variance.view(*shape, 1)
        prior = data.constant * self._kernel(X, X).to_dense()
        k, solved = k.view(*shape, len(data.codes)), solved.view(*shape, len(data.codes))
        return mean.view(*shape, -1), prior - solved @ k.transpose(-1, -2)


def independent(covariance: Tensor, m: int) -> LinearOperator:
    """Covariance of m outputs that are independent given the data, and have equal covariances.

    Args:
        covariance: `b x q_batch x q_batch`, of each output.
        m: Number of outputs.

    Returns:
        `b x (m q_batch) x (m q_batch)`, block by block.
    """
    if covariance.shape[-1] == 1:  # less work for many single points
        return DiagLinearOperator(covariance.squeeze(-1).expand(*covariance.shape[:-2], m))
    return BlockDiagLinearOperator(to_linear_operator(torch.stack([covariance] * m, -3)))
