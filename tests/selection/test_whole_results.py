"""A selection is over, for trackers, files and pages, when all that it measures is there."""

import json
import random
from dataclasses import replace
from datetime import datetime

import pytest

import scope_torch as st
from scope_torch.cli.watch import watch
from scope_torch.errors import InputError
from scope_torch.llm.prices import LLMInfo
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.recorded import read_run
from scope_torch.traces.reference import save_reference
from scope_torch.traces.summary import LoggedQuery, Summary, TracedModule
from scope_torch.watch.page import page
from scope_torch.watch.reading import result_of_run

PRICE = {"m1": 1e-4, "m2": 5e-4, "big": 1e-2}
SKILL = {"m1": 0.8, "m2": 0.97, "big": 1.0}
NUM, HELD_OUT = 40, 8


def app(models, text):
    luck = random.Random(f"{sorted(models.items())} {text}")
    is_right = all(luck.random() < SKILL[llm] for llm in models.values())
    usd = sum(PRICE[llm] for llm in models.values()) * luck.uniform(0.5, 1.5)
    return text.upper() if is_right else "?", usd


def selected(folder, app=app, **changes):
    names = {"models": {module: list(PRICE) for module in "ab"}, "reference": "big"}
    return st.select(
        app,
        dataset=[(f"q{i}", f"Q{i}") for i in range(NUM)],
        metric=st.metrics.exact_match,
        **names | {"max_quality_loss": 0.1, "budget_usd": 4, "holdout": HELD_OUT / NUM} | changes,
        run_dir=folder,
    )


class Last(Callback):
    """The result as a tracker gets it."""

    def __init__(self):
        self.result = self.error = None

    def end(self, result):
        self.result = result

    def close(self, error):
        self.error = error


def same(found, expected):
    assert str(found.bill) == str(replace(expected.bill, prices=None))
    assert str(found) == str(expected)
    assert found.left_out == expected.left_out
    if expected.reference is not None:  # logged answers are in no file of the run
        both = [one.disagreements()["query"].to_list() for one in (found, expected)]
        assert both[0] == both[1]
    assert found.savings == expected.savings


@pytest.mark.slow
def test_trackers_get_the_whole_result(tmp_path):
    tracker = Last()
    result = selected(tmp_path, callbacks=[tracker])
    assert result.held_out.num_queries == HELD_OUT
    assert (tracker.result, tracker.error) == (result, None)
    same(result_of_run(read_run(tmp_path)), result)


@pytest.mark.slow
def test_an_error_in_the_end_is_told_to_trackers(tmp_path):
    tracker = Last()

    def failing(models, text):
        if (tmp_path / "held_out").exists():
            raise OSError("down")
        return app(models, text)

    with pytest.raises(OSError, match="down"):
        selected(tmp_path, failing, callbacks=[tracker])
    assert tracker.result is None
    assert isinstance(tracker.error, OSError)


@pytest.mark.slow
def test_a_search_is_not_over_while_held_out_queries_are_asked(tmp_path):
    """Its page says so, with what they have cost; the same call goes on."""
    stops, asked = [True], []

    def stopped(models, text):
        if (tmp_path / "held_out").exists():
            asked.append(models)
            assert not (tmp_path / "result.json").exists()
            assert read_run(tmp_path).status == "running"
            if stops and len(asked) > 5:
                raise KeyboardInterrupt
        return app(models, text)

    with pytest.raises(KeyboardInterrupt):
        selected(tmp_path, stopped)
    run = read_run(tmp_path)
    assert run.status == "interrupted"
    bill = result_of_run(run).bill
    assert bill.in_flight_usd == pytest.approx(5 * 2 * PRICE["big"], rel=0.5)
    assert "interrupted" in page(run, datetime.now())
    stops.clear()
    result = selected(tmp_path, stopped)
    assert result.bill.held_out_usd > bill.in_flight_usd
    same(result_of_run(read_run(tmp_path)), result)


@pytest.mark.slow
def test_a_logged_reference_leaves_nothing_out_of_the_directory(tmp_path):
    """Module c never asks an LLM: perhaps a cache answers for it."""
    logged = [LoggedQuery(f"q{i}", 1, 0.02 + 1e-4 * i, float(i % 9 > 0), 2.0) for i in range(NUM)]
    summary = Summary(dict.fromkeys("abc", TracedModule("big")), logged)
    reference = st.load_reference(save_reference(tmp_path / "reference.json", summary, {}))

    def three(models, text):
        output, _ = app({m: models[m] for m in "ab"}, text)
        return {"output": output, "tokens": dict.fromkeys("ab", (1000, 100))}

    prices = st.PriceList({llm: LLMInfo(llm, 1e3 * PRICE[llm], 1e3 * PRICE[llm]) for llm in PRICE})
    result = selected(
        tmp_path / "run",
        three,
        models={module: list(PRICE) for module in "abc"},
        reference=reference,
        prices=prices,
        max_quality_loss=0.3,
    )
    assert result.held_out is not None
    assert result.left_out
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "reference_usd" not in told
    assert told["preflight_usd"] == result.bill.probe_usd > 0
    same(result_of_run(read_run(tmp_path / "run")), result)


@pytest.mark.slow
def test_a_continued_search_knows_where_reference_and_choice_differ(tmp_path):
    selected(tmp_path / "june")
    result = selected(tmp_path / "july", continue_from=tmp_path / "june")
    assert result.bill.num_calls == 0
    assert result.disagreements().height > 0
    same(result_of_run(read_run(tmp_path / "july")), result)


@pytest.mark.slow
def test_a_sampled_reference_that_is_known(tmp_path):
    how = {"max_quality_loss": None, "min_quality": 0.85}
    selected(tmp_path / "june", **how)
    result = selected(tmp_path / "july", **how, continue_from=tmp_path / "june")
    assert result.savings.lower < result.savings.value < result.savings.upper
    same(result_of_run(read_run(tmp_path / "july")), result)


@pytest.mark.slow
def test_a_part_of_a_run_is_no_run(tmp_path):
    selected(tmp_path / "run", holdout=0)
    for part in ("reference", "preflight"):
        with pytest.raises(InputError, match="not the directory of a search: it is a part of one"):
            watch(tmp_path / "run" / part, None, None)
    with pytest.raises(InputError, match=rf"one of the 1 runs below it, such as {tmp_path}/run$"):
        watch(tmp_path, None, None)
    (tmp_path / "run" / "settings.json").unlink()
    with pytest.raises(InputError, match="has not begun to search: it measures the reference"):
        watch(tmp_path / "run", None, None)
