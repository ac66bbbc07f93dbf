"""Pictures: a number for each named row and each layer, such as a group of parameters by layers, as Altair charts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from embcompare.charts import UNDEFINED, Scale

CELL_HEIGHT, WIDEST = 20, 190


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
