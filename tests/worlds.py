"""Small simulated worlds, and the formulas of `evaluators/simulation/world.py` in plain Python."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cache

import naive

from scope_torch.evaluators.simulation.families import make_world
from scope_torch.evaluators.simulation.spec import ModuleSpec, RecordedLikeSpec, WorldSpec
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import LLMInfo

_MASK = 2**64 - 1
_STREAMS = ["deviation", "mood", "fit", "difficulty", "verbosity", "module_verbosity"]
_STREAMS += ["query_verbosity", "query_length", "chance", "kind", "taste", "pace", "failing"]
_STREAMS += ["failing_pair", "tail"]

# The reference is neither the first nor the last; some scores are unknown.
PRICES = {
    llm.name: llm
    for llm in [
        LLMInfo("small", 0.1, 0.4, 40.0, 0.3),
        LLMInfo("GPT-5.2", 1.75, 14.0, 86.0, None),
        LLMInfo("unknown", 0.02, 0.04),
        LLMInfo("medium", 0.5, 2.0, None, 0.55),
        LLMInfo("large", 3.0, 9.0, 80.0, 0.8),
    ]
}


def module(name: str, parents: str = "", **changed: float) -> ModuleSpec:
    """A module that reads the modules named by the letters of `parents`."""
    number = ord(name) - ord("a")
    values = {"prompt_tokens": 300 - 50 * number, "output_tokens": 80 + 40 * number}
    values |= {"skill": 0.4 + 0.1 * number, "burden": 0.8 - 0.1 * number}
    values |= {"repair": 0.35 + 0.1 * number, **changed}
    return ModuleSpec(name, tuple(parents), **values)


GRAPHS = {
    "one module": (module("a"),),
    "chain": (module("a"), module("b", "a")),
    "two roots": (module("a"), module("b"), module("c", "ab")),
    "skipping": (module("a"), module("b", "a"), module("c", "ab")),
    "diamond": (module("a"), module("b", "a"), module("c", "a"), module("d", "bc")),
    "unread": (module("a"), module("b"), module("c", "a")),
}


def spec_of(graph: str = "diamond", **changed) -> WorldSpec:
    """A small task; strong random effects, so that none of them can be missing unnoticed."""
    spec = WorldSpec(
        name="small",
        family="bottleneck",
        system="none",
        num_queries=7,
        num_test_queries=5,
        reference_cost_usd=0.004,
        reference_quality=0.6,
        reference_split="search",
        modules=GRAPHS[graph],
        deviation=0.5,
        mood=0.6,
        fit=0.4,
        mismatch=0.3,
        chance=0.25,
        reference_deviation=0.2,
        reference_verbosity=1.7,
        verbosity=0.35,
        module_verbosity=0.2,
        query_verbosity=0.25,
        query_length=0.3,
        test_difficulty=0.4,
        test_length=0.8,
        taste=0.5,
        pace=0.4,
    )
    if changed.get("family") != "recorded_like":
        return replace(spec, **changed)
    more = {"failure": 0.6, "failing": 0.3, "failing_pairs": 0.2, "longest_tail": 0.6}
    values = {**asdict(spec), "modules": spec.modules, **more, "effort": 0.3}
    return RecordedLikeSpec(**{**values, **changed})


def world_of(graph: str = "diamond", changed: dict | None = None, **options) -> World:
    return make_world(spec_of(graph, **(changed or {})), PRICES, **options)


def plain_of(spec: WorldSpec, **options) -> PlainWorld:
    families = {"bottleneck": PlainWorld, "additive": PlainAdditiveWorld}
    return families.get(spec.family, PlainRecordedLikeWorld)(spec, **options)


class PlainWorld:
    """One pair at a time, in Python's own integers and floats; LLMs are called by name."""

    first_stream = 0

    def __init__(self, spec, prices=PRICES, seed=0, split="search", randomness=0.0) -> None:
        self.spec, self.prices, self.seed, self.randomness = spec, prices, seed, randomness
        self.names = list(prices)
        self.order = [m.name for m in spec.modules]
        fitted = spec.num_queries if spec.reference_split == "search" else spec.num_test_queries
        needed = sorted(self._needed(q) for q in range(fitted))
        count = round(spec.reference_quality * fitted)
        self.offset = (needed[count - 1] + needed[count]) / 2  # 0 < count < Q
        self.scale, self.first, self.harder, self.longer = 1.0, 0, 0.0, 1.0
        reference = ["GPT-5.2"] * len(self.order)
        costs = [sum(self.module_costs(reference, q)) for q in range(spec.num_queries)]
        self.scale = spec.reference_cost_usd * spec.num_queries / math.fsum(costs)
        if split == "test":
            self.first = 1_000_000
            self.harder, self.longer = spec.test_difficulty, spec.test_length

    def _needed(self, q: int) -> float:
        """The offset from which on the reference is right."""
        self.first, self.harder = 0, 0.0
        if self.spec.reference_split == "test":
            self.first, self.harder = 1_000_000, self.spec.test_difficulty
        low, high = -50.0, 50.0
        while (low + high) / 2 not in (low, high):
            self.offset = (low + high) / 2
            wrong = self.margin(["GPT-5.2"] * len(self.order), q) <= 0
            low, high = (self.offset, high) if wrong else (low, self.offset)
        return high

    @cache  # noqa: B019 - lives as long as the test
    def normal(self, stream: str, counter: int) -> float:
        """The sum of four 16-bit numbers, standardised."""
        bits = naive.splitmix64((self.key(stream) + counter) & _MASK)
        total = sum((bits >> shift) % 65536 for shift in (0, 16, 32, 48))
        return (total - 131070) / 65536 * math.sqrt(3)

    @cache  # noqa: B019 - lives as long as the test
    def key(self, stream: str) -> int:
        number = self.first_stream + _STREAMS.index(stream)
        return naive.splitmix64(naive.splitmix64(self.seed & _MASK) + number)

    def uniform(self, stream: str, counter: int) -> float:
        """53 bits of a 64-bit number."""
        return (naive.splitmix64((self.key(stream) + counter) & _MASK) >> 11) / 2**53

    def lognormal(self, stream: str, counter: int, spread: float) -> float:
        return math.exp(spread * self.normal(stream, counter) - spread**2 / 2)

    def counter(self, llm: str, i: int, q: int = 0) -> int:
        return self.names.index(llm) + 64 * i + 1024 * q

    @cache  # noqa: B019 - lives as long as the test
    def ability(self, llm: str) -> float:
        """Mean of the standardised scores; the lowest of the others without a score."""

        def mean(name: str) -> float | None:
            found = []
            for score in ("mmlu_pro", "gpqa"):
                known = [getattr(x, score) for x in self.prices.values()]
                known = [x for x in known if x is not None]
                centre = sum(known) / len(known)
                spread = math.sqrt(sum((x - centre) ** 2 for x in known) / len(known))
                if getattr(self.prices[name], score) is not None:
                    found.append((getattr(self.prices[name], score) - centre) / spread)
            return sum(found) / len(found) if found else None

        own = mean(llm)
        return min(x for x in map(mean, self.names) if x is not None) if own is None else own

    def own(self, i: int, llm: str, q: int) -> float:
        spec, m, query = self.spec, self.spec.modules[i], self.first + q
        deviation = spec.deviation * self.normal("deviation", self.counter(llm, i))
        if llm == "GPT-5.2":
            deviation = spec.reference_deviation
        mood = spec.mood * self.normal("mood", self.counter(llm, i, query))
        difficulty = self.normal("difficulty", query) + self.harder
        skill = m.skill * self.ability(llm)
        return skill + deviation + mood - m.burden * difficulty + self.offset

    def fit(self, p: int, i: int, upstream: str, llm: str) -> float:
        counter = self.counter(upstream, p) + 2**20 * self.counter(llm, i)
        stronger = max(0.0, self.ability(upstream) - self.ability(llm))
        return self.spec.fit * self.normal("fit", counter) - self.spec.mismatch * stronger

    def margin(self, theta: list[str], q: int) -> float:
        out: dict[str, float] = {}
        for i, m in enumerate(self.spec.modules):
            own = self.own(i, theta[i], q)
            given = []
            for parent in m.parents:
                p = self.order.index(parent)
                given.append(out[parent] + self.fit(p, i, theta[p], theta[i]))
            out[m.name] = min(own, min(given) + m.repair * max(own, 0.0)) if given else own
        chance = self.normal("chance", self.pair(theta, q))
        return out[self.order[-1]] + self.spec.chance * chance

    def pair(self, theta: list[str], q: int) -> int:
        numbers = (self.names.index(llm) * 2 ** (20 + 6 * i) for i, llm in enumerate(theta))
        return self.first + q + sum(numbers)

    def quality(self, theta: list[str], q: int) -> float:
        margin = self.margin(theta, q)
        if self.randomness == 0:
            return float(margin > 0)
        return (1 + math.erf(margin / self.randomness / math.sqrt(2))) / 2

    def written(self, i: int, llm: str, q: int) -> float:
        """Tokens that module i writes, before scaling."""
        spec, query = self.spec, self.first + q
        verbosity = spec.reference_verbosity if llm == "GPT-5.2" else self.verbosity(llm)
        own = self.counter(llm, i)
        verbosity *= self.lognormal("module_verbosity", own, spec.module_verbosity)
        at = self.counter(llm, i, query)
        verbosity *= self.lognormal("query_verbosity", at, self.spread(llm))
        return spec.modules[i].output_tokens * verbosity

    def verbosity(self, llm: str) -> float:
        return self.lognormal("verbosity", self.names.index(llm), self.spec.verbosity)

    def spread(self, llm: str) -> float:
        """Of the log of what an LLM writes, over the queries."""
        return self.spec.query_verbosity

    def module_costs(self, theta: list[str], q: int) -> list[float]:
        costs = []
        length = self.longer * self.lognormal(
            "query_length", self.first + q, self.spec.query_length
        )
        for i, m in enumerate(self.spec.modules):
            read = m.prompt_tokens * length
            for parent in m.parents:
                p = self.order.index(parent)
                read += self.written(p, theta[p], q)
            price = self.prices[theta[i]]
            usd = price.input_usd_per_mtok * read
            usd += price.output_usd_per_mtok * self.written(i, theta[i], q)
            costs.append(usd / 1e6 * self.scale)
        return costs


class PlainAdditiveWorld(PlainWorld):
    """The formulas of `evaluators/simulation/additive.py`."""

    first_stream = 32

    def own(self, i: int, llm: str, q: int) -> float:
        kind = int(4 * self.uniform("kind", self.first + q))
        taste = self.normal("taste", self.counter(llm, i, kind))
        return super().own(i, llm, q) + self.spec.taste * taste

    def between(self, stream: str, p: int, i: int, earlier: str, later: str) -> float:
        counter = self.counter(earlier, p) + 2**20 * self.counter(later, i)
        return self.normal(stream, counter)

    def margin(self, theta: list[str], q: int) -> float:
        total = math.fsum(self.own(i, llm, q) for i, llm in enumerate(theta))
        for i, later in enumerate(theta):
            for p, earlier in enumerate(theta[:i]):
                total += self.spec.fit * self.between("fit", p, i, earlier, later)
        drawn = self.uniform("chance", self.pair(theta, q))
        return total + self.spec.chance * math.log(drawn / (1 - drawn))

    def module_costs(self, theta: list[str], q: int) -> list[float]:
        costs = []
        length = self.longer * self.lognormal(
            "query_length", self.first + q, self.spec.query_length
        )
        for i, m in enumerate(self.spec.modules):
            written = self.written(i, theta[i], q)
            for parent in m.parents:
                p = self.order.index(parent)
                between = self.between("pace", p, i, theta[p], theta[i])
                written *= math.exp(self.spec.pace * between - self.spec.pace**2 / 2)
            price = self.prices[theta[i]]
            usd = price.input_usd_per_mtok * m.prompt_tokens * length
            usd += price.output_usd_per_mtok * written
            costs.append(usd / 1e6 * self.scale)
        return costs


class PlainRecordedLikeWorld(PlainAdditiveWorld):
    """The formulas of `evaluators/simulation/recorded_like.py`."""

    first_stream = 64

    def own(self, i: int, llm: str, q: int) -> float:
        fails = self.uniform("failing", self.counter(llm, i)) < self.spec.failing
        return super().own(i, llm, q) - self.spec.failure * (fails and llm != "GPT-5.2")

    def margin(self, theta: list[str], q: int) -> float:
        margin = super().margin(theta, q)
        for i, p in self.edges():
            pair = theta[p], theta[i]
            counter = self.counter(pair[0], p) + 2**20 * self.counter(pair[1], i)
            fails = self.uniform("failing_pair", counter) < self.spec.failing_pairs
            if fails and pair != ("GPT-5.2", "GPT-5.2"):
                margin -= self.spec.failure
        return margin

    def edges(self) -> list[tuple[int, int]]:
        """Every module with each module that it reads."""
        modules = enumerate(self.spec.modules)
        return [(i, self.order.index(parent)) for i, m in modules for parent in m.parents]

    def verbosity(self, llm: str) -> float:
        mean = sum(map(self.ability, self.names)) / len(self.names)
        return super().verbosity(llm) * math.exp(self.spec.effort * (self.ability(llm) - mean))

    def spread(self, llm: str) -> float:
        share = self.uniform("tail", self.names.index(llm))
        return share * self.spec.longest_tail + (1 - share) * self.spec.query_verbosity

    def module_costs(self, theta: list[str], q: int) -> list[float]:
        spec, query = self.spec, self.first + q
        length = self.longer * self.lognormal("query_length", query, spec.query_length)
        written = [self.written(i, llm, q) for i, llm in enumerate(theta)]
        for i, p in self.edges():
            between = self.between("pace", p, i, theta[p], theta[i])
            written[i] *= math.exp(spec.pace * between - spec.pace**2 / 2)
        read = [m.prompt_tokens * length for m in spec.modules]
        for i, p in self.edges():
            read[i] += written[p]
        prices = [self.prices[llm] for llm in theta]
        usd = [
            price.input_usd_per_mtok * tokens + price.output_usd_per_mtok * more
            for price, tokens, more in zip(prices, read, written, strict=True)
        ]
        return [one / 1e6 * self.scale for one in usd]
