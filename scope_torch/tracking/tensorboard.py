"""Logs a run to TensorBoard; needs the extra `tensorboard`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.files import inside, path_of, plain
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback, Outcome
from scope_torch.search.optimizer import Described, TraceRow
from scope_torch.tracking.names import CURVES, STEPS_PER_USD, name_of

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoardTracker(Callback):
    """Writes event files: the trace against the spend, settings and result as text, the figure.

    The step is the spend in millionths of a USD. A resumed search reports all rows of its trace
    again, so its event files are written anew.

    Args:
        run_dir: Directory of the run; the event files are in its folder `tensorboard`.

    Raises:
        InputError: If TensorBoard is not installed.
    """

    def __init__(self, run_dir: Path | str) -> None:
        try:
            from torch.utils import tensorboard
        except ImportError as error:
            raise InputError(
                "tracking=tensorboard needs TensorBoard: pip install 'scope-torch[tensorboard]'"
            ) from error
        self._make_writer = tensorboard.SummaryWriter
        self._folder = inside(path_of("run_dir", run_dir), "tensorboard")
        self._writer: SummaryWriter | None = None
        self._problem: SelectionProblem | None = None

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Removes old event files, and writes the settings."""
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer, self._problem = self._make_writer(str(self._folder)), problem
        settings = plain(optimizer.settings())
        config = {"task": problem.name, "budget_usd": budget_usd, "optimizer": settings}
        self._write_json("config", config)

    def changed(self, row: TraceRow) -> None:
        """Writes the numbers of a row of the trace."""
        if self._writer is None:
            return
        step = round(row.spend_usd * STEPS_PER_USD)
        for name in CURVES:
            value = getattr(row, name)
            if value is not None:
                self._writer.add_scalar(name_of(name, self._problem), value, step)

    def end(self, result: Outcome) -> None:
        """Writes the result, the curves and the figure."""
        if self._writer is None:
            return
        summary = result.summary()
        if result.curve is not None:
            for budget, cost, v in result.curve.points(summary["budget_usd"]):
                step = round(budget * STEPS_PER_USD)
                if math.isfinite(cost):  # nothing feasible is known before
                    self._writer.add_scalar(name_of("c_bf_usd", self._problem), cost, step)
                self._writer.add_scalar("violation", v, step)
        self._write_json("result", summary)
        figure = None if result.run_dir is None else result.run_dir / "curves.png"
        if figure is not None and figure.exists():
            from matplotlib.image import imread

            self._writer.add_image("curves", imread(figure)[..., :3], dataformats="HWC")

    def close(self, error: BaseException | None) -> None:
        """Closes the event files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        assert self._writer is not None
        text = json.dumps(content, indent=2)
        self._writer.add_text(name, "".join(f"    {line}\n" for line in text.splitlines()))
