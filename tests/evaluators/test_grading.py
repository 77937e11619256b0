"""Metrics: the arguments that they take, what they cost, what they return, what they raise."""

import asyncio
import contextlib
import functools
import json
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.grading import Grading
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.serve.ledger import Ledger

ITEM = Item(0, "six", "SIX")
PROBLEM = SelectionProblem(
    "app", ("plan", "solve"), (("nano", "pro"),) * 2, 1, (1, 1), 1.0, 1.0, 0.1
)
PAIR = Request((0, 1), 0)


def app(_models, text):
    return text.upper(), 0.25


def observed(metric, the_app=app, requests=(PAIR,), **settings) -> list[Observation]:
    """What a search gets until it ends, whatever ends it."""
    found: list[Observation] = []
    application = Application(the_app, metric, outcomes=settings.pop("outcomes", ()))
    evaluator = FunctionEvaluator(PROBLEM, application, [ITEM], retry_wait_s=0.0, **settings)
    try:
        for observation in evaluator.evaluate(requests):
            found.append(observation)
    except Exception as error:
        observed.error = error
    else:
        observed.error = None
    return found


class Judge:
    def __call__(self, expected, output, given):
        return float((expected, output, given) == ("SIX", "SIX", "six"))

    def by_method(self, expected, output):
        return float(expected == output)


async def in_time(expected, output):
    await asyncio.sleep(0)
    return float(expected == output)


def in_another_order(output, input, expected):
    return float((expected, output, input) == ("SIX", "SIX", "six"))


def by_keyword(wanted, found, *, input):
    return float((wanted, found, input) == ("SIX", "SIX", "six"))


def with_an_option(expected, output, fold=True, input=None):
    return float(fold is True and input == "six")


@pytest.mark.parametrize(
    "metric",
    [
        lambda e, o: float(e == o),
        lambda e, o, i: float((e, o, i) == ("SIX", "SIX", "six")),
        lambda *given: float(given == ("SIX", "SIX")),
        lambda gold, pred, trace=None: float((gold, pred, trace) == ("SIX", "SIX", None)),
        Judge(),
        Judge().by_method,
        in_time,
        in_another_order,
        by_keyword,
        with_an_option,
        functools.partial(by_keyword, input="six"),
        lambda expected, output, /: float(expected == output),
    ],
)
def test_a_metric_gets_the_arguments_that_it_takes(metric):
    (found,) = observed(metric)
    assert (found.quality, found.cost_usd, found.judge_usd) == (1.0, 0.25, 0.0)


@pytest.mark.parametrize(
    ("metric", "given"),
    [
        (lambda answer, expected: (answer, expected), ("said", "gold")),
        (lambda output, gold: (output, gold), ("said", "gold")),
        (lambda output, gold, question: (output, gold, question), ("said", "gold", "asked")),
        (lambda input, gold, answer: (input, gold, answer), ("asked", "gold", "said")),
        (lambda gold, input, answer: (gold, input, answer), ("gold", "asked", "said")),
        (lambda output, expected, /: (output, expected), ("said", "gold")),
        (lambda output, gold=None: (output, gold), ("said", "gold")),
        (lambda output, *others: (output, *others), ("said", "gold")),
        (lambda input, output: (input, output), ("asked", "said")),
        (lambda a, b, c, *, input: (a, b, c, input), ("gold", "said", "asked", "asked")),
    ],
)
def test_a_known_name_gets_its_own_value_beside_other_names(metric, given):
    assert Grading(metric)("gold", "said", "asked") == given


def test_a_metric_that_an_early_version_gave_the_wrong_order_is_another_one():
    """Else a search that goes on would mix its grades with those of today."""
    metrics = (
        lambda gold, said: gold == said,
        lambda output, expected: output == expected,
        lambda output, gold: output == gold,
    )
    told = [Application(app, one, metric_version="1").grading for one in metrics]
    assert [one.partition(" version ")[2] for one in told] == [
        "1",
        "1",
        "1, given output, expected",
    ]


@pytest.mark.parametrize(
    "metric",
    [
        lambda e: e,
        lambda e, o, i, trace: (e, o, i, trace),
        lambda e, o, *, threshold: (e, o, threshold),
    ],
)
def test_a_metric_that_takes_something_else_is_refused_before_any_call(metric):
    with pytest.raises(InputError, match=r"must take \(expected, output\) or"):
        Grading(metric)


def test_a_metric_may_say_what_it_has_cost():
    (found,) = observed(lambda *_: (0.5, 0.125))
    assert (found.quality, found.cost_usd, found.judge_usd) == (0.5, 0.25, 0.125)
    assert found.paid_usd == 0.375
    assert Observation.from_json(found.to_json()) == found
    assert Application(app, lambda *_: (0.5, 0.125))({"plan": "nano"}, ITEM) == {
        "quality": 0.5,
        "cost_usd": 0.25,
        "judge_usd": 0.125,
    }


@pytest.mark.parametrize(("grade", "quality"), [(1 + 2e-16, 1.0), (1 + 9e-7, 1.0), (-1e-12, 0.0)])
def test_a_grade_that_rounding_has_put_outside_is_clamped(grade, quality):
    """As the cosine similarity 1.0000000000000002 of a text with itself."""
    (found,) = observed(lambda *_: grade)
    assert found.quality == quality
    (found,) = observed(None, lambda _m, _t: (grade, 0.25))
    assert found.quality == quality


@pytest.mark.parametrize("on_error", ["raise", "retry", "zero"])
@pytest.mark.parametrize(
    ("grade", "words"),
    [
        (1.1, "quality=1.1 .* must lie in"),
        (1 + 2e-6, "must lie in"),
        (float("nan"), "quality=nan"),
        (None, "None is not a number"),
        ("good", "'good' is not a number"),
        ((1.0, "free"), "a grade and the USD"),
        ((1.0, -1.0), "a grade and the USD"),
        ((1.0, True), "a grade and the USD"),  # whether it is right
        ((1.0, np.True_), "a grade and the USD"),
    ],
)
def test_another_grade_is_named_before_the_second_call_and_paid_for(grade, words, on_error):
    calls = []

    def counted(models, text):
        calls.append(text)
        return app(models, text)

    requests = [PAIR, Request((1, 1), 0), Request((0, 0), 0)]
    found = observed(lambda *_: grade, counted, requests, on_error=on_error)
    assert isinstance(observed.error, InputError)
    with pytest.raises(InputError, match=words):
        raise observed.error
    assert len(calls) == 1
    assert [(one.request, one.cost_usd, one.lost) for one in found] == [(PAIR, 0.25, 0)]


class Fails:
    """A metric that raises at its first `times` calls, each of which costs a judge 0.5 USD."""

    def __init__(self, times):
        self.times, self.calls = times, 0

    def __call__(self, expected, output):
        self.calls += 1
        if self.calls <= self.times:
            error = TimeoutError("the judge is asleep")
            error.cost_usd = 0.5
            raise error
        return float(expected == output), 0.5


def test_only_the_metric_is_asked_again():
    calls = []
    counted = lambda models, text: calls.append(text) or app(models, text)  # noqa: E731
    (found,) = observed(Fails(2), counted, on_error="retry", max_retries=2)
    assert (found.quality, found.cost_usd, found.judge_usd) == (1.0, 0.25, 1.5)
    assert (found.failed, found.lost, len(calls)) == (None, None, 1)


@pytest.mark.parametrize(("on_error", "tries"), [("raise", 1), ("retry", 3)])
def test_what_a_metric_that_gives_up_has_wasted_is_booked(on_error, tries):
    (found,) = observed(Fails(9), on_error=on_error, max_retries=2)
    assert (found.cost_usd, found.judge_usd, found.lost) == (0.25, 0.5 * tries, 0)
    assert found.failed == "metric"
    assert isinstance(observed.error, TimeoutError)
    note = f"this run cost {0.25 + 0.5 * tries:.3g} USD, which are in no observation"
    assert observed.error.__notes__[1] == note
    assert "raised by the metric for query 0" in observed.error.__notes__[0]


def test_with_zero_a_failed_metric_costs_what_was_paid():
    (found,) = observed(Fails(9), on_error="zero", failed_cost_usd=7.0)
    assert (found.quality, found.cost_usd, found.judge_usd) == (0.0, 0.25, 0.5)
    assert (found.failed, found.lost, observed.error) == ("metric", None, None)


# Who leaves


async def cancelled(*_):
    raise asyncio.CancelledError


def leaves(*_):
    sys.exit(0)


@pytest.mark.parametrize("on_error", ["raise", "retry", "zero"])
@pytest.mark.parametrize("who", ["app", "metric"])
@pytest.mark.parametrize(("leave", "name"), [(leaves, "SystemExit"), (cancelled, "CancelledError")])
def test_leaving_the_program_is_an_error_like_any_other(leave, name, who, on_error, caplog):
    metric, the_app = (Fails(0), leave) if who == "app" else (lambda *_: leave(), app)
    with caplog.at_level(logging.WARNING):
        found = observed(metric, the_app, on_error=on_error, max_retries=1)
    if on_error == "zero":
        (one,) = found
        assert (one.quality, one.failed) == (0.0, who)
        assert name in caplog.text
    else:
        assert isinstance(observed.error, RuntimeError)
        assert str(observed.error).startswith(f"it raised {name}(")
        assert all(one.lost == 0 for one in found)


def test_an_interrupt_is_no_error_of_the_application():
    def press(*_):
        raise KeyboardInterrupt

    application = Application(press, Fails(0))
    evaluator = FunctionEvaluator(PROBLEM, application, [ITEM], on_error="zero")
    with pytest.raises(KeyboardInterrupt):
        list(evaluator.evaluate([PAIR]))


# Latency, outputs


class Clock:
    """In the place of the module `time`."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def wait(self, seconds, value):
        self.now += seconds
        return value


def test_latency_is_that_of_the_application_alone(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("scope_torch.evaluators.elsewhere.time", clock)

    class Endpoint:
        """Its end, which waits for calls in flight, takes 16 s."""

        @contextlib.contextmanager
        def query(self, _):
            told = {"is_read": True, "troubles": {}, "account_fault": lambda: None}
            yield SimpleNamespace(env={}, ledger=Ledger(), **told)
            clock.wait(16.0, None)

        def fault_of(self, _):
            return None

    metric = lambda *_: clock.wait(8.0, 1.0)  # noqa: E731
    plain = Application(lambda *_: clock.wait(2.0, ("SIX", 0.25)), metric, None, ["latency_s"])
    measured = Application(lambda _: clock.wait(4.0, "SIX"), metric, Endpoint(), ["latency_s"])
    for application, seconds in ((plain, 2.0), (measured, 4.0)):
        evaluator = FunctionEvaluator(PROBLEM, application, [ITEM])
        (found,) = evaluator.evaluate([PAIR])
        assert found.outcomes == {"latency_s": seconds}
    grades = Application(lambda *_: clock.wait(1.0, (1.0, 0.25)), None, None, ["latency_s"])
    (found,) = FunctionEvaluator(PROBLEM, grades, [ITEM]).evaluate([PAIR])
    assert (found.quality, found.outcomes) == (1.0, {"latency_s": 1.0})


def test_a_self_grading_app_may_return_its_output():
    def grades(models, text):
        return {"quality": 0.75, "output": text.upper(), "cost_usd": 0.25, "judge_usd": 0.5}

    application = Application(grades)
    evaluator = FunctionEvaluator(PROBLEM, application, [ITEM])
    (found,) = evaluator.evaluate([PAIR])
    assert (found.quality, found.cost_usd, found.judge_usd) == (0.75, 0.25, 0.5)
    assert dict(application.outputs) == {(("nano", "pro"), 0): "SIX"}


class Mute:
    def __str__(self):
        raise RuntimeError("I cannot be told")


def cycle():
    made = {}
    made["me"] = made
    return made


@pytest.mark.parametrize("output", [{(1, 2): 3}, cycle(), Mute(), {"deep": Mute()}, b"\xff", {1}])
def test_an_output_that_is_no_plain_data_costs_no_observation(output, tmp_path):
    path = tmp_path / "outputs.jsonl"
    application = Application(lambda *_: (output, 0.25), lambda *_: 1.0, path=path)
    evaluator = FunctionEvaluator(PROBLEM, application, [ITEM])
    (found,) = evaluator.evaluate([PAIR])
    assert (found.quality, found.cost_usd) == (1.0, 0.25)
    written = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert all(isinstance(one["output"], str) for one in written)


def test_a_disk_that_refuses_outputs_is_warned_of_once(tmp_path, caplog):
    (tmp_path / "outputs.jsonl").mkdir()
    application = Application(app, lambda *_: 1.0, path=tmp_path / "outputs.jsonl")
    evaluator = FunctionEvaluator(PROBLEM, application, [ITEM])
    with caplog.at_level(logging.WARNING):
        assert len(list(evaluator.evaluate([PAIR, Request((1, 1), 0)]))) == 2
    assert len(caplog.records) <= 1
    assert application.outputs[("pro", "pro"), 0] == "SIX"


def test_after_a_line_that_was_cut_outputs_are_kept_as_before(tmp_path):
    """A kill or a full disk cuts one; its call is made again, and its output must not be lost."""
    path = tmp_path / "outputs.jsonl"
    Application(app, lambda *_: 1.0, path=path)({"plan": "nano", "solve": "pro"}, ITEM)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    Application(app, lambda *_: 1.0, path=path)({"plan": "pro", "solve": "pro"}, ITEM)
    read = Application(app, lambda *_: 1.0, path=path).outputs
    assert list(read) == [(("nano", "pro"), 0), (("pro", "pro"), 0)]
    assert path.read_bytes().startswith(whole + whole[:20] + b"\n{")
