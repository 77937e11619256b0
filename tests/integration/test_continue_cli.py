"""`continue_from` on the command line: the same table, later with one LLM more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from integration.doc_pages import DOCS
from test_cli import write_table


def arguments(path, *more):
    return [
        "task=table",
        f"task.path={path}",
        "task.module_columns=[plan,solve]",
        "task.reference=[c-pro,c-pro]",
        "task.epsilon=0.3",
        "base=a-nano",
        "budget_usd=1.0",
        *more,
    ]


def without_mini(rows):
    return [row for row in rows if "b-mini" not in (row["plan"], row["solve"])]


def result_of(folder):
    (path,) = folder.rglob("result.json")
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scope", "scope_joint"])
def test_a_run_continues_from_another(cli, tmp_path, method):
    old = write_table(tmp_path / "june.csv", mutate=without_mini)
    new = write_table(tmp_path / "july.csv")
    results = {}
    for name, path, more in (("june", old, []), ("july", new, [""]), ("fresh", new, [])):
        if more:
            older = next(Path("june").rglob("journal.jsonl")).parent
            more = [f"continue_from=['{older}']"]
        options = f"method={method}", f"output_dir={name}", *more
        status, _, err = cli(*arguments(path, *options))
        assert (status, err) == (0, "")
        results[name] = json.loads(next(Path(name).rglob("result.json")).read_text())
    assert results["july"]["theta_out"] == {"plan": "b-mini", "solve": "b-mini"}
    (source,) = results["july"]["known"]["sources"]
    assert source["path"] == str(older.resolve())
    assert source["used"] > 0
    assert results["july"]["spend_usd"] < results["fresh"]["spend_usd"]


def test_the_page_shows_forms_that_hydra_reads():
    """Every directory of a run ends in seed=S."""
    written = re.findall(r"`'(continue_from=.*?)'`", (DOCS / "howto/continue.md").read_text())
    values = [OverridesParser.create().parse_override(one).value() for one in written]
    assert list(map(str, values)) == ["outputs/.../seed=0", "['A', 'B']"]


@pytest.mark.slow
def test_a_method_that_knows_nothing_of_older_runs_says_so(cli, tmp_path):
    path = write_table(tmp_path / "july.csv")
    assert cli(*arguments(path, "method=scope"))[0] == 0
    older = next(Path("outputs").rglob("journal.jsonl")).parent
    options = "method=random_search", f"continue_from='{older}'"
    status, _, err = cli(*arguments(path, *options))
    assert status == 2
    assert "uses no observations of earlier runs; scope and scope_joint do" in err
    assert not list(Path("outputs").rglob("known.json"))
