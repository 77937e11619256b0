"""Numbers of the SCOPE paper, to compare results with (see scope_torch/data/README.md)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from scope_torch.llm.prices import read_toml
from scope_torch.results.style import STYLES

CITATION = "SCOPE, KDD 2026, doi:10.1145/3770855.3818067"
PAPER_VERSION = 1
_PANELS = {
    "text_to_sql": "text-to-sql",
    "data_transformation": "data transformation",
    "data_imputation": "data imputation",
    "entity_resolution": "entity resolution",
}


@cache
def paper_numbers() -> dict[str, Any]:
    """Content of `paper.toml`."""
    return read_toml(None, "paper.toml", PAPER_VERSION)


def paper_task(task: str) -> str:
    """Name of a task in the paper, which says nothing of its world, reference or file."""
    return task.partition(", ")[0]


def paper_curves(
    task: str, reference: Mapping[str, str], kernel: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The paper's median curves for an experiment.

    Args:
        task: Name of the task.
        reference: theta_0, the LLM of each module.
        kernel: Class name of the kernel.

    Returns:
        For each method, by our name, budgets in USD and best feasible costs in USD per query;
        empty where the paper shows no such experiment.
    """
    panel = _PANELS.get(paper_task(task))
    if panel is None:
        return {}
    llms = set(reference.values())
    if llms == {"Claude Haiku 4.5"}:
        if kernel == "HammingRBFKernel":
            return {}
        panel = f"theta0=all Claude Haiku 4.5 ({panel})"
    elif llms != {"GPT-5.2"}:
        return {}
    elif kernel == "HammingRBFKernel":
        panel = f"kernel=SE ({panel})"
    ours = {style.title: name for name, style in STYLES.items()}
    points: dict[str, list[tuple[float, float]]] = {}
    for row in _rows():
        if row["panel"] == panel and row["statistic"] == "median":
            point = float(row["budget_usd"]), float(row["best_feasible_cost_usd"])
            points.setdefault(ours[row["method"]], []).append(point)
    return {name: (np.array(xy)[:, 0], np.array(xy)[:, 1]) for name, xy in points.items()}


@cache
def _rows() -> list[dict[str, str]]:
    text = (files("scope_torch") / "data" / "paper_curves.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
