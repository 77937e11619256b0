"""Observations, the history of a run, and their form as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from scope_torch.errors import InputError

try:
    import orjson
except ImportError:  # the standard library takes ten times as long
    orjson = None

# Overflow: a number is too large; recursion: JSON is nested too deeply.
_MALFORMED = ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError
_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


class Request(NamedTuple):
    """A (theta, query) pair to observe.

    Attributes:
        theta: Codes of the configuration.
        query: Index of the query in [0, Q).
        replicate: Number of earlier observations of the same pair in this run.

    Examples:
        >>> Request(theta=(0, 2), query=5)
        Request(theta=(0, 2), query=5, replicate=0)
    """

    theta: tuple[int, ...]
    query: int
    replicate: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """Cost and quality of one run of a configuration on one query.

    Args:
        theta: Codes of the configuration.
        query: Index of the query in [0, Q).
        cost_usd: y_c, in USD.
        quality: y_s, in [0, 1].
        replicate: Number of earlier observations of the same pair in this run.
        latency_s: Seconds the system took; None if unknown.
        module_cost_usd: Cost of each module in USD; None if unknown.
        module_tokens: (prompt, completion) tokens of each module; None if unknown.

    Raises:
        InputError: If the cost is negative or not finite, or the quality is outside [0, 1].

    Examples:
        >>> observation = Observation(theta=(0, 2), query=5, cost_usd=0.01, quality=1.0)
        >>> observation.request
        Request(theta=(0, 2), query=5, replicate=0)
        >>> observation.to_json()
        '{"theta":[0,2],"query":5,"cost_usd":0.01,"quality":1.0,"replicate":0}'
        >>> Observation.from_json(observation.to_json()) == observation
        True
    """

    theta: tuple[int, ...]
    query: int
    cost_usd: float
    quality: float
    replicate: int = 0
    latency_s: float | None = None
    module_cost_usd: tuple[float, ...] | None = None
    module_tokens: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", tuple(map(int, self.theta)))
        object.__setattr__(self, "cost_usd", float(self.cost_usd))  # numpy and torch scalars too
        object.__setattr__(self, "quality", float(self.quality))
        if not 0 <= self.cost_usd < math.inf:
            raise InputError(
                f"cost_usd={self.cost_usd} at theta={list(self.theta)}, query={self.query} must be "
                "a number >= 0 (USD)"
            )
        if not 0 <= self.quality <= 1:
            raise InputError(
                f"quality={self.quality} at theta={list(self.theta)}, query={self.query} must lie "
                "in [0, 1]; rescale it"
            )

    @property
    def request(self) -> Request:
        """The request that this observation answers."""
        return Request(self.theta, self.query, self.replicate)

    def to_json(self) -> str:
        """One line of JSON, without the fields that are unknown."""
        return to_lines([self]).decode().rstrip("\n")

    @classmethod
    def from_json(cls, line: str) -> Observation:
        """Reads a line written by `to_json`.

        Raises:
            InputError: If the line is not an observation.
        """
        try:
            values: dict[str, Any] = json.loads(line)
            values["theta"] = tuple(_count(code) for code in values["theta"])
            for name in ("query", "replicate"):
                values[name] = _count(values.get(name, 0 if name == "replicate" else None))
            for name in ("cost_usd", "quality"):
                values[name] = _amount(values[name])
            if values.get("latency_s") is not None:
                values["latency_s"] = _amount(values["latency_s"])
            if values.get("module_cost_usd") is not None:
                values["module_cost_usd"] = tuple(map(_amount, values["module_cost_usd"]))
            if values.get("module_tokens") is not None:
                values["module_tokens"] = tuple(
                    (_count(p), _count(c)) for p, c in values["module_tokens"]
                )
            return cls(**values)
        except InputError:
            raise
        except _MALFORMED as error:
            raise InputError(f"not an observation: {line[:80]!r}") from error


class History:
    """The observations of a run, in the asked order; observations are only appended.

    Attributes:
        spend_usd: Their cost so far, in USD.
    """

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self.spend_usd = 0.0

    def append(self, observation: Observation) -> None:
        """Adds an observation and its cost."""
        self._observations.append(observation)
        self.spend_usd += observation.cost_usd

    def __len__(self) -> int:
        return len(self._observations)

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._observations)

    def __getitem__(self, t: int) -> Observation:
        return self._observations[t]


def to_lines(observations: Iterable[Observation]) -> bytes:
    """One line of JSON for each observation; one at a time would take several times as long."""
    content = _dumps([_known(o) for o in observations])[1:-1]
    content = content.replace(b"},{", b"}\n{")  # "},{" is nowhere else: no value is text or object
    return content + b"\n" if content else b""


def _known(o: Observation) -> dict[str, Any]:
    """The known fields; a loop over the names of the fields would take three times as long."""
    known: dict[str, Any] = {
        "theta": o.theta,
        "query": o.query,
        "cost_usd": o.cost_usd,
        "quality": o.quality,
        "replicate": o.replicate,
    }
    if o.latency_s is not None:
        known["latency_s"] = o.latency_s
    if o.module_cost_usd is not None:
        known["module_cost_usd"] = o.module_cost_usd
    if o.module_tokens is not None:
        known["module_tokens"] = o.module_tokens
    return known


def _dumps(known: list[dict[str, Any]]) -> bytes:
    if orjson is not None:
        with contextlib.suppress(TypeError):  # a whole number of more than 64 bits
            content = orjson.dumps(known)
            if b"null" not in content:  # orjson writes null for infinity and NaN
                return content
    return _encode(known).encode()


def _count(value: Any) -> int:
    """Returns a whole number read from JSON; refuses true, 1.5 and text."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _amount(value: Any) -> float:
    """Returns a number read from JSON; `Observation` checks its range."""
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
