"""The results of a search on all of its queries, measured where the truth is not known.

A live system has no true averages: a search has run each theta_out on some queries only. Here each
is run on all of them, so that a live run has c_bf and V (sec:exp, evaluation metrics), too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.files import inside
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve
from scope_torch.runs.deployment import module_costs, standard_error
from scope_torch.runs.directory import read_json
from scope_torch.runs.evaluator import Evaluator, HasPast
from scope_torch.runs.measure import measure
from scope_torch.runs.opening import with_fingerprint_of_today
from scope_torch.runs.recorded import RecordedRun
from scope_torch.runs.trace import RecordedRow, recorded_curve, values_of_reference

FILE, FOLDER = "measured.json", "measured"  # in the directory of the run
SHARES = (0.10, 0.25, 0.50, 1.0)  # of the budget, at which c_bf and V are given
_MEND = "move it away and run scope-torch evaluate --on search again: it pays for nothing twice"


@dataclass(frozen=True)
class Measured:
    """Averages of a configuration over all queries of a search.

    Args:
        theta: Codes of the configuration.
        repeats: How often it was run on each query; 0 for theta_0, whose averages are given.
        values: Average cost in USD and quality, and the average of each further constraint's
            outcome in its unit; see `true_values`.
        cost_se_usd: Standard error of the average cost in USD; None if unknown.
        quality_se: Standard error of the average quality; None if unknown.
        module_cost_usd: Average cost of each module in USD; None if unknown.
    """

    theta: tuple[int, ...]
    repeats: int
    values: tuple[float, ...]
    cost_se_usd: float | None = None
    quality_se: float | None = None
    module_cost_usd: tuple[float, ...] | None = None

    def to_dict(self, problem: SelectionProblem) -> dict[str, Any]:
        """The entry of `measured.json`."""
        cost, quality, *others = self.values
        of_modules = self.module_cost_usd and dict(
            zip(problem.modules, self.module_cost_usd, strict=True)
        )
        return {
            "theta": problem.names(self.theta),
            "repeats": self.repeats,
            "cost_usd": cost,
            "cost_se_usd": self.cost_se_usd,
            "quality": quality,
            "quality_se": self.quality_se,
            "outcomes": others,
            "module_cost_usd": of_modules,
        }


def measure_results(
    run: RecordedRun,
    evaluator: Evaluator,
    repeats: int = 1,
    observed: Callable[[Observation], None] | None = None,
) -> list[Measured]:
    """Runs every distinct theta_out of a run on all queries.

    theta_0 is not run: its averages are known, and the threshold is made from them. Observations
    are kept in the folder `measured` of the run, so that none is asked for twice, however often
    the measurement is stopped, repeated, or extended.

    Measured once, an answer that the search has seen counts as it was: a store of replies has it
    for nothing. With more repeats all answers are new draws, which the search has not seen, where
    the evaluator has such: a live system and a simulation, but not a table.

    Args:
        run: The run; it may be unfinished.
        evaluator: The evaluator of the run.
        repeats: R, how often each configuration is run on each query.
        observed: Called for each observation. What it raises ends the measurement after the calls
            in flight, which are kept.

    Returns:
        theta_0, then the others in the order in which the search recommended them.

    Raises:
        InputError: If `repeats` is below 1, the evaluator is not that of the run, or the folder
            cannot be used.

    Examples:
        >>> from scope_torch import make_scope
        >>> from scope_torch.runs.recorded import read_run
        >>> from scope_torch.runs.runner import run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1,
        ...              run_dir="outputs/live")
        >>> found = measure_results(read_run(Path("outputs/live")), evaluator)
        >>> round(found[-1].values[1], 3) == round(result.summary()["true_quality"], 3)
        True
    """
    if repeats < 1:
        raise InputError(f"repeats={repeats} must be at least 1")
    if evaluator.fingerprint() != with_fingerprint_of_today(run.settings, evaluator)["evaluator"]:
        raise InputError(
            f"{run.path} was made with {run.settings['evaluator']}, not with "
            f"{evaluator.fingerprint()}; give the arguments of that run: its task, LLMs and queries"
        )
    thetas = dict.fromkeys(recorded.row.theta_out for recorded in run.rows)
    found = [Measured(run.problem.theta_ref, 0, values_of_reference(run.problem))]
    for theta in thetas:
        if theta != run.problem.theta_ref:
            numbers = _numbers(run, theta, repeats)
            draws = [_draw(run, evaluator, theta, number, observed) for number in numbers]
            found.append(_averages(run.problem, draws))
    return found


def _numbers(run: RecordedRun, theta: tuple[int, ...], repeats: int) -> range:
    """The replicates that are measured: 0, or as many that the search has not asked for."""
    if repeats == 1:
        return range(1)
    seen = max((o.replicate for o in run.observations if o.theta == theta), default=0)
    return range(seen + 1, seen + 1 + repeats)


def _draw(
    run: RecordedRun,
    evaluator: Evaluator,
    theta: tuple[int, ...],
    number: int,
    observed: Callable[[Observation], None] | None,
) -> list[Observation]:
    """One observation of each query, in the order of the queries.

    Each configuration and draw has a folder of its own: an extended run, or more repeats, add
    folders and use those that are there.
    """
    return measure(
        _Draw(evaluator, number) if number else evaluator,
        [Request(theta, query) for query in range(run.problem.num_queries)],
        folder=inside(run.path, FOLDER, "-".join(map(str, theta)), f"draw={number}"),
        facts={"draw": number},
        observed=observed,
    )


class _Draw:
    """An evaluator whose answers are those of a replicate that the search has not asked for.

    Args:
        evaluator: Makes the observations.
        number: The replicate; see `_numbers`.
    """

    def __init__(self, evaluator: Evaluator, number: int) -> None:
        self.concurrency = evaluator.concurrency
        self.free = getattr(evaluator, "free", False)
        self.fingerprint = evaluator.fingerprint
        if isinstance(evaluator, HasPast):
            self.earlier_fingerprints = evaluator.earlier_fingerprints
        self._evaluator, self._number = evaluator, number

    def evaluate(self, requests: Iterable[Request]) -> Iterable[Observation]:
        """Observations of the pairs, numbered as if they were the first."""
        # `map` and no generator: an error passes through it, and what was in flight still arrives.
        return map(_as_first, self._evaluator.evaluate(map(self._numbered, requests)))

    def _numbered(self, request: Request) -> Request:
        return request._replace(replicate=self._number)


def _as_first(observation: Observation) -> Observation:
    return replace(observation, replicate=0)


def _averages(problem: SelectionProblem, draws: Sequence[Sequence[Observation]]) -> Measured:
    observations = [observation for draw in draws for observation in draw]
    by_query = list(zip(*draws, strict=True))
    grades = list(zip(*map(problem.grades, observations), strict=True))
    others = zip(problem.others, grades[len(grades) - len(problem.others) :], strict=True)
    return Measured(
        theta=observations[0].theta,
        repeats=len(draws),
        values=(
            statistics.fmean(o.cost_usd for o in observations),
            statistics.fmean(o.quality for o in observations),
            *(limit.outcome_of(statistics.fmean(of_one)) for limit, of_one in others),
        ),
        cost_se_usd=error_on_these([[o.cost_usd for o in drawn] for drawn in by_query]),
        quality_se=error_on_these([[o.quality for o in drawn] for drawn in by_query]),
        module_cost_usd=module_costs(observations),
    )


def error_on_these(by_query: Sequence[Sequence[float]]) -> float | None:
    """Standard error of an average over fixed queries.

    Args:
        by_query: R values for each query. With R > 1, their spread within each query tells the
            error. With R = 1, the spread over queries gives an upper estimate: it also counts how
            queries differ.

    Returns:
        The error; None for a single value.

    Examples:
        >>> error_on_these([[0.0, 1.0], [1.0, 1.0]]), error_on_these([[1.0, 1.0], [0.0, 0.0]])
        (0.25, 0.0)
    """
    repeats, num_queries = len(by_query[0]), len(by_query)
    if repeats == 1:
        return standard_error([value for (value,) in by_query])
    return math.sqrt(math.fsum(map(statistics.variance, by_query)) / repeats) / num_queries


def measured_curve(
    problem: SelectionProblem,
    rows: Sequence[RecordedRow],
    values: Mapping[tuple[int, ...], tuple[float, ...]],
) -> OracleCurve | None:
    """Measured cost and quality of theta_out against the budget; see `OracleCurve`.

    Args:
        problem: The problem that was searched.
        rows: The trace.
        values: `Measured.values` by theta.

    Returns:
        The curve; None if a theta_out of the trace was not measured.
    """
    known = {**values, problem.theta_ref: values_of_reference(problem)}
    if any(recorded.row.theta_out not in known for recorded in rows):
        return None
    return recorded_curve(problem, [RecordedRow(r.row, known[r.row.theta_out]) for r in rows])


def measurement(run: RecordedRun, found: Sequence[Measured]) -> dict[str, Any]:
    """Content of `measured.json`: the configurations, and c_bf and V at shares of the budget."""
    curve = measured_curve(run.problem, run.rows, {one.theta: one.values for one in found})
    budgets = [share * run.budget_usd for share in SHARES]
    return {
        "task": run.problem.name,
        "num_queries": run.problem.num_queries,
        "s_0": run.problem.s_0,
        "repeats": max(one.repeats for one in found),
        "results": [one.to_dict(run.problem) for one in found],
        "curve": curve
        and [
            {
                "share_of_budget": share,
                "budget_usd": budget,
                "best_feasible_cost_usd": float(curve.best_feasible_cost(budget)),
                "violation": float(curve.violation(budget)),
            }
            for share, budget in zip(SHARES, budgets, strict=True)
        ],
    }


def read_measured(
    run_dir: Path, problem: SelectionProblem
) -> tuple[int, dict[tuple[int, ...], tuple[float, ...]]] | None:
    """Repeats, and `Measured.values` by theta, in `measured.json`; None if there is none.

    Raises:
        InputError: If the file is damaged, or of another problem.
    """
    path = run_dir / FILE
    try:
        content = read_json(path, _MEND)
    except FileNotFoundError:
        return None
    try:
        values = {
            problem.codes([one["theta"][module] for module in problem.modules]): tuple(
                map(float, (one["cost_usd"], one["quality"], *one["outcomes"]))
            )
            for one in content["results"]
        }
        return int(content["repeats"]), values
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); {_MEND}") from error
