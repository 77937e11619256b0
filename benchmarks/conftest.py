"""Keeps what the benchmarks measure, and writes it to benchmarks/RESULTS.md."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, in a dependency
    import gpytorch  # noqa: F401

RESULTS = Path(__file__).with_name("RESULTS.md")


class Results:
    """Tables in the order in which they are first written to."""

    def __init__(self) -> None:
        self.tables: dict[str, list[list[str]]] = {}

    def add(self, title: str, header: list[str], row: list[str]) -> None:
        """A row of the table `title`."""
        self.tables.setdefault(title, [header]).append(row)

    def text(self) -> str:
        """Markdown."""
        lines = [
            "# Candidates given up",
            "",
            "Made by `make bench` in one process; compare the ratios, not the seconds. "
            f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
            "float64.",
        ]
        for title, (header, *rows) in self.tables.items():
            lines += ["", f"## {title}", ""]
            table = [header, ["---"] * len(header), *rows]
            lines += [f"| {' | '.join(row)} |" for row in table]
        return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    """Written when all is measured."""
    kept = Results()
    yield kept
    RESULTS.write_text(kept.text())
