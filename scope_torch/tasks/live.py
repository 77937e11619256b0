"""Compound systems on real data: live, or recorded in a table."""

from __future__ import annotations

import inspect
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo, choose_llms, load_llms
from scope_torch.llm.store import ResponseStore
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.systems.din_sql import din_sql
from scope_torch.systems.graph import CompoundSystem
from scope_torch.systems.unidm import data_imputation, data_transformation, entity_resolution
from scope_torch.tasks import HeldOut, Task
from scope_torch.tasks.airport_city import airport_city
from scope_torch.tasks.amazon_google import amazon_google
from scope_torch.tasks.bird import bird
from scope_torch.tasks.dataset import Dataset
from scope_torch.tasks.febrl import febrl
from scope_torch.tasks.restaurant import restaurant
from scope_torch.tasks.table import table_task
from scope_torch.tasks.tde import tde

logger = logging.getLogger(__name__)


class _Pairing(NamedTuple):
    load: Callable[..., Dataset]
    system: Callable[..., CompoundSystem]


DATASETS = {
    "airport_city": _Pairing(airport_city, data_imputation),
    "restaurant": _Pairing(restaurant, data_imputation),
    "tde": _Pairing(tde, data_transformation),
    "amazon_google": _Pairing(amazon_google, entity_resolution),
    "febrl": _Pairing(febrl, entity_resolution),
    "bird": _Pairing(bird, din_sql),
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
    before_paying: Callable[[SelectionProblem], object] | None = None,
) -> Task:
    """A compound system on a data set.

    Args:
        name: Shown in paths, logs and plots.
        dataset: One of `DATASETS`.
        reference: theta_0: one LLM for each module, or one for all.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        evaluator: `live` calls LLMs; `recorded` reads `table`.
        llm: How LLMs are called: `base_url`, `store` (an SQLite file for the replies) and the
            settings of `RetryingClient`.
        llms: Candidates of every module; None for all that have a price.
        price_file: See `load_llms`; a file of the package may be given by its name.
        table: Recorded runs, made by scripts/record_table.py; a file of the package may be given
            by its name.
        num_queries: Use only so many queries of the search, the first ones; None for all.
        reference_quality: s(theta_0), if known; else theta_0 is run on every query first. That is
            paid too, but not from the search budget.
        reference_cost_usd: c(theta_0) in USD, likewise.
        data: Arguments of the data set's loader.
        system: Arguments of the system.
        before_paying: Called before the reference is run, with a problem that lacks only its
            quality and cost, to find out what else is wrong.

    Raises:
        InputError: If something is unknown or cannot be had; before any call if possible.
    """
    _check_choices(dataset, evaluator, num_queries)
    if (reference_quality is None) != (reference_cost_usd is None):
        raise InputError(
            f"reference_quality={reference_quality}, reference_cost_usd={reference_cost_usd}: give "
            "both, or neither to have them measured"
        )
    pairing = DATASETS[dataset]
    made = _called(pairing.system, system, f"the system of {dataset}")
    modules = tuple(module.name for module in made.modules)
    reference = [*reference] * len(modules) if len(reference) == 1 else list(reference)
    if evaluator == "recorded":
        return _recorded(name, table, modules, reference, epsilon, num_queries, llms)
    loaded = _called(pairing.load, data, f"the loader of {dataset}")
    prices = load_llms(price_file)
    names = tuple(chosen.name for chosen in choose_llms(prices, llms))
    candidates = (names,) * len(modules)
    theta_ref = codes_of(reference, modules, candidates, "reference")
    settings = {"concurrency": 8, **(llm or {})}
    client = _client(settings, {llm_name: prices[llm_name] for llm_name in names})

    def evaluate_on(queries: Sequence[Any]) -> LiveEvaluator:
        graded = (queries, loaded.metric)
        concurrency = settings["concurrency"]
        return LiveEvaluator(modules, candidates, made, *graded, prices, client, concurrency)

    live = evaluate_on(loaded.queries[:num_queries])
    problem = SelectionProblem(  # checks all else before the reference is paid for
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
            before_paying(problem)
        problem = _with_measured_reference(problem, live)
    held_out = HeldOut(evaluate_on(loaded.held_out), len(loaded.held_out))
    return Task(problem, live, lambda: held_out)


def _check_choices(dataset: str, evaluator: str, num_queries: int | None) -> None:
    if dataset not in DATASETS:
        raise InputError(f"no data set {dataset!r}; there are {list(DATASETS)}")
    if evaluator not in ("live", "recorded"):
        raise InputError(f"evaluator={evaluator!r} must be live or recorded")
    if num_queries is not None and num_queries < 1:
        raise InputError(f"num_queries={num_queries}: need at least one query")


def _called(function: Callable[..., Any], arguments: Mapping[str, Any] | None, what: str) -> Any:
    known = list(inspect.signature(function).parameters)
    for argument in arguments or {}:
        if argument not in known:
            raise InputError(f"{what} takes no {argument!r}, but {known}")
    return function(**(arguments or {}))


def _recorded(
    name: str,
    table: str | None,
    modules: Sequence[str],
    reference: Sequence[str],
    epsilon: float,
    num_queries: int | None,
    llms: Sequence[str] | None,
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
            raise InputError(f"llm.{setting} is not a setting of the client")
    client = OpenAIClient(prices, **settings)
    client.check(list(prices))
    return ResponseStore(store, client)


def _with_measured_reference(problem: SelectionProblem, live: LiveEvaluator) -> SelectionProblem:
    """Takes c(theta_0) and s(theta_0) from one run on every query."""
    requests = [Request(problem.theta_ref, query) for query in range(problem.num_queries)]
    observations = list(live.evaluate(requests))
    if not any(tokens for o in observations for used in o.module_tokens or () for tokens in used):
        raise InputError(
            "no call of the reference was answered; see whether llm.base_url is a server that works"
        )
    if live.num_failed:  # they count as wrong answers, and would lower the threshold
        raise InputError(
            f"{live.num_failed} calls of the reference gave no reply; the same command asks for "
            "these again, or give task.reference_quality and task.reference_cost_usd"
        )
    cost_usd = statistics.fmean(o.cost_usd for o in observations)
    quality = statistics.fmean(o.quality for o in observations)
    logger.warning(
        "the reference costs %.3g USD a query, quality %.3f, measured on %d queries; beyond the "
        "search budget, unless its replies were stored",
        cost_usd,
        quality,
        len(observations),
    )
    return replace(problem, reference_cost_usd=cost_usd, reference_quality=quality)
