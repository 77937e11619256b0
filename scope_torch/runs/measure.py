"""Measures given pairs once and for good: the reference before a search, the choice after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_torch.observation import Observation, Request
from scope_torch.runs.evaluator import Evaluator, KeepsAnswers
from scope_torch.runs.opening import open_run_dir
from scope_torch.runs.source import ObservationSource

_NAME = "measure"


def measure(
    evaluator: Evaluator,
    requests: Sequence[Request],
    *,
    folder: Path | None = None,
    facts: Mapping[str, Any] | None = None,
    observed: Callable[[Observation], None] | None = None,
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

    Raises:
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
        found: list[Observation] = []
        observations = ObservationSource(evaluator, journal).observe(requests)
        try:
            for observation in observations:
                found.append(observation)
                if observed is not None:
                    observed(observation)
        finally:
            observations.close()
        return found
    finally:
        if journal is not None:
            journal.close()


def is_measurement(settings: Mapping[str, Any]) -> bool:
    """Whether these are the settings of a measurement, not of a run."""
    return settings["optimizer"]["name"] == _NAME


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
