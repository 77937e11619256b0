"""The suites as a user meets them: a test file elsewhere, run by pytest without our tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from integration.doc_pages import ROOT, python

import scope_torch

MINE = """
import itertools

import torch
from gpytorch.kernels import Kernel

from scope_torch import HammingKernel, Observation, Request, Rule, SequentialOptimizer
from scope_torch.search.optimizer import Recommendation


class Half(HammingKernel):
    def at_distance(self, h):
        return 0.5**h


class Single(Half):
    def at_distance(self, h):
        return (0.5**h).float()


class Weighted(Kernel):
    has_lengthscale = False

    def forward(self, x1, x2, diag=False, **params):
        weights = 1 / torch.arange(1, x1.shape[-1] + 1, dtype=torch.float64, device=x1.device)
        if not diag:
            x1, x2 = x1[..., :, None, :], x2[..., None, :, :]
        return torch.exp(-((x1 != x2) * weights).sum(-1))


class Shuffled(SequentialOptimizer):
    name = "shuffled"

    def __init__(self, problem, seed):
        self.problem, self.seed = problem, seed
        super().__init__()

    def _order(self):
        return torch.randperm(
            self.problem.space.size, generator=torch.Generator().manual_seed(self.seed)
        )

    def _search(self):
        for index in self._order().tolist():
            theta = self.problem.space.theta_at(index)
            for observation in (yield [Request(theta, query) for query in range(3)]):
                self._record(observation)

    def recommend(self):
        return Recommendation(self.problem.theta_ref, "reference")

    def settings(self):
        return {"name": self.name, "seed": self.seed}

    def report(self):
        return {}


class Unseeded(Shuffled):
    def _order(self):
        return torch.randperm(self.problem.space.size)


class AtMost(Rule):
    def begin(self, search):
        self._number = 0

    def ended(self, turn):
        self._number += 1
        return "enough" if self._number == 2 else None

    def settings(self):
        return {"most": 2}


class Forgetful(AtMost):
    _number = 0

    def begin(self, search):
        pass


class Lookup:
    concurrency = 1

    def __init__(self, table):
        self.table = table

    def evaluate(self, requests):
        for theta, query, replicate in requests:
            at = (*theta, query)
            yield Observation(
                theta, query, self.table.cost_usd[at], self.table.quality[at], replicate
            )

    def fingerprint(self):
        return str(hash((self.table.cost_usd.tobytes(), self.table.quality.tobytes())))


class Constant(Lookup):
    def fingerprint(self):
        return "lookup"


class Eager(Lookup):
    def evaluate(self, requests):
        return list(super().evaluate(requests))


class Counted(Lookup):
    number = itertools.count()

    def fingerprint(self):
        return f"lookup {next(self.number)}"


class OffByOne(Lookup):
    def evaluate(self, requests):
        num_queries = len(self.table.queries)
        for theta, query, replicate in requests:
            at = (*theta, (query + 1) % num_queries)
            yield Observation(
                theta, query, self.table.cost_usd[at], self.table.quality[at], replicate
            )
"""

TEST_MINE = """
import numpy as np
import pytest
from mine import *

from scope_torch.testing import (
    EvaluatorConformance,
    HammingKernelConformance,
    KernelConformance,
    OptimizerConformance,
    RuleConformance,
)


class TestHalf(HammingKernelConformance):
    @pytest.fixture
    def kernel(self):
        return Half()

    @pytest.fixture
    def reference(self):
        return lambda h: 0.5**h


class TestSingle(TestHalf):
    @pytest.fixture
    def kernel(self):
        return Single()


class TestWeighted(KernelConformance):
    @pytest.fixture
    def kernel(self):
        return Weighted()


class TestShuffled(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return Shuffled


class TestUnseeded(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return Unseeded


class TestAtMost(RuleConformance):
    @pytest.fixture
    def make_rule(self):
        return AtMost


class TestForgetful(RuleConformance):
    @pytest.fixture
    def make_rule(self):
        return Forgetful


class TestLookup(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return lambda task: Lookup(task.table)


class TestConstant(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return lambda task: Constant(task.table)


class TestEager(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return lambda task: Eager(task.table)


class TestCounted(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return lambda task: Counted(task.table)


class TestOffByOne(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return lambda task: OffByOne(task.table)


class TestNothingSaid(KernelConformance):
    pass
"""


def run_elsewhere(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder of a user's, who has nothing of ours but the package."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(Path(scope_torch.__file__).parents[1])
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> str:
    """What pytest says about the user's test file."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(MINE)
    (folder / "test_mine.py").write_text(TEST_MINE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = run_elsewhere(folder, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    return done.stdout


def outcomes(output: str, name: str) -> dict[str, set[str]]:
    """Tests of a class by outcome, without their parameters."""
    found: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "ERROR": set()}
    for outcome, test in re.findall(rf"^([A-Z]+) test_mine\.py::{name}::(\w+)", output, re.M):
        found[outcome].add(test)
    return found


@pytest.mark.parametrize(
    ("name", "least"),
    [("Half", 12), ("Weighted", 8), ("Shuffled", 12), ("AtMost", 5), ("Lookup", 8)],
)
@pytest.mark.slow
def test_correct_ones_pass(output, name, least):
    found = outcomes(output, f"Test{name}")
    assert not found["FAILED"]
    assert not found["ERROR"]
    assert len(found["PASSED"]) >= least


@pytest.mark.parametrize(
    ("name", "failing", "shown"),
    [
        ("Single", "test_float64_whatever_the_codes", "assert torch.float32 == torch.float64"),
        (
            "Unseeded",
            "test_equal_seeds_and_observations_give_equal_requests",
            "assert [((",  # the pairs of both runs
        ),
        ("Forgetful", "test_a_second_search_starts_anew", "first"),
        ("Counted", "test_fingerprint_identifies_what_is_evaluated", "'lookup 1' == 'lookup 2'"),
        ("Constant", "test_another_task_has_another_fingerprint", "'lookup' != 'lookup'"),
        (
            "Eager",
            "test_takes_a_request_only_when_there_is_room",
            "nothing was yielded before it took more than",
        ),
        ("OffByOne", "test_values_belong_to_their_request", "assert 0.00"),  # both costs
    ],
)
@pytest.mark.slow
def test_wrong_ones_fail_for_the_right_reason(output, name, failing, shown):
    found = outcomes(output, f"Test{name}")
    assert failing in found["FAILED"]
    assert found["PASSED"]
    assert not found["ERROR"]
    (section,) = re.findall(
        rf"^_+ Test{name}\.{failing}\[?[\w.-]*\]? _+$(.*?)(?=^_{{3,}} |^={{3,}} )",
        output,
        re.M | re.S,
    )[:1]
    assert shown in section


@pytest.mark.slow
def test_a_fixture_left_out_is_named(output):
    found = outcomes(output, "TestNothingSaid")
    assert not found["PASSED"] | found["FAILED"]
    assert "override the fixture kernel; it returns a kernel" in output


@pytest.mark.slow
def test_the_evaluator_of_the_how_to_passes(tmp_path):
    page = ROOT / "docs/howto/own-system.md"
    (tmp_path / "test_page.py").write_text("\n".join(python(page)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run_elsewhere(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed, 1 skipped" in done.stdout  # it knows no truth


def test_without_pytest_the_error_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['pytest'] = None; import scope_torch.testing"
    done = run_elsewhere(tmp_path, "-c", code)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: scope_torch.testing needs pytest: pip install pytest"
    )


@pytest.mark.slow
def test_the_package_itself_needs_no_pytest(tmp_path):
    imported = "scope_torch.methods, scope_torch.baselines.cei"
    code = f"import sys; sys.modules['pytest'] = None; import {imported}"
    done = run_elsewhere(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
