"""theta_0 answers a sample of the queries: what is paid, what is still proven, what is told."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.bounds.betting import upper_average, upper_expectation
from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError
from scope_torch.runs.finished import load_runs
from scope_torch.runs.recorded import read_run

Q = 150
PRO = ("pro", "pro")


def arguments(**changes):
    dataset = [(f"query {i}", f"QUERY {i}") for i in range(Q)]
    return settings(metric=exactly, dataset=dataset, budget_usd=20.0) | changes


def least(**changes):
    return arguments(max_quality_loss=None, min_quality=0.9, **changes)


def of_reference(app):
    return [text for llms, text in app.calls if llms == PRO]


@pytest.mark.slow
def test_a_least_quality_needs_ten_answers_of_the_reference():
    app, whole = App(), App()
    result = st.select(app, **least())
    expected = st.select(whole, **least(reference_queries=Q))
    assert len(result.reference) == result.problem.reference_queries == 10
    assert len(of_reference(app)) == 10 + 1  # the preflight asks another query
    assert len(of_reference(whole)) == Q
    assert result.choice == expected.choice == {"plan": "mini", "solve": "mini"}
    assert result.certified
    assert len(set(app.calls)) == len(app.calls)  # nothing is asked twice
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    assert expected.bill.total_usd == pytest.approx(whole.usd(), rel=1e-12)
    assert result.bill.total_usd < expected.bill.total_usd / 5


@pytest.mark.slow
def test_the_sample_is_that_of_the_seed_and_is_asked_in_order():
    samples = [[o.query for o in st.select(App(), **least(seed=s)).reference] for s in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    for sample in samples:
        assert sample == sorted(set(sample))
        assert len(sample) == 10


@pytest.mark.slow
def test_second_answers_are_those_of_the_sample():
    app = App()
    result = st.select(app, **least(repeats=30))
    assert {o.query for o in result.reference_again} == {o.query for o in result.reference}
    assert result.varies.asked == 10
    assert len(of_reference(app)) == 10 + 10 + 1
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_a_loss_is_proven_by_a_sample():
    app = App()
    result = st.select(app, **arguments(reference_queries=40))
    problem = result.problem
    assert len(result.reference) == problem.reference_queries == 40
    assert problem.epsilon == 0.1
    most = upper_average([1.0] * 40, Q, 0.025)
    assert problem.s_0 == 0.9 * most == 0.9  # all were right, so it may always be
    assert problem.most_reference_quality == pytest.approx(most)
    assert result.report["delta"] == 0.025
    assert result.certified
    assert "certified with 97.5% confidence on these 150 queries, all answered" in result.why
    assert "; at least 0.9, at most 10% below the reference, which is at most 1 by 40" in result.why
    assert result.summary()["reference_queries"] == 40
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    row, evidence = result.pareto().by_loss[0], result.evidence.quality(problem.theta_ref)
    assert (row.basis, row.quality) == ("reference", 1.0)
    assert row.quality_interval == pytest.approx((evidence.lower, evidence.upper))
    assert row.quality_interval == pytest.approx((40 / Q, 1.0))
    assert row.cost_interval[0] < row.cost_usd < row.cost_interval[1]


@pytest.mark.slow
def test_a_loss_is_proven_where_answers_vary(tmp_path):
    """The sample then bounds what is expected of the reference; also when the run goes on."""
    calls = Counter()

    def app(models, text):  # the reference is right four times of five, another time each query
        key = (*models.values(), text)
        calls[key] += 1
        is_right = models["plan"] != "pro" or (int(text.split()[1]) + calls[key]) % 5 > 0
        return (text.upper() if is_right else text), App.cost(models)

    how = {"reference_queries": 140, "repeats": 20, "run_dir": tmp_path}
    result = st.select(app, **arguments(**how))
    assert result.varies.changed > 0
    first = [one.quality for one in result.reference]
    most = upper_expectation(first, 0.025)
    assert most > upper_average(first, Q, 0.025)
    assert result.problem.most_reference_quality == pytest.approx(most)
    assert result.problem.s_0 == pytest.approx(0.9 * most)
    assert st.select(app, **arguments(**how)).problem == result.problem
    assert result.report["delta"] == 0.025


@pytest.mark.slow
def test_the_threshold_counts_on_a_better_reference_than_its_sample():
    def app(models, text):  # the reference is right on two of three queries
        is_right = int(text.split()[1]) % 3 > 0 and models["plan"] != "nano"
        return (text.upper() if is_right else text), App.cost(models)

    whole = st.select(app, **arguments())
    result = st.select(app, **arguments(reference_queries=30))
    assert whole.problem.s_0 == pytest.approx(0.9 * 2 / 3)
    assert 2 / 3 < result.problem.s_0 < 0.9
    assert result.problem.s_0 == pytest.approx(0.9 * result.problem.most_reference_quality)
    assert whole.report["delta"] == 0.05
    assert result.choice == {"plan": "pro", "solve": "pro"}  # no other is certainly as good
    assert "but" not in str(result)


@pytest.mark.slow
def test_files_that_began_with_all_queries_go_on_with_all(tmp_path):
    """So do those of versions that knew nothing else; the reference is not paid again."""
    whole, first, second = App(), App(), App()
    expected = st.select(whole, **least(run_dir=tmp_path / "whole", reference_queries=Q))

    def breaks(models, text):
        if len(first.calls) == 20:
            raise KeyboardInterrupt
        return first(models, text)

    with pytest.raises(KeyboardInterrupt):
        st.select(breaks, **least(run_dir=tmp_path / "run", reference_queries=Q))
    found = st.select(second, **least(run_dir=tmp_path / "run"))
    assert first.calls + second.calls == whole.calls
    assert found.problem.reference_queries is None
    assert found.summary()["result_hash"] == expected.summary()["result_hash"]
    again = App()
    assert st.select(again, **least(run_dir=tmp_path / "run")).choice == expected.choice
    assert again.calls == []


@pytest.mark.parametrize("stop_after", [1, 12, 60])
@pytest.mark.slow
def test_a_sample_that_breaks_goes_on(stop_after, tmp_path):
    whole, first, second = App(), App(), App()
    expected = st.select(whole, **least(run_dir=tmp_path / "whole"))

    def breaks(models, text):
        if len(first.calls) == stop_after:
            raise KeyboardInterrupt
        return first(models, text)

    with pytest.raises(KeyboardInterrupt):
        st.select(breaks, **least(run_dir=tmp_path / "run"))
    found = st.select(second, **least(run_dir=tmp_path / "run"))
    assert first.calls + second.calls == whole.calls
    assert found.summary()["result_hash"] == expected.summary()["result_hash"]


@pytest.mark.slow
def test_another_number_is_told(tmp_path):
    st.select(App(), **arguments(run_dir=tmp_path, reference_queries=40))
    with pytest.raises(InputError, match=r"reference_queries was 40, now 50 \(pass reference_"):
        st.select(App(), **arguments(run_dir=tmp_path, reference_queries=50))


@pytest.mark.slow
def test_pilots_are_paid_once(tmp_path):
    app = App()
    st.select(app, **least(run_dir=tmp_path, dry_run="pilot"))
    result = st.select(app, **least(run_dir=tmp_path))
    assert len(set(app.calls)) == len(app.calls)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_an_older_run_that_knows_all_is_used(tmp_path):
    st.select(App(), **least(run_dir=tmp_path / "june", reference_queries=Q))
    app = App()
    how = {"run_dir": tmp_path / "july", "continue_from": tmp_path / "june"}
    result = st.select(app, **least(**how))
    assert of_reference(app) == []
    assert result.problem.reference_queries is None
    assert len(result.problem.reference_answers) == Q
    st.select(app, **least(**how))
    assert of_reference(app) == []


@pytest.mark.slow
def test_a_larger_sample_goes_on_from_a_smaller_one(tmp_path):
    st.select(App(), **arguments(run_dir=tmp_path / "june", reference_queries=30))
    app = App()
    how = {"run_dir": tmp_path / "july", "continue_from": tmp_path / "june"}
    result = st.select(app, **arguments(reference_queries=50, **how))
    assert len(result.reference) == 50
    assert len(of_reference(app)) == 20


def test_the_plan_tells_it():
    text = str(st.select(App(), **least(dry_run=True)))
    assert "reference plan=pro, solve=pro: 10 runs for 10 of the 150 queries; stopped" in text
    assert "150 runs; stopped" in str(st.select(App(), **arguments(dry_run=True)))


@pytest.mark.slow
def test_what_is_told_of_a_sample(tmp_path, capsys):
    result = st.select(App(), **least(run_dir=tmp_path, progress=True))
    assert (
        "reference: quality 1 (10 of 150 queries; on queries like these" in capsys.readouterr()[1]
    )
    text = str(result)
    assert "about 96% cheaper (0.8 instead of about 20 USD per 1,000 queries)" in text
    assert "; reference 1.00 on 10 of 150 queries" in text
    assert result.reference_quality.lower < 0.9 < result.reference_quality.upper
    assert result.evidence.quality((2, 2))[:3] == (1.0, 10 / Q, 1.0)
    assert result.pareto().by_loss == ()
    assert json.loads((tmp_path / "result.json").read_text())["reference_queries"] == 10
    assert result.save(tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_seeds_are_one_group_and_a_run_is_read_again(tmp_path):
    for seed in (0, 1):
        how = {"run_dir": tmp_path / "scope_joint" / f"seed={seed}", "reference_queries": 40}
        result = st.select(App(), **arguments(seed=seed, **how))
        assert read_run(how["run_dir"]).problem == result.problem
    groups, _ = load_runs(tmp_path)
    assert [len(runs) for runs in groups.values()] == [2]


@pytest.mark.slow
def test_savings_are_as_sure_as_the_sample():
    def app(models, text):  # its price depends on the query
        output, usd = App.answer(models, text), App.cost(models)
        return output, usd * (1 + int(text.split()[1]) % 5)

    result = st.select(app, **least())
    saved = result.savings
    true = 1 - result.cost_usd.value / 0.06
    assert saved.lower < true < saved.upper
    assert saved.lower < saved.value < saved.upper
    assert result.certified
    varies = replace(result, varies=Repeats((1.0, 0.0), (1.0, 1.0))).savings
    assert varies.value == saved.value
    assert varies.lower < saved.lower
    assert varies.upper > saved.upper


@pytest.mark.slow
def test_only_queries_that_both_answered_are_compared():
    def app(models, text):  # the others are right where the reference is not
        is_right = (int(text.split()[1]) % 2 == 0) == (tuple(models.values()) == PRO)
        return (text.upper() if is_right else text), App.cost(models)

    result = st.select(app, **arguments(max_quality_loss=None, min_quality=0.4))
    asked = {o.query for o in result.reference}
    found = set(result.disagreements()["query"].to_list())
    assert found
    assert found <= asked


@pytest.mark.slow
def test_a_reference_that_is_kept_is_in_doubt():
    def app(models, text):
        is_right = tuple(models.values()) == PRO
        return (text.upper() if is_right else text), App.cost(models)

    result = st.select(app, **least())
    assert result.choice == {"plan": "pro", "solve": "pro"}
    assert not result.certified
    assert "whether the reference keeps quality >= 0.9 is not known: it has answered 10 of 150" in (
        " ".join(str(result).split())
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.8])  # of the queries, by the reference
@pytest.mark.parametrize("is_known", [False, True])
def test_a_reference_that_is_not_good_enough_ends_no_search_either(tmp_path, share, is_known):
    """Also if all of its answers are known, as to a search that continues with another bound."""
    app = App()

    def unlike(models, text):
        output, usd = app(models, text)
        is_poor = tuple(models.values()) == PRO and int(text.split()[1]) >= share * Q
        return ("?" if is_poor else output), usd

    how = {"run_dir": tmp_path / "july", "reference_queries": Q}
    if is_known:
        before = least(run_dir=tmp_path / "june", reference_queries=Q) | {"min_quality": 0.01}
        st.select(unlike, **before)
        how |= {"continue_from": tmp_path / "june", "reference_queries": None}
    result = st.select(unlike, **least(**how))
    assert (result.choice, result.certified) == ({"plan": "mini", "solve": "mini"}, True)
    assert result.problem.reference_quality == share
    assert len(set(app.calls)) == len(app.calls)
    kept = st.select(unlike, **least(**how | {"run_dir": None}) | {"models": ["nano", "pro"]})
    assert (kept.choice, kept.certified) == ({"plan": "pro", "solve": "pro"}, False)
    told = " ".join(str(kept).split())
    assert "the reference itself breaks quality >= 0.9 (0" in told
    assert " on 150 of 150 queries)" in told


@pytest.mark.slow
def test_a_reference_that_is_never_right_ends_no_search_that_does_not_need_it():
    def app(models, text):
        is_right = tuple(models.values()) != PRO
        return (text.upper() if is_right else text), App.cost(models)

    result = st.select(app, **least())
    assert result.problem.reference_quality == 0
    assert result.certified
    assert str(result)
    with pytest.raises(InputError, match="right on none of 20 queries"):
        st.select(app, **arguments(reference_queries=20))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference_queries": 0}, "reference_queries=0 must be a whole number, and at least 1"),
        ({"reference_queries": -1}, "reference_queries=-1"),
        ({"reference_queries": 3.5}, r"reference_queries=3\.5"),
        ({"reference_queries": Q + 1}, "reference_queries=151: only 150 queries are searched on"),
        ({"reference_queries": "all"}, "reference_queries='all'"),
        ({"reference_queries": True}, "reference_queries=True"),
        (
            {"reference_queries": 20, "constraints": ["latency_s <= 1.2 * reference cap 9"]},
            r"reference_queries=20, but latency_s <= 1\.2 \* reference cap 9 compares",
        ),
        (
            {
                "reference_queries": 20,
                "max_quality_loss": None,
                "constraints": ["quality >= 0.9 * reference"],
            },
            "max_quality_loss",
        ),
        (
            {
                "reference_queries": 20,
                "max_quality_loss": None,
                "objective": "quality",
                "constraints": ["cost_usd <= 0.001 cap 0.03"],
            },
            "objective='quality' compares",
        ),
        (
            {
                "reference_queries": 20,
                "optimizer": lambda problem: st.make_scope(
                    problem, base="nano", certificate="population"
                ),
            },
            "reference_answers=None",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_call(changes, message):
    app = App()
    with pytest.raises(InputError, match=message):
        st.select(app, **arguments(**changes))
    assert app.calls == []


@pytest.mark.slow
def test_a_search_of_ones_own_gets_all_answers_unless_told_otherwise():
    def make(problem):
        return st.make_scope(problem, base="nano")

    app = App()
    result = st.select(app, **least(optimizer=make))
    assert len(result.problem.reference_answers) == Q
    few = st.select(App(), **least(optimizer=make, reference_queries=12))
    assert few.problem.reference_answers is None
    assert len(few.reference) == 12
