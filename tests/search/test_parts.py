"""The parts of SCOPE, each against its definition, and SCOPE composed of parts of one's own."""

import ast
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from composed import compose_scope
from tables import Task, make_task

from scope_torch import make_scope_joint
from scope_torch.bounds import TunedBounds
from scope_torch.bounds.betting import BettingSequence, share_of_delta
from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.search import scope as scope_module
from scope_torch.search.belief import Belief
from scope_torch.search.calibrate import InitialPool
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.certificate import ByBounds, BySequence
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.search.rules import Rule, Rules
from scope_torch.search.scope import SCOPE
from scope_torch.search.stopping import Stopping
from scope_torch.space_search.grid import GridPosterior
from scope_torch.tasks.synthetic import synthetic_task


def test_scope_knows_protocols_only():
    """Algorithm 1 imports no surrogate, no posterior, no candidate and no choice."""
    tree = ast.parse(Path(scope_module.__file__).read_text())
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name for name in found if name and name.startswith("scope_torch")} == {
        "scope_torch.bounds.assumptions",
        "scope_torch.errors",
        "scope_torch.observation",
        "scope_torch.problem",
        "scope_torch.search.belief",
        "scope_torch.search.calibrate",
        "scope_torch.search.front",
        "scope_torch.search.optimizer",
        "scope_torch.search.parts",
        "scope_torch.search.rules",
        "scope_torch.search.stopping",
        "scope_torch.search.turn",
        "scope_torch.space",
    }


@pytest.mark.parametrize("alpha", [0.1, 1 / 3, 0.49])
@pytest.mark.parametrize("least_g", [-2.0, -1.0, -0.9, -0.63, -0.4])
@pytest.mark.parametrize("first", [1, 2, 9, 40])
def test_the_next_iteration_is_the_first_with_an_eligible_configuration(alpha, least_g, first):
    expected = first
    while not least_g <= -(expected**-alpha):  # line alg:scope-main:select
        expected += 1
    assert LeastCost(alpha).next_iteration(first, least_g) == expected


def test_no_iteration_has_an_eligible_configuration():
    for least_g in (0.0, 0.3, math.inf, -1e-300):
        assert LeastCost(1 / 3).next_iteration(4, least_g) is None
    assert MostPromising().next_iteration(4, 0.0) is None
    assert MostPromising().next_iteration(4, -1e-300) == 4
    assert LeastCost(None).next_iteration(4, -1e-300) == 4
    assert LeastCost(None).limit(4) == 0


@pytest.mark.parametrize("alpha", [0.0, 0.5, -1.0, math.nan])
def test_alpha_outside_its_range(alpha):
    with pytest.raises(InputError, match=r"alpha=.* must lie in \(0, 1/2\)"):
        LeastCost(alpha)


def test_a_certificate_by_bounds():
    test = ByBounds().begin(3, torch.Generator())
    assert test.order is None
    assert [test.update((1.0,), upper_g) for upper_g in (0.1, 1e-300, 0.0, -0.1)] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_certificate_by_sequences_is_that_of_its_share_of_delta():
    problem = make_task(0, (3, 3), 40, graded=False).problem
    certificate = BySequence(problem, 0.1)
    generator = torch.Generator().manual_seed(0)
    orders = []
    for k in (1, 2, 7):
        test = certificate.begin(k, generator)
        assert test.order is not None
        assert sorted(test.order) == list(range(40))
        orders.append(tuple(test.order))
        alone = BettingSequence(40, problem.s_0, share_of_delta(k, 0.1))
        outcomes = [1.0] * 40
        certified = [test.update((x,), math.inf) for x in outcomes]
        assert certified == [alone.update(x) for x in outcomes]
        assert certified[-1]
        assert not certified[0]
    assert len(set(orders)) == 3


def test_the_gap_is_between_u_out_and_the_least_lower_bound():
    stopping = Stopping(0.1)
    assert stopping.gap(2.0) is None
    stopping.select(1.5)
    assert stopping.gap(None) is None
    assert stopping.gap(2.0) == 0.5
    assert stopping.gap(1.0) == 0.0
    assert not stopping.is_closed(2.0)  # 0.5 > 0.1 * 2
    assert stopping.is_closed(1.6)  # 0.1 <= 0.1 * 1.6
    stopping.replaced(1.2)
    assert stopping.gap(1.6) == pytest.approx(0.4)
    stopping.replaced(3.0)
    assert stopping.gap(1.6) == pytest.approx(0.4)
    assert stopping.improvable(2.0, 7) == (2.0, 7)


def test_to_the_letter_nothing_is_skipped_and_no_gap_ends_the_search():
    stopping = Stopping(None)
    stopping.select(5.0)
    assert not stopping.skips
    assert stopping.improvable(2.0, 7) == (math.inf, None)
    assert stopping.gap(2.0) == 0
    assert not stopping.is_closed(2.0)


def test_a_configuration_is_free_until_it_costs_something():
    stopping = Stopping()
    for cost, free in ((0.0, True), (0.1, False), (0.0, False)):
        stopping.record(Observation((1, 0), 0, cost, 1.0))
        assert stopping.is_free((1, 0)) == free
        assert stopping.is_free((0, 0))


class Never:
    """A certificate of one's own."""

    order: list[int] | None = None
    margin = 0.0
    by_answers, refuted = True, False

    def next_margin(self):
        return self.margin

    def begin(self, k, generator):
        return self

    def update(self, grades, upper_g):
        return False

    def again(self):
        return False

    def end(self):
        pass

    def settings(self):
        return {"certificate": "never"}

    def report(self):
        return {"certificate": "never"}


class Dearest(LeastCost):
    """A choice of one's own: the paper's, with the tie order of another seed."""

    def select(self, i, minima, scale, seed):
        self.asked = getattr(self, "asked", 0) + 1
        return super().select(i, minima, scale, seed + 1)


def composed(task: Task, certificate, choice) -> SCOPE:
    problem, kernel = task.problem, HammingMatern52Kernel()
    surrogate = QuerySurrogate(problem.space, kernel, problem.num_queries, 1e-6)
    belief = Belief(
        problem,
        surrogate,
        GridPosterior(surrogate, make_grid(problem.space, kernel)),
        partial(QueryCandidate, surrogate),
        TunedBounds(problem),
    )
    pool = InitialPool(problem, "base", task.base)
    rules = Rules(problem, belief, certificate, Stopping(least_u_out=problem.first_u_out))
    return SCOPE(problem, belief=belief, pool=pool, choice=choice, rules=rules, seed=3)


def test_scope_of_the_same_parts_is_the_same_search():
    task = make_task(1, (4, 3), 8)
    budget = task.budget(6)
    one = composed(task, ByBounds(), LeastCost(1 / 3))
    two = compose_scope(task.problem, TunedBounds(task.problem), seed=3, base=task.base)
    assert one.settings() == two.settings()
    results = [run(task.problem, o, task.evaluator(), budget) for o in (one, two)]
    assert list(results[0].history) == list(results[1].history)
    assert results[0].trace == results[1].trace
    assert results[0].recommendation.basis == "accepted (tuned)"


def test_scope_of_parts_of_ones_own():
    task = make_task(1, (4, 3), 8)
    choice = Dearest(1 / 3)
    optimizer = composed(task, Never(), choice)
    result = run(task.problem, optimizer, task.evaluator(), task.budget(6))
    assert result.recommendation.basis == "reference"
    assert result.recommendation.theta == task.problem.theta_ref
    assert result.report["certificate"] == "never"
    assert result.report["candidates"] == choice.asked > 0
    assert optimizer.settings()["certificate"] == "never"


def test_u_out_is_not_defined_before_calibrate_has_ended():
    task = make_task(1, (4, 3), 8)
    with pytest.raises(RuntimeError, match="after Calibrate"):
        _ = composed(task, ByBounds(), LeastCost(1 / 3)).u_out


class Plateau(Rule):
    """Calls its tolerance what the framework calls the probability of a wrong certificate."""

    def settings(self):
        return {"delta": 0.5}

    def report(self):
        return {"delta": 0.5, "certificate": "none", "tolerance": 0.5}


def test_the_report_of_a_rule_of_ones_own_hides_nothing():
    """Else a configuration certified at delta=0.05 is told to be certified at 0.5."""
    task = synthetic_task(num_queries=8)
    search = make_scope_joint(task.problem, base="nano", bounds={"delta": 0.05}, rules=[Plateau()])
    told = search.report()
    assert (told["delta"], told["certificate"], told["tolerance"]) == (0.05, "sequence", 0.5)
    assert search.settings()["rules"] == [{"rule": "Plateau", "delta": 0.5}]
