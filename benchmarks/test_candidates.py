"""The end of a search with scope_joint: many candidates, each given up after an answer or two.

One candidate is all that happens between two choices: means, variances and bounds on Theta, the
choice, the candidate's model, its answers, and the surrogate that takes them in.
"""

from __future__ import annotations

import statistics
import time
from itertools import product

import numpy as np
import pytest
import torch

from scope_torch.bounds import Beta
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.runs.runner import run
from scope_torch.search.choice import MostPromising
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space import ConfigSpace
from scope_torch.space_search.grid import GridPosterior

SPACE, NUM_QUERIES = ConfigSpace((23, 23, 23)), 156
BETA = Beta(3.0, 3.0)
SIZES = (100, 300, 1000)
_seconds: dict[int, float] = {}


class Search:
    """What a search knows after Calibrate and many hopeless candidates.

    Args:
        num_configs: |D|: the neighbours of a base on all queries, the others on one to nine.
    """

    def __init__(self, num_configs: int) -> None:
        self.rng, self.generator = np.random.default_rng(0), torch.Generator().manual_seed(1)
        self.price = 10.0 ** self.rng.uniform(-5, -3, size=(3, 23))
        self.skill = self.rng.normal(size=(3, 23))
        kernel = HammingMatern52Kernel()
        self.surrogate = JointSurrogate(SPACE, kernel, NUM_QUERIES, 1e-6)
        self.posterior = GridPosterior(self.surrogate, make_grid(SPACE, kernel))
        neighbours = {
            tuple(llm if module == i else 0 for i in range(3))
            for module, llm in product(range(3), range(23))
        }
        for theta, query in product(sorted(neighbours), range(NUM_QUERIES)):
            self.observe(theta, query)
        others = SPACE.sample(2 * num_configs, torch.Generator().manual_seed(0))
        others = [theta for theta in others if theta not in neighbours]
        for theta in others[: num_configs - len(neighbours)]:
            for query in self.rng.permutation(NUM_QUERIES)[: self.rng.integers(1, 10)].tolist():
                self.observe(theta, query)
        self.update()

    def answer(self, theta: tuple[int, ...]) -> tuple[float, float]:
        """Cost in USD and g = s_0 - quality of a call."""
        cost = sum(price[llm] for price, llm in zip(self.price, theta, strict=True))
        skill = sum(skill[llm] for skill, llm in zip(self.skill, theta, strict=True))
        correct = self.rng.normal() < skill
        return float(cost * self.rng.lognormal(0, 0.3)), 0.7 - float(correct)

    def observe(self, theta: tuple[int, ...], query: int) -> tuple[float, float]:
        """Adds the answer of a call to the surrogate."""
        cost, g = self.answer(theta)
        self.surrogate.observe(theta, query, cost, g)
        return cost, g

    def update(self) -> None:
        """Brings means and variances on Theta up to date."""
        self.posterior.update()

    def candidate(self, num_answers: int) -> None:
        """One candidate, given up after so many answers."""
        self._evaluate(num_answers)
        self.update()

    def _evaluate(self, num_answers: int) -> None:
        minima = self.posterior.lower_bounds(BETA, 0.01, None)
        MostPromising().select(1, minima, 0.01, 0)
        (theta,) = SPACE.sample(1, self.generator)  # the choice would be nearly always the same
        order = self.rng.permutation(NUM_QUERIES).tolist()
        candidate = JointCandidate(self.surrogate, theta, order, in_order=True)
        for _ in range(num_answers):
            (query,) = candidate.next_queries(1)
            candidate.update(query, *self.observe(theta, query))
            candidate.upper_c(BETA), candidate.lower_g(BETA)


def seconds_of(function, count: int) -> float:
    """Median of the seconds of a call."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@pytest.mark.parametrize("num_configs", SIZES)
def test_a_candidate_given_up(results, num_configs):
    search = Search(num_configs)
    search.candidate(2)
    one, two = (seconds_of(lambda k=k: search.candidate(k), 40) for k in (1, 2))
    num_groups = len(set(search.belief.surrogate.queries.seen_at((0, 0, 0)).group_of))

    def anew() -> None:
        search.belief.surrogate._collapsed = None
        search.belief.surrogate.collapsed()

    made_anew = seconds_of(anew, 3)
    _seconds[num_configs] = two
    results.add(
        "A candidate of scope_joint that is given up: N = 3, 12,167 configurations, Q = 156",
        ["\\|D\\|", "groups", "one answer [ms]", "two [ms]", "growth of two", "all anew [ms]"],
        [
            f"{num_configs:,}",
            f"{num_groups}",
            *(f"{1e3 * seconds:.3g}" for seconds in (one, two)),
            f"{two / _seconds[SIZES[0]]:.2f}",
            f"{1e3 * made_anew:.3g}",
        ],
    )
    if num_configs == SIZES[-1]:
        assert two < made_anew / 4  # an answer does not make everything anew
        assert two < 3 * (1000 / 300) ** 2 * _seconds[300]  # at most the square of |D|


@pytest.mark.parametrize("widenings", [0, 2])
def test_a_search_until_nothing_can_improve(results, widenings):
    """Simulated data_imputation; with wide bounds nearly all candidates are hopeless."""
    settings = ["task=data_imputation", "method=scope_joint", "task.world_seed=0"]
    cfg = compose([*settings, f"method.bounds.widenings={widenings}"])
    made, kernel = build(cfg.task), build(cfg.kernel)
    optimizer = build(cfg.method, problem=made.problem, kernel=kernel, seed=0, device="cpu")
    began = time.perf_counter()
    history = run(made.problem, optimizer, made.evaluator, budget_usd=10.0).history
    seconds = time.perf_counter() - began
    candidates = optimizer.report()["candidates"]
    num_configs = len({observation.theta for observation in history})
    results.add(
        "A search with scope_joint until nothing can improve: data_imputation, world 0, seed 0",
        ["widenings", "candidates", "\\|D\\|", "observations", "all [s]", "a candidate [ms]"],
        [
            f"{widenings}",
            *(f"{count:,}" for count in (candidates, num_configs, len(history))),
            f"{seconds:.3g}",
            f"{1e3 * seconds / candidates:.3g}",
        ],
    )
    if widenings:
        assert candidates > 1000
        assert num_configs > 600
