"""One token searched in both models: the parameters that promote or suppress it most, in any layer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts, grids
from embcompare.experiments.token_search import VECTOR_GROUPS, TokenSearch, TokenSearchResult
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import exports, links, pair, runs, settings
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import PAGE, Look, Vector
from embcompare.ui.vocabulary_read import picked
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

SLOT = "search"
DEFAULTS: dict[str, Any] = {"token": "", "search_group": "all", "search_count": 25}
"""What an address need not say of this view."""
_FIELDS = {"token": "token", "search_group": "group", "search_count": "count"}


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of this view."""
    return {name: links.reader(TokenSearch, field) for name, field in _FIELDS.items()}


def show(look: Look) -> None:
    """Ask for a token, search it, and show where in each model it is promoted or suppressed most."""
    st.markdown("Which parameters score one token highest or lowest, over all layers of both models?")
    chosen: dict[str, Any] = {}
    names = {"all": "All", **{name: GROUPS[name] for name in VECTOR_GROUPS}}
    for column, (name, field) in zip(st.columns([2, 2, 1, 2], gap="small"), _FIELDS.items(), strict=False):
        with column:
            chosen[field] = settings.single(
                TokenSearch, field, links.key(PAGE, name), default=DEFAULTS[name], names=names
            )
    if not str(chosen["token"]).strip():
        st.info(
            "Type a token: a word such as whale, or ##ing for a token inside a word. Many words are several tokens."
        )
        return
    wanted = look.of(TokenSearch, model_a=look.names[0], model_b=look.names[1], **chosen)
    if wanted is None:
        return
    result = runs.obtained(wanted, TokenSearchResult, SLOT, lambda: cost(wanted, look.infos), arriving=True)
    if result is not None:
        _show(wanted, result)


def cost(wanted: TokenSearch, infos: tuple[Any, Any]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import search_cost

    return search_cost(wanted, *infos, device=frame.device())


def sentence(result: TokenSearchResult) -> str:
    """Say what promotes and suppresses the token most in each model."""
    parts = []
    for at, side in enumerate("AB"):
        ends = []
        for promotes, verb in ((True, "highest"), (False, "lowest")):
            rows = np.flatnonzero((result.model == at) & (result.promotes == promotes))
            if len(rows):
                row = rows[0]
                one, index = frame.ONE[result.groups[result.group[row]]], result.index[row]
                ends.append(f"{verb} by {one} {index} of layer {result.layer[row]} (z = {result.z[row]:+.1f})")
        searched = (result.searched_a, result.searched_b)[at]
        token = (result.token_a, result.token_b)[at]
        parts.append(f"In {side} “{token}” is scored {' and '.join(ends)}, of {plural(searched, 'vector')}.")
    return " ".join(parts)


def _show(wanted: TokenSearch, result: TokenSearchResult) -> None:
    st.markdown(plain(sentence(result)))
    for notice in result.notices:
        st.caption(plain(notice))
    highest = {"a": result.highest_a, "b": result.highest_b}
    lowest = {"a": result.lowest_a, "b": result.lowest_b}
    scale = charts.signed_scale("z of the most extreme vector", [*highest.values(), *lowest.values()])
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        name = pair.label_of(getattr(wanted, f"model_{side}"))
        with column:
            st.markdown(f"**{side.upper()}: {plain(name)}**")
            ends = (("highest", highest[side]), ("lowest", lowest[side]))
            for half, (end, table) in zip(st.columns(2, gap="small"), ends, strict=True):
                with half:
                    _strip(table, result.groups, scale, end, f"search.{side}.{end}")
            for promotes in (True, False):
                _table(wanted, result, side, promotes)
    bar = charts.colour_bar(scale).properties(autosize="pad")
    st.altair_chart(
        bar, key="search.bar", width="content", alt=f"Colour scale from {scale.low:g} to {scale.high:g}: {scale.title}."
    )
    st.caption(
        "z: the token's score less the mean of its group over all layers of the model, in the group's standard "
        "deviations; where it is negative, so are the scores of the others listed with it. FF values and W_O rows "
        "write their tokens; FF keys and columns of W_Q, W_K and W_V read for them, and the sign of one such column "
        "of attention is free, for turned round together with its partner it changes nothing. Choose a row to see that "
        "vector beside its nearest in the other model."
    )
    exports.downloads(result, f"token {wanted.token}", "search.files")
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)


def _strip(table: np.ndarray, groups: tuple[str, ...], scale: charts.Scale, end: str, key: str) -> None:
    chart = grids.by_layer(table, scale, [GROUPS[group] for group in groups], f"z of the {end}")
    finite = table[np.isfinite(table)]
    ends = f"{finite.min():.1f} to {finite.max():.1f}" if finite.size else "nothing defined"
    st.altair_chart(
        chart, key=key, width="content", alt=f"Vector that scores it {end}, by group and layer: z from {ends}."
    )


def _table(wanted: TokenSearch, result: TokenSearchResult, side: str, promotes: bool) -> None:
    end = "highest" if promotes else "lowest"
    rows = np.flatnonzero((result.model == "ab".index(side)) & (result.promotes == promotes))
    columns: dict[str, Any] = {
        "group": [frame.ONE[result.groups[at]] for at in result.group[rows]],
        "index": result.index[rows],
        "layer": result.layer[rows],
        "z": result.z[rows],
        "tokens": [list(result.tokens[row]) for row in rows],
    }
    found = [
        Vector(side, result.groups[result.group[row]], int(result.layer[row]), int(result.index[row])) for row in rows
    ]
    number, text, listed = st.column_config.NumberColumn, st.column_config.TextColumn, st.column_config.ListColumn
    table = f"search.table.{side}.{end}"
    key = frame.table_key(table, wanted)
    st.markdown(f"Scored {end}")
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=250,
        row_height=32,
        key=key,
        on_select=functools.partial(picked, table, key, found),
        selection_mode="single-row",
        column_config={
            "group": text("vector", width=90, pinned=True),
            "index": number("", width=45, pinned=True),
            "layer": number("layer", width=45, pinned=True),
            "z": number("z", format="%+.1f", width=50, pinned=True),
            "tokens": listed("it also reads as", width=frame.lists_width(columns["tokens"])),
        },
        alt=f"{plural(len(rows), 'vector')} of {side.upper()} that score the token {end}.",
    )
