"""Finished runs on disk, in groups that differ only in their seed, and their measures."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve
from scope_torch.runs.content import digest_of, json_of
from scope_torch.runs.deadline import TIME_IS_OVER
from scope_torch.runs.directory import read_json, read_settings, result_of
from scope_torch.runs.measure import is_part
from scope_torch.runs.measured import FILE, measured_curve, read_measured
from scope_torch.runs.recorded import recorded_problem
from scope_torch.runs.trace import RecordedRow, read_trace, recorded_curve
from scope_torch.search.optimizer import TraceRow

EARLY = 40 / 156  # "pruned early": within this share of the queries (sec:rq1)
NEAR = 1.1  # "near the optimum": at most this factor of the optimal cost
_EQUAL = 1 + 1e-12  # a cost up to this factor of the optimum is the optimum
Group = tuple[str, str, float]  # task, method with its overrides, budget
# Overrides in the name of a folder: those that make another task, and what is between two.
_OF_TASK = re.compile(r"task\.(path|source|module_columns|reference|\w+_column|world_seed)=")
_BETWEEN = re.compile(r",(?=[\w.+~-]+=)")

_OF_REFERENCE = ("reference_cost_usd", "reference_quality", "reference_outcomes")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        path: Its directory.
        result: Content of `result.json`.
        settings: Content of `settings.json`.
    """

    path: Path
    result: dict[str, Any]
    settings: dict[str, Any]

    @property
    def group(self) -> Group:
        """Task, method with its overrides, and budget: equal for runs that differ only in seed.

        Of another table, reference or simulated world is another task. Overrides stand above the
        folder of a seed; what is above any other folder, as of `select`, says nothing.
        """
        is_of_seed = self.path.name.startswith("seed=")
        overrides = _BETWEEN.split(self.path.parent.name if is_of_seed else "")
        of_task = [o.removeprefix("task.") for o in overrides if _OF_TASK.match(o)]
        variant = ",".join(o for o in overrides if not _OF_TASK.match(o))
        method, task = str(self.result["method"]), str(self.result["task"])
        label = method if variant in ("", method) else f"{method} {variant}"
        return ", ".join([task, *of_task]), label, self.result["budget_usd"]

    @cached_property
    def searched(self) -> str:
        """What was searched: equal for runs on the same queries of the same world or table.

        The averages of the reference are left out: a live run may have measured its own. So is a
        threshold that a sample of its answers decides.
        """
        values = self.settings["problem"]
        problem = {name: of for name, of in values.items() if name not in _OF_REFERENCE}
        if "reference_queries" in values and values["epsilon"] is not None:
            others = [one for one in values["constraints"] if not one.startswith("quality ")]
            problem["constraints"] = others
        return _digest([problem, self.settings["evaluator"]])

    @cached_property
    def search(self) -> str:
        """How it was searched; equal for runs that differ only in seed."""
        return _digest({**self.settings["optimizer"], "seed": None})

    @cached_property
    def problem(self) -> SelectionProblem:
        """The problem that was searched."""
        return recorded_problem(self.settings)

    @cached_property
    def _trace(self) -> list[RecordedRow]:
        return read_trace(self.path / "trace.csv", self.problem, self.result)

    @cached_property
    def _true_curve(self) -> OracleCurve | None:
        is_known = not self._trace and self.result.get("true_cost_usd") is not None
        return recorded_curve(self.problem, self._trace, is_known)

    @cached_property
    def curve(self) -> OracleCurve | None:
        """Cost and quality of theta_out against the budget: the true ones, else those measured.

        None if they are neither known nor measured.
        """
        if self._true_curve is not None or self._measured is None:
            return self._true_curve
        return measured_curve(self.problem, self._trace, self._measured[1])

    @cached_property
    def _measured(self) -> tuple[int, dict[tuple[int, ...], tuple[float, ...]]] | None:
        return read_measured(self.path, self.problem)

    @property
    def measured_repeats(self) -> int | None:
        """How often each theta_out was run on every query for `curve`; None if it is the truth."""
        is_measured = self._true_curve is None and self.curve is not None
        return self._measured[0] if is_measured and self._measured else None

    @cached_property
    def deployment(self) -> dict[str, Any] | None:
        """Content of `deployment.json`; None if theta_out was not run on held-out queries."""
        path, out = self.path / "deployment.json", self.result["theta_out_codes"]
        if not path.exists():
            return None
        found = read_json(path)
        try:
            _deployment_measures(found)
            is_other = found["theta_out"].get("codes", out) != out
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # early ones had no hash
            raise InputError(f"{path} is damaged ({error!r}); move it away") from error
        return None if is_other else found  # the search has gone on since

    @property
    def pruned_early(self) -> float | None:
        """See the function `pruned_early`; None for other methods than SCOPE."""
        if "candidates_pruned" not in self.result:
            return None
        return pruned_early([r.row for r in self._trace], self.result["num_queries"])

    @property
    def kernel(self) -> str:
        """The name of its kernel; a method of one's own may call anything so."""
        kernel = self.settings["optimizer"].get("kernel")
        return str(kernel.get("name", "")) if isinstance(kernel, dict) else ""

    @property
    def seed(self) -> int:
        """Of the search."""
        return self.settings["optimizer"].get("seed", 0)

    @property
    def was_measured(self) -> bool:
        """Whether there is a measurement, perhaps of a smaller budget."""
        return (self.path / FILE).exists()

    def measures(self) -> dict[str, float | None]:
        """The measures of the run by name; None where unknown.

        `cost_10` to `cost_100` are c_bf at these percentages of the budget. `area` is the average
        of c_bf over the budget. All of them are fractions of c(theta_0). `of_optimum` is the final
        c_bf over c(theta_star), `near_optimum_usd` the least budget at which c_bf is within 10% of
        c(theta_star). `feasible` is 1 if the final theta_out is feasible, else 0, and `optimal` is
        1 if no feasible configuration is better. Where the truth is unknown but measured,
        `measured_repeats` says how often, and these are the measured ones.
        """
        result = self.result
        measures: dict[str, float | None] = {
            "spend_usd": result["spend_usd"],
            "seconds": result["timing"]["seconds"],
            "b_g": result.get("b_g"),
            "b_c_usd": result.get("b_c"),
            "pruned_early": self.pruned_early,
        }
        if self.deployment is not None:
            measures |= _deployment_measures(self.deployment)
        if self.curve is None:
            return measures
        if (repeats := self.measured_repeats) is not None:
            measures["measured_repeats"] = repeats
            result = {**result, "feasible": bool(self.curve.feasible[-1])}
        return measures | _curve_measures(self.curve, result)


def pruned_early(rows: Sequence[TraceRow], num_queries: int) -> float | None:
    """Share of SCOPE's candidates that were given up within 26% of the queries (sec:rq1).

    Args:
        rows: A trace.
        num_queries: Q.

    Returns:
        Of all that were selected, also of the one that the budget cut off; None if none was.
    """
    count = sum(row.event == "selected" for row in rows)
    answered = [row.num_queries or 0 for row in rows if row.event == "pruned"]
    return sum(n <= EARLY * num_queries for n in answered) / count if count else None


def _deployment_measures(deployment: dict[str, Any]) -> dict[str, float | None]:
    """Of the configuration of best feasible cost (sec:rq2); of theta_out if it is unknown."""
    deployed = deployment.get("best_feasible", deployment["theta_out"])
    reference = deployment["reference"]
    return {
        "test_cost_usd": float(deployed["cost_usd"]),
        "test_quality": float(deployed["quality"]),
        "test_reference_cost_usd": float(reference["cost_usd"]),
        "test_reference_quality": float(reference["quality"]),
    }


def _curve_measures(curve: OracleCurve, result: dict[str, Any]) -> dict[str, float | None]:
    budget, reference = result["budget_usd"], result["reference_cost_usd"]
    optimum = result["optimal_cost_usd"]
    of_all = {
        "violation": float(curve.violation(budget)),
        # Unknown if theta_out was not recorded on every query, as in a table with holes.
        "feasible": None if result["feasible"] is None else float(result["feasible"]),
        "last_improvement_usd": last_improvement(curve),
    }
    if result.get("objective") == "quality":  # the curve has 1 - quality in the place of the cost
        best_quality, quality = result["optimal_quality"], result["true_quality"]
        lost = None if None in (best_quality, quality) else best_quality - quality
        optimal = _if_feasible(None if lost is None else lost <= 1e-12, result)
        # What breaks a constraint may be better than all that is feasible: that is no gain.
        return {**of_all, "optimal": optimal, "quality_lost": lost if result["feasible"] else None}

    def best(budget_usd: float) -> float:
        return min(float(curve.best_feasible_cost(budget_usd)), reference)

    costs = {f"cost_{p}": best(budget * p / 100) / reference for p in (10, 25, 50, 100)}
    is_known = optimum is not None
    cost = result["true_cost_usd"]
    is_least = None if None in (cost, optimum) else cost <= optimum * _EQUAL
    return {
        **costs,
        "of_optimum": _relative(best(budget), optimum) if is_known else None,
        "area": _area(curve, budget, reference) / reference,
        **of_all,
        "optimal": _if_feasible(is_least, result),
        "near_optimum_usd": first_within(curve, NEAR * optimum, budget) if is_known else None,
    }


def _if_feasible(is_so: bool | None, result: dict[str, Any]) -> float | None:
    """1 if the final theta_out is feasible and something is so of it, else 0; None if unknown."""
    known = is_so is not None and result["feasible"] is not None
    return float(bool(is_so and result["feasible"])) if known else None


def _relative(cost_usd: float, optimum_usd: float) -> float:
    """A cost as a multiple of the least, which is 0 where an LLM is free."""
    if optimum_usd > 0:
        return cost_usd / optimum_usd
    return 1.0 if cost_usd <= 0 else math.inf


def last_improvement(curve: OracleCurve) -> float:
    """Budget in USD from which c_bf no longer improves."""
    best = curve.best_feasible_cost(curve.budget_usd)
    return float(curve.budget_usd[int(np.argmin(best))])


def first_within(curve: OracleCurve, cost_usd: float, most: float) -> float | None:
    """Least budget up to `most`, in USD, whose c_bf is at most `cost_usd`; None if none."""
    near = curve.budget_usd[curve.best_feasible_cost(curve.budget_usd) <= cost_usd]
    return float(near[0]) if len(near) and near[0] <= most else None


def _area(curve: OracleCurve, budget: float, reference: float) -> float:
    """Average of min{c_bf, reference} over [0, budget], in USD."""
    edges = np.append(curve.budget_usd[curve.budget_usd < budget], budget)
    best = np.minimum(curve.best_feasible_cost(edges[:-1]), reference)
    return float((best * np.diff(edges)).sum() / budget)


def load_runs(output_dir: Path) -> tuple[dict[Group, list[FinishedRun]], list[str]]:
    """Reads all finished runs below a directory.

    Runs of different worlds, tables or experiments are never in one group: where their folders do
    not say so, their task is named with the experiment, and if need be with a digest. A copy of a
    run in the same group counts no second time.

    Returns:
        The finished runs by group, and a remark for each run that is unfinished, failed or a copy.

    Raises:
        InputError: If there is no finished run, or a result cannot be read.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> for seed in (0, 1):
        ...     optimizer = make_scope(problem, base="nano", seed=seed)
        ...     _ = run(problem, optimizer, evaluator, 0.1, run_dir=f"outputs/scope/seed={seed}")
        >>> groups, remarks = load_runs(Path("outputs"))
        >>> [(group, median(column(runs, "feasible"))) for group, runs in groups.items()]
        [(('synthetic', 'scope', 0.1), 1.0)]
    """
    found: list[FinishedRun] = []
    for path in sorted(output_dir.rglob("result.json")):
        try:
            settings = read_settings(path.with_name("settings.json"))
            found.append(FinishedRun(path.parent, result_of(path.parent, settings), settings))
        except FileNotFoundError as error:
            raise InputError(f"{error.filename} is missing; move the run away") from error
    if not found:
        raise InputError(f"no finished run below {output_dir}; run scope-torch first")
    groups: dict[Group, list[FinishedRun]] = {}
    of_hash: dict[tuple[Group, str], Path] = {}
    copies: list[str] = []
    for run, group in zip(found, _kept_apart(found, output_dir), strict=True):
        told = run.result.get("result_hash", str(run.path))  # early versions wrote none
        if (first := of_hash.setdefault((group, told), run.path)) == run.path:
            groups.setdefault(group, []).append(run)
        else:
            copies.append(f"a copy of {first}, not counted: {run.path}")
    remarks = copies + [
        f"{status}: {path}"
        for status, name in (("unfinished", "settings.json"), ("failed", "error.log"))
        for path in sorted(p.parent for p in output_dir.rglob(name))
        if not (path / "result.json").exists() and not is_part(path)
        if name == "error.log" or not (path / "error.log").exists()
    ]
    cut = [run.path for run in found if run.result["stop_reason"] == TIME_IS_OVER]
    remarks += [f"ended by its time limit, before its budget was spent: {path}" for path in cut]
    stale = [r.path for runs in groups.values() for r in runs if r.was_measured and r.curve is None]
    remarks += [f"went on after it was measured, measure it again: {path}" for path in stale]
    return dict(sorted(groups.items())), remarks


def _kept_apart(runs: Sequence[FinishedRun], output_dir: Path) -> list[Group]:
    """The group of each run; no two that were searched otherwise share one."""
    groups = [run.group for run in runs]
    # The same run of two experiments has a seed twice.
    seeds = Counter((group, run.seed) for run, group in zip(runs, groups, strict=True))
    twice = {(task, budget) for ((task, _, budget), _), number in seeds.items() if number > 1}
    words: list[Callable[[FinishedRun], str]] = [lambda run: _experiment(run, output_dir)]
    for word in (*words, lambda run: run.searched, lambda run: run.search):
        mixed, twice = _mixed(runs, groups) | twice, set()
        groups = [
            (f"{task}, {added}", label, budget)
            if (task, budget) in mixed and (added := word(run))
            else (task, label, budget)
            for run, (task, label, budget) in zip(runs, groups, strict=True)
        ]
    return groups


def _mixed(runs: Sequence[FinishedRun], groups: Sequence[Group]) -> set[tuple[str, float]]:
    """Tasks and budgets whose methods were not run on the same, or one of them in two ways.

    Where a label says what it changes of the task, as in a sweep of `task.epsilon`, it may.
    """
    searched: dict[Group, set[str]] = {}
    ways: dict[Group, set[str]] = {}
    for run, (task, label, budget) in zip(runs, groups, strict=True):
        told = label.partition(" ")[2] if "task." in label else ""
        searched.setdefault((task, told, budget), set()).add(run.searched)
        ways.setdefault((task, label, budget), set()).add(run.search)
    return {
        (task, budget)
        for places in (searched, ways)
        for (task, _, budget), of in places.items()
        if len(of) > 1
    }


def _experiment(run: FinishedRun, output_dir: Path) -> str:
    """The folders between `output_dir` and that of the task; empty if there are none."""
    parts = run.path.relative_to(output_dir).parts
    task = str(run.result["task"])
    return "/".join(parts[: parts.index(task)]) if task in parts else ""


def _digest(values: Any) -> str:
    return digest_of(json_of(values))[:6]


def column(runs: Sequence[FinishedRun], name: str) -> list[float]:
    """One measure of `FinishedRun.measures`, of all runs that have it."""
    return [value for run in runs if (value := run.measures().get(name)) is not None]


def median(values: Sequence[float]) -> float | None:
    """The median; None if there are no values."""
    return statistics.median(values) if values else None
