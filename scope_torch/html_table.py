"""A table for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(rows: Iterable[Sequence[object]], head: Sequence[object] = ()) -> str:
    """Rows as HTML, escaped; the first cell of each is its name.

    Examples:
        >>> html_table([("a < b", 1)])
        "<table><tr><th style='text-align:left'>a &lt; b</th><td style='text-align:left'>1</td></tr></table>"
    """  # noqa: E501
    lines = [_line("th", head)] if head else []
    lines += [_line("th", row[:1]) + _line("td", row[1:]) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _line(kind: str, cells: Sequence[object]) -> str:
    return "".join(
        f"<{kind} style='text-align:left'>{html.escape(str(cell))}</{kind}>" for cell in cells
    )
