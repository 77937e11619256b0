"""A metric that asks an LLM through the endpoint: a line of its own in budget and bill."""

import asyncio
import contextlib
import json
import re

import pytest
from evaluators.far_apps import answers as app
from evaluators.far_apps import judges as judge
from llm.fake_endpoint import only_loopback  # noqa: F401
from serve.fake_upstream import LLMS, FakeUpstream, Say, prices

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.runs.journal import lost_in
from scope_torch.runs.recorded import read_run
from scope_torch.serve.endpoint import Endpoint
from scope_torch.watch.reading import result_of_run

JUDGE = "medium"  # no candidate
QUESTIONS = [(f"What is {i} + {i}?", str(2 * i)) for i in range(30)]
_KNOWS = {"tiny": lambda i: i % 2 == 0, "small": lambda i: i % 15 > 0, "large": lambda _: True}


def answer(request: dict) -> Say:
    """A candidate answers; the judge compares the answer with what is expected."""
    prompt = request["messages"][-1]["content"]
    if prompt.startswith("Grade "):
        _, expected, found = prompt.split(" ", 2)
        return Say("1" if expected == found else "0")
    number = int(re.search(r"is (\d+) ", prompt)[1])
    llm = request["model"].removeprefix("vendor/").removesuffix("-1")
    return Say(str(2 * number) if _KNOWS[llm](number) else "no idea")


@pytest.fixture
def upstream():
    with FakeUpstream(answer) as upstream:
        yield upstream


def selected(upstream, metric=judge, app=app, **changes):
    settings = {
        "models": {"answer": ["tiny", "small", "large"]},
        "reference": "large",
        "dataset": QUESTIONS,
        "max_quality_loss": 0.1,
        "budget_usd": 0.05,
        "endpoint": Endpoint(upstream.url, prices=prices()),
        "judge": JUDGE,
        "name": "judged",
        "repeats": 0,
    }
    return st.select(app, metric=metric, **{**settings, **changes})


def paid(upstream) -> float:
    return sum(upstream.usd_by_tag().values())


def of_judge(upstream) -> float:
    llm = LLMS[JUDGE]
    of_judge = [one for one in upstream.served if one.model == JUDGE]
    cached = llm.cached_input_usd_per_mtok
    return 1e-6 * sum(
        (one.prompt - one.cached) * llm.input_usd_per_mtok
        + one.cached * cached
        + one.completion * llm.output_usd_per_mtok
        for one in of_judge
    )


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_what_the_judge_costs_is_paid_and_belongs_to_no_configuration(
    upstream, tmp_path, concurrency
):
    result = selected(upstream, run_dir=tmp_path, concurrency=concurrency)
    assert result.choice == {"answer": "small"}
    bill = result.bill
    assert bill.total_usd == pytest.approx(paid(upstream), abs=1e-12)
    assert result.surplus_usd == 0.0
    assert bill.judge_usd == pytest.approx(of_judge(upstream), abs=1e-12)
    assert bill.judge_usd > 0
    assert re.search(r"^judge +0\.\d+ USD$", str(bill), re.MULTILINE)
    assert JUDGE in str(bill)  # its price
    # c(theta_0) is what the reference's own calls cost.
    large = [one for one in upstream.served if one.model == "large"]
    usd = sum(10.0 * one.prompt + 40.0 * one.completion for one in large) / 1e6
    assert result.problem.reference_cost_usd == pytest.approx(usd / len(large))
    assert all(set(o.module_tokens) for o in result.reference)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["judge_usd"] == bill.judge_usd
    recorded = result_of_run(read_run(tmp_path)).bill
    assert recorded.judge_usd == pytest.approx(bill.judge_usd)
    assert recorded.total_usd == pytest.approx(bill.total_usd)


@pytest.mark.slow
def test_the_judge_is_inside_the_budget(upstream):
    free = selected(upstream)
    dear = paid(upstream)
    upstream.served.clear()
    budget = free.bill.reference_usd + of_reference(free) + 1e-4
    assert budget < dear
    result = selected(upstream, budget_usd=budget)
    last = max(o.paid_usd for o in result.history)
    assert result.stop_reason == "budget"
    assert paid(upstream) <= budget + last
    assert result.bill.total_usd == pytest.approx(paid(upstream), abs=1e-12)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_more_is_in_flight_than_the_budget_pays_for_with_its_grades(concurrency):
    """The reference has shown what a grade costs, here far more than the answer."""
    usd = {"nano": 0.0001, "mini": 0.0004, "pro": 0.01}
    result = st.select(
        lambda models, text: (text.upper(), sum(usd[llm] for llm in models.values())),
        models={"plan": list(usd), "solve": list(usd)},
        reference="pro",
        dataset=[(text, text.upper()) for text in "abcdefghijklmnopqrst"],
        metric=lambda expected, found: (float(expected == found), 1.0),
        max_quality_loss=0.1,
        budget_usd=24.5,
        repeats=0,
        concurrency=concurrency,
    )
    assert result.stop_reason == "budget"
    assert result.bill.total_usd <= 24.5 + 1.02


def of_reference(result) -> float:
    return sum(o.judge_usd for o in result.reference)


@pytest.mark.slow
def test_a_search_that_is_killed_again_and_again_has_the_same_bill(upstream, tmp_path):
    whole = selected(upstream, run_dir=tmp_path / "whole", concurrency=2)
    calls, most = 0, 0

    def breaks(expected, output):
        nonlocal calls
        calls += 1
        if calls > most:
            raise KeyboardInterrupt
        return judge(expected, output)

    how = {"run_dir": tmp_path / "parts", "concurrency": 2, "metric_version": "1"}
    while not (tmp_path / "parts" / "result.json").exists():
        calls, most = 0, most + 17
        with contextlib.suppress(KeyboardInterrupt):
            selected(upstream, breaks, **how)
    parts = selected(upstream, breaks, **how)
    assert list(parts.history) == list(whole.history)
    bill, before = parts.bill, whole.bill.total_usd
    assert bill.total_usd - bill.lost_usd == pytest.approx(before, abs=1e-12)
    assert bill.total_usd == pytest.approx(paid(upstream) - before, rel=1e-12)  # once each, or lost


@pytest.mark.slow
def test_a_judge_that_fails_costs_what_it_took(upstream, tmp_path):
    """It answers, and then the metric breaks: nine times of ten."""
    calls = 0

    def breaks(expected, output):
        nonlocal calls
        calls += 1
        grade = judge(expected, output)
        if calls % 10:
            raise TimeoutError("no grade")
        return grade

    result = selected(upstream, breaks, on_error="zero", run_dir=tmp_path)
    assert result.bill.total_usd == pytest.approx(paid(upstream), abs=1e-12)
    assert result.bill.judge_usd == pytest.approx(of_judge(upstream), abs=1e-12)
    assert sum(one.model == "large" for one in upstream.served) == len(result.reference)


@pytest.mark.slow
def test_starting_again_does_not_make_a_failing_judge_free(upstream, tmp_path):
    calls = 0

    def breaks(expected, output):
        nonlocal calls
        calls += 1
        grade = judge(expected, output)
        if calls % 10 == 0:
            raise TimeoutError("no grade")
        return grade

    while not (tmp_path / "result.json").exists():
        with contextlib.suppress(TimeoutError):
            result = selected(upstream, breaks, run_dir=tmp_path)
    assert result.bill.lost_usd > 0
    assert result.bill.total_usd == pytest.approx(paid(upstream), abs=1e-12)


def test_a_judge_that_nobody_has_named_ends_the_search_with_the_mend(upstream):
    """At the first grade, whatever on_error says: nothing of it is the fault of an LLM."""
    with pytest.raises(InputError, match=r"name the LLM that a metric asks: select\(judge="):
        selected(upstream, judge=None, on_error="zero")
    assert len(upstream.served) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"endpoint": None, "prices": LLMS}, "judge='medium' is the LLM that a metric= asks"),
        ({"metric": None}, "judge='medium' is the LLM"),
        ({"judge": "unheard-of"}, "unheard-of"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused_before_the_first_call(upstream, changes, words):
    with pytest.raises(InputError, match=words):
        selected(upstream, **changes)
    assert upstream.served == []


class Leaves:
    """The app; after it has asked for this many questions it ends the program."""

    def __init__(self, number, what):
        self.number, self.what = number, what

    def __call__(self, question):
        said = app(question)
        self.number -= 1
        if not self.number:
            raise self.what
        return said

    async def soon(self, question):
        return (await asyncio.gather(self.task(question)))[0]

    async def task(self, question):
        return self(question)


# In the preflight, the reference, the search.
@pytest.mark.parametrize(
    ("number", "is_async", "what"),
    [
        (2, True, KeyboardInterrupt),
        pytest.param(9, False, SystemExit, marks=pytest.mark.slow),
        pytest.param(60, False, KeyboardInterrupt, marks=pytest.mark.slow),
        (60, True, SystemExit),
    ],
)
def test_what_an_application_paid_before_it_was_stopped(upstream, tmp_path, number, is_async, what):
    leaves = Leaves(number, what())
    call = leaves.soon if is_async else leaves
    graded = {"metric": lambda expected, output: float(expected in output), "judge": None}
    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        selected(upstream, app=call, run_dir=tmp_path, **graded)
    assert sum(one.paid_usd for one in lost_in(tmp_path)) > 0
    result = selected(upstream, app=call, run_dir=tmp_path, **graded)
    assert result.bill.total_usd == pytest.approx(paid(upstream), rel=1e-12)
    assert result.bill.lost_usd > 0


@pytest.mark.slow
def test_what_a_judge_was_paid_before_it_was_stopped(upstream, tmp_path):
    number = 9

    def stopped(expected, output):
        nonlocal number
        grade, number = judge(expected, output), number - 1
        if not number:
            raise KeyboardInterrupt
        return grade

    with pytest.raises(KeyboardInterrupt):
        selected(upstream, metric=stopped, metric_version="1", run_dir=tmp_path)
    result = selected(upstream, metric=stopped, metric_version="1", run_dir=tmp_path)
    assert result.bill.total_usd == pytest.approx(paid(upstream), rel=1e-12)


@pytest.mark.slow
def test_another_judge_is_another_metric(upstream, tmp_path):
    result = selected(upstream, run_dir=tmp_path / "a")
    upstream.served.clear()
    with pytest.raises(InputError, match=r"the metric was judge='medium', judges .*continue_from="):
        selected(upstream, run_dir=tmp_path / "a", judge="small")
    assert upstream.served == []
    check(upstream, tmp_path, JUDGE)
    upstream.served.clear()
    with pytest.raises(InputError, match="the metric was judge='medium'") as refused:
        check(upstream, tmp_path, "small")
    assert "metric_version" not in str(refused.value)
    assert upstream.served == []
    other = selected(upstream, run_dir=tmp_path / "b", judge="small", continue_from=tmp_path / "a")
    (source,) = other.report["known"]["sources"]
    assert source["regraded"] == source["used"] > 0
    assert "large" not in {one.model for one in upstream.served}
    assert other.choice == result.choice


@pytest.mark.slow
def test_a_run_that_did_not_record_its_judge_goes_on(upstream, tmp_path):
    result = selected(upstream, run_dir=tmp_path)
    (tmp_path / "result.json").unlink()
    for path in [tmp_path / "begun.json", *tmp_path.rglob("settings.json")]:
        content = json.loads(path.read_text())
        del content["hash"]
        content["evaluator"] = content["evaluator"].replace(f"judge='{JUDGE}', ", "")
        path.write_text(json.dumps(content))
    upstream.served.clear()
    assert list(selected(upstream, run_dir=tmp_path).history) == list(result.history)
    assert upstream.served == []
    with pytest.raises(InputError, match="the metric was judge='medium'"):
        selected(upstream, run_dir=tmp_path, judge="small")


def check(upstream, folder, name):
    how = {"dataset": QUESTIONS, "metric": judge, "max_quality_loss": 0.1, "budget_usd": 0.05}
    how |= {"endpoint": Endpoint(upstream.url, prices=prices()), "name": "judged"}
    return st.check(
        app, {"answer": "small"}, reference="large", run_dir=folder / "check", judge=name, **how
    )
