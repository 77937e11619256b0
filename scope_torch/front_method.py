"""scope_front from plain settings, as a user or a config file gives them."""

from __future__ import annotations

from gpytorch.kernels import Kernel

from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import Base, InitialPool, PoolKind, codes_of_base
from scope_torch.search.front_search import ScopeFront
from scope_torch.space import MAX_ENUMERATED
from scope_torch.space_search.grid import GridPosterior


def make_scope_front(
    problem: SelectionProblem,
    *,
    seed: int = 0,
    base: Base = None,
    b: float = 3.0,
    widenings: int = 1,
    rule: str = "area",
    axis: str = "log",
    rho: float | None = None,
    amplitude: float | None = None,
    initial_pool: PoolKind = "base",
    lam: float = 1e-6,
    batch_size: int = 1,
    kernel: Kernel | None = None,
    name: str = "scope_front",
) -> ScopeFront:
    """Builds the search for the whole front of cost and quality.

    Args:
        problem: What to search; Theta, or a list of what may be chosen, must be small enough to
            enumerate. epsilon decides theta_out
            alone, not what is searched.
        seed: Seed of the run.
        base: See `make_scope`.
        b: See `ScopeFront`.
        widenings: See `ScopeFront`.
        rule: See `ScopeFront`.
        axis: See `ScopeFront`.
        rho: See `JointSurrogate`.
        amplitude: See `JointSurrogate`.
        initial_pool: `base` or `random`, see `InitialPool`.
        lam: See `make_scope_joint`.
        batch_size: See `ScopeFront`.
        kernel: k; default Matern 5/2.
        name: Name in results.

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
    if initial_pool == "none":
        raise InputError("initial_pool=none: the search starts from Calibrate; take base or random")
    kernel = HammingMatern52Kernel() if kernel is None else kernel
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
    allowed = problem.rule if problem.space.size > MAX_ENUMERATED else None
    return ScopeFront(
        problem,
        surrogate=joint,
        posterior=GridPosterior(joint, make_grid(problem.space, kernel, allowed=allowed)),
        pool=InitialPool(problem, initial_pool, codes_of_base(problem, base, initial_pool)),
        seed=seed,
        b=b,
        widenings=widenings,
        rule=rule,
        axis=axis,
        batch_size=batch_size,
        name=name,
    )
