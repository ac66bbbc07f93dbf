"""One token's state taken apart: each term read through the vocabulary, its logits, and what input tokens brought."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts
from embcompare.experiments.term_result import BIAS, SOURCE, SUM
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import lists_width
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.term_result import SentenceTermsResult
    from embcompare.ui.decomposition import Look

BROUGHT = {"importance": "Share of the state", "logit": "Logit of the likeliest token"}
"""What of each input token's part is shown."""
SHOWN = 8
"""Predicted tokens whose logits are taken apart in the picture."""
ROWS = 12
"""Parts that are drawn one by one; the smaller ones together are the last row."""


def vocabulary(look: Look, result: SentenceTermsResult, chosen: dict[str, int]) -> None:
    """Show the tokens at both ends of each term and of their sum, for the chosen token of each model."""
    st.subheader("Read through the vocabulary", anchor=False)
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        with column:
            _heading(look, result, side, chosen)
            if getattr(result, f"top_{side}") is None:
                st.caption("This model has no head that predicts tokens, so its terms are not read as tokens.")
                continue
            _terms_table(result, side, chosen[side])
    st.caption(
        "The tokens that each term by itself, through the final norm and the unembedding, gives the highest and the "
        "lowest logits; the last row is the model's own reading of the whole state, the logit lens."
    )


def _heading(look: Look, result: SentenceTermsResult, side: str, chosen: dict[str, int]) -> None:
    token = getattr(result, f"tokens_{side}")[chosen[side]]
    state = getattr(result, f"states_{side}")[getattr(result, f"state_{side}")]
    st.markdown(f"{look.heading(side)} · ‘{plain(token)}’, {plain(state)}")


def _terms_table(result: SentenceTermsResult, side: str, place: int) -> None:
    top, bottom = (getattr(result, f"{end}_{side}")[:, place] for end in ("top", "bottom"))
    importance = result.of(side, "importance")[getattr(result, f"state_{side}"), :, place]

    def named(ends: np.ndarray) -> list[list[str]]:
        return [[result.name(side, int(token)) for token in row if token >= 0] for row in ends]

    table = pd.DataFrame(
        {
            "term": [*getattr(result, f"terms_{side}"), SUM],
            "importance": [*importance, 1.0],
            "top": named(top),
            "bottom": named(bottom),
        }
    )
    listed = st.column_config.ListColumn
    st.dataframe(
        table,
        hide_index=True,
        height="content" if len(table) <= 10 else 400,
        row_height=32,
        key=f"decomposition.vocabulary.{side}",
        column_config={
            "term": st.column_config.TextColumn("term", width=130, pinned=True),
            "importance": st.column_config.NumberColumn(
                "share", format="%.2f", width=60, help="Importance; sums to 1."
            ),
            "top": listed("raises most", width=lists_width(table["top"])),
            "bottom": listed("lowers most", width=lists_width(table["bottom"])),
        },
        alt=f"{plural(len(table) - 1, 'term')} and their sum with the tokens at both ends.",
    )


def gathered(values: np.ndarray, names: list[str], most: int = ROWS) -> tuple[np.ndarray, list[str]]:
    """Return the rows of largest absolute value in their order, and one with the sum of all others, if any."""
    if len(values) <= most:
        return values, names
    kept = np.sort(np.argsort(-np.abs(values).max(1), kind="stable")[: most - 1])
    rest = np.setdiff1d(np.arange(len(values)), kept)
    return np.concatenate([values[kept], values[rest].sum(0)[None]]), [
        *(names[at] for at in kept),
        f"{plural(len(rest), 'other')} together",
    ]


def logits(look: Look, result: SentenceTermsResult, chosen: dict[str, int]) -> None:
    """Show what each part gives to the logits of the tokens that the state predicts."""
    sides = [side for side in "ab" if getattr(result, f"parts_{side}") is not None]
    if not sides:
        return
    st.subheader("What each part gives to the predictions", anchor=False)
    tables: dict[str, tuple[np.ndarray, list[str]]] = {}
    for side in sides:
        values = getattr(result, f"parts_{side}")[:, chosen[side], :SHOWN]
        table, names = gathered(values, [*getattr(result, f"terms_{side}"), BIAS])
        tables[side] = np.concatenate([table, values.sum(0)[None]]), [*names, "logit, their sum"]
    scale = charts.signed_scale("logit", [table for table, _ in tables.values()])
    for column, side in zip(st.columns(2, gap="medium"), sides, strict=False):
        table, names = tables[side]
        predicted = [
            result.name(side, int(token)) for token in getattr(result, f"top_{side}")[-1, chosen[side], :SHOWN]
        ]
        with column:
            _heading(look, result, side, chosen)
            with st.container(key=f"scrolled_logits_{side}"):
                st.altair_chart(
                    pictures.cells(
                        table,
                        names,
                        predicted,
                        scale,
                        "logit",
                        heads=("part", "predicted"),
                        step=52,
                        write=functools.partial(pictures.number, digits=1),
                    ),
                    key=f"decomposition.logits.{side}",
                    width="content",
                    alt=f"{side.upper()}: logits of {', '.join(predicted)} in {len(names) - 1} parts.",
                )
    st.caption(
        "Columns: the likeliest tokens by the whole state. Parts of a column add up to its logit, before any softcap. "
        "Probabilities depend on differences between columns alone: what gives all tokens alike changes nothing."
    )


def brought(look: Look, result: SentenceTermsResult, chosen: dict[str, int]) -> None:
    """Show what each input token has sent into the chosen token's state."""
    st.subheader("What each input token brought", anchor=False)
    what = frame.choose("Shown of each", BROUGHT, "brought", hidden=True)
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        with column:
            _heading(look, result, side, chosen)
            found = getattr(result, f"source_parts_{side}")
            if what == "logit" and found is None:
                st.caption("This model has no head that predicts tokens, so there are no logits.")
                continue
            names, kinds = _sources(result, side)
            values = getattr(result, f"sources_{side}")[result.indicators.index("importance")]
            title = "importance"
            if what == "logit":
                predicted = result.name(side, int(getattr(result, f"top_{side}")[-1, chosen[side], 0]))
                values, title = found[:, 0], f"logit of ‘{predicted}’"
                names, kinds = [*names, BIAS], [*kinds, BIAS]
            with st.container(key=f"scrolled_brought_{side}"):
                st.altair_chart(
                    pictures.input_bars(values, names, kinds, title),
                    key=f"decomposition.brought.{side}",
                    width="content",
                    alt=spoken(values, names, title, side),
                )
    st.caption(
        "Oh & Schuler (2023): the model with its attention weights, its norms' statistics and the tangents of its "
        "activations held, so that each input token's way to the state can be followed alone; exact at this text. "
        "Grey: the correction, all biases together. A token's part is all that came of it on the way, through "
        "attention and feed-forward; the term ‘input’ above is the bare embedding of the token itself."
    )


def _sources(result: SentenceTermsResult, side: str) -> tuple[list[str], list[str]]:
    """Return the names of the parts by input tokens and what kind each is."""
    rest = ["correction"] if getattr(result, f"source_tokens_{side}") is None else [SOURCE, "correction"]
    count = getattr(result, f"sources_{side}").shape[1] - len(rest)
    return [*getattr(result, f"tokens_{side}")[:count], *rest], [*["token"] * count, *rest]


def spoken(values: Any, names: list[str], title: str, side: str) -> str:
    """Describe the bars for those who cannot see them."""
    order = np.argsort(-np.abs(np.nan_to_num(values)), kind="stable")[:3]
    largest = ", ".join(f"{names[at]} {values[at]:+.2f}" for at in order)
    return f"{side.upper()}: {title} brought by each of {len(values)} parts; the largest: {largest}."
