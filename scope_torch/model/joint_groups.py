"""The joint posterior at one configuration theta, by groups of queries with equal histories.

| symbol | here | shape |
| --- | --- | --- |
| f(theta, q) = z_a + o_q + e_q, a the group of q | `Output` | |
| F, the average of f over all queries | `Output.mean`, `Output.sigma` | |
| z, jointly normal over groups | `_z`, prior covariance `_S` | `groups` |
| cov(F, z_a), prior | `_with_average` | `groups` |
| o_q = mu_hat_q(theta), known | `QueriesAt.mean` | |
| e_q, independent, variance d_a | `_d` | `groups` |
| c_a = A_a k_D(theta) | `OpenGroups.coefficients` | `groups x n` |
| x_a = k_D(theta) - K_D c_a | `OpenGroups.x` | `groups x n` |

c_a leaves x_a of u(theta) unexplained, and

    mean(z_a) = r x_a^T t,   cov(z_a, z_b) = rho [ 1 - k_D^T c_b - c_a^T x_b - r x_a^T B x_b ].

The covariance of F with z_b is the mean of those with all z_a. There S k_D is the sum of the c_a
over queries, and r B K S = S - B, so that S cancels (docs/joint.md has S, B and t):

    cov(F, z_b) = rho [ 1 - k_D^T c_b - (r + 1/Q) k_D^T B x_b ].

An observation of q conditions F and z as any two normal variables, with cov(F, f_q) = cov(F, z_a) +
d_a / Q. So mean, variance of F and cov(F, z_a) need no more than B k_D(theta), and a group is
*opened*, at the price of B x_a, once one of its queries is about to be observed: most candidates
are given up after one or two answers. Two are opened at first, then as many at a time as are open
already, because a product with B costs little more for several rows than for one. Where queries
are not asked in a given order, all are: the next query is the one that lowers the variance of F
most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from scope_torch.model.collapsed import Collapsed, Hyperparameters
from scope_torch.model.factor import Array
from scope_torch.model.joint_queries import QueriesAt, times_gram


class OpenGroups:
    """The groups that are open, as all outputs share them.

    Args:
        queries: Theta, as the queries see it.

    Attributes:
        position: Of each open group among them.
        coefficients: `m x n`, the c_a (CPU).
        x: `m x n`, the x_a (CPU).
        variance: `m` values of sigma_hat_a^2.
    """

    def __init__(self, queries: QueriesAt) -> None:
        self.queries = queries
        self.position: dict[int, int] = {}
        self.coefficients = self.x = torch.zeros(0, len(queries.k), dtype=torch.float64)
        self.variance = np.zeros(0)

    def open(self, groups: Sequence[int]) -> None:
        """Opens groups, none of which is open."""
        for a in groups:
            self.position[a] = len(self.position)
        c, variance = self.queries.coefficients(groups)
        x = torch.from_numpy(self.queries.k) - times_gram(c, self.queries.gram)
        self.coefficients = torch.cat([self.coefficients, torch.from_numpy(c)])
        self.x = torch.cat([self.x, x])
        self.variance = np.concatenate([self.variance, variance])


class _Step(NamedTuple):
    """The effect of an observation that was asked for, as far as its value does not matter."""

    query: int
    at: int  # position of its group
    known: float  # o_q
    sd: float  # of the observation, given all before
    sigma: float  # of the average, afterwards
    information: float  # of the observation, in nats


class Output:
    """One output, the cost or a constraint, at one configuration.

    Step by step, as observations y_q = f_q + noise come in: with v the column of z's covariance
    that belongs to y_q, sd^2 its variance and s = cov(F, y_q), all given the steps before, z's
    covariance falls by v v^T / sd^2, its covariance with F by v s / sd^2, the variance of F by
    s^2 / sd^2. `plan` takes these steps ahead of the values, `update` moves the means.

    Args:
        mean: Of F.
        variance: Of F.
        noise: Variance of the noise of an answer.
        num_queries: Q.
    """

    def __init__(self, mean: float, variance: float, noise: float, num_queries: int) -> None:
        self.mean, self._variance, self._noise = mean, variance, noise
        self.sigma = math.sqrt(max(variance, 0.0))
        self._num_queries = num_queries
        self._z = self._d = self._with_average = np.zeros(0)
        self._S = np.zeros((0, 0))
        self._steps: list[_Step] = []
        self._num_seen = 0  # of them, whose values have come
        self._v = np.zeros((num_queries, 0))  # row j: v / sd of step j
        self._s = np.zeros(num_queries)  # s / sd
        self._residual = np.zeros(num_queries)  # of the value, over sd

    def start(self, covariance: Array, with_average: Array, own: Array, mean: Array) -> None:
        """Opens all groups at once, before the first step.

        Args:
            covariance: Of z: `groups x groups`.
            with_average: cov(F, z): `groups`.
            own: d: `groups`.
            mean: Of z: `groups`.
        """
        self._S, self._with_average, self._d, self._z = covariance, with_average, own, mean
        self._v = np.zeros((self._num_queries, len(mean)))

    def reduction(self) -> Array:
        """By how much a new observation of each open group would lower the variance of F."""
        done = slice(len(self._steps))
        v = self._v[done]
        variance = self._S.diagonal() - np.einsum("ja,ja->a", v, v) + self._d + self._noise
        s = self._with_average - self._s[done] @ v + self._d / self._num_queries
        return s**2 / variance

    def plan(self, query: int, at: int, known: float) -> None:
        """Asks for an observation.

        Args:
            query: To be observed.
            at: Position of its group, which is open.
            known: o_q.
        """
        j, d = len(self._steps), float(self._d[at])
        of_group = self._v[:j, at]
        column = self._S[at] - of_group @ self._v[:j]
        variance = float(column[at]) + d + self._noise
        if variance <= 0:  # by rounding, where all queries cost the same: the answer tells nothing
            sigma = math.sqrt(max(self._variance, 0.0))
            self._steps.append(_Step(query, at, known, 1.0, sigma, 0.0))
            return
        sd = math.sqrt(variance)
        s = float(self._with_average[at] - self._s[:j] @ of_group) + d / self._num_queries
        self._v[j], self._s[j] = column / sd, s / sd
        self._variance -= s**2 / variance
        sigma = math.sqrt(max(self._variance, 0.0))
        information = 0.5 * math.log(variance / self._noise)
        self._steps.append(_Step(query, at, known, sd, sigma, information))

    def update(self, query: int, y: float) -> float:
        """Takes in the observation planned first of those still out; returns its information."""
        j, step = self._num_seen, self._steps[self._num_seen]
        assert step.query == query
        residual = (y - step.known - float(self._z[step.at])) / step.sd
        self._z += self._v[j] * residual
        self.mean += float(self._s[j]) * residual
        self._residual[j] = residual
        self._num_seen += 1
        self.sigma = step.sigma
        return step.information


class OpenedOutput(Output):
    """An output that follows the groups as they are opened.

    Args:
        groups: The open groups.
        collapsed: Of this output, and of others with the same rho.
        which: The position of this output among them.
        hyperparameters: Of this output.
        lam: lambda.
        num_queries: Q.
    """

    def __init__(
        self,
        groups: OpenGroups,
        collapsed: Collapsed,
        which: int,
        hyperparameters: Hyperparameters,
        lam: float,
        num_queries: int,
    ) -> None:
        rho, amplitude = hyperparameters
        self._shared, self._own = amplitude**2 * rho, amplitude**2 * (1 - rho)
        self._groups, self._r = groups, collapsed.r
        self._collapsed = collapsed.copy()  # the surrogate goes on
        self._t = t = collapsed.t[which]
        self._a, b, c = hyperparameters.of_average(num_queries)
        k = torch.from_numpy(groups.queries.k).to(t.device)
        self._Bk, *products = self._collapsed.times(torch.cat([k[None], groups.x.to(t.device)]))
        variance = b - c * float(k @ self._Bk)
        super().__init__(self._a * float(k @ t), variance, self._own * lam, num_queries)
        if products:
            self._follow(torch.stack(products))

    def follow(self) -> None:
        """Follows the groups, of which some were opened."""
        self._follow(self._collapsed.times(self._groups.x[len(self._z) :].to(self._Bk.device)))

    def _follow(self, products: Tensor) -> None:
        """See `follow`; `products`, `m x n`, are the rows x_a B of the groups opened."""
        old = len(self._z)
        c, x, variance = self._groups.coefficients, self._groups.x, self._groups.variance[old:]
        new = x[old:].to(self._Bk.device)
        explained = c @ x[old:].T + self._r * (x @ products.T.cpu())
        columns = self._shared * (variance - explained.numpy())
        self._S = np.pad(self._S, (0, len(variance)))
        self._S[:, old:] = columns
        self._S[old:, :old] = columns[:old].T
        prior = self._shared * (variance - self._a * (new @ self._Bk).cpu().numpy())
        self._with_average = np.concatenate([self._with_average, prior])
        self._d = np.concatenate([self._d, self._own * variance])
        of_old, self._v = self._v, np.zeros((self._num_queries, old + len(variance)))
        self._v[: len(self._steps), :old] = of_old[: len(self._steps)]
        v = self._v[:, old:]
        for j, step in enumerate(self._steps):
            v[j] = (columns[step.at] - of_old[:j, step.at] @ v[:j]) / step.sd
        seen = slice(self._num_seen)
        z = self._r * (new @ self._t).cpu().numpy() + self._residual[seen] @ v[seen]
        self._z = np.concatenate([self._z, z])


class PosteriorAt(Protocol):
    """Cost and constraints at one configuration."""

    @property
    def cost(self) -> Output:
        """Relative to the cost scale, or in USD."""
        ...

    @property
    def constraints(self) -> Sequence[Output]:
        """Each as a threshold minus a grade; the first in units of quality."""
        ...

    def place_of(self, query: int) -> int:
        """Which of the open groups that of `query` is."""
        ...

    def is_open(self, query: int) -> bool:
        """Whether the group of `query` is open."""
        ...

    @property
    def num_open(self) -> int:
        """Number of open groups."""
        ...

    def open(self, queries: Sequence[int]) -> None:
        """Opens the groups of `queries`, in the order of their numbers."""
        ...

    def plan(self, query: int) -> None:
        """Asks for an observation of `query`, whose group is open."""
        ...


class JointPosterior:
    """Cost and constraints at one configuration, by groups.

    Args:
        collapsed: Of the cost, and of all constraints.
        queries: Theta, as the queries see it.
        hyperparameters: Of the cost, and of each constraint.
        lam: lambda.
        num_queries: Q.
        first: Queries whose groups are opened at once.
    """

    def __init__(
        self,
        collapsed: tuple[Collapsed, Collapsed],
        queries: QueriesAt,
        hyperparameters: Sequence[Hyperparameters],
        lam: float,
        num_queries: int,
        first: Sequence[int] = (),
    ) -> None:
        self._groups = OpenGroups(queries)
        self._group_of = queries.group_of
        self._open(first)
        of_c, of_g = collapsed
        parts = [(of_c, 0), *((of_g, which) for which in range(len(of_g.t)))]
        self.cost, *self.constraints = (
            OpenedOutput(self._groups, *part, fitted, lam, num_queries)
            for part, fitted in zip(parts, hyperparameters, strict=True)
        )

    def place_of(self, query: int) -> int:
        """See `PosteriorAt`."""
        return self._groups.position[self._group_of[query]]

    def is_open(self, query: int) -> bool:
        """See `PosteriorAt`."""
        return self._group_of[query] in self._groups.position

    @property
    def num_open(self) -> int:
        """See `PosteriorAt`."""
        return len(self._groups.position)

    def open(self, queries: Sequence[int]) -> None:
        """See `PosteriorAt`."""
        self._open(queries)
        for output in (self.cost, *self.constraints):
            output.follow()

    def plan(self, query: int) -> None:
        """See `PosteriorAt`."""
        at = self.place_of(query)
        for output, known in zip(
            (self.cost, *self.constraints), self._groups.queries.mean(query), strict=True
        ):
            output.plan(query, at, known)

    def _open(self, queries: Sequence[int]) -> None:
        groups = {self._group_of[query] for query in queries} - self._groups.position.keys()
        self._groups.open(sorted(groups))
