"""SCOPE and its variants behave like optimizers; what `SequentialOptimizer` does for them."""

import pytest
from tables import Task, make_task

from scope_torch.bounds import TheoryBounds
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.observation import Request
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer
from scope_torch.testing import OptimizerConformance, drive


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
