"""The joint posterior at one configuration theta, by groups of queries with equal histories.

| symbol | here | shape |
| --- | --- | --- |
| f(theta, q) = z_a + o_q + e_q, a the group of q | `Output` | |
| z, jointly normal over groups | mean `_z`, covariance `GroupCovariance` | `groups` |
| o_q = mu_hat_q(theta), known | `_o` | `Q` |
| e_q, independent, variance d_a | `d` | `groups` |
| c_a = A_a k_D(theta) | `coefficients` | `groups x n` |
| x_a = k_D(theta) - K_D c_a | `x` | `groups x n` |

What is not explained by u_D, u(theta) - c_a^T u_D, is a function of the residuals x_a alone
(docs/joint.md). So an observation costs the square of the number of groups, whatever Q is.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import dger  # pyright: ignore[reportAttributeAccessIssue]

from scope_torch.model.factor import Array
from scope_torch.model.joint import JointSurrogate

_MATRIX = 1 / 4  # cost of an operation of a matrix product relative to one with a vector


class _Plan(NamedTuple):
    """The effect of an observation that was asked for, as far as its value does not matter."""

    query: int
    group: int
    gain: Array  # `groups`: change of z for each unit of the residual
    own: float  # share of the residual that belongs to the query alone
    sigma: float  # of the average, afterwards
    information: float  # of the observation, in nats


class GroupCovariance:
    """Covariance of z, `groups x groups`, as observations are asked for.

    The entry (a, b) is scale (variance_b - c_a^T x_b - r x_a^T B x_b) before the j-loop, and falls
    by `learn`. Most candidates are given up after a few observations, each of which needs one
    column. So the matrix is written out only once the columns have come to cost as much, and only
    where that makes them cheaper.

    Args:
        scale: rho times the squared amplitude.
        variance: `groups` values of sigma_hat^2.
        coefficients: `groups x n`, the c_a.
        x: `groups x n`, the x_a.
        r: rho / (1 - rho).
        B: `n x n`.
    """

    def __init__(
        self, scale: float, variance: Array, coefficients: Array, x: Array, r: float, B: Array
    ) -> None:
        self._scale, self._variance, self._r = scale, variance, r
        self._coefficients, self._x, self._B = coefficients, x, B
        self._learnt = np.empty((8, len(variance)))  # it has fallen by v v^T for the rows v
        self._num_learnt = 0  # of them
        self._written: Array | None = None
        self._num_operations = 0

    def times(self, vector: Array) -> Array:
        """The product with `groups` values, before anything is learnt."""
        return self._of(float(self._variance @ vector), self._x.T @ vector)

    def column(self, group: int) -> Array:
        """`groups` values."""
        if self._written is not None:
            return self._written[:, group].copy()
        column = self._of(float(self._variance[group]), self._x[group])
        learnt = self._learnt[: self._num_learnt]
        column -= learnt[:, group] @ learnt
        num_groups, n = self._x.shape
        operations = 2 * num_groups * n + n**2 + num_groups * self._num_learnt
        self._num_operations += operations
        to_write = _MATRIX * num_groups * n * (num_groups + n)
        if self._num_operations > to_write and operations > num_groups**2:
            self._written = self._write()
        return column

    def diagonal(self) -> Array:
        """`groups` values."""
        if self._written is None:
            self._written = self._write()
        return self._written.diagonal()

    def learn(self, column: Array, variance: float) -> None:
        """Falls by column column^T / variance."""
        if self._written is None:
            if self._num_learnt == len(self._learnt):
                self._learnt = np.concatenate([self._learnt, np.empty_like(self._learnt)])
            self._learnt[self._num_learnt] = column / math.sqrt(variance)
            self._num_learnt += 1
        else:  # in place: a fresh matrix would take longer than all the rest
            self._written = dger(-1 / variance, column, column, a=self._written, overwrite_a=True)

    def _write(self) -> Array:
        shared = self._coefficients + self._r * (self._x @ self._B)
        S = self._scale * (self._variance - shared @ self._x.T)
        S = (S + S.T) / 2
        learnt = self._learnt[: self._num_learnt]
        S -= learnt.T @ learnt
        return np.asfortranarray(S)

    def _of(self, variance: float, x: Array) -> Array:
        shared = self._coefficients @ x + self._r * (self._x @ (self._B @ x))
        return self._scale * (variance - shared)


class Output:
    """One output, cost or constraint, at one configuration.

    f_q = z_a + o_q + e_q; the average over queries is (coefficient^T z + constant + own parts) / Q.
    `plan` moves the covariances ahead, `update` the means.

    Args:
        z: `groups` means of z.
        covariance: Of z.
        d: `groups` variances of e.
        o: `Q` known parts.
        group_of: The group of every query.
        noise: Variance of the observation noise.
    """

    def __init__(
        self,
        z: Array,
        covariance: GroupCovariance,
        d: Array,
        o: Array,
        group_of: list[int],
        noise: float,
    ) -> None:
        self._z, self._S, self.d, self._o = z, covariance, d, o
        self._noise, self._num_queries = noise, len(group_of)
        self.group_of = group_of
        self._coefficient = np.bincount(group_of, minlength=len(d)).astype(float)
        self._planned = self._coefficient.copy()
        self._covariance = covariance.times(self._planned)  # of z and Q times the average
        self._constant = math.fsum(o)
        self._own = float(d @ self._coefficient)
        self._plans: deque[_Plan] = deque()
        self.sigma = self._planned_sigma()

    @property
    def mean(self) -> float:
        """Of the average over queries."""
        return (float(self._coefficient @ self._z) + self._constant) / self._num_queries

    def reduction(self) -> Array:
        """By how much a new observation of each group would lower Q^2 sigma^2: `groups`."""
        return (self._covariance + self.d) ** 2 / (self._S.diagonal() + self.d + self._noise)

    def plan(self, query: int) -> None:
        """Asks for an observation."""
        a = self.group_of[query]
        column, d = self._S.column(a), float(self.d[a])
        variance = float(column[a]) + d + self._noise
        gain = column / variance
        own = d / (d + self._noise)
        self._covariance -= float(column @ self._planned) * gain
        self._S.learn(column, variance)
        self._covariance -= own * (column - float(column[a]) * gain)
        self._planned[a] -= own
        self._own += own * self._noise - d
        information = 0.5 * math.log(variance / self._noise)
        self._plans.append(_Plan(query, a, gain, own, self._planned_sigma(), information))

    def update(self, query: int, y: float) -> float:
        """Takes in the observation planned first of those still out; returns its information."""
        plan = self._plans.popleft()
        assert plan.query == query
        y -= float(self._o[query])
        self._z = self._z + plan.gain * (y - self._z[plan.group])
        self._coefficient[plan.group] -= plan.own
        self._constant += plan.own * y
        self.sigma = plan.sigma
        return plan.information

    def _planned_sigma(self) -> float:
        square = float(self._planned @ self._covariance) + self._own
        return math.sqrt(max(square, 0.0)) / self._num_queries


def outputs_at(surrogate: JointSurrogate, theta: tuple[int, ...]) -> tuple[Output, Output]:
    """Cost and constraint at `theta`, for all groups of queries.

    Args:
        surrogate: Up to date.
        theta: Codes of the configuration.
    """
    groups = surrogate.queries.by_group(theta)
    # torch's products: numpy's threads would spin beside torch's
    coefficients = torch.from_numpy(groups.coefficients)
    x = torch.from_numpy(groups.k) - coefficients @ torch.from_numpy(surrogate.queries.gram())
    outputs = []
    both = zip(surrogate.collapsed(), surrogate.hyperparameters, groups.mean, strict=True)
    for one, (rho, amplitude), o in both:
        z = (one.r * (x.to(one.t.device) @ one.t)).cpu().numpy()
        scale, own = amplitude**2 * rho, amplitude**2 * (1 - rho)
        B = one.B.cpu().numpy()
        parts = groups.variance, groups.coefficients, x.numpy(), one.r, B
        d, noise = own * groups.variance, own * surrogate.lam
        output = Output(z, GroupCovariance(scale, *parts), d, o, groups.group_of, noise)
        outputs.append(output)
    return outputs[0], outputs[1]
