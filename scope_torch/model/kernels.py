"""Kernels on configurations: of the Hamming distance, and of what choices share."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.factors import Levels

# Weights before they are scaled to add to 1; chosen on simulated worlds (docs/joint.md).
_LLM, _OTHER, _SAME = 0.5, 0.25, 0.25
_ROUNDING = 1e-12
_AT_ONCE = 1 << 18  # pairs of configurations: there are two tensors of them for every module


def hamming_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Number of modules on which configurations differ, for every pair.

    Args:
        x1: `batch x n x num_modules` codes, of any dtype.
        x2: `batch x m x num_modules` codes.

    Returns:
        `batch x n x m` counts (int64).
    """
    return torch.cdist(x1.double(), x2.double(), p=0.0).long()


class CodeKernel(Kernel, ABC):
    """Base of the kernels on codes: no hyperparameter, no gradient, float64 for codes of any dtype.

    Nothing is fitted, because the bounds hold for a fixed kernel; a cast to float32 would enter
    them. A subclass supplies `_matrix`.
    """

    has_lengthscale = False

    @abstractmethod
    def _matrix(self, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
        """See `forward`."""

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
            raise ValueError("this kernel needs all modules at once: last_dim_is_batch=False")
        return self._matrix(x1, x2, diag)


class HammingKernel(CodeKernel):
    """Base of the kernels k(theta, theta') = kappa(h), h the Hamming distance, kappa(0) = 1.

    A subclass supplies `at_distance`.

    Examples:
        >>> class Exponential(HammingKernel):
        ...     def at_distance(self, h):
        ...         return torch.exp(-h)
        >>> Exponential()(torch.tensor([[0, 1]]), torch.tensor([[0, 2]])).to_dense().item()
        0.36787944117144233
    """

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
            self._profiles[at] = self.at_distance(h).detach()  # nothing is fitted
        return self._profiles[at]

    def _matrix(self, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
        """See `CodeKernel.forward`."""
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


class FactorKernel(CodeKernel):
    """A kernel that knows what choices share: the LLM, the effort, the prompt.

    A kernel of the Hamming distance is a sum over sets S of modules of a_|S| 1[theta_S = theta'_S],
    see hamming_sums.py. Here "the same" is graded:

        k(theta, theta') = sum over S of a_|S| prod over i in S of s_i(theta_i, theta'_i)
        s_i(m, m')       = sum over factors f of w_f 1[m, m' agree on f] + w_0 1[m = m']

    The weights w are positive and add to 1, so k(theta, theta) = 1. If no a_m is negative, k is
    positive semidefinite. Where choices have no factors, k is the kernel of the Hamming distance.
    Values are float64; nothing is fitted.

    Args:
        base: The kernel of choices without factors.
        levels: What choices share, see `levels_of`.

    Attributes:
        base: As given.
        likeness: s_i of each module.
        coefficients: a_0 to a_N.

    Raises:
        InputError: If a coefficient of the base is negative.

    Examples:
        >>> from scope_torch.factors import levels_of, product
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> levels = levels_of([product(llm=["a", "b"], effort=["low", "high"])])
        >>> k = FactorKernel(HammingMatern52Kernel(), levels)
        >>> k.forward(torch.tensor([[0]]), torch.arange(4)[:, None]).round(decimals=2).tolist()
        [[1.0, 0.76, 0.64, 0.52]]
    """

    def __init__(self, base: HammingKernel, levels: Levels) -> None:
        super().__init__()
        self.base, self.levels = base, levels
        self.likeness = [likeness_of(of_module) for of_module in levels]
        self.coefficients = _coefficients(base, len(levels))

    def _matrix(self, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
        """See `CodeKernel.forward`."""
        rows = max(1, _AT_ONCE // max(1, len(x2)))
        if not diag and x1.dim() == x2.dim() == 2 and len(x1) > rows:
            return torch.cat([self._matrix(some, x2, diag) for some in x1.split(rows)])
        a, b = x1.long(), x2.long()
        if not diag:
            a, b = a.unsqueeze(-2), b.unsqueeze(-3)
        # sums[m - 1]: the sum over sets S of m modules of the product of s_i.
        sums: list[Tensor] = []
        for i, s in enumerate(self.likeness):
            alike = s.to(x1.device)[a[..., i], b[..., i]]
            longer = [alike, *(alike * one for one in sums)]
            sums = [*(one + two for one, two in zip(sums, longer, strict=False)), longer[-1]]
        first, *others = self.coefficients.tolist()
        k = torch.full_like(sums[0], first)
        for a_m, one in zip(others, sums, strict=True):
            k.add_(one, alpha=a_m)
        return k

    def settings(self) -> dict[str, Any]:
        """The arguments but the base, JSON-serialisable."""
        return {"levels": self.levels, "weights": [_LLM, _OTHER, _SAME]}


def likeness_of(levels: Sequence[Sequence[int]]) -> Tensor:
    """s_i of one module: `M_i x M_i` (float64).

    Args:
        levels: For each choice the level of every factor, the LLM first.
    """
    codes = torch.tensor(levels)
    same = (codes[:, None] == codes[None]).double()
    varied = [f for f in range(codes.shape[1]) if len(codes[:, f].unique()) > 1]
    weights = torch.tensor([_LLM if f == 0 else _OTHER for f in varied], dtype=torch.float64)
    total = same[..., varied] @ weights + _SAME * same.all(-1).double()
    return total / (weights.sum() + _SAME)


def _coefficients(base: HammingKernel, num_modules: int) -> Tensor:
    by_matches = base.profile(num_modules).flip(0)
    found = torch.stack([by_matches.diff(s)[0] for s in range(num_modules + 1)])
    if found.min() < -_ROUNDING:
        raise InputError(
            f"kernel={type(base).__name__} has a negative coefficient for {num_modules} modules, "
            "so no kernel of choices with factors can be made of it; take another"
        )
    return found


def kernel_of(given: Kernel | None, sizes: Sequence[int]) -> Kernel:
    """The kernel of a search, as given; None for Matern 5/2.

    Args:
        given: Any kernel on codes.
        sizes: Of Theta.

    Raises:
        InputError: If it is no kernel, not float64, or not 1 where configurations are equal: the
            variances of a model take that for granted.
    """
    if given is None:
        return HammingMatern52Kernel()
    if not isinstance(given, Kernel):
        raise InputError(f"kernel={given!r} must be an instance of gpytorch.kernels.Kernel")
    every = torch.tensor([[j % size for size in sizes] for j in range(max(sizes))])  # each choice
    k, name = kernel_matrix(given, every, every), type(given).__name__
    if k.dtype != torch.float64:
        raise InputError(f"kernel={name} gives {k.dtype}; let it give float64, as by .double()")
    most = 1 + _ROUNDING
    if not (bool((k.abs() <= most).all()) and bool((k.diagonal() >= 2 - most).all())):
        raise InputError(
            f"kernel={name}: k(theta, theta) is {float(k.diagonal().min())} to "
            f"{float(k.diagonal().max())}, and |k| up to {float(k.abs().max())}; k(theta, theta) "
            "must be 1, and no value above it: divide it by its variance"
        )
    return given


def kernel_matrix(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """k(x1, x2) of codes: `n x m` (float64).

    A kernel of this package is evaluated without gpytorch's lazy tensors, which take a millisecond.

    Args:
        kernel: Any kernel on codes; evaluated on the device of its parameters and buffers.
        x1: `n x num_modules` codes, of any dtype.
        x2: `m x num_modules` codes.
    """
    if isinstance(kernel, CodeKernel):
        return kernel.forward(x1, x2).detach()
    of_kernel = next(itertools.chain(kernel.parameters(), kernel.buffers()), None)
    device = x1.device if of_kernel is None else of_kernel.device
    x1_there, x2_there = (x.double().to(device) for x in (x1, x2))
    return kernel(x1_there, x2_there).to_dense().detach().to(x1.device)


def describe_kernel(kernel: Kernel, num_modules: int) -> dict[str, Any]:
    """Identifies a kernel: its class, and its value at every Hamming distance."""
    described: dict[str, Any] = {"name": type(kernel).__name__}
    if isinstance(kernel, FactorKernel):
        return {**described, "base": describe_kernel(kernel.base, num_modules), **kernel.settings()}
    if isinstance(kernel, HammingKernel):
        profile = kernel.profile(num_modules).tolist()
        # The last digits of exp depend on the machine, and a run may move.
        described["profile"] = [float(f"{value:.12g}") for value in profile]
    return described
