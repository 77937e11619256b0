"""Random numbers as functions of (seed, stream, counter), equal in any order and on any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scope_torch.space import splitmix64


def stream_key(seed: int, stream: int) -> int:
    """A 64-bit key for one stream of random numbers."""
    return int(splitmix64(splitmix64(torch.tensor(seed)) + stream))


def normal(key: int, counter: Tensor) -> Tensor:
    """Nearly standard normal numbers: the sum of four 16-bit uniforms, exact on every device.

    Args:
        key: See `stream_key`.
        counter: `...` int64 counters.

    Returns:
        `...` float64, mean 0, variance 1, within 3.47.
    """
    bits = splitmix64(counter + key)
    total = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF)
    total = total + ((bits >> 32) & 0xFFFF) + ((bits >> 48) & 0xFFFF)
    return (total.double() - 2 * 0xFFFF) * (math.sqrt(3) / 0x10000)


def uniform(key: int, counter: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) with 53 bits; arguments as in `normal`."""
    return ((splitmix64(counter + key) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
