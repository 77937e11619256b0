"""scope_front from plain settings, as a user or a config file gives them."""

from __future__ import annotations

from typing import Unpack

from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import kernel_of
from scope_torch.model.list_sums import listed
from scope_torch.options import SharedOptions, with_defaults
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import InitialPool, codes_of_base
from scope_torch.search.front_in_flight import FrontInFlight
from scope_torch.search.front_search import ScopeFront
from scope_torch.search.pipeline import made_for
from scope_torch.space import MAX_ENUMERATED
from scope_torch.space_search.grid import GridPosterior


def make_scope_front(
    problem: SelectionProblem,
    *,
    b: float = 3.0,
    widenings: int = 1,
    rule: str = "area",
    rho: float | None = None,
    amplitude: float | None = None,
    lam: float = 1e-6,
    name: str = "scope_front",
    **options: Unpack[SharedOptions],
) -> ScopeFront:
    """Builds the search for the whole front of cost and quality.

    Args:
        problem: What to search; Theta, or a list of what may be chosen, must be small enough to
            enumerate. epsilon decides theta_out
            alone, not what is searched.
        b: Half-width of the optimistic corner in standard deviations.
        widenings: How often b is multiplied by 1.5; at most 100 times.
        rule: `area`: A for each USD; `chance`: P for each USD; see `ScopeFront`.
        rho: Share of the variance that all queries have in common; None: fitted.
        amplitude: Prior standard deviation; None: fitted.
        lam: Variance of the noise of an answer relative to that of w_q, at least 1e-9.
        name: Name in results.
        options: `SharedOptions`; `initial_pool=none` is refused.

    Raises:
        InputError: If a value is unknown or outside its range, or Theta is too large.

    Examples:
        >>> from scope_torch.runs.runner import run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = make_scope_front(task.problem, base="small", seed=1)
        >>> result = run(task.problem, search, task.evaluator, budget_usd=3.0)
        >>> best = result.pareto().points[-1]  # the most accurate configuration
        >>> best.basis, round(best.quality, 3)
        ('observed', 0.583)
    """
    shared = with_defaults(options, "make_scope_front", SharedOptions)
    initial_pool, kernel = shared["initial_pool"], kernel_of(shared["kernel"], problem.space.sizes)
    if initial_pool == "none":
        raise InputError("initial_pool=none: the search starts from Calibrate; take base or random")
    codes = codes_of_base(problem, shared["base"], initial_pool)
    joint = JointSurrogate(
        problem.space,
        kernel,
        problem.num_queries,
        lam,
        rho=rho,
        amplitude=amplitude,
        scale_if_free=problem.reference_cost_usd,
    )
    # A list that fits into Theta is not enumerated in its place: the scale of the area is that of
    # the dearest configuration of Theta, and searches that have begun are to be continued.
    index = listed(problem.rule, kernel) if problem.space.size > MAX_ENUMERATED else None
    return made_for(shared["in_flight"], ScopeFront, FrontInFlight)(
        problem,
        surrogate=joint,
        posterior=GridPosterior(joint, make_grid(problem.space, kernel, index=index)),
        pool=InitialPool(problem, initial_pool, codes),
        seed=shared["seed"],
        b=b,
        widenings=widenings,
        rule=rule,
        batch_size=shared["batch_size"],
        name=name,
    )
