"""Pictures: values along the layers, spectra and points in a plane, as Altair charts; nothing is computed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import altair as alt
import numpy as np
import pandas as pd

HEIGHT = 250
MOST_POINTS = 40
"""A line of more points than this is drawn without them."""
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
# Seven colours that read on a light ground and on a dark one; what is a control is grey and dashed.
_COLOURS = ("#2a8c96", "#cb6f33", "#6f86c4", "#958a36", "#9a6fa8", "#3f9d5c", "#c7566f")
_GREYS, _CONTROL_DASHES = ("#7d8a8e", "#9aa5a8", "#6b797d"), ([6, 3], [2, 2], [8, 3, 2, 3])
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-left", "triangle-right")
_CONTROL_SHAPES = ("cross", "diamond", "triangle-down")


class Declared(Protocol):
    """What a registry says of one of its entries, as far as a picture goes."""

    @property
    def control(self) -> bool:
        """Whether it is there to be beaten or missed."""


def styles(names: Sequence[str], registry: Mapping[str, Declared]) -> tuple[list[str], list[list[int]], list[str]]:
    """Return colour, dash and shape of each of ``names``: the same in every picture, by its place in ``registry``."""
    colours, dashes, shapes = [], [], []
    own = [name for name in registry if not registry[name].control]
    others = [name for name in registry if registry[name].control]
    for name in names:
        control = registry[name].control
        at = others.index(name) if control else own.index(name)
        colours.append(_GREYS[at % len(_GREYS)] if control else _COLOURS[at % len(_COLOURS)])
        dashes.append(list(_CONTROL_DASHES[at % len(_CONTROL_DASHES)]) if control else [1, 0])
        shapes.append(_CONTROL_SHAPES[at % len(_CONTROL_SHAPES)] if control else _SHAPES[at % len(_SHAPES)])
    return colours, dashes, shapes


def along(
    series: Mapping[str, Sequence[float] | np.ndarray],
    x_title: str,
    y_title: str | None,
    *,
    bands: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    x: Mapping[str, np.ndarray] | None = None,
    start: int = 0,
    domain: tuple[float, float] | None = None,
    log: bool = False,
    log_x: bool = False,
    height: int = HEIGHT,
    width: int | None = None,
    colours: Mapping[str, str] | None = None,
) -> alt.LayerChart:
    """Draw one line a series over its index from ``start`` (or over ``x``), told apart by colour and by dash.

    ``bands`` are shaded between a lower and an upper curve under the series' name; values that are NaN leave a gap.
    ``colours`` are those of all series, where a picture beside it has them too; else the page's theme has them.
    """
    names = list(series)
    frame = pd.concat(
        [
            pd.DataFrame({"x": _positions(name, values, x, start), "y": np.asarray(values, dtype=float), "line": name})
            for name, values in series.items()
        ]
    )
    own: dict[str, Any] = {}
    if colours is not None:
        own["scale"] = alt.Scale(domain=names, range=[colours[name] for name in names])
    # names that do not fit beside each other would be cut off
    legend = _legend("stroke", columns=2 if len(names) > 4 or sum(map(len, names)) > 60 else 0)
    colour = alt.Color("line:N", sort=names, title=None, legend=legend, **own)
    scale = alt.Scale(type="log") if log else alt.Scale(domain=list(domain), nice=False) if domain else alt.Scale()
    whole = bool(np.equal(np.mod(frame["x"], 1), 0).all())
    axis = alt.Axis(format="d" if whole else "~r", tickMinStep=1 if whole else 0, grid=False)
    across = alt.X("x:Q", title=x_title, axis=axis, scale=_across(log_x))
    up = alt.Y("y:Q", title=y_title, scale=scale, axis=alt.Axis(tickCount=5, format="~r"))
    layers: list[Any] = []
    for name, (low, high) in (bands or {}).items():
        band = pd.DataFrame({"x": _positions(name, low, x, start), "low": low, "high": high, "line": name})
        layers.append(
            alt.Chart(band.dropna())
            .mark_area(opacity=0.18, tooltip=None)
            .encode(across, alt.Y("low:Q", title=y_title, scale=scale), alt.Y2("high:Q"), colour)
        )
    dash = alt.StrokeDash("line:N", sort=names, scale=alt.Scale(range=list(_DASHES)), legend=None)
    tooltip = [
        alt.Tooltip("line:N", title="line"),
        alt.Tooltip("x:Q", title=x_title, format="d" if whole else ".3f"),
        alt.Tooltip("y:Q", title=y_title, format=".4~g"),
    ]
    base = alt.Chart(frame).encode(across, up, colour, tooltip=tooltip)
    layers.append(base.mark_line(strokeWidth=2, invalid="break-paths-filter-domains").encode(dash))
    if len(frame) <= MOST_POINTS * len(names):
        layers.append(base.mark_point(filled=True, size=34, opacity=1, invalid="filter"))
    return alt.layer(*layers).properties(height=height, **({"width": width} if width else {}))


def _across(log: bool) -> alt.Scale:
    return alt.Scale(type="log", nice=False) if log else alt.Scale(nice=False, padding=6)


def pairs_in_plane(
    a: np.ndarray,
    b: np.ndarray,
    names: tuple[str, str],
    texts: Sequence[str],
    details: Mapping[str, np.ndarray] | None = None,
    *,
    chosen: int | None = None,
    height: int = 380,
) -> alt.LayerChart:
    """Draw (n, 2) points of both models in one plane, each pair joined by a thin line; ``chosen`` is drawn large."""
    table: dict[str, Any] = {"text": [text[:160] for text in texts]}
    table.update({f"detail{i}": values for i, values in enumerate((details or {}).values())})
    frame = pd.DataFrame({**table, "x": a[:, 0], "y": a[:, 1], "x2": b[:, 0], "y2": b[:, 1]})
    points = pd.concat(
        [
            pd.DataFrame(
                {**table, "x": points[:, 0], "y": points[:, 1], "model": name, "chosen": _only(chosen, len(a))}
            )
            for name, points in zip(names, (a, b), strict=True)
        ]
    )
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    across, up = alt.X("x:Q", title=None, axis=bare), alt.Y("y:Q", title=None, axis=bare)
    tooltip = [
        alt.Tooltip("text:N", title="row"),
        *(alt.Tooltip(f"detail{i}:Q", title=name, format=".3f") for i, name in enumerate(details or {})),
    ]
    joined = (
        alt.Chart(frame)
        .mark_rule(opacity=0.22, strokeWidth=1, color="#7d8a8e", tooltip=None)
        .encode(across, up, alt.X2("x2:Q"), alt.Y2("y2:Q"))
    )
    dots = (
        alt.Chart(points)
        .mark_point(filled=True, opacity=0.8)
        .encode(
            across,
            up,
            alt.Color("model:N", sort=list(names), title=None, legend=_legend()),
            alt.Shape("model:N", sort=list(names), scale=alt.Scale(range=["circle", "triangle-up"]), title=None),
            alt.Size("chosen:N", scale=alt.Scale(domain=[False, True], range=[26, 240]), legend=None),
            tooltip=[alt.Tooltip("model:N", title="model"), *tooltip],
        )
    )
    return alt.layer(joined, dots).properties(height=height)


def token_grid(
    tokens: Sequence[str],
    layers: Sequence[str],
    best: Sequence[Sequence[str]],
    probability: np.ndarray,
    details: Mapping[str, Sequence[Sequence[str]]],
    *,
    first: int = 0,
    step: int = 74,
) -> alt.LayerChart:
    """Draw what each layer (row, the last on top) predicts at each token (column): its best token and how sure.

    ``best`` and each of ``details`` are (L, T) strings, ``probability`` is (L, T) from 0 to 1; columns are numbered
    from ``first``.
    """
    rows, columns = np.indices(probability.shape)
    cells_at = list(zip(rows.ravel().tolist(), columns.ravel().tolist(), strict=True))
    table: dict[str, Any] = {
        "layer": np.array(layers, dtype=object)[rows.ravel()],
        "place": columns.ravel() + first,
        "best": [_clipped(best[i][j], 9) for i, j in cells_at],
        "probability": probability.ravel(),
        "token": [tokens[j] for _, j in cells_at],
    }
    for number, lists in enumerate(details.values()):
        table[f"detail{number}"] = [lists[i][j] for i, j in cells_at]
    frame = pd.DataFrame(table)
    heads = {int(first + j): _clipped(token, 10) for j, token in enumerate(tokens)}
    label = " : ".join([*(f"datum.value == {at} ? {_quoted(name)}" for at, name in heads.items()), "''"])
    x = alt.X(
        "place:O", title=None, axis=alt.Axis(labelExpr=label, labelAngle=0, orient="top", ticks=False, domain=False)
    )
    y = alt.Y(
        "layer:N", title=None, sort=list(reversed(layers)), axis=alt.Axis(ticks=False, domain=False, labelLimit=150)
    )
    tooltip = [
        alt.Tooltip("token:N", title="token"),
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("probability:Q", title="probability of the best", format=".3f"),
        *(alt.Tooltip(f"detail{i}:N", title=name) for i, name in enumerate(details)),
    ]
    colour = alt.Color("probability:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=None)
    cells = alt.Chart(frame).mark_rect(stroke=None).encode(x, y, colour, tooltip=tooltip)
    ink = alt.condition("datum.probability > 0.6", alt.value("#101618"), alt.value("#ffffff"))
    words = alt.Chart(frame).mark_text(fontSize=11, tooltip=None).encode(x, y, alt.Text("best:N"), color=ink)
    return alt.layer(cells, words).properties(width=alt.Step(step), height=alt.Step(24))


def _legend(symbol: str = "circle", columns: int = 0) -> alt.Legend:
    return alt.Legend(
        orient="top",
        direction="horizontal",
        labelLimit=320,
        symbolOpacity=1,
        symbolType=symbol,
        **({"columns": columns} if columns else {}),
    )


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _positions(name: str, values: Any, x: Mapping[str, np.ndarray] | None, start: int) -> np.ndarray:
    return np.asarray(x[name]) if x and name in x else np.arange(start, start + len(values))


def _only(chosen: int | None, count: int) -> np.ndarray:
    marked = np.zeros(count, dtype=bool)
    if chosen is not None and 0 <= chosen < count:
        marked[chosen] = True
    return marked
