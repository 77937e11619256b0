"""What differs between the settings of two runs, in the words of who wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_CALLED = {"thetas": "the configurations that are asked first", "num_pairs": "the number of runs"}
_CALLED_BY_SELECT = {"epsilon": "max_quality_loss"}
_MENDED = (
    "batch_size",
    "in_flight",
    "seed",
    "budget_usd",
    "epsilon",
    "max_quality_loss",
    "base",
    "deployment_queries",
    "reference_queries",
)
_WIDTHS = "in_flight", "batch_size"
_ONLY_DIGESTS = "allowed", "offered"
# What it means if they are not there, as in searches of version 0.1.0.
OF_0_1: Mapping[str, Any] = {
    "calibration_queries": None,
    "verify": 0,
    "cost_scale": "least_squares",
}
_FLIPS = "sequence_flips", "sequence_passes", "sequence_variance"  # all from one argument


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys with dots, old values and new values, wherever nested settings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            dotted = f"{prefix}.{key}" if prefix else key
            yield from differences(old.get(key), new.get(key), dotted)
    elif old != new:
        yield prefix, old, new


def in_words(
    old: Mapping[str, Any], new: Mapping[str, Any], keys: Sequence[str], of_selection: bool
) -> Iterator[str]:
    """A sentence for each setting that changed.

    Args:
        old: Settings of a run.
        new: Those of today.
        keys: Those that differ, with dots.
        of_selection: Whether `select` made them: its budget is then more than that of the search.

    Examples:
        >>> old = {"problem": {"modules": ["plan"], "llms": [["nano", "pro"]], "theta_ref": [1]}}
        >>> new = {"problem": {"modules": ["plan"], "llms": [["nano", "pro"]], "theta_ref": [0]}}
        >>> list(in_words(old, new, ["problem.theta_ref"], of_selection=True))
        ['the reference was plan=pro, now plan=nano']
    """
    has_loss = of_selection or _value(old, "optimizer.name") in ("check", "recheck")
    for key in keys:
        before, after = _value(old, key), _value(new, key)
        name = key.rpartition(".")[2]
        if name == "in_flight":  # not there if it is 1
            before, after = before or 1, after or 1
        before, after = (OF_0_1.get(name) if of is None else of for of in (before, after))
        if name in _WIDTHS and before == 1 and sum(one.endswith(_WIDTHS) for one in keys) > 1:
            continue  # the other one was given: one mend
        name = (_CALLED | (_CALLED_BY_SELECT if has_loss else {})).get(name, name)
        if key == "problem.llms":
            yield from _of_llms(old, new)
        elif key == "problem.theta_ref" or name == "base":
            of, now = _named(old, before), _named(new, after)
            if of != now:
                yield f"{'the reference' if name == 'theta_ref' else name} was {of}, now {now}"
        elif name in _ONLY_DIGESTS:
            yield f"the rule {name}= is another one"
        elif name in _FLIPS:
            if name == next(one.rpartition(".")[2] for one in keys if one.endswith(_FLIPS)):
                yield "answers were taken to vary otherwise (repeat=, certificate_flips=)"
        elif name == "call_usd":
            yield from _of_hour(old, new)
        elif name == "budget_usd" and of_selection:
            yield f"{before:.3g} USD were left for the search, now {after:.3g} (raise budget_usd)"
        elif name == _CALLED["thetas"]:
            yield f"{name} are others (reference=, models= and allowed= decide which)"
        else:
            mend = f" (pass {name}={before!r})" if name in _MENDED else ""
            yield f"{name} was {before!r}, now {after!r}{mend}"


def _of_hour(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """An hour costs what a call does, times the calls at a time, over the seconds of a run."""
    before, after = (
        math.prod([_value(of, f"optimizer.{name}") or 1 for name in _WIDTHS])
        * (_value(of, "optimizer.call_usd") or 0.0)
        for of in (old, new)
    )
    if not (before and after):
        yield "hour_usd was given, now it is not" if before else "hour_usd was not given, now it is"
    elif not math.isclose(before, after):
        yield f"hour_usd was {before / after:.4g} times what it is now"


def _value(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def _of_llms(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """By module, where there are the same."""
    was, now = _llms(old), _llms(new)
    for module in was:
        if module in now and was[module] != now[module]:
            yield f"the LLMs of {module!r} were {was[module]}, now {now[module]}"


def _llms(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    problem = settings["problem"]
    return dict(zip(problem["modules"], problem["llms"], strict=True))


def _named(settings: Mapping[str, Any], codes: Any) -> str:
    """A configuration by its LLMs, where it is one."""
    llms = _llms(settings) if "modules" in settings["problem"] else {}
    if not isinstance(codes, list) or len(codes) != len(llms):
        return repr(codes)
    pairs = zip(llms.items(), codes, strict=True)
    return ", ".join(f"{module}={names[code]}" for (module, names), code in pairs)
