"""Tables of the page Bijection: what each map reaches, and pairs of layers that can be gone to."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_words as say
from embcompare.words import plural

GO = "bijection.go"
"""Where the session keeps the pair of layers that a row was chosen for, until the page runs again."""


def pairs(frame: pd.DataFrame, now: tuple[int, int], key: str) -> None:
    """Show one row a pair of layers, with the kind of map and R² of each; choosing a row goes to its pair.

    ``frame`` has ``layer_a``, ``layer_b``, ``kind`` and a column for each map; ``now`` is the pair that is looked at.
    """
    names = [name for name in frame.columns if name in MAPS]
    shown = frame.assign(kind=frame["kind"].map(say.KINDS))
    number = st.column_config.NumberColumn
    event = st.dataframe(
        shown,
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        # with each other pair a table without a chosen row
        key=f"{key}.{now[0]}.{now[1]}",
        height="content" if len(frame) <= 13 else 460,
        column_config={
            "layer_a": number("A", width=40),
            "layer_b": number("B", width=40),
            "kind": st.column_config.TextColumn("what it takes", width=300),
            **{name: number(MAPS[name].label, format="%.3f") for name in names},
        },
        alt=f"{plural(len(frame), 'pair')} of layers with R² on test rows of each map.",
    )
    st.caption("R² on test rows. Choose a row to look at its pair of layers.")
    rows = event["selection"]["rows"]
    if rows and rows[0] < len(frame):
        a, b = (int(frame.iloc[rows[0]][name]) for name in ("layer_a", "layer_b"))
        if (a, b) != now:
            st.session_state[GO] = (a, b)
            st.rerun()


def maps(frame: pd.DataFrame, key: str) -> None:
    """Show one row a map: what it reaches on test rows beside training rows, and what is known of it."""
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    columns: dict[str, Any] = {
        "map": text("map", pinned=True, width=130),
        "r2": number("R²", format="%.3f", help="On test rows, over all features together."),
        "r2_train": number("R² train", format="%.3f"),
        "runs_half": number("± runs", format="%.3f", help="Half the 95 % interval of test R² over runs."),
        "mse": number(
            "MSE", format="%.3f", help="Mean squared error of a feature on test rows, in the unit of the fit."
        ),
        "mse_train": number("MSE train", format="%.3f"),
        "cosine": number("cosine", format="%.3f", help="Mean cosine of a mapped row and its target, on test rows."),
        "cosine_train": number("cosine train", format="%.3f"),
        "retrieval": number(
            "retrieval", format="%.3f", help="Share of test rows whose own target is the nearest of all test rows'."
        ),
        "retrieval_train": number("retrieval train", format="%.3f"),
        "cycle": number("cycle error", format="%.1e", help="How far test rows come back from where they started."),
        "cycle_train": number("cycle train", format="%.1e"),
        "b_loss": number("B's loss", format="%.3f", help="Nats a token, with mapped states in place of B's own."),
        "b_kl": number("B's KL", format="%.3f", help="Divergence from what B predicts by itself, nats a token."),
        "b_agreement": number("B agrees", format="%.3f", help="Share of tokens with B's own first choice."),
        "condition": number("condition", format="%.3g", help="Condition number of the Jacobian."),
        "log_determinant": number("log |det|", format="%.1f", help="Of the Jacobian; none between unequal widths."),
        "start": text("started as", help="The linear map that a network began at."),
        "best_epoch": number("best epoch", format="%.0f", help="The epoch whose weights were kept, mean over runs."),
        "seconds": number("seconds", format="%.2f", help="Of fitting, all runs together."),
    }
    st.dataframe(
        frame,
        hide_index=True,
        key=key,
        column_config={name: column for name, column in columns.items() if name in frame},
        alt=f"{plural(len(frame), 'map')} with their scores on test and on training rows.",
    )
