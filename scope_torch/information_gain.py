"""Upper bounds on the maximum information gain gamma(J) (before eq:beta-def)."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.hamming_grid import make_grid
from scope_torch.space import ConfigSpace


class InformationGain:
    """gamma(J) = max over A of size J of 1/2 log det(I + K_A / lam), bounded from above.

    The objective F is monotone and submodular, and its greedy maximiser A_k costs one sum over
    Theta a step. Two facts bound the maximum: F(A_J) / (1 - 1/e) (Nemhauser et al.), and
    F(A_k) + J d_{k+1} for every k <= J, d the greedy gains. With a small lam the second is much
    the tighter: the first gain is already J log(1 + 1/lam) / 2, Hadamard's bound.

    A is a multiset: an algorithm may observe a pair again, and the information gain in
    lem:kernel-self-normalized counts repeats. A maximum over sets, as the paper prints it, stops
    growing at J = |Theta|, where the left-hand side does not.

    Args:
        space: Theta.
        kernel: k, with k(theta, theta) = 1.
        lam: lambda.
        device: Where the sums over Theta run (float64).
    """

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        lam: float,
        device: torch.device | str | None = None,
    ) -> None:
        self.space = space
        self.kernel = kernel
        self.lam = lam
        self._grid = make_grid(space, kernel, device)
        device = self._grid.device
        self._variance = torch.ones(space.size, dtype=torch.float64, device=device)
        self._chosen = torch.zeros(0, space.num_modules, dtype=torch.int64, device=device)
        self._factor = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self._greedy = [0.0]
        self._gains: list[float] = []

    def greedy(self, size: int) -> float:
        """F of the greedy multiset of `size` elements: a lower bound on gamma(size), in nats."""
        while len(self._gains) < size:
            self._extend()
        return self._greedy[size]

    def gamma(self, size: int) -> float:
        """Upper bound on the maximum information gain of `size` observations, in nats."""
        if size == 0:
            return 0.0
        greedy = self.greedy(size)
        online = min(self._greedy[k] + size * self._gains[k] for k in range(size))
        return min(greedy / (1 - math.exp(-1)), online)

    def _extend(self) -> None:
        """Adds the configuration of largest variance and updates all variances by rank one."""
        best = int(self._variance.argmax())
        variance = float(self._variance[best])
        self._gains.append(0.5 * math.log1p(variance / self.lam))
        self._greedy.append(self._greedy[-1] + self._gains[-1])
        new = self.space.unrank(torch.tensor([best], device=self._grid.device))
        weights = torch.ones(1, dtype=torch.float64, device=new.device)
        if len(self._chosen):
            cross = self._matrix(self._chosen, new)
            solved = torch.cholesky_solve(cross, self._factor).squeeze(-1)
            weights = torch.cat([-solved, weights])
        self._chosen = torch.cat([self._chosen, new])
        covariance = self._grid.weighted_sum(self._chosen, weights)
        self._variance -= covariance.square_() / (variance + self.lam)
        gram = self._matrix(self._chosen, self._chosen)
        gram.diagonal().add_(self.lam)
        self._factor = torch.linalg.cholesky(gram)

    def _matrix(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.kernel(x1.double(), x2.double()).to_dense()
