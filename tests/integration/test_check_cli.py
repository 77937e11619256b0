"""`scope-torch check` as users call it: statuses, files, wrong inputs; the gate of the how-to."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from integration.doc_pages import DOCS, blocks
from llm.fake_endpoint import only_loopback  # noqa: F401
from serve.fake_upstream import FakeUpstream, Say

import scope_torch as st
from scope_torch.cli.check import _dataset as dataset_of
from scope_torch.cli.check import main

PAGE = DOCS / "howto/check-a-swap.md"
APP = """
from pathlib import Path

SKILL = {"pro": 97, "mini": 96, "nano": 60}
USD = {"pro": 0.03, "mini": 0.002, "nano": 0.0005}


def app(models, number):
    with open("calls.txt", "a") as file:
        print(models["answer"], number, file=file)
    llm, number = models["answer"], int(number)
    return (str(number * 2) if number * 37 % 100 < SKILL[llm] else "0"), USD[llm]


def data():
    return [(str(number), str(number * 2)) for number in range(400)]


def exactly(expected, output):
    return float(expected == output)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # stale for a change within a second
    monkeypatch.delitem(sys.modules, "my_app", raising=False)
    Path("my_app.py").write_text(APP)
    Path("models.json").write_text('{"version": 1, "models": {"answer": "pro"}}')
    lines = ["input,expected", *(f"{number},{number * 2}" for number in range(400))]
    Path("questions.csv").write_text("\n".join(lines))
    return tmp_path


def check(*changes, new="answer=mini"):
    """Status of the command; the last of two equal options counts."""
    words = ["models.json", "--new", new, "--app", "my_app:app", "--dataset", "questions.csv"]
    words += ["--metric", "exact_match", "--max-quality-loss", "0.05", "--budget-usd", "20"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *changes])
    return ended.value.code


def num_calls():
    path = Path("calls.txt")
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_the_status_is_the_verdict(folder, capsys):
    assert check() == 0
    assert capsys.readouterr().out.startswith("pass: answer=mini (was pro)\n")
    assert check(new="answer=nano") == 1
    assert capsys.readouterr().out.startswith("fail: answer=nano (was pro)\n")
    assert check("--budget-usd", "0.2") == 3
    assert capsys.readouterr().out.startswith("undecided (budget): answer=mini")


@pytest.mark.slow
def test_data_and_metric_may_be_of_the_program(folder, capsys):
    assert check("--dataset", "my_app:data", "--metric", "my_app:exactly") == 0
    told = capsys.readouterr().out
    assert check() == 0
    assert capsys.readouterr().out == told
    Path("questions.jsonl").write_text(
        "\n".join(json.dumps({"input": str(i), "expected": str(2 * i)}) for i in range(400))
    )
    assert check("--dataset", "questions.jsonl") == 0
    assert capsys.readouterr().out == told


def test_a_file_names_the_new_one_and_its_comment_is_written(folder):
    Path("new.json").write_text('{"version": 1, "models": {"answer": "nano"}}')
    assert check("--markdown", "comment.md", new="new.json") == 1
    text = Path("comment.md").read_text()
    assert text.startswith("### fail: answer=nano (was pro)\n\n- loss of quality: ")
    assert "| query | input | expected | new answer | reference's answer |" in text


@pytest.mark.slow
def test_the_same_command_goes_on(folder, capsys):
    assert check("--run-dir", "run", "--budget-usd", "0.5") == 3
    first = num_calls()
    assert check("--run-dir", "run") == 0
    assert num_calls() > first
    whole = num_calls()
    assert check("--run-dir", "run") == 0
    assert num_calls() == whole
    assert json.loads(Path("run/check.json").read_text())["verdict"] == "pass"
    Path("calls.txt").unlink()
    assert check("--run-dir", "other") == 0
    assert num_calls() == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "separator", "end", "encoding"),
    [
        ("q.csv", ",", "\n\n", "utf-8"),
        ("q.csv", ";", "\n;\n", "utf-8"),
        ("q.csv", "\t", "", "utf-16"),
        ("Q.CSV", ",", "", "utf-8-sig"),
    ],
)
def test_csv_is_read_as_that_of_a_table(folder, capsys, name, separator, end, encoding):
    assert check() == 0
    told = capsys.readouterr().out
    text = Path("questions.csv").read_text().replace(",", separator) + end
    Path(name).write_text(text, encoding=encoding)
    assert check("--dataset", name) == 0
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("header", ["input;expected", "question;answer"])
def test_a_text_of_csv_is_as_it_is(tmp_path, header):
    """Decimal commas, zeros, truth values: an answer is compared as a text."""
    path = tmp_path / "texts.csv"
    path.write_text(f"{header}\n 2,5 ;1,50\n007;true\nnan;NULL\n")
    frame = dataset_of(str(path))
    assert [frame[name].to_list() for name in frame.columns] == [
        [" 2,5 ", "007", "nan"],
        ["1,50", "true", "NULL"],
    ]


def test_a_row_with_too_many_cells_is_named(folder, capsys):
    Path("long.csv").write_text('input,expected\n"a\nb, c",1\nd, e,2\n')
    assert check("--dataset", "long.csv") == 2
    told = capsys.readouterr().err
    assert told.startswith("check: long.csv, line 4 has more cells than the header; put a text")


@pytest.mark.parametrize(
    ("changes", "new", "message"),
    [
        ([], "reply=mini", "MODULE=LLM, with a module of ['answer']"),
        ([], "answer=", "MODULE=LLM"),
        ([], "mini", "--new mini: write MODULE=LLM, with a module of ['answer'], or give one file"),
        ([], "answer:mini", "--new answer:mini: write MODULE=LLM"),
        (["--dataset", "empty.jsonl"], "answer=mini", "dataset is empty; give at least one input"),
        (["--dataset", "few.csv"], "answer=mini", "only the columns ['input']: expected is miss"),
        ([], "none.json", "none.json"),
        ([], "answer=pro", "the same"),
        (["--app", "no_app:app"], "answer=mini", "no_app:app does not exist"),
        (["--app", "my_app:no"], "answer=mini", "my_app:no does not exist"),
        (["--app", "python app.py {input}"], "answer=mini", "endpoint="),
        (["--metric", "exactmatch"], "answer=mini", "exactmatch does not exist"),
        (["--dataset", "none.csv"], "answer=mini", "cannot read none.csv: "),
        (["--dataset", "."], "answer=mini", "*.csv, *.jsonl or *.parquet"),
        (["--dataset", "questions.txt"], "answer=mini", "*.csv, *.jsonl or *.parquet"),
        (["--certificate", "bounds"], "answer=mini", "certificate='bounds'"),
        (["--constraint", "fast"], "answer=mini", "write it as"),
    ],
)
def test_a_wrong_input_is_one_line(folder, capsys, changes, new, message):
    Path("empty.jsonl").write_text("\n")
    Path("few.csv").write_text("input\n1\n")
    assert check(*changes, new=new) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("check: ")
    assert num_calls() == 0


CRASH = "def app(models, number):\n    raise ValueError('no\\nnumber')\n"


@pytest.mark.parametrize(
    "module", [CRASH, "1 / 0\n", "import sys\nsys.exit(1)\n"], ids=["call", "import", "exit"]
)
def test_a_crash_is_no_verdict(folder, capsys, module):
    """Of the application as it answers, or as it is imported."""
    Path("my_app.py").write_text(module)
    kind = {CRASH: "ValueError: no number", "1 / 0\n": "ZeroDivisionError: division by zero"}
    assert check() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" in told.err
    assert told.err.splitlines()[-1] == f"check: {kind.get(module, 'SystemExit: 1')}"


def test_files_with_the_same_llms_leave_nothing_to_check(folder, capsys):
    """As a pull request that changes fallbacks only."""
    more = {
        "version": 1,
        "models": {"answer": "pro"},
        "fallbacks": [{"models": {"answer": "nano"}}],
    }
    Path("new.json").write_text(json.dumps(more))
    assert check("--markdown", "comment.md", new="new.json") == 0
    assert capsys.readouterr().out == "nothing to check: new.json has the LLMs of models.json\n"
    assert num_calls() == 0
    assert not Path("comment.md").exists()


def logged(quality=1.0, queries=range(399, -1, -1)):
    """Makes models.json what `scope-torch import --to` would write, in an order of its own."""
    rows = [
        {"id": str(n), "traces": 1, "cost_usd": 0.03, "quality": quality, "seconds": None}
        for n in queries
    ]
    text = json.dumps({"version": 1, "models": {"answer": "pro"}, "queries": rows})
    Path("models.json").write_text(text)


@pytest.mark.slow
def test_a_logged_reference_is_not_asked(folder, capsys):
    logged()
    assert check("--max-quality-loss", "0.1", "--run-dir", "run") == 0
    assert "pro" not in Path("calls.txt").read_text()
    assert "1 reference" in (told := capsys.readouterr().out)
    assert check("--max-quality-loss", "0.1", "--run-dir", "run") == 0
    assert capsys.readouterr().out == told


@pytest.mark.slow
def test_a_log_that_does_not_fit_is_told_and_the_reference_asked(folder, capsys, caplog):
    """It has other queries, though as many, or no scores."""
    for quality, queries in {None: range(400), 1.0: range(1, 401)}.items():
        logged(quality, queries)
        assert check() == 0
        said = caplog.messages.pop()
        assert said.startswith("the answers in models.json are not used, and the reference is ask")
        assert quality is None or "no query of the log is called '0'; leave it out, or" in said
        assert said.endswith("A log must call each query by its input")
        assert capsys.readouterr().out.startswith("pass")
        assert Path("calls.txt").read_text().count("pro") > 50
        Path("calls.txt").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["few.csv", "my_app:some"])
def test_each_query_has_its_own_logged_answer(folder, capsys, dataset):
    """The log is in another order, and has more queries than the data set."""
    with open("my_app.py", "a") as file:
        file.write("\n\ndef some():\n    yield from data()[:100]\n")
    lines = Path("questions.csv").read_text().splitlines()
    Path("few.csv").write_text("\n".join(lines[:101]))
    rows = [
        {"id": str(n), "traces": 1, "cost_usd": 0.03, "quality": float(n < 100), "seconds": None}
        for n in range(399, -1, -1)
    ]
    text = json.dumps({"version": 1, "models": {"answer": "pro"}, "queries": rows})
    Path("models.json").write_text(text)
    check("--max-quality-loss", "0.1", "--dataset", dataset)
    assert "pro" not in Path("calls.txt").read_text()
    assert ", 1 reference," in capsys.readouterr().out


@pytest.mark.slow
def test_a_check_goes_on_that_began_to_ask_a_logged_reference(folder, capsys):
    """As earlier versions did, which read the names alone."""
    assert check("--run-dir", "run", "--budget-usd", "1") == 3
    began = num_calls()
    logged(quality=0.0)
    assert check("--run-dir", "run") == 0
    assert num_calls() > began
    assert " 0.9" in capsys.readouterr().out.splitlines()[-4].partition("new,")[2]


def test_an_interrupt_says_how_to_go_on(folder, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scope_torch.cli.check.check", interrupted)
    assert check("--run-dir", "run") == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_wait_for_the_calls_in_flight_too(folder, capsys, monkeypatch, number):
    own = APP.replace(
        "    llm, number", f"    os.kill(os.getpid(), {number.value})\n    llm, number"
    )
    Path("my_app.py").write_text(f"import os\n{own}")
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert check("--run-dir", "run") == 128 + number
    finally:
        for one, handler in before.items():  # a second signal would end the process
            signal.signal(one, handler)
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"
    kept = [path.read_text().splitlines() for path in Path("run").rglob("journal.jsonl")]
    assert sum(map(len, kept)) == num_calls() > 0


@pytest.mark.slow
def test_a_command_behind_an_endpoint(folder):
    """An application that knows nothing of this project, and an upstream with prices."""

    def answer(request):
        number = int(request["messages"][-1]["content"])
        is_right = request["model"].startswith("large") or number % 25
        return Say(str(2 * number) if is_right else "0")

    Path("app.py").write_text(
        "import json, os, sys, urllib.request\n"
        "body = {'model': 'scope/answer', 'messages': [{'role': 'user', 'content': sys.argv[1]}]}\n"
        "request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions',\n"
        "    json.dumps(body).encode(), {'Content-Type': 'application/json',\n"
        "    'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']})\n"
        "print(json.load(urllib.request.urlopen(request))['choices'][0]['message']['content'])\n"
    )
    Path("models.json").write_text('{"version": 1, "models": {"answer": "large"}}')
    llms = [("large", 5.0, 20.0), ("medium", 1.0, 4.0)]
    entry = '[[llm]]\nname = "{}"\ninput_usd_per_mtok = {}\noutput_usd_per_mtok = {}\n'
    head = 'version = 1\nprice_source = "mine"\nprice_date = "2026-01-01"\n'
    Path("prices.toml").write_text(head + "".join(entry.format(*llm) for llm in llms))
    with FakeUpstream(answer) as upstream:
        how = ["--app", f"{sys.executable} app.py {{input}}", "--endpoint", upstream.url]
        how += ["--prices", "prices.toml", "--max-quality-loss", "0.3", "--concurrency", "4"]
        assert check(*how, new="answer=medium") == 0


def workflow():
    """Name and script of the steps on the page."""
    yaml = pytest.importorskip("yaml")
    (text,) = [one.content for one in blocks(PAGE) if one.language == "yaml"]
    job = yaml.safe_load(text)["jobs"]["check"]
    return {step["name"]: step["run"] for step in job["steps"] if "name" in step}


@pytest.mark.parametrize(
    ("new", "status"),
    [
        ({"answer": "mini"}, 0),
        ({"answer": "nano"}, 1),
        pytest.param({"answer": "pro"}, 0, marks=pytest.mark.slow),  # only its notes have changed
        pytest.param({"reply": "mini"}, 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_the_gate_of_the_page(folder, new, status):
    """Its scripts run in a repository whose models.json has changed; `gh` notes what it is told."""
    tools = folder / "tools"
    tools.mkdir()
    for name, script in {
        "scope-torch": f'exec "{sys.executable}" -m scope_torch.cli.run "$@"',
        "gh": 'printf "%s\\n" "$@" > gh.txt',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod((tools / name).stat().st_mode | stat.S_IXUSR)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "models.json"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    Path("models.json").write_text(json.dumps({"version": 1, "models": new, "notes": "new"}))
    root = Path(st.__file__).parents[1]
    env = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "BASE": "HEAD",
        "GITHUB_STEP_SUMMARY": "summary.md",
        "NUMBER": "7",
    }
    steps = workflow()
    done = subprocess.run(["bash", "-e", "-c", steps["Check"]], cwd=folder, env=env, check=False)
    assert done.returncode == status
    subprocess.run(["bash", "-e", "-c", steps["Comment"]], cwd=folder, env=env, check=True)
    told = Path("gh.txt").read_text().split() if Path("gh.txt").exists() else []
    if new in ({"answer": "pro"}, {"reply": "mini"}):
        assert not told
        assert not Path("summary.md").exists()
        return
    assert Path("summary.md").read_text() == Path("comment.md").read_text()
    assert told == ["pr", "comment", "7", "--body-file", "comment.md"]


@pytest.mark.slow
def test_the_page_shows_what_is_printed(capsys):
    """The text below its program is the program's."""
    page = {one.language: one.content for one in reversed(blocks(PAGE))}
    exec(page["python"], {"__name__": "page"})
    assert capsys.readouterr().out == page["text"]


def test_a_folder_that_is_missing_is_told_before_anything_is_paid(folder, capsys):
    assert check("--markdown", "nodir/comment.md") == 2
    assert "--markdown nodir/comment.md: nodir is not a folder" in capsys.readouterr().err
    assert num_calls() == 0


def test_a_place_for_the_comment_that_cannot_be_written_is_told_before_anything_is_paid(
    folder, capsys, monkeypatch
):
    assert check("--markdown", ".") == 2
    assert "--markdown .: it is a folder; name a file in it" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert check("--markdown", "comment.md") == 2
    message = "--markdown comment.md: no file can be written into .\n"
    assert capsys.readouterr().err.endswith(message)
    assert num_calls() == 0


@pytest.mark.slow
def test_a_comment_that_cannot_be_written_hides_no_verdict(folder, capsys):
    with open("my_app.py", "a") as file:  # the application makes a folder of this name
        file.write('\nPath("comment.md").mkdir(exist_ok=True)\n')
    assert check("--markdown", "comment.md") == 2
    told = capsys.readouterr()
    assert told.out.startswith("pass: answer=mini (was pro)\n")
    assert "cannot write comment.md: Is a directory" in told.err
