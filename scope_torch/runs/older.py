"""Reads older runs for one new search, see `known_from`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import read_json, read_settings, result_of
from scope_torch.runs.evaluator import Evaluator, HasPrices, HasQueryKeys, Regrades
from scope_torch.runs.journal import read_journal
from scope_torch.runs.opening import (
    BEGUN,
    SEVERAL,
    facts_of,
    graded_otherwise,
    keeps_answers,
    with_fingerprint_of_today,
)
from scope_torch.runs.recorded import recorded_problem
from scope_torch.runs.regrading import Grades
from scope_torch.runs.repricing import Prices, repriced, unpriced

_PARTS = "reference", "preflight"  # measured before the search
_IN_TIME = "preflight", "reference", ""  # the same and the search, as they were asked
Theta = tuple[int, ...]
KNOWN, OBSERVATIONS = "known.json", "known.jsonl"
HELD_OUT = "held_out"  # has a directory for each configuration
LOGGED = "logged.jsonl"  # there: theta_0 as a log knows it


@dataclass(frozen=True)
class Source:
    """An older run and what became of its observations.

    Args:
        path: Its directory.
        used: Observations that the new search knows.
        repriced: Those of them that cost something else today.
        regraded: Those of them that another metric has graded anew.
        regraded_usd: What that has cost, in USD; of the last one also grades of a metric that was
            mended before all were graded.
        usd_then: What the used ones had cost, in USD.
        left_out: How many others, by reason: `no_candidate`, a module used an LLM that is none any
            more; `no_query`, likewise; `failed`, the application raised; `no_outcome`, a constraint
            needs one that was not observed, or that is outside its range; `no_seconds`, an LLM is
            paid by seconds that were not measured; `no_cached_tokens`, the price of cached tokens
            changed, and how many there were was not kept; `several_prices`, a recheck paid an LLM
            at several; `taken_before`, of two runs of which one continues from the other, both have
            it; `no_output`, the metric is another one, and what the application returned was not
            kept as it was, may not count, or no money was left to grade it.
    """

    path: str
    used: int
    repriced: int
    usd_then: float
    left_out: dict[str, int]
    regraded: int = 0
    regraded_usd: float = 0.0


@dataclass(frozen=True)
class Taken:
    """What was taken over; see `Known`."""

    observations: list[Observation]
    sources: list[Source]
    num_others: int
    same_reference: bool
    tried: set[Theta]


class Reader:
    """Reads older runs for one new search.

    Args:
        problem: Of the new search.
        evaluator: Of the new search.
        held_out: See `known_from`.
        grades: Of outputs, where a run had another metric; None leaves them as they are.
        counts: See `known_from`.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        evaluator: Evaluator,
        held_out: bool,
        grades: Grades | None,
        counts: Collection[Theta] | None,
    ) -> None:
        self._problem, self._evaluator, self._held_out = problem, evaluator, held_out
        self._grades, self._counts, self._mixes_grades = grades, counts, False
        self._keys = evaluator.query_keys() if isinstance(evaluator, HasQueryKeys) else None
        self._query_of = {key: query for query, key in enumerate(_told_apart(self._keys or ()))}
        has_prices = isinstance(evaluator, HasPrices)
        self._prices = evaluator.describe_prices() if has_prices else None
        self._num_others, self._same_reference, self._tried = 0, True, set[Theta]()
        # How often each was taken from the run that made it, and from one that had taken it over.
        self._made, self._inherited = Counter[Observation](), Counter[Observation]()

    def read(self, paths: Sequence[Path]) -> Taken:
        """What the runs observed, the oldest first."""
        taken: list[Observation] = []
        settings = [settings_named(path) for path in paths]
        pairs = zip(settings, paths, strict=True)
        anew = [graded_otherwise(one["evaluator"], self._evaluator, path) for one, path in pairs]
        self._mixes_grades = any(anew)
        sources = [self._read_run(*one, taken) for one in zip(paths, settings, anew, strict=True)]
        if self._grades is not None and (usd := self._grades.superseded_usd):
            sources[-1] = replace(sources[-1], regraded_usd=sources[-1].regraded_usd + usd)
        return Taken(_numbered(taken), sources, self._num_others, self._same_reference, self._tried)

    def _read_run(
        self, path: Path, settings: dict[str, Any], anew: bool, taken: list[Observation]
    ) -> Source:
        old = recorded_problem(settings)
        self._check(path, old)
        query_of, prices = self._queries_of(path, settings), _prices_of(path)
        self._compare(old, path)
        left_out = Counter[str]()
        usd_then, num_repriced, num_regraded, regraded_usd = 0.0, 0, 0, 0.0
        outputs = self._outputs_of(path, old, journals := self._journals(path))
        seen = _observed(journals, self._held_out or keeps_answers(path))
        by_whom = ("app",) if anew else ("app", "metric")  # another metric may not fail
        # Who failed is asked anew, everything: failures alone would be asked until they succeed.
        failing = {o.theta for o, _ in seen if o.failed in by_whom and o.theta != old.theta_ref}
        # What one run made and another one took over is the same; what two runs made is not.
        from_made, from_inherited = self._made.copy(), self._inherited.copy()
        for observation, is_inherited in seen:
            names = old.names(observation.theta)
            # theta_0's failures stay, as its other answers do, if failures are answers.
            stands = observation.theta == old.theta_ref and observation.failed in by_whom
            stands = stands and getattr(self._evaluator, "on_error", None) == "zero"
            new, why = self._translated(observation, names, query_of, prices, stands)
            if observation.theta in failing:
                new, why = None, "failed"
            if new is None:
                left_out[why] += 1
                continue
            same = self._key(new)
            if _drop(from_inherited, same) or (is_inherited and _drop(from_made, same)):
                left_out["taken_before"] += 1
                continue
            if anew and not stands:
                new, usd = self._regraded(new, observation, outputs)
                regraded_usd += usd
                if new is None:
                    left_out["no_output"] += 1
                    continue
                num_regraded += 1
            (self._inherited if is_inherited else self._made)[same] += 1
            num_repriced += new.cost_usd != observation.cost_usd
            usd_then += observation.cost_usd
            taken.append(new)
            if observation in outputs:
                self._adopt(new, outputs.pop(observation))  # of one of equal ones
        sums = num_repriced, usd_then, dict(left_out), num_regraded, regraded_usd
        return Source(str(path), len(seen) - left_out.total(), *sums)

    def _adopt(self, new: Observation, output: Any) -> None:
        """Keeps an output, unless this is no more than a look."""
        if isinstance(self._evaluator, Regrades) and self._grades is not None:
            llms = list(self._problem.names(new.theta).values())
            self._evaluator.adopt(llms, new.query, output)

    def _key(self, new: Observation) -> Observation:
        """What stays the same from run to run: not prices and, with several metrics, no grade."""
        if self._mixes_grades:
            new = replace(new, quality=0.0, judge_usd=0.0)
        return unpriced(new)

    def _outputs_of(
        self, path: Path, old: SelectionProblem, journals: Mapping[str, list[Observation]]
    ) -> dict[Observation, Any]:
        """The output behind each observation, where it was kept; of a pair only the last one."""
        if not isinstance(self._evaluator, Regrades):
            return {}
        outputs = self._evaluator.outputs_of(path)
        facts = facts_of(self._place(path), "queries.json")
        numbers = facts.get("numbers", range(len(facts.get("queries", ()))))
        parts = journals if self._held_out else (OBSERVATIONS, *_IN_TIME)
        found = [replace(o, replicate=0) for part in parts for o in journals[part]]
        last = {(o.theta, o.query): o for o in found if o.query < len(numbers)}
        keys = {o: (tuple(old.names(o.theta).values()), numbers[o.query]) for o in last.values()}
        return {o: outputs[key] for o, key in keys.items() if key in outputs}

    def _regraded(
        self, new: Observation, old: Observation, outputs: Mapping[Observation, Any]
    ) -> tuple[Observation | None, float]:
        """With the grade that today's metric gives, or None; and what that has cost in USD."""
        if old not in outputs or (self._counts is not None and new.theta not in self._counts):
            return None, 0.0
        return (new, 0.0) if self._grades is None else self._grades.of(new, outputs[old])

    def _place(self, path: Path) -> Path:
        """The directory that says which queries the observations are of."""
        if not self._held_out:
            return path
        # The queries of a part of them, if money was short, come first among all of them.
        files = sorted(path.glob(f"{HELD_OUT}*/*/queries.json"))
        number = {one.parent: len(read_json(one).get("queries", ())) for one in files}
        return max(number, key=number.__getitem__, default=path / HELD_OUT)

    def _journals(self, path: Path) -> dict[str, list[Observation]]:
        """By their place what a run knew, and made: before the search, and in the search."""
        if not self._held_out:
            made = {part: read_journal(path / part / "journal.jsonl") for part in (*_PARTS, "")}
            return {OBSERVATIONS: read_journal(path / OBSERVATIONS), **made}
        folders = [one.parent for one in sorted(path.glob(f"{HELD_OUT}*/*/journal.jsonl"))]
        made = {str(one.relative_to(path)): read_journal(one / "journal.jsonl") for one in folders}
        return {OBSERVATIONS: read_journal(path / HELD_OUT / OBSERVATIONS), **made}

    def _check(self, path: Path, old: SelectionProblem) -> None:
        new = self._problem
        if new.name != old.name:
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
        new, both = self._problem, 1
        for module, names in zip(old.modules, old.llms, strict=True):
            both *= len(set(names) & set(new.llms[new.modules.index(module)]))
        self._num_others += old.space.size - both
        self._same_reference &= old.names(old.theta_ref) == new.names(new.theta_ref)
        if (path / KNOWN).exists():
            facts = read_json(path / KNOWN)
            self._num_others += facts["num_others"]
            self._same_reference &= facts["same_reference"]

    def _translated(
        self,
        observation: Observation,
        names: Mapping[str, str],
        query_of: Mapping[int, int],
        prices: tuple[Prices | None, set[str]],
        stands: bool,
    ) -> tuple[Observation | None, str]:
        """In the codes and at the prices of the new search; or None, and why not."""
        new = self._problem
        llms = [names[module] for module in new.modules]
        if any(llm not in known for llm, known in zip(llms, new.llms, strict=True)):
            return None, "no_candidate"
        if observation.query not in query_of:
            return None, "no_query"
        self._tried.add(theta := new.codes(llms))
        if observation.failed is not None and not stands:
            return None, "failed"
        order = [list(names).index(module) for module in new.modules]
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
            then, several = prices
            if tokens is not None and not several.isdisjoint(llms):
                return None, "several_prices"
            found = repriced(found, llms, then, self._prices)
            if isinstance(found, str):
                return None, found
        try:
            new.grades(found)
        except InputError:
            return None, "no_outcome"
        return found, ""


def settings_named(path: Path) -> dict[str, Any]:
    """Settings of a run that the user names.

    Raises:
        InputError: If the directory is not that of a run, or is a part of one.
    """
    settings = _settings_of(path)
    if settings["optimizer"]["name"] == "measure":
        raise InputError(f"continue_from={path} is a part of a run: name the run itself")
    return settings


def _settings_of(path: Path) -> dict[str, Any]:
    """Settings of a run; of one that ended before its search what it was about."""
    file = path / ("settings.json" if (path / "settings.json").exists() else BEGUN)
    if not file.exists():
        missing = "is not the directory of a run: settings.json is missing"
        raise InputError(f"continue_from={path} {missing}")
    settings = read_settings(file)
    with contextlib.suppress(FileNotFoundError):  # of a run that has not finished
        result_of(path, settings)  # knows the hash of the settings, also in early versions
    return settings


def _prices_of(path: Path) -> tuple[Prices | None, set[str]]:
    """Those with which a run began, and the LLMs that it paid at other prices too."""
    facts = facts_of(path, "prices.json")
    early = facts_of(path, "recheck.json").get("prices", ())  # of a version that noted them there
    return facts.get("prices"), {*facts.get(SEVERAL, ()), *early}


def is_graded_otherwise(path: Path, evaluator: Evaluator) -> bool:
    """Whether the metric of an older run is another one.

    Raises:
        InputError: If the directory is not that of a run.
    """
    return graded_otherwise(_settings_of(path)["evaluator"], evaluator, path)


def had_reference(path: Path, problem: SelectionProblem) -> bool:
    """Whether the reference of an older run was that of a problem."""
    old = recorded_problem(_settings_of(path))
    return old.names(old.theta_ref) == problem.names(problem.theta_ref)


def _told_apart(keys: Iterable[str]) -> list[tuple[str, int]]:
    """Each key, and how often it came before: a data set may hold the same question twice."""
    counts = Counter[str]()
    numbered: list[tuple[str, int]] = []
    for key in keys:
        numbered.append((key, counts[key]))
        counts[key] += 1
    return numbered


def _observed(
    journals: Mapping[str, list[Observation]], keeps: bool
) -> list[tuple[Observation, bool]]:
    """All observations of a run, and whether it had taken them over, the first ones first.

    An answer that was kept, and given once more, is no second one. Of answers that vary each one
    counts: without those that agree, those that do not would weigh more than they should.

    Args:
        journals: By their place.
        keeps: Whether answers were kept before the search, and may have been in it.
    """
    found: list[tuple[Observation, bool]] = []
    for part, observed in journals.items():
        told = [replace(o, replicate=0) for o in observed]
        answers = [o for o in told if o.failed is None]
        first = {(o.theta, o.query): o for o in reversed(answers)}
        varies = not keeps or any(o != first[o.theta, o.query] for o in answers)
        known = {o for o, _ in found}
        new = told if varies else [o for o in dict.fromkeys(told) if o not in known]
        found += [(o, part == OBSERVATIONS) for o in new]
    return found


def _numbered(observations: Sequence[Observation]) -> list[Observation]:
    """The same, each with the number of earlier ones of its pair as its replicate."""
    number = Counter[tuple[tuple[int, ...], int]]()
    found: list[Observation] = []
    for one in observations:
        found.append(replace(one, replicate=number[one.theta, one.query]))
        number[one.theta, one.query] += 1
    return found


def _drop(counts: Counter[Observation], one: Observation) -> bool:
    """Takes one away; returns whether there was one."""
    was_there = counts[one] > 0
    counts[one] -= was_there
    return was_there
