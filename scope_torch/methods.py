"""SCOPE from plain settings: names, numbers and rules, as a user or a config file gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import ConfidenceBounds, CredibleBounds, TheoryBounds, TunedBounds
from scope_torch.bounds.base import check_made_for, positive
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.errors import InputError
from scope_torch.factors import Levels, levels_of
from scope_torch.model.cost_regression import regress_costs
from scope_torch.model.cost_scale import FitScale, fit_cost_scale
from scope_torch.model.devices import joint_class, pick_device, surrogate_class
from scope_torch.model.kernels import FactorKernel, HammingKernel, kernel_of
from scope_torch.model.list_sums import listed
from scope_torch.model.per_query import MIN_LAM
from scope_torch.options import SearchOptions, check_names, chosen, one_of, with_defaults
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.calibrate import InitialPool, PoolKind, codes_of_base
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.certificate import certificate_of, flips_of
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.search.in_flight import InFlight
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.known import Known, known_of
from scope_torch.search.parts import Certificate, Choice
from scope_torch.search.payoff import ExpectedReturn, derived_deployment
from scope_torch.search.pipeline import made_for
from scope_torch.search.rules import Rules
from scope_torch.search.scope import SCOPE
from scope_torch.search.stopping import stopping_of
from scope_torch.search.verify import Verification
from scope_torch.space import MAX_ENUMERATED
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
    bounds: Mapping[str, Any] | ConfidenceBounds | None = None,
    alpha: float = 1 / 3,
    lam: float | None = None,
    u_out_floor: bool = True,
    max_nodes: int = MAX_NODES,
    certificate: str = "bounds",
    name: str = "scope",
    **options: Unpack[SearchOptions],
) -> SCOPE:
    """Builds SCOPE.

    Args:
        problem: What to search.
        bounds: `mode` (`tuned` or `theory`), `gain` (`maximum` or `realised`, see `TheoryBounds`)
            and the arguments of `TunedBounds` or `TheoryBounds`; those of the other mode are
            ignored, but R_c and R_g decide the default of `lam`. Or confidence bounds of your own.
        alpha: Exponent of the dynamic constraint in (0, 1/2), see `LeastCost`.
        lam: lambda; None for max{R_c^2, R_g^2, 1e-9} (eq:scope-mean-variance).
        u_out_floor: Whether U_out begins at c(theta_0) at least; False: at U_{c,t_0}(theta_0) as it
            is, as in line alg:scope-main:init1.
        max_nodes: Most prefixes that `branch_and_bound` visits to find a minimum.
        certificate: `bounds`; or at the `delta` of `bounds`: `sequence` (`BySequence`), about the
            queries of the search, or `population` (`ByPopulation`), about the distribution that
            they were drawn from.
        name: Name in results.
        options: `SearchOptions`.

    Raises:
        InputError: If a value is unknown or outside its range.
        TypeError: If there is no such option.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task().problem
        >>> make_scope(problem, base="small", bounds={"b_g": "eligible"}).name
        'scope'
        >>> make_scope(problem, initial_pool="none", prune=False, name="scope_coarse").name
        'scope_coarse'
    """
    shared = with_defaults(options, "make_scope")
    of_bounds = dict(bounds or {}) if isinstance(bounds, Mapping | None) else {}
    lam = _default_lam(of_bounds) if lam is None else lam
    kernel, device = _kernel_and_device(problem, shared)
    confidence = bounds
    if isinstance(confidence, Mapping | None):
        confidence = _bounds_of(problem, of_bounds, kernel, lam, device)
    certifies, known = _certificate(problem, shared, certificate, of_bounds)
    check_made_for(confidence, kernel, lam, problem.space.num_modules)
    space, num_constraints = problem.space, problem.num_constraints
    of_queries = surrogate_class(shared["surrogate"], device)
    model = of_queries(space, kernel, problem.num_queries, lam, device, num_constraints)
    posterior = make_posterior(
        model,
        space,
        kernel,
        space_search=shared["space_search"],
        max_nodes=max_nodes,
        device=device,
        allowed=problem.rule,
    )
    belief = Belief(problem, model, posterior, partial(QueryCandidate, model), confidence)
    stopping = stopping_of(problem, shared["gap_tolerance"], u_out_floor)
    rules = Rules(problem, belief, certifies, stopping, known=known, own=shared["rules"])
    choice = LeastCost(alpha, certifies.next_margin)
    return _search(problem, shared, belief, choice, rules, name)


def make_scope_joint(
    problem: SelectionProblem,
    *,
    bounds: Mapping[str, Any] | None = None,
    rho: float | None = None,
    amplitude: float | None = None,
    relative_cost: bool | None = None,
    lam: float | None = None,
    max_nodes: int = JOINT_MAX_NODES,
    certificate: str | None = None,
    budget_usd: float | None = None,
    learn_reference: bool = False,
    calibration_queries: int | None = 4,
    verify: int = 1,
    cost_scale: str = "regression",
    call_usd: float = 0.0,
    name: str = "scope_joint",
    **options: Unpack[SearchOptions],
) -> SCOPE:
    """Builds SCOPE with the joint surrogate.

    Args:
        problem: What to search.
        bounds: `mode` (`credible` or `theory`) and the arguments of `CredibleBounds` or
            `TheoryBounds`; `delta`, default 0.05, is also that of the sequences. A theorem needs a
            process that does not depend on the observations: with `theory`, rho must be given, the
            amplitude is 1 and costs are in USD.
        rho: Share of the variance that all queries have in common; None: fitted.
        amplitude: Prior standard deviation; None: fitted.
        relative_cost: Whether costs are divided by a sum over modules, see `JointSurrogate`; None:
            unless the mode is `theory`.
        lam: Variance of the noise of an answer relative to that of w_q, at least 1e-9; None: 1e-6,
            or max{R_c^2, R_g^2, 1e-9} / (1 - rho) with `theory`.
        max_nodes: Most prefixes that `branch_and_bound` visits to find a minimum.
        certificate: As that of `make_scope`; None for `sequence`, with `theory` for `bounds`.
        budget_usd: Lambda. With it, the search stops when it no longer pays even if the problem
            does not say `deployment_queries`, see `derived_deployment`.
        learn_reference: Whether the model takes in `reference_answers` of the problem, theta_0's
            answers, as observations. Nobody pays for them again. The paper's search does not know
            them.
        calibration_queries: How many queries Calibrate looks at, and more while answers are on
            average below s_0 / 2; None: all, as in alg:scope-main, and if quality is the objective.
        verify: Rounds in which the model is tried, see `Verification`; 0 for none. There are none
            where costs are not relative, as if quality is the objective, or with `theory`.
        cost_scale: How the sum over modules is fitted: `regression` (`regress_costs`), or
            `least_squares` as in version 0.1.0 (`fit_cost_scale`).
        call_usd: What waiting for a call costs, for the rule when it no longer pays; in USD.
        name: Name in results.
        options: `SearchOptions`.

    Raises:
        InputError: If a value is unknown or outside its range.
        TypeError: If there is no such option.

    Examples:
        >>> from scope_torch.runs.runner import run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> optimizer = make_scope_joint(task.problem, base="small", seed=1)
        >>> run(task.problem, optimizer, task.evaluator, budget_usd=3.0).recommendation.basis
        'certified'
    """
    shared = with_defaults(options, "make_scope_joint")
    budget_usd = None if budget_usd is None else positive("budget_usd", budget_usd)
    bounds = {"delta": 0.05, **(bounds or {})}
    mode = one_of("bounds mode", bounds.pop("mode", "credible"), ("credible", "theory"))
    check_names(bounds, (*_CREDIBLE, *_THEORY))
    gap_tolerance = shared["gap_tolerance"]
    deployment = math.inf if gap_tolerance is None else _deployment(problem, budget_usd)
    certificate = certificate or ("bounds" if mode == "theory" else "sequence")
    levels = levels_of(problem.llms)
    kernel, device = _kernel_and_device(problem, shared, levels)
    confidence: ConfidenceBounds
    if mode == "theory":
        rho = _rho_of_theory(rho, amplitude, relative_cost)
        amplitude, relative_cost = 1.0, False
        lam = _default_lam(bounds) / (1 - rho) if lam is None else lam
        gain = RealisedGain(kernel, lam)
        confidence = TheoryBounds(problem, gain, rho=rho, **chosen(bounds, _THEORY))
    else:
        if bounds.get("widenings") is None:
            bounds["widenings"] = _widenings(problem, deployment)
        confidence = CredibleBounds(**chosen(bounds, _CREDIBLE))
    relative_cost = _is_relative(problem, relative_cost, shared["initial_pool"])
    lam = 1e-6 if lam is None else lam
    check_made_for(confidence, kernel, lam, problem.space.num_modules)
    joint = joint_class(shared["surrogate"], device, kernel)(
        problem.space,
        kernel,
        problem.num_queries,
        lam,
        rho=rho,
        amplitude=amplitude,
        relative_cost=relative_cost,
        scale_if_free=problem.reference_cost_usd,
        fit_scale=_scale_fit(problem, cost_scale),
        device=device,
        num_constraints=problem.num_constraints,
    )
    certifies, known = _certificate(problem, shared, certificate, bounds, learn_reference)
    margin, search = certifies.next_margin, shared["space_search"]
    by_cost = gap_tolerance is None or problem.objective == "quality"
    pays = ExpectedReturn(problem.num_queries, deployment, relative_cost, margin, call_usd)
    posterior = make_joint_search(
        joint, space_search=search, max_nodes=max_nodes, margin=margin, allowed=problem.rule
    )
    belief = Belief(problem, joint, posterior, partial(JointCandidate, joint), confidence)
    stopping, payoff = stopping_of(problem, gap_tolerance), pays if deployment < math.inf else None
    verification = Verification(problem, joint, verify, margin)
    rules = Rules(
        problem,
        belief,
        certifies,
        stopping,
        payoff,
        known,
        shared["rules"],
        verification if verify and relative_cost else None,
        _calibration_queries(problem, calibration_queries),
    )
    choice = LeastCost(None, margin) if by_cost else MostPromising(margin)
    return _search(problem, shared, belief, choice, rules, name, problem.first_u_out, levels)


def _kernel_and_device(
    problem: SelectionProblem, shared: SearchOptions, levels: Levels | None = None
) -> tuple[Kernel, torch.device]:
    """The kernel, and where sums are made.

    Args:
        problem: What is searched.
        shared: Options.
        levels: What choices share, if the kernel is to know it. Branch and bound has no such
            kernel.
    """
    kernel = kernel_of(shared["kernel"], problem.space.sizes)
    grid = problem.space.size <= MAX_ENUMERATED and shared["space_search"] != "branch_and_bound"
    if levels is not None and grid and isinstance(kernel, HammingKernel):
        kernel = FactorKernel(kernel, levels)
    index = listed(problem.rule, kernel)
    size = problem.space.size if index is None else len(index)
    return kernel, pick_device(shared["device"], size)


def _certificate(
    problem: SelectionProblem,
    shared: SearchOptions,
    kind: str,
    bounds: Mapping[str, Any],
    learn_reference: bool = False,
) -> tuple[Certificate, Known]:
    """What certifies candidates, and the observations of earlier searches."""
    flips = flips_of(shared["certificate_flips"], shared["reference_repeats"])
    asks_again = 0.0 if kind == "population" else flips  # there the first answers count
    known = known_of(problem, shared["known"], asks_again, learn_reference)
    delta = _delta_of(kind, bounds)
    of_answers = shared["seed"], shared["query_pool"], known
    return certificate_of(problem, delta, flips, kind, *of_answers), known


def _search(
    problem: SelectionProblem,
    shared: SearchOptions,
    belief: Belief,
    choice: Choice[Any],
    rules: Rules,
    name: str,
    u_out: float | None = None,
    levels: Levels | None = None,
) -> SCOPE:
    codes = codes_of_base(problem, shared["base"], shared["initial_pool"])
    return made_for(shared["in_flight"], SCOPE, InFlight)(
        problem,
        belief=belief,
        pool=InitialPool(problem, shared["initial_pool"], codes, levels),
        choice=choice,
        rules=rules,
        seed=shared["seed"],
        u_out=u_out,
        prune=shared["prune"],
        batch_size=shared["batch_size"],
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
    mode = one_of("bounds mode", bounds.pop("mode", "tuned"), ("tuned", "theory"))
    rule = one_of("bounds gain", bounds.pop("gain", "maximum"), ("maximum", "realised"))
    check_names(bounds, (*_TUNED, *_THEORY))
    if mode == "tuned":
        return TunedBounds(problem, **chosen(bounds, _TUNED))
    gain = RealisedGain(kernel, lam)
    if rule == "maximum":
        gain = InformationGain(problem.space, kernel, lam, device)
    return TheoryBounds(problem, gain, **chosen(bounds, _THEORY))


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


def _scale_fit(problem: SelectionProblem, name: str) -> FitScale:
    if one_of("cost_scale", name, ("regression", "least_squares")) == "regression":
        return partial(regress_costs, llms=problem.llms)
    return fit_cost_scale


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


def _calibration_queries(problem: SelectionProblem, number: int | None) -> int | None:
    """As given; all if quality is the objective, where few were not tried."""
    if number is not None and (number < 1 or number % 1):
        raise InputError(f"calibration_queries={number} must be a whole number >= 1, or None")
    return number if problem.objective == "cost" else None


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


def _default_lam(bounds: Mapping[str, Any]) -> float:
    """max{R_c^2, R_g^2, 1e-9}."""
    largest_R: float = max(bounds.get("R_c", 1e-3), bounds.get("R_g", 1e-3))
    return max(largest_R**2, MIN_LAM) if largest_R < 1e150 else math.inf  # a power would raise


def _delta_of(certificate: str, bounds: Mapping[str, Any]) -> float | None:
    """The delta of certificates by answers; None for those by bounds."""
    one_of("certificate", certificate, ("bounds", "sequence", "population"))
    return None if certificate == "bounds" else bounds.get("delta", 1e-4)
