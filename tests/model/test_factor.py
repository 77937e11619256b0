"""Rows added to a factorisation, and memory shared by several, against inverses from scratch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_torch.model import factor as query_group
from scope_torch.model.factor import QueryGroup

LAM = 1e-4


def gram(n: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return np.exp(-((x[:, None] - x[None]) ** 2).sum(-1))


def extend(group: QueryGroup, K: np.ndarray, config: int) -> QueryGroup:
    return group.extended(config, group.whitened(K[config]), LAM)


def check(group: QueryGroup, K: np.ndarray, ids: list[int], count: np.ndarray | None = None):
    """(K_q + lam C_q^-1)^-1, and 1/2 log det(I + K / lam) with repeats written out."""
    count = np.ones(len(ids), dtype=int) if count is None else count
    assert group.ids.tolist() == ids
    matrix = K[np.ix_(group.ids, group.ids)]
    np.testing.assert_allclose(
        group.W.T @ group.W, np.linalg.inv(matrix + LAM * np.diag(1 / count)), rtol=1e-7, atol=1e-7
    )
    assert not np.triu(group.W, 1).any()
    repeated = np.repeat(np.array(ids, dtype=int), count)
    _, log_det = np.linalg.slogdet(np.eye(len(repeated)) + K[np.ix_(repeated, repeated)] / LAM)
    assert group.information == pytest.approx(log_det / 2, rel=1e-9, abs=1e-12)


def test_nothing_observed():
    check(QueryGroup.of_none(), np.zeros((0, 0)), [])


def test_made_anew_with_repeats():
    K, ids, count = gram(6), np.array([4, 0, 3]), np.array([1, 3, 2])
    check(QueryGroup.of(K, ids, count, LAM), K, [4, 0, 3], count)


def test_rows_after_repeats():
    K, count = gram(8), np.array([2, 1])
    group = QueryGroup.of(K, np.array([5, 1]), count, LAM)
    for config in (0, 7):
        group = extend(group, K, config)
    check(group, K, [5, 1, 0, 7], np.array([2, 1, 1, 1]))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(room=st.integers(1, 4), choices=st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_histories_that_begin_alike(room, choices):
    """Any group of a tree grows at any time; the others stay as they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_group, "_ROOM", room)
        K = gram(12, len(choices))
        tree = [(QueryGroup.of_none(), list[int]())]
        for choice in choices:
            group, ids = tree[choice % len(tree)]
            new = [config for config in range(12) if config not in ids]
            if not new:
                continue
            config = new[choice // 97 % len(new)]
            tree.append((extend(group, K, config), [*ids, config]))
        for group, ids in tree:
            check(group, K, ids)


def test_a_row_is_added_in_place():
    """The memory of a long history is not copied for each row."""
    K, group, memories = gram(30), QueryGroup.of_none(), set[int]()
    for config in range(30):
        group = extend(group, K, config)
        memories.add(id(group.memory))
        assert group.memory is not None
        assert np.shares_memory(group.W, group.memory.W)
    check(group, K, list(range(30)))
    assert len(memories) <= math.ceil(30 / query_group._ROOM)
