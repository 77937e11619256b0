"""cor:exp-sr-budget by simulation: the expected regret when a budget Lambda is spent.

The proof of the corollary gives a bound with its constants, which is retyped here: with
delta = Lambda^-2, C_max the largest cost of an observation, n = floor(Lambda / (2 C_max)) and
gamma, beta, A, B and C as in thm:main-T-ours, but with gamma(|Theta|) for every gamma,

    E SR <= 2 sqrt(C_max) A / sqrt(Lambda) + Delta_C (Lambda^-2 + exp(-Lambda C_max / (4 R_c^2)))

where Lambda >= 4 C_max (t_0 + 1) and n - t_0 >= max{(4 B)^(1 / (1 - 2 alpha)), 4 C}. SCOPE has
found theta_star long before, as for the theorem (test_regret.py). So the budgets are those at which
the bound is below the regret of theta_0: a search that finds nothing fails.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from composed import compose_scope
from long_runs import IS_LONG, among_others, only_long
from test_regret import KERNEL, gram, information_gain, norm, problem_of

from scope_torch.bounds import TheoryBounds
from scope_torch.observation import Observation

S_0 = 0.04
# Of a search that finds nothing the regret is 0.7, and of one that finds theta_star 0: one tells.
RUNS = 2 if IS_LONG else 1


@dataclass(frozen=True)
class World:
    """One query, two configurations; theta_0, code 0, is the dearer.

    `told`: the part of R and B that SCOPE and the bound are told.
    """

    cost: tuple[float, float] = (1.0, 0.3)
    constraint: tuple[float, float] = (-0.5, -0.95)
    R: tuple[float, float] = (0.02, 0.01)
    alpha: float = 0.02
    lam: float = 1.0
    told: float = 1.0

    @property
    def functions(self) -> np.ndarray:
        return np.array([self.cost, self.constraint])

    @property
    def told_R(self) -> tuple[float, ...]:
        return tuple(self.told * R for R in self.R)

    @property
    def told_B(self) -> tuple[float, ...]:
        return tuple(self.told * norm(f) for f in self.functions)


def spent(world: World, budget: float, seed: int) -> tuple[float, int, int]:
    """Regret, tau and t_0 of a search that stops once the observed costs exceed the budget."""
    problem = problem_of(2, 1, S_0 - world.constraint[0], world.cost[0], S_0)
    (R_c, R_g), (B_c, B_g) = world.told_R, world.told_B
    gain = information_gain(2, world.lam)
    constants = {"R_c": R_c, "R_g": R_g, "B_c": B_c, "B_g": B_g, "delta": budget**-2}
    scope = compose_scope(
        problem,
        TheoryBounds(problem, gain, cost_unit=1.0, **constants),
        seed=seed,
        base=(1,),
        alpha=world.alpha,
        lam=world.lam,
        gap_tolerance=None,
        u_out_floor=False,
        kernel=KERNEL,
        device="cpu",
    )
    rng, paid = np.random.default_rng(seed), 0.0
    while paid <= budget:
        observations = []
        for theta, query, _ in scope.ask():
            y_c, y_g = world.functions[:, theta[0]] + np.array(world.R) * rng.choice([-1, 1], 2)
            observations.append(Observation(theta, query, y_c, S_0 - y_g))
        scope.tell(observations)
        paid += sum(o.cost_usd for o in observations)
    (t_0,) = (row.t for row in scope.trace if row.event == "calibrated")
    return world.cost[scope.recommend().theta[0]] - min(world.cost), scope.t, t_0


def bound(world: World, budget: float, t_0: int) -> float:
    """The bound above; infinite where its conditions do not hold."""
    gamma = 0.5 * np.linalg.slogdet(np.eye(2) + gram(2) / world.lam)[1]
    root = math.sqrt(2 * (gamma + math.log(2 / budget**-2)) / world.lam)
    beta_c, beta_g = (B + R * root for B, R in zip(world.told_B, world.told_R, strict=True))
    A = 8 * beta_c * math.sqrt((world.lam + 1) * gamma)
    B = 16 * (world.lam + 1) * beta_g**2 * gamma
    C = math.ceil((-world.constraint[1]) ** (-1 / world.alpha))
    C_max, least = max(world.cost), min(world.cost)
    n = math.floor(budget / (2 * C_max))
    m_1 = max(math.ceil((4 * B) ** (1 / (1 - 2 * world.alpha))), 4 * C)
    if budget < 4 * C_max * (t_0 + 1) or n - t_0 < m_1:
        return math.inf
    tail = math.exp(-budget * C_max / (4 * world.R[0] ** 2))
    return 2 * math.sqrt(C_max / budget) * A + (C_max - least) * (budget**-2 + tail)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1000.0, among_others(1600.0)])
def test_the_expected_regret_is_within_the_corollarys_bound(budget):
    world = World()
    regrets, taus, starts = zip(*(spent(world, budget, seed) for seed in range(RUNS)), strict=True)
    most = bound(world, budget, max(starts))
    assert most < world.cost[0] - world.cost[1]  # the regret of a search that finds nothing
    assert np.mean(regrets) <= most
    assert min(taus) > budget / (2 * max(world.cost))  # eq:tau-tail-app


def test_the_bound_falls_as_the_corollary_says():
    """Like sqrt(log Lambda / Lambda): their ratio is nearly constant, and no smaller power's is."""
    budgets = np.array([1e3, 1e5, 1e7, 1e9])
    bounds = np.array([bound(World(R=(0.5, 0.01)), budget, 4) for budget in budgets])
    ratio = bounds / np.sqrt(np.log(budgets) / budgets)
    assert ratio.max() < 1.5 * ratio.min()
    assert math.isinf(bound(World(), 100.0, 4))


@pytest.mark.slow
@only_long
def test_understated_noise_exceeds_the_bound():
    """The check above can fail: R and B are 100 times those that SCOPE and the bound are told."""
    world = World((1.0, 0.61), (-0.42, -0.4), (0.6, 0.05), alpha=0.25, lam=0.1, told=0.01)
    budget = 400.0
    regrets, _, starts = zip(*(spent(world, budget, seed) for seed in range(6)), strict=True)
    assert np.mean(regrets) > bound(world, budget, max(starts))
