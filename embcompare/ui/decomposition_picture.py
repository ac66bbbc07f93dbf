"""Pictures of hidden states as sums: shares stacked by layer, lines with intervals, named cells, bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from embcompare import charts

ORDER = ("input", "target", "self-attention", "cross-attention", "source", "feed-forward", "correction")
"""Kinds of terms in the order in which they are stacked and listed."""
# They read on a light ground and on a dark one; what is left over, the correction, is grey.
COLOURS = {
    "input": "#2a8c96",
    "target": "#2a8c96",
    "self-attention": "#cb6f33",
    "cross-attention": "#9a6fa8",
    "source": "#9a6fa8",
    "feed-forward": "#6f86c4",
    "correction": "#8b9598",
}
_DASHES = {"input": [1, 0], "target": [1, 0], "feed-forward": [1, 0], "correction": [2, 2]}
RULE = "#7d8a8e"
HEIGHT = 360
"""Pixels of a picture with its axis and its legend."""
DARK = "luminance(background) < 0.2"
INK = alt.condition(DARK, alt.value("#e4eaeb"), alt.value("#1b2528"))


def kinds_of(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that occur, each once, in the order of :data:`ORDER`."""
    return tuple(kind for kind in ORDER if kind in kinds)


def by_kind(values: np.ndarray, kinds: Sequence[str], axis: int) -> np.ndarray:
    """Sum what adds up, such as importance, over the terms of a kind along ``axis``; kinds as :func:`kinds_of`."""
    table = np.moveaxis(np.asarray(values), axis, 0)
    own = np.asarray(kinds)
    return np.moveaxis(np.stack([table[own == kind].sum(0) for kind in kinds_of(kinds)]), 0, axis)


def number(value: float, digits: int = 2, sign: str = "") -> str:
    """Write a number with so many digits, a true minus, and no sign before a zero; ``sign`` is ``+`` or empty."""
    text = f"{value:{sign}.{digits}f}"
    bare = text.lstrip("+-")
    return bare if float(bare) == 0 else text.replace("-", "−")


def places(states: Sequence[str], layers: np.ndarray) -> list[str]:
    """Return the short name of each state: its layer, and ``norm`` for the one after the final norm."""
    return ["norm" if "norm" in name else str(layer) for name, layer in zip(states, layers.tolist(), strict=True)]


def extent(*tables: np.ndarray) -> tuple[float, float]:
    """Return the limits of stacked values (states, kinds) of all tables, 0 and 1 among them."""
    low = min([0.0, *(float(np.nansum(np.minimum(each, 0), -1).min()) for each in tables)])
    high = max([1.0, *(float(np.nansum(np.maximum(each, 0), -1).max()) for each in tables)])
    room = 0.04 * (high - low)
    return (low - room if low < 0 else 0.0), high + room


def stacked(
    values: np.ndarray,
    kinds: Sequence[str],
    states: Sequence[str],
    names: Sequence[str],
    limits: tuple[float, float],
    *,
    chosen: int | None = None,
    title: str = "",
) -> alt.LayerChart:
    """Draw importance (S, G) as bars by state that stack to 1, negative parts below zero; rules stand at 0 and 1.

    ``names`` are the states in full, ``states`` as :func:`places`; the chosen one's name is bold.
    """
    at, kind = np.indices(values.shape)
    frame = pd.DataFrame(
        {
            "state": at.ravel(),
            "name": np.asarray(names, dtype=object)[at.ravel()],
            "kind": np.asarray(kinds, dtype=object)[kind.ravel()],
            "rank": kind.ravel(),
            "value": values.ravel(),
        }
    )
    tooltip = [
        alt.Tooltip("name:N", title="state"),
        alt.Tooltip("kind:N", title="term"),
        alt.Tooltip("value:Q", title="importance", format="+.3f"),
    ]
    bars = (
        alt.Chart(frame.dropna())
        .mark_bar(stroke=None)
        .encode(
            _across(states, chosen),
            alt.Y(
                "value:Q",
                stack="zero",
                title="importance",
                scale=alt.Scale(domain=list(limits), nice=False),
                axis=alt.Axis(tickCount=6, format="~r", grid=False),
            ),
            _colour(kinds),
            alt.Order("rank:Q"),
            tooltip=tooltip,
        )
    )
    rules = alt.Chart(pd.DataFrame({"value": [0.0, 1.0], "dash": ["0", "1"]})).mark_rule(tooltip=None, strokeWidth=1.2)
    dashes = alt.StrokeDash("dash:N", scale=alt.Scale(domain=["0", "1"], range=[[1, 0], [4, 3]]), legend=None)
    ruled = rules.encode(alt.Y("value:Q", title="importance"), dashes, color=INK)
    return alt.layer(bars, ruled).properties(height=HEIGHT, **_titled(title))


def lines(
    mean: np.ndarray,
    low: np.ndarray | None,
    high: np.ndarray | None,
    kinds: Sequence[str],
    states: Sequence[str],
    names: Sequence[str],
    indicator: str,
    *,
    sd: np.ndarray | None = None,
    limits: tuple[float, float] | None = None,
    height: int = HEIGHT,
    title: str = "",
) -> alt.LayerChart:
    """Draw an indicator (S, G) as one line a term over the states, with its interval; ``sd`` shades wider, lighter."""
    at, kind = np.indices(mean.shape)
    table: dict[str, Any] = {
        "state": at.ravel(),
        "name": np.asarray(names, dtype=object)[at.ravel()],
        "kind": np.asarray(kinds, dtype=object)[kind.ravel()],
        "value": mean.ravel(),
    }
    if low is not None and high is not None:
        table |= {"low": low.ravel(), "high": high.ravel()}
    if sd is not None:
        table |= {"under": (mean - sd).ravel(), "over": (mean + sd).ravel(), "sd": sd.ravel()}
    frame = pd.DataFrame(table).dropna(subset=["value"])
    x, colour = _across(states), _colour(kinds)
    scale = alt.Scale(domain=list(limits), nice=False, clamp=True) if limits else alt.Scale(zero=False)
    axis = alt.Axis(tickCount=6, format="~r")
    layers: list[Any] = []
    for under, over, opacity in (("under", "over", 0.1), ("low", "high", 0.22)):
        if under in table:
            band = alt.Chart(frame.dropna(subset=[under, over])).mark_area(opacity=opacity, tooltip=None)
            layers.append(
                band.encode(
                    x, alt.Y(f"{under}:Q", title=indicator, scale=scale, axis=axis), alt.Y2(f"{over}:Q"), colour
                )
            )
    tooltip = [
        alt.Tooltip("name:N", title="state"),
        alt.Tooltip("kind:N", title="term"),
        alt.Tooltip("value:Q", title=indicator, format=".4~g"),
        *([alt.Tooltip("low:Q", format=".4~g"), alt.Tooltip("high:Q", format=".4~g")] if "low" in table else []),
        *([alt.Tooltip("sd:Q", title="sd over tokens", format=".3~g")] if sd is not None else []),
    ]
    dash = alt.StrokeDash(
        "kind:N",
        scale=alt.Scale(domain=list(kinds), range=[_DASHES.get(kind, [6, 2]) for kind in kinds]),
        legend=None,
    )
    base = alt.Chart(frame).encode(
        x, alt.Y("value:Q", title=indicator, scale=scale, axis=axis), colour, tooltip=tooltip
    )
    layers.append(base.mark_line(strokeWidth=2).encode(dash))
    layers.append(base.mark_point(filled=True, size=30, opacity=1))
    return alt.layer(*layers).properties(height=height, **_titled(title))


def cells(
    matrix: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    scale: charts.Scale,
    value: str,
    *,
    heads: tuple[str, str] = ("term", "token"),
    step: int = 50,
    row_height: int = 26,
    chosen: int | None = None,
    selection: str = "",
    write: Callable[[float], str] | None = None,
    details: Mapping[str, np.ndarray] | None = None,
    top: bool = True,
    clip: int = 8,
    title: str = "",
) -> alt.LayerChart:
    """Draw (rows, columns) as coloured cells under their columns' names; what has no number is grey.

    Names need not differ. ``chosen`` frames a column; with ``selection`` a click on a cell selects its ``place``, the
    number of its column. ``write`` puts a number into each cell, ``details`` texts or numbers into the tooltip.
    """
    at, place = np.indices(matrix.shape)
    flat = matrix.ravel()
    table: dict[str, Any] = {
        "row": at.ravel(),
        "place": place.ravel(),
        "term": np.asarray([*rows], dtype=object)[at.ravel()],
        "column": np.asarray([*columns], dtype=object)[place.ravel()],
        "value": flat,
        "bright": [scale.bright(float(each)) for each in flat],
        "number": [write(float(each)) if write and np.isfinite(each) else "" for each in flat],
    }
    table |= {f"detail{i}": np.ravel(each) for i, each in enumerate((details or {}).values())}
    frame = pd.DataFrame(table)
    x = alt.X(
        "place:O",
        title=None if top else heads[1],
        scale=alt.Scale(domain=list(range(matrix.shape[1]))),
        axis=_named(columns, "top" if top else "bottom", clip, chosen),
    )
    y = alt.Y(
        "row:O",
        title=None,
        scale=alt.Scale(domain=list(range(matrix.shape[0]))),
        axis=_named(rows, "left", 26, None),
    )
    tooltip = [
        alt.Tooltip("column:N", title=heads[1]),
        alt.Tooltip("term:N", title=heads[0]),
        alt.Tooltip("value:Q", title=value, format="+.3f" if scale.signed else ".3f"),
        *(
            alt.Tooltip(f"detail{i}:{'N' if frame[f'detail{i}'].dtype == object else 'Q'}", title=name)
            for i, name in enumerate(details or {})
        ),
    ]
    colour = alt.Color("value:Q", scale=scale.encoding(), legend=None)
    known = np.isfinite(frame["value"])
    cursor = "pointer" if selection else "default"
    # two layers: a cell without a number would take the colour of zero
    without = alt.Chart(frame[~known]).mark_rect(stroke=None, color=charts.UNDEFINED, opacity=0.45, cursor=cursor)
    drawn = alt.Chart(frame[known]).mark_rect(stroke=None, cursor=cursor).encode(x, y, colour, tooltip=tooltip)
    if selection:
        drawn = drawn.add_params(alt.selection_point(name=selection, fields=["place"], toggle=False, clear="dblclick"))
    layers: list[Any] = [without.encode(x, y, tooltip=tooltip[:2]), drawn]
    if write:
        text = alt.Chart(frame[known]).mark_text(fontSize=11, tooltip=None)
        layers.append(text.encode(x, y, alt.Text("number:N"), color=scale.ink()))
    if chosen is not None and 0 <= chosen < matrix.shape[1]:
        frame = alt.Chart(pd.DataFrame({"place": [chosen]})).mark_rect(filled=False, strokeWidth=2, tooltip=None)
        edge = alt.condition(DARK, alt.value("#e4eaeb"), alt.value("#1b2528"))
        layers.append(frame.encode(x, y=alt.value(0), y2=alt.value(row_height * matrix.shape[0]), stroke=edge))
    return alt.layer(*layers).properties(
        width=alt.Step(step), height=row_height * matrix.shape[0], autosize="pad", **_titled(title)
    )


def input_bars(values: np.ndarray, names: Sequence[str], kinds: Sequence[str], title: str) -> alt.LayerChart:
    """Draw what each input token brought as one signed bar; ``kinds`` says which bars are no tokens."""
    frame = pd.DataFrame(
        {"place": np.arange(len(values)), "name": list(names), "kind": list(kinds), "value": np.asarray(values)}
    )
    shown = list(dict.fromkeys(kinds))
    colours = {"token": "#2a8c96", "source": "#9a6fa8", "correction": "#8b9598", "output bias": "#b3a24a"}
    x = alt.X(
        "place:O",
        title=None,
        axis=alt.Axis(
            labelExpr=_spelt(names, 10), labelAngle=-50, labelOverlap=False, ticks=False, domain=False, labelLimit=90
        ),
    )
    bars = (
        alt.Chart(frame.dropna())
        .mark_bar()
        .encode(
            x,
            alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=5, format="~r")),
            alt.Color(
                "kind:N",
                sort=shown,
                title=None,
                scale=alt.Scale(domain=shown, range=[colours[kind] for kind in shown]),
                legend=None,
            ),
            tooltip=[alt.Tooltip("name:N", title="from"), alt.Tooltip("value:Q", title=title, format="+.4f")],
        )
    )
    zero = alt.Chart(pd.DataFrame({"value": [0.0]})).mark_rule(tooltip=None).encode(alt.Y("value:Q"), color=INK)
    return alt.layer(bars, zero).properties(width=alt.Step(max(20, min(38, 500 // len(values)))), height=200)


def export(panels: Sequence[Any], title: str, note: str, kind: str) -> bytes:
    """Return pictures in a row as one PNG or SVG file with title, caption and white ground."""
    sized = [panel if isinstance(panel.width, alt.Step) else panel.properties(width=380) for panel in panels]
    return charts.picture(charts.side_by_side(sized, None, title, note), "png" if kind == "png" else "svg")


def _across(states: Sequence[str], chosen: int | None = None) -> alt.X:
    return alt.X("state:O", title="layer", axis=_named(states, "bottom", 6, chosen, overlap=True))


def _named(names: Sequence[str], orient: Any, clip: int, chosen: int | None, *, overlap: bool = False) -> alt.Axis:
    weight: Any = "normal"
    if chosen is not None:
        weight = {"condition": {"test": f"datum.value == {chosen}", "value": "bold"}, "value": "normal"}
    return alt.Axis(
        orient=orient,
        labelExpr=_spelt(names, clip),
        labelAngle=0,
        labelFontWeight=weight,
        labelOverlap=overlap,
        labelLimit=200,
        labelPadding=5,
        labelFlush=False,
        ticks=False,
        domain=False,
        titleFontWeight="normal",
    )


def _spelt(names: Sequence[str], clip: int) -> str:
    """Return the expression that writes the name of a place for its number."""
    short = [name if len(name) <= clip else name[: clip - 1] + "…" for name in names]
    return f"{json.dumps(short)}[datum.value]"


def _colour(kinds: Sequence[str]) -> alt.Color:
    return alt.Color(
        "kind:N",
        sort=list(kinds),
        title=None,
        scale=alt.Scale(domain=list(kinds), range=[COLOURS[kind] for kind in kinds]),
        legend=alt.Legend(
            orient="top",
            columns=3,
            labelLimit=160,
            symbolOpacity=1,
            symbolStrokeWidth=0,
            symbolType="square",
        ),
    )


def _titled(title: str) -> dict[str, Any]:
    return {"title": alt.TitleParams(title, anchor="start")} if title else {}
