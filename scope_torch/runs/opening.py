"""A directory is only used for the run that it holds: what changed is said in words.

`settings.json` has the evaluator's fingerprint, `queries.json` a key for each query.
"""

from __future__ import annotations

import json
import logging
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_torch.errors import ANOTHER_RUN_DIR, InputError
from scope_torch.files import make_folder
from scope_torch.runs.changed_settings import differences, in_words
from scope_torch.runs.directory import finished_summary, read_json, read_settings, write_json
from scope_torch.runs.evaluator import (
    GRADED,
    Evaluator,
    HasPast,
    HasPrices,
    HasQueryKeys,
    KeepsAnswers,
)
from scope_torch.runs.journal import Journal

logger = logging.getLogger(__name__)

BEGUN = "begun.json"  # what a selection is about, before its search has settings
SEVERAL = "several"  # in prices.json: LLMs whose costs are at several prices
_KEEPS = "keeps_answers"  # there: whether pilots and preflight answer for the reference too
_ALL = "problem.modules", "problem.llms", "problem.theta_ref", "evaluator"
_ALL += "problem.allowed", "problem.offered"
_PARTS = "pilot", "preflight", "reference", "again"  # measured before the search
_MEASURED = {f"{part}/settings.json": ("evaluator",) for part in _PARTS}
_BEFORE = {BEGUN: _ALL, "settings.json": _ALL, **_MEASURED}  # what a begun selection may not change
DATED = "reference", "preflight"  # measurements that know the day of their prices
_PRICES = "input_usd_per_mtok", "output_usd_per_mtok", "cached_input_usd_per_mtok", "cached"
_PRICES += "usd_per_s", "batch", "others"
# What a run writes after its settings, under names that a file of the user may have.
_LATER = "queries.json", "trace.csv", "result.json", "check.json", "recheck.json"
_MEND = f"Restore them, or choose {ANOTHER_RUN_DIR}"


def open_run_dir(
    run_dir: Path, settings: dict[str, Any], evaluator: Evaluator, root: Path | None = None
) -> Journal:
    """Makes or reopens the directory of a run; returns its journal.

    Args:
        run_dir: The directory.
        settings: Everything that decides the run. If the directory holds a run, its settings must
            be the same, except that the budget may be larger now.
        evaluator: Of the run. What it observes for free may be written many at once.
        root: What a later search can continue from; None for `run_dir`.

    Raises:
        InputError: If the directory cannot be written, is damaged, or holds a run with other
            settings or files of no run, or if the evaluator cannot tell its queries from others.
    """
    _refuse_files_of_no_run(run_dir)
    path = run_dir / "journal.jsonl"
    if (run_dir / "settings.json").exists() and not path.exists():  # it was there before these
        raise InputError(
            f"{path} is missing, and with it every call that was paid for; restore it, or move "
            f"{run_dir} away and begin anew"
        )
    described = query_facts(evaluator)
    make_folder(run_dir)
    journal = Journal(path, not getattr(evaluator, "free", False))
    try:
        _update_settings(run_dir, settings, journal, evaluator, root or run_dir)
        if described:  # also of a run that an earlier version described
            _write(run_dir / "queries.json", described)
    except BaseException:
        journal.close()
        raise
    return journal


def begin(run_dir: Path, problem: dict[str, Any], evaluator: Evaluator) -> None:
    """Notes what a selection is about, so that one that ends early can be continued from.

    Args:
        run_dir: The directory.
        problem: As in the settings of a run.
        evaluator: Of its search.

    Raises:
        InputError: See `open_run_dir`.
    """
    _refuse_files_of_no_run(run_dir)
    described = query_facts(evaluator)
    settings: dict[str, Any] = {
        "problem": problem,
        "optimizer": {"name": "begun"},
        "evaluator": evaluator.fingerprint(),
        "budget_usd": 0.0,
        _KEEPS: isinstance(evaluator, KeepsAnswers) and evaluator.deterministic,
    }
    settings = json.loads(json.dumps(settings))
    for name, parts in _BEFORE.items():
        if (run_dir / name).exists():
            old = with_fingerprint_of_today(read_settings(run_dir / name), evaluator)
            _check_settings((run_dir / name).parent, old, settings, evaluator, run_dir, parts)
    describe_prices(run_dir, evaluator)
    _write(run_dir / BEGUN, settings)
    if described:
        _write(run_dir / "queries.json", described)


def keeps_answers(run_dir: Path) -> bool:
    """Whether an answer that was known when a run began was given again without a call.

    Early versions did not say so, and did.
    """
    begun = run_dir / BEGUN
    return not begun.exists() or read_json(begun).get(_KEEPS, True)


def describe_prices(run_dir: Path, evaluator: Evaluator, may_change: bool = False) -> None:
    """Writes the prices that a later search must know; a run that is resumed keeps its own.

    Args:
        run_dir: The directory.
        evaluator: Of the run.
        may_change: Whether costs at other prices may follow; then the file says of which LLMs.

    Raises:
        InputError: If the file cannot be written, or an LLM had another price when the run began.
    """
    path = run_dir / "prices.json"
    prices = evaluator.describe_prices() if isinstance(evaluator, HasPrices) else None
    facts = facts_of(run_dir, path.name)
    then, several = facts.get("prices", {}), set[str](facts.get(SEVERAL, ()))
    for llm, now in (prices or {}).items():
        old = then.get(llm, now)
        # An early version did not say the others.
        known = {"others": now.get("others"), **old}
        changed = [name for name in _PRICES if known.get(name) != now.get(name)]
        if changed and may_change:
            several.add(llm)
        elif changed and not _is_other_day(run_dir, old, now):
            changed += ["source"] if old.get("source") != now.get("source") else []
            both = ", ".join(f"{name} was {old.get(name)}, now {now.get(name)}" for name in changed)
            today = "known answers then cost what they do today, or are asked again if nobody knows"
            raise InputError(
                f"{run_dir} began with other prices of {llm!r}: {both}. Restore them, or "
                f"{_going_on(run_dir, f'{today} that')}"
            )
    if prices is not None and (not path.exists() or len(several) > len(facts.get(SEVERAL, ()))):
        mixed = {SEVERAL: sorted(several)} if several else {}
        _write(path, {"prices": then or prices, **mixed})


def _is_other_day(run_dir: Path, old: dict[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether these are published prices of two days, which are compared elsewhere."""
    if "at" not in old or "at" not in now or old["at"] == now["at"]:
        return False  # a release may correct the prices of a day
    return any((run_dir / part / "settings.json").exists() for part in DATED)


def day_of_prices(run_dir: Path) -> str | None:
    """The day of a run's published prices; None if it has none, or each look has its own."""
    path, facts = run_dir / "settings.json", facts_of(run_dir, "prices.json")
    if path.exists() and read_settings(path)["optimizer"]["name"] == "recheck":
        return None
    return next((one["at"] for one in facts.get("prices", {}).values() if "at" in one), None)


def query_facts(evaluator: Evaluator) -> dict[str, Any]:
    """Content of `queries.json`: a key of each query, and their numbers in the data set.

    Raises:
        InputError: If a query cannot be told from others.
    """
    keys = evaluator.query_keys() if isinstance(evaluator, HasQueryKeys) else None
    if keys is None:
        return {}
    queries: Sequence[Any] = getattr(evaluator, "queries", range(len(keys)))
    numbers = [number_of(one, index) for index, one in enumerate(queries)]
    in_order = numbers == list(range(len(keys)))
    return {"queries": keys, **({} if in_order else {"numbers": numbers})}


def number_of(query: Any, index: int) -> int:
    """Where a query stands in the data set that it was taken from."""
    number = getattr(query, "number", index)
    return number if isinstance(number, int) else index


def facts_of(run_dir: Path, file: str) -> dict[str, Any]:
    """Content of `queries.json` or `prices.json`; empty if there is none."""
    path = run_dir / file
    return read_json(path) if path.exists() else {}


def with_fingerprint_of_today(old: dict[str, Any], evaluator: Evaluator) -> dict[str, Any]:
    """Settings; if an earlier version recorded the same evaluator, as this one would."""
    earlier = evaluator.earlier_fingerprints() if isinstance(evaluator, HasPast) else []
    return {**old, "evaluator": evaluator.fingerprint()} if old["evaluator"] in earlier else old


def _refuse_files_of_no_run(run_dir: Path) -> None:
    """Refuses a folder of the user in which a run would replace files."""
    if any((run_dir / name).exists() for name in (BEGUN, "settings.json", "journal.jsonl")):
        return
    for name in _LATER:
        if (run_dir / name).is_file():
            raise InputError(
                f"{run_dir / name} is of no run, and a run would replace it; choose another "
                "folder, or move the file away"
            )


def _write(path: Path, content: dict[str, Any]) -> None:
    if not path.exists() or read_json(path) != content:
        make_folder(path.parent)
        write_json(path, content, private=True)


def _update_settings(
    run_dir: Path, settings: dict[str, Any], journal: Journal, evaluator: Evaluator, root: Path
) -> None:
    """Checks the settings against `settings.json`, and has them written there.

    A larger budget is only written with the first new observation, or at the end: if the search
    cannot go on, as when a tracker is out of reach, its result stays what it was.
    """
    path = run_dir / "settings.json"
    settings = json.loads(json.dumps(settings, sort_keys=True))  # tuples become lists, as there
    if path.exists():
        old = read_settings(path)
        today = with_fingerprint_of_today(old, evaluator)
        _check_settings(run_dir, today, settings, evaluator, root)
        if today["evaluator"] != old["evaluator"]:
            logger.warning(
                "%s is of a version that recorded less of the metric and the queries: they are "
                "taken to be those of today (%s)",
                run_dir,
                today["evaluator"],
            )

        def go_on() -> None:
            if finished_summary(run_dir, settings) is None:
                # What it was when its budget or time was over says nothing now.
                (run_dir / "result.json").unlink(missing_ok=True)
            write_json(path, settings)

        if settings["budget_usd"] == old["budget_usd"]:
            go_on()
        else:
            journal.before_first = go_on
        return
    if journal.recorded:
        raise InputError(f"{path} is missing, so {journal.path} cannot be resumed; move it away")
    write_json(path, settings)


def _check_settings(
    run_dir: Path,
    old: dict[str, Any],
    new: dict[str, Any],
    evaluator: Evaluator,
    root: Path,
    only: Sequence[str] = (),
) -> None:
    """Refuses any change but a larger budget, whose search begins with the recorded one."""
    keys: list[str] = []
    mend, evaluators = _MEND, list[str]()
    for key, before, after in differences(old, new):
        if only and not key.startswith(tuple(only)):
            continue
        if key == "evaluator" and isinstance(before, str):
            evaluators = _in_words(run_dir, before, evaluator)
            if _grading(before) != _grading(after):
                mend = _mend_of_metric(_grading(before), _grading(after), root)
        elif not (key == "budget_usd" and isinstance(before, float) and after > before):
            keys.append(key)
    keys.sort(key=lambda key: not key.startswith("problem."))  # the others follow from it
    changed = [*evaluators, *in_words(old, new, keys, (run_dir / BEGUN).exists())]
    if changed:
        raise InputError(
            f"{run_dir} holds a run with other settings: {'; '.join(changed[:3])}. {mend}"
        )


def _mend_of_metric(before: str, now: str, root: Path) -> str:
    """How a search goes on whose metric is another one, or seems to be."""
    is_same = before.rpartition(" ")[0] == now.rpartition(" ")[0] != ""
    anew = "the kept outputs are then graded anew, without a call"
    filled = (
        ". If it only holds something else now, such as answers that it remembers, begin a new "
        "process, and give new runs metric_version="
    )
    return f"Restore the metric, or {_going_on(root, anew)}{filled if is_same else ''}"


def _going_on(root: Path, more: str) -> str:
    """How a run goes on in another directory, and what that means; pilots alone are no run."""
    if not any((root / name).exists() for name in (BEGUN, "settings.json")):
        return f"choose {ANOTHER_RUN_DIR}"
    return f"give continue_from={str(root)!r} and another run_dir: {more}"


def graded_otherwise(before: str, evaluator: Evaluator, path: Path) -> bool:
    """Whether the metric of a run's fingerprint is another one; one not recorded is the same."""
    now = _grading(evaluator.fingerprint())
    if not _grading(before) and now:
        logger.warning("%s did not record its metric: it is taken for that of today", path)
        return False
    earlier = evaluator.earlier_fingerprints() if isinstance(evaluator, HasPast) else []
    return _grading(before) not in (now, *map(_grading, earlier))


def _grading(fingerprint: str) -> str:
    return fingerprint.partition(GRADED)[2]


def _in_words(run_dir: Path, before: str, evaluator: Evaluator) -> list[str]:
    """What changed since a fingerprint."""
    now = evaluator.fingerprint()
    words: list[str] = []
    old, new = (one.partition(GRADED)[0] for one in (before, now))
    names = [one.rpartition("-")[0] for one in (old, new)]
    if all(names) and names[0] != names[1]:
        words.append(f"the name was {names[0]!r}, now {names[1]!r}")
    elif old != new:
        words += _of_queries(run_dir, evaluator)
    if _grading(before) != _grading(now):
        were = _grading(before) or "not recorded"
        words.append(f"the metric was {were}, now {_grading(now) or 'that of the app itself'}")
    return words or [f"evaluator was {before!r}, now {now!r}"]


def _of_queries(run_dir: Path, evaluator: Evaluator) -> Iterator[str]:
    """Which queries changed, if their keys are known."""
    today = query_facts(evaluator)
    new: list[str] = today.get("queries", [])
    folders = [run_dir, *([run_dir.parent] if run_dir.name in _PARTS else [])]
    facts = [facts_of(folder, "queries.json") for folder in folders]
    then = next((one for one in facts if one.get("queries")), {})
    old = then.get("queries")
    if not new or old is None:
        return
    drawn = " (holdout= and seed= decide which are searched)"
    drawn = drawn if "numbers" in today or "numbers" in then else ""
    if old == new:
        if drawn:
            yield f"other elements of the data set, which are alike, are searched{drawn}"
        return
    left, fresh = Counter(old), list[int]()
    for query, key in enumerate(new):
        if left[key]:
            left[key] -= 1
        else:
            fresh.append(query)
    if not fresh and len(old) == len(new):
        yield "the queries stand in another order"
        return
    such = f", such as {_shown(evaluator, fresh[0])}" if fresh else ""
    changed = f"{len(fresh)} of {len(new)} queries are new or changed{such}"
    yield f"{changed}; gone: {left.total()}{drawn}"


def _shown(evaluator: Evaluator, query: int) -> str:
    queries: Sequence[Any] = getattr(evaluator, "queries", ())
    if not len(queries):
        return f"query {query}"
    one = queries[query]
    return f"query {number_of(one, query)}, {reprlib.repr(getattr(one, 'input', one))}"
