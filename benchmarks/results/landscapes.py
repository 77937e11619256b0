"""What random configurations of a task are like: recorded ones, and those of simulated worlds.

A row has averages and quantiles alone, none of the recorded rows. The recordings are of the paper's
authors (github.com/AgentOptimizer/agentopt-research, data/scope). Most of their rows are there
because a method asked for them. The first rows after the reference look uniformly random, and stand
for random configurations. A sample of a world is as large as the recording.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.results.planned import Composed, numbers_text
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.evaluators.simulation.spec import FAMILIES
from scope_torch.evaluators.simulation.world import World
from scope_torch.tasks import Task
from scope_torch.tasks.files import find_folder

RECORDED = "recorded"  # in the place of a family
RECORDINGS = {"data_imputation": ("restaurant", 57), "data_transformation": ("bing", 59)}
SAMPLES = {"data_imputation": 960, "data_transformation": 1681, "text_to_sql": 700}
SHARES = (0.05, *(i / 10 for i in range(1, 10)), 0.95)  # of the quantiles
# text_to_sql was never published row by row: read off the figure of bird_mini_dev in analysis/
# scope_new_gittins/frontiers of the same repository.
ROUGH = {
    "reference_quality": 0.302,
    "mean_quality": 0.28,
    "sd_quality": 0.06,
    "feasible": 0.2,
    "median_cost": 0.06,
    "best_quality": 0.42,
    "cheapest_feasible": 0.031,
}
COLUMNS = (
    "configurations",
    "random",
    "reference_quality",
    "mean_quality",
    "sd_quality",
    "feasible",
    "correlation",
    "median_cost",
    "sd_log_cost",
    "best_quality",
    "cheapest_feasible",
    "r2_quality",
    "r2_cost",
    "r2_log_cost",
    "agreement",
    "median_tail",
    "longest_tail",
    "quality_quantiles",
    "cost_quantiles",
)


class Sample(NamedTuple):
    """Some configurations of a task."""

    codes: np.ndarray  # `R x N`
    answers: np.ndarray  # `R x Q`, quality
    cost: np.ndarray  # `R`, mean cost / c(theta_0)
    random: np.ndarray  # positions of the random ones
    tails: np.ndarray  # sd over queries of the logarithm of the cost, of some of them


@dataclass(frozen=True)
class LandscapeCell(Composed):
    """The landscape of a recording, or of one world; its `method` is the family."""

    def measured(self) -> dict[str, Any]:
        """The statistics, and None where they are not known."""
        found: dict[str, Any] = ROUGH
        if self.overrides:
            task: Task = build(compose(self.settings).task)
            is_recorded = self.method == RECORDED
            sample = recorded(task, self.problem) if is_recorded else drawn(task, self)
            found = statistics_of(sample, task.problem.reference_quality, task.problem.s_0)
        return dict.fromkeys(COLUMNS) | found


def cells(tasks: Iterable[str], worlds: Iterable[int], seed: int) -> list[LandscapeCell]:
    """A row for each recording, and for each world of each family."""
    found: list[LandscapeCell] = []
    of = list(worlds)
    for task in tasks:
        name, _ = RECORDINGS.get(task, ("", 0))
        overrides = (f"task=recorded/{name}",) if name else ()
        found.append(LandscapeCell(task, RECORDED, seed, None, overrides))
        for family in FAMILIES:
            overrides = (f"task={task}", f"task.family={family}")
            found += [LandscapeCell(task, family, seed, world, overrides) for world in of]
    return found


def recorded(task: Task, problem: str) -> Sample:
    """All configurations of a recording, of which the first are random."""
    name, number = RECORDINGS[problem]
    table = task.evaluator.table  # type: ignore[attr-defined]
    assert table.rows is not None
    folder = find_folder(f"recordings/scope_{name}", "")
    with (folder / "llms.csv").open(newline="") as llms, (folder / "configs.csv").open() as configs:
        code = {short: table.llms[0].index(llm) for short, llm in list(csv.reader(llms))[1:]}
        order = [tuple(code[c] for c in row[2:]) for row in list(csv.reader(configs))[1:]]
    places = [at[0] for theta in order if (at := table.where(theta)) is not None]
    assert order[0] == tuple(task.problem.theta_ref)
    cost = table.cost_usd.mean(-1) / task.problem.reference_cost_usd
    with (folder / "cost_head.csv").open(newline="") as file:
        costs = np.array([row[1:] for row in csv.reader(file)], float)  # the others' are drawn
    random = np.array(places[1 : number + 1])
    return Sample(table.rows, table.quality, cost, random, np.log(costs).std(1, ddof=1))


def drawn(task: Task, cell: LandscapeCell) -> Sample:
    """Random configurations of a world."""
    world: World = task.evaluator.world  # type: ignore[attr-defined]
    size, generator = SAMPLES[cell.problem], torch.Generator().manual_seed(cell.seed)
    codes = world.space.unrank(torch.randint(world.space.size, (size,), generator=generator))
    columns, queries = [column[:, None] for column in codes.T], torch.arange(world.num_queries)
    costs = sum(world.module_costs(columns, queries))
    assert isinstance(costs, torch.Tensor)
    answers = world.quality(columns, queries).numpy()
    relative = costs.mean(1).numpy() / task.problem.reference_cost_usd
    tails = costs.log().std(1).numpy()
    return Sample(codes.numpy(), answers, relative, np.arange(size), tails)


def statistics_of(sample: Sample, reference_quality: float, s_0: float) -> dict[str, Any]:
    """The columns of a row; best, cheapest and R2 are of all configurations, the others of random.

    Theta_0 itself is feasible, if none of the sample is. The longest of many tails is the 95%
    quantile, so that a large sample does not find more.
    """
    codes, answers, cost, random, tails = sample
    quality = answers.mean(1)
    is_feasible = quality >= s_0 - 1e-12
    of, log_cost = quality[random], np.log(cost)
    return {
        "configurations": len(codes),
        "random": len(random),
        "reference_quality": reference_quality,
        "mean_quality": float(of.mean()),
        "sd_quality": float(of.std(ddof=1)),
        "feasible": float(is_feasible[random].mean()),
        "correlation": float(np.corrcoef(of, log_cost[random])[0, 1]),
        "median_cost": float(np.median(cost[random])),
        "sd_log_cost": float(log_cost[random].std(ddof=1)),
        "best_quality": float(quality.max()),
        "cheapest_feasible": float(cost[is_feasible].min(initial=1.0)),
        "r2_quality": r2_of_a_sum(codes, quality),
        "r2_cost": r2_of_a_sum(codes, cost),
        "r2_log_cost": r2_of_a_sum(codes, log_cost),
        "agreement": agreement(answers[random]),
        "median_tail": float(np.median(tails)),
        "longest_tail": float(np.quantile(tails, 0.95)),
        "quality_quantiles": numbers_text(np.quantile(of, SHARES)),
        "cost_quantiles": numbers_text(np.quantile(cost[random], SHARES)),
    }


def r2_of_a_sum(codes: np.ndarray, values: np.ndarray) -> float:
    """Adjusted R2 of a sum over modules, of an effect of each LLM."""
    size = len(codes)
    effects = [codes[:, i, None] == np.unique(column)[1:] for i, column in enumerate(codes.T)]
    design = np.hstack([np.ones((size, 1)), *effects]).astype(float)
    fitted, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    rest = values - design @ fitted
    return float(1 - (rest @ rest) / (size - rank) / values.var(ddof=1))


def agreement(answers: np.ndarray) -> float:
    """Mean correlation of the answers of two configurations, over the queries.

    Those that are right on all queries, or on none, are left out.
    """
    differing = answers[answers.std(1) > 0]
    pairs = np.corrcoef(differing)[np.triu_indices(len(differing), 1)]
    return float(pairs.mean())
