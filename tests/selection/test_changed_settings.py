"""What a changed setting says: in the words of `select`, with LLMs and modules, and its mend."""

import pytest
from selection.test_select import App, settings

import scope_torch as st
from scope_torch.errors import InputError

DRAWN = "(holdout= and seed= decide which are searched)"
MEND = "Restore them, or choose another run_dir (on the command line: output_dir, or --run-dir)"
ALIKE = [(text, text.upper()) for text in ["one"] * 30]


def select(run_dir, **changes):
    return st.select(App(), **settings(run_dir=run_dir, **({"holdout": 0.1} | changes)))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    select(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"reference": {"plan": "mini", "solve": "pro"}},
            ["the reference was plan=pro, solve=pro, now plan=mini, solve=pro"],
        ),
        (
            {"models": {"plan": ["nano", "mini", "pro"], "solve": ["mini", "pro"]}},
            ["the LLMs of 'solve' were ['nano', 'mini', 'pro'], now ['mini', 'pro']"],
        ),
        (
            {"max_quality_loss": 0.2},
            ["max_quality_loss was 0.1, now 0.2 (pass max_quality_loss=0.1)"],
        ),
        ({"base": "mini"}, ["base was plan=nano, solve=nano, now plan=mini, solve=mini"]),
        ({"allowed": lambda llms: llms["plan"] != "nano"}, ["the rule allowed= is another one"]),
        (
            {"repeat": True},
            ["USD were left for the search", "answers were taken to vary otherwise (repeat="],
        ),
        ({"budget_usd": 1.0}, ["2.12 USD were left for the search, now 0.119 (raise budget_usd)"]),
        ({"seed": 1}, ["4 of 36 queries are new or changed, such as query 1", DRAWN]),
        ({"in_flight": 4}, ["in_flight was 1, now 4 (pass in_flight=1)"]),
        ({"batch_size": 4}, ["batch_size was 1, now 4 (pass batch_size=1)"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_setting_is_told_as_its_user_wrote_it(done, changes, told):
    with pytest.raises(InputError) as refused:
        select(done, **changes)
    text = str(refused.value)
    for part in [*told, MEND]:
        assert part in text
    for internal in (
        "problem.",
        "optimizer.",
        "theta",
        "sequence_",
        "epsilon",
        "evaluator",
        "[2, 2]",
    ):
        assert internal not in text


@pytest.mark.slow
def test_a_check_is_told_in_its_own_words(tmp_path):
    def check(loss):
        app, old, new = App(), {"plan": "pro", "solve": "pro"}, {"plan": "mini", "solve": "mini"}
        how = {"dataset": settings()["dataset"], "metric": settings()["metric"], "budget_usd": 0.1}
        st.check(app, new, reference=old, max_quality_loss=loss, run_dir=tmp_path, **how)

    check(0.1)
    told = r"max_quality_loss was 0.1, now 0.2 \(pass max_quality_loss=0.1\)"
    with pytest.raises(InputError, match=told) as refused:
        check(0.2)
    assert "epsilon" not in str(refused.value)


def test_the_cause_is_told_before_what_follows_from_it(done):
    how = {"objective": "quality", "max_quality_loss": None}
    with pytest.raises(InputError, match="settings: constraints was None, now") as told:
        select(done, constraints=["cost_usd <= 0.01 cap 0.1"], **how)
    assert "objective was None, now 'quality'" in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"hour_usd": 5}, {"hour_usd": 10}, "hour_usd was 0.5 times what it is now"),
        ({"hour_usd": 5}, {}, "hour_usd was given, now it is not"),
        ({}, {"hour_usd": 5}, "hour_usd was not given, now it is"),
        ({"hour_usd": 5}, {"hour_usd": 5, "in_flight": 4}, "in_flight was 1, now 4"),
    ],
)
def test_an_hour_is_told_as_its_user_wrote_it(tmp_path, before, now, told):
    def app(models, text):
        outcomes = {"latency_s": 1.0 + 2.0 * (models["plan"] == "pro")}
        return {"output": text.upper(), "cost_usd": App.cost(models), "outcomes": outcomes}

    given = settings(run_dir=tmp_path, deployment_queries=1e5, max_quality_loss=0.2)
    st.select(app, **given, **before)
    with pytest.raises(InputError) as refused:
        st.select(app, **given, **now)
    assert told in str(refused.value)
    assert "call_usd" not in str(refused.value)
    assert str(refused.value).count("hour_usd") == told.count("hour_usd")


@pytest.mark.parametrize("dry_run", ["pilot", False])
def test_a_pilot_of_other_queries_says_so(tmp_path, dry_run):
    select(tmp_path, dry_run="pilot")
    with pytest.raises(InputError, match=r"4 of 36 queries are new or changed, .*seed= decide"):
        select(tmp_path, seed=1, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", ["pilot", False])
def test_other_elements_that_are_alike(tmp_path, dry_run):
    """Their keys are the same; which of the data set they are is not."""
    select(tmp_path, dry_run="pilot", dataset=ALIKE, holdout=0.2)
    with pytest.raises(InputError, match=r"alike, are searched \(holdout= and seed= decide"):
        select(tmp_path, seed=1, dry_run=dry_run, dataset=ALIKE, holdout=0.2)


@pytest.mark.slow
def test_a_held_out_query_that_is_searched_on_is_no_new_one(tmp_path, caplog):
    select(tmp_path / "one", holdout=0.2)
    assert "held-out queries have" not in caplog.text
    data = settings()["dataset"]
    twice = [(text, expected + "!") for text, expected in data[:20]]
    select(tmp_path / "two", dataset=[*data, *twice], holdout=0.2)
    (told,) = [one for one in caplog.messages if "held-out queries have the input" in one]
    assert 1 <= int(told.split()[0]) <= 12
    assert "of 12 held-out" in told


def test_a_pilot_of_another_reference(tmp_path):
    select(tmp_path, dry_run="pilot")
    with pytest.raises(InputError, match=r"asked first are others \(reference=, models= and allow"):
        select(tmp_path, dry_run="pilot", reference={"plan": "mini", "solve": "pro"})


@pytest.mark.slow
def test_a_metric_that_seems_another_one_names_its_version(tmp_path):
    """What it passes on to be filled cannot be told from what it is."""
    words = ["YES"]

    def fill(these, text):
        return these.append(text)

    def metric(expected, output):
        list(map(words.append, []))
        fill(words, output)
        return float(expected == output)

    select(tmp_path, metric=metric)
    with pytest.raises(InputError, match="begin a new process, and give new runs metric_version="):
        select(tmp_path, metric=metric)
