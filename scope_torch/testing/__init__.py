"""Test suites for kernels, optimizers, rules and evaluators of your own; they need pytest.

Subclass a suite in a test file, name the class `Test...`, and override the one fixture that makes
your object. This is a whole test file:

Examples:
    >>> import pytest
    >>> from baselines.random_search import RandomSearch
    >>> from scope_torch.testing import OptimizerConformance
    >>> class TestRandomSearch(OptimizerConformance):
    ...     @pytest.fixture
    ...     def make_optimizer(self):
    ...         return lambda problem, seed: RandomSearch(problem, seed=seed)

Raises:
    ImportError: If pytest is not installed.
"""

from __future__ import annotations

try:
    import pytest
except ImportError:
    raise ImportError("scope_torch.testing needs pytest: pip install pytest") from None

# Before they are imported: a failed assert then shows the values that it compared.
pytest.register_assert_rewrite(
    "scope_torch.testing.evaluators",
    "scope_torch.testing.kernels",
    "scope_torch.testing.optimizers",
    "scope_torch.testing.rules",
)

from scope_torch.testing.evaluators import EvaluatorConformance  # noqa: E402
from scope_torch.testing.kernels import HammingKernelConformance, KernelConformance  # noqa: E402
from scope_torch.testing.optimizers import OptimizerConformance, drive  # noqa: E402
from scope_torch.testing.problems import KnownTask  # noqa: E402
from scope_torch.testing.rules import RuleConformance  # noqa: E402

__all__ = [
    "EvaluatorConformance",
    "HammingKernelConformance",
    "KernelConformance",
    "KnownTask",
    "OptimizerConformance",
    "RuleConformance",
    "drive",
]
