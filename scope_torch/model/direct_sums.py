"""Sums of any kernel over all of Theta, by the definition.

| symbol | here | shape |
| --- | --- | --- |
| D, observed configurations | `codes` | `n x N` |
| k_D(theta)^T w on all of Theta | `weighted_sum` | `|Theta|` |
| k_D(theta)^T V k_D(theta) on all of Theta | `quadratic_form` | `|Theta|` |
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.model.kernels import kernel_matrix
from scope_torch.space import MAX_ENUMERATED as MAX_ENUMERATED
from scope_torch.space import ConfigSpace

DENSE = 1 / 32  # cost of an operation of a matrix product relative to a scattered one


class DirectGrid:
    """The definition, evaluated in chunks of Theta; for any kernel.

    `HammingGrid` and `ListGrid` are tested against it. Its cost grows with |Theta| n for a weighted
    sum and with |Theta| n^2 for a quadratic form.

    Args:
        space: Theta.
        kernel: Any `gpytorch.kernels.Kernel` on codes that returns float64.
        device: Where the sums are made.
        chunk: Configurations evaluated at a time; bounds the memory.

    Attributes:
        size: How many configurations have a value: |Theta|.
        index: Their flat indices if they are not all of Theta; None.

    Raises:
        InputError: If Theta has more than 2e8 configurations.
    """

    index: Tensor | None

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        device: torch.device | str | None = None,
        chunk: int = 1 << 16,
    ) -> None:
        check_enumerable(space)
        self.space, self.size, self.index = space, space.size, None
        self.kernel = kernel
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self.chunk = chunk

    def weighted_sum(self, codes: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """k_D(theta)^T w on all of Theta.

        Args:
            codes: `n x num_modules` configurations D (int64).
            weights: `n`, w (float64), in the unit of the result.
            out: Where to put the result; None for fresh memory.

        Returns:
            `|Theta|` values by flat index (float64).
        """
        return self._map(lambda index: self.weighted_sum_at(index, codes, weights), out)

    def weighted_sums(self, codes: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """`weighted_sum` for each of the `m` rows, put into `out`: `m x |Theta|`."""
        out = rows.new_empty(len(rows), self.size) if out is None else out
        out.copy_(self._map(lambda index: self.kernel_at(index, codes) @ rows.T).T)
        return out

    def quadratic_form(self, codes: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """k_D(theta)^T V k_D(theta) on all of Theta; V is `matrix`, `n x n` and symmetric."""
        return self._map(lambda index: self.quadratic_form_at(index, codes, matrix), out)

    def add_squares(
        self, codes: Tensor, rows: Tensor, weights: Tensor, to: Tensor, scratch: Tensor
    ) -> None:
        """Adds sum_i weights_i (k_D(theta)^T rows_i)^2 to `to`; `scratch` is of the same size."""
        to += self._map(lambda i: squares(self.kernel_at(i, codes), rows, weights), scratch)

    def form_operations(self, n: int) -> float:
        """About how many operations a quadratic form takes."""
        return n**2 * self.size

    def sum_operations(self, n: int) -> float:
        """About how many operations a weighted sum takes."""
        return n * self.size

    def weighted_sum_at(self, index: Tensor, codes: Tensor, weights: Tensor) -> Tensor:
        """k_D(theta)^T w at the configurations of flat indices `index`, all at once."""
        return self.kernel_at(index, codes) @ weights

    def quadratic_form_at(self, index: Tensor, codes: Tensor, matrix: Tensor) -> Tensor:
        """k_D(theta)^T V k_D(theta) at the configurations of flat indices `index`."""
        return form(self.kernel_at(index, codes), matrix)

    def kernel_at(self, index: Tensor, codes: Tensor) -> Tensor:
        """k_D at the configurations of flat indices `index`: `len(index) x n`."""
        return kernel_matrix(self.kernel, self.space.unrank(index), codes)

    def _map(self, function: Callable[[Tensor], Tensor], out: Tensor | None = None) -> Tensor:
        every = torch.arange(self.size, device=self.device)
        return torch.cat([function(index) for index in every.split(self.chunk)], out=out)


def form(k: Tensor, matrix: Tensor) -> Tensor:
    """k^T V k for every row k: `len(k)`."""
    return ((k @ matrix) * k).sum(-1)


def squares(k: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """The sum over i of v_i (k^T x_i)^2 for every row k: `len(k)`."""
    return (k @ rows.T).square() @ weights


def check_enumerable(space: ConfigSpace) -> None:
    """Raises InputError if Theta has more than 2e8 configurations."""
    if space.size > MAX_ENUMERATED:
        raise InputError(
            f"{space.size:.3g} configurations are more than the {MAX_ENUMERATED:.0e} that can "
            "be enumerated; give some modules fewer candidate LLMs"
        )
