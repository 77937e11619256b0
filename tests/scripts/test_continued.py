"""The evidence of docs/howto/continue.md: its table is made of the committed runs."""

import csv

import pytest

from scope_torch.tasks.synthetic import synthetic_task
from scripts.continued import BEGIN, END, FILE, PAGE, block, compare, main, table


def test_the_table_of_the_page_is_made_of_the_committed_runs():
    between = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert between.strip() == block()


def test_a_search_that_never_gets_near_counts(tmp_path):
    """It is infinitely dear until then, and what it has spent to the end is not left out."""
    lines = ["task,world_seed,added,llm,seed,search,calls,spend_usd,near_usd,of_optimum,feasible"]
    for seed, spent, near in ((0, 1, 1), (1, 1, 1), (2, 9, "")):
        lines.append(f"mathqa,,each,x,{seed},continued,1,{spent},{near},1,True")
        lines.append(f"mathqa,,each,x,{seed},fresh,1,2,2,1,True")
    path = tmp_path / "continued.csv"
    path.write_text("\n".join(lines) + "\n")
    cells = table(path).splitlines()[-1].split(" | ")
    assert cells[3:7] == ["0.500 (0.500 to inf)", "0.500", "0.500, 1.833", "2, 3"]


def test_a_pair_has_three_searches():
    searches = {}
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in ("task", "world_seed", "added", "llm", "seed"))
            searches.setdefault(key, []).append(row["search"])
    assert len(searches) > 50
    assert {tuple(names) for names in searches.values()} == {("older", "continued", "fresh")}


@pytest.mark.slow
def test_the_older_search_lacks_the_llm_and_the_new_one_knows_the_rest():
    task = synthetic_task()
    found = compare(task, "small", "nano", seed=0, budget_usd=3.0)
    codes = [names.index("nano") for names in task.problem.llms]
    older, continued = found["older"], found["continued"]
    assert all("nano" not in names for names in older.problem.llms)
    known = continued.known
    assert len(known) == len(older.history)
    assert not any(code == nano for o in known for code, nano in zip(o.theta, codes, strict=True))
    assert len(found["fresh"].known) == 0
    asked = {(o.theta, o.query) for o in continued.history}
    assert not asked & {(o.theta, o.query) for o in known}


@pytest.mark.slow
def test_runs_are_added_to_a_file(tmp_path):
    path = tmp_path / "runs.csv"
    arguments = ["task=synthetic", "task.num_queries=20", "budget_usd=0.5", "--added", "any"]
    for seed in ("0", "1"):
        main([*arguments, "--seeds", seed, "--to", str(path)])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0"] * 3 + ["1"] * 3
    fresh = rows[2]
    near = float(fresh["near_usd"])
    assert 0 < near <= float(fresh["spend_usd"]) <= 0.5 * 1.5
    assert table(path).count("\n") == 2


def test_what_cannot_be_added_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["task=synthetic", "--added", "none", "--to", str(tmp_path / "x.csv")])
    assert "invalid choice" in capsys.readouterr().err
