"""The paper's algorithms retyped naively: the slow reference that the library is held against.

Everything is float64 numpy: every query's GP is solved from its whole history, repeats included.
Nothing here imports the library. Labels such as ``eq:lcb-ours`` are the LaTeX labels of the paper.

Throughout, N modules, Q queries, T = |Theta| configurations; a configuration ``theta`` is a tuple
of N LLM indices; costs are in USD, qualities in [0, 1]; zeta is "c" (cost) or "g" (s_0 - quality).
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Theta = tuple[int, ...]
Record = tuple[Theta, int, float, float]  # (theta, query, y_c in USD, y_g in quality)
Kernel = Callable[[np.ndarray], np.ndarray]  # of the Hamming distance h

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def matern52(h: np.ndarray) -> np.ndarray:
    """Matern 5/2 kernel of the Hamming distance h (any shape); the paper's d is sqrt(h)."""
    d = np.sqrt(h)
    return (1 + math.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-math.sqrt(5) * d)


def rbf(h: np.ndarray) -> np.ndarray:
    """Squared exponential kernel exp(-d^2 / 2) of the Hamming distance h (any shape), d^2 = h."""
    return np.exp(-np.asarray(h, dtype=np.float64) / 2)


def _gram(a: np.ndarray, b: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Kernel matrix between the configurations a (A x N) and b (B x N); A x B."""
    return kernel((a[:, None, :] != b[None, :, :]).sum(axis=2).astype(np.float64))


def gp(
    thetas: np.ndarray, y: np.ndarray, targets: np.ndarray, lam: float, kernel: Kernel
) -> tuple[np.ndarray, np.ndarray]:
    """Zero-mean GP regression, def:gp and equ:gp-regression; repeated thetas stay repeated.

    thetas (J x N) and targets (T x N) are integer codes, y (J,) is in the unit of the observations.
    Returns the mean (T,), in the unit of y, and the latent variance (T,), between 0 and 1.
    """
    thetas, y, targets = np.asarray(thetas), np.asarray(y, dtype=np.float64), np.asarray(targets)
    if len(y) == 0:
        return np.zeros(len(targets)), np.ones(len(targets))
    noisy_gram = _gram(thetas, thetas, kernel) + lam * np.eye(len(y))
    k_targets = _gram(thetas, targets, kernel)  # column j is k_x(theta_j)
    mean = k_targets.T @ np.linalg.solve(noisy_gram, y)
    var = 1.0 - (k_targets * np.linalg.solve(noisy_gram, k_targets)).sum(axis=0)
    return mean, var


def query_gp(
    history: Sequence[Record], query: int, targets: np.ndarray, lam: float, kernel: Kernel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mu_hat of c (USD) and of g (quality) and sigma_hat^2 of one query at targets; each (T,)."""
    rows = [row for row in history if row[1] == query]
    thetas = np.array([row[0] for row in rows])
    mean_c, var = gp(thetas, np.array([row[2] for row in rows]), targets, lam, kernel)
    mean_g, _ = gp(thetas, np.array([row[3] for row in rows]), targets, lam, kernel)
    return mean_c, mean_g, var


def aggregate(
    history: Sequence[Record], targets: np.ndarray, num_queries: int, lam: float, kernel: Kernel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The aggregate over queries, eq:scope-mean-variance, at targets (T x N).

    Returns mu_bar_c (T,) in USD, mu_bar_g (T,) in quality and sigma_bar^2 (T,), the same for both.
    """
    mu_c, mu_g, sigma_bar_squared = (np.zeros(len(targets)) for _ in range(3))
    for query in range(num_queries):
        mean_c, mean_g, var = query_gp(history, query, targets, lam, kernel)
        mu_c += mean_c / num_queries
        mu_g += mean_g / num_queries
        sigma_bar_squared += var / num_queries**2
    return mu_c, mu_g, sigma_bar_squared


def splitmix64(x: int) -> int:
    """SplitMix64 of the integer x; breaks the ties of an argmin over Theta."""
    z = (x + GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def loo_scale(history: Sequence[Record], zeta: str, lam: float, kernel: Kernel) -> float | None:
    """Largest leave-one-configuration-out ratio |mean_q r_q| / sqrt(mean_q s2_q), by refitting.

    Over the configurations observed on at least 6 queries; None without one. In the unit of zeta.
    """
    column = {"c": 2, "g": 3}[zeta]
    ratios = []
    for left_out in dict.fromkeys(row[0] for row in history):
        queries = sorted({row[1] for row in history if row[0] == left_out})
        if len(queries) < 6:
            continue
        residuals, variances = [], []
        for query in queries:
            own = [r[column] for r in history if r[1] == query and r[0] == left_out]
            rest = [r for r in history if r[1] == query and r[0] != left_out]
            thetas, y = np.array([r[0] for r in rest]), np.array([r[column] for r in rest])
            mean, var = gp(thetas, y, np.array([left_out]), lam, kernel)
            residuals.append(np.mean(own) - mean[0])
            variances.append(var[0])
        ratios.append(float(abs(np.mean(residuals)) / np.sqrt(np.mean(variances))))
    return max(ratios, default=None)


def calibrate_pool(
    sizes: Sequence[int], base: Theta, calibrate: str, generator: torch.Generator
) -> list[Theta]:
    """Theta_init in pool order: eq:theta-1-def ("base") or as many random ones ("random")."""
    if calibrate == "base":
        pool = [tuple(base)]
        for module, size in enumerate(sizes):
            for llm in range(size):
                if llm != base[module]:
                    pool.append((*base[:module], llm, *base[module + 1 :]))
        return pool
    space = list(itertools.product(*(range(size) for size in sizes)))
    pool_size = 1 + sum(size - 1 for size in sizes)
    indices: list[int] = []
    while len(indices) < pool_size:
        for index in torch.randint(len(space), (pool_size,), generator=generator).tolist():
            if index not in indices and len(indices) < pool_size:
                indices.append(index)
    return [space[index] for index in indices]


def first_iteration(i: int, min_l_g: float, alpha: float) -> int:
    """The first i' > i with min L_g <= -i'^-alpha, given min L_g < 0 and no such i' <= i."""
    low, high = i, 2 * i
    while min_l_g > -(high**-alpha):
        low, high = high, 2 * high
    while high - low > 1:  # i' is in (low, high]
        middle = (low + high) // 2
        low, high = (middle, high) if min_l_g > -(middle**-alpha) else (low, middle)
    return high


@dataclass
class NaiveRun:
    """What a run did; the first four lists have one entry per observation, Calibrate included."""

    observations: list[tuple[Theta, int]] = field(default_factory=list)
    theta_out: list[Theta] = field(default_factory=list)
    u_out: list[float] = field(default_factory=list)  # USD; nan during Calibrate
    gap: list[float] = field(default_factory=list)  # USD; nan during Calibrate
    b_c: float = math.nan  # USD, in force at the stop; nan if Calibrate exhausts the budget
    b_g: float = math.nan  # quality, likewise
    b_g_widened: list[float] = field(default_factory=list)  # quality, in order
    widened_at: list[int] = field(default_factory=list)  # observations before each of them
    iterations: list[dict[str, Any]] = field(default_factory=list)  # i, theta_cand, num_observed
    gaps: list[float] = field(default_factory=list)  # USD, at every decision what to do next
    stop_reason: str = ""  # "budget", "gap" or "nothing can improve"


def naive_scope(
    sizes: Sequence[int],
    cost: np.ndarray,
    quality: np.ndarray,
    theta_ref: Theta,
    base: Theta,
    s_0: float,
    budget_usd: float,
    seed: int,
    *,
    alpha: float = 1 / 3,
    lam: float = 1e-6,
    b_g: float | str = "loo_widening",
    b_c: float | str = "reference_fraction",
    kernel: Kernel = matern52,
    calibrate: str = "base",
    prune: bool = True,
    batch_size: int = 1,
    gap_tolerance: float | None = 0.0,
    floor: bool = True,
    theory: dict[str, Any] | None = None,
) -> NaiveRun:
    """SCOPE, alg:scope-main with alg:bound-calibration, on a table.

    cost (USD) and quality are (*sizes, Q). calibrate: "base" (SCOPE), "random" (SCOPE-Rand) or
    "none" (SCOPE-Coarse, with prune=False). b_g: a number, "eligible", "loo" or "loo_widening";
    b_c: a number, "loo" or "reference_fraction"; both are replaced by eq:beta-def where theory is
    given: dict(R_c, R_g, B_c, B_g, delta, cost_unit in USD, gamma: J -> upper bound of gamma(J)).

    gap_tolerance: None for alg:scope-main to the letter. A number: what is considered in an
    iteration are the configurations other than theta_out with L_c <= U_out, iterations without an
    eligible one among them do not take place, and the search ends once the gap is at most this
    fraction of U_out, or once L_g >= 0 for all of them. floor: whether U_out begins at c(theta_0)
    at least.
    """
    assert not isinstance(b_c, str) or b_c in ("loo", "reference_fraction")
    assert not isinstance(b_g, str) or b_g in ("eligible", "loo", "loo_widening")
    num_queries = cost.shape[-1]
    space = list(itertools.product(*(range(size) for size in sizes)))  # position = flat index
    targets = np.array(space)
    ref_index = space.index(tuple(theta_ref))
    ref_cost = float(cost[tuple(theta_ref)].mean())
    generator = torch.Generator().manual_seed(seed)
    query_order = torch.randperm(num_queries, generator=generator).tolist()
    history: list[Record] = []
    run = NaiveRun()
    theta_out, u_out = tuple(theta_ref), math.nan
    # mu_hat of c and g and sigma_hat^2, each Q x T; row q is solved anew when q is observed
    mean = {"c": np.zeros((num_queries, len(space))), "g": np.zeros((num_queries, len(space)))}
    var = np.ones((num_queries, len(space)))
    tuned = {"c": math.nan, "g": math.nan}
    widest = 0.0  # where b_g ends if it widens
    least_cost = math.nan  # USD; nothing feasible costs less, as far as the bounds say

    def observe(theta: Theta, query: int) -> None:
        y_c, y_g = float(cost[theta][query]), s_0 - float(quality[theta][query])
        history.append((theta, query, y_c, y_g))
        run.observations.append((theta, query))

    def exhausted() -> bool:
        run.theta_out.append(theta_out)
        run.u_out.append(u_out)
        run.gap.append(max(0.0, u_out - least_cost))
        return math.fsum(row[2] for row in history) > budget_usd

    def refit(query: int) -> None:
        fit = query_gp(history, query, targets, lam, kernel)
        mean["c"][query], mean["g"][query], var[query] = fit
        run.b_c, run.b_g = half_width("c"), half_width("g")

    def half_width(zeta: str) -> float:
        """The paper's beta / sqrt(Q), in the unit of zeta; eq:beta-def if theory is given."""
        if theory is None:
            return tuned[zeta]
        j_max = max(Counter(row[1] for row in history).values(), default=0)
        gain = theory["gamma"](j_max) + math.log(2 * num_queries / theory["delta"])
        noise = theory[f"R_{zeta}"] / math.sqrt(lam) * math.sqrt(2 * gain)
        return (theory["cost_unit"] if zeta == "c" else 1.0) * (theory[f"B_{zeta}"] + noise)

    def bounds(zeta: str) -> tuple[np.ndarray, np.ndarray]:
        """L and U of eq:lcb-ours over all of Theta; each (T,)."""
        mu, sigma_rms = mean[zeta].mean(axis=0), np.sqrt(var.mean(axis=0))
        return mu - half_width(zeta) * sigma_rms, mu + half_width(zeta) * sigma_rms

    # alg:bound-calibration
    if calibrate != "none":
        pool = calibrate_pool(sizes, base, calibrate, generator)
        num_rounds = (num_queries - 1).bit_length() + 1  # ceil(log2 Q) + 1
        for j in range(1, num_rounds + 1):
            prefix = query_order[: min(2 ** (j - 1), num_queries)]
            before = query_order[: min(2 ** (j - 2), num_queries)] if j > 1 else []
            for theta in pool:
                for query in prefix[len(before) :]:
                    observe(theta, query)
                    if exhausted():
                        run.stop_reason = "budget"
                        return run
            keys = []
            for position, theta in enumerate(pool):
                total_quality = math.fsum(quality[theta][query] for query in prefix)
                total_cost = math.fsum(cost[theta][query] for query in prefix)
                keys.append((-total_quality, total_cost, position))
            kept = sorted(keys)[: math.ceil(len(pool) / 2)]
            pool = [pool[position] for position in sorted(key[2] for key in kept)]

    for query in range(num_queries):
        refit(query)
    if theory is None:
        scale = loo_scale(history, "c", lam, kernel) if b_c == "loo" else None
        if isinstance(b_c, str):  # "reference_fraction", or "loo" without enough data
            tuned["c"] = ref_cost / 30 if scale is None else scale
        else:
            tuned["c"] = float(b_c)
        needed = (mean["g"].mean(axis=0) + 1) / np.sqrt(var.mean(axis=0))
        eligible_b_g = max(0.0, float(needed.min())) * (1 + 1e-9)
        scale = loo_scale(history, "g", lam, kernel) if b_g in ("loo", "loo_widening") else None
        if isinstance(b_g, str):  # "eligible", or "loo" without enough data
            tuned["g"] = eligible_b_g if scale is None else scale
        else:
            tuned["g"] = float(b_g)
        if b_g == "loo_widening":
            widest = eligible_b_g
    run.b_c, run.b_g = half_width("c"), half_width("g")

    # alg:scope-main
    u_out = max(float(bounds("c")[1][ref_index]), ref_cost if floor else -math.inf)
    i = 0
    while True:
        i += 1
        lower_c, others = bounds("c")[0], range(len(space))
        if gap_tolerance is not None:
            others = [n for n in others if space[n] != theta_out]
        could_improve = [n for n in others if gap_tolerance is None or lower_c[n] <= u_out]
        while True:
            lower_g = bounds("g")[0]
            min_l_g = min((float(lower_g[n]) for n in could_improve), default=math.inf)
            if min_l_g < 0 or tuned["g"] >= widest or theory is not None:
                break
            tuned["g"] = run.b_g = min(1.5 * tuned["g"], widest)
            run.b_g_widened.append(tuned["g"])
            run.widened_at.append(len(history))
        feasible = [n for n in others if lower_g[n] <= 0]
        least_cost = min((float(lower_c[n]) for n in feasible), default=math.inf)
        run.gaps.append(max(0.0, u_out - least_cost))
        if min_l_g >= 0:
            run.stop_reason = "nothing can improve"
            return run
        if min_l_g > -(i**-alpha):  # nobody is eligible
            i = first_iteration(i, min_l_g, alpha)
        eligible = [n for n in could_improve if lower_g[n] <= -(i**-alpha)]
        best = min(lower_c[n] for n in eligible)
        tolerance = 1e-9 * max(abs(best), ref_cost)
        ties = [n for n in eligible if lower_c[n] <= best + tolerance]
        cand = min(ties, key=lambda n: splitmix64((n + seed * GOLDEN) & _MASK))
        theta_cand = space[cand]
        run.iterations.append({"i": i, "theta_cand": theta_cand, "num_observed": 0})
        if gap_tolerance is not None and run.gaps[-1] <= gap_tolerance * u_out:
            run.stop_reason = "gap"
            return run

        phi = np.rint(var[:, cand] * 1e9)  # eq:uncertainty-score, squared and rounded
        order = sorted(query_order, key=lambda q, phi=phi: -phi[q])  # stable: ties by query_order
        for start in range(0, num_queries, batch_size):
            pruned = False
            for query in order[start : start + batch_size]:
                u_g_before = bounds("g")[1][cand]
                observe(theta_cand, query)
                run.iterations[-1]["num_observed"] += 1
                refit(query)
                (l_c, u_c), (l_g, u_g) = ([b[cand] for b in bounds(zeta)] for zeta in "cg")
                if not pruned and u_c <= u_out and min(u_g, u_g_before) <= 0:
                    if theta_out != theta_cand and gap_tolerance is not None:
                        # theta_star may be what is replaced, which was not among `others`
                        former = bounds("c")[0][space.index(theta_out)]
                        least_cost = min(least_cost, float(former))
                    theta_out, u_out = theta_cand, float(u_c)
                if exhausted():
                    run.stop_reason = "budget"
                    return run
                pruned = pruned or (prune and bool(l_g > 0 or l_c > u_out))
            if pruned:
                break
