"""Tables of a quadratic form of Hamming kernels (see `hamming_sums.py`).

| symbol | here | shape |
| --- | --- | --- |
| U, union of a subset that a matches and one that b matches | entry of the tables | |
| coefficient of U: i modules matched by a alone, j by b, l by both | `coefficient` | `N + 1` |

For a pair (a, b) of D the product k(theta, a) k(theta, b) is a sum over unions U. On a module of U
theta has the LLM of a or of b; where the two agree, both subsets, or either, may contain the
module. So each pair touches 3^(modules that differ) 2^(modules that agree) entries, instead of 4^N
pairs of subsets: about 8 times fewer at N = 5. Pairs that differ on the same modules touch their
entries in the same way, so they are scattered together.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


class UnionTables:
    """Adds k_D(theta)^T V k_D(theta) to subset tables.

    Args:
        coefficient: a_0, ..., a_N of the kernel (float64), on the device of the tables.

    Attributes:
        coefficient: Of a union with i modules matched by a alone, j by b alone, l by both:
            `N + 1 x N + 1 x N + 1`.
    """

    def __init__(self, coefficient: Tensor) -> None:
        self._num_modules = len(coefficient) - 1
        self.coefficient = self._coefficients(coefficient)

    def add_form(
        self, tables: Tensor, codes: Tensor, scaled: Tensor, matrix: Tensor, chunk: int
    ) -> None:
        """Adds the entries of all pairs of D to `tables`.

        Args:
            tables: All entries (float64).
            codes: D, `n x num_modules` distinct configurations (int64).
            scaled: `num_modules x n`, 1 + code times the stride of the module in `tables`.
            matrix: `n x n` symmetric V (float64).
            chunk: Entries scattered at a time.
        """
        device, num_modules = tables.device, self._num_modules
        first, second = torch.triu_indices(*matrix.shape, device=device)
        pair_weight = matrix[first, second] * torch.where(first == second, 1.0, 2.0)
        bit = torch.tensor([1 << i for i in range(num_modules)], device=device)
        pattern = ((codes[first] != codes[second]) * bit).sum(-1)
        order = pattern.argsort(stable=True)
        sizes = pattern.bincount(minlength=2**num_modules).tolist()
        for differ, pairs in enumerate(order.split(sizes)):
            modules = [bool(differ >> i & 1) for i in range(num_modules)]
            coefficient = self._pattern_coefficients(modules)
            for part in pairs.split(max(1, chunk // len(coefficient))):
                if len(part) == 0:
                    continue
                a, b = scaled[:, first[part]], scaled[:, second[part]]
                values = coefficient[:, None] * pair_weight[part]
                index = self._union_indices(modules, a, b)
                tables.index_add_(0, index.flatten(), values.flatten())

    def _union_indices(self, differ: list[bool], a: Tensor, b: Tensor) -> Tensor:
        """Entries of all unions of pairs, `choices x pairs`; `a`, `b` are their scaled digits.

        The choices on a module: not in the union; matched by a; matched by b, if they differ.
        """
        index = a.new_zeros(1, a.shape[1])
        for i, differs in enumerate(differ):
            options = [index, index + a[i]]
            if differs:
                options.append(index + b[i])
            index = torch.cat(options)
        return index

    def _pattern_coefficients(self, differ: list[bool]) -> Tensor:
        """Coefficients of the unions in the order of `_union_indices`."""
        counts = torch.zeros(
            1, 3, dtype=torch.int64, device=self.coefficient.device
        )  # by a, by b, by both
        by_a, by_b, by_both = torch.eye(3, dtype=torch.int64, device=self.coefficient.device)
        for differs in differ:
            choices = (
                [counts, counts + by_a, counts + by_b] if differs else [counts, counts + by_both]
            )
            counts = torch.cat(choices)
        return self.coefficient[counts[:, 0], counts[:, 1], counts[:, 2]]

    def _coefficients(self, coefficient: Tensor) -> Tensor:
        """Coefficient of a union with i modules matched by a alone, j by b alone, l by both.

        Each of the l modules lies in S, in S' or in both: the sum over these choices of
        a_|S| a_|S'|. Returns `(N + 1) x (N + 1) x (N + 1)` (float64), zero where i + j + l > N.
        """
        n = len(coefficient) - 1
        a = coefficient.tolist()
        table = torch.zeros(n + 1, n + 1, n + 1, dtype=torch.float64)
        for i, j, both in itertools.product(range(n + 1), repeat=3):
            if i + j + both > n:
                continue
            table[i, j, both] = math.fsum(
                math.comb(both, p) * math.comb(both - p, q) * a[i + both - q] * a[j + both - p]
                for p in range(both + 1)
                for q in range(both - p + 1)
            )
        return table.to(coefficient.device)
