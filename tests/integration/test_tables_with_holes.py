"""Recorded tables of which most cells are missing: every method searches what there is."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from long_runs import among_others, only_long
from real_data import table_or_skip
from test_allowed_everywhere import SEARCHES

from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import Request
from scope_torch.results.metrics import optimal_cost
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.simulated import simulated_task
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tasks.table import load_table, table_task

HOTPOTQA = "agentopt/hotpotqa_compact.csv.gz"


def thinned(table: RecordedTable, reference, seed: int) -> RecordedTable:
    """30% of the cells: a tenth of the configurations complete, a tenth without any cell."""
    rng = np.random.default_rng(seed)
    space = table.space
    present = rng.uniform(size=(space.size, len(table.queries))) < 0.25
    order = rng.permutation(space.size)
    tenth = space.size // 10
    present[order[:tenth]] = True
    present[order[tenth : 2 * tenth]] = False
    present[space.index_of(reference)] = True
    hidden = ~present.reshape(table.cost_usd.shape)
    cost, quality = table.cost_usd.copy(), table.quality.copy()
    cost[hidden] = quality[hidden] = np.nan
    return replace(table, cost_usd=cost, quality=quality, partial=True)


def task_of(table: RecordedTable, reference, epsilon: float) -> Task:
    names = [llms[code] for llms, code in zip(table.llms, reference, strict=True)]
    return Task(table.problem("holes", names, epsilon), TableEvaluator(table))


def synthetic() -> Task:
    task = synthetic_task(num_modules=3, num_queries=30)
    table = task.evaluator.table  # pyright: ignore
    return task_of(thinned(table, task.problem.theta_ref, 1), task.problem.theta_ref, 0.2)


SYNTHETIC = synthetic()


def checked(task: Task, result, table: RecordedTable):
    """Only what exists was asked for; the choice is what it says."""
    problem = task.problem
    assert len(result.history) >= 12
    for one in result.history:
        assert problem.is_allowed(one.theta)
        assert one.query in problem.queries_of(one.theta)
    out = result.recommendation
    assert problem.is_allowed(out.theta)
    summary = json.loads(json.dumps(result.summary(), allow_nan=False))
    is_complete = out.theta not in (problem.offered or {})
    assert (summary["true_quality"] is None) == (summary["feasible"] is None) == (not is_complete)
    quality = table.quality[table.where(out.theta)]
    at_worst = float(np.nan_to_num(quality).mean())  # what is missing counts as 0
    if out.basis == "certified" and result.report.get("certificate") == "sequence":
        assert at_worst >= problem.s_0
    assert all(math.isfinite(v) for _, _, v in result.curve.points(result.budget_usd))
    assert str(result.pareto())


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("scope", "joint", "joint-branched", "front", "random", "cei")
        else among_others(n)
        for n in SEARCHES
    ],
)  # fmt: skip
@pytest.mark.slow
def test_every_method_on_30_percent_of_a_table(name, tmp_path):
    if name == "optuna_gp":
        pytest.importorskip("optuna")
    task = SYNTHETIC
    table = task.evaluator.table  # pyright: ignore
    assert 0.25 < table.present.mean() < 0.4
    search = SEARCHES[name](task.problem, seed=1)
    budget = (20 if name == "front" else 60) * task.problem.reference_cost_usd
    result = run(task.problem, search, task.evaluator, budget, run_dir=tmp_path / "run")
    checked(task, result, table)
    again = SEARCHES[name](task.problem, seed=1)
    resumed = run(task.problem, again, task.evaluator, budget, run_dir=tmp_path / "run")
    assert resumed.recommendation == result.recommendation


@pytest.mark.parametrize(
    "name",
    [
        "joint",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("scope", "joint-branched", "random", "cei", "front")
        ),
    ],
)
def test_30_percent_of_a_recorded_table(name):
    path = table_or_skip(HOTPOTQA)
    columns = ["planner", "solver"]
    table = load_table(path, columns, quality_column="score", on_missing="drop_queries")
    reference = tuple(
        names.index(llm)
        for names, llm in zip(table.llms, ("Ministral 3 8B", "Claude Opus 4.6"), strict=True)
    )
    thin = thinned(table, reference, 5)
    task = task_of(thin, reference, 0.05)
    base = ["gpt-oss-20b"] * 2
    how = {"base": base} if name in ("joint", "scope", "joint-branched", "front") else {}
    make = SEARCHES[name]
    make = getattr(make, "func", make)
    if name == "joint-branched":
        how["space_search"] = "branch_and_bound"
    search = make(task.problem, seed=0, **how)
    result = run(task.problem, search, task.evaluator, 4.0)
    checked(task, result, thin)
    if name.startswith("joint"):
        # Certified by the answers that there are: an incomplete one has nearly all of them.
        out = result.recommendation.theta
        assert len(task.problem.queries_of(out)) >= task.problem.s_0 * task.problem.num_queries


def test_the_truth_is_of_what_is_complete():
    task, table = SYNTHETIC, SYNTHETIC.evaluator.table  # pyright: ignore
    cost, quality = task.evaluator.truth()  # pyright: ignore
    complete = table.present.all(-1).ravel()
    assert (~cost.isnan().numpy() == complete).all()
    feasible = complete & (quality.numpy() >= task.problem.s_0)
    assert optimal_cost(task.problem, (cost, quality)) == cost.numpy()[feasible].min()


LISTED = 1077


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """1,077 of 23^4 configurations, on 12 queries, as a CSV file and a list of them."""
    cache = str(tmp_path_factory.mktemp("cache"))
    world = simulated_task(name="w", world="text_to_sql", cache_dir=cache)
    problem, rng = world.problem, np.random.default_rng(3)
    assert problem.space.size == 279_841
    index = rng.choice(problem.space.size, LISTED + 40, replace=False).tolist()
    index[0] = problem.space.index_of(problem.theta_ref)
    thetas = [problem.space.theta_at(i) for i in dict.fromkeys(index)]
    folder = tmp_path_factory.mktemp("listed")
    queries = range(12)
    requests = [Request(theta, query) for theta in thetas for query in queries]
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*problem.modules, "query", "quality", "cost_usd"])
        for one in world.evaluator.evaluate(requests):
            llms = problem.names(one.theta).values()
            writer.writerow([*llms, one.query, one.quality, one.cost_usd])
        # Every LLM is in the table, so that Theta has 23^4 configurations.
        for llm in problem.llms[0]:
            writer.writerow([llm] * len(problem.modules) + ["empty", "", ""])
    names = [list(problem.names(theta).values()) for theta in thetas[:LISTED]]
    (folder / "listed.json").write_text(json.dumps(names))
    with (folder / "listed.csv").open("w", newline="") as file:
        csv.writer(file).writerows([list(problem.modules), *names])
    return folder, problem, thetas


def listed_task(listed, file: str, **how) -> Task:
    folder, problem, _ = listed
    return table_task(
        name="listed",
        path=str(folder / "runs.csv"),
        module_columns=problem.modules,
        reference=list(problem.names(problem.theta_ref).values()),
        epsilon=0.3,
        num_queries=12,
        **{"on_missing": "restrict", "configurations": str(folder / file), **how},
    )


@pytest.mark.slow
def test_a_list_of_configurations(listed):
    task = listed_task(listed, "listed.json")
    assert task.problem.space.size == 279_841
    assert task.problem.num_allowed == LISTED
    names = listed[1].names
    codes = {task.problem.codes(list(names(theta).values())) for theta in listed[2][:LISTED]}
    assert set(task.problem.allowed) == codes  # pyright: ignore
    assert not task.problem.offered
    assert listed_task(listed, "listed.csv").problem == task.problem
    everything = listed_task(listed, "", configurations=None)
    assert everything.problem.num_allowed == len(listed[2])
    assert everything.evaluator.fingerprint() != task.evaluator.fingerprint()


FAST = ["scope", "llmselector"]
SLOW = ["joint", "scope-branched", "random", "config", "llambo"]
SLOWEST = ["cei", "joint-branched", "scope-random", "front", "safeopt", "abacus", "optuna_gp"]


@pytest.mark.parametrize(
    "name",
    [
        *FAST,
        *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW),
        *(pytest.param(n, marks=[pytest.mark.slow, only_long]) for n in SLOWEST),
    ],
)
def test_every_method_on_1077_of_279841(name, listed):
    if name == "optuna_gp":
        pytest.importorskip("optuna")
    task = listed_task(listed, "listed.json")
    has_base = "base" in getattr(SEARCHES[name], "keywords", {})
    how = {"base": "Gemini 2.5 Flash-Lite"} if has_base else {}
    search = SEARCHES[name](task.problem, seed=2, **how)
    evaluations = 2 if name in ("joint-branched", "scope-branched", "front") else 4  # of theta_0
    budget = evaluations * 12 * task.problem.reference_cost_usd
    result = run(task.problem, search, task.evaluator, budget)
    checked(task, result, task.evaluator.table)  # pyright: ignore


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[[", "cannot be read as JSON"),
        ("[[" + "9" * 5000 + "]]", "cannot be read as JSON"),
        ('{"a": 1}', "give each of"),
        ("[1]", "must be a list of LLM names"),
        ("[[1, 2, 3, 4]]", "must name its LLMs"),
        ('[["GPT-5.2", "GPT-5.2", "GPT-5.2", "none"]]', "'none' is not a candidate of module"),
        ('[["GPT-5-mini", "GPT-5.2", "GPT-5.2", "GPT-5.2"]]', "lacks the reference"),
        ("[]", "at least theta_0"),
    ],
)
def test_lists_that_cannot_be_used(content, text, listed, tmp_path):
    path = tmp_path / "listed.json"
    path.write_text(content)
    with pytest.raises(InputError, match=text):
        listed_task(listed, "", configurations=str(path))


@pytest.mark.slow
@pytest.mark.parametrize("separator", ["\t", ";", "|"])
def test_a_list_is_read_like_any_table(listed, tmp_path, separator):
    """Spreadsheets of many countries write CSV with semicolons, and Excel saves text with tabs."""
    path = tmp_path / "listed.tsv"
    path.write_text((listed[0] / "listed.csv").read_text().replace(",", separator))
    task = listed_task(listed, "", configurations=str(path))
    assert task.problem == listed_task(listed, "listed.json").problem


def test_a_workbook_as_a_list_has_its_mend(listed, tmp_path):
    path = tmp_path / "listed.xlsx"
    path.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(InputError) as caught:
        listed_task(listed, "", configurations=str(path))
    mend = "an Excel workbook or a zip archive; save the sheet as CSV in UTF-8"
    assert str(caught.value) == f"{path} is {mend}"


def test_other_refusals(listed, tmp_path):
    with pytest.raises(InputError, match=r"needs task\.on_missing=restrict"):
        listed_task(listed, "listed.json", on_missing="error")
    with pytest.raises(InputError, match=r"search what there is with task\.on_missing=restrict"):
        listed_task(listed, "", configurations=None, on_missing="error")
    path = tmp_path / "runs.csv"
    own = "\n".join(f"llm{code},{code},1,1" for code in range(50))  # a query for each
    path.write_text(f"a,query,quality,cost_usd\n{own}\n")
    with pytest.raises(InputError, match=r"has 5e\+03 numbers, of 8 bytes each"):
        load_table(path, ["a"], on_missing="restrict", max_bytes=20_000)
    path.write_text("a,query,quality,cost_usd\nx,1,1,1\nx,2,1,1\ny,1,1,1\n")
    common = {"name": "t", "path": str(path), "module_columns": ["a"], "epsilon": 0.1}
    task = table_task(reference=["x"], on_missing="restrict", **common)
    assert task.problem.offered == {(1,): (0,)}
    with pytest.raises(InputError, match=r"1 cells of the reference are missing, first .*'y'.* 2"):
        table_task(reference=["y"], on_missing="restrict", **common)
    with pytest.raises(InputError, match="was never recorded"):
        list(task.evaluator.evaluate([Request((1,), 1)]))


@pytest.mark.slow
def test_the_command_line(cli, tmp_path):
    rows = ["a,b,query,quality,cost_usd"]
    rng = np.random.default_rng(0)
    for a, b in [("x", "y"), ("y", "x"), ("x", "x"), ("z", "x"), ("z", "z")]:
        price = 0.001 * (1 + "xyz".index(a) + "xyz".index(b))
        rows += [
            f"{a},{b},{q},{int(rng.uniform() < 0.8)},{price}"
            for q in range(12)
            if (a, b) != ("x", "x") or q % 2
        ]
    (tmp_path / "runs.csv").write_text("\n".join(rows) + "\n")
    listed = [["x", "y"], ["z", "z"], ["x", "x"]]
    (tmp_path / "listed.json").write_text(json.dumps(listed))
    arguments = [
        "task=table",
        "task.path=runs.csv",
        "task.module_columns=[a,b]",
        "task.reference=[z,z]",
        "task.on_missing=restrict",
        "task.configurations=listed.json",
        "base=x",
        "budget_usd=1",
        "task.epsilon=0.3",
    ]
    status, out, err = cli(*arguments)
    assert status == 0, err
    (folder,) = {path.parent for path in tmp_path.rglob("result.json")}
    settings = json.loads((folder / "settings.json").read_text())["problem"]
    assert {"allowed", "offered"} <= set(settings)
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    asked = {tuple(line["theta"]) for line in lines if "theta" in line}
    assert asked <= {(0, 1), (2, 2), (0, 0)}
    status, out, err = cli("report", str(tmp_path))
    assert out or err
