"""What grading kept outputs anew costs is booked, and each output belongs to its own answer."""

import os
import signal

import pytest
from reliability.children import in_child
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.runs.journal import read_journal


def select(app, metric=exactly, **changes):
    return st.select(app, **settings(metric=metric, **changes))


class Judge:
    """A metric that says what it costs."""

    def __init__(self, usd):
        self.usd, self.calls = usd, 0

    def __call__(self, expected, output):
        self.calls += 1
        return exactly(expected, output), self.usd


def judging(usd):
    judge = Judge(usd)

    def judged(expected, output):
        return judge(expected, output)

    return judge, judged


@pytest.mark.slow
@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_judge_that_grades_anew_is_paid(tmp_path, holdout):
    before, app = App(), App()
    select(before, run_dir=tmp_path / "june", holdout=holdout)
    judge, judged = judging(2.0**-10)
    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july", "holdout": holdout}
    july = select(app, judged, metric_version="2", **how)
    (source,) = july.report["known"]["sources"]
    assert source["regraded"] == source["used"] > 0
    assert source["regraded_usd"] == source["regraded"] * judge.usd
    assert {one.judge_usd for one in july.known} == {judge.usd}
    assert july.bill.judge_usd == pytest.approx(judge.calls * judge.usd, rel=1e-12)
    assert july.bill.total_usd == pytest.approx(app.usd() + judge.calls * judge.usd, rel=1e-12)
    if holdout:
        assert july.held_out.regraded_usd > 0
    paid, judge.calls, app.calls = july.bill, 0, []
    again = select(app, judged, metric_version="2", **how)
    assert (judge.calls, app.calls) == (0, [])
    assert again.bill.amounts == paid.amounts


@pytest.mark.slow
def test_grading_anew_ends_with_the_budget(tmp_path):
    select(App(), run_dir=tmp_path / "june")
    budget = settings()["budget_usd"]
    judge, judged = judging(budget / 3)
    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july"}
    app = App()
    with pytest.raises(InputError, match=r"grading the outputs of older runs anew cost .*raise it"):
        select(app, judged, metric_version="2", **how)
    assert judge.calls <= 4  # up to the one that crosses the budget
    assert app.calls == []


@pytest.mark.slow
def test_a_dry_run_grades_nothing(tmp_path):
    select(App(), run_dir=tmp_path / "june")
    judge, judged = judging(1.0)
    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july"}
    plan = select(App(), judged, metric_version="2", dry_run=True, **how)
    assert plan.num_known > 0
    assert judge.calls == 0
    assert not (tmp_path / "july").exists()


@pytest.mark.slow
def test_second_answers_leave_the_outputs_of_the_first(tmp_path):
    """The reference answers some queries twice; another metric grades what it said first."""

    class Varies(App):
        def __call__(self, models, text):
            output, usd = super().__call__(models, text)
            return output if self.calls.count(self.calls[-1]) == 1 else "something else", usd

    june = select(Varies(), run_dir=tmp_path / "june", repeats=10)
    assert len(june.reference_again) == june.varies.changed == 10
    theta = june.problem.theta_ref
    assert {june.answers[theta, query] != "something else" for query in range(40)} == {True}

    def lenient(expected, output):
        return float(output != "something else")

    app = Varies()
    july = select(
        app, lenient, run_dir=tmp_path / "july", continue_from=tmp_path / "june", repeats=10
    )
    assert july.problem.reference_quality == 1.0
    # Second answers that another metric has graded say nothing of this one.
    assert len(july.reference_again) == 10
    assert july.varies.second == (1.0,) * 10


class Written:
    """A judge whose calls are on the disk; it dies, or raises, when it has been paid so often."""

    def __init__(self, path, end=None, raised=None):
        self.path, self.end, self.raised = path, end, raised

    def __call__(self, expected, output):
        with open(self.path, "a") as file:
            file.write(f"{expected} {output}\n")
            file.flush()
            os.fsync(file.fileno())
        if len(self.path.read_text().splitlines()) == self.end:
            if self.raised is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise self.raised
        return exactly(expected, output), 2.0**-10


def regrade(folder, end=None, raised=None, holdout=0.2):
    judge = Written(folder / "judged", end, raised)
    how = {"continue_from": folder / "june", "run_dir": folder / "july", "holdout": holdout}
    return select(App(), judge, metric_version="2", **how)


@pytest.mark.parametrize("of_held_out", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_judge_that_dies_midway_is_asked_only_for_the_rest(tmp_path, of_held_out):
    whole = tmp_path / "whole"
    for folder in (whole, tmp_path):
        select(App(), run_dir=folder / "june", holdout=0.2)
    expected = regrade(whole)
    number = len((whole / "judged").read_text().splitlines())
    ends = (number - 3,) if of_held_out else (1, 9, 30)
    for end in ends:
        assert in_child(regrade, tmp_path, end) == -signal.SIGKILL
    assert (tmp_path / "july" / "regraded_held_out").exists() == of_held_out
    found = regrade(tmp_path)
    asked = len((tmp_path / "judged").read_text().splitlines())
    assert number <= asked <= number + len(ends)  # again only for what was being asked
    assert list(found.history) == list(expected.history)
    assert list(found.known) == list(expected.known)
    assert found.bill == expected.bill


@pytest.mark.slow
def test_what_a_judge_was_paid_when_it_raised_is_in_the_bill(tmp_path):
    select(App(), run_dir=tmp_path / "june")
    raised = TimeoutError("no reply")
    raised.cost_usd = 0.25
    with pytest.raises(TimeoutError):
        regrade(tmp_path, 9, raised, holdout=0.0)
    result = regrade(tmp_path, holdout=0.0)
    bill = result.bill
    assert bill.lost_usd == 0.25
    asked = len((tmp_path / "judged").read_text().splitlines())
    assert bill.judge_usd == pytest.approx((asked - 1) * 2.0**-10, rel=1e-12)
    assert result.budget_usd <= settings()["budget_usd"] - 0.25


@pytest.mark.slow
def test_a_judge_that_grades_nothing_is_in_the_bill(tmp_path):
    """Also what was left out is told, and what was paid for it, if no old answer is known."""
    select(App(), run_dir=tmp_path / "june")
    app, raised = App(), []

    def judged(expected, output):
        if not app.calls:
            raised.append(expected)
            error = TimeoutError("no reply")
            error.cost_usd = 2.0**-10
            raise error
        return exactly(expected, output)

    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july", "on_error": "zero"}
    july = select(app, judged, metric_version="2", **how)
    known = july.summary()["known"]
    assert (list(july.known), known["observations"]) == ([], 0)
    assert known["sources"][0]["left_out"]["no_output"] == len(raised) > 0
    assert july.bill.judge_usd == pytest.approx(len(raised) * 2.0**-10, rel=1e-12)
    assert july.bill.total_usd == pytest.approx(app.usd() + july.bill.judge_usd, rel=1e-12)


PRO, MINI = {"plan": "pro", "solve": "pro"}, {"plan": "mini", "solve": "mini"}
USD = 2.0**-6


class Raising:
    """A judge that raises once it was paid so often, and always on some outputs; see `paid_usd`."""

    def __init__(self, end=None, never=()):
        self.calls, self.end, self.never = 0, end, never

    @property
    def paid_usd(self):
        return USD * self.calls

    def __call__(self, expected, output):
        self.calls += 1
        if self.calls == self.end or expected in self.never:
            error = ValueError("neither yes nor no")
            error.cost_usd = USD
            raise error
        return exactly(expected, output), USD


def search_before(kind, folder):
    """What a search knows of the reference counts in a `recheck` of what it has not tried."""
    select(App(), run_dir=folder / "june", models=["nano", *["mini"] * (kind != "recheck"), "pro"])


def with_judge(kind, app, judge, folder, version="1", **changes):
    """`select`, `check` or `recheck` with older answers; returns what was paid by its result."""
    how = {"metric": judge, "metric_version": version, "continue_from": folder / "june"}
    how |= {"run_dir": folder / kind} | changes
    if kind == "select":
        return select(app, **how).bill.total_usd
    given = settings(metric=judge)
    how |= {name: given[name] for name in ("dataset", "max_quality_loss", "name")}
    how = {"budget_usd": 9.0, "reference": PRO} | how
    if kind == "check":
        return st.check(app, MINI, certificate="sequence", **how).spent_usd
    return st.recheck(app, MINI, draws=10, **how).total_usd


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["select", "check", "recheck"])
def test_a_judge_that_raises_does_not_spend_without_end(tmp_path, kind):
    search_before(kind, tmp_path)
    judge, app, budget_usd, raised = Raising(never=("QUERY 3",)), App(), 12 * USD, 0
    for raised in range(20):  # noqa: B007 - the last one is looked at
        try:
            with_judge(kind, app, judge, tmp_path, budget_usd=budget_usd)
        except InputError:
            break
        except ValueError:
            continue
        break
    assert 3 < raised < 19
    assert budget_usd <= judge.paid_usd <= budget_usd + USD
    assert app.calls == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"), [("select", "1"), ("check", "1"), ("check", "2"), ("recheck", "2")]
)
def test_grades_of_a_judge_that_raised_are_in_the_bill(tmp_path, kind, version):
    """Also if it is mended, and all outputs are graded anew; what that costs is on disk too."""
    search_before(kind, tmp_path)
    app, raising, dying, mended = App(), Raising(20), Raising(20), Raising()
    with pytest.raises(ValueError, match="neither"):
        with_judge(kind, app, raising, tmp_path)
    with pytest.raises(ValueError, match="neither"):
        with_judge(kind, app, dying, tmp_path, version)
    told = with_judge(kind, app, mended, tmp_path, version)
    number = len(read_journal(tmp_path / kind / "known.jsonl"))
    graded = read_journal(tmp_path / kind / "regraded/journal.jsonl")
    assert len(graded) == number + (19 if version == "2" else 0)  # each of these is paid once
    judged = sum(judge.paid_usd for judge in (raising, dying, mended))
    assert told == pytest.approx(app.usd() + judged, rel=1e-12)
