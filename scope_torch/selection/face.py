"""`select`: from an application and a data set to the LLM of each module, in one call.

A thin face: it measures the reference, makes the problem, the evaluator and the search from objects
that one can use directly too, runs them, and returns the usual `RunResult`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, ParamSpec, Protocol, overload

from scope_torch.constraints import COST, QUALITY
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application
from scope_torch.evaluators.elsewhere import Elsewhere
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.outputs import FILE
from scope_torch.results.result import RunResult
from scope_torch.selection.arguments import Arguments
from scope_torch.selection.before import known_of, plan_of
from scope_torch.selection.pilot import fly
from scope_torch.selection.plan import Plan
from scope_torch.selection.setup import Setup, set_up
from scope_torch.selection.steps import search, served

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Selection(Arguments):
    """What is to be selected, checked; `run` and `plan` do it or tell it.

    Its arguments are those of `Arguments`, where each is explained.

    Raises:
        InputError: If a setting cannot be used.

    Examples:
        >>> def app(models, question):
        ...     return question.upper(), {"mini": 0.002, "pro": 0.03}[models["answer"]]
        >>> selection = Selection(
        ...     app, models={"answer": ["mini", "pro"]}, reference="pro", budget_usd=5,
        ...     dataset=[(text, text.upper()) for text in ["one", "two", "three"] * 10],
        ...     metric=lambda expected, output: expected == output, max_quality_loss=0.05,
        ... )
        >>> selection.plan().num_configurations, selection.run().choice
        (2, {'answer': 'mini'})
    """

    def __post_init__(self) -> None:
        _ = self._setup  # refuses what cannot be used

    @cached_property
    def _setup(self) -> Setup:
        setup = set_up(self)
        if (problem := setup.problem).num_allowed == 1:
            raise InputError(
                f"the reference, {problem.names(problem.theta_ref)}, is the only configuration: "
                "there is nothing to choose; give models= more LLMs"
            )
        return setup

    def plan(self, pilot: bool = False) -> Plan:
        """What `run` will do, and what it may cost; asks nothing.

        Args:
            pilot: Run the reference on three queries, so that the plan knows USD and minutes.

        Raises:
            InputError: If the application cannot be used as it is; or if the pilots fail.
        """
        with serving(self._setup) as (_, make_evaluator):
            evaluator = make_evaluator(self._setup.problem, queries=self._setup.searched)
            known = known_of(self._setup, evaluator, keeps=False)
            return plan_of(self._setup, known, fly(self._setup, evaluator) if pilot else None)

    def run(self) -> RunResult:
        """Measures the reference, searches, and compares on the held-out queries.

        Raises:
            InputError: If the application cannot be used as it is; or if the reference alone would
                cost more than the budget.
        """
        self._setup.deadline.begin()
        with serving(self._setup) as (application, make_evaluator):
            return search(self._setup, application, make_evaluator)


@contextmanager
def serving(setup: Setup) -> Generator[tuple[Application, Callable[..., FunctionEvaluator]]]:
    """The application, and what makes its evaluator, while the endpoint runs."""
    given = setup.given
    named = [limit.outcome for limit in setup.problem.constraints]
    timed = [] if given.hour_usd is None else ["latency_s"]
    outcomes = [name for name in dict.fromkeys([*named, *timed]) if name not in (COST, QUALITY)]
    where = nullcontext() if given.executor is None else Elsewhere(given.executor)
    with served(given.endpoint, setup.prices) as running, where as elsewhere:
        how = outcomes, setup.inside(FILE), given.judge, given.metric_version, elsewhere
        application = Application(given.app, given.metric, running, *how)
        yield (
            application,
            partial(
                FunctionEvaluator,
                system=application,
                concurrency=setup.concurrency,
                name=given.name,
                prices=setup.prices,
                deterministic=not given.repeat,
                on_error=given.on_error,
                optional_modules=given.optional_modules,
            ),
        )


class _Select(Protocol[P]):
    """Takes the arguments of a `Selection`, and `dry_run`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> RunResult: ...

    @overload
    def __call__(self, app: Any, *, dry_run: Literal[True, "pilot"], **arguments: Any) -> Plan: ...


def _with_arguments_of(
    selection: Callable[P, Selection],
) -> Callable[[Callable[..., Any]], _Select[P]]:
    """Tells type checkers and `help` the arguments of `select`, which are documented once."""

    def told(function: Any) -> _Select[P]:
        signature = inspect.signature(selection)
        dry_run = inspect.signature(function).parameters["dry_run"]
        function.__signature__ = signature.replace(
            parameters=[*signature.parameters.values(), dry_run], return_annotation="RunResult"
        )
        return function

    return told


@_with_arguments_of(Selection)
def select(
    app: Any, *, dry_run: bool | Literal["pilot"] = False, **arguments: Any
) -> RunResult | Plan:
    """Chooses which LLM runs each module of an application: `Selection(app, ...).run()`.

    The reference, a configuration that you trust, answers every query once. Then a search looks for
    the cheapest configuration whose average quality is at most `max_quality_loss` lower, and
    certifies it. With `run_dir` every call is on disk before it is used: the same program goes on
    where it was stopped, pays for nothing twice, and gives the same result.

    Args:
        app: See `Arguments`.
        dry_run: Make no call, and return `Selection(app, ...).plan()` in the place of a result.
            "pilot": the plan with pilots.
        arguments: Those of `Arguments`, where each is explained; by name.

    Raises:
        InputError: If a setting cannot be used, before the first call; or if the reference alone
            would cost more than the budget.

    Examples:
        >>> import scope_torch as st
        >>> def app(models, question):
        ...     answer = question.upper() if models["answer"] != "nano" else question
        ...     return answer, {"nano": 0.001, "mini": 0.002, "pro": 0.03}[models["answer"]]
        >>> result = st.select(
        ...     app, models={"answer": ["nano", "mini", "pro"]}, reference="pro", budget_usd=5,
        ...     dataset=[(text, text.upper()) for text in ["one", "two", "three"] * 10],
        ...     metric=st.metrics.exact_match, max_quality_loss=0.05,
        ... )
        >>> result.choice
        {'answer': 'nano'}
    """
    if dry_run not in (True, False, "pilot"):
        raise InputError(f'dry_run={dry_run!r} must be True, False or "pilot"')
    selection = Selection(app, **arguments)
    return selection.plan(pilot=dry_run == "pilot") if dry_run else selection.run()
