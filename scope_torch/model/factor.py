"""The factor of the queries that observed the same configurations equally often.

| symbol | here | shape |
| --- | --- | --- |
| configurations observed, as positions in D | `ids` | `J` |
| A_q = (K_q + lam C_q^-1)^-1 = W_q^T W_q | `W`, lower triangular | `J x J` |
| w = W_q k_q, so that k_q^T A_q k_q = w^T w | `whitened` | `J` |

A further configuration, observed once, adds a row to W and changes none (bordering): with
v = 1 + lam - w^T w the row is (-A k, 1) / sqrt(v). That is the factor of the bordered matrix, in
J^2 instead of J^3 operations; of the inverse it would change every entry. Groups whose histories
begin alike share the memory of W, until both add a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ROOM = 8  # rows: W is copied once for so many, and is that much larger


class QueryGroup(NamedTuple):
    """W_q and what belongs to it, for queries with equal histories.

    Args:
        ids: `J` observed configurations, as positions in D.
        W: `J x J`, lower triangular.
        information: 1/2 log det(I + K / lam) of all observations, repeats counted, in nats.
        memory: Of ids and W, with room for more rows.
    """

    ids: NDArray[np.int64]
    W: Array
    information: float
    memory: _Memory | None = None

    @classmethod
    def of_none(cls) -> QueryGroup:
        """Nothing is observed."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, 0)), 0.0)

    @classmethod
    def of(
        cls, gram: Array, ids: NDArray[np.int64], count: NDArray[np.int64], lam: float
    ) -> QueryGroup:
        """Factorised from the definition.

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

    def whitened(self, k: Array) -> Array:
        """W = W_q k_q: `J`.

        Args:
            k: The kernel with D: `n`.
        """
        return times(self.W, k.take(self.ids))

    def solved(self, whitened: Array) -> Array:
        """A_q k_q = W_q^T w: `J`."""
        return np.einsum("i,ij->j", whitened, self.W)

    def extended(self, config: int, whitened: Array, lam: float) -> QueryGroup:
        """With one more configuration, observed once.

        Args:
            config: As a position in D.
            whitened: Of its kernel with D.
            lam: lambda.
        """
        size, memory = len(self.ids), self.memory
        if memory is None or memory.size > size or size == len(memory.ids):
            memory = _Memory(self.ids, self.W)  # the next row is another group's, or there is none
        new = memory.size = size + 1
        memory.ids[size] = config
        v = 1 + lam - float(whitened.dot(whitened))
        row = memory.W[size, :new]
        row[:-1], row[-1] = self.solved(whitened), -1.0
        row *= -1 / math.sqrt(v)
        information = self.information + 0.5 * math.log(v / lam)
        return QueryGroup(memory.ids[:new], memory.W[:new, :new], information, memory)


class _Memory:
    """Room for more rows of ids and W; `size` of them are taken."""

    def __init__(self, ids: NDArray[np.int64], W: Array) -> None:
        self.size = len(ids)
        capacity = self.size + _ROOM
        self.ids, self.W = np.zeros(capacity, dtype=np.int64), np.zeros((capacity, capacity))
        self.ids[: self.size], self.W[: self.size, : self.size] = ids, W


def times(x: Array, y: Array) -> Array:
    """The inner products over the last dimension.

    Unlike a product with a matrix, they do not depend on the number of threads.
    """
    if hasattr(np, "vecdot"):  # numpy 2; half the time
        return np.vecdot(x, y)
    return np.einsum("...i,...i->...", x, y)
