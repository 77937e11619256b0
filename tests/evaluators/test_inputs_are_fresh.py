"""What an application writes into its input reaches no other call, and no run_dir."""

import io
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import getcontext, localcontext
from typing import NamedTuple

import numpy as np
import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.calling import called, fresh

USD = {"nano": 0.0001, "pro": 0.01}
MODELS = {"plan": ["nano", "pro"], "solve": ["nano", "pro"]}


class App:
    """A graph whose state is its input: the plan stays in it."""

    def __init__(self, raises_at=None):
        self.seen, self.calls, self._raises_at = [], 0, raises_at

    def __call__(self, models, state):
        self.calls += 1
        if self.calls == self._raises_at:
            raise RuntimeError("outage")
        self.seen.append(sorted(state))
        state.setdefault("plan", "good" if models["plan"] == "pro" else "bad")
        state["steps"].append(models["solve"])
        right = state["plan"] == "good" and len(state["steps"]) == 1
        return (state["q"].upper() if right else "?"), sum(USD[llm] for llm in models.values())


def dataset():
    return [({"q": f"q{i}", "steps": []}, f"Q{i}") for i in range(30)]


CONVERSATION: ContextVar[list[str]] = ContextVar("conversation")
TENANT = ContextVar("tenant", default="nobody")

GIVEN = {
    "models": MODELS,
    "dataset": dataset(),
    "metric": st.metrics.exact_match,
    "reference": "pro",
    "max_quality_loss": 0.1,
    "budget_usd": 3,
    "concurrency": 4,
}


def select(app, data, **more):
    return st.select(app, **{**GIVEN, "dataset": data, **more})


@pytest.mark.slow
def test_a_plan_that_stays_in_the_state_certifies_nothing_false():
    app, data = App(), dataset()
    result = select(app, data)
    assert result.choice == {"plan": "pro", "solve": "nano"}
    assert app.seen == [["q", "steps"]] * app.calls
    assert data == dataset()
    output, _ = App()(result.choice, {"q": "q1", "steps": []})
    assert output == "Q1"


@pytest.mark.slow
def test_a_run_goes_on_after_an_error(tmp_path):
    data = dataset()
    with pytest.raises(RuntimeError, match="outage"):
        select(App(raises_at=75), data, run_dir=tmp_path)
    app = App()
    result = select(app, dataset(), run_dir=tmp_path)
    assert result.choice == {"plan": "pro", "solve": "nano"}
    whole = App()
    assert [*select(whole, dataset()).history] == [*result.history]
    assert app.calls < whole.calls


@dataclass
class State:
    steps: list


@dataclass(frozen=True, slots=True)
class Fixed:
    steps: list


class Pair(NamedTuple):
    first: list
    second: object


class Steps(list):
    pass


def written(steps):
    steps.append(1)


@pytest.mark.parametrize(
    ("value", "steps_of"),
    [
        ([[]], lambda v: v[0]),
        ({"a": ({}, [])}, lambda v: v["a"][1]),
        (OrderedDict(a=[]), lambda v: v["a"]),
        (defaultdict(list, a=[]), lambda v: v["a"]),
        (Steps([[]]), lambda v: v[0]),
        (Pair([], None), lambda v: v.first),
        (State([]), lambda v: v.steps),
        (Fixed([]), lambda v: v.steps),
        ({"state": State([State([])])}, lambda v: v["state"].steps[0].steps),
    ],
)
def test_data_is_copied(value, steps_of):
    before = repr(value)
    copied = called(lambda given: (written(steps_of(given)), given)[1], value)
    assert type(copied) is type(value)
    assert repr(value) == before
    assert repr(copied) != before
    assert repr(fresh(value)) == before


def test_a_model_of_pydantic_is_copied():
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Graph", steps=(list, ...))(steps=[])
    called(lambda given: written(given.steps), model)
    assert model.steps == []


def test_a_dict_of_another_kind_keeps_its_items():
    """`|=` of a Counter is a maximum."""
    assert dict(fresh(Counter(a=2, b=0, c=-1))) == {"a": 2, "b": 0, "c": -1}


def test_what_cannot_be_copied_is_shared():
    pydantic = pytest.importorskip("pydantic")

    class Graph(pydantic.BaseModel):
        steps: list
        _lock: object = pydantic.PrivateAttr(default_factory=threading.Lock)

    graph, steps = Graph(steps=[]), []
    copied = fresh({"graph": graph, "steps": steps})
    assert copied["graph"] is graph
    assert copied["steps"] is not steps


@dataclass
class Unset:
    steps: list
    later: list = field(init=False)


def test_a_field_that_is_not_set_stays_so():
    copied = fresh(Unset([1]))
    assert copied.steps == [1]
    assert not hasattr(copied, "later")


def test_sets_are_copied_and_objects_are_shared():
    inner, some = object(), {1}
    called(lambda given, also: (given.add(2), also[0].add(3)), some, also=[some])
    assert some == {1}
    assert fresh([inner])[0] is inner
    assert fresh(State) is State
    itself = []
    itself.append(itself)
    assert fresh(itself) is itself


class Unread(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [None, Unread()], ids=["closed", "nobody reads"])
@pytest.mark.parametrize("progress", [None, True])
def test_what_cannot_be_shown_ends_no_search(monkeypatch, stream, progress):
    expected = select(App(), dataset(), progress=False)
    monkeypatch.setattr(sys, "stderr", stream)
    result = select(App(), dataset(), progress=progress)
    assert [*result.history] == [*expected.history]


def remembers(models, state):
    """Its context is that of a request, as in a web server."""
    if CONVERSATION.get(None) is None:
        CONVERSATION.set([])
    CONVERSATION.get().append(state["q"])
    usd = len(CONVERSATION.get()) * sum(USD[llm] for llm in models.values())
    return f"{state['q']} of {TENANT.get()}".upper(), usd


async def remembers_later(models, state):
    return remembers(models, state)


@pytest.mark.parametrize("app", [remembers, remembers_later])
def test_what_a_call_sets_in_its_context_reaches_no_other_call(app):
    token = TENANT.set("acme")
    try:
        data = [(state, f"{wanted} OF ACME") for state, wanted in dataset()[:6]]
        result = select(app, data, models={"only": ["nano", "pro"]}, repeats=0, concurrency=1)
    finally:
        TENANT.reset(token)
    assert {(one.theta, one.quality, one.cost_usd) for one in result.history} <= {
        ((0,), 1.0, USD["nano"]),
        ((1,), 1.0, USD["pro"]),
    }
    assert CONVERSATION.get(None) is None


def rounds(models, state):
    """Its digits are those of the user; in the next step it has others."""
    before, getcontext().prec = getcontext().prec, 2
    return f"{before} digits of {state['q']}".upper(), USD[models["only"]]


async def rounds_later(models, state):
    return rounds(models, state)


@pytest.mark.parametrize("app", [rounds, rounds_later])
def test_digits_of_decimals_are_those_of_a_call(app):
    with localcontext(prec=9):
        data = [(state, f"9 DIGITS OF {wanted}") for state, wanted in dataset()[:6]]
        result = select(app, data, models={"only": ["nano", "pro"]}, repeats=0, concurrency=3)
        assert getcontext().prec == 9
    assert {one.quality for one in result.history} == {1.0}


def test_whether_an_answer_is_right_is_no_cost():
    with pytest.raises(InputError, match="True is no cost in USD"):
        select(lambda _, state: (state["q"].upper(), True), dataset())
    with pytest.raises(InputError, match="True is no cost in USD"):
        select(lambda _, state: (state["q"].upper(), np.True_), dataset())
    by_module = {"plan": True, "solve": 0.01}
    with pytest.raises(InputError, match="True is no cost in USD"):
        select(lambda _, state: {"output": state["q"].upper(), "cost_usd": by_module}, dataset())
    with pytest.raises(InputError, match="budget_usd=True must be a number"):
        st.select(App(), **{**GIVEN, "budget_usd": True})
