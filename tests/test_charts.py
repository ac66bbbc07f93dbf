from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest

from embcompare import charts
from embcompare.measures.matching import SCORES

AXES = charts.Axes.of_layers("demo/gpt2-a", "demo/gpt2-b")


def spec_of(chart) -> dict:
    return chart.to_dict()


def layers_of(chart) -> list[dict]:
    return spec_of(chart)["layer"]


def rows_of(chart) -> list[dict]:
    spec = spec_of(chart)
    return next(rows for rows in spec["datasets"].values() if "value" in rows[0])


@pytest.fixture
def matrix() -> np.ndarray:
    return np.linspace(0.02, 0.09, 12).reshape(3, 4)


def test_the_scale_starts_at_zero_and_ends_at_the_first_rung_that_holds_every_matrix(matrix):
    scale = charts.sequential_scale("score", [matrix, matrix + 0.05])
    assert (scale.low, scale.high, scale.encoding().to_dict()["scheme"]) == (0.0, 0.2, "viridis")
    assert charts.sequential_scale("score", [matrix]).high == 0.1


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_the_whole_range_is_the_one_the_score_declares(matrix, score):
    scale = charts.sequential_scale(score.label, [matrix], high=score.high, full=True)
    assert (scale.low, scale.high) == (score.low, score.high)


def test_a_signed_scale_is_symmetric_about_zero_and_diverging():
    scale = charts.signed_scale("difference", [np.array([[-0.03, 0.01]]), np.array([[np.nan, 0.002]])])
    assert (scale.low, scale.high) == (-0.05, 0.05)
    encoded = scale.encoding().to_dict()
    assert encoded["domain"] == [-0.05, 0.05]
    assert encoded["domainMid"] == 0
    assert len(encoded["range"]) == len(charts.DIVERGING["light"]) == len(charts.DIVERGING["dark"])


GROUNDS = {"light": "#ffffff", "dark": "#12181a"}  # the theme's backgrounds, .streamlit/config.toml


def drawn(matrix: np.ndarray, scale: charts.Scale, ground: str | None, **marks) -> str:
    chart = charts.heatmap(matrix, scale, AXES, **marks)
    return charts.picture(chart if ground is None else chart.configure(background=ground), "svg").decode()


def fills(svg: str) -> list[str]:
    cells = re.findall(r'aria-roledescription="rect mark"[^>]*fill="rgb\((\d+), ?(\d+), ?(\d+)\)"', svg)
    return ["#" + "".join(f"{int(part):02x}" for part in cell) for cell in cells]


@pytest.mark.parametrize(("ground", "colours"), [("light", "light"), ("dark", "dark"), (None, "light")])
def test_colours_around_zero_follow_the_ground_they_are_drawn_on(ground, colours):
    matrix = np.linspace(-1, 1, 9).reshape(3, 3)
    svg = drawn(matrix, charts.Scale(-1.0, 1.0, True, "s"), GROUNDS.get(ground))
    assert fills(svg) == list(charts.DIVERGING[colours])


def test_a_file_has_the_colours_of_a_white_ground():
    matrix = np.linspace(-1, 1, 9).reshape(3, 3)
    scale = charts.Scale(-1.0, 1.0, True, "s")
    panels = [charts.heatmap(matrix, scale, AXES, title=name) for name in ("First", "Second")]
    svg = charts.picture(charts.side_by_side(panels, charts.colour_bar(scale), "Title", "note"), "svg").decode()
    assert fills(svg)[:18] == 2 * list(charts.DIVERGING["light"])


def linear(colour: str) -> np.ndarray:
    share = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    """Ottosson (2020), from linear sRGB."""
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    mixed = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
    mixed.append([0.0259040371, 0.7827717662, -0.8086757660])
    return np.array(mixed) @ np.cbrt(np.array(cones) @ light)


EYES = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear sRGB
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen(colour: str, eyes: str) -> np.ndarray:
    return oklab((np.array(EYES[eyes]) @ linear(colour)).clip(0, 1))


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("ground", GROUNDS)
def test_every_eye_tells_signs_steps_and_undefined_cells_apart(ground, eyes):
    colours = np.array([seen(colour, eyes) for colour in charts.DIVERGING[ground]])
    steps = np.linalg.norm(np.diff(colours, axis=0), axis=1)
    assert steps.min() > 0.09
    assert steps.max() < 1.6 * steps.min(), "equal steps look equal"
    opposite = np.linalg.norm(colours - colours[::-1], axis=1)[:4]
    assert opposite.min() > 0.05, "a value and its negative differ in hue, not only in strength"
    assert np.linalg.norm(colours - seen(charts.UNDEFINED, eyes), axis=1).min() > 0.03


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("ground", GROUNDS)
def test_zero_is_nearly_the_ground_and_the_ends_stand_out(ground):
    first, *_, last = charts.DIVERGING[ground]
    assert contrast(charts.DIVERGING[ground][4], GROUNDS[ground]) < 1.35
    assert min(contrast(first, GROUNDS[ground]), contrast(last, GROUNDS[ground])) > 4.5


@pytest.mark.parametrize("ground", GROUNDS)
def test_marks_can_be_read_on_every_colour_around_zero(ground):
    scale = charts.Scale(-1.0, 1.0, True, "s")
    matrix = np.linspace(-1, 1, 81).reshape(9, 9)
    cells = fills(drawn(matrix, scale, GROUNDS[ground]))
    svg = drawn(matrix, scale, GROUNDS[ground], faint=np.ones((9, 9), dtype=bool))
    inks = re.findall(r'<path [^>]*fill="(#101618|#ffffff)"', svg)
    assert len(cells) == len(inks) == 81
    assert min(map(contrast, cells, inks)) > 3.0


def test_scales_of_empty_or_undefined_matrices_are_still_scales():
    nothing = np.full((2, 2), np.nan)
    assert charts.sequential_scale("score", [nothing]).high > 0
    assert charts.signed_scale("score", [nothing]).high > 0


def test_heat_map_names_its_axes_and_carries_the_scale(matrix):
    chart = charts.heatmap(matrix, charts.sequential_scale("mean |ρ|", [matrix]), AXES, title="Embedding space")
    spec = spec_of(chart)
    encoding = spec["layer"][0]["encoding"]
    assert spec["title"] == "Embedding space"
    assert encoding["x"]["title"] == "layer of B: demo/gpt2-b"
    assert encoding["y"]["title"] == "layer of A: demo/gpt2-a"
    assert encoding["color"]["scale"]["domain"] == [0.0, 0.1]
    assert encoding["color"]["scale"]["clamp"] is True
    assert all(tip.get("format") == ".3f" for tip in encoding["tooltip"] if tip["type"] == "quantitative")


def test_every_cell_keeps_its_own_number_and_place(matrix):
    rows = rows_of(charts.heatmap(matrix, charts.sequential_scale("s", [matrix]), AXES))
    assert len(rows) == matrix.size
    assert all(row["value"] == pytest.approx(matrix[row["layer_a"], row["layer_b"]]) for row in rows)


@pytest.mark.parametrize("shape", [(2, 2), (6, 6), (12, 12), (24, 12), (48, 48)])
def test_cells_are_squares_of_whole_pixels(shape):
    matrix = np.random.default_rng(0).random(shape)
    spec = spec_of(charts.heatmap(matrix, charts.sequential_scale("s", [matrix]), AXES))
    assert spec["width"] == spec["height"]
    step = spec["width"]["step"]
    assert step == int(step) >= charts.SMALLEST_STEP
    assert max(shape) * step <= max(charts.SIDE, charts.SMALLEST_STEP * max(shape))


def test_an_undefined_cell_is_grey_and_only_then_there_is_a_ground(matrix):
    scale = charts.sequential_scale("s", [matrix])
    whole = layers_of(charts.heatmap(matrix, scale, AXES))
    matrix[1, 2] = np.nan
    holed = layers_of(charts.heatmap(matrix, scale, AXES))
    assert holed[0]["mark"]["color"] == charts.UNDEFINED
    assert charts.UNDEFINED not in str(whole)


def test_assigned_faint_and_chosen_cells_are_marked(matrix):
    assigned = np.array([[0, 0], [1, 2]])
    faint = matrix < 0.04
    scale = charts.sequential_scale("s", [matrix])
    rows = rows_of(charts.heatmap(matrix, scale, AXES, assigned=assigned, faint=faint))
    assert {(r["layer_a"], r["layer_b"]) for r in rows if r["assigned"]} == {(0, 0), (1, 2)}
    assert {(r["layer_a"], r["layer_b"]) for r in rows if r["faint"]} == set(zip(*np.nonzero(faint), strict=True))
    filters = str(layers_of(charts.heatmap(matrix, scale, AXES, chosen=(2, 3))))
    assert "datum.layer_a == 2 && datum.layer_b == 3" in filters


def test_a_click_selects_both_layers_and_only_where_asked_for(matrix):
    scale = charts.sequential_scale("s", [matrix])
    spec = spec_of(charts.heatmap(matrix, scale, AXES, selection="cell"))
    (param,) = spec["params"]
    assert param["name"] == "cell"
    assert param["select"]["fields"] == ["layer_a", "layer_b"]
    assert param["select"]["toggle"] is False
    assert "params" not in spec_of(charts.heatmap(matrix, scale, AXES))


def test_details_join_the_tooltip_under_their_own_names(matrix):
    chart = charts.heatmap(matrix, charts.sequential_scale("s", [matrix]), AXES, details={"z [odd.name]": matrix * 2})
    tips = layers_of(chart)[0]["encoding"]["tooltip"]
    (tip,) = [tip for tip in tips if tip["title"] == "z [odd.name]"]
    assert rows_of(chart)[0][tip["field"]] == pytest.approx(matrix[0, 0] * 2)


def test_marks_are_dark_on_light_cells():
    scale = charts.Scale(0.0, 1.0, False, "s")
    assert scale.bright(0.9)
    assert not scale.bright(0.1)
    signed = charts.Scale(-1.0, 1.0, True, "s")
    assert signed.bright(0.0)
    assert not signed.bright(-1.0)
    assert not signed.bright(1.0)


@pytest.mark.parametrize("ground", GROUNDS)
def test_outlines_are_of_one_kind_whatever_lies_under_them(ground):
    scale = charts.Scale(-1.0, 1.0, True, "s")
    matrix = np.linspace(-1, 1, 9).reshape(3, 3)
    every = np.array([(i, j) for i in range(3) for j in range(3)])
    svg = drawn(matrix, scale, GROUNDS[ground], assigned=every)
    inks = re.findall(r'<path [^>]*stroke="(#101618|#ffffff)(?:99)?"', svg)
    dark, light = 9 * ["#101618"], 9 * ["#ffffff"]
    assert inks == (light + dark if ground == "light" else dark + light)


@pytest.mark.parametrize(("high", "ticks"), [(200.0, {"200", "−200", "0"}), (0.001, {"0.001", "−0.001", "0"})])
def test_the_bar_writes_plain_numbers(high, ticks):
    svg = charts.picture(charts.colour_bar(charts.Scale(-high, high, True, "s")), "svg").decode()
    assert ticks <= set(re.findall(r">([^<>]+)</text>", svg))


def test_long_names_keep_their_end():
    assert charts.shortened("demo/gpt2-a") == "demo/gpt2-a"
    assert charts.shortened("an-organisation/with-a-long-name-step-2000").endswith("-step-2000")
    assert len(charts.shortened("x" * 100)) == 30


def test_colour_bar_marks_only_what_lies_on_it():
    scale = charts.Scale(0.0, 0.1, False, "mean |ρ|")
    assert len(layers_of(charts.colour_bar(scale, marks=[0.07]))) == 2
    assert len(layers_of(charts.colour_bar(scale, marks=[0.7]))) == 1
    assert layers_of(charts.colour_bar(scale))[0]["encoding"]["color"]["scale"]["domain"] == [0.0, 0.1]


def test_histogram_counts_every_finite_value():
    values = np.array([0.0, 0.1, 0.55, 1.0, np.nan])
    data = next(iter(spec_of(charts.histogram(values, "|ρ|"))["datasets"].values()))
    assert sum(row["pairs"] for row in data) == 4
    assert charts.histogram(np.array([]), "|ρ|").to_dict()


def test_the_picture_is_a_png_and_an_svg_with_every_panel(matrix):
    scale = charts.sequential_scale("mean |ρ|", [matrix])
    panels = [charts.heatmap(matrix, scale, AXES, title=name) for name in ("First", "Second")]
    whole = charts.side_by_side(panels, charts.colour_bar(scale), "FF keys", "What it shows")
    svg = charts.picture(whole, "svg").decode()
    assert svg.startswith("<svg")
    assert all(text in svg for text in ("First", "Second", "FF keys", "What it shows", "layer of A: demo/gpt2-a"))
    png = io.BytesIO(charts.picture(whole, "png"))
    assert png.read(8) == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png.read(16)[8:])
    assert width > 1000
    assert height > 500


def test_of_a_distance_the_close_cells_are_the_bright_ones():
    near, far = 0.1, 0.9
    distance = charts.sequential_scale("angle", [np.array([[near, far]])], low_is_bright=True)
    closeness = charts.sequential_scale("share", [np.array([[near, far]])])
    assert distance.encoding().to_dict()["reverse"] is True
    assert (distance.bright(near), distance.bright(far)) == (True, False)
    assert (closeness.bright(near), closeness.bright(far)) == (False, True)
