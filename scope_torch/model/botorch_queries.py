"""The Gaussian processes of all queries as a BoTorch model with a batch of queries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from torch import Tensor

from scope_torch.model.gpytorch_model import QueryGPs


class QueryModel(Model):
    """Outputs c (USD) and g (quality) of every query; the batch shape is (Q).

    An acquisition function that averages over a batch of models averages over queries. The average
    itself, with the bounds of SCOPE, is `AggregateModel`.

    Args:
        gps: The processes; the model follows them as they take in observations.

    Examples:
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> from scope_torch.model.tensor_surrogate import TensorSurrogate
        >>> from scope_torch.space import ConfigSpace
        >>> surrogate = TensorSurrogate(ConfigSpace((2, 2)), HammingMatern52Kernel(), 3, lam=1e-6)
        >>> surrogate.observe((0, 1), query=0, y_c=0.002, y_g=-0.1)
        >>> model = QueryModel(surrogate.of_queries())
        >>> model.posterior(torch.tensor([[0.0, 1.0]])).mean.shape
        torch.Size([3, 1, 2])
    """

    def __init__(self, gps: QueryGPs) -> None:
        super().__init__()
        self.gps = gps

    @property
    def num_outputs(self) -> int:
        """Cost and constraint."""
        return self.gps.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """One model for each query."""
        return self.gps.batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Callable[[Posterior], Posterior] | PosteriorTransform | None = None,
    ) -> Posterior:
        """Joint posterior of every query at the points of a batch.

        Args:
            X: `batch x m x num_modules` codes; the batch broadcasts with (Q).
            output_indices: Must be None: both outputs.
            observation_noise: Whether the noise lambda of one answer is added.
            posterior_transform: Applied to the result.

        Returns:
            Posterior over `batch x m x 2` values.

        Raises:
            ValueError: If single outputs, or a noise of your own, are asked for.
        """
        if output_indices is not None or not isinstance(observation_noise, bool):
            raise ValueError("output_indices must be None, observation_noise True or False")
        posterior = GPyTorchPosterior(self.gps(X, self.gps.lam if observation_noise else 0.0))
        return posterior if posterior_transform is None else posterior_transform(posterior)
