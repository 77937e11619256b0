"""The fixture `scope_check` in a test file of its own."""

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
import scope_torch as st

pytest_plugins = ["scope_torch.testing.fixtures"]
DATA = [(str(i), str(i)) for i in range(60)]


def app(models, text):
    return (text if models["answer"] != "nano" else "?"), 0.001


def how(**changes):
    return {
        "reference": {"answer": "pro"}, "dataset": DATA, "metric": st.metrics.exact_match,
        "max_quality_loss": 0.1, "budget_usd": 1,
    } | changes


def test_good(scope_check):
    assert scope_check(app, {"answer": "mini"}, **how()).verdict == "pass"


def test_bad(scope_check):
    scope_check(app, {"answer": "nano"}, **how())


def test_unclear(scope_check):
    scope_check(app, {"answer": "mini"}, **how(max_pairs=3))


def test_unclear_is_no_failure(scope_check):
    scope_check(app, {"answer": "mini"}, undecided_fails=False, **how(max_pairs=3))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_test_fails_unless_the_check_passes(pytester):
    pytester.makeconftest('pytest_plugins = ["scope_torch.testing.fixtures"]')
    pytester.makepyfile(FILE.replace('pytest_plugins = ["scope_torch.testing.fixtures"]\n', ""))
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--junitxml=found.xml", "-rA")
    found.assert_outcomes(passed=1, failed=2, skipped=1)
    found.stdout.fnmatch_lines(["*fail: answer=nano (was pro)*"])
    found.stdout.fnmatch_lines(["*undecided (no more draws): answer=mini (was pro)*"])
    assert "scope_check" in (pytester.path / "found.xml").read_text()
