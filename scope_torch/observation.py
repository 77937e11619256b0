"""Observations, the history of a run, and their form as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, SupportsFloat
from zlib import crc32

from scope_torch.errors import InputError, whole_number

try:
    import orjson
except ImportError:  # the standard library takes ten times as long
    orjson = None

# Overflow: a number is too large; recursion: JSON is nested too deeply.
_MALFORMED = ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError
_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
# The checksum is the last key of a line: 8 hex digits of the CRC-32 of all bytes before this key.
# It finds every single bit that flips, and any other damage but one in four billion.
_LINE = b'{%b,"crc":"%08x"}\n'
_CHECKSUM = re.compile(r',"crc":"([0-9a-f]{8})"}')
_CHECKSUM_LENGTH = len(_LINE % (b"", 0)) - 2  # without the brace and the end of the line
_BRACE = crc32(b"{")
FAILURES = "app", "metric"  # who raised, see `Observation.failed`
_ROUNDING = 1e-6  # of a grade, such as the cosine similarity 1.0000002 of float32
_BRACES = frozenset("{}")


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
        quality: y_s, in [0, 1]; what rounding has put outside, by 1e-6 at most, becomes 0 or 1.
        replicate: Number of earlier observations of the same pair in this run.
        latency_s: Seconds the system took; None if unknown.
        module_cost_usd: Cost of each module in USD; None if unknown.
        module_tokens: (prompt, completion) tokens of each module; None if unknown.
        module_calls: Calls of each module, failed ones included; None if unknown.
        outcomes: Other numbers of this run by name, such as {"output_tokens": 240.0}; finite, in
            units that the name should tell. None if there are none.
        judge_usd: What grading this run has cost, in USD: paid, but no cost of the configuration.
        failed: Who raised an error, `app` or `metric`, so that the quality is 0; None: nobody. In
            a live run, `app` says that a call of an LLM gave no reply.
        lost: If the error ended the process, or the call was lost with its worker, how many
            observations the search had taken in by then; else None. Such a run is paid for but no
            observation of the search, which asks for its pair again. A cost of 0 is not known.

    Raises:
        InputError: If a cost is negative or not finite, the quality is outside [0, 1], an outcome
            is not finite or its name cannot be used, a count is not whole, or `failed` is something
            else.

    Examples:
        >>> observation = Observation(theta=(0, 2), query=5, cost_usd=0.01, quality=1.0)
        >>> observation.request
        Request(theta=(0, 2), query=5, replicate=0)
        >>> observation.to_json()
        '{"theta":[0,2],"query":5,"cost_usd":0.01,"quality":1.0,"replicate":0,"crc":"c3199805"}'
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
    outcomes: dict[str, float] | None = field(default=None, hash=False)  # a dict has no hash
    judge_usd: float = 0.0
    failed: str | None = None
    lost: int | None = None
    module_calls: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "theta", tuple(map(index, self.theta)))
            object.__setattr__(self, "query", index(self.query))
            object.__setattr__(self, "replicate", index(self.replicate))
        except TypeError as error:
            raise InputError(
                f"theta={self.theta!r}, query={self.query!r}, replicate={self.replicate!r}: codes "
                f"and numbers must be whole ({error})"
            ) from None
        object.__setattr__(self, "cost_usd", float(self.cost_usd))  # numpy and torch scalars too
        object.__setattr__(self, "quality", float(self.quality))
        for name in ("cost_usd", "judge_usd"):
            if not 0 <= (usd := getattr(self, name)) < math.inf:
                raise InputError(
                    f"{name}={usd} at theta={list(self.theta)}, query={self.query} must be a "
                    "number >= 0 (USD)"
                )
        if -_ROUNDING <= self.quality <= 1 + _ROUNDING:
            object.__setattr__(self, "quality", min(max(self.quality, 0.0), 1.0))
        else:
            raise InputError(
                f"quality={self.quality} at theta={list(self.theta)}, query={self.query} must lie "
                "in [0, 1]; rescale it"
            )
        if self.outcomes is not None:
            object.__setattr__(self, "outcomes", checked_outcomes(self.outcomes) or None)
        self._make_plain()
        if self.failed not in (None, *FAILURES):
            raise InputError(f"failed={self.failed!r} must be {' or '.join(FAILURES)}, or None")

    def _make_plain(self) -> None:
        """What is known besides as numbers that a journal can hold, and give back."""
        for name, make in _PLAIN.items():
            value = getattr(self, name)
            if value is not None and type(value) is not float:
                try:
                    object.__setattr__(self, name, make(value))
                except (TypeError, ValueError, OverflowError) as error:
                    raise InputError(
                        f"{name}={value!r} at theta={list(self.theta)}, query={self.query}: {error}"
                    ) from None

    @property
    def paid_usd(self) -> float:
        """What was paid for it in USD: its cost and that of grading it."""
        return self.cost_usd + self.judge_usd

    @property
    def modules_asked(self) -> frozenset[int] | None:
        """The numbers of the modules that asked an LLM; None if it is not known.

        Where calls were not counted, a module that has used tokens or cost something has asked.

        Examples:
            >>> run = Observation((0, 0), 0, 0.5, 1.0, module_tokens=((9, 1), (0, 0)))
            >>> run.modules_asked
            frozenset({0})
            >>> Observation((0, 0), 0, 0.5, 1.0).modules_asked is None
            True
        """
        if self.module_calls is not None:
            signs: Iterable[object] = self.module_calls
        elif self.module_tokens is not None:
            costs = self.module_cost_usd or [0.0] * len(self.module_tokens)
            signs = (sum(used) + usd for used, usd in zip(self.module_tokens, costs, strict=True))
        else:
            return None
        return frozenset(number for number, sign in enumerate(signs) if sign)

    @property
    def request(self) -> Request:
        """The request that this observation answers."""
        return Request(self.theta, self.query, self.replicate)

    def outcome(self, name: str) -> float | None:
        """`quality`, `cost_usd`, `latency_s` or another outcome; None if it was not observed."""
        if name in ("quality", "cost_usd"):
            return self.quality if name == "quality" else self.cost_usd
        return (self.outcomes or {}).get(name, self.latency_s if name == "latency_s" else None)

    def to_json(self) -> str:
        """One line of JSON, without the fields that are unknown; its last key is a checksum."""
        return to_lines([self]).decode().rstrip("\n")

    @classmethod
    def from_json(cls, line: str) -> Observation:
        """Reads a line written by `to_json`, or by a version of it that wrote no checksum.

        Raises:
            InputError: If the line is not an observation, or differs from its checksum.
        """
        try:
            values = json.loads(_content(line), object_pairs_hook=unique_keys)
            values["theta"] = tuple(_count(code) for code in values["theta"])
            for name in ("query", "replicate"):
                values[name] = _count(values.get(name, 0 if name == "replicate" else None))
            for name in ("cost_usd", "quality"):
                values[name] = _amount(values[name])
            if values.get("latency_s") is not None:
                values["latency_s"] = _amount(values["latency_s"])
            if values.get("module_cost_usd") is not None:
                values["module_cost_usd"] = tuple(map(_cost, values["module_cost_usd"]))
            if values.get("module_tokens") is not None:
                values["module_tokens"] = tuple(
                    (_count(p), _count(c)) for p, c in values["module_tokens"]
                )
            if "judge_usd" in values:
                values["judge_usd"] = _cost(values["judge_usd"])
            if "lost" in values:
                values["lost"] = _count(values["lost"])
            if "failed" in values and values["failed"] is None:
                raise ValueError("failed is left out where nobody failed")
            if values.get("module_calls") is not None:
                values["module_calls"] = tuple(map(_count, values["module_calls"]))
            if values.get("outcomes") is not None:
                outcomes = values["outcomes"].items()
                values["outcomes"] = {name: _amount(value) for name, value in outcomes}
            return cls(**values)
        except InputError:
            raise
        except _MALFORMED as error:
            raise InputError(f"not an observation: {line[:80]!r}") from error


class History:
    """The observations of a run, in the asked order; observations are only appended.

    Attributes:
        spend_usd: What was paid for them so far, in USD.
    """

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self.spend_usd = 0.0

    def append(self, observation: Observation) -> None:
        """Adds an observation and what was paid for it."""
        self._observations.append(observation)
        self.spend_usd += observation.paid_usd

    def __len__(self) -> int:
        return len(self._observations)

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._observations)

    def __getitem__(self, t: int) -> Observation:
        return self._observations[t]


def to_lines(observations: Iterable[Observation]) -> bytes:
    """One line of JSON for each observation; one at a time would take several times as long."""
    content = _dumps([_known(o) for o in observations])
    if content == b"[]":
        return b""
    # "},{" is nowhere else: no list holds objects, and names of outcomes have no braces.
    bodies = content[2:-2].split(b"},{")
    parts: list[Any] = [None] * (2 * len(bodies))
    parts[::2], parts[1::2] = bodies, [crc32(body, _BRACE) for body in bodies]
    return _LINE * len(bodies) % tuple(parts)


def checked_outcomes(outcomes: Mapping[str, Any]) -> dict[str, float]:
    """Named numbers as floats, in the same order.

    Raises:
        InputError: If a name is empty, not text or has a brace, or a value is no finite number.

    Examples:
        >>> checked_outcomes({"output_tokens": 240})
        {'output_tokens': 240.0}
    """
    if not isinstance(outcomes, Mapping):
        raise InputError(f"outcomes={outcomes!r} must map names to numbers, or be None")
    for name, value in outcomes.items():
        if not isinstance(name, str) or not name or _BRACES & set(name):
            raise InputError(f"outcome {name!r}: its name must be text without braces, not empty")
        if not (isinstance(value, SupportsFloat) and math.isfinite(value)):
            raise InputError(f"outcome {name}={value!r} must be a finite number")
    return {name: float(value) for name, value in outcomes.items()}


def has_checksum(line: str) -> bool:
    """Whether a line of a journal ends with a checksum; early versions wrote none."""
    return _CHECKSUM.fullmatch(line, max(0, len(line) - _CHECKSUM_LENGTH)) is not None


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of a JSON object, for `object_pairs_hook`.

    Raises:
        InputError: If a key is there twice; the standard library would drop the first value.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f"the key {max(keys, key=keys.count)!r} is there twice")
    return values


def _content(line: str) -> str:
    """The JSON of a line without its checksum.

    Raises:
        InputError: If the line differs from its checksum.
    """
    if not has_checksum(line):
        return line
    body, found = line[:-_CHECKSUM_LENGTH], line[-10:-2]
    made = f"{crc32(body.encode()):08x}"
    if made != found:
        raise InputError(
            f"its checksum is {made}, not {found} as written: it was changed: {line[:80]!r}"
        )
    return body + "}"


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
    if o.module_calls is not None:
        known["module_calls"] = o.module_calls
    if o.outcomes is not None:
        known["outcomes"] = o.outcomes
    if o.judge_usd:
        known["judge_usd"] = o.judge_usd
    if o.failed is not None:
        known["failed"] = o.failed
    if o.lost is not None:
        known["lost"] = o.lost
    return known


def _dumps(known: list[dict[str, Any]]) -> bytes:
    if orjson is not None:
        with contextlib.suppress(TypeError):  # a whole number of more than 64 bits
            content = orjson.dumps(known)
            if b"null" not in content:  # orjson writes null for infinity and NaN
                return content
    return _encode(known).encode()


def _whole(value: Any) -> int:
    """Returns a count as a user has it: of numpy, of torch, or a float that is whole."""
    return whole_number("count", value.item() if hasattr(value, "item") else value, 0)


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


def _cost(value: Any) -> float:
    """Returns a cost in USD read from JSON."""
    cost = _amount(value)
    if not 0 <= cost < math.inf:
        raise ValueError(f"{value!r} is not a cost")
    return cost


_PLAIN: dict[str, Callable[[Any], Any]] = {  # what a user gives, as the journal has it
    "latency_s": float,
    "module_cost_usd": lambda costs: tuple(_cost(float(usd)) for usd in costs),
    "module_tokens": lambda used: tuple((_whole(p), _whole(c)) for p, c in used),
    "judge_usd": float,
    "module_calls": lambda calls: tuple(map(_whole, calls)),
}
