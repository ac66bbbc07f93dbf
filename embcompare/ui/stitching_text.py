"""A typed text continued by A, by B and by the stitched model of one cell, token by token, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import curves
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.stitched_text import MAX_CHARACTERS, SIDES, StitchedText, StitchedTextResult
from embcompare.maps.registry import KERNELS
from embcompare.running import resolve_device
from embcompare.ui import exports, links, runs
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.stitching import Stitching
    from embcompare.models import ModelInfo

PAGE, SLOT = "stitching", "stitched_text"
DEFAULTS: dict[str, Any] = {"prompt": "", "tokens": 16, "temperature": 0.0, "top": 5}
"""What an address need not say of a continued text."""
SHARED = ("embedding", "centred", "anchors", "paper_faithful", "small_overlap", "seed")
"""Settings that the grid and the continued text have in common."""
STEP = 64
"""Pixels of one token in the picture."""


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of a continued text."""
    own = {name: links.reader(StitchedText, name) for name in DEFAULTS if name != "prompt"}
    return {"prompt": _read_prompt, **own}


def _read_prompt(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise SettingsError(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are taken")
    return text


def show(wanted: Stitching, infos: tuple[ModelInfo, ModelInfo], kernel: str, cell: tuple[int, int]) -> None:
    """Show the box and, once a text was given, the three continuations."""
    st.markdown("**Continue a text**")
    if KERNELS[kernel].fitted_on == "states":
        st.caption(
            f"The map ‘{KERNELS[kernel].label}’ is fitted on hidden states of many texts, and here is one; choose a "
            "map made of the embeddings above the picture to continue a text with it."
        )
        return
    pressed = _form()
    prompt = str(st.session_state[links.key(PAGE, "prompt")])
    if not prompt.strip() and not pressed:
        return
    try:
        asked = StitchedText.from_dict(
            {
                "model_a": wanted.model_a,
                "model_b": wanted.model_b,
                "text": prompt,
                "cut": cell[0],
                "entry": cell[1],
                "kernel": kernel,
                **{name: st.session_state[links.key(PAGE, name)] for name in DEFAULTS if name != "prompt"},
                **{name: getattr(wanted, name) for name in SHARED},
            }
        )
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return
    result = runs.obtained(asked, StitchedTextResult, SLOT, lambda: _cost(asked, infos), arriving=True)
    if result is not None:
        _show(asked, result)


def _form() -> bool:
    for name, default in DEFAULTS.items():
        st.session_state.setdefault(links.key(PAGE, name), default)
    with st.form("stitching.text", border=False):
        st.text_area(
            "Text",
            key=links.key(PAGE, "prompt"),
            max_chars=MAX_CHARACTERS,
            height=80,
            placeholder="The whale",
            persist_state="session",
            label_visibility="collapsed",
        )
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            shared: dict[str, Any] = {"persist_state": "session", "width": 130}
            st.number_input("Tokens", 1, 64, step=1, key=links.key(PAGE, "tokens"), **shared)
            st.number_input(
                "Temperature",
                0.0,
                5.0,
                step=0.1,
                key=links.key(PAGE, "temperature"),
                help="0 takes the likeliest token each time; above, tokens are drawn with the seed of the settings.",
                **shared,
            )
            st.number_input("Alternatives", 1, 50, step=1, key=links.key(PAGE, "top"), **shared)
            return st.form_submit_button("Continue", icon=":material/edit_note:")


def _cost(asked: StitchedText, infos: tuple[ModelInfo, ModelInfo]) -> Any:
    from embcompare.experiments.estimate_stitching import continuation_cost

    return continuation_cost(asked, *infos, device=resolve_device("auto"))


def _show(asked: StitchedText, result: StitchedTextResult) -> None:
    there = [at for at in range(len(SIDES)) if (result.tokens[at] >= 0).any()]
    for at in there:
        title = "Stitched" if SIDES[at] == "stitched" else SIDES[at]
        added = f"… {result.text[at].strip()}" if result.text[at].strip() else "… (the text ends)"
        st.markdown(f"**{title}** · {plain(result.labels[at])}  \n{plain(' '.join(added.split()))}")
    for notice in result.notices:
        st.caption(plain(notice))
    if not there:
        st.caption("No side goes on: the text ends at once.")
        return
    steps = int((result.tokens[there] >= 0).any(0).sum())
    rows = list(reversed(there))  # the last is drawn on top
    best = [[result.name(int(token)) for token in result.tokens[at, :steps]] for at in rows]
    others = [[_alternatives(result, at, step) for step in range(steps)] for at in rows]
    chart = curves.token_grid(
        [str(step + 1) for step in range(steps)],
        [_row(at) for at in rows],
        best,
        np.nan_to_num(result.probabilities[rows][:, :steps]),
        {"likeliest": others},
        step=STEP,
    )
    with st.container(key="scrolled_stitched_text"):
        spoken = "; ".join(f"{_row(at)}: {' '.join(each)}" for at, each in zip(rows, best, strict=True))
        st.altair_chart(chart, key="stitching.tokens", width="content", alt=f"Tokens added by each side. {spoken}.")
    st.caption(
        "Dark to bright: the probability that each side gave to its token, from 0 to 1. Hover for the likeliest."
    )
    with st.expander("Alternatives at every step"):
        _table(result, there, steps)
    with st.expander("Files and the call of this text"):
        exports.downloads(result, f"stitched text {asked.cut} {asked.entry}", "stitching.text.files")
        st.code(f"import embcompare\n\n{asked.call()}.to_frame()", language="python", wrap_lines=True)


def _table(result: StitchedTextResult, there: list[int], steps: int) -> None:
    table: dict[str, Any] = {"step": list(range(1, steps + 1))}
    for at in there:
        table[f"{_row(at)} "] = [result.name(int(token)) for token in result.tokens[at, :steps]]
        table[f"p {at}"] = result.probabilities[at, :steps]
        table[f"others {at}"] = [_alternatives(result, at, step) for step in range(steps)]
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        height=300,
        key="stitching.alternatives",
        column_config={
            "step": st.column_config.NumberColumn("", width=40, pinned=True),
            **{f"p {at}": st.column_config.NumberColumn("p", format="%.3f", width=60) for at in there},
            **{f"others {at}": st.column_config.TextColumn(f"likeliest of {_row(at)}", width="medium") for at in there},
        },
        alt=f"{steps} steps with the token of each side, its probability and the likeliest.",
    )


def _alternatives(result: StitchedTextResult, at: int, step: int) -> str:
    pairs = zip(result.top[at, step], result.top_probabilities[at, step], strict=True)
    return ", ".join(f"{result.name(int(token))} {share:.2f}" for token, share in pairs if token >= 0)


def _row(at: int) -> str:
    return SIDES[at]
