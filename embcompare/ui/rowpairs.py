"""One pair of layers of hidden states: neighbours kept and lost, both spectra, both models' points in one plane."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts, curves
from embcompare.experiments.pairs import RepresentationPair, RepresentationPairResult
from embcompare.ui import exports, runs
from embcompare.ui import similarity_picture as pictures
from embcompare.ui import similarity_words as say
from embcompare.ui.page import plain
from embcompare.ui.similarity_words import capital
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.representations import RepresentationSimilarity

SLOT = "rowpairs"


def settings_of(settings: RepresentationSimilarity, layers: tuple[int, int]) -> RepresentationPair:
    """Return the settings that look behind one cell of a similarity matrix."""
    known = {item.name for item in dataclasses.fields(RepresentationPair)}
    shared = {name: value for name, value in settings.to_dict().items() if name in known}
    return RepresentationPair(layer_a=layers[0], layer_b=layers[1], **shared)


def show(settings: RepresentationSimilarity, layers: tuple[int, int], said: tuple[str, ...] = ()) -> None:
    """Compare two layers row by row, or take the stored comparison, and show it; ``said`` notices are not repeated."""
    wanted = settings_of(settings, layers)
    result = runs.at_hand(wanted)
    if result is None:
        if runs.job_of(wanted) is None and runs.refusal(wanted, SLOT) is None:
            runs.ask(wanted, SLOT)
        now = runs.follow(wanted, SLOT)
        result = now.result if now is not None else None
        if now is not None and now.state in ("failed", "cancelled"):
            st.button("Compare these layers again", on_click=runs.ask, args=(wanted, SLOT))
    if isinstance(result, RepresentationPairResult):
        _show(settings, wanted, result, said)


def _show(
    settings: RepresentationSimilarity,
    wanted: RepresentationPair,
    result: RepresentationPairResult,
    said: tuple[str, ...],
) -> None:
    st.markdown(plain(sentence(wanted, result)))
    for notice in result.notices:
        if notice not in said:
            st.caption(plain(notice))
    left, right = st.columns([3, 2], gap="large")
    chosen = _table(wanted, result)
    with left:
        _plane(settings, result, chosen)
    with right:
        _spectra(settings, result)
    if chosen is not None:
        _neighbours(settings, wanted, result, chosen)
    name = f"pair {wanted.layer_a} {wanted.layer_b} {pictures.short(settings, 'a')} {pictures.short(settings, 'b')}"
    exports.downloads(result, name, "rowpairs.files")
    st.code(f"{wanted.call()}.to_frame()", language="python", wrap_lines=True)


def sentence(wanted: RepresentationPair, result: RepresentationPairResult) -> str:
    """Say in two sentences how many neighbours the two layers share and how well their clouds coincide."""
    unit = say.unit(wanted)
    where = f"{capital(result.name_a)} of A and {result.name_b} of B, {result.rows:,} {unit}s"
    if np.isnan(result.mean_kept):
        text = f"{where}: neighbours are undefined."
    else:
        text = (
            f"{where}: of its {result.k} nearest ({wanted.metric}) a row keeps {result.mean_kept:.0%} on average; "
            f"unrelated layers would keep {result.kept_chance:.1%}."
        )
    if np.isnan(result.fit):
        return text
    how = "turned onto each other" if result.aligned_by == "rotation" else "in the coordinates that both share"
    return f"{text} The two clouds, {how}, fit to {result.fit:.2f} (wrongly paired rows: {result.fit_chance:.2f})."


def _table(wanted: RepresentationPair, result: RepresentationPairResult) -> int | None:
    """Show the listed rows, those that keep fewest first, and return which of them is chosen."""
    at = result.listed
    frame = pd.DataFrame({"text": result.texts, "kept": result.kept[at], "apart": result.residual[at]})
    if result.labels:
        frame.insert(1, "label", result.labels)
    order = np.argsort(result.kept[at], kind="stable")
    st.markdown("**Which neighbours a row keeps.** Choose a row to see them; its two points are drawn large.")
    event = st.dataframe(
        frame.iloc[order],
        hide_index=True,
        height=260,
        on_select="rerun",
        selection_mode="single-row",
        key=f"rowpairs.table.{wanted.layer_a}.{wanted.layer_b}",
        column_config={
            "text": st.column_config.TextColumn(f"{say.unit(wanted)}s", width="large"),
            "label": st.column_config.TextColumn("label", width="small"),
            "kept": st.column_config.ProgressColumn(
                "neighbours kept", format="percent", min_value=0.0, max_value=1.0, width="small"
            ),
            "apart": st.column_config.NumberColumn(
                "apart",
                format="%.2f",
                width="small",
                help="Distance of the row's two points in all dimensions; the unit is the root-mean-square distance "
                "from the centre.",
            ),
        },
        alt=f"{plural(len(frame), 'row')} with the share of neighbours that they keep.",
    )
    if len(at) < result.rows:
        st.caption(f"{len(at):,} of {plural(result.rows, 'row')} are listed and drawn; the numbers above are of all.")
    rows = event["selection"]["rows"]
    return int(order[rows[0]]) if rows and rows[0] < len(order) else None


def _neighbours(
    settings: RepresentationSimilarity, wanted: RepresentationPair, result: RepresentationPairResult, chosen: int
) -> None:
    row = int(result.listed[chosen])
    st.markdown(plain(f"Nearest to: {result.text(row)}"))
    near = {"A": result.neighbours_a[chosen].tolist(), "B": result.neighbours_b[chosen].tolist()}
    columns = st.columns(2, gap="large")
    for column, side, other in zip(columns, "AB", "BA", strict=True):
        shared = set(near[other])
        name = pictures.short(settings, side.lower())
        layer = result.name_a if side == "A" else result.name_b
        table = pd.DataFrame(
            {
                "rank": range(1, len(near[side]) + 1),
                "neighbour": [result.text(n) if n >= 0 else "undefined" for n in near[side]],
                "in both": [n in shared for n in near[side]],
            }
        )
        with column:
            st.markdown(f"**{side}: {plain(charts.shortened(name))}, {layer}**")
            st.dataframe(
                table,
                hide_index=True,
                column_config={
                    "rank": st.column_config.NumberColumn("rank", width="small"),
                    "neighbour": st.column_config.TextColumn("neighbour", width="large"),
                    "in both": st.column_config.CheckboxColumn("kept", width="small", help="A neighbour in both."),
                },
                key=f"rowpairs.near.{side}",
                alt=f"The {len(table)} nearest rows in {side}.",
            )


def _plane(settings: RepresentationSimilarity, result: RepresentationPairResult, chosen: int | None) -> None:
    st.markdown("**Both models' points in one plane**")
    if np.isnan(result.xy_a).all():
        st.caption("There is no plane to show.")
        return
    names = tuple(f"{side.upper()}: {charts.shortened(pictures.short(settings, side))}" for side in "ab")
    details = {"neighbours kept": result.kept[result.listed], "apart": result.residual[result.listed]}
    chart = curves.pairs_in_plane(result.xy_a, result.xy_b, (names[0], names[1]), result.texts, details, chosen=chosen)
    alt = (
        f"Scatter plot of {plural(len(result.listed), 'row')}, a point for each model joined by a line; fit "
        f"{result.fit:.2f}, for wrongly paired rows {result.fit_chance:.2f}."
    )
    st.altair_chart(chart, key="rowpairs.plane", alt=alt)
    how = "B is turned onto A (Procrustes)" if result.aligned_by == "rotation" else "Neither model is turned"
    st.caption(
        f"{how}; the plane holds {result.plane_share_a:.0%} of A's variance and {result.plane_share_b:.0%} of B's. A "
        "line joins the two points of a row."
    )


def _spectra(settings: RepresentationSimilarity, result: RepresentationPairResult) -> None:
    st.markdown("**How the variance is spread**")
    spectra = {
        f"{side}: {charts.shortened(pictures.short(settings, side.lower()))}": spectrum
        for side, spectrum in (("A", result.spectrum_a), ("B", result.spectrum_b))
        if len(spectrum)
    }
    if not spectra:
        st.caption("There is no variance to show.")
        return
    chart = curves.along(spectra, "principal component", "share of the variance", start=1, log=True, height=340)
    parts = [
        f"{side}: effective rank {rank:.1f}, {count} components hold 90 %"
        for side, rank, count in (
            ("A", result.effective_rank_a, result.components_a),
            ("B", result.effective_rank_b, result.components_b),
        )
        if count is not None
    ]
    st.altair_chart(chart, key="rowpairs.spectra", alt=f"Variance by principal component. {'; '.join(parts)}.")
    st.caption(f"{'; '.join(parts)}.")
