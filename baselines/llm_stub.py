"""A seeded, offline stand-in for LLAMBO's LLM; it reads nothing but the text of the prompt."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_torch.baselines.llm_transcript import Replies, prompt_key

Assignment = dict[str, str]

_MEASURED = re.compile(
    r"^(?:Reference: )?(\{.*\}) -> cost (\S+), quality (\S+)$"
    r"|^cost (\S+), quality (\S+), (?:in)?feasible -> (\{.*\})$"
)
_GOAL = re.compile(r"quality at least (\S+); these are called feasible\.$")
_JITTER = 0.3  # spread of predictions in units of the regression's standard deviation


@dataclass
class Prompt:
    """The content of a prompt.

    Args:
        candidates: LLMs of each module.
        prices: Input plus output price of an LLM in USD per million tokens, where given.
        measured: (assignment, cost of 1000 queries in USD, quality), the reference first.
        s_0: Quality threshold.
        count: Number of assignments asked for at the start; 0 in other prompts.
        target: Assignment to predict; None in other prompts.
    """

    candidates: dict[str, list[str]]
    prices: dict[str, float]
    measured: list[tuple[Assignment, float, float]]
    s_0: float
    count: int = 0
    target: Assignment | None = None


class StubLLM:
    """Proposes cheap assignments and small changes of the best one; predicts by kernel regression.

    It exercises everything around an LLM, malformed replies too. Results with it say nothing about
    LLAMBO.

    Args:
        seed: The run's seed.
        malformed: Share of malformed replies, in [0, 1).

    Examples:
        >>> StubLLM(seed=0).complete([{"role": "user", "content": "Hello"}], 1, 0.7, 32).texts
        ('I do not understand.',)
    """

    kind = "stub"

    def __init__(self, seed: int, malformed: float = 0.03) -> None:
        self._seed, self._malformed = seed, malformed
        self._num_asked: Counter[str] = Counter()

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        n: int,
        temperature: float,  # noqa: ARG002 - the protocol's
        max_tokens: int,  # noqa: ARG002 - the protocol's
    ) -> Replies:
        """`n` replies; without a count of tokens, because nothing is billed."""
        key = prompt_key(self._seed, n, list(messages))
        digest = hashlib.sha256(f"{key} {self._num_asked[key]}".encode()).digest()
        self._num_asked[key] += 1
        rng = random.Random(int.from_bytes(digest))
        try:
            answer = _answerer(read_prompt(messages[-1]["content"]), rng)
        except (ValueError, KeyError, TypeError, IndexError):
            return Replies(("I do not understand.",) * n)
        return Replies(tuple(self._spoil(answer(), rng) for _ in range(n)))

    def _spoil(self, reply: str, rng: random.Random) -> str:
        if rng.random() >= self._malformed:
            return reply
        cut = reply[: rng.randrange(len(reply))]
        return rng.choice(["", cut, "Sure! Here is my answer.", "## low ; high ##", f"{{{reply}"])

    def settings(self) -> dict[str, Any]:
        """The kind, and the share of malformed replies."""
        return {"kind": self.kind, "malformed": self._malformed}


def read_prompt(text: str) -> Prompt:
    """Reads the text of a prompt of `llambo_prompts`.

    Raises:
        ValueError: If it is another text.
        KeyError: If its JSON lacks a key.
    """
    prompt = Prompt({}, {}, [], 0.0)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("Modules in order: "):
            modules = json.loads(line.removeprefix("Modules in order: "))
            listed = lines.index("Candidate LLMs of each module:", number) + 1
            for candidates in lines[listed : listed + len(modules)]:
                prompt.candidates |= json.loads(f"{{{candidates}}}")
        elif line.startswith('{"llm": ') and line.endswith("}"):  # else of a module "llm"
            price = json.loads(line)
            prompt.prices[price["llm"]] = price["input"] + price["output"]
        elif match := _MEASURED.match(line):
            one, cost_1, quality_1, cost_2, quality_2, two = match.groups()
            values = float(cost_1 or cost_2), float(quality_1 or quality_2)
            prompt.measured.append((json.loads(one or two), *values))
        elif match := _GOAL.search(line):
            prompt.s_0 = float(match[1])
        elif match := re.match(r"Task: propose (\d+) assignments\.$", line):
            prompt.count = int(match[1])
        elif line.startswith("Task: predict"):
            prompt.target = json.loads(lines[number + 1].removesuffix(" -> ?"))
    if not prompt.candidates or not prompt.measured:
        raise ValueError("not a prompt of LLAMBO")
    return prompt


def _answerer(prompt: Prompt, rng: random.Random) -> Callable[[], str]:
    """A function that returns another reply at every call."""
    if prompt.count:
        return lambda: json.dumps([_random(prompt, rng) for _ in range(prompt.count)])
    if prompt.target is None:
        return lambda: f"## {json.dumps(_mutation(prompt, rng))} ##"
    (cost, cost_std), (quality, quality_std) = _predict(prompt, prompt.target)

    def predict() -> str:
        drawn = math.exp(rng.gauss(cost, _JITTER * cost_std))
        graded = min(1.0, max(0.0, rng.gauss(quality, _JITTER * quality_std)))
        return f"## {drawn:.6g} ; {graded:.4f} ##"

    return predict


def _random(prompt: Prompt, rng: random.Random) -> Assignment:
    return {module: _cheap(prompt, llms, rng) for module, llms in prompt.candidates.items()}


def _mutation(prompt: Prompt, rng: random.Random) -> Assignment:
    """The cheapest feasible assignment with one or two modules changed."""
    feasible = [m for m in prompt.measured if m[2] >= prompt.s_0] or prompt.measured
    best = dict(min(feasible, key=lambda m: m[1])[0])
    modules = list(prompt.candidates)
    for module in rng.sample(modules, min(len(modules), rng.choice([1, 2]))):
        others = [llm for llm in prompt.candidates[module] if llm != best[module]]
        if others:
            best[module] = _cheap(prompt, others, rng)
    return best


def _cheap(prompt: Prompt, llms: list[str], rng: random.Random) -> str:
    """Draws an LLM, cheap ones more often; without a price it counts as average."""
    known = [price for price in prompt.prices.values() if price > 0]
    usual = sum(known) / len(known) if known else 1.0
    floor = min(known, default=1.0)
    weights = [max(prompt.prices.get(llm, usual), floor) ** -0.5 for llm in llms]
    return rng.choices(llms, weights)[0]


def _predict(prompt: Prompt, target: Assignment) -> list[tuple[float, float]]:
    """Mean and standard deviation of log cost and of quality at an assignment."""
    assignments = [m[0] for m in prompt.measured]
    gram = np.array([[_kernel(a, b) for b in assignments] for a in assignments])
    gram += 0.01 * np.eye(len(assignments))
    k = np.array([_kernel(target, a) for a in assignments])
    weights = np.linalg.solve(gram, k)
    std = math.sqrt(max(0.0, 1.0 - float(k @ weights)))
    log_costs = np.log([max(m[1], 1e-9) for m in prompt.measured])
    qualities = np.array([m[2] for m in prompt.measured])
    predictions = []
    for values, least in ((log_costs, 0.5), (qualities, 0.1)):
        mean = float(values.mean())
        scale = max(float(values.std()), least)
        predictions.append((mean + float(weights @ (values - mean)), scale * std))
    return predictions


def _kernel(one: Assignment, two: Assignment) -> float:
    """Matern 5/2 at the square root of the Hamming distance."""
    d = math.sqrt(5 * sum(llm != two[module] for module, llm in one.items()))
    return (1 + d + d * d / 3) * math.exp(-d)
