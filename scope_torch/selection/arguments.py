"""The arguments of `select` and of `Selection`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_torch.allowed import Listed, Predicate
from scope_torch.constraints import Constraint
from scope_torch.evaluators.application import App, Metric
from scope_torch.evaluators.elsewhere import Made
from scope_torch.evaluators.function import OnError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.problem import Objective, SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.calibrate import Base
from scope_torch.search.optimizer import Optimizer

if TYPE_CHECKING:
    from scope_torch.serve.endpoint import Endpoint

Models = Sequence[str] | Mapping[str, Sequence[str] | Mapping[str, Sequence[Any]]]
Reference = str | Sequence[str] | Mapping[str, str]
Prices = PriceList | Mapping[str, LLMInfo] | Path | str | None


@dataclass(frozen=True, eq=False)
class Arguments:
    """What is to be selected.

    Args:
        app: `app(models, input)`, where `models` maps modules to LLMs; may be `async def`. Returns
            (output, USD), or (output, {module: (prompt tokens, completion tokens)}), where the
            usage of a reply may take the place of the pair; or a dict, see `Application`. With
            `endpoint`: `app(input)`, which returns the output alone, or a command such as
            "python app.py {input}", see `Command`.
        models: The candidates: names of LLMs by module, or one list for all modules. A module that
            also chooses an effort, a prompt or the like has a dict of factors, such as
            `{"llm": [...], "effort": ["low", "high"]}`, or a list of `LLM`.
        dataset: Pairs (input, expected); without `metric` the inputs. Or a frame of pandas or
            polars with the columns `input` and `expected`. Every call gets a copy of what is data
            in its input; objects of other kinds are shared.
        reference: The LLM of each module, or one name for all modules; or what `load_reference`
            reads: its answers are known from a log, and no call measures them.
        budget_usd: Everything together may cost this much, and the call that crosses it.
        time_limit: When no further call starts, such as "2h", "90min" or a number of seconds; the
            calls in flight are waited for. What is certified by then is the result, and held-out
            queries that were not answered are left out. It counts from this call on: with
            `run_dir`, the same call goes on for as long again. None: no limit.
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
            price, or in the preflight if the prices are not known.
        holdout: Share of the queries on which choice and reference are compared at the end, and
            which the search does not see.
        deployment_queries: How many queries the system will answer. The search stops when it no
            longer pays. None: as many as the reference would answer for 100 times the USD that are
            left for the search.
        hour_usd: What an hour of waiting is worth, in USD: the search then counts it for each call,
            the mean seconds of the reference's runs over `in_flight`, when it asks whether it still
            pays. None: nothing.
        concurrency: Runs of the app at a time.
        executor: Where app and metric run: a `concurrent.futures.Executor`, such as that of a Dask
            cluster, or a function that makes one, which then takes the place of one that broke.
            What they need is sent there; `concurrency` says how many calls. None: in threads here.
            See docs/howto/more-than-one-machine.md.
        in_flight: For how many runs at a time the search is made, see `InFlight`: it decides what
            is asked. None: as a run that is resumed, else `concurrency`.
        batch_size: In the place of `in_flight`: candidates one after another, each with so many
            queries at a time.
        repeat: Whether to run the app again for a pair that was answered, because answers vary.
        repeats: How many of its queries the reference answers twice, which shows how much answers
            vary; None: up to 30, and none if a log knows the reference.
        reference_queries: How many queries, drawn at random, the reference answers before the
            search. With `max_quality_loss` the search then asks for as much quality as is certainly
            enough, which may make choice and search dearer. None: all, where anything is relative
            to the reference, or with an `optimizer`; else, as with `min_quality`, 10.
        on_error: What to do if the app or the metric raises, see `FunctionEvaluator`.
        optimizer: Makes another search for the problem, such as
            `lambda problem: make_scope(problem, base="small")`.
        run_dir: Directory of the journal; None writes no files.
        continue_from: Directories of older runs of this application, whose answers are known;
            models, queries, prices and thresholds may differ. See docs/howto/continue.md.
        name: Of the application, in the journal and in plots; change it when you change the app.
        seed: Decides all that is random.
        progress: Whether to show the spend, the choice and the time left; None: on a terminal.
        callbacks: Trackers, see `run`.
    """

    app: App | str | Sequence[str]
    _: KW_ONLY
    models: Models
    dataset: Sequence[Any]
    reference: Reference
    budget_usd: float
    time_limit: str | float | None = None
    metric: Metric | None = None
    judge: str | None = None
    metric_version: str | None = None
    max_quality_loss: float | None = None
    min_quality: float | None = None
    constraints: Sequence[Constraint | str] = ()
    objective: Objective = "cost"
    allowed: Predicate | Listed | None = None
    prices: Prices = None
    endpoint: Endpoint | str | None = None
    optional_modules: Sequence[str] = ()
    base: Base = None
    holdout: float = 0.0
    deployment_queries: float | None = None
    hour_usd: float | None = None
    concurrency: int = 1
    executor: Made | None = None
    in_flight: int | None = None
    batch_size: int | None = None
    repeat: bool = False
    repeats: int | None = None
    reference_queries: int | None = None
    on_error: OnError = "raise"
    optimizer: Callable[[SelectionProblem], Optimizer] | None = None
    run_dir: Path | str | None = None
    continue_from: Path | str | Sequence[Path | str] = ()
    name: str | None = None
    seed: int = 0
    progress: bool | None = None
    callbacks: Sequence[Callback] = ()
