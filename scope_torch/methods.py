"""SCOPE from plain settings: names, numbers and rules, as a user or a config file gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import ConfidenceBounds, CredibleBounds, TheoryBounds, TunedBounds
from scope_torch.bounds.base import check_made_for
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError
from scope_torch.model.devices import joint_class, pick_device, surrogate_class
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import MIN_LAM
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.calibrate import Base, InitialPool, PoolKind, Ties, codes_of_base
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.certificate import certificate_of, flips_of
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.known import Known, known_of
from scope_torch.search.payoff import ExpectedReturn, derived_deployment
from scope_torch.search.rules import Rule, Rules
from scope_torch.search.scope import SCOPE
from scope_torch.search.stopping import stopping_of
from scope_torch.space_search.branched import MAX_NODES, make_posterior
from scope_torch.space_search.joint_branched import MAX_NODES as JOINT_MAX_NODES
from scope_torch.space_search.joint_branched import make_joint_search

_TUNED = ("b_g", "b_c", "reference_fraction")
_THEORY = ("R_c", "R_g", "B_c", "B_g", "delta", "cost_unit")
_CREDIBLE = ("b", "b_certify", "widenings")
_WIDENINGS = 6  # to 34 standard deviations, which is more than can pay


def make_scope(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: Base = None,
    bounds: Mapping[str, Any] | ConfidenceBounds | None = None,
    initial_pool: PoolKind = "base",
    calibrate_ties: Ties = "cheaper",
    prune: bool = True,
    alpha: float = 1 / 3,
    lam: float | None = None,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    space_search: str = "auto",
    max_nodes: int = MAX_NODES,
    surrogate: str = "auto",
    certificate: str = "bounds",
    certificate_flips: float | str | Repeats | None = 0.0,
    reference_repeats: Sequence[int] | None = None,
    query_pool: int | None = None,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    known: Known | Sequence[Observation] = (),
    rules: Sequence[Rule] = (),
    name: str = "scope",
) -> SCOPE:
    """Builds SCOPE; arguments not listed are those of `scope_torch.search.scope.SCOPE`.

    Args:
        problem: What to search.
        seed: Seed of the run.
        base: theta_base, cheap LLMs: the name of one that is a candidate of every module, or a name
            for each module, as a list or as a dict by module.
        bounds: `mode` (`tuned` or `theory`), `gain` (`maximum` or `realised`, see `TheoryBounds`)
            and the arguments of `TunedBounds` or `TheoryBounds`; those of the other mode are
            ignored, but R_c and R_g decide the default of `lam`. Or confidence bounds of your own.
        initial_pool: Theta_init, see `InitialPool`.
        calibrate_ties: `ties` of `InitialPool`.
        prune: See `SCOPE`.
        alpha: See `LeastCost`.
        lam: lambda; None for max{R_c^2, R_g^2, 1e-9} (eq:scope-mean-variance).
        batch_size: See `SCOPE`.
        gap_tolerance: See `Stopping`.
        space_search: How minima over Theta are found: `grid` enumerates up to 2e8 configurations,
            `branch_and_bound` finds the same in more, `auto` takes what fits.
        max_nodes: See `BranchedPosterior`.
        surrogate: Where the Gaussian processes of the queries are: see `surrogate_class`.
        certificate: `bounds`; or at the `delta` of `bounds`: `sequence` (`BySequence`), about the
            queries of the search, or `population` (`ByPopulation`), about the distribution that
            they were drawn from.
        certificate_flips: With `sequence`: whether answers vary from call to call. 0 or None: the
            same call always gets the same answer. Else candidates are certified by fresh answers,
            whatever varies (`ByFreshAnswers`); how often the same call gets another answer than
            usual, or the `Repeats` of the reference, only says what is worth trying. `auto`:
            `Repeats` made of `reference_repeats`.
        reference_repeats: With `certificate_flips="auto"`: how many queries theta_0 answered
            otherwise the second time, and how many it was asked twice.
        query_pool: With `population`, if there are more queries than a search needs: Calibrate
            looks at this many. A candidate draws from all of them in an order of its own, and stops
            once it is theta_out. None: Calibrate looks at all, and a candidate answers all.
        kernel: k; None for Matern 5/2.
        device: Where the algebra over Theta runs; None for `auto`, see `pick_device`.
        known: Observations of earlier searches, in the codes of this problem, or a `Known`; see
            `scope_torch.search.known`.
        rules: Rules of your own, see `Rule`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task().problem
        >>> make_scope(problem, base="small", bounds={"b_g": "eligible"}).name
        'scope'
        >>> make_scope(problem, initial_pool="none", prune=False, name="scope_coarse").name
        'scope_coarse'
    """
    of_bounds = dict(bounds or {}) if isinstance(bounds, Mapping | None) else {}
    lam = _default_lam(of_bounds) if lam is None else lam
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    device = pick_device(device, problem.space.size)
    confidence = bounds
    if isinstance(confidence, Mapping | None):
        confidence = _bounds_of(problem, of_bounds, kernel, lam, device)
    delta = _delta_of(certificate, of_bounds)
    flips = flips_of(certificate_flips, reference_repeats)
    asks_again = 0.0 if certificate == "population" else flips  # there the first answers count
    known = known_of(problem, known, asks_again)
    of_answers = delta, flips, certificate
    certifies = certificate_of(problem, *of_answers, seed, query_pool, known)
    check_made_for(confidence, kernel, lam, problem.space.num_modules)
    space, num_constraints = problem.space, problem.num_constraints
    of_queries = surrogate_class(surrogate, device, num_constraints)
    model = of_queries(space, kernel, problem.num_queries, lam, device, num_constraints)
    posterior = make_posterior(
        model,
        space,
        kernel,
        space_search=space_search,
        max_nodes=max_nodes,
        device=device,
        allowed=problem.rule,
    )
    belief = Belief(problem, model, posterior, partial(QueryCandidate, model), confidence)
    stopping = stopping_of(problem, gap_tolerance)
    codes = codes_of_base(problem, base, initial_pool)
    return SCOPE(
        problem,
        belief=belief,
        pool=InitialPool(problem, initial_pool, codes, calibrate_ties),
        choice=LeastCost(alpha, certifies.next_margin),
        rules=Rules(problem, belief, certifies, stopping, known=known, own=rules),
        seed=seed,
        prune=prune,
        batch_size=batch_size,
        name=name,
    )


def make_scope_joint(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: Base = None,
    bounds: Mapping[str, Any] | None = None,
    rho: float | None = None,
    amplitude: float | None = None,
    relative_cost: bool | None = None,
    initial_pool: PoolKind = "base",
    prune: bool = True,
    lam: float | None = None,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    space_search: str = "auto",
    max_nodes: int = JOINT_MAX_NODES,
    surrogate: str = "auto",
    certificate: str | None = None,
    certificate_flips: float | str | Repeats | None = 0.0,
    reference_repeats: Sequence[int] | None = None,
    query_pool: int | None = None,
    budget_usd: float | None = None,
    learn_reference: bool = False,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    known: Known | Sequence[Observation] = (),
    rules: Sequence[Rule] = (),
    name: str = "scope_joint",
) -> SCOPE:
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
        initial_pool: See `InitialPool`.
        prune: See `SCOPE`.
        lam: Variance of the noise of an answer relative to that of w_q, at least 1e-9; None: 1e-6,
            or max{R_c^2, R_g^2, 1e-9} / (1 - rho) with `theory`.
        batch_size: See `SCOPE`.
        gap_tolerance: See `Stopping`.
        space_search: See `make_scope`.
        max_nodes: See `JointBranchedPosterior`.
        surrogate: See `make_scope`.
        certificate: See `make_scope`; None for `sequence`, with `theory` for `bounds`.
        certificate_flips: See `make_scope`.
        reference_repeats: See `make_scope`.
        query_pool: See `make_scope`.
        budget_usd: Lambda. With it, the search stops when it no longer pays even if the problem
            does not say `deployment_queries`, see `derived_deployment`.
        learn_reference: Whether the model takes in `reference_answers` of the problem, theta_0's
            answers, as observations. Nobody pays for them again. The paper's search does not know
            them.
        kernel: See `make_scope`.
        device: See `make_scope`.
        known: See `make_scope`.
        rules: See `make_scope`.
        name: Name in results.

    Raises:
        InputError: If a value is unknown or outside its range.

    Examples:
        >>> from scope_torch.runs.runner import run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> optimizer = make_scope_joint(task.problem, base="small", seed=1)
        >>> run(task.problem, optimizer, task.evaluator, budget_usd=3.0).recommendation.basis
        'certified'
    """
    bounds = {"delta": 0.05, **(bounds or {})}
    mode = _one_of("bounds mode", bounds.pop("mode", "credible"), ("credible", "theory"))
    _check_names(bounds, (*_CREDIBLE, *_THEORY))
    deployment = math.inf if gap_tolerance is None else _deployment(problem, budget_usd)
    certificate = certificate or ("bounds" if mode == "theory" else "sequence")
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    confidence: ConfidenceBounds
    if mode == "theory":
        rho = _rho_of_theory(rho, amplitude, relative_cost)
        amplitude, relative_cost = 1.0, False
        lam = _default_lam(bounds) / (1 - rho) if lam is None else lam
        gain = RealisedGain(kernel, lam)
        confidence = TheoryBounds(problem, gain, rho=rho, **_chosen(bounds, _THEORY))
    else:
        if bounds.get("widenings") is None:
            bounds["widenings"] = _widenings(problem, deployment)
        confidence = CredibleBounds(**_chosen(bounds, _CREDIBLE))
    relative_cost = _is_relative(problem, relative_cost, initial_pool)
    lam = 1e-6 if lam is None else lam
    device = pick_device(device, problem.space.size)
    check_made_for(confidence, kernel, lam, problem.space.num_modules)
    joint = joint_class(surrogate, device, kernel, problem.num_constraints)(
        problem.space,
        kernel,
        problem.num_queries,
        lam,
        rho=rho,
        amplitude=amplitude,
        relative_cost=relative_cost,
        scale_if_free=problem.reference_cost_usd,
        device=device,
        num_constraints=problem.num_constraints,
    )
    flips = flips_of(certificate_flips, reference_repeats)
    known = known_of(problem, known, flips if certificate != "population" else 0, learn_reference)
    delta = _delta_of(certificate, bounds)
    certifies = certificate_of(problem, delta, flips, certificate, seed, query_pool, known)
    margin, rule = certifies.next_margin, problem.rule
    by_cost = gap_tolerance is None or problem.objective == "quality"
    pays = ExpectedReturn(problem.num_queries, deployment, relative_cost, margin)
    posterior = make_joint_search(
        joint, space_search=space_search, max_nodes=max_nodes, margin=margin, allowed=rule
    )
    belief = Belief(problem, joint, posterior, partial(JointCandidate, joint), confidence)
    stopping, payoff = stopping_of(problem, gap_tolerance), pays if deployment < math.inf else None
    return SCOPE(
        problem,
        belief=belief,
        pool=InitialPool(problem, initial_pool, codes_of_base(problem, base, initial_pool)),
        choice=LeastCost(None, margin) if by_cost else MostPromising(margin),
        rules=Rules(problem, belief, certifies, stopping, payoff, known, rules),
        seed=seed,
        u_out=problem.first_u_out,
        prune=prune,
        batch_size=batch_size,
        name=name,
    )


def _bounds_of(
    problem: SelectionProblem,
    bounds: dict[str, Any],
    kernel: Kernel,
    lam: float,
    device: torch.device,
) -> ConfidenceBounds:
    """Those of the paper, from plain settings."""
    mode = _one_of("bounds mode", bounds.pop("mode", "tuned"), ("tuned", "theory"))
    rule = _one_of("bounds gain", bounds.pop("gain", "maximum"), ("maximum", "realised"))
    _check_names(bounds, (*_TUNED, *_THEORY))
    if mode == "tuned":
        return TunedBounds(problem, **_chosen(bounds, _TUNED))
    gain = RealisedGain(kernel, lam)
    if rule == "maximum":
        gain = InformationGain(problem.space, kernel, lam, device)
    return TheoryBounds(problem, gain, **_chosen(bounds, _THEORY))


def _is_relative(
    problem: SelectionProblem, relative_cost: bool | None, initial_pool: PoolKind
) -> bool:
    """Whether costs are in units of the query's mean: they differ by orders of magnitude."""
    if relative_cost is False or problem.objective != "cost":
        return False  # the loss 1 - quality does not
    if initial_pool == "none":
        raise InputError(
            "initial_pool=none: the scale of costs is fitted to what Calibrate observes; take "
            "base or random"
        )
    return True


def _deployment(problem: SelectionProblem, budget_usd: float | None) -> float:
    """H: as the problem says, derived from the budget, or infinite if neither is known.

    What a better quality is worth nobody has said, so for that objective it is infinite.
    """
    if problem.objective == "quality":
        return math.inf
    if problem.deployment_queries is not None:
        return problem.deployment_queries
    if budget_usd is None:
        return math.inf
    return derived_deployment(budget_usd, problem.reference_cost_usd)


def _widenings(problem: SelectionProblem, deployment: float) -> int:
    """As often as it pays; once if nobody knows what pays, and never if quality is the objective.

    Without widening the best quality was found as often, for a sixth less.
    """
    if problem.objective == "quality":
        return 0
    return 1 if math.isinf(deployment) else _WIDENINGS


def _rho_of_theory(rho: float | None, amplitude: float | None, relative_cost: bool | None) -> float:
    if rho is None or not 0 <= rho < 1 or amplitude not in (None, 1) or relative_cost:
        raise InputError(
            f"rho={rho}, amplitude={amplitude}, relative_cost={relative_cost}: theory needs a "
            "process that is not fitted: give rho in [0, 1), and leave the others null"
        )
    return rho


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


def _delta_of(certificate: str, bounds: Mapping[str, Any]) -> float | None:
    """The delta of certificates by answers; None for those by bounds."""
    _one_of("certificate", certificate, ("bounds", "sequence", "population"))
    return None if certificate == "bounds" else bounds.get("delta", 1e-4)
