"""Names of LLMs, columns and files that Hydra or YAML would read as something else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from scope_torch.errors import InputError

_NAMES = re.compile(
    r"\+{0,2}(base|task\.(reference|llms|module_columns|\w+_column))=(.*)", re.DOTALL
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_PART = re.compile(rf"(?:{_QUOTED.pattern}|[^,'\"])+")  # of a list: commas in quotes end none
_LIST = re.compile(rf"\[(?:{_QUOTED.pattern}|[^\]'\"])*\]")
_IN_DICT = re.compile(rf"{_QUOTED.pattern}|[^\[\]{{}},:]+")
_NULL = re.compile(r"(?<=[\[,])\s*(null)\s*(?=[\],])", re.IGNORECASE)  # in a list
_TOKEN = re.compile(r"[^\[\]{},()]+")
_PLAIN = re.compile(r"[\w./@%+$*|?: -]*", re.ASCII)  # needs no quotes; a ü does


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether a comma outside a list parts the values of a sweep."""
    return not {"-m", "--multirun"}.isdisjoint(arguments)


def quoted(override: str, in_sweep: bool = False) -> str:
    """An override with quotes around what needs them, for a shell; in a sweep around each value.

    Examples:
        >>> print(quoted("base=gpt (a)"), quoted("base=[nano,gpt(a)]"))
        'base="gpt (a)"' 'base=[nano,"gpt(a)"]'
    """
    key, _, value = override.partition("=")
    if value[:1] == "[":
        lists = _LIST.findall(value)  # several are those of a sweep
        lists = lists if ",".join(lists) == value else [value]
        lists = [_NULL.sub(r'"\1"', one).strip("[]") for one in lists]
        value = ",".join(f"[{_each_in_quotes(names)}]" for names in lists)
    elif value[:1] == "{":
        value = _IN_DICT.sub(lambda found: _in_quotes(found[0]), value)
    else:
        value = _each_in_quotes(value) if in_sweep else _in_quotes(value)
    return shlex.quote(f"{key}={value}")


def _each_in_quotes(names: str) -> str:
    parts = _PART.findall(names)
    parts = parts if ",".join(parts) == names else names.split(",")  # a quote has no end
    return ",".join(map(_in_quotes, parts))


def _in_quotes(name: str) -> str:
    name = name.strip()
    if _QUOTED.fullmatch(name):
        return f'"{name[1:-1]}"' if '"' not in name[1:-1] else name
    if _PLAIN.fullmatch(name) and not _is_changed(name):
        return name
    return '"' + name.replace('"', '\\"') + '"'


def _is_changed(name: str) -> bool:
    """Whether Hydra reads a name as a number or a truth value, and writes it otherwise."""
    if not name:
        return False
    value = OverridesParser.create().parse_override(f"key={name}").value()
    return not isinstance(value, str) and value is not None and str(value) != name


def refuse_changed_names(arguments: Sequence[str], in_sweep: bool = False) -> None:
    """Raises InputError for a name without quotes that is read as another one: 4.10 as 4.1."""
    in_sweep = in_sweep or is_sweep(arguments)
    for argument in arguments:
        if (found := _NAMES.fullmatch(argument)) is None:
            continue
        parts = _TOKEN.findall(_QUOTED.sub("", found[3]))
        if "{" in found[3]:  # a dict: a colon ends a name
            parts = [name for part in parts for name in part.split(":")]
        nulls = _NULL.findall("".join(_LIST.findall(found[3])))  # base=null names none
        for token in map(str.strip, parts):
            if _PLAIN.fullmatch(token) and (_is_changed(token) or token in nulls):
                raise InputError(
                    f"{argument}: {token} would be read as another name; put it into quotes: "
                    f"{quoted(argument, in_sweep)}"
                )


def refuse_unquoted_names(config: Mapping[str, Any]) -> None:
    """Raises InputError for a name in a file that YAML reads as a number, null or a truth value.

    A 4.10 is then 4.1 already, and a 001 is 1, so no such value can be believed.

    Args:
        config: What one file has, before it is merged with the schemas, which make texts of them.
    """
    task = config.get("task")
    of_task = task.items() if isinstance(task, Mapping) else ()
    for key, value in (*config.items(), *((f"task.{name}", value) for name, value in of_task)):
        names = [*value.values()] if isinstance(value, Mapping) else value
        names = names if isinstance(names, list) else [] if names is None else [names]
        found = [name for name in names if not isinstance(name, str)]
        if found and _NAMES.fullmatch(f"{key}="):
            raise InputError(
                f'{key}: YAML reads {found[0]} for a name; put it into quotes, as "4.10"'
            )
