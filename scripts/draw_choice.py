"""Draws docs/figures/select.png: what one search has looked at, and its choice.

    python scripts/draw_choice.py task=mathqa

The arguments are those of `scope-torch`; the search is the default one.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> None:
    """Searches, draws and prints."""
    cfg = compose(arguments)
    task, budget_usd = build(cfg.task), float(cfg.budget_usd)
    problem = task.problem
    optimizer = make_scope_joint(problem, base=cfg.base, seed=cfg.seed, budget_usd=budget_usd)
    result = run(problem, optimizer, task.evaluator, budget_usd)
    result.plot(ROOT / "docs" / "figures" / "select.png")
    print(result)


if __name__ == "__main__":
    main(sys.argv[1:])
