"""Money until near the optimum where modules choose LLM, effort and prompt: told or not told.

The simulated system is a `RecordedLikeWorld` whose candidates are 8 LLMs, each with 3 efforts and 2
prompts. Beside what an LLM is in that world, an effort adds to the margins and to the tokens that
are written, more or less by module and LLM, and so does a prompt.

The recorded table is GPQA with settings of thinking (docs/recorded.md): one module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.results.planned import KEY, Planned
from benchmarks.results.runs import COLUMNS, measured_values
from scope_torch.cli.compose import compose_task
from scope_torch.evaluators.simulation.counter_random import normal, stream_key
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.recorded_like import RecordedLikeWorld
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.factors import LLM, product
from scope_torch.llm.prices import load_llms
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.simulated import problem_of

LLMS = (
    *("GPT-5.2", "GPT-5-mini", "GPT-5-nano", "Gemini 3 Flash", "Claude Haiku 4.5"),
    *("DeepSeek-V3.2", "Qwen3-235B-A22B", "Gemini 2.5 Flash-Lite"),
)
EFFORTS = ("low", "medium", "high")
CHOICES = product(llm=LLMS, effort=EFFORTS, prompt=["v1", "v2"])
BASE, REFERENCE = CHOICES[-6], LLM("GPT-5.2", effort="medium", prompt="v1")
BUDGET_USD, EPSILON = 2.0, 0.01  # of data imputation
# Margins: by step of effort, by prompt; mean, spread by module, spread by module and LLM.
_EFFORT, _PROMPT = (0.04, 0.03, 0.03), (0.0, 0.05, 0.03)
_OWN, _MOOD = 0.02, 0.15  # spread by choice and module, and by choice, module and query
_TOKENS = 1.9  # times as many by step of effort, so 3.6 times from low to high
_LONGER = 1.15  # times as many with the second prompt
_STREAM = 120  # of the random numbers; those of the world come before


class FactorWorld(RecordedLikeWorld):
    """A world whose candidates are `CHOICES` in every module; arguments as in `World`."""

    def _keep_candidates(self, offset: float, scale: float) -> None:
        by_name = {llm.name: llm for llm in self._price_list}
        of_choice = [by_name[choice.llm] for choice in CHOICES]
        self.llms = of_choice
        super()._keep_candidates(offset, scale)
        self.llms = [replace(info, name=c) for info, c in zip(of_choice, CHOICES, strict=True)]
        self.space = replace(self.space, sizes=(len(CHOICES),) * self.space.num_modules)
        self._ids = torch.arange(len(CHOICES))
        llm = torch.tensor([LLMS.index(choice.llm) for choice in CHOICES])
        step = torch.tensor([EFFORTS.index(str(c.effort)) - 1.0 for c in CHOICES])
        second = torch.tensor([float(choice.prompt == "v2") for choice in CHOICES])
        longer = (step * math.log(_TOKENS) + second * math.log(_LONGER)).double().exp()
        for i, (own, output) in enumerate(zip(self._own_table, self._output, strict=True)):
            parts = ((_EFFORT, step), (_PROMPT, second))
            for k, ((mean, by_module, by_llm), amount) in enumerate(parts):
                drawn = mean + by_module * self._drawn(8 * i + k, 1)
                own += (amount * (drawn + by_llm * self._drawn(8 * i + 2 + k, len(LLMS))[llm]))[
                    :, None
                ]
            own += _OWN * self._drawn(8 * i + 4, len(CHOICES))[:, None]
            own += _MOOD * self._drawn(8 * i + 5, own.numel()).view_as(own)
            output *= longer[:, None]

    def _drawn(self, stream: int, count: int) -> Tensor:
        key = stream_key(self.world_seed, _STREAM + stream)
        return normal(key, torch.arange(count))


@dataclass(frozen=True)
class FactorCell(Planned):
    """One search of a system with factors; the method is `factors` or `plain names`."""

    def measured(self) -> dict[str, Any]:
        """The figures of `Cell`."""
        task, base, budget = self._task()
        search = make_scope_joint(task.problem, base=base, seed=self.seed, budget_usd=budget)
        found = run(task.problem, search, task.evaluator, budget)
        return dict.fromkeys(COLUMNS[len(KEY) :]) | measured_values(task, found)

    def _task(self) -> tuple[Task, str, float]:
        task, base, budget = recorded() if self.world is None else simulated(self.world)
        llms = task.problem.llms
        if self.method == "plain names":
            llms = tuple(tuple(map(str, names)) for names in llms)
        return Task(replace(task.problem, llms=llms), task.evaluator, task.held_out), base, budget


def simulated(world_seed: int) -> tuple[Task, str, float]:
    """The simulated system, a base, and a budget in USD."""
    spec, prices = load_worlds("recorded_like_worlds.toml")["data_imputation"], load_llms()
    world = FactorWorld(spec, prices, world_seed=world_seed)
    problem = problem_of("data_imputation_factors", world, REFERENCE, EPSILON)
    return Task(problem, SimulatedEvaluator(world)), BASE, BUDGET_USD


def recorded() -> tuple[Task, str, float]:
    """GPQA with settings of thinking; a name such as `A / thinking low` is an LLM and a factor."""
    task = compose_task(["task=recorded/agentopt_gpqa_effort"])

    def choice(name: str) -> LLM:
        llm, _, thinking = name.partition(" / thinking ")
        return LLM(llm, thinking=thinking or None)

    llms = tuple(tuple(map(choice, names)) for names in task.problem.llms)
    base = LLM("gpt-oss-20b")
    return Task(replace(task.problem, llms=llms), task.evaluator), base, 10.0


def cells(
    worlds: Iterable[int], seeds: Sequence[int], recorded_seeds: Iterable[int]
) -> list[Planned]:
    """Searches that know the factors, and searches that do not."""
    told = ("factors", "plain names")
    planned = [
        FactorCell("data_imputation with factors", method, seed, world)
        for seed in seeds
        for world in worlds
        for method in told
    ]
    planned += [
        FactorCell("GPQA with thinking", method, seed, None)
        for seed in recorded_seeds
        for method in told
    ]
    return list(planned)
