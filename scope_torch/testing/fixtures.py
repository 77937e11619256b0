"""A fixture for tests of your application: `pytest_plugins = ["scope_torch.testing.fixtures"]`."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from scope_torch.results.checked import CheckResult


class Checks(Protocol):
    """What the fixture gives."""

    def __call__(
        self, app: Any, configuration: Any, *, undecided_fails: bool = True, **arguments: Any
    ) -> CheckResult:
        """Checks, and fails the test if the check does not pass.

        Args:
            app: As for `check`.
            configuration: As for `check`.
            undecided_fails: Whether an undecided check fails the test too; else it is skipped.
            arguments: Those of `check`.
        """
        ...


@pytest.fixture
def scope_check(record_property: Any) -> Checks:
    """`check` as a test: `scope_check(app, new, reference=old, ...)` fails unless it passes.

    What was found is a property of the test in JUnit's XML.

    Examples:
        >>> def test_the_small_llm_is_good_enough(scope_check):
        ...     scope_check(app, {"answer": "mini"}, reference={"answer": "pro"}, dataset=data,
        ...                 metric=st.metrics.exact_match, max_quality_loss=0.05, budget_usd=1)
    """

    def checked(
        app: Any, configuration: Any, *, undecided_fails: bool = True, **arguments: Any
    ) -> CheckResult:
        from scope_torch.selection.check import check  # imports torch

        found = check(app, configuration, **arguments)
        record_property("scope_check", found.to_json())
        if found.verdict == "undecided" and not undecided_fails:
            pytest.skip(str(found))
        if found.verdict != "pass":
            pytest.fail(str(found), pytrace=False)
        return found

    return checked
