"""Terms split finer, block by block and head by head, and what predictions lose without a term."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_run_picture as run_pictures
from embcompare.ui import decomposition_words as say
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.decomposition import DecompositionResult
    from embcompare.ui.decomposition import Look

Table = tuple[np.ndarray, list[str], list[str], tuple[str, str]]
"""Numbers, the names of rows and of columns, and what both are called."""
WRITTEN = 12
"""Columns up to which numbers are written into the cells."""
MOST_DROPPED = 24
"""Terms whose absence is drawn."""


def split(look: Look, result: DecompositionResult, indicator: str) -> None:
    """Show the terms of one kind block by block, and head by head in the last state."""
    there = [kind for kind in pictures.ORDER if kind in {*result.kinds_a, *result.kinds_b}]
    finer = {kind: kind.capitalize() for kind in there if kind not in ("input", "correction")}
    st.subheader("Block by block", anchor=False)
    kind = frame.choose("Terms of", finer, "split_kind", hidden=True)
    _split_maps(look, result, indicator, kind, by_block, "rows: the block that added the term; columns: the state")
    _split_maps(look, result, indicator, kind, by_head, "head by head, in the last state")
    whole = (
        " Heads of a block are summed in the first row of pictures." if result.term_heads_a.max(initial=-1) >= 0 else ""
    )
    st.caption(
        f"{plain(say.meaning(indicator))} Grey: nothing is there yet.{whole if indicator == 'importance' else ''}"
    )


def _split_maps(
    look: Look,
    result: DecompositionResult,
    indicator: str,
    kind: str,
    table: Callable[[DecompositionResult, str, str, str], Table | None],
    what: str,
) -> None:
    """Show one table of both models on one scale, where there is one."""
    found = {side: own for side in "ab" if (own := table(result, side, indicator, kind)) is not None}
    if not found:
        return
    label = frame.INDICATORS[indicator].lower()
    scale = charts.signed_scale(label, [each[0] for each in found.values()])
    digits = 3 if scale.high < 0.1 else 2
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        if side not in found:
            continue
        matrix, rows, names, heads = found[side]
        drawn = pictures.cells(
            matrix,
            rows,
            names,
            scale,
            label,
            heads=heads,
            step=max(22, min(48, 480 // len(names))),
            row_height=24,
            top=False,
            write=functools.partial(pictures.number, digits=digits) if len(names) <= WRITTEN else None,
        )
        with column:
            st.markdown(f"{look.heading(side)} · {what}")
            with st.container(key=f"scrolled_{table.__name__}_{side}"):
                st.altair_chart(
                    drawn,
                    key=f"decomposition.{table.__name__}.{side}",
                    width="content",
                    alt=f"{side.upper()}: {label} of {kind} terms, {len(rows)} by {len(names)}, "
                    f"{np.nanmin(matrix):.2f} to {np.nanmax(matrix):.2f}.",
                )
    if any(len(each[2]) > WRITTEN for each in found.values()):
        st.altair_chart(charts.colour_bar(scale), key=f"decomposition.bar.{table.__name__}", width="content")


def by_block(result: DecompositionResult, side: str, indicator: str, kind: str) -> Table | None:
    """Return an indicator of one kind's terms as (blocks that added them, states), with names; None where none is.

    Heads of a block add up for importance alone, so for other indicators there is none where heads were split.
    """
    kinds, blocks = np.array(getattr(result, f"kinds_{side}")), getattr(result, f"term_layers_{side}")
    heads = getattr(result, f"term_heads_{side}")
    own = (kinds == kind) & (blocks > 0)
    if not own.any() or ((heads[own] >= 0).any() and indicator != "importance"):
        return None
    values = result.of(side, indicator)
    rows = np.unique(blocks[own])
    matrix = np.stack([values[:, own & (blocks == block)].sum(1) for block in rows])
    layers = getattr(result, f"layers_{side}")
    matrix = np.where(layers[None] >= rows[:, None], matrix, np.nan)
    short = pictures.places(getattr(result, f"states_{side}"), layers)
    return matrix, [f"block {block}" for block in rows], short, ("added by", "state of layer")


def by_head(result: DecompositionResult, side: str, indicator: str, kind: str) -> Table | None:
    """Return an indicator of one kind's terms in the last state as (blocks, heads), with names; None without heads."""
    kinds, blocks = np.array(getattr(result, f"kinds_{side}")), getattr(result, f"term_layers_{side}")
    heads = getattr(result, f"term_heads_{side}")
    own = np.flatnonzero((kinds == kind) & (heads >= 0))
    if not len(own):
        return None
    rows, columns = np.unique(blocks[own]), np.unique(heads[own])
    matrix = np.full((len(rows), len(columns)), np.nan)
    at = np.searchsorted(rows, blocks[own]), np.searchsorted(columns, heads[own])
    matrix[at] = result.of(side, indicator)[-1, own]
    return matrix, [f"block {block}" for block in rows], [str(head) for head in columns], ("block", "head")


def dropped(look: Look, result: DecompositionResult) -> None:
    """Show how much higher the loss is with each term left out before the head, in both models."""
    table = result.ablation_frame()
    if not len(table):
        return
    st.subheader("Without a term", anchor=False)
    st.markdown(plain(say.ablated(result, look.labels)))
    models = [f"{side.upper()}: {label}" for side, label in zip("ab", look.labels, strict=True)]
    called = dict(zip("ab", models, strict=True))
    table = table[table["dropped"] != "nothing"]
    drawn = pd.DataFrame(
        {
            "name": table["dropped"],
            "model": table["model"].map(called),
            "value": table["rise"],
            "low": table["rise_low"],
            "high": table["rise_high"],
        }
    )
    order = [*dict.fromkeys(drawn["name"])]
    left_out = 0
    if len(order) > MOST_DROPPED:
        largest = drawn.assign(size=drawn["value"].abs()).groupby("name")["size"].max().nlargest(MOST_DROPPED)
        left_out = len(order) - MOST_DROPPED
        order = [name for name in order if name in largest.index]
        drawn = drawn[drawn["name"].isin(order)]
    st.altair_chart(
        run_pictures.interval_bars(
            drawn, "rise of the loss, nats a token", order, [m for m in models if m in set(drawn["model"])]
        ),
        key="decomposition.dropped",
        alt=f"Rise of the loss without each term. {say.ablated(result, look.labels)}",
    )
    own = []
    for side, model in zip("ab", models, strict=True):
        loss, scored = getattr(result, f"loss_{side}"), getattr(result, f"scored_{side}")
        if loss is not None:
            own.append(f"{model}, {loss[0, 0]:.2f} nats a token with nothing left out ({plural(scored, 'prediction')})")
    more = f" {plural(left_out, 'term')} with smaller effects are in the table below." if left_out else ""
    st.caption(
        plain(
            f"Loss of {'; '.join(own)}. Lines: 95 % interval over texts. A term "
            "is set to zero in the last state alone: what later blocks made of it stays, so this is its direct part, "
            f"not what the model would be without the module.{more}"
        )
    )
