"""Measures given pairs once and for good: the reference before a search, the choice after it."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.observation import Observation, Request
from scope_torch.runs.deadline import Deadline
from scope_torch.runs.directory import read_json, read_settings
from scope_torch.runs.evaluator import Evaluator, KeepsAnswers
from scope_torch.runs.opening import open_run_dir
from scope_torch.runs.source import ObservationSource

if TYPE_CHECKING:
    from scope_torch.bounds.repeats import Repeats

_NAME, _REPEATS = "measure", "repeats.json"
_ALMOST = 1 - 1e-9  # of what is enough: sums are rounded


class TooDear(InputError):
    """A measurement would cost more than its budget.

    Attributes:
        spent_usd: What was paid, with the calls that were in flight.
        number: For so many pairs.
        expected_usd: What all pairs would cost.
    """

    def __init__(self, paid: Sequence[Observation], num_pairs: int) -> None:
        self.spent_usd = math.fsum(observation.paid_usd for observation in paid)
        self.number = len(paid)
        self.expected_usd = self.spent_usd / self.number * num_pairs
        super().__init__(
            f"{self.spent_usd:.3g} USD were paid for {self.number} of {num_pairs} pairs, so all "
            f"cost about {self.expected_usd:.3g} USD, which is more than is left"
        )


class TimeIsOver(InputError):
    """The time was over before a measurement had all its pairs."""

    def __init__(self, number: int, num_pairs: int, folder: Path | None, limit: object) -> None:
        what = "the measurement" if folder is None else folder.name
        kept = "give run_dir to keep them" if folder is None else "the same call goes on"
        super().__init__(
            f"time_limit={limit!r} was over after {number} of {num_pairs} answers of {what}; {kept}"
        )


def measure(
    evaluator: Evaluator,
    requests: Sequence[Request],
    *,
    folder: Path | None = None,
    facts: Mapping[str, Any] | None = None,
    observed: Callable[[Observation], None] | None = None,
    budget_usd: float = math.inf,
    first: Sequence[int] = (),
    deadline: Deadline | None = None,
    enough: int | None = None,
) -> list[Observation]:
    """Observes pairs, in the asked order.

    With `folder` each observation is on disk before the next one is used, and the same call never
    asks for it again. An evaluator that keeps answers takes in those that were known.

    Args:
        evaluator: Makes the observations.
        requests: The pairs.
        folder: Directory of `journal.jsonl` and `settings.json`; None writes no files.
        facts: Further settings, JSON-serialisable; the same folder is only used with the same ones.
        observed: Called for each observation, in the asked order. What it raises ends the
            measurement after the calls in flight, which are kept.
        budget_usd: In USD. No more calls are in flight than it pays for.
        first: So many pairs are observed before all others: as `(1, 1)`, one, then another one.
        deadline: When no further call starts; what is known already is taken in all the same.
        enough: So many pairs, or as many of them as budget and time pay for, if each costs what
            they have cost on average: all that was paid for is returned then, in the place of
            TimeIsOver or TooDear. None: all pairs.

    Raises:
        TimeIsOver: If pairs are left then.
        TooDear: If all pairs would cost more than the budget, by two or more that were observed:
            after each part of `first`, or as soon as the budget is spent.
        InputError: If the folder cannot be written, or holds a measurement of another evaluator or
            of other pairs.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task(num_queries=20)
        >>> theta_0 = task.problem.theta_ref
        >>> found = measure(task.evaluator, [Request(theta_0, query) for query in range(3)])
        >>> [observation.query for observation in found]
        [0, 1, 2]
    """
    journal = None
    if folder is not None:
        settings = _settings(evaluator, requests, facts or {})
        journal = open_run_dir(folder, settings, evaluator, folder.parent)
    try:
        if journal is not None and isinstance(evaluator, KeepsAnswers):
            evaluator.remember(journal.recorded)
        source = ObservationSource(evaluator, journal, deadline=deadline)
        found: list[Observation] = []
        left_usd = budget_usd

        def is_over() -> bool:
            if enough is not None:
                spent_usd = math.fsum(one.paid_usd for one in found)
                if left_usd <= 0 or left_usd * len(found) < _ALMOST * spent_usd:
                    return True
            if deadline is None or not source.is_late or len(found) == len(requests):
                return False
            if enough is None:
                raise TimeIsOver(len(found), len(requests), folder, deadline.limit)
            return True

        for part in _parts(requests[:enough], first):
            if is_over():
                break
            with contextlib.closing(source.observe(part, left_usd)) as observations:
                for observation in observations:
                    found.append(observation)
                    left_usd -= observation.paid_usd
                    if observed is not None:
                        observed(observation)
                    if left_usd <= 0 or is_over():
                        break
            if source.is_cut and is_over():
                break
            if enough is None:
                too_dear = TooDear(source.paid, len(requests))
                is_known = too_dear.number > 1 or left_usd <= 0  # one run says little of others
                if is_known and too_dear.expected_usd >= budget_usd:
                    raise too_dear
        return found if enough is None else source.paid
    finally:
        if journal is not None:
            journal.close()


def _parts(requests: Sequence[Request], first: Sequence[int]) -> Iterator[Sequence[Request]]:
    """Those that are observed together; none is empty."""
    for number in (*first, len(requests)):
        if requests:
            yield requests[:number]
            requests = requests[number:]


def keep_repeats(folder: Path, repeats: Repeats) -> None:
    """Keeps both answers of the queries that were asked twice.

    Raises:
        InputError: If the file cannot be written.
    """
    content = {"first": list(repeats.first), "second": list(repeats.second)}
    write_atomically(folder / _REPEATS, json.dumps(content) + "\n")


def repeats_in(folder: Path) -> Repeats | None:
    """What `keep_repeats` has written into a directory; None if nothing.

    Raises:
        InputError: If the file is damaged.
    """
    from scope_torch.bounds.repeats import Repeats  # its package imports gpytorch: seconds

    path = folder / _REPEATS
    if not path.exists():
        return None
    content = read_json(path)
    return Repeats(tuple(content["first"]), tuple(content["second"]))


def is_measurement(settings: Mapping[str, Any]) -> bool:
    """Whether these are the settings of a measurement or a check, not of a search."""
    optimizer = settings.get("optimizer")
    name = optimizer.get("name") if isinstance(optimizer, dict) else None
    return name in (_NAME, "check", "recheck")


def is_part(folder: Path) -> bool:
    """Whether a directory holds a measurement or a check, not a search."""
    try:
        return is_measurement(read_settings(folder / "settings.json"))
    except (FileNotFoundError, InputError):
        return False


def _settings(
    evaluator: Evaluator, requests: Sequence[Request], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What is measured, in the form of a run's settings."""
    thetas = sorted({request.theta for request in requests})
    return {
        "problem": {"thetas": json.loads(json.dumps(thetas)), "num_pairs": len(requests), **facts},
        "optimizer": {"name": _NAME},
        "evaluator": evaluator.fingerprint(),
        "budget_usd": 0.0,
    }
