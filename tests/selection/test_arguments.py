"""Every argument of `select` with what is none of its values: one line that names it."""

import inspect
from functools import partial

import pytest
import torch
from selection.test_select import App, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.selection.plan import Plan
from scope_torch.tasks.synthetic import synthetic_task

NONSENSE = {"None": None, "5": 5, "x": "x", "[]": [], "{}": {}, "object": object(), "[5]": [5]}
NONSENSE |= {"empty": "", "a NUL": "a\0b"}
# What is no nonsense.
TAKEN = {
    *((name, "None") for name, p in inspect.signature(st.select).parameters.items()
      if p.default is None),
    *(("deployment_queries", "5"), ("seed", "5"), ("batch_size", "5"), ("concurrency", "5")),
    *(("in_flight", "5"), ("hour_usd", "5")),
    *(("repeats", "5"), ("budget_usd", "5"), ("judge", "x"), ("metric_version", "x")),
    ("reference_queries", "5"),
    *((name, kind) for name in ("name", "metric_version") for kind in ("empty", "a NUL")),
    *(("name", "x"), ("run_dir", "x"), ("constraints", "[]"), ("optional_modules", "[]")),
    ("time_limit", "5"),
    *(("continue_from", "[]"), ("continue_from", "None"), ("callbacks", "[]")),
}  # fmt: skip
ARGUMENTS = list(inspect.signature(st.select).parameters)
CASES = {name: [kind for kind in NONSENSE if (name, kind) not in TAKEN] for name in ARGUMENTS}


def test_all_arguments_are_tried():
    assert len(ARGUMENTS) == 37
    assert ARGUMENTS[0] == "app"
    assert all(CASES.values())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_nonsense_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in CASES[name]:
        refused_in_one_line(name, kind, tmp_path / f"run of {kind}")


def refused_in_one_line(name, kind, run_dir):
    app = App()
    arguments = {"app": app, **settings(run_dir=run_dir)} | {name: NONSENSE[kind]}
    if name == "min_quality":
        arguments["max_quality_loss"] = None
    with pytest.raises(InputError) as refused:
        st.select(arguments.pop("app"), **arguments)
    text = str(refused.value)
    assert name in text
    assert "\n" not in text
    assert app.calls == []
    assert (name, kind) == ("continue_from", "x") or not run_dir.exists()


@pytest.mark.slow
def test_what_is_none_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, kind in sorted(TAKEN - {("judge", "x")}):
        arguments = settings() | {name: NONSENSE[kind], "dry_run": True}
        if name == "max_quality_loss":
            arguments["min_quality"] = 0.9
        assert isinstance(st.select(App(), **arguments), Plan), (name, kind)


def test_a_selection_is_checked_when_it_is_made():
    with pytest.raises(InputError, match="models=5 must be a list of LLMs"):
        st.Selection(App(), **settings(models=5))


@pytest.mark.slow
def test_a_selection_plans_and_runs(tmp_path):
    app = App()
    selection = st.Selection(app, **settings(run_dir=tmp_path))
    assert str(selection.plan()) == str(st.select(app, **settings(dry_run=True)))
    assert app.calls == []
    assert "3 pilots cost 0.06 USD" in str(selection.plan(pilot=True))
    result = selection.run()
    again = st.select(app, **settings(run_dir=tmp_path))
    assert list(again.history) == list(result.history)
    assert app.usd() == pytest.approx(result.bill.total_usd)
    with pytest.raises(AttributeError):
        selection.seed = 1


@pytest.mark.parametrize("allowed", [None, [{"plan": "pro", "solve": "pro"}]])
def test_where_there_is_nothing_to_choose_nothing_is_paid(allowed, tmp_path):
    app, llms = App(), ["pro"] if allowed is None else ["mini", "pro"]
    given = settings(run_dir=tmp_path / "run", models={"plan": llms, "solve": llms})
    with pytest.raises(InputError, match="only configuration: there is nothing to choose"):
        st.select(app, **given, allowed=allowed)
    assert app.calls == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [None, partial(st.make_scope, base="mini")])
def test_where_tensors_are_made_elsewhere_by_default_nothing_is_paid(optimizer, tmp_path):
    app, given = App(), settings(run_dir=tmp_path / "run", optimizer=optimizer)
    with torch.device("meta"), pytest.raises(InputError, match="set_default_device is meta"):
        st.select(app, **given)
    assert app.calls == []
    assert not (tmp_path / "run").exists()
    with torch.device("cpu:0"):
        assert st.select(app, **given).bill.total_usd == pytest.approx(app.usd())


def test_who_takes_earlier_answers_is_told(tmp_path):
    """make_scope_front takes no `known=`, so nobody is sent to give it one."""
    more = {"optimizer": make_scope_front, "continue_from": tmp_path, "run_dir": tmp_path / "new"}
    with pytest.raises(InputError, match=r"give make_scope or make_scope_joint known=known_from"):
        st.select(App(), **settings(**more))
    for make in (make_scope, make_scope_joint):
        assert make(synthetic_task().problem, base="nano", seed=0, known=[]).known is not None
