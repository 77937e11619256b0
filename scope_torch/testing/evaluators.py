"""The suite for evaluators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from scope_torch.observation import Observation, Request
from scope_torch.runs.evaluator import Evaluator, HasTruth
from scope_torch.testing.problems import KnownTask


class EvaluatorConformance:
    """What every evaluator must do; a subclass overrides the fixture `make_evaluator`.

    It returns a function that makes an evaluator of `task.problem`: 6 configurations, 4 queries.
    The evaluator gives the values of `task.table`. If yours cannot, set `exact = False`: then its
    own values only have to be equal for equal requests.

    Examples:
        >>> class TestMyEvaluator(EvaluatorConformance):
        ...     @pytest.fixture
        ...     def make_evaluator(self):
        ...         return lambda task: MyEvaluator(task.table)
    """

    exact = True

    @pytest.fixture
    def task(self) -> KnownTask:
        """What is evaluated."""
        return KnownTask.random(1, (3, 2), 4)

    @pytest.fixture
    def make_evaluator(self) -> Callable[[KnownTask], Evaluator]:
        """Makes a fresh evaluator of a task."""
        raise NotImplementedError("override the fixture make_evaluator; it returns a function")

    @pytest.fixture
    def evaluator(
        self, make_evaluator: Callable[[KnownTask], Evaluator], task: KnownTask
    ) -> Evaluator:
        """The evaluator under test."""
        return make_evaluator(task)

    def requests(self, task: KnownTask) -> list[Request]:
        """Every configuration on every query."""
        space = np.ndindex(*task.sizes)
        return [Request(theta, q) for theta in space for q in range(task.problem.num_queries)]

    def test_observes_every_request_once(self, evaluator: Evaluator, task: KnownTask) -> None:
        """In any order; and an observation survives the journal."""
        requests = self.requests(task)
        observations = list(evaluator.evaluate(requests))
        assert Counter(o.request for o in observations) == Counter(requests)
        for observation in observations:
            assert isinstance(observation, Observation)
            assert type(observation.cost_usd) is type(observation.quality) is float
            assert Observation.from_json(observation.to_json()) == observation

    def test_values_belong_to_their_request(self, evaluator: Evaluator, task: KnownTask) -> None:
        """Asked together, or one by one in another order."""
        requests = self.requests(task)
        values = {o.request: o for o in evaluator.evaluate(requests)}
        again = {o.request: o for r in reversed(requests) for o in evaluator.evaluate([r])}
        for request in requests:
            expected = task.observe(request) if self.exact else again[request]
            assert values[request].cost_usd == expected.cost_usd
            assert values[request].quality == expected.quality

    def test_repeats_are_told_apart_by_replicate(self, evaluator: Evaluator) -> None:
        """A pair may be asked for again; its observation says for which time."""
        requests = [Request((0, 1), 2, replicate) for replicate in (0, 1, 2)]
        assert sorted(o.request for o in evaluator.evaluate(requests)) == requests

    def test_nothing_asked_is_nothing_observed(self, evaluator: Evaluator) -> None:
        """No request, no observation."""
        assert list(evaluator.evaluate([])) == []

    def test_concurrency_is_at_least_one(self, evaluator: Evaluator) -> None:
        """The number of requests that it may work on at a time."""
        assert isinstance(evaluator.concurrency, int)
        assert evaluator.concurrency >= 1

    def test_fingerprint_identifies_what_is_evaluated(
        self, make_evaluator: Callable[[KnownTask], Evaluator], task: KnownTask
    ) -> None:
        """Evaluators made alike have the same; evaluating does not change it."""
        one, two = make_evaluator(task), make_evaluator(task)
        before = one.fingerprint()
        assert isinstance(before, str)
        assert before
        list(one.evaluate(self.requests(task)))
        assert one.fingerprint() == two.fingerprint() == before

    def test_another_task_has_another_fingerprint(
        self, make_evaluator: Callable[[KnownTask], Evaluator], task: KnownTask
    ) -> None:
        """Other values on other queries; else a journal would be resumed with them."""
        if not self.exact:
            pytest.skip("may evaluate something else than the task")
        other = KnownTask.random(2, task.sizes, task.problem.num_queries - 1)
        assert make_evaluator(task).fingerprint() != make_evaluator(other).fingerprint()

    def test_takes_a_request_only_when_there_is_room(
        self, evaluator: Evaluator, task: KnownTask
    ) -> None:
        """What it takes is paid for; so it yields before it takes more than `concurrency`."""
        requests, most = self.requests(task), evaluator.concurrency
        if most >= len(requests):
            pytest.skip("may work on all requests at a time")

        def given() -> Iterator[Request]:
            yield from requests[:most]
            raise ZeroDivisionError("no further request")

        found: list[Request] = []
        with pytest.raises(ZeroDivisionError):
            found.extend(observation.request for observation in evaluator.evaluate(given()))
        assert found, "nothing was yielded before it took more than `concurrency` requests"
        assert not Counter(found) - Counter(requests[:most])

    def test_truth_is_by_flat_index(self, evaluator: Evaluator, task: KnownTask) -> None:
        """Average costs and qualities, `|Theta|` each; for evaluators that know them."""
        if not isinstance(evaluator, HasTruth):
            pytest.skip("knows no truth")
        cost, quality = evaluator.truth()
        assert cost.shape == quality.shape == (task.problem.space.size,)
        if self.exact:
            np.testing.assert_allclose(cost.numpy(), task.mean_cost, rtol=1e-15)
            np.testing.assert_allclose(quality.numpy(), task.mean_quality, rtol=1e-15)
