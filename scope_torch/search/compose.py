"""The paper's SCOPE, composed of its parts around confidence bounds of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds.base import ConfidenceBounds, check_made_for
from scope_torch.bounds.repeats import Repeats
from scope_torch.model.devices import pick_device, surrogate_class
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import InitialPool, PoolKind, Ties
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.certificate import certificate_of, flips_of
from scope_torch.search.choice import LeastCost
from scope_torch.search.known import Known, known_of
from scope_torch.search.scope import SCOPE
from scope_torch.search.stopping import stopping_of
from scope_torch.space_search.branched import MAX_NODES, make_posterior


def compose_scope(
    problem: SelectionProblem,
    bounds: ConfidenceBounds,
    *,
    seed: int,
    base: Sequence[int] | None = None,
    initial_pool: PoolKind = "base",
    calibrate_ties: Ties = "cheaper",
    prune: bool = True,
    alpha: float = 1 / 3,
    lam: float = 1e-6,
    batch_size: int | None = 1,
    gap_tolerance: float | None = 0.0,
    space_search: str = "auto",
    max_nodes: int = MAX_NODES,
    surrogate: str = "auto",
    sequence_delta: float | None = None,
    sequence_flips: float | str | Repeats | None = 0.0,
    reference_repeats: Sequence[int] | None = None,
    population_delta: float | None = None,
    query_pool: int | None = None,
    kernel: Kernel | None = None,
    device: torch.device | str | None = None,
    known: Known | Sequence[Observation] = (),
    name: str = "scope",
) -> SCOPE:
    """Composes the paper's SCOPE around confidence bounds of your own.

    Args:
        problem: What to search.
        bounds: Confidence bounds.
        seed: Decides the query order, the random pool and all ties.
        base: Codes of the configuration with theta_base in every module (eq:theta-1-def); needed
            for `initial_pool="base"` only.
        initial_pool: Theta_init, see `InitialPool`.
        calibrate_ties: `ties` of `InitialPool`.
        prune: See `SCOPE`.
        alpha: See `LeastCost`.
        lam: lambda of the surrogates, at least 1e-9.
        batch_size: See `SCOPE`.
        gap_tolerance: See `Stopping`.
        space_search: How minima over Theta are found: `grid` enumerates up to 2e8 configurations,
            `branch_and_bound` finds the same in more, `auto` takes what fits.
        max_nodes: See `BranchedPosterior`.
        surrogate: Where the Gaussian processes of the queries are: see `surrogate_class`.
        sequence_delta: None to certify by bounds (`ByBounds`); a number: by a sequence with that
            delta (`BySequence`).
        sequence_flips: `certificate_flips` of `make_scope`.
        reference_repeats: See `make_scope`.
        population_delta: A number: to certify by `ByPopulation` with that delta.
        query_pool: See `make_scope`.
        kernel: k; default Matern 5/2.
        device: Where the algebra over Theta runs; None for `auto`, see `pick_device`.
        known: Observations of earlier searches; see `make_scope`.
        name: Name in results.

    Raises:
        InputError: If a value is outside its range, Theta is too large for `space_search`, or the
            bounds were made for another kernel or lambda.
    """
    kind = "sequence" if population_delta is None else "population"
    delta = sequence_delta if population_delta is None else population_delta
    flips = flips_of(sequence_flips, reference_repeats)
    known = known_of(problem, known, 0.0 if kind == "population" else flips)
    certificate = certificate_of(problem, delta, flips, kind, seed, query_pool, known)
    choice = LeastCost(alpha, certificate.next_margin)
    stopping = stopping_of(problem, gap_tolerance)
    pool = InitialPool(problem, initial_pool, base, calibrate_ties)
    kernel = HammingMatern52Kernel() if kernel is None else kernel
    space, device = problem.space, pick_device(device, problem.space.size)
    check_made_for(bounds, kernel, lam, space.num_modules)
    num_constraints = problem.num_constraints
    of_queries = surrogate_class(surrogate, device, num_constraints)
    model = of_queries(space, kernel, problem.num_queries, lam, device, num_constraints)
    return SCOPE(
        problem,
        surrogate=model,
        posterior=make_posterior(
            model,
            space,
            kernel,
            space_search=space_search,
            max_nodes=max_nodes,
            device=device,
            allowed=problem.rule,
        ),
        make_candidate=partial(QueryCandidate, model),
        bounds=bounds,
        pool=pool,
        choice=choice,
        certificate=certificate,
        stopping=stopping,
        seed=seed,
        prune=prune,
        batch_size=batch_size,
        known=known,
        name=name,
    )
