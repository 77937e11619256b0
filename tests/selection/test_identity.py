"""A run goes on with its own metric and queries alone, and says what changed if they are others."""

import contextlib
import dataclasses
import json
import logging
import re
import shutil

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.results.hashes import settings_hash, with_hashes
from scope_torch.runs.directory import read_settings
from scope_torch.selection import steps

EARLIER = re.compile(", graded by .*")


def lenient(expected, output):
    """Anything is right."""
    return 1.0


def broken(expected, output):
    return 0.0


def select(app, metric=exactly, **changes):
    return st.select(app, **settings(metric=metric, **changes))


def refused(app, **changes):
    """The message of a refusal, which comes before the first call and changes no file."""
    folder = changes["run_dir"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as told:
        select(app, **changes)
    assert app.calls == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "\n" not in str(told.value)
    return str(told.value)


def as_an_earlier_version(folder, evaluator=None):
    """The files of a version that recorded no metric, and noted nothing before the search."""
    (folder / "begun.json").unlink()
    for path in folder.rglob("settings.json"):
        content = json.loads(path.read_text())
        del content["hash"]
        content["evaluator"] = evaluator or EARLIER.sub("", content["evaluator"])
        path.write_text(json.dumps(content))
    result = json.loads((folder / "result.json").read_text())
    result["settings_hash"] = settings_hash(read_settings(folder / "settings.json"))
    (folder / "result.json").write_text(json.dumps(with_hashes(result)))
    for path in [*folder.glob("*/queries.json"), *folder.glob("*/*/queries.json")]:
        path.unlink()
    lines = [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]
    for line in lines:
        del line["exact"]
    (folder / "outputs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reference", "search", "end"])
def test_another_metric_is_refused_with_both_ways_out(tmp_path, stage):
    folder = tmp_path / "june"
    stop = {"reference": 20, "search": 60, "end": 10_000}[stage]
    app = App()

    def stopped(models, text):
        if len(app.calls) == stop:
            raise KeyboardInterrupt
        return app(models, text)

    try:
        select(stopped, run_dir=folder, holdout=0.1)
    except KeyboardInterrupt:
        assert stage != "end"
    told = refused(App(), metric=lenient, run_dir=folder, holdout=0.1)
    assert re.search("the metric was exactly [0-9a-f]{16}, now lenient [0-9a-f]{16}", told)
    assert "Restore the metric, or give continue_from=" in told
    assert repr(str(folder)) in told
    assert "another run_dir" in told
    again = App()
    select(again, run_dir=folder, holdout=0.1)
    assert len(app.calls) + len(again.calls) == len({*app.calls, *again.calls})


@pytest.mark.parametrize("stop", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_search_that_an_earlier_version_began_goes_on_as_it_began(tmp_path, monkeypatch, stop):
    """It had none of three settings, which `select` does not take."""
    app, folder = App(), tmp_path / "june"

    def stopped(models, text):
        if len(app.calls) == stop:
            raise KeyboardInterrupt
        return app(models, text)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "_as_begun", lambda _: dict(steps.OF_0_1))
        whole = select(App())
        with contextlib.suppress(KeyboardInterrupt):
            select(stopped, run_dir=folder)
    content = json.loads((folder / "settings.json").read_text())
    del content["hash"]
    for name in steps.OF_0_1:
        content["optimizer"].pop(name, None)
    (folder / "settings.json").write_text(json.dumps(content))
    if (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text())
        result["settings_hash"] = settings_hash(read_settings(folder / "settings.json"))
        (folder / "result.json").write_text(json.dumps(with_hashes(result)))
    again = App()
    assert list(select(again, run_dir=folder).history) == list(whole.history)
    assert len(app.calls) + len(again.calls) == len({*app.calls, *again.calls})
    assert len(whole.history) != len(select(App()).history)  # the settings matter here


@pytest.mark.slow
def test_a_metric_version_goes_in_the_place_of_its_code(tmp_path):
    select(App(), run_dir=tmp_path, metric_version="3")
    app = App()
    select(app, metric=exactly, run_dir=tmp_path, metric_version="3")
    assert app.calls == []
    told = refused(App(), run_dir=tmp_path, metric_version="4")
    assert "the metric was exactly version 3, now exactly version 4" in told
    settings_now = json.loads((tmp_path / "settings.json").read_text())
    assert settings_now["evaluator"].endswith(", graded by exactly version 3")


@pytest.mark.parametrize("holdout", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_another_metric_grades_the_kept_outputs_for_nothing(tmp_path, holdout):
    before = App()
    june = select(before, metric=lenient, run_dir=tmp_path / "june", holdout=holdout)
    assert june.choice == {"plan": "nano", "solve": "nano"}
    app = App()
    july = select(app, continue_from=tmp_path / "june", run_dir=tmp_path / "july", holdout=holdout)
    assert not set(before.calls) & set(app.calls)  # what is known costs nothing
    fresh = select(App(), holdout=holdout)
    assert july.choice == fresh.choice == {"plan": "mini", "solve": "mini"}
    (source,) = july.report["known"]["sources"]
    assert source["regraded"] == source["used"] > 0
    assert source["left_out"] == {}
    for answer in [*july.known, *july.history, *july.reference]:
        models, text = july.problem.names(answer.theta), july.queries[answer.query]
        assert answer.quality == exactly(text.upper(), App.answer(models, text))
    assert july.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    if holdout:
        assert july.held_out.quality == fresh.held_out.quality
        assert july.held_out.reference_quality == 1.0
        held = {text for text, _ in settings()["dataset"]} - set(july.queries)
        assert ("pro", "pro") not in {llms for llms, text in app.calls if text in held}
    else:
        assert july.held_out is None


@pytest.mark.slow
def test_a_mended_metric_does_not_keep_its_old_grades(tmp_path):
    """The reference was never right: the search has not begun, and its answers are paid for."""
    before = App()
    with pytest.raises(InputError):
        select(before, metric=broken, run_dir=tmp_path / "june")
    assert len({text for llms, text in before.calls if llms == ("pro", "pro")}) == 40
    assert "Restore the metric" in refused(App(), run_dir=tmp_path / "june")
    app = App()
    july = select(app, continue_from=tmp_path / "june", run_dir=tmp_path / "july")
    assert not set(before.calls) & set(app.calls)
    assert july.problem.reference_quality == 1.0
    assert july.choice == {"plan": "mini", "solve": "mini"}


@pytest.mark.slow
def test_a_metric_that_raised_and_was_mended_goes_on(tmp_path):
    def raises(expected, output):
        if expected == "QUERY 7":
            raise ZeroDivisionError("7")
        return exactly(expected, output)

    before = App()
    with pytest.raises(ZeroDivisionError):
        select(before, metric=raises, run_dir=tmp_path / "june")
    app = App()
    july = select(app, continue_from=tmp_path / "june", run_dir=tmp_path / "july")
    twice = [text for _, text in set(before.calls) & set(app.calls)]
    assert set(twice) <= {"query 7"}  # its cost is not known
    assert july.choice == {"plan": "mini", "solve": "mini"}


@pytest.mark.slow
def test_a_call_that_the_metric_made_fail_is_asked_again(tmp_path):
    """It was booked as free and wrong: its grade can be mended, its cost cannot."""

    def raises(expected, output):
        if expected in ("QUERY 7", "QUERY 8"):
            raise ZeroDivisionError(expected)
        return exactly(expected, output)

    before, app = App(), App()
    select(before, metric=raises, run_dir=tmp_path / "june", on_error="zero")
    july = select(app, continue_from=tmp_path / "june", run_dir=tmp_path / "july")
    assert {text for _, text in set(before.calls) & set(app.calls)} == {"query 7", "query 8"}
    assert july.report["known"]["sources"][0]["left_out"].keys() == {"failed"}
    assert july.problem.reference_quality == 1.0
    assert min(answer.cost_usd for answer in [*july.known, *july.history]) > 0


@dataclasses.dataclass
class Answer:
    text: str

    def upper(self):
        return self.text.upper()


@pytest.mark.slow
def test_an_output_that_was_not_kept_as_it_was_is_left_out(tmp_path):
    """`outputs.jsonl` has such an output as text, which a metric would take for something else."""

    class Objects(App):
        def __call__(self, models, text):
            output, usd = super().__call__(models, text)
            return Answer(output) if models["plan"] == "nano" else output, usd

    def text_of(expected, output):
        return exactly(expected, getattr(output, "text", output))

    def strictly(expected, output):
        assert isinstance(output, Answer) or output.startswith(("query", "QUERY"))
        return text_of(expected, output)

    before, app = Objects(), Objects()
    select(before, metric=text_of, run_dir=tmp_path / "june")
    july = select(app, metric=strictly, continue_from=tmp_path / "june", run_dir=tmp_path / "july")
    (source,) = july.report["known"]["sources"]
    told = {call for call in before.calls if call[0][0] == "nano"}
    assert source["left_out"] == {"no_output": len(told)}
    assert source["regraded"] == source["used"] == len(set(before.calls)) - len(told)
    assert set(before.calls) & set(app.calls) <= told


@pytest.mark.slow
def test_repeated_answers_have_one_output(tmp_path):
    """Where answers vary, the last output of a pair says nothing of the others."""

    class Varies(App):
        def __call__(self, models, text):
            output, usd = super().__call__(models, text)
            return output if self.calls.count(self.calls[-1]) == 1 else output.upper(), usd

    before = Varies()
    june = select(before, run_dir=tmp_path / "june", repeat=True)
    number = len(june.history) + len(june.reference) + len(june.probe)
    assert number > len({(o.theta, o.query) for o in [*june.history, *june.reference, *june.probe]})
    july = select(
        Varies(),
        metric=lenient,
        continue_from=tmp_path / "june",
        run_dir=tmp_path / "july",
        repeat=True,
    )
    assert len({(o.theta, o.query) for o in july.known}) == len(july.known) > 0
    assert july.report["known"]["sources"][0]["regraded"] == len(july.known)


@pytest.mark.slow
def test_a_chain_of_searches_keeps_the_outputs(tmp_path):
    """August grades anew what June answered and July had taken over; June is gone by then."""
    before = App()
    select(before, run_dir=tmp_path / "june")
    select(App(), run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    shutil.rmtree(tmp_path / "june")
    app = App()
    august = select(
        app, metric=lenient, run_dir=tmp_path / "august", continue_from=tmp_path / "july"
    )
    assert not set(before.calls) & set(app.calls)
    assert {answer.quality for answer in august.known} == {1.0}


@pytest.mark.slow
def test_what_was_taken_over_is_of_its_metric_too(tmp_path):
    """Killed between taking over and the first call: no other file says which metric it was."""
    select(App(), run_dir=tmp_path / "june")
    select(App(), run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    for path in (tmp_path / "july").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("known"):
            path.unlink()
    with pytest.raises(InputError, match="another metric had graded; restore the metric"):
        select(App(), metric=lenient, run_dir=tmp_path / "july", continue_from=tmp_path / "june")


@pytest.mark.slow
def test_the_journal_of_an_earlier_version_resumes_once_with_a_warning(tmp_path, caplog):
    first = select(App(), run_dir=tmp_path, holdout=0.1)
    result = (tmp_path / "result.json").read_text()
    as_an_earlier_version(tmp_path)
    caplog.set_level(logging.WARNING)
    app = App()
    again = select(app, run_dir=tmp_path, holdout=0.1)
    assert app.calls == []
    assert again.choice == first.choice
    assert "recorded less of the metric" in caplog.text
    hashes = [
        json.loads(text)["result_hash"] for text in (result, (tmp_path / "result.json").read_text())
    ]
    assert hashes[0] == hashes[1]
    caplog.clear()
    select(app, run_dir=tmp_path, holdout=0.1)
    assert app.calls == []
    assert caplog.text == ""
    assert "the metric was exactly" in refused(app, metric=lenient, run_dir=tmp_path, holdout=0.1)


@pytest.mark.slow
def test_an_earlier_version_is_continued_from_with_a_warning(tmp_path, caplog):
    select(App(), run_dir=tmp_path / "june")
    as_an_earlier_version(tmp_path / "june")
    app = App()
    july = select(app, run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    assert app.calls == []
    assert july.report["known"]["sources"][0]["regraded"] == 0
    assert "did not record its metric" in caplog.text


@dataclasses.dataclass(frozen=True)
class Question:
    """No plain data."""

    text: str

    def upper(self):
        return self.text.upper()

    def __str__(self):
        return self.text


def questions(edited=(), number=40):
    texts = [f"other {i}" if i in edited else f"query {i}" for i in range(number)]
    return [(Question(text), text.upper()) for text in texts]


class Asked(App):
    def __call__(self, models, question):
        return super().__call__(models, question.text)


@pytest.mark.slow
def test_another_data_set_of_the_same_size_is_refused(tmp_path):
    select(Asked(), dataset=questions(), run_dir=tmp_path)
    app = Asked()
    select(app, dataset=questions(), run_dir=tmp_path)
    assert app.calls == []
    told = refused(Asked(), dataset=questions([3, 7]), run_dir=tmp_path)
    assert "2 of 40 queries are new or changed, such as query 3, Question(text='other 3')" in told
    assert "; gone: 2" in told
    told = refused(Asked(), dataset=questions(number=39), run_dir=tmp_path)
    assert "0 of 39 queries are new or changed; gone: 1" in told
    assert "stand in another order" in refused(Asked(), dataset=questions()[::-1], run_dir=tmp_path)


@pytest.mark.slow
def test_queries_that_are_no_plain_data_are_continued_from(tmp_path):
    before = Asked()
    select(before, dataset=questions(), run_dir=tmp_path / "june")
    app = Asked()
    july = select(
        app, dataset=questions([3]), run_dir=tmp_path / "july", continue_from=tmp_path / "june"
    )
    assert not set(before.calls) & set(app.calls)
    assert {text for llms, text in app.calls if llms == ("pro", "pro")} == {"other 3"}
    assert july.report["known"]["sources"][0]["left_out"]["no_query"] > 0


@pytest.mark.slow
def test_files_are_known_by_what_they_hold(tmp_path):
    (tmp_path / "data").mkdir()
    paths = [tmp_path / "data" / f"{i}.txt" for i in range(40)]
    for i, path in enumerate(paths):
        path.write_text(f"query {i}")
    dataset = [(path, f"QUERY {i}") for i, path in enumerate(paths)]

    class Reads(App):
        def __call__(self, models, path):
            return super().__call__(models, path.read_text())

    select(Reads(), dataset=dataset, run_dir=tmp_path / "june")
    paths[5].write_text("query five")
    told = refused(Reads(), dataset=dataset, run_dir=tmp_path / "june")
    assert "1 of 40 queries are new or changed, such as query 5, " in told


@pytest.mark.slow
def test_journals_of_queries_that_were_only_counted_resume_once(tmp_path, caplog):
    select(Asked(), dataset=questions(), run_dir=tmp_path)
    as_an_earlier_version(tmp_path, "my_app-" + "d59eced1ded07f84")  # of the number 40
    (tmp_path / "queries.json").unlink()
    app = Asked()
    select(app, dataset=questions(), run_dir=tmp_path)
    assert app.calls == []
    assert "recorded less of the metric and the queries" in caplog.text
    assert "1 of 40 queries" in refused(app, dataset=questions([3]), run_dir=tmp_path)


class Handle:
    """Has no content that another process could compare."""


@pytest.mark.slow
def test_inputs_that_cannot_be_known_need_no_directory_and_get_none(tmp_path):
    handles = {Handle(): f"query {i}" for i in range(40)}
    dataset = [(handle, text.upper()) for handle, text in handles.items()]

    class Looks(App):
        def __call__(self, models, handle):
            return super().__call__(models, handles[handle])

    assert select(Looks(), dataset=dataset).choice == {"plan": "mini", "solve": "mini"}
    app = Looks()
    for more in ({"run_dir": tmp_path / "a"}, {"continue_from": tmp_path / "june"}):
        select(App(), run_dir=tmp_path / "june")
        with pytest.raises(InputError, match=r"query 0, .*give plain data.*or leave"):
            select(app, dataset=dataset, **more)
    assert app.calls == []
    assert not (tmp_path / "a").exists()


def test_other_llms_are_not_taken_for_those_of_a_measured_reference(tmp_path):
    """The search has not begun: the measurement alone knows codes, and no names."""
    app = App()

    def stopped(models, text):
        if len(app.calls) == 20:
            raise KeyboardInterrupt
        return app(models, text)

    with pytest.raises(KeyboardInterrupt):
        select(stopped, run_dir=tmp_path)
    new = {"models": ["nano", "mini", "pro-2"], "reference": {"plan": "pro-2", "solve": "pro-2"}}
    assert "the LLMs of 'plan' were ['nano', " in refused(App(), run_dir=tmp_path, **new)
