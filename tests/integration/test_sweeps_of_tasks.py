"""Sweeps over what makes another task: each value has a folder and a row of its own."""

import csv
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from long_runs import among_others
from omegaconf import OmegaConf

from hydra_plugins.scope_torch_sweeper import CollectingSweeper
from scope_torch.cli.report import report
from scope_torch.cli.run import run_dir

LLMS = ("nano", "mini", "pro")


def write_table(path: str, price: float) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["plan", "solve", "query", "quality", "cost_usd"])
        for i, plan in enumerate(LLMS):
            for k, solve in enumerate(LLMS):
                rows.writerows([plan, solve, f"q{n}", 1, price * 10 ** (i + k)] for n in range(8))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, path in enumerate(["a/runs.csv", "a_runs.csv", "b.csv"], 1):
        write_table(path, number * 1e-4)
    return [
        "task=table", "task.module_columns=[plan,solve]", "task.epsilon=0.1", "base=nano",
        "budget_usd=0.02",
    ]  # fmt: skip


def folders() -> list[str]:
    found = Path("outputs").rglob("result.json")
    return sorted(str(path.parent.relative_to("outputs")) for path in found)


PATHS = "task.path=a/runs.csv,a_runs.csv,b.csv"
TWO_PATHS = "task.path=a/runs.csv,a_runs.csv"
REFERENCES = "task.reference=[pro,pro],[mini,pro]"


@pytest.mark.parametrize(
    ("swept", "fixed", "number"),
    [
        among_others([PATHS], ["task.reference=[pro,pro]"], 3),
        ([REFERENCES], ["task.path=b.csv"], 2),
        ([TWO_PATHS, REFERENCES, "seed=0,1"], [], 8),
    ],
)
@pytest.mark.slow
def test_each_value_has_a_folder_and_a_row(cli, undrawn, tables, swept, fixed, number):
    status, _, err = cli("-m", *tables, *fixed, *swept)
    assert status == 0, err
    first = folders()
    assert len(first) == number
    assert cli("-m", *tables, *fixed, *swept)[0] == 0  # finished runs are skipped
    assert folders() == first
    seeds = 2 if "seed=0,1" in swept else 1
    with_rows = report(Path("outputs"))
    rows = [line for line in with_rows.splitlines() if line.startswith("| table")]
    assert len(rows) == len({row.split("|")[1] for row in rows}) == number // seeds
    assert all(row.split("|")[3].strip() == str(seeds) for row in rows)
    assert all(f"{swept[0].partition('=')[0].removeprefix('task.')}=" in row for row in rows)


@pytest.mark.parametrize(
    "swept",
    [
        "llm.base_url=http://one.test/v1,http://two.test/v1",
        "+llm.extra_body.temperature=0,1",
        "evaluator=live,recorded",
        "device=cpu,cuda",
        "description.system=one,two",
    ],
)
def test_jobs_that_differ_have_folders_that_differ(swept):
    long = [f"task.world.noise.{'x' * 150}=1"]
    for more in ([], long):
        overrides = OverridesParser.create().parse_overrides(["task=hotpotqa", *more, swept])
        ((one, two),) = CollectingSweeper.split_arguments(overrides, None)
        (of_sweep,) = {job[-1] for job in (one, two)}
        cfg = OmegaConf.create(
            {"task": {"name": "t"}, "method": {"name": "m"}, "experiment": "", "output_dir": "o"}
            | {"seed": 0, "swept": of_sweep.removeprefix("swept=[").removesuffix("]").split(",")}
        )
        assert run_dir(cfg, one) != run_dir(cfg, two)


def test_jobs_whose_long_names_are_cut_have_folders_that_differ():
    long, swept = f"task.of.{'x' * 150}=1", "method.u_out_floor=true,false"
    overrides = OverridesParser.create().parse_overrides(["task=hotpotqa", long, swept])
    ((one, two),) = CollectingSweeper.split_arguments(overrides, None)
    cfg = OmegaConf.create(
        {"task": {"name": "t"}, "method": {"name": "m"}, "experiment": "", "output_dir": "o"}
        | {"seed": 0, "swept": ["method.u_out_floor"]}
    )
    assert run_dir(cfg, one) != run_dir(cfg, two)


@pytest.mark.slow
def test_what_a_sweep_does_not_change_is_not_in_the_path(cli, tables):
    """So the runs of older versions are found again."""
    fixed = [*tables, "task.path=b.csv", "task.reference=[pro,pro]"]
    assert cli("-m", *fixed, "seed=0,1", "method=scope,scope_joint")[0] == 0
    assert cli(*fixed, "seed=2", "method=scope")[0] == 0
    variant = "base=nano,task.epsilon=0.1"
    names = [("scope", 0), ("scope", 1), ("scope", 2), ("scope_joint", 0), ("scope_joint", 1)]
    assert folders() == [f"table/{method}/{variant}/seed={seed}" for method, seed in names]


@pytest.mark.slow
def test_worlds_have_rows_of_their_own(cli, undrawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = ["task.world_seed=3,4", "seed=0,1", "task.num_queries=20", "budget_usd=0.5"]
    assert cli("-m", "task=synthetic", *swept)[0] == 0
    rows = [line for line in report(Path("outputs")).splitlines() if line.startswith("| synth")]
    assert [row.split("|")[1].strip() for row in rows] == [
        "synthetic, world_seed=3",
        "synthetic, world_seed=4",
    ]
    assert all(row.split("|")[3].strip() == "2" for row in rows)
