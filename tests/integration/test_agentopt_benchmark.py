"""AgentOpt's selectors on a small table; those that need the package are skipped without it."""

from dataclasses import replace

import numpy as np
import pytest
from real_data import table_or_skip

from benchmarks.agentopt import ours, selectors
from benchmarks.agentopt.__main__ import Rows
from benchmarks.agentopt.selectors import SELECTORS, SURVIVORS, Lookup
from benchmarks.agentopt.tables import FILES, PAGE, RESULTS, home_table, runs_of, table_of
from benchmarks.results.agentopt import in_one_slot
from scope_torch.evaluators.table import RecordedTable
from scope_torch.problem import SelectionProblem

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


def problem(reference_quality=1.0, epsilon=0.5, theta_ref=(1, 1)):
    return SelectionProblem(
        "small",
        ("planner", "solver"),
        (LLMS, LLMS),
        20,
        theta_ref=theta_ref,
        reference_quality=reference_quality,
        reference_cost_usd=69.5,
        epsilon=epsilon,
    )


def test_a_pair_is_paid_for_once():
    lookup = Lookup(TABLE)
    application = lookup({"solver": "mini", "planner": "pro"})
    assert [application.run(3), application.run(3), application.run(4)] == [1.0, 1.0, 1.0]
    assert lookup.spend_usd == TABLE.cost_usd[1, 0, 3] + TABLE.cost_usd[1, 0, 4]
    assert lookup.sampled() == {(1, 0): (43.5, 1.0, 2)}


def test_a_list_of_configurations_is_one_slot():
    """AgentOpt searches products only; of a list it must buy no configuration that is not on it."""
    rows = np.array([[0, 0], [1, 0], [1, 1]])
    at = tuple(rows.T)
    listed = replace(
        TABLE,
        cost_usd=TABLE.cost_usd[at],
        quality=TABLE.quality[at],
        outcomes={},
        partial=True,
        rows=rows,
    )
    given = listed.problem("listed", ["pro", "pro"], epsilon=0.5)
    of_one, one = in_one_slot(given, listed)
    assert one.llms == (("mini / mini", "pro / mini", "pro / pro"),)
    assert one.space.size == 3
    assert (one.cost_usd == listed.cost_usd).all()
    assert (one.quality == listed.quality).all()
    assert (of_one.s_0, of_one.reference_cost_usd) == (given.s_0, given.reference_cost_usd)
    assert of_one.names(of_one.theta_ref) == {"all": "pro / pro"}
    assert in_one_slot(problem(), TABLE)[1] is TABLE
    lookup = Lookup(one)
    lookup({"all": "pro / mini"}).run(3)
    assert lookup.spend_usd == TABLE.cost_usd[1, 0, 3]
    assert lookup.get_cached_latency() == 0.0  # without tokens nothing breaks a tie


@pytest.mark.parametrize("selector", ["brute_force", "arm_elimination", "random_search"])
def test_selectors_choose_the_best_quality(selector):
    pytest.importorskip("agentopt")
    made = selectors.best_quality(TABLE, selector, seed=1)
    assert made == selectors.best_quality(TABLE, selector, seed=1)
    assert made["best_quality"] == 1.0
    if selector == "brute_force":
        assert made["choice"] == "pro + mini"
        assert made["spend_usd"] == TABLE.cost_usd.sum()
    if selector == "random_search":  # a quarter of four configurations, on all queries
        assert made["spend_usd"] in TABLE.cost_usd.sum(-1)
    assert made["selector"] in SELECTORS


def _sampled(monkeypatch, cells):
    """AgentOpt in place of which these cells were run."""

    def run(table, selector, seed, **settings):
        assert settings == ({"threshold": 0.5} if selector == "threshold_se" else {})
        lookup = Lookup(table)
        for cell in cells:
            lookup.quality(cell)
        return lookup, {}

    monkeypatch.setattr(selectors, "_run", run)


@pytest.mark.parametrize("selector", ["arm_elimination", "threshold_se", SURVIVORS])
def test_the_user_takes_the_cheapest_that_looks_good_enough(selector, monkeypatch):
    """0.6 on all queries; all right on the first two; never right."""
    cells = [(1, 1, 0), (1, 1, 1), *[(0, 0, query) for query in range(20)]]
    _sampled(monkeypatch, [*cells, *[(1, 0, query) for query in (18, 19)]])
    row = selectors.least_cost(TABLE, problem(), selector, seed=7)
    assert (row["selector"], row["seed"], row["s_0"]) == (selector, 7, 0.5)
    if selector == SURVIVORS:  # that is the one that is never right
        assert (row["found"], row["choice"], row["true_quality"]) == (0, "pro + pro", 0.6)
    else:
        assert (row["found"], row["choice"], row["true_quality"]) == (1, "pro + mini", 1.0)
    assert row["spend_usd"] == sum(range(20)) + 60 + 61 + 58 + 59
    assert row["least_cost_usd"] == np.arange(40, 60).mean()


@pytest.mark.parametrize("selector", selectors.OF_COST)
def test_the_selectors_are_agentopts_own(selector):
    pytest.importorskip("agentopt")
    row = selectors.least_cost(TABLE, problem(), selector, seed=1)
    asked = TABLE.cost_usd.sum()
    assert 0 < row["spend_usd"] <= asked
    assert set(row["choice"].split(" + ")) <= set(LLMS)
    if selector == "brute_force":
        assert (row["choice"], row["found"], row["spend_usd"]) == ("pro + mini", 1, asked)
    if selector == "random_search":  # it breaks no ties by seconds
        assert row == selectors.least_cost(TABLE, problem(), selector, seed=1)


def _row(selector, spend, quality, cost, found=1):
    return f"t,{selector},0,{spend},x,{quality},0.7,{cost},2.0,{found}"


def test_the_table_of_costs(tmp_path):
    path = tmp_path / "runs.csv"
    columns = "task,selector,seed,spend_usd,choice,true_quality,s_0,true_cost_usd,least_cost_usd"
    rows = [_row("a", 1, 0.7, 2.0), _row("a", 2, 0.8, 5.0), _row("a", 3, 0.6, 1.0)]
    rows += [_row("a", 4, 0.9, 9.0, found=0), _row("b", 5, 0.1, 1.0)]
    path.write_text("\n".join([f"{columns},found", *rows]) + "\n")
    assert table_of("cost", path).splitlines()[2:] == [
        "| t | a | 2.50 (1.75 to 3.25) | 1 | 75% | 25% | 2.50, 4.50 |",
        "|  | b | 5.00 (5.00 to 5.00) | 0 | 0% | 0% | |",
    ]


def test_the_table_of_qualities(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "task,selector,seed,spend_usd,choice,true_quality,best_quality\n"
        "u,a,0,2.0,x,0.9,0.9\n"
        "t,a,0,1.0,x,0.9,0.9\nt,a,1,3.0,y,0.7,0.9\nt,b,0,5.0,x,0.9,0.9\n"
        "t,scope_joint within a,0,2.0,x,0.8,0.9\n"
    )
    assert table_of("quality", path).splitlines()[2:] == [
        "| t | a | 2.00 | 50% | 0.100, 0.200 | 0% | 0.100, 0.100 |",
        "|  | b | 5.00 | 100% | 0.000, 0.000 |  |  |",
        "| u | a | 2.00 | 100% | 0.000, 0.000 |  |  |",
    ]


def test_a_file_of_rows_knows_the_runs_that_it_has(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("task,selector,seed,found\n")
    assert not Rows(path).has("t", "a", 3)
    Rows(path).add("t", {"selector": "a", "seed": 3, "found": 1})
    assert Rows(path).has("t", "a", 3)
    assert not Rows(path).has("t", "a", 4)
    assert path.read_text().splitlines()[1:] == ["t,a,3,1"]


@pytest.mark.parametrize("objective", FILES)
def test_the_page_has_the_table_of_the_committed_runs(objective):
    assert table_of(objective, FILES[objective]) in PAGE.read_text()
    numbers = {selector: len(rows) for (_, selector), rows in runs_of(FILES[objective]).items()}
    expected = {*selectors.OF_COST, *ours.METHODS} if objective == "cost" else {*SELECTORS}
    assert expected <= numbers.keys()
    assert set(numbers.values()) == {20}


def test_the_first_page_shows_the_committed_runs():
    assert home_table(FILES["cost"]) in RESULTS.read_text()


def _needs_table(task):
    table_or_skip(f"agentopt/{task}_compact.csv.gz")


@pytest.mark.slow
def test_scope_joint_finds_the_best():
    _needs_table("hotpotqa")
    end, early = ours.best_quality("hotpotqa", {"bayesian": 10.93}, seed=2)
    assert end["true_quality"] == end["best_quality"]
    assert early["spend_usd"] == 10.93 < end["spend_usd"] < 20
    assert early["best_quality"] - early["true_quality"] < 0.03


@pytest.mark.parametrize(
    "method", [ours.METHODS[0], pytest.param(ours.METHODS[1], marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_a_committed_run_of_ours_is_what_comes_out_today(method):
    _needs_table("mathqa")
    made = ours.least_cost("mathqa", method, seed=3)
    row = next(
        row for row in runs_of(FILES["cost"])["mathqa", method] if row["seed"] == str(made["seed"])
    )
    assert row["choice"] == made["choice"]
    assert float(row["spend_usd"]) == pytest.approx(made["spend_usd"], rel=1e-3)
