"""Sums of a Hamming kernel over Theta in few launches, for a GPU (see `hamming_sums.py`).

| symbol | here | shape |
| --- | --- | --- |
| theta = (alpha, beta), its first N // 2 modules and the others | | |
| P: whether h(alpha, d) = a | `_first` | `|A| x N // 2 + 1 x columns` |
| R: kappa(a + h(beta, d)) | `_second` | `N // 2 + 1 x columns x |B|` |
| entries of the pairs of D in the table of unions | `_where`, `_value` | entries |

A weighted sum is one product of matrices, since h(theta, d) = h(alpha, d) + h(beta, d):

    k_D(theta)^T w = sum over d and a of P[alpha, a, d] w_d R[a, d, beta].

A quadratic form is the fold of one table, as in `HammingGrid`. Where a pair goes does not change
once both configurations are observed, so it is found once, on the CPU, and stays on the device.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.model.factor import Array
from scope_torch.model.gpytorch_model import with_room
from scope_torch.model.hamming_sums import HammingGrid
from scope_torch.model.kernels import HammingKernel
from scope_torch.space import ConfigSpace

Codes = NDArray[np.int64]
_FLOAT = 8  # bytes
_AT_ONCE = 32  # configurations whose pairs are found together


class DeviceSums(HammingGrid):
    """Weighted sums and quadratic forms on all of Theta, for a D that only grows.

    Args:
        space: Theta, with at most 2e8 configurations.
        kernel: A kernel that depends on the Hamming distance only.
        device: Where the sums are made (float64).

    Raises:
        InputError: If Theta has more than 2e8 configurations.
    """

    def __init__(
        self, space: ConfigSpace, kernel: HammingKernel, device: torch.device | str
    ) -> None:
        super().__init__(space, kernel, device)
        self._profile = kernel.profile(space.num_modules).numpy()
        half = space.num_modules // 2
        self._halves = _all_codes(space.sizes[:half]), _all_codes(space.sizes[half:])
        self._strides_on_cpu = self._strides.tolist()
        self._coefficients = np.append(self._unions.coefficient.cpu().numpy(), 0.0)
        self._codes = torch.zeros(0, space.num_modules, dtype=torch.int64)
        num_first, num_second = map(len, self._halves)
        self._first = self._zeros(num_first, half + 1, 0)
        self._second = self._zeros(half + 1, 0, num_second)
        self._where = torch.zeros(2, 0, dtype=torch.int64, device=self.device)  # entry, pair
        self._value = self._zeros(0)
        self._num_entries = 0

    @property
    def columns(self) -> int:
        """Length of the weights: D with room, see `with_room`."""
        return self._first.shape[-1]

    def add_configurations(self, codes: Tensor) -> None:
        """Brings everything up to D.

        Args:
            codes: `n x num_modules` configurations on the CPU (int64); begins with those of before.
        """
        old, n = len(self._codes), len(codes)
        if n == old and n:
            return
        self._widen(with_room(n))
        self._codes = codes
        # In numpy, whose operations on so few numbers wait for no other thread.
        new, half = codes[old:].numpy(), self.space.num_modules // 2
        of_first = (self._halves[0][:, None] != new[:, :half]).sum(-1)
        of_second = (self._halves[1][:, None] != new[:, half:]).sum(-1)
        a, at = np.arange(half + 1)[:, None, None], slice(old, n)
        is_a = of_first == a
        self._first[..., at].copy_(torch.from_numpy(is_a.swapaxes(0, 1)))
        self._second[:, at].copy_(torch.from_numpy(self._profile[(of_second + a).swapaxes(1, 2)]))
        self._add_pairs(old)

    def sums(self, rows: Tensor) -> Tensor:
        """k_D(theta)^T w for each of `m` rows w: `m x |Theta|`.

        Args:
            rows: `m x columns`.
        """
        weighted = (rows[:, None, None] * self._first).view(-1, self._second[..., 0].numel())
        return (weighted @ self._second.flatten(0, 1)).view(len(rows), -1)

    def forms(self, matrices: Tensor, constants: Tensor, alpha: float) -> Tensor:
        """The sums b + alpha k_D(theta)^T V k_D(theta) for `m` matrices V: `m x |Theta|`.

        Args:
            matrices: `m x columns x columns`, symmetric.
            constants: `m`, the b.
            alpha: Factor of the forms.
        """
        last = self.space.sizes[-1]
        tables = self.folded(matrices, constants, alpha, self.space.num_modules - 1)
        return (tables.narrow(-1, 1, last) + tables.narrow(-1, 0, 1)).view(len(matrices), -1)

    def folded(self, matrices: Tensor, constants: Tensor, alpha: float, modules: int) -> Tensor:
        """The tables of `forms` while the modules from number `modules` on are not folded yet.

        Returns:
            `m x sizes`; of a module that is not folded, 1 more than its size: 0 for no match.
        """
        m, used = len(matrices), slice(self._num_entries)
        tables = self._zeros(m, *self._shape)
        entry, pair = self._where[:, used]
        values = matrices.reshape(m, -1).index_select(1, pair).mul_(self._value[used])
        tables.view(m, -1).index_add_(1, entry, values, alpha=alpha)
        tables.view(m, -1)[:, 0].add_(constants)  # the union of no modules
        for i, size in enumerate(self.space.sizes[:modules], start=1):
            tables = tables.narrow(i, 1, size).add_(tables.narrow(i, 0, 1))
        return tables

    def bytes_of_forms(self, m: int) -> int:
        """About how many bytes `forms` moves: entries, then all tables, filled and folded."""
        tables = math.prod(self._shape) * (3 + 2 * self.space.num_modules)
        return m * _FLOAT * (7 * self._num_entries + tables)

    def bytes_of_squares(self, num_rows: int) -> int:
        """About how many bytes it takes to add squares of `num_rows` sums to something on Theta."""
        return _FLOAT * 5 * num_rows * self.space.size

    def _add_pairs(self, old: int) -> None:
        """Finds the entries of all pairs (i, j), i <= j, for the configurations j from `old` on."""
        codes = self._codes.numpy()
        n = len(codes)
        for start in range(old, n, _AT_ONCE):
            new = np.arange(start, min(start + _AT_ONCE, n))
            i, j = (np.arange(n)[:, None] <= new).nonzero()
            j += start
            entry, value = self._unions_of(codes[i], codes[j])
            value *= np.where(i == j, 1.0, 2.0)
            pair = np.broadcast_to(i * self.columns + j, entry.shape)
            keep = value != 0
            where = np.stack([entry[keep], pair[keep]])
            self._append(torch.from_numpy(where), torch.from_numpy(value[keep]))

    def _unions_of(self, a: Codes, b: Codes) -> tuple[Codes, Array]:
        """The entries that pairs of configurations touch, and their coefficients.

        On a module, theta need not match (0), matches a (1), or matches b (2); where a and b agree,
        (1) is a match of both, and (2) is left out (see `UnionTables`).

        Args:
            a: `pairs x num_modules` codes.
            b: Likewise.

        Returns:
            `3^N x pairs` entries (int64), and coefficients (float64), 0 where left out.
        """
        by_both, by_b, by_a, left_out = [(self.space.num_modules + 1) ** i for i in range(4)]
        entry, kind = np.zeros((2, 1, len(a)), dtype=np.int64)
        for i, stride in enumerate(self._strides_on_cpu):
            differ = a[:, i] != b[:, i]
            matches = 0 * a[:, i], (a[:, i] + 1) * stride, (b[:, i] + 1) * stride
            kinds = 0 * a[:, i], np.where(differ, by_a, by_both), np.where(differ, by_b, left_out)
            entry = (entry[:, None] + np.stack(matches)).reshape(-1, len(a))
            kind = (kind[:, None] + np.stack(kinds)).reshape(-1, len(a))
        return entry, self._coefficients[np.minimum(kind, left_out)]

    def _append(self, where: Tensor, value: Tensor) -> None:
        """Puts entries behind those that there are, in memory that grows by doubling."""
        old, new = self._num_entries, self._num_entries + len(value)
        if new > len(self._value):
            more = max(new, 2 * len(self._value)) - len(self._value)
            self._where, self._value = pad(self._where, (0, more)), pad(self._value, (0, more))
        self._where[:, old:new].copy_(where)
        self._value[old:new].copy_(value)
        self._num_entries = new

    def _widen(self, columns: int) -> None:
        """Makes room for more configurations; pairs are numbered by row and column."""
        old, more = self.columns, columns - self.columns
        if more == 0:
            return
        self._first = pad(self._first, (0, more))
        self._second = pad(self._second, (0, 0, 0, more))
        if old:
            pair = self._where[1]
            self._where[1] = pair // old * columns + pair % old

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)


def _all_codes(sizes: tuple[int, ...]) -> Codes:
    """All configurations of some modules by flat index; one without codes if there are none."""
    return np.indices(sizes).reshape(len(sizes), math.prod(sizes)).T
