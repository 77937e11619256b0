"""What an application writes into its input reaches no other call, and no run_dir."""

import io
import sys
from collections import OrderedDict

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


def select(app, data, **more):
    given = {"reference": "pro", "max_quality_loss": 0.1, "budget_usd": 3, "concurrency": 4}
    metric = st.metrics.exact_match
    return st.select(app, models=MODELS, dataset=data, metric=metric, **given, **more)


def test_a_plan_that_stays_in_the_state_certifies_nothing_false():
    app, data = App(), dataset()
    result = select(app, data)
    assert result.choice == {"plan": "pro", "solve": "nano"}
    assert app.seen == [["q", "steps"]] * app.calls
    assert data == dataset()
    output, _ = App()(result.choice, {"q": "q1", "steps": []})
    assert output == "Q1"


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


def test_containers_are_copied_and_objects_are_shared():
    inner, other = object(), OrderedDict(a=[1])
    value = {"a": [1, {2}, (inner, [3])], "b": other}
    copied = fresh(value)
    assert copied == value
    assert copied["a"] is not value["a"]
    assert copied["a"][1] is not value["a"][1]
    assert copied["a"][2][0] is inner
    assert copied["a"][2][1] is not value["a"][2][1]
    assert copied["b"] is other
    itself = []
    itself.append(itself)
    assert fresh(itself) is itself
    given = [1]
    called(lambda some, also: (some.append(2), also.append(3)), given, also=given)
    assert given == [1]


class Unread(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, Unread()], ids=["closed", "nobody reads"])
@pytest.mark.parametrize("progress", [None, True])
def test_what_cannot_be_shown_ends_no_search(monkeypatch, stream, progress):
    expected = select(App(), dataset(), progress=False)
    monkeypatch.setattr(sys, "stderr", stream)
    result = select(App(), dataset(), progress=progress)
    assert [*result.history] == [*expected.history]


def test_whether_an_answer_is_right_is_no_cost():
    with pytest.raises(InputError, match="True is no cost in USD"):
        select(lambda _, state: (state["q"].upper(), True), dataset())
