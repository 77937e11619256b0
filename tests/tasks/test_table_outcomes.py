"""Named outcomes of recorded tables."""

import numpy as np
import pytest

from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import Request
from scope_torch.tasks.table import load_table, table_task

ROWS = """_answer,query,quality,cost_usd,tokens,seconds
mini,q1,1,0.001,10,-0.5
mini,q2,0,0.001,30,0.25
pro,q1,1,0.01,7,1
pro,q2,1,0.02,8,2
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(ROWS)
    return path


def evaluator(path, **changed) -> TableEvaluator:
    settings = {"outcome_columns": ["tokens", "seconds"], **changed}
    task = table_task(
        name="t", path=str(path), module_columns=["_answer"], reference=["pro"], epsilon=0.1,
        **settings,
    )  # fmt: skip
    assert isinstance(task.evaluator, TableEvaluator)
    return task.evaluator


def test_observations_carry_the_columns_in_their_order(path):
    made = list(evaluator(path).evaluate([Request((1,), 1), Request((0,), 0, 1)]))
    assert [o.outcomes for o in made] == [
        {"tokens": 8.0, "seconds": 2.0},
        {"tokens": 10.0, "seconds": -0.5},
    ]
    assert list(made[0].outcomes) == ["tokens", "seconds"]


def test_truth_is_the_average_over_the_queries(path):
    tokens, seconds = at_most("tokens", 50, cap=100), at_most("seconds", 1, within=(-9, 9))
    whole = evaluator(path)
    truth = [mean.tolist() for mean in whole.true_outcomes([tokens, seconds])]
    assert truth == [[20.0, 7.5], [-0.125, 1.5]]
    assert whole.average_outcome((1,), seconds) == 1.5
    (first,) = evaluator(path, num_queries=1).true_outcomes([tokens])
    assert first.tolist() == [10.0, 7.0]
    # Before the average is taken, no answer counts more than the cap.
    (capped,) = whole.true_outcomes([at_most("tokens", 5, cap=12)])
    assert capped.tolist() == [11.0, 7.5]
    slow = at_most("seconds", 0.25, quantile=0.9)
    (shares,) = whole.true_outcomes([slow])
    assert shares.tolist() == [1.0, 0.0]
    assert whole.average_outcome((0,), at_most("seconds", 0, quantile=0.9)) == 0.5


def test_without_the_option_nothing_changes(path):
    plain, named = evaluator(path, outcome_columns=[]), evaluator(path)
    (observation,) = plain.evaluate([Request((0,), 0)])
    assert observation.outcomes is None
    with pytest.raises(InputError, match=r"name its column in task\.outcome_columns"):
        plain.true_outcomes([at_most("tokens", 50, cap=100)])
    assert plain.fingerprint() == "cb9bd4582b4a7d33"
    assert named.fingerprint() != plain.fingerprint()
    assert evaluator(path, outcome_columns=["seconds", "tokens"]).fingerprint() not in (
        plain.fingerprint(),
        named.fingerprint(),
    )


@pytest.mark.parametrize(
    ("cell", "columns", "words"),
    [
        ("many", ["tokens"], ("'tokens'", "'many'", "not a number")),
        ("inf", ["tokens"], ("tokens=inf", "query q1", "finite number")),
        ("nan", ["tokens"], ("1 cells are missing", "query q1")),
        ("", ["tokens"], ("1 cells are missing", "query q1")),
        ("10", ["words"], ("no column 'words'", "seconds")),
        ("10", ["tokens", "tokens"], ("name one column twice",)),
        ("10", ["cost_usd"], ("name one column twice",)),
    ],
)
def test_columns_that_cannot_be_used_are_refused(path, cell, columns, words):
    path.write_text(ROWS.replace("0.001,10,", f"0.001,{cell},"))
    with pytest.raises(InputError) as caught:
        load_table(path, ["_answer"], outcome_columns=columns)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["quality", "cost_usd"])
def test_an_outcome_is_never_taken_for_the_quality_or_the_cost(name, path):
    own = {"quality": "quality_column", "cost_usd": "cost_column"}[name]
    with pytest.raises(InputError, match=f"outcome '{name}' has the name of the table's own"):
        load_table(path, ["_answer"], outcome_columns=[name], **{own: "tokens"})


@pytest.mark.parametrize("number", [1.5, "2", True, 0, 3])
def test_a_part_of_the_queries_is_a_whole_number(number, path):
    with pytest.raises(InputError, match="must be a whole number from 1 to 2, the queries"):
        evaluator(path, num_queries=number)


@pytest.mark.parametrize("columns", [["_answer", "_answer"], ["_answer", "query"]])
def test_a_module_column_that_is_named_twice_is_refused_as_such(columns, path):
    with pytest.raises(InputError, match="name one column twice"):
        load_table(path, columns)


def test_a_name_with_braces_is_refused(path):
    path.write_text(ROWS.replace("tokens", "{tokens}"))
    with pytest.raises(InputError, match="without braces"):
        load_table(path, ["_answer"], outcome_columns=["{tokens}"])


def test_queries_without_an_outcome_can_be_dropped(path):
    path.write_text(ROWS.replace("0.001,10,", "0.001,,"))
    table = load_table(path, ["_answer"], outcome_columns=["tokens"], on_missing="drop_queries")
    assert table.queries == ("q2",)
    np.testing.assert_array_equal(table.outcomes["tokens"], [[30.0], [8.0]])


@pytest.mark.parametrize("cost", ["true", "FALSE"])
@pytest.mark.parametrize("other", ["0.1", "true"])
def test_a_cost_that_is_a_truth_value_is_refused(cost, other, tmp_path):
    """A quality may be right or wrong; a bill is neither."""
    path = tmp_path / "runs.csv"
    path.write_text(f"llm,query,quality,cost_usd\na,1,true,{cost}\nb,1,false,{other}\n")
    with pytest.raises(InputError, match=r"'cost_usd' has 'true|'cost_usd' has '(?i:false)'"):
        load_table(path, ["llm"])
    path.write_text("llm,query,quality,cost_usd\na,1,true,0.2\nb,1,false,0.1\n")
    assert load_table(path, ["llm"]).quality[:, 0].tolist() == [1.0, 0.0]


def test_averages_of_small_floats_are_taken_in_float64():
    """19 of 20 runs keep the bound: 0.95 exactly, and no least share of 0.95 is missed."""
    seconds = np.tile(np.array([7.0] * 19 + [9.0], dtype=np.float32), (2, 1))
    ones = np.ones((2, 20), dtype=np.float32)
    names = tuple(map(str, range(20)))
    table = RecordedTable(("a",), (("mini", "pro"),), names, ones, ones, {"latency_s": seconds})
    ours = TableEvaluator(table)
    assert ours.average_outcome((1,), at_most("latency_s", 8, quantile=0.95)) == 19 / 20
    mean = at_most("latency_s", 8, within=(0, 10))
    tenths = RecordedTable(
        ("a",), (("mini", "pro"),), names, ones, ones, {"latency_s": np.full_like(seconds, 0.1)}
    )
    assert TableEvaluator(tenths).average_outcome((1,), mean) == float(np.float32(0.1))
