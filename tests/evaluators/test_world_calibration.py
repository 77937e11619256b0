"""The packaged worlds against the numbers of the paper to which they are fitted."""

import statistics
from functools import cache
from pathlib import Path

import pytest
import torch
from long_runs import among_others
from omegaconf import OmegaConf

from benchmarks.results.planned import read_rows
from benchmarks.results.summary import geometric_mean, grouped, papers_competitor
from benchmarks.results.write import RESULTS
from scope_torch.cli.registry import config_dir
from scope_torch.evaluators.simulation.families import make_world
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import load_llms
from scope_torch.runs.deployment import deploy
from scope_torch.tasks.simulated import simulated_task

QUALITY = {  # s(theta_0), on held-out queries but for the last
    "text_to_sql": 0.34,
    "data_transformation": 0.37,
    "data_imputation": 0.74,
    "entity_resolution": 0.85,
}
EVALUATIONS = {  # evaluations of random configurations that the budget buys
    "text_to_sql": (16, 24),
    "data_transformation": (18, 32),
    "data_imputation": (16, 24),
    "entity_resolution": (8, 12),  # the paper's prices and budget allow no more
}
NAMES = list(QUALITY)
WORLDS = range(10)


@cache
def budget_usd(name: str) -> float:
    return OmegaConf.load(Path(config_dir(), "task", f"{name}.yaml")).budget_usd


@cache
def world(name: str, seed: int) -> World:
    return World(load_worlds()[name], load_llms(), world_seed=seed)


def pairs(drawn: World, index: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The configurations of flat indices `index` with all queries."""
    codes = [column[:, None] for column in drawn.space.unrank(index).T]
    return codes, torch.arange(drawn.num_queries)


def mean_quality(drawn: World, index: torch.Tensor) -> torch.Tensor:
    return drawn.quality(*pairs(drawn, index)).mean(1)


def mean_cost(drawn: World, index: torch.Tensor) -> torch.Tensor:
    return torch.stack([cost.mean(1) for cost in drawn.module_costs(*pairs(drawn, index))]).sum(0)


def feasible(drawn: World, index: torch.Tensor) -> torch.Tensor:
    reference = mean_quality(drawn, torch.tensor([0]))  # GPT-5.2 is the first LLM
    return mean_quality(drawn, index) >= 0.99 * reference


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["bottleneck", "additive"])
@pytest.mark.slow
def test_the_reference_has_the_papers_numbers(family, name):
    for seed in WORLDS:
        task = simulated_task(name="a", world=name, family=family, world_seed=seed)
        problem = task.problem
        assert problem.reference_cost_usd == pytest.approx(
            load_worlds()[name].reference_cost_usd, rel=1e-12
        )
        if name == "entity_resolution":
            assert abs(problem.reference_quality - QUALITY[name]) <= 1 / problem.num_queries
            continue
        held_out = task.held_out()
        measured = deploy(held_out, problem.theta_ref)["quality"]
        assert abs(measured - QUALITY[name]) <= 1 / held_out.num_queries


@pytest.mark.parametrize(
    "name", [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])]
)
def test_the_reference_is_as_recorded(name):
    """On the search queries of every world; on held-out ones as in the paper, on average."""
    spec = load_worlds("recorded_like_worlds.toml")[name]
    recorded = {"text_to_sql": 0.302, "data_transformation": 0.686, "data_imputation": 0.795}
    assert spec.reference_split == "search"
    assert spec.reference_quality == recorded.get(name, QUALITY[name])
    held_out = []
    for seed in WORLDS:
        of_split = {
            split: make_world(spec, load_llms(), llms=["GPT-5.2"], world_seed=seed, split=split)
            for split in ("search", "test")
        }
        measured = float(of_split["search"].mean_quality())
        assert abs(measured - spec.reference_quality) <= 1 / spec.num_queries
        assert float(of_split["search"].mean_cost()) == pytest.approx(spec.reference_cost_usd)
        held_out.append(float(of_split["test"].mean_quality()))
    assert statistics.fmean(held_out) == pytest.approx(QUALITY[name], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_budget_buys_the_papers_number_of_evaluations(name):
    bought = []
    for seed in WORLDS:
        drawn = world(name, seed)
        index = torch.randint(drawn.space.size, (300,), generator=torch.Generator().manual_seed(1))
        evaluation = float(mean_cost(drawn, index).mean()) * drawn.num_queries
        bought.append(budget_usd(name) / evaluation)
    low, high = EVALUATIONS[name]
    assert low < statistics.mean(bought) < high, bought


def test_the_best_competitor_ends_where_the_papers_does():
    """By the committed runs on worlds 0 to 19; 1.5 is about one standard error of a mean."""
    rows = grouped(read_rows(RESULTS / "calibration.csv"))
    problems = {problem for problem, _ in rows}
    assert problems == {f"{name}{family}" for name in NAMES for family in ("", ", additive")}
    for problem in problems:
        found = [geometric_mean(of) for (p, _), of in rows.items() if p == problem]
        target = papers_competitor(problem.partition(",")[0])
        assert target / 1.5 < min(found) < 1.5 * target, problem


def test_the_target_is_the_papers():
    """SCOPE's c_bf is a share below the best competitor's (sec:rq1); the last is from a curve."""
    expected = {"text_to_sql": 0.192, "data_transformation": 0.148}
    expected |= {"data_imputation": 0.033, "entity_resolution": 0.0472}
    for name, share in expected.items():
        assert papers_competitor(name) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_held_out_queries_shift_little(name):
    """About as many right answers, at about the same cost."""
    search = world(name, 0)
    test = World(load_worlds()[name], load_llms(), split="test")
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(search.space.size, (150,), generator=generator)
    s = [float(mean_quality(drawn, index).mean()) for drawn in (search, test)]
    assert s[1] == pytest.approx(s[0], abs=0.06)
    assert s[1] != s[0]
    c = [float(mean_cost(drawn, index).mean()) for drawn in (search, test)]
    assert 0.9 * c[0] < c[1] < 1.05 * c[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text_to_sql", among_others("data_transformation")])
def test_the_truth_at_full_size(name, tmp_path):
    task = simulated_task(name="a_simulated", world=name, cache_dir=str(tmp_path))
    cost, quality = task.evaluator.truth()
    drawn = world(name, 0)
    assert cost.shape == quality.shape == (drawn.space.size,)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(drawn.space.size, (300,), generator=generator)
    torch.testing.assert_close(quality[index], mean_quality(drawn, index), rtol=0, atol=1e-12)
    torch.testing.assert_close(cost[index], mean_cost(drawn, index), rtol=1e-12, atol=0)
    again = simulated_task(name="a_simulated", world=name, cache_dir=str(tmp_path)).evaluator
    assert torch.equal(again.truth()[1], quality)
