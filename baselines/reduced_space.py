"""Equivalence classes of Theta: LLMs that no observed configuration uses share one label."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.model.kernels import HammingKernel
from scope_torch.space import ConfigSpace, tie_rank


class ReducedSpace:
    """One configuration for each set of configurations with the same kernel values.

    A Hamming kernel compares LLMs only for equality. In each module the LLMs that none of `codes`
    uses are therefore interchangeable, and one stands for all of them: after n configurations at
    most `(n + 1)^N` posteriors differ, however large Theta is. With any other kernel every LLM is
    kept.

    Args:
        space: Theta.
        codes: `n x num_modules` configurations that share their class with no other (int64).
        kernel: The kernel.

    Examples:
        >>> from scope_torch.model.kernels import HammingRBFKernel
        >>> space = ConfigSpace((5, 5))
        >>> reduced = ReducedSpace(space, torch.tensor([[0, 4], [2, 4]]), HammingRBFKernel())
        >>> reduced.space.sizes  # LLMs 0, 2 and others; LLM 4 and others
        (3, 2)
        >>> reduced.relabel(torch.tensor([[1, 4], [3, 4]])).tolist()
        [[1, 1], [1, 1]]
    """

    def __init__(self, space: ConfigSpace, codes: Tensor, kernel: Kernel) -> None:
        self.full = space
        self.kept: list[Tensor] = []
        self._position: list[Tensor] = []
        for i, size in enumerate(space.sizes):
            used = torch.zeros(size, dtype=torch.bool, device=codes.device)
            used[codes[:, i]] = True
            if not isinstance(kernel, HammingKernel):
                used[:] = True
            stand_in = int(used.long().argmin())  # the first unused, if there is one
            kept = used.clone()
            kept[stand_in] = True
            position = kept.cumsum(0) - 1
            self._position.append(torch.where(used, position, position[stand_in]))
            self.kept.append(kept.nonzero().squeeze(-1))
        self.space = ConfigSpace(tuple(len(kept) for kept in self.kept))
        strides = zip(self._position, self.space.strides, strict=True)
        self._places = [position * stride for position, stride in strides]

    def relabel(self, codes: Tensor) -> Tensor:
        """Codes in the reduced space.

        Args:
            codes: `... x num_modules` codes in Theta (int64).
        """
        columns = zip(self._position, codes.unbind(-1), strict=True)
        return torch.stack([position[column] for position, column in columns], -1)

    def rank(self, codes: Tensor) -> Tensor:
        """Flat indices in the reduced space of `... x num_modules` codes in Theta."""
        index = torch.zeros_like(codes[..., 0])
        for places, column in zip(self._places, codes.unbind(-1), strict=True):
            index += places.take(column)
        return index

    @cached_property
    def codes(self) -> Tensor:
        """Codes in Theta of one configuration of each class: `size x num_modules` (int32)."""
        return torch.cartesian_prod(*(kept.int() for kept in self.kept)).view(-1, len(self.kept))

    def expand(self, values: Tensor, onto: ReducedSpace | None = None) -> Tensor:
        """Values on all of Theta, or on a finer reduced space.

        Args:
            values: Values by flat index in the reduced space, of any dtype.
            onto: The finer space; None for Theta.

        Returns:
            Values by flat index in Theta, or in `onto`.
        """
        grid = values.view(self.space.sizes)
        # The last module first: the larger the tensor, the longer the blocks that are copied.
        for i, position in reversed(list(enumerate(self._position))):
            wanted = position if onto is None else position[onto.kept[i]]
            if len(wanted) != grid.shape[i]:  # else the labels of this module are the same
                grid = grid.index_select(i, wanted)
        return grid.reshape(-1)

    def any_of(self, mask: Tensor) -> Tensor:
        """The classes with a member in `mask`, booleans by flat index in the reduced space.

        Args:
            mask: `|Theta|` booleans.
        """
        grid = mask.to(self._position[0].device).view(self.full.sizes)
        for i, position in enumerate(self._position):
            members = [(position == label).nonzero().squeeze(-1) for label in position.unique()]
            grid = torch.stack([grid.index_select(i, one).any(i) for one in members], i)
        return grid.reshape(-1)

    def in_tie_order(self, mask: Tensor, seed: int) -> Iterator[int]:
        """Classes of interchangeable configurations, ordered by the least `tie_rank` in each.

        Args:
            mask: The classes wanted, by flat index in the reduced space (bool).
            seed: The run's seed.

        Yields:
            Flat indices in the reduced space.
        """
        members = self.expand(mask).nonzero().squeeze(-1)
        members = members[tie_rank(members, seed).argsort()]
        classes = self.rank(self.full.unrank(members))
        yield from dict.fromkeys(classes.tolist())
