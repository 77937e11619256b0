"""Maximum information gain: the greedy value and the upper bound against exhaustive search."""

import itertools
import math
from functools import cache

import naive
import numpy as np
import pytest
from test_kernels import WeightedOverlap
from test_per_query import all_codes

from scope_torch.bounds import information_gain
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.space import ConfigSpace

LAMS = [1e-6, 1e-2, 0.25, 1.0]
KERNELS = {
    "matern52": (HammingMatern52Kernel(), naive.matern52),
    "rbf": (HammingRBFKernel(), naive.rbf),
}
SPACES = [((5,), 6), ((3, 2), 5), ((2, 2, 2), 4), ((1,), 6), ((1, 4), 5)]  # with the largest J


@cache
def gram(sizes, kernel) -> np.ndarray:
    codes = all_codes(sizes)
    return KERNELS[kernel][1]((codes[:, None] != codes[None]).sum(-1).astype(float))


def information(chosen, sizes, kernel, lam) -> np.ndarray:
    """1/2 log det(I + K_A / lam) of multisets, ... x J positions in Theta, repeats counted."""
    chosen = np.asarray(chosen)
    k = gram(sizes, kernel)[chosen[..., :, None], chosen[..., None, :]]
    return 0.5 * np.linalg.slogdet(np.eye(chosen.shape[-1]) + k / lam)[1]


@cache
def maximum(sizes, kernel, lam, size) -> float:
    """Over all multisets of `size` configurations, one by one."""
    theta = range(math.prod(sizes))
    multisets = list(itertools.combinations_with_replacement(theta, size))
    return float(information(multisets, sizes, kernel, lam).max())


def brute_force_greedy(sizes, kernel, lam, size) -> list[float]:
    chosen, values = [], [0.0]
    for _ in range(size):
        candidates = [[*chosen, theta] for theta in range(math.prod(sizes))]
        gains = information(candidates, sizes, kernel, lam)
        best = int(np.argmax(gains > gains.max() - 1e-9))  # the first of those that tie
        chosen, values = candidates[best], [*values, float(gains[best])]
    return values


@pytest.fixture(params=KERNELS)
def kernel(request):
    return request.param


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("sizes", [(5,), (3, 2), (3, 3), (2, 2, 2, 2)], ids=str)
def test_greedy_is_the_brute_force_greedy(sizes, kernel, lam, device):
    gain = InformationGain(ConfigSpace(sizes), KERNELS[kernel][0], lam, device)
    expected = brute_force_greedy(sizes, kernel, lam, 2 * math.prod(sizes))
    observed = [gain.greedy(size) for size in range(len(expected))]
    np.testing.assert_allclose(observed, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lam", LAMS)
def test_every_step_is_greedy_however_ties_are_broken(kernel, lam):
    """In this space configurations that tie lead to different values some steps later."""
    sizes = (4, 3, 2)
    gain = InformationGain(ConfigSpace(sizes), KERNELS[kernel][0], lam)
    gain.greedy(48)
    chosen = ConfigSpace(sizes).rank(gain._chosen).tolist()
    for size in range(1, len(chosen) + 1):
        candidates = [[*chosen[: size - 1], theta] for theta in range(24)]
        best = float(information(candidates, sizes, kernel, lam).max())
        assert gain.greedy(size) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("slack", [0.0, 0.005, 0.3])
@pytest.mark.parametrize("lam", LAMS)
def test_a_pool_that_is_not_all_of_theta(monkeypatch, kernel, lam, slack, device):
    """Every choice gains what it must, and gamma bounds what others gain, beyond |Theta| too."""
    monkeypatch.setattr(information_gain, "_POOL", 6)
    monkeypatch.setattr(information_gain, "_SLACK", slack)
    looks, look = [], InformationGain._look_at_all
    monkeypatch.setattr(InformationGain, "_look_at_all", lambda self: (looks.append(1), look(self)))
    sizes = (4, 3, 2)
    gain = InformationGain(ConfigSpace(sizes), KERNELS[kernel][0], lam, device)
    gain.greedy(40)
    chosen = ConfigSpace(sizes).rank(gain._chosen).tolist()
    for size in range(1, len(chosen) + 1):
        candidates = [[*chosen[: size - 1], theta] for theta in range(24)]
        values = information(candidates, sizes, kernel, lam)
        before, after = gain.greedy(size - 1), gain.greedy(size)
        assert after == pytest.approx(values[chosen[size - 1]], rel=1e-9)
        assert after - before >= (1 - slack) * (values.max() - before) - 1e-8
        assert gain._gains[size - 1] >= values.max() - before - 1e-8  # of about 160 nats
    sequences = np.random.default_rng(0).integers(24, size=(200, 40))
    sequences[0] = np.arange(40) % 24
    assert gain.gamma(40) >= information(sequences, sizes, kernel, lam).max() - 1e-9
    assert gain.gamma(40) >= after
    assert 0 < len(looks) <= 40
    assert slack < 0.3 or len(looks) < 20


@pytest.mark.slow
def test_a_large_space_is_seldom_looked_at(monkeypatch):
    """N = 5, M = 23: every look takes as long as a selection step."""
    looks, look = [], InformationGain._look_at_all
    monkeypatch.setattr(InformationGain, "_look_at_all", lambda self: (looks.append(1), look(self)))
    gain = InformationGain(ConfigSpace((23,) * 5), HammingMatern52Kernel(), 1e-6)
    hadamard = 0.5 * math.log1p(1e6)
    assert 0.99 * 200 * hadamard < gain.greedy(200) <= gain.gamma(200) <= 200 * hadamard + 1e-9
    assert len(looks) <= 4


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize(("sizes", "largest"), SPACES)
def test_gamma_is_an_upper_bound(sizes, largest, kernel, lam):
    gain = InformationGain(ConfigSpace(sizes), KERNELS[kernel][0], lam)
    for size in range(1, largest + 1):
        exact = maximum(sizes, kernel, lam, size)
        assert gain.gamma(size) >= exact - 1e-9
        assert (1 - 1 / math.e) * exact - 1e-9 <= gain.greedy(size) <= exact + 1e-9
        assert gain.gamma(size) <= gain.greedy(size) / (1 - 1 / math.e) + 1e-9


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize(("sizes", "largest"), SPACES)
def test_bounds_what_any_sequence_gains(sizes, largest, kernel, lam):
    """What lem:kernel-self-normalized needs: repeats count, also beyond |Theta| observations."""
    gain, rng = (
        InformationGain(ConfigSpace(sizes), KERNELS[kernel][0], lam),
        np.random.default_rng(0),
    )
    for size in [1, largest, 2 * largest, 5 * largest]:
        sequences = rng.integers(math.prod(sizes), size=(100, size))
        sequences[0] = np.arange(size) % math.prod(sizes)  # spread evenly
        assert gain.gamma(size) >= information(sequences, sizes, kernel, lam).max() - 1e-9


def test_repeats_gain_although_theta_is_exhausted():
    gain = InformationGain(ConfigSpace((2,)), HammingMatern52Kernel(), 0.25)
    assert gain.greedy(2) < gain.greedy(3) < gain.greedy(30)
    assert gain.gamma(30) >= maximum((2,), "matern52", 0.25, 30)


@pytest.mark.parametrize("lam", LAMS)
def test_exact_where_one_configuration_is_all(lam, kernel):
    """With |Theta| = 1, gamma(J) = 1/2 log(1 + J / lam), which greedy attains."""
    gain = InformationGain(ConfigSpace((1,)), KERNELS[kernel][0], lam)
    for size in (1, 2, 10):
        assert gain.greedy(size) == pytest.approx(0.5 * math.log1p(size / lam), rel=1e-9)


@pytest.mark.parametrize("lam", LAMS)
def test_tight_for_the_first_and_never_above_hadamard(lam, kernel):
    gain = InformationGain(ConfigSpace((3, 3, 2)), KERNELS[kernel][0], lam)
    assert gain.gamma(0) == gain.greedy(0) == 0
    assert gain.gamma(1) == pytest.approx(0.5 * math.log1p(1 / lam))
    for size in range(1, 25):
        assert gain.gamma(size) <= size * 0.5 * math.log1p(1 / lam) + 1e-9


@pytest.mark.parametrize("lam", LAMS)
def test_does_not_depend_on_what_was_asked_before(lam, kernel):
    sizes, (k, _) = (3, 2), KERNELS[kernel]
    in_order, backwards = (InformationGain(ConfigSpace(sizes), k, lam) for _ in range(2))
    forth = [in_order.gamma(size) for size in range(15)]
    back = [backwards.gamma(size) for size in reversed(range(15))]
    assert forth == back[::-1]
    assert forth == sorted(forth)


def test_any_kernel(device):
    sizes = (3, 2)
    gain = InformationGain(ConfigSpace(sizes), WeightedOverlap(), 0.1, device)
    codes = all_codes(sizes)
    k = np.exp(-((codes[:, None] != codes[None]) @ np.array([1, 1 / 2])))
    multisets = np.array(list(itertools.combinations_with_replacement(range(6), 4)))
    sub = k[multisets[:, :, None], multisets[:, None, :]]
    exact = (0.5 * np.linalg.slogdet(np.eye(4) + sub / 0.1)[1]).max()
    assert (1 - 1 / math.e) * exact <= gain.greedy(4) <= exact + 1e-9
    assert gain.gamma(4) >= exact - 1e-9


def test_baselines_table():
    """Greedy gamma(J) of 23 LLMs and 4 modules at lam = 1e-6; baselines.md, section 2."""
    gain = InformationGain(ConfigSpace((23,) * 4), HammingMatern52Kernel(), 1e-6)
    assert gain.greedy(1) == pytest.approx(6.91, abs=0.005)
    assert gain.greedy(10) == pytest.approx(68.8, abs=0.05)
    assert gain.greedy(40) == pytest.approx(274, abs=0.5)
