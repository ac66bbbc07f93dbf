"""Pictures of trainings and of single numbers with their intervals: lines, bars, correlations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from embcompare.ui.decomposition_picture import HEIGHT, INK

# They read on a light ground and on a dark one.
_RUNS = ("#2a8c96", "#cb6f33", "#6f86c4", "#958a36", "#9a6fa8", "#3f9d5c", "#c7566f", "#4f7f9e", "#a0603c", "#7d8a8e")


_MODELS = ("#8796a8", "#b3739b")
"""Of two models: none of the colours that terms have on the same page."""


def interval_bars(frame: pd.DataFrame, value: str, names: Sequence[str], models: Sequence[str]) -> alt.LayerChart:
    """Draw one bar a ``name`` and ``model`` with its interval: columns name, model, value, low, high."""
    axis = alt.Axis(ticks=False, domain=False, labelLimit=220, labelOverlap=False, labelFlush=False)
    y = alt.Y("name:N", sort=list(names), title=None, axis=axis)
    offset = alt.YOffset("model:N", sort=list(models))
    colour = alt.Color(
        "model:N",
        sort=list(models),
        title=None,
        scale=alt.Scale(domain=list(models), range=list(_MODELS[: len(models)])),
        legend=alt.Legend(orient="top", labelLimit=320) if len(models) > 1 else None,
    )
    tooltip = [
        alt.Tooltip("name:N", title="term"),
        alt.Tooltip("model:N", title="of"),
        alt.Tooltip("value:Q", title=value, format="+.4~g"),
        *([alt.Tooltip(f"{end}:Q", format="+.4~g") for end in ("low", "high")] if "low" in frame else []),
    ]
    x = alt.X("value:Q", title=value, axis=alt.Axis(format="~r", tickCount=6))
    layers: list[Any] = [
        alt.Chart(frame.dropna(subset=["value"])).mark_bar().encode(x, y, offset, colour, tooltip=tooltip)
    ]
    if "low" in frame:
        ends = alt.Chart(frame.dropna()).mark_rule(strokeWidth=1.5, tooltip=None)
        layers.append(ends.encode(alt.X("low:Q", title=value), alt.X2("high:Q"), y, offset, color=INK))
    thick = 16 if len(names) <= 12 else 8
    height = 100 + (thick * len(models) + 8) * len(names)
    return alt.layer(*layers).properties(height=height)


def run_lines(frame: pd.DataFrame, x: str, y: str, runs: Sequence[str], *, ordered: bool = False) -> alt.LayerChart:
    """Draw one line a run: columns run, checkpoint, order, x, y, and low and high where there are any.

    With ``ordered`` points are joined in the order of training wherever they lie.
    """
    colour = alt.Color(
        "run:N",
        sort=list(runs),
        title=None,
        scale=alt.Scale(domain=list(runs), range=[_RUNS[at % len(_RUNS)] for at in range(len(runs))]),
        legend=alt.Legend(orient="top", symbolType="stroke", symbolOpacity=1, labelLimit=200, columns=3),
    )
    scale = alt.Scale(zero=False, nice=True)
    across = alt.X(
        "x:Q",
        title=x,
        scale=scale,
        axis=alt.Axis(format="~s" if x == "training step" else "~r", grid=ordered, tickCount=7),
    )
    up = alt.Y("y:Q", title=y, scale=scale, axis=alt.Axis(format="~r", tickCount=6))
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("checkpoint:N"),
        alt.Tooltip("x:Q", title=x, format=".4~g"),
        alt.Tooltip("y:Q", title=y, format=".4~g"),
    ]
    base = alt.Chart(frame.dropna(subset=["x", "y"])).encode(across, up, colour)
    layers: list[Any] = []
    if "low" in frame:
        layers.append(
            base.mark_rule(opacity=0.45, tooltip=None).encode(alt.Y("low:Q", title=y, scale=scale), alt.Y2("high:Q"))
        )
    layers.append(base.mark_line(strokeWidth=1.8, opacity=0.85, tooltip=None).encode(alt.Order("order:Q")))
    size = alt.Size("last:N", scale=alt.Scale(domain=[False, True], range=[28, 110]), legend=None)
    layers.append(base.mark_point(filled=True, opacity=1).encode(size, tooltip=tooltip))
    return alt.layer(*layers).properties(height=HEIGHT + 10)


def forest(frame: pd.DataFrame, names: Sequence[str], rising: float = float("nan")) -> alt.LayerChart:
    """Draw correlations from -1 to 1 with two intervals: columns name, rho, low, high, low_all, high_all, clear.

    Column step_rho is drawn hollow; at ``rising``, either side of 0, a dotted line.
    """
    scale = alt.Scale(domain=[-1, 1], nice=False)
    axis = alt.Axis(ticks=False, domain=False, labelLimit=260, labelOverlap=False, labelFlush=False, grid=False)
    y = alt.Y("name:N", sort=list(names), title=None, axis=axis)
    tooltip = [
        alt.Tooltip("name:N", title="indicator"),
        *(
            alt.Tooltip(f"{name}:Q", format="+.2f", title=title)
            for name, title in (
                ("rho", "ρ"),
                ("low", "95 % from"),
                ("high", "to"),
                ("low_all", "for all from"),
                ("high_all", "to "),
                ("step_rho", "ρ at the same step"),
            )
        ),
    ]
    colour = alt.Color("clear:N", scale=alt.Scale(domain=[True, False], range=["#2a8c96", "#9aa5a8"]), legend=None)
    layers: list[Any] = [
        alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(tooltip=None).encode(alt.X("zero:Q", scale=scale), color=INK)
    ]
    for low, high, width in (("low_all", "high_all", 1.2), ("low", "high", 4.0)):
        rule = alt.Chart(frame.dropna(subset=[low, high])).mark_rule(strokeWidth=width, tooltip=None)
        across = alt.Axis(format="+.1f", values=[-1, -0.5, 0, 0.5, 1])
        x = alt.X(f"{low}:Q", title="Spearman's ρ", scale=scale, axis=across)
        layers.append(rule.encode(x, alt.X2(f"{high}:Q"), y, colour))
    if np.isfinite(rising):
        ends = pd.DataFrame({"rising": [-rising, rising]})
        dotted = alt.Chart(ends).mark_rule(strokeDash=[2, 3], tooltip=None)
        layers.append(dotted.encode(alt.X("rising:Q", title="Spearman's ρ", scale=scale), color=INK))
    hollow = alt.Chart(frame.dropna(subset=["step_rho"])).mark_point(size=55, strokeWidth=1.6, tooltip=None)
    layers.append(hollow.encode(alt.X("step_rho:Q", title="Spearman's ρ", scale=scale), y, color=alt.value("#cb6f33")))
    dots = alt.Chart(frame.dropna(subset=["rho"])).mark_point(filled=True, size=70, opacity=1)
    layers.append(dots.encode(alt.X("rho:Q", title="Spearman's ρ", scale=scale), y, colour, tooltip=tooltip))
    return alt.layer(*layers).properties(height=70 + 21 * len(names))
