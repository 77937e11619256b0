"""What figures of curves show, and that nothing in them hides anything else."""

import dataclasses
from itertools import combinations, pairwise

import matplotlib.figure
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from scope_torch import make_scope, make_scope_joint, run
from scope_torch.errors import InputError
from scope_torch.results.metrics import OracleCurve
from scope_torch.results.panel import Panel
from scope_torch.results.plotting import draw_panel, draw_panels, plot_curves
from scope_torch.results.style import PUBLISHED, STYLES, plain_log_ticks, save_figure
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tracking.curves import CurvePlot

METHODS = [*STYLES][:12]
S_0 = 0.8


def curve(costs, qualities=None, start=0.0) -> OracleCurve:
    """Steps of c(theta_out) in USD at 0, 1, 2, ... USD of budget."""
    qualities = qualities or [0.9] * len(costs)
    steps = zip(costs, qualities, strict=True)
    return OracleCurve.from_steps({start + i: step for i, step in enumerate(steps)}, S_0)


def panel(methods=METHODS, runs=3, *, violated=False, **changes) -> Panel:
    """Each method and run has steps of its own."""
    curves = {
        method: [
            curve([0.01, 0.01 / (2 + i + run), 0.01 / (4 + i + run)], [0.9, 0.7, 0.9])
            if violated
            else curve([0.01, 0.01 / (2 + i + run), 0.01 / (4 + i + run)])
            for run in range(runs)
        ]
        for i, method in enumerate(methods)
    }
    made = Panel("a task", curves, 3.0, reference_cost_usd=0.01, optimal_cost_usd=0.0005)
    return dataclasses.replace(made, **changes)


def drawn(axes, colour, **wanted):
    """Lines of a colour in axes, with these properties."""
    return [
        line
        for line in axes.get_lines()
        if to_hex(line.get_color()) == colour.lower()
        and all(getattr(line, f"get_{name}")() == value for name, value in wanted.items())
    ]


def dashes(line):
    return line._unscaled_dash_pattern


def entries(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_medians_are_in_usd_for_a_thousand_queries():
    three = [curve([0.01, 0.001 * cost]) for cost in (1, 2, 6)]
    figure = draw_panel(panel(curves={"scope": three}))
    (line,) = drawn(figure.axes[0], STYLES["scope"].colour, linewidth=1.3)
    assert line.get_xdata().tolist() == [0, 1, 3]
    assert line.get_ydata().tolist() == pytest.approx([10, 2, 2])
    assert line.get_drawstyle() == "steps-post"
    runs = drawn(figure.axes[0], STYLES["scope"].colour, linewidth=0.5)
    assert [float(run.get_ydata()[-1]) for run in runs] == pytest.approx([1, 2, 6])
    assert "1,000 queries" in figure.axes[0].get_ylabel()
    labels = [axes.get_ylabel() for axes in figure.axes[0].child_axes]
    assert "share of the reference" in labels


@pytest.mark.slow
def test_the_share_of_the_reference_is_on_the_right():
    figure = draw_panel(panel(["scope"]))
    figure.draw_without_rendering()
    (right,) = [a for a in figure.axes[0].child_axes if "reference" in a.get_ylabel()]
    low, high = figure.axes[0].get_ylim()
    assert right.get_ylim() == pytest.approx((low / 10, high / 10))
    assert "100%" in [text.get_text() for text in right.get_yticklabels()]


@pytest.mark.parametrize(
    ("costs", "scale"),
    [([0.01, 0.006], "linear"), ([0.01, 0.001], "log"), ([0.01, 0.0], "linear")],
)
def test_the_axis_is_logarithmic_where_the_span_asks_for_it(costs, scale):
    one = panel(curves={"scope": [curve(costs)]}, optimal_cost_usd=None)
    figure = draw_panel(one)
    assert figure.axes[0].get_yscale() == scale
    low, high = figure.axes[0].get_ylim()
    assert low < 1000 * costs[-1] < 10 < high


@pytest.mark.slow
@pytest.mark.parametrize("draw", [draw_panel, lambda one: draw_panels([one, one])])
def test_violations_have_axes_only_where_there_are_some(draw):
    def violations(figure):
        return [axes for axes in figure.axes if "violation" in axes.get_ylabel()]

    assert violations(draw(panel())) == []
    assert len(violations(draw(panel(violated=True)))) == 1


def test_only_the_violating_method_is_drawn_there():
    clean = [curve([0.01, 0.001])]
    poor = [curve([0.01, 0.001], [0.9, 0.4])]
    figure = draw_panel(panel(curves={"scope": clean, "abacus": poor}))
    (lower,) = [axes for axes in figure.axes if "violation" in axes.get_ylabel()]
    assert drawn(lower, STYLES["scope"].colour) == []
    (line,) = drawn(lower, STYLES["abacus"].colour, linewidth=1.3)
    assert line.get_ydata()[-1] == pytest.approx(0.5 * 2 / 3)  # half of s_0, for 2 USD of 3


@pytest.mark.slow
def test_labels_of_axes_stand_where_the_left_neighbour_has_none():
    def labels(figure):
        return [axes.get_ylabel().partition(" ")[0] for axes in figure.axes]

    some, none, quality = panel(violated=True), panel(), panel(label="least")
    assert labels(draw_panels([some, some])) == ["best", "violation", "", ""]
    assert labels(draw_panels([none, some])) == ["best", "", "violation"]
    assert labels(draw_panels([none, quality, none, none])) == ["best", "least", "best", ""]
    (alone, upper, lower) = draw_panels([none, some]).axes
    rows = [axes.get_subplotspec().rowspan for axes in (alone, upper, lower)]
    assert [(row.start, row.stop) for row in rows] == [(0, 2), (0, 1), (1, 2)]


@pytest.mark.slow
def test_titles_side_by_side_do_not_touch():
    figure = draw_panels([panel(title="data_transformation: median of 3 runs")] * 5)
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    found = [axes._left_title.get_window_extent(renderer) for axes in figure.axes]
    assert not [1 for one, other in combinations(found, 2) if one.overlaps(other)]
    assert max(box.x1 for box in found) <= figure.bbox.x1


def test_the_papers_curve_is_dashed_in_the_methods_colour_and_nothing_else_is():
    published = {"scope": (np.array([0.0, 1.0]), np.array([0.01, 0.002]))}
    figure = draw_panel(panel(paper=published), "a paper")
    found = [line for line in figure.axes[0].get_lines() if dashes(line) == PUBLISHED]
    assert [line.get_ydata().tolist() for line in found] == [[10, 2]]
    assert found[0].get_color() == STYLES["scope"].colour
    assert "published: a paper" in entries(figure)
    assert PUBLISHED not in {style.line for style in STYLES.values()}


@pytest.mark.parametrize(
    ("methods", "runs", "bands", "thin"),
    [(3, 4, 3, 12), (3, 3, 0, 9), (3, 11, 3, 0), (4, 8, 0, 0), (12, 8, 0, 0), (1, 1, 0, 0)],
)
def test_bands_do_not_turn_into_mud(methods, runs, bands, thin):
    upper = draw_panel(panel(METHODS[:methods], runs)).axes[0]
    assert len(upper.collections) == bands
    assert sum(line.get_linewidth() == 0.5 for line in upper.get_lines()) == thin


@pytest.mark.slow
def test_quartiles_where_a_run_has_nothing_feasible_yet():
    runs = [curve([np.inf, 0.004 + i / 1000], [0.1, 0.9]) for i in range(5)]
    with np.errstate(all="raise"):
        draw_panel(panel(curves={"scope": runs, "cei": runs})).draw_without_rendering()


def test_the_strip_has_each_method_at_its_place():
    figure = draw_panel(panel())
    strip = figure.axes[-1]
    for x, name in enumerate(METHODS):
        style = STYLES[name]
        (mark,) = drawn(strip, style.colour, marker=style.marker)
        assert mark.get_xdata() == x
        assert mark.get_ydata() == pytest.approx(10 / (4 + x + 1))


@pytest.mark.parametrize("methods", [["scope"], ["scope", "random_search", "cei"], METHODS])
def test_the_legend_names_the_methods_and_has_their_look(methods):
    for figure in (draw_panel(panel(methods)), draw_panels([panel(methods), panel(methods[:1])])):
        (legend,) = figure.legends
        found = entries(figure)[: len(methods)]
        assert found == [STYLES[name].title for name in methods]
        for name, handle in zip(methods, legend.legend_handles, strict=False):
            style = STYLES[name]
            assert (handle.get_color(), handle.get_marker()) == (style.colour, style.marker)
            assert drawn(figure.axes[0], style.colour.lower(), marker=style.marker)


def test_overrides_are_told_apart_in_the_legend():
    labels = [f"scope method.bounds.b_g=0.{i},method.alpha=0.2{i}" for i in range(6)]
    assert "SCOPE bounds.b_g=0.0,alpha=0.20" in entries(draw_panel(panel(labels)))


def test_markers_do_not_pile_up_where_all_methods_begin():
    figure = draw_panel(panel())
    marks = [line for line in figure.axes[0].get_lines() if line.get_marker() not in ("None", "")]
    points = [tuple(point) for line in marks for point in line.get_xydata().tolist()]
    assert len(marks) == len(METHODS)
    assert len(points) > 2 * len(METHODS)
    assert max(cost for _, cost in points) < 10  # c(theta_0) for 1,000 queries
    places = sorted(x for x, _ in points)
    assert min(after - before for before, after in pairwise(places)) > 0.01


def boxes(figure):
    """Of legends, and of axes with their labels, in pixels."""
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    inside = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    legends = [legend.get_window_extent(renderer) for legend in [*inside, *figure.legends]]
    axes = [[axes.bbox, axes.xaxis.get_tightbbox(renderer)] for axes in figure.axes]
    return legends, [box for pair in axes for box in pair if box is not None]


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(lambda: draw_panel(panel(violated=True)), id="12 methods"),
        pytest.param(lambda: draw_panel(panel(["scope"], 1)), id="one run"),
        pytest.param(lambda: draw_panel(panel(paper=PAPER), "A, 2026, doi:10/1"), id="published"),
        pytest.param(
            lambda: draw_panel(panel([f"mine a.long.key={i},b={i}" for i in range(9)])), id="long"
        ),
        pytest.param(
            lambda: draw_panels([panel(violated=True, paper=PAPER), panel()] * 2, "A, 2026"),
            id="four tasks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: draw_panels([panel([*STYLES])] * 7), id="seven tasks", marks=pytest.mark.slow
        ),
    ],
)
def test_the_legend_covers_nothing_and_everything_is_on_the_page(figure):
    figure = figure()
    legends, others = boxes(figure)
    assert len(legends) == 1
    page = figure.bbox
    for box in [*legends, *others]:
        assert box.x0 >= page.x0 - 1
        assert box.x1 <= page.x1 + 1
        assert box.y0 >= page.y0 - 1
    for legend in legends:
        assert not [box for box in others if legend.overlaps(box)]


PAPER = {"scope": (np.array([0.0, 1.0]), np.array([0.01, 0.002]))}


def test_quality_as_the_objective_is_drawn_as_it_is():
    figure = draw_panel(panel(["scope", "cei"], label="least feasible 1 - quality"))
    assert figure.axes[0].get_ylabel() == "least feasible 1 - quality"
    assert figure.axes[0].get_ylim()[1] < 0.02
    assert not [a for axes in figure.axes for a in axes.child_axes if "share" in a.get_ylabel()]


def assert_truetype(pdf):
    content = pdf.read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


@pytest.mark.slow
def test_fonts_are_embedded_as_truetype_and_files_are_reproducible(tmp_path):
    one = panel(["scope"], 1)
    for name in ("a", "b"):
        save_figure(draw_panel(one), tmp_path / f"{name}.pdf")
        save_figure(draw_panel(one), tmp_path / f"{name}.png")
        save_figure(draw_panel(one), tmp_path / f"{name}.svg")
    assert_truetype(tmp_path / "a.pdf")
    for suffix in ("pdf", "png", "svg"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.slow
def test_the_figure_of_a_result_embeds_its_fonts(tmp_path):
    problem, evaluator, _ = synthetic_task(num_queries=5)
    result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.05)
    result.plot(tmp_path / "a.pdf")
    assert_truetype(tmp_path / "a.pdf")


@pytest.mark.slow
def test_settings_of_matplotlib_are_left_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    plot_curves({"scope": [curve([0.01])]}, 1, tmp_path / "a.png", title="", reference_cost_usd=1)
    assert dict(matplotlib.rcParams) == before


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        save_figure(matplotlib.figure.Figure(), tmp_path / "absent" / "a.png")
    with pytest.raises(InputError, match=r"a\.xyz: a figure is a \.png, \.pdf or \.svg file"):
        save_figure(matplotlib.figure.Figure(), tmp_path / "a.xyz")


def test_a_half_written_figure_of_a_run_is_not_there(tmp_path, monkeypatch):
    problem, evaluator, _ = synthetic_task(num_queries=5)

    def full(self, file, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    optimizer = make_scope(problem, base="nano", seed=0)
    with pytest.raises(InputError, match="make room"):
        run(problem, optimizer, evaluator, 0.05, run_dir=tmp_path, callbacks=[CurvePlot()])
    names = {path.name for path in tmp_path.iterdir()}
    assert "trace.csv" in names
    assert not [name for name in names if "curves.png" in name]


@pytest.mark.slow
def test_a_name_with_dollars_is_no_formula(tmp_path):
    llms = ("a$\\x", "b$_", "c$^", "d$", "e$", "f$")
    task = synthetic_task(num_queries=12)
    problem = dataclasses.replace(task.problem, name="$\\foo$", llms=(llms, llms))
    optimizer = make_scope_joint(problem, base=llms[0], seed=0)
    result = run(problem, optimizer, task.evaluator, 0.2, run_dir=tmp_path, callbacks=[CurvePlot()])
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    result.plot(tmp_path / "looked_at.png")
    assert (tmp_path / "looked_at.png").stat().st_size > 10_000


@pytest.mark.parametrize(("low", "high"), [(20.8, 32.5), (2.1, 3.3), (0.02, 4.0), (1.0, 1e5)])
def test_a_short_logarithmic_axis_has_numbers(low, high):
    figure = matplotlib.figure.Figure()
    axes = figure.subplots()
    axes.set(xscale="log", xlim=(low, high))
    plain_log_ticks(axes.xaxis, low, high)
    assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2
