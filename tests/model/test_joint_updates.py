"""The joint surrogate kept up to date by rows: repeats, many steps, and values that others keep."""

import numpy as np
import pytest
import torch
from long_runs import only_long
from test_joint import KERNEL, RHOS, SPACE, THETA, averages, naive, random_history, surrogate_of

from scope_torch.bounds import Beta
from scope_torch.model.hamming_sums import make_grid
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space_search.grid import GridPosterior

PAIR = ((1, 2, 0), 3)
OTHER = ((0, 3, 1), 3)
ONE, TWO = (*PAIR, 0.3, -0.4), (*PAIR, 0.5, 0.2)


def S_and_T(surrogate):
    return surrogate.queries.sum_of_inverses(), surrogate.queries.total().copy()


def check(surrogate, history, rho, atol=1e-11):
    """Means and variances of all averages against the naive process."""
    for zeta, posterior in enumerate(surrogate.aggregates()):
        mean, variance = averages(*naive(history, rho, zeta)[:2])
        index = [THETA.tolist().index(codes) for codes in posterior.codes.tolist()]
        k = surrogate.queries.gram()
        not_written_out = posterior.variance(torch.from_numpy(k))
        np.testing.assert_allclose(not_written_out, variance[index], rtol=0, atol=atol)
        matrix = posterior.matrix.numpy()
        np.testing.assert_allclose(
            k @ posterior.weights[zeta].numpy(), mean[index], rtol=0, atol=100 * atol
        )
        exact = posterior.constant - np.einsum("in,nm,im->i", k, matrix, k)
        np.testing.assert_allclose(exact, variance[index], rtol=0, atol=atol)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize(
    ("before", "repeats", "is_row"),
    [
        ([ONE], [TWO], True),
        ([ONE, TWO, ONE], [TWO], True),  # the fourth time
        ([ONE], [TWO, TWO, ONE], True),  # three times at once
        ([ONE], [TWO, (*OTHER, 0.1, 0.1)], False),  # beside another configuration
        ([], [ONE, TWO], False),  # new, and observed twice
    ],
)
def test_a_repeat_is_a_row(rho, before, repeats, is_row):
    """S and T change by what the update says, as the factors made anew have it."""
    history = [row for row in random_history(20) if row[:2] not in (PAIR, OTHER)] + before
    surrogate = surrogate_of(history, rho)
    surrogate.collapsed()
    S, T = S_and_T(surrogate)
    _, mark = surrogate.queries.updates_since(0)
    for row in repeats:
        surrogate.observe(*row)
    update, _ = surrogate.queries.updates_since(mark)
    assert (update is not None) == is_row
    check(surrogate, history + repeats, rho)
    if update is not None:
        n = len(S)
        assert update.u.shape == (1, n)
        new_S, new_T = S_and_T(surrogate)
        u = update.u
        np.testing.assert_allclose(new_S, S + u.T * update.weight @ u, rtol=0, atol=1e-10)
        np.testing.assert_allclose(new_T, T + update.total @ u, rtol=0, atol=1e-10)
        assert surrogate._num_made == 1  # nothing was made anew


@pytest.mark.parametrize(
    ("rho", "count"),
    [(0.8, 400), *(pytest.param(rho, 1200, marks=[pytest.mark.slow, only_long]) for rho in RHOS)],
)
def test_a_thousand_steps_do_not_drift(rho, count):
    """All observations are taken in by a row each: B, t and every variance stay exact.

    The surrogate makes B anew after as many rows as there are configurations. Here it never does,
    so all are followed. Most are repeats: there are 120 pairs.
    """
    history = random_history(21, count=24)
    surrogate = surrogate_of(history, rho)
    surrogate._fitted_at = 10**9  # a fit makes everything anew
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    posterior.update()
    assert (posterior.variance > 0).all()  # all are made exact, and followed from here
    surrogate._num_added = -(10**9)
    made = surrogate._num_made
    for row in random_history(22, count=count):
        surrogate.observe(*row)
        history.append(row)
        posterior.update()
    assert surrogate._num_made == made
    assert posterior.is_exact(torch.arange(len(THETA))).all()
    for zeta, followed in enumerate((posterior.upper_variance, posterior.upper_variance_g)):
        expected = averages(*naive(history, rho, zeta)[:2])[1]
        np.testing.assert_allclose(followed, expected, rtol=0, atol=1e-11)
    check(surrogate, history, rho)


def grown(history, rho):
    """A surrogate that has room for all of Theta: what it learns is written over what it knew."""
    surrogate = surrogate_of(history[:1], rho)
    for row in history[1:]:
        surrogate.observe(*row)
        surrogate.collapsed()
    return surrogate


@pytest.mark.slow
@pytest.mark.parametrize("make", [surrogate_of, grown])
def test_what_is_kept_keeps_its_values(make):
    """A candidate goes on while the surrogate takes in its observations, and those of others."""
    history = random_history(23)
    theta, beta = (2, 1, 1), Beta(1.0, 1.0, 2.0)
    one, two = (
        JointCandidate(make(history, 0.3), theta, [3, 1, 4, 0, 2], in_order=True) for _ in range(2)
    )
    B = two._surrogate.collapsed()[0].B
    values = B.clone()
    average = two._surrogate.aggregates()[0]
    k = torch.from_numpy(two._surrogate.queries.gram().copy())
    variance = average.variance(k)
    two._surrogate._num_added = -(10**9)  # B is followed by rows, and never made anew
    for step, query in enumerate([3, 1, 4, 0, 2]):
        for candidate in (one, two):
            assert candidate.next_queries(1) == [query]
            candidate.update(query, 0.1 * step, 0.2)
        two._surrogate.observe(theta, query, 0.1 * step, 0.2)
        for row in random_history(30 + step, count=20):
            two._surrogate.observe(*row)
            two._surrogate.collapsed()
        assert one.upper_c(beta) == two.upper_c(beta)
        assert one.upper_g(beta) == two.upper_g(beta)
    assert torch.equal(B, values)
    assert torch.equal(average.variance(k), variance)
