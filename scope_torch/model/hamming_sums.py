"""Exact sums of a Hamming kernel over all of Theta.

A function of the number of matches is a sum over subsets of modules (Moebius inversion):

    k(theta, theta') = sum over S of a_|S| 1[theta_S = theta'_S],

a_s the s-th forward difference of m -> kappa(N - m) at 0. So a weighted sum of kernels is a sum of
one table per subset. All tables live in one array of `M_1 + 1 x ... x M_N + 1` entries, in which
digit 0 stands for "module not in S" and digit 1 + v for value v. Adding, module by module, slice 0
onto the others leaves the function on all of Theta: the cost does not depend on the number of
observed configurations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingKernel, kernel_matrix
from scope_torch.space import ConfigSpace

MAX_ENUMERATED = 200_000_000
_LARGE = 1 << 20  # entries, about what the cache holds


class HammingGrid:
    """Evaluates k_D(theta)^T w and k_D(theta)^T V k_D(theta) for every theta of Theta.

    Args:
        space: Theta.
        kernel: A kernel that depends on the Hamming distance only.
        device: Where the sums are made; they are float64 on every device.

    Raises:
        InputError: If Theta has more than 2e8 configurations.
    """

    def __init__(
        self, space: ConfigSpace, kernel: HammingKernel, device: torch.device | str | None = None
    ) -> None:
        _check_size(space)
        self.space = space
        self.kernel = kernel
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        num_modules = space.num_modules
        by_matches = kernel.profile(num_modules, self.device).flip(0)
        self._coefficient = torch.stack([by_matches.diff(s)[0] for s in range(num_modules + 1)])
        self._shape = tuple(size + 1 for size in space.sizes)
        strides = [math.prod(self._shape[i + 1 :]) for i in range(num_modules)]
        self._strides = torch.tensor(strides, device=self.device)
        subsets = list(itertools.product((0, 1), repeat=num_modules))
        self._subsets = torch.tensor(subsets, device=self.device)
        self._subset_coefficient = self._coefficient[self._subsets.sum(-1)]
        self._scratch = torch.empty(0, dtype=torch.float64, device=self.device)
        small = math.prod(self._shape) < 2**31
        self._index_dtype = torch.int32 if small else torch.int64
        self._union_coefficient = self._union_coefficients()

    def weighted_sum(self, codes: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """k_D(theta)^T w on all of Theta.

        Args:
            codes: `n x num_modules` configurations D (int64).
            weights: `n`, w (float64), in the unit of the result.
            out: Where to put the result; None for fresh memory, which costs as much as the sum.

        Returns:
            `|Theta|` values by flat index (float64).
        """
        return self.weighted_sums(codes, weights[None], None if out is None else out[None])[0]

    def weighted_sums(self, codes: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """`weighted_sum` for each of the `m` rows, put into `out`: `m x |Theta|`."""
        index, m = self._entries(codes), len(rows)
        values = self._subset_coefficient[:, None] * rows[:, None]
        out = rows.new_empty(m, self.space.size) if out is None else out
        at_once = max(1, m) if self._is_small else 1
        first = torch.arange(at_once, device=self.device) * math.prod(self._shape)
        index = (first[:, None] + index).flatten()
        for k in range(0, m, at_once):
            at = slice(k, k + at_once)
            tables = self._empty_tables(at_once).index_add_(0, index, values[at].flatten())
            self._fold_tables(tables, out[at])
        return out

    def add_squares(
        self, codes: Tensor, rows: Tensor, weights: Tensor, to: Tensor, scratch: Tensor
    ) -> None:
        """Adds the sum over i of v_i (k_D(theta)^T x_i)^2 on all of Theta.

        Args:
            codes: `n x num_modules` configurations D (int64).
            rows: `m x n`, the x_i (float64).
            weights: `m`, the v_i.
            to: What is added to: `|Theta|` values by flat index.
            scratch: Memory of the same size.
        """
        at_once = max(1, _LARGE // 4 // math.prod(self._shape))
        if at_once == 1:
            for x, v in zip(rows, weights.tolist(), strict=True):
                self.weighted_sum(codes, x, out=scratch)
                to.addcmul_(scratch, scratch, value=v)
            return
        for k in range(0, len(rows), at_once):
            sums = self.weighted_sums(codes, rows[k : k + at_once])
            to.addmv_(sums.square_().T, weights[k : k + at_once])

    def _entries(self, codes: Tensor) -> Tensor:
        """Entries of all subsets of D: `2^N n`."""
        return (self._subsets @ ((codes + 1) * self._strides).T).flatten()

    def quadratic_form(
        self, codes: Tensor, matrix: Tensor, out: Tensor | None = None, chunk: int | None = None
    ) -> Tensor:
        """k_D(theta)^T V k_D(theta) on all of Theta.

        For a pair (a, b) of D the product k(theta, a) k(theta, b) is a sum over unions U of a
        subset matched by a and one matched by b. On a module of U theta takes the value of a or of
        b; where the two agree both subsets, or either, may contain the module. Pairs that differ
        on the same modules touch their entries, 3^(differing) 2^(equal) each, in the same way.

        Args:
            codes: `n x num_modules` distinct configurations D (int64).
            matrix: `n x n` symmetric V (float64), in the unit of the result.
            out: As in `weighted_sum`.
            chunk: Entries scattered at a time; bounds the memory. None: what suits the device, 2 MB
                of them on a CPU, and few launches on a GPU.

        Returns:
            `|Theta|` values by flat index (float64).
        """
        chunk = chunk or (1 << 17 if self.device.type == "cpu" else 1 << 24)
        first, second = torch.triu_indices(*matrix.shape, device=self.device)
        pair_weight = matrix[first, second] * torch.where(first == second, 1.0, 2.0)
        bit = torch.tensor([1 << i for i in range(self.space.num_modules)], device=self.device)
        pattern = ((codes[first] != codes[second]) * bit).sum(-1)
        order = pattern.argsort(stable=True)
        sizes = pattern.bincount(minlength=2**self.space.num_modules).tolist()
        scaled = ((codes + 1) * self._strides).T.to(self._index_dtype)
        tables = self._empty_tables()
        for differ, pairs in enumerate(order.split(sizes)):
            modules = [bool(differ >> i & 1) for i in range(self.space.num_modules)]
            coefficient = self._pattern_coefficients(modules)
            for part in pairs.split(max(1, chunk // len(coefficient))):
                if len(part) == 0:
                    continue
                a, b = scaled[:, first[part]], scaled[:, second[part]]
                values = coefficient[:, None] * pair_weight[part]
                index = self._union_indices(modules, a, b)
                tables.index_add_(0, index.flatten(), values.flatten())
        out = tables.new_empty(self.space.size) if out is None else out
        return self._fold_tables(tables, out[None])[0]

    def quadratic_form_at(self, index: Tensor, codes: Tensor, matrix: Tensor) -> Tensor:
        """k_D(theta)^T V k_D(theta) at the configurations of flat indices `index`, directly."""
        return form(self.kernel_at(index, codes), matrix)

    def kernel_at(self, index: Tensor, codes: Tensor) -> Tensor:
        """k_D at the configurations of flat indices `index`: `len(index) x n`."""
        return kernel_matrix(self.kernel, self.space.unrank(index), codes)

    def form_operations(self, n: int) -> float:
        """About how many scattered additions a quadratic form is worth.

        Pairs differ on half of the modules; seven additions in order take as long as one.
        """
        return n**2 / 2 * 2.5**self.space.num_modules + math.prod(self._shape) / 7

    def sum_operations(self, n: int) -> float:
        """The same of a weighted sum."""
        return n * 2**self.space.num_modules + math.prod(self._shape) / 7

    def _union_indices(self, differ: list[bool], a: Tensor, b: Tensor) -> Tensor:
        """Entries of all unions of pairs, `choices x pairs`; `a`, `b` are their scaled digits.

        On every module: not in the union, matched by a, and if they differ, matched by b.
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
        counts = torch.zeros(1, 3, dtype=torch.int64, device=self.device)  # by a, by b, by both
        by_a, by_b, by_both = torch.eye(3, dtype=torch.int64, device=self.device)
        for differs in differ:
            choices = (
                [counts, counts + by_a, counts + by_b] if differs else [counts, counts + by_both]
            )
            counts = torch.cat(choices)
        return self._union_coefficient[counts[:, 0], counts[:, 1], counts[:, 2]]

    def _union_coefficients(self) -> Tensor:
        """Coefficient of a union with i modules matched by a alone, j by b alone, l by both.

        Each of the l modules lies in S, in S' or in both: the sum over these choices of
        a_|S| a_|S'|. Returns `(N + 1) x (N + 1) x (N + 1)` (float64), zero where i + j + l > N.
        """
        n = self.space.num_modules
        a = self._coefficient.tolist()
        table = torch.zeros(n + 1, n + 1, n + 1, dtype=torch.float64)
        for i, j, both in itertools.product(range(n + 1), repeat=3):
            if i + j + both > n:
                continue
            table[i, j, both] = math.fsum(
                math.comb(both, p) * math.comb(both - p, q) * a[i + both - q] * a[j + both - p]
                for p in range(both + 1)
                for q in range(both - p + 1)
            )
        return table.to(self.device)

    @property
    def _is_small(self) -> bool:
        """Whether it is best to make tables at once. A GPU has no cache, and each is a launch."""
        return self.device.type != "cpu" or math.prod(self._shape) <= _LARGE

    def _empty_tables(self, m: int = 1) -> Tensor:
        """Zeros; the same memory every time, since fresh pages cost more than the sums."""
        size = m * math.prod(self._shape)
        if len(self._scratch) < size:
            self._scratch = torch.empty(size, dtype=torch.float64, device=self.device)
        return self._scratch[:size].zero_()

    def _fold_tables(self, tables: Tensor, out: Tensor) -> Tensor:
        """Adds slice 0 of every module onto the others, for each of the `m x |Theta|` results."""
        grid = tables.view(len(out), *self._shape)
        if not self._is_small and self.space.num_modules > 1:
            for one, result in zip(grid, out, strict=True):
                self._fold_by_slabs(one, result)
            return out
        *first, last = self.space.sizes
        for i, size in enumerate(first, start=1):
            folded = grid.narrow(i, 1, size)
            folded += grid.narrow(i, 0, 1)
            grid = folded
        result = out.view(*grid.shape[:-1], last)
        torch.add(grid.narrow(-1, 1, last), grid.narrow(-1, 0, 1), out=result)
        return out

    def _fold_by_slabs(self, grid: Tensor, out: Tensor) -> None:
        """The same, one LLM of the first module at a time, so that the rest stays in the cache."""
        first, *others = self.space.sizes
        slab = torch.empty_like(grid[0])
        for llm, folded in enumerate(out.view(first, *others)):
            part = torch.add(grid[0], grid[llm + 1], out=slab)
            for i, size in enumerate(others[:-1]):
                inner = part.narrow(i, 1, size)
                inner += part.narrow(i, 0, 1)
                part = inner
            torch.add(part.narrow(-1, 1, others[-1]), part.narrow(-1, 0, 1), out=folded)


class DirectGrid:
    """The same sums, made directly in chunks of Theta, for any kernel.

    The reference for `HammingGrid`, and the way for kernels that are not functions of the Hamming
    distance. Its cost grows with |Theta| n for the weighted sum and |Theta| n^2 for the form.

    Args:
        space: Theta.
        kernel: Any `gpytorch.kernels.Kernel` on codes that returns float64.
        device: Where the sums are made.
        chunk: Configurations evaluated at a time; bounds the memory.

    Raises:
        InputError: If Theta has more than 2e8 configurations.
    """

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        device: torch.device | str | None = None,
        chunk: int = 1 << 16,
    ) -> None:
        _check_size(space)
        self.space = space
        self.kernel = kernel
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self.chunk = chunk

    def weighted_sum(self, codes: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """See `HammingGrid.weighted_sum`."""
        return self._map(lambda index: self.weighted_sum_at(index, codes, weights), out)

    def weighted_sums(self, codes: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """See `HammingGrid.weighted_sums`."""
        out = rows.new_empty(len(rows), self.space.size) if out is None else out
        out.copy_(self._map(lambda index: self.kernel_at(index, codes) @ rows.T).T)
        return out

    def quadratic_form(self, codes: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """See `HammingGrid.quadratic_form`."""
        return self._map(lambda index: self.quadratic_form_at(index, codes, matrix), out)

    def add_squares(
        self, codes: Tensor, rows: Tensor, weights: Tensor, to: Tensor, scratch: Tensor
    ) -> None:
        """See `HammingGrid.add_squares`."""
        to += self._map(lambda i: squares(self.kernel_at(i, codes), rows, weights), scratch)

    def form_operations(self, n: int) -> float:
        """See `HammingGrid.form_operations`."""
        return n**2 * self.space.size

    def sum_operations(self, n: int) -> float:
        """See `HammingGrid.sum_operations`."""
        return n * self.space.size

    def weighted_sum_at(self, index: Tensor, codes: Tensor, weights: Tensor) -> Tensor:
        """k_D(theta)^T w at the configurations of flat indices `index`, all at once."""
        return kernel_matrix(self.kernel, self.space.unrank(index), codes) @ weights

    quadratic_form_at = HammingGrid.quadratic_form_at
    kernel_at = HammingGrid.kernel_at

    def _map(self, function: Callable[[Tensor], Tensor], out: Tensor | None = None) -> Tensor:
        every = torch.arange(self.space.size, device=self.device)
        return torch.cat([function(index) for index in every.split(self.chunk)], out=out)


def form(k: Tensor, matrix: Tensor) -> Tensor:
    """k^T V k for every row k: `len(k)`."""
    return ((k @ matrix) * k).sum(-1)


def squares(k: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """The sum over i of v_i (k^T x_i)^2 for every row k: `len(k)`."""
    return (k @ rows.T).square() @ weights


def _check_size(space: ConfigSpace) -> None:
    if space.size > MAX_ENUMERATED:
        raise InputError(
            f"{space.size:.3g} configurations are more than the {MAX_ENUMERATED:.0e} that can "
            "be enumerated; give some modules fewer candidate LLMs"
        )


def make_grid(
    space: ConfigSpace, kernel: Kernel, device: torch.device | str | None = None
) -> HammingGrid | DirectGrid:
    """The exact evaluation over Theta that fits the kernel."""
    if isinstance(kernel, HammingKernel):
        return HammingGrid(space, kernel, device)
    return DirectGrid(space, kernel, device)
