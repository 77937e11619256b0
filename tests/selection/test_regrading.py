"""What grading kept outputs anew costs is booked, and each output belongs to its own answer."""

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError


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


def test_a_dry_run_grades_nothing(tmp_path):
    select(App(), run_dir=tmp_path / "june")
    judge, judged = judging(1.0)
    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july"}
    plan = select(App(), judged, metric_version="2", dry_run=True, **how)
    assert plan.num_known > 0
    assert judge.calls == 0
    assert not (tmp_path / "july").exists()


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
