"""Cost and quality of each configuration, as the page draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import per_thousand, plain, quality, threshold
from scope_torch.results.page.chart import log_ticks, ticks
from scope_torch.results.words import in_words
from scope_torch.search.hypervolume import non_dominated

PER = 1000  # costs are in USD for this number of queries
_SOME = 0.25  # share of the queries from which on an interval is drawn
_MOST_INTERVALS = 25  # more would hide the points
_MOST_POINTS = 1500
_LOG_FROM = 5.0  # ratio of the dearest to the cheapest from which on the axis is logarithmic
_MARKED = ("choice", "reference")
_ORDER = {"reference": 1, "choice": 2}  # what is drawn last is hidden by nothing
_LINE, _LETTER = 15.0, 7.6  # height of a line and width of a letter, in units of the drawing
Row = Mapping[str, Any]
Box = tuple[float, float, float, float]  # corner, width, height


class Point(NamedTuple):
    """A configuration in the drawing; whiskers are its interval, clipped to what is possible."""

    x: float
    y: float
    radius: float
    style: str
    hint: str
    low_x: float | None
    high_x: float | None
    low_y: float | None
    high_y: float | None


class Label(NamedTuple):
    """A text above a point, whose own height is `point_y`."""

    x: float
    y: float
    anchor: str
    style: str
    lines: tuple[str, ...]
    point_y: float


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Scatter:
    """Everything of the drawing, in its own units.

    Args:
        width: Of the drawing.
        height: Of the drawing.
        left: Left end of the axes; likewise `right`, `top` and `bottom`.
        right: See `left`.
        top: See `left`.
        bottom: See `left`.
        x_ticks: Costs in USD for 1,000 queries.
        y_ticks: Qualities.
        infeasible: Corner, width and height of the area that is not good enough.
        limit: Both ends of its edge, and what it says.
        front: Corners of the steps through those that no other one beats.
        points: Each configuration once; the choice and the reference last.
        labels: Of the choice and the reference.
        num_hidden: Configurations that are not drawn, because there are too many.
    """

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    infeasible: Box
    limit: tuple[float, float, float, float, str]
    front: Sequence[tuple[float, float]]
    points: Sequence[Point]
    labels: Sequence[Label]
    num_hidden: int


def scatter(
    problem: SelectionProblem, rows: Sequence[Row], width: int = 960, height: int = 470
) -> Scatter | None:
    """The drawing of all configurations that a search has looked at.

    Args:
        problem: What was searched.
        rows: See `scope_torch.results.table.looked_at`.
        width: Of the drawing.
        height: Of the drawing.

    Returns:
        None if nothing was looked at.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.results.table import looked_at
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> drawing = scatter(problem, looked_at(result.evidence, result.recommendation))
        >>> [point.style for point in drawing.points][-2:]
        ['reference', 'choice']
    """
    known = [row for row in rows if row["cost_usd"] is not None and row["quality"] is not None]
    if not known:
        return None
    shown = sorted(known, key=lambda row: (_ORDER.get(row["status"], 0), row["queries"]))
    return _Drawing(problem, shown[-_MOST_POINTS:], width, height).made(len(known))


class _Drawing:
    """Positions of costs and qualities."""

    def __init__(
        self, problem: SelectionProblem, rows: Sequence[Row], width: int, height: int
    ) -> None:
        self._problem, self._rows = problem, rows
        self._width, self._height = width, height
        is_wide = width > 600
        self._left, self._right = (64.0 if is_wide else 46.0), width - 18.0
        self._top, self._bottom = 14.0 + 4.6 * _LINE, height - 52.0
        self._least = least = problem.num_queries * _SOME
        self._some = [r for r in rows if r["queries"] >= least or r["status"] in _MARKED]
        self._set_limits()

    def _set_limits(self) -> None:
        costs = [PER * row["cost_usd"] for row in self._rows]
        low, high = min(costs), max(costs)
        self._log = low > 0 and high / low > _LOG_FROM
        if self._log:
            room = (high / low) ** 0.06 * 1.1
            self._x_limits = low / room, high * room
        else:
            self._x_limits = 0.0, 1.15 * (high or 1.0)
        # Those on few queries may lie beyond: at the edge.
        values = [row["quality"] for row in self._some]
        if self._problem.objective == "cost":
            values.append(self._problem.s_0)
        room = max(0.03, 0.12 * (max(values) - min(values)))
        self._y_limits = max(0.0, min(values) - room), min(1.0, max(values) + room)

    def x(self, usd: float) -> float:
        """Position of a cost in USD for 1,000 queries, moved onto the axis."""
        low, high = self._x_limits
        value = min(max(usd, low), high)
        share = (
            math.log(value / low) / math.log(high / low)
            if self._log
            else (value - low) / (high - low)
        )
        return round(self._left + share * (self._right - self._left), 1)

    def y(self, value: float) -> float:
        """Position of a quality, moved onto the axis."""
        low, high = self._y_limits
        share = (min(max(value, low), high) - low) / (high - low)
        return round(self._bottom - share * (self._bottom - self._top), 1)

    def made(self, num_known: int) -> Scatter:
        """The drawing, of so many configurations."""
        x_ticks = log_ticks(*self._x_limits) if self._log else ticks(*self._x_limits)
        if self._width < 600:
            x_ticks = x_ticks[:: max(1, math.ceil(len(x_ticks) / 5))]
        area, limit = self._limit()
        return Scatter(
            self._width,
            self._height,
            self._left,
            self._right,
            self._top,
            self._bottom,
            [Tick(self.x(x), plain(x, 6)) for x in x_ticks],
            [Tick(self.y(y), plain(y, 6)) for y in ticks(*self._y_limits)],
            area,
            limit,
            self._front(),
            self._points(),
            self._labels(),
            num_known - len(self._rows),
        )

    def _limit(self) -> tuple[Box, tuple[float, float, float, float, str]]:
        """What is not good enough, and its edge."""
        problem = self._problem
        if problem.objective == "cost":
            y = self.y(problem.s_0)
            area = self._left, y, self._right - self._left, self._bottom - y
            words = f"needed: {threshold(problem.s_0)}"
            return area, (self._left, y, self._right, y, words)
        x = self.x(PER * problem.limits[0].value)
        area = x, self._top, self._right - x, self._bottom - self._top
        words = f"at most {per_thousand(problem.limits[0].value)} USD"
        return area, (x, self._top, x, self._bottom, words)

    def _front(self) -> list[tuple[float, float]]:
        some = self._some
        kept = non_dominated([row["cost_usd"] for row in some], [row["quality"] for row in some])
        corners: list[tuple[float, float]] = []
        for row in (some[i] for i in kept):
            x, y = self.x(PER * row["cost_usd"]), self.y(row["quality"])
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        return [*corners, (self._right, corners[-1][1])] if corners else []

    def _points(self) -> list[Point]:
        with_interval = {row["theta"] for row in self._some[-_MOST_INTERVALS:]}
        return [self._point(row, row["theta"] in with_interval) for row in self._rows]

    def _point(self, row: Row, has_interval: bool) -> Point:
        status, problem = row["status"], self._problem
        if row["theta"] == problem.theta_ref:
            style = "reference"
        elif status in _MARKED:
            style = status
        elif status in ("certified", "accepted"):
            style = "good"
        else:
            style = "rest" if row["queries"] >= self._least else "few"
        hint = (
            f"{in_words(problem.names(row['theta']), 200)}: {per_thousand(row['cost_usd'])} USD, "
            f"quality {quality(row['quality'])} ({row['queries']} of {problem.num_queries} "
            f"queries; {status})"
        )
        radius = 2.5 + 4.0 * math.sqrt(row["queries"] / problem.num_queries)
        low_x, high_x, low_y, high_y = self._interval(row) if has_interval else (None,) * 4
        return Point(
            self.x(PER * row["cost_usd"]),
            self.y(row["quality"]),
            round(radius, 1),
            style,
            hint,
            low_x,
            high_x,
            low_y,
            high_y,
        )

    def _interval(self, row: Row) -> tuple[float | None, ...]:
        """Its ends in the drawing: costs of at least 0, qualities in [0, 1]."""
        low, high = row["cost_lower"], row["cost_upper"]
        costs = (None, None) if low is None or high is None else (max(0.0, low), high)
        low, high = row["quality_lower"], row["quality_upper"]
        qualities = (None, None) if low is None or high is None else (max(0.0, low), min(1.0, high))
        at_x = (None if usd is None else self.x(PER * usd) for usd in costs)
        at_y = (None if value is None else self.y(value) for value in qualities)
        return (*at_x, *at_y)

    def _labels(self) -> list[Label]:
        """The reference and the choice, above the data, each with a line to its point."""
        labels: list[Label] = []
        for row in (row for row in self._rows if row["status"] in _MARKED):
            is_kept = row["theta"] == self._problem.theta_ref
            name = "keep the reference" if is_kept and row["status"] == "choice" else row["status"]
            about = f"{per_thousand(row['cost_usd'])} USD, quality {quality(row['quality'])}"
            x, y = self.x(PER * row["cost_usd"]), self.y(row["quality"])
            share = (x - self._left) / (self._right - self._left)
            anchor = "start" if share < 0.35 else "end" if share > 0.65 else "middle"
            style = "reference" if is_kept else row["status"]
            label = Label(x, 14.0, anchor, style, (name, about), y)
            if any(_overlap(label, other) for other in labels):
                label = label._replace(y=14.0 + 2.3 * _LINE)
            labels.append(label)
        return labels


def _overlap(one: Label, other: Label) -> bool:
    return _ends(one)[0] < _ends(other)[1] and _ends(other)[0] < _ends(one)[1]


def _ends(label: Label) -> tuple[float, float]:
    """About where the text begins and ends."""
    width = _LETTER * max(map(len, label.lines)) + 12
    begin = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return begin, begin + width
