"""The hashes of `settings.json` and `result.json`: 16 hex digits of a SHA-256.

It is that of JSON with sorted keys. `result_hash` covers what equal runs share, `timing.hash` the
rest of `result.json`: `timing`, `paths`, and what was paid for calls that the search did not use.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_VOLATILE = "timing", "paths"  # keys of result.json that equal runs do not share
# Nor these: which calls are in flight at the end depends on how long each takes.
_UNUSED = "surplus_usd", "surplus", "lost_usd", "num_lost"


def settings_hash(settings: dict[str, Any]) -> str:
    """16 hex digits that identify the settings of a run."""
    canonical = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def hash_of_written(values: dict[str, Any]) -> str:
    """The hash of values before they are written and after they are read: all keys are text."""
    return settings_hash(json.loads(json.dumps(values)))


def with_hashes(result: dict[str, Any], unused: tuple[str, ...] = _UNUSED) -> dict[str, Any]:
    """Adds `result_hash` over all that equal runs share, and `timing.hash` over the rest.

    There are two, so that a damaged name of one of these keys does not pass for an early version.

    Args:
        result: Content of `result.json`, with hashes or without.
        unused: Keys that `timing.hash` covers, besides `timing` and `paths`.
    """
    stable = {k: v for k, v in result.items() if k not in (*_VOLATILE, "result_hash")}
    volatile = {k: dict(result[k]) for k in _VOLATILE}
    volatile["timing"].pop("hash", None)
    rest = {k: v for k, v in stable.items() if k in unused}
    shared = {k: v for k, v in stable.items() if k not in unused}
    volatile["timing"]["hash"] = hash_of_written(volatile | rest)
    return {**stable, "result_hash": hash_of_written(shared), **volatile}


def matches_hashes(result: dict[str, Any]) -> bool:
    """Whether the content of a `result.json` is what was written, today or by earlier versions."""
    return result in (with_hashes(result), with_hashes(result, unused=()))
