"""theta_cand during the j-loop, under the joint surrogate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dger  # pyright: ignore[reportAttributeAccessIssue]

from scope_torch.bounds import Beta
from scope_torch.model.cost_scale import lognormal_bound
from scope_torch.model.joint import JointSurrogate
from scope_torch.observation import Observation

Array = NDArray[np.float64]
_MATRIX = 1 / 4  # cost of an operation of a matrix product relative to one with a vector


class JointCandidate:
    """Bounds of c and g at one configuration, query by query.

    Queries with equal histories have f(theta, q) = z_a + o_q + e_q: z of the groups a is jointly
    normal, o_q is known, and the e_q are independent with a variance d_a of the group. So an
    observation costs the square of the number of groups, whatever Q.

    Args:
        surrogate: Up to date.
        theta: theta_cand.
        query_order: Order of queries from which equally much is learnt.
        in_order: Whether queries are observed in that order, whatever is learnt.
    """

    def __init__(
        self,
        surrogate: JointSurrogate,
        theta: tuple[int, ...],
        query_order: Sequence[int],
        in_order: bool = False,
    ) -> None:
        self._surrogate = surrogate
        self.information = surrogate.information()
        self._in_order = iter(query_order) if in_order else None
        self._a = surrogate.scale.at(theta)
        self._cost, self._constraint = _outputs(surrogate, theta)
        self._waiting: list[list[int]] = [[] for _ in self._cost.d]
        for query in reversed(query_order):
            self._waiting[self._cost.group_of[query]].append(query)
        self._open = np.array([bool(queries) for queries in self._waiting])

    def next_queries(self, number: int) -> list[int]:
        """The queries not yet observed here from which most is learnt about g(theta_cand)."""
        chosen = []
        for _ in range(number):
            query = self._next_query() if self._in_order is None else next(self._in_order, None)
            if query is None:
                break
            chosen.append(query)
            self._cost.plan(query)
            self._constraint.plan(query)
        return chosen

    def _next_query(self) -> int | None:
        if not self._open.any():
            return None
        reduction = np.where(self._open, self._constraint.reduction(), -math.inf)
        # Reductions that differ by rounding only are equal: the first group then.
        best = int((reduction >= reduction.max() * (1 - 1e-9)).argmax())
        query = self._waiting[best].pop()
        self._open[best] = bool(self._waiting[best])
        return query

    def update(self, observation: Observation, s_0: float) -> None:
        """Takes in the observation of the query planned first of those without one."""
        y_c = observation.cost_usd
        if self._surrogate.relative_cost:
            y_c = y_c / self._a - 1
        self._cost.update(observation.query, y_c)
        learnt = self._constraint.update(observation.query, s_0 - observation.quality)
        self.information[0] += learnt

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        return self._bound_c(-beta.c)

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        return self._bound_c(beta.c)

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality."""
        return self._constraint.mean - beta.g * self._constraint.sigma

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand) in units of quality."""
        b = beta.g if beta.certify is None else beta.certify
        return self._constraint.mean + b * self._constraint.sigma

    def _bound_c(self, b: float) -> float:
        mean, sigma = self._cost.mean, self._cost.sigma
        if not self._surrogate.relative_cost:
            return mean + b * sigma
        return self._a * lognormal_bound(mean, sigma, b)


class _Plan(NamedTuple):
    """What an observation that was asked for will do, whatever comes of it."""

    query: int
    group: int
    gain: Array  # `groups`: of z, from the residual
    own: float  # share of the residual that the query keeps for itself
    sigma: float  # of the average, afterwards
    information: float  # in it, in nats


class _Covariance:
    """Of z, `groups x groups`, as observations are asked for.

    With c_b the `coefficients` and x_b the residuals of group b (docs/joint.md), the entry (a, b)
    is scale (variance_b - c_a^T x_b - r x_a^T B x_b) before the j-loop, and falls by `learn`. Most
    candidates are given up after a few observations, each of which needs one column: so it is
    written out only once the columns have come to cost as much, and where that makes them cheaper.

    Args:
        scale: See above.
        variance: `groups`.
        coefficients: `groups x n`.
        x: `groups x n`.
        r: See above.
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


class _Output:
    """One output, cost or constraint, at one configuration.

    f_q = z_a + o_q + e_q as above; the average over queries is (coefficient^T z + constant + own
    parts) / Q. `plan` moves the covariances ahead, `update` the means.

    Args:
        z: `groups` means.
        covariance: Of z.
        d: `groups` variances of e.
        o: `Q` known parts.
        group_of: The group of every query.
        noise: Variance of the observation noise.
    """

    def __init__(
        self,
        z: Array,
        covariance: _Covariance,
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


def _outputs(surrogate: JointSurrogate, theta: tuple[int, ...]) -> tuple[_Output, _Output]:
    """The posterior of f at theta for all groups of queries (docs/joint.md).

    With c_a = A_q k_D(theta), what is left of u(theta) - c_a^T u_D is a function of the residuals
    x_a = k_D(theta) - K_D c_a.
    """
    groups = surrogate.queries.by_group(theta)
    x = groups.k - groups.coefficients @ surrogate.queries.gram()
    mean, variance, coefficients = (
        part.cpu().numpy() for part in (groups.mean, groups.variance, groups.coefficients)
    )
    outputs = []
    both = zip(surrogate.collapsed(), surrogate.hyperparameters, mean, strict=True)
    for one, (rho, amplitude), o in both:
        z, B = (part.cpu().numpy() for part in (one.r * (x @ one.t), one.B))
        scale, own = amplitude**2 * rho, amplitude**2 * (1 - rho)
        covariance = _Covariance(scale, variance, coefficients, x.cpu().numpy(), one.r, B)
        d, noise = own * variance, own * surrogate.lam
        outputs.append(_Output(z, covariance, d, o, groups.group_of, noise))
    return outputs[0], outputs[1]
