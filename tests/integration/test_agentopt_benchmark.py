"""AgentOpt's selectors on a small table; those that need the package are skipped without it."""

from pathlib import Path

import numpy as np
import pytest

from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable
from scope_torch.tasks.files import find_data
from scripts.agentopt_selectors import PAGE, SELECTORS, Lookup, search, select, table_of

ROOT = Path(__file__).resolve().parents[2]
LLMS = ("mini", "pro")
QUALITY = np.zeros((2, 2, 20))
QUALITY[1, 0] = 1.0  # pro, mini is right on all queries
QUALITY[1, 1, :12] = 1.0
TABLE = RecordedTable(
    ("planner", "solver"),
    (LLMS, LLMS),
    tuple(map(str, range(20))),
    np.arange(80.0).reshape(2, 2, 20),
    QUALITY,
    {"output_tokens": np.ones((2, 2, 20))},
)


def test_a_pair_is_paid_for_once():
    lookup = Lookup(TABLE)
    application = lookup({"solver": "mini", "planner": "pro"})
    assert [application.run(3), application.run(3), application.run(4)] == [1.0, 1.0, 1.0]
    assert lookup.spend_usd == TABLE.cost_usd[1, 0, 3] + TABLE.cost_usd[1, 0, 4]


@pytest.mark.parametrize("selector", ["brute_force", "arm_elimination", "random_search"])
def test_selectors_choose_from_the_table(selector):
    pytest.importorskip("agentopt")
    made = select(TABLE, selector, seed=1)
    assert made == select(TABLE, selector, seed=1)
    assert made["best_quality"] == 1.0
    if selector == "brute_force":
        assert made["choice"] == "pro + mini"
        assert made["spend_usd"] == TABLE.cost_usd.sum()
    if selector == "random_search":  # a quarter of four configurations, on all queries
        assert made["spend_usd"] in TABLE.cost_usd.sum(-1)
    assert made["selector"] in SELECTORS


def test_the_table_sums_up_the_runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "task,selector,seed,spend_usd,choice,true_quality,best_quality\n"
        "t,a,0,1.0,x,0.9,0.9\nt,a,1,3.0,y,0.7,0.9\nt,b,0,5.0,x,0.9,0.9\n"
        "t,scope_joint within a,0,2.0,x,0.8,0.9\n"
    )
    assert table_of(path).splitlines()[2:] == [
        "| t | a | 2 | 2.00 | 50% | 0.1000, 0.2000 | 0% | 0.1000, 0.1000 |",
        "| t | b | 1 | 5.00 | 100% | 0.0000, 0.0000 |  |  |",
    ]


def test_the_page_has_the_table_of_the_committed_runs():
    text = PAGE.read_text()
    assert table_of(ROOT / "benchmarks" / "agentopt_selectors.csv") in text


def test_scope_joint_finds_the_best():
    try:
        find_data("agentopt/hotpotqa_compact.csv.gz")
    except InputError:
        pytest.skip("the recorded table is not here")
    end, early = search("hotpotqa", {"bayesian": 10.93}, seed=2)
    assert end["true_quality"] == end["best_quality"]
    assert early["spend_usd"] == 10.93 < end["spend_usd"] < 20
    assert early["best_quality"] - early["true_quality"] < 0.03
