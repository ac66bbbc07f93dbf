"""The pictures of one pair of layers: learning curves, what each map reaches and adds, B's answers, single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from embcompare import charts, curves
from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_words as say

if TYPE_CHECKING:
    from embcompare.experiments.bijection_result import BijectionResult

SIDE = 336
"""Pixels that the height of the plane of rows goes by."""
STEEP = 4.0
"""A loss that falls by this factor is drawn on a logarithmic scale."""
HOVERED = 3000
"""Points of learning curves beyond which they are not told one by one."""
ROOM = 62
"""Pixels of a picture's height that its axis takes."""
_LINE, _TEAL = "#7d8a8e", "#2a8c96"


def learning(frame: pd.DataFrame, best: pd.DataFrame | None = None) -> alt.LayerChart:
    """Draw losses by epoch: a colour a network, dashed on training rows, a line a run.

    ``frame`` is as :meth:`BijectionResult.curve_frame` has it; ``best`` has map, run, epoch and loss of the weights
    that were kept.
    """
    names = list(dict.fromkeys(frame["map"]))
    labels = [MAPS[name].label for name in names]
    called = frame.assign(network=frame["map"].map(dict(zip(names, labels, strict=True))))
    called["line"] = called["map"] + called["run"].astype(str) + called["part"]
    known = called["loss"][called["loss"] > 0]
    log = bool(len(known)) and float(known.max()) > STEEP * float(known.min())
    colours = curves.styles(names, MAPS)[0]
    across = alt.X("epoch:Q", title="epoch", axis=alt.Axis(format="d", tickMinStep=1, grid=False))
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
    up = alt.Y("loss:Q", title="loss, share of B's variance", scale=scale, axis=alt.Axis(tickCount=5, format="~r"))
    legend = alt.Legend(orient="top", symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colour = alt.Color(
        "network:N", sort=labels, title=None, scale=alt.Scale(domain=labels, range=colours), legend=legend
    )
    dash = alt.StrokeDash(
        "part:N",
        title=None,
        sort=["validation", "train"],
        scale=alt.Scale(domain=["validation", "train"], range=[[1, 0], [4, 3]]),
        legend=alt.Legend(orient="top", symbolType="stroke", symbolStrokeColor=_LINE, symbolOpacity=1),
    )
    base = alt.Chart(called).encode(across, up, colour, alt.Detail("line:N"))
    tooltip = [
        alt.Tooltip("network:N", title="network"),
        alt.Tooltip("run:Q", title="run", format="d"),
        alt.Tooltip("part:N", title="rows"),
        alt.Tooltip("epoch:Q", title="epoch", format="d"),
        alt.Tooltip("loss:Q", title="loss", format=".4f"),
    ]
    layers: list[Any] = [base.mark_line(strokeWidth=1.8).encode(dash)]
    if len(called) <= HOVERED:
        layers.append(base.mark_point(size=60, opacity=0, filled=True).encode(tooltip=tooltip))
    if best is not None and len(best):
        kept = best.assign(network=best["map"].map(dict(zip(names, labels, strict=True))))
        layers.append(
            alt.Chart(kept)
            .mark_point(size=90, filled=True, opacity=1)
            .encode(across, up, colour, tooltip=[*tooltip[:2], *tooltip[3:]])
        )
    return alt.layer(*layers).properties(height=curves.HEIGHT)


def kept_epochs(result: BijectionResult) -> pd.DataFrame:
    """Return the epochs whose weights were kept, with their validation loss."""
    at, run = np.nonzero(result.best_epoch >= 0)
    epoch = result.best_epoch[at, run]
    inside = epoch < result.curves.shape[2]
    at, run, epoch = at[inside], run[inside], epoch[inside]
    names = np.array(result.maps, dtype=object)[at]
    return pd.DataFrame({"map": names, "run": run, "epoch": epoch, "loss": result.curves[at, run, epoch, 1]})


def reached(result: BijectionResult, chosen: str = "", selection: str = "") -> alt.LayerChart:
    """Draw R² of every map: filled on test rows, hollow on training rows, with the interval over runs."""
    rows = []
    for name in result.maps:
        low, high = result.interval(name, "r2")
        test, train = result.mean(name, "r2"), result.mean(name, "r2", "train")
        # a mean predictor is at 0, and others may be far below it
        rows.append({"map": name, "label": MAPS[name].label, "test": test, "train": train, "low": low, "high": high})
    frame = pd.DataFrame(rows).dropna(subset=["test"])
    frame["chosen"] = frame["map"] == chosen
    names = frame["map"].tolist()
    labels, colours = frame["label"].tolist(), curves.styles(names, MAPS)[0]
    shown = frame[["test", "train"]].to_numpy()
    bottom = min(0.0, float(np.nanmin(shown))) if shown.size else 0.0
    axis = alt.Axis(tickCount=6, format="~r", grid=True, gridOpacity=0.4)
    scale = alt.Scale(domain=[max(bottom, -0.25), 1.0], clamp=True, nice=False)
    title = "R² on test rows; hollow: on training rows"
    x = alt.X("test:Q", title=title, scale=scale, axis=axis)
    y = alt.Y(
        "label:N", sort=labels, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=180, labelFlush=False)
    )
    colour = alt.Color("label:N", sort=labels, scale=alt.Scale(domain=labels, range=colours), legend=None)
    tooltip = [
        alt.Tooltip("label:N", title="map"),
        alt.Tooltip("test:Q", title="R² on test rows", format=".4f"),
        alt.Tooltip("train:Q", title="R² on training rows", format=".4f"),
    ]
    base = alt.Chart(frame).encode(y)
    rule = base.mark_rule(strokeWidth=1.5, opacity=0.5, tooltip=None).encode(x, alt.X2("train:Q"), colour)
    hollow = base.mark_point(size=70, strokeWidth=1.8, filled=False, tooltip=None).encode(
        alt.X("train:Q", title=title, scale=scale), colour
    )
    band = base.mark_rule(strokeWidth=5, opacity=0.45, tooltip=None).encode(
        alt.X("low:Q", title=title, scale=scale), alt.X2("high:Q"), colour
    )
    dot = base.mark_point(filled=True, opacity=1, cursor="pointer" if selection else "default").encode(
        x,
        colour,
        alt.Size("chosen:N", scale=alt.Scale(domain=[False, True], range=[110, 260]), legend=None),
        tooltip=tooltip,
    )
    if selection:
        dot = dot.add_params(alt.selection_point(name=selection, fields=["map"], toggle=False, clear="dblclick"))
    number = base.mark_text(align="left", dx=12, fontSize=11, color=_LINE, tooltip=None).encode(
        alt.X("right:Q", title=title, scale=scale), alt.Text("test:Q", format=".3f")
    )
    number = number.transform_calculate(right="max(datum.test, isValid(datum.train) ? datum.train : datum.test)")
    layers = [rule, hollow, *([band] if frame["low"].notna().any() else []), dot, number]
    return alt.layer(*layers).properties(height=ROOM + 30 * max(2, len(frame)))


def answers(result: BijectionResult) -> alt.LayerChart:
    """Draw B's loss from what each map makes of A's states, beside its own and that of token frequencies."""
    rows = []
    at = result.answer_scores.index("loss")
    errors = np.zeros((len(result.maps), len(result.seeds))) if result.answer_errors is None else result.answer_errors
    for k, name in enumerate(result.maps):
        loss, error = say.answer(result, name, "loss"), float(errors[k, 0, at])
        rows.append({"map": name, "label": MAPS[name].label, "loss": loss, "low": loss - error, "high": loss + error})
    frame = pd.DataFrame(rows).dropna(subset=["loss"])
    labels = frame["label"].tolist()
    colours = curves.styles(frame["map"].tolist(), MAPS)[0]
    levels = {"B's own states": result.answers_own, "token frequencies": result.answers_base}
    known = {name: float(values[at]) for name, values in levels.items() if values is not None}
    marks = pd.DataFrame({"at": list(known.values()), "name": list(known)})
    scale = alt.Scale(zero=False, padding=24)
    title = "loss, nats a token (lower is better)"
    x = alt.X("loss:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6, format="~r"))
    y = alt.Y(
        "label:N", sort=labels, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=180, labelFlush=False)
    )
    colour = alt.Color("label:N", sort=labels, scale=alt.Scale(domain=labels, range=colours), legend=None)
    tooltip = [
        alt.Tooltip("label:N", title="map"),
        alt.Tooltip("loss:Q", title="B's loss", format=".3f"),
        alt.Tooltip("low:Q", title="less one standard error", format=".3f"),
        alt.Tooltip("high:Q", title="and one more", format=".3f"),
    ]
    rules = alt.Chart(marks).encode(alt.X("at:Q", title=title, scale=scale))
    line = rules.mark_rule(color=_LINE, strokeWidth=1.3, strokeDash=[4, 3])
    line = line.encode(tooltip=[alt.Tooltip("name:N", title="level"), alt.Tooltip("at:Q", title="loss", format=".3f")])
    names = rules.mark_text(align="left", baseline="top", dx=4, dy=2, fontSize=11, color=_LINE, tooltip=None)
    names = names.encode(alt.Text("name:N"), y=alt.value(0))
    base = alt.Chart(frame).encode(y)
    bars = base.mark_rule(strokeWidth=4, opacity=0.4, tooltip=None).encode(
        alt.X("low:Q", title=title, scale=scale), alt.X2("high:Q"), colour
    )
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(x, colour, tooltip=tooltip)
    number = base.mark_text(align="left", dx=12, fontSize=11, color=_LINE, tooltip=None)
    number = number.encode(alt.X("high:Q", title=title, scale=scale), alt.Text("loss:Q", format=".2f"))
    return alt.layer(line, names, bars, dots, number).properties(height=ROOM + 26 * max(2, len(frame)))


STEPS = (("orthogonal", "linear"), ("linear", "inn"), ("inn", "mlp"))
"""The steps of the verdict, from the least kind of map to the most."""


def gaps(result: BijectionResult, margin: float) -> alt.LayerChart:
    """Draw how much each richer kind of map adds, with its interval over test texts, and the margin that counts."""
    called = say.gap_labels(result)
    frame = result.gap_frame()
    frame = frame[[pair in STEPS for pair in zip(frame["first"], frame["second"], strict=True)]].copy()
    frame["step"] = [
        f"{called[first]} → {called[second]}" for first, second in zip(frame["first"], frame["second"], strict=True)
    ]
    frame["right"] = frame["high"].fillna(frame["gap"])
    steps = frame["step"].tolist()
    y = alt.Y(
        "step:N", sort=steps, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=300, labelFlush=False)
    )
    title = "R² added on test rows"
    x = alt.X(
        "gap:Q",
        title=title,
        axis=alt.Axis(tickCount=6, format="~r"),
        scale=alt.Scale(padding=44),
    )
    tooltip = [
        alt.Tooltip("step:N", title="from → to"),
        *(alt.Tooltip(f"{name}:Q", title=title, format="+.4f") for name, title in _GAP_COLUMNS),
    ]
    base = alt.Chart(frame).encode(y)
    marks = pd.DataFrame({"at": [0.0, margin], "name": ["nothing added", "margin that counts"]})
    rules = (
        alt.Chart(marks)
        .mark_rule(color=_LINE, strokeWidth=1.2)
        .encode(
            alt.X("at:Q", title=title),
            alt.StrokeDash(
                "name:N", scale=alt.Scale(domain=marks["name"].tolist(), range=[[1, 0], [4, 3]]), legend=None
            ),
            tooltip=[alt.Tooltip("name:N", title="line"), alt.Tooltip("at:Q", title="at", format=".3f")],
        )
    )
    ends = base.mark_rule(strokeWidth=2.5, color=_TEAL).encode(
        alt.X("low:Q", title=title), alt.X2("high:Q"), tooltip=tooltip
    )
    dots = base.mark_point(filled=True, size=90, opacity=1, color=_TEAL).encode(x, tooltip=tooltip)
    number = base.mark_text(align="left", dx=8, fontSize=11, color=_LINE, tooltip=None).encode(
        alt.X("right:Q", title=title), alt.Text("gap:Q", format="+.3f")
    )
    return alt.layer(rules, ends, dots, number).properties(height=ROOM + 44 * max(2, len(frame)))


_GAP_COLUMNS = (("gap", "R² added"), ("low", "lower end"), ("high", "upper end"))


def scatter(result: BijectionResult, name: str, direction: int) -> alt.LayerChart:
    """Draw mapped against target along one principal direction of B (0 the first), and where they would be equal."""
    frame = result.sample_frame(name, direction)
    frame["said"] = frame["text"].str.slice(0, 200)
    ends = frame[["target", "mapped"]].to_numpy()
    ends = ends[np.isfinite(ends)]
    low, high = (float(ends.min()), float(ends.max())) if ends.size else (0.0, 1.0)
    pad = 0.04 * (high - low or 1.0)
    scale = alt.Scale(domain=[low - pad, high + pad], nice=False)
    axis = alt.Axis(tickCount=5, format="~r", gridOpacity=0.35)
    x = alt.X("target:Q", title=f"B's own state along direction {direction + 1}", scale=scale, axis=axis)
    y = alt.Y("mapped:Q", title=f"mapped from A ({MAPS[name].label})", scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("said:N", title="row"),
        *([alt.Tooltip("label:N", title="label")] if result.sample_labels else []),
        alt.Tooltip("target:Q", title="B's own", format=".2f"),
        alt.Tooltip("mapped:Q", title="mapped", format=".2f"),
        alt.Tooltip("mse:Q", title="mean squared error over all features", format=".3f"),
    ]
    equal = pd.DataFrame({"target": [low, high], "mapped": [low, high]})
    line = alt.Chart(equal).mark_line(color=_LINE, strokeDash=[4, 3], strokeWidth=1.3, tooltip=None).encode(x, y)
    dots = alt.Chart(frame).mark_point(filled=True, size=34, opacity=0.75).encode(x, y, tooltip=tooltip)
    few = len(set(result.sample_labels))
    if 1 < few <= 6:
        legend = alt.Legend(orient="top", title=None, labelLimit=200, symbolOpacity=1)
        dots = dots.encode(alt.Color("label:N", sort=sorted(set(result.sample_labels)), legend=legend))
    else:
        dots = dots.encode(color=alt.value(_TEAL))
    return alt.layer(line, dots).properties(height=SIDE + 20)


def export_fit(result: BijectionResult, margin: float, heading: str, note: str, kind: str) -> bytes:
    """Return what every map reaches and what each step adds as one PNG or SVG file."""
    panels = [reached(result).properties(width=380)]
    if len(result.gaps):
        panels.append(gaps(result, margin).properties(width=300))
    whole = charts.side_by_side(panels, None, heading, note)
    return charts.picture(whole, "png" if kind == "png" else "svg")
