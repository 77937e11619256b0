"""Tables of a finished run: the configurations looked at, and the queries to read by hand.

| status | of a configuration |
| --- | --- |
| `choice`, `reference` | theta_out, theta_0 |
| `certified`, `accepted` | it was theta_out, until one that costs less was found |
| `not certified` | it has answered all queries, well enough or as answers vary, but never was it; |
| | or it was given up because it promised less than a certificate needs |
| `dropped: too poor` | its quality is below the threshold, or was in the bounds of the model |
| `dropped: too dear` | it costs no less than theta_out, or did in the bounds of the model |
| `dropped: breaks a constraint` | likewise, where there are constraints on other outcomes |
| `not allowed` | it may not be chosen; an earlier search has observed it |
| `dropped: its calls fail` | it uses an LLM all of whose calls failed |
| `undecided` | the search ended during its turn, or its turn settled nothing |
| `not tried` | observed, but never a candidate: in Calibrate, or by a method without candidates |

If quality is the objective, `too poor` means less quality than theta_out has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.estimate import Evidence
from scope_torch.search.failing import uses_any
from scope_torch.search.optimizer import Recommendation

if TYPE_CHECKING:
    import polars

Theta = tuple[int, ...]
_ROUNDING = 1e-12
_NO_NUMBERS = "theta", "queries", "basis", "status"
_NUMBERS = {
    f"{what}{end}" for what in ("cost", "quality") for end in ("", "_usd", "_lower", "_upper")
}


def looked_at(evidence: Evidence, out: Recommendation) -> list[dict[str, Any]]:
    """One row for theta_0, theta_out and every configuration observed, by rising cost.

    | key | |
    | --- | --- |
    | `theta` | its codes |
    | `queries` | how many queries it has answered; theta_0 all, before the search |
    | `cost_usd`, `cost_lower`, `cost_upper` | average cost of a query in USD, and its interval |
    | `quality`, `quality_lower`, `quality_upper` | average quality in [0, 1], and its interval |
    | `latency_s`, ... | average seconds, if measured, and what counts for each constraint |
    | `p95(latency_s) <= 8`, ... | the share of runs that are within the bound of a quantile |
    | `basis` | what the interval of the quality means, see `scope_torch.results.estimate` |
    | `status` | see the table of this module |

    Args:
        evidence: Of the run.
        out: theta_out.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> [row["status"] for row in looked_at(result.evidence, result.recommendation)][-2:]
        ['not tried', 'reference']
    """
    reference = evidence.problem.theta_ref
    thetas = dict.fromkeys([reference, out.theta, *(theta for theta, _ in evidence.answers)])
    chosen = evidence.cost_of_choice(out).value
    once = once_out(evidence)
    rows: list[dict[str, Any]] = []
    for theta in thetas:
        answered = evidence.num_answered(theta)
        if theta == reference:  # before the search, or the problem knows its averages
            answered = evidence.problem.reference_queries or evidence.problem.num_queries
        is_out = theta == out.theta
        cost = evidence.cost_of_choice(out) if is_out else evidence.cost_usd(theta)
        quality = evidence.quality_of_choice(out) if is_out else evidence.quality(theta)
        status = "choice" if is_out else "reference"
        if theta not in (out.theta, reference):
            status = _status(evidence, theta, theta in once, chosen, out)
        rows.append(
            {
                "theta": theta,
                "queries": answered,
                "cost_usd": cost.value,
                "cost_lower": cost.lower,
                "cost_upper": cost.upper,
                "quality": quality.value,
                "quality_lower": quality.lower,
                "quality_upper": quality.upper,
                **{_column(name): evidence.outcome(theta, name) for name in evidence.measured},
                "basis": quality.basis,
                "status": status,
            }
        )
    return sorted(rows, key=lambda row: math.inf if row["cost_usd"] is None else row["cost_usd"])


def once_out(evidence: Evidence) -> set[Theta]:
    """What was theta_out, but not what was given back because its own answers cost too much."""
    last = {
        row.theta_cand: row.event
        for row in evidence.trace
        if row.theta_cand is not None and row.event in ("improved", "withdrawn")
    }
    withdrawn = {theta for theta, event in last.items() if event == "withdrawn"}
    return {row.theta_out for row in evidence.trace} - withdrawn


def _column(outcome: str) -> str:
    """The column of an outcome, which may be called like another one."""
    return f"outcome:{outcome}" if outcome in {*_NO_NUMBERS, *_NUMBERS} else outcome


def _status(
    evidence: Evidence, theta: Theta, was_out: bool, chosen_usd: float | None, out: Recommendation
) -> str:
    """Why a configuration that is neither theta_out nor theta_0 is not the choice."""
    problem, last = evidence.problem, evidence.last.get(theta)
    of_cost = problem.objective == "cost"
    worse = "dropped: too dear" if of_cost else "dropped: too poor"
    poor = "dropped: too poor" if not problem.others else "dropped: breaks a constraint"
    if not problem.is_allowed(theta):
        return "not allowed"
    if uses_any(problem.names(theta), evidence.report.get("dropped", {})):
        return "dropped: its calls fail"
    if evidence.is_known(theta):
        if not evidence.is_feasible(theta):
            return poor
        if not was_out:
            better = of_cost and chosen_usd is not None
            dear = better and evidence.answers[theta].cost_usd > (chosen_usd or 0.0) - _ROUNDING
            return worse if dear or not of_cost else "not certified"
    if was_out:
        return "certified" if out.basis == "certified" else "accepted"
    if last is None or last.event != "pruned":
        looked_at = "not certified" if evidence.answers[theta].num_left == 0 else "not tried"
        return "undecided" if theta in evidence.tried else looked_at
    # A search with a margin gives up what its bounds do not exclude.
    return {"quality": poor, "cost": worse, None: "not certified"}[last.excluded]


def table_of(evidence: Evidence, out: Recommendation) -> polars.DataFrame:
    """`looked_at` as a table, with a column for each module in the place of `theta`.

    A module whose name is that of another column gets `module:` in front of it.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> table_of(result.evidence, result.recommendation).columns[:4]
        ['module_1', 'module_2', 'queries', 'cost_usd']
    """
    import polars

    rows, problem = looked_at(evidence, out), evidence.problem
    columns: dict[str, list[Any]] = {}
    for number, module in enumerate(problem.modules):
        name = f"module:{module}" if module in rows[0] else module
        columns[name] = [problem.llms[number][row["theta"][number]] for row in rows]
    kinds: dict[str, Any] = {name: polars.Float64 for name in rows[0] if name not in _NO_NUMBERS}
    for name in rows[0]:
        if name != "theta":
            columns[name] = [row[name] for row in rows]
    return polars.DataFrame(columns, schema_overrides=kinds)


def disagreements_of(
    problem: SelectionProblem,
    theta: Theta,
    history: Iterable[Observation],
    reference: Sequence[Observation] | None,
    queries: Sequence[Any] | None,
    answers: Mapping[tuple[Theta, int], Any] | None,
    expected: Sequence[Any] | None = None,
) -> polars.DataFrame:
    """Queries that theta and theta_0 answered with different quality, the worst for theta first.

    If theta_0 answered a sample of the queries, the others are left out.

    Args:
        problem: With `reference_answers`, unless `reference` is given.
        theta: theta_out.
        history: All observations; repeats of a query are averaged.
        reference: theta_0 as it was measured; None if it was not.
        queries: The inputs; None leaves out the column `input`.
        answers: Outputs by configuration and query; None leaves out the columns of answers.
        expected: The expected outputs; None leaves out the column `expected`.

    Raises:
        InputError: If theta_0's answers to each query are not known.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task(num_queries=2).problem
        >>> other = 1 - problem.reference_answers[1][1]
        >>> told = [Observation((1, 1), 1, cost_usd=0.01, quality=other)]
        >>> disagreements_of(problem, (1, 1), told, None, ["a", "b"], None)["input"].to_list()
        ['b']
    """
    import polars

    theirs = _reference_answers(problem, reference)
    found: dict[int, list[Observation]] = {}
    for observation in history:
        if observation.theta == theta != problem.theta_ref and observation.query in theirs:
            found.setdefault(observation.query, []).append(observation)
    rows: list[dict[str, Any]] = []
    for query, mine in found.items():
        quality = math.fsum(o.quality for o in mine) / len(mine)
        cost = math.fsum(o.cost_usd for o in mine) / len(mine)
        if abs(quality - theirs[query][1]) > _ROUNDING:
            rows.append(
                {
                    "query": query,
                    "input": None if queries is None else _text(queries[query]),
                    "expected": None if expected is None else _text(expected[query]),
                    "quality_choice": quality,
                    "quality_reference": theirs[query][1],
                    "cost_usd_choice": cost,
                    "cost_usd_reference": theirs[query][0],
                    "answer_choice": _answer(answers, theta, query),
                    "answer_reference": _answer(answers, problem.theta_ref, query),
                }
            )
    rows.sort(key=lambda row: (row["quality_choice"] - row["quality_reference"], row["query"]))
    names = [
        "query",
        *([] if queries is None else ["input"]),
        *([] if expected is None else ["expected"]),
        *("quality_choice", "quality_reference", "cost_usd_choice", "cost_usd_reference"),
        *([] if answers is None else ["answer_choice", "answer_reference"]),
    ]
    kinds: dict[str, Any] = {
        name: polars.Float64 if "_" in name else polars.String for name in names
    }
    kinds |= {name: polars.String for name in names if name.startswith("answer")}
    kinds["query"] = polars.Int64
    return polars.DataFrame({n: [row[n] for row in rows] for n in names}, schema=kinds)


def _answer(
    answers: Mapping[tuple[Theta, int], Any] | None, theta: Theta, query: int
) -> str | None:
    """An output as text; None if it was not kept."""
    if answers is None or (theta, query) not in answers:
        return None
    return _text(answers[theta, query])


def _text(value: Any) -> str:
    """As text for a table, which cannot hold half of a surrogate pair."""
    return str(value).encode(errors="replace").decode()


def _reference_answers(
    problem: SelectionProblem, reference: Sequence[Observation] | None
) -> Mapping[int, tuple[float, float]]:
    """Cost in USD and quality of theta_0 by query."""
    if reference is not None:
        return {o.query: (o.cost_usd, o.quality) for o in reference}
    if problem.reference_answers is not None:
        return dict(enumerate(problem.reference_answers))
    raise InputError(
        "the reference's answers to each query are not known, only their averages: let select() "
        "measure it, or give SelectionProblem(reference_answers=[(cost in USD, quality), ...])"
    )
