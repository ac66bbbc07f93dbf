"""The pictures of stitching: every cut of A by every entry of B for one map, and all maps along the cuts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from embcompare import charts, curves, grids
from embcompare.experiments.stitching_result import HIGHER_IS_BETTER
from embcompare.maps.registry import KERNELS
from embcompare.ui import stitching_words as say

if TYPE_CHECKING:
    from embcompare.experiments.stitching import StitchingResult

SIDE = 336
"""Pixels that the longer side of the map of cells aims at."""
DEPTHS = {"best": "At its best entry", "same": "At the same depth"}
"""Which entry of B each cut is looked at with."""


@dataclass(frozen=True)
class Anchors:
    """The two ends of the colours: B alone, and what the ``far`` end is."""

    near: float
    far: float
    far_name: str


def anchors(result: StitchingResult, score: str) -> Anchors:
    """Return the ends of the colours: B alone and the best control's median cell, or the base rate.

    Where B alone is no better than either, the extremes of all maps stand in.
    """
    at, sign = result.at(score), 1 if HIGHER_IS_BETTER[score] else -1
    near, base = float(result.own_b[:, at].mean()), float(result.base[:, at].mean())
    typical = {name: float(np.nanmedian(result.mean(name, score)[1:, 1:])) for name in say.controls(result)}
    known = {name: value for name, value in typical.items() if np.isfinite(value)}
    if known:
        name = max(known, key=lambda each: sign * known[each])
        if sign * (near - known[name]) > 1e-9:
            return Anchors(near, known[name], f"a middling cell of the best control ({KERNELS[name].label})")
    if sign * (near - base) > 1e-9:
        return Anchors(near, base, f"the base rate ({result.base_name})")
    values = np.stack([result.mean(name, score) for name in result.kernels])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    high = high if high > low else low + 1.0
    return Anchors(*((high, low) if sign > 0 else (low, high)), "the worst cell of all maps")


def scale_of(result: StitchingResult, score: str) -> charts.Scale:
    """Return the colour scale between the anchors, bright at B alone."""
    ends = anchors(result, score)
    low, high = sorted((ends.near, ends.far))
    return charts.Scale(low, high, False, say.titled(result, score), low_is_bright=ends.near < ends.far)


def axes_of(result: StitchingResult, a: str, b: str) -> charts.Axes:
    """Return what the axes are called."""
    blocks = result.values.shape[-1] - 1
    return charts.Axes(
        f"after i blocks of A: {charts.shortened(a, 22)}",
        f"into layer k of B: {charts.shortened(b, 22)} ({blocks} − k blocks left)",
    )


def path_of(result: StitchingResult, kernel: str, score: str) -> np.ndarray:
    """Return the best entry of every cut, (L_A + 1, 2)."""
    entries = result.best_entries(kernel, score)
    return np.stack([np.arange(len(entries)), entries], axis=1)


def grid(
    result: StitchingResult,
    kernel: str,
    score: str,
    names: tuple[str, str],
    *,
    chosen: tuple[int, int] | None = None,
    selection: str = "",
    title: str = "",
) -> alt.LayerChart:
    """Draw one map's cells: colours between the anchors, the best entries joined, cells at the base rate greyed."""
    return grids.numbered(
        result.mean(kernel, score),
        scale_of(result, score),
        axes_of(result, *names),
        side=SIDE,
        write=functools.partial(_written, score),
        grey=~result.beyond_base(kernel),
        path=path_of(result, kernel, score),
        title=title,
        chosen=chosen,
        details=_details(result, kernel, score),
        selection=selection,
        told=("best entry of this cut", "yes"),
    )


def bar(result: StitchingResult, score: str) -> alt.LayerChart:
    """Draw the colours with a dashed line at the base rate; shares are in per cent."""
    base = float(result.base[:, result.at(score)].mean())
    drawn = charts.colour_bar(scale_of(result, score), marks=[base], width=SIDE)
    if say.counted(score) == "share":
        drawn.layer[0].encoding.x["axis"]["format"] = "~%"
    return drawn


def legend(result: StitchingResult, kernel: str, score: str) -> str:
    """Say what colours, squares and grey mean."""
    ends = anchors(result, score)
    beats = result.beyond_base(kernel)
    written = "number, in whole per cent" if say.counted(score) == "share" else "number"
    parts = [
        f"Colours run from B alone ({say.said(score, ends.near)}, bright) to {ends.far_name} "
        f"({say.said(score, ends.far)}); what lies beyond has the colour of the end, and its own {written}.",
        "Squares, joined: the best entry of each cut, chosen after the fact; above cut 0 entry 0, B's embedding "
        "output, is left out.",
    ]
    if not beats.all():
        parts.append(
            f"Greyed: not beyond {say.base_in_words(result)} in {say.named(result.main_score)} at 5 % for all cells "
            "together."
        )
    low, high = sorted((ends.near, ends.far))
    base = float(result.base[:, result.at(score)].mean())
    if low < base < high:
        parts.append(f"Dashed line on the colour bar: {result.base_name}, {say.said(score, base)}.")
    return " ".join(parts)


def lines(result: StitchingResult, score: str, depth: str, a: str) -> alt.LayerChart:
    """Draw every map along the cuts of A, controls dashed, B alone and the base rate as rules, intervals shaded."""
    table, bands = [], []
    main = score == result.main_score
    for name in result.kernels:
        at = entries_of(result, name, score, depth)
        rows = np.arange(len(at))
        values, label = result.mean(name, score)[rows, at], KERNELS[name].label
        table.append(pd.DataFrame({"cut": rows, "entry": at, "value": values, "map": label}))
        if main:
            low, high = (bound[rows, at] for bound in result.interval(name))
            bands.append(pd.DataFrame({"cut": rows, "low": low, "high": high, "map": label}))
    frame, (colours, dashes, shapes) = pd.concat(table), curves.styles(result.kernels, KERNELS)
    labels = [KERNELS[name].label for name in result.kernels]
    title = say.titled(result, score)
    across = alt.X(
        "cut:Q",
        title=f"blocks of A: {charts.shortened(a, 24)}",
        axis=alt.Axis(format="d", tickMinStep=1, grid=False),
        scale=alt.Scale(nice=False, padding=8),
    )
    percent = say.counted(score) == "share"
    up = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(zero=False),
        axis=alt.Axis(tickCount=6, format="~%" if percent else "~r"),
    )
    legend = alt.Legend(orient="top", columns=1, labelLimit=260, symbolOpacity=1, symbolStrokeWidth=0)
    colour = alt.Color(
        "map:N",
        sort=labels,
        title=None,
        scale=alt.Scale(domain=labels, range=colours),
        legend=legend,
    )
    # one legend for colour and shape; a legend of dashes would draw the dashes around the shapes
    dash = alt.StrokeDash("map:N", scale=alt.Scale(domain=labels, range=dashes), legend=None)
    shape = alt.Shape("map:N", sort=labels, title=None, scale=alt.Scale(domain=labels, range=shapes), legend=legend)
    number = ".1%" if percent else ".3f"
    tooltip = [
        alt.Tooltip("map:N", title="map"),
        alt.Tooltip("cut:Q", title="blocks of A", format="d"),
        alt.Tooltip("entry:Q", title="layer of B", format="d"),
        alt.Tooltip("value:Q", title=title, format=number),
    ]
    layers: list[Any] = []
    if bands:
        shaded = alt.Chart(pd.concat(bands).dropna()).mark_area(opacity=0.13, tooltip=None)
        layers.append(shaded.encode(across, alt.Y("low:Q", title=title), alt.Y2("high:Q"), colour))
    base = alt.Chart(frame).encode(across, up, colour, tooltip=tooltip)
    layers.append(base.mark_line(strokeWidth=2, invalid="break-paths-filter-domains").encode(dash))
    layers.append(base.mark_point(filled=True, size=42, opacity=1, invalid="filter").encode(shape))
    layers += _rules(rules_of(result, score), title, number)
    return alt.layer(*layers).properties(height=curves.HEIGHT + 60 + 18 * len(labels))


def rules_of(result: StitchingResult, score: str) -> dict[str, float]:
    """Return the levels that lines are held against: B alone, A alone where it answers the same, the base rate."""
    at = result.at(score)
    levels = {"B alone": result.own_b[:, at], "A alone": result.own_a[:, at], result.base_name: result.base[:, at]}
    # A's divergence from B is no level of a stitched model
    return {
        name: float(values.mean())
        for name, values in levels.items()
        if np.isfinite(values).all() and not (name == "A alone" and score in ("kl", "agreement"))
    }


def entries_of(result: StitchingResult, kernel: str, score: str, depth: str) -> np.ndarray:
    """Return the entry of B that each cut is looked at with: the best one, or the one at the same relative depth."""
    if depth == "best":
        return result.best_entries(kernel, score)
    cuts, entries = result.values.shape[-2:]
    return np.round(np.linspace(0, entries - 1, cuts)).astype(int)


def _rules(levels: dict[str, float], title: str, number: str) -> list[alt.Chart]:
    frame = pd.DataFrame({"name": list(levels), "value": list(levels.values())})
    tooltip = [alt.Tooltip("name:N", title="level"), alt.Tooltip("value:Q", title=title, format=number)]
    base = alt.Chart(frame).encode(alt.Y("value:Q", title=title))
    layers = [base.mark_rule(strokeWidth=1.3, opacity=0.85, color="#7d8a8e").encode(tooltip=tooltip)]
    text = {"align": "left", "dx": 4, "fontSize": 11, "color": "#7d8a8e"}
    lowest = int(frame["value"].argmin())
    for at in range(len(frame)):  # side by side and off the lowest, for two levels may be close
        side = {"baseline": "top", "dy": 3} if at == lowest else {"baseline": "bottom", "dy": -2}
        name = alt.Chart(frame.iloc[[at]]).mark_text(tooltip=None, **text, **side)
        layers.append(name.encode(alt.Y("value:Q", title=title), alt.Text("name:N"), x=alt.value(76 * at)))
    return layers


def _written(score: str, value: float) -> str:
    return say.percent(value) if say.counted(score) == "share" else f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


def _details(result: StitchingResult, kernel: str, score: str) -> dict[str, np.ndarray]:
    at = result.kernel(kernel)
    table = {say.SCORES[name].lower(): result.mean(kernel, name) for name in result.scores if name != score}
    table["standard error over texts"] = result.errors[0, at, result.at(score)]
    if result.runs > 1:
        table["standard deviation over runs"] = result.sd(kernel, score)
    if np.isfinite(result.held_out[at]).any():
        table["R² on states kept aside"] = result.held_out[at]
    return {name: matrix for name, matrix in table.items() if np.isfinite(matrix).any()}


def export(result: StitchingResult, kernel: str, score: str, names: tuple[str, str], note: str, kind: str) -> bytes:
    """Return the map of cells as one PNG or SVG file with title, caption and white ground."""
    panel = grid(result, kernel, score, names, title=say.plainly(kernel))
    heading = f"Stitching: {names[0]} below, {names[1]} above"
    whole = charts.side_by_side([panel], bar(result, score), heading, note)
    return charts.picture(whole, "png" if kind == "png" else "svg")
