"""The suite for optimizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Optimizer, Recommendation
from scope_torch.testing.problems import KnownTask

MakeOptimizer = Callable[[SelectionProblem, int], Optimizer]
BASES = ("certified", "accepted (tuned)", "observed", "estimated", "reference")
EVENTS = (
    "calibrated", "widened", "selected", "verifying", "improved", "withdrawn", "pruned",
    "completed", "stopped",
)  # fmt: skip


def drive(optimizer: Optimizer, task: KnownTask, count: int) -> list[Observation]:
    """Asks and tells until there are `count` observations, or the search ends.

    Args:
        optimizer: The search.
        task: Gives the observations.
        count: The last batch is told as a whole, so there may be more.

    Returns:
        The observations in the order in which they were asked for.

    Examples:
        >>> from scope_torch.baselines.random_search import RandomSearch
        >>> task = KnownTask.random(seed=5, sizes=(4, 3), num_queries=6)
        >>> len(drive(RandomSearch(task.problem, seed=0), task, count=10))
        12
    """
    history: list[Observation] = []
    while len(history) < count and (requests := optimizer.ask()):
        history += _answer(optimizer, task, requests)
    return history


def _answer(
    optimizer: Optimizer, task: KnownTask, requests: Sequence[Request]
) -> list[Observation]:
    observations = [task.observe(request) for request in requests]
    optimizer.tell(observations)
    return observations


def _pairs(observations: Sequence[Observation]) -> list[tuple[tuple[int, ...], int]]:
    return [(o.theta, o.query) for o in observations]


class OptimizerConformance:
    """What every optimizer must do; a subclass overrides the fixture `make_optimizer`.

    It returns a function that makes an optimizer for a problem and a seed. The optimizer runs on
    12 configurations and 6 queries, for about `count` observations. If it does not recommend
    theta_0 before the first observation, set `starts_from_reference = False`.

    Examples:
        >>> class TestMyOptimizer(OptimizerConformance):
        ...     @pytest.fixture
        ...     def make_optimizer(self):
        ...         return lambda problem, seed: MyOptimizer(problem, seed=seed)
    """

    count = 60
    starts_from_reference = True

    @pytest.fixture
    def make_optimizer(self) -> MakeOptimizer:
        """Makes a fresh optimizer for a problem and a seed."""
        raise NotImplementedError("override the fixture make_optimizer; it returns a function")

    @pytest.fixture(params=[True, False], ids=["graded", "zero-one"])
    def task(self, request: pytest.FixtureRequest) -> KnownTask:
        """What is searched: with continuous qualities, and with qualities 0 or 1."""
        return KnownTask.random(5, (4, 3), 6, graded=request.param)

    @pytest.fixture
    def optimizer(self, make_optimizer: MakeOptimizer, task: KnownTask) -> Optimizer:
        """The optimizer under test."""
        return make_optimizer(task.problem, 0)

    def test_has_a_name_and_starts_from_the_reference(
        self, optimizer: Optimizer, task: KnownTask
    ) -> None:
        """A fresh optimizer: a name, an empty trace, theta_0."""
        assert isinstance(optimizer.name, str)
        assert optimizer.name
        assert optimizer.trace == []
        assert optimizer.stop_reason is None
        if self.starts_from_reference:
            assert optimizer.recommend().theta == task.problem.theta_ref
            assert optimizer.recommend().basis == "reference"

    def test_asking_twice_gives_the_same_requests(
        self, optimizer: Optimizer, task: KnownTask
    ) -> None:
        """Until the observations are told."""
        for _ in range(20):
            first = list(optimizer.ask())
            assert list(optimizer.ask()) == first
            if not first:
                break
            _answer(optimizer, task, first)

    def test_requests_are_valid_pairs(self, optimizer: Optimizer, task: KnownTask) -> None:
        """Configurations of Theta, and queries in [0, Q)."""
        for observation in drive(optimizer, task, self.count):
            assert task.problem.space.check(observation.theta) == observation.theta
            assert isinstance(observation.query, int)
            assert 0 <= observation.query < task.problem.num_queries

    def test_recommends_a_configuration_at_any_time(
        self, optimizer: Optimizer, task: KnownTask
    ) -> None:
        """And its report is JSON."""
        told = 0
        while told < self.count and (requests := optimizer.ask()):
            told += len(_answer(optimizer, task, requests))
            recommendation = optimizer.recommend()
            assert isinstance(recommendation, Recommendation)
            assert task.problem.space.check(recommendation.theta) == recommendation.theta
            assert recommendation.basis in BASES
            assert optimizer.recommend() == recommendation
            json.dumps(optimizer.report(), allow_nan=False)

    def test_observations_that_were_not_asked_for_are_refused(
        self, optimizer: Optimizer, task: KnownTask
    ) -> None:
        """With an InputError; what was asked for is accepted afterwards."""
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

    def test_told_results_cannot_be_told_again(self, optimizer: Optimizer, task: KnownTask) -> None:
        """Nothing is counted twice."""
        observations = _answer(optimizer, task, optimizer.ask())
        with pytest.raises(InputError):
            optimizer.tell(observations)

    def test_a_prefix_is_accepted_when_the_budget_ends(
        self, make_optimizer: MakeOptimizer, task: KnownTask
    ) -> None:
        """Fewer observations than requests: the optimizer still recommends and reports."""
        for rounds in range(0, 12, 3):
            optimizer = make_optimizer(task.problem, rounds)
            for _ in range(rounds):
                if requests := optimizer.ask():
                    _answer(optimizer, task, requests)
            requests = list(optimizer.ask())
            if prefix := requests[: (len(requests) + 1) // 2]:
                _answer(optimizer, task, prefix)
            theta = optimizer.recommend().theta
            assert task.problem.space.check(theta) == theta
            json.dumps(optimizer.report(), allow_nan=False)

    def test_equal_seeds_and_observations_give_equal_requests(
        self, make_optimizer: MakeOptimizer, task: KnownTask
    ) -> None:
        """Else a run cannot be resumed."""
        one, two = (make_optimizer(task.problem, 3) for _ in range(2))
        assert _pairs(drive(one, task, self.count)) == _pairs(drive(two, task, self.count))
        assert one.recommend() == two.recommend()
        assert one.trace == two.trace
        assert one.report() == two.report()

    def test_looking_changes_nothing(self, make_optimizer: MakeOptimizer, task: KnownTask) -> None:
        """`recommend`, `report`, `settings` and `ask` may be called at any time."""
        watched, alone = (make_optimizer(task.problem, 3) for _ in range(2))
        told: list[Observation] = []
        while len(told) < self.count and (requests := watched.ask()):
            for look in (watched.recommend, watched.report, watched.settings, watched.ask):
                look()
            told += _answer(watched, task, requests)
        assert _pairs(told) == _pairs(drive(alone, task, self.count))

    def test_optimizers_share_no_state(
        self, make_optimizer: MakeOptimizer, task: KnownTask
    ) -> None:
        """Another one beside it changes nothing."""
        expected = _pairs(drive(make_optimizer(task.problem, 1), task, self.count))
        one, two = (make_optimizer(task.problem, 1) for _ in range(2))
        drive(two, KnownTask.random(6, (4, 3), 6), 30)
        assert _pairs(drive(one, task, self.count)) == expected

    def test_seeds_differ(self, make_optimizer: MakeOptimizer, task: KnownTask) -> None:
        """The seed decides something: of four, not all ask for the same."""
        runs = [_pairs(drive(make_optimizer(task.problem, s), task, 40)) for s in range(4)]
        assert any(run != runs[0] for run in runs[1:])

    def test_settings_are_json_and_equal_for_equal_constructions(
        self, make_optimizer: MakeOptimizer, task: KnownTask
    ) -> None:
        """They hold name and seed, and stay as they are during the search."""
        one, two, other = (make_optimizer(task.problem, seed) for seed in (3, 3, 4))
        before = json.dumps(one.settings(), allow_nan=False, sort_keys=True)
        drive(one, task, self.count)
        assert json.dumps(one.settings(), allow_nan=False, sort_keys=True) == before
        assert json.dumps(two.settings(), allow_nan=False, sort_keys=True) == before
        assert json.dumps(other.settings(), allow_nan=False, sort_keys=True) != before
        assert one.settings()["name"] == one.name
        assert one.settings()["seed"] == 3

    def test_trace_is_in_order_and_ends_with_the_recommendation(
        self, optimizer: Optimizer, task: KnownTask
    ) -> None:
        """Every row has the spend of its t; the last one has theta_out."""
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
