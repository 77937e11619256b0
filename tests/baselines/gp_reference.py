"""The dataset-level GP and its acquisitions retyped naively, on all of Theta.

Everything is float64 numpy or scipy, in units of z with the kernel amp^2 k and the noise
lam amp^2. Repeats stay repeated. Nothing here imports the baselines.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import naive
import numpy as np
from scipy.special import erfcx, log_ndtr

Row = tuple[tuple[int, ...], float, float]  # theta, average cost in USD, average g


def all_codes(sizes) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, sizes))))


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a[:, None, :] != b[None, :, :]).sum(-1).astype(float)


@dataclass
class Naive:
    """Posterior of both functions on all of Theta, in units of z."""

    mean_c: np.ndarray
    mean_g: np.ndarray
    sigma_c: np.ndarray
    sigma_g: np.ndarray
    unit_c: float
    unit_g: float


def one_gp(x, z, codes, amp, lam, kernel) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a zero-mean GP with kernel amp^2 k, noise lam amp^2."""
    if len(z) == 0:
        return np.zeros(len(codes)), np.full(len(codes), amp)
    gram = amp**2 * (kernel(distances(x, x)) + lam * np.eye(len(x)))
    cross = amp**2 * kernel(distances(x, codes))
    variance = amp**2 - (cross * np.linalg.solve(gram, cross)).sum(0)
    return cross.T @ np.linalg.solve(gram, np.asarray(z)), np.sqrt(variance)


def posterior(rows: list[Row], problem, settings, kernel=naive.matern52) -> Naive:
    relative = settings.units == "relative"
    unit_c = problem.reference_cost_usd if relative else 1.0
    unit_g = (1 - problem.epsilon) * problem.reference_quality if relative else 1.0
    codes = all_codes(problem.space.sizes)
    x = np.array([row[0] for row in rows]).reshape(-1, codes.shape[1])
    z_c, z_g = [row[1] / unit_c for row in rows], [row[2] / unit_g for row in rows]
    mean_c, sigma_c = one_gp(x, z_c, codes, settings.amp_c, settings.lam, kernel)
    mean_g, sigma_g = one_gp(x, z_g, codes, settings.amp_g, settings.lam, kernel)
    return Naive(mean_c, mean_g, sigma_c, sigma_g, unit_c, unit_g)


def tie_key(index: int, seed: int) -> int:
    return naive.splitmix64((index + seed * 0x9E3779B97F4A7C15) % 2**64)


def pick(values: np.ndarray, scale: float, seed: int) -> int:
    """The least value; of those within 1e-9 max(scale, |least|) the first in the seeded order."""
    least = values.min()
    ties = np.flatnonzero(values <= least + 1e-9 * max(scale, abs(least)))
    return int(min(ties, key=lambda index: tie_key(int(index), seed)))


def log_ei(mean, sigma, best) -> np.ndarray:
    """Log of sigma (phi(u) + u Phi(u)), u = (best - mean) / sigma."""
    u = (best - mean) / sigma
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        phi = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
        upper = np.log(phi + u * np.exp(log_ndtr(u)))
        # Phi(u) = phi(u) sqrt(pi / 2) erfcx(-u / sqrt 2)
        lower = -u * u / 2 - math.log(2 * math.pi) / 2
        lower = lower + np.log1p(u * math.sqrt(math.pi / 2) * erfcx(-u / math.sqrt(2)))
    return np.log(sigma) + np.where(u > -1, upper, lower)


def log_pof(mean, sigma) -> np.ndarray:
    return log_ndtr(-mean / sigma)


def flat(theta, sizes) -> int:
    return int(np.ravel_multi_index(theta, sizes))


def choices(optimizer, task, count: int) -> Iterator[tuple[list[Row], tuple[int, ...] | None]]:
    """Runs a search; before each evaluation yields what was completed, and what is asked for.

    The last item has None if the search ended.
    """
    done: list[Row] = []
    for _ in range(count):
        requests = optimizer.ask()
        yield list(done), requests[0].theta if requests else None
        if not requests:
            return
        observations = [task.observe(request) for request in requests]
        optimizer.tell(observations)
        cost = math.fsum(o.cost_usd for o in observations) / len(observations)
        quality = math.fsum(o.quality for o in observations) / len(observations)
        done.append((requests[0].theta, cost, task.problem.s_0 - quality))


def reference_row(problem) -> Row:
    return (
        problem.theta_ref,
        problem.reference_cost_usd,
        -(problem.epsilon * problem.reference_quality),
    )


def merged(rows: list[Row]) -> list[Row]:
    """Repeats averaged, in the order first made."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return [
        (theta, sum(r[1] for r in group) / len(group), sum(r[2] for r in group) / len(group))
        for theta, group in groups.items()
    ]


def best_feasible(problem, rows: list[Row]) -> Row:
    """BOF: theta_0, or an evaluated configuration with average g <= 0 that costs less."""
    feasible = [row for row in [reference_row(problem), *merged(rows)] if row[2] <= 0]
    return min(feasible, key=lambda row: row[1])
