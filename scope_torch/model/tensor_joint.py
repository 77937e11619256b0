"""The joint surrogate of `joint.py` with its algebra on the device, for all outputs at once.

| symbol | here | shape |
| --- | --- | --- |
| S, K_D, with room | `QueryGPs.S`, `_K` | `columns x columns` |
| w = T / Q | `QueryGPs.w` | `(1 + K) x columns` |
| L, S = L L^T; R R^T = (I + r L^T K_D L) / c | | `columns x columns` |
| X = R^-1 L^T, so that X^T X = c B | | `2 x columns x columns` |
| c B, of the variances of the averages | `OnDevice.forms` | `2 x columns x columns` |
| a t = a (T - r B K_D T), of their means | `OnDevice.weights` | `(1 + K) x columns` |

a, b and c are those of `Hyperparameters.of_average`. The K constraints share r, so there are two B,
and the second c is that of the first constraint. B is made anew after each candidate: on a
device its cubic cost is small beside a pass over Theta. A 1 on the diagonal stands for each column
without a configuration; nothing refers to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import solve_triangular
from torch import Tensor

from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.factor import Array
from scope_torch.model.gpytorch_model import Predicted
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.joint_groups import Output, PosteriorAt
from scope_torch.model.tensor_surrogate import TensorSurrogate


class OnDevice(NamedTuple):
    """The averages, of cost and constraints, up to the last observation.

    Args:
        weights: `(1 + K) x columns`.
        forms: `2 x columns x columns`.
        constants: `2`, the first b: variances of the averages before any observation.
        root: `2 x columns x columns`, R.
    """

    weights: Tensor
    forms: Tensor
    constants: Tensor
    root: Tensor


class _Fixed(NamedTuple):
    """Constants of the hyperparameters on the device; `unused` is 1 for columns without a use."""

    eye_over_c: Tensor  # `2 x columns x columns`
    r_over_c: Tensor  # `2 x 1 x 1`
    of_w: Tensor  # `2 x (1 + K) x 1`, what w is multiplied by: a Q, and a Q r / c
    b: Tensor  # `2`
    unused: Tensor  # `columns x columns`


class BesideProducts(NamedTuple):
    """Another configuration, with o its kernel with D (numpy); see `Products`.

    Args:
        theta: Its codes.
        k_o: Its kernel with the configuration of `Products`.
        o_c: o^T c_q: `Q`.
        o_B_x: o^T B x_q: `2 x Q`.
        o_B_o: o^T B o: `2`.
        o_t: o^T t: `1 + K`.
    """

    theta: tuple[int, ...]
    k_o: float
    o_c: Array
    o_B_x: Array
    o_B_o: Array
    o_t: Array


class Products(NamedTuple):
    """One configuration, as the joint posterior of all queries sees it (numpy).

    With c_q = A_q k, x_q = k - K_D c_q, and B of cost and constraints:

    Args:
        known: mu_hat of cost and constraints: `(1 + K) x Q`.
        k_c: k^T c_q: `Q`.
        c_x: c_q^T x_p: `Q x Q`.
        x_B_x: x_q^T B x_p: `2 x Q x Q`.
        k_B_x: k^T B x_q: `2 x Q`.
        k_B_k: k^T B k: `2`.
        x_t: x_q^T t: `(1 + K) x Q`.
        k_t: k^T t: `1 + K`.
        beside: Another configuration that was asked for at the same time.
    """

    known: Array
    k_c: Array
    c_x: Array
    x_B_x: Array
    k_B_x: Array
    k_B_k: Array
    x_t: Array
    k_t: Array
    beside: BesideProducts | None


class AtTheta(NamedTuple):
    """Arguments of `Output.start`: each query is a group."""

    covariance: Array
    with_average: Array
    own: Array
    mean: Array


class AveragesBeside(NamedTuple):
    """The averages at a configuration beside theta_cand, and the information of all answers."""

    theta: tuple[int, ...]
    cost: Output
    constraints: list[Output]
    information: float


class TensorJointSurrogate(JointSurrogate):
    """As `JointSurrogate`, on the device. Arguments as there."""

    make_queries = TensorSurrogate
    queries: TensorSurrogate

    _state: OnDevice | None = None
    _made_of: tuple[object, ...] = ()  # the observations and hyperparameters of `_state`
    _log_det: float | None = None  # log det(I + r S K_D) of the constraint
    _fixed: tuple[object, _Fixed] | None = None
    _K: Tensor | None = None
    _num_in_K = 0
    _last: tuple[Predicted, Products] | None = None

    def at(self, theta: tuple[int, ...], first: Sequence[int] = ()) -> PosteriorAt:  # noqa: ARG002
        """See `JointSurrogate.at`."""
        return TensorJointPosterior(self, theta)

    def on_device(self) -> OnDevice:
        """Weights and forms up to the last observation; nothing waits for the device."""
        gps = self.queries.of_queries()
        made_of = (gps, gps.rows, len(self._log), self.hyperparameters)
        if self._state is None or self._made_of != made_of:
            self._state, self._made_of, self._log_det = self._collapse(), made_of, None
        return self._state

    def aggregates(self) -> tuple[AggregatePosterior, AggregatePosterior]:
        """See `JointSurrogate.aggregates`."""
        weights, forms, constants, _ = self.on_device()
        codes = self.observed()
        n = len(codes)
        of_c, of_g = (
            AggregatePosterior(codes, weights[:, :n], form[:n, :n], b)
            for form, b in zip(forms, constants.tolist(), strict=True)
        )
        return of_c, of_g

    def weights(self) -> Tensor:
        """See `JointSurrogate.weights`."""
        return self.on_device().weights[:, : len(self.queries.codes())]

    def information(self) -> list[float]:
        """See `JointSurrogate.information`; waits for the device, except after `products_at`."""
        if (after := self.beside()) is not None:
            return [after.information]
        root = self.on_device().root
        if self._log_det is None:
            self._set_log_det(root[1].diagonal().cpu().numpy())
        return [self._known_information()]

    def _known_information(self) -> float:
        assert self._log_det is not None
        return math.fsum(self.queries.gps.information) + 0.5 * self._log_det

    def products_at(self, theta: tuple[int, ...]) -> Products:
        """All that the j-loop needs to know of `theta`; one wait for the device."""
        weights, forms, _, root = self.on_device()
        gps, Q, other = self.queries.gps, self.num_queries, self.queries.looked_at_beside
        k, rows, _, solved = gps.solve(theta, other)
        m = gps.num_outputs
        c, rows = solved[:, 0, m:], rows[:, m:]
        x = torch.cat([torch.addmm(rows[:1], c, self._gram(), alpha=-1), rows])  # of k, o too
        products = torch.cat([c, (x @ forms).flatten(0, 1), weights]) @ x.T
        parts = products.flatten(), solved[:, 0, :m].T.flatten(), root[1].diagonal()
        flat = torch.cat(parts).cpu().numpy()
        if not np.isfinite(flat).all():
            raise RuntimeError("the covariance of the observations is not positive definite")
        of_x, known, diagonal = np.split(flat, [products.numel(), products.numel() + m * Q])
        self._set_log_det(diagonal)
        of_x, known = of_x.reshape(-1, len(x)), known.reshape(m, Q)
        of_c, of_B, of_t = np.split(of_x, [Q, Q + 2 * len(x)])
        a, _, c_of = np.array(self.of_average()).T
        B, t = of_B.reshape(2, len(x), len(x)) / c_of[:2, None, None], of_t / a[:, None]
        beside = None
        if other is not None:
            of_o = of_c[:, -1], B[:, -1, :Q], B[:, -1, -1], t[:, -1]
            beside = BesideProducts(other, gps.kernel_of(theta, other), *of_o)
        predicted = Predicted(theta, k, solved[:, 0], known, 1 - of_c[:, Q])
        self.queries.keep(predicted)
        of_k = B[:, :Q, :Q], B[:, Q, :Q], B[:, Q, Q], t[:, :Q], t[:, Q]
        products = Products(known, of_c[:, Q], of_c[:, :Q], *of_k, beside)
        self._last = predicted, products
        return products

    def beside(self) -> AveragesBeside | None:
        """Averages beside theta_cand after its new answers; None if the device must be asked.

        With y the answers, m their means and R R^T their covariance before, s their covariance with
        an average: its mean grows by s^T (R R^T)^-1 (y - m), and its variance falls by
        s^T (R R^T)^-1 s.
        """
        answers, last = self.queries.answers(), self._last
        if answers is None or last is None or answers[0] is not last[0] or not last[1].beside:
            return None
        (_, products), (_, queries, y), o = last, answers, last[1].beside
        outputs, information = list[Output](), 0.0
        for zeta, (a, b, c) in enumerate(self.of_average()):
            rho, amplitude = self.hyperparameters[zeta]
            own, before, of = amplitude**2 * (1 - rho), self.before(products, zeta), min(zeta, 1)
            noise, of_query = own * self.lam, o.k_o - o.o_c
            s = amplitude**2 * rho * (of_query - a * o.o_B_x[of])
            s += own * of_query / self.num_queries
            gram = before.covariance[np.ix_(queries, queries)]
            root = np.linalg.cholesky(gram + np.diag(before.own[queries] + noise))
            off = y[zeta] - (products.known[zeta] + before.mean)[queries]
            off, s = solve_triangular(root, np.stack([off, s[queries]], 1), lower=True).T
            mean, variance = a * o.o_t[zeta] + s @ off, b - c * o.o_B_o[of] - s @ s
            outputs.append(Output(float(mean), float(variance), noise, self.num_queries))
            information = float(np.log(root.diagonal() / math.sqrt(noise)).sum())
        of_c, *of_g = outputs
        return AveragesBeside(o.theta, of_c, of_g, self._known_information() + information)

    def before(self, products: Products, zeta: int) -> AtTheta:
        """One output at a configuration, before its new answers."""
        rho, amplitude = self.hyperparameters[zeta]
        r, (a, _, _) = self.hyperparameters[zeta].r, self.of_average()[zeta]
        shared, own, of_query = amplitude**2 * rho, amplitude**2 * (1 - rho), 1 - products.k_c
        of = min(zeta, 1)  # the constraints share B
        return AtTheta(
            covariance=shared * (of_query - products.c_x - r * products.x_B_x[of]),
            with_average=shared * (of_query - a * products.k_B_x[of]),
            own=own * of_query,
            mean=r * products.x_t[zeta],
        )

    def _set_log_det(self, diagonal: Array) -> None:
        """From the diagonal of R of the constraint: R R^T = (I + r L^T K_D L) / c."""
        n, c = len(self.queries.codes()), self.of_average()[1][2]
        self._log_det = 2 * float(np.log(diagonal[:n]).sum()) + n * math.log(c)

    def _collapse(self) -> OnDevice:
        gps, K, n = self.queries.of_queries(), self._gram(), len(self.queries.codes())
        fixed = self._fixed_for(len(K))
        fixed.unused.diagonal()[:n].fill_(0.0)
        L, _ = torch.linalg.cholesky_ex(gps.S + fixed.unused)
        inner = torch.addcmul(fixed.eye_over_c, fixed.r_over_c, L.T @ (K @ L))
        root, _ = torch.linalg.cholesky_ex(inner)
        X = torch.linalg.solve_triangular(root, L.T.expand_as(root), upper=False)
        forms = X.mT @ X
        start, times_r_over_c = gps.w * fixed.of_w
        explains = (times_r_over_c @ K)[..., None]
        of_output = forms
        if (m := gps.num_outputs) > 2:
            of_output = torch.cat([forms[:1], forms[1:].expand(m - 1, -1, -1)])
        weights = torch.baddbmm(start[..., None], of_output, explains, alpha=-1)[..., 0]
        return OnDevice(weights, forms, fixed.b, root)

    def _fixed_for(self, columns: int) -> _Fixed:
        made_for = self.hyperparameters, columns
        if self._fixed is None or self._fixed[0] != made_for:
            a, b, c = np.array(self.of_average()).T
            r = np.array([one.r for one in self.hyperparameters])
            eye, of_g = np.eye(columns), np.minimum(range(len(c)), 1)
            of_w = np.stack([a, a * r / c[of_g]])[..., None] * self.num_queries
            two = eye / c[:2, None, None], (r / c)[:2, None, None]
            values = *two, of_w, b[:2], eye
            self._fixed = made_for, _Fixed(*map(self._to_device, values))
        return self._fixed[1]

    def _gram(self) -> Tensor:
        """K_D with room: `columns x columns`; only new rows go to the device."""
        self.queries.codes()
        gram, n, columns = self.queries.gram(), self._num_in_K, self.queries.gps.S.shape[0]
        if self._K is None or len(self._K) != columns:
            self._K = torch.zeros(columns, columns, dtype=torch.float64, device=self.device)
            n = 0
        if n < len(gram):
            new = torch.from_numpy(gram[n:])
            self._K[n : len(gram), : len(gram)].copy_(new)
            self._K[: len(gram), n : len(gram)].copy_(new.T)
        self._num_in_K = len(gram)
        return self._K

    def _S_T_K(self) -> tuple[Tensor, Tensor, Tensor]:
        gps, n = self.queries.of_queries(), len(self.queries.codes())
        return gps.S[:n, :n], gps.w[:, :n] * self.num_queries, self._gram()[:n, :n]

    def _to_device(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


class TensorJointPosterior:
    """As `JointPosterior`, with every query a group of its own, and all of them open.

    In the middle of the j-loop of theta_cand, theta_out has averages only, which are known on the
    CPU (see `TensorSurrogate.look_beside`).

    Args:
        surrogate: Up to date; what it takes in later changes nothing here.
        theta: Codes of the configuration.
    """

    def __init__(self, surrogate: TensorJointSurrogate, theta: tuple[int, ...]) -> None:
        num_queries = surrogate.num_queries
        self.num_open = num_queries
        after = surrogate.beside()
        if after is not None and after.theta == theta:
            self._known, self.cost, self.constraints = None, after.cost, after.constraints
            return
        products = surrogate.products_at(theta)
        self._known = products.known
        outputs = []
        for zeta, (a, b, c) in enumerate(surrogate.of_average()):
            rho, amplitude = surrogate.hyperparameters[zeta]
            noise = amplitude**2 * (1 - rho) * surrogate.lam
            mean, variance = a * products.k_t[zeta], b - c * products.k_B_k[min(zeta, 1)]
            output = Output(float(mean), float(variance), noise, num_queries)
            output.start(*surrogate.before(products, zeta))
            outputs.append(output)
        self.cost, *self.constraints = outputs

    def place_of(self, query: int) -> int:
        """The query."""
        return query

    def is_open(self, query: int) -> bool:  # noqa: ARG002
        """True."""
        return True

    def open(self, queries: Sequence[int]) -> None:
        """Does nothing."""

    def plan(self, query: int) -> None:
        """Asks for an observation of `query`."""
        assert self._known is not None
        for output, known in zip((self.cost, *self.constraints), self._known, strict=True):
            output.plan(query, query, float(known[query]))
