"""The figure of a run in its directory."""

from __future__ import annotations

from scope_torch.results.panel import lines_of
from scope_torch.runs.callbacks import Callback, Outcome


class CurvePlot(Callback):
    """Draws the curves of a finished run into `curves.png` in its directory.

    Draws nothing if the true costs and qualities are unknown.
    """

    def end(self, result: Outcome) -> None:
        """Draws the figure."""
        if result.curve is None or result.run_dir is None:
            return
        from scope_torch.results.plotting import plot_curves  # matplotlib takes long to import

        summary, path = result.summary(), result.run_dir / "curves.png"
        plot_curves(
            {summary["method"]: [result.curve]},
            summary["budget_usd"],
            path,
            title=f"{summary['task']}, {summary['method']}, seed {summary['seed']}",
            **lines_of(summary),
        )
