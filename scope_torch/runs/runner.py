"""Runs an optimizer against an evaluator within a budget; a crash loses nothing that was paid."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from scope_torch.constraints import COST
from scope_torch.errors import InputError, check_numbers
from scope_torch.files import path_of, plain
from scope_torch.observation import History, Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.result import RunResult
from scope_torch.runs.callbacks import Callback, closer, keeping_the_result
from scope_torch.runs.deadline import TIME_IS_OVER, Deadline, deadline_of
from scope_torch.runs.evaluator import (
    Evaluator,
    HasTrueOutcomes,
    HasTruth,
    KeepsAnswers,
    kept_answers,
)
from scope_torch.runs.journal import Journal
from scope_torch.runs.opening import describe_prices, open_run_dir
from scope_torch.runs.source import ObservationSource
from scope_torch.runs.trace import TraceFile
from scope_torch.search.front import front_of
from scope_torch.search.known import Known
from scope_torch.search.optimizer import Optimizer, checked
from scope_torch.space import MAX_ENUMERATED

logger = logging.getLogger(__name__)


def run(
    problem: SelectionProblem,
    optimizer: Optimizer,
    evaluator: Evaluator,
    budget_usd: float,
    *,
    run_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    time_limit: Deadline | str | float | None = None,
    finish: Callable[[RunResult], RunResult] | None = None,
) -> RunResult:
    """Spends a budget on a search.

    The budget is tested after every observation: the observation that takes the spend above the
    budget is the last one. What was paid for calls that ended an earlier process of this search
    counts as spent. With `run_dir`, every observation that costs money is on disk before it
    is used. The same call then resumes an interrupted run: it pays for nothing twice and gives the
    same result.

    Args:
        problem: The problem to search.
        optimizer: A fresh optimizer for this problem.
        evaluator: Makes the observations.
        budget_usd: Lambda, in USD.
        run_dir: Directory for `journal.jsonl`, `settings.json`, `trace.csv` and `result.json`;
            None writes no files.
        callbacks: Trackers, progress bars, plots; their methods are called during the run.
        time_limit: When no further call starts, such as "2h"; the calls in flight are waited for.
            It counts from this call on: the same call goes on from the journal, for as long again.
        finish: Adds what comes after the search, such as held-out queries. Before that, the run is
            not over: it has no `result.json`. None adds nothing.

    Raises:
        InputError: If the budget or the time is not positive, the optimizer belongs to another
            problem or was used before, it needs fresh answers and the evaluator keeps them, the
            directory cannot be written, or it holds a run with other settings.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> optimizer = make_scope(problem, base="nano", seed=0)
        >>> result = run(problem, optimizer, evaluator, budget_usd=0.1, run_dir="outputs/demo")
        >>> result.choice
        {'module_1': 'nano', 'module_2': 'mini'}
        >>> sorted(path.name for path in result.run_dir.iterdir())
        ['journal.jsonl', 'queries.json', 'result.json', 'settings.json', 'trace.csv']
    """
    _check_run(problem, optimizer, budget_usd)
    deadline = deadline_of(time_limit)
    began = time.perf_counter()
    settings = run_settings(problem, optimizer, evaluator, budget_usd)
    # The system may enter another folder.
    run_dir = None if run_dir is None else path_of("run_dir", run_dir).absolute()
    told = getattr(optimizer, "known", None)
    known = told if isinstance(told, Known) else None  # a search of a user may call anything so
    _check_fresh(known, evaluator)
    observations = [] if known is None else known.observations
    truth, truth_seconds = _timed_truth(problem, evaluator)
    with ExitStack() as closing:
        journal = _open_journal(run_dir, settings, evaluator, closing)
        for callback in callbacks:  # all are closed later, even if one fails to start
            closing.push(closer(callback, run_dir))
        for callback in callbacks:
            callback.start(problem, optimizer, budget_usd)
        trace_file = _open_trace(run_dir, problem, truth, closing)
        asked = observations if known is not None and known.answers_vary else []
        most_usd = max(problem.reference_cost_usd, getattr(evaluator, "most_usd", 0.0))
        source = ObservationSource(evaluator, journal, most_usd, asked, deadline)
        search = _Search(optimizer, source, budget_usd, callbacks, trace_file)
        stop_reason = search.run()
        result = RunResult(
            problem=problem,
            method=optimizer.name,
            recommendation=optimizer.recommend(),
            stop_reason=stop_reason,
            budget_usd=float(budget_usd),
            history=search.history,
            surplus_usd=source.surplus_usd(search.history),
            surplus=source.surplus(search.history),
            lost=source.lost,
            repeats=kept_answers(evaluator, search.history),
            known=observations,
            trace=optimizer.trace,
            report=plain(optimizer.report()),
            front=front_of(problem, optimizer, search.history, known=observations),
            settings=settings,
            truth=truth,
            seconds={
                "total": time.perf_counter() - began,
                "optimizer": search.optimizer_seconds,
                "evaluator": truth_seconds + source.seconds,
            },
            replayed=source.replayed,
            run_dir=run_dir,
        )
        _warn_of_failures(result)
        result = result if finish is None else finish(result)
        if journal is not None:
            journal.begin()
        result.write()
        for callback in callbacks:
            with keeping_the_result(callback, run_dir):
                callback.end(result)
    return result


def _warn_of_failures(result: RunResult) -> None:
    """Says once how many calls failed, and which LLMs were dropped for that."""
    failed = Counter(one.theta for one in result.history if one.failed is not None)
    if failed:
        theta, most = failed.most_common(1)[0]
        told = [f"{', '.join(llms)} from {module}" for module, llms in result.dropped.items()]
        logger.warning(
            "%d of %d calls failed and count as quality 0, %d of them with %s%s",
            failed.total(),
            len(result.history),
            most,
            result.problem.names(theta),
            f"; dropped for that: {'; '.join(told)}" if told else "",
        )


def run_settings(
    problem: SelectionProblem, optimizer: Optimizer, evaluator: Evaluator, budget_usd: float
) -> dict[str, Any]:
    """Everything that decides a run, JSON-serialisable; arguments as in `run`."""
    return {
        "problem": problem_settings(problem),
        "optimizer": plain(optimizer.settings()),
        "evaluator": evaluator.fingerprint(),
        "budget_usd": float(budget_usd),
    }


def problem_settings(problem: SelectionProblem) -> dict[str, Any]:
    """The problem as JSON; what the first version did not know is there only where it is used."""
    values = asdict(replace(problem, reference_answers=None, allowed=None, offered=None))
    del values["reference_answers"]  # a certificate that uses them says so in its settings
    del values["allowed"], values["offered"]
    if problem.rule is not None:
        values["allowed"] = problem.rule.digest()
    if problem.offered:
        content = repr(sorted(problem.offered.items())).encode()
        values["offered"] = hashlib.sha256(content).hexdigest()[:16]
    if problem.reference_queries is None:
        del values["reference_queries"]
    values["constraints"] = [str(constraint) for constraint in problem.constraints]
    values["reference_outcomes"] = dict(problem.reference_outcomes)
    if any(one.name == COST and one.is_cap and one.is_relative for one in problem.constraints):
        values["reference_outcomes"][COST] = problem.reference_averages[COST]  # the answers tell it
    for name in ("constraints", "reference_outcomes"):
        if not values[name]:
            del values[name]
    if problem.objective == "cost":
        del values["objective"]
    return values


def _check_run(problem: SelectionProblem, optimizer: Optimizer, budget_usd: float) -> None:
    check_numbers(budget_usd=budget_usd)
    if not (budget_usd and math.isfinite(budget_usd) and budget_usd > 0):
        raise InputError(f"budget_usd={budget_usd} must be a positive number of USD")
    if optimizer.problem != problem:
        raise InputError(
            f"the optimizer was made for the problem {optimizer.problem.name!r}, with other values "
            f"than the problem {problem.name!r} given to run(); make it for the same problem"
        )
    if optimizer.t > 0:
        raise InputError(
            f"the optimizer has made {optimizer.t} observations; give run() a fresh one"
        )


def _check_fresh(known: Known | None, evaluator: Evaluator) -> None:
    """Refuses an evaluator that would answer a repeated call without making it."""
    if known is not None and known.answers_vary and getattr(evaluator, "copies", False):
        raise InputError(
            "the search was told that answers vary (certificate_flips), but a table has one answer "
            "to each call, and a repeated call would get it again; leave certificate_flips out: "
            "what is certified then is the average of these answers"
        )
    keeps = isinstance(evaluator, KeepsAnswers) and evaluator.deterministic
    if keeps and known is not None and known.answers_vary:
        raise InputError(
            "the search was told that answers vary (certificate_flips), but deterministic=True of "
            "the evaluator gives a kept answer to a repeated call; say deterministic=False, or "
            "leave certificate_flips out"
        )


def _timed_truth(
    problem: SelectionProblem, evaluator: Evaluator
) -> tuple[Sequence[Tensor] | None, float]:
    """The true averages, if the evaluator knows them, and the seconds that they took.

    Where Theta is too large to enumerate they would not fit into memory.
    """
    began = time.perf_counter()
    is_small = problem.space.size <= MAX_ENUMERATED
    truth: Sequence[Tensor] | None = None
    if is_small and isinstance(evaluator, HasTruth):
        truth = evaluator.truth()
        if others := problem.others:
            knows = isinstance(evaluator, HasTrueOutcomes)
            truth = (*truth, *evaluator.true_outcomes(others)) if knows else None
    return truth, time.perf_counter() - began


def _open_journal(
    run_dir: Path | None, settings: dict[str, Any], evaluator: Evaluator, closing: ExitStack
) -> Journal | None:
    if run_dir is None:
        return None
    journal = open_run_dir(run_dir, settings, evaluator)
    closing.callback(journal.close)
    describe_prices(run_dir, evaluator)
    if isinstance(evaluator, KeepsAnswers):
        evaluator.remember(journal.recorded)
    return journal


def _open_trace(
    run_dir: Path | None,
    problem: SelectionProblem,
    truth: Sequence[Tensor] | None,
    closing: ExitStack,
) -> TraceFile | None:
    if run_dir is None:
        return None
    trace_file = TraceFile(run_dir / "trace.csv", problem, truth)
    closing.callback(trace_file.close)
    return trace_file


class _Search:
    """A search in progress: asks the optimizer, observes, tells the optimizer.

    Attributes:
        history: The observations so far, in the asked order.
        optimizer_seconds: Time that the optimizer took so far.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        source: ObservationSource,
        budget_usd: float,
        callbacks: Sequence[Callback],
        trace_file: TraceFile | None,
    ) -> None:
        self.history, self.optimizer_seconds = History(), 0.0
        self._optimizer, self._source, self._budget_usd = optimizer, source, budget_usd
        self._callbacks, self._trace_file, self._num_reported = callbacks, trace_file, 0
        self._is_cut = False
        # Calling methods that do nothing would cost time at every observation.
        self._watching = [
            callback.observed
            for callback in callbacks
            if type(callback).observed is not Callback.observed
        ]

    def run(self) -> str:
        """Searches until money or time is spent or the optimizer has finished; returns which."""
        try:
            if lag := getattr(self._optimizer, "lag", 0):
                self._run_in_pipeline(lag)
            else:
                self._run_in_batches()
            self._report_changes()
        except BaseException:
            with contextlib.suppress(InputError):  # must not hide what ended the run
                self._write_trace()
            raise
        if self._is_spent():
            return "budget"
        if self._is_cut:
            return TIME_IS_OVER
        return str(self._optimizer.stop_reason or "finished")  # also of a numpy truth

    def _run_in_batches(self) -> None:
        requests = self._tell_and_ask(())
        while requests:
            self._report_new_rows()
            requests = self._tell_and_ask(self._observe(requests))

    def _run_in_pipeline(self, lag: int) -> None:
        """Asks for more while calls are in flight; see `Pipelined`."""
        source = self._source.pipeline(lambda: self._tell_and_ask(()), lag, self._left_usd)
        with contextlib.closing(source) as observations:
            for observation in observations:
                self._take_in(observation)
                self._tell([observation])
                self._report_new_rows()
                self._is_cut = self._source.is_late
                if self._is_spent() or self._is_cut:
                    break
        self._is_cut |= self._source.is_cut

    def _observe(self, requests: Sequence[Request]) -> list[Observation]:
        """Observations of `requests`; the last one is the one that crosses the budget, if any."""
        told: list[Observation] = []
        with contextlib.closing(self._source.observe(requests, self._left_usd())) as observations:
            for observation in observations:
                told.append(observation)
                self._take_in(observation)
                if self._is_spent() or self._source.is_late:
                    break
        return told

    def _take_in(self, observation: Observation) -> None:
        self.history.append(observation)
        for observed in self._watching:
            observed(observation, self.history.spend_usd)

    def _left_usd(self) -> float:
        """What is left of the budget; what was paid for nothing in earlier processes counts."""
        lost_usd = self._source.lost_usd(len(self.history))
        return self._budget_usd - (self.history.spend_usd + lost_usd)

    def _is_spent(self) -> bool:
        return self._left_usd() < 0

    def _tell_and_ask(self, told: Sequence[Observation]) -> Sequence[Request]:
        """The next requests; none once money or time is spent or the optimizer has finished."""
        if told:
            self._tell(told)
        began = time.perf_counter()
        self._is_cut = self._source.is_late
        requests = () if self._is_spent() or self._is_cut else self._optimizer.ask()
        self.optimizer_seconds += time.perf_counter() - began
        return checked(requests, self._optimizer.problem)

    def _tell(self, told: Sequence[Observation]) -> None:
        began = time.perf_counter()
        self._optimizer.tell(told)
        self.optimizer_seconds += time.perf_counter() - began

    def _report_new_rows(self) -> None:
        if len(self._optimizer.trace) > self._num_reported:
            self._report_changes()

    def _report_changes(self) -> None:
        """Writes the new rows of the trace and tells the callbacks about them."""
        self._source.flush()  # a row is only shown when the observations behind it are on disk
        self._write_trace()
        trace = self._optimizer.trace
        for row in trace[self._num_reported :]:
            for callback in self._callbacks:
                callback.changed(row)
        self._num_reported = len(trace)

    def _write_trace(self) -> None:
        if self._trace_file is not None:
            self._trace_file.update(self._optimizer.trace)
