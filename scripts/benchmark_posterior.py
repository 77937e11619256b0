"""Times the posterior over all of Theta: the Hamming grid against a direct evaluation in chunks.

Then it times selection steps as in a search, against reading three grids of float64 once. It needs
only torch, gpytorch and numpy. Everything runs in this process on the same observations. The direct
evaluation is timed on a part of Theta and scaled, unless `--direct all`. Compare the ratios.

    python scripts/benchmark_posterior.py --device cpu --threads 2
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.bounds import Beta
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.devices import surrogate_class
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace
from scope_torch.space_search.branched import BranchedPosterior, make_posterior

CHUNK = 1 << 16
T = TypeVar("T")


def main() -> None:
    """Entry point; exits with 1 if the two evaluations disagree."""
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    space = ConfigSpace((args.llms,) * args.modules)
    kernel = HammingMatern52Kernel()
    surrogate = random_surrogate(space, kernel, args)
    posterior = surrogate.aggregate()
    grid, direct_grid = (
        HammingGrid(space, kernel, args.device),
        DirectGrid(space, kernel, args.device, CHUNK),
    )
    print(
        f"N={args.modules} M={args.llms}: {space.size:,} configurations, "
        f"{len(posterior.codes)} observed, {args.queries} queries, {args.device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    mean_s, mean = timed(
        lambda: grid.weighted_sum(posterior.codes, posterior.weights[0]), args.device, args.repeats
    )
    form_s, form = timed(
        lambda: grid.quadratic_form(posterior.codes, posterior.matrix), args.device, args.repeats
    )
    peak = peak_gib(args.device)
    print(f"hamming grid: mean {mean_s:.4f} s, variance {form_s:.4f} s (median of {args.repeats})")
    print(f"peak memory of the process so far: {peak}")
    size = space.size if args.direct == "all" else min(space.size, int(args.direct) * CHUNK)
    part = torch.arange(size, device=args.device) * (space.size // size)
    direct_s, direct = timed(lambda: direct_at(direct_grid, posterior, part), args.device, 1)
    scaled = direct_s * space.size / len(part)
    error = max(
        float((mean[part] - direct[0]).abs().max() / direct[0].abs().max()),
        float((form[part] - direct[1]).abs().max() / direct[1].abs().max()),
    )
    how = "all" if len(part) == space.size else f"{len(part):,} of {space.size:,}, scaled"
    print(f"direct, chunked: mean and variance {scaled:.2f} s ({how})")
    print(f"ratio direct / hamming grid: {scaled / (mean_s + form_s):.0f}")
    print(f"largest relative difference: {error:.1e}")
    condition_s, step_s, read_s = selection_steps(surrogate, args)
    print(
        f"selection step: {step_s:.4f} s, {step_s / read_s:.0f} times reading three grids "
        f"({read_s:.5f} s); conditioning {condition_s:.4f} s (medians of {args.steps} steps)"
    )
    if not error < 1e-9:
        sys.exit(1)


def random_surrogate(
    space: ConfigSpace, kernel: HammingMatern52Kernel, args: argparse.Namespace
) -> QuerySurrogate:
    """A surrogate that has observed every configuration on a random prefix of the queries."""
    rng = np.random.default_rng(0)
    make = surrogate_class(args.surrogate, torch.device(args.device))
    surrogate = make(space, kernel, args.queries, 1e-6, args.device)
    for theta in space.sample(args.configs, torch.Generator().manual_seed(0)):
        for query in range(int(rng.integers(1, args.queries + 1))):
            surrogate.observe(theta, query, float(rng.random()), float(rng.normal()))
    return surrogate


def selection_steps(
    surrogate: QuerySurrogate, args: argparse.Namespace
) -> tuple[float, float, float]:
    """Median seconds of conditioning, of a selection step, and of reading three grids.

    A step computes means, variances where they decide, bounds, both minima, the choice and its
    ties. Half of Theta has a lower mean cost than theta_out. The chosen configuration is then
    observed on a few queries.
    """
    rng, space, device = np.random.default_rng(1), surrogate.space, surrogate.device
    posterior = make_posterior(
        surrogate, space, surrogate.kernel, space_search="grid", max_nodes=1, device=device
    )
    assert not isinstance(posterior, BranchedPosterior)
    posterior.update()
    u_out = float(posterior.mean_c.median())
    beta = Beta(0.5, 2.0)

    def choose() -> int:
        posterior.update()
        lower = posterior.lower_bounds(beta, u_out, None)
        return lower.argmin_c(min(lower.least_g / 2, 0.0), 1.0, seed=0)

    seconds: list[tuple[float, float]] = []
    for _ in range(args.steps + 1):  # the first is a warm-up
        condition_s, _ = timed(surrogate.observed, args.device, 1)
        step_s, index = timed(choose, args.device, 1)
        seconds.append((condition_s, step_s))
        for query in rng.permutation(args.queries)[: int(rng.integers(1, 20))].tolist():
            surrogate.observe(
                space.theta_at(index), query, float(rng.random()), float(rng.normal())
            )
    grids = (posterior.mean_c, posterior.mean_g, posterior.variance)
    read_s, _ = timed(lambda: [float(grid.sum()) for grid in grids], args.device, args.repeats)
    condition, step = zip(*seconds[1:], strict=True)
    return statistics.median(condition), statistics.median(step), read_s


def direct_at(
    grid: DirectGrid, posterior: AggregatePosterior, part: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and quadratic form at some configurations, in chunks."""
    mean, form = [], []
    for index in part.split(CHUNK):
        mean.append(grid.weighted_sum_at(index, posterior.codes, posterior.weights[0]))
        form.append(grid.quadratic_form_at(index, posterior.codes, posterior.matrix))
    return torch.cat(mean), torch.cat(form)


def timed(function: Callable[[], T], device: str, repeats: int) -> tuple[float, T]:
    """Median seconds of `repeats` calls, and a result; several calls begin with a warm-up."""

    def call() -> tuple[float, T]:
        began = time.perf_counter()
        result = function()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - began, result

    calls = [call() for _ in range(repeats + (repeats > 1))]
    return statistics.median(seconds for seconds, _ in calls[-repeats:]), calls[-1][1]


def peak_gib(device: str) -> str:
    """Largest resident set of this process, and memory allocated on the GPU."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = f"{kib / 2**20:.2f} GiB resident"
    if device.startswith("cuda"):
        text += f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB on the GPU"
    return text


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times the posterior over all of Theta.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--surrogate", default="auto", help="incremental, tensor or auto")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: torch's default")
    parser.add_argument("--modules", type=int, default=5)
    parser.add_argument("--llms", type=int, default=23)
    parser.add_argument("--queries", type=int, default=102)
    parser.add_argument("--configs", type=int, default=120, help="distinct observed configurations")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="selection steps")
    parser.add_argument("--direct", default="8", help="chunks timed directly, or `all`")
    return parser.parse_args()


if __name__ == "__main__":
    main()
