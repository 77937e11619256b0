"""`scope-torch recheck` as users call it: days of draws, logged traces, what does not fit."""

import json
import sys
from pathlib import Path

import pytest
from integration.test_check_cli import APP, CRASH, folder, num_calls  # noqa: F401 - a fixture

from scope_torch.cli.recheck import main as recheck

pytestmark = pytest.mark.usefixtures("folder")


def look(*changes):
    """Status of `scope-torch recheck`."""
    words = ["models.json", "--app", "my_app:app", "--dataset", "questions.csv"]
    words += ["--metric", "exact_match", "--min-quality", "0.9", "--budget-usd", "20"]
    with pytest.raises(SystemExit) as ended:
        recheck([*words, *changes])
    return ended.value.code


@pytest.mark.slow
def test_looks_at_a_choice_go_on(capsys):
    assert look("--run-dir", "watch", "--draws", "30") == 0
    assert capsys.readouterr().out.startswith("no alarm: answer=pro\n")
    assert look("--run-dir", "watch", "--draws", "30") == 0
    assert num_calls() == 60
    Path("my_app.py").write_text(APP.replace('"pro": 97', '"pro": 50'))
    sys.modules.pop("my_app")
    assert look("--run-dir", "watch", "--draws", "60") == 1
    assert capsys.readouterr().out.splitlines()[-5].startswith("ALARM: answer=pro")


def test_a_crash_is_no_alarm(capsys):
    Path("my_app.py").write_text(CRASH)
    assert look("--run-dir", "watch") == 2
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()[-1]) == ("", "recheck: ValueError: no number")


def test_an_llm_that_is_retired_is_an_alarm(capsys):
    error = "class NotFound(Exception):\n    status_code = 404\n\n\n"
    raises = "def app(*_):\n    raise NotFound('no model pro')\n"
    Path("my_app.py").write_text(error + raises)
    assert look("--run-dir", "watch") == 1
    told = capsys.readouterr().out
    assert told.startswith("ALARM: answer=pro\n  answer=pro is retired: its provider answers 404\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "--run-dir is missing"),
        (["--run-dir", "watch", "--score", "right"], "leave out --score: that is for --traces"),
        (["--run-dir", "watch", "--draws", "0"], "draws"),
    ],
)
def test_a_wrong_look_is_one_line(capsys, changes, message):
    assert look(*changes) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("recheck: ")


@pytest.mark.parametrize("name", ["langfuse", "langsmith", "otlp"])
def test_a_look_at_logged_traces(name, capsys):
    """Four traces of a real library, three of them right."""
    models = {"plan": "gpt-4o-mini", "solve": "gpt-4o"}
    Path("models.json").write_text(json.dumps({"version": 1, "models": models}))
    log = Path(__file__).parents[1] / f"traces/fixtures/{name}.jsonl"
    for least, every, status in ((0.5, 100, 0), (0.99, 20, 1)):
        words = ["--min-quality", str(least), "--false-alarm-every", str(every)]
        with pytest.raises(SystemExit) as ended:
            recheck(["models.json", "--traces", str(log), *words])
        assert ended.value.code == status
        assert f"quality >= {least}: 0.75 in 4 draws" in capsys.readouterr().out or status


LANGFUSE = Path(__file__).parents[1] / "traces/fixtures/langfuse.jsonl"


def look_at(capsys, log, *words):
    """Status and error of `scope-torch recheck --traces`."""
    capsys.readouterr()
    models = {"plan": "gpt-4o-mini", "solve": "gpt-4o"}
    Path("models.json").write_text(json.dumps({"version": 1, "models": models}))
    with pytest.raises(SystemExit) as ended:
        recheck(["models.json", "--traces", str(log), *words])
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--constraint", "latency_s <= 1 cap 2"], "--constraint"),
        (["--max-quality-loss", "0.05"], "--max-quality-loss"),
        (["--draws", "5", "--budget-usd", "1"], "--budget-usd, --draws"),
        (["--reference", "models.json"], "--reference"),
        (["--app", "a:b", "--run-dir", "watch"], "--app, --run-dir"),
    ],
)
def test_what_a_log_cannot_tell_is_refused(capsys, words, flags):
    status, err = look_at(capsys, LANGFUSE, "--min-quality", "0.5", *words)
    assert (status, err) == (
        2,
        f"recheck: leave out {flags}: --traces reads a log and asks nobody\n",
    )
    assert look_at(capsys, LANGFUSE)[1] == "recheck: --traces: give --min-quality too\n"


def test_a_log_is_read_by_the_rules_of_import(capsys):
    """With two scores, and another LLM in one trace; errors advise flags that there are."""
    rows = [json.loads(line) for line in LANGFUSE.read_text().splitlines()]
    scores = [row for row in rows if "value" in row]
    rows += [{**row, "id": row["id"][::-1], "name": "polite", "value": 0.0} for row in scores]
    for row in rows:
        if row["trace_id"] == scores[0]["trace_id"] and row.get("provided_model_name") == "gpt-4o":
            row["provided_model_name"] = "gpt-4o-2026"
    Path("two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--min-quality", "0.5"]
    for advised in ("--most-frequent", "--score polite"):
        status, err = look_at(capsys, "two.jsonl", *words)
        assert status == 2
        assert advised.split()[0] in err
        words += advised.split()
    assert look_at(capsys, "two.jsonl", *words, "--false-alarm-every", "2") == (1, "")
    assert look_at(capsys, "two.jsonl", *words, "--score", "correct") == (0, "")


def test_newer_traces_that_were_left_out_have_a_status_of_their_own(capsys):
    """One that names no LLM."""
    rows = [json.loads(line) for line in LANGFUSE.read_text().splitlines()]
    last = next(row["trace_id"] for row in rows if row.get("provided_model_name"))
    for row in rows:
        if row["trace_id"] == last and "start_time" in row:
            row["start_time"] = row["end_time"] = "2030-01-01 12:00:00 UTC"
            row.pop("provided_model_name", None)
    Path("log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--traces", "log.jsonl", "--min-quality", "0.5"]
    look_at(capsys, LANGFUSE)  # writes models.json
    with pytest.raises(SystemExit) as ended:
        recheck(["models.json", *words])
    assert ended.value.code == 3
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("no alarm, but 1 newer trace left out: plan=gpt-4o-mini")
    assert "  left out: 1 trace with a call that does not name its LLM" in told
