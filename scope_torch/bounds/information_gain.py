"""Upper bounds on the maximum information gain gamma(J) (before eq:beta-def).

| symbol | here | unit |
| --- | --- | --- |
| F(A) = 1/2 log det(I + K_A / lam) | | nats |
| gamma(J) = max over multisets A of size J of F(A) | `gamma`, an upper bound | nats |
| F(A_k), A_k the greedy multiset | `greedy`, a lower bound | nats |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.kernels import kernel_matrix
from scope_torch.space import ConfigSpace

_POOL = 1 << 14  # configurations that greedy chooses from; spaces up to this size are all in it
_SLACK = 5e-3  # how much less than the best of Theta a choice from the pool may gain, relatively


class RealisedGain(NamedTuple):
    """The information in the observations, which the surrogate keeps, instead of its maximum."""

    kernel: Kernel
    lam: float
    name: str = "realised"


class InformationGain:
    """gamma(J) = max over A of size J of 1/2 log det(I + K_A / lam), bounded from above.

    The objective F is monotone and submodular. Greedy adds the configuration that gains most to
    A_k, or, in a large space, one that gains at least 1 - eps of that (eps = 0.005). Two facts
    bound the maximum: F(A_J) / (1 - e^(eps - 1)) (Nemhauser et al.), and F(A_k) + J d_{k+1} for
    every k < J, with d_{k+1} no less than any configuration gains after A_k. With a small lam the
    second is much tighter: already J d_1 is Hadamard's bound J log(1 + 1/lam) / 2.

    In a large space greedy chooses from a pool; all of Theta is looked at only when the pool has no
    good enough choice any more. Until then the largest variance seen bounds every gain, because
    variances only fall. A space too large to enumerate is never looked at: there Hadamard's bound
    stands for gamma. (With small lam that is close, because variances stay near 1.)

    A is a multiset: an algorithm may observe a pair again, and the information gain in
    lem:kernel-self-normalized counts repeats. A maximum over sets, as the paper prints it, stops
    growing at J = |Theta|, where the left-hand side does not.

    Args:
        space: Theta.
        kernel: k, with k(theta, theta) = 1.
        lam: lambda.
        device: Where the sums over Theta run (float64).
    """

    name = "maximum"

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
        fits = space.size <= MAX_ENUMERATED
        self._grid = make_grid(space, kernel, device) if fits else None
        device = self._grid.device if self._grid is not None else torch.device(device or "cpu")
        self._is_whole = space.size <= _POOL
        self._slack = 0.0 if self._is_whole else _SLACK
        self._chosen = torch.zeros(0, space.num_modules, dtype=torch.int64, device=device)
        self._greedy = [0.0]
        self._gains: list[float] = []
        self._most = 1.0  # at least the variance of every configuration
        generator = torch.Generator().manual_seed(0)
        anywhere = torch.randint(space.size, (_POOL,), generator=generator)
        self._anywhere = torch.arange(space.size) if self._is_whole else anywhere.unique()
        self._set_pool(self._anywhere.to(device))

    def greedy(self, size: int) -> float:
        """F of the greedy multiset of `size` elements: a lower bound on gamma(size), in nats."""
        while len(self._gains) < size:
            self._extend()
        return self._greedy[size]

    def gamma(self, size: int) -> float:
        """Upper bound on the maximum information gain of `size` observations, in nats."""
        if size == 0:
            return 0.0
        if self._grid is None:
            return size * self._gain(1.0)
        greedy = self.greedy(size)
        online = min(self._greedy[k] + size * self._gains[k] for k in range(size))
        return min(greedy / (1 - math.exp(self._slack - 1)), online)

    def _extend(self) -> None:
        """Adds a configuration and updates the variances of the pool by rank one."""
        best = int(self._variance.argmax())
        if self._is_whole:
            self._most = float(self._variance[best])
        good_enough = (1 - self._slack) * self._gain(self._most)
        if self._grid is not None and self._gain(self._variance[best]) < good_enough:
            self._look_at_all()
            best = int(self._variance.argmax())
        variance = float(self._variance[best])
        self._gains.append(self._gain(self._most))
        self._greedy.append(self._greedy[-1] + self._gain(variance))
        n, new = len(self._chosen), self._codes[best : best + 1]
        if n == len(self._rows):
            self._rows = pad(self._rows, (0, 0, 0, max(n, 16)))
        rows = self._rows[:n]
        row = self._matrix(new, self._codes)[0] - rows[:, best] @ rows
        self._rows[n] = row.div_(math.sqrt(variance + self.lam))
        self._variance -= row.square()
        self._chosen = torch.cat([self._chosen, new])

    def _gain(self, variance: Tensor | float) -> float:
        return 0.5 * math.log1p(float(variance) / self.lam)

    def _look_at_all(self) -> None:
        """Looks at the variance of every configuration; the largest join the random pool."""
        assert self._grid is not None
        # n times the same with noise lam is once with lam / n, and well conditioned.
        distinct, count = self._chosen.unique(dim=0, return_counts=True)
        gram = self._matrix(distinct, distinct)
        gram.diagonal().add_(self.lam / count)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        reduction = self._grid.quadratic_form(distinct, inverse)
        least = reduction.topk(min(_POOL, len(reduction)) // 2, largest=False)
        self._most = 1 - float(least.values[0])
        self._set_pool(torch.cat([least.indices, self._anywhere.to(least.indices.device)]).unique())

    def _set_pool(self, index: Tensor) -> None:
        """Codes of the pool, its variances, and L^-1 k_A there, L L^T = K_A + lam I."""
        self._codes = self.space.unrank(index)
        gram = self._matrix(self._chosen, self._chosen)
        gram.diagonal().add_(self.lam)
        cross = self._matrix(self._chosen, self._codes)
        self._rows = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), cross, upper=False)
        self._variance = 1 - self._rows.square().sum(0)

    def _matrix(self, x1: Tensor, x2: Tensor) -> Tensor:
        return kernel_matrix(self.kernel, x1, x2)
