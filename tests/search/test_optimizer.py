"""What every optimizer must do: subclass `OptimizerConformance` and supply `make_optimizer`."""

import json
from collections.abc import Callable

import pytest
from tables import Task, make_task

from scope_torch.bounds import TheoryBounds
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Optimizer, Recommendation, SequentialOptimizer

MakeOptimizer = Callable[[SelectionProblem, int], Optimizer]
BASES = ("certified", "observed", "estimated", "reference")
EVENTS = ("calibrated", "widened", "selected", "improved", "pruned", "completed", "stopped")


def drive(optimizer: Optimizer, task: Task, count: int) -> list[Observation]:
    """At least `count` observations, unless the search ends before."""
    history: list[Observation] = []
    while len(history) < count and (requests := optimizer.ask()):
        observations = [task.observe(request) for request in requests]
        optimizer.tell(observations)
        history += observations
    return history


def pairs(observations: list[Observation]) -> list[tuple[tuple[int, ...], int]]:
    return [(o.theta, o.query) for o in observations]


class OptimizerConformance:
    """A subclass, named Test..., overrides the fixture `make_optimizer`.

    The optimizer is run on a table of 12 configurations and 6 queries, for about 60 observations.
    """

    count = 60
    starts_from_reference = True

    @pytest.fixture
    def make_optimizer(self) -> MakeOptimizer:
        """A fresh optimizer for a problem and a seed."""
        raise NotImplementedError

    @pytest.fixture(params=[True, False], ids=["graded", "zero-one"])
    def task(self, request) -> Task:
        return make_task(5, (4, 3), 6, graded=request.param)

    @pytest.fixture
    def optimizer(self, make_optimizer, task) -> Optimizer:
        return make_optimizer(task.problem, 0)

    def test_has_a_name_and_starts_from_the_reference(self, optimizer, task):
        assert isinstance(optimizer.name, str)
        assert optimizer.name
        assert optimizer.trace == []
        assert optimizer.stop_reason is None
        if self.starts_from_reference:
            assert optimizer.recommend().theta == task.problem.theta_ref
            assert optimizer.recommend().basis == "reference"

    def test_asking_twice_gives_the_same_requests(self, optimizer, task):
        for _ in range(20):
            first = list(optimizer.ask())
            assert list(optimizer.ask()) == first
            if not first:
                break
            optimizer.tell([task.observe(request) for request in first])

    def test_requests_are_valid_pairs(self, optimizer, task):
        for observation in drive(optimizer, task, self.count):
            assert task.problem.space.check(observation.theta) == observation.theta
            assert isinstance(observation.query, int)
            assert 0 <= observation.query < task.problem.num_queries

    def test_recommends_a_configuration_at_any_time(self, optimizer, task):
        told = 0
        while told < self.count and (requests := optimizer.ask()):
            optimizer.tell([task.observe(request) for request in requests])
            told += len(requests)
            recommendation = optimizer.recommend()
            assert isinstance(recommendation, Recommendation)
            assert task.problem.space.check(recommendation.theta) == recommendation.theta
            assert recommendation.basis in BASES
            assert optimizer.recommend() == recommendation
            json.dumps(optimizer.report(), allow_nan=False)

    def test_observations_that_were_not_asked_for_are_refused(self, optimizer, task):
        with pytest.raises(InputError, match="asked for"):
            optimizer.tell([task.observe(Request(task.base, 0))])
        requests = list(optimizer.ask())
        right = [task.observe(request) for request in requests]
        theta, query, _ = requests[0]
        other_query = Request(theta, (query + 1) % task.problem.num_queries)
        other_theta = Request(((theta[0] + 1) % task.sizes[0], *theta[1:]), query)
        wrong = [
            [],
            [task.observe(other_query), *right[1:]],
            [task.observe(other_theta), *right[1:]],
            [*right, task.observe(other_query)],
        ]
        if len(right) > 1:
            wrong += [right[::-1], right[1:]]
        for observations in wrong:
            with pytest.raises(InputError, match="asked for"):
                optimizer.tell(observations)
            assert list(optimizer.ask()) == requests
        optimizer.tell(right)

    def test_told_results_cannot_be_told_again(self, optimizer, task):
        observations = [task.observe(request) for request in optimizer.ask()]
        optimizer.tell(observations)
        with pytest.raises(InputError):
            optimizer.tell(observations)

    def test_a_prefix_is_accepted_when_the_budget_ends(self, make_optimizer, task):
        for rounds in range(0, 12, 3):
            optimizer = make_optimizer(task.problem, rounds)
            for _ in range(rounds):
                if requests := optimizer.ask():
                    optimizer.tell([task.observe(request) for request in requests])
            requests = list(optimizer.ask())
            if prefix := requests[: (len(requests) + 1) // 2]:
                optimizer.tell([task.observe(request) for request in prefix])
            theta = optimizer.recommend().theta
            assert task.problem.space.check(theta) == theta
            json.dumps(optimizer.report(), allow_nan=False)

    def test_equal_seeds_and_observations_give_equal_requests(self, make_optimizer, task):
        one, two = (make_optimizer(task.problem, 3) for _ in range(2))
        assert pairs(drive(one, task, self.count)) == pairs(drive(two, task, self.count))
        assert one.recommend() == two.recommend()
        assert one.trace == two.trace
        assert one.report() == two.report()

    def test_looking_changes_nothing(self, make_optimizer, task):
        watched, alone = (make_optimizer(task.problem, 3) for _ in range(2))
        told = []
        while len(told) < self.count and (requests := watched.ask()):
            for look in (watched.recommend, watched.report, watched.settings, watched.ask):
                look()
            observations = [task.observe(request) for request in requests]
            watched.tell(observations)
            told += observations
        assert pairs(told) == pairs(drive(alone, task, self.count))

    def test_optimizers_share_no_state(self, make_optimizer, task):
        expected = pairs(drive(make_optimizer(task.problem, 1), task, self.count))
        one, two = (make_optimizer(task.problem, 1) for _ in range(2))
        drive(two, make_task(6, (4, 3), 6), 30)
        assert pairs(drive(one, task, self.count)) == expected

    def test_seeds_differ(self, make_optimizer, task):
        runs = [pairs(drive(make_optimizer(task.problem, s), task, 40)) for s in range(4)]
        assert any(run != runs[0] for run in runs[1:])

    def test_settings_are_json_and_equal_for_equal_constructions(self, make_optimizer, task):
        one, two, other = (make_optimizer(task.problem, seed) for seed in (3, 3, 4))
        before = json.dumps(one.settings(), allow_nan=False, sort_keys=True)
        drive(one, task, self.count)
        assert json.dumps(one.settings(), allow_nan=False, sort_keys=True) == before
        assert json.dumps(two.settings(), allow_nan=False, sort_keys=True) == before
        assert json.dumps(other.settings(), allow_nan=False, sort_keys=True) != before
        assert one.settings()["name"] == one.name
        assert one.settings()["seed"] == 3

    def test_trace_is_in_order_and_ends_with_the_recommendation(self, optimizer, task):
        history = drive(optimizer, task, self.count)
        spends = [0.0]
        for observation in history:
            spends.append(spends[-1] + observation.cost_usd)
        assert [row.t for row in optimizer.trace] == sorted(row.t for row in optimizer.trace)
        for row in optimizer.trace:
            assert row.event in EVENTS
            assert 0 <= row.t <= len(history)
            assert row.spend_usd == pytest.approx(spends[row.t], rel=1e-12)
            assert row.from_budget_usd == pytest.approx(spends[max(0, row.t - 1)], rel=1e-12)
            assert task.problem.space.check(row.theta_out) == row.theta_out
        last = optimizer.trace[-1].theta_out if optimizer.trace else task.problem.theta_ref
        assert optimizer.recommend().theta == last


class TestSCOPE(OptimizerConformance):
    @pytest.fixture(params=[1, 3])
    def make_optimizer(self, request):
        def make(problem, seed):
            task = make_task(5, (4, 3), 6)
            return Task(task.table, problem).scope(seed, batch_size=request.param)

        return make


class TestRand(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: Task(make_task(5, (4, 3), 6).table, problem).rand(seed)


class TestCoarse(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: Task(make_task(5, (4, 3), 6).table, problem).coarse(seed)


class TestTheory(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        def make(problem, seed):
            gain = InformationGain(problem.space, HammingMatern52Kernel(), 1e-6)
            bounds = TheoryBounds(problem, gain, R_c=1e-5, R_g=1e-5, B_c=0.1, B_g=0.3)
            return Task(make_task(5, (4, 3), 6).table, problem).scope(seed, bounds=bounds)

        return make


class Finite(SequentialOptimizer):
    """Asks for two pairs, then for one, then ends."""

    def _search(self):
        for query in (yield [Request((0, 0), 0), Request((0, 0), 1)]):
            self._record(query)
        yield
        for observation in (yield [Request((1, 0), 2)]):
            self._record(observation)
        self.stop_reason = "enough"

    def recommend(self):
        return Recommendation((0, 0), "observed")


def test_a_search_that_ends_asks_for_nothing_more():
    task, optimizer = make_task(5, (4, 3), 6), Finite()
    assert len(drive(optimizer, task, 100)) == 3
    assert list(optimizer.ask()) == []
    assert list(optimizer.ask()) == []
    assert optimizer.stop_reason == "enough"
    assert optimizer.t == 3
    with pytest.raises(InputError, match="asked for"):
        optimizer.tell([task.observe(Request((1, 0), 2))])


def test_settings_of_the_theory_tell_different_gains_apart():
    problem, kernel = make_task(5, (4, 3), 6).problem, HammingMatern52Kernel()
    one, two = (TheoryBounds(problem, InformationGain(problem.space, kernel, lam))
                for lam in (1e-6, 1e-2))  # fmt: skip
    assert one.beta(3) != two.beta(3)
    assert one.settings() != two.settings()
