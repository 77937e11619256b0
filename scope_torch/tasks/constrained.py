"""Tasks with further constraints, or with another objective, than the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.problem import Objective, SelectionProblem
from scope_torch.runs.evaluator import HasTrueOutcomes
from scope_torch.tasks import Task


def named_outcomes(constraints: Sequence[str]) -> list[str]:
    """The outcomes beside cost and quality that constraints need.

    Raises:
        InputError: If a text is no constraint.
    """
    names = dict.fromkeys(Constraint.parse(text).outcome for text in constraints)
    return [name for name in names if name not in (COST, QUALITY)]


def with_constraints(task: Task, constraints: Sequence[str], objective: Objective = "cost") -> Task:
    """The task with constraints; theta_0's average outcomes come from its evaluator, if known.

    Args:
        task: With a bound on quality by epsilon, which goes if quality is the objective, or if
            one of the constraints bounds it.
        constraints: Texts of constraints, see `Constraint.parse`.
        objective: See `SelectionProblem`.

    Raises:
        InputError: If they do not fit together.

    Examples:
        >>> from scope_torch.tasks.simulated import simulated_task
        >>> task = simulated_task(name="fast", world="data_imputation", outcomes=True)
        >>> fast = with_constraints(task, ["latency_s <= 0.5 * reference cap 60"]).problem
        >>> reference_s = fast.reference_outcomes["latency_s"]
        >>> round(fast.limits[1].value / reference_s, 3)
        0.5
    """
    if not constraints and objective == "cost":
        return task
    parsed = [Constraint.parse(text) for text in constraints]
    problem, evaluator = task.problem, task.evaluator
    averages = {}
    if isinstance(evaluator, HasTrueOutcomes):
        others = [one for one in parsed if one.name not in (COST, QUALITY)]
        theta_ref = problem.theta_ref
        averages = {one.name: evaluator.average_outcome(theta_ref, one) for one in others}
    return task._replace(problem=constrained(problem, parsed, objective, averages))


def constrained(
    problem: SelectionProblem,
    constraints: Sequence[Constraint],
    objective: Objective,
    averages: Mapping[str, float],
) -> SelectionProblem:
    """The problem with constraints.

    Args:
        problem: See `with_constraints`.
        constraints: Parsed.
        objective: See `SelectionProblem`.
        averages: theta_0's average outcomes, as far as they are known.

    Raises:
        InputError: If they do not fit together.
    """
    by_epsilon = objective == "cost" and QUALITY not in (one.name for one in constraints)
    return replace(
        problem,
        epsilon=problem.epsilon if by_epsilon else None,
        constraints=tuple(constraints),
        reference_outcomes=averages,
        objective=objective,
    )
