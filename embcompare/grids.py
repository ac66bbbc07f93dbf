"""Pictures: cells with their numbers written in them, layer by layer or by named rows, as Altair charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from embcompare import charts
from embcompare.charts import UNDEFINED, Axes, Scale

CELL_HEIGHT, WIDEST = 20, 190
WRITTEN = 24
"""Pixels of a cell from which its number is written into it."""
GREY, GREY_SHARE = "#8b9598", 0.62
"""What lies over a cell that does not beat what it is held against."""


def numbered(
    matrix: np.ndarray,
    scale: Scale,
    axes: Axes,
    *,
    side: int,
    write: Callable[[float], str],
    grey: np.ndarray | None = None,
    path: np.ndarray | None = None,
    start: tuple[int, int] = (0, 0),
    **more: Any,
) -> alt.LayerChart:
    """Draw (L_a, L_b) as :func:`embcompare.charts.heatmap` does, with the number of each cell as ``write`` says it.

    ``grey`` (L_a, L_b bool) veils cells, ``path`` (k, 2) outlines cells and joins them by a line; ``more`` goes on.
    """
    whole = charts.heatmap(matrix, scale, axes, assigned=path, side=side, start=start, **more)
    step = charts.step_of(matrix.shape, side)
    x, y = alt.X("layer_b:O", title=axes.columns, sort=None), alt.Y("layer_a:O", title=axes.rows, sort=None)
    rows, columns = np.indices(matrix.shape)
    veiled = np.zeros(matrix.shape, dtype=bool) if grey is None else grey & np.isfinite(matrix)
    frame = pd.DataFrame(
        {
            "layer_a": rows.ravel() + start[0],
            "layer_b": columns.ravel() + start[1],
            "grey": veiled.ravel(),
            "value": matrix.ravel(),
            "bright": [scale.bright(float(value)) for value in matrix.ravel()],
            "number": [write(float(value)) if np.isfinite(value) else "" for value in matrix.ravel()],
        }
    )
    # what lies above the cells must let the mouse through
    veil = (
        alt.Chart(frame[frame["grey"]])
        .mark_rect(color=GREY, opacity=GREY_SHARE, stroke=None, tooltip=None)
        .encode(x, y)
    )
    layers: list[Any] = [whole]
    joined = path is not None and len(path) > 1
    if path is not None and joined:
        edge, stroke = scale.outline()
        at = alt.Chart(pd.DataFrame(path + np.array(start), columns=["layer_a", "layer_b"]))
        for ink, width in ((edge, 3.0), (stroke, 1.2)):
            line = at.mark_line(strokeWidth=width, opacity=0.75, strokeJoin="round", tooltip=None)
            layers.append(line.encode(x, y, alt.Order("layer_a:Q"), stroke=ink))
    kind: dict[str, Any] = {"fontSize": 11 if step >= 34 else 9.5, "dy": step * 0.2, "tooltip": None}
    text = alt.Chart(frame).encode(x, y, alt.Text("number:N"))
    if step >= WRITTEN and joined:
        # in the colour of its cell around each number, so that the line goes behind and not through it
        around = alt.Stroke("value:Q", scale=scale.encoding(), legend=None)
        ground = alt.Color("value:Q", scale=scale.encoding(), legend=None)
        layers.append(text.mark_text(strokeWidth=5, strokeJoin="round", **kind).encode(ground, around))
    layers.append(veil)
    if step >= WRITTEN:
        # a grey cell lies between bright and dark
        ink = alt.condition("datum.bright || datum.grey", alt.value("#101618"), alt.value("#ffffff"))
        layers.append(text.mark_text(**kind).encode(color=ink))
    return alt.layer(*layers).properties(width=alt.Step(step), height=alt.Step(step))


def by_layer(
    matrix: np.ndarray, scale: Scale, rows: Sequence[str], title: str, *, layers: Sequence[int] | None = None
) -> alt.LayerChart:
    """Draw (rows, layers) as coloured cells with the rows' names before them; cells without a number are grey.

    ``layers`` are the numbers of the columns where they do not count from 0.
    """
    numbers = np.arange(matrix.shape[1]) if layers is None else np.asarray(layers)
    at, layer = np.indices(matrix.shape)
    frame = pd.DataFrame(
        {"row": np.asarray(rows, dtype=object)[at.ravel()], "layer": numbers[layer.ravel()], "value": matrix.ravel()}
    )
    width = max(6, min(30, WIDEST // max(matrix.shape[1], 1))) * matrix.shape[1]
    every = max(1, matrix.shape[1] // 12)
    axis = alt.Axis(labelAngle=0, ticks=False, domain=False, values=numbers[::every].tolist())
    x = alt.X("layer:O", title="layer", axis=axis, scale=alt.Scale(domain=numbers.tolist()))
    names = alt.Axis(ticks=False, domain=False, labelLimit=180)
    y = alt.Y("row:N", title=None, sort=list(rows), scale=alt.Scale(domain=list(rows)), axis=names)
    place = [alt.Tooltip("row:N", title="parameters"), alt.Tooltip("layer:O", title="layer")]
    known = np.isfinite(frame["value"])
    # two layers: a cell without a number would take the colour of zero
    without = (
        alt.Chart(frame[~known][["row", "layer"]]).mark_rect(stroke=None, color=UNDEFINED).encode(x, y, tooltip=place)
    )
    number = alt.Tooltip("value:Q", title=title, format="+.2f" if scale.signed else ".3f")
    colour = alt.Color("value:Q", scale=scale.encoding(), legend=None)
    cells = alt.Chart(frame[known]).mark_rect(stroke=None).encode(x, y, colour, tooltip=[*place, number])
    return alt.layer(without, cells).properties(
        width=width,
        height=CELL_HEIGHT * len(rows),
        title=alt.TitleParams(title, anchor="start"),
        autosize="pad",  # else the cells are pressed into what the labels leave of the width
    )
