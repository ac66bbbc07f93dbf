"""The picture of a parameter alignment: the space, its control and its null side by side on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from embcompare import charts
from embcompare.experiments.depth import DepthAgreement, depth_agreement, double_centred
from embcompare.experiments.vectors import GROUPS
from embcompare.measures.matching import SCORES
from embcompare.models import ModelSpec
from embcompare.ui import words
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.parameters import ParameterAlignment, ParameterAlignmentResult

VIEWS: dict[str, str] = {"raw": "Score", "centred": "Double-centred", "z": "z against the null"}
RANGES: dict[str, str] = {"fitted": "Round limits", "full": "Whole range"}
BEYOND = 2.0
"""Standard deviations above its null from which a cell counts as beyond it."""


@dataclass(frozen=True)
class Panel:
    """One heat map of the picture."""

    name: str
    matrix: np.ndarray
    agreement: DepthAgreement | None
    assigned: np.ndarray | None
    faint: np.ndarray | None
    null: bool = False


@dataclass(frozen=True)
class Picture:
    """What is drawn: panels on one scale, the axes, marks on the colour bar, and what the marks mean."""

    panels: list[Panel]
    scale: charts.Scale
    axes: charts.Axes
    marks: dict[str, float]
    details: dict[str, np.ndarray]
    title: str
    start: tuple[int, int] = (0, 0)
    """Numbers of the first layer of A and of B."""


def compose(
    settings: ParameterAlignment, result: ParameterAlignmentResult, view: str = "raw", range_: str = "fitted"
) -> Picture:
    """Choose matrices, scale and marks for a view: ``raw``, ``centred`` or ``z``; nothing is drawn yet."""
    score = SCORES[settings.score]
    z = result.z
    faint = None if z is None or np.isnan(z).all() else ~(z >= BEYOND) & ~np.isnan(result.values)
    own = words.agreement_of(result)
    spaces = [Panel(f"{settings.space} space".capitalize(), result.values, own, result.assignment, faint)]
    if result.control is not None:
        control = depth_agreement(result.control, sampled=0)
        spaces.append(Panel("Feature space, control", result.control, control, control.pairs, None))
    if result.null_mean is not None:
        null = depth_agreement(result.null_mean, sampled=0)
        shuffled = "vocabulary" if settings.space == "embedding" else "features"
        spaces.append(Panel(f"Permuted {shuffled}, null", result.null_mean, null, null.pairs, None, null=True))
    if view == "z" and z is not None:
        spaces = [Panel("Distance from the null", z, own, result.assignment, faint)]
        scale = charts.signed_scale("standard deviations from the null", [z])
    elif view == "centred":
        spaces = [Panel(p.name, double_centred(p.matrix), p.agreement, p.assigned, p.faint, p.null) for p in spaces]
        scale = charts.signed_scale(f"{score.label}, double-centred", [p.matrix for p in spaces])
    else:
        matrices = [p.matrix for p in spaces]
        scale = charts.sequential_scale(score.label, matrices, high=score.high, full=range_ == "full")
    marks = {}
    if view == "raw" and result.control_chance is not None and result.control is not None:
        marks["chance in feature space"] = result.control_chance
    a, b = ModelSpec.parse(settings.model_a).label, ModelSpec.parse(settings.model_b).label
    return Picture(
        spaces, scale, charts.Axes.of_layers(a, b), marks, _details(result), f"{GROUPS[settings.group]}: {a} and {b}"
    )


def _details(result: ParameterAlignmentResult) -> dict[str, np.ndarray]:
    """What the tooltip of every cell says beside its own value."""
    table = {
        "score": result.values,
        "double-centred": result.centred,
        "null, mean": result.null_mean,
        "null, standard deviation": result.null_sd,
        "z": result.z,
        "feature space": result.control,
    }
    return {name: matrix for name, matrix in table.items() if matrix is not None and not np.isnan(matrix).all()}


def show(
    picture: Picture, *, key: str, selection: str = "", chosen: tuple[int, int] | None = None
) -> list[dict] | None:
    """Draw the picture in columns; with ``selection`` the first panel takes clicks: the clicked cell is returned."""
    clicked: list[dict] | None = None
    columns = st.columns(3 if len(picture.panels) > 1 else [1, 1], gap="medium")
    for i, (column, panel) in enumerate(zip(columns, picture.panels, strict=False)):
        first = i == 0
        chart = charts.heatmap(
            panel.matrix,
            picture.scale,
            picture.axes,
            assigned=panel.assigned,
            faint=panel.faint,
            chosen=chosen,
            details=picture.details if first else None,
            selection=selection if first else "",
            start=picture.start,
        )
        with column:
            st.markdown(f"**{panel.name}**")
            alt = words.described(panel.name, panel.matrix, panel.agreement, picture.start)
            if first and selection:
                event = st.altair_chart(chart, key=key, width="content", on_select="rerun", alt=alt)
                clicked = event["selection"].get(selection)
            else:
                st.altair_chart(chart, key=f"{key}.{i}", width="content", alt=alt)
    bar = charts.colour_bar(picture.scale, marks=list(picture.marks.values()))
    limits = f"Colour scale from {picture.scale.low:g} to {picture.scale.high:g}: {picture.scale.title}."
    bar = bar.properties(autosize="pad")  # else axis and all are pressed into the height of the bar
    st.altair_chart(bar, key=f"{key}.bar", width="content", alt=limits)
    return clicked


def legend(picture: Picture, draws: int, chance: str = "permutations") -> str:
    """Say what squares, crosses and grey cells mean, as far as they occur; ``chance`` is what the null consists of."""
    many = plural(draws, chance.removesuffix("s"))
    parts = [f"One colour scale for {'all panels' if len(picture.panels) > 1 else 'the panel'}."]
    if all(p.matrix.size > 1 for p in picture.panels) and any(
        p.assigned is not None and len(p.assigned) for p in picture.panels
    ):
        parts.append("Squares: the one-to-one assignment of layers that is closest in total.")
    if any(p.faint is not None and p.faint.any() for p in picture.panels):
        parts.append(f"Crosses: less than {BEYOND:g} standard deviations beyond the null of {many}.")
    parts += [f"Dashed line on the colour bar: {name}, {value:.3f}." for name, value in picture.marks.items()]
    if any(np.isnan(p.matrix).any() for p in picture.panels):
        parts.append("Grey: no number.")
    if any(p.null for p in picture.panels):
        parts.append(f"The null is the mean of {many}.")
    if picture.scale.title.startswith("standard deviations"):
        parts.append(f"The standard deviation comes from {many}: read z as near or far, not cell by cell.")
    return " ".join(parts)


def export(picture: Picture, note: str, kind: str) -> bytes:
    """Return the whole picture as one PNG or SVG file with title, caption and white ground."""
    panels = [
        charts.heatmap(
            p.matrix,
            picture.scale,
            picture.axes,
            title=p.name,
            assigned=p.assigned,
            faint=p.faint,
            start=picture.start,
        )
        for p in picture.panels
    ]
    bar = charts.colour_bar(picture.scale, marks=list(picture.marks.values()))
    whole = charts.side_by_side(panels, bar, picture.title, note)
    return charts.picture(whole, "png" if kind == "png" else "svg")
