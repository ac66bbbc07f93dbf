"""Pictures of attention: heads against heads, with lines between blocks, and one head's pattern token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from embcompare.charts import UNDEFINED, Axes, Scale

SIDE = 440
"""Pixels that the longer side of a map of heads aims at."""
FADED = 0.35
"""Opacity of a cell that does not leave its null."""
_LONGEST = 11


def heads(
    matrix: np.ndarray,
    scale: Scale,
    axes: Axes,
    per_block: tuple[int, int],
    *,
    first: tuple[int, int] = (1, 1),
    faint: np.ndarray | None = None,
    chosen: tuple[int, int] | None = None,
    details: dict[str, np.ndarray] | None = None,
    selection: str = "",
) -> alt.LayerChart:
    """Draw (h_a, h_b) heads as square cells, block by block, with lines between blocks.

    ``per_block`` are the heads of each block of A and of B, ``first`` the numbers of the first blocks that are drawn.
    ``faint`` (h_a, h_b bool) fades cells, ``chosen`` rings one, ``details`` adds matrices to the tooltip by label. With
    ``selection`` a click selects a cell's ``row`` and ``column``. These and ``chosen`` count all heads of a model from
    its block 1, also where fewer are drawn. A cell without a number is grey.
    """
    begin = [(block - 1) * count for block, count in zip(first, per_block, strict=True)]
    rows, columns = (index.ravel() + at for index, at in zip(np.indices(matrix.shape), begin, strict=True))
    frame = pd.DataFrame(
        {
            "row": rows,
            "column": columns,
            "head_a": _names(rows, per_block[0]),
            "head_b": _names(columns, per_block[1]),
            "value": matrix.ravel(),
            "faint": np.zeros(matrix.size, dtype=bool) if faint is None else faint.ravel(),
            **{f"detail{i}": detail.ravel() for i, detail in enumerate((details or {}).values())},
        }
    )
    step = max(2, SIDE // max(matrix.shape))
    x = alt.X("column:O", title=axes.columns, axis=_blocks(matrix.shape[1], per_block[1], begin[1]), sort=None)
    y = alt.Y("row:O", title=axes.rows, axis=_blocks(matrix.shape[0], per_block[0], begin[0]), sort=None)
    tooltip = [
        alt.Tooltip("head_a:N", title="head of A"),
        alt.Tooltip("head_b:N", title="head of B"),
        alt.Tooltip("value:Q", title=scale.title, format=".3f"),
        *(alt.Tooltip(f"detail{i}:Q", title=name, format=".3f") for i, name in enumerate(details or {})),
    ]
    ground = alt.Chart(frame).mark_rect(color=UNDEFINED, stroke=None).encode(x, y, tooltip=tooltip)
    cells = (
        alt.Chart(frame)
        .mark_rect(cursor="pointer" if selection else "default", stroke=None)
        .encode(
            x,
            y,
            color=alt.Color("value:Q", scale=scale.encoding(), legend=None),
            opacity=alt.condition("datum.faint", alt.value(FADED), alt.value(1.0)),
            tooltip=tooltip,
        )
    )
    if selection:
        cells = cells.add_params(
            alt.selection_point(name=selection, fields=["row", "column"], toggle=False, clear="dblclick")
        )
    layers: list[alt.Chart] = [ground, cells] if np.isnan(matrix).any() else [cells]
    edges = [at + np.arange(count, size, count) for at, count, size in zip(begin, per_block, matrix.shape, strict=True)]
    line = {"color": "#8b9598", "strokeWidth": 1.2, "tooltip": None}
    if len(edges[0]):
        at = alt.Chart(pd.DataFrame({"row": edges[0]}))
        layers.append(at.mark_rule(**line).encode(alt.Y("row:O", title=axes.rows, sort=None, bandPosition=0)))
    if len(edges[1]):
        at = alt.Chart(pd.DataFrame({"column": edges[1]}))
        layers.append(at.mark_rule(**line).encode(alt.X("column:O", title=axes.columns, sort=None, bandPosition=0)))
    if chosen is not None:
        ring = alt.value("#0f9aa6" if scale.signed else "#e4572e")
        one = alt.Chart(frame[(frame.row == chosen[0]) & (frame.column == chosen[1])])
        mark = one.mark_point(shape="square", size=(step + 3) ** 2, filled=False, strokeWidth=2.5, tooltip=None)
        layers.append(mark.encode(x, y, stroke=ring))
    return alt.layer(*layers).properties(width=alt.Step(step), height=alt.Step(step))


def pattern(
    attention: np.ndarray, tokens: Sequence[str], special: np.ndarray, *, step: int | None = None
) -> alt.LayerChart:
    """Draw one head's attention (t, t), from the token of a row to that of a column, as square cells from 0 to 1.

    ``special`` (t,) marks the special tokens, which are set in italics; a cell with no attention at all, as above a
    causal diagonal, is left empty.
    """
    count = len(tokens)
    size = step or max(9, min(24, 430 // max(1, count)))
    rows, columns = (index.ravel() for index in np.indices(attention.shape))
    names = np.array(list(tokens), dtype=object)
    frame = pd.DataFrame(
        {
            "row": rows,
            "column": columns,
            "query": names[rows],
            "key": names[columns],
            "attention": attention.ravel().astype(float),
        }
    )
    frame = frame[frame["attention"] > 0]
    every = max(1, -(-11 // size))
    label = " : ".join(
        [*(f"datum.value == {at} ? {json.dumps(_clipped(name))}" for at, name in enumerate(tokens)), "''"]
    )
    italic = " || ".join(f"datum.value == {at}" for at in np.flatnonzero(special).tolist())
    axis = {
        "labelExpr": label,
        "ticks": False,
        "domain": False,
        "labelFontSize": 10,
        "labelOverlap": False,
        "values": list(range(0, count, every)),
        **({"labelFontStyle": alt.condition(italic, alt.value("italic"), alt.value("normal"))} if italic else {}),
    }
    domain = alt.Scale(domain=list(range(count)))
    x = alt.X(
        "column:O", title="to", scale=domain, axis=alt.Axis(orient="top", labelAngle=-90, titleAnchor="start", **axis)
    )
    y = alt.Y("row:O", title="from", scale=domain, axis=alt.Axis(titleAnchor="start", **axis))
    tooltip = [
        alt.Tooltip("query:N", title="from"),
        alt.Tooltip("key:N", title="to"),
        alt.Tooltip("attention:Q", title="attention", format=".3f"),
    ]
    colour = alt.Color("attention:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=None)
    cells = alt.Chart(frame).mark_rect(stroke=None).encode(x, y, colour, tooltip=tooltip)
    return alt.layer(cells).properties(width=alt.Step(size), height=alt.Step(size))


def _blocks(size: int, count: int, begin: int) -> alt.Axis:
    """Label each block in its middle by its number, or every second, fifth, … of them where they are many."""
    blocks = size // count
    every = next((n for n in (1, 2, 5, 10, 20, 50) if n * (SIDE / max(blocks, 1)) >= 16), 100)
    middles = [begin + block * count + count // 2 for block in range(0, blocks, every)]
    return alt.Axis(
        values=middles,
        labelExpr=f"format(floor(datum.value / {count}) + 1, 'd')",
        labelAngle=0,
        ticks=False,
        domain=False,
        labelOverlap=False,
        titleFontWeight="normal",
        titlePadding=10,
    )


def _names(at: np.ndarray, count: int) -> list[str]:
    return [f"block {block + 1}, head {head}" for block, head in zip(*np.divmod(at, count), strict=True)]


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
