"""The per-query surrogate of `per_query.py` on the device, by `gpytorch_model.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.data import Data
from scope_torch.model.factor import Array
from scope_torch.model.gpytorch_model import Beside, Predicted, QueryGPs
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace


class TensorSurrogate(QuerySurrogate):
    """As `QuerySurrogate`, without groups of queries: one batch of Q processes on the device.

    What changed goes up once for each candidate, and one wait brings down its posterior. Arguments
    as in `QuerySurrogate`.

    Examples:
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> surrogate = TensorSurrogate(ConfigSpace((2, 2)), HammingMatern52Kernel(), 3, lam=1e-6)
        >>> surrogate.observe((0, 1), query=0, y_c=0.002, y_g=-0.1)
        >>> surrogate.at((0, 1)).mean_c
        tensor([0.0020, 0.0000, 0.0000], dtype=torch.float64)
    """

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        num_queries: int,
        lam: float,
        device: torch.device | str | None = None,
        num_constraints: int = 1,
    ) -> None:
        super().__init__(space, kernel, num_queries, lam, device, num_constraints)
        self._data = Data(space, kernel, num_queries, torch.device("cpu"), num_constraints)
        self.gps = QueryGPs(kernel, self._data, lam, self.device)
        self._predicted: dict[tuple[int, ...], Predicted] = {}  # since the last update
        self.looked_at_beside: tuple[int, ...] | None = None
        self.times_conditioned = 0
        self._appended: list[tuple[int, int]] = []  # (row, query) since then

    def of_queries(self) -> QueryGPs:
        """The GPyTorch model of all queries, up to the last observation."""
        self._update()
        return self.gps

    def look_beside(self, theta: tuple[int, ...] | None) -> None:
        """Asks the device for `theta` too, whenever it is asked for another configuration.

        Then `theta` is known on the CPU while that one, theta_cand, is observed. So the search can
        ask for the bounds of theta_out in the middle of the j-loop, and nothing goes to the device.
        """
        self.looked_at_beside = theta

    def answers(self) -> tuple[Predicted, list[int], Array] | None:
        """New answers, if they are one of each query at a configuration that is known on the CPU.

        Returns:
            The configuration before the answers, the queries, and the answers, `(1 + K) x m` (USD;
            grades); None if there is more to take in, or nothing.
        """
        if (answers := self._one_answer_each()) and answers[0] in self._predicted:
            return self._predicted[answers[0]], *answers[1:]
        return None

    def information(self) -> list[float]:
        """I_q of every query, in nats; see `QuerySurrogate.information`."""
        answers = self.answers()
        if answers is None:
            self._update()
            return self.gps.information.tolist()
        predicted, queries, _ = answers
        information = self.gps.information.copy()
        information[queries] += 0.5 * np.log1p(predicted.variance[queries] / self.lam)
        return information.tolist()

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes, on the device."""
        return self.codes().to(self.device)

    def codes(self) -> Tensor:
        """D on the CPU."""
        self._update()
        return self._data.codes

    def moments(self, theta: Any) -> tuple[Array, Array]:
        """See `QuerySurrogate.moments`."""
        answers = self.answers()
        other = answers[0].beside if answers else None
        if answers and other and other.theta == tuple(theta):
            return _beside_after(*answers, other, self.lam)
        predicted = self._posterior(theta)
        return predicted.mean, predicted.variance

    def aggregate(self) -> AggregatePosterior:
        """See `QueryGPs.aggregate`."""
        return self.of_queries().aggregate()

    def weights(self) -> Tensor:
        """See `QuerySurrogate.weights`."""
        return self.of_queries().w[:, : self._data.n]

    def total(self) -> Array:
        """See `QuerySurrogate.total`."""
        return self.weights().cpu().numpy() * self.num_queries

    def sum_of_inverses(self) -> Array:
        """See `QuerySurrogate.sum_of_inverses`."""
        self._update()
        n = self._data.n
        return self.gps.S[:n, :n].cpu().numpy()

    def updates_since(self, mark: int) -> tuple[None, int]:  # noqa: ARG002
        """None: whoever wants sums over Theta from this surrogate takes `rows_since`."""
        self._update()
        return None, 0

    def rows_since(self, mark: tuple[int, int]) -> tuple[list[Tensor] | None, tuple[int, int]]:
        """By which rows S has grown since `mark`.

        Args:
            mark: What this returned before; (0, 0) for nothing.

        Returns:
            Rows x of `columns` values, on the device: S has grown by x x^T for each; None if S was
            made anew. And the mark of now.
        """
        self._update()
        now = self.times_conditioned, len(self._appended)
        if mark[0] != now[0]:
            return None, now
        F, m = self.gps.F, self.gps.num_outputs
        return [F[query, row, m:] for row, query in self._appended[mark[1] :]], now

    def _solved(self) -> Array:
        self._update()
        z, W = self.gps.F.tensor_split([self.gps.num_outputs], -1)
        W = W[..., : self._data.n]
        return torch.einsum("qrz,qrn->zqn", z, W).cpu().numpy()

    def _diagonal(self) -> Array:
        self._update()
        n, m = self._data.n, self.gps.num_outputs
        diagonal = self.gps.F[..., m : m + n].square().sum(1).cpu().numpy()
        diagonal[self._data.count[:, :n] == 0] = 1.0
        return diagonal

    def _posterior(self, theta: Any) -> Predicted:
        self._update()
        return self._predicted_at(tuple(theta))

    def keep(self, predicted: Predicted) -> None:
        """Takes a posterior that was computed elsewhere, for the observations that follow."""
        self._predicted[predicted.theta] = predicted

    def _predicted_at(self, theta: tuple[int, ...]) -> Predicted:
        if theta not in self._predicted:
            self._predicted[theta] = self.gps.predict(theta, self.looked_at_beside)
        return self._predicted[theta]

    def _update(self) -> None:
        """Brings everything up to the last observation."""
        if not self._pending:
            return
        answers = self._one_answer_each()
        # With twice as many rows as columns it is made anew: for the memory, and for rounding.
        if answers is None or self.gps.rows >= 2 * self._data.n:
            self._data.add(self._pending, None)
            self.gps.condition()
            self.times_conditioned += 1
            self._appended.clear()
        else:
            theta, queries, y = answers
            predicted = self._predicted_at(theta)
            self._data.add(self._pending, (theta, predicted.k))
            self._appended += [(self.gps.rows, query) for query in queries]
            self.gps.append(predicted, queries, y)
        self._pending.clear()
        self._predicted.clear()

    def _one_answer_each(self) -> tuple[tuple[int, ...], list[int], Array] | None:
        """The configuration, queries and answers of what is new; None if it is anything else."""
        if not self._pending:
            return None
        thetas, queries, values = zip(*self._pending, strict=True)
        if len({*thetas}) > 1 or len({*queries}) < len(queries):
            return None
        return thetas[0], [*queries], np.array(values).T


def _beside_after(
    predicted: Predicted, queries: list[int], y: Array, other: Beside, lam: float
) -> tuple[Array, Array]:
    """Means, `(1 + K) x Q`, and variances, `Q`, of `other` after one answer of some queries each.

    With m and v those of the configuration that answered, and s its covariance with `other`: the
    mean grows by s / (v + lam) (y - m), and the variance falls by s^2 / (v + lam).
    """
    mean, variance, s = other.mean.copy(), other.variance.copy(), other.covariance[queries]
    noisy = predicted.variance[queries] + lam
    mean[:, queries] += s / noisy * (y - predicted.mean[:, queries])
    variance[queries] -= s**2 / noisy
    return mean, variance
