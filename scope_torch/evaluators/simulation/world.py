"""Worlds: simulated compound LLM systems, calibrated to the paper's numbers.

No LLM is called. A world is one draw of everything random: how good each LLM is at each module, how
hard each query is, which LLM fails on which query. It gives the expected quality l_s(theta, q) and
cost l_c(theta, q) of every pair in O(N), without storing Theta x Q numbers.

Quality (each module comes after its parents):

    own_i  = skill_i ability(theta_i) + deviation_i(theta_i) + mood_i(theta_i, q)
             - burden_i difficulty(q) + offset
    in_i   = min over parents p of  out_p + fit_pi(theta_p, theta_i)
    out_i  = min(own_i, in_i + repair_i max(own_i, 0))        (own_i without parents)
    margin = out_N + chance(theta, q)

    own       margin of a module's own work on a query
    in, out   margin of the input and of the output of a module
    fit       random interaction of neighbouring LLMs, lower where the upstream LLM is stronger
    mood      random effect of an LLM at a module on a query

So a better LLM upstream can hurt, and a good module repairs a part of the errors before it. An
answer is right if its margin is positive; with randomness r of the LLMs it is right with
probability Phi(margin / r).

Cost is tokens times prices. An LLM's verbosity sets how many tokens it writes, and the modules
downstream read them.

Random numbers are SplitMix64 of (world seed, stream, counter). So a world does not depend on the
order of evaluation, on the device, or on the choice of candidates among the LLMs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.counter_random import normal, stream_key
from scope_torch.evaluators.simulation.draws import (
    TEST_QUERIES,
    abilities,
    check_counters,
    counter_of,
    key_of,
)
from scope_torch.evaluators.simulation.spec import WORLD_VERSION, WorldSpec
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.space import ConfigSpace, check_seed

REFERENCE = "GPT-5.2"
_BLOCK = 1 << 18  # pairs at a time, so that temporaries stay in the cache
# Fields of the price list that decide a world; fields on how an LLM is called do not.
_DECISIVE = ("name", "input_usd_per_mtok", "output_usd_per_mtok", "mmlu_pro", "gpqa")
_STREAMS = ("deviation", "mood", "fit", "difficulty", "verbosity", "module_verbosity")
_STREAMS += ("query_verbosity", "query_length", "chance", "kind", "taste", "pace", "failing")
_STREAMS += ("failing_pair", "tail")
Tensors = Sequence[Tensor]
Pairs = Sequence[dict[int, Tensor]]  # by module and earlier module, effects of a pair of LLMs


class World:
    """Expected quality and cost of every configuration on every query.

    Args:
        spec: The system and its constants.
        price_list: All LLMs that have a price; GPT-5.2 must be among them.
        llms: Names of the candidates of every module; None for all LLMs of the list.
        world_seed: Seed of the draw.
        split: `search` for the Q queries of the search, `test` for the held-out queries.
        randomness: r, the scale of an answer's randomness, in the unit of margins; 0 for
            deterministic LLMs.
        device: Where expectations are computed, always in float64; None for the CPU.

    Raises:
        InputError: If a candidate has no price, or a value is outside its range.

    Examples:
        >>> from scope_torch.evaluators.simulation.spec import load_worlds
        >>> from scope_torch.llm.prices import load_llms
        >>> world = World(load_worlds()["data_imputation"], load_llms(), llms=["GPT-5.2"])
        >>> codes, queries = [torch.tensor(0)] * 3, torch.arange(world.num_queries)
        >>> round(float(world.quality(codes, queries).mean()), 3)  # s(theta_0) on these queries
        0.718
        >>> round(float(world.mean_cost()), 5)  # c(theta_0)
        0.00434
    """

    _first_stream = 0  # of the random numbers

    def __init__(
        self,
        spec: WorldSpec,
        price_list: dict[str, LLMInfo],
        *,
        llms: Sequence[str] | None = None,
        world_seed: int = 0,
        split: str = "search",
        randomness: float = 0.0,
        device: torch.device | str | None = None,
    ) -> None:
        if split not in ("search", "test"):
            raise InputError(f"split={split!r} must be search or test")
        if not randomness >= 0:
            raise InputError(f"randomness={randomness} must be at least 0")
        choose_llms(price_list, [REFERENCE])
        check_counters(spec, len(price_list))
        self.spec, self.world_seed = spec, check_seed(world_seed, "world_seed")
        self.split, self.randomness = split, randomness
        self.llms = choose_llms(price_list, llms)
        self.space = ConfigSpace((len(self.llms),) * len(spec.modules))
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self._price_list = list(price_list.values())
        self._ability = torch.tensor(abilities(self._price_list), dtype=torch.float64)
        self._fit = [self._fits(i) for i in range(len(spec.modules))]
        self._pace = [self._paces(i) for i in range(len(spec.modules))]
        self.queries = torch.arange(spec.num_queries)
        offset, scale = self._calibrated_offset(), self._calibrated_scale()
        if split == "test":
            self.queries = self._test_queries()
        self.num_queries = len(self.queries)
        self._keep_candidates(offset, scale)

    def _keep_candidates(self, offset: float, scale: float) -> None:
        """Tables of the candidates' margins and tokens on the queries, on the device."""
        spec, held_out = self.spec, self.split == "test"
        ids = torch.tensor([self._price_list.index(llm) for llm in self.llms])
        own = self._own(self.queries, spec.test_difficulty if held_out else 0.0)
        self._own_table = [(t[ids] + offset).to(self.device) for t in own]
        self._fit_table, self._pace_table = (
            [{p: t[ids][:, ids].to(self.device) for p, t in of.items()} for of in pairs]
            for pairs in (self._fit, self._pace)
        )
        prompt, output = self._tokens(self.queries, spec.test_length if held_out else 1.0)
        self._prompt = [(t * scale).to(self.device) for t in prompt]
        self._output = [(t[ids] * scale).to(self.device) for t in output]
        self._ids = ids.to(self.device)  # positions of the candidates in the price list

    def quality(self, codes: Tensors, query: Tensor) -> Tensor:
        """l_s(theta, q) in [0, 1].

        Args:
            codes: N tensors of LLM codes, one for each module, that broadcast with `query`.
            query: Query indices (int64).

        Returns:
            A float64 tensor of the broadcast shape.
        """
        margin = self._work(codes, query, self._own_table, self._fit_table)
        margin = margin + self._luck(self._pair_key(codes, query, self._ids))
        if self.randomness == 0:
            return (margin > 0).double()
        return torch.special.ndtr(margin / self.randomness)

    def module_costs(self, codes: Tensors, query: Tensor) -> list[Tensor]:
        """Expected cost of each module in USD, N tensors; arguments as in `quality`."""
        prompt = [tokens[query] for tokens in self._prompt]
        output = [tokens[codes[i], query] for i, tokens in enumerate(self._output)]
        return self._costs(codes, *self._usage(codes, prompt, output, self._pace_table))

    def module_output_tokens(self, codes: Tensors, query: Tensor) -> list[Tensor]:
        """Expected output tokens of each module, N tensors; arguments as in `quality`."""
        prompt = [tokens[query] for tokens in self._prompt]
        output = [tokens[codes[i], query] for i, tokens in enumerate(self._output)]
        return self._usage(codes, prompt, output, self._pace_table)[1]

    def mean_cost(self) -> Tensor:
        """c(theta) in USD by flat index: `|Theta|` (float64, CPU)."""
        views = self.grid_codes()
        prompt = [tokens.mean() for tokens in self._prompt]
        output = [tokens.mean(1)[views[i]] for i, tokens in enumerate(self._output)]
        costs = self._costs(views, *self._usage(views, prompt, output, self._pace_table))
        return functools.reduce(torch.add, costs).expand(self.space.sizes).reshape(-1).cpu()

    def mean_quality(self) -> Tensor:
        """s(theta) by flat index: `|Theta|` (float64, CPU). May take minutes."""
        views = self.grid_codes()
        quality = torch.zeros(self.space.sizes, dtype=torch.float64, device=self.device)
        # In blocks of queries and of LLMs of the first module.
        queries = max(1, _BLOCK // self.space.size)
        rows = max(1, _BLOCK * self.space.sizes[0] // self.space.size)
        for q in torch.arange(self.num_queries, device=self.device).split(queries):
            query = q.view(-1, *[1] * self.space.num_modules)
            for start in range(0, self.space.sizes[0], rows):
                block = slice(start, start + rows)
                quality[block] += self.quality([views[0][block], *views[1:]], query).sum(0)
        return quality.div_(self.num_queries).reshape(-1).cpu()

    def pair_key(self, codes: Tensors, query: Tensor) -> Tensor:
        """A different number (int64) for every pair (theta, q); arguments as in `quality`."""
        return self._pair_key(codes, query, self._ids)

    def settings(self) -> dict[str, Any]:
        """Everything that decides the world, JSON-serialisable."""
        return {
            "version": WORLD_VERSION,
            "spec": asdict(self.spec),
            "price_list": [{k: getattr(llm, k) for k in _DECISIVE} for llm in self._price_list],
            "llms": [llm.name for llm in self.llms],
            "world_seed": self.world_seed,
            "split": self.split,
            "randomness": self.randomness,
        }

    @cached_property
    def _usd_per_token(self) -> Tensor:
        """Prices of the candidates: `2 x LLMs`, of tokens that they read and that they write."""
        prices = [(llm.input_usd_per_mtok, llm.output_usd_per_mtok) for llm in self.llms]
        return torch.tensor(prices, dtype=torch.float64, device=self.device).T * 1e-6

    def grid_codes(self) -> list[Tensor]:
        """Codes of all of Theta: N tensors that broadcast to `sizes`."""
        n = self.space.num_modules
        return [
            torch.arange(size, device=self.device).view([size if i == j else 1 for j in range(n)])
            for i, size in enumerate(self.space.sizes)
        ]

    def _work(self, codes: Tensors, query: Tensor, own: Tensors, fit: Pairs) -> Tensor:
        """Margins of the last module's answers by the formulas above, without chance.

        Args:
            codes: See `quality`.
            query: Likewise.
            own: Margins of the modules' own work, `LLMs x queries` each.
            fit: By module and earlier module, effects of a pair of LLMs.
        """
        out: list[Tensor] = []
        for i, parents in enumerate(self.spec.parents):
            own_i = own[i][codes[i], query]
            if parents:
                inputs = [out[p] + fit[i][p][codes[p], codes[i]] for p in parents]
                worst = functools.reduce(torch.minimum, inputs)
                repaired = worst + self.spec.modules[i].repair * own_i.clamp_min(0)
                own_i = torch.minimum(own_i, repaired)
            out.append(own_i)
        return out[-1]

    def _luck(self, pair_key: Tensor) -> Tensor:
        """What chance adds to the margins of pairs."""
        return self.spec.chance * self._chance(pair_key)

    def _chance(self, counter: Tensor) -> Tensor:
        """Standard normal numbers."""
        return self._normal("chance", counter)

    def _pair_key(
        self, codes: Tensors, query: Tensor, ids: Tensor, counters: Tensor | None = None
    ) -> Tensor:
        counters = self.queries if counters is None else counters
        return key_of([ids[code] for code in codes], counters.to(query.device)[query])

    def _usage(
        self,
        codes: Tensors,  # noqa: ARG002
        prompt: Tensors,
        output: Tensors,
        pace: Pairs,  # noqa: ARG002
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens that each module reads and writes; `output` is what the chosen LLMs write."""
        read = [
            functools.reduce(torch.add, [prompt[i], *(output[p] for p in parents)])
            for i, parents in enumerate(self.spec.parents)
        ]
        return read, list(output)

    def _costs(self, codes: Tensors, read: Tensors, written: Tensors) -> list[Tensor]:
        """Costs of the modules in USD."""
        usd_in, usd_out = self._usd_per_token
        return [
            usd_in[code] * tokens_in + usd_out[code] * tokens_out
            for code, tokens_in, tokens_out in zip(codes, read, written, strict=True)
        ]

    def _calibrated_offset(self) -> float:
        """The offset of all margins with which s of the reference is met, up to 1/Q."""
        spec, queries, shift = self.spec, self.queries, 0.0
        if spec.reference_split == "test":
            queries, shift = self._test_queries(), spec.test_difficulty
        codes = [torch.tensor(self._reference_id)] * len(spec.modules)
        ids = torch.arange(len(self._price_list))
        own = self._own(queries, shift)
        position = torch.arange(len(queries))
        luck = self._luck(self._pair_key(codes, position, ids, queries))
        low = torch.full((len(queries),), -100.0, dtype=torch.float64)
        high = -low
        for _ in range(60):  # bisection: the least offset at which each query has a right answer
            middle = (low + high) / 2
            tables = [t + middle for t in own]
            right = self._work(codes, position, tables, self._fit) + luck > 0
            low, high = torch.where(right, low, middle), torch.where(right, middle, high)
        needed = high.sort().values
        count = round(spec.reference_quality * len(queries))
        return float(needed[max(count - 1, 0) : count + 1].mean())

    def _calibrated_scale(self) -> float:
        """The factor on all tokens with which c of the reference is met."""
        reference = self._reference_id
        prompt, output = self._tokens(self.queries, 1.0)
        llm = self._price_list[reference]
        read, written = self._usage(
            [torch.tensor(reference)] * len(prompt),
            [tokens.mean() for tokens in prompt],
            [tokens[reference].mean() for tokens in output],
            self._pace,
        )
        cost = float(llm.input_usd_per_mtok * 1e-6 * sum(read))
        cost += float(llm.output_usd_per_mtok * 1e-6 * sum(written))
        if cost == 0:
            raise InputError(
                f"{REFERENCE} is free in the price list; give it the price that "
                f"reference_cost_usd={self.spec.reference_cost_usd} is made of"
            )
        return self.spec.reference_cost_usd / cost

    def _own(self, queries: Tensor, difficulty_shift: float) -> list[Tensor]:
        """own_i without the offset: N tensors `all LLMs x queries`."""
        spec = self.spec
        ids = torch.arange(len(self._price_list))
        difficulty = self._normal("difficulty", queries) + difficulty_shift
        tables = []
        for i, module in enumerate(spec.modules):
            deviation = spec.deviation * self._normal("deviation", counter_of(ids, i))
            deviation[self._reference_id] = spec.reference_deviation
            of_llm = module.skill * self._ability + deviation
            mood = self._normal("mood", counter_of(ids[:, None], i, queries))
            tables.append(of_llm[:, None] + spec.mood * mood - module.burden * difficulty)
        return tables

    def _test_queries(self) -> Tensor:
        """Counters of the held-out queries."""
        return torch.arange(self.spec.num_test_queries) + TEST_QUERIES

    @cached_property
    def _reference_id(self) -> int:
        return [llm.name for llm in self._price_list].index(REFERENCE)

    def _fits(self, child: int) -> dict[int, Tensor]:
        """fit_pi of a module i, by its parents p: `all LLMs (upstream) x all LLMs`."""
        ids = torch.arange(len(self._price_list))
        stronger = (self._ability[:, None] - self._ability[None, :]).clamp_min(0)
        return {
            p: self.spec.fit
            * self._normal("fit", counter_of(ids[:, None], p) + (counter_of(ids, child) << 20))
            - self.spec.mismatch * stronger
            for p in self.spec.parents[child]
        }

    def _paces(self, child: int) -> dict[int, Tensor]:  # noqa: ARG002
        """Factors on the tokens that a module writes, by pairs of LLMs; none in this family."""
        return {}

    def _tokens(self, queries: Tensor, length: float) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens of prompts, N tensors `queries`, and of outputs, N tensors `all LLMs x queries`.

        Args:
            queries: Counters of the queries.
            length: Factor on the tokens of all prompts.
        """
        spec = self.spec
        ids = torch.arange(len(self._price_list))
        relative, spread = self._writing(ids)
        relative[self._reference_id] = spec.reference_verbosity
        of_query = length * self._factor("query_length", queries, spec.query_length)
        prompt, output = [], []
        for i, module in enumerate(spec.modules):
            prompt.append(module.prompt_tokens * of_query)
            at_module = self._factor("module_verbosity", counter_of(ids, i), spec.module_verbosity)
            counter = counter_of(ids[:, None], i, queries)
            at_query = self._factor("query_verbosity", counter, spread)
            output.append(module.output_tokens * (relative * at_module)[:, None] * at_query)
        return prompt, output

    def _writing(self, ids: Tensor) -> tuple[Tensor, float | Tensor]:
        """Tokens of each LLM, relative to the mean LLM, and the spread of their log by query."""
        return self._factor("verbosity", ids, self.spec.verbosity), self.spec.query_verbosity

    def _factor(self, stream: str, counter: Tensor, spread: float | Tensor) -> Tensor:
        """Lognormal random factors with mean about 1."""
        return (spread * self._normal(stream, counter) - spread**2 / 2).exp()

    def _normal(self, stream: str, counter: Tensor) -> Tensor:
        return normal(self._key(stream), counter)

    def _key(self, stream: str) -> int:
        return stream_key(self.world_seed, self._first_stream + _STREAMS.index(stream))
