"""Rows of Parquet files, as Langfuse and LangSmith export them, and data frames of Phoenix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from scope_torch.tasks.files import MAX_BYTES

# The columns that a bill is made of; one of those with a bar between them is enough.
_NEEDED = {
    "Langfuse's observations": (
        *("id", "trace_id", "type", "parent_observation_id", "name", "level"),
        *("provided_model_name", "usage_details", "total_cost|cost_details"),
    ),
    "Langfuse's traces": ("id", "timestamp", "tags"),
    "Langfuse's scores": ("id", "trace_id", "name", "value", "data_type"),
    "LangSmith's runs": (
        *("id", "run_type", "name", "extra", "error|status", "prompt_tokens", "completion_tokens"),
        *("trace_id|dotted_order", "parent_run_id|dotted_order", "total_cost|outputs"),
    ),
    "Phoenix's spans": (
        *("context.trace_id", "context.span_id", "parent_id", "name", "span_kind", "status_code"),
        "attributes.llm.model_name|attributes.llm",
        "attributes.llm.token_count.prompt|attributes.llm",
    ),
}


def is_parquet(path: Path) -> bool:
    """Whether a file begins as a Parquet file; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False


def read_parquet(path: Path) -> tuple[Iterator[dict[str, Any]], list[str]]:
    """The rows of a Parquet file, as JSON would have them, and a note if columns are missing.

    Raises:
        InputError: If the file cannot be read, or is too large.
    """
    from scope_torch.tasks.frames import read_frame  # polars, which few logs need

    frame = read_frame(path, (), MAX_BYTES)
    missing = missing_columns(frame.columns)
    return map(_plain, frame.iter_rows(named=True)), [f"{path} {missing}"] if missing else []


def missing_columns(columns: Collection[str]) -> str:
    """Which columns are missing of the export that has most of these; empty if none is.

    Examples:
        >>> missing_columns(["id", "trace_id", "name", "value"])
        "lacks the columns data_type of Langfuse's scores; export all of them"
    """
    absent = {
        kind: [name for name in needed if not any(one in columns for one in name.split("|"))]
        for kind, needed in _NEEDED.items()
    }
    kind = min(absent, key=lambda kind: len(absent[kind]) / len(_NEEDED[kind]))
    if not absent[kind]:
        return ""
    names = ", ".join(absent[kind]).replace("|", " or ")
    return f"lacks the columns {names} of {kind}; export all of them"


def _plain(value: Any) -> Any:
    """A value as JSON has it: maps are mappings, moments are texts, decimals are floats."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(i, dict) and set(i) == {"key", "value"} for i in value):
            return {str(item["key"]): _plain(item["value"]) for item in value}
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
