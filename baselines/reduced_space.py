"""Theta up to the LLMs that nothing observed so far tells apart."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.model.kernels import HammingKernel
from scope_torch.space import ConfigSpace, tie_rank


class ReducedSpace:
    """One configuration for each set of configurations with the same kernel values.

    A Hamming kernel sees of an LLM only whether a configuration uses it. The LLMs of a module that
    none of `codes` uses are interchangeable there, so one stands for all of them: with n
    configurations at most `(n + 1)^N` posteriors differ, however large Theta is. Under any other
    kernel every LLM is kept.

    Args:
        space: Theta.
        codes: `n x num_modules` configurations to be told apart from all others (int64).
        kernel: The kernel.
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

    def relabel(self, codes: Tensor) -> Tensor:
        """Codes in the reduced space.

        Args:
            codes: `... x num_modules` codes in Theta (int64).
        """
        columns = zip(self._position, codes.unbind(-1), strict=True)
        return torch.stack([position[column] for position, column in columns], -1)

    def rank(self, codes: Tensor) -> Tensor:
        """Flat indices in the reduced space of `... x num_modules` codes in Theta."""
        return self.space.rank(self.relabel(codes))

    def expand(self, values: Tensor, onto: ReducedSpace | None = None) -> Tensor:
        """Values on all of Theta, or on a finer reduced space.

        Args:
            values: Values by flat index in the reduced space, of any dtype.
            onto: Where they are wanted; it must tell apart what this space does.

        Returns:
            Values by flat index in Theta, or in `onto`.
        """
        grid = values.view(self.space.sizes)
        # The last module first: the larger the tensor, the longer the blocks that are copied.
        for i, position in reversed(list(enumerate(self._position))):
            wanted = position if onto is None else position[onto.kept[i]]
            if len(wanted) != grid.shape[i]:  # else nothing new is told apart
                grid = grid.index_select(i, wanted)
        return grid.reshape(-1)

    def in_tie_order(self, mask: Tensor, seed: int) -> Iterator[int]:
        """Sets of interchangeable configurations, by the least `tie_rank` in each.

        Args:
            mask: Which sets, by flat index in the reduced space (bool).
            seed: The run's seed.

        Yields:
            Flat indices in the reduced space.
        """
        members = self.expand(mask).nonzero().squeeze(-1)
        members = members[tie_rank(members, seed).argsort()]
        sets = self.rank(self.full.unrank(members))
        yield from dict.fromkeys(sets.tolist())
