"""Minima over a Theta too large to enumerate, by branch and bound.

| symbol | here | |
| --- | --- | --- |
| l(theta) = k_D(theta)^T w - beta sigma(theta) | `Form` | objective, or constraint l' |
| sigma^2 = constant - k_D^T V k_D | `LabelledPosterior` | |
| Delta^i(m), i-th forward difference of m -> kappa(N - m) | `differences[i, m]` | |
| mu, Lagrange multiplier | `mu` | |

A prefix fixes the LLMs of some modules; the others are open. Three facts bound l from below on all
completions of a prefix:

1. The square root is concave, and sigma^2 is concave in k = k_D(theta). So for any t and any s > 0

       sigma <= (s^2 + constant + t^T V t - 2 (V t)^T k) / (2 s),

   and l is at least a constant plus k^T (w + beta / s V t), a weighted sum of kernels.
2. If d matches the prefix on m modules, k(theta, d) is the sum of Delta^|S|(m) 1[theta_S = d_S]
   over all subsets S of the open modules. So a weighted sum of kernels is a sum of one table for
   each subset.
3. An entry of the table of S is at least the least entry with the same LLM in the first module of
   S, where entries that no configuration matches count as 0. That leaves one table per module.

linear.py has these bounds.

A constraint l' <= limit enters by Lagrange's bound l >= l + mu (l' - limit), for any mu >= 0.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scope_torch.space_search.allowed_classes import AllowedClasses
from scope_torch.space_search.linear import Bounded, Form, Linear, Prefixes
from scope_torch.space_search.prefixes import LabelledPosterior

__all__ = ["BestFirst", "Children", "ConstrainedSearch", "Form", "Minimum"]

_AT_ONCE = 128  # prefixes expanded together
NUMBERS = 1 << 22  # in memory for them
_LEAVES = 1 << 12  # configurations looked at together
_FACTORS = (0.5, 1.0, 2.0)  # of the parent's multiplier


class Minimum(NamedTuple):
    """The result of a search.

    Args:
        value: Least value found; +inf if nothing within the limit was found.
        bound: Proven lower bound on the minimum.
        complete: Whether `value` is the minimum, and `labels` are all ties.
        labels: `r x num_modules` labels of the configurations found within the width of `value`.
        num_nodes: Prefixes expanded.
    """

    value: float
    bound: float
    complete: bool
    labels: Tensor
    num_nodes: int


class _Expanded(NamedTuple):
    """Prefixes expanded together; a child has one more module assigned."""

    labels: np.ndarray  # `r x num_modules` (int16)
    depth: int  # number of modules assigned
    child: np.ndarray  # `r x labels of the next module`, by increasing bound
    bound: np.ndarray  # their bounds; +inf where nothing can be within the limit
    mu: np.ndarray  # `r`, multipliers for the children to begin with


class Children(NamedTuple):
    """Bounds with one more module of some prefixes assigned."""

    bound: Tensor  # `r x labels of the next module`; +inf where nothing can be within reach
    mu: Tensor  # `r`, multipliers for their children to begin with
    completed: Tensor  # `r x num_modules`, a promising completion of each prefix


class BestFirst(ABC):
    """Best-first search for a minimum over Theta, by bounds on the completions of prefixes.

    Args:
        posterior: Gives k_D and sigma.
        starts: `r x num_modules` labels looked at first; from the best of them on, one LLM at a
            time is changed as long as that helps.
        max_nodes: Prefixes expanded at most.
        excluded: Labels of a configuration that does not count, or None.
        allowed: Which classes count; None for all.
        width: How far above a minimum a configuration still ties with it.
        enough: The search ends once it has found less than that.
    """

    def __init__(
        self,
        posterior: LabelledPosterior,
        *,
        starts: Tensor,
        max_nodes: int,
        excluded: Tensor | None = None,
        allowed: AllowedClasses | None = None,
        width: Callable[[float], float] = lambda _: 0.0,
        enough: float = -math.inf,
    ) -> None:
        self._posterior, self._max_nodes, self._enough = posterior, max_nodes, enough
        self._excluded, self._allowed, self._width = excluded, allowed, width
        self._unsure = (
            math.inf
        )  # the least value of a class of which nobody knows whether it counts
        num_modules = len(posterior.sizes)
        self._order = tuple(range(num_modules))
        self.num_nodes = 0
        self._best = math.inf
        self._values = torch.zeros(0, dtype=torch.float64)  # found within reach so far
        self._labels = torch.zeros(0, num_modules, dtype=torch.int64)
        self._expanded: list[_Expanded] = []
        # Of every prefix the best child not taken yet: bound, position in _expanded, row, child.
        self._heap: list[tuple[float, int, int, int]] = []
        if allowed is None or allowed.listed is None:
            self._descend(starts)

    @abstractmethod
    def _values_at(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Objectives of `r x num_modules` configurations, and by how much they exceed limits."""

    @abstractmethod
    def _first_multiplier(self, root: Tensor) -> Tensor:
        """The first multiplier, `1`; also orders the modules, the most important first."""

    @abstractmethod
    def _bound(self, labels: Tensor, depth: int, mu: Tensor) -> Children:
        """Bounds of the children of `r` prefixes, whose multipliers are `mu`."""

    def run(self) -> Minimum:
        """Searches until what is found is the minimum, or `max_nodes` prefixes are expanded."""
        if self._allowed is not None and self._allowed.listed is not None:
            return self._look_at_all(self._allowed.listed)
        root = torch.zeros(1, len(self._posterior.sizes), dtype=torch.int64)
        if self._best < self._enough:
            return Minimum(self._best, -math.inf, False, self._labels, 0)
        self._expand(root, 0, self._first_multiplier(root))
        while (
            self._best >= self._enough and self._within_reach() and self.num_nodes < self._max_nodes
        ):
            for depth, (labels, mu) in self._take_best().items():
                self._expand(labels, depth, mu)
        complete = not self._within_reach()
        bound = min(self._best, self._unsure)
        if not complete:
            bound = min(bound, self._heap[0][0])
        complete &= self._unsure == math.inf
        tied = self._labels[self._values <= self._reach].unique(dim=0)
        return Minimum(self._best, bound, complete, tied, self.num_nodes)

    def _look_at_all(self, labels: Tensor) -> Minimum:
        """The minimum of some classes."""
        for part in labels.split(_LEAVES):
            self._evaluate(part)
        tied = self._labels[self._values <= self._reach].unique(dim=0)
        return Minimum(self._best, self._best, True, tied, 0)

    @property
    def is_decided(self) -> bool:
        """Whether the minimum is found, or less than enough."""
        if self._best < self._enough:
            return True
        return not self._within_reach() and self._unsure == math.inf

    @property
    def _reach(self) -> float:
        """Largest value that can still be, or tie with, the minimum."""
        return self._best + self._width(self._best) if self._best < math.inf else math.inf

    def _within_reach(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._reach

    def _descend(self, starts: Tensor) -> None:
        """Changes one LLM at a time: first to get within the limit, then to get less."""
        around, best = starts, (math.inf, math.inf)
        while len(around):
            value, excess = self._evaluate(around)
            at = min(zip(excess.tolist(), value.tolist(), range(len(around)), strict=True))
            if at[:2] >= best:
                return
            best, theta = at[:2], around[at[2]]
            around = theta.repeat(sum(self._posterior.sizes), 1)
            row = 0
            for i, size in enumerate(self._posterior.sizes):
                around[row : row + size, i] = torch.arange(size)
                row += size

    def _evaluate(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Objectives of `r x num_modules` configurations, and by how much they exceed the limit."""
        objective, excess = self._values_at(labels)
        if self._excluded is not None:
            excess[(labels == self._excluded).all(-1)] = math.inf
        value = torch.where(excess > 0, math.inf, objective)
        if self._allowed is not None and self._allowed.listed is None:
            self._forbid(self._allowed, labels, value, excess)
        self._best = min([self._best, *value.tolist()])
        near = (value <= self._reach) & (value < math.inf)
        if near.any():
            values, labels = torch.cat([self._values, value[near]]), labels[near]
            kept = values <= self._reach
            self._values = values[kept]
            self._labels = torch.cat([self._labels, labels])[kept]
        return objective, excess

    def _forbid(
        self, allowed: AllowedClasses, labels: Tensor, value: Tensor, excess: Tensor
    ) -> None:
        """Makes infinite what may not be chosen, as far as it is within reach."""
        near = ((value <= self._reach) & (value < math.inf)).nonzero().squeeze(-1)
        for row, holds in zip(near.tolist(), allowed.holds(labels[near]), strict=True):
            if holds:
                continue
            if holds is None:
                self._unsure = min(self._unsure, float(value[row]))
            value[row] = excess[row] = math.inf

    def _take_best(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Takes the prefixes of least bound from the heap; with their multipliers, by length."""
        taken: dict[int, tuple[list[np.ndarray], list[float]]] = {}
        for _ in range(min(_AT_ONCE, self._max_nodes - self.num_nodes)):
            if not self._within_reach():
                break
            _, position, row, j = heapq.heappop(self._heap)
            self._push(position, row, j + 1)
            parents = self._expanded[position]
            labels = parents.labels[row].copy()
            labels[self._order[parents.depth]] = parents.child[row, j]
            all_labels, mu = taken.setdefault(parents.depth + 1, ([], []))
            all_labels.append(labels)
            mu.append(float(parents.mu[row]))
        return {
            depth: (
                torch.from_numpy(np.stack(labels)).long(),
                torch.tensor(mu, dtype=torch.float64),
            )
            for depth, (labels, mu) in taken.items()
        }

    def _push(self, position: int, row: int, j: int) -> None:
        bound = self._expanded[position].bound[row]
        if j < len(bound) and bound[j] <= self._reach and bound[j] < math.inf:
            heapq.heappush(self._heap, (float(bound[j]), position, row, j))

    def _prefixes(self, labels: Tensor, depth: int) -> Prefixes:
        return Prefixes(self._posterior, labels, self._order[:depth], self._order[depth:])

    def _expand(self, labels: Tensor, depth: int, mu: Tensor) -> None:
        """Bounds all children of prefixes of one length; evaluates them if they are complete."""
        numbers = self._posterior.tables(self._order[depth:]).num_numbers
        at_once = max(1, NUMBERS // numbers)
        for some, some_mu in zip(labels.split(at_once), mu.split(at_once), strict=True):
            self.num_nodes += len(some)
            bound, best_mu, completed = self._bound(some, depth, some_mu)
            self._evaluate(completed)
            if depth + 1 == len(self._order):
                row, child = (bound <= self._reach).nonzero().unbind(-1)
                leaves = some[row]
                leaves[:, self._order[depth]] = child
                for part in leaves[bound[row, child] < math.inf].split(_LEAVES):
                    self._evaluate(part)
                continue
            child = bound.argsort(stable=True)
            bound = bound.gather(1, child)
            arrays = (x.numpy() for x in (child.to(torch.int16), bound, best_mu))
            self._expanded.append(_Expanded(some.to(torch.int16).numpy(), depth, *arrays))
            for row in range(len(some)):
                self._push(len(self._expanded) - 1, row, 0)


class ConstrainedSearch(BestFirst):
    """Best-first search for min{objective : constraint <= limit}.

    Args:
        posterior: Gives k_D and sigma.
        objective: The function to minimise.
        constraint: The function that must not exceed the limit.
        limit: +inf for no constraint.
        how: The other arguments of `BestFirst`.
    """

    def __init__(
        self,
        posterior: LabelledPosterior,
        objective: Bounded,
        constraint: Bounded,
        limit: float,
        **how: Any,
    ) -> None:
        self._objective, self._constraint, self._limit = objective, constraint, limit
        super().__init__(posterior, **how)

    def _values_at(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        k = self._posterior.kernel(labels)
        objective = self._objective.at(self._posterior, labels, k)
        excess = torch.zeros_like(objective)
        if self._limit < math.inf:
            constraint = self._constraint.at(self._posterior, labels, k)
            excess = (constraint - self._limit).clamp_min(0)
        return objective, excess

    def _first_multiplier(self, root: Tensor) -> Tensor:
        objective, constraint = self._forms(root, 0)
        ranges, mu = objective.spread(), torch.zeros(1, dtype=torch.float64)
        if constraint is not None:
            of_constraint = constraint.spread()
            unit = float(ranges.sum() / of_constraint.sum().clamp_min(1e-300))
            tried = max(unit, 1e-300) * 2.0 ** torch.arange(-8, 9, dtype=torch.float64)
            lower = [objective.plus(constraint, some).by_module()[1] for some in tried.split(1)]
            mu = tried[torch.cat(lower).argmax()][None]
            ranges += mu * of_constraint
        self._order = tuple(ranges.argsort(descending=True, stable=True).tolist())
        return mu

    def _forms(self, labels: Tensor, depth: int) -> tuple[Linear, Linear | None]:
        """Lower bounds on the objective and on constraint - limit, by facts 1 and 2."""
        prefixes = self._prefixes(labels, depth)
        objective = self._objective.linear(prefixes, 0.0)
        constrained = self._limit < math.inf
        return objective, self._constraint.linear(prefixes, self._limit) if constrained else None

    def _bound(self, labels: Tensor, depth: int, mu: Tensor) -> Children:
        objective, constraint = self._forms(labels, depth)
        table, lower = objective.by_module()
        bound = objective.children(table, lower)
        best_mu = mu * _FACTORS[0]
        if constraint is not None:
            for factor in _FACTORS:
                tried = objective.plus(constraint, factor * mu)
                tried_table, tried_lower = tried.by_module()
                bound = bound.maximum(tried.children(tried_table, tried_lower))
                better = tried_lower > lower
                lower = torch.where(better, tried_lower, lower)
                table = torch.where(better, tried_table, table)
                best_mu = torch.where(better, factor * mu, best_mu)
            bound[constraint.children(*constraint.by_module()) > 0] = math.inf
        completed = labels.clone()
        for i, at in zip(self._order[depth:], objective.tables.slices, strict=True):
            completed[:, i] = table[at].argmin(0)
        return Children(bound.T.contiguous(), best_mu, completed)
