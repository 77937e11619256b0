"""Observations of a simulated compound LLM system; name tasks so that this can be seen."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.counter_random import normal, stream_key, uniform
from scope_torch.evaluators.simulation.latency import expected_outcomes, mean_outcome, speeds
from scope_torch.evaluators.simulation.world import World
from scope_torch.files import replacing
from scope_torch.observation import Observation, Request
from scope_torch.runs.content import digest_of, json_of
from scope_torch.space import check_seed, splitmix64

_ANSWER, _COST_NOISE = 101, 102  # streams of random numbers that the world does not use
_CACHE_SIZE = 256  # (theta, replicate) pairs whose observations stay in memory


class _Observed(NamedTuple):
    """Observations of one configuration on all queries."""

    quality: list[float]
    module_cost_usd: list[tuple[float, ...]]
    outcomes: list[dict[str, float] | None]


class SimulatedEvaluator:
    """Observes configurations of a simulated system on its queries.

    An answer is right (quality 1) with probability l_s(theta, q), else wrong (0); with randomness 0
    it is always the same. Costs vary by `cost_noise` around l_c(theta, q). A repeated observation
    is a new draw; the same replicate always has the same values.

    Args:
        world: The simulated system.
        cost_noise: Relative spread of observed costs, in [0, 0.25].
        noise_seed: Seed of the observations in the same world.
        cache_dir: Folder for the true averages of all configurations, which may take minutes to
            compute; None for $SCOPE_CACHE_DIR, or ~/.cache/scope-torch if that is not set.
        outcomes: Whether observations carry the named outcomes `latency_s` and `output_tokens`;
            they vary around their expectation by the same factor as the cost.

    Raises:
        InputError: If the noise is outside its range, or outcomes need a speed that is not known.

    Examples:
        >>> from scope_torch.evaluators.simulation.spec import load_worlds
        >>> from scope_torch.llm.prices import load_llms
        >>> world = World(load_worlds()["entity_resolution"], load_llms())
        >>> evaluator = SimulatedEvaluator(world)
        >>> (observation,) = evaluator.evaluate([Request(theta=(0, 3, 5), query=7)])
        >>> observation.quality, round(observation.cost_usd, 6)
        (0.0, 0.002064)
    """

    concurrency = 64
    free = True

    def __init__(
        self,
        world: World,
        *,
        cost_noise: float = 0.03,
        noise_seed: int = 0,
        cache_dir: Path | str | None = None,
        outcomes: bool = False,
    ) -> None:
        if not 0 <= cost_noise <= 0.25:
            raise InputError(f"cost_noise={cost_noise} must lie in [0, 0.25]")
        if outcomes:
            speeds(world.llms)
        self.world = world
        self.cost_noise, self.noise_seed = cost_noise, check_seed(noise_seed, "noise_seed")
        self._cache_dir, self._outcomes = cache_dir, outcomes
        self._observed = lru_cache(_CACHE_SIZE)(self._observe_all)

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Draws every observation; see `Evaluator`."""
        for theta, query, replicate in requests:
            observed = self._observed(theta, replicate)
            costs = observed.module_cost_usd[query]
            quality = observed.quality[query]
            outcomes = observed.outcomes[query]
            yield Observation(
                theta, query, sum(costs), quality, replicate, None, costs, outcomes=outcomes
            )

    def truth(self) -> tuple[Tensor, Tensor]:
        """The true averages; see `HasTruth`. Computed once for each world, then cached on disk."""
        path = self._cache_path()
        cost_usd = self.world.mean_cost()
        quality = _load(path)
        if quality is None or quality.shape != cost_usd.shape:
            quality = self.world.mean_quality()
            _save(path, quality.numpy())
        return cost_usd, quality

    def true_outcomes(self, limits: Sequence[Constraint]) -> list[Tensor]:
        """The expected outcome of each constraint by flat index; see `HasTrueOutcomes`.

        A cap, and the bound of a quantile, apply to the expectation of each query: noise there is
        left out of account.
        """
        codes = self.world.grid_codes()
        return [mean_outcome(self.world, codes, limit).reshape(-1).cpu() for limit in limits]

    def average_outcome(self, theta: Sequence[int], limit: Constraint) -> float:
        """That of one configuration."""
        codes = [torch.tensor([code], device=self.world.device) for code in theta]
        return float(mean_outcome(self.world, codes, limit))

    def fingerprint(self) -> str:
        """Identifies the world, its constants and the noise; with outcomes, also the speeds."""
        described: list[object] = [self.world.settings(), self.cost_noise, self.noise_seed]
        if self._outcomes:
            described.append(speeds(self.world.llms))
        return digest_of(json_of(described))

    def _observe_all(self, theta: tuple[int, ...], replicate: int) -> _Observed:
        """Observes all queries at once, which is much faster than one at a time."""
        world = self.world
        codes = [torch.tensor(code, device=world.device) for code in theta]
        queries = torch.arange(world.num_queries, device=world.device)
        quality = world.quality(codes, queries).cpu()
        costs = torch.stack(world.module_costs(codes, queries), -1).cpu()
        counter = splitmix64(world.pair_key(codes, queries).cpu()) + replicate
        if world.randomness > 0:
            quality = (uniform(self._stream(_ANSWER), counter) < quality).double()
        noise = normal(self._stream(_COST_NOISE), counter)
        factor = 1 + self.cost_noise * noise
        costs = costs * factor[:, None]
        outcomes = self._observed_outcomes(codes, queries, factor)
        return _Observed(quality.tolist(), [tuple(row) for row in costs.tolist()], outcomes)

    def _observed_outcomes(
        self, codes: list[Tensor], queries: Tensor, factor: Tensor
    ) -> list[dict[str, float] | None]:
        """The named outcomes on all queries; `factor` is that of the cost, with mean 1."""
        if not self._outcomes:
            return [None] * len(queries)
        written = self.world.module_output_tokens(codes, queries)
        expected = expected_outcomes(self.world, codes, written)
        observed = [(mean.cpu() * factor).tolist() for mean in expected.values()]
        return [dict(zip(expected, row, strict=True)) for row in zip(*observed, strict=True)]

    def _stream(self, stream: int) -> int:
        return stream_key(stream_key(self.world.world_seed, stream), self.noise_seed)

    def _cache_path(self) -> Path:
        default = os.environ.get("SCOPE_CACHE_DIR") or Path.home() / ".cache" / "scope-torch"
        directory = Path(self._cache_dir or default)
        name = re.sub(r"[^\w-]+", "_", self.world.spec.name)  # a user's file may name it anyhow
        return directory / f"{name}-{digest_of(json_of(self.world.settings()))}.npy"


def _load(path: Path) -> Tensor | None:
    """A cached tensor (float64); None if there is no such file, or it is damaged."""
    try:
        with path.open("rb") as file:
            values = torch.from_numpy(np.load(file, allow_pickle=False))
    except (OSError, ValueError, TypeError, EOFError, BadZipFile):
        return None
    return values if values.dtype == torch.float64 else None


def _save(path: Path, values: np.ndarray) -> None:
    """Writes a cache file in one step; ignores a folder that cannot be written."""
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.save(file, values, allow_pickle=False)
