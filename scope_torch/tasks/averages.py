"""Tasks on recordings that know which answers are right, and of most costs the average alone.

A folder holds

| file | columns | |
| --- | --- | --- |
| `llms.csv` | code, name | the candidates of every module |
| `configs.csv` | row, config_id, one for each module | codes of `llms.csv` |
| `averages.csv` | row, ..., mean_cost_usd | mean cost of a query in USD, at last |
| `accuracy.txt` | config_id, digits | 1 where the answer to a query is right |
| `cost_head.csv` | config_id, USD for each query; no header | of a few configurations |

What single queries cost is recorded for a few configurations. For the others it is drawn, once and
for all by a seed: log c(theta, q) has a standard deviation that is drawn for theta, and a part that
all configurations have in common, so that a long query is long for every LLM. The average over the
queries is the recorded one. Configurations without accuracy are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.tasks import Task
from scope_torch.tasks.files import find_folder


def averages_task(
    *,
    name: str,
    path: str,
    reference: Sequence[str],
    epsilon: float = 0.01,
    log_sd: Sequence[float],
    shared: float,
    cost_seed: int = 0,
    source: str = "",
) -> Task:
    """A task on such a recording.

    Args:
        name: Name of the task.
        path: The folder, looked up like the file of `table_task`.
        reference: theta_0, one LLM name for each module.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        log_sd: Least and largest standard deviation of the logarithm of the cost of a query, over
            the queries; of each configuration one between them.
        shared: Correlation of these logarithms between configurations, in [0, 1].
        cost_seed: Decides the draws.
        source: Where to get the folder, for the error message.

    Raises:
        InputError: If the folder is absent or damaged, or a value is outside its range.
    """
    table = averages_table(find_folder(path, source), log_sd, shared, cost_seed)
    return Task(table.problem(name, reference, epsilon), TableEvaluator(table))


def averages_table(
    folder: Path, log_sd: Sequence[float], shared: float, cost_seed: int = 0
) -> RecordedTable:
    """The table of a folder; arguments as in `averages_task`.

    Raises:
        InputError: See `averages_task`.
    """
    rises = len(log_sd) == 2 and 0 <= log_sd[0] <= log_sd[1]
    if not (rises and 0 <= shared <= 1):
        raise InputError(
            f"log_sd={[*log_sd]}, shared={shared}: give two numbers >= 0 that rise, and one in "
            "[0, 1]"
        )
    try:
        recorded = _read(folder)
    except KeyError as error:
        raise InputError(f"{folder}: configs.csv has {error}, the other files do not") from error
    except (ValueError, IndexError) as error:
        raise InputError(f"{folder}: {error}") from error
    cost = _drawn(recorded, log_sd, shared, cost_seed)
    modules, llms, rows, quality, _, _ = recorded
    queries = tuple(map(str, range(quality.shape[1])))
    every = (llms,) * len(modules)
    return RecordedTable(modules, every, queries, cost, quality, partial=True, rows=rows)


class _Recorded(NamedTuple):
    """What a folder says of R configurations and Q queries."""

    modules: tuple[str, ...]
    llms: tuple[str, ...]  # of every module
    rows: np.ndarray  # `R x N` codes, rising
    quality: np.ndarray  # `R x Q`
    mean_usd: np.ndarray  # `R`
    known_usd: dict[int, np.ndarray]  # `Q` costs, by position in `rows`


def _read(folder: Path) -> _Recorded:
    names = dict(_rows(folder / "llms.csv")[1:])
    (_, _, *modules), *configs = _rows(folder / "configs.csv")
    llms = tuple(sorted(names.values()))
    code = {short: llms.index(name) for short, name in names.items()}
    mean_usd = {row[0]: float(row[-1]) for row in _rows(folder / "averages.csv")[1:]}
    right = {row[0]: np.array([*row[1]], float) for row in _rows(folder / "accuracy.txt", " ")}
    head = {row[0]: np.array(row[1:], float) for row in _rows(folder / "cost_head.csv")}
    found = [(tuple(code[c] for c in codes), row, one) for row, one, *codes in configs]
    kept = sorted(one for one in found if one[2] in right)
    if not kept or len({theta for theta, _, _ in kept}) != len(kept):
        raise ValueError("no configuration of configs.csv has accuracy, or one is there twice")
    if len({len(one) for one in (*right.values(), *head.values())}) != 1:
        raise ValueError("accuracy.txt and cost_head.csv have rows of different lengths")
    return _Recorded(
        modules=tuple(modules),
        llms=llms,
        rows=np.array([theta for theta, _, _ in kept]),
        quality=np.stack([right[one] for _, _, one in kept]),
        mean_usd=np.array([mean_usd[row] for _, row, _ in kept]),
        known_usd={at: head[one] for at, (_, _, one) in enumerate(kept) if one in head},
    )


def _drawn(recorded: _Recorded, log_sd: Sequence[float], shared: float, seed: int) -> np.ndarray:
    """Costs in USD of single queries, with the recorded averages: `R x Q`."""
    rng, (num_rows, num_queries) = np.random.default_rng(seed), recorded.quality.shape
    common = rng.normal(size=num_queries)
    sd = rng.uniform(*log_sd, size=(num_rows, 1))
    own = rng.normal(size=(num_rows, num_queries))
    usd = np.exp(sd * (np.sqrt(shared) * common + np.sqrt(1 - shared) * own))
    usd *= recorded.mean_usd[:, None] / usd.mean(1, keepdims=True)
    for at, costs in recorded.known_usd.items():
        usd[at] = costs
    return usd


def _rows(path: Path, delimiter: str = ",") -> list[list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not rows or len({len(row) for row in rows}) != 1:
        raise InputError(f"{path} has no rows, or rows of different lengths")
    return rows
