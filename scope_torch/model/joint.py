"""One Gaussian process on Theta x Queries: a part that all queries share, and one for each.

    l_zeta(theta, q) = u(theta) + w_q(theta),   u ~ GP(0, rho k),   w_q ~ GP(0, (1 - rho) k)

all times an amplitude; rho = 0 with amplitude 1 is the surrogate of the paper (def:gp). The
derivation and its guarantees are in docs/joint.md.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| r = rho / (1 - rho) | `Hyperparameters.r` | | |
| S, T of the per-query processes | `incremental.py` | `n x n`, `n` | |
| G = (I + r S K_D)^-1; B = G S; t = G T | `Collapsed` | `n x n`, `n` | of the output (t) |
| mean of the average: a k_D^T t | `aggregates` | `|Theta|` | of the output |
| its variance: b - c k_D^T B k_D | `aggregates` | `|Theta|` | of the output, squared |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.model.aggregate import AggregatePosterior, LowRank
from scope_torch.model.collapsed import Collapsed, CollapsedPosterior, Hyperparameters
from scope_torch.model.cost_scale import CostScale, FitScale, fit_cost_scale
from scope_torch.model.incremental import LowRankUpdate
from scope_torch.model.joint_groups import JointPosterior, PosteriorAt
from scope_torch.model.joint_queries import JointQueries, times_gram
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace

_STALE = 1.1  # times the observations of the last fit
REFIT = 2.0  # hyperparameters are fitted again once there are so many times more observations
_LOGITS = torch.linspace(-7, 7, 561, dtype=torch.float64)  # of rho
_PRIOR_LOGIT, _PRIOR_SPREAD = -1.0, 1.0  # prior of the logit of rho: 0.27, within 0.05 to 0.73


class JointSurrogate:
    """Exact regression of l_zeta on all pairs (theta, query) at once.

    Costs are taken relative to `CostScale`, a sum of a term for each module: y_c / a(theta) - 1.
    The noise variance is lambda times the variance of w_q, so that one factorisation of every
    query, that of `QuerySurrogate`, serves cost and constraints at any rho and amplitude. The
    constraints have one rho, so that their variances are the same but for the amplitudes.

    Args:
        space: Theta.
        kernel: k with k(theta, theta) = 1, float64 on codes.
        num_queries: Q.
        lam: lambda, at least 1e-9.
        rho: One rho for all outputs, in [0, 1); None to fit one to the cost, one to constraints.
        amplitude: One amplitude for all outputs; None to fit one to each.
        relative_cost: Whether costs are relative to `CostScale`; if not, they are in USD.
        scale_if_free: Scale of costs, in USD, if all observations are free: c(theta_0).
        fit_scale: Makes the scale: `regress_costs` with the names of the LLMs, or `fit_cost_scale`.
        device: Where the algebra runs. Always float64.
        num_constraints: K.

    Raises:
        InputError: If a value is outside its range.
    """

    make_queries: type[QuerySurrogate] = JointQueries

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        num_queries: int,
        lam: float,
        *,
        rho: float | None = None,
        amplitude: float | None = None,
        relative_cost: bool = True,
        scale_if_free: float = 1.0,
        fit_scale: FitScale = fit_cost_scale,
        device: torch.device | str | None = None,
        num_constraints: int = 1,
    ) -> None:
        if rho is not None and not 0 <= rho < 1:
            raise InputError(f"rho={rho} must lie in [0, 1), or be null to be fitted")
        if amplitude is not None and not (math.isfinite(amplitude) and amplitude > 0):
            raise InputError(f"amplitude={amplitude} must be a positive number, or null")
        self.num_constraints = num_constraints
        self.queries = self.make_queries(space, kernel, num_queries, lam, device, num_constraints)
        self.space, self.kernel, self.lam = space, kernel, lam
        self.num_queries, self.device = num_queries, self.queries.device
        self.scale, self._scale_if_free = CostScale.one(space), scale_if_free
        self._fit_scale = fit_scale
        at_first = Hyperparameters(rho or 0.0, amplitude or 1.0)
        self.hyperparameters = (at_first,) * (1 + num_constraints)  # of c, then of each g
        self._rho, self._amplitude, self.relative_cost = rho, amplitude, relative_cost
        self._log: list[tuple[tuple[int, ...], int, float, tuple[float, ...]]] = []
        self._fitted_at = 0
        self._collapsed: tuple[Collapsed, Collapsed] | None = None  # of c and g
        self._num_made = 0  # how often they were made anew
        self._num_added = 0  # rows of low-rank updates since then
        self._seen = 0  # the mark of the low-rank updates that they know

    def observe(
        self, theta: tuple[int, ...], query: int, y_c: float, y_g: float, *others: float
    ) -> None:
        """Adds one observation; arguments as in `QuerySurrogate.observe`."""
        self._log.append((theta, query, y_c, (y_g, *others)))
        self.queries.observe(theta, query, self.relative(theta, y_c), y_g, *others)

    @property
    def cost_scale(self) -> CostScale | None:
        """See `Averaging`."""
        return self.scale if self.relative_cost else None

    def at(self, theta: tuple[int, ...], first: Sequence[int] = ()) -> PosteriorAt:
        """Cost and constraints at `theta`; what is taken in later changes nothing there.

        Args:
            theta: Codes of the configuration.
            first: Queries whose groups are opened at once, see `joint_groups.py`.
        """
        assert isinstance(self.queries, JointQueries)
        of_queries = self.collapsed(), self.queries.seen_at(theta), self.hyperparameters
        return JointPosterior(*of_queries, self.lam, self.num_queries, first)

    def relative(self, theta: Sequence[int], y_c: float) -> float:
        """y_c / a(theta) - 1 of a cost in USD; the cost itself if costs are not relative."""
        return y_c / self.scale.at(theta) - 1 if self.relative_cost else y_c

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes."""
        return self.queries.observed()

    def num_observed(self, theta: tuple[int, ...]) -> int:
        """Number of queries on which `theta` was observed at least once."""
        return self.queries.num_observed(theta)

    def information(self) -> list[float]:
        """1/2 log det(I + K / (lam (1 - rho))) of all pairs observed, in nats, with g's rho.

        Returns:
            One number: there is one process.
        """
        return [math.fsum(self.queries.information()) + 0.5 * self.collapsed()[1].log_det]

    def refit(self, now: bool = False) -> bool:
        """Fits scale and hyperparameters if there are enough new observations, or `now`.

        rho maximises the marginal likelihood, in closed form, times a normal prior on its logit.
        Without the prior, few observations can put the maximum at 0 or 1, where the bounds are
        worth nothing. The amplitude then maximises the likelihood at that rho. The variance that
        all queries share is at least that of the scale where nothing was observed.

        Returns:
            Whether anything was fitted; variances may then have grown.
        """
        due = now or len(self._log) >= REFIT * self._fitted_at
        if not (self._log and due):
            return False
        self._fitted_at = len(self._log)
        if self.relative_cost:
            costs = [(t, q, y_c) for t, q, y_c, _ in self._log]
            self.scale = self._fit_scale(self.space, costs, self._scale_if_free)
            self._tell_again()
        of_c, of_g = self._fit()
        self.hyperparameters = (self._widened(*of_c), *of_g)
        self._collapsed = None
        return True

    @property
    def is_stale(self) -> bool:
        """Whether there are a tenth more observations than at the last fit."""
        return len(self._log) >= _STALE * self._fitted_at

    def log_marginal_likelihood(self, rho: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Log p(y | rho) up to a constant, at the amplitude that maximises it.

        Args:
            rho: `m` values in [0, 1).

        Returns:
            Of the cost and of every constraint `m` log likelihoods in nats, and the `m` squared
            amplitudes.
        """
        S, T, K = self._S_T_K()
        square, num_pairs = self.queries.sum_of_squares()
        L = torch.linalg.cholesky(S)
        e, U = torch.linalg.eigh(L.T @ K @ L)
        of_cpu, ratio = e.cpu(), rho / (1 - rho)
        growth = 1 + ratio[:, None] * of_cpu
        log_det = num_pairs * torch.log1p(-rho) + growth.log().sum(-1)
        found = []
        for total, own_square in zip(T, square.tolist(), strict=True):
            tau = torch.linalg.solve_triangular(L, total[:, None], upper=False)
            t2 = of_cpu * (U.T @ tau)[:, 0].square().cpu()
            shared = (ratio / (1 - rho)) * (t2 / growth).sum(-1)
            quadratic = own_square / (1 - rho) - shared
            amplitude2 = quadratic / num_pairs
            if self._amplitude is not None:
                amplitude2 = torch.full_like(quadratic, self._amplitude**2)
            fit = num_pairs * amplitude2.log() + quadratic / amplitude2
            found.append((-0.5 * (fit + log_det), amplitude2))
        return found

    def aggregates(self) -> tuple[AggregatePosterior, AggregatePosterior]:
        """The posterior of the average over queries, of the (relative) cost and the constraint.

        The second has the variance of the first constraint, and the means of all.
        """
        codes, weights = self.queries.observed(), self.weights()
        parts = zip(self.collapsed(), self.of_average()[:2], strict=True)
        of_c, of_g = (CollapsedPosterior(codes, weights, one, c, b) for one, (_, b, c) in parts)
        return of_c, of_g

    def weights(self) -> Tensor:
        """Weights of the means of `aggregates`, which are much less work: `(1 + K) x n`."""
        parts = zip(self.collapsed(), self.of_average()[:2], strict=True)
        return torch.cat([a * one.t for one, (a, _, _) in parts])

    def prior_variances(self) -> tuple[float, float]:
        """Variances before any observation of the averages of cost and first constraint."""
        (_, of_c, _), (_, of_g, _), *_ = self.of_average()
        return of_c, of_g

    def units(self) -> tuple[float, ...]:
        """The standard deviation of each constraint, where that of the first is 1."""
        _, first, *others = self.hyperparameters
        return (1.0, *(other.amplitude / first.amplitude for other in others))

    def of_average(self) -> list[tuple[float, float, float]]:
        """See `Hyperparameters.of_average`, for the cost and every constraint."""
        return [h.of_average(self.num_queries) for h in self.hyperparameters]

    def collapsed(self) -> tuple[Collapsed, Collapsed]:
        """The cost, and all constraints, up to the last observation; written over by the next.

        Made anew whenever the updates have more rows than there are configurations: that is less
        work then, and keeps rounding from accumulating.
        """
        update, self._seen = self.queries.updates_since(self._seen)
        n = len(self.queries.observed())
        if self._collapsed and update and self._num_added + len(update.weight) <= n:
            if len(update.weight):
                self._add(self._collapsed, update)
            return self._collapsed
        S, T, K = self._S_T_K()
        root = torch.linalg.cholesky(S)
        LKL = root.T @ K @ root
        of_c, of_g = (h.r for h in self.hyperparameters[:2])
        self._collapsed = Collapsed(of_c, K, T[:1], root, LKL), Collapsed(of_g, K, T[1:], root, LKL)
        self._num_made += 1
        self._num_added = 0
        return self._collapsed

    def growth_since(
        self, mark: tuple[int, int] | None
    ) -> tuple[Sequence[LowRank], tuple[int, int]]:
        """What the c B of both outputs have grown by since `mark`; see `Averaging`.

        Empty if the B were made anew.
        """
        collapsed = self.collapsed()
        num_made, num_rows = mark or (0, 0)
        now = self._num_made, len(collapsed[0].rows)
        if num_made != self._num_made:
            return (), now
        n, changes = len(self.queries.observed()), list[LowRank]()
        for one, (_, _, c) in zip(collapsed, self.of_average()[:2], strict=True):
            rows = _stacked(one.rows[num_rows:], n, one.t)
            changes.append(LowRank(rows, rows.new_full((len(rows),), c)))
        return changes, now

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        regresses = self.relative_cost and self._fit_scale is not fit_cost_scale
        return {
            **self.queries.settings(),
            "rho": self._rho,
            "amplitude": self._amplitude,
            "relative_cost": self.relative_cost,
            **({"cost_scale": "regression"} if regresses else {}),  # 0.1.0 had no such key
        }

    def report(self) -> dict[str, Any]:
        """The hyperparameters of the last fit; the amplitude of c is that of relative costs."""
        names = ["c", "g", *(f"g_{k}" for k in range(2, 1 + self.num_constraints))]
        fitted = zip(names, self.hyperparameters, strict=True)
        return {"hyperparameters": {name: one._asdict() for name, one in fitted}}

    def _S_T_K(self) -> tuple[Tensor, Tensor, Tensor]:
        """S, `n x n`, T of all outputs, `(1 + K) x n`, and K_D, `n x n`, on the device."""
        parts = self.queries.sum_of_inverses(), self.queries.total().copy(), self.queries.gram()
        S, T, K = (self.queries.to_device(part) for part in parts)
        return S, T, K

    def _add(self, collapsed: tuple[Collapsed, Collapsed], update: LowRankUpdate) -> None:
        KU = times_gram(update.u, self.queries.gram()).to(self.device)
        u, weight, total = (self.queries.to_device(part) for part in update)
        self._num_added += len(weight)
        for one, of_outputs in zip(collapsed, (total[:1], total[1:]), strict=True):
            one.add(u, KU, weight, of_outputs)

    def _fit(self) -> tuple[list[Hyperparameters], list[Hyperparameters]]:
        """Of the cost and of the constraints: one rho each, and an amplitude for each output."""
        rho = torch.sigmoid(_LOGITS)
        if self._rho is not None:
            rho = torch.full((1,), self._rho, dtype=torch.float64)
        fitted = self.log_marginal_likelihood(rho)
        answers = zip(*(g for *_, g in self._log), strict=True)
        varied = [one for one, g in zip(fitted[1:], answers, strict=True) if len(set(g)) > 1]
        # A constraint that is always met by as much, such as a valid output, has no rho or rho = 1.
        return self._best(rho, fitted[:1]), self._best(rho, fitted[1:], varied)

    def _best(
        self,
        rho: Tensor,
        fitted: Sequence[tuple[Tensor, Tensor]],
        deciding: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> list[Hyperparameters]:
        """One rho for all the outputs, by those that decide it, and an amplitude for each."""
        likelihood = torch.stack([one for one, _ in deciding or fitted]).sum(0)
        if self._rho is None:
            likelihood -= 0.5 * ((_LOGITS - _PRIOR_LOGIT) / _PRIOR_SPREAD) ** 2
        best = int(likelihood.argmax())
        # If all observations equal the prior mean, the likelihood has no maximum.
        amplitudes = [math.sqrt(max(float(squares[best]), 1e-12)) for _, squares in fitted]
        return [Hyperparameters(float(rho[best]), amplitude) for amplitude in amplitudes]

    def _widened(self, of_c: Hyperparameters) -> Hyperparameters:
        own, shared = (share * of_c.amplitude**2 for share in (1 - of_c.rho, of_c.rho))
        if self._rho is not None or self._amplitude is not None or shared >= self.scale.variance:
            return of_c
        amplitude2 = own + self.scale.variance
        return Hyperparameters(self.scale.variance / amplitude2, math.sqrt(amplitude2))

    def _tell_again(self) -> None:
        old = self.queries
        setting = self.space, self.kernel, self.num_queries, old.lam, self.device
        self.queries = self.make_queries(*setting, self.num_constraints)
        for theta, query, y_c, y_g in self._log:
            self.queries.observe(theta, query, self.relative(theta, y_c), *y_g)


def _stacked(rows: list[Tensor], n: int, like: Tensor) -> Tensor:
    """`m x n`, with zeros where there were fewer columns."""
    out = like.new_zeros(len(rows), n)
    for to, row in zip(out, rows, strict=True):
        to[: len(row)] = row
    return out
