"""The factorisation of the queries with equal histories, one row for each configuration."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ROOM = 8  # rows: W is copied once for so many, and is that much larger


class QueryGroup(NamedTuple):
    """W_q with W_q^T W_q = A_q = (K_q + lam C_q^-1)^-1, shared by queries with equal histories.

    A further configuration, observed once, adds a row to W and changes none (bordering): with
    v = 1 + lam - k^T A k it is (-A k, 1) / sqrt(v). So groups whose histories begin alike share
    memory, until both add a row.
    """

    ids: NDArray[np.int64]  # `J`: observed configurations, as positions in D
    W: Array  # `J x J`, lower triangular
    information: float  # 1/2 log det(I + K / lam) of all observations, repeats counted, in nats
    memory: _Memory | None = None  # of ids and W

    @classmethod
    def of_none(cls) -> QueryGroup:
        """Nothing is observed."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, 0)), 0.0)

    @classmethod
    def of(
        cls, gram: Array, ids: NDArray[np.int64], count: NDArray[np.int64], lam: float
    ) -> QueryGroup:
        """Made anew.

        Args:
            gram: `n x n`, K_D.
            ids: `J` positions in D.
            count: How often each was observed: `J`.
            lam: lambda.
        """
        noise = lam / count
        matrix = gram[ids[:, None], ids]
        matrix[np.diag_indices(len(ids))] += noise
        L = torch.linalg.cholesky(torch.from_numpy(matrix))
        information = float(L.diagonal().log().sum()) - 0.5 * float(np.log(noise).sum())
        W = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype), upper=False)
        return cls(ids, W.numpy(), information)

    def half(self, k: Array) -> Array:
        """W_q k_q, of which k_q^T A_q k_q is the square: `J`.

        Args:
            k: The kernel with D: `n`.
        """
        return times(self.W, k.take(self.ids))

    def solved(self, half: Array) -> Array:
        """A_q k_q = W_q^T half: `J`."""
        return np.einsum("i,ij->j", half, self.W)

    def extended(self, config: int, half: Array, lam: float) -> QueryGroup:
        """With one more configuration.

        Args:
            config: As a position in D.
            half: Of its kernel with D.
            lam: lambda.
        """
        size, memory = len(self.ids), self.memory
        if memory is None or memory.size > size or size == len(memory.ids):
            memory = _Memory(self.ids, self.W)  # the next row is another group's, or there is none
        new = memory.size = size + 1
        memory.ids[size] = config
        v = 1 + lam - float(half.dot(half))
        row = memory.W[size, :new]
        row[:-1], row[-1] = self.solved(half), -1.0
        row *= -1 / math.sqrt(v)
        information = self.information + 0.5 * math.log(v / lam)
        return QueryGroup(memory.ids[:new], memory.W[:new, :new], information, memory)


class _Memory:
    """Room for more rows."""

    def __init__(self, ids: NDArray[np.int64], W: Array) -> None:
        self.size = len(ids)  # rows taken
        capacity = self.size + _ROOM
        self.ids, self.W = np.zeros(capacity, dtype=np.int64), np.zeros((capacity, capacity))
        self.ids[: self.size], self.W[: self.size, : self.size] = ids, W


def times(x: Array, y: Array) -> Array:
    """The inner products over the last dimension.

    Neither way, unlike a product with a matrix, depends on the number of threads.
    """
    if hasattr(np, "vecdot"):  # numpy 2; half the time
        return np.vecdot(x, y)
    return np.einsum("...i,...i->...", x, y)
