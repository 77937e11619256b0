"""Tasks on real data: a compound system that calls LLMs, or its recorded table."""

from __future__ import annotations

import inspect
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.factors import LLM
from scope_torch.llm.choices import llm_of
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo, load_llms
from scope_torch.llm.store import ResponseStore
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.systems.din_sql import din_sql
from scope_torch.systems.graph import CompoundSystem
from scope_torch.systems.unidm import data_imputation, data_transformation, entity_resolution
from scope_torch.tasks import HeldOutQueries, Task
from scope_torch.tasks.airport_city import airport_city
from scope_torch.tasks.amazon_google import amazon_google
from scope_torch.tasks.bird import bird
from scope_torch.tasks.dataset import Dataset
from scope_torch.tasks.febrl import febrl
from scope_torch.tasks.restaurant import restaurant
from scope_torch.tasks.table import table_task
from scope_torch.tasks.tde import tde

logger = logging.getLogger(__name__)


class _DatasetAndSystem(NamedTuple):
    load: Callable[..., Dataset]
    make_system: Callable[..., CompoundSystem]


DATASETS = {
    "airport_city": _DatasetAndSystem(airport_city, data_imputation),
    "restaurant": _DatasetAndSystem(restaurant, data_imputation),
    "tde": _DatasetAndSystem(tde, data_transformation),
    "amazon_google": _DatasetAndSystem(amazon_google, entity_resolution),
    "febrl": _DatasetAndSystem(febrl, entity_resolution),
    "bird": _DatasetAndSystem(bird, din_sql),
}


def compound_task(
    *,
    name: str,
    dataset: str,
    reference: Sequence[str],
    epsilon: float,
    evaluator: str = "live",
    llm: Mapping[str, Any] | None = None,
    llms: Sequence[str] | None = None,
    price_file: str | None = None,
    table: str | None = None,
    num_queries: int | None = None,
    reference_quality: float | None = None,
    reference_cost_usd: float | None = None,
    data: Mapping[str, Any] | None = None,
    system: Mapping[str, Any] | None = None,
    outcomes: bool = False,
    outcome_columns: Sequence[str] = (),
    before_paying: Callable[[SelectionProblem], object] | None = None,
) -> Task:
    """A compound system on a data set.

    Args:
        name: Name of the task, shown in paths, logs and plots.
        dataset: One of `DATASETS`.
        reference: theta_0: one LLM for each module, or one LLM for all modules.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        evaluator: `live` calls LLMs; `recorded` reads `table`.
        llm: Settings of the calls: `base_url`, `store` (an SQLite file for the replies), and the
            settings of `RetryingClient`.
        llms: Candidates of every module, also with factors ("mini effort=low"); None for all LLMs
            that have a price.
        price_file: TOML file of the prices, or the name of such a file in the package; see
            `load_llms`.
        table: Recorded table, made by scripts/record_table.py, or the name of such a file in the
            package.
        num_queries: Use only the first queries of the search, this many; None for all.
        reference_quality: s(theta_0). If None, theta_0 is first run on every query. These runs cost
            money, which is not part of the search budget.
        reference_cost_usd: c(theta_0) in USD; None if and only if `reference_quality` is None.
        data: Arguments of the data set's loader.
        system: Arguments of the function that makes the system.
        outcomes: Whether live observations carry seconds and tokens; see `LiveEvaluator`.
        outcome_columns: Columns of `table` with other numbers; see `table_task`.
        before_paying: Called before the reference is run, to find other errors first. Its argument
            is the problem with 1 in place of the reference's quality and cost.

    Raises:
        InputError: If a value or a file cannot be used; before any call is paid for, if possible.

    Examples:
        >>> task = compound_task(
        ...     name="airports", dataset="airport_city", reference=["Qwen2.5-Coder-1.5B few-shot"],
        ...     epsilon=0.05, evaluator="recorded", table="airport_city_runs.csv.gz",
        ... )
        >>> task.problem.modules, task.problem.num_queries
        (('parse', 'cloze', 'answer'), 98)
    """
    _check_choices(dataset, evaluator, num_queries, reference_quality, reference_cost_usd)
    load, make_system = DATASETS[dataset]
    graph = _call(make_system, system, f"the system of {dataset}")
    modules = tuple(module.name for module in graph.modules)
    reference = [*reference] * len(modules) if len(reference) == 1 else list(reference)
    if evaluator == "recorded":
        what = name, table, modules, reference, epsilon, num_queries, llms
        return _recorded(*what, outcome_columns=outcome_columns)
    loaded = _call(load, data, f"the loader of {dataset}")
    prices = load_llms(price_file)
    names = tuple(llm_of(prices, name).name for name in (prices if llms is None else llms))
    plain = [name if name in prices else LLM.parse(name).llm for name in names]
    candidates = (names,) * len(modules)
    theta_ref = codes_of(reference, modules, candidates, "reference")
    settings = {"concurrency": 8, **(llm or {})}
    evaluator_on = partial(
        LiveEvaluator,
        modules,
        candidates,
        graph,
        metric=loaded.metric,
        prices=prices,
        client=_client(settings, {llm_name: prices[llm_name] for llm_name in plain}),
        concurrency=settings["concurrency"],
        outcomes=outcomes,
    )
    live = evaluator_on(loaded.queries[:num_queries])
    problem = SelectionProblem(  # finds other errors before the reference is paid for
        name=name,
        modules=modules,
        llms=candidates,
        num_queries=len(live.queries),
        theta_ref=theta_ref,
        reference_quality=1.0 if reference_quality is None else reference_quality,
        reference_cost_usd=1.0 if reference_cost_usd is None else reference_cost_usd,
        epsilon=epsilon,
    )
    if reference_quality is None:
        if before_paying is not None:
            answers = ((1.0, 1.0),) * problem.num_queries  # a method may need to have some
            before_paying(replace(problem, reference_answers=answers))
        problem = _with_measured_reference(problem, live)
    held_out = HeldOutQueries(evaluator_on(loaded.held_out), len(loaded.held_out))
    return Task(problem, live, lambda: held_out)


def _check_choices(
    dataset: str,
    evaluator: str,
    num_queries: int | None,
    reference_quality: float | None,
    reference_cost_usd: float | None,
) -> None:
    if dataset not in DATASETS:
        raise InputError(f"no data set {dataset!r}; there are {list(DATASETS)}")
    if evaluator not in ("live", "recorded"):
        raise InputError(f"evaluator={evaluator!r} must be live or recorded")
    if num_queries is not None and num_queries < 1:
        raise InputError(f"num_queries={num_queries}: need at least one query")
    if (reference_quality is None) != (reference_cost_usd is None):
        raise InputError(
            f"reference_quality={reference_quality}, reference_cost_usd={reference_cost_usd}: give "
            "both, or neither to have them measured"
        )


def _call(function: Callable[..., Any], arguments: Mapping[str, Any] | None, name: str) -> Any:
    """Calls a function; refuses arguments that it does not take, under the name `name`."""
    known = inspect.signature(function).parameters
    for argument, value in (arguments or {}).items():
        if argument not in known:
            raise InputError(f"{name} takes no {argument!r}, but {list(known)}")
        if isinstance(known[argument].default, bool) and value not in (True, False):
            raise InputError(f"{name}: {argument}={value!r} must be true or false")  # "no" is true
    return function(**(arguments or {}))


def _recorded(
    name: str,
    table: str | None,
    modules: Sequence[str],
    reference: Sequence[str],
    epsilon: float,
    num_queries: int | None,
    llms: Sequence[str] | None,
    outcome_columns: Sequence[str],
) -> Task:
    if not table:
        raise InputError(f"no recorded runs of {name}: give task.table, or evaluator=live")
    task = table_task(
        name=name,
        path=table,
        module_columns=modules,
        reference=reference,
        epsilon=epsilon,
        num_queries=num_queries,
        outcome_columns=outcome_columns,
    )
    recorded = sorted(set().union(*task.problem.llms))
    if llms is not None and sorted(llms) != recorded:
        raise InputError(
            f"task.llms={list(llms)}: {table} has runs of {recorded}; say task.llms=null"
        )
    return task


def _client(settings: Mapping[str, Any], prices: Mapping[str, LLMInfo]) -> ResponseStore:
    settings = dict(settings)
    store = settings.pop("store", None) or "responses.sqlite"
    if not settings.get("base_url"):
        raise InputError("a live task needs llm.base_url, such as http://127.0.0.1:18130/v1")
    known = OpenAIClient.__dataclass_fields__
    for setting in settings:
        if setting not in known:
            raise InputError(
                f"llm.{setting} is not a setting of the client; choose from {list(known)}"
            )
    client = OpenAIClient(prices, **settings)
    client.check(list(prices))
    return ResponseStore(store, client)


def _with_measured_reference(problem: SelectionProblem, live: LiveEvaluator) -> SelectionProblem:
    """Measures c(theta_0) and s(theta_0) by one run on every query."""
    requests = [Request(problem.theta_ref, query) for query in range(problem.num_queries)]
    observations = list(live.evaluate(requests))
    if not any(tokens for o in observations for used in o.module_tokens or () for tokens in used):
        raise InputError(
            "no call of the reference was answered; see whether llm.base_url is a server that works"
        )
    if live.num_failed:  # failed calls count as wrong answers and would lower the threshold
        raise InputError(
            f"{live.num_failed} calls of the reference gave no reply; the same command asks for "
            "these again, or give task.reference_quality and task.reference_cost_usd"
        )
    cost_usd = statistics.fmean(o.cost_usd for o in observations)
    quality = statistics.fmean(o.quality for o in observations)
    logger.warning(
        "the reference costs %.3g USD a query, quality %.3f, measured on %d queries; this is not "
        "part of the search budget, and free where its replies were stored",
        cost_usd,
        quality,
        len(observations),
    )
    answers = {o.query: (o.cost_usd, o.quality) for o in observations}
    return replace(
        problem,
        reference_cost_usd=cost_usd,
        reference_quality=quality,
        reference_answers=tuple(answers[query] for query in range(problem.num_queries)),
    )
