"""Arrays of Q x D where few of many queries were asked: their values, and their memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from source_code import ROOT

from scope_torch.model import data as data_module
from scope_torch.model.data import wider
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.space import ConfigSpace

PROGRAM = """
import resource, numpy as np, torch
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.space import ConfigSpace
space = ConfigSpace((20, 20, 20))
surrogate = JointSurrogate(space, HammingMatern52Kernel(), 100_000, 1e-6)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rng = np.random.default_rng(0)
for index in rng.permutation(space.size)[:600].tolist():
    for query in rng.integers(100_000, size=2).tolist():
        surrogate.observe(space.theta_at(index), query, 1.0, float(query % 2))
surrogate.refit(now=True)
surrogate.collapsed()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("large", [0, 1 << 26])
def test_what_is_wider_has_the_same_values(large, monkeypatch):
    monkeypatch.setattr(data_module, "_LARGE", large)
    rng = np.random.default_rng(0)
    is_asked = rng.random(50) < 0.3
    for array in (rng.integers(1, 9, (50, 4)), rng.normal(size=(3, 50, 4))):
        array[..., ~is_asked, :] = 0
        out = wider(array, 7, is_asked)
        assert out.dtype == array.dtype
        assert out.flags.writeable
        np.testing.assert_array_equal(out[..., :4], array)
        assert not out[..., 4:].any()
        out += 1  # is its own


@pytest.mark.parametrize("large", [0, 1 << 26])
def test_a_surrogate_says_the_same(large, monkeypatch):
    def told():
        surrogate = JointSurrogate(ConfigSpace((4, 3)), HammingMatern52Kernel(), 200, 1e-6)
        rng = np.random.default_rng(1)
        for _ in range(60):
            theta = (int(rng.integers(4)), int(rng.integers(3)))
            surrogate.observe(theta, int(rng.integers(200)), *rng.random(2).tolist())
        surrogate.refit(now=True)
        of_c, of_g = surrogate.collapsed()
        return surrogate.hyperparameters, of_c.B, of_g.t

    expected = told()
    monkeypatch.setattr(data_module, "_LARGE", large)
    for one, other in zip(told(), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(data_module.mmap, "MADV_NOHUGEPAGE"), reason="huge pages: Linux")
def test_queries_that_nobody_asked_take_no_memory():
    """Of 100,000 queries 1,200 were asked of 600 configurations: the arrays have 2.9 GB."""
    command = [sys.executable, "-c", PROGRAM]
    known = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 600
