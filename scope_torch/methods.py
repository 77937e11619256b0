"""SCOPE from plain settings: names, numbers and rules, as a user or a config file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import ConfidenceBounds, CredibleBounds, TheoryBounds, TunedBounds
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.errors import InputError
from scope_torch.model.incremental import MIN_LAM
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.problem import SelectionProblem
from scope_torch.search.scope import SCOPE, InitialPool
from scope_torch.search.scope_joint import ScopeJoint
from scope_torch.space_search.branched import MAX_NODES

_TUNED = ("b_g", "b_c", "reference_fraction")
_THEORY = ("R_c", "R_g", "B_c", "B_g", "delta", "cost_unit")
_CREDIBLE = ("b", "b_certify", "widenings")


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
    certificate: str = "bounds",
    certificate_flips: float = 0.0,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    name: str = "scope",
) -> SCOPE:
    """Builds SCOPE; arguments not listed are those of `scope_torch.search.scope.SCOPE`.

    Args:
        problem: What to search.
        seed: Seed of the run.
        base: Name of theta_base, a cheap LLM that is a candidate of every module.
        bounds: `mode` (`tuned` or `theory`), `gain` (`maximum` or `realised`, see `TheoryBounds`)
            and the arguments of `TunedBounds` or `TheoryBounds`; those of the other mode are
            ignored, but R_c and R_g decide the default of `lam`.
        initial_pool: See `SCOPE`.
        prune: See `SCOPE`.
        alpha: See `SCOPE`.
        lam: lambda; None for max{R_c^2, R_g^2, 1e-9} (eq:scope-mean-variance).
        batch_size: See `SCOPE`.
        gap_tolerance: See `SCOPE`.
        space_search: See `SCOPE`.
        max_nodes: See `SCOPE`.
        certificate: `bounds`, or `sequence` at the `delta` of `bounds`; see `SCOPE`.
        certificate_flips: With `sequence`: how often the same call is answered otherwise, see
            `scope_torch.bounds.betting.margin`.
        kernel: See `SCOPE`.
        device: See `SCOPE`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.
    """
    bounds = dict(bounds or {})
    mode = _one_of("bounds mode", bounds.pop("mode", "tuned"), ("tuned", "theory"))
    rule = _one_of("bounds gain", bounds.pop("gain", "maximum"), ("maximum", "realised"))
    _check_names(bounds, (*_TUNED, *_THEORY))
    lam = _default_lam(bounds) if lam is None else lam
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    confidence: ConfidenceBounds
    if mode == "tuned":
        confidence = TunedBounds(problem, **_chosen(bounds, _TUNED))
    else:
        gain = RealisedGain(kernel, lam)
        if rule == "maximum":
            gain = InformationGain(problem.space, kernel, lam, device)
        confidence = TheoryBounds(problem, gain, **_chosen(bounds, _THEORY))
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
        sequence_delta=_sequence_delta(certificate, bounds),
        sequence_flips=certificate_flips,
        kernel=kernel,
        device=device,
        name=name,
    )


def make_scope_joint(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: str | None = None,
    bounds: Mapping[str, Any] | None = None,
    rho: float | None = None,
    amplitude: float | None = None,
    relative_cost: bool | None = None,
    initial_pool: InitialPool = "base",
    prune: bool = True,
    lam: float | None = None,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    certificate: str | None = None,
    certificate_flips: float = 0.0,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    name: str = "scope_joint",
) -> ScopeJoint:
    """Builds SCOPE with the joint surrogate.

    Args:
        problem: What to search.
        seed: Seed of the run.
        base: See `make_scope`.
        bounds: `mode` (`credible` or `theory`) and the arguments of `CredibleBounds` or
            `TheoryBounds`; `delta`, default 0.05, is also that of the sequences. A theorem needs a
            process that does not depend on the observations: with `theory`, rho must be given, the
            amplitude is 1 and costs are in USD.
        rho: See `JointSurrogate`.
        amplitude: See `JointSurrogate`.
        relative_cost: See `JointSurrogate`; None: unless the mode is `theory`.
        initial_pool: See `SCOPE`.
        prune: See `SCOPE`.
        lam: Variance of the noise of an answer relative to that of w_q, at least 1e-9; None: 1e-6,
            or max{R_c^2, R_g^2, 1e-9} / (1 - rho) with `theory`.
        batch_size: See `SCOPE`.
        gap_tolerance: See `SCOPE`.
        certificate: See `make_scope`; None for `sequence`, with `theory` for `bounds`.
        certificate_flips: See `make_scope`.
        kernel: See `SCOPE`.
        device: See `SCOPE`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.
    """
    bounds = {"delta": 0.05, **(bounds or {})}
    mode = _one_of("bounds mode", bounds.pop("mode", "credible"), ("credible", "theory"))
    _check_names(bounds, (*_CREDIBLE, *_THEORY))
    if certificate is None:
        certificate = "bounds" if mode == "theory" else "sequence"
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    confidence: ConfidenceBounds
    if mode == "theory":
        if rho is None or not 0 <= rho < 1 or amplitude not in (None, 1) or relative_cost:
            raise InputError(
                f"rho={rho}, amplitude={amplitude}, relative_cost={relative_cost}: theory needs a "
                "process that is not fitted: give rho in [0, 1), and leave the others null"
            )
        amplitude, relative_cost = 1.0, False
        lam = _default_lam(bounds) / (1 - rho) if lam is None else lam
        gain = RealisedGain(kernel, lam)
        confidence = TheoryBounds(problem, gain, rho=rho, **_chosen(bounds, _THEORY))
    else:
        confidence = CredibleBounds(**_chosen(bounds, _CREDIBLE))
    return ScopeJoint(
        problem,
        confidence,
        seed=seed,
        base=_codes_of_base(problem, base, initial_pool),
        initial_pool=initial_pool,
        prune=prune,
        lam=1e-6 if lam is None else lam,
        batch_size=batch_size,
        gap_tolerance=gap_tolerance,
        sequence_delta=_sequence_delta(certificate, bounds),
        sequence_flips=certificate_flips,
        kernel=kernel,
        device=device,
        name=name,
        rho=rho,
        amplitude=amplitude,
        relative_cost=relative_cost is not False,
    )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"{name} {value!r} must be {' or '.join(known)}")
    return value


def _check_names(bounds: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(bounds) - set(known))
    if unknown:
        raise InputError(f"unknown bounds setting {unknown[0]!r}; use one of {[*known]}")


def _chosen(bounds: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: bounds[name] for name in names if name in bounds}


def _default_lam(bounds: Mapping[str, Any]) -> float:
    """max{R_c^2, R_g^2, 1e-9}."""
    largest_R: float = max(bounds.get("R_c", 1e-3), bounds.get("R_g", 1e-3))
    return max(largest_R**2, MIN_LAM)


def _sequence_delta(certificate: str, bounds: Mapping[str, Any]) -> float | None:
    _one_of("certificate", certificate, ("bounds", "sequence"))
    return bounds.get("delta", 1e-4) if certificate == "sequence" else None


def _codes_of_base(
    problem: SelectionProblem, base: str | None, initial_pool: InitialPool
) -> tuple[int, ...] | None:
    if initial_pool != "base" or base is None:
        return None
    return problem.codes([base] * problem.space.num_modules, "base")
