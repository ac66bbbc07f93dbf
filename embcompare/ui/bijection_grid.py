"""The pictures of many layers on the page Bijection: every pair of layers, and what maps reach along the depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import altair as alt
import numpy as np

from embcompare import charts, curves, grids
from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_words as say

if TYPE_CHECKING:
    from embcompare.experiments.bijection_depths_result import BijectionDepthsResult
    from embcompare.experiments.map_pairs_result import MapPairsResult

SIDE = 336
"""Pixels that the longer side of the map of layers aims at."""
LEAST = 0.3
"""R² that the colours span at least."""
TALL = 310
"""Pixels of a picture along the depth, its legend and axis among them."""
_LINE = "#7d8a8e"


def scale_of(result: MapPairsResult, show: str, names: Sequence[str]) -> charts.Scale:
    """Return the colour scale of these maps: round limits that hold what they reach on test and on training rows."""
    if show == "spread":
        return charts.sequential_scale("standard deviation of R² over splits", [result.sd(name) for name in names])
    values = np.stack([result.mean(name, part) for name in names for part in ("test", "train")])
    known = values[np.isfinite(values)]
    if not len(known):
        return charts.Scale(0.0, 1.0, False, "R²")
    low = np.floor(10 * max(0.0, float(known.min()))) / 10
    high = np.ceil(10 * min(1.0, max(0.0, float(known.max())))) / 10
    # a narrow range would make much of little
    low = max(0.0, min(low, high - LEAST))
    return charts.Scale(float(low), float(max(high, low + LEAST)), False, "R²")


def grid(
    result: MapPairsResult,
    name: str,
    show: str,
    names: tuple[str, str],
    *,
    start: tuple[int, int] = (0, 0),
    chosen: tuple[int, int] | None = None,
    selection: str = "",
    title: str = "",
    scale: charts.Scale | None = None,
) -> alt.LayerChart:
    """Draw one map's cells: the best layer of B for each of A joined, cells that do not leave their null greyed."""
    best = result.best_b(name)
    rows = np.flatnonzero(best >= 0)
    beyond = result.beyond_null(name)
    return grids.numbered(
        say.grid_matrix(result, name, show),
        scale or scale_of(result, show, [name]),
        charts.Axes.of_layers(*names),
        side=SIDE,
        write=_written(show),
        grey=None if beyond is None or show == "spread" else ~beyond,
        path=np.stack([rows, best[rows]], axis=1),
        start=start,
        title=title,
        chosen=None if chosen is None else (chosen[0] - start[0], chosen[1] - start[1]),
        details=_details(result, name),
        selection=selection,
        told=("best layer of B for this layer of A", "yes"),
    )


def _written(show: str) -> Callable[[float], str]:
    form = ".3f" if show == "spread" else ".2f"
    return lambda value: f"{value:{form}}".replace("0.", ".", 1)


def _details(result: MapPairsResult, name: str) -> dict[str, np.ndarray]:
    table = {
        "R² on test rows": result.mean(name),
        "R² on training rows": result.mean(name, "train"),
        "standard deviation over splits": result.sd(name),
    }
    table |= {f"{MAPS[each].label}, R² on test rows": result.mean(each) for each in result.maps if each != name}
    if result.null_best is not None:
        table["best wrong pairing"] = result.null_best[result.at(name)]
    return {label: matrix for label, matrix in table.items() if np.isfinite(matrix).any()}


def along(result: MapPairsResult, a: str, start: int) -> alt.LayerChart:
    """Draw every map along the layers of A at the same depth of B, shaded by the spread over splits, and the null."""
    lines: dict[str, np.ndarray] = {}
    bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    shape = result.test.shape[2:]
    rows, path = np.arange(shape[0]), say.same_depth_path((shape[0], shape[1]))
    for name in result.maps:
        mean, sd = result.mean(name)[rows, path], result.sd(name)[rows, path]
        lines[MAPS[name].label] = mean
        if np.isfinite(sd).any():
            bands[MAPS[name].label] = (mean - sd, mean + sd)
    if result.null_best is not None:
        lines["best wrong pairing"] = result.null_best[:, rows, path].max(0)
    colours = {**_colours(result.maps), **dict.fromkeys(set(lines) - set(_colours(result.maps)), _LINE)}
    return curves.along(
        lines, _across(a), "R² on test rows", bands=bands, start=start, height=SIDE + 60, colours=colours
    )


def _colours(names: Sequence[str]) -> dict[str, str]:
    return dict(zip((MAPS[name].label for name in names), curves.styles(names, MAPS)[0], strict=True))


def export_grid(
    result: MapPairsResult, show: str, names: tuple[str, str], start: tuple[int, int], note: str, kind: str
) -> bytes:
    """Return the maps of layers of all maps side by side as one PNG or SVG file with title and caption."""
    scale = scale_of(result, show, result.maps)
    panels = [
        grid(result, name, show, names, start=start, title=say.plainly(name), scale=scale) for name in result.maps
    ]
    whole = charts.side_by_side(
        panels, charts.colour_bar(scale, width=SIDE), f"Maps between layers: {names[0]} to {names[1]}", note
    )
    return charts.picture(whole, "png" if kind == "png" else "svg")


RISES = {
    ("linear", "inn"): "linear → invertible network",
    ("inn", "mlp"): "invertible network → perceptron",
}
"""The steps of the hypothesis, drawn along the depth; a rotation's would hide them."""


def gaps_along(result: BijectionDepthsResult, margin: float, a: str) -> alt.LayerChart:
    """Draw how much an invertible network adds to a linear map, and a perceptron to that, by layer of A."""
    x = result.layers[:, 0]
    lines, bands = {}, {}
    for (first, second), label in RISES.items():
        value, low, high = result.gap(first, second).T
        lines[label], bands[label] = value, (low, high)
    lines["margin"] = np.full(len(x), margin)
    colours = dict(zip(lines, (*curves.styles(("inn",), MAPS)[0], "#8a7bb5", _LINE), strict=True))
    return curves.along(
        lines, _across(a), "R² added on test rows", bands=bands, x=dict.fromkeys(lines, x), height=TALL, colours=colours
    )


def reached_along(result: BijectionDepthsResult, a: str) -> alt.LayerChart:
    """Draw R² of every map on test rows by layer of A; the mean predictor, which is at 0, is left out."""
    names = [name for name in result.maps if name != "mean"] or list(result.maps)
    lines = {MAPS[name].label: result.of(name) for name in names}
    x = result.layers[:, 0]
    return curves.along(
        lines, _across(a), "R² on test rows", x=dict.fromkeys(lines, x), height=TALL, colours=_colours(names)
    )


def _across(a: str) -> str:
    return f"layer of A: {charts.shortened(a)}"


def export_depths(result: BijectionDepthsResult, margin: float, names: tuple[str, str], kind: str) -> bytes:
    """Return both pictures of all depths as one PNG or SVG file with title and caption."""
    panels = [reached_along(result, names[0]).properties(width=420)]
    if result.gap_names:
        panels.insert(0, gaps_along(result, margin, names[0]).properties(width=420))
    whole = charts.side_by_side(panels, None, f"Every depth: {names[0]} to {names[1]}", result.sentence)
    return charts.picture(whole, "png" if kind == "png" else "svg")
