"""Which classes of interchangeable configurations hold one that may be chosen.

Branch and bound looks at classes: configurations with the same labels, see `Classes`. A class
counts as long as it has a member that may be chosen. Bounds of prefixes are bounds on all their
completions, so on those that may be chosen too; but they know no rule. If little is allowed, a
search by a rule therefore looks at nearly everything that is better than the best allowed
configuration. A list is shorter: its classes are looked at one by one, and nothing is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.errors import InputError
from scope_torch.space import tie_rank
from scope_torch.space_search.prefixes import Classes

_TRIED = 1 << 14  # members of a class that a rule is asked about


class AllowedClasses:
    """The classes with a member that may be chosen.

    Args:
        allowed: A rule or a list.
        classes: The classes.

    Attributes:
        listed: `r x num_modules` labels of the classes of a list; None for a rule.
    """

    def __init__(self, allowed: Allowed, classes: Classes) -> None:
        self._allowed, self._classes, self._space = allowed, classes, allowed.space
        self.listed: Tensor | None = None
        self._codes = torch.zeros(0, len(classes.sizes), dtype=torch.int64)
        if allowed.is_listed:
            assert allowed.index is not None  # branch and bound takes no larger Theta
            self._codes = self._space.unrank(allowed.index)
            self.listed = classes.label(self._codes).unique(dim=0)
        held = [] if self.listed is None else map(tuple, self.listed.tolist())
        self._known: dict[tuple[int, ...], bool | None] = dict.fromkeys(held, True)
        self._some: dict[tuple[int, ...], int] = {}  # a member that may be chosen

    def holds(self, labels: Tensor) -> list[bool | None]:
        """Whether `r` classes have a member that may be chosen.

        None if the class is large, and none of some 16,000 members drawn at random may.
        """
        return [self._has_member(tuple(row)) for row in labels.tolist()]

    def starts(self, labels: Tensor) -> Tensor:
        """Those of `r` classes that hold, or else the class of some configuration that may be."""
        held = labels[[bool(holds) for holds in self.holds(labels)]]
        if len(held):
            return held
        some = self._allowed.nearest((0,) * len(self._classes.sizes))
        if some is None:
            raise InputError("allowed: nothing was found that it allows; give a list instead")
        return self._classes.label(torch.tensor([some]))

    def _has_member(self, row: tuple[int, ...]) -> bool | None:
        if row not in self._known:
            self._known[row] = self._look(row)
        return self._known[row]

    def _look(self, row: tuple[int, ...]) -> bool | None:
        if self.listed is not None:
            return False
        is_small = self._classes.count(row) <= _TRIED
        blocks = self._classes.members(row) if is_small else self._drawn(row)
        for index in (index for block in blocks for index in block.tolist()):
            if self._allowed(self._space.theta_at(index)):
                self._some[row] = index
                return True
        return False if is_small else None

    def _drawn(self, row: tuple[int, ...]) -> Iterator[Tensor]:
        """Random members; a few first, as often one of them may be chosen."""
        generator = torch.Generator().manual_seed(0)
        for count in (_TRIED >> 8, _TRIED):
            yield self._classes.draw(row, count, generator)

    def first(self, row: tuple[int, ...], blocks: Iterator[Tensor], seed: int) -> int | None:
        """Of the members in `blocks` that may be chosen, the first in the order of `tie_rank`.

        Where many may not, that found by `holds` is better than none.
        """
        if self.listed is not None:
            blocks = iter([self._listed_members(row)])
        firsts = [first for block in blocks if (first := self._first_of(block, seed)) is not None]
        if not firsts:
            return self._some.get(row)
        index = torch.tensor(firsts)
        return int(index[tie_rank(index, seed).argmin()])

    def _first_of(self, block: Tensor, seed: int) -> int | None:
        for index in block[tie_rank(block, seed).argsort()].tolist():
            if self._allowed(self._space.theta_at(index)):
                return index
        return None

    def _listed_members(self, row: tuple[int, ...]) -> Tensor:
        has_labels = (self._classes.label(self._codes) == torch.tensor(row)).all(-1)
        assert self._allowed.index is not None
        return self._allowed.index[has_labels]
