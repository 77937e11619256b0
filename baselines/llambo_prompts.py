"""The three prompts of LLAMBO, extended to a quality constraint, and strict parsers of the replies.

The wording is our own; the roles of the prompts follow Liu et al. 2024, arXiv 2402.03921.
Costs are in USD per 1000 queries: one query often costs less than 1e-4 USD, which an LLM reads
poorly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_torch.observation import unique_keys
from scope_torch.problem import SelectionProblem

PER_QUERIES = 1000
MAX_REPLY_CHARS = 20_000
MARKER = "##"

Message = dict[str, str]
Theta = tuple[int, ...]

_NUMBER = r"\s*([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)\s*"
_PREDICTION = re.compile(f"{MARKER}{_NUMBER};{_NUMBER}{MARKER}")
_ROLE = (
    "You advise on the design of a compound AI system: a fixed program of LLM calls whose modules "
    "may each be served by a different LLM. Answer exactly in the format asked for, and with "
    "nothing else."
)


@dataclass(frozen=True)
class HistoryLine:
    """A line of the history shown to the LLM.

    Args:
        theta: Codes of the configuration.
        cost_usd: Its average cost of a query in USD.
        quality: Its average quality in [0, 1].
    """

    theta: Theta
    cost_usd: float
    quality: float


@dataclass(frozen=True)
class Prompts:
    """Writes prompts about a problem and reads the replies.

    Args:
        problem: What to search.
        system: Description of the compound system in a sentence or two; may be empty.
        dataset: Description of its queries and their grading; may be empty.
        prices: LLM name to (input, output) price in USD per million tokens, where known.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> prompts = Prompts(synthetic_task().problem)
        >>> prompts.parse_prediction("## 12.5 ; 0.9 ##")  # USD for 1000 queries; quality
        (0.0125, 0.9)
    """

    problem: SelectionProblem
    system: str = ""
    dataset: str = ""
    prices: Mapping[str, tuple[float, float]] | None = None

    def warm_start(self, count: int) -> list[Message]:
        """Asks for configurations to begin with."""
        return self._messages(
            f"Nothing but the reference has been tried. Propose {count} assignments worth trying "
            "first: different from one another, and each likely to be cheap and good enough.",
            f"Task: propose {count} assignments.",
            "Reply only with a JSON list of objects, each with the module names as keys and one "
            "candidate LLM of that module as value.",
        )

    def candidate(self, history: Sequence[HistoryLine], target_cost_usd: float) -> list[Message]:
        """Asks for a feasible configuration of at most the target cost.

        Args:
            history: The known averages, in the order in which to show them.
            target_cost_usd: Average cost of a query to reach, in USD.
        """
        s_0 = self.problem.s_0
        lines = [
            f"cost {_cost(m.cost_usd)}, quality {m.quality:.6g}, "
            f"{'feasible' if m.quality >= s_0 else 'infeasible'} -> {self.assignment(m.theta)}"
            for m in history
        ]
        return self._messages(
            "Measured so far:\n" + "\n".join(lines),
            "Task: propose the assignment for this line.\n"
            f"cost at most {_cost(target_cost_usd)}, quality at least {s_0:.6g}, feasible -> ?",
            "It must differ from every assignment above. Reply only with one JSON object with the "
            f"module names as keys, between markers: {MARKER} {{...}} {MARKER}",
        )

    def predict(self, history: Sequence[HistoryLine], theta: Theta) -> list[Message]:
        """Asks for the cost and quality of a configuration.

        Args:
            history: The known averages, in the order in which to show them.
            theta: Codes of the configuration.
        """
        lines = [
            f"{self.assignment(m.theta)} -> cost {_cost(m.cost_usd)}, quality {m.quality:.6g}"
            for m in history
        ]
        return self._messages(
            "Measured so far:\n" + "\n".join(lines),
            f"Task: predict cost and quality for this line.\n{self.assignment(theta)} -> ?",
            f"Reply only with two numbers: {MARKER} cost ; quality {MARKER}",
        )

    def assignment(self, theta: Theta) -> str:
        """A configuration as a JSON object on one line."""
        return _json(self.problem.names(theta))

    def parse_warm_start(self, reply: str) -> list[Theta] | None:
        """The valid configurations of a reply, in order; None if it holds no JSON list."""
        values = _first_json(reply, "[")
        if not isinstance(values, list):
            return None
        thetas = (self._codes(value) for value in values[:1000])
        return [theta for theta in thetas if theta is not None]

    def parse_candidate(self, reply: str) -> Theta | None:
        """The configuration between the markers; None if none is valid."""
        if len(reply) > MAX_REPLY_CHARS:
            return None
        for match in re.finditer(rf"{MARKER}\s*(?=\{{)", reply):
            value, end = _json_at(reply, match.end())
            if reply[end:].lstrip().startswith(MARKER):
                return self._codes(value)
        return None

    def parse_prediction(self, reply: str) -> tuple[float, float] | None:
        """Predicted (cost of a query in USD, quality in [0, 1]); None if malformed."""
        match = _PREDICTION.search(reply[:MAX_REPLY_CHARS])
        if match is None:
            return None
        cost, quality = float(match[1]) / PER_QUERIES, float(match[2])
        if not (math.isfinite(cost) and cost >= 0 and 0 <= quality <= 1):
            return None
        return cost, quality

    def _codes(self, value: Any) -> Theta | None:
        """Codes of an assignment of a candidate to every module; None if it is anything else."""
        problem = self.problem
        if not isinstance(value, dict) or set(value) != set(problem.modules):
            return None
        chosen = [value[module] for module in problem.modules]
        if any(llm not in names for llm, names in zip(chosen, problem.llms, strict=True)):
            return None
        return problem.codes(chosen)

    def _messages(self, known: str, task: str, reply_format: str) -> list[Message]:
        user = "\n\n".join([self._header(), known, task, reply_format])
        return [{"role": "system", "content": _ROLE}, {"role": "user", "content": user}]

    def _header(self) -> str:
        problem = self.problem
        reference = HistoryLine(
            problem.theta_ref, problem.reference_cost_usd, problem.reference_quality
        )
        parts = [
            f"System: {self.system or problem.name}",
            f"Modules in order: {_json(list(problem.modules))}",
            f"Data set: {self.dataset or problem.name}; {problem.num_queries} queries. The quality "
            "of an answer lies in [0, 1].",
            "Candidate LLMs of each module:",
            *(f"{_json(m)}: {_json(list(n))}" for m, n in
              zip(problem.modules, problem.llms, strict=True)),
            *self._price_lines(),
            f"Costs are in USD per {PER_QUERIES} queries, averaged over the data set, as are "
            "qualities. A module's cost depends on the prices of its LLM and on how much text "
            "reaches and leaves it.",
            f"Reference: {self.assignment(reference.theta)} -> cost {_cost(reference.cost_usd)}, "
            f"quality {reference.quality:.6g}",
            f"Goal: the least cost among assignments with quality at least {problem.s_0:.6g}; "
            "these are called feasible.",
        ]  # fmt: skip
        return "\n".join(parts)

    def _price_lines(self) -> list[str]:
        prices = self.prices or {}
        names = dict.fromkeys(name for llms in self.problem.llms for name in llms)
        known = [
            _json({"llm": name, "input": prices[name][0], "output": prices[name][1]})
            for name in names
            if name in prices
        ]
        return ["Prices in USD per million tokens:", *known] if known else []


def _cost(cost_usd: float) -> str:
    return f"{cost_usd * PER_QUERIES:.6g}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _first_json(text: str, opening: str) -> Any:
    """The JSON value at the first `opening`; None if there is none or it is malformed."""
    start = text.find(opening)
    if start < 0 or len(text) > MAX_REPLY_CHARS:
        return None
    return _json_at(text, start)[0]


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and its end; (None, start) if malformed."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)
