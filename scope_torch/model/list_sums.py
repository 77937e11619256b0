"""Sums of any kernel over a list of configurations: the Theta of a table with holes.

| symbol | here | shape |
| --- | --- | --- |
| D, observed configurations | `codes` | `n x N` |
| K, kernel of D with the list | `_kept` | `n x size` |
| k_D(theta)^T w on the list | K^T w | `size` |

Memory and time are in proportion to the list, however large Theta is. D only grows, so K grows by
its new rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.model.direct_sums import DENSE, DirectGrid
from scope_torch.model.kernels import HammingKernel, kernel_matrix
from scope_torch.space import MAX_ENUMERATED, ConfigSpace

MAX_LISTED = 1_000_000
_PAYS = 256  # times longer than a list is Theta where its Hamming tables cost as much
_KEPT = 1 << 25  # numbers of K that are kept: 256 MB
_BLOCK = 1 << 22  # numbers of K at a time, where they are not


class ListGrid(DirectGrid):
    """As `DirectGrid`, where only a list of configurations has a value: by its position there.

    Args:
        space: Theta, of any size below 2^63.
        kernel: See `DirectGrid`.
        index: Flat indices of the list, rising (int64).
        device: See `DirectGrid`.

    Attributes:
        size: Length of the list.
        index: As given.
    """

    def __init__(  # not that of DirectGrid: Theta itself is not enumerated
        self,
        space: ConfigSpace,
        kernel: Kernel,
        index: Tensor,
        device: torch.device | str | None = None,
    ) -> None:
        self.space, self.size, self.kernel = space, len(index), kernel
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self.index = index = index.to(self.device)
        self._codes = space.unrank(index)
        self._D = self._codes[:0]
        self._kept = torch.empty(0, self.size, dtype=torch.float64, device=self.device)

    def weighted_sums(self, codes: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """See `DirectGrid`."""
        out = rows.new_empty(len(rows), self.size) if out is None else out
        for at, K in self._blocks(codes):
            out[:, at] = rows @ K
        return out

    def weighted_sum(self, codes: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """See `DirectGrid`."""
        return self.weighted_sums(codes, weights[None], None if out is None else out[None])[0]

    def quadratic_form(self, codes: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """See `DirectGrid`."""
        out = matrix.new_empty(self.size) if out is None else out
        for at, K in self._blocks(codes):
            torch.sum((matrix @ K).mul_(K), 0, out=out[at])
        return out

    def add_squares(
        self,
        codes: Tensor,
        rows: Tensor,
        weights: Tensor,
        to: Tensor,
        scratch: Tensor,  # noqa: ARG002
    ) -> None:
        """See `DirectGrid`."""
        for at, K in self._blocks(codes):
            to[at] += weights @ (rows @ K).square_()

    def form_operations(self, n: int) -> float:
        """See `DirectGrid`; matrix products."""
        return super().form_operations(n) * DENSE

    def sum_operations(self, n: int) -> float:
        """See `DirectGrid`; matrix products."""
        return super().sum_operations(n) * DENSE

    def kernel_at(self, index: Tensor, codes: Tensor) -> Tensor:
        """k_D at positions in the list: `len(index) x n`."""
        return kernel_matrix(self.kernel, self._codes[index], codes)

    def _blocks(self, codes: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Parts of the list, and the columns of K for them."""
        n = len(codes)
        if n * self.size <= _KEPT:
            self._keep(codes)
        step = max(1, _BLOCK // max(n, 1))
        for start in range(0, self.size, step):
            at = slice(start, start + step)
            if n * self.size <= _KEPT:
                yield at, self._kept[:n, at]
            else:
                yield at, kernel_matrix(self.kernel, codes, self._codes[at])

    def _keep(self, codes: Tensor) -> None:
        """Brings K up to D."""
        known, n = len(self._D), len(codes)
        if known > n or not torch.equal(codes[:known], self._D):
            known = 0
        if n > len(self._kept):
            old, self._kept = self._kept, self._kept.new_empty(max(2 * n, 64), self.size)
            self._kept[:known] = old[:known]
        if n > known:
            self._kept[known:n] = kernel_matrix(self.kernel, codes[known:], self._codes)
        self._D = codes


def listed(allowed: Allowed | None, kernel: Kernel) -> Tensor | None:
    """Flat indices of what may be chosen, rising, if it is better to enumerate these than Theta.

    They must be a list. Theta has tables for a kernel of the Hamming distance, so there it must be
    much larger than the list.
    """
    if allowed is None or not allowed.is_listed:
        return None
    index, size = allowed.index, allowed.space.size
    if index is None or len(index) > MAX_LISTED:
        return None
    pays = len(index) * (_PAYS if isinstance(kernel, HammingKernel) else 1) < size
    return index if pays or size > MAX_ENUMERATED else None
