"""Files are written in one step, by many at a time, for their owner, and never through a link."""

import ast
import csv
import io
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from source_code import ROOT, tree_of
from tables import CountingEvaluator, make_task

from scope_torch.cli.record_table import write_table
from scope_torch.cli.run import _write_log
from scope_torch.cli.tables import as_csv
from scope_torch.cli.watch import watch
from scope_torch.errors import InputError
from scope_torch.evaluators.outputs import Outputs
from scope_torch.evaluators.simulation.evaluator import _save
from scope_torch.files import (
    cell_of,
    check_folder,
    inside,
    plain_text,
    replacing,
    write_atomically,
)
from scope_torch.llm.store_file import StoreFile
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.saving import load_models, save_models
from scope_torch.results.style import save_figure
from scope_torch.runs.journal import Journal
from scope_torch.runs.measured import measure_results
from scope_torch.runs.opening import open_run_dir
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.runs.trace import TraceFile, read_trace
from scope_torch.search.optimizer import TraceRow
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tasks.table import load_table

PACKAGES = "scope_torch", "baselines", "hydra_plugins"
TASK = make_task(1, (3, 3), 6)
FORMULAS = ["=1+1", "+x", "-x", "@cf/meta/llama", "\tx", "'=x", "''-x", "'s", "-", "nano"]


def search(run_dir: Path) -> None:
    run(TASK.problem, TASK.scope(1), CountingEvaluator(TASK), TASK.budget(3.2), run_dir=run_dir)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("made") / "run"
    search(run_dir)
    return run_dir


@pytest.fixture
def foreign(made, tmp_path) -> Path:
    """A directory of a run with which somebody may have meddled; beside it, a file of yours."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for path in made.iterdir():
        (run_dir / path.name).write_bytes(path.read_bytes())
    (tmp_path / "yours").mkdir()
    (tmp_path / "yours" / "thesis.txt").write_text("mine")
    return run_dir


def measured(run_dir: Path) -> None:
    measure_results(read_run(run_dir), CountingEvaluator(TASK))


def drawn(run_dir: Path) -> None:
    save_figure(Figure(), run_dir / "curves.png")


def kept(run_dir: Path) -> None:
    Outputs(run_dir / "outputs.jsonl").keep(["nano"], 0, "an answer")


def cached(run_dir: Path) -> None:
    _save(run_dir / "world.npy", np.ones(3))


def logged(run_dir: Path) -> None:
    _write_log(run_dir, "an error")


def watched(run_dir: Path) -> None:
    watch(run_dir, None, None)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("watch.html", watched),
        (".watch.html.tmp", watched),
        ("curves.png", drawn),
        ("error.log", logged),
        ("world.npy", cached),
        ("result.json", search),
        (".result.json.tmp", search),
        ("settings.json", search),
        (".settings.json.tmp", search),
    ],
)
def test_a_link_is_replaced_by_the_file_that_is_written(foreign, name, write):
    yours, link = foreign.parent / "yours" / "thesis.txt", foreign / name
    if name == "settings.json":
        yours.write_bytes(link.read_bytes())  # others would be refused before anything is written
    before = yours.read_bytes()
    link.unlink(missing_ok=True)
    link.symlink_to(yours)
    write(foreign)
    assert yours.read_bytes() == before
    assert name.startswith(".") or not link.is_symlink()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("trace.csv", search),
        ("journal.jsonl", search),
        ("measured", measured),
    ],
)
def test_a_link_is_refused_where_a_file_grows(foreign, name, write):
    yours, link = foreign.parent / "yours", foreign / name
    is_folder = name == "measured"
    if name == "journal.jsonl":
        (yours / "thesis.txt").write_bytes(link.read_bytes())
    before = (yours / "thesis.txt").read_bytes()
    if link.exists():
        link.unlink()
    (foreign / "result.json").unlink()
    link.symlink_to(yours if is_folder else yours / "thesis.txt", target_is_directory=is_folder)
    with pytest.raises(InputError, match=rf"cannot write .*{name}.*: it is a link; .* remove it"):
        write(foreign)
    assert (yours / "thesis.txt").read_bytes() == before
    assert len(list(yours.iterdir())) == 1


def test_outputs_decide_nothing_and_follow_no_link(foreign, caplog):
    yours = foreign.parent / "yours" / "thesis.txt"
    before = yours.read_bytes()
    (foreign / "outputs.jsonl").symlink_to(yours)
    kept(foreign)
    assert yours.read_bytes() == before
    assert "outputs will be missing there" in caplog.text


def writes(call: ast.Call) -> bool:
    """Whether a call writes a file in a way of its own, or opens one that a link may lead to."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    of = getattr(getattr(call.func, "value", None), "id", "")
    if name == "open" and of != "os":
        modes = [a.value for a in call.args if isinstance(a, ast.Constant)]
        modes += [k.value.value for k in call.keywords if k.arg == "mode"]
        is_safe = any(keyword.arg == "opener" for keyword in call.keywords)
        return not is_safe and any(set("wax") & set(str(mode)) for mode in modes)
    return name in ("write_text", "write_bytes", "NamedTemporaryFile") or (of, name) in (
        ("os", "replace"),
        ("os", "rename"),
        ("shutil", "copy"),
        ("shutil", "move"),
    )


@pytest.mark.slow
def test_all_files_are_written_in_the_same_way():
    found = []
    for path in [file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py"))]:
        calls = [n for n in ast.walk(tree_of(path.read_text())) if isinstance(n, ast.Call)]
        found += [f"{path.name}:{call.lineno}" for call in calls if writes(call)]
    assert [name.partition(":")[0] for name in found] == ["files.py"], found  # `os.replace`


def test_a_folder_inside_is_none_that_a_link_leads_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "held_out").mkdir(parents=True)
    (tmp_path / "run" / "held_out" / "0-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"held_out/0-1: it is a link"):
        inside(tmp_path / "run", "held_out", "0-1", "draw=0")
    assert inside(tmp_path / "run", "held_out", "1-1") == tmp_path / "run" / "held_out" / "1-1"


@pytest.mark.slow
def test_many_writers_of_one_file_lose_no_save(tmp_path):
    path, failures = tmp_path / "models.json", []

    def save(name: str) -> None:
        for _ in range(200):
            try:
                save_models(path, {"plan": name}, {})
                assert load_models(path)["plan"] in "abcd"
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=save, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [path.name for path in tmp_path.iterdir()] == ["models.json"]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / ("n" * 250)  # its name leaves no room for more letters
    write_atomically(path, "old")

    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match=r"cannot write .*/none/file: No such file"):
        write_atomically(tmp_path / "none" / "file", "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX")
def test_no_device_becomes_a_file(tmp_path):
    """`--output /dev/null` in a container would take that from all its programs."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        before = (tmp_path / name).lstat().st_mode
        with pytest.raises(InputError, match="it is a device or a pipe"):
            write_atomically(tmp_path / name, "<p>")
        assert (tmp_path / name).lstat().st_mode == before
    with pytest.raises(InputError, match="null: it is a device or a pipe"):
        check_folder(Path(os.devnull))  # no test writes there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_message_names_no_argument_that_the_caller_may_not_have(tmp_path):
    with pytest.raises(InputError) as caught:
        write_atomically(tmp_path / "nodir" / "page.html", "x")
    mend = "No such file or directory; choose another place, or make this one writable"
    assert str(caught.value).endswith(mend)


def test_answers_and_journals_are_for_their_owner(tmp_path, monkeypatch):
    before = os.umask(0o022)
    try:
        settings = {"problem": {}, "optimizer": {"name": "x"}, "evaluator": "e", "budget_usd": 1.0}
        open_run_dir(tmp_path, settings, synthetic_task(num_queries=4)[1]).close()
        kept(tmp_path)
        store = StoreFile(tmp_path / "replies.sqlite")
        store.fail("key", "owner", "model", 0.5, "gone")
        rights = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        store.close()
        write_atomically(tmp_path / "known.jsonl", "", private=True)
        rights["known.jsonl"] = stat.S_IMODE((tmp_path / "known.jsonl").stat().st_mode)
    finally:
        os.umask(before)
    assert rights.pop("settings.json") == 0o644
    assert rights.keys() >= {"journal.jsonl", "outputs.jsonl", "replies.sqlite", "known.jsonl"}
    assert set(rights.values()) == {0o600}, rights


def test_rights_that_somebody_gave_stay(tmp_path):
    Journal(tmp_path / "journal.jsonl").close()
    (tmp_path / "journal.jsonl").chmod(0o640)
    Journal(tmp_path / "journal.jsonl").close()
    assert stat.S_IMODE((tmp_path / "journal.jsonl").stat().st_mode) == 0o640


def test_half_a_surrogate_pair_is_no_reason_to_lose_a_page(tmp_path):
    write_atomically(tmp_path / "page.html", "a \ud83d b é")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "a ? b é"


# CSV


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_is_no_formula_and_comes_back(text):
    assert cell_of(text)[0] not in "=+-@\t\r"
    assert plain_text(cell_of(text)) == text


@pytest.mark.parametrize("number", [-0.5, "-0.5", "+3", "-1e-05", "-inf", 0, None, ""])
def test_numbers_stay_numbers(number):
    assert cell_of(number) == number


def test_tables_of_runs_hold_no_formula():
    rows = [{"=name": "=1+1", "usd": -0.5}, {"=name": "@x", "other": 2}]
    assert list(csv.reader(io.StringIO(as_csv(rows)))) == [
        ["'=name", "usd", "other"],
        ["'=1+1", "-0.5", ""],
        ["'@x", "", "2"],
    ]


def named(llms: tuple[str, ...]) -> SelectionProblem:
    codes = (0, 0)
    return SelectionProblem(
        "names", ("plan", "solve"), (llms, llms), 2, codes, 1.0, 0.01, epsilon=0.1
    )


def test_a_trace_names_llms_that_look_like_formulas(tmp_path):
    problem = named(tuple(FORMULAS))
    file = TraceFile(tmp_path / "trace.csv", problem, None)
    thetas = [(code, code) for code in range(len(FORMULAS))]
    rows = [TraceRow(1, 0.1, 0.1, "improved", theta) for theta in thetas]
    file.update(rows)
    file.close()
    text = (tmp_path / "trace.csv").read_bytes().decode()
    cells = list(csv.DictReader(io.StringIO(text, newline="")))
    assert not [row for row in cells if row["theta_out"][0] in "=+-@\t\r"]
    found = read_trace(tmp_path / "trace.csv", problem)
    assert [recorded.row.theta_out for recorded in found] == thetas
    old = (tmp_path / "trace.csv").read_bytes().replace(b"'@cf", b"@cf")  # as before
    (tmp_path / "trace.csv").write_bytes(old)
    assert len(read_trace(tmp_path / "trace.csv", problem)) == len(thetas)


def test_a_recorded_table_is_read_with_the_same_names(tmp_path):
    problem, path = named(("@cf/llama", "=x", "nano")), tmp_path / "runs.csv"
    made = [
        Observation((a, b), query, 0.01, 1.0)
        for a in range(3)
        for b in range(3)
        for query in range(2)
    ]
    write_table(problem, made, path)
    assert "\n=" not in path.read_text()
    table = load_table(
        path,
        module_columns=["plan", "solve"],
        quality_column="quality",
        cost_column="cost_usd",
        query_column="query",
    )
    assert table.llms == (("=x", "@cf/llama", "nano"),) * 2
