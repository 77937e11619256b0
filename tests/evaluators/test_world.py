"""Simulated worlds against their formulas in plain Python, and their random numbers."""

import itertools
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from worlds import GRAPHS, PRICES, plain_of, spec_of, world_of

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation import counter_random
from scope_torch.evaluators.simulation import world as world_module
from scope_torch.evaluators.simulation.counter_random import normal, stream_key, uniform
from scope_torch.evaluators.simulation.draws import abilities
from scope_torch.evaluators.simulation.spec import FAMILIES as WORLD_FAMILIES
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.evaluators.simulation.world import _STREAMS, World
from scope_torch.llm.prices import LLMInfo, load_llms

NAMES = list(PRICES)
FAMILIES = [{}, {"reference_split": "test"}, {"family": "additive"}, {"family": "recorded_like"}]
SETTINGS = [("search", 0.0), ("search", 0.8), ("test", 0.0), ("test", 0.8)]


def every_pair(world: World) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Codes and queries that broadcast to `|Theta| x Q`."""
    codes = world.space.unrank(torch.arange(world.space.size, device=world.device))
    queries = torch.arange(world.num_queries, device=world.device)
    return [column[:, None] for column in codes.T], queries


def tables(world: World) -> list[torch.Tensor]:
    """Quality and the modules' costs of every pair: `|Theta| x Q` each, on the CPU."""
    pairs = every_pair(world)
    values = [world.quality(*pairs), *world.module_costs(*pairs)]
    return [v.expand(world.space.size, world.num_queries).cpu() for v in values]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "split", "randomness"),
    [(FAMILIES[i // 2], *SETTINGS[(i + i // 4) % 4]) for i in range(8)],  # twice each
)
def test_random_pairs_equal_the_formulas(changed, split, randomness, device):
    seed = -5
    options = {"split": split, "randomness": randomness}
    for graph in GRAPHS:
        world = world_of(graph, changed, world_seed=seed, device=device, **options)
        plain = plain_of(spec_of(graph, **changed), seed=seed, **options)
        rng = np.random.default_rng(seed + 9)
        assert world.num_queries == (7 if split == "search" else 5)
        thetas = rng.integers(len(NAMES), size=(25, world.space.num_modules))
        queries = rng.integers(world.num_queries, size=25)
        pairs = [
            ([NAMES[c] for c in theta], int(q)) for theta, q in zip(thetas, queries, strict=True)
        ]
        at = torch.tensor(thetas.T, device=device).unbind(), torch.tensor(queries, device=device)
        quality = world.quality(*at)
        assert quality.dtype == torch.float64
        expected = [plain.quality(*pair) for pair in pairs]
        np.testing.assert_allclose(quality.cpu(), expected, rtol=0, atol=1e-12)
        costs = torch.stack(list(world.module_costs(*at)), -1).cpu()
        np.testing.assert_allclose(costs, [plain.module_costs(*p) for p in pairs], rtol=1e-12)


@pytest.mark.parametrize(
    ("graph", "changed", "split", "randomness"),
    [
        (graph, changed, *SETTINGS[(i + k) % 4])
        for i, graph in enumerate(GRAPHS)
        for k, changed in enumerate(FAMILIES)
    ],
)
def test_averages_over_all_of_theta_equal_the_formulas(
    changed, graph, split, randomness, monkeypatch, device
):
    llms = ["large", "GPT-5.2", "unknown"]
    plain = plain_of(spec_of(graph, **changed), split=split, randomness=randomness)
    world = world_of(graph, changed, llms=llms, split=split, randomness=randomness, device=device)
    queries = range(world.num_queries)
    thetas = list(itertools.product(llms, repeat=world.space.num_modules))
    cost = [np.mean([sum(plain.module_costs(list(t), q)) for q in queries]) for t in thetas]
    quality = [np.mean([plain.quality(list(t), q) for q in queries]) for t in thetas]
    for block in (40, 1 << 18):  # of queries, of the first module's LLMs, and neither
        monkeypatch.setattr(world_module, "_BLOCK", block)
        for values in (world.mean_cost(), world.mean_quality()):
            assert (values.dtype, values.device.type) == (torch.float64, "cpu")
            assert values.shape == (3**world.space.num_modules,)
        np.testing.assert_allclose(world.mean_cost(), cost, rtol=1e-12)
        np.testing.assert_allclose(world.mean_quality(), quality, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_small_worlds_have_effects_to_check():
    """Right and wrong answers, modules with and without a repaired input."""
    for graph, changed in itertools.product(GRAPHS, FAMILIES):
        quality = tables(world_of(graph, changed))[0]
        assert 0.05 < float(quality.mean()) < 0.95
        assert float(quality.mean(1).std()) > 0
        graded = tables(world_of(graph, changed, randomness=0.8))[0]
        assert float(((graded > 0.01) & (graded < 0.99)).double().mean()) > 0.15


@pytest.mark.parametrize("graph", ["one module", "two roots"])
@pytest.mark.parametrize("quality", [0.01, 0.34, 0.85, 1.0])
def test_the_reference_is_calibrated(graph, quality):
    for num_queries in (1, 2, 9, 50):
        check_calibration(graph, quality, num_queries)


def check_calibration(graph, quality, num_queries):
    changed = {"num_queries": num_queries, "reference_quality": quality}
    world = world_of(graph, {**changed, "reference_cost_usd": 0.123})
    at = world.space.rank(torch.full((world.space.num_modules,), NAMES.index("GPT-5.2")))
    assert float(world.mean_cost()[at]) == pytest.approx(0.123, rel=1e-13)
    assert abs(float(world.mean_quality()[at]) - quality) <= 1 / num_queries + 1e-12
    if quality * num_queries >= 1:
        expected = round(quality * num_queries) / num_queries
        assert float(world.mean_quality()[at]) == pytest.approx(expected)


@pytest.mark.parametrize("family", WORLD_FAMILIES)
def test_the_reference_is_calibrated_on_held_out_queries(family):
    changed = {"family": family, "reference_split": "test", "num_test_queries": 50}
    search, test = (world_of("two roots", changed, split=split) for split in ("search", "test"))
    at = search.space.rank(torch.full((3,), NAMES.index("GPT-5.2")))
    assert float(test.mean_quality()[at]) == pytest.approx(0.6)
    assert float(search.mean_cost()[at]) == pytest.approx(0.004, rel=1e-13)


@pytest.mark.slow
def test_the_families_share_no_random_numbers():
    keys = {
        world_of("chain", {"family": family})._key(stream)
        for family in WORLD_FAMILIES
        for stream in _STREAMS
    }
    assert len(keys) == 3 * len(_STREAMS)


@pytest.mark.parametrize("family", ["additive", "recorded_like"])
def test_costs_of_later_families_are_no_sum_over_modules(family):
    """An interaction of the two modules' LLMs remains in the costs of all pairs."""
    cost = world_of("chain", {"family": family}).mean_cost().view(len(NAMES), len(NAMES))
    rest = cost - cost.mean(0) - cost.mean(1)[:, None] + cost.mean()
    assert float(rest.abs().max()) > 0.01 * float(cost.max())


@pytest.mark.parametrize(
    "failing", [{"failing": 1.0, "failing_pairs": 0.0}, {"failing": 0.0, "failing_pairs": 1.0}]
)
def test_the_reference_never_fails(failing):
    """Where all others do, none of them is ever right."""
    world = world_of("chain", {"family": "recorded_like", "failure": 1e3, **failing})
    quality = world.mean_quality().view(len(NAMES), len(NAMES))
    at = NAMES.index("GPT-5.2")
    assert float(quality[at, at]) == float(quality.sum()) == pytest.approx(4 / 7)


def test_the_reference_need_not_be_a_candidate():
    free_of_it = world_of(llms=["small", "large"])
    whole = world_of()
    corner = [torch.tensor(NAMES.index("large"))] * 4, torch.arange(7)
    own = [torch.tensor(1)] * 4, torch.arange(7)
    assert torch.equal(whole.quality(*corner), free_of_it.quality(*own))
    for a, b in zip(whole.module_costs(*corner), free_of_it.module_costs(*own), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("randomness", [0.0, 0.3])
@pytest.mark.parametrize("split", ["search", "test"])
def test_a_pair_does_not_depend_on_what_is_evaluated_with_it(split, randomness):
    world = world_of(split=split, randomness=randomness)
    whole = torch.stack(tables(world))
    rng = np.random.default_rng(3)
    theta = torch.tensor(rng.integers(world.space.size, size=60))
    query = torch.tensor(rng.integers(world.num_queries, size=60))
    expected = whole[:, theta, query]

    def at(pick):
        columns = world.space.unrank(theta[pick]).unbind(-1)
        costs = world.module_costs(columns, query[pick])
        return torch.stack([world.quality(columns, query[pick]), *costs])

    assert torch.equal(at(torch.arange(60)), expected)
    order = torch.tensor(rng.permutation(60))
    assert torch.equal(at(order), expected[:, order])
    for i in (5, 0, 59):
        assert torch.equal(at(torch.tensor([i])), expected[:, [i]])
    assert torch.equal(at(torch.arange(60).view(3, 4, 5)).reshape(-1, 60), expected)


@pytest.mark.parametrize("split", ["search", "test"])
def test_the_choice_of_candidates_does_not_change_the_world(split):
    chosen = ["large", "unknown", "GPT-5.2"]
    whole, part = (world_of(llms=llms, split=split) for llms in (None, chosen))
    index = torch.tensor([NAMES.index(name) for name in chosen])
    shape = (*whole.space.sizes, whole.num_queries)
    for values, restricted in zip(tables(whole), tables(part), strict=True):
        values = values.view(shape)
        for dim in range(whole.space.num_modules):
            values = values.index_select(dim, index)
        assert torch.equal(values.reshape(restricted.shape), restricted)
    keys = [world.pair_key(*every_pair(world)) for world in (whole, part)]
    assert set(keys[1].flatten().tolist()) < set(keys[0].flatten().tolist())


def test_pairs_have_keys_of_their_own():
    keys = [world_of(split=split).pair_key(*every_pair(world_of())) for split in ("search",)]
    keys.append(world_of(split="test").pair_key(*every_pair(world_of(split="test"))))
    every = torch.cat([key.flatten() for key in keys])
    assert len(every.unique()) == len(every) == 5**4 * (7 + 5)


@pytest.mark.parametrize("split", ["search", "test"])
def test_the_seed_decides_the_world(split):
    one, again, other = (world_of(world_seed=seed, split=split) for seed in (3, 3, 4))
    for a, b, c in zip(tables(one), tables(again), tables(other), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize("randomness", [0.0, 0.3])
def test_every_device_has_the_same_world(randomness, device):
    here = tables(world_of(randomness=randomness, device=device))
    for values, expected in zip(here, tables(world_of(randomness=randomness)), strict=True):
        if randomness == 0:
            assert torch.equal(values, expected)
        np.testing.assert_allclose(values, expected, rtol=1e-14, atol=1e-15)


def test_splitmix64_of_a_stream_equals_integer_arithmetic():
    for seed, stream in [(0, 0), (7, 101), (-3, 5), (2**63 - 1, 8), (-(2**63), 0)]:
        expected = naive.splitmix64(naive.splitmix64(seed % 2**64) + stream)
        assert stream_key(seed, stream) % 2**64 == expected
    keys = {stream_key(seed, stream) for seed in range(50) for stream in range(9)}
    assert len(keys) == 450


def test_normal_numbers():
    counter = torch.arange(1 << 19)
    values = normal(stream_key(1, 2), counter)
    assert values.dtype == torch.float64
    assert abs(float(values.mean())) < 5 / 2**9.5
    assert abs(float(values.var()) - 1) < 0.008
    assert abs(float((values**3).mean())) < 0.02
    assert float((values**4).mean()) == pytest.approx(3 - 6 / 5 / 4, abs=0.03)  # Irwin-Hall
    assert 3 < float(values.abs().max()) < 3.47
    lag, other = values[1:] * values[:-1], values * normal(stream_key(1, 3), counter)
    assert abs(float(lag.mean())) < 5 / 2**9.5
    assert abs(float(other.mean())) < 5 / 2**9.5


@pytest.mark.parametrize(("bits", "end"), [(0, -1), (2**64 - 1, 1)])
def test_normal_numbers_lie_within_347(bits, end, monkeypatch):
    signed = bits - 2**64 if bits >= 2**63 else bits
    monkeypatch.setattr(counter_random, "splitmix64", lambda x: torch.full_like(x, signed))
    assert float(normal(0, torch.tensor(0))) == pytest.approx(end * 3.4641, abs=1e-4)
    share = float(uniform(0, torch.tensor(0)))
    assert share == (0.0 if end < 0 else 1 - 2.0**-53)


def test_uniform_numbers():
    counter = torch.arange(1 << 18)
    values = uniform(stream_key(4, 101), counter)
    assert 0 <= float(values.min()) < float(values.max()) < 1
    counts = torch.histc(values, 64, 0, 1)
    assert float(((counts - 4096) ** 2 / 4096).sum()) < 63 + 6 * np.sqrt(2 * 63)
    expected = [
        (naive.splitmix64((stream_key(4, 101) + i) % 2**64) >> 11) / 2**53 for i in range(99)
    ]
    assert values[:99].tolist() == expected


def test_abilities_are_mean_standardised_scores():
    known = abilities(list(PRICES.values()))
    plain = plain_of(spec_of())
    assert known == pytest.approx([plain.ability(name) for name in NAMES], abs=1e-14)
    assert known[NAMES.index("unknown")] == min(known) == known[NAMES.index("small")]


HALF_ROOT = 1.5**0.5 / 2


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([(None, None), (None, None)], [0, 0]),
        ([(70.0, None), (None, None)], [0, 0]),
        ([(70.0, None), (70.0, 0.5)], [0, 0]),
        ([(60.0, None), (80.0, None)], [-1, 1]),
        ([(60.0, 0.7), (80.0, 0.3), (None, 0.5)], [HALF_ROOT - 0.5, 0.5 - HALF_ROOT, 0]),
    ],
)
def test_abilities_with_few_scores(scores, expected):
    llms = [LLMInfo(f"llm{i}", 1.0, 1.0, *pair) for i, pair in enumerate(scores)]
    assert abilities(llms) == pytest.approx(expected, abs=1e-12)


def test_held_out_queries_are_others_and_a_little_harder():
    """Held-out queries use the constants that are fitted to the search queries."""
    many = {"num_queries": 2000, "num_test_queries": 2000, "reference_quality": 0.5}
    shifts = {"none": {"test_difficulty": 0.0, "test_length": 1.0}, "mild": {}}
    mean = {}
    for name, shift in shifts.items():
        search, test = (
            world_of("chain", {**many, **shift}, split=split) for split in ("search", "test")
        )
        assert not torch.equal(tables(search)[0], tables(test)[0])
        for a, b in zip(search._fit_table, test._fit_table, strict=True):
            assert all(torch.equal(a[p], b[p]) for p in a)
        mean[name] = [
            (float(w.mean_quality().mean()), float(w.mean_cost().mean())) for w in (search, test)
        ]
    assert mean["none"][0] == mean["mild"][0]
    assert mean["none"][1][0] == pytest.approx(mean["none"][0][0], abs=0.03)
    assert mean["none"][1][1] == pytest.approx(mean["none"][0][1], rel=0.03)
    assert mean["mild"][1][0] < mean["none"][1][0] - 0.05
    assert 0.7 * mean["none"][1][1] < mean["mild"][1][1] < 0.97 * mean["none"][1][1]


def test_more_held_out_queries_leave_the_others_alone():
    few, many = (world_of(changed={"num_test_queries": n}, split="test") for n in (5, 11))
    for a, b in zip(tables(few), tables(many), strict=True):
        assert torch.equal(a, b[:, :5])


@pytest.mark.parametrize("graph", ["chain", "diamond", "skipping"])
def test_a_verbose_llm_makes_the_modules_downstream_dearer(graph):
    """It changes no other module, and quality does not depend on tokens."""
    world = world_of(graph, {"module_verbosity": 0.0})
    verbosity = torch.stack([table.mean(1) for table in world._output])[0]
    brief, wordy = int(verbosity.argmin()), int(verbosity.argmax())
    queries = torch.arange(7)
    for i, module in enumerate(world.spec.modules):
        theta = [torch.tensor(3)] * len(world.spec.modules)
        costs = []
        for llm in (brief, wordy):
            theta[i] = torch.tensor(llm)
            costs.append([float(c.mean()) for c in world.module_costs(theta, queries)])
        for j, other in enumerate(world.spec.modules):
            if module.name in other.parents:
                assert costs[1][j] > 1.01 * costs[0][j]
            elif j != i:
                assert costs[1][j] == costs[0][j]


PACKAGED = list(load_worlds())


def around(world: World, theta: torch.Tensor, i: int, j: int) -> torch.Tensor:
    """Average quality with every pair of LLMs at modules i and j of theta: `M x M`."""
    size = world.space.sizes[0]
    codes = [code.view(1, 1, 1) for code in theta]
    codes[i], codes[j] = torch.arange(size).view(-1, 1, 1), torch.arange(size).view(1, -1, 1)
    return world.quality(codes, torch.arange(world.num_queries)).mean(-1)


@pytest.mark.parametrize("name", PACKAGED)
def test_quality_is_neither_monotone_nor_additive_nor_multiplicative(name):
    """Examples in world 0: GPT-5.2 everywhere, with two neighbouring modules changed."""
    spec = load_worlds()[name]
    world = World(spec, load_llms())
    ability = torch.tensor(abilities(list(load_llms().values())))
    child = len(spec.modules) - 1
    parent = spec.parents[child][0]
    s = around(world, torch.zeros(child + 1, dtype=torch.int64), parent, child)
    # The upstream LLM has more ability and is better at this module, and yet s falls.
    better_at_it = world._own_table[parent].mean(1)
    higher = ability[None, :] > ability[:, None] + 0.1
    better = better_at_it[None, :] > better_at_it[:, None] + 0.1
    falls = s[None, :, :] < s[:, None, :] - 0.02  # from, to, LLM of the child
    assert int((falls & (higher & better)[:, :, None]).sum()) > 0
    additive = s + s[0, 0] - s[:, :1] - s[:1, :]
    assert float(additive.abs().max()) > 0.1
    product = s[0, 0] * s - s[:, :1] * s[:1, :]
    assert float(product.abs().max()) > 0.05
    assert float((s - s[0, 0]).abs().max()) > 0.2


def test_a_module_can_mend_what_it_was_given():
    """With repair the output may exceed the input; without, the weakest module decides."""
    strong = {"reference_quality": 0.5, "num_queries": 400, "chance": 0.0, "fit": 0.0}
    s = []
    for repair in (0.0, 0.9):
        modules = [replace(m, repair=repair) for m in GRAPHS["chain"]]
        world = world_of("chain", {**strong, "mismatch": 0.0, "modules": tuple(modules)})
        right = world.quality([torch.tensor(0), torch.tensor(4)], torch.arange(400)) > 0
        weakest = torch.minimum(world._own_table[0][0], world._own_table[1][4]) > 0
        s.append((right, weakest))
    (right, weakest), (mended, still_weakest) = s
    assert torch.equal(right, weakest)
    assert int((mended & ~still_weakest).sum()) > 10
    assert not bool((still_weakest & ~mended).any())


@pytest.mark.slow
def test_settings_tell_worlds_apart():
    described = [
        world_of().settings(),
        world_of(world_seed=1).settings(),
        world_of(split="test").settings(),
        world_of(randomness=0.1).settings(),
        world_of(llms=NAMES[::-1]).settings(),
        world_of(changed={"chance": 0.2}).settings(),
        World(spec_of(), {**PRICES, "new": LLMInfo("new", 1.0, 1.0)}, llms=NAMES).settings(),
    ]
    assert all(a != b for a, b in itertools.combinations(described, 2))
    assert world_of().settings() == described[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split": "train"}, "split='train' must be search or test"),
        ({"randomness": -0.1}, "randomness=-0.1 must be at least 0"),
        ({"randomness": float("nan")}, "randomness=nan must be at least 0"),
        ({"world_seed": 2**63}, "world_seed=9223372036854775808 must fit into 64 bits"),
        ({"llms": ["small", "GPT-6"]}, "no price is known for LLM 'GPT-6'; there are ['small'"),
        ({"llms": []}, "sizes=(0, 0, 0, 0)"),
        ({"changed": {"num_queries": 0}}, "0 queries in a simulated task; there can be 1 to"),
        ({"changed": {"num_queries": 1_000_001}}, "1000001 queries"),
        ({"changed": {"num_test_queries": 50_000}}, "50000 held-out queries"),
        ({"changed": {"modules": ()}}, "0 modules"),
    ],
)
def test_refused_in_one_line(options, named):
    with pytest.raises(InputError) as caught:
        world_of(**options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_numbers_are_not_shared():
    """More LLMs or modules than the counters of random numbers can tell apart."""
    many = {f"llm{i}": LLMInfo(f"llm{i}", 1.0, 1.0) for i in range(63)}
    World(spec_of("one module"), {**PRICES, **dict(list(many.items())[:59])})
    with pytest.raises(InputError, match="68 LLMs in the price list"):
        World(spec_of("one module"), {**PRICES, **many})
    chain = tuple(replace(GRAPHS["one module"][0], name=f"m{i}") for i in range(9))
    with pytest.raises(InputError, match="37 LLMs in the price list"):
        World(spec_of(modules=chain[:8]), {**PRICES, **dict(list(many.items())[:32])})
    with pytest.raises(InputError, match="9 modules in a simulated task"):
        World(spec_of(modules=chain), PRICES)


@pytest.mark.parametrize("num_modules", [7, 8])
def test_pairs_of_long_chains_have_keys_of_their_own(num_modules):
    """With the most LLMs that a chain of this length admits."""
    most = 64 if num_modules == 7 else 32
    more = {f"llm{i}": LLMInfo(f"llm{i}", 1.0, 1.0) for i in range(most - len(PRICES))}
    modules = tuple(replace(GRAPHS["one module"][0], name=f"m{i}") for i in range(num_modules))
    world = World(spec_of(modules=modules), {**PRICES, **more})
    codes = torch.tensor(list(itertools.product((0, most // 2, most - 1), repeat=num_modules)))
    keys = world.pair_key([code[:, None] for code in codes.T], torch.arange(world.num_queries))
    assert len(keys.unique()) == keys.numel() == 3**num_modules * world.num_queries


def test_the_reference_needs_a_price():
    without = {name: llm for name, llm in PRICES.items() if name != "GPT-5.2"}
    with pytest.raises(InputError, match=r"no price is known for LLM 'GPT-5\.2'"):
        World(spec_of(), without)
    free = {**PRICES, "GPT-5.2": LLMInfo("GPT-5.2", 0.0, 0.0)}
    with pytest.raises(InputError, match=r"GPT-5\.2 is free in the price list; give it the price"):
        World(spec_of(), free)
