"""A second family of simulated worlds, of another structure than `World`.

So that no conclusion hangs on one generator. It shares the constants' names, the calibration and
the price list with the first family, and none of its random numbers.

Quality is a random utility:

    own_i  = skill_i ability(theta_i) + deviation_i(theta_i) + mood_i(theta_i, q)
             + taste_i(theta_i, kind(q)) - burden_i difficulty(q) + offset
    margin = sum_i own_i + sum_{p < i} fit_pi(theta_p, theta_i) + chance(theta, q)

    taste     random effect of an LLM at a module on a kind of queries; there are four kinds
    fit       random interaction of every two modules, neighbours or not
    chance    logistic noise, drawn once for each configuration and query

So skills add up, nothing is a bottleneck, a good module makes up for a bad one, and single queries
are idiosyncratic.

Cost is tokens times prices. No module reads what another one writes; but each writes more or less
by the LLM before it: tokens are multiplied by a random factor `pace` of the pair of LLMs. So costs
are not a sum over modules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from scope_torch.evaluators.simulation.counter_random import uniform
from scope_torch.evaluators.simulation.draws import counter_of
from scope_torch.evaluators.simulation.world import Pairs, Tensors, World

_KINDS = 4  # kinds of queries


class AdditiveWorld(World):
    """Expected quality and cost of every configuration on every query; arguments as in `World`.

    Of the constants, `repair` and `mismatch` do nothing.
    """

    _first_stream = 32

    def _own(self, queries: Tensor, difficulty_shift: float) -> list[Tensor]:
        """own_i without the offset: N tensors `all LLMs x queries`."""
        ids = torch.arange(len(self._ability))
        kind = (uniform(self._key("kind"), queries) * _KINDS).long()
        return [
            own + self.spec.taste * self._normal("taste", counter_of(ids[:, None], i, kind))
            for i, own in enumerate(super()._own(queries, difficulty_shift))
        ]

    def _fits(self, child: int) -> dict[int, Tensor]:
        """fit_pi of a module i, by all modules p before it: `all LLMs x all LLMs`."""
        return {p: self.spec.fit * self._pairs("fit", p, child) for p in range(child)}

    def _paces(self, child: int) -> dict[int, Tensor]:
        """Factors on the tokens that a module writes, by its parents p: `all LLMs x all LLMs`."""
        spread = self.spec.pace
        return {
            p: (spread * self._pairs("pace", p, child) - spread**2 / 2).exp()
            for p in self.spec.parents[child]
        }

    def _pairs(self, stream: str, earlier: int, later: int) -> Tensor:
        """A standard normal number for every pair of LLMs at two modules."""
        return self._normal(stream, self._pair_counter(earlier, later))

    def _pair_counter(self, earlier: int, later: int) -> Tensor:
        """A counter for every pair of LLMs at two modules: `all LLMs x all LLMs`."""
        ids = torch.arange(len(self._ability))
        return counter_of(ids[:, None], earlier) + (counter_of(ids, later) << 20)

    def _work(self, codes: Tensors, query: Tensor, own: Tensors, fit: Pairs) -> Tensor:
        """Sums of the modules' own work and of all pairs."""
        parts = [table[codes[i], query] for i, table in enumerate(own)]
        parts += [t[codes[p], codes[i]] for i, fits in enumerate(fit) for p, t in fits.items()]
        return functools.reduce(torch.add, parts)

    def _chance(self, counter: Tensor) -> Tensor:
        """Logistic numbers: a random utility."""
        return torch.special.logit(uniform(self._key("chance"), counter), eps=2.0**-53)

    def _usage(
        self,
        codes: Sequence[Tensor],
        prompt: Sequence[Tensor],
        output: Sequence[Tensor],
        pace: Sequence[dict[int, Tensor]],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens that each module reads and writes; `output` is what the chosen LLMs write."""
        written = [
            functools.reduce(torch.mul, [tokens, *(t[codes[p], codes[i]] for p, t in of.items())])
            for i, (tokens, of) in enumerate(zip(output, pace, strict=True))
        ]
        return list(prompt), written
