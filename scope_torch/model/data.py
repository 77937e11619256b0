"""All observations, summed by query and configuration.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| D, distinct configurations observed | `codes` | `n x N` | |
| K_D, their kernel matrix | `gram` | `n x n` | |
| C, how often each was observed on each query | `count` | `Q x n` | |
| sum of the y_zeta observed there | `sums` | `(1 + K) x Q x n` | USD; grades |

Arrays have room for more configurations than there are; the first n columns count. Rows of queries
that nobody was asked are zeros that no one has written: they take no memory, though Q is 100,000.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from scope_torch.model.factor import Array
from scope_torch.model.kernels import kernel_matrix
from scope_torch.space import ConfigSpace

_LARGE = 1 << 26  # bytes


class Added(NamedTuple):
    """What new observations are, beside what was there.

    Args:
        configs: For each query with new observations their configurations, as positions in D.
        repeated: Queries that observed one of theirs before.
    """

    configs: dict[int, list[int]]
    repeated: set[int]


class Data:
    """What was observed.

    Args:
        space: Theta.
        kernel: k.
        num_queries: Q.
        device: Where `codes` are.
        num_constraints: K.
    """

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        num_queries: int,
        device: torch.device,
        num_constraints: int = 1,
    ) -> None:
        self._kernel, self._device = kernel, device
        self._id_of: dict[tuple[int, ...], int] = {}
        self.codes = torch.zeros(0, space.num_modules, dtype=torch.int64, device=device)
        self.gram: Array = np.zeros((0, 0))
        self.count: NDArray[np.int64] = np.zeros((num_queries, 0), dtype=np.int64)
        self.sums: Array = np.zeros((1 + num_constraints, num_queries, 0))
        self.is_asked = np.zeros(num_queries, dtype=np.bool_)

    @property
    def n(self) -> int:
        """Number of distinct configurations observed."""
        return len(self.codes)

    @property
    def room(self) -> int:
        """Number of columns of the arrays."""
        return self.count.shape[1]

    def id_of(self, theta: tuple[int, ...]) -> int | None:
        """The position of a configuration in D; None if it was never observed."""
        return self._id_of.get(theta)

    def kernel_with(self, theta: tuple[int, ...]) -> Array:
        """k_D(theta): `n`."""
        config = self.id_of(theta)
        if config is not None:
            return self.gram[config, : self.n]
        at = torch.tensor([theta], device=self._device)
        return kernel_matrix(self._kernel, at, self.codes)[0].cpu().numpy()

    def mean(self) -> Array:
        """y_q, the mean observed on each query: `(1 + K) x Q x n`; 0 where nothing was observed."""
        some, n = self.is_asked, self.n
        mean = _zeros((*self.sums.shape[:2], n), self.sums.dtype)
        mean[:, some] = self.sums[:, some, :n] / self.count[some, :n].clip(min=1)
        return mean

    def add(
        self,
        observations: Sequence[tuple[tuple[int, ...], int, tuple[float, ...]]],
        known: tuple[tuple[int, ...], Array] | None,
    ) -> Added:
        """Takes in observations.

        Args:
            observations: (theta, query, (y_c in USD, y_g of each constraint)), at least one.
            known: A configuration and its kernel with D, if they are at hand.
        """
        thetas, query, values = zip(*observations, strict=True)
        config = [self._id_of.setdefault(theta, len(self._id_of)) for theta in thetas]
        self._grow(known)
        at = (np.array(query), np.array(config))
        self.is_asked[at[0]] = True
        repeated = set(at[0][self.count[at] > 0].tolist())
        np.add.at(self.count, at, 1)
        for row, y in zip(self.sums, zip(*values, strict=True), strict=True):
            np.add.at(row, at, y)
        configs: dict[int, list[int]] = {}
        for q, c in zip(query, config, strict=True):
            configs.setdefault(q, []).append(c)
        return Added(configs, repeated)

    def _grow(self, known: tuple[tuple[int, ...], Array] | None) -> None:
        """Makes room for configurations that are new, and their rows of K_D."""
        old = self.n
        new = list(islice(self._id_of, old, None))
        if not new:
            return
        self.codes = torch.cat([self.codes, torch.tensor(new, device=self._device)])
        n = self.n
        if n > self.room:
            columns = max(n, 2 * self.room)
            more = (0, columns - self.room)
            self.count = wider(self.count, columns, self.is_asked)
            self.sums = wider(self.sums, columns, self.is_asked)
            self.gram = np.pad(self.gram, (more, more))
        if known is not None and new == [known[0]]:
            rows = np.append(known[1], 1.0)[None]
        else:
            rows = kernel_matrix(self._kernel, self.codes[old:], self.codes).cpu().numpy()
        self.gram[old:n, :n] = rows
        self.gram[:n, old:n] = rows.T


def wider(array: NDArray[Any], columns: int, is_asked: NDArray[np.bool_]) -> NDArray[Any]:
    """`... x Q x columns`, with zeros in the new columns.

    Args:
        array: `... x Q x fewer`.
        columns: How many.
        is_asked: `Q`, the rows that are not all zeros; the others are not written.
    """
    out = _zeros((*array.shape[:-1], columns), array.dtype)
    out[..., is_asked, : array.shape[-1]] = array[..., is_asked, :]
    return out


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros that take memory where they are written: of huge pages, numpy's, one row takes 2 MB."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
