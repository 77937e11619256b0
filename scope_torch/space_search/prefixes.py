"""Labels and subset tables: an aggregate posterior on prefixes of configurations.

| symbol | here | shape |
| --- | --- | --- |
| D in labels | `labels` | `n x N` |
| Delta^i(m), i-th forward difference of m -> kappa(N - m) | `differences[i, m]` | `N + 1` each |
| sigma^2 = constant - k_D^T V k_D, of each output | `sigma` | |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.kernels import HammingKernel
from scope_torch.space import ConfigSpace


class Classes:
    """Equivalence classes of Theta: in each module, LLMs that are absent from D share one label.

    The posterior cannot tell them apart, so one search covers all members of a class. If `terms` of
    their costs differ, it can.

    Args:
        space: Theta.
        codes: `n x num_modules` configurations of which every one is a class of its own (D, and
            further ones; int64, CPU).
        terms: Of each LLM of each module, if the cost of a configuration depends on them.

    Attributes:
        sizes: Number of labels of each module.
        firsts: For each module the first LLM of each label (int64).
    """

    def __init__(
        self, space: ConfigSpace, codes: Tensor, terms: Sequence[Tensor] | None = None
    ) -> None:
        self._strides = space.strides
        self._label: list[Tensor] = []
        self._members: list[list[Tensor]] = []
        for module, (size, column) in enumerate(zip(space.sizes, codes.T, strict=True)):
            used = column.unique()
            label = torch.full((size,), -1)
            label[used] = torch.arange(len(used))
            absent = (label < 0).nonzero().squeeze(-1)
            of_absent = torch.zeros(len(absent)) if terms is None else terms[module][absent].cpu()
            label[absent] = len(used) + of_absent.unique(return_inverse=True)[1]
            self._label.append(label)
            groups = [(label == i).nonzero().squeeze(-1) for i in range(int(label.max()) + 1)]
            self._members.append(groups)
        self.sizes = tuple(len(groups) for groups in self._members)
        self.firsts = [torch.stack([group[0] for group in groups]) for groups in self._members]

    def label(self, codes: Tensor) -> Tensor:
        """Labels of `... x num_modules` codes."""
        columns = zip(self._label, codes.unbind(-1), strict=True)
        return torch.stack([label[column] for label, column in columns], -1)

    def count(self, labels: Sequence[int]) -> int:
        """Number of configurations with these labels."""
        return math.prod(len(m[i]) for m, i in zip(self._members, labels, strict=True))

    def members(self, labels: Sequence[int], at_once: int = 1 << 20) -> Iterator[Tensor]:
        """Flat indices of all configurations with these labels, at most `at_once` at a time."""
        steps = [s * m[i] for s, m, i in zip(self._strides, self._members, labels, strict=True)]
        last = torch.zeros(1, dtype=torch.int64)
        while steps and len(last) * len(steps[-1]) <= at_once:
            last = (steps.pop()[:, None] + last).flatten()
        for first in itertools.product(*(step.tolist() for step in steps)):
            yield last + sum(first)

    def draw(self, labels: Sequence[int], count: int, generator: torch.Generator) -> Tensor:
        """Flat indices of `count` configurations with these labels, drawn with replacement."""
        index = torch.zeros(count, dtype=torch.int64)
        for members, stride, label in zip(self._members, self._strides, labels, strict=True):
            draws = torch.randint(len(members[label]), (count,), generator=generator)
            index += stride * members[label][draws]
        return index


class LabelledPosterior:
    """An aggregate posterior in labels, with the tables that lower bounds are made of; on the CPU.

    Args:
        posterior: The aggregate.
        kernel: Its kernel.
        space: Theta.
        apart: `r x num_modules` further configurations that get a class of their own.
        of_g: The aggregate of the constraint, if its variance is another one.
        terms: See `Classes`.

    Attributes:
        variances: V and the constant of the variance, of cost and constraint if they differ.
        labels: D, `n x num_modules`.
        apart: The further configurations, `r x num_modules`.
        starts: Labels from which a search can start: D, or any configuration if D is empty.
    """

    def __init__(
        self,
        posterior: AggregatePosterior,
        kernel: HammingKernel,
        space: ConfigSpace,
        apart: Tensor,
        of_g: AggregatePosterior | None = None,
        terms: Sequence[Tensor] | None = None,
    ) -> None:
        codes = posterior.codes.cpu()
        self.classes = Classes(space, torch.cat([codes, apart]), terms)
        self.sizes = self.classes.sizes
        self.labels = self.classes.label(codes)
        self.apart = self.classes.label(apart)
        outputs = (posterior,) if of_g is None else (posterior, of_g)
        self.variances = [(output.matrix.cpu(), output.constant) for output in outputs]
        n = space.num_modules
        by_matches = kernel.profile(n).flip(0)
        self.differences = torch.zeros(n + 1, n + 1, dtype=torch.float64)  # Delta^i(m) at [i, m]
        for i in range(n + 1):
            self.differences[i, : n + 1 - i] = by_matches.diff(i)
        self.starts = self.labels if len(codes) else torch.zeros(1, n, dtype=torch.int64)
        self._tables: dict[tuple[int, ...], SubsetTables] = {}
        self._sigma: dict[int, tuple[Tensor, Tensor]] = {}  # of the last k of each output

    def tables(self, open_modules: tuple[int, ...]) -> SubsetTables:
        """The tables of all subsets of the open modules."""
        if open_modules not in self._tables:
            self._tables[open_modules] = SubsetTables(self.labels, self.sizes, open_modules)
        return self._tables[open_modules]

    def matches(self, labels: Tensor, modules: Sequence[int]) -> Tensor:
        """Number of the given modules on which D agrees with `r x num_modules` labels: `n x r`."""
        count = torch.zeros(len(self.labels), len(labels), dtype=torch.int64)
        for i in modules:
            count += self.labels[:, i, None] == labels[:, i]
        return count

    def at(self, labels: Tensor, output: int = 0) -> tuple[Tensor, Tensor]:
        """k_D, `n x r`, and sigma of an output, `r`, of `r x num_modules` labels."""
        k = self.kernel(labels)
        return k, self.sigma(k, output)

    def kernel(self, labels: Tensor) -> Tensor:
        """k_D, `n x r`, of `r x num_modules` labels."""
        return self.differences[0][self.matches(labels, range(len(self.sizes)))]

    def sigma(self, k: Tensor, output: int = 0) -> Tensor:
        """Sigma of an output, `r`, where k_D is `k`."""
        if self._sigma.get(output, (None,))[0] is not k:  # cost and constraint may share it
            matrix, constant = self.variances[output]
            sigma = (constant - (k * (matrix @ k)).sum(0)).clamp_min(0.0).sqrt()  # rounding
            self._sigma[output] = k, sigma
        return self._sigma[output][1]


class SubsetTables:
    """The tables of all subsets of the open modules: which configurations of D share an entry.

    A slot is a label of an open module. A part is the set of entries of one table that have the
    same slot in the first module of their subset.

    Args:
        labels: `n x num_modules`, D.
        sizes: Number of labels of each module.
        open_modules: The modules, in the order in which they will be assigned.
    """

    def __init__(self, labels: Tensor, sizes: Sequence[int], open_modules: Sequence[int]) -> None:
        n, widths = len(labels), [sizes[i] for i in open_modules]
        starts = [sum(widths[:j]) for j in range(len(widths))]
        self.slices = [slice(a, a + w) for a, w in zip(starts, widths, strict=True)]
        self.num_slots = sum(widths)
        strides = [math.prod(w + 1 for w in widths[j + 1 :]) for j in range(len(widths))]
        subsets = torch.tensor(list(itertools.product((0, 1), repeat=len(widths))))[1:]
        num_members, columns = subsets.sum(-1), labels[:, list(open_modules)]
        # As in HammingGrid, digit 0 stands for "not in S".
        index = subsets @ ((columns + 1) * torch.tensor(strides)).T
        slot = (columns + torch.tensor(starts)).T[subsets.argmax(-1)]  # of the first module of S
        entries, self._entry = index.flatten().unique(return_inverse=True)
        self._source = ((num_members - 1)[:, None] * n + torch.arange(n)).flatten()
        pair = torch.zeros(len(entries), dtype=torch.int64)  # some (S, d) of each entry
        pair[self._entry] = torch.arange(len(self._entry))
        subset, slot = torch.arange(len(subsets)).repeat_interleave(n)[pair], slot.flatten()[pair]
        alone = num_members[subset] == 1
        self._single, self._shared = alone.nonzero().squeeze(-1), (~alone).nonzero().squeeze(-1)
        self._single_slot = slot[self._single]
        key = subset[self._shared] * self.num_slots + slot[self._shared]
        parts, self._part = key.unique(return_inverse=True)
        self._part_slot = parts % self.num_slots
        self.num_numbers = 2 * len(self._source) + self.num_slots

    def entries(self, weights: Tensor, matches: Tensor, differences: Tensor) -> Tensor:
        """Tables of sum_d w_d k(theta, d): `num_entries x r`; weights and matches are `n x r`."""
        num_entries = len(self._single) + len(self._shared)
        out = torch.zeros(num_entries, weights.shape[1], dtype=torch.float64)
        steps = range(1, len(self.slices) + 1)
        terms = torch.cat([weights * differences[i][matches] for i in steps])
        return out.index_add_(0, self._entry, terms.index_select(0, self._source))

    def by_module(self, entries: Tensor) -> Tensor:
        """One table per module whose sum is nowhere more than that of all (fact 3)."""
        least = torch.zeros(len(self._part_slot), entries.shape[1], dtype=torch.float64)
        part = self._part[:, None].expand(-1, entries.shape[1])
        least.scatter_reduce_(0, part, entries.index_select(0, self._shared), "amin")
        out = torch.zeros(self.num_slots, entries.shape[1], dtype=torch.float64)
        out.index_add_(0, self._part_slot, least)
        return out.index_add_(0, self._single_slot, entries.index_select(0, self._single))
