"""Random numbers as functions of (seed, stream, counter): the same in any order, on any device."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from scope_torch.space import splitmix64


@functools.lru_cache(1 << 14)
def stream_key(seed: int, stream: int) -> int:
    """A 64-bit key for one stream of random numbers.

    Examples:
        >>> key = stream_key(seed=0, stream=1)
        >>> uniform(key, torch.arange(3))
        tensor([0.5804, 0.6723, 0.9568], dtype=torch.float64)
    """
    return int(splitmix64(splitmix64(torch.tensor(seed)) + stream))


def normal(key: int, counter: Tensor) -> Tensor:
    """Nearly standard normal numbers: the sum of four 16-bit uniforms, exact on every device.

    Args:
        key: Made by `stream_key`.
        counter: `...` counters (int64).

    Returns:
        `...` numbers (float64) with mean 0 and variance 1, between -3.47 and 3.47.
    """
    bits = splitmix64(counter + key)
    total = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF)
    total = total + ((bits >> 32) & 0xFFFF) + ((bits >> 48) & 0xFFFF)
    return (total.double() - 2 * 0xFFFF) * (math.sqrt(3) / 0x10000)


def uniform(key: int, counter: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) with 53 bits; arguments as in `normal`."""
    return ((splitmix64(counter + key) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
