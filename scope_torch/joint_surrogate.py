"""One Gaussian process on Theta x Queries: what all queries share, and what each has of its own.

    l_zeta(theta, q) = u(theta) + w_q(theta),   u ~ GP(0, rho k),   w_q ~ GP(0, (1 - rho) k)

all times an amplitude; rho = 0 with amplitude 1 is the surrogate of the paper (def:gp). The
derivation, and what it guarantees, is in docs/joint.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.cost_scale import CostScale, fit_cost_scale
from scope_torch.errors import InputError
from scope_torch.posteriors import AggregatePosterior
from scope_torch.space import ConfigSpace
from scope_torch.surrogate import QuerySurrogate

REFIT = 2.0  # hyperparameters are fitted again once there are so many times more observations
_LOGITS = torch.linspace(-7, 7, 561, dtype=torch.float64)  # of rho
_PRIOR_LOGIT, _PRIOR_SPREAD = -1.0, 1.0  # prior of the logit of rho: 0.27, within 0.05 to 0.73


class Hyperparameters(NamedTuple):
    """Of the process of one output.

    `rho`: share of the variance that all queries have in common, in [0, 1).
    `amplitude`: prior standard deviation of l(theta, q), in units of the output.
    """

    rho: float
    amplitude: float


class Diagonal(NamedTuple):
    """K_D^-1 and the sum S of all inverses, in one basis: K_D^-1 = Z Z^T, S = Z diag(e) Z^T.

    `Z`, `Y`: `n x n`, Z^T Y = I; `e`: `n` (float64).
    """

    Z: Tensor
    Y: Tensor
    e: Tensor


class JointSurrogate:
    """Exact regression of l_zeta on all pairs (theta, query) at once.

    Costs are taken relative to `CostScale`, a sum of a term for each module: y_c / a(theta) - 1.
    The noise variance is lambda times the variance of w_q, so that one factorisation of every
    query, that of `QuerySurrogate`, serves cost and constraint at any rho and amplitude.

    Args:
        space: Theta.
        kernel: k with k(theta, theta) = 1, float64 on codes.
        num_queries: Q.
        lam: lambda, at least 1e-9.
        rho: One rho for both outputs, in [0, 1); None to fit one to each.
        amplitude: The same of the amplitude; None to fit.
        relative_cost: Whether costs are relative to `CostScale`; if not, they are in USD.
        device: Where the algebra runs. Always float64.

    Raises:
        InputError: If a value is outside its range.
    """

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
        device: torch.device | str | None = None,
    ) -> None:
        if rho is not None and not 0 <= rho < 1:
            raise InputError(f"rho={rho} must lie in [0, 1), or be null to be fitted")
        if amplitude is not None and not (math.isfinite(amplitude) and amplitude > 0):
            raise InputError(f"amplitude={amplitude} must be a positive number, or null")
        self.queries = QuerySurrogate(space, kernel, num_queries, lam, device)
        self.space, self.kernel, self.lam = space, kernel, lam
        self.num_queries, self.device = num_queries, self.queries.device
        self.scale = CostScale.one(space)
        self.hyperparameters = (Hyperparameters(rho or 0.0, amplitude or 1.0),) * 2  # c, g
        self._rho, self._amplitude, self.relative_cost = rho, amplitude, relative_cost
        self._log: list[tuple[tuple[int, ...], int, float, float]] = []
        self._fitted_at = 0
        self._diagonal: Diagonal | None = None

    def observe(self, theta: tuple[int, ...], query: int, y_c: float, y_g: float) -> None:
        """Adds one observation; see `QuerySurrogate.observe`."""
        self._log.append((theta, query, y_c, y_g))
        self.queries.observe(theta, query, self.relative(theta, y_c), y_g)
        self._diagonal = None

    def relative(self, theta: Sequence[int], y_c: float) -> float:
        """A cost in USD, as the surrogate sees it."""
        return y_c / self.scale.at(theta) - 1 if self.relative_cost else y_c

    def num_observed(self, theta: tuple[int, ...]) -> int:
        """See `QuerySurrogate.num_observed`."""
        return self.queries.num_observed(theta)

    def information(self) -> list[float]:
        """1/2 log det(I + K / (lam (1 - rho))) of all pairs observed, in nats, with g's rho.

        Returns:
            One number: there is one process.
        """
        rho = self.hyperparameters[1].rho
        shared = 0.5 * torch.log1p(rho / (1 - rho) * self.diagonal().e).sum()
        return [math.fsum(self.queries.information()) + float(shared)]

    def refit(self) -> bool:
        """Fits scale and hyperparameters if there are enough new observations.

        rho maximises the marginal likelihood, in closed form, times a normal prior on its logit:
        the few observations after Calibrate leave a maximum at 0 or 1 possible, and at either the
        bounds would be worth nothing. The amplitude is then the one that maximises it.

        Returns:
            Whether anything was fitted; variances may then have grown.
        """
        if not self._log or len(self._log) < REFIT * self._fitted_at:
            return False
        self._fitted_at = len(self._log)
        if self.relative_cost:
            self.scale = fit_cost_scale(self.space, [(t, q, y_c) for t, q, y_c, _ in self._log])
            self._tell_again()
        self.hyperparameters = (self._fit(0), self._fit(1))
        return True

    def log_marginal_likelihood(self, zeta: int, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(y | rho) up to a constant, at the amplitude that maximises it.

        Args:
            zeta: 0 for the cost, 1 for the constraint.
            rho: `m` values in [0, 1).

        Returns:
            `m` log likelihoods in nats, and the `m` squared amplitudes.
        """
        basis = self.diagonal()
        total, square, num_pairs = self.queries.sufficient_statistics()
        t2 = (basis.Y.T @ total[zeta]).square().cpu()
        ratio = rho / (1 - rho)
        growth = 1 + ratio[:, None] * basis.e.cpu()
        shared = (ratio / (1 - rho)) * (t2 / growth).sum(-1)
        quadratic = float(square[zeta]) / (1 - rho) - shared
        log_det = num_pairs * torch.log1p(-rho) + growth.log().sum(-1)
        amplitude2 = quadratic / num_pairs
        if self._amplitude is not None:
            amplitude2 = torch.full_like(quadratic, self._amplitude**2)
        fit = num_pairs * amplitude2.log() + quadratic / amplitude2
        return -0.5 * (fit + log_det), amplitude2

    def aggregates(self) -> tuple[AggregatePosterior, AggregatePosterior]:
        """The posterior of the average over queries, of the (relative) cost and the constraint.

        With r = rho / (1 - rho) and the basis of `Diagonal`,
        mean = k_D^T [T/Q + Z diag(r (1 - e/Q) / (1 + r e)) Y^T T], T = S y summed over queries, and
        V = Z diag(rho + (1 - rho) e / Q^2 - rho (1 - e/Q)^2 / (1 + r e)) Z^T.
        """
        Z, Y, e = self.diagonal()
        total, _, _ = self.queries.sufficient_statistics()
        Q, codes = self.num_queries, self.queries.observed()
        rest = 1 - e / Q
        posteriors = []
        weights = []
        for zeta, (rho, _) in enumerate(self.hyperparameters):
            r = rho / (1 - rho)
            weights.append(total[zeta] / Q + Z @ (r * rest / (1 + r * e) * (Y.T @ total[zeta])))
        for rho, amplitude in self.hyperparameters:
            r = rho / (1 - rho)
            d = rho + (1 - rho) * e / Q**2 - rho * rest**2 / (1 + r * e)
            matrix = amplitude**2 * (Z * d) @ Z.T
            constant = amplitude**2 * (rho + (1 - rho) / Q)
            posteriors.append(AggregatePosterior(codes, torch.stack(weights), matrix, constant))
        return posteriors[0], posteriors[1]

    def diagonal(self) -> Diagonal:
        """See `Diagonal`; made anew after observations."""
        if self._diagonal is None:
            L = torch.linalg.cholesky(self.queries.gram())
            e, U = torch.linalg.eigh(L.T @ self.queries.sum_of_inverses() @ L)
            Z = torch.linalg.solve_triangular(L.T, U, upper=True)
            # S is positive semidefinite: what is below 0 is rounding.
            self._diagonal = Diagonal(Z, L @ U, e.clamp_min(0.0))
        return self._diagonal

    def _fit(self, zeta: int) -> Hyperparameters:
        rho = torch.sigmoid(_LOGITS)
        if self._rho is not None:
            rho = torch.full((1,), self._rho, dtype=torch.float64)
        likelihood, amplitude2 = self.log_marginal_likelihood(zeta, rho)
        if self._rho is None:
            likelihood -= 0.5 * ((_LOGITS - _PRIOR_LOGIT) / _PRIOR_SPREAD) ** 2
        best = int(likelihood.argmax())
        # All observations equal to the prior mean leave no scale: any positive one will do.
        amplitude = math.sqrt(max(float(amplitude2[best]), 1e-12))
        return Hyperparameters(float(rho[best]), amplitude)

    def _tell_again(self) -> None:
        old = self.queries
        self.queries = QuerySurrogate(
            self.space, self.kernel, self.num_queries, old.lam, self.device
        )
        for theta, query, y_c, y_g in self._log:
            self.queries.observe(theta, query, self.relative(theta, y_c), y_g)
        self._diagonal = None
