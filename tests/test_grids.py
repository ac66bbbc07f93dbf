"""Coloured cells by group and layer: every cell is there, and one without a number is grey."""

from __future__ import annotations

import json

import numpy as np

from embcompare import charts, grids


def test_cells_without_a_number_are_a_grey_layer_of_their_own_and_no_layer_is_left_out():
    matrix = np.array([[np.nan, 0.0, 1.0], [np.nan, np.inf, 0.5]])
    scale = charts.sequential_scale("share", [matrix[np.isfinite(matrix)]])
    spec = json.loads(grids.by_layer(matrix, scale, ["one", "two"], "share", layers=[2, 3, 4]).to_json())
    grey, cells = spec["layer"]
    assert grey["mark"]["color"] == charts.UNDEFINED
    rows = [spec["datasets"][layer["data"]["name"]] for layer in (grey, cells)]
    assert [(row["row"], row["layer"]) for row in rows[0]] == [("one", 2), ("two", 2), ("two", 3)]
    assert [row["value"] for row in rows[1]] == [0.0, 1.0, 0.5]
    for layer in spec["layer"]:
        assert layer["encoding"]["x"]["scale"]["domain"] == [2, 3, 4]
        assert layer["encoding"]["y"]["scale"]["domain"] == ["one", "two"]
