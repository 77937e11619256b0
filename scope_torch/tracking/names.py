"""Names under which trackers draw what a trace has."""

from __future__ import annotations

from scope_torch.problem import SelectionProblem

STEPS_PER_USD = 1_000_000  # steps must be whole numbers; TensorBoard shows 1 USD as 1M
CURVES = ("u_out_usd", "gap_usd", "lower_c_usd", "upper_c_usd", "lower_g", "upper_g", "num_queries")

# Where quality is the objective, 1 - quality stands in the place of the cost (docs/howto/
# constraints.md), and none of these is in USD.
_LOSSES = {
    "u_out_usd": "u_out_loss",
    "gap_usd": "regret",  # as in result.json
    "lower_c_usd": "lower_loss",
    "upper_c_usd": "upper_loss",
    "c_bf_usd": "loss_bf",
}


def name_of(column: str, problem: SelectionProblem | None) -> str:
    """The name of a curve: its column in the trace, or what that is for the objective."""
    is_quality = problem is not None and problem.objective == "quality"
    return _LOSSES.get(column, column) if is_quality else column
