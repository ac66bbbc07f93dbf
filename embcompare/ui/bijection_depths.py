"""Every depth on the page Bijection: what kind of map it takes at each, and what each richer kind adds."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from embcompare.experiments.bijection_depths import BijectionDepths, BijectionDepthsResult
from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_form as forms
from embcompare.ui import bijection_grid as pictures
from embcompare.ui import bijection_table as tables
from embcompare.ui import bijection_words as say
from embcompare.ui import exports, links, pair, runs
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.bijection import Bijection
    from embcompare.ui.bijection_form import Sides

SLOT = "bijection_depths"


def show(wanted: Bijection, sides: Sides) -> None:
    """Show the fits at every depth, or what leads to them."""
    st.subheader("Every depth", anchor=False)
    asked = forms.depths_settings(wanted)
    if asked.layers:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"Pairs of layers, A's before B's: {plain(asked.layers)}.", width="content")
            st.button("Every layer of A instead", key="bijection.depths.all", on_click=_all)
    else:
        st.markdown(
            "Every layer of A to the layer of B at the same depth, each with the maps and settings above: the "
            "hypothesis layer by layer."
        )
    result = runs.obtained(
        asked,
        BijectionDepthsResult,
        SLOT,
        lambda: forms.depths_cost(asked, sides),
        arriving=False,
        draw=lambda partial: _pictures(asked, partial, "partial"),
    )
    if result is not None:
        _show(asked, wanted, result)


def _all() -> None:
    st.session_state[links.key(forms.PAGE, "depths")] = ""
    links.forget()


def _show(asked: BijectionDepths, wanted: Bijection, result: BijectionDepthsResult) -> None:
    st.markdown(f"**{plain(result.sentence)}**" if result.sentence else "There is no verdict at any depth.")
    _pictures(asked, result, "whole")
    tables.pairs(frame_of(result), (wanted.layer_a, wanted.layer_b), "bijection.depths.table")
    if result.reasons:
        with st.expander(f"What was left out at {plural(len({at for at, *_ in result.reasons}), 'depth')}"):
            for at, name, reason in result.reasons:
                what = f", {MAPS[name].label}" if name else ""
                st.markdown(plain(f"Layers {result.layers[at][0]} and {result.layers[at][1]}{what}: {reason}"))
    names = (pair.label_of(asked.model_a), pair.label_of(asked.model_b))
    kinds = {
        kind: functools.partial(pictures.export_depths, result, asked.margin, names, kind) for kind in ("png", "svg")
    }
    exports.downloads(result, f"bijection depths {' '.join(names)}", "bijection.depths.files", kinds)
    with st.expander("The call of these fits"):
        exports.again(asked)
        exports.provenance(result)


def _pictures(asked: BijectionDepths, result: BijectionDepthsResult, key: str) -> None:
    a = pair.label_of(asked.model_a)
    left, right = st.columns(2, gap="large")
    if result.gap_names:
        with left:
            st.markdown("**What each richer kind of map adds**")
            chart = pictures.gaps_along(result, asked.margin, a)
            st.altair_chart(chart, key=f"bijection.depths.gaps.{key}", alt=_described_gaps(result))
            st.caption("Shaded: 95 % interval over test texts. A step counts above the margin.")
    with right if result.gap_names else left:
        st.markdown("**What each map predicts**")
        chart = pictures.reached_along(result, a)
        levels = "; ".join(
            f"{MAPS[name].label} {', '.join(say.said(value, 2) for value in result.of(name).tolist())}"
            for name in result.maps
        )
        st.altair_chart(chart, key=f"bijection.depths.r2.{key}", alt=f"R² on test rows by layer of A: {levels}.")


def _described_gaps(result: BijectionDepthsResult) -> str:
    parts = []
    for (first, second), label in pictures.RISES.items():
        values = result.gap(first, second)[:, 0]
        parts.append(f"{label} {', '.join('–' if np.isnan(value) else f'{value:+.3f}' for value in values.tolist())}")
    return f"R² added by layer of A: {'; '.join(parts)}."


def frame_of(result: BijectionDepthsResult) -> pd.DataFrame:
    """Return one row a depth: its layers, the kind, and R² of each map."""
    table: dict[str, object] = {"layer_a": result.layers[:, 0], "layer_b": result.layers[:, 1], "kind": result.kinds}
    return pd.DataFrame(table | {name: result.of(name) for name in result.maps})
