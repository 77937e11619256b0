"""Exceptions that cannot be read or written: what they cost is booked, as of any other."""

import threading
from dataclasses import dataclass

import pytest

from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.elsewhere import _packed, _unpacked
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.retired import is_of_account
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem

PROBLEM = SelectionProblem(
    "odd", ("only",), (("nano", "pro"),), 1, theta_ref=(1,), reference_quality=1.0,
    reference_cost_usd=0.01, epsilon=0.1,
)  # fmt: skip


@dataclass(frozen=True)
class Frozen(Exception):
    why: str
    cost_usd: float = 0.25


class Textless(Exception):
    cost_usd = 0.25

    def __str__(self):
        return self.args[0]  # a dict: Python refuses it


class Sealed(Exception):
    cost_usd = 0.25

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Asked(Exception):
    def __init__(self, reply):
        self.reply = {"cost_usd": 0.25} | reply

    def __getattr__(self, name):
        if name.startswith("__"):  # pytest asks for such
            raise AttributeError(name)
        return self.reply[name]


ODD = [Frozen("no"), Textless({"why": "no"}), Sealed("no"), Asked({"why": "no"})]


def evaluator(app, on_error, metric=None):
    system = Application(app, metric) if metric else app
    queries = [Item(0, "yes", "YES")]
    return FunctionEvaluator(PROBLEM, system, queries, on_error=on_error, retry_wait_s=0)


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_what_they_cost_is_booked(error):
    def app(assignment, query):
        raise error

    (one,) = evaluator(app, "zero").evaluate([Request((0,), 0)])
    assert (one.quality, one.cost_usd, one.failed) == (0.0, 0.25, "app")
    found, stream = [], evaluator(app, "raise").evaluate([Request((0,), 0)])
    with pytest.raises(RuntimeError, match=f"^{type(error).__name__}") as raised:
        found.extend(stream)
    assert any("in app" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_a_metric_that_raises_one_keeps_what_the_app_has_cost(error):
    def metric(expected, output):
        raise error

    (one,) = evaluator(lambda _, text: (text, 0.5), "zero", metric).evaluate([Request((0,), 0)])
    assert (one.cost_usd, one.judge_usd, one.failed) == (0.5, 0.25, "metric")


def test_one_behind_another_hides_nothing():
    error = RuntimeError("the provider said no")
    error.__cause__ = Textless({"why": "no"})
    assert not is_of_account(error)


class Unreadable:
    def __init__(self):
        self.lock = threading.Lock()

    def __repr__(self):
        raise ValueError("no text")


def test_an_answer_that_cannot_be_shown_is_no_lost_worker():
    """It would be asked for again, and paid, three times more."""
    with pytest.raises(InputError, match=r"the app returned .*Unreadable.* cannot be sent home"):
        _unpacked("app", _packed("app", (Unreadable(), 0.01)))


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (0.01, {"cost_usd": 0.01}),
        ({"m": (3, 4)}, {"tokens": {"m": (3, 4)}}),
        (Unreadable(), None),
    ],
)
def test_an_answer_that_cannot_be_sent_says_what_it_cost(usage, said):
    for answer in ((Unreadable(), usage), [Unreadable(), usage]):
        with pytest.raises(InputError, match="cannot be sent home") as raised:
            _unpacked("app", _packed("app", answer))
        assert getattr(raised.value, "refused_answer", None) == said


def test_a_report_that_cannot_be_sent_says_what_it_cost():
    answer = {"quality": Unreadable(), "module_cost_usd": {"m": 0.5}, "outcomes": {"x": 1.0}}
    with pytest.raises(InputError, match="cannot be sent home") as raised:
        _unpacked("system", _packed("system", answer))
    assert raised.value.refused_answer == {"module_cost_usd": {"m": 0.5}}
