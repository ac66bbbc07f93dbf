"""The difference of two layer matrices: one setting changed, everything else alike."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts
from embcompare.errors import EmbcompareError
from embcompare.experiments.depth import cell_table
from embcompare.ui import exports, inputs, links, pair
from embcompare.ui import similarity_picture as pictures
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult

PAGE, SLOT = "representations", "difference"
CHANGED = ("model_a", "model_b", "corpus", "measure", "what", "space", "pooling")
SAME = "same"
DEFAULTS: dict[str, Any] = {f"other_{name}": SAME for name in CHANGED}
"""What the second matrix takes from the first."""
LABELS = {
    "model_a": "Model A",
    "model_b": "Model B",
    "corpus": "text",
    "measure": "measure",
    "what": "what",
    "space": "space",
    "pooling": "rows",
}


def readers(read_side: Callable[[str], str], read_measure: Callable[[str], str]) -> dict[str, Any]:
    """Return the readers of what an address says about the second matrix."""
    from embcompare.experiments.representations import RepresentationSimilarity

    own = {
        "model_a": read_side,
        "model_b": read_side,
        "corpus": inputs.read_corpus,
        "measure": read_measure,
        "what": links.reader(RepresentationSimilarity, "what"),
        "space": links.reader(RepresentationSimilarity, "space"),
        "pooling": links.reader(RepresentationSimilarity, "pooling"),
    }

    def optional(read: Callable[[str], str]) -> Callable[[str], str]:
        return lambda text: text if text == SAME else read(text)

    return {f"other_{name}": optional(read) for name, read in own.items()}


def show(
    wanted: RepresentationSimilarity,
    result: RepresentationSimilarityResult,
    obtained: Callable[..., RepresentationSimilarityResult | None],
    informed: Callable[[tuple[str, str]], Any],
    names: dict[str, dict[Any, str]],
) -> None:
    """Choose what the second matrix changes, get it, and show first, second, and first less second."""
    st.markdown("The matrix of the settings above, less a second one in which you change one thing or several.")
    other = _second(wanted, names)
    if other is None:
        return
    if other == wanted:
        st.info("Change at least one setting of the second matrix; now both are the same.")
        return
    first, second = wanted.declaration, other.declaration
    if (first.low, first.high, first.higher_is_closer) != (second.low, second.high, second.higher_is_closer):
        st.info(
            f"{first.label} and {second.label} have different ranges or directions, so their difference means nothing; "
            "choose two measures on one scale."
        )
        return
    infos = informed((other.model_a, other.model_b))
    if infos is None:
        return
    subtracted = obtained(other, infos, SLOT, arriving=True)
    if subtracted is None:
        return
    if subtracted.values.shape != result.values.shape:
        sizes = " and ".join(f"{m.shape[0]} × {m.shape[1]}" for m in (result.values, subtracted.values))
        st.info(f"The two matrices have {sizes} cells and cannot be subtracted; choose models of the same depth.")
        return
    if subtracted.start != result.start:
        st.info("The two matrices number their layers differently; compare hidden states or what blocks add in both.")
        return
    _draw(wanted, result, other, subtracted, names)


def _second(wanted: RepresentationSimilarity, names: dict[str, dict[Any, str]]) -> RepresentationSimilarity | None:
    columns = st.columns(len(CHANGED), gap="small")
    chosen: dict[str, Any] = {}
    vectors, texts = inputs.offered_vectors(), inputs.offered_texts()
    for column, name in zip(columns, CHANGED, strict=True):
        key, model = links.key(PAGE, f"other_{name}"), name.startswith("model")
        called = vectors if model else texts if name == "corpus" else names[name]
        labels: dict[str, str] = {SAME: "same", **called}
        options = [SAME, *(pair.offered() if model else ()), *called]
        now = str(st.session_state.setdefault(key, SAME))
        with column:
            value = st.selectbox(
                f"Second: {LABELS[name]}",
                options if now in options else [*options, now],
                format_func=functools.partial(_called, labels),
                key=key,
                persist_state="session",
                on_change=links.forget,
            )
        if value != SAME:
            chosen[name] = value
    try:
        return dataclasses.replace(wanted, **chosen)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def _called(labels: dict[str, str], option: str) -> str:
    return labels.get(option, option)


def changed(
    first: RepresentationSimilarity, second: RepresentationSimilarity, names: dict[str, dict[Any, str]]
) -> tuple[str, str]:
    """Return how the two matrices are told apart: what differs between their settings."""

    def called(settings: RepresentationSimilarity, name: str) -> str:
        value = getattr(settings, name)
        if name == "corpus":
            return inputs.offered_texts().get(value) or inputs.called(value)
        return pair.label_of(value) if name.startswith("model") else str(names.get(name, {}).get(value, value))

    apart = [name for name in CHANGED if getattr(first, name) != getattr(second, name)]
    a, b = (", ".join(called(settings, name) for name in apart) for settings in (first, second))
    return a, b


def _draw(
    wanted: RepresentationSimilarity,
    result: RepresentationSimilarityResult,
    other: RepresentationSimilarity,
    subtracted: RepresentationSimilarityResult,
    names: dict[str, dict[Any, str]],
) -> None:
    gap = result.values - subtracted.values
    name, other_name = changed(wanted, other, names)
    error = None
    if result.spread is not None and subtracted.spread is not None:
        error = 1.96 * np.sqrt(result.spread**2 + subtracted.spread**2)
    faint = None if error is None else (np.abs(gap) <= error) & np.isfinite(gap)
    st.markdown(plain(_sentence(gap, faint, name, other_name, result.higher_is_closer, result.start)))
    a, b = (pictures.short(wanted, side) for side in "ab")
    other_a, other_b = (pictures.short(other, side) for side in "ab")
    axes = charts.Axes.of_layers(a, b)
    scale = pictures.scale_of(wanted, [result.values, subtracted.values])
    signed = charts.signed_scale(f"{name} less {other_name}", [gap])
    parts = (
        ("first", name, result.values, scale, axes, None),
        ("second", other_name, subtracted.values, scale, charts.Axes.of_layers(other_a, other_b), None),
        ("gap", "Difference", gap, signed, axes, faint),
    )
    for column, (key, title, matrix, colours, axis, crosses) in zip(st.columns(3, gap="medium"), parts, strict=True):
        details = {"first": result.values, "second": subtracted.values} if key == "gap" else None
        with column:
            st.markdown(f"**{plain(title if '/' in title else title[:1].upper() + title[1:])}**")
            chart = charts.heatmap(matrix, colours, axis, faint=crosses, details=details, start=result.start)
            finite = matrix[np.isfinite(matrix)]
            ends = f"{finite.min():.3f} to {finite.max():.3f}" if finite.size else "nothing defined"
            st.altair_chart(chart, key=f"difference.{key}", width="content", alt=f"{title}: heat map, {ends}.")
            if key != "first":
                bar = charts.colour_bar(colours).properties(autosize="pad")
                limits = f"Colour scale from {colours.low:g} to {colours.high:g}."
                st.altair_chart(bar, key=f"difference.{key}.bar", width="content", alt=limits)
    if faint is not None:
        st.caption(
            "Crosses: the difference is within the two 95 % intervals together. Both matrices come from the same text, "
            "so this is cautious."
        )
    frame = pd.DataFrame(
        cell_table(
            gap,
            np.empty((0, 2), dtype=np.int64),
            {"first": result.values, "second": subtracted.values, "half_width": error},
        )
    )
    frame["layer_a"] += result.start[0]
    frame["layer_b"] += result.start[1]
    frame = frame.drop(columns=["centred", "assigned"]).rename(columns={"value": "difference"})
    st.download_button(
        "CSV",
        lambda: frame.to_csv(index=False),
        "difference.csv",
        "text/csv",
        key="difference.csv",
        on_click="ignore",
        icon=":material/download:",
    )
    with st.expander("Numbers"):
        st.dataframe(frame, hide_index=True, height=320)
    with st.expander("Compute it again"):
        st.code(
            f"import embcompare\n\nfirst = {wanted.call()}\nsecond = {other.call()}\nfirst.values - second.values",
            language="python",
            wrap_lines=True,
        )
        st.code(f"{exports.shell(wanted)}\n{exports.shell(other)}", language="bash", wrap_lines=True)


def _sentence(
    gap: np.ndarray,
    faint: np.ndarray | None,
    name: str,
    other: str,
    higher_is_closer: bool,
    start: tuple[int, int],
) -> str:
    finite = np.isfinite(gap)
    if not finite.any():
        return "No cell is defined in both matrices."
    signs = gap if higher_is_closer else -gap
    clear = finite if faint is None else finite & ~faint
    first, second = int((clear & (signs > 0)).sum()), int((clear & (signs < 0)).sum())
    beyond = "" if faint is None else ", counting cells whose difference is beyond both intervals"
    row, column = np.unravel_index(int(np.nanargmax(np.abs(gap))), gap.shape)
    return (
        f"{first} of {int(finite.sum())} cells are closer with {name}, {second} with {other}{beyond}. They differ "
        f"most at layer {row + start[0]} of A and layer {column + start[1]} of B, by {abs(gap[row, column]):.3f}: "
        f"closer with {name if signs[row, column] > 0 else other}."
    )
