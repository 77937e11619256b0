"""What a selection starts from: candidates, reference, queries, prices; all checked."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from scope_torch.constraints import QUALITY, Constraint, at_least
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Item
from scope_torch.files import inside
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem, by_module
from scope_torch.runs.directory import read_settings
from scope_torch.search.calibrate import Base, codes_of_base
from scope_torch.selection.checks import checked_number, checked_size, checked_whole
from scope_torch.selection.plan import Pilot, Plan
from scope_torch.space import check_seed
from scope_torch.traces.reference import LoggedReference

T = TypeVar("T")
Models = Sequence[str] | Mapping[str, Sequence[str]]
Reference = str | Sequence[str] | Mapping[str, str]
Prices = PriceList | Mapping[str, LLMInfo] | Path | str | None

_ONLY_MODULE = "model"
MOST_REPEATS = 30  # queries that theta_0 answers twice, if nobody says how many
_DATED = "reference", "preflight"  # measurements that know the day of their prices
_MIX = 4.0, 1.0  # of prompt and completion tokens, for the question which LLM is the cheapest


def candidates_of(models: Models, reference: Reference) -> dict[str, tuple[str, ...]]:
    """The candidates of each module.

    Args:
        models: Candidates by module, or one list for all modules that `reference` names; if it
            names none, there is one module, `model`.
        reference: theta_0.

    Raises:
        InputError: If there are no candidates.

    Examples:
        >>> candidates_of(["nano", "pro"], {"plan": "pro", "solve": "pro"})
        {'plan': ('nano', 'pro'), 'solve': ('nano', 'pro')}
        >>> candidates_of(["nano", "pro"], "pro")
        {'model': ('nano', 'pro')}
    """
    if isinstance(models, str) or not models:
        raise InputError(f"models={models!r} must be a list of LLMs, or such a list by module")
    if isinstance(models, Mapping):
        return {module: _names(f"models[{module!r}]", llms) for module, llms in models.items()}
    modules = list(reference) if isinstance(reference, Mapping) else [_ONLY_MODULE]
    return dict.fromkeys(modules, _names("models", models))


def _names(key: str, llms: Any) -> tuple[str, ...]:
    if isinstance(llms, str) or not llms or not all(isinstance(llm, str) for llm in llms):
        raise InputError(f"{key}={llms!r} must be a list with the names of LLMs")
    return tuple(llms)


def reference_of(reference: Reference, llms: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """theta_0 by module; one name stands for all modules.

    Raises:
        InputError: If a module has no LLM, or one that is not among its candidates.
    """
    modules = list(llms)
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
            raise InputError(
                f"the reference runs {module!r} with {name!r}, which is not among its models "
                f"{list(llms[module])}; add it there"
            )
    return dict(zip(modules, names, strict=True))


@dataclass(frozen=True)
class Setup:
    """What a selection starts from; made by `set_up`, which checks it.

    Args:
        problem: With placeholders for the averages of theta_0.
        searched: The queries of the search.
        held_out: Those that are kept for the end.
        prices: The price list.
        is_priced: Whether the costs come from it, so all LLMs have a price.
        base: Where the search starts; None if a probe has to tell, or if the search needs none.
        needs_base: Whether it needs one.
        budget_usd: For everything.
        folder: Directory of the files; None writes none.
        seed: Decides which queries are held out, or answered twice.
        repeats: How many queries theta_0 answers twice.
        takes_repeats: Whether second answers of an older run will do.
        answers_vary: Whether kept answers are not used again.
        logged: theta_0 on every query, if a log knows it; then no call measures it.
        optional_modules: Modules that a run may leave out.
    """

    problem: SelectionProblem
    searched: Sequence[Item]
    held_out: Sequence[Item]
    prices: PriceList
    is_priced: bool
    base: Base
    needs_base: bool
    budget_usd: float
    folder: Path | None
    seed: int
    repeats: int
    takes_repeats: bool
    answers_vary: bool
    logged: LoggedReference | None = None
    optional_modules: Sequence[str] = ()

    def plan(
        self, num_first: int, known: Sequence[Observation] = (), pilot: Pilot | None = None
    ) -> Plan:
        """What will be done, without a call.

        Args:
            num_first: Runs of the preflight.
            known: Observations of earlier searches.
            pilot: What pilots showed.
        """
        problem = self.problem
        of_reference = {one.query for one in known if one.theta == problem.theta_ref}
        is_logged = self.logged is not None
        names = dict.fromkeys(llm for llms in problem.llms for llm in llms)
        usd = {llm: self.prices.usd_per_mtok(llm) for llm in names} if self.is_priced else None
        return Plan(
            problem.name,
            dict(zip(problem.modules, problem.llms, strict=True)),
            problem.names(problem.theta_ref),
            len(self.searched),
            len(self.held_out),
            self.budget_usd,
            usd,
            num_first=num_first,
            repeats=self.repeats,
            is_logged=is_logged,
            num_known=len(known),
            num_reference=problem.num_queries if is_logged else len(of_reference),
            pilot=pilot,
        )

    def began_before(self, part: str) -> bool:
        """Whether the search began in these files when selections did not have this part yet."""
        if self.folder is None or (self.folder / part).exists():
            return False
        return (self.folder / "settings.json").exists()

    def inside(self, name: str) -> Path | None:
        """A directory in that of the files."""
        return None if self.folder is None else inside(self.folder, *name.split("/"))


def set_up(
    *,
    app: Any,
    name: str | None,
    models: Models,
    reference: Reference,
    items: Sequence[Item],
    holdout: float,
    seed: int,
    prices: Prices,
    endpoint: Any,
    base: Base,
    needs_base: bool,
    budget_usd: float,
    run_dir: Path | str | None,
    constraints: Sequence[Constraint | str],
    min_quality: float | None,
    repeats: int | None,
    answers_vary: bool,
    optional_modules: Sequence[str] = (),
    **values: Any,
) -> Setup:
    """Checks the settings of `select`, whose arguments these are.

    Raises:
        InputError: If one cannot be used.
    """
    budget_usd = checked_number("budget_usd", budget_usd)
    if budget_usd <= 0:
        raise InputError(f"budget_usd={budget_usd} must be a positive number of USD")
    seed, holdout = check_seed(checked_whole("seed", seed)), checked_number("holdout", holdout)
    values |= _checked(values)
    if min_quality is not None:
        min_quality = checked_number("min_quality", min_quality)
    if repeats is not None:
        repeats = checked_size("repeats", repeats, 0)
    logged = reference.checked(len(items)) if isinstance(reference, LoggedReference) else None
    llms = candidates_of(models, reference)
    trusted = reference_of(reference, llms)
    if unknown := set(optional_modules) - set(llms):
        raise InputError(
            f"optional_modules has {sorted(unknown)}; it must be a list of modules of {list(llms)}"
        )
    searched, held_out = split(items, holdout, seed)
    limits = _with_quality(constraints, min_quality, values["epsilon"], values["objective"])
    try:
        problem = _unmeasured(name or _name_of(app), llms, len(searched), trusted, limits, **values)
    except InputError as error:  # of the parts, where the loss has the paper's name
        raise InputError(str(error).replace("epsilon", "max_quality_loss")) from None
    folder = None if run_dir is None else Path(run_dir)
    price_list = _price_list(prices, endpoint, folder)
    is_priced = prices is not None or endpoint is not None
    if is_priced:
        price_list.check(llm for names in llms.values() for llm in names)
    if needs_base and base is None and is_priced:
        base = cheapest_by_price(llms, price_list.usd_per_mtok)
    if needs_base and base is not None:
        codes_of_base(problem, base, "base")  # refuses an unknown LLM before anything is paid for
    sets = problem, searched, held_out, price_list, is_priced
    most = 0 if logged is not None else MOST_REPEATS
    number = min(len(searched), most if repeats is None else repeats)
    how = base, needs_base, budget_usd, folder, seed, number, repeats is None, answers_vary
    return Setup(*sets, *how, logged, optional_modules)


def _checked(values: Mapping[str, Any]) -> dict[str, float]:
    """The loss and the number of queries that will come, where they are given, as plain numbers."""
    names = {"epsilon": "max_quality_loss", "deployment_queries": "deployment_queries"}
    given = {key: name for key, name in names.items() if values[key] is not None}
    found = {key: checked_number(name, values[key]) for key, name in given.items()}
    if not 0 < found.get("epsilon", 0.5) < 1:
        raise InputError(
            f"max_quality_loss={found['epsilon']} must be a share of the reference's quality, "
            "above 0 and below 1, such as 0.05"
        )
    return found


def _name_of(app: Any) -> str:
    name = app if isinstance(app, str) else getattr(app, "__name__", None) or "app"
    return re.sub(r"\W+", "_", name).strip("_") or "app"


def _with_quality(
    constraints: Sequence[Constraint | str],
    min_quality: float | None,
    epsilon: float | None,
    objective: str,
) -> Sequence[Constraint | str]:
    """The constraints with the least quality, if it is given instead of a loss."""
    if min_quality is not None:
        if epsilon is not None:
            raise InputError(
                f"give max_quality_loss={epsilon} or min_quality={min_quality}, not both"
            )
        return [at_least(QUALITY, min_quality), *constraints]
    if epsilon is None and objective == "cost" and not any(QUALITY in str(c) for c in constraints):
        raise InputError(
            "say how good is good enough: max_quality_loss=0.05 (relative to the reference), or "
            "min_quality=0.9"
        )
    return constraints


def _price_list(prices: Prices, endpoint: Any, folder: Path | None) -> PriceList:
    """The price list of a run; a run that is resumed keeps the day of its prices."""
    if endpoint is not None and not isinstance(endpoint, str):
        if prices is not None:
            raise InputError("prices= and an Endpoint, which has prices too; give them to Endpoint")
        found: PriceList = endpoint.prices
    else:
        found = prices if isinstance(prices, PriceList) else PriceList(prices)
    files = [] if folder is None else [folder / part / "settings.json" for part in _DATED]
    for path in files:
        if path.exists():
            day = read_settings(path)["problem"].get("prices_at")
            if day is not None:
                found.resume(date.fromisoformat(day))
    return found


def split(items: Sequence[T], share: float, seed: int) -> tuple[list[T], list[T]]:
    """The items to search on, and a random share of them that is kept for the end.

    Raises:
        InputError: If the share is not in [0, 1), or leaves nothing to one of the two.

    Examples:
        >>> searched, held_out = split(range(10), 0.2, seed=0)
        >>> len(searched), len(held_out), searched == sorted(searched)
        (8, 2, True)
    """
    if not 0 <= share < 1:
        raise InputError(f"holdout={share} must be a share in [0, 1), such as 0.2")
    number = round(share * len(items))
    if share and not 0 < number < len(items):
        raise InputError(f"holdout={share} of {len(items)} queries leaves nothing to one part")
    chosen = set(random.Random(f"holdout {seed}").sample(range(len(items)), number))
    parts: tuple[list[T], list[T]] = [], []
    for index, item in enumerate(items):
        parts[index in chosen].append(item)
    return parts


def _unmeasured(
    name: str,
    llms: Mapping[str, Sequence[str]],
    num_queries: int,
    reference: Mapping[str, str],
    constraints: Sequence[Constraint | str],
    **values: Any,
) -> SelectionProblem:
    """The problem before theta_0 is measured: its averages are placeholders, see `_with_reference`.

    Raises:
        InputError: If a setting cannot be used.
    """
    limits = [Constraint.parse(limit) if isinstance(limit, str) else limit for limit in constraints]
    # A bound relative to a placeholder must lie in the range of the outcome.
    placeholders = {
        limit.outcome: limit.high / limit.value for limit in limits if limit.is_relative
    }
    placeholders.pop("quality", None)
    codes: Any = tuple(reference.values())  # the problem makes codes of names
    return SelectionProblem(
        name=name,
        modules=tuple(llms),
        llms=tuple(map(tuple, llms.values())),
        num_queries=num_queries,
        theta_ref=codes,
        reference_quality=1.0,
        reference_cost_usd=placeholders.pop("cost_usd", 1.0),
        reference_outcomes=placeholders,
        constraints=tuple(limits),
        **values,
    )


def cheapest_by_price(
    llms: Mapping[str, Sequence[str]], usd_per_mtok: Callable[[str], tuple[float, float]]
) -> dict[str, str]:
    """The cheapest candidate of each module, at four prompt tokens for each completion token."""

    def price(llm: str) -> float:
        return sum(share * usd for share, usd in zip(_MIX, usd_per_mtok(llm), strict=True))

    return {module: min(names, key=price) for module, names in llms.items()}
