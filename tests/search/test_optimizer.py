"""SCOPE and its variants behave like optimizers; what `SequentialOptimizer` does for them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tables import Task, make_task

from scope_torch.bounds import TheoryBounds
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.cli.report import report
from scope_torch.cli.watch import write_page
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.observation import Request
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer
from scope_torch.testing import OptimizerConformance, drive
from scope_torch.testing.problems import KnownTask


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


class Asks(SequentialOptimizer):
    """Asks once, for what it is told to."""

    name = "asks"

    def __init__(self, problem, requests):
        self.problem, self._requests = problem, requests
        super().__init__()

    def _search(self):
        yield from self._observe(self._requests)
        self._stop("asked")

    def recommend(self):
        return Recommendation(self.problem.theta_ref, "reference")

    def settings(self):
        return {"name": self.name}

    def report(self):
        return {}


TASK = KnownTask.random(1, (3, 2), 4)


def asked_in_vain(problem, requests):
    """What is said to a search that may not ask for this, before anything is paid."""
    paid = []

    def system(assignment, query):
        paid.append(query)
        return 1.0, 0.01

    with pytest.raises(InputError) as caught:
        run(problem, Asks(problem, requests), FunctionEvaluator(problem, system, range(4)), 9.0)
    assert paid == []
    return str(caught.value)


@pytest.mark.parametrize(
    "requests",
    [
        [Request((0, 1), query) for query in torch.arange(4)],
        [Request(torch.tensor([0, 1]), 0)],
        [Request([0, 1], 0)],
        [Request((0.0, 1.0), 0)],
        [Request((0, 1), 4)],
        [Request((0, 1), -1)],
        [Request((0, 2), 0)],
        [Request((0,), 0)],
        [((0, 1), 0)],
        iter([Request((0, 1), 0)]),
    ],
)
def test_what_is_no_request_of_the_problem_is_refused_before_it_is_paid(requests):
    assert "request" in asked_in_vain(TASK.problem, requests).lower()


def test_a_search_of_ones_own_does_not_run_what_is_not_allowed():
    problem = replace(TASK.problem, allowed=[(0, 0), (1, 1), TASK.problem.theta_ref])
    words = asked_in_vain(problem, [Request((1, 1), 0), Request((0, 1), 0)])
    assert "`allowed` refuses" in words
    assert str(problem.names((0, 1))) in words


def test_requests_may_have_numbers_of_numpy():
    codes, queries = tuple(np.array([0, 1])), np.arange(4)
    search = Asks(TASK.problem, [Request(codes, query) for query in queries])
    result = run(TASK.problem, search, TableEvaluator(TASK.table), 9.0)
    assert [one.query for one in result.history] == [0, 1, 2, 3]


@pytest.mark.parametrize("theta", [[0, 1], np.array([0, 1])])
def test_a_recommendation_and_a_reason_may_be_of_other_types(theta, tmp_path):
    class Recommends(Asks):
        def _search(self):
            yield from self._observe(self._requests)
            self._stop(np.True_)

        def recommend(self):
            return Recommendation(theta, "observed")

    search = Recommends(TASK.problem, [Request((0, 1), 0)])
    result = run(TASK.problem, search, TableEvaluator(TASK.table), 9.0, run_dir=tmp_path)
    written = json.loads((tmp_path / "result.json").read_text())
    assert result.recommendation.theta == (0, 1)
    assert written["theta_out_codes"] == [0, 1]
    assert written["stop_reason"] == "True"


class Reports(Asks):
    """Settings and a report in the words and numbers of its author."""

    def settings(self):
        about = {"bounds": [0.0, 1.0], "kernel": "matern52", "weights": np.ones(2)}
        return {"name": self.name, "seed": np.int64(3), **about}

    def report(self):
        names = {"task": "a", "method": "b", "basis": "certified", "theta_out": [0, 1]}
        return {**names, "evaluations": np.int64(4), "loss": torch.tensor(0.5)}


@pytest.mark.slow
def test_what_an_optimizer_of_ones_own_reports_does_not_damage_its_result(tmp_path):
    """Neither does the name of a setting that means something else in SCOPE."""
    search = Reports(TASK.problem, [Request((0, 1), 0)])
    result = run(TASK.problem, search, TableEvaluator(TASK.table), 9.0, run_dir=tmp_path / "run")
    told = read_run(tmp_path / "run").summary()
    assert (told["task"], told["method"]) == (TASK.problem.name, search.name)
    assert (told["theta_out"], told["basis"]) == (result.choice, "reference")
    assert (told["evaluations"], told["loss"], told["seed"]) == (4, 0.5, 3)
    result.save(tmp_path / "report.html")
    assert write_page(tmp_path / "run", tmp_path / "watch.html", None)
    assert f"| {search.name} " in report(tmp_path)
    again = Reports(TASK.problem, [Request((0, 1), 0)])
    same = run(TASK.problem, again, TableEvaluator(TASK.table), 9.0, run_dir=tmp_path / "run")
    assert same.replayed == 1
