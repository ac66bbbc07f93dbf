"""One pair of layers: chosen by a click or by two lists, its vectors matched and read in tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts
from embcompare.entries import text as text_of
from embcompare.errors import SettingsError
from embcompare.experiments.matches import ParameterMatches, ParameterMatchesResult
from embcompare.experiments.vectors import INTERACTIONS
from embcompare.ui import exports, links, runs, words
from embcompare.ui.page import VOCABULARY, plain

if TYPE_CHECKING:
    from embcompare.experiments.parameters import ParameterAlignment

PAGE, SLOT = "parameters", "matches"


def take_click(
    clicked: list[dict[str, Any]] | None,
    shape: tuple[int, int],
    page: str = PAGE,
    start: tuple[int, int] = (0, 0),
) -> None:
    """Turn a new click on a cell into the chosen layers; an old one, or one outside the matrix, changes nothing.

    ``start`` are the numbers of the first layer of A and of B, here and below.
    """
    cell = None
    if clicked:
        cell = (int(clicked[0].get("layer_a", -1)), int(clicked[0].get("layer_b", -1)))
    known = links.key(page, "clicked")
    if cell == st.session_state.get(known):
        return
    st.session_state[known] = cell
    if cell is not None and all(
        first <= layer < first + count for layer, first, count in zip(cell, start, shape, strict=True)
    ):
        for name, layer in zip(("layer_a", "layer_b"), cell, strict=True):
            st.session_state[links.key(page, name)] = str(layer)


def read(text: str) -> str:
    """Read a chosen layer as a link gives it: a number or ``none``."""
    if text != "none" and not (text.isascii() and text.isdigit() and len(text) < 6):
        raise SettingsError("a layer is a number, counted from 0, or none")
    return text


def chosen(shape: tuple[int, int], page: str = PAGE, start: tuple[int, int] = (0, 0)) -> tuple[int, int] | None:
    """Return the chosen layers; None where none is chosen or not both exist."""
    picked = [st.session_state.get(links.key(page, name), "none") for name in ("layer_a", "layer_b")]
    known = (map(str, range(first, first + count)) for first, count in zip(start, shape, strict=True))
    if any(value not in numbers for value, numbers in zip(picked, known, strict=True)):
        return None
    return int(picked[0]), int(picked[1])


def choose(shape: tuple[int, int], page: str = PAGE, start: tuple[int, int] = (0, 0)) -> tuple[int, int] | None:
    """Show the two lists of layers and return the chosen pair; None until both are chosen."""
    columns = st.columns([1, 1, 2], gap="small")
    for column, side, count, first in zip(columns, "AB", shape, start, strict=False):
        key = links.key(page, f"layer_{side.lower()}")
        options = ["none", *map(str, range(first, first + count))]
        if st.session_state.get(key) not in options:
            if st.session_state.get(key) is not None:
                missing = plain(str(st.session_state[key]))
                column.warning(
                    f"{side} has no layer {missing}; its layers here are {first} to {first + count - 1}.",
                    icon=":material/layers_clear:",
                )
            st.session_state[key] = "none"
        column.selectbox(f"Layer of {side}", options, key=key, persist_state="session", on_change=links.forget)
    return chosen(shape, page, start)


def settings_of(settings: ParameterAlignment, layers: tuple[int, int]) -> ParameterMatches:
    """Return the settings that match the vectors of one cell of an alignment."""
    known = {item.name for item in dataclasses.fields(ParameterMatches)}
    own_null = ("null_draws", "seed")  # a matching is dearer than a score, and has a null of its own
    shared = {name: value for name, value in settings.to_dict().items() if name in known and name not in own_null}
    return ParameterMatches(layer_a=layers[0], layer_b=layers[1], **shared)


def show(settings: ParameterAlignment, layers: tuple[int, int]) -> None:
    """Match the two layers' vectors, or take the stored matching, and show it: sentence, histogram, table, files."""
    wanted = settings_of(settings, layers)
    result = runs.at_hand(wanted)
    if result is None:
        if runs.job_of(wanted) is None and runs.refusal(wanted, SLOT) is None:
            runs.ask(wanted, SLOT)
        now = runs.follow(wanted, SLOT)
        result = now.result if now is not None else None
        if now is not None and now.state in ("failed", "cancelled"):
            st.button("Match these layers again", on_click=runs.ask, args=(wanted, SLOT))
    if isinstance(result, ParameterMatchesResult):
        _show(wanted, result)


def _show(settings: ParameterMatches, result: ParameterMatchesResult) -> None:
    st.markdown(plain(words.matched(result, settings.layer_a, settings.layer_b)))
    for notice in result.notices:
        st.caption(plain(notice))
    unit = "head" if settings.group in INTERACTIONS else "vector"
    frame = pd.DataFrame(
        {
            "A": result.index_a,
            "B": result.index_b,
            "rho": result.correlation,
            "shared": result.shared_tokens,
            "tokens_a": [list(row) for row in result.tokens_a],
            "tokens_b": [list(row) for row in result.tokens_b],
            "bottom_a": [list(row) for row in result.bottom_a],
            "bottom_b": [list(row) for row in result.bottom_b],
        }
    )
    number = st.column_config.NumberColumn
    event = st.dataframe(
        frame,
        hide_index=True,
        height=420,
        row_height=32,
        on_select="rerun",
        selection_mode="single-row",
        key=f"matches.table.{settings.group}.{settings.layer_a}.{settings.layer_b}",
        column_config={
            "A": number(f"A {unit}", width="small", help=f"Which {unit} of A's layer, counted from 0."),
            "B": number(f"B {unit}", width="small", help="Its partner in B's layer, counted from 0."),
            "rho": number("ρ", format="%.3f", width="small", help="Correlation of the two, with its sign."),
            "shared": number(
                "shared", format="%.2f", width="small", help="Jaccard overlap of the token lists of both ends."
            ),
            "tokens_a": st.column_config.ListColumn("top tokens in A", width="large"),
            "tokens_b": st.column_config.ListColumn("top tokens in B", width="large"),
            "bottom_a": st.column_config.ListColumn("bottom tokens in A", width="large"),
            "bottom_b": st.column_config.ListColumn("bottom tokens in B", width="large"),
        },
        alt=f"The {len(frame)} strongest matches of the two layers with their top tokens.",
    )
    st.caption(
        "Click a heading to sort; the magnifier above the table searches; bottom tokens are to the right. Where ρ is "
        "negative, B's vector is read as its negative."
    )
    _onward(settings, result, event["selection"]["rows"])
    if settings.space == "embedding" and not settings.common and result.shared_tokens.mean() < 0.2:
        st.caption(
            "Few tokens are shared although the vectors correlate: mostly both raise or lower all frequent words. "
            "Leave out one common direction (advanced settings) to compare what remains."
        )
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**How strong the matches are**")
        st.altair_chart(
            charts.histogram(result.values, "|ρ| of matched pairs", marks=_chance(result)),
            key="matches.histogram",
            alt=plain_alt(settings, result),
        )
    with right:
        st.markdown("**Files**")
        exports.downloads(result, f"matches {settings.group} {settings.layer_a} {settings.layer_b}", "matches.files")
        st.code(f"{settings.call()}.to_frame()", language="python", wrap_lines=True)


def _onward(settings: ParameterMatches, result: ParameterMatchesResult, rows: list[int]) -> None:
    """Lead to the vectors of a chosen row, each beside its nearest in the other model, in any layer."""
    if not rows or rows[0] >= len(result.index_a):
        st.caption("Choose a row to look at its two vectors on the page Vocabulary.")
        return
    with st.container(horizontal=True, gap="medium"):
        for side, layer, indices in (
            ("a", settings.layer_a, result.index_a),
            ("b", settings.layer_b, result.index_b),
        ):
            index = int(indices[rows[0]])
            at = {"layer_a": str(settings.layer_a), "layer_b": str(settings.layer_b), "group": settings.group}
            # as they were matched: another reading has other neighbours
            at |= {name: text_of(getattr(settings, name)) for name in ("common", "centred", "embedding")}
            st.page_link(
                VOCABULARY,
                label=f"Vector {index} of {side.upper()} and its nearest",
                icon=":material/arrow_forward:",
                query_params={
                    "model_a": settings.model_a,
                    "model_b": settings.model_b,
                    **at,
                    "vector": f"{side}.{settings.group}.{layer}.{index}",
                },
            )


def _chance(result: ParameterMatchesResult) -> dict[str, float]:
    """Return what a matching reaches by chance: its median, and its strongest pair in any draw."""
    if result.null_median is None or result.null_strongest is None or not np.isfinite(result.null_strongest).any():
        return {}
    return {
        "median by chance": float(np.nanmedian(result.null_median)),
        "strongest by chance": float(np.nanmax(result.null_strongest)),
    }


def plain_alt(settings: ParameterMatches, result: ParameterMatchesResult) -> str:
    """Describe the histogram for those who cannot see it."""
    return f"Histogram. {words.matched(result, settings.layer_a, settings.layer_b)}"
