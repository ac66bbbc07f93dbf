"""Stitching on a page: its run, the grid of all cuts and entries, one cell of it, and all maps beside each other."""

from __future__ import annotations

import functools
from typing import Any

import streamlit as st

from embcompare.experiments.stitching import Stitching, StitchingResult
from embcompare.maps.registry import KERNELS
from embcompare.ui import exports, links, pair, runs
from embcompare.ui import stitching_cell as cells
from embcompare.ui import stitching_fit as fits
from embcompare.ui import stitching_numbers as figures
from embcompare.ui import stitching_picture as pictures
from embcompare.ui import stitching_text as texts
from embcompare.ui import stitching_verdict as verdicts
from embcompare.ui import stitching_words as say
from embcompare.ui.page import plain
from embcompare.ui.stitching_cell import PAGE
from embcompare.ui.stitching_form import DEFAULTS, Infos, cost, form, looked_at, most_texts, publish

__all__ = ["DEFAULTS", "body", "form", "show"]

SLOT = "stitching"


def body(wanted: Stitching, infos: Infos, fit: fits.Fit, *, arriving: bool) -> None:
    """Show the result, or what leads to it; a text can be continued before there is one."""
    shape = (infos[0].layers + 1, infos[1].layers + 1)
    above = st.container()
    result = runs.obtained(wanted, StitchingResult, SLOT, lambda: cost(wanted, infos), arriving=arriving)
    if result is not None:
        show(wanted, infos, fit, result)
        publish(wanted)
        return
    above.markdown(say.promise(fit.task), help=say.GLOSSARY)
    few = verdicts.too_few(fit.task, most_texts(wanted), shape[0] * shape[1])
    if few:
        above.warning(few, icon=":material/data_alert:")
    cell = cells.chosen(shape)
    if cell is not None and fit.task == "next token":
        with st.container(border=True):
            cells.heading(cell, infos[1].layers - cell[1])
            texts.show(wanted, infos, looked_at(wanted.kernels.split(", ")), cell)
    publish(wanted)


def show(wanted: Stitching, infos: Infos, fit: fits.Fit, result: StitchingResult) -> None:
    """Show a result: the verdict, the grid with its reference numbers or one cell, all maps along the cuts, files."""
    map_, score_ = links.key(PAGE, "map"), links.key(PAGE, "score")
    st.session_state[map_] = kernel = looked_at(result.kernels)
    if st.session_state.get(score_) not in result.scores:
        st.session_state[score_] = result.main_score
    st.markdown(plain(verdicts.verdict(result, kernel, st.session_state[score_])), help=say.GLOSSARY)
    st.caption(plain(" ".join([say.identity(result), *result.notices])))
    with st.container(horizontal=True, gap="small"):
        shared: dict[str, Any] = {"persist_state": "session", "on_change": links.forget}
        kernel = str(
            st.selectbox("Map", result.kernels, format_func=say.plainly, key=map_, width=300, **shared) or kernel
        )
        score = str(
            st.selectbox(
                "Score", result.scores, format_func=lambda name: say.SCORES[name], key=score_, width=220, **shared
            )
        )
    shape = (result.values.shape[-2], result.values.shape[-1])
    cells.settle(shape)
    before = cells.chosen(shape)
    left, right = st.columns([9, 12], gap="medium")
    with left:
        _grid(wanted, result, kernel, score, before)
        cells.choose(shape)
    cell = cells.chosen(shape)
    if cell != before:
        publish(wanted)
        st.rerun()
    with right:
        if cell is None:
            figures.references(result, score)
            goes_on = fit.task == "next token" and KERNELS[kernel].fitted_on != "states"
            more = " and to continue one of your own" if goes_on else ""
            st.caption(f"Click a cell, or choose it below the picture, to see its texts{more}.")
        else:
            with st.container(border=True):
                cells.heading(cell, shape[1] - 1 - cell[1])
                cells.show(result, kernel, score, cell)
                if fit.task == "next token":
                    texts.show(wanted, infos, kernel, cell)
    if cell is not None:
        with left:
            figures.references(result, score)
    _files(wanted, result, kernel, score)
    _compared(result, score)
    if result.runs > 1:
        st.subheader("Every run", anchor=False)
        figures.every_run(result, score)
    st.subheader("About these numbers", anchor=False)
    figures.about(wanted, result)


def _labels(wanted: Stitching) -> tuple[str, str]:
    return pair.label_of(wanted.model_a), pair.label_of(wanted.model_b)


def _grid(wanted: Stitching, result: StitchingResult, kernel: str, score: str, chosen: tuple[int, int] | None) -> None:
    names = _labels(wanted)
    drawn = pictures.grid(result, kernel, score, names, chosen=chosen, selection="cell")
    with st.container(key="scrolled_stitching"):
        event = st.altair_chart(
            drawn,
            key=f"stitching.grid.{cells.turn()}",
            width="content",
            on_select="rerun",
            alt=say.described(result, kernel, score),
        )
        bar = pictures.bar(result, score).properties(autosize="pad")
        ends = pictures.anchors(result, score)
        limits = f"Colour scale from B alone, {ends.near:g}, to {ends.far_name}, {ends.far:g}."
        st.altair_chart(bar, key="stitching.bar", width="content", alt=limits)
    shape = (result.values.shape[-2], result.values.shape[-1])
    cells.take_click(event["selection"].get("cell"), shape)
    st.caption(plain(pictures.legend(result, kernel, score)))


def _files(wanted: Stitching, result: StitchingResult, kernel: str, score: str) -> None:
    names = _labels(wanted)
    note = f"{verdicts.verdict(result, kernel, score)} {pictures.legend(result, kernel, score)}"
    kinds = {
        kind: functools.partial(pictures.export, result, kernel, score, names, note, kind) for kind in ("png", "svg")
    }
    exports.downloads(result, f"stitching {' '.join(names)}", "stitching.files", kinds)


def _compared(result: StitchingResult, score: str) -> None:
    st.subheader("All maps, cut by cut", anchor=False)
    key = links.key(PAGE, "depth")
    st.session_state.setdefault(key, DEFAULTS["depth"])
    depth = str(
        st.segmented_control(
            "Entry of B",
            list(pictures.DEPTHS),
            required=True,
            format_func=lambda name: pictures.DEPTHS[name],
            key=key,
            persist_state="session",
            label_visibility="collapsed",
        )
        or DEFAULTS["depth"]
    )
    a = str(result.provenance.get("settings", {}).get("model_a", "A"))
    chart = pictures.lines(result, score, depth, pair.label_of(a) if a != "A" else a)
    st.altair_chart(chart, key="stitching.lines", alt=_spoken(result, score, depth))
    how = (
        "best entry of B, chosen after the fact, for controls as well; above cut 0 entry 0, B's embedding output, is "
        "left out"
        if depth == "best"
        else "entry at the same relative depth"
    )
    shaded = (
        f" Shaded: 95 % interval over {'runs' if result.runs > 2 else 'texts'}." if score == result.main_score else ""
    )
    st.caption(f"Each cut of A with the {how}. Dashed and grey: controls.{shaded}")


def _spoken(result: StitchingResult, score: str, depth: str) -> str:
    parts = []
    for name in result.kernels:
        at = pictures.entries_of(result, name, score, depth)
        values = [float(result.mean(name, score)[cut, entry]) for cut, entry in enumerate(at)]
        parts.append(f"{KERNELS[name].label} {', '.join(say.said(score, value) for value in values)}")
    levels = ", ".join(f"{name} {say.said(score, value)}" for name, value in pictures.rules_of(result, score).items())
    return f"Lines along the cuts of A: {say.SCORES[score].lower()} of {'; '.join(parts)}. Levels: {levels}."
