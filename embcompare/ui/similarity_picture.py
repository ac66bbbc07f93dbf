"""The pictures of a representation similarity: matrix and null, profiles along depth, geometry of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from embcompare import charts, curves
from embcompare.experiments.depth import depth_agreement, double_centred, equal_depth
from embcompare.ui import pair, picture, words
from embcompare.ui import similarity_words as say
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult
    from embcompare.measures import Measure

NEGATIVE = 0.05
"""A scale goes below zero where a value lies this share of the largest one below it: such values are results too."""


def compose(
    settings: RepresentationSimilarity,
    result: RepresentationSimilarityResult,
    view: str = "raw",
    range_: str = "fitted",
) -> picture.Picture:
    """Choose matrices, scale and marks for a view: ``raw``, ``centred`` or ``z``; nothing is drawn yet."""
    measure, z, own = settings.declaration, result.z, say.agreement_of(result)
    known = z is not None and not np.isnan(z).all()
    faint = ~(z >= picture.BEYOND) & ~np.isnan(result.values) if z is not None and known else None
    panels = [picture.Panel(f"{settings.space} space".capitalize(), result.values, own, result.assignment, faint)]
    if result.null_mean is not None:
        closer = result.null_mean if result.higher_is_closer else -result.null_mean
        null = depth_agreement(closer, sampled=0)
        panels.append(picture.Panel("Rows wrongly paired, null", result.null_mean, null, null.pairs, None, null=True))
    if view == "z" and z is not None:
        panels = [picture.Panel("Distance from the null", z, own, result.assignment, faint)]
        scale = charts.signed_scale("standard deviations from the null", [z])
    elif view == "centred":
        panels = [
            picture.Panel(p.name, double_centred(p.matrix), p.agreement, p.assigned, p.faint, p.null) for p in panels
        ]
        scale = charts.signed_scale(f"{titled(measure)}, double-centred", [p.matrix for p in panels])
    else:
        scale = scale_of(settings, [p.matrix for p in panels], full=range_ == "full")
    a, b = (short(settings, side) for side in "ab")
    title = f"{measure.label}{say.of_what(settings)}, {settings.space} space: {a} and {b}"
    axes = charts.Axes.of_layers(a, b)
    return picture.Picture(panels, scale, axes, {}, _details(result), title, result.start)


def scale_of(settings: RepresentationSimilarity, matrices: list[np.ndarray], *, full: bool = False) -> charts.Scale:
    """Return the colour scale of a measure's values: around zero where negative values are results."""
    measure = settings.declaration
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices] or [np.zeros(0)])
    largest = float(np.abs(finite).max(initial=0.0))
    if measure.low == -1 and float(finite.min(initial=0.0)) < -NEGATIVE * max(largest, 0.2):
        return charts.signed_scale(measure.label, [np.ones((1, 1))] if full else matrices)
    return charts.sequential_scale(
        titled(measure), matrices, high=measure.high, full=full, low_is_bright=not measure.higher_is_closer
    )


def titled(measure: Measure) -> str:
    """Return a measure's label, with its direction where low values are the close ones."""
    return measure.label if measure.higher_is_closer else f"{measure.label} (lower is closer)"


def short(settings: RepresentationSimilarity, side: str) -> str:
    """Return how one side is called in pictures."""
    return pair.label_of(getattr(settings, f"model_{side}"))


def _details(result: RepresentationSimilarityResult) -> dict[str, np.ndarray]:
    table = {
        "value": result.values,
        "interval, lower end": result.low,
        "interval, upper end": result.high,
        "null, mean": result.null_mean,
        "null, closest": result.null_best,
        "z": result.z,
    }
    return {name: matrix for name, matrix in table.items() if matrix is not None and not np.isnan(matrix).all()}


def profile(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> None:
    """Draw, for every layer of A, its closest layer of B: how close it is, and which one it is."""
    values = result.values
    best = result.best_match_a
    rows = np.arange(len(values))
    known = best >= 0
    at_best = np.where(known, values[rows, np.maximum(best, 0)], np.nan)
    equal = equal_depth(*values.shape)
    at_equal = np.array([_mean(values[i][equal[i]]) for i in rows])
    label = settings.declaration.label
    lines: dict[str, np.ndarray] = {"closest layer": at_best, "at equal depth": at_equal}
    bands = {}
    if result.low is not None and result.high is not None:
        low, high = (np.where(known, m[rows, np.maximum(best, 0)], np.nan) for m in (result.low, result.high))
        bands["closest layer"] = (low, high)
    if result.null_best is not None:
        null = result.null_best
        reached = null.max(1) if result.higher_is_closer else null.min(1)
        lines["closest wrong pairing"] = reached
    a, b = short(settings, "a"), short(settings, "b")
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**How close each layer of A finds a partner**")
        chart = curves.along(lines, f"layer of A: {charts.shortened(a)}", label, bands=bands, start=result.start[0])
        lowest, highest = (f"{f(at_best):.2f}" if known.any() else "–" for f in (np.nanmin, np.nanmax))
        alt = f"Lines along the layers of A: {label} with the closest layer of B runs from {lowest} to {highest}."
        st.altair_chart(chart, key="profile.values", alt=alt)
    with right:
        st.markdown("**Which layer of B it is**")
        first = result.start[1]
        index = {"closest layer": np.where(known, best + first, np.nan)}
        if values.shape[0] > 1:
            index["equal depth"] = first + rows * (values.shape[1] - 1) / (values.shape[0] - 1)
        chart = curves.along(
            index,
            f"layer of A: {charts.shortened(a)}",
            f"layer of B: {charts.shortened(b)}",
            height=curves.HEIGHT,
            start=result.start[0],
        )
        listed = ", ".join(str(int(k) + first) if k >= 0 else "none" for k in best)
        st.altair_chart(
            chart, key="profile.layers", alt=f"The closest layers of B for the layers of A in turn: {listed}."
        )
    if bands:
        zero = "" if say.given(settings)[0] or result.start[0] else " Layer 0 is the embedding output."
        st.caption(f"Shaded: 95 % interval over {say.item(settings)}s.{zero}")


def geometry(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> None:
    """Draw what each layer's points look like by themselves, both models in one chart an indicator."""
    from embcompare.measures import GEOMETRY

    a, b = short(settings, "a"), short(settings, "b")
    names = (f"A: {charts.shortened(a)}", f"B: {charts.shortened(b)}")
    columns = st.columns(3, gap="medium")
    for i, name in enumerate(result.geometry):
        indicator = GEOMETRY[name]
        series = {names[0]: result.geometry_a[:, i], names[1]: result.geometry_b[:, i]}
        with columns[i % 3]:
            st.markdown(f"**{plain(indicator.label[:1].upper() + indicator.label[1:])}**", help=indicator.meaning)
            ranges = "; ".join(
                f"{side} {np.nanmin(v):.3g} to {np.nanmax(v):.3g}" for side, v in series.items() if _any(v)
            )
            numbers = {
                side: np.arange(first, first + len(values))
                for (side, values), first in zip(series.items(), result.start, strict=True)
            }
            chart = curves.along(series, "layer", None, x=numbers, height=220)
            st.altair_chart(chart, key=f"geometry.{name}", alt=f"{indicator.label} by layer: {ranges}.")
    with st.expander("What these indicators are"):
        for name in result.geometry:
            st.markdown(say.indicator_card(GEOMETRY[name]))


def described(result: RepresentationSimilarityResult) -> str:
    """Describe the matrix for those who cannot see it."""
    return words.described("Similarity", result.values, say.agreement_of(result), result.start)


def _any(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).any())


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
