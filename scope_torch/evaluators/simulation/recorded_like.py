"""A third family of simulated worlds: landscapes like those that were recorded.

In the other families a random configuration is hopeless. In recordings of the paper's own systems
it is somewhat worse than theta_0, a fifth of them are good enough, and the best are better than
theta_0. Quality is that of `AdditiveWorld` with failures:

    own_i  = ... - failure failing_i(theta_i)
    fit_pi = ... - failure failing_pi(theta_p, theta_i)         (p a parent of i)

    failing   1 for a random share of the LLMs at a module, and of the pairs of LLMs at neighbouring
              modules, else 0: one that does not write in the form that the system reads

Most of what is random in an answer belongs to its query (`burden`), so many LLMs are right on the
same queries.

Cost is tokens times prices. Modules read what others write, as in `World`; and each writes more or
less by the LLM before it, as in `AdditiveWorld`. So no sum over modules is the cost. An able LLM
writes more (`effort`), and tokens spread over queries by a number of the LLM's own: some think long
on a few queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scope_torch.evaluators.simulation.additive import AdditiveWorld
from scope_torch.evaluators.simulation.counter_random import uniform
from scope_torch.evaluators.simulation.draws import counter_of
from scope_torch.evaluators.simulation.spec import RecordedLikeSpec
from scope_torch.evaluators.simulation.world import World


class RecordedLikeWorld(AdditiveWorld):
    """Expected quality and cost of every configuration on every query; arguments as in `World`.

    Of the constants, `repair` and `mismatch` do nothing. The reference never fails.
    """

    spec: RecordedLikeSpec
    _first_stream = 64

    def _own(self, queries: Tensor, difficulty_shift: float) -> list[Tensor]:
        """own_i without the offset: N tensors `all LLMs x queries`."""
        ids = torch.arange(len(self._ability))
        tables = super()._own(queries, difficulty_shift)
        for i, own in enumerate(tables):
            fails = self._failing("failing", counter_of(ids, i), self.spec.failing)
            fails[self._reference_id] = 0.0
            own -= self.spec.failure * fails[:, None]
        return tables

    def _fits(self, child: int) -> dict[int, Tensor]:
        """fit_pi of a module i, by all modules p before it: `all LLMs x all LLMs`."""
        fits, reference = super()._fits(child), self._reference_id
        for p in self.spec.parents[child]:
            counter = self._pair_counter(p, child)
            fails = self._failing("failing_pair", counter, self.spec.failing_pairs)
            fails[reference, reference] = 0.0
            fits[p] = fits[p] - self.spec.failure * fails
        return fits

    def _failing(self, stream: str, counter: Tensor, share: float) -> Tensor:
        return (uniform(self._key(stream), counter) < share).double()

    def _usage(
        self,
        codes: Sequence[Tensor],
        prompt: Sequence[Tensor],
        output: Sequence[Tensor],
        pace: Sequence[dict[int, Tensor]],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens that each module reads and writes; `output` is what the chosen LLMs write."""
        _, written = super()._usage(codes, prompt, output, pace)
        return World._usage(self, codes, prompt, written, pace)

    def _writing(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of each LLM, relative to the mean LLM, and the spread of their log by query."""
        spec, ability = self.spec, self._ability[ids] - self._ability.mean()
        relative = self._factor("verbosity", ids, spec.verbosity) * (spec.effort * ability).exp()
        between = uniform(self._key("tail"), ids)[:, None]
        spread = spec.query_verbosity + (spec.longest_tail - spec.query_verbosity) * between
        return relative, spread
