"""What older runs observed, in the codes and at the prices of a new search.

`continue_from` reads the directories of older runs. A configuration is the same if all its modules
use LLMs of the same name; a query is the same if its content is (`queries.json`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scope_torch.constraints import COST, QUALITY
from scope_torch.errors import InputError
from scope_torch.observation import Observation, to_lines
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import read_json, read_settings, write_atomically
from scope_torch.runs.evaluator import Evaluator, HasPrices, HasQueryKeys, Regrades
from scope_torch.runs.finished import RENAMED
from scope_torch.runs.journal import read_journal
from scope_torch.runs.opening import BEGUN, facts_of, graded_otherwise, with_fingerprint_of_today
from scope_torch.runs.recorded import recorded_problem
from scope_torch.search.known import Known

Prices = Mapping[str, Mapping[str, Any]]
_INPUT, _OUTPUT = "input_usd_per_mtok", "output_usd_per_mtok"
_PARTS = "reference", "probe"  # measured before the search, see `scope_torch.selection`
KNOWN, _OBSERVATIONS = "known.json", "known.jsonl"
HELD_OUT = "held_out"  # has a directory for each configuration


@dataclass(frozen=True)
class Source:
    """An older run and what became of its observations.

    Args:
        path: Its directory.
        used: Observations that the new search knows.
        repriced: Those of them that cost something else today.
        regraded: Those of them that another metric has graded anew.
        usd_then: What the used ones had cost, in USD.
        left_out: How many others, by reason: `no_candidate`, a module used an LLM that is none any
            more; `no_query`, likewise; `failed`, the application raised; `no_outcome`, a constraint
            needs one that was not observed; `no_output`, the metric is another one, and what the
            application returned was not kept as it was.
    """

    path: str
    used: int
    repriced: int
    usd_then: float
    left_out: dict[str, int]
    regraded: int = 0


def known_from(
    paths: Path | str | Sequence[Path | str],
    problem: SelectionProblem,
    evaluator: Evaluator,
    *,
    answers_vary: bool = False,
    run_dir: Path | str | None = None,
    held_out: bool = False,
) -> Known:
    """The observations of older runs.

    If the metric is another one, the outputs that a run has kept are graded anew, without a call.

    Args:
        paths: Directories of the older runs, the oldest first. What they had taken over themselves
            is taken over too.
        problem: Of the new search.
        evaluator: Of the new search; says which queries it has, and at which prices.
        answers_vary: See `Known`.
        run_dir: Directory of the new run. What is taken over is kept there. A search that is
            resumed knows the same, even if an older run has gone on or was deleted.
        held_out: Whether the queries are held out; then only answers to such queries are taken.

    Raises:
        InputError: If a directory is not that of a run, or of another application; or if `run_dir`
            took over other runs, or had another metric.
    """
    paths = [paths] if isinstance(paths, Path | str) else list(paths)
    names = [str(Path(path).resolve()) for path in paths]
    folder = None if run_dir is None else Path(run_dir)
    kept = None if folder is None else _kept(folder, names, evaluator)
    if kept is None:
        kept = _Reader(problem, evaluator, held_out).read([Path(name) for name in names])
        if folder is not None:
            _keep(folder, kept, names, evaluator)
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

    def __init__(self, problem: SelectionProblem, evaluator: Evaluator, held_out: bool) -> None:
        self._problem, self._evaluator, self._held_out = problem, evaluator, held_out
        self._keys = evaluator.query_keys() if isinstance(evaluator, HasQueryKeys) else None
        self._query_of = {key: query for query, key in enumerate(_told_apart(self._keys or ()))}
        has_prices = isinstance(evaluator, HasPrices)
        self._prices = evaluator.describe_prices() if has_prices else None
        self._outcomes = {limit.outcome for limit in problem.limits} - {QUALITY, COST}
        self._is_answer = getattr(evaluator, "is_answer", lambda _: True)
        self._num_others, self._same_reference = 0, True

    def read(self, paths: Sequence[Path]) -> _Taken:
        taken: list[Observation] = []
        sources = [self._read_run(path, taken) for path in paths]
        return _Taken(_numbered(taken), sources, self._num_others, self._same_reference)

    def _read_run(self, path: Path, taken: list[Observation]) -> Source:
        settings = _settings_of(path)
        old = recorded_problem(settings)
        self._check(path, old)
        query_of = self._queries_of(path, settings)
        prices = facts_of(path, "prices.json").get("prices")
        self._compare(old, path)
        left_out = Counter[str]()
        usd_then, num_repriced, num_regraded = 0.0, 0, 0
        # A kept answer, given once more, is no second one.
        observations = dict.fromkeys(replace(o, replicate=0) for o in self._observations(path))
        outputs = self._outputs_of(path, old, observations)
        is_regraded = graded_otherwise(settings["evaluator"], self._evaluator.fingerprint(), path)
        for observation in observations:
            names = old.names(observation.theta)
            new, why = self._translated(observation, names, query_of, prices)
            if is_regraded and observation.quality == observation.cost_usd == 0:
                new, why = None, "failed"  # perhaps the metric raised: then its cost is not known
            elif new is not None and is_regraded:
                num_regraded += (new := self._regraded(new, observation, outputs)) is not None
                why = "no_output"
            if new is None:
                left_out[why] += 1
                continue
            num_repriced += new.cost_usd != observation.cost_usd
            usd_then += observation.cost_usd
            taken.append(new)
            if isinstance(self._evaluator, Regrades) and observation in outputs:
                llms = list(self._problem.names(new.theta).values())
                self._evaluator.adopt(llms, new.query, outputs[observation])
        used = len(observations) - left_out.total()
        sums = used, num_repriced, usd_then, dict(left_out), num_regraded
        return Source(str(path), *sums)

    def _outputs_of(
        self, path: Path, old: SelectionProblem, observations: Iterable[Observation]
    ) -> dict[Observation, Any]:
        """The output behind each observation, where it was kept; of a pair only the last one."""
        if not isinstance(self._evaluator, Regrades):
            return {}
        outputs = self._evaluator.outputs_of(path)
        facts = facts_of(self._place(path), "queries.json")
        numbers = facts.get("numbers", range(len(facts.get("queries", ()))))
        last = {(o.theta, o.query): o for o in observations if o.query < len(numbers)}
        keys = {o: (tuple(old.names(o.theta).values()), numbers[o.query]) for o in last.values()}
        return {o: outputs[key] for o, key in keys.items() if key in outputs}

    def _regraded(
        self, new: Observation, old: Observation, outputs: Mapping[Observation, Any]
    ) -> Observation | None:
        """With the grade that today's metric gives; None if that cannot be told."""
        if not isinstance(self._evaluator, Regrades) or old not in outputs:
            return None
        grade = self._evaluator.regraded(new.query, outputs[old])
        return None if grade is None else replace(new, quality=grade)

    def _place(self, path: Path) -> Path:
        """The directory that says which queries the observations are of."""
        if not self._held_out:
            return path
        return next(iter(sorted((path / HELD_OUT).glob("*/"))), path / HELD_OUT)

    def _observations(self, path: Path) -> list[Observation]:
        """What a run knew and made: taken over, measured before the search, and its journal."""
        folder = path / HELD_OUT if self._held_out else path
        parts = sorted(p.name for p in folder.glob("*/")) if self._held_out else [*_PARTS, ""]
        files = [folder / _OBSERVATIONS, *(folder / part / "journal.jsonl" for part in parts)]
        return [one for file in files if file.exists() for one in read_journal(file)]

    def _check(self, path: Path, old: SelectionProblem) -> None:
        new = self._problem
        if RENAMED.get(old.name, old.name) != new.name:
            raise InputError(
                f"{path} is a run of {old.name!r}, this is one of {new.name!r}; answers are only "
                "taken over if the application is the same; give it the same name if it is"
            )
        if set(old.modules) != set(new.modules):
            raise InputError(
                f"{path} has the modules {list(old.modules)}, this application has "
                f"{list(new.modules)}; its answers say nothing about this one"
            )

    def _queries_of(self, path: Path, settings: dict[str, Any]) -> dict[int, int]:
        """The new index of each old query that still is one."""
        keys = facts_of(self._place(path), "queries.json").get("queries")
        if keys is not None and self._keys is not None:
            new = map(self._query_of.get, _told_apart(keys))
            return {query: code for query, code in enumerate(new) if code is not None}
        if self._held_out:
            return {}  # an earlier version did not note them
        today = with_fingerprint_of_today(settings, self._evaluator)["evaluator"]
        if today != self._evaluator.fingerprint():
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
        if (path / KNOWN).exists():
            facts = read_json(path / KNOWN)
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
        found = replace(
            observation,
            theta=theta,
            query=query_of[observation.query],
            module_cost_usd=None if costs is None else tuple(costs[i] for i in order),
            module_tokens=None if tokens is None else tuple(tokens[i] for i in order),
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


def _settings_of(path: Path) -> dict[str, Any]:
    """Settings of a run; of one that ended before its search what it was about."""
    for name in ("settings.json", BEGUN):
        if (path / name).exists():
            return read_settings(path / name)
    raise InputError(
        f"continue_from={path} is not the directory of a run: settings.json is missing"
    )


def _kept(folder: Path, names: list[str], evaluator: Evaluator) -> _Taken | None:
    """What the new run has taken over when it began, if it has begun."""
    if not (folder / KNOWN).exists():
        return None
    facts = read_json(folder / KNOWN)
    if facts["continue_from"] != names:
        raise InputError(
            f"{folder} continues from {facts['continue_from']}, not from {names}; restore "
            "continue_from, or choose another run_dir"
        )
    now = evaluator.fingerprint()
    if graded_otherwise(facts.get("evaluator", now), now, folder):
        raise InputError(
            f"{folder} has taken over answers that another metric had graded; restore the metric, "
            "or choose another run_dir: continue_from then grades the kept outputs anew"
        )
    sources = [Source(**source) for source in facts["sources"]]
    observations = read_journal(folder / _OBSERVATIONS)
    return _Taken(observations, sources, facts["num_others"], facts["same_reference"])


def _keep(folder: Path, taken: _Taken, names: list[str], evaluator: Evaluator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = to_lines(taken.observations).decode()
    write_atomically(folder / _OBSERVATIONS, lines)
    facts = {
        "continue_from": names,
        "evaluator": evaluator.fingerprint(),
        "num_others": taken.num_others,
        "same_reference": taken.same_reference,
        "sources": [asdict(source) for source in taken.sources],
    }
    write_atomically(folder / KNOWN, json.dumps(facts, indent=2) + "\n")
