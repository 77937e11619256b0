"""Exact sums of a Hamming kernel over all of Theta.

| symbol | here | shape |
| --- | --- | --- |
| D, observed configurations | `codes` | `n x N` |
| k_D(theta)^T w on all of Theta | `weighted_sum` | `|Theta|` |
| k_D(theta)^T V k_D(theta) on all of Theta | `quadratic_form` | `|Theta|` |
| a_s, s-th forward difference of m -> kappa(N - m) at 0 | `_coefficient` | `N + 1` |

A function of the number of matches is a sum over subsets of modules (Moebius inversion):

    k(theta, theta') = sum over S of a_|S| 1[theta_S = theta'_S].

So a weighted sum of kernels is a sum of one table for each subset, exactly. All tables live in one
array of `M_1 + 1 x ... x M_N + 1` entries: digit 0 stands for "module not in S", digit 1 + v for
LLM v. Adding slice 0 onto the others, module by module ("folding"), leaves the function on all of
Theta. The cost of folding does not depend on n: 26 ms for 6.4 million configurations.
`DirectGrid` (direct_sums.py) is the definition, and serves any kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.model.direct_sums import DENSE, DirectGrid, check_enumerable
from scope_torch.model.kernels import FactorKernel, HammingKernel, kernel_matrix
from scope_torch.model.list_sums import ListGrid
from scope_torch.model.union_tables import UnionTables
from scope_torch.space import ConfigSpace

_LARGE = 1 << 20  # entries, about what the cache holds
_SCATTERED = 1 << 17  # entries at a time on a CPU: 2 MB of them


class HammingGrid:
    """Evaluates k_D(theta)^T w and k_D(theta)^T V k_D(theta) for every theta of Theta.

    Args:
        space: Theta.
        kernel: A kernel that depends on the Hamming distance only.
        device: Where the sums are made; they are float64 on every device.

    Attributes:
        size: |Theta|.
        index: None, see `DirectGrid`.

    Raises:
        InputError: If Theta has more than 2e8 configurations.
    """

    index: Tensor | None = None
    _spare = 0  # digits of a module that match no theta

    def __init__(
        self, space: ConfigSpace, kernel: HammingKernel, device: torch.device | str | None = None
    ) -> None:
        check_enumerable(space)
        self.space, self.size = space, space.size
        self.kernel: Kernel = kernel
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        num_modules = space.num_modules
        by_matches = kernel.profile(num_modules, self.device).flip(0)
        self._coefficient = torch.stack([by_matches.diff(s)[0] for s in range(num_modules + 1)])
        self._shape = tuple(1 + size + self._spare for size in space.sizes)
        strides = [math.prod(self._shape[i + 1 :]) for i in range(num_modules)]
        self._strides = torch.tensor(strides, device=self.device)
        subsets = list(itertools.product((0, 1), repeat=num_modules))
        indicators = torch.tensor(subsets, device=self.device)
        self._subset_indicators = indicators.double()
        self._subset_coefficient = self._coefficient[indicators.sum(-1)]
        self._scratch = torch.empty(0, dtype=torch.float64, device=self.device)
        self._is_empty = False  # the scratch is all zeros
        small = math.prod(self._shape) < 2**31
        self._index_dtype = torch.int32 if small else torch.int64
        self._unions = UnionTables(self._coefficient)

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
        out = rows.new_empty(m, self.size) if out is None else out
        at_once = max(1, m) if self._is_small else 1
        first = torch.arange(at_once, device=self.device) * math.prod(self._shape)
        index = (first[:, None] + index).flatten()
        for k in range(0, m, at_once):
            at = slice(k, k + at_once)
            tables = self._empty_tables(at_once).index_add_(0, index, values[at].flatten())
            self._fold_tables(tables, out[at])
            self._empty_again(index)
        return out

    def is_above(self, codes: Tensor, weights: Tensor, least: Tensor) -> bool:
        """Whether k_D(theta)^T w is at least `least`, `|Theta|` values, on all of Theta."""
        if self._is_small or self.space.num_modules == 1:
            return bool((self.weighted_sum(codes, weights) >= least).all())
        index, (first, *others) = self._entries(codes), self.space.sizes
        values = self._subset_coefficient[:, None] * weights
        tables = self._empty_tables().index_add_(0, index, values.flatten())
        grid = tables.view(self._shape)
        slab, folded = torch.empty_like(grid[0]), tables.new_empty(others)
        above = all(
            (self._fold_slab(grid, llm, slab, folded) >= of_llm).all()
            for llm, of_llm in enumerate(least.view(first, *others))
        )
        self._empty_again(index)
        return above

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

    def _digits(self, codes: Tensor) -> Tensor:
        """Those of D in the tables, where a module is in S: at least 1."""
        return codes + 1

    def _entries(self, codes: Tensor) -> Tensor:
        """Entries of all subsets of D: `2^N n`."""
        scaled = (self._digits(codes) * self._strides).T.double()
        # CUDA has no product of integer matrices; whole numbers below 2^53 are exact in float64.
        return (self._subset_indicators @ scaled).long().flatten()

    def quadratic_form(self, codes: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """k_D(theta)^T V k_D(theta) on all of Theta.

        Args:
            codes: `n x num_modules` distinct configurations D (int64).
            matrix: `n x n` symmetric V (float64), in the unit of the result.
            out: As in `weighted_sum`.

        Returns:
            `|Theta|` values by flat index (float64).
        """
        chunk = _SCATTERED if self.device.type == "cpu" else 1 << 24  # few launches on a GPU
        tables = self._empty_tables()
        scaled = (self._digits(codes) * self._strides).T.to(self._index_dtype)
        self._unions.add_form(tables, codes, scaled, matrix, chunk)
        out = tables.new_empty(self.size) if out is None else out
        return self._fold_tables(tables, out[None])[0]

    quadratic_form_at = DirectGrid.quadratic_form_at
    kernel_at = DirectGrid.kernel_at

    def form_operations(self, n: int) -> float:
        """About how many scattered additions a quadratic form takes.

        Pairs differ on half of the modules; seven additions in order take as long as one.
        """
        return n**2 / 2 * 2.5**self.space.num_modules + math.prod(self._shape) / 7

    def sum_operations(self, n: int) -> float:
        """About how many scattered additions a weighted sum takes."""
        return n * 2**self.space.num_modules + math.prod(self._shape) / 7

    @property
    def _is_small(self) -> bool:
        """Whether several tables are made at once: on a GPU always, each is a launch there."""
        return self.device.type != "cpu" or math.prod(self._shape) <= _LARGE

    def _empty_tables(self, m: int = 1) -> Tensor:
        """Zeros, in the same memory every time: fresh pages cost more than the sums."""
        size = m * math.prod(self._shape)
        if len(self._scratch) < size:
            self._scratch = torch.empty(size, dtype=torch.float64, device=self.device)
            self._is_empty = False
        if not self._is_empty:
            self._scratch[:size].zero_()
        self._is_empty = False
        return self._scratch[:size]

    def _empty_again(self, index: Tensor) -> None:
        """Of a large table, which was folded by slabs, only these entries are not zero."""
        if not self._is_small and self.space.num_modules > 1:
            self._scratch.index_fill_(0, index, 0.0)
            self._is_empty = True

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
        """Folds one LLM of the first module at a time, so that its slice stays in the cache."""
        slab = torch.empty_like(grid[0])
        for llm, folded in enumerate(out.view(self.space.sizes)):
            self._fold_slab(grid, llm, slab, folded)

    def _fold_slab(self, grid: Tensor, llm: int, slab: Tensor, out: Tensor) -> Tensor:
        """Folds one LLM of the first module into `out`; `slab` is memory like `grid[0]`."""
        part, sizes = torch.add(grid[0], grid[llm + 1], out=slab), self.space.sizes[1:]
        for i, size in enumerate(sizes[:-1]):
            inner = part.narrow(i, 1, size)
            inner += part.narrow(i, 0, 1)
            part = inner
        return torch.add(part.narrow(-1, 1, sizes[-1]), part.narrow(-1, 0, 1), out=out)


class BoxGrid(HammingGrid):
    """As `HammingGrid`, on a box of Theta: in each module some of its LLMs.

    D may have other LLMs: they match nothing in the box, and have a digit of their own that folding
    leaves out.

    Args:
        space: Theta.
        kernel: As for `HammingGrid`.
        llms: Codes of each module, rising.
        device: As for `HammingGrid`.

    Attributes:
        index: Flat indices of the box in Theta, rising (int64).
    """

    _spare = 1

    def __init__(
        self,
        space: ConfigSpace,
        kernel: HammingKernel,
        llms: Sequence[Tensor],
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(ConfigSpace(tuple(len(some) for some in llms)), kernel, device)
        index = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._of_codes: list[Tensor] = []
        for some, size, stride in zip(llms, space.sizes, space.strides, strict=True):
            index = (index[:, None] + some.to(self.device) * stride).flatten()
            digits = torch.full((size,), 1 + len(some), device=self.device)
            digits[some] = torch.arange(1, 1 + len(some), device=self.device)
            self._of_codes.append(digits)
        self.index, self._theta = index, space

    def kernel_at(self, index: Tensor, codes: Tensor) -> Tensor:
        """k_D at positions in the box: `len(index) x n`."""
        assert self.index is not None
        return kernel_matrix(self.kernel, self._theta.unrank(self.index[index]), codes)

    def _digits(self, codes: Tensor) -> Tensor:
        of_modules = zip(self._of_codes, codes.T, strict=True)
        return torch.stack([digits[of_one] for digits, of_one in of_modules], 1)


class FactorGrid(HammingGrid):
    """Sums of a `FactorKernel` over all of Theta; arguments and methods of `HammingGrid`.

    Tables are those of its base. Folding adds slice 0 of a module to the others times s_i, so a sum
    costs a product of Theta with the s_i of every module. Forms are sums by the definition: what
    two graded choices share is in no single table.
    """

    def __init__(
        self, space: ConfigSpace, kernel: FactorKernel, device: torch.device | str | None = None
    ) -> None:
        super().__init__(space, kernel.base, device)
        self.kernel = kernel
        self._likeness = [s.to(self.device) for s in kernel.likeness]

    def quadratic_form(self, codes: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """See `HammingGrid`."""
        return DirectGrid(self.space, self.kernel, self.device).quadratic_form(codes, matrix, out)

    def form_operations(self, n: int) -> float:
        """See `HammingGrid`; matrix products."""
        return n**2 * self.size * DENSE

    def sum_operations(self, n: int) -> float:
        """See `HammingGrid`."""
        return super().sum_operations(n) + self.size * max(self.space.sizes) * DENSE

    def _fold_tables(self, tables: Tensor, out: Tensor) -> Tensor:
        grid = tables.view(len(out), *self._shape)
        for i, (size, s) in enumerate(zip(self.space.sizes, self._likeness, strict=True), start=1):
            first = grid.shape[:i]
            parts = grid.reshape(first.numel(), 1 + size, -1)
            folded = torch.baddbmm(parts[:, :1], s.expand(len(parts), -1, -1), parts[:, 1:])
            grid = folded.view(*first, size, *grid.shape[i + 1 :])
        out.copy_(grid.reshape(out.shape))
        return out


def make_grid(
    space: ConfigSpace,
    kernel: Kernel,
    device: torch.device | str | None = None,
    index: Tensor | None = None,
) -> HammingGrid | DirectGrid:
    """Sums over Theta: fast for kernels with sums by tables, by the definition for others.

    Over the configurations at `index` alone, if it is given; see `listed`.
    """
    if index is not None:
        return ListGrid(space, kernel, index, device)
    if isinstance(kernel, HammingKernel):
        return HammingGrid(space, kernel, device)
    if isinstance(kernel, FactorKernel):
        return FactorGrid(space, kernel, device)
    return DirectGrid(space, kernel, device)
