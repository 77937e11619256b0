"""A run's directory as a result: what the decision page shows of a search, finished or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from scope_torch.bounds.assumptions import basis_of, bounds_in, certificate_in
from scope_torch.observation import History, Observation
from scope_torch.reference import sample_queries
from scope_torch.results.bill import Bill, cost_of, regraded_usd
from scope_torch.results.estimate import Estimate, Evidence
from scope_torch.results.held_out import HeldOut
from scope_torch.results.metrics import OracleCurve
from scope_torch.results.page.view import Pace, View
from scope_torch.results.result import RunResult
from scope_torch.runs.directory import read_json
from scope_torch.runs.journal import lost_in, read_journal
from scope_torch.runs.measure import repeats_in
from scope_torch.runs.older import HELD_OUT, LOGGED, OBSERVATIONS
from scope_torch.runs.opening import keeps_answers
from scope_torch.runs.recorded import RecordedRun
from scope_torch.search.front import FrontRow, FrontTable
from scope_torch.search.optimizer import Basis, Recommendation

_OPEN = {
    "running": "it is still searching",
    "interrupted": "it was interrupted",
    "failed": "its last attempt failed",
}


class RecordedEvidence(Evidence):
    """Of a journal, which has the observations in the order in which they arrived."""

    @cached_property
    def turns(self) -> list[tuple[tuple[int, ...], list[float]]]:
        """None: answers in the order of arrival say nothing to a betting sequence."""
        return []

    def quality_of_choice(self, out: Recommendation) -> Estimate:
        """As `result.json` says, or else from the observations."""
        return _estimate(self.report, "quality") or super().quality_of_choice(out)

    def cost_of_choice(self, out: Recommendation) -> Estimate:
        """As `result.json` says, or else from the observations."""
        return _estimate(self.report, "cost_usd") or super().cost_of_choice(out)


@dataclass(frozen=True, repr=False)
class RecordedResult(RunResult):
    """A result that was read from files; what an earlier process knew better is taken from it.

    Args:
        recorded_curve: True cost and quality of theta_out, from the trace; None if unknown.
    """

    recorded_curve: OracleCurve | None = None

    @cached_property
    def _told(self) -> tuple[Evidence, Estimate]:
        of_search = self.history, self.trace, self.report, self.front
        evidence = RecordedEvidence(self.problem, *of_search, self.known)
        return evidence, evidence.quality_of_choice(self.recommendation)

    @property
    def bill(self) -> Bill:
        """Without the answers that were kept, as `result.json` counts them."""
        bill, usd = super().bill, self.report.get("repeats_usd", 0.0)
        judged = self.report.get("repeats_judge_usd", 0.0)
        number = self.report.get("num_repeats", 0)
        # The journal is in the order of arrival. Early versions did not say which calls were in
        # flight at the end: the first observations are then not quite those of the search.
        spent = self.report.get("spend_usd", self.history.spend_usd)
        return replace(
            bill,
            search_usd=max(
                0.0, bill.search_usd + (spent - self.history.spend_usd) - (usd - judged)
            ),
            judge_usd=max(0.0, bill.judge_usd - judged),
            repeats_usd=usd,
            num_kept=number,
            num_calls=bill.num_calls - number,
        )

    @property
    def curve(self) -> OracleCurve | None:
        """The true values of the trace."""
        return self.recorded_curve


def view_of(
    run: RecordedRun, now: datetime, *, refresh_s: float | None = None, pace: Pace | None = None
) -> View:
    """What the page shows of a run.

    Args:
        run: From `read_run`.
        now: When it was read.
        refresh_s: Seconds after which a browser loads the page again; None for never.
        pace: How fast the search goes on; None if that is not known.
    """
    return View(
        result_of_run(run),
        run.status,
        now,
        truths=[recorded.truth for recorded in run.rows],
        optimum_usd=run.summary().get("optimal_cost_usd"),
        error=run.error,
        pace=pace,
        refresh_s=refresh_s,
        path=str(run.path),
    )


def result_of_run(run: RecordedRun) -> RecordedResult:
    """The result of a run, or what it would be if the search ended now.

    The journal has the observations in the order in which they arrived, so a certificate is not
    computed again: what `result.json` says holds.

    Args:
        run: From `read_run`.
    """
    problem, told = run.problem, run.summary()
    known = _observed(run.path / "known.jsonl") or []
    in_flight = {(tuple(theta), *which) for theta, *which in told.get("surplus", ())}
    observations = [one for one in run.observations if one.request not in in_flight]
    history = History()
    for observation in observations[: told.get("num_observations")]:
        history.append(observation)
    reference = _reference(run, known)
    if reference is not None and len(reference) == problem.num_queries:
        answers = tuple((one.cost_usd, one.quality) for one in reference)
        problem = replace(problem, reference_answers=answers)
    held_out, surplus = _held_out(run), list[Observation]()
    if held_out is None:  # it is not over
        journals = run.path.glob("held_out*/*/journal.jsonl")
        surplus += dict.fromkeys(one for path in journals for one in read_journal(path))
    rows = [recorded.row for recorded in run.rows]
    last = rows[-1] if rows else None
    theta = problem.theta_ref if last is None else last.theta_out
    u_out, gap = (None, None) if last is None else (last.u_out_usd, last.gap_usd)
    return RecordedResult(
        problem,
        run.method.name,
        Recommendation(theta, basis(run), u_out, gap),
        str(told.get("stop_reason", _OPEN.get(run.status, run.status))),
        run.budget_usd,
        history,
        told.get("surplus_usd", sum(observation.paid_usd for observation in surplus)),
        rows,
        told or certificate_in(run.settings["optimizer"]),
        run.settings,
        None,
        {},
        0,
        run.path,
        front=_front(run),
        reference=reference,
        reference_again=_observed(run.path / "again" / "journal.jsonl") or (),
        varies=repeats_in(run.path),
        probe=_probe(run),
        held_out=held_out,
        known=known,
        lost=lost_in(run.path),
        left_out=told.get("left_out", {}),
        recorded_curve=run.curve,
    )


def basis(run: RecordedRun) -> Basis:
    """Basis of theta_out: as in the result or, before the end, as far as the trace tells."""
    if run.result is not None and run.result["basis"] != "certified":
        return run.result["basis"]
    if not run.rows or run.rows[-1].row.theta_out == run.problem.theta_ref:
        return "reference"
    settings = run.settings["optimizer"]  # older results do not tell accepted from certified
    return basis_of(settings) if bounds_in(settings) else "observed"


def _estimate(report: Mapping[str, Any], name: str) -> Estimate | None:
    found = report.get("estimates", {}).get(name)
    return None if found is None else Estimate(**found)


def _front(run: RecordedRun) -> FrontTable | None:
    found = run.summary().get("pareto")
    if found is None:
        return None

    def rows(key: str) -> tuple[FrontRow, ...]:
        return tuple(
            FrontRow(**{"cost_interval": None, "quality_interval": None} | row, theta=_codes(row))
            for row in found[key]
        )

    def _codes(row: Mapping[str, Any]) -> tuple[int, ...]:
        return run.problem.codes([row["llms"][module] for module in run.problem.modules])

    return FrontTable(rows("by_loss"), rows("points"))


def _observed(path: Path) -> list[Observation] | None:
    """What was known or measured besides the search; None if nothing was."""
    return read_journal(path) if path.exists() else None


def _reference(run: RecordedRun, known: Sequence[Observation]) -> list[Observation] | None:
    """theta_0's answers, measured or known from older runs; None if they were logged or given."""
    measured = _observed(run.path / "reference" / "journal.jsonl")
    if measured is None:
        return None
    number, asked = run.problem.reference_queries, range(run.problem.num_queries)
    if number is not None:
        asked = sample_queries(len(asked), number, run.settings["optimizer"].get("seed", 0))
    answers = [one for one in known[::-1] if one.theta == run.problem.theta_ref]
    of_query = {one.query: one for one in answers if one.query in asked}
    of_query |= {one.query: one for one in measured}
    return [of_query[query] for query in sorted(of_query)]


def _probe(run: RecordedRun) -> list[Observation]:
    """What was paid for; the reference may have got a kept answer, and is billed for it.

    With `repeat` it asks again. Early versions said so only in the result, by what all of it cost.
    """
    reference = set(_observed(run.path / "reference" / "journal.jsonl") or ())
    parts = [_observed(run.path / part / "journal.jsonl") for part in ("pilot", "preflight")]
    found = [observation for part in parts for observation in part or ()]
    if not keeps_answers(run.path) or cost_of(found) == run.summary().get("preflight_usd"):
        return found
    return [observation for observation in found if observation not in reference]


def _held_out(run: RecordedRun) -> HeldOut | None:
    """The comparison on held-out queries, if it is complete."""
    number = run.summary().get("held_out", {}).get("num_queries")
    if number is None:
        return None
    thetas = run.problem.theta_ref, tuple(run.summary()["theta_out_codes"])
    part = run.path / f"held_out_{number}"  # of a part of them, if money was short
    part = part if part.exists() else run.path / "held_out"
    files = [run.path / HELD_OUT / name for name in (OBSERVATIONS, LOGGED)]
    known = [one for file in files for one in _observed(file) or []]
    both: list[list[Observation]] = []
    for theta in thetas:
        paths = run.path.glob(f"held_out*/{'-'.join(map(str, theta))}/journal.jsonl")
        parts = sorted(paths, key=lambda path: path.parent.parent == part)  # if fewer, of a larger
        answers = [*known, *(one for path in parts for one in read_journal(path))]
        of_query = {answer.query: answer for answer in answers if answer.theta == theta}
        if not of_query.keys() >= set(range(number)):
            return None
        both.append([of_query[query] for query in range(number)])
    facts = run.path / "held_out" / "known.json"
    usd = regraded_usd(read_json(facts)["sources"]) if facts.exists() else 0.0
    return HeldOut(number, choice=both[1], reference=both[0], known=known, regraded_usd=usd)
