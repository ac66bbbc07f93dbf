from __future__ import annotations

import io
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
    assert (scale.low, scale.high, scale.scheme) == (0.0, 0.2, "viridis")
    assert charts.sequential_scale("score", [matrix]).high == 0.1


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_the_whole_range_is_the_one_the_score_declares(matrix, score):
    scale = charts.sequential_scale(score.label, [matrix], high=score.high, full=True)
    assert (scale.low, scale.high) == (score.low, score.high)


def test_a_signed_scale_is_symmetric_about_zero_and_diverging():
    scale = charts.signed_scale("difference", [np.array([[-0.03, 0.01]]), np.array([[np.nan, 0.002]])])
    assert (scale.low, scale.high) == (-0.05, 0.05)
    encoded = scale.encoding().to_dict()
    assert encoded["scheme"] == "purpleorange"
    assert encoded["domain"] == [-0.05, 0.05]
    assert encoded["domainMid"] == 0


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
