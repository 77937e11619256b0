"""A table held as rows of what was recorded, against the same table with a cell for everything."""

from dataclasses import replace

import numpy as np
import pytest

from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.evaluators import table as module
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import Request
from scope_torch.tasks.table import load_table

MODULES, LLMS = ("plan", "solve", "judge"), (("a", "b", "c"), ("a", "b"), ("a", "b", "c", "d"))
QUERIES = ("0", "1", "2")


def dense(seed: int, share: float = 0.4) -> RecordedTable:
    rng = np.random.default_rng(seed)
    sizes = tuple(map(len, LLMS))
    cells = (*sizes, len(QUERIES))
    hidden = np.broadcast_to(rng.random((*sizes, 1)) > share, cells) | (rng.random(cells) < 0.2)
    hidden = hidden.copy()
    hidden[1, 1, 1] = False  # the reference
    cost, quality, tokens = (rng.random(cells) for _ in range(3))
    for values in (cost, quality, tokens):
        values[hidden] = np.nan
    arrays = cost, quality, {"tokens": tokens}
    return RecordedTable(MODULES, LLMS, QUERIES, *arrays, partial=True)


def in_rows(table: RecordedTable, path) -> RecordedTable:
    """The same from a file."""
    lines = ["plan,solve,judge,query,quality,cost_usd,tokens"]
    numbers = table.quality, table.cost_usd, table.outcomes["tokens"]
    for *theta, query in np.argwhere(table.present).tolist():
        names = [llms[code] for llms, code in zip(LLMS, theta, strict=True)]
        at = (*theta, query)
        values = [repr(float(one[at])) for one in numbers]
        lines.append(",".join([*names, str(query), *values]))
    for llm in "abcd":  # every LLM, so that Theta is the same
        names = [llm if llm in llms else "a" for llms in LLMS]
        lines.append(",".join([*names, "empty", "", "", ""]))
    path.write_text("\n".join(lines))
    how = {"outcome_columns": ["tokens"], "on_missing": "restrict"}
    return load_table(path, MODULES, **how).first(3)


@pytest.mark.parametrize("blanks", [1 << 10, 1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_tells_them_apart(seed, blanks, tmp_path, monkeypatch):
    """The fingerprint too: a journal that was written with the one is continued with the other."""
    monkeypatch.setattr(module, "_BLANKS", blanks)
    table = dense(seed)
    rows = in_rows(table, tmp_path / "runs.csv")
    assert rows.cost_usd.shape == (table.present.any(-1).sum(), 3)
    ours, theirs = TableEvaluator(rows), TableEvaluator(table)
    assert ours.fingerprint() == theirs.fingerprint()
    reference = ["b", "b", "b"]
    assert rows.problem("t", reference, 0.1) == table.problem("t", reference, 0.1)
    for one, other in zip(ours.truth(), theirs.truth(), strict=True):
        np.testing.assert_array_equal(one, other)
    limit = at_most("tokens", 0.5, cap=0.8)
    for one, other in zip(ours.true_outcomes([limit]), theirs.true_outcomes([limit]), strict=True):
        np.testing.assert_array_equal(one, other)
    for theta in map(tuple, np.argwhere(np.ones(table.space.sizes)).tolist()):
        averages = [evaluator.average_outcome(theta, limit) for evaluator in (ours, theirs)]
        np.testing.assert_array_equal(*averages)
        for query in range(3):
            request = Request(theta, query)
            if table.present[(*theta, query)]:
                assert list(ours.evaluate([request])) == list(theirs.evaluate([request]))
                continue
            for evaluator in (ours, theirs):
                with pytest.raises(InputError, match="was never recorded"):
                    list(evaluator.evaluate([request]))


def test_any_change_changes_the_fingerprint(tmp_path, monkeypatch):
    rows = in_rows(dense(1), tmp_path / "runs.csv")
    for most in (module._ONCE_DENSE, 0):  # as if it were dense, or the rows alone
        monkeypatch.setattr(module, "_ONCE_DENSE", most)
        other = rows.rows.copy()
        other[-1] = [2, 1, 3] if tuple(other[-1]) != (2, 1, 3) else [2, 1, 2]
        changed = [replace(rows, cost_usd=2 * rows.cost_usd), replace(rows, rows=other)]
        prints = [TableEvaluator(one).fingerprint() for one in (rows, *changed)]
        assert len(set(prints)) == 3


def test_a_value_out_of_range_is_named(tmp_path):
    rows = in_rows(dense(2), tmp_path / "runs.csv")
    theta = tuple(rows.rows[3].tolist())
    query = int(np.flatnonzero(rows.present[3])[0])
    quality = rows.quality.copy()
    quality[3, query] = 1.5
    names = "', '".join(
        f"{m}': '{llms[c]}" for m, llms, c in zip(MODULES, LLMS, theta, strict=True)
    )
    with pytest.raises(InputError, match=f"quality=1.5 at .'{names}'., query {query} must be"):
        replace(rows, quality=quality)


def test_a_reference_without_a_row_is_refused(tmp_path):
    rows = in_rows(dense(2), tmp_path / "runs.csv")
    taken = set(map(tuple, rows.rows.tolist()))
    absent = next(t for t in np.ndindex(3, 2, 4) if t not in taken)
    names = [llms[code] for llms, code in zip(LLMS, absent, strict=True)]
    with pytest.raises(InputError, match="3 cells of the reference are missing"):
        rows.problem("t", names, 0.1)


def test_a_theta_of_3e9_configurations(tmp_path):
    """What was not recorded takes no memory."""
    names = [f"llm{code:03}" for code in range(1500)]
    lines = ["a,b,c,query,quality,cost_usd"]
    for code in range(1500):
        a, b, c = names[code], names[-1 - code], names[code * 7 % 1500]
        lines.append(f"{a},{b},{c},0,{(code % 5) / 4},{0.001 * (1 + code)}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    table = load_table(path, ["a", "b", "c"], on_missing="restrict")
    assert table.space.size == 1500**3
    assert table.cost_usd.shape == (1500, 1)
    problem = table.problem("t", [names[4], names[-5], names[28]], 0.1)
    assert problem.num_allowed == 1500
    (one,) = TableEvaluator(table).evaluate([Request(problem.theta_ref, 0)])
    assert (one.quality, one.cost_usd) == (1.0, 0.005)
    dearer = replace(table, cost_usd=2 * table.cost_usd)
    assert TableEvaluator(table).fingerprint() != TableEvaluator(dearer).fingerprint()


def test_what_an_array_masks_was_not_recorded():
    mask = [[True, False, False], [False] * 3]
    cost, quality = (np.ma.masked_array(np.full((2, 3), x), mask) for x in (0.1, 1.0))
    parts = ("answer",), (("mini", "pro"),), QUERIES, cost, quality
    with pytest.raises(InputError, match="'mini'}, query 0 must be a number"):
        RecordedTable(*parts)
    table = RecordedTable(*parts, partial=True)
    assert table.problem("demo", ["pro"], 0.1).offered == {(0,): (1, 2)}
    with pytest.raises(InputError, match="was never recorded"):
        list(TableEvaluator(table).evaluate([Request((0,), 0)]))
