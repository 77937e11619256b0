"""The recorded tasks on made-up files of the same form: nobody's rows are in the repository."""

import csv
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose, config_dir
from scope_torch.errors import InputError
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.averages import averages_table, averages_task

FOLDER = Path(config_dir()) / "task" / "recorded"
TASKS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
QUERIES = 30


def names_of(cfg) -> list[list[str]]:
    """LLMs of each module: of the reference, of the base, and others."""
    pairs = zip(cfg.task.reference, base_of(cfg), strict=True)
    return [sorted({*pair, f"x{i}", f"y{i}"}) for i, pair in enumerate(pairs)]


def base_of(cfg) -> list[str]:
    return [cfg.base] * len(cfg.task.reference) if isinstance(cfg.base, str) else list(cfg.base)


def write_table(cfg, path: Path) -> None:
    rng, names = np.random.default_rng(0), names_of(cfg)
    skill = [dict(zip(llms, rng.uniform(0.3, 1.0, len(llms)), strict=True)) for llms in names]
    rows = []
    for theta in itertools.product(*names):
        is_reference = list(theta) == list(cfg.task.reference)
        is_base = list(theta) == base_of(cfg)
        has_holes = cfg.task.on_missing == "restrict" and not is_reference
        if has_holes and not is_base and rng.random() < 0.3:
            continue
        for query in range(QUERIES):
            if has_holes and rng.random() < 0.02:
                continue
            good = (
                1.0
                if is_reference
                else np.mean([of[llm] for of, llm in zip(skill, theta, strict=True)])
            )
            usd = (10.0 if is_reference else 1.0) * rng.lognormal(0, 0.3)
            rows.append([*theta, f"q{query}", float(rng.random() < good), 1e-3 * usd])
    columns = [*cfg.task.module_columns, "query", "quality", "cost_usd"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        path.write_text(frame.write_csv())  # a table is recognised by its content


def write_averages(folder: Path, modules=3, base="gemini") -> None:
    """A recording of most configurations, with the costs of two."""
    rng, names = np.random.default_rng(1), ["gpt-5.2", "mini", "nano", base]
    codes = [f"c{i}" for i in range(len(names))]
    thetas = list(itertools.product(range(len(names)), repeat=modules))
    thetas = [t for t in thetas if t[0] == t[-1] or rng.random() < 0.4]
    lines = {
        "llms.csv": [["code", "name"], *zip(codes, names, strict=True)],
        "configs.csv": [["row", "config_id", *(f"m{i}" for i in range(modules))]],
        "averages.csv": [["row", "correct", "mean_cost_usd"]],
        "cost_head.csv": [],
    }
    accuracy = []
    for row, theta in enumerate(thetas):
        config = str(row + 7)
        right = (rng.random(QUERIES) < 0.9 - 0.05 * np.mean(theta)).astype(int)
        usd = 0.01 / (1 + sum(theta)) * rng.lognormal(0, 0.2, QUERIES)
        lines["configs.csv"].append([row, config, *(codes[llm] for llm in theta)])
        lines["averages.csv"].append([row, right.sum(), usd.mean()])
        if row < 2:
            lines["cost_head.csv"].append([config, *usd])
        if row != 5:  # of one it is not known which answers are right
            accuracy.append(f"{config} {''.join(map(str, right))}")
    for name, rows in lines.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    (folder / "accuracy.txt").write_text("\n".join(accuracy) + "\n")


# One module, two of the same LLMs, two with holes, averages; the others differ in names and sizes.
SEARCHED = ("agentopt_bfcl", "bfcl_fallback", "openhands_gaia", "restaurant")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SEARCHED else pytest.mark.slow) for name in TASKS],
)
def test_a_recorded_task_is_searched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SCOPE_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cfg = compose([f"task=recorded/{name}"])
    path = tmp_path / cfg.task.path
    assert cfg.task.path.startswith("recordings/")
    assert cfg.task.name == f"recorded_{name}"
    if "module_columns" in cfg.task:
        path.parent.mkdir(parents=True)
        write_table(cfg, path)
    else:
        path.mkdir(parents=True)
        base = "gemini" if not isinstance(cfg.base, str) else cfg.base
        write_averages(path, modules=len(cfg.task.reference), base=base)
    task = build(cfg.task)
    problem = task.problem
    assert list(problem.names(problem.theta_ref).values()) == list(cfg.task.reference)
    base = cfg.base if isinstance(cfg.base, str) else list(cfg.base)
    optimizer = make_scope_joint(problem, base=base, budget_usd=cfg.budget_usd)
    result = run(problem, optimizer, task.evaluator, 3 * QUERIES * problem.reference_cost_usd)
    asked = [set(llms) for llms in zip(*(one.theta for one in result.history), strict=True)]
    assert [len(llms) for llms in asked] == [len(llms) for llms in problem.llms], "every LLM"
    assert all(problem.is_allowed(one.theta) for one in result.history)


def test_every_task_says_what_it_is_for():
    page = (Path(__file__).parents[2] / "docs" / "recorded.md").read_text()
    assert len(TASKS) == 12
    for name in TASKS:
        lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
        says = lines[1].removeprefix("# ").split(".")[0].split(",")[0]
        assert says in ("For choosing", "Only for reporting")
        rows = [row.split("|") for row in page.splitlines() if row.startswith("| `")]
        (use,) = [row[4] for row in rows if f"`{name}`" in row[1] and row[4].strip().isalpha()]
        assert use.strip() == says.split()[-1]
        assert yaml.safe_load("\n".join(lines))["task"]["source"]


def test_drawn_costs_have_the_recorded_averages(tmp_path):
    write_averages(tmp_path)
    table = averages_table(tmp_path, (0.3, 0.8), 0.5)
    mean = {row[0]: float(row[2]) for row in rows_of(tmp_path / "averages.csv")[1:]}
    configs = {tuple(row[2:]): row for row in rows_of(tmp_path / "configs.csv")[1:]}
    code = {name: code for code, name in rows_of(tmp_path / "llms.csv")[1:]}
    head = {row[0]: row[1:] for row in rows_of(tmp_path / "cost_head.csv")}
    right = dict(line.split() for line in (tmp_path / "accuracy.txt").read_text().splitlines())
    assert len(table.rows) == len(right) == len(configs) - 1
    assert table.rows.tolist() == sorted(table.rows.tolist())
    as_recorded = 0
    for theta, cost, quality in zip(
        table.rows.tolist(), table.cost_usd, table.quality, strict=True
    ):
        names = [llms[one] for llms, one in zip(table.llms, theta, strict=True)]
        row, config, *_ = configs[tuple(code[name] for name in names)]
        assert cost.mean() == pytest.approx(mean[row], rel=1e-9)
        assert "".join(str(int(one)) for one in quality) == right[config]
        if config in head:
            as_recorded += 1
            assert cost.tolist() == pytest.approx([float(one) for one in head[config]])
    assert as_recorded == 2


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    ("low", "high", "shared"), [(0.1, 0.45, 0.0), (0.2, 0.9, 0.5), (0.3, 0.3, 1.0)]
)
def test_draws_have_the_spread_and_the_correlation_that_is_asked_for(
    low, high, shared, tmp_path, monkeypatch
):
    monkeypatch.setitem(globals(), "QUERIES", 2000)
    write_averages(tmp_path)
    (tmp_path / "cost_head.csv").write_text("none" + ",1" * QUERIES + "\n")
    logs = np.log(averages_table(tmp_path, (low, high), shared).cost_usd)
    sd = logs.std(1)
    assert low * 0.9 < sd.min() <= sd.max() < high * 1.1
    assert np.ptp(sd) > 0.7 * (high - low)
    correlation = np.corrcoef(logs)[np.triu_indices(len(logs), 1)]
    assert correlation.mean() == pytest.approx(shared, abs=0.05)
    evaluators = [
        TableEvaluator(averages_table(tmp_path, (low, high), shared, s)) for s in (0, 0, 1)
    ]
    prints = [evaluator.fingerprint() for evaluator in evaluators]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("llms.csv", "code,name\nc0,gpt-5.2\n", "configs.csv has 'c"),
        ("averages.csv", "row,correct,mean_cost_usd\n0,1,x\n", "could not convert string to float"),
        ("averages.csv", "row,correct,mean_cost_usd\n0,1,1\n", "configs.csv has '.*', the other"),
        ("configs.csv", "row,config_id,m0\n0,7\n", "rows of different lengths"),
        ("accuracy.txt", f"7 {'2' * QUERIES}\n", r"quality=2.0 at .* must be in \[0, 1\]"),
        ("cost_head.csv", "7,1\n", "rows of different lengths"),
        ("accuracy.txt", "", "has no rows"),
        ("accuracy.txt", "x 01\n", "has accuracy"),
    ],
)
def test_damaged_files_are_refused(name, content, text, tmp_path):
    write_averages(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=text):
        averages_table(tmp_path, (0.1, 0.4), 0.0)


@pytest.mark.parametrize(
    ("log_sd", "shared"), [((0.4, 0.1), 0.0), ((-0.1, 0.1), 0), ((0, 1), 1.5), ((1,), 0)]
)
def test_wrong_draws_are_refused(log_sd, shared, tmp_path):
    write_averages(tmp_path)
    with pytest.raises(InputError, match="log_sd="):
        averages_table(tmp_path, log_sd, shared)


def test_an_absent_folder_says_where_to_get_it():
    how = {"reference": ["a"], "log_sd": (0, 1), "shared": 0.0, "source": "from nowhere"}
    with pytest.raises(InputError, match=r"no data folder .* source: from nowhere"):
        averages_task(name="t", path="recordings/none", **how)
