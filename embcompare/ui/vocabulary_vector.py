"""One vector: what it says, and the vectors of the other model that read most like it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import curves
from embcompare.experiments.nearest import NearestVectors, NearestVectorsResult
from embcompare.experiments.vectors import INTERACTIONS
from embcompare.ui import exports, pair, runs
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import Look, Vector
from embcompare.ui.vocabulary_read import picked
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

SLOT = "nearest"


def show(look: Look) -> None:
    """Show the chosen vector beside its nearest in the other model; nothing where none is chosen."""
    vector = frame.chosen_vector()
    if vector is None:
        return
    back = frame.other(vector.side)
    with st.container(border=True):
        with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            st.subheader(vector.sentence, anchor=False, width="content")
            st.button("Close", key="vector.close", icon=":material/close:", on_click=frame.choose_vector, args=(None,))
        infos = frame.info_of(look, vector.side), frame.info_of(look, back)
        reason = impossible(vector, infos[0])
        if reason:
            st.error(plain(reason))
            return
        wanted = look.of(
            NearestVectors,
            model_a=frame.name_of(look, vector.side),
            model_b=frame.name_of(look, back),
            layer=vector.layer,
            index=vector.index,
            group=vector.group,
        )
        if wanted is None:
            return
        result = runs.obtained(wanted, NearestVectorsResult, SLOT, lambda: cost(wanted, infos), arriving=True)
        if result is not None:
            _show(wanted, result, vector)


def impossible(vector: Vector, info: ModelInfo) -> str:
    """Say why the model has no such vector, with the range it has; "" where it has, or where the run finds out."""
    where = f"{vector.side.upper()}, {info.label},"
    if vector.layer >= info.layers:
        return (
            f"{where} has no layer {vector.layer}; its layers are 0 to {info.layers - 1}. Close this or choose a row."
        )
    heads = vector.group in INTERACTIONS
    size = info.heads if heads else info.ff_width if vector.group.startswith("ff_") else 0
    if not size or vector.index < size:
        return ""
    return (
        f"{where} has no {frame.ONE[vector.group]} {vector.index} in layer {vector.layer}; they are numbered 0 to "
        f"{size - 1}. Close this or choose a row."
    )


def cost(wanted: NearestVectors, infos: tuple[Any, Any]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import nearest_cost

    return nearest_cost(wanted, *infos, device=frame.device())


def sentence(wanted: NearestVectors, result: NearestVectorsResult, side: str) -> str:
    """Say how near the nearest vector of the other model is, and what the best of so many reaches by chance."""
    back, unit = frame.other(side).upper(), "head" if wanted.group in INTERACTIONS else "vector"
    if not len(result.correlation):
        return f"No {unit} of {back} can be compared with it."
    text = (
        f"Nearest in {back}: {unit} {result.index[0]} of layer {result.layer[0]}, ρ = {result.correlation[0]:+.3f}, "
        f"over {result.shared:,} shared tokens, of {result.searched:,} looked at"
    )
    if wanted.group in INTERACTIONS:
        return f"{text}. What the best of so many heads reaches by chance is not drawn."
    if result.null_best is None or not len(result.null_best):
        return f"{text}."
    low, high = result.null_best.min(), result.null_best.max()
    where = "is beyond them all" if abs(result.correlation[0]) > high else "lies within chance"
    return (
        f"{text}. With the vocabulary permuted, the best of so many reaches |ρ| of {low:.3f} to {high:.3f} in "
        f"{plural(len(result.null_best), 'draw')}; the nearest {where}."
    )


def _show(wanted: NearestVectors, result: NearestVectorsResult, vector: Vector) -> None:
    st.markdown(plain(sentence(wanted, result, vector.side)))
    for notice in result.notices:
        st.caption(plain(notice))
    own, back = vector.side.upper(), frame.other(vector.side)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown(f"**{own} says**")
        if wanted.group in INTERACTIONS:
            st.markdown(f"its leading direction: {_badges(result.tokens_a)}")
            st.caption("Before the arrow what it reads for (W_QK: the query), behind it what it writes (the key).")
        else:
            st.markdown(f"top: {_badges(result.tokens_a)}")
        if result.bottom_a:
            st.markdown(f"bottom: {_badges(result.bottom_a)}")
    with right:
        _along(wanted, result, back)
    _table(wanted, result, vector, back)
    exports.downloads(result, f"nearest {vector}", "nearest.files")
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)


def _badges(tokens: tuple[str, ...]) -> str:
    return " ".join(f":gray-badge[{plain(token)}]" for token in tokens)


def _along(wanted: NearestVectors, result: NearestVectorsResult, back: str) -> None:
    name = pair.label_of(wanted.model_b)
    series: dict[str, np.ndarray] = {"nearest": np.abs(result.best)}
    if result.null_best is not None and len(result.null_best):
        series["chance, best of all"] = np.full(len(result.best), result.null_best.max())
    st.markdown(f"**The nearest in each layer of {back.upper()}**")
    values = ", ".join(f"{value:.2f}" for value in series["nearest"])
    chart = curves.along(series, f"layer of {back.upper()}: {name}", "|ρ|", height=200)
    st.altair_chart(chart, key="nearest.layers", alt=f"Strongest correlation in each layer in turn: {values}.")


def _table(wanted: NearestVectors, result: NearestVectorsResult, vector: Vector, back: str) -> None:
    columns = {
        "layer": result.layer,
        "index": result.index,
        "rho": result.correlation,
        "top": [list(row) for row in result.tokens_b],
        "bottom": [list(row) for row in result.bottom_b],
    }
    number, listed = st.column_config.NumberColumn, st.column_config.ListColumn
    key = frame.table_key("nearest.table", wanted)
    found = [Vector(back, wanted.group, int(i), int(j)) for i, j in zip(result.layer, result.index, strict=True)]
    unit = "head" if wanted.group in INTERACTIONS else "vector"
    st.markdown(f"**Nearest in {back.upper()}: {plain(pair.label_of(wanted.model_b))}**")
    if not any(result.bottom_b):
        del columns["bottom"]
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=230,
        row_height=32,
        key=key,
        on_select=functools.partial(picked, "nearest.table", key, found),
        selection_mode="single-row",
        column_config={
            "layer": number("layer", width=55, pinned=True),
            "index": number(unit, width=60, pinned=True),
            "rho": number("ρ", format="%+.3f", width=70, pinned=True, help="Correlation over the shared tokens."),
            "top": listed("top tokens", width=frame.lists_width(result.tokens_b)),
            "bottom": listed("bottom tokens", width=frame.lists_width(result.bottom_b)),
        },
        alt=f"The {len(result.index)} nearest vectors of {back.upper()} with their tokens.",
    )
    what = "head" if wanted.group in INTERACTIONS else "vector"
    st.caption(
        f"Where ρ is negative the {what} is read with its sign turned, so that all lists can be read side by side. "
        f"Choose a row to turn round: that {what} and its nearest in the other model."
    )
