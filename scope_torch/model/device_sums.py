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

import torch
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.model.gpytorch_model import with_room
from scope_torch.model.hamming_sums import HammingGrid
from scope_torch.model.kernels import HammingKernel, hamming_distance
from scope_torch.space import ConfigSpace

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
        self._profile = kernel.profile(space.num_modules)
        half = space.num_modules // 2
        self._halves = _all_codes(space.sizes[:half]), _all_codes(space.sizes[half:])
        self._on_cpu = self._strides.cpu(), self._unions.coefficient.cpu()
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
        new, half = codes[old:], self.space.num_modules // 2
        of_first = hamming_distance(self._halves[0], new[:, :half])
        of_second = hamming_distance(new[:, half:], self._halves[1])
        a = torch.arange(half + 1)
        at = slice(old, n)
        self._first[..., at].copy_(of_first[:, None] == a[:, None])
        self._second[:, at].copy_(self._profile.take(of_second + a[:, None, None]))
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
        m, used = len(matrices), slice(self._num_entries)
        tables = self._zeros(m, *self._shape)
        entry, pair = self._where[:, used]
        values = matrices.reshape(m, -1).index_select(1, pair).mul_(self._value[used])
        tables.view(m, -1).index_add_(1, entry, values, alpha=alpha)
        tables.view(m, -1)[:, 0].add_(constants)  # the union of no modules
        *first, last = self.space.sizes
        for i, size in enumerate(first, start=1):
            tables = tables.narrow(i, 1, size).add_(tables.narrow(i, 0, 1))
        return (tables.narrow(-1, 1, last) + tables.narrow(-1, 0, 1)).view(m, -1)

    def bytes_of_forms(self, m: int) -> int:
        """About how many bytes `forms` moves: entries, then all tables, filled and folded."""
        tables = math.prod(self._shape) * (3 + 2 * self.space.num_modules)
        return m * _FLOAT * (7 * self._num_entries + tables)

    def bytes_of_squares(self, num_rows: int) -> int:
        """About how many bytes it takes to add squares of `num_rows` sums to something on Theta."""
        return _FLOAT * 5 * num_rows * self.space.size

    def _add_pairs(self, old: int) -> None:
        """Finds the entries of all pairs (i, j), i <= j, for the configurations j from `old` on."""
        n = len(self._codes)
        for start in range(old, n, _AT_ONCE):
            i, j = torch.triu_indices(n, min(start + _AT_ONCE, n))
            i, j = i[j >= start], j[j >= start]
            entry, value = self._unions_of(self._codes[i], self._codes[j])
            keep = value != 0
            value *= torch.where(i == j, 1.0, 2.0)
            pair = (i * self.columns + j).expand_as(entry)
            self._append(torch.stack([entry[keep], pair[keep]]), value[keep])

    def _unions_of(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The entries that pairs of configurations touch, and their coefficients.

        On a module, theta need not match (0), matches a (1), or matches b (2); where a and b agree,
        (1) is a match of both, and (2) is left out (see `UnionTables`).

        Args:
            a: `pairs x num_modules` codes.
            b: Likewise.

        Returns:
            `3^N x pairs` entries (int64), and coefficients (float64), 0 where left out.
        """
        N, (strides, coefficient) = self.space.num_modules, self._on_cpu
        choices = torch.cartesian_prod(*[torch.arange(3)] * N).view(-1, N)
        like_a, like_b = (choices == 1).double(), (choices == 2).double()
        differ = (a != b).double().T
        entry = like_a @ ((a + 1) * strides).double().T + like_b @ ((b + 1) * strides).double().T
        number = like_a @ differ, like_b @ differ, like_a @ (1 - differ)
        value = coefficient[tuple(one.long() for one in number)]
        return entry.long(), value * (like_b @ (1 - differ) == 0)

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


def _all_codes(sizes: tuple[int, ...]) -> Tensor:
    """All configurations of some modules by flat index; one without codes if there are none."""
    if not sizes:
        return torch.zeros(1, 0, dtype=torch.int64)
    space = ConfigSpace(sizes)
    return space.unrank(torch.arange(space.size))
