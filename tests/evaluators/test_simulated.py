"""Observations of simulated systems, the cache of their truth, and their tasks."""

import threading
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tables import make_task
from worlds import PRICES, spec_of, world_of

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation import evaluator as simulated
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.spec import RecordedLikeSpec, WorldSpec
from scope_torch.evaluators.simulation.world import World
from scope_torch.observation import Request
from scope_torch.tasks.simulated import simulated_task
from scope_torch.testing import EvaluatorConformance

THETA = (4, 3, 2, 4)
FOUR = ["GPT-5.2", "Gemini 2.5 Flash-Lite", "GPT-5-mini", "gemma-3-27b"]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "default"))


def evaluator_of(world=None, **options) -> SimulatedEvaluator:
    return SimulatedEvaluator(world or world_of(), **options)


def observe(evaluator, theta=THETA, replicates=1):
    """Quality and cost of every query in every replicate: two arrays `replicates x Q`."""
    size = (replicates, evaluator.world.num_queries)
    requests = [Request(theta, q, r) for r in range(size[0]) for q in range(size[1])]
    observed = list(evaluator.evaluate(requests))
    assert [o.request for o in observed] == requests
    return (
        np.array([getattr(o, k) for o in observed]).reshape(size) for k in ("quality", "cost_usd")
    )


def expected(world, theta=THETA):
    """l_s of every query, and l_c of every module and query."""
    codes = [torch.tensor(code) for code in theta]
    queries = torch.arange(world.num_queries)
    costs = torch.stack(world.module_costs(codes, queries)).numpy()
    return world.quality(codes, queries).numpy(), costs


class TestSimulatedEvaluator(EvaluatorConformance):
    exact = False

    @pytest.fixture
    def task(self):
        return make_task(1, (3, 3), 4)

    @pytest.fixture(params=[(0.0, "search"), (0.5, "test")], ids=str)
    def make_evaluator(self, request, device, tmp_path):
        randomness, split = request.param
        changed = {"num_queries": 4, "num_test_queries": 4}
        options = {"llms": ["small", "GPT-5.2", "large"], "device": device}
        world = world_of("chain", changed, randomness=randomness, split=split, **options)
        return lambda _: SimulatedEvaluator(world, cache_dir=tmp_path)


def test_deterministic_llms_always_give_the_same_answer():
    evaluator = evaluator_of(cost_noise=0.0)
    l_s, l_c = expected(evaluator.world)
    quality, cost = observe(evaluator, replicates=3)
    assert set(l_s) == {0.0, 1.0}
    assert (quality == l_s).all()
    np.testing.assert_allclose(cost, np.tile(l_c.sum(0), (3, 1)), rtol=1e-14)
    quality, cost = observe(evaluator_of(), replicates=3)
    assert (quality == l_s).all()
    assert len(np.unique(cost)) == cost.size


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 0), (5, 3)])
def test_random_llms_are_right_with_the_expected_probability(seeds):
    world = world_of("chain", randomness=1.0, world_seed=seeds[0])
    evaluator = evaluator_of(world, noise_seed=seeds[1], cost_noise=0.2)
    replicates = 500  # more than the evaluator keeps in memory
    l_s, l_c = expected(world, (4, 1))
    assert ((l_s > 0.1) & (l_s < 0.9)).sum() >= 2
    quality, cost = observe(evaluator, (4, 1), replicates)
    assert set(np.unique(quality)) == {0.0, 1.0}
    bound = 5 * np.sqrt(l_s * (1 - l_s) / replicates) + 1e-3
    assert (abs(quality.mean(0) - l_s) <= bound).all()
    noise = (cost / l_c.sum(0) - 1) / 0.2
    assert (abs(noise.mean(0)) < 5 / np.sqrt(replicates)).all()
    assert (abs(noise.var(0) - 1) < 0.25).all()
    assert abs(noise).max() < 3.4642
    assert cost.min() > 0
    # Answers and costs are independent of each other, between queries and between replicates.
    residual = quality - l_s
    spread = np.sqrt((l_s * (1 - l_s)).mean())
    limit = 5 / np.sqrt(noise.size)
    assert abs((residual * noise).mean()) < limit * spread
    assert abs((residual[1:] * residual[:-1]).mean()) < limit * spread**2
    assert abs((noise[1:] * noise[:-1]).mean()) < limit
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < limit


def test_module_costs_add_up():
    evaluator = evaluator_of(cost_noise=0.25)
    _, l_c = expected(evaluator.world)
    for observation in evaluator.evaluate([Request(THETA, q, r) for q in range(7) for r in (0, 9)]):
        costs = observation.module_cost_usd
        assert len(costs) == 4
        assert observation.cost_usd == sum(costs)
        factor = np.array(costs) / l_c[:, observation.query]
        np.testing.assert_allclose(factor, factor[0], rtol=1e-12)
        assert factor[0] != 1


@pytest.mark.slow
def test_a_replicate_is_a_draw_of_its_own_and_always_the_same():
    world = world_of(randomness=1.0)
    quality, cost = observe(evaluator_of(world), replicates=300)
    assert len(np.unique(cost)) > 0.99 * cost.size  # the noise has about 2^18 values
    assert (quality.min(0) < quality.max(0)).any()
    late = evaluator_of(world)
    for replicate in (299, 0, 7, 299):
        (observed,) = late.evaluate([Request(THETA, 3, replicate)])
        assert observed.cost_usd == cost[replicate, 3]
        assert observed.quality == quality[replicate, 3]
        assert observed.replicate == replicate


@pytest.mark.slow
def test_every_seed_gives_draws_of_its_own():
    """Relative noise of cost, which does not depend on the draw of the world."""
    draws = {}
    for seeds in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (1, 2), (0, -1)]:
        world = world_of(world_seed=seeds[0])
        evaluator = evaluator_of(world, noise_seed=seeds[1], cost_noise=0.1)
        _, cost = observe(evaluator)
        draws[seeds] = (cost / expected(world)[1].sum(0) - 1).ravel().round(10)
    every = np.concatenate(list(draws.values()))
    assert len(np.unique(every)) == len(every)


def test_the_noise_of_costs_does_not_change_answers():
    world = world_of(randomness=1.0)
    few, _ = observe(evaluator_of(world, cost_noise=0.0))
    many, _ = observe(evaluator_of(world, cost_noise=0.25))
    assert (few == many).all()


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The settings of every world whose truth is computed, in order."""
    calls, real = [], World.mean_quality

    def mean_quality(self):
        calls.append(self.settings())
        return real(self)

    monkeypatch.setattr(World, "mean_quality", mean_quality)
    return calls


def test_the_truth_is_computed_once_and_read_again(tmp_path, computed):
    world = world_of(randomness=0.3)
    for turn in range(3):
        cost, quality = evaluator_of(world_of(randomness=0.3), cache_dir=tmp_path / "a").truth()
        assert torch.equal(cost, world.mean_cost())
        assert len(computed) == 1, turn
        (file,) = (tmp_path / "a").iterdir()
        assert (file.name.startswith("small-"), file.suffix) == (True, ".npy")
        assert torch.equal(quality, torch.from_numpy(np.load(file)))
    assert torch.equal(quality, world.mean_quality())


def test_where_the_truth_is_kept(tmp_path, monkeypatch, computed):
    evaluator_of(cache_dir=tmp_path / "given").truth()
    evaluator_of().truth()
    monkeypatch.delenv("SCOPE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    evaluator_of().truth()
    directories = [tmp_path / d for d in ("given", "default", "home/.cache/scope-torch")]
    assert [len(list(d.iterdir())) for d in directories] == [1, 1, 1]
    assert len(computed) == 3


@pytest.mark.slow
def test_other_worlds_have_other_files(tmp_path, computed):
    others = [
        world_of(),
        world_of(randomness=0.1),
        world_of(world_seed=1),
        world_of(split="test"),
        world_of(llms=["small", "GPT-5.2", "large"]),
        world_of(llms=["large", "GPT-5.2", "small"]),
        world_of(changed={"chance": 0.2}),
    ]
    for _ in range(2):
        for world in others:
            _, quality = evaluator_of(world, cache_dir=tmp_path).truth()
            assert quality.shape == (world.space.size,)
    assert len(computed) == len(list(tmp_path.iterdir())) == len(others)
    evaluator_of(cache_dir=tmp_path, cost_noise=0.1, noise_seed=4).truth()  # the same world
    assert len(computed) == len(others)


def damage(kind, path):
    good = np.load(path)
    if kind in ("empty", "text", "zip"):
        path.write_bytes({"empty": b"", "text": b"not an array", "zip": b"PK\3\4 no more"}[kind])
    elif kind.startswith("cut"):
        path.write_bytes(path.read_bytes()[: int(kind[4:])])
    elif kind == "archive":
        with path.open("wb") as file:
            np.savez(file, good)
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    else:
        values = {"shape": good[:-1], "float32": good.astype(np.float32), "big-endian": good}
        values["big-endian"] = good.astype(">f8")
        values |= {"text array": good.astype(str), "objects": good.astype(object)}
        np.save(path, values[kind])


@pytest.mark.parametrize(
    "kind",
    [
        *("empty", "text", "zip", "cut 5", "cut 60", "cut 500", "archive", "directory", "shape"),
        *("float32", "big-endian", "text array", "objects"),
    ],
)
def test_a_damaged_cache_file_is_made_anew(kind, tmp_path, computed):
    _, expected = evaluator_of(cache_dir=tmp_path).truth()
    (path,) = tmp_path.iterdir()
    damage(kind, path)
    for turn in (2, 3):
        _, quality = evaluator_of(cache_dir=tmp_path).truth()
        assert torch.equal(quality, expected)
        assert len(computed) == (turn if kind == "directory" else 2)
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["directory", "disk"])
def test_a_cache_that_cannot_be_written_is_done_without(failing, tmp_path, computed, monkeypatch):
    directory = tmp_path / "cache"
    if failing == "directory":
        (tmp_path / "cache").write_text("a file")
        directory = tmp_path / "cache" / "below"
    else:

        def full(*arguments, **options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(simulated.np, "save", full)
    for turn in (1, 2):
        _, quality = evaluator_of(cache_dir=directory).truth()
        assert torch.equal(quality, world_of().mean_quality())
        assert len(computed) == 2 * turn
    assert failing == "directory" or list(directory.iterdir()) == []


@pytest.mark.slow
def test_writers_at_the_same_time_do_not_clash(tmp_path, monkeypatch):
    """All begin to write before one ends, as processes of a sweep may."""
    together, real = threading.Barrier(4), np.save

    def save(file, values, **options):
        real(file, values[: len(values) // 2], **options)
        together.wait(timeout=30)
        file.seek(0)
        real(file, values, **options)

    monkeypatch.setattr(simulated.np, "save", save)
    found = []

    def truth() -> None:
        found.append(evaluator_of(cache_dir=tmp_path).truth()[1])

    threads = [threading.Thread(target=truth) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    (path,) = tmp_path.iterdir()
    assert np.array_equal(np.load(path), world_of().mean_quality().numpy())


def changed_spec(name: str) -> WorldSpec:
    spec = spec_of()
    value = getattr(spec, name)
    if isinstance(value, str):
        return replace(spec, **{name: value + "x"})
    if name == "modules":
        return replace(spec, modules=(replace(value[0], burden=0.1), *value[1:]))
    return replace(spec, **{name: type(value)(value + 1) if name != "reference_quality" else 0.5})


@pytest.mark.slow
def test_the_fingerprint_changes_with_all_that_decides_observations(tmp_path, device):
    price = replace(PRICES["small"], output_usd_per_mtok=0.41)
    worlds = [World(changed_spec(field.name), PRICES) for field in fields(WorldSpec)]
    worlds += [
        world_of(world_seed=1),
        world_of(split="test"),
        world_of(randomness=0.1),
        world_of(llms=list(PRICES)[::-1]),
        World(spec_of(), {**PRICES, "small": price}),
        World(spec_of(), {**PRICES, "small": replace(PRICES["small"], gpqa=None)}),
    ]
    like = {"family": "recorded_like"}
    own = {field.name for field in fields(RecordedLikeSpec)} - {f.name for f in fields(WorldSpec)}
    worlds += [world_of(changed={**like, **more}) for more in ({}, *({n: 0.11} for n in own))]
    evaluators = [evaluator_of(), *map(evaluator_of, worlds)]
    evaluators += [evaluator_of(cost_noise=0.04), evaluator_of(noise_seed=1)]
    fingerprints = [evaluator.fingerprint() for evaluator in evaluators]
    assert len(set(fingerprints)) == len(fingerprints)
    same = evaluator_of(world_of(device=device), cache_dir=tmp_path)
    assert same.fingerprint() == fingerprints[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cost_noise": -0.01}, "cost_noise=-0.01 must lie in [0, 0.25]"),
        ({"cost_noise": 0.26}, "cost_noise=0.26 must lie in [0, 0.25]"),
        ({"cost_noise": float("nan")}, "cost_noise=nan must lie in [0, 0.25]"),
        ({"noise_seed": -(2**63) - 1}, "must fit into 64 bits"),
        ({"world": "sql"}, "no simulated task 'sql'; there are ['text_to_sql', "),
        ({"family": "other"}, "family='other' must be one of ['bottleneck', 'additive', 'recor"),
        ({"reference": "GPT-5"}, "reference: 'GPT-5' is not a candidate of module 'parse'; choose"),
        ({"llms": ["gemma-3-4b"]}, "'GPT-5.2' is not a candidate of module 'parse'; choose"),
        ({"llms": ["GPT-5.2", "GPT-6"]}, "no price is known for LLM 'GPT-6'; there are"),
        ({"llms": ["GPT-5.2", "GPT-5.2"]}, "module 'parse' lists an LLM twice"),
        ({"randomness": -1.0}, "randomness=-1.0 must be at least 0"),
        ({"epsilon": 1.0}, "epsilon=1.0 must lie in (0, 1)"),
        ({"world_file": "nowhere.toml"}, "cannot read nowhere.toml"),
        ({"price_file": "nowhere.toml"}, "cannot read nowhere.toml"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_task_is_refused_in_one_line(options, named):
    with pytest.raises(InputError) as caught:
        simulated_task(**{"name": "di_simulated", "world": "data_imputation", **options})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epsilon": 0.2, "noise_seed": 4},
        {"reference": "GPT-5-mini", "world_seed": 3},
        {"randomness": 0.3},
    ],
    ids=str,
)
def test_a_task_knows_its_reference(options, device):
    settings = {"world": "data_imputation", "llms": FOUR, "device": device}
    problem, evaluator, held_out = simulated_task(name="di_simulated", **settings, **options)
    reference = options.get("reference", "GPT-5.2")
    assert set(problem.names(problem.theta_ref).values()) == {reference}
    assert problem.modules == ("parse", "cloze", "answer")
    assert problem.llms == (tuple(FOUR),) * 3
    assert problem.num_queries == 156
    assert problem.epsilon == options.get("epsilon", 0.01)
    cost, quality = evaluator.truth()
    at = problem.space.rank(torch.tensor(problem.theta_ref))
    assert float(cost[at]) == pytest.approx(problem.reference_cost_usd, rel=1e-13)
    assert float(quality[at]) == pytest.approx(problem.reference_quality, rel=1e-13)
    assert problem.s_0 <= float(quality[at])
    assert held_out is not None
    deployed = held_out()
    assert deployed.num_queries == deployed.evaluator.world.num_queries == 86
    searched_on = evaluator.world.settings()
    assert deployed.evaluator.world.settings() == {**searched_on, "split": "test"}
    assert searched_on["split"] == "search"
    for name in ("cost_noise", "noise_seed"):
        assert getattr(deployed.evaluator, name) == getattr(evaluator, name)
    assert evaluator.noise_seed == options.get("noise_seed", 0)
    cost, quality = deployed.evaluator.truth()  # not the search's truth
    assert torch.equal(quality, deployed.evaluator.world.mean_quality())


def test_the_files_of_a_task_can_be_ones_own(tmp_path):
    """Lower prices lower the cost of all but the reference, whose cost is calibrated."""
    from importlib.resources import files

    packaged = files("scope_torch") / "data"
    for name in ("worlds.toml", "llms.toml"):
        (tmp_path / name).write_text((packaged / name).read_text(encoding="utf-8"))
    plain = simulated_task(name="a_simulated", world="data_imputation", llms=FOUR)
    settings = {"name": "a_simulated", "world": "data_imputation", "llms": FOUR}
    files_of = {"world_file": f"{tmp_path}/worlds.toml", "price_file": f"{tmp_path}/llms.toml"}
    copied = simulated_task(**settings, **files_of)
    assert copied.problem == plain.problem
    assert copied.evaluator.fingerprint() == plain.evaluator.fingerprint()
    text = (tmp_path / "worlds.toml").read_text().replace("0.00434", "0.01")
    (tmp_path / "worlds.toml").write_text(text)
    dearer = simulated_task(**settings, **files_of)
    assert dearer.problem.reference_cost_usd == pytest.approx(0.01, rel=1e-12)
