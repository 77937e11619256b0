"""What older runs observed, in the codes and at the prices of a new search.

`continue_from` reads the directories of older runs. A configuration is the same if all its modules
use LLMs of the same name; a query is the same if its content is (`queries.json`).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scope_torch.constraints import COST, QUALITY
from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.observation import Observation, to_lines
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import read_json, read_settings, result_of, write_json
from scope_torch.runs.evaluator import Evaluator, HasPrices, HasQueryKeys
from scope_torch.runs.finished import RENAMED
from scope_torch.runs.journal import read_journal
from scope_torch.runs.recorded import recorded_problem
from scope_torch.search.known import Known

Prices = Mapping[str, Mapping[str, Any]]
_INPUT, _OUTPUT = "input_usd_per_mtok", "output_usd_per_mtok"
_PARTS = "reference", "probe", "preflight"  # measured before the search
_FACTS, _OBSERVATIONS = "known.json", "known.jsonl"


@dataclass(frozen=True)
class Source:
    """An older run and what became of its observations.

    Args:
        path: Its directory.
        used: Observations that the new search knows.
        repriced: Those of them that cost something else today.
        usd_then: What the used ones had cost, in USD.
        left_out: How many others, by reason: `no_candidate`, a module used an LLM that is none any
            more; `no_query`, likewise; `failed`, the application raised; `no_outcome`, a constraint
            needs one that was not observed; `taken_before`, of two runs of which one continues
            from the other, both have it.
    """

    path: str
    used: int
    repriced: int
    usd_then: float
    left_out: dict[str, int]


def known_from(
    paths: Path | str | Sequence[Path | str],
    problem: SelectionProblem,
    evaluator: Evaluator,
    *,
    answers_vary: bool = False,
    run_dir: Path | str | None = None,
) -> Known:
    """The observations of older runs.

    Args:
        paths: Directories of the older runs, the oldest first. What they had taken over themselves
            is taken over too.
        problem: Of the new search.
        evaluator: Of the new search; says which queries it has, and at which prices.
        answers_vary: See `Known`.
        run_dir: Directory of the new run. What is taken over is kept there. A search that is
            resumed knows the same, even if an older run has gone on or was deleted.

    Raises:
        InputError: If a directory is not that of a run, or of another application; or if `run_dir`
            took over other runs.
    """
    paths = [paths] if isinstance(paths, Path | str) else list(paths)
    names = list(dict.fromkeys(str(Path(path).resolve()) for path in paths))
    folder = None if run_dir is None else Path(run_dir)
    kept = None if folder is None else _kept(folder, names)
    if kept is None:
        kept = _Reader(problem, evaluator).read([Path(name) for name in names])
        if folder is not None:
            _keep(folder, kept, names)
    return Known(
        problem,
        kept.observations,
        answers_vary=answers_vary,
        num_others=kept.num_others,
        same_reference=kept.same_reference,
        sources=[asdict(source) for source in kept.sources],
    )


@dataclass(frozen=True)
class _Taken:
    """What was taken over; see `Known`."""

    observations: list[Observation]
    sources: list[Source]
    num_others: int
    same_reference: bool


def describe_run(run_dir: Path, evaluator: Evaluator) -> None:
    """Writes what a later search must know of this one: its queries and the prices.

    Args:
        run_dir: Directory of the run; must exist.
        evaluator: Of the run.

    Raises:
        InputError: If a file cannot be written.
    """
    facts: dict[str, Any] = {}
    if isinstance(evaluator, HasQueryKeys) and (keys := evaluator.query_keys()) is not None:
        facts["queries"] = keys
    if isinstance(evaluator, HasPrices) and (prices := evaluator.describe_prices()) is not None:
        facts["prices"] = prices
    for name, content in facts.items():
        path = run_dir / f"{name}.json"
        if not path.exists():  # a run that is resumed keeps its prices
            write_json(path, {name: content}, private=True)


def repriced(
    observation: Observation, llms: Sequence[str], old: Prices | None, new: Prices
) -> Observation:
    """An observation at other prices.

    The cost of a module changes like the cost of its tokens; cached tokens keep their share of it.
    A module whose LLM costs what it did keeps its cost to the last digit.

    Args:
        observation: With the tokens of each module; without them it stays as it is.
        llms: The LLM of each module.
        old: USD per million tokens by LLM, see `PriceList.describe`; None if they are not known:
            the tokens are then priced without regard to caches.
        new: Likewise, of today.

    Examples:
        >>> one = Observation((0,), 0, cost_usd=0.002, quality=1.0, module_tokens=((1000, 0),))
        >>> old = {"m": {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 8.0}}
        >>> new = {"m": {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 8.0}}
        >>> repriced(one, ["m"], old, new).cost_usd
        0.001
    """
    tokens = observation.module_tokens
    if tokens is None or (observation.module_cost_usd is None and len(llms) > 1):
        return observation
    costs = observation.module_cost_usd or (observation.cost_usd,)
    changed = [
        _repriced(usd, used, (old or {}).get(llm), new[llm])
        for usd, used, llm in zip(costs, tokens, llms, strict=True)
    ]
    if changed == list(costs):
        return observation
    return replace(observation, cost_usd=math.fsum(changed), module_cost_usd=tuple(changed))


def _repriced(
    usd: float, tokens: tuple[int, int], old: Mapping[str, Any] | None, new: Mapping[str, Any]
) -> float:
    if old is not None and (old[_INPUT], old[_OUTPUT]) == (new[_INPUT], new[_OUTPUT]):
        return usd
    today = _cost(tokens, new)
    before = 0.0 if old is None else _cost(tokens, old)
    return usd * today / before if before > 0 else today


def _cost(tokens: tuple[int, int], price: Mapping[str, Any]) -> float:
    return (tokens[0] * price[_INPUT] + tokens[1] * price[_OUTPUT]) / 1e6


def _told_apart(keys: Iterable[str]) -> list[tuple[str, int]]:
    """Each key, and how often it came before: a data set may hold the same question twice."""
    counts = Counter[str]()
    numbered: list[tuple[str, int]] = []
    for key in keys:
        numbered.append((key, counts[key]))
        counts[key] += 1
    return numbered


class _Reader:
    """Reads older runs for one new search."""

    def __init__(self, problem: SelectionProblem, evaluator: Evaluator) -> None:
        self._problem, self._evaluator = problem, evaluator
        self._keys = evaluator.query_keys() if isinstance(evaluator, HasQueryKeys) else None
        self._query_of = {key: query for query, key in enumerate(_told_apart(self._keys or ()))}
        has_prices = isinstance(evaluator, HasPrices)
        self._prices = evaluator.describe_prices() if has_prices else None
        self._outcomes = {limit.outcome for limit in problem.limits} - {QUALITY, COST}
        self._is_answer = getattr(evaluator, "is_answer", lambda o: o.failed is None)
        self._num_others, self._same_reference = 0, True
        # How often each was taken from the run that made it, and from one that had taken it over.
        self._made, self._inherited = Counter[Observation](), Counter[Observation]()

    def read(self, paths: Sequence[Path]) -> _Taken:
        taken: list[Observation] = []
        sources = [self._read_run(path, taken) for path in paths]
        return _Taken(_numbered(taken), sources, self._num_others, self._same_reference)

    def _read_run(self, path: Path, taken: list[Observation]) -> Source:
        settings = _settings_of(path)
        old = recorded_problem(settings)
        self._check(path, old)
        query_of = self._queries_of(path, settings)
        prices = _facts(path, "prices")
        self._compare(old, path)
        left_out, seen = Counter[str](), set[Observation]()
        usd_then, num_repriced = 0.0, 0
        inherited, made = _observations(path)
        # What one run made and another one took over is the same; what two runs made is not.
        from_made, from_inherited = self._made.copy(), self._inherited.copy()
        for number, observation in enumerate([*inherited, *made]):
            observation = replace(observation, replicate=0)
            if observation in seen:  # a kept answer, given once more, is no second one
                continue
            seen.add(observation)
            names = old.names(observation.theta)
            new, why = self._translated(observation, names, query_of, prices)
            if new is None:
                left_out[why] += 1
                continue
            is_inherited, same = number < len(inherited), _unpriced(new)
            if _drop(from_inherited, same) or (is_inherited and _drop(from_made, same)):
                left_out["taken_before"] += 1
                continue
            (self._inherited if is_inherited else self._made)[same] += 1
            num_repriced += new.cost_usd != observation.cost_usd
            usd_then += observation.cost_usd
            taken.append(new)
        used = len(seen) - left_out.total()
        return Source(str(path), used, num_repriced, usd_then, dict(left_out))

    def _check(self, path: Path, old: SelectionProblem) -> None:
        new = self._problem
        if new.name not in (old.name, RENAMED.get(old.name)):
            raise InputError(
                f"{path} is a run of {old.name!r}, this is one of {new.name!r}; answers are only "
                "taken over if the application is the same; give it the same name if it is"
            )
        if set(old.modules) != set(new.modules):
            raise InputError(
                f"{path} has the modules {list(old.modules)}, this application has "
                f"{list(new.modules)}; its answers say nothing about this one"
            )

    def _queries_of(self, path: Path, settings: Mapping[str, Any]) -> dict[int, int]:
        """The new index of each old query that still is one."""
        keys = _facts(path, "queries")
        if keys is not None and self._keys is not None:
            new = map(self._query_of.get, _told_apart(keys))
            return {query: code for query, code in enumerate(new) if code is not None}
        if settings["evaluator"] != self._evaluator.fingerprint():
            raise InputError(
                f"{path} does not say which queries it had, and they may be others than these "
                f"({settings['evaluator']} is not {self._evaluator.fingerprint()}); it cannot be "
                "continued from"
            )
        return {query: query for query in range(self._problem.num_queries)}

    def _compare(self, old: SelectionProblem, path: Path) -> None:
        """What `certificate=population` must know; see `scope_torch.search.known`."""
        both = 1
        for module, names in zip(old.modules, old.llms, strict=True):
            both *= len(set(names) & set(self._problem.llms[self._problem.modules.index(module)]))
        self._num_others += old.space.size - both
        reference = old.names(old.theta_ref) == self._problem.names(self._problem.theta_ref)
        self._same_reference &= reference
        if (path / _FACTS).exists():
            facts = read_json(path / _FACTS)
            self._num_others += facts["num_others"]
            self._same_reference &= facts["same_reference"]

    def _translated(
        self,
        observation: Observation,
        names: Mapping[str, str],
        query_of: Mapping[int, int],
        prices: Prices | None,
    ) -> tuple[Observation | None, str]:
        """In the codes and at the prices of the new search; or None, and why not."""
        new = self._problem
        llms = [names[module] for module in new.modules]
        if any(llm not in known for llm, known in zip(llms, new.llms, strict=True)):
            return None, "no_candidate"
        if observation.query not in query_of:
            return None, "no_query"
        if not self._is_answer(observation):
            return None, "failed"
        theta, order = new.codes(llms), [list(names).index(module) for module in new.modules]
        costs, tokens = observation.module_cost_usd, observation.module_tokens
        calls = observation.module_calls
        found = replace(
            observation,
            theta=theta,
            query=query_of[observation.query],
            module_cost_usd=None if costs is None else tuple(costs[i] for i in order),
            module_tokens=None if tokens is None else tuple(tokens[i] for i in order),
            module_calls=None if calls is None else tuple(calls[i] for i in order),
        )
        if self._prices is not None:
            found = repriced(found, llms, prices, self._prices)
        has = {"latency_s"} if found.latency_s is not None else set[str]()
        if self._outcomes - has - set(found.outcomes or ()):
            return None, "no_outcome"
        return found, ""


def _numbered(observations: Sequence[Observation]) -> list[Observation]:
    """The same, each with the number of earlier ones of its pair as its replicate."""
    number = Counter[tuple[tuple[int, ...], int]]()
    found: list[Observation] = []
    for observation in observations:
        pair = observation.theta, observation.query
        found.append(replace(observation, replicate=number[pair]))
        number[pair] += 1
    return found


def _unpriced(observation: Observation) -> Observation:
    """Without what changes with the day of the prices; see `repriced`."""
    if observation.module_tokens is None:
        return observation
    return replace(observation, cost_usd=0.0, module_cost_usd=None)


def _drop(counts: Counter[Observation], one: Observation) -> bool:
    """Takes one away; returns whether there was one."""
    was_there = counts[one] > 0
    counts[one] -= was_there
    return was_there


def _settings_of(path: Path) -> dict[str, Any]:
    try:
        settings = read_settings(path / "settings.json")
    except FileNotFoundError:
        raise InputError(
            f"continue_from={path} is not the directory of a run: settings.json is missing"
        ) from None
    with contextlib.suppress(FileNotFoundError):  # of a run that has not finished
        result_of(path, settings)  # knows the hash of the settings, also in early versions
    return settings


def _observations(path: Path) -> tuple[list[Observation], list[Observation]]:
    """What a run had taken over; and what it made: before the search, and its journal."""
    made = [read_journal(path / part / "journal.jsonl") for part in (*_PARTS, "")]
    return read_journal(path / _OBSERVATIONS), [one for part in made for one in part]


def _facts(path: Path, name: str) -> Any:
    """Content of a file of `describe_run`; None if there is none."""
    file = path / f"{name}.json"
    return read_json(file).get(name) if file.exists() else None


def _kept(folder: Path, names: list[str]) -> _Taken | None:
    """What the new run has taken over when it began, if it has begun."""
    if not (folder / _FACTS).exists():
        return None
    facts = read_json(folder / _FACTS)
    if facts["continue_from"] != names:
        raise InputError(
            f"{folder} continues from {facts['continue_from']}, not from {names}; restore "
            "continue_from, or choose another run_dir"
        )
    sources = [Source(**source) for source in facts["sources"]]
    observations = read_journal(folder / _OBSERVATIONS)
    return _Taken(observations, sources, facts["num_others"], facts["same_reference"])


def _keep(folder: Path, taken: _Taken, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = to_lines(taken.observations).decode()
    write_atomically(folder / _OBSERVATIONS, lines, private=True)
    facts = {
        "continue_from": names,
        "num_others": taken.num_others,
        "same_reference": taken.same_reference,
        "sources": [asdict(source) for source in taken.sources],
    }
    write_json(folder / _FACTS, facts)
