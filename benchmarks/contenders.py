"""Ways to the same numbers: mu_bar_c, mu_bar_g and sigma_bar^2 (eq:scope-mean-variance) on Theta.

Each is made from a `Case`, which is where it conditions on the data, and then called with flat
indices of configurations; it returns `3 x len(index)` values (float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel as SklearnKernel
from torch import Tensor

from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace

NUM_LLMS = 23
LAM = 1e-6
Row = tuple[tuple[int, ...], int, float, float]  # theta, query, y_c in USD, y_g in quality
Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Observations as searches leave them: every configuration on a prefix of the queries.

    Args:
        num_modules: N.
        num_configs: |D|, distinct observed configurations.
        num_queries: Q.
        num_groups: Sets of queries with equal histories.
        num_llms: M, the same for each module.
    """

    num_modules: int
    num_configs: int
    num_queries: int
    num_groups: int
    num_llms: int = NUM_LLMS
    history: list[Row] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        prefixes = rng.choice(np.arange(1, self.num_queries + 1), self.num_groups - 1, False)
        thetas = self.space.sample(self.num_configs, torch.Generator().manual_seed(0))
        history = [
            (theta, query, float(rng.random()), float(rng.normal()))
            for theta in thetas
            for query in range(int(rng.choice(prefixes)))
        ]
        object.__setattr__(self, "history", history)

    @property
    def space(self) -> ConfigSpace:
        """Theta."""
        return ConfigSpace((self.num_llms,) * self.num_modules)

    def of_query(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes, `J x N`, and observations (y_c, y_g), `J x 2`, of a query."""
        own = [row for row in self.history if row[1] == query]
        codes = np.array([row[0] for row in own], dtype=np.float64)
        return codes.reshape(-1, self.num_modules), np.array([row[2:] for row in own])


class Collapsed:
    """This package: the queries' surrogates summed on D, and then over Theta."""

    def __init__(self, case: Case, direct: bool = False) -> None:
        kernel = HammingMatern52Kernel()
        surrogate = QuerySurrogate(case.space, kernel, case.num_queries, LAM)
        for row in case.history:
            surrogate.observe(*row)
        self._posterior = surrogate.aggregate()
        self._grid = (DirectGrid if direct else HammingGrid)(case.space, kernel)

    def __call__(self, index: Tensor) -> Tensor:
        """On all of Theta, of which `index` is taken."""
        posterior, grid = self._posterior, self._grid
        values = [grid.weighted_sum(posterior.codes, weights) for weights in posterior.weights]
        values.append(posterior.constant - grid.quadratic_form(posterior.codes, posterior.matrix))
        return torch.stack([value[index] for value in values])


class Direct(Collapsed):
    """The same collapsed surrogate, evaluated configuration by configuration."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, direct=True)

    def __call__(self, index: Tensor) -> Tensor:
        """At the configurations of `index` only."""
        posterior, grid = self._posterior, self._grid
        parts = []
        for part in index.split(1 << 14):
            sums = [grid.weighted_sum_at(part, posterior.codes, w) for w in posterior.weights]
            form = grid.quadratic_form_at(part, posterior.codes, posterior.matrix)
            parts.append(torch.stack([*sums, posterior.constant - form]))
        return torch.cat(parts, -1)


class _Masked(Kernel):
    """`base` where the last column is 1, and 0 where it is 0: rows that are only padding."""

    has_lengthscale = False

    def __init__(self, base: Kernel) -> None:
        super().__init__()
        self.base = base

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        both = x1[..., -1] * x2[..., -1] if diag else x1[..., -1:] * x2[..., -1:].mT
        return self.base.forward(x1[..., :-1], x2[..., :-1], diag=diag, **params) * both


class _BatchedGP(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9)).double()
        likelihood.noise = LAM
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=x.shape[:1])
        self.covar_module = _Masked(HammingMatern52Kernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class BatchedGPyTorch:
    """GPyTorch's ExactGP with a batch of Q, shorter histories padded; exact, without jitter."""

    chunk = 256  # GPyTorch makes the covariance of the test points: Q x chunk x chunk

    def __init__(self, case: Case) -> None:
        self._case = case
        by_query = [case.of_query(query) for query in range(case.num_queries)]
        longest = max(len(y) for _, y in by_query)
        x = torch.zeros(case.num_queries, longest, case.num_modules + 1, dtype=torch.float64)
        y = torch.zeros(2, case.num_queries, longest, dtype=torch.float64)
        for query, (codes, values) in enumerate(by_query):
            count = len(values)
            x[query, :count, :-1] = torch.from_numpy(codes)
            x[query, :count, -1] = 1
            if count:
                y[:, query, :count] = torch.from_numpy(values.T)
        self._models = [_BatchedGP(x, values).eval() for values in y]

    def __call__(self, index: Tensor) -> Tensor:
        """At the configurations of `index`."""
        num_queries = self._case.num_queries
        out = []
        with (
            torch.no_grad(),
            gpytorch.settings.fast_computations(False, False, False),
            gpytorch.settings.max_cholesky_size(4096),
            gpytorch.settings.cholesky_max_tries(1),
        ):
            for part in index.split(self.chunk):
                codes = self._case.space.unrank(part).double()
                test = torch.cat([codes, codes.new_ones(len(codes), 1)], -1)
                test = test.expand(num_queries, *test.shape)
                c = self._models[0](test)
                with gpytorch.settings.skip_posterior_variances(True):
                    mean_g = self._models[1](test).mean.mean(0)
                variance = c.variance.sum(0) / num_queries**2
                out.append(torch.stack([c.mean.mean(0), mean_g, variance]))
        return torch.cat(out, -1)


class _SklearnMatern52(SklearnKernel):
    """The Matern 5/2 kernel of d = sqrt(Hamming distance)."""

    def __init__(self) -> None:
        """Without parameters; scikit-learn looks for them here."""

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> np.ndarray:
        assert not eval_gradient
        other = X if Y is None else Y
        h = sum((X[:, None, i] != other[None, :, i]).astype(np.float64) for i in range(X.shape[1]))
        d = np.sqrt(h)
        return (1 + math.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-math.sqrt(5) * d)

    def diag(self, X: Any) -> np.ndarray:
        """Ones."""
        return np.ones(len(X))

    def is_stationary(self) -> bool:
        """Not in scikit-learn's sense."""
        return False


class SklearnLoop:
    """A scikit-learn GP for each query, one after the other."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._models = []
        for query in range(case.num_queries):
            codes, y = case.of_query(query)
            if len(y):
                model = GaussianProcessRegressor(_SklearnMatern52(), alpha=LAM, optimizer=None)
                self._models.append(model.fit(codes, y))

    def __call__(self, index: Tensor) -> Tensor:
        """At the configurations of `index`."""
        codes = self._case.space.unrank(index).double().numpy()
        num_queries = self._case.num_queries
        total = np.zeros((3, len(codes)))
        for model in self._models:
            mean, sigma = model.predict(codes, return_std=True)
            total[:2] += mean.T / num_queries
            total[2] += sigma[:, 0] ** 2 / num_queries**2
        total[2] += (num_queries - len(self._models)) / num_queries**2
        return torch.from_numpy(total)
