"""Kernels on configurations that depend only on the Hamming distance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor


def hamming_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Number of modules on which configurations differ, for every pair.

    Args:
        x1: `batch x n x num_modules` codes, of any dtype.
        x2: `batch x m x num_modules` codes.

    Returns:
        `batch x n x m` counts (int64).
    """
    return torch.cdist(x1.double(), x2.double(), p=0.0).long()


class HammingKernel(Kernel, ABC):
    """Base of the kernels k(theta, theta') = kappa(h), h the Hamming distance, kappa(0) = 1.

    A subclass supplies `at_distance`. The kernel has no hyperparameter and no gradient: nothing
    is fitted, because the bounds hold for a fixed kernel. Values are float64 for codes of any
    dtype; a cast to float32 would enter the bounds.

    Examples:
        >>> class Exponential(HammingKernel):
        ...     def at_distance(self, h):
        ...         return torch.exp(-h)
        >>> Exponential()(torch.tensor([[0, 1]]), torch.tensor([[0, 2]])).to_dense().item()
        0.36787944117144233
    """

    has_lengthscale = False

    @abstractmethod
    def at_distance(self, h: Tensor) -> Tensor:
        """Kernel value at Hamming distance.

        Args:
            h: `...` distances (float64, non-negative integers).

        Returns:
            `...` values (float64), 1 at h = 0.
        """

    def __init__(self) -> None:
        super().__init__()
        self._profiles: dict[tuple[int, torch.device], Tensor] = {}

    def profile(self, num_modules: int, device: torch.device | str | None = None) -> Tensor:
        """Values at h = 0, ..., N: `num_modules + 1` (float64), made once."""
        at = (num_modules, torch.device(device or "cpu"))
        if at not in self._profiles:
            h = torch.arange(num_modules + 1, dtype=torch.float64, device=at[1])
            self._profiles[at] = self.at_distance(h)
        return self._profiles[at]

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,  # noqa: ARG002 - gpytorch's signature
    ) -> Tensor:
        """Kernel matrix of codes.

        Args:
            x1: `batch x n x num_modules` codes.
            x2: `batch x m x num_modules` codes.
            diag: Only the values of (x1_i, x2_i), as `batch x n`.
            last_dim_is_batch: Not supported: a module alone has no kernel here.
            params: Ignored.

        Returns:
            `batch x n x m` values (float64).

        Raises:
            ValueError: If `last_dim_is_batch` is set.
        """
        if last_dim_is_batch:
            raise ValueError("a Hamming kernel needs all modules at once: last_dim_is_batch=False")
        profile = self.profile(x1.shape[-1], x1.device)
        if diag:
            return profile[(x1 != x2).sum(-1)]
        return profile.take(hamming_distance(x1, x2))  # indexing takes twice as long


class HammingMatern52Kernel(HammingKernel):
    """Matern 5/2 of d = sqrt(h), the paper's default (sec:exp).

    k = (1 + sqrt(5) d + 5/3 d^2) exp(-sqrt(5) d).
    """

    def at_distance(self, h: Tensor) -> Tensor:
        """K at Hamming distance `h`; see `HammingKernel.at_distance`."""
        root5_d = math.sqrt(5.0) * h.sqrt()
        return (1.0 + root5_d + 5.0 / 3.0 * h) * torch.exp(-root5_d)


class HammingRBFKernel(HammingKernel):
    """Squared exponential of d = sqrt(h): k = exp(-d^2 / 2) (sec:exp, RQ3)."""

    def at_distance(self, h: Tensor) -> Tensor:
        """K at Hamming distance `h`; see `HammingKernel.at_distance`."""
        return torch.exp(-h / 2)


def kernel_matrix(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """k(x1, x2) of codes: `n x m` (float64).

    A Hamming kernel is evaluated without gpytorch's lazy tensors, which take a millisecond.

    Args:
        kernel: Any kernel on codes.
        x1: `n x num_modules` codes, of any dtype.
        x2: `m x num_modules` codes.
    """
    if isinstance(kernel, HammingKernel):
        return kernel.forward(x1, x2)
    return kernel(x1.double(), x2.double()).to_dense()


def describe_kernel(kernel: Kernel, num_modules: int) -> dict[str, Any]:
    """Identifies a kernel: its class, and its value at every Hamming distance."""
    described: dict[str, Any] = {"name": type(kernel).__name__}
    if isinstance(kernel, HammingKernel):
        profile = kernel.profile(num_modules).tolist()
        # The last digits of exp depend on the machine, and a run may move.
        described["profile"] = [float(f"{value:.12g}") for value in profile]
    return described
