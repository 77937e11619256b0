"""Choices of a module that are more than an LLM: with an effort, a prompt, a temperature.

A module's choice is then a product of factors, such as LLM x effort x prompt. A choice has a name
as an LLM has, so journals, tables and files keep one name for each module. What choices share is
told to the model by `levels_of`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from scope_torch.errors import InputError

# The factors that an endpoint sets in requests; others are the application's own.
OF_REQUESTS = {"effort", "temperature", "top_p", "max_tokens", "thinking_tokens"}
LLM_FACTOR = "llm"  # the first factor of every choice
_VALUE = re.compile(r"[^\s=,]+")
_FACTORS = re.compile(r"(?P<llm>\S.*?)(?P<factors>( [^\W\d]\w*=[^\s=,]+)+)")

Value = str | int | float | bool
Levels = tuple[tuple[tuple[int, ...], ...], ...]


class LLM(str):
    """An LLM and how it is asked: a candidate of a module.

    It is a text, its name: "gpt-5.2 effort=low prompt=v1". `select` hands it to the application,
    which reads its factors. An endpoint sets those of `scope_torch.serve.factors` in the requests;
    what others mean only the application knows. The name of a factor is an identifier that is no
    attribute of `str`, nor `llm`, `factors` or `parse`.

    Args:
        llm: Name of the LLM, as prices and endpoints know it.
        factors: By name, numbers or words; those that are None are left out.

    Attributes:
        llm: As given.
        factors: By name.

    Raises:
        InputError: If a factor, or the LLM beside it, cannot be written in a name.

    Examples:
        >>> llm = LLM("gpt-5.2", effort="low", prompt="v1", temperature=0.5)
        >>> llm
        'gpt-5.2 effort=low prompt=v1 temperature=0.5'
        >>> llm.llm, llm.prompt, llm.factors["temperature"]
        ('gpt-5.2', 'v1', 0.5)
        >>> LLM.parse("gpt-5.2 effort=low") == LLM("gpt-5.2", effort="low")
        True
    """

    llm: str
    factors: dict[str, Value]

    def __new__(cls, llm: str, /, **factors: Value | None) -> LLM:
        """See the class."""
        if isinstance(llm, LLM):
            llm, factors = llm.llm, llm.factors | factors
        if not isinstance(llm, str):
            raise InputError(f"{llm!r} must be the name of an LLM")
        llm = str.__str__(llm)  # of an Enum its value
        given = {name: _told(value) for name, value in factors.items() if value is not None}
        for name, value in given.items():
            _check(llm, name, value)
        text = " ".join([llm, *(f"{n}={v}" for n, v in given.items())])
        found = _FACTORS.fullmatch(text) if given else None
        if given and (found is None or found["llm"] != llm):
            raise InputError(f"{llm!r} cannot be the name of an LLM that has factors")
        return _made(text, llm, given)

    def __getattr__(self, name: str) -> Value:
        """A factor."""
        factors = self.__dict__.get("factors", {})
        if name not in factors:
            raise AttributeError(f"{self!s} has no factor {name!r}; it has {[*factors] or 'none'}")
        return factors[name]

    def __reduce__(self) -> Any:
        """So that copies and other processes have the factors."""
        return _made, (str(self), self.llm, self.factors)

    @classmethod
    def parse(cls, name: str) -> LLM:
        """The choice of a name, which stays as it is.

        A name without factors, or with words that cannot be factors, is that of an LLM.
        """
        if isinstance(name, LLM):
            return name
        found = _FACTORS.fullmatch(name)
        pairs = [pair.split("=") for pair in found["factors"].split()] if found else []
        told = {factor: _told(value) for factor, value in pairs}
        if found is None or len(told) < len(pairs) or not all(map(_is_factor, told)):
            return cls(name)
        return _made(name, found["llm"], told)


def variable_of(module: str) -> str:
    """The environment variable with the choice of a module.

    Examples:
        >>> variable_of("re-ranker")
        'SCOPE_RE_RANKER'
    """
    return "SCOPE_" + re.sub(r"[^A-Z0-9]", "_", module.upper(), flags=re.ASCII)


def own_factors(choice: str) -> dict[str, Value]:
    """The factors that no request can have, such as a prompt: the application's own.

    Examples:
        >>> own_factors("mini effort=low prompt=v2")
        {'prompt': 'v2'}
    """
    factors = LLM.parse(choice).factors
    return {name: value for name, value in factors.items() if name not in OF_REQUESTS}


def choice_of(name: Any) -> Any:
    """The `LLM` of a name with factors, as from a file; anything else as it is.

    Examples:
        >>> choice_of("nano effort=low").effort, type(choice_of("nano"))
        ('low', <class 'str'>)
    """
    found = LLM.parse(name) if isinstance(name, str) else None
    return found if found is not None and found.factors else name


def product(**factors: Sequence[Any]) -> list[LLM]:
    """All combinations of values of factors, the last factor first.

    Args:
        factors: The values of each; one of the factors is `llm`. None stands for a choice without
            the factor.

    Raises:
        InputError: If there is no `llm`, or a factor has no list of values.

    Examples:
        >>> product(llm=["nano", "pro"], effort=["low", "high"])
        ['nano effort=low', 'nano effort=high', 'pro effort=low', 'pro effort=high']
    """
    for name, values in factors.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"{name}={values!r}: give the list of values of this factor")
    if LLM_FACTOR not in factors:
        raise InputError(f"the factors {[*factors]} need llm, the list of LLMs")
    llms, others = factors[LLM_FACTOR], {n: v for n, v in factors.items() if n != LLM_FACTOR}
    every = itertools.product(llms, *others.values())
    return [LLM(llm, **dict(zip(others, values, strict=True))) for llm, *values in every]


def choices(candidates: Any) -> Any:
    """The candidates of a module: a dict of factors as their `product`, anything else as it is."""
    if not isinstance(candidates, Mapping):
        return candidates
    return product(**{str(name): values for name, values in candidates.items()})


def levels_of(llms: Sequence[Sequence[str]]) -> Levels | None:
    """What the choices of each module share; None if no choice is more than an LLM.

    Args:
        llms: For each module the candidates; an `LLM` with factors is more than an LLM, a text that
            only looks like its name is not.

    Returns:
        For each module and choice, the level of every factor of the module: a number for each value
        in the order of the candidates. A factor that a choice lacks has a level of its own.

    Raises:
        InputError: If a choice stands there twice, with its factors in another order.

    Examples:
        >>> levels_of([product(llm=["nano", "pro"], effort=["low", "high"]), ["nano", "pro"]])
        (((0, 0), (0, 1), (1, 0), (1, 1)), ((0,), (1,)))
        >>> levels_of([["nano effort=low", "nano effort=high"]])
    """
    if not any(isinstance(one, LLM) and one.factors for names in llms for one in names):
        return None
    return tuple(_levels([LLM(one) for one in names]) for names in llms)


def changes(levels: Sequence[Sequence[int]], choice: int) -> list[int]:
    """Of one module, who stands for the changes of one factor, rising.

    For every level that `choice` does not have, the choice that has it and shares most with
    `choice`; of equals the first. Without factors, all others.

    Args:
        levels: For each choice the level of every factor.
        choice: The choice that is changed.

    Examples:
        >>> ((levels),) = levels_of([product(llm=["a", "b", "c"], effort=["low", "high"])])
        >>> changes(levels, 0)
        [1, 2, 4]
    """
    mine, found = levels[choice], set[int]()
    for factor, level in enumerate(mine):
        for other in {one[factor] for one in levels} - {level}:
            having = [number for number, one in enumerate(levels) if one[factor] == other]
            found.add(max(having, key=lambda at: sum(map(int.__eq__, levels[at], mine))))
    return sorted(found)


def _levels(made: Sequence[LLM]) -> tuple[tuple[int, ...], ...]:
    names = list(dict.fromkeys(name for one in made for name in one.factors))
    columns: list[list[int]] = []
    for name in (LLM_FACTOR, *names):
        values = [one.llm if name == LLM_FACTOR else one.factors.get(name) for one in made]
        known = list(dict.fromkeys(map(repr, values)))
        columns.append([known.index(repr(value)) for value in values])
    rows = [*zip(*columns, strict=True)]
    for row, one in zip(rows, made, strict=True):
        if (first := made[rows.index(row)]) != one:
            raise InputError(f"{str(first)!r} and {str(one)!r} are the same choice; list it once")
    return tuple(rows)


def _made(text: str, llm: str, factors: dict[str, Value]) -> LLM:
    made = str.__new__(LLM, text)
    made.llm, made.factors = llm, factors
    return made


def _is_factor(name: str) -> bool:
    """Whether a factor can have this name."""
    is_taken = hasattr(str, name) or name in (LLM_FACTOR, "factors", "parse")
    return name.isidentifier() and not is_taken and bool(_FACTORS.fullmatch(f"x {name}=x"))


def _check(llm: str, name: str, value: Value) -> None:
    if not _is_factor(name):
        raise InputError(
            f"{llm!r}: {name!r} cannot be the name of a factor; take an identifier that is no "
            "method of str, nor llm, factors or parse"
        )
    is_value = isinstance(value, str | int | float) and _VALUE.fullmatch(str(value))
    if not (is_value and _read(str(value)) == value):
        raise InputError(
            f"{llm!r}: {name}={value!r} must be a number, or a word without spaces, commas and "
            "equal signs: give a long text, such as a prompt, a name"
        )


def _told(value: Value) -> Value:
    """Equal numbers as one; what a name says of them."""
    if isinstance(value, str):
        value = _read(str.__str__(value))  # of an Enum its value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)  # numpy's too
    if isinstance(value, float):
        value = int(value) if value.is_integer() else float(value)
    return value


def _read(value: str) -> Value:
    if value in ("True", "False"):
        return value == "True"
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value and math.isfinite(number):
            return number
    return value
