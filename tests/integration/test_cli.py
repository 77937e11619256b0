"""The command line as a user meets it: runs, files, bad input."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from long_runs import among_others
from reliability.children import command_line, ended, said, started

import scope_torch
from scope_torch.cli import COMMANDS, evaluate
from scope_torch.cli import report as report_script
from scope_torch.cli.compose import compose
from scope_torch.cli.saying import say
from scope_torch.runs.finished import load_runs

LLMS = ("a-nano", "b-mini", "c-pro")
ROOT = Path(__file__).resolve().parents[2]


def write_table(path: Path, *, mutate=lambda rows: rows, num_queries: int = 12) -> Path:
    """A table in which `b-mini` is nearly as good as `c-pro` at a tenth of its cost."""
    rng = random.Random(0)
    cost, quality = {"a-nano": 1e-4, "b-mini": 1e-3, "c-pro": 1e-2}, (0.2, 0.9, 1.0)
    rows = [
        {
            "plan": plan,
            "solve": solve,
            "query": query,
            "quality": float(rng.random() < min(quality[LLMS.index(x)] for x in (plan, solve))),
            "cost_usd": cost[plan] + cost[solve] + 1e-5 * rng.random(),
        }
        for plan, solve, query in itertools.product(LLMS, LLMS, range(num_queries))
    ]
    rng.shuffle(rows)
    rows = mutate(rows)
    text = [",".join(rows[0]), *(",".join(str(v) for v in row.values()) for row in rows)]
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.fixture
def table_arguments(tmp_path) -> list[str]:
    path = write_table(tmp_path / "runs.csv")
    return [
        "task=table",
        f"task.path={path}",
        "task.module_columns=[plan,solve]",
        "task.reference=[c-pro,c-pro]",
        "task.epsilon=0.3",
        "method.base=b-mini",
        "budget_usd=1.0",
    ]


@pytest.mark.slow
def test_a_run_leaves_the_files_others_rely_on(cli, table_arguments):
    words = [*table_arguments, "method=scope", "seed=3", "method.gap_tolerance=null"]
    status, out, err = cli(*words, draw=True)
    assert (status, err) == (0, "")
    directory = Path("outputs/table/scope")
    (run,) = directory.rglob("seed=3")
    assert str(run) in out
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert all(
        {"theta", "query", "cost_usd", "quality"} <= set(line)
        and len(line["theta"]) == 2
        and 0 <= line["query"] < 12
        for line in journal
    )
    result = json.loads((run / "result.json").read_text())
    assert result["spend_usd"] == pytest.approx(sum(line["cost_usd"] for line in journal))
    assert result["spend_usd"] > 1.0
    assert result["spend_usd"] - journal[-1]["cost_usd"] <= 1.0
    assert set(result["theta_out"]) == {"plan", "solve"}
    assert result["mode"] == "tuned"
    assert result["assumptions"]
    timing = result["timing"]
    parts = timing["optimizer_seconds"], timing["evaluator_seconds"]
    assert min(parts) > 0
    assert sum(parts) < timing["seconds"]
    for key in ("b_c", "b_g", "true_cost_usd", "true_quality", "gap_usd", "settings_hash"):
        assert result[key] is not None
    with open(run / "trace.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["true_cost_usd"]) == result["true_cost_usd"]
    assert (run / "curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_search_in_which_nothing_can_improve_stops_before_the_budget(cli, table_arguments):
    assert cli(*table_arguments, "method=scope")[0] == 0
    result = json.loads(next(Path("outputs").rglob("result.json")).read_text())
    assert result["stop_reason"].startswith("no other configuration can improve on theta_out")
    assert result["spend_usd"] < 0.5
    assert result["gap_usd"] == 0
    assert result["theta_out"] == {"plan": "b-mini", "solve": "b-mini"}
    assert result["b_g_widened"] == sorted(result["b_g_widened"]) != []
    assert result["b_g"] == result["b_g_widened"][-1]


@pytest.mark.slow
def test_a_search_that_no_longer_pays_says_so(cli, table_arguments):
    assert cli(*table_arguments, "output_dir=one")[0] == 0
    assert cli(*table_arguments, "output_dir=two", "deployment_queries=1")[0] == 0
    derived, said = (
        json.loads(next(Path(d).rglob("result.json")).read_text()) for d in ("one", "two")
    )
    budget = next(float(a.partition("=")[2]) for a in table_arguments if "budget_usd=" in a)
    assert derived["deployment_queries"] == 100 * budget / derived["reference_cost_usd"]
    assert said["deployment_queries"] == 1
    for result in (derived, said):
        assert result["stop_reason"].startswith("no candidate is expected to save more")
        assert result["expected_return"] <= 1
    assert said["basis"] == "reference"  # one query never pays for a search
    assert derived["basis"] == "certified"
    assert said["num_observations"] < derived["num_observations"]


@pytest.mark.slow
def test_two_equal_runs_differ_in_timing_and_paths_only(cli, table_arguments):
    assert cli(*table_arguments, "output_dir=one")[0] == 0
    assert cli(*table_arguments, "output_dir=two")[0] == 0
    results = [json.loads(next(Path(d).rglob("result.json")).read_text()) for d in ("one", "two")]
    for result in results:
        del result["timing"], result["paths"]
    assert results[0] == results[1]
    journals = [next(Path(d).rglob("journal.jsonl")).read_bytes() for d in ("one", "two")]
    assert journals[0] == journals[1]


@pytest.mark.slow
def test_table_format_and_row_order_do_not_matter(cli, table_arguments, tmp_path):
    import polars as pl

    assert cli(*table_arguments, "output_dir=plain")[0] == 0
    frame = pl.read_csv(tmp_path / "runs.csv").sort("cost_usd")
    frame.write_parquet(tmp_path / "runs.parquet")
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress((tmp_path / "runs.csv").read_bytes()))
    for name in ("runs.parquet", "zipped"):
        arguments = [a for a in table_arguments if not a.startswith("task.path")]
        assert cli(*arguments, f"task.path={tmp_path / name}", f"output_dir={name}.out")[0] == 0
        journals = [
            next(Path(d).rglob("journal.jsonl")).read_bytes() for d in ("plain", f"{name}.out")
        ]
        assert journals[0] == journals[1]


@pytest.mark.slow
def test_every_method_kernel_and_mode_runs(cli, table_arguments):
    small = [a for a in table_arguments if not a.startswith("budget")] + ["budget_usd=0.3"]
    for extra in (
        ["method=scope_rand"],
        ["method=scope_coarse"],
        ["method=scope_letter"],
        ["method=scope_letter", "method.u_out_floor=true"],
        ["method=scope_joint"],
        ["kernel=rbf"],
        ["method=scope", "method.bounds.mode=theory", "method.batch_size=4"],
        ["method=scope", "method.bounds.b_g=loo", "method.bounds.b_c=0.001", "method.lam=1e-4"],
        [
            "method=scope",
            "method.bounds.b_g=0.5",
            "method.bounds.b_c=reference_fraction",
            "method.alpha=0.2",
        ],
    ):
        assert cli(*small, *extra, "output_dir=" + "_".join(extra).replace("=", "-"))[0] == 0


@pytest.mark.slow
def test_multirun_and_report(cli, table_arguments, monkeypatch, capsys):
    status, _, _ = cli("-m", *table_arguments, "seed=0,1", "method=scope,scope_coarse")
    assert status == 0
    (Path("outputs/table/unfinished")).mkdir()
    (Path("outputs/table/unfinished/settings.json")).write_text("{}")
    monkeypatch.setattr(sys, "argv", ["report.py", "outputs"])
    report_script.main()
    out = capsys.readouterr().out
    assert len(list(Path("outputs").rglob("result.json"))) == 4
    assert "| table | scope" in out
    assert "| table | scope_coarse" in out
    assert "unfinished: outputs/table/unfinished" in out
    assert Path("outputs/table_1usd.png").exists()
    assert "| table | scope" in Path("outputs/table.md").read_text()


@pytest.mark.slow
def test_budgets_of_a_sweep_have_folders_of_their_own(cli, table_arguments):
    fixed = [word for word in table_arguments if not word.startswith("budget_usd")]
    status, _, err = cli("-m", *fixed, "budget_usd=0.5,0.2")
    assert (status, err) == (0, "")
    budgets = [json.loads(p.read_text())["budget_usd"] for p in Path().rglob("result.json")]
    assert sorted(budgets) == [0.2, 0.5]
    assert len(list(Path("outputs").rglob("*budget_usd=0.2*"))) == 1


@pytest.mark.slow
def test_a_search_that_ends_in_calibrate_counts_in_a_report(cli, table_arguments):
    """It kept the reference; without it the others would be the survivors."""
    fixed = [word for word in table_arguments if not word.startswith("budget_usd")]
    assert cli(*fixed, "budget_usd=0.001")[0] == 0
    ((run,),) = load_runs(Path("outputs"))[0].values()
    assert run.result["feasible"]
    cost = run.problem.reference_cost_usd
    assert [c for _, c, _ in run.curve.points(0.001)] == pytest.approx([cost] * 2)


@pytest.mark.slow
def test_a_table_s_own_outcome_is_known_to_evaluate(cli, table_arguments, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    head, *rows = path.read_text().splitlines()
    lines = [f"{head},latency_s", *(f"{row},{1 + number % 3}" for number, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")
    words = [*table_arguments, 'task.constraints=["p95(latency_s) <= 8"]']
    assert cli(*words)[0] == 0
    (run_dir,) = Path("outputs").rglob("result.json")
    GlobalHydra.instance().clear()
    evaluate.main(["--run", str(run_dir.parent), "--on", "search", "--", *words])
    assert "beside the reference, each once on 12 queries" in capsys.readouterr().out


@pytest.mark.slow
def test_recorded_runs_of_a_system_have_their_outcomes(cli):
    status, out, err = cli("task=airport_city", 'task.constraints=["latency_s <= 5 cap 50"]')
    assert (status, err) == (0, "")
    assert "airport_city scope" in out


def test_report_without_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["report.py", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        report_script.main()
    assert stop.value.code == 2
    assert "no finished run" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("metod=scope", "metod"),
        ("method.alfa=0.3", "alfa"),
        ("task.pth=x", "pth"),
        ("+extra=1", "+extra=1"),
        ("++extra=1", "extra"),
        ("+method.extra=1", "+method.extra=1"),
        ("++method.extra=1", "extra"),
        ("tracking={_target_:scope_torch.tracking.wandb.WandbTracker,mode:often}", "often"),
        ("method=nothing", "nothing"),
        ("budget_usd=0", "budget_usd=0"),
        ("budget_usd=-1", "budget_usd=-1"),
        ("budget_usd=much", "much"),
        ("deployment_queries=0", "deployment_queries=0.0 must be a positive number"),
        ("method.alpha=0.5", "alpha=0.5"),
        ("method.alpha=0", "alpha=0"),
        ("task.epsilon=1", "epsilon=1"),
        ("task.epsilon=0", "epsilon=0"),
        ("method.lam=0", "lam=0"),
        ("method.batch_size=0", "batch_size=0"),
        ("method.bounds.b_g=often", "often"),
        ("method.bounds.b_c=-1", "b_c=-1"),
        ("method.bounds.mode=guess", "guess"),
        ("method.bounds={mode:theory,delta:2}", "delta=2"),
        ("method.base=d-ultra", "d-ultra"),
        ("task.reference=[c-pro,d-ultra]", "d-ultra"),
        ("task.reference=[c-pro]", "c-pro"),
        ("task.module_columns=[plan,resolve]", "resolve"),
        ("task.quality_column=score", "score"),
        ("task.path=nowhere.csv", "nowhere.csv"),
        ("task.on_missing=ignore", "ignore"),
        ("device=abacus", "abacus"),
        ("output_dir=runs.csv", "runs.csv"),
        ("seed=a", "a"),
    ],
)
def test_bad_settings_are_one_line_and_status_2(cli, table_arguments, argument, named):
    key = argument.partition("=")[0]
    kept = [a for a in table_arguments if a.partition("=")[0] != key]
    scope = [] if argument.startswith("method=") else ["method=scope"]
    status, out, err = cli(*kept, *scope, argument)
    assert status == 2
    assert named in err
    assert err.startswith("scope-torch: ")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


def _without(index: int):
    return lambda rows: [row for i, row in enumerate(rows) if i != index]


def _with(column: str, value: object):
    return lambda rows: [{**rows[0], column: value}, *rows[1:]]


def _never(column: str):
    """Nothing is known of an LLM or a query."""
    return lambda rows: [
        {**row, "quality": ""} if row[column] == rows[0][column] else row for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutate", "named"),
    [
        (_without(5), "1 cells are missing"),
        (_with("quality", ""), "1 cells are missing"),
        (_with("quality", 1.5), "quality=1.5"),
        (_with("quality", -0.1), "quality=-0.1"),
        (_with("quality", "nan"), "1 cells are missing"),
        (_with("quality", "good"), "good"),
        (_with("cost_usd", -1e-3), "cost_usd=-0.001"),
        (_with("cost_usd", "nan"), "1 cells are missing"),
        (_with("cost_usd", "inf"), "cost_usd=inf"),
        (_with("plan", ""), "plan"),
        (_with("plan", "new-llm"), "missing"),
        (_never("plan"), "cells are missing"),
        (_never("query"), "cells are missing"),
        (lambda rows: [*rows, rows[0]], "more than one row"),
        (lambda rows: rows[:5], "rows"),
    ],
)
def test_bad_tables_name_the_cell(cli, table_arguments, tmp_path, mutate, named):
    write_table(tmp_path / "runs.csv", mutate=mutate)
    status, out, err = cli(*table_arguments)
    assert status == 2
    assert named in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_drop_queries_keeps_the_complete_ones(cli, table_arguments, tmp_path):
    write_table(tmp_path / "runs.csv", mutate=lambda r: [x for x in r[5:] if x["query"] != 7])
    status, _, err = cli(*table_arguments)
    assert status == 2
    assert "on_missing=drop_queries" in err
    assert cli(*table_arguments, "task.on_missing=drop_queries")[0] == 0
    result = json.loads(next(Path("outputs").rglob("result.json")).read_text())
    assert 0 < result["num_queries"] < 11


@pytest.mark.slow
def test_recorded_task_without_data_says_where_to_get_it(cli):
    status, _, err = cli("task=hotpotqa")
    assert status == 2
    assert "SCOPE_DATA_DIR" in err
    assert "AgentOptimizer/agentopt" in err


@pytest.mark.slow
def test_other_settings_in_the_same_directory_are_refused(cli, table_arguments, tmp_path):
    assert cli(*table_arguments)[0] == 0
    before = next(Path("outputs").rglob("journal.jsonl")).read_bytes()
    write_table(tmp_path / "runs.csv", mutate=_with("cost_usd", 0.5))
    status, _, err = cli(*table_arguments)
    assert status == 2
    assert "other settings" in err
    assert next(Path("outputs").rglob("journal.jsonl")).read_bytes() == before


@pytest.mark.slow
def test_damaged_last_line_is_dropped_and_observed_again(cli, table_arguments, caplog):
    assert cli(*table_arguments)[0] == 0
    journal = next(Path("outputs").rglob("journal.jsonl"))
    before, result = journal.read_bytes(), json.loads(journal.with_name("result.json").read_text())
    journal.write_bytes(before[:-20])
    journal.with_name("result.json").unlink()
    status, _, _ = cli(*table_arguments)
    assert status == 0
    assert "dropped line" in caplog.text
    assert journal.read_bytes() == before
    again = json.loads(journal.with_name("result.json").read_text())
    assert again["timing"]["replayed_observations"] == result["num_observations"] - 1
    assert again["spend_usd"] == result["spend_usd"]


@pytest.mark.parametrize("sent", [signal.SIGKILL, among_others(signal.SIGINT)])
@pytest.mark.slow
def test_a_stopped_process_resumes_to_the_same_result(cli, table_arguments, sent):
    arguments = [a.replace("budget_usd=1.0", "budget_usd=2.0") for a in table_arguments]
    arguments.append("method.gap_tolerance=null")
    assert cli(*arguments, "output_dir=whole")[0] == 0
    process = started(command_line, [*arguments, "output_dir=cut"], Path.cwd())
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.is_alive():
        journals = list(Path("cut").rglob("journal.jsonl"))
        if journals and journals[0].read_bytes().count(b"\n") > 200:
            break
        time.sleep(0.01)
    assert process.is_alive(), "finished before it could be stopped"
    os.kill(process.pid, sent)
    status, err = ended(process), said(Path.cwd())[1]
    assert not list(Path("cut").rglob("result.json"))
    if sent == signal.SIGINT:
        assert status == 130
        assert "interrupted" in err
        assert "Traceback" not in err
    assert cli(*arguments, "output_dir=cut")[0] == 0
    whole, cut = (next(Path(d).rglob("result.json")) for d in ("whole", "cut"))
    results = [json.loads(path.read_text()) for path in (whole, cut)]
    assert results[1]["timing"]["replayed_observations"] > 200
    for result in results:
        del result["timing"], result["paths"]
    assert results[0] == results[1]
    journals = [path.with_name("journal.jsonl").read_bytes() for path in (whole, cut)]
    assert journals[0] == journals[1]


def test_a_choice_that_does_not_exist_names_those_that_do(cli):
    status, _, err = cli("method=scop")
    assert status == 2
    assert "Could not find 'method/scop'; there are abacus, " in err
    assert "scope_coarse" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argument", ["zzz=1", "kernel=nothing_like_it"])
def test_a_word_unlike_all_others_gets_no_guess(cli, argument):
    status, _, err = cli(argument)
    assert status == 2
    assert "did you mean" not in err


@pytest.mark.parametrize("method", [pytest.param("scope", marks=pytest.mark.slow), "scope_joint"])
def test_a_base_for_each_module(cli, table_arguments, method):
    kept = [a for a in table_arguments if not a.startswith("method.base")]
    kept += [f"method={method}", "budget_usd=0.05"]
    journals = []
    for number, base in enumerate(["[b-mini,a-nano]", "{solve:a-nano,plan:b-mini}", "b-mini"]):
        assert cli(*kept, f"base={base}", f"output_dir={number}")[0] == 0
        journals.append(next(Path(str(number)).rglob("journal.jsonl")).read_bytes())
    assert journals[0] == journals[1] != journals[2]
    for wrong, told in {
        "[b-mini]": "base=['b-mini']: name one LLM for each of ['plan', 'solve']",
        "{plan:b-mini}": "base has the keys ['plan']; give each of ['plan', 'solve'] once",
        "7": "base: '7' is not a candidate of module 'plan'",
    }.items():
        status, _, err = cli(*kept, f"base={wrong}")
        assert status == 2
        assert told in err


def test_the_version_is_that_of_the_package(cli):
    assert cli("--version") == (0, f"scope-torch {scope_torch.__version__}\n", "")


@pytest.mark.slow
def test_run_is_the_bare_form(cli, table_arguments):
    bare = cli(*table_arguments)
    assert bare[0] == 0
    assert cli("run", *table_arguments)[1] == bare[1]


@pytest.mark.slow
def test_help_shows_the_commands_and_the_keys(cli):
    status, out, err = cli("--help")
    assert (status, err) == (0, "")
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert "scope_coarse" in out
    status, out, err = cli("--cfg", "job")
    assert (status, err) == (0, "")
    assert "gap_tolerance: 0.0" in out


def test_an_interrupt_while_modules_are_imported(cli, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("scope_torch.cli.import_module", interrupted)
    assert cli("seed=0") == (130, "", "interrupted; nothing was begun\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    status, out, err = cli(command, "--help")
    assert status == 0
    assert f"usage: scope-torch {command} " in out + err


@pytest.mark.slow
def test_commands_beside_the_search(cli, undrawn, table_arguments):
    assert cli("report", "outputs")[0] == 2
    assert cli(*table_arguments)[0] == 0
    (run_dir,) = (path.parent for path in Path("outputs").rglob("result.json"))
    assert "| table | scope" in cli("report", "outputs")[1]
    assert cli("watch", str(run_dir))[0] == 0
    assert (run_dir / "watch.html").exists()
    assert cli("record_table", "copy.csv", *table_arguments) == (0, "", "")
    assert Path("copy.csv").read_text().count("\n") == 1 + 9 * 12


@pytest.mark.parametrize(
    ("argument", "mend"),
    [
        ("reprot", "begin with a command: run, report, watch, check"),
        ("metod=scope", "you wrote metod=scope; Key 'metod' not in 'Config'"),
        ("metod=scope", "`scope-torch --cfg job` lists the keys"),
        ("+metod=scope", "`scope-torch --cfg job` lists the keys"),
        ("metod=scope", "did you mean 'method'?"),
        ("+metod=scope", "leave it out; did you mean 'method'?"),
        ("+method.alfa=0.3", "write it without +"),
        ("task=restaurant_live task.data.num_records=1", "write +task.data.num_records"),
        ("+task.size=3", "write it without +"),
        ("method=scope method.alfa=0.3", "did you mean 'alpha'?"),
        ("method.alpha=0.3", "it is a key of scope: add method=scope"),
        ("method.bounds.b_g=0.3", "it is a key of scope: add method=scope"),
        ("-m method=cei,config_bo method.gp.amp_c=0.5", "'method.gp.amp_c=choice(0.5)'"),
        ("epsilon=0.1", "did you mean 'task.epsilon'?"),
        ("delta=0.1", "did you mean 'method.bounds.delta'?"),
        ("task.num_querys=3", "did you mean 'num_queries'?"),
        ("method.bounds.detla=0.1", "did you mean 'delta'?"),
        ("hydra.lancher.n_jobs=2", "did you mean 'launcher'?"),
        ("kernel=rfb", "there are matern52, rbf; did you mean 'rbf'?"),
        ("method=scop_joint", "did you mean 'scope_joint'?"),
        ("hydra/launcher=paralel", "did you mean 'parallel'?"),
    ],
)
def test_a_wrong_word_names_the_right_ones(cli, argument, mend):
    status, out, err = cli(*argument.split())
    assert (status, out) == (2, "")
    assert mend in err
    assert err.count("\n") == 1


def test_what_is_passed_on_has_keys_of_its_own():
    """To a loader of data, a system or an endpoint."""
    words = ["task=restaurant_live", "+task.data.search=test", "+llm.extra_body.cache_prompt=true"]
    config = compose(words)
    assert config.task.data == {"search": "test"}
    assert config.llm.extra_body == {"cache_prompt": True}


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """As in `scope-torch --help | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(ROOT / "scripts/run.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        among_others(["--version"]),
        ["task=synthetic", "task.num_queries=8", "budget_usd=0.1", "method=scope"],
        among_others(["report", "outputs"]),
    ],
)
def test_what_is_done_is_done_if_nobody_reads_what_is_printed(cli, tmp_path, words):
    done = ["task=synthetic", "task.num_queries=8", "budget_usd=0.1", "method=random_search"]
    assert words[0] != "report" or cli(*done)[0] == 0
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(ROOT / "scripts/run.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert ended.returncode == 0, ended.stderr
    assert "Error" not in ended.stderr
    assert words[0] == "--version" or list(Path("outputs").rglob("result.json"))


def test_what_the_output_cannot_show_is_told_by_its_code(monkeypatch):
    """As with PYTHONIOENCODING=ascii: a search that has ended is no error for its names."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    say("t\u00e2che: na\u00f1o")
    assert written.getvalue() == b"t\\xe2che: na\\xf1o\n"


@pytest.mark.slow
def test_a_package_of_the_user_named_baselines_hides_no_method(tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "__init__.py").write_text("raise RuntimeError('of the user')")
    words = ["method=random_search", "task=synthetic", "task.num_queries=8", "budget_usd=0.1"]
    command = [sys.executable, str(ROOT / "scripts/run.py"), *words]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "; spent " in done.stdout + done.stderr
