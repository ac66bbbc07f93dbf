"""Pictures: layer-by-layer matrices as square heat maps, colour bars and histograms, as Altair charts.

Nothing is computed here but positions and colours. All matrices of one picture share one :class:`Scale`, so that
colours can be compared between them; a scale is chosen from a short ladder of round limits, so that they mostly can
be compared between runs as well.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

SIDE = 300
"""Pixels that the longer side of a heat map aims at; a cell is a whole number of pixels."""
SMALLEST_STEP = 6
NOTE_WIDTH = 150
"""Characters of a line of the note in a picture for a paper."""
LADDER = (0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6, 1.0)
"""Shares of a score's declared range at which a sequential scale may end."""
UNDEFINED = "#9aa5a8"
"""Fill of a cell without a number."""
DIVERGING: dict[str, tuple[str, ...]] = {
    "light": ("#5d2d97", "#815eb7", "#a78ed5", "#cebfee", "#f5f5f6", "#edccae", "#daa479", "#c47d48", "#ad5610"),
    "dark": ("#c1a5fd", "#9983c9", "#736396", "#4e4563", "#2b2b2c", "#61472b", "#936736", "#c68a45", "#faaf58"),
}
"""Colours around zero by the ground they lie on, purple below and orange above; zero is nearly the ground itself.

Steps are about equal in OKLab (Ottosson 2020), so that values equally far from zero look about equally strong.
"""
_SIGNED_LADDER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_BAR_PARTS = 60
_DARK, _LIGHT = "#101618", "#ffffff"
_ON_DARK = "luminance(background) < 0.2"


@dataclass(frozen=True)
class Scale:
    """One colour scale: its limits, whether zero is its middle, and whether low values are the bright ones."""

    low: float
    high: float
    signed: bool
    title: str
    low_is_bright: bool = False

    def encoding(self) -> alt.Scale:
        """Return the Altair scale; values beyond the limits take the colour of the limit.

        Around zero the colours follow the ground that the picture is drawn on, which only the one who draws it knows: a
        page's theme, light or dark, or a file's white.
        """
        limits = {"domain": [self.low, self.high], "clamp": True, "nice": False}
        if not self.signed:
            return alt.Scale(scheme="viridis", reverse=self.low_is_bright, **limits)
        pairs = zip(DIVERGING["light"], DIVERGING["dark"], strict=True)
        colours = [alt.ExprRef(f"{_ON_DARK} ? '{dark}' : '{light}'") for light, dark in pairs]
        return alt.Scale(range=colours, interpolate="lab", domainMid=0, **limits)

    def bright(self, value: float) -> bool:
        """Tell whether ``value`` is drawn in a light colour, on which marks must be dark.

        For a signed scale this is so on a light ground; on a dark one it is the other way round.
        """
        if not np.isfinite(value):
            return True
        share = (value - self.low) / (self.high - self.low)
        if self.signed:
            return bool(abs(2 * share - 1) < 0.7)
        return bool((1 - share if self.low_is_bright else share) > 0.6)

    def outline(self) -> tuple[Any, Any]:
        """Return the colours of a line's edge and of the line, which together read on every colour of the scale.

        The edge is lost on the colours around zero, where the line alone reads best.
        """
        if not self.signed:
            return alt.value(f"{_DARK}99"), alt.value(_LIGHT)
        edge = alt.condition(_ON_DARK, alt.value(f"{_DARK}99"), alt.value(f"{_LIGHT}99"))
        return edge, alt.condition(_ON_DARK, alt.value(_LIGHT), alt.value(_DARK))

    def ink(self) -> Any:
        """Return the colour of small marks on a cell, by its ``bright``."""
        test = f"datum.bright != ({_ON_DARK})" if self.signed else "datum.bright"
        return alt.condition(test, alt.value(_DARK), alt.value(_LIGHT))


def sequential_scale(
    title: str,
    matrices: Sequence[np.ndarray],
    *,
    high: float = 1.0,
    full: bool = False,
    low_is_bright: bool = False,
) -> Scale:
    """Return a scale from 0 to the smallest rung that holds every value, or to ``high`` itself if ``full``.

    What is closer should be the brighter: say ``low_is_bright`` for distances. Negative values (a debiased
    estimate has them) are drawn at the lower limit; their number is in the tooltip.
    """
    largest = _largest(matrices)
    top = high if full else next((high * rung for rung in LADDER if high * rung >= largest), high)
    return Scale(0.0, top, False, title, low_is_bright)


def signed_scale(title: str, matrices: Sequence[np.ndarray]) -> Scale:
    """Return a scale around zero whose limits are the smallest rung that holds every value."""
    largest = _largest([np.abs(matrix) for matrix in matrices])
    top = next((rung for rung in _SIGNED_LADDER if rung >= largest), largest)
    return Scale(-top, top, True, title)


@dataclass(frozen=True)
class Axes:
    """What the two axes of a matrix are called."""

    rows: str
    columns: str

    @classmethod
    def of_layers(cls, name_a: str, name_b: str) -> Axes:
        """Rows are layers of A, columns layers of B; long names keep their end, which tells them apart."""
        return cls(f"layer of A: {shortened(name_a)}", f"layer of B: {shortened(name_b)}")


def shortened(name: str, longest: int = 30) -> str:
    """Cut a long model name in front, where folders and owners are."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def step_of(shape: tuple[int, ...], side: int = SIDE) -> int:
    """Pixels of one square cell: whole, so that no seams show, and never too small to click."""
    return max(SMALLEST_STEP, side // max(*shape, 1))


def heatmap(
    matrix: np.ndarray,
    scale: Scale,
    axes: Axes,
    *,
    title: str = "",
    assigned: np.ndarray | None = None,
    faint: np.ndarray | None = None,
    chosen: tuple[int, int] | None = None,
    details: dict[str, np.ndarray] | None = None,
    selection: str = "",
    side: int = SIDE,
    start: tuple[int, int] = (0, 0),
    told: tuple[str, str] = ("assignment", "assigned to each other"),
) -> alt.LayerChart:
    """Draw an (L_a, L_b) matrix as square cells, row 0 on top.

    ``assigned`` (k, 2) outlines cells, ``faint`` (L_a, L_b bool) puts a small cross in cells that do not leave their
    null, ``chosen`` rings one cell, ``details`` adds matrices to the tooltip by label; ``told`` is how the tooltip says
    what an outline is. With ``selection`` a click on a cell selects its ``layer_a`` and ``layer_b`` under that name.
    ``start`` are the numbers of the first layer of A and of B as they are shown and selected; ``assigned`` and
    ``chosen`` count from 0. A cell without a number is grey.
    """
    frame = _frame(matrix, scale, assigned, faint, details or {}, start, told[1])
    step = step_of(matrix.shape, side)
    x = alt.X("layer_b:O", title=axes.columns, axis=_axis(matrix.shape[1], step, 22, start[1]), sort=None)
    y = alt.Y("layer_a:O", title=axes.rows, axis=_axis(matrix.shape[0], step, 15, start[0]), sort=None)
    tooltip = [
        alt.Tooltip("layer_a:O", title=axes.rows),
        alt.Tooltip("layer_b:O", title=axes.columns),
        alt.Tooltip("value:Q", title=scale.title, format=".3f"),
        *(alt.Tooltip(f"detail{i}:Q", title=name, format=".3f") for i, name in enumerate(details or {})),
        *([alt.Tooltip("pairing:N", title=told[0])] if assigned is not None else []),
    ]
    ground = alt.Chart(frame).mark_rect(color=UNDEFINED, stroke=None).encode(x, y, tooltip=tooltip)
    cells = (
        alt.Chart(frame)
        .mark_rect(cursor="pointer" if selection else "default", stroke=None)
        .encode(x, y, color=alt.Color("value:Q", scale=scale.encoding(), legend=None), tooltip=tooltip)
    )
    if selection:
        cells = cells.add_params(
            alt.selection_point(name=selection, fields=["layer_a", "layer_b"], toggle=False, clear="dblclick")
        )
    # marks lie above the cells and must let the mouse through
    layers: list[alt.Chart] = [ground, cells] if np.isnan(matrix).any() else [cells]
    if faint is not None and faint.any() and step >= 8:
        layers.append(
            alt.Chart(frame)
            .transform_filter("datum.faint")
            .mark_point(shape="cross", angle=45, size=max(9, step * step / 28), filled=True, opacity=0.55, tooltip=None)
            .encode(x, y, color=scale.ink())
        )
    if assigned is not None and len(assigned):
        line = 2.0 if step >= 14 else 1.25
        edge, stroke = scale.outline()
        layers.append(_outline(frame, "datum.assigned", x, y, edge, step, 0.8, line + 2))
        layers.append(_outline(frame, "datum.assigned", x, y, stroke, step, 0.8, line))
    if chosen is not None:
        ring = alt.value("#0f9aa6" if scale.signed else "#e4572e")
        test = f"datum.layer_a == {int(chosen[0]) + start[0]} && datum.layer_b == {int(chosen[1]) + start[1]}"
        layers.append(_outline(frame, test, x, y, ring, step, 0.97, 3.0 if step >= 14 else 2.0))
    return alt.layer(*layers).properties(
        width=alt.Step(step), height=alt.Step(step), **({"title": title} if title else {})
    )


def colour_bar(scale: Scale, *, marks: Sequence[float] = (), width: int = SIDE) -> alt.LayerChart:
    """Draw the scale as a horizontal bar with round ticks; dashed lines stand at ``marks``."""
    edges = np.linspace(scale.low, scale.high, _BAR_PARTS + 1)
    frame = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "middle": (edges[:-1] + edges[1:]) / 2})
    position = alt.Scale(domain=[scale.low, scale.high], nice=False)
    inside = [value for value in marks if scale.low <= value <= scale.high]
    axis = alt.Axis(
        tickCount=5,
        grid=False,
        domain=False,
        format="~r",
        titleFontWeight="normal",
        titleAnchor="start",
        labelFlush=True,
    )
    bar = (
        alt.Chart(frame)
        .mark_rect(stroke=None, tooltip=None)
        .encode(
            alt.X("from:Q", title=scale.title, scale=position, axis=axis),
            alt.X2("to:Q"),
            alt.Color("middle:Q", scale=scale.encoding(), legend=None),
        )
    )
    layers = [bar]
    if inside:
        at = alt.Chart(pd.DataFrame({"at": inside})).encode(alt.X("at:Q", scale=position))
        layers.append(at.mark_rule(color="#ffffff", strokeWidth=2, strokeDash=[3, 2], tooltip=None))
    return alt.layer(*layers).properties(width=width, height=14)


def histogram(
    values: np.ndarray,
    title: str,
    *,
    high: float = 1.0,
    width: int | None = None,
    marks: dict[str, float] | None = None,
) -> alt.Chart | alt.LayerChart:
    """Draw how often each strength occurs, in forty bins from 0 to ``high`` (more when values lie beyond).

    ``marks`` are dashed lines at some strengths, with what they are.
    """
    values = values[np.isfinite(values)]
    counts, edges = np.histogram(values, bins=40, range=(0.0, max(high, float(values.max(initial=0.0)))))
    frame = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "pairs": counts})
    axis = alt.Axis(format="~g", grid=False, values=[i / 5 for i in range(11)])
    bars = (
        alt.Chart(frame)
        .mark_bar(binSpacing=1)
        .encode(
            alt.X("from:Q", title=title, axis=axis, bin="binned"),
            alt.X2("to:Q"),
            alt.Y("pairs:Q", title="pairs", axis=alt.Axis(tickMinStep=1, tickCount=4)),
            tooltip=[
                alt.Tooltip("from:Q", title="from", format=".3f"),
                alt.Tooltip("to:Q", title="to", format=".3f"),
                alt.Tooltip("pairs:Q", title="pairs"),
            ],
        )
        .properties(height=230, **({"width": width} if width else {}))
    )
    shown = {name: value for name, value in (marks or {}).items() if np.isfinite(value)}
    if not shown:
        return bars
    table = pd.DataFrame({"at": list(shown.values()), "name": list(shown)})
    lines = (
        alt.Chart(table)
        .mark_rule(strokeWidth=2)
        .encode(
            alt.X("at:Q", title=title),
            alt.StrokeDash(
                "name:N",
                sort=list(shown),
                scale=alt.Scale(range=[[2, 2], [7, 3]]),
                legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeColor=UNDEFINED),
            ),
            color=alt.condition(_ON_DARK, alt.value(_LIGHT), alt.value(_DARK)),
            tooltip=[alt.Tooltip("name:N", title="mark"), alt.Tooltip("at:Q", title="at", format=".3f")],
        )
    )
    return alt.layer(bars, lines)


def side_by_side(panels: Sequence[Any], bar: alt.LayerChart | None, title: str, note: str) -> alt.VConcatChart:
    """Join panels and their colour bar, if any, into one picture for a paper: white ground, title and caption in it."""
    row = alt.hconcat(*panels, spacing=36)
    # with a bar, panels have one scale, and it is the bar that shows it
    row = row if bar is None else row.resolve_scale(color="shared")
    heading = alt.TitleParams(
        title,
        subtitle=textwrap.wrap(note, NOTE_WIDTH),
        anchor="start",
        fontSize=16,
        subtitleFontSize=12,
        subtitleColor="#445055",
        offset=18,
    )
    return (
        alt.vconcat(*([row] if bar is None else [row, bar]), spacing=26, title=heading)
        .resolve_scale(color="independent", x="independent")
        .configure(background="white", padding=20, font="Helvetica, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(titleFontWeight="normal", titleFontSize=12, labelFontSize=11)
    )


def picture(chart: Any, kind: Literal["png", "svg"]) -> bytes:
    """Render a chart to the bytes of a PNG (two pixels a point) or an SVG file, without a browser or the network."""
    if kind == "svg":
        text = io.StringIO()
        chart.save(text, format="svg")
        return text.getvalue().encode()
    data = io.BytesIO()
    chart.save(data, format="png", scale_factor=2)
    return data.getvalue()


def _largest(matrices: Sequence[np.ndarray]) -> float:
    finite = [matrix[np.isfinite(matrix)] for matrix in matrices]
    return max((float(part.max()) for part in finite if part.size), default=0.0)


def _axis(count: int, step: int, room: int, start: int) -> alt.Axis:
    """Label every cell, or every second, fifth, ... so that each label has ``room`` pixels."""
    every = next((n for n in (1, 2, 5, 10, 20, 50, 100) if n * step >= room), 200)
    return alt.Axis(
        labelAngle=0,
        ticks=False,
        domain=False,
        labelPadding=6,
        titlePadding=10,
        titleFontWeight="normal",
        values=list(range(start, start + count, every)),
    )


def _frame(
    matrix: np.ndarray,
    scale: Scale,
    assigned: np.ndarray | None,
    faint: np.ndarray | None,
    details: dict[str, np.ndarray],
    start: tuple[int, int],
    told: str,
) -> pd.DataFrame:
    rows, columns = np.indices(matrix.shape)
    joined = np.zeros(matrix.shape, dtype=bool)
    if assigned is not None and len(assigned):
        joined[assigned[:, 0], assigned[:, 1]] = True
    table: dict[str, Any] = {"layer_a": rows + start[0], "layer_b": columns + start[1], "value": matrix}
    table.update({f"detail{i}": detail for i, detail in enumerate(details.values())})
    table["assigned"] = joined
    table["pairing"] = np.where(joined, told, "–")
    table["faint"] = np.zeros(matrix.shape, dtype=bool) if faint is None else faint
    table["bright"] = np.vectorize(scale.bright, otypes=[bool])(matrix)
    return pd.DataFrame({name: np.ravel(array) for name, array in table.items()})


def _outline(
    frame: pd.DataFrame, test: str, x: alt.X, y: alt.Y, ink: Any, step: int, share: float, stroke: float
) -> alt.Chart:
    """Square outlines inside the cells that pass ``test``."""
    side = max(3.0, step * share - 2)
    return (
        alt.Chart(frame)
        .transform_filter(test)
        .mark_point(
            shape="square", size=side * side, filled=False, strokeWidth=stroke, opacity=1, tooltip=None, clip=True
        )
        .encode(x, y, stroke=ink)
    )
