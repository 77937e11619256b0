"""A planned run, and the CSV file that its row is written to."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

KEY = ("problem", "method", "world", "seed")  # the first columns of every file


@dataclass(frozen=True)
class Planned:
    """A run that is planned. Equal runs have equal rows, whenever they are made.

    Args:
        problem: Name of the task, or of its variant, in tables.
        method: Name of the method, or of its variant, in tables.
        seed: Seed of the run.
        world: World seed of a simulated task; None for a recorded one.
    """

    problem: str
    method: str
    seed: int
    world: int | None

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the row of this run in its file."""
        return (self.problem, self.method, text(self.world), str(self.seed))

    @property
    def library(self) -> str:
        """The module that it needs beside this project; empty for none."""
        return ""

    def measured(self) -> dict[str, Any]:
        """Makes the run; its figures by column, None where a figure makes no sense."""
        raise NotImplementedError

    def row(self) -> dict[str, str]:
        """Makes the run; the row of its file."""
        figures = {column: text(value) for column, value in self.measured().items()}
        return dict(zip(KEY, self.key, strict=True)) | figures


@dataclass(frozen=True)
class Composed(Planned):
    """A planned run whose task is composed as on the command line.

    Args:
        overrides: What the command line of `scope-torch` would say beside the seeds.
    """

    overrides: tuple[str, ...]

    @property
    def settings(self) -> list[str]:
        """The overrides, with the seeds."""
        worlds = [] if self.world is None else [f"task.world_seed={self.world}"]
        return [*self.overrides, *worlds, f"seed={self.seed}"]


def row_of(run: Planned) -> dict[str, str]:
    """`run.row()`, for another process."""
    return run.row()


def one_thread() -> None:
    """Limits the threads of a worker process, for runs side by side."""
    torch.set_num_threads(1)


def text(value: Any) -> str:
    """A value in a cell: seven digits of a number, nothing for None."""
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def numbers_text(values: Iterable[Any]) -> str:
    """Several numbers in one cell: three digits of each."""
    return " ".join(f"{float(value):.3g}" for value in values)


def numbers(cell: str) -> np.ndarray:
    """The numbers of `numbers_text`."""
    return np.array([float(one) for one in cell.split()])


class Rows:
    """A CSV file of runs; a row is on the disk before the next run begins.

    Args:
        path: The file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_rows(path)

    def has(self, run: Planned) -> bool:
        """Whether the run is in the file."""
        return run.key in set(map(key_of, self.rows))

    def add(self, row: dict[str, str]) -> None:
        """Writes a row to the end of the file."""
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns = list(self.rows[0]) if self.rows else list(row)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append(row)


def key_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """What identifies a row: `Planned.key` of its run."""
    return tuple(row.get(name, "") for name in KEY)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
