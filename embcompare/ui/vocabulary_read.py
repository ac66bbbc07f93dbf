"""What the vectors of a layer say: a table for each model, and the vector that is chosen in either of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare.experiments.reading import SIDES, TokenReading, TokenReadingResult, parse_combination
from embcompare.experiments.vectors import GROUPS, INTERACTIONS
from embcompare.ui import exports, links, pair, runs, settings, words
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import PAGE, Look, Vector
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

OWN = ("group", "top", "combination")
DEFAULTS: dict[str, Any] = {"group": "ff_values", "top": 10, "combination": "", "layer_a": 3, "layer_b": 3}
"""What an address need not say of this view."""


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of this view."""
    layers = {f"layer_{side}": links.reader(TokenReading, "layer") for side in "ab"}
    return {**{name: links.reader(TokenReading, name) for name in OWN}, **layers}


def show(look: Look) -> None:
    """Show a layer of each model, every vector with the tokens at its two ends."""
    st.markdown(
        "Every vector of a layer, read as the tokens that it scores highest and lowest; those that single out few "
        "tokens come first. Choose a row to see that vector beside its nearest ones in the other model."
    )
    group, layers = _form(look)
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        with column:
            _side(look, side, group, layers[side])
    if str(st.session_state[links.key(PAGE, "combination")]).strip():
        st.caption(
            "A combination is read in each model by the numbers of its own vectors. Two trainings number their vectors "
            "each in its own way, so that equal numbers mean the same only in a model and one that was trained on from "
            "it."
        )
    st.caption(
        "z: how far the clearer end, which is listed first, lies from the vector's mean score, in standard deviations "
        "over the tokens; negative where it is the bottom. FF values and W_O rows write these tokens; FF keys and "
        "columns of W_Q, W_K and W_V read for them. ## begins a token inside a word. Scroll a table sideways for the "
        "other end, or open it whole (top right of it)."
    )
    if not look.reading["common"]:
        st.caption(
            "Nearly every vector of a small model says first how frequent a token is. To read the rest, leave out one "
            "common direction (How vectors are read)."
        )
    with st.expander("What these parameters are"):
        st.markdown(words.group_card(group))


def _form(look: Look) -> tuple[str, dict[str, int]]:
    columns = st.columns([2, 1, 1, 1, 2], gap="small", vertical_alignment="bottom")
    layers = {}
    with columns[0]:
        group = settings.single(TokenReading, "group", links.key(PAGE, "group"), names=GROUPS)
    for column, side in zip(columns[1:3], "ab", strict=True):
        with column:
            layers[side] = int(
                settings.single(
                    TokenReading,
                    "layer",
                    links.key(PAGE, f"layer_{side}"),
                    label=f"Layer of {side.upper()}",
                    default=DEFAULTS[f"layer_{side}"],
                    high=frame.info_of(look, side).layers - 1,
                    where=f"Layer of {side.upper()}: {plain(frame.info_of(look, side).label)}",
                )
            )
    with columns[3]:
        settings.single(TokenReading, "top", links.key(PAGE, "top"), default=DEFAULTS["top"])
    with columns[4]:
        settings.single(TokenReading, "combination", links.key(PAGE, "combination"))
    return str(group), layers


def _side(look: Look, side: str, group: str, layer: int) -> None:
    name, info = frame.name_of(look, side), frame.info_of(look, side)
    st.markdown(f"**{side.upper()}: {plain(pair.label_of(name))}, layer {layer}**")
    more = {own: st.session_state[links.key(PAGE, own)] for own in ("top", "combination")}
    wanted = look.of(TokenReading, model=name, layer=layer, group=group, **more)
    if wanted is None:
        return
    if wanted.combination.strip():
        st.markdown(plain(f"{described(wanted)} of layer {layer} of {side.upper()}, this model's own."))
    result = runs.obtained(
        wanted, TokenReadingResult, f"reading.{side}", lambda: cost(wanted, info), arriving=True, beside=""
    )
    if result is not None:
        _table(wanted, result, side)


def cost(wanted: TokenReading, info: Any) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import reading_cost

    return reading_cost(wanted, info, device=frame.device())


def _table(wanted: TokenReading, result: TokenReadingResult, side: str) -> None:
    order = result.order
    heads = wanted.group in INTERACTIONS
    combined = bool(wanted.combination.strip())
    columns: dict[str, Any] = {"index": ["combination"] if combined else result.index[order]}
    if heads:
        columns["side"] = [SIDES[wanted.group][at - 1] for at in result.side[order]]
    columns["z"] = result.z[order]
    if heads and result.share is not None:
        columns["share"] = result.share[order]
    ends = [[list(row) for row in each[order]] for each in (result.top_tokens, result.bottom_tokens)]
    down = result.z[order] < 0
    columns["clear"] = [ends[int(low)][at] for at, low in enumerate(down)]
    columns["other"] = [ends[1 - int(low)][at] for at, low in enumerate(down)]
    if not combined:
        columns["norm"] = result.norm[order]
    number, text, listed = st.column_config.NumberColumn, st.column_config.TextColumn, st.column_config.ListColumn
    table = f"reading.table.{side}"
    key = frame.table_key(table, wanted)
    unit = "head" if heads else "vector"
    pick = [Vector(side, wanted.group, wanted.layer, int(at)) for at in result.index[order]]
    chooses: dict[str, Any] = {}
    if not combined:
        chooses = {"on_select": functools.partial(picked, table, key, pick), "selection_mode": "single-row"}
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height="content" if combined else 460,
        row_height=32,
        key=key,
        column_config={
            "index": text("", width=110, pinned=True)
            if combined
            else number(unit, width=65, help=f"Which {unit} of the layer, counted from 0.", pinned=True),
            "side": text("reads as", width="small", help="Which of the head's two leading directions."),
            "z": number("z", format="%+.1f", width=60, pinned=True),
            "share": number("share", format="percent", width="small", help="Of the head's squared singular values."),
            "clear": listed(
                "clearer end",
                width=frame.lists_width(columns["clear"]),
                help="Top tokens where z is positive, bottom where negative.",
            ),
            "other": listed("other end", width=frame.lists_width(columns["other"])),
            "norm": number("norm", format="%.2f", width="small", help="Length in the model's own coordinates."),
        },
        alt=f"{described(wanted)} with the tokens at both ends."
        if combined
        else f"{len(order)} {GROUPS[wanted.group]} with the tokens at both ends.",
        **chooses,
    )
    for notice in result.notices:
        st.caption(plain(notice))
    strong = int((np.abs(np.nan_to_num(result.z)) >= 5).sum())
    st.caption(
        f"{plural(len(order), 'row')}, {strong:,} of them with |z| of 5 or more; "
        f"{plural(result.usable, 'token')} may be listed."
    )
    exports.downloads(result, f"tokens {wanted.model} {wanted.group} {wanted.layer}", f"reading.files.{side}")
    st.code(f"{wanted.call()}.to_frame()", language="python", wrap_lines=True)


def described(wanted: TokenReading) -> str:
    """Say which sum of vectors a combination is: ``1 × FF value 12 − 0.5 × FF value 40``."""
    parts: list[str] = []
    for index, weight in parse_combination(wanted.combination).items():
        sign = "−" if weight < 0 else "+" if parts else ""
        parts += [
            *([sign] if parts else []),
            f"{'' if parts else sign}{abs(weight):g} × {frame.ONE[wanted.group]} {index}",
        ]
    return " ".join(parts)


def picked(table: str, key: str, vectors: list[Vector]) -> None:
    """Look at the vector whose row was chosen in a table, or at none."""
    rows = st.session_state[key]["selection"]["rows"]
    if rows:
        st.toast("That vector and its nearest in the other model are shown above the tables.", icon=":material/north:")
    frame.choose_vector(vectors[rows[0]] if rows and rows[0] < len(vectors) else None, table)
