"""One colour, marker and line for each method, which everybody can tell apart, also in grey."""

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from scope_torch.cli.registry import config_dir
from scope_torch.results.style import STYLES, rank, style_of, styles_of

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
LEAST_DIFFERENCE = 9  # of CIELAB; 2.3 is just noticeable


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ rgb.clip(0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_differ_for_everybody(sight):
    seen = {name: lab(SIGHT[sight] @ linear(style.colour)) for name, style in STYLES.items()}
    differences = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(seen, 2)}
    assert {pair: d for pair, d in differences.items() if d < LEAST_DIFFERENCE} == {}


def test_every_colour_is_dark_enough_on_white():
    for style in STYLES.values():
        luminance = TO_XYZ[1] @ linear(style.colour)
        assert 1.05 / (luminance + 0.05) > 2.1


def test_no_two_methods_share_a_marker_or_a_colour():
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)


def test_every_method_of_the_command_line_has_a_style():
    methods = {path.stem for path in (Path(config_dir()) / "method").glob("*.yaml")}
    assert len(methods) > 10
    assert methods <= STYLES.keys()


def test_the_stand_in_of_llambo_keeps_its_name():
    assert style_of("LLAMBO[stub]").title == "LLAMBO[stub]"
    assert style_of("LLAMBO[stub]").colour == style_of("llambo").colour


def test_a_style_depends_on_nothing_but_the_name():
    alone = {name: style_of(name) for name in ("scope", "cei", "mine", "scope method.alpha=0.4")}
    assert styles_of(alone) == alone
    assert styles_of([*STYLES, "mine"])["mine"] == alone["mine"]


def test_many_unknown_methods_stay_apart():
    found = styles_of([*STYLES, *(f"scope method.alpha={i}" for i in range(80))]).values()
    assert len({(style.colour, style.marker) for style in found}) == len(STYLES) + 80
    few = styles_of([f"scope method.alpha={i}" for i in range(9)]).values()
    for one, other in pairwise(few):
        assert one.colour != other.colour
        assert one.marker != other.marker
    assert len({style.colour for style in few}) == len({style.marker for style in few}) == 9


def test_more_methods_than_pairs_are_drawn_all_the_same():
    assert len(styles_of([f"m{i}" for i in range(200)])) == 200


def test_overrides_that_all_have_are_left_out():
    found = styles_of(["scope task.num_queries=8", "random_search task.num_queries=8"])
    assert [style.title for style in found.values()] == ["SCOPE", "Random"]
    assert list(found.values()) == [STYLES["scope"], STYLES["random_search"]]
    found = styles_of(["scope", "scope method.alpha=0.2,seed=1"])
    assert [style.title for style in found.values()] == ["SCOPE", "SCOPE alpha=0.2,seed=1"]


def test_the_order_of_legends_and_tables():
    labels = ["yours", "mine", "LLAMBO[stub]", "scope", "random_search", "scope_joint"]
    expected = ["scope_joint", "scope", "random_search", "LLAMBO[stub]", "mine", "yours"]
    assert sorted(labels, key=rank) == list(styles_of(labels)) == expected
    assert styles_of([]) == {}
