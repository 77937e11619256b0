"""Best feasible cost and constraint violation of a search (sec:exp, evaluation metrics)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from scope_torch.constraints import COST, Constraint
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import TraceRow

# An average of 99 right answers of 156 is not below 0.99 of 100 of 156, though it is in float64.
ROUNDING = 1e-12


@dataclass(frozen=True)
class OracleCurve:
    """True cost and quality of theta_out as step functions of the budget.

    Where quality is the objective, 1 - quality stands for the cost, and s_0 is 0.

    theta_out at budget Lambda is the result of the search with that budget. The observation that
    takes the spend above the budget is still made and used; so theta_out at Lambda is the
    recommendation after the first t with spend_t > Lambda. The truth is computed offline and never
    shown to an optimizer.

    Args:
        budget_usd: `n` increasing budgets, the first 0.
        cost_usd: `n` true average costs c(theta_out) in USD from that budget on.
        quality: `n` true average qualities s(theta_out) in [0, 1] from that budget on.
        s_0: Quality threshold.
        others: Relative violations of the constraints but that on quality from that budget on,
            `n x` their number, see `Constraint.violation`; None if there are none.

    Examples:
        >>> steps = {0.0: (10.0, 0.9), 1.0: (4.0, 0.7), 2.0: (6.0, 0.85)}
        >>> curve = OracleCurve.from_steps(steps, s_0=0.8)
        >>> curve.best_feasible_cost(np.array([0.5, 1.5, 2.5])).tolist()
        [10.0, 10.0, 6.0]
        >>> round(float(curve.violation(4.0)), 5)  # 0.1 / 0.8, for 1 USD of 4
        0.03125
    """

    budget_usd: np.ndarray
    cost_usd: np.ndarray
    quality: np.ndarray
    s_0: float
    others: np.ndarray | None = None

    @classmethod
    def from_steps(
        cls,
        steps: Mapping[float, Sequence[float]],
        s_0: float,
        limits: Sequence[Constraint] = (),
    ) -> OracleCurve:
        """Makes a curve from the changes of theta_out.

        Args:
            steps: By increasing budget in USD, from 0: true cost in USD, quality, and averages of
                the outcomes of `limits`, from there on.
            s_0: Quality threshold.
            limits: The further constraints.
        """
        cost, quality, *others = zip(*steps.values(), strict=True)
        violations = [
            [limit.violation(outcome) for outcome in of_one]
            for limit, of_one in zip(limits, others, strict=True)
        ]
        return cls(
            np.array(list(steps)),
            np.array(cost),
            np.array(quality),
            s_0,
            np.array(violations).T if violations else None,
        )

    @property
    def feasible(self) -> np.ndarray:
        """Whether theta_out satisfies all constraints: `n` booleans."""
        feasible = self.quality >= self.s_0 - ROUNDING
        return feasible if self.others is None else feasible & (self.others <= 0).all(1)

    def best_feasible_cost(self, budget_usd: np.ndarray | float) -> np.ndarray:
        """c_bf in USD: the least c(theta_out) of all feasible theta_out up to a budget.

        Args:
            budget_usd: Budgets of any shape.

        Returns:
            Costs of the same shape; +inf where no feasible theta_out was recommended yet.
        """
        best = np.minimum.accumulate(np.where(self.feasible, self.cost_usd, np.inf))
        return best[self._position(budget_usd)]

    def violation(self, budget_usd: np.ndarray | float, which: int | None = None) -> np.ndarray:
        """V: the average of max{s_0 - s(theta_out), 0} / s_0 over [0, budget]; V(0) = 0.

        The integral is a sum over the intervals between changes of theta_out. Intervals in which
        s(theta_out) is not known (NaN) do not count, neither in the sum nor in the length.

        Args:
            budget_usd: Budgets of any shape.
            which: The constraint, 0 for quality; None for the sum of all relative violations.

        Returns:
            Violations of the same shape, at least 0; that of quality is at most 1.
        """
        budget = np.asarray(budget_usd, dtype=np.float64)
        lost = self.s_0 - self.quality  # NaN where the quality is not known
        shortfall = np.where(lost <= ROUNDING, 0.0, lost) / (self.s_0 or 1.0)
        if self.others is not None:
            each = np.column_stack([shortfall, self.others])
            shortfall = each.sum(1) if which is None else each[:, which]
        if (unknown := np.isnan(shortfall)).any():
            length = self._integral(np.where(unknown, 0.0, 1.0), budget)
            shortfall = np.where(unknown, 0.0, shortfall)
        else:
            length = budget
        integral = self._integral(shortfall, budget)
        return np.divide(integral, length, out=np.zeros_like(integral), where=length > 0)

    def _integral(self, values: np.ndarray, budget: np.ndarray) -> np.ndarray:
        """Of a step function from 0 to each budget."""
        whole = np.concatenate([[0.0], np.cumsum(np.diff(self.budget_usd) * values[:-1])])
        last = self._position(budget)
        return whole[last] + (budget - self.budget_usd[last]) * values[last]

    def points(self, budget_usd: float) -> list[tuple[float, float, float]]:
        """(budget in USD, c_bf in USD, V) wherever theta_out changes, and at `budget_usd`."""
        budgets = np.append(self.budget_usd, budget_usd)
        columns = budgets, self.best_feasible_cost(budgets), self.violation(budgets)
        return [(b, c, v) for b, c, v in zip(*(x.tolist() for x in columns), strict=True)]

    def _position(self, budget_usd: np.ndarray | float) -> np.ndarray:
        return np.searchsorted(self.budget_usd, budget_usd, side="right") - 1


def oracle_curve(
    problem: SelectionProblem, trace: Sequence[TraceRow], truth: Sequence[Tensor]
) -> OracleCurve:
    """True cost and quality along a trace.

    Args:
        problem: The problem that was searched; theta_0 is the recommendation at spend 0.
        trace: Rows in order; only changes of theta_out matter.
        truth: See `true_values`.
    """
    steps = {0.0: step(problem, true_values(problem, problem.theta_ref, truth))}
    theta_out = problem.theta_ref
    for row in trace:
        if row.theta_out != theta_out:
            theta_out = row.theta_out
            steps[row.from_budget_usd] = step(problem, true_values(problem, theta_out, truth))
    return OracleCurve.from_steps(steps, problem.s_0, problem.others)


def step(problem: SelectionProblem, values: Sequence[float]) -> tuple[float, ...]:
    """The loss in the place of the cost, see `SelectionProblem.loss`, in `true_values`."""
    return problem.loss(values[0], values[1]), *values[1:]


def true_values(
    problem: SelectionProblem, theta: Sequence[int], truth: Sequence[Tensor]
) -> tuple[float, ...]:
    """c(theta) in USD, s(theta), and averages of further outcomes of one configuration.

    Args:
        problem: The problem.
        theta: Codes of the configuration.
        truth: c(theta) in USD, s(theta), and for each constraint but that on quality the average
            outcome, in its unit and with its cap, by flat index: tensors of `|Theta|`.
    """
    index = problem.space.index_of(theta)
    return tuple(float(values[index]) for values in truth)


def column_of(limit: Constraint) -> str:
    """The name of the true average of what counts for a constraint."""
    return f"true_{limit.name}" + ("_capped" if limit.name == COST else "")


def is_feasible(problem: SelectionProblem, values: Sequence[float]) -> bool:
    """Whether the `true_values` of a configuration satisfy all constraints."""
    _, quality, *others = values
    held = [limit.holds(y) for limit, y in zip(problem.others, others, strict=True)]
    return quality >= problem.s_0 - ROUNDING and all(held)


def best_feasible(
    problem: SelectionProblem, trace: Sequence[TraceRow], truth: Sequence[Tensor]
) -> tuple[int, ...]:
    """The configuration of best feasible cost, which the paper deploys (sec:rq2).

    The first of least true cost (or greatest quality, if that is the objective) among theta_0 and
    the feasible theta_out of a trace. Only where the truth is known: a user deploys theta_out.

    Args:
        problem: The problem that was searched.
        trace: Rows in order.
        truth: See `true_values`.
    """
    best = problem.theta_ref
    least = step(problem, true_values(problem, best, truth))[0]
    for theta in dict.fromkeys(row.theta_out for row in trace):
        values = true_values(problem, theta, truth)
        loss = step(problem, values)[0]
        if loss < least and is_feasible(problem, values):
            best, least = theta, loss
    return tuple(best)


def optimal_cost(problem: SelectionProblem, truth: Sequence[Tensor]) -> float:
    """c(theta_star) in USD: the least cost among the feasible configurations (eq:def:theta*).

    Of those that may be chosen; what was not recorded completely is NaN, and does not count.

    The least 1 - s(theta) if quality is the objective. +inf if no configuration satisfies all
    constraints; that on quality alone theta_0 satisfies.
    """
    cost, quality, *others = truth
    feasible = quality >= problem.s_0 - ROUNDING
    for limit, values in zip(problem.others, others, strict=True):
        feasible &= limit.holds(values)
    if (mask := problem.allowed_mask()) is not None:
        feasible &= mask
    loss = cost if problem.objective == "cost" else 1 - quality
    return float(loss[feasible].min()) if feasible.any() else math.inf
