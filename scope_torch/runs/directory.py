"""The directory of a run: its settings, its journal, its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.observation import unique_keys
from scope_torch.results.hashes import hash_of_written, matches_hashes, settings_hash
from scope_torch.runs.deadline import TIME_IS_OVER

_MEND = "restore it, or move it away"
_MEND_SETTINGS = "restore it, or move the directory away"
_MEND_RESULT = (
    "move it away and run the same command again: it writes the file anew from the journal and "
    "pays for nothing"
)
_NUMBER = (int, float)
# Kinds of the values that the readers of these files rely on.
_RESULT = {
    "task": str, "method": str, "theta_out": dict, "theta_out_codes": list, "basis": str,
    "reference_cost_usd": _NUMBER, "s_0": _NUMBER, "budget_usd": _NUMBER, "spend_usd": _NUMBER,
    "num_queries": int, "num_observations": int, "stop_reason": str, "settings_hash": str,
    "timing": dict, "paths": dict,
}  # fmt: skip
_SETTINGS = {"problem": dict, "optimizer": dict, "evaluator": str, "budget_usd": _NUMBER}


def read_json(path: Path, mend: str = _MEND) -> dict[str, Any]:
    """Content of a JSON file of a run, compared with its hash; early versions wrote none.

    Args:
        path: The file.
        mend: End of the error message: what to do if the file is damaged.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If it cannot be read, or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text("utf-8"), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); {mend}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged (it is no JSON object); {mend}")
    if "hash" in content and content.pop("hash") != settings_hash(content):
        raise InputError(f"{path} is damaged (its content does not match its hash); {mend}")
    return content


def write_json(path: Path, content: dict[str, Any], *, private: bool = False) -> None:
    """Writes a JSON file of a run with the hash of its content, for `read_json`.

    Args:
        path: The file.
        content: Without a key `hash`.
        private: See `write_atomically`.

    Raises:
        InputError: If the file cannot be written.
    """
    text = json.dumps({**content, "hash": hash_of_written(content)}, indent=2)
    write_atomically(path, f"{text}\n", private=private)


def read_settings(path: Path) -> dict[str, Any]:
    """Content of `settings.json`.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If it cannot be read, or a key is missing or has a value of another kind.
    """
    settings = read_json(path, _MEND_SETTINGS)
    wrong = _of_another_kind(settings, _SETTINGS)
    wrong = wrong or _of_another_kind(settings["optimizer"], {"name": str})
    if wrong:
        raise InputError(f"{path} describes no problem and method ({wrong}); {_MEND_SETTINGS}")
    return settings


def read_result(path: Path) -> dict[str, Any]:
    """Content of `result.json`, compared with its hashes; early versions wrote none.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If it cannot be read, or is not what a run has written.
    """
    result = read_json(path, _MEND_RESULT)
    wrong = _of_another_kind(result, _RESULT)
    hashed = not wrong and ("result_hash" in result or "hash" in result["timing"])
    if hashed and not matches_hashes(result):
        wrong = "its content does not match its hashes"
    if wrong:
        raise InputError(f"{path} is damaged ({wrong}); {_MEND_RESULT}")
    return result


def result_of(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Content of `result.json` of a run with these settings, as its `settings.json` gives them.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If it is damaged, or is the result of other settings.
    """
    result = read_result(run_dir / "result.json")
    if result["settings_hash"] != settings_hash(settings):
        raise InputError(
            f"{run_dir / 'settings.json'} is damaged (result.json belongs to other settings); "
            f"{_MEND_SETTINGS}"
        )
    return result


def finished_summary(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Content of `result.json` if a run with these settings has finished in `run_dir`.

    None if the file is damaged: the search then writes it anew from the journal, without paying. A
    search whose time was over has not finished: it goes on.
    """
    try:
        summary = read_result(run_dir / "result.json")
    except (FileNotFoundError, InputError):
        return None
    is_same = summary["settings_hash"] == settings_hash(settings)
    return summary if is_same and summary["stop_reason"] != TIME_IS_OVER else None


def _of_another_kind(values: dict[str, Any], kinds: Mapping[str, type | tuple[type, ...]]) -> str:
    """The first key that is missing or has a value of another kind, in words; "" if none has."""
    for key, kind in kinds.items():
        if not isinstance(values.get(key), kind):
            return f"{key} is missing" if key not in values else f"{key}={values[key]!r}"
    return ""
