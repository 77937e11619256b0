"""SCOPE from plain settings: names, numbers and rules, as a user or a config file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import ConfidenceBounds, CredibleBounds, TheoryBounds, TunedBounds
from scope_torch.branched_posterior import MAX_NODES
from scope_torch.errors import InputError
from scope_torch.information_gain import InformationGain
from scope_torch.kernels import HammingMatern52Kernel
from scope_torch.problem import SelectionProblem
from scope_torch.scope import SCOPE, InitialPool
from scope_torch.scope_joint import ScopeJoint
from scope_torch.surrogate import MIN_LAM

_TUNED = ("b_g", "b_c", "reference_fraction")
_THEORY = ("R_c", "R_g", "B_c", "B_g", "delta", "cost_unit")


def make_scope(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: str | None = None,
    bounds: Mapping[str, Any] | None = None,
    initial_pool: InitialPool = "base",
    prune: bool = True,
    alpha: float = 1 / 3,
    lam: float | None = None,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    space_search: str = "auto",
    max_nodes: int = MAX_NODES,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    name: str = "scope",
) -> SCOPE:
    """Builds SCOPE; arguments not listed are those of `scope_torch.scope.SCOPE`.

    Args:
        problem: What to search.
        seed: Seed of the run.
        base: Name of theta_base, a cheap LLM that is a candidate of every module.
        bounds: `mode` (`tuned` or `theory`) and the arguments of `TunedBounds` or `TheoryBounds`;
            those of the other mode are ignored, but R_c and R_g decide the default of `lam`.
        initial_pool: See `SCOPE`.
        prune: See `SCOPE`.
        alpha: See `SCOPE`.
        lam: lambda; None for max{R_c^2, R_g^2, 1e-9} (eq:scope-mean-variance).
        batch_size: See `SCOPE`.
        gap_tolerance: See `SCOPE`.
        space_search: See `SCOPE`.
        max_nodes: See `SCOPE`.
        kernel: See `SCOPE`.
        device: See `SCOPE`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.
    """
    bounds = dict(bounds or {})
    mode = bounds.pop("mode", "tuned")
    unknown = sorted(set(bounds) - {*_TUNED, *_THEORY})
    if unknown:
        raise InputError(f"unknown bounds setting {unknown[0]!r}; use one of {[*_TUNED, *_THEORY]}")
    if lam is None:
        largest_R: float = max(bounds.get("R_c", 1e-3), bounds.get("R_g", 1e-3))
        lam = max(largest_R**2, MIN_LAM)
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    confidence: ConfidenceBounds
    if mode == "tuned":
        confidence = TunedBounds(problem, **{k: bounds[k] for k in _TUNED if k in bounds})
    elif mode == "theory":
        gain = InformationGain(problem.space, kernel, lam, device)
        confidence = TheoryBounds(problem, gain, **{k: bounds[k] for k in _THEORY if k in bounds})
    else:
        raise InputError(f"bounds mode {mode!r} must be tuned or theory")
    return SCOPE(
        problem,
        confidence,
        seed=seed,
        base=_codes_of_base(problem, base, initial_pool),
        initial_pool=initial_pool,
        prune=prune,
        alpha=alpha,
        lam=lam,
        batch_size=batch_size,
        gap_tolerance=gap_tolerance,
        space_search=space_search,
        max_nodes=max_nodes,
        kernel=kernel,
        device=device,
        name=name,
    )


def make_scope_joint(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: str | None = None,
    b: float = 3.0,
    b_certify: float = 4.0,
    rho: float | None = None,
    amplitude: float | None = None,
    relative_cost: bool = True,
    initial_pool: InitialPool = "base",
    prune: bool = True,
    lam: float = 1e-6,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    name: str = "scope_joint",
) -> ScopeJoint:
    """Builds SCOPE with the joint surrogate.

    Args:
        problem: What to search.
        seed: Seed of the run.
        base: See `make_scope`.
        b: See `CredibleBounds`.
        b_certify: See `CredibleBounds`.
        rho: See `JointSurrogate`.
        amplitude: See `JointSurrogate`.
        relative_cost: See `JointSurrogate`.
        initial_pool: See `SCOPE`.
        prune: See `SCOPE`.
        lam: Variance of the noise of an answer relative to that of w_q, at least 1e-9.
        batch_size: See `SCOPE`.
        gap_tolerance: See `SCOPE`.
        kernel: See `SCOPE`.
        device: See `SCOPE`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.
    """
    return ScopeJoint(
        problem,
        CredibleBounds(b, b_certify),
        seed=seed,
        base=_codes_of_base(problem, base, initial_pool),
        initial_pool=initial_pool,
        prune=prune,
        lam=lam,
        batch_size=batch_size,
        gap_tolerance=gap_tolerance,
        kernel=kernel,
        device=device,
        name=name,
        rho=rho,
        amplitude=amplitude,
        relative_cost=relative_cost,
    )


def _codes_of_base(
    problem: SelectionProblem, base: str | None, initial_pool: InitialPool
) -> tuple[int, ...] | None:
    if initial_pool != "base" or base is None:
        return None
    return problem.codes([base] * problem.space.num_modules, "base")
