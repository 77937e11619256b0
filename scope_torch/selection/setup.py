"""What a selection starts from: candidates, reference, queries, prices; all checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_torch.constraints import QUALITY, Constraint, at_least
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Item, items_of
from scope_torch.evaluators.command import without_keys
from scope_torch.factors import LLM_FACTOR, choices
from scope_torch.files import inside
from scope_torch.llm.choices import check_factors
from scope_torch.llm.price_list import PriceList
from scope_torch.problem import SelectionProblem, by_module
from scope_torch.runs.deadline import Deadline
from scope_torch.runs.directory import read_settings
from scope_torch.runs.earlier import refuse_itself
from scope_torch.runs.opening import DATED, day_of_prices
from scope_torch.search.calibrate import Base, codes_of_base
from scope_torch.selection.arguments import Arguments, Models, Prices, Reference
from scope_torch.selection.checks import (
    check_kinds,
    check_optimizer,
    checked_number,
    checked_size,
    checked_whole,
    in_order,
    refuse_free_reference,
)
from scope_torch.selection.sampling import sample_of, split
from scope_torch.space import check_seed
from scope_torch.traces.reference import LoggedReference
from scope_torch.tracking.heard import HEARD

ONLY_MODULE = "model"
MOST_REPEATS = 30  # queries that theta_0 answers twice, if nobody says how many
_MIX = 4.0, 1.0  # of prompt and completion tokens, for the question which LLM is the cheapest


def candidates_of(models: Models, reference: Reference) -> dict[str, tuple[str, ...]]:
    """The candidates of each module.

    Args:
        models: Candidates by module, or one list for all modules that `reference` names; if it
            names none, there is one module, `model`. Lists, or dicts of factors, see `product`.
        reference: theta_0.

    Raises:
        InputError: If there are no candidates.

    Examples:
        >>> candidates_of(["nano", "pro"], {"plan": "pro", "solve": "pro"})
        {'plan': ('nano', 'pro'), 'solve': ('nano', 'pro')}
        >>> candidates_of(["nano", "pro"], "pro")
        {'model': ('nano', 'pro')}
    """
    if not models or not isinstance(models, Mapping | Sequence | Set) or isinstance(models, str):
        raise InputError(f"models={models!r} must be a list of LLMs, or such a list by module")
    if isinstance(models, Mapping):
        return {module: _names(f"models[{module!r}]", llms) for module, llms in models.items()}
    modules = list(reference) if isinstance(reference, Mapping) else [ONLY_MODULE]
    return dict.fromkeys(modules, _names("models", models))


def _names(key: str, llms: Any) -> tuple[str, ...]:
    llms = choices(llms)
    is_list = isinstance(llms, Sequence | Set) and not isinstance(llms, str)
    if not (is_list and llms and all(isinstance(llm, str) for llm in llms)):
        raise InputError(f"{key}={llms!r} must be a list with the names of LLMs")
    return tuple(in_order(llms))


def reference_of(reference: Reference, llms: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """theta_0 by module; one name stands for all modules.

    Raises:
        InputError: If a module has no LLM, or one that is not among its candidates.
    """
    modules = list(llms)
    if not llms:
        raise InputError(f"reference={reference!r} names no module; give an LLM for each")
    if isinstance(reference, str):
        names = [reference] * len(modules)
    elif isinstance(reference, Mapping):
        names = by_module(reference, modules, "reference")
    else:
        names = list(reference) if isinstance(reference, Sequence) else [reference]
    if len(names) != len(modules):
        raise InputError(f"reference={names} must name one LLM for each of {modules}")
    for module, name in zip(modules, names, strict=True):
        if name not in llms[module]:
            factors = (
                f"; factors need a module, models={{'answer': {{{LLM_FACTOR!r}: [...], ...}}}}"
            )
            raise InputError(
                f"the reference runs {module!r} with {name!r}, which is not among its models "
                f"{list(llms[module])}; add it there{factors * (LLM_FACTOR in llms)}"
            )
    return dict(zip(modules, names, strict=True))


@dataclass(frozen=True)
class Setup:
    """What a selection starts from; made by `set_up`, which checks it.

    Args:
        given: The arguments, as they are.
        problem: With placeholders for the averages of theta_0.
        searched: The queries of the search.
        held_out: Those that are kept for the end.
        prices: The price list.
        is_priced: Whether the costs come from it, so all LLMs have a price.
        base: Where the search starts; None if the preflight has to tell, or if nothing needs one.
        budget_usd: For everything.
        deadline: For everything; it begins with `Selection.run`.
        folder: Directory of the files; None writes none.
        seed: Decides which queries are held out, or answered twice.
        repeats: How many queries theta_0 answers twice.
        concurrency: Runs of the application at a time.
        at_a_time: How much the search asks for at a time, as an argument of its maker.
        earlier: Directories of older runs.
        logged: theta_0 on every query, if a log knows it; then no call measures it.
        sample: The queries that theta_0 answers before the search, as they were drawn; None: all.
    """

    given: Arguments
    problem: SelectionProblem
    searched: Sequence[Item]
    held_out: Sequence[Item]
    prices: PriceList
    is_priced: bool
    base: Base
    budget_usd: float
    deadline: Deadline
    folder: Path | None
    seed: int
    repeats: int
    concurrency: int
    at_a_time: Mapping[str, int]
    earlier: Sequence[Path]
    logged: LoggedReference | None
    sample: Sequence[int] | None

    def began_before(self, part: str) -> bool:
        """Whether the search began in these files when selections did not have this part yet."""
        if self.folder is None or (self.folder / part).exists():
            return False
        return (self.folder / "settings.json").exists()

    @property
    def shows(self) -> bool:
        """Whether to show progress; by default on a terminal."""
        given = self.given.progress
        return HEARD.isatty() if given is None else given

    def inside(self, name: str) -> Path | None:
        """A directory in that of the files."""
        return None if self.folder is None else inside(self.folder, *name.split("/"))


def set_up(given: Arguments) -> Setup:
    """Checks the settings of a selection, alone and together.

    Raises:
        InputError: If one cannot be used.
    """
    check_kinds(given)
    needs_base = given.optimizer is None
    earlier = given.continue_from or ()
    earlier = [earlier] if isinstance(earlier, Path | str) else list(in_order(earlier))
    earlier = [Path(path).absolute() for path in earlier]  # the app may enter another folder
    if not needs_base:
        _check_defaults(given)
    hour_usd = _optional_number("hour_usd", given.hour_usd)
    if hour_usd is not None and hour_usd < 0:
        raise InputError(f"hour_usd={hour_usd} must be a number of USD, at least 0")
    if hour_usd and given.objective == "quality":
        raise InputError(
            f"hour_usd={hour_usd}: nobody knows what a better quality is worth; leave it out, and "
            "give a time_limit"
        )
    budget_usd = checked_number("budget_usd", given.budget_usd)
    if budget_usd <= 0:
        raise InputError(f"budget_usd={budget_usd} must be a positive number of USD")
    seed = check_seed(checked_whole("seed", given.seed))
    concurrency = checked_size("concurrency", given.concurrency)
    if (repeats := given.repeats) is not None:
        repeats = checked_size("repeats", repeats, 0)
    dataset, reference = in_order(given.dataset), given.reference
    items = items_of(dataset, given.metric is not None)
    logged = reference.checked(len(items)) if isinstance(reference, LoggedReference) else None
    llms = candidates_of(given.models, reference)
    if unknown := set(given.optional_modules) - set(llms):
        raise InputError(
            f"optional_modules has {sorted(unknown)}; it must be a list of modules of {list(llms)}"
        )
    searched, held_out = split(items, checked_number("holdout", given.holdout), seed)
    problem = _unmeasured(given, llms, len(searched), reference_of(reference, llms))
    folder = None if given.run_dir is None else Path(given.run_dir).absolute()
    refuse_itself(earlier, folder)
    sample = None if logged is not None else sample_of(given, problem, folder, seed)
    if given.optimizer is not None:
        check_optimizer(given.optimizer, problem, sample is None)
    prices = _price_list(given.prices, given.endpoint, folder)
    is_priced = given.prices is not None or given.endpoint is not None
    every = [llm for names in llms.values() for llm in names]
    if is_priced:
        prices.check(every)
        if logged is None:
            refuse_free_reference(prices, problem)
    if given.endpoint is not None:
        for llm in every:
            check_factors(llm, prices.listed(llm))
    base = given.base
    if needs_base and base is None and is_priced and not any(map(prices.is_timed, every)):
        base = cheapest_by_price(llms, prices.usd_per_mtok)
    if needs_base and base is not None:
        codes_of_base(problem, base, "base")  # refuses an unknown LLM before anything is paid for
    most = 0 if logged is not None else MOST_REPEATS
    asked = searched if sample is None else sample
    number = min(len(asked), most if repeats is None else repeats)
    parts = problem, searched, held_out, prices, is_priced, base
    at_a_time = _at_a_time(given, concurrency, folder)
    deadline = Deadline(given.time_limit)
    how = budget_usd, deadline, folder, seed, number, concurrency, at_a_time
    return Setup(given, *parts, *how, earlier, logged, sample)


def _at_a_time(given: Arguments, concurrency: int, folder: Path | None) -> dict[str, int]:
    """`in_flight` or `batch_size` of the search."""
    told = {"in_flight": given.in_flight, "batch_size": given.batch_size}
    told = {name: checked_size(name, size) for name, size in told.items() if size is not None}
    if len(told) == 2:
        raise InputError(f"in_flight={given.in_flight} and batch_size={given.batch_size}: give one")
    if told:
        return told
    settings = None if folder is None else folder / "settings.json"
    if settings is not None and settings.exists():
        before = read_settings(settings)["optimizer"]
        for name in ("in_flight", "batch_size"):
            if isinstance(before.get(name), int):
                return {name: before[name]}
    return {"in_flight": concurrency}


def _check_defaults(given: Arguments) -> None:
    """Refuses settings of the default search beside an optimizer of the user."""
    names = "base", "in_flight", "batch_size", "hour_usd"
    told = [
        f"{name}={getattr(given, name)!r}" for name in names if getattr(given, name) is not None
    ]
    if told:
        raise InputError(
            f"{', '.join(told)}: that is for the default search; give it to your optimizer"
        )
    if given.continue_from:
        raise InputError(
            f"continue_from={given.continue_from} is for the default search; give make_scope or "
            "make_scope_joint known=known_from(...), see scope_torch.runs.earlier; others use no "
            "observations of earlier runs"
        )


def _optional_number(name: str, value: Any) -> float | None:
    return None if value is None else checked_number(name, value)


def _name_of(app: Any) -> str:
    name = getattr(app, "__name__", None) or "app"
    if isinstance(app, str):
        name = " ".join(without_keys(app.split()))
    return re.sub(r"\W+", "_", name).strip("_") or "app"


def constraints_of(told: Iterable[Constraint | str]) -> list[Constraint]:
    """Those that are texts, parsed."""
    return [Constraint.parse(one) if isinstance(one, str) else one for one in in_order(told)]


def _limits_of(given: Arguments, epsilon: float | None) -> list[Constraint]:
    """The constraints with the least quality, if it is given instead of a loss."""
    least = _optional_number("min_quality", given.min_quality)
    if least is not None and not 0 <= least <= 1:
        raise InputError(f"min_quality={least} must be an average quality, in [0, 1]")
    bounds = {"max_quality_loss": epsilon, "min_quality": least}
    told = [f"{name}={value}" for name, value in bounds.items() if value is not None]
    if told and given.objective == "quality":
        raise InputError(
            f"objective='quality' maximises the quality: leave out {' and '.join(told)}, and bound "
            "the cost of a query instead, as constraints=['cost_usd <= 0.01 cap 0.1']"
        )
    limits = constraints_of(given.constraints)
    if len(told) > 1:
        raise InputError(f"give {' or '.join(told)}, not both")
    if least is not None:
        limits.insert(0, at_least(QUALITY, least))
    if epsilon is None and given.objective == "cost" and all(one.name != QUALITY for one in limits):
        raise InputError(
            "say how good is good enough: max_quality_loss=0.05 (relative to the reference), or "
            "min_quality=0.9"
        )
    return limits


def _price_list(prices: Prices, endpoint: Any, folder: Path | None) -> PriceList:
    """The price list of a run; a run that is resumed keeps its prices."""
    if endpoint is not None and not isinstance(endpoint, str):
        if prices is not None:
            raise InputError("prices= and an Endpoint, which has prices too; give them to Endpoint")
        if getattr(endpoint, "chain", None) is not None:
            raise InputError(
                "endpoint= is an Endpoint with chosen=, whose LLMs answer each request that names "
                "no query, in the place of the candidates; make another Endpoint for the search"
            )
        found: PriceList = endpoint.prices
    else:
        if isinstance(prices, str | Path) and not Path(prices).is_file():
            raise InputError(f"prices={str(prices)!r} must be a file, and there is none")
        found = prices if isinstance(prices, PriceList) else PriceList(prices)
        found = found if endpoint is None else found.asked_at(endpoint)
    if folder is not None:
        found = found.of_day(day_of_prices(folder))
        for path in (folder / part / "settings.json" for part in DATED):
            if path.exists():
                found = found.resumed(read_settings(path)["problem"])
    return found


def _unmeasured(
    given: Arguments,
    llms: Mapping[str, Sequence[str]],
    num_queries: int,
    reference: Mapping[str, str],
) -> SelectionProblem:
    """The problem before theta_0 is measured: its averages are placeholders, see `_with_reference`.

    Raises:
        InputError: If a setting cannot be used.
    """
    epsilon = _optional_number("max_quality_loss", given.max_quality_loss)
    if epsilon is not None and not 0 < epsilon < 1:
        raise InputError(
            f"max_quality_loss={epsilon} must be a share of the reference's quality, above 0 and "
            "below 1, such as 0.05"
        )
    limits = _limits_of(given, epsilon)
    # A bound relative to a placeholder must lie in the range of the outcome, also when rounded.
    placeholders = {
        limit.outcome: math.nextafter(limit.high / limit.value, -math.inf)
        for limit in limits
        if limit.is_relative
    }
    placeholders.pop("quality", None)
    codes: Any = tuple(reference.values())  # the problem makes codes of names
    try:
        return SelectionProblem(
            name=given.name or _name_of(given.app),
            modules=tuple(llms),
            llms=tuple(map(tuple, llms.values())),
            num_queries=num_queries,
            theta_ref=codes,
            reference_quality=1.0,
            reference_cost_usd=placeholders.pop("cost_usd", 1.0),
            reference_outcomes=placeholders,
            constraints=tuple(limits),
            epsilon=epsilon,
            objective=given.objective,
            allowed=given.allowed,
            deployment_queries=_optional_number("deployment_queries", given.deployment_queries),
        )
    except InputError as error:  # of the parts, where the loss has the paper's name
        raise InputError(str(error).replace("epsilon", "max_quality_loss")) from None


def cheapest_by_price(
    llms: Mapping[str, Sequence[str]], usd_per_mtok: Callable[[str], tuple[float, float]]
) -> dict[str, str]:
    """The cheapest candidate of each module, at four prompt tokens for each completion token."""

    def price(llm: str) -> float:
        return sum(share * usd for share, usd in zip(_MIX, usd_per_mtok(llm), strict=True))

    return {module: min(names, key=price) for module, names in llms.items()}
