"""Bounds, eligibility, promise and their minima of `device_joint.py` in two kernels of Triton.

| symbol | here | shape |
| --- | --- | --- |
| tables of the variances, their last two modules not folded yet | `tables` | `2 x ...` |
| where the other modules of theta are in the tables | `leads` | leading configurations |
| L_c, the same of those with L_g <= 0, L_g | `lower` | `3 x |Theta|` |
| the least of each block of configurations | `least` | `2 x blocks`, or `blocks` |

Each kernel reads and writes every grid once, where torch takes a dozen passes (docs/gpu.md has the
times). Without a card Triton's interpreter runs them on the CPU, for the tests.
"""

from __future__ import annotations

import logging
import math
import os
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from scope_torch.bounds.base import Beta
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.space_search.device_joint import LEAST_WIDTH, DeviceJointPosterior, FewMinima

logger = logging.getLogger(__name__)

BLOCK = 512  # configurations
_FEW = 64  # configurations that are brought to the CPU, and blocks that they are in
# As the kernels below are made.
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


@triton.jit
def _variance(
    tables: tl.tensor,
    at: tl.tensor,
    before: tl.tensor,
    last: tl.tensor,
    WIDTH: tl.constexpr,
    live: tl.tensor,
) -> tl.tensor:
    """The fold of the last two modules: neither matches, one of them does, both do."""
    one = tl.load(tables + at, mask=live, other=0.0)
    one += tl.load(tables + at + (before + 1) * WIDTH, mask=live, other=0.0)
    two = tl.load(tables + at + last + 1, mask=live, other=0.0)
    two += tl.load(tables + at + (before + 1) * WIDTH + last + 1, mask=live, other=0.0)
    return one + two


@triton.jit(do_not_specialize=["theta_out"])  # no kernel of its own where it divides by 16
def _bounds_kernel(
    tables: tl.tensor, leads: tl.tensor, means: tl.tensor, a: tl.tensor, forbidden: tl.tensor,
    numbers: tl.tensor, lower: tl.tensor, least: tl.tensor, size: tl.tensor,
    table_size: tl.tensor, theta_out: tl.tensor, RELATIVE: tl.constexpr, FORBIDS: tl.constexpr,
    BEFORE: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    block = tl.program_id(0)
    theta = block * BLOCK + tl.arange(0, BLOCK)
    live = theta < size
    last, before = theta % LAST, theta // LAST % BEFORE
    at = tl.load(leads + theta // (LAST * BEFORE), mask=live, other=0)
    of_c = _variance(tables, at, before, last, LAST + 1, live)
    of_g = _variance(tables + table_size, at, before, last, LAST + 1, live)
    mean_c = tl.load(means + theta, mask=live, other=0.0)
    mean_g = tl.load(means + size + theta, mask=live, other=0.0)
    number = (mean_c + mean_g + of_c + of_g) * 0.0  # NaN if any is none
    sigma_c, sigma_g = tl.sqrt(tl.maximum(of_c, 0.0)), tl.sqrt(tl.maximum(of_g, 0.0))
    b_c, b_g = tl.load(numbers), tl.load(numbers + 1)
    g = mean_g - b_g * sigma_g
    if RELATIVE:
        mean = tl.maximum(mean_c, tl.load(numbers + 2)) + 1
        square = sigma_c / mean * (sigma_c / mean)
        more = 1 + square  # log1p: the rounding of 1 + x is divided out again
        v = tl.log(more) * (square / tl.where(more == 1, 1.0, more - 1))
        v = tl.where(more == 1, square, v)
        c = mean * tl.exp(-(b_c * tl.sqrt(v) + 0.5 * v)) * tl.load(a + theta, mask=live, other=0.0)
    else:
        c = mean_c - b_c * sigma_c
    if FORBIDS:
        is_forbidden = tl.load(forbidden + theta, mask=live, other=1) != 0
        c, g = tl.where(is_forbidden, float("inf"), c), tl.where(is_forbidden, float("inf"), g)
    eligible = tl.where((g <= 0) & (theta != theta_out) & live, c, float("inf"))
    tl.store(lower + theta, c, mask=live)
    tl.store(lower + size + theta, eligible, mask=live)
    tl.store(lower + 2 * size + theta, g, mask=live)
    tl.store(least + block, tl.min(eligible, 0))
    tl.store(least + tl.num_programs(0) + block, tl.sum(number, 0))


@triton.jit
def _promise_kernel(
    means_g: tl.tensor, lower_g: tl.tensor, lower_c: tl.tensor, numbers: tl.tensor,
    values: tl.tensor, least: tl.tensor, size: tl.tensor, HAS_ERFC: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    block = tl.program_id(0)
    theta = block * BLOCK + tl.arange(0, BLOCK)
    live = theta < size
    margin, u_out, least_price = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    mean = tl.load(means_g + theta, mask=live, other=0.0)
    g = tl.load(lower_g + theta, mask=live, other=0.0)
    c = tl.load(lower_c + theta, mask=live, other=float("inf"))
    half = tl.maximum(mean - g, tl.load(numbers + 4)) * tl.load(numbers + 3)
    x = tl.maximum(mean + margin, 0.0) / half
    P = libdevice.erfc(x) if HAS_ERFC else 1 - tl.erf(x)
    value = P - P * u_out / tl.maximum(c, least_price)
    value = tl.where(live & (g <= -margin), value, float("inf"))
    tl.store(values + theta, value, mask=live)
    tl.store(least + block, tl.min(value, 0))


@triton.jit
def _tried_kernel(out: tl.tensor) -> None:
    tl.store(out, tl.load(out) + 1)


def _launch(kernel: Any, blocks: int, *arguments: Any) -> None:
    """Triton launches on the current card, so that becomes the one of the first argument."""
    with torch.cuda.device_of(arguments[0]):
        kernel[(blocks,)](*arguments)


@cache
def works_on(device: torch.device) -> bool:
    """Whether Triton can make a kernel there: it needs a compiler of C. Tried once."""
    try:
        out = torch.zeros(1, dtype=torch.float64, device=device)
        _launch(_tried_kernel, 1, out)
        return float(out) == 1
    except Exception as error:  # of many kinds, by version and system
        logger.warning("Triton makes no kernel (%s); torch does the same in more passes", error)
        return False


class FusedJointPosterior(DeviceJointPosterior):
    """As `DeviceJointPosterior`, for two modules or more; arguments as there."""

    _leads: Tensor | None = None

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> FewMinima:
        """See `DeviceJointPosterior`."""
        self._look_beside(theta_out)
        sizes, state, sums = self._surrogate.space.sizes, self._state, self._sums
        size, blocks = self._means.shape[1], math.ceil(self._means.shape[1] / BLOCK)
        tables = sums.folded(state.forms, state.constants, -1.0, len(sizes) - 2)
        if self._leads is None:
            at = torch.zeros(1, dtype=torch.int64)
            for module, codes in enumerate(sizes[:-2], start=1):
                at = (at[:, None] + torch.arange(codes) * tables.stride(module)).flatten()
            self._leads = at.to(sums.device)
        lower, least = self._means.new_empty(3, size), self._means.new_empty(2, blocks)
        numbers = self._ties.to_device([beta.c, beta.g, LEAST_MEAN - 1])
        mask = self._means if self._forbidden is None else self._forbidden.view(torch.uint8)
        _launch(
            _bounds_kernel, blocks, tables, self._leads, self._means, self._a, mask, numbers,
            lower, least, size, tables.stride(0), -1 if theta_out is None else theta_out,
            self._surrogate.relative_cost, self._forbidden is not None, *sizes[-2:], BLOCK,
        )  # fmt: skip
        c, eligible, g = lower
        of = beta, u_out, theta_out, partial(self._moments, c, g), self._ties, self._has_margin
        return FusedMinima(least, [eligible, self._means[1], g], *of)


class FusedMinima(FewMinima):
    """As `FewMinima`.

    Args:
        of_blocks: The least L_c of each block, and what is no number if any moment is none.
        of: Arguments of `FewMinima`.
    """

    def __init__(self, of_blocks: Tensor, *of: Any) -> None:
        self._of_blocks = of_blocks
        super().__init__(*of)

    def _least(self) -> list[Tensor]:
        return [self._of_blocks[0].amin(), self._of_blocks[1].sum()]

    def _negative_promises(self, margin: float, least_price: float) -> tuple[Tensor, Tensor | None]:
        values, blocks = torch.empty_like(self.c), self._of_blocks.shape[1]
        least, factor = values.new_empty(blocks), math.sqrt(2) / self.beta.g
        numbers = self._ties.to_device([margin, self.u_out, least_price, factor, LEAST_WIDTH])
        _launch(
            _promise_kernel, blocks, self._mean_g, self._g, self.c, numbers, values, least,
            len(values), not _INTERPRETED, BLOCK,
        )  # fmt: skip
        if blocks <= _FEW:
            return values, None
        near = least.topk(_FEW, largest=False).indices  # the best are in the blocks with the best
        within = torch.arange(BLOCK, device=values.device)
        index = (near[:, None] * BLOCK + within).view(-1).clamp_(max=len(values) - 1)
        return values, index[values[index].topk(_FEW, largest=False).indices]
