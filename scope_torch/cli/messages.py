"""What the command line prints: errors and results as a few lines of text."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from scope_torch.cli import COMMANDS
from scope_torch.cli.quoting import is_sweep, quoted
from scope_torch.cli.schema import (
    BoundsConfig,
    JointBoundsConfig,
    ScopeConfig,
    ScopeJointConfig,
)
from scope_torch.cli.task_schema import SimulatedTaskConfig, TableTaskConfig
from scope_torch.errors import InputError
from scope_torch.results.words import stop_in_words

KEYS = "`scope-torch --cfg job` lists the keys"
_OPTIONS = re.compile(r"Available options in '[^']*':((?:\n\t\S+)+)")  # of Hydra
_NOT_FOUND = re.compile(r"Could not find '(?:[^']*/)?([^'/]+)'")
_APPEND = "To append to your config use +"  # Hydra's advice, which `refuse_new_keys` refuses
_HINTS = {  # words of Hydra: how to mend it
    _APPEND: KEYS,
    "missing EQUAL": f"write KEY=VALUE, or begin with a command: run, {', '.join(COMMANDS)}",
}
_KEYS_OF_SCOPE = {  # which scope_joint, the default, does not have
    "ScopeJointConfig": ScopeConfig.__dataclass_fields__,
    "JointBoundsConfig": BoundsConfig.__dataclass_fields__,
}
_GROUPS = {  # whose keys may be given as if they were no group's
    "task": {**SimulatedTaskConfig.__dataclass_fields__, **TableTaskConfig.__dataclass_fields__},
    "method.bounds": {
        **BoundsConfig.__dataclass_fields__,
        **JointBoundsConfig.__dataclass_fields__,
    },
    "method": {**ScopeConfig.__dataclass_fields__, **ScopeJointConfig.__dataclass_fields__},
}
_NO_KEY = re.compile(r"Error parsing override '([^'=]*)'\s+missing EQUAL")  # of Hydra
_FREE_KEY = re.compile(r"full_key: ((?:task\.data|task\.system|llm\.extra_body)\.\w+)")
_OF_SWEPT = re.compile(r"you wrote ((method|kernel|tracking)\.[\w.]+)=([^;\s]+)")
_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.*)'")  # of Hydra
_LAUNCHER = re.compile(r"hydra/launcher/(joblib|submitit|ray)")
_EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit": "slurm", "ray": "ray"}


def nearest(word: str, known: Iterable[str]) -> str:
    """The part of a message that suggests the known word nearest to a mistyped one; or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def message_of(error: BaseException) -> str:
    """One line about an error that the user can mend: what is wrong, and what to do."""
    told = [error] if isinstance(error, InputError) else [error, error.__cause__]
    lines = [line.strip() for e in told if e is not None for line in str(e).splitlines()[:2]]
    lines = [line.replace(_APPEND, "you wrote ") for line in lines if line]
    lines += [hint for words, hint in _HINTS.items() if words in str(error)]
    if command := _NO_KEY.search(str(error)):
        lines.append(nearest(command[1], ("run", *COMMANDS)).removeprefix("; "))
    if options := _OPTIONS.search(str(error)):
        names = options[1].split()
        mistyped = _NOT_FOUND.search(str(error))
        lines.append(
            "there are " + ", ".join(names) + nearest(mistyped[1] if mistyped else "", names)
        )
    lines += [_nearest_key(e) for e in told if isinstance(e, OmegaConfBaseException)]
    in_sweep = is_sweep(sys.argv)
    lines += [f"a name goes into quotes: {quoted(one, in_sweep)}" for one in _unread(error)]
    lines += [f"write +{key}" for key in _FREE_KEY.findall(" ".join(lines))]
    for key, group, value in _OF_SWEPT.findall(" ".join(lines)):
        if any(re.match(rf"{group}=.*,", word) for word in sys.argv):  # read with the default one
            lines.append(f"if each of {group}=... has it, write '{key}=choice({value})'")
    if missing := _LAUNCHER.search(str(error)):
        lines.append(f"pip install 'scope-torch[{_EXTRA_OF_LAUNCHER[missing[1]]}]'")
    return "; ".join(filter(None, lines)) or type(error).__name__


def _unread(error: BaseException) -> list[str]:
    """The override that Hydra could not read, if it has a value."""
    ambiguous = _AMBIGUOUS.match(str(error))
    override = ambiguous[1] if ambiguous else getattr(error, "override", None)
    return [override] if override is not None and override.partition("=")[2] else []


def _nearest_key(error: OmegaConfBaseException) -> str:
    """The nearest key, if the error is about one that the schema does not have."""
    known = getattr(error.object_type, "__dataclass_fields__", {})
    word = str(error.key)
    name = getattr(error.object_type, "__name__", "")
    if word not in known and word in _KEYS_OF_SCOPE.get(name, ()):
        return "it is a key of scope: add method=scope"
    group = next((group for group, keys in _GROUPS.items() if word in keys), "")
    if name == "Config" and word not in known and group:
        return f"did you mean '{group}.{word}'?"
    return "" if word in known else nearest(word, known).removeprefix("; ")


def describe(summary: dict[str, Any], folder: Path) -> str:
    """The content of `result.json` in three or four lines, and the folder where it is now."""
    llms = ", ".join(f"{module}: {llm}" for module, llm in summary["theta_out"].items())
    relative = ""
    if summary["true_cost_usd"] is not None:
        ratio = summary["true_cost_usd"] / summary["reference_cost_usd"]
        verdict = "feasible" if summary["feasible"] else "NOT feasible"
        of_quality = ""
        if summary.get("objective") == "quality":
            of_quality = f", true quality {summary['true_quality']:.3g}"
        relative = f"\n  true cost {ratio:.1%} of the reference{of_quality}, {verdict}"
    basis = summary["basis"]
    if summary.get("certificate") == "sequence":
        basis += f" by its answers at delta={summary['delta']:g}" if basis == "certified" else ""
    elif summary.get("certificate") == "population":
        basis += f" for tomorrow at delta={summary['delta']:g}" if basis == "certified" else ""
    elif summary.get("mode") == "theory":
        basis += ", theory bounds"
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return (
        f"{summary['task']} {summary['method']} seed {summary['seed']}: {llms}"
        f"\n  {basis}; spent {summary['spend_usd']:.3g} USD on {summary['num_observations']} "
        "observations; "
        f"stopped: {stop_in_words(summary['stop_reason'])}{relative}"
        f"\n  {folder}"
    )
