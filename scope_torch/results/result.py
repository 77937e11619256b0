"""The result of a run, and the content of `result.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.bill import Bill, bill_of, cost_of, repeats_of
from scope_torch.results.doubt import doubt_of
from scope_torch.results.estimate import Estimate, Evidence, savings_of
from scope_torch.results.fallbacks import with_fallbacks
from scope_torch.results.hashes import settings_hash, with_hashes
from scope_torch.results.held_out import HeldOut
from scope_torch.results.metrics import OracleCurve, oracle_curve
from scope_torch.results.saving import save_models
from scope_torch.results.summary import bounds_of_theta_out, facts_of, truth_of_theta_out
from scope_torch.results.table import disagreements_of, looked_at, table_of
from scope_torch.results.words import html_of, lines_of, one_line, why
from scope_torch.results.worth import in_vain
from scope_torch.search.front import FrontTable
from scope_torch.search.optimizer import Recommendation, TraceRow

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from scope_torch.bounds.repeats import Repeats


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run; made by `run`. Print it: six lines say what to use, and why.

    Args:
        problem: The problem that was searched.
        method: Name of the optimizer.
        recommendation: theta_out and its basis.
        stop_reason: Why the search ended.
        budget_usd: Lambda, in USD.
        history: All observations up to the one that crossed the budget, in the asked order.
        surplus_usd: Cost in USD of the observations that were in flight at that time, and of those
            on held-out queries that are not compared, as with an earlier choice.
        trace: The changes in the search.
        report: Values that the method records: mode, b_c, b_g, delta, assumptions, ...
        settings: Everything that decides the run.
        truth: c(theta) in USD, s(theta) and averages of further outcomes by flat index, see
            `true_values`; None if the evaluator does not know them.
        seconds: Wall-clock time of this process by part: `optimizer` is the time of the method,
            `evaluator` the time spent waiting for observations and the truth, `total` includes
            journal, files and callbacks.
        replayed: Number of observations taken from the journal, so not paid for again.
        run_dir: Directory with the files of the run; None if it has none.
        repeats: The observations in `history` that a kept answer gave, without a call; None if the
            evaluator keeps no answers.
        front: See `pareto`.
        reference: theta_0, once on every query or on those of a sample, if it was measured for this
            search.
        reference_again: Its second answers to some of them, as far as they were paid for.
        varies: What both answers say; None if nothing was asked twice.
        probe: Observations of the preflight, and of pilots; not a part of `history`.
        held_out: The comparison on queries that the search has not seen, if there are any.
        queries: The inputs of the queries, if they are known.
        expected: What the metric compares with, by query; None if it is not known.
        answers: What the application returned, by configuration and query, where it was kept.
        prices: Prices of the LLMs, see `PriceList.describe`.
        num_failed: Calls of this process that failed and count as quality 0; those that an
            observation tells of need not be counted here.
        known: Observations of earlier searches; not a part of `history`, and not paid again.
        lost: What calls had cost that ended an earlier process of this search, see `Observation`.
        left_out: Number of runs by module that left it out, see `scope_torch.runs.asked`.
        surplus: The observations that were in flight at the end; not a part of `history`.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> result.choice
        {'module_1': 'nano', 'module_2': 'mini'}
        >>> print(result.quality)
        0.55 (all 20 queries answered)
        >>> result.recommendation.basis, len(result.history), result.stop_reason
        ('accepted (tuned)', 82, 'budget')
        >>> result.summary()["feasible"]  # the truth is known here
        True
    """

    problem: SelectionProblem
    method: str
    recommendation: Recommendation
    stop_reason: str
    budget_usd: float
    history: History
    surplus_usd: float
    trace: Sequence[TraceRow]
    report: dict[str, Any]
    settings: dict[str, Any]
    truth: Sequence[Tensor] | None
    seconds: dict[str, float]
    replayed: int
    run_dir: Path | None = field(default=None)
    repeats: Sequence[Observation] | None = None
    front: FrontTable | None = None
    reference: Sequence[Observation] | None = None
    reference_again: Sequence[Observation] = ()
    varies: Repeats | None = None
    probe: Sequence[Observation] = ()
    held_out: HeldOut | None = None
    queries: Sequence[Any] | None = None
    expected: Sequence[Any] | None = None
    answers: Mapping[tuple[tuple[int, ...], int], Any] | None = None
    prices: Mapping[str, Any] | None = None
    num_failed: int = 0
    known: Sequence[Observation] = ()
    lost: Sequence[Observation] = ()
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    surplus: Sequence[Observation] = ()

    def __str__(self) -> str:
        return "\n".join(lines_of(self).values())

    def __repr__(self) -> str:
        return one_line(self, type(self).__name__)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_of(self)

    @property
    def call_seconds(self) -> float:
        """Seconds of all calls of the search, one after another; 0 if nobody timed them."""
        asked, kept = (
            math.fsum(one.latency_s or 0.0 for one in of)
            for of in (self.history, self.repeats or ())
        )
        return max(0.0, asked - kept)

    @property
    def choice(self) -> dict[str, str]:
        """theta_out: the LLM of each module."""
        return self.problem.names(self.recommendation.theta)

    @property
    def dropped(self) -> dict[str, list[str]]:
        """By module the LLMs that the search gave up because all their calls failed."""
        return self.report.get("dropped", {})

    @cached_property
    def _told(self) -> tuple[Evidence, Estimate]:
        of_search = self.history, self.trace, self.report, self.front
        evidence = Evidence(self.problem, *of_search, self.known)
        return evidence, evidence.quality_of_choice(self.recommendation)

    @property
    def evidence(self) -> Evidence:
        """What is known of each configuration's cost and quality."""
        return self._told[0]

    @property
    def quality(self) -> Estimate:
        """Average quality of theta_out on the queries searched on, see `Estimate`."""
        return self._told[1]

    @property
    def cost_usd(self) -> Estimate:
        """Average cost of a query with theta_out in USD, likewise."""
        return self.evidence.cost_of_choice(self.recommendation)

    @property
    def reference_quality(self) -> Estimate:
        """s(theta_0); the interval is about its quality on other queries like these.

        With probability 95% it contains the expected quality, if the queries are independent draws.
        Its ends are None if theta_0's answers are not known.
        """
        problem = self.problem
        qualities = [quality for _, quality in problem.reference_answers or ()]
        qualities = qualities or [one.quality for one in self.reference or ()]
        if not qualities:
            return Estimate(problem.reference_quality, basis="as given")
        from scope_torch.bounds.population import mean_interval  # its bounds import gpytorch

        low, high = mean_interval(qualities)
        basis = "95% confidence on queries like these"
        if (n := problem.reference_queries) is not None:
            basis = f"{n} of {problem.num_queries} queries answered, {basis}"
        return Estimate(problem.reference_quality, low, high, basis)

    @property
    def savings(self) -> Estimate:
        """1 - c(theta_out) / c(theta_0), a fraction; its interval is that of the cost.

        If c(theta_0) is known by a sample, or by answers that vary, it is within two standard
        errors in this interval.
        """
        cost, usd = self.cost_usd, self.problem.reference_cost_usd
        changed = self.varies is not None and self.varies.changed > 0
        error = 2 * self.evidence.reference_error(self.reference or (), changed)
        return savings_of(cost, usd, (usd - error, usd + error) if error else None)

    @property
    def certified(self) -> bool:
        """Whether theta_out satisfies all constraints with a proven probability, or surely.

        Surely: it was observed on all queries, and answers do not change from call to call. False
        if theta_out is the reference.
        """
        out = self.recommendation
        if out.theta == self.problem.theta_ref:
            return False
        return out.basis == "certified" or self.evidence.is_feasible(out.theta)

    @property
    def why(self) -> str:
        """What `certified` rests on, or why nothing was certified, in a sentence."""
        return why(self) + in_vain(self)

    @property
    def bill(self) -> Bill:
        """What reference, search and held-out queries have cost."""
        return bill_of(self)

    def table(self) -> polars.DataFrame:
        """Each configuration looked at; for the columns see `scope_torch.results.table`."""
        return table_of(self.evidence, self.recommendation)

    def disagreements(self) -> polars.DataFrame:
        """The queries that theta_out and theta_0 answered with different quality.

        Raises:
            InputError: If theta_0's answers to each query are not known.
        """
        theta, of_queries = self.recommendation.theta, (self.queries, self.answers, self.expected)
        answers = [*self.known, *self.history]
        return disagreements_of(self.problem, theta, answers, self.reference, *of_queries)

    def plot(self, path: Path | str | None = None) -> Figure:
        """Cost and quality of all that was looked at, see `scope_torch.results.figure`.

        Args:
            path: PNG, PDF or SVG file to write; None for none.
        """
        from scope_torch.results.figure import plot_looked_at  # matplotlib takes long to import

        rows = looked_at(self.evidence, self.recommendation)
        return plot_looked_at(self.problem, rows, self.certified, path)

    def save(self, path: Path | str, *, fallbacks: int = 0) -> Path:
        """Writes the LLM of each module in the form that the name says, or the decision page.

        Args:
            path: `models.json`, `models.yaml`, `.env` or `litellm.yaml`; see
                `scope_torch.results.saving`, whose `load_models` reads it. Or `report.html`: the
                decision page.
            fallbacks: For `scope-torch serve`: where an LLM fails, a certified configuration with
                another one answers, of so many LLMs in each module; see
                `scope_torch.results.fallbacks`. In JSON and YAML only.

        Raises:
            InputError: If the name says no form, it cannot hold fallbacks, or the file cannot be
                written.
        """
        kept = with_fallbacks(path, self.evidence, self.recommendation, fallbacks)
        if Path(path).suffix == ".html":
            from scope_torch.results.page.page import save_page  # jinja2 takes long to import

            return save_page(path, self, self.truth)
        facts = {
            "basis": self.recommendation.basis,
            "certified": self.certified,
            "quality": self.quality.value,
            "cost_usd": self.cost_usd.value,
            "reference": self.problem.names(self.problem.theta_ref),
            "settings_hash": settings_hash(self.settings),
            **self._varies(),
            **({"doubt": doubt} if (doubt := doubt_of(self)) else {}),
            **({} if self.held_out is None else {"held_out": self.held_out.to_json()}),
            **kept,
        }
        return save_models(path, self.choice, facts)

    def pareto(self) -> FrontTable:
        """For every loss of quality the cheapest configuration, and what that rests on.

        Raises:
            InputError: If the problem has further constraints or another objective, of which the
                table knows nothing, or the result was made without its observations.
        """
        if self.front is None:
            raise InputError(
                "this result has no front: run() makes one if a bound on quality is the only one"
            )
        return self.front

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget; None if they are unknown."""
        return None if self.truth is None else oracle_curve(self.problem, self.trace, self.truth)

    def summary(self) -> dict[str, Any]:
        """Content of `result.json`.

        `result_hash` is a hash of what equal runs share, `timing.hash` of the rest.
        """
        out = self.recommendation
        told = {
            "task": self.problem.name,
            "method": self.method,
            "theta_out": self.choice,
            "theta_out_codes": list(out.theta),
            "basis": out.basis,
        }
        content = {
            **(told | self.report | told),  # a method of one's own may call something else so
            **bounds_of_theta_out(self.problem, out, self.cost_usd, self.quality),
            **truth_of_theta_out(self.problem, out.theta, self.trace, self.truth),
            "estimates": {"quality": self.quality._asdict(), "cost_usd": self.cost_usd._asdict()},
            "population": self._population(),
            **facts_of(self.problem),
            "budget_usd": self.budget_usd,
            "spend_usd": self.history.spend_usd,
            "surplus_usd": self.surplus_usd,
            **({"surplus": sorted(o.request for o in self.surplus)} if self.surplus else {}),
            "num_observations": len(self.history),
            **({} if self.repeats is None else repeats_of(self.repeats)),
            **self._measured(),
            **self._varies(),
            **self.bill.beside,
            "stop_reason": self.stop_reason,
            **({} if self.front is None else {"pareto": self.front.to_json()}),
            "seed": self.settings["optimizer"].get("seed"),
            "settings_hash": settings_hash(self.settings),
            "timing": {
                "seconds": self.seconds["total"],
                "optimizer_seconds": self.seconds["optimizer"],
                "evaluator_seconds": self.seconds["evaluator"],
                "call_seconds": self.call_seconds,
                "replayed_observations": self.replayed,
                "threads": torch.get_num_threads(),
            },
            "paths": {"run_dir": None if self.run_dir is None else str(self.run_dir)},
        }
        return with_hashes(content)

    def write(self) -> None:
        """Writes `result.json` into the directory of the run, if it has one.

        Raises:
            InputError: If the file cannot be written.
        """
        if self.run_dir is not None:
            content = json.dumps(self.summary(), indent=2) + "\n"
            write_atomically(self.run_dir / "result.json", content)

    def _measured(self) -> dict[str, Any]:
        """What was measured besides the search."""
        of_reference = dict[str, Any]()
        if self.reference is not None:
            quality = self.reference_quality
            of_reference["reference_usd"] = cost_of(self.reference)
            of_reference["reference_quality_interval"] = [quality.lower, quality.upper]
        return {
            **of_reference,
            **({"again_usd": cost_of(self.reference_again)} if self.reference_again else {}),
            **({"preflight_usd": cost_of(self.probe)} if self.probe else {}),
            **({} if self.held_out is None else {"held_out": self.held_out.to_json()}),
            **({"left_out": dict(self.left_out)} if self.left_out else {}),
        }

    def _varies(self) -> dict[str, Any]:
        """How often an answer of the reference changed when it was asked for again."""
        if self.varies is None:
            return {}
        counts = {"asked": self.varies.asked, "changed": self.varies.changed}
        interval = list(self.varies.interval)
        return {"repeated_answers": {**counts, "rate": self.varies.rate, "interval": interval}}

    def _population(self) -> dict[str, Any]:
        """About tomorrow's queries; see `tomorrow`."""
        from scope_torch.results.population import tomorrow  # its bounds import gpytorch: seconds

        theta, seed = self.recommendation.theta, self.settings["optimizer"].get("seed")
        answers = [*self.known, *self.history]
        known = self.report.get("known") if self.known else None  # all may be left out
        return tomorrow(self.problem, answers, theta, self.report.get("delta"), seed, known)
