"""A BoTorch model of tabulated posteriors, for acquisitions on all of Theta."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from torch import Tensor


class TablePosterior(Posterior):
    """Means and variances of single points, without a joint distribution.

    Args:
        means: Means of c and of g by index (float64).
        sigma: Standard deviations of both by index.
        index: `b x 1` points (int64).
    """

    def __init__(self, means: tuple[Tensor, Tensor], sigma: Tensor, index: Tensor) -> None:
        self._means, self._sigma, self._index = means, sigma, index

    @property
    def mean(self) -> Tensor:
        """`b x 1 x 2` means (float64)."""
        return torch.stack([mean[self._index] for mean in self._means], -1)

    @property
    def variance(self) -> Tensor:
        """`b x 1 x 2` variances (float64)."""
        variance = self._sigma[self._index].square().unsqueeze(-1)
        return variance.expand(*self._index.shape, 2)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._sigma.device

    @property
    def dtype(self) -> torch.dtype:
        """float64."""
        return self._sigma.dtype

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Not available.

        Raises:
            NotImplementedError: Always; `QuerySurrogate.as_botorch_model()` has samples.
        """
        raise NotImplementedError("a table of marginals has no samples: use as_botorch_model()")


class TableModel(Model):
    """Two outputs, c and g, with equal variance, known on a finite set of points.

    The table holds the exact sums over the whole grid; kernel sums for every point of a BoTorch
    batch would cost more.

    Args:
        mean_c: Means of c by index (float64).
        mean_g: Means of g by index.
        sigma: Standard deviations of both by index.

    Examples:
        >>> column = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        >>> model = TableModel(column, -column, column.sqrt())
        >>> marginals(model, torch.tensor([[[2.0]]])).mean.tolist()
        [[[3.0, -3.0]]]
    """

    def __init__(self, mean_c: Tensor, mean_g: Tensor, sigma: Tensor) -> None:
        super().__init__()
        self._mean_c, self._mean_g, self._sigma = mean_c, mean_g, sigma

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
        posterior_transform: Any = None,
    ) -> Posterior:
        """Marginal posteriors.

        Args:
            X: `b x 1 x 1` indices (float64; exact below 2^53).
            output_indices: Must be None: both outputs.
            observation_noise: Must be False.
            posterior_transform: Must be None.

        Returns:
            Posterior over `b x 1 x 2` values.

        Raises:
            ValueError: If an argument is anything else.
        """
        if X.shape[-2:] != (1, 1):
            raise ValueError(f"X of shape {tuple(X.shape)} must be b x 1 x 1 indices of the table")
        if output_indices is not None or observation_noise is not False or posterior_transform:
            raise ValueError("a table has both outputs, without noise or transform; pass X alone")
        index = X.squeeze(-1).long()
        return TablePosterior((self._mean_c, self._mean_g), self._sigma, index)


def marginals(model: Model, X: Tensor) -> Any:
    """A BoTorch model's posterior at single points, with `mean` and `variance`: `b x 1 x m`.

    Args:
        model: Any BoTorch model.
        X: `b x 1 x d` points.

    Raises:
        ValueError: If X has more than one point in a batch.
    """
    if X.shape[-2] != 1:
        raise ValueError(f"X of shape {tuple(X.shape)} must hold one point a batch: b x 1 x d")
    return model.posterior(X)


def evaluate(
    acquisition: AcquisitionFunction,
    size: int,
    device: torch.device | str | None = None,
    chunk: int = 1 << 16,
) -> Tensor:
    """Values of an acquisition on a `TableModel` at all of its points.

    Args:
        acquisition: The acquisition; each point is a batch of its own, never a joint one.
        size: Number of points.
        device: Device of the table.
        chunk: Points at a time; bounds the memory.

    Returns:
        `size` values (float64).
    """
    out = torch.empty(size, dtype=torch.float64, device=device)
    with torch.no_grad():
        for index in torch.arange(size, dtype=torch.float64, device=device).split(chunk):
            start = int(index[0])
            out[start : start + len(index)] = acquisition(index.view(-1, 1, 1))
    return out
