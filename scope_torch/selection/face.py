"""`select`: from an application and a data set to the LLM of each module, in one call.

A thin face: it measures the reference, makes the problem, the evaluator and the search from objects
that one can use directly too, runs them, and returns the usual `RunResult`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from scope_torch.allowed import Listed, Rule
from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.errors import InputError
from scope_torch.evaluators.application import App, Application, Metric, items_of
from scope_torch.evaluators.function import FunctionEvaluator, OnError
from scope_torch.evaluators.outputs import FILE
from scope_torch.methods import make_scope_joint
from scope_torch.problem import Objective, SelectionProblem
from scope_torch.results.result import RunResult
from scope_torch.runs.callbacks import Callback
from scope_torch.search.calibrate import Base
from scope_torch.search.optimizer import Optimizer
from scope_torch.selection.before import known_of, plan_of
from scope_torch.selection.checks import check_callbacks, check_optimizer, checked_size
from scope_torch.selection.pilot import fly
from scope_torch.selection.setup import Models, Prices, Reference, set_up
from scope_torch.selection.steps import is_shown, search, served

if TYPE_CHECKING:
    from scope_torch.serve.endpoint import Endpoint


def select(
    app: App | str | Sequence[str],
    *,
    models: Models,
    dataset: Sequence[Any],
    reference: Reference,
    budget_usd: float,
    metric: Metric | None = None,
    judge: str | None = None,
    metric_version: str | None = None,
    max_quality_loss: float | None = None,
    min_quality: float | None = None,
    constraints: Sequence[Constraint | str] = (),
    objective: Objective = "cost",
    allowed: Rule | Listed | None = None,
    prices: Prices = None,
    endpoint: Endpoint | str | None = None,
    optional_modules: Sequence[str] = (),
    base: Base = None,
    holdout: float = 0.0,
    deployment_queries: float | None = None,
    concurrency: int = 1,
    batch_size: int | None = None,
    repeat: bool = False,
    repeats: int | None = None,
    on_error: OnError = "raise",
    optimizer: Callable[[SelectionProblem], Optimizer] | None = None,
    run_dir: Path | str | None = None,
    continue_from: Path | str | Sequence[Path | str] = (),
    name: str | None = None,
    seed: int = 0,
    dry_run: bool | Literal["pilot"] = False,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Chooses which LLM runs each module of an application.

    The reference, a configuration that you trust, answers every query once. Then a search looks for
    the cheapest configuration whose average quality is at most `max_quality_loss` lower, and
    certifies it. With `run_dir` every call is on disk before it is used: the same program goes on
    where it was stopped, pays for nothing twice, and gives the same result.

    Args:
        app: `app(models, input)`, where `models` maps modules to LLMs; may be `async def`. Returns
            (output, USD), or (output, {module: (prompt tokens, completion tokens)}), where the
            usage of a reply may take the place of the pair; or a dict, see `Application`. With
            `endpoint`: `app(input)`, which returns the output alone, or a command such as
            "python app.py {input}", see `Command`.
        models: The candidates: names of LLMs by module, or one list for all modules.
        dataset: Pairs (input, expected); without `metric` the inputs. Or a frame of pandas or
            polars with the columns `input` and `expected`.
        reference: The LLM of each module, or one name for all modules; or what `load_reference`
            reads: its answers are known from a log, and no call measures them.
        budget_usd: Everything together may cost this much, and the call that crosses it.
        metric: `metric(expected, output)` or `metric(expected, output, input)`, in [0, 1]; or
            returns (grade, USD), if grading costs money. May be `async def`. See
            `scope_torch.metrics`. None: the app returns its quality in the place of the output, or
            a dict with both.
        judge: The LLM that answers `scope/judge`, which a metric asks through the `endpoint`. What
            it costs is paid from the budget, and is no cost of any configuration.
        metric_version: Name of its version. A run is only resumed with the same metric, which is
            known by its code; give a version where the code does not tell, as with a judge that is
            a service, or an app that grades itself.
        max_quality_loss: Epsilon, relative to the reference, such as 0.05.
        min_quality: Instead of it: the least average quality, in [0, 1].
        constraints: On other outcomes, see `at_most`. `latency_s` is measured.
        objective: `cost`; or `quality`, with a constraint such as "cost_usd <= 0.01 cap 0.1".
        allowed: Which configurations may be chosen: a rule on {module: LLM}, such as
            `lambda llms: llms["plan"] != llms["judge"]`, or a list; None for all.
        prices: Of tokens: path of a price list, LLMs by name, or a `PriceList`. None: the published
            prices of today.
        endpoint: Address of your LLMs, such as "https://api.openai.com/v1", whose key is in the
            usual variable, or an `Endpoint`. The app asks it for the model `scope/MODULE`, and its
            usage is the cost. A run without a call is an error: then a cache of the app answers in
            the place of the candidates.
        optional_modules: Modules that a run may leave out. If another is left out though the
            reference's run of the query asked it, the result says how often.
        base: A cheap LLM, or one for each module, where the search starts. None: the cheapest by
            price, or by a probe on one query if the prices are not known.
        holdout: Share of the queries on which choice and reference are compared at the end, and
            which the search does not see.
        deployment_queries: How many queries the system will answer. The search stops when it no
            longer pays. None: as many as cost 100 budgets with the reference.
        concurrency: Runs of the app at a time.
        batch_size: Queries that the search asks for at a time; None for `concurrency`. It decides
            what is asked, so a run is resumed with the same one.
        repeat: Whether to run the app again for a pair that was answered, because answers vary.
        repeats: How many of its queries the reference answers twice, which shows how much answers
            vary; None: up to 30, and none if a log knows the reference.
        on_error: What to do if the app or the metric raises, see `FunctionEvaluator`.
        optimizer: Makes another search for the problem, such as
            `lambda problem: make_scope(problem, base="small")`.
        run_dir: Directory of the journal; None writes no files.
        continue_from: Directories of older runs of this application, whose answers are known;
            models, queries, prices and thresholds may differ. See docs/howto/continue.md.
        name: Of the application, in the journal and in plots; change it when you change the app.
        seed: Decides all that is random.
        dry_run: Make no call, and return the `Plan` in the place of a result (type checkers are
            told otherwise, so that programs need no case for it). "pilot": run the reference on
            three queries, so that the plan knows USD and minutes.
        progress: Whether to show the spend, the choice and the time left; None: on a terminal.
        callbacks: Trackers, see `run`.

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
        >>> result.llms
        {'answer': 'nano'}
    """
    if not (metric is None or callable(metric)):
        raise InputError(f"metric={metric!r} must be a function, such as metrics.exact_match")
    continue_from = continue_from or ()
    if dry_run not in (True, False, "pilot"):
        raise InputError(f'dry_run={dry_run!r} must be True, False or "pilot"')
    if optimizer is not None:
        _check_defaults(base, batch_size, continue_from)
    concurrency = checked_size("concurrency", concurrency)
    batch_size = checked_size("batch_size", concurrency if batch_size is None else batch_size)
    check_callbacks(callbacks)
    setup = set_up(
        app=app,
        name=name,
        models=models,
        reference=reference,
        items=items_of(dataset, metric is not None),
        holdout=holdout,
        seed=seed,
        prices=prices,
        endpoint=endpoint,
        optional_modules=optional_modules,
        base=base,
        needs_base=optimizer is None,
        budget_usd=budget_usd,
        run_dir=run_dir,
        constraints=constraints,
        min_quality=min_quality,
        epsilon=max_quality_loss,
        objective=objective,
        allowed=allowed,
        deployment_queries=deployment_queries,
        repeats=repeats,
        answers_vary=repeat,
    )
    if optimizer is None:
        optimizer = partial(make_scope_joint, seed=setup.seed, batch_size=batch_size)
    else:
        check_optimizer(optimizer, setup.problem)
    named = [limit.outcome for limit in setup.problem.constraints]
    outcomes = [name for name in named if name not in (COST, QUALITY)]
    with served(endpoint, setup.prices) as running:
        outputs = setup.inside(FILE)
        application = Application(app, metric, running, outcomes, outputs, judge, metric_version)
        make_evaluator = partial(
            FunctionEvaluator,
            system=application,
            concurrency=concurrency,
            name=name,
            prices=setup.prices,
            deterministic=not repeat,
            on_error=on_error,
        )
        earlier = [continue_from] if isinstance(continue_from, Path | str) else continue_from
        if dry_run:
            evaluator = make_evaluator(setup.problem, queries=setup.searched)
            known = known_of(setup, evaluator, earlier, keeps=False)
            pilot = fly(setup, evaluator) if dry_run == "pilot" else None
            return cast(RunResult, plan_of(setup, known, pilot))
        steps = application, make_evaluator, optimizer, is_shown(progress), callbacks
        return search(setup, *steps, earlier)


def _check_defaults(
    base: Base, batch_size: int | None, continue_from: Path | str | Sequence[Path | str]
) -> None:
    """Refuses settings of the default search beside an optimizer of the user."""
    if not (base is None and batch_size is None):
        raise InputError(
            f"base={base!r} and batch_size={batch_size} are those of the default search; give them "
            "to your optimizer"
        )
    if continue_from:
        raise InputError(
            f"continue_from={continue_from} is for the default search; give your optimizer "
            "known=known_from(...), see scope_torch.runs.earlier"
        )
