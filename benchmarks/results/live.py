"""Live searches with local LLMs: from their directories into docs/results/live.csv.

    python scripts/local_llms.py serve --dir local_llms --slots 8
    scope-torch task=restaurant_live task.name=restaurant_test_local +task.data.search=test \\
      +task.data.num_records=1 task.epsilon=0.05 task.price_file=local_llms.toml \\
      "task.reference=[Qwen2.5-Coder-1.5B few-shot]" "base=Qwen2.5-Coder-0.5B few-shot" \\
      "task.llms=[SmolLM2-135M,Qwen2.5-Coder-0.5B,Qwen2.5-Coder-0.5B few-shot,\\
      Qwen2.5-Coder-1.5B few-shot]" llm.base_url=http://127.0.0.1:18130/v1 llm.api_key_env=null \\
      llm.timeout_s=600 llm.concurrency=4 +llm.extra_body.cache_prompt=true \\
      method.batch_size=4 budget_usd=0.05 seed=10
    scope-torch evaluate --run RUN --on search task=restaurant_live ...
    python -m benchmarks.results.live RUN ...

The others differ by

- 156 queries of Restaurant: task.name=restaurant_valid_local budget_usd=0.08, without
  +task.data.search=test
- Bing-QueryLogs: --slots 16, task=transformation_live task.name=tde_local
  "base=Qwen2.5-Coder-1.5B few-shot" llm.timeout_s=900 llm.concurrency=3, without +task.data
- 24 pairs of Amazon-Google, the two modules that describe a product with a smaller LLM in the
  reference: task=amazon_google_live task.name=amazon_google_local +task.data.balanced=true
  task.num_queries=24 task.epsilon=0.1 "task.reference=[Qwen2.5-Coder-0.5B few-shot,
  Qwen2.5-Coder-0.5B few-shot,Qwen2.5-Coder-1.5B few-shot]" llm.timeout_s=900 budget_usd=0.0037,
  without the two of Restaurant
- BIRD's questions about superheroes: --slots 16 --context 4096, task=bird_live
  task.name=bird_superhero_local +task.data.db_ids=superhero +task.system.max_tokens=200
  task.epsilon=0.1 "task.llms=[SmolLM2-135M,Qwen2.5-Coder-0.5B,Qwen2.5-Coder-1.5B]"
  "task.reference=[Qwen2.5-Coder-1.5B]" base=Qwen2.5-Coder-0.5B llm.timeout_s=900
  llm.concurrency=2 method.in_flight=2 budget_usd=0.03, without the two of Restaurant

Only numbers and names of LLMs are kept, none of the data.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results.planned import read_rows
from benchmarks.results.summary import Row, markdown, percent
from scope_torch.cli.paper import paper_numbers
from scope_torch.runs.recorded import RecordedRun, read_run

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "live.csv"
# By the task's first word.
PAPER = {"restaurant": "data_imputation", "tde": "data_transformation", "bird": "text_to_sql"}
COLUMNS = (
    "run", "method", "seed", "queries", "configurations", "c_0", "s_0", "observations", "spent_usd",
    "calls", "theta_out", "basis", "cost", "quality", "c_bf_10", "c_bf_25", "c_bf_50", "c_bf_100",
    "V", "module_costs", "agreement",
)  # fmt: skip


def row_of_run(path: Path) -> dict[str, Any]:
    """The figures of a live run that `evaluate --on search` has measured."""
    run = read_run(path)
    measured = json.loads((path / "measured.json").read_text())
    last, learned = run.rows[-1].row.theta_out, run.method.recorded.get("learn_reference")
    names = run.problem.names(last)
    of_last = next(one for one in measured["results"] if one["theta"] == names)
    curve = {f"c_bf_{step['share_of_budget']:.0%}".rstrip("%"): step for step in measured["curve"]}
    return {
        "run": run.problem.name,
        "method": run.method.name + (", learn_reference" if learned else ""),
        "seed": run.method.recorded["seed"],
        "queries": run.problem.num_queries,
        "configurations": run.problem.space.size,
        "c_0": f"{run.problem.reference_cost_usd:.6g}",
        "s_0": f"{run.problem.s_0:.6g}",
        "observations": len(run.observations),
        "spent_usd": f"{run.spend_usd:.6g}",
        "calls": sum(len(o.module_tokens or ()) for o in run.observations),
        "theta_out": " + ".join(names.values()),
        "basis": run.summary()["basis"],
        "cost": f"{of_last['cost_usd']:.6g}",
        "quality": f"{of_last['quality']:.6g}",
        **{name: f"{step['best_feasible_cost_usd']:.6g}" for name, step in curve.items()},
        "V": f"{curve['c_bf_100']['violation']:.6g}",
        "module_costs": _usd(of_last["module_cost_usd"]),
        "agreement": _agreement(run, measured),
    }


def _usd(costs: Mapping[str, float] | None) -> str:
    return "; ".join(f"{name} {usd:.4g}" for name, usd in (costs or {}).items())


def _agreement(run: RecordedRun, measured: Mapping[str, Any]) -> str:
    """How many of the search's results are truly good enough, of how many."""
    found = [one for one in measured["results"] if one["repeats"]]
    good = sum(one["quality"] >= run.problem.s_0 for one in found)
    return f"{good} of {len(found)}" if found else "theta_0 alone"


def live_table(rows: Sequence[Row]) -> str:
    """Searches that called LLMs, beside the paper's costs."""
    lines = []
    for row in rows:
        numbers = paper_numbers()["deployment"].get(PAPER.get(row["run"].split("_")[0], ""), {})
        paper = ""
        if numbers:
            paper = ", ".join(f"{1000 * numbers[name][0]:.3g}" for name in ("reference", "scope"))
        c_0 = float(row["c_0"])
        shares = [float(row[f"c_bf_{s}"]) / c_0 for s in (10, 25, 50, 100)]
        lines.append(
            [
                row["run"] if row["method"] == "scope_joint" else f"{row['run']}, {row['method']}",
                row["queries"],
                f"{1000 * c_0:.3g}, {float(row['s_0']):.2f}",
                f"{row['observations']}, {float(row['spent_usd']):.3g}",
                "theta_0" if row["basis"] == "reference" else row["theta_out"],
                f"{1000 * float(row['cost']):.3g}, {float(row['quality']):.2f}",
                ", ".join(percent(s).rstrip("%") for s in shares) + "%",
                row["agreement"],
                paper,
            ]
        )
    header = ["search", "queries", "theta_0: USD/1000, s_0", "observations, USD", "theta_out"]
    header += ["its USD/1000, quality", "c_bf / c(theta_0)", "results that are good enough"]
    return markdown([*header, "the paper's USD/1000: theta_0, SCOPE"], lines)


def main() -> None:
    """Adds runs to the file; a run that it has is replaced."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs")
    rows: list[dict[str, Any]] = [*read_rows(FILE)]
    for row in map(row_of_run, parser.parse_args().runs):
        key = [str(row[name]) for name in ("run", "method", "seed")]
        rows = [r for r in rows if [str(r[n]) for n in ("run", "method", "seed")] != key]
        rows.append(row)
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
