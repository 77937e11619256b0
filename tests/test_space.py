"""Theta: indices, neighbours, samples and tie-breaking."""

import itertools
import math
from collections import Counter

import naive
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scope_torch.errors import InputError
from scope_torch.space import ConfigSpace, check_seed, first_tied, splitmix64, tie_rank, tie_width

MASK = 2**64 - 1
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
EXTREME = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
UINT64 = st.one_of(st.sampled_from(EXTREME), st.integers(0, MASK))


def signed(x: int) -> int:
    x &= MASK
    return x - 2**64 if x >= 2**63 else x


@pytest.mark.parametrize("seed", [None, True, [1], "1", 0.5, math.nan, math.inf])
def test_what_is_no_seed_is_refused_by_name(seed):
    with pytest.raises(InputError, match="must be a whole number"):
        check_seed(seed)


def test_a_seed_of_numpy_or_a_whole_float_is_that_number():
    seeds = [check_seed(seed) for seed in (np.int64(-3), np.float64(-3), -3.0, -3)]
    assert seeds == [-3] * 4
    assert {type(seed) for seed in seeds} == {int}


def all_codes(sizes):
    return list(itertools.product(*(range(size) for size in sizes)))


@pytest.mark.slow
@given(SIZES)
def test_flat_index_is_lexicographic_order(sizes):
    space, codes = ConfigSpace(sizes), all_codes(sizes)
    assert space.size == len(codes) == math.prod(sizes)
    assert space.num_modules == len(sizes)
    index = torch.arange(space.size)
    assert [tuple(row) for row in space.unrank(index).tolist()] == codes
    assert torch.equal(space.rank(torch.tensor(codes)), index)
    assert [space.theta_at(i) for i in range(space.size)] == codes
    assert [space.index_of(theta) for theta in codes] == list(range(space.size))


@pytest.mark.slow
@given(SIZES, st.data())
def test_reshaping_by_sizes_indexes_by_codes(sizes, data):
    space = ConfigSpace(sizes)
    grid = torch.arange(space.size).reshape(sizes)
    theta = data.draw(st.sampled_from(all_codes(sizes)))
    assert int(grid[theta]) == int(space.rank(torch.tensor(theta)))


@pytest.mark.slow
@given(st.lists(st.integers(1, 10**4), min_size=1, max_size=4).map(tuple), st.data())
def test_roundtrip_in_large_spaces_and_any_batch_shape(sizes, data):
    space = ConfigSpace(sizes)
    index = torch.tensor(
        data.draw(st.lists(st.integers(0, space.size - 1), min_size=6, max_size=6))
    ).reshape(2, 3)
    codes = space.unrank(index)
    assert codes.shape == (2, 3, len(sizes))
    assert codes.dtype == torch.int64
    assert bool((codes >= 0).all())
    assert bool((codes < torch.tensor(sizes)).all())
    assert torch.equal(space.rank(codes), index)


def test_paper_size():
    assert ConfigSpace((23,) * 5).size == 6_436_343


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0), (2, -1)])
def test_empty_spaces_are_refused(sizes):
    with pytest.raises(InputError, match="at least one module"):
        ConfigSpace(sizes)


@pytest.mark.parametrize("theta", [(0,), (0, 0, 0), (2, 0), (0, 3), (-1, 0)])
def test_check_refuses_what_is_no_configuration(theta):
    with pytest.raises(InputError, match="start"):
        ConfigSpace((2, 3)).check(theta, "start")


def test_check_returns_python_ints():
    checked = ConfigSpace((2, 3)).check(torch.tensor([1, 2]))
    assert checked == (1, 2)
    assert all(type(code) is int for code in checked)


@pytest.mark.slow
@given(SIZES, st.data())
def test_neighbours_are_theta_1(sizes, data):
    base = data.draw(st.sampled_from(all_codes(sizes)))
    neighbours = ConfigSpace(sizes).neighbours(base)
    expected = {
        t for t in all_codes(sizes) if sum(a != b for a, b in zip(t, base, strict=True)) < 2
    }
    assert len(neighbours) == len(set(neighbours)) == 1 + sum(size - 1 for size in sizes)
    assert set(neighbours) == expected
    assert neighbours == naive.calibrate_pool(sizes, base, "base", torch.Generator())


def test_neighbours_go_module_by_module():
    assert ConfigSpace((2, 3)).neighbours((0, 1)) == [(0, 1), (1, 1), (0, 0), (0, 2)]


@pytest.mark.slow
@given(SIZES, st.integers(0, 2**32), st.data())
def test_sample_is_distinct_and_reproducible(sizes, seed, data):
    space = ConfigSpace(sizes)
    count = data.draw(st.integers(0, min(space.size, 20)))
    drawn = space.sample(count, torch.Generator().manual_seed(seed))
    assert len(set(drawn)) == len(drawn) == count
    assert all(space.check(theta) == theta for theta in drawn)
    assert drawn == space.sample(count, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(4, 4), (2, 3, 2), (5,)])
def test_sample_keeps_the_order_drawn(sizes):
    count = 1 + sum(size - 1 for size in sizes)
    for seed in range(20):
        ours = ConfigSpace(sizes).sample(count, torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        assert ours == naive.calibrate_pool(sizes, (0,) * len(sizes), "random", generator)


@pytest.mark.slow
def test_sample_is_uniform_at_every_position():
    space, generator, draws = ConfigSpace((2, 3)), torch.Generator().manual_seed(0), 3000
    samples = [space.sample(3, generator) for _ in range(draws)]
    for position in range(3):
        counts = Counter(sample[position] for sample in samples)
        assert len(counts) == 6
        chi_squared = sum((n - draws / 6) ** 2 / (draws / 6) for n in counts.values())
        assert chi_squared < 20.5  # 0.999 quantile with 5 degrees of freedom


def test_sample_of_more_than_there_are_is_refused():
    with pytest.raises(InputError, match="7 of 6"):
        ConfigSpace((2, 3)).sample(7, torch.Generator())


@pytest.mark.slow
@given(st.lists(UINT64, min_size=1, max_size=30))
def test_splitmix64_equals_integer_arithmetic(states):
    hashed = splitmix64(torch.tensor([signed(x) for x in states], dtype=torch.int64))
    assert [x & MASK for x in hashed.tolist()] == [naive.splitmix64(x) for x in states]


def test_splitmix64_published_vector():
    """First outputs of the generator seeded with 1234567, from Vigna's splitmix64.c."""
    golden = 0x9E3779B97F4A7C15
    states = torch.tensor([signed(1234567 + i * golden) for i in range(3)])
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [x & MASK for x in splitmix64(states).tolist()] == expected


@pytest.mark.slow
@given(st.integers(0, 2**70), st.lists(st.integers(0, 10**7), min_size=2, max_size=20, unique=True))
def test_tie_rank_orders_by_the_unsigned_hash(seed, indices):
    keys = tie_rank(torch.tensor(indices), seed).tolist()
    unsigned = [naive.splitmix64((i + seed * 0x9E3779B97F4A7C15) & MASK) for i in indices]
    by_key = sorted(range(len(indices)), key=keys.__getitem__)
    assert by_key == sorted(range(len(indices)), key=unsigned.__getitem__)


def argmin_tied(values, scale, seed):
    best = float(values.min())
    return first_tied((values <= best + tie_width(best, scale)).nonzero()[:, 0], seed)


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 2**40))
def test_argmin_tied_is_the_least_key_among_the_least(values, seed):
    tensor = torch.tensor(values, dtype=torch.float64)
    ties = [i for i, value in enumerate(values) if value == min(values)]
    best = min(ties, key=lambda i: naive.splitmix64((i + seed * 0x9E3779B97F4A7C15) & MASK))
    assert argmin_tied(tensor, 1.0, seed) == best


@pytest.mark.slow
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.integers(0, 2**40),
    st.floats(0.01, 100.0),
)
def test_argmin_tied_ignores_rounding_and_units(values, seed, unit):
    tensor = torch.tensor(values, dtype=torch.float64)
    chosen = argmin_tied(tensor, 1.0, seed)
    noise = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)).double()
    assert argmin_tied(tensor + 1e-10 * noise, 1.0, seed) == chosen
    assert argmin_tied(unit * tensor, unit, seed) == chosen
    with_ineligible = torch.cat([tensor, torch.full((5,), math.inf)])
    assert argmin_tied(with_ineligible, 1.0, seed) == chosen


def test_argmin_tied_sees_real_differences():
    values = torch.tensor([1.0, 1.0 - 1e-6, 1.0], dtype=torch.float64)
    assert all(argmin_tied(values, 1.0, seed) == 1 for seed in range(50))
    assert all(argmin_tied(1e-3 * values, 1e-3, seed) == 1 for seed in range(50))


@pytest.mark.slow
def test_argmin_tied_chooses_every_tie_equally_often():
    values = torch.zeros(8, dtype=torch.float64)
    counts = Counter(argmin_tied(values, 1.0, seed) for seed in range(2000))
    assert sum((counts[i] - 250) ** 2 / 250 for i in range(8)) < 24.4  # 0.999 quantile, 7 df
