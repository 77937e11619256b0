"""How figures look: a colour, a marker and a line style for each method, the same everywhere.

The colours are those of Okabe and Ito (2008) without yellow, which is pale on white; indigo, wine,
green and olive of Paul Tol's "muted" scheme; purple, brown and grey. Any two of them can be told
apart with deuteranopia, protanopia and tritanopia. No two methods share a marker, so a print in
grey can be read. Line styles tell families apart: the variants of SCOPE are solid, the other
optimizers with a Gaussian process have dashes and dots, and the rest has dots. Dashes alone mean
"published".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.files import replacing

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
SOLID = (0, ())
DASH_DOT, DOTS = (0, (5, 1.2, 1.2, 1.2)), (0, (1.3, 1.0))
PUBLISHED = (0, (3.5, 2))  # the curves of a paper
Line = tuple[float, tuple[float, ...]]

# Small type, as in a paper.
LOOK: dict[Any, Any] = {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
}


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Args:
        title: Its name in figures, as in the paper.
        colour: `#RRGGBB`.
        marker: A marker of matplotlib.
        line: Offset and lengths of the dashes, in points.
    """

    title: str
    colour: str
    marker: str
    line: Line


STYLES: Mapping[str, Style] = {
    "scope_joint": Style("SCOPE-Joint", VERMILLION, "o", SOLID),
    "scope": Style("SCOPE", BLUE, "D", SOLID),
    "scope_letter": Style("SCOPE-Letter", "#4B0055", "8", SOLID),
    "scope_rand": Style("SCOPE-Rand", "#56B4E9", "^", SOLID),
    "scope_coarse": Style("SCOPE-Coarse", GREEN, "s", SOLID),
    "scope_front": Style("SCOPE-Front", "#CC79A7", "p", SOLID),
    "random_search": Style("Random", "#000000", "X", DOTS),
    "cei": Style("cEI", "#E69F00", "v", DASH_DOT),
    "config_bo": Style("CONFIG", "#882255", "P", DASH_DOT),
    "safeopt": Style("SafeOpt", "#117733", "<", DASH_DOT),
    "llambo": Style("LLAMBO", "#7F7F7F", "*", DOTS),
    "llmselector": Style("LLMSelector", "#999933", "h", DOTS),
    "abacus": Style("Abacus", "#8C510A", ">", DOTS),
    "optuna_gp": Style("Optuna GP", "#332288", "d", DASH_DOT),
}
_TITLES = {style.title for style in STYLES.values()}
_LINES = (SOLID, DASH_DOT, DOTS)
_PAIRS = [(a.colour, b.marker) for a in STYLES.values() for b in STYLES.values() if a is not b]


def style_of(label: str, others: Iterable[Style] = ()) -> Style:
    """The style of a method, which depends on nothing but its name.

    A method that is not in `STYLES`, and one with overrides, such as `scope method.alpha=0.2`, get
    a colour and a marker by a hash of the name.

    Args:
        label: A method as in `result.json`, with overrides after a space.
        others: Such a method has neither colour nor marker of these, as long as there are others.

    Examples:
        >>> style_of("scope").marker, style_of("LLAMBO[stub]").title
        ('D', 'LLAMBO[stub]')
        >>> style_of("mine") == style_of("mine") != style_of("yours")
        True
    """
    method, _, overrides = label.partition(" ")
    name, bracket, kind = method.partition("[")
    known = STYLES.get(name.lower())
    title = method if known is None else known.title + bracket + kind
    if known is not None and not overrides:
        return replace(known, title=title)
    line = min(_LINES, key=lambda line: _hash(label, line))
    short = overrides.replace("method.", "")
    return Style(f"{title} {short}".strip(), *_free_pair(label, list(others)), line)


def _hash(label: str, choice: object) -> bytes:
    return hashlib.sha256(f"{label} {choice}".encode()).digest()


def _free_pair(label: str, others: Sequence[Style]) -> tuple[str, str]:
    """A colour and a marker that no method of `STYLES` has as a pair, and none of `others` at all.

    If there is none, then a pair that none of `others` has; and if there is none, any.
    """
    ordered = sorted(_PAIRS, key=lambda pair: _hash(label, pair))
    marks = {mark for style in others for mark in (style.colour, style.marker)}
    pairs = {(style.colour, style.marker) for style in others}
    new = (pair for pair in ordered if not marks.intersection(pair))
    return next(new, next((pair for pair in ordered if pair not in pairs), ordered[0]))


def rank(label: str) -> tuple[int, str]:
    """Where a method stands in tables and legends: in the order of `STYLES`, then by name.

    Examples:
        >>> sorted(["mine", "LLAMBO[stub]", "scope alpha=0.2", "scope"], key=rank)
        ['scope', 'scope alpha=0.2', 'LLAMBO[stub]', 'mine']
    """
    name = label.partition(" ")[0].partition("[")[0].lower()
    return [*STYLES, name].index(name), label


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """The styles of the methods of one figure, by `rank`; no two have the same colour and marker.

    Overrides that all of them have tell nothing apart, and are left out.

    Examples:
        >>> [style.title for style in styles_of(["random_search", "mine", "scope"]).values()]
        ['SCOPE', 'Random', 'mine']
        >>> labels = [f"scope method.alpha={alpha},task.epsilon=0.1" for alpha in (0.2, 0.4)]
        >>> [style.title for style in styles_of(labels).values()]
        ['SCOPE alpha=0.2', 'SCOPE alpha=0.4']
    """
    ordered = sorted(set(labels), key=rank)
    parts = {label: label.partition(" ")[2].split(",") for label in ordered}
    common = set.intersection(*map(set, parts.values())) if parts else set[str]()
    found: dict[str, Style] = {}
    for label in ordered:
        own = ",".join(part for part in parts[label] if part not in common)
        unlisted = [style for style in found.values() if style.title not in _TITLES]
        found[label] = style_of(f"{label.partition(' ')[0]} {own}".strip(), unlisted)
    return found


def literal(text: str) -> str:
    """A text that matplotlib draws as it is: two `$` in a name are no formula."""
    return text.replace("$", r"\$")


def plain_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis from `low` to `high`: numbers without exponents, few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    left, right = axis.get_view_interval()

    def are_enough(locator: Any) -> bool:
        return sum(left <= tick <= right for tick in locator.tick_values(left, right)) > 1

    few, many = LogLocator(subs=(1,)), LogLocator(subs=(1, 2, 5))
    tried = (many,) if high / low < 30 else (few, many)
    axis.set_major_locator(next(filter(are_enough, tried), MaxNLocator(4)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure; equal figures become equal files.

    Fonts are embedded as TrueType, because publishers refuse Type 3, which is matplotlib's default.

    Args:
        figure: The figure.
        path: PNG, PDF or SVG file.

    Raises:
        InputError: If the file cannot be written, or its name has another ending.
    """
    import matplotlib

    kind = path.suffix[1:].lower() or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise InputError(f"{path}: a figure is a .png, .pdf or .svg file")
    dated = {".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix.lower())
    embedded: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "scope-torch"}
    metadata: Any = {dated: None} if dated else None
    with matplotlib.rc_context(embedded), replacing(path) as file:
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
