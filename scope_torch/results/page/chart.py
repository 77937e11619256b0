"""Small charts against the spend; the template draws them, the style sheet gives the colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560, 60, 12, 10, 42
Point = tuple[float, float]


@dataclass(frozen=True)
class _Mark:
    """A line, band or bar of a chart."""

    kind: str  # line | band | bar
    style: str  # class in the style sheet
    points: Sequence[Point]  # of a line, or two corners of a band or bar: (x0, low), (x1, high)
    hint: str  # shown under the mouse


class Drawn(NamedTuple):
    """A mark in the units of the drawing: a path, or corner, width and height of a rectangle."""

    kind: str
    style: str
    hint: str
    path: str
    box: tuple[float, float, float, float]


@dataclass
class Chart:
    """A chart of step lines, bands and bars against the spend.

    Args:
        title: Title above the chart.
        x_label: Label of the x axis, with its unit.
        y_label: Label of the y axis, with its unit.
        x_max: End of the x axis, which begins at 0.
        log: Whether the y axis is logarithmic.
        y_limits: Values that the y axis must include.
        height: Height of the chart; its width is 560.

    Examples:
        >>> chart = Chart("Cost", "spend [USD]", "USD a query", x_max=10.0)
        >>> chart.steps([(0.0, 5.0), (4.0, 2.0)], end=10.0, style="a", label="cost")
        >>> chart.legend
        [('line', 'a', 'cost')]
    """

    title: str
    x_label: str
    y_label: str
    x_max: float
    log: bool = False
    y_limits: tuple[float, ...] = ()
    height: int = 220
    _marks: list[_Mark] = field(default_factory=list)
    _legend: dict[str, tuple[str, str]] = field(default_factory=dict)

    def steps(self, points: Sequence[Point], end: float, style: str, label: str) -> None:
        """Adds a step line: each point's value holds up to the next x, the last one up to `end`."""
        if points:
            corners = [points[0]]
            for (_, before), (x, y) in pairwise(points):
                corners += [(x, before), (x, y)]
            self._add("line", style, [*corners, (end, points[-1][1])], label, label)

    def rule(self, y: float, style: str, label: str) -> None:
        """Adds a horizontal line."""
        self._add("line", style, [(0.0, y), (self.x_max, y)], label, label)

    def band(self, x: Point, y: Point, style: str, label: str, hint: str) -> None:
        """Adds a filled rectangle: a range of y over a range of x."""
        self._add("band", style, [(x[0], y[0]), (x[1], y[1])], label, hint)

    def bar(self, x: Point, y: float, style: str, label: str, hint: str) -> None:
        """Adds a bar from 0 to y over a range of x."""
        self._add("bar", style, [(x[0], 0.0), (x[1], y)], label, hint)

    def _add(self, kind: str, style: str, points: Sequence[Point], label: str, hint: str) -> None:
        if not all(math.isfinite(value) for point in points for value in point):
            return  # a bound may be infinite
        self._marks.append(_Mark(kind, style, points, hint))
        self._legend.setdefault(label, (kind, style))

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """Kind, style and text of each entry."""
        return [(kind, style, label) for label, (kind, style) in self._legend.items()]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Positions and texts."""
        return [(self._at_x(x), f"{x:.6g}") for x in ticks(0.0, self.x_max)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Positions and texts."""
        low, high = self._limits()
        found = log_ticks(low, high) if self.log else ticks(low, high)
        return [(self._at_y(y, low, high), f"{y:.6g}") for y in found]

    @property
    def marks(self) -> list[Drawn]:
        """What is drawn, in the order in which it was added."""
        low, high = self._limits()
        return [
            _drawn(mark, [(self._at_x(x), self._at_y(y, low, high)) for x, y in mark.points])
            for mark in self._marks
        ]

    @property
    def frame(self) -> dict[str, float]:
        """Ends of the axes in the drawing."""
        return {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": self._bottom}

    @property
    def _bottom(self) -> int:
        return self.height - BOTTOM

    def _at_x(self, x: float) -> float:
        """Position of a spend in the drawing."""
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(x / self.x_max, 0.0), 1.0)

    def _at_y(self, y: float, low: float, high: float) -> float:
        """Position of a value in the drawing, if the y axis is [low, high]."""
        if self.log:
            y = max(y, low)
            share = (math.log(y) - math.log(low)) / (math.log(high) - math.log(low))
        else:
            share = (y - low) / (high - low)
        return self._bottom - (self._bottom - TOP) * min(max(share, 0.0), 1.0)

    def _limits(self) -> Point:
        """Ends of the y axis."""
        values = [y for mark in self._marks for _, y in mark.points] + list(self.y_limits)
        if self.log:
            values = [y for y in values if y > 0] or [1.0]
            return min(values) / 1.25, max(values) * 1.25
        low, high = min(values, default=0.0), max(values, default=1.0)
        margin = 0.06 * (high - low) or 1.0
        return (low if low == 0 else low - margin), high + margin


def _drawn(mark: _Mark, points: list[Point]) -> Drawn:
    if mark.kind == "line":
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        return Drawn(mark.kind, mark.style, mark.hint, path, (0.0, 0.0, 0.0, 0.0))
    (x0, y0), (x1, y1) = points
    width, height = max(x1 - x0, 1.0), max(abs(y1 - y0), 1.0)
    corner = round(x0, 1), round(min(y0, y1), 1), round(width, 1), round(height, 1)
    return Drawn(mark.kind, mark.style, mark.hint, "", corner)


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers in [low, high].

    Examples:
        >>> ticks(0.0, 10.0)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high]; fewer for each power of ten if there are many powers.

    Examples:
        >>> log_ticks(0.1, 10.0)
        [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    """

    def ticks_with(digits: tuple[int, ...]) -> Iterator[float]:
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
            yield from (d * 10.0**power for d in digits if low <= d * 10.0**power <= high)

    for digits in ((1, 2, 5), (1, 3)):
        if len(found := list(ticks_with(digits))) <= 8:
            return found if len(found) > 1 else ticks(low, high)  # the axis is short
    return list(ticks_with((1,)))
