"""record_table.py and evaluate.py, called in this process."""

import csv
import gzip
import json
import math
import statistics
from dataclasses import replace

import pytest
import torch
from airport_llms import airport_llm, few_airports  # noqa: F401
from hydra.core.global_hydra import GlobalHydra
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.cli import evaluate, record_table
from scope_torch.cli.compose import compose_task
from scope_torch.cli.module_costs import ModuleCosts, module_table
from scope_torch.errors import InputError
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.hashes import with_hashes
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tasks.table import table_task


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))

    def run(main, *arguments):
        GlobalHydra.instance().clear()
        status = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return run


SYNTHETIC = ("task=synthetic", "task.num_queries=7")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz"])
def test_a_recorded_table_gives_what_was_recorded(call, tmp_path, name):
    path = tmp_path / name
    assert call(record_table.main, path, *SYNTHETIC) == (0, "", "")
    content = path.read_bytes()
    assert (content[:2] == b"\x1f\x8b") == (name == "runs.csv.gz")
    task = synthetic_task(name="synthetic", num_queries=7)
    problem = task.problem
    again = table_task(
        name="again",
        path=str(path),
        module_columns=problem.modules,
        reference=list(problem.names(problem.theta_ref).values()),
        epsilon=problem.epsilon,
    )
    assert again.problem.num_queries == 7
    assert again.problem.space.size == problem.space.size
    for index in range(problem.space.size):
        theta = tuple(problem.space.unrank(torch.tensor(index)).tolist())
        other = again.problem.codes(list(problem.names(theta).values()))
        for query in range(7):
            (one,) = task.evaluator.evaluate([Request(theta, query)])
            (two,) = again.evaluator.evaluate([Request(other, query)])
            assert two.quality == one.quality
            assert math.isclose(two.cost_usd, one.cost_usd, rel_tol=1e-8)
    call(record_table.main, path, *SYNTHETIC)
    assert path.read_bytes() == content


def test_a_table_without_details_has_no_empty_columns(call, tmp_path):
    call(record_table.main, tmp_path / "runs.csv.gz", *SYNTHETIC)
    with gzip.open(tmp_path / "runs.csv.gz", "rt") as file:
        rows = list(csv.reader(file))
    assert rows[0][-3:] == ["query", "quality", "cost_usd"]
    assert {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.slow
def test_a_recorded_table_ends_with_the_costs_of_modules(call, tmp_path):
    task = ("task=data_imputation", "task.llms=[GPT-4.1 Nano,GPT-5.2]", "task.cost_noise=0")
    status, out, err = call(record_table.main, tmp_path / "runs.csv", *task)
    assert (status, err) == (0, "")
    lines = [[cell.strip() for cell in line.split("|")] for line in out.splitlines()]
    costs = {cells[1]: cells[2] for cells in lines if len(cells) == 4}
    assert costs["module, USD/1000"] == "reference"
    assert costs["all"] == "4.34"  # c(theta_0)
    total = sum(float(costs[m].removesuffix(" (GPT-5.2)")) for m in ("parse", "cloze", "answer"))
    assert total == pytest.approx(4.34, abs=0.01)


@pytest.mark.parametrize(
    ("name", "reference", "cost"),
    [
        ("bird_live", "GPT-5.2", "reference 23.5, result of SCOPE 0.8"),
        ("text_to_sql", "GPT-5.2", "reference 23.5, result of SCOPE 0.8"),
        ("bird_live", "GPT-5-nano", None),  # not the paper's reference
        ("airport_city", "GPT-5.2", None),
    ],
)
def test_the_paper_s_cost_is_shown_where_it_has_one(name, reference, cost):
    problem = SelectionProblem(
        name=name,
        modules=("only",),
        llms=(("GPT-5.2", "GPT-5-nano"),),
        num_queries=3,
        theta_ref=(reference,),  # type: ignore
        reference_quality=0.5,
        reference_cost_usd=0.01,
        epsilon=0.1,
    )
    lines = module_table(problem, {"unknown": None, "best": ModuleCosts((1,), (0.002,))})
    assert lines[2].split() == ["|", "only", "|", "2", "(GPT-5-nano)", "|"]
    shown = [line for line in lines if "in the paper" in line]
    assert len(shown) == (cost is not None)
    assert all(str(cost) in line for line in shown)
    assert module_table(problem, {"unknown": None}) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent/runs.csv", "task=synthetic"], "absent is not a folder"),
        ([".", "task=synthetic"], "it is a folder; name a file in it"),
        (["runs.csv", "task=synthetix"], "Could not find 'task/synthetix'"),
        (["runs.csv", "task=airport_city", "evaluator=live"], "needs llm.base_url"),
        (["runs.csv", "task=airport_city", "task.table=null"], "give task.table"),
        (["runs.csv", "task=airport_city", "evaluator=both"], "must be live or recorded"),
        (["runs.csv", "task=airport_city", "task.dataset=port"], "no data set 'port'"),
        (["runs.csv", "task=synthetic", "+task.typo=1"], "without +"),
    ],
)
def test_a_bad_record_is_one_line(call, arguments, message):
    status, out, err = call(record_table.main, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("record_table: ")


class Unreliable:
    """Every seventh call gives no reply."""

    def __init__(self, evaluator):
        self._evaluator, self.num_failed = evaluator, 0

    def evaluate(self, requests):
        for number, one in enumerate(self._evaluator.evaluate(requests)):
            is_lost = number % 7 == 6
            self.num_failed += is_lost
            yield replace(one, quality=0.0, failed="app") if is_lost else one


def test_a_table_of_calls_without_a_reply_is_not_written(tmp_path):
    task = synthetic_task(num_queries=7)
    unreliable = task._replace(evaluator=Unreliable(task.evaluator))
    with pytest.raises(InputError, match=r"calls gave no reply, so \S+ was not written"):
        record_table.record(unreliable, tmp_path / "runs.csv")
    assert not (tmp_path / "runs.csv").exists()


def test_a_table_with_two_columns_of_one_name_is_not_paid_for(tmp_path):
    task = synthetic_task(num_queries=7)
    problem = replace(task.problem, modules=("query", "solve"))
    with pytest.raises(InputError, match="two columns 'query': rename the module"):
        record_table.record(task._replace(problem=problem, evaluator=None), tmp_path / "runs.csv")


@pytest.mark.parametrize("command", ["evaluate", "record_table"])
def test_a_typo_pays_for_nothing(call, tmp_path, command):
    """Not for the averages of the reference either."""
    with FakeEndpoint([Status(500)]) as endpoint:
        live = ["task=airport_city", "evaluator=live", f"llm.base_url={endpoint.url}"]
        live += ["task.num_queries=3"]
        if command == "evaluate":
            words = ["--theta", "typo", "SmolLM2-135M", "SmolLM2-135M", "--"]
            status, _, err = call(evaluate.main, *words, *live)
            assert "'typo' is not a candidate" in err
        else:
            status, _, err = call(record_table.main, tmp_path / "nodir" / "x.csv", *live)
            assert "nodir is not a folder" in err
        assert (status, endpoint.requests) == (2, [])


@pytest.mark.slow
@pytest.mark.parametrize("num_failures", [0, 3])
def test_held_out_answers_that_are_missing_are_told(call, tmp_path, num_failures):
    failures = [Status(500)] * num_failures

    def answer(request):
        return failures.pop() if failures else airport_llm(request)

    with FakeEndpoint(answer) as endpoint:
        live = ["task=airport_city", "evaluator=live", f"llm.base_url={endpoint.url}"]
        live += ["llm.retries=0", "llm.concurrency=1"]
        words = ["--theta", *["SmolLM2-135M"] * 3, "--out", tmp_path / "x.json", "--"]
        status, out, _ = call(evaluate.main, *words, *live)
    assert status == 0
    assert json.loads((tmp_path / "x.json").read_text())["num_failed"] == num_failures
    assert ("3 calls gave no reply; these answers count as wrong" in out) == bool(num_failures)


THETA = ["GPT-5-nano", "GPT-4.1 Nano", "GPT-5-mini"]


@pytest.mark.slow
def test_held_out_queries_with_intervals(call, tmp_path):
    arguments = ["--theta", *THETA, "--out", tmp_path / "rq2.json", "--", "task=data_imputation"]
    status, out, err = call(evaluate.main, *arguments)
    assert (status, err) == (0, "")
    report = json.loads((tmp_path / "rq2.json").read_text())
    assert report["num_queries"] == 86
    assert list(report["theta"].values()) == THETA
    results = report["results"]
    for key in ("cost_usd", "quality"):
        low, high = results["theta"][f"{key}_interval"]
        assert low < results["theta"][key] < high
        difference = results["theta"][key] - results["reference"][key]
        assert math.isclose(results["difference"][key], difference, abs_tol=1e-12)
        assert f"{results['theta'][key]:.3}"[:4] in out
    for name in ("theta", "reference"):
        of_modules = results[name]["module_cost_usd"]
        assert len(of_modules) == 3
        assert sum(of_modules) == pytest.approx(results[name]["cost_usd"])
        assert f"{1000 * of_modules[1]:.3g} (" in out
    assert "module_cost_usd" not in results["difference"]
    assert "in the paper, on held-out queries: reference 4.28, result of SCOPE 0.1;" in out
    # Wilson's interval, retyped.
    p, n, z = results["theta"]["quality"], 86, statistics.NormalDist().inv_cdf(0.975)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    assert results["theta"]["quality_interval"] == pytest.approx([centre - half, centre + half])


@pytest.mark.slow
def test_theta_of_a_finished_run(call, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    arguments = ["--run", run_dir, "task=data_imputation"]
    status, _, err = call(evaluate.main, *arguments)
    assert status == 2
    assert "holds no finished run of data_imputation" in err
    theta = dict(zip(("parse", "cloze", "answer"), THETA, strict=True))
    told = dict.fromkeys(("task", "method", "basis", "stop_reason", "settings_hash"), "")
    told |= dict.fromkeys(("reference_cost_usd", "s_0", "budget_usd", "spend_usd"), 0.5)
    told |= {"num_queries": 1, "num_observations": 1, "theta_out_codes": [], "paths": {}}
    text = json.dumps(with_hashes({**told, "theta_out": theta, "timing": {}}))
    (run_dir / "result.json").write_text(text)
    status, out, err = call(evaluate.main, *arguments)
    assert (status, err) == (0, "")
    assert "parse: GPT-5-nano, cloze: GPT-4.1 Nano, answer: GPT-5-mini, on 86" in out
    assert f"warning: {run_dir} has no settings.json" in out
    made = {"problem": {}, "optimizer": {"name": "scope_joint"}, "budget_usd": 1.0}
    made["evaluator"] = compose_task(["task=data_imputation"]).evaluator.fingerprint()
    (run_dir / "settings.json").write_text(json.dumps(made))
    assert "warning" not in call(evaluate.main, *arguments)[1]
    status, out, err = call(evaluate.main, *arguments, "task.world_seed=1")
    assert (status, err) == (0, "")
    assert f"warning: {run_dir} was made with {made['evaluator']}, and this task is" in out
    (run_dir / "result.json").write_text(text.replace("GPT-5-nano", "GPT-5.2"))
    status, out, err = call(evaluate.main, *arguments)
    assert (status, out) == (2, "")
    assert "is damaged (its content does not match its hashes)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--theta", "GPT-5-nano", "--", "task=data_imputation"], "name one LLM for each of"),
        (
            ["--theta", *THETA[:2], "typo", "--", "task=data_imputation"],
            "'typo' is not a candidate",
        ),
        (["--theta", "nano", "nano", "--", "task=synthetic"], "no held-out queries"),
        (
            ["--theta", *THETA, "--out", "nodir/x.json", "--", "task=data_imputation"],
            "--out nodir/x.json: nodir is not a folder",
        ),
        (
            ["--theta", *THETA, "--out", ".", "--", "task=data_imputation"],
            "--out .: it is a folder; name a file in it",
        ),
        (["--theta", *THETA, "--", "task=data_imputation", "experiment=nan"], "Config group"),
    ],
)
def test_a_bad_evaluation_is_one_line(call, arguments, message):
    status, out, err = call(evaluate.main, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
