"""Parameter alignment on a page: its form, its estimate, its run, its picture and all that goes with it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.experiments.parameters import ParameterAlignment, ParameterAlignmentResult
from embcompare.experiments.vectors import GROUPS
from embcompare.measures.matching import SCORES
from embcompare.running import resolve_device
from embcompare.ui import exports, layers, links, pair, picture, runs, settings, words
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.experiments.representations import RepresentationSimilarityResult
    from embcompare.models import ModelInfo

PAGE, SLOT = "parameters", "alignment"
NAMES = {
    "group": GROUPS,
    "score": {name: score.label for name, score in SCORES.items()},
    "space": {"embedding": "Embedding space", "feature": "Feature space"},
    "embedding": {"output": "Output (unembedding)", "input": "Input"},
}
_ROWS = (("group", "space", "score"),)
_ADVANCED = tuple(
    item.name
    for item in dataclasses.fields(ParameterAlignment)
    if not item.metadata["model"] and item.name not in _ROWS[0]
)


DEFAULTS: dict[str, Any] = {
    **{item.name: item.default for item in dataclasses.fields(ParameterAlignment)},
    **pair.DEFAULT_PAIR,
    "view": "raw",
    "range": "fitted",
    "layer_a": "none",
    "layer_b": "none",
}
"""What an address need not say."""


def _readers() -> dict[str, Any]:
    settings_ = [item.name for item in dataclasses.fields(ParameterAlignment)]
    return {
        **{name: links.reader(ParameterAlignment, name) for name in settings_},
        "model_a": pair.read,
        "model_b": pair.read,
        "view": links.choice(*picture.VIEWS),
        "range": links.choice(*picture.RANGES),
        "layer_a": layers.read,
        "layer_b": layers.read,
    }


def form() -> tuple[ParameterAlignment, tuple[ModelInfo, ModelInfo]] | None:
    """Show the pair and every setting; None, with a sentence, where something is refused."""
    links.arrive(PAGE, _readers(), DEFAULTS)
    names = pair.choose()
    edited = settings.edited(ParameterAlignment, {"model_a": names[0], "model_b": names[1]}, _ROWS, _ADVANCED, NAMES)
    infos = pair.informed(names)
    if edited is None or infos is None:
        return None
    publish(edited)
    return edited, infos


def publish(wanted: ParameterAlignment) -> None:
    """Make the address say the settings, the view and the chosen layers."""
    seen = {name: st.session_state.get(name, DEFAULTS[name]) for name in ("view", "range", "layer_a", "layer_b")}
    links.publish(PAGE, {**wanted.to_dict(), **seen}, DEFAULTS)


def cost(wanted: ParameterAlignment, infos: tuple[ModelInfo, ModelInfo]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate import alignment_cost  # brings torch and measures the machine

    return alignment_cost(wanted, *infos, device=resolve_device("auto"))


def obtained(
    wanted: ParameterAlignment, infos: tuple[ModelInfo, ModelInfo], *, arriving: bool
) -> ParameterAlignmentResult | None:
    """Return the result, or show what leads to it; ``arriving`` starts a quick run without a click."""
    return runs.obtained(
        wanted,
        ParameterAlignmentResult,
        SLOT,
        lambda: cost(wanted, infos),
        arriving=arriving,
        draw=lambda partial: picture.show(picture.compose(wanted, partial), key="partial"),
    )


def show(wanted: ParameterAlignment, result: ParameterAlignmentResult) -> None:
    """Show a result: sentences, views, the picture with a clickable first panel, one pair of layers, files, cards."""
    shape = (result.values.shape[0], result.values.shape[1])
    st.subheader(f"{GROUPS[wanted.group]}, layer by layer", anchor=False)
    st.markdown(plain(f"{words.takeaway(wanted, result)} {words.levels(wanted, result)}"))
    st.caption(plain(words.surprise(wanted, result)))
    view, range_ = views(result)
    drawn = picture.compose(wanted, result, view, range_)
    before = layers.chosen(shape)
    clicked = picture.show(drawn, key="matrix", selection="cell", chosen=before)
    layers.take_click(clicked, shape)
    st.caption(picture.legend(drawn, wanted.null_draws))
    for notice in result.notices:
        st.caption(plain(notice))
    _files(wanted, result, drawn)
    st.subheader("One pair of layers", anchor=False)
    st.markdown("Click a cell of the first panel, or choose two layers, to see which vectors match and what they say.")
    cell = layers.choose(shape)
    publish(wanted)
    if cell != before:
        st.rerun()
    if cell is not None:
        layers.show(wanted, cell)
    _about(wanted, result)


def views(result: ParameterAlignmentResult | RepresentationSimilarityResult, page: str = PAGE) -> tuple[str, str]:
    """Show how the matrices may be looked at and return the chosen view and the range of its colours."""
    view_key, range_key = (links.key(page, name) for name in ("view", "range"))
    shown = {name: label for name, label in picture.VIEWS.items() if name != "z" or result.z is not None}
    if st.session_state.get(view_key) not in shown:
        st.session_state[view_key] = DEFAULTS["view"]
    st.session_state.setdefault(range_key, DEFAULTS["range"])
    with st.container(horizontal=True, gap="large"):
        view = st.segmented_control(
            "Show",
            list(shown),
            required=True,
            format_func=lambda name: shown[name],
            key=view_key,
            persist_state="session",
            help="Double-centred takes out what is common to a row or a column, so that a diagonal shows beside "
            "bright rows; z counts standard deviations from the null.",
        )
        range_: str | None = "fitted"
        if view == "raw":
            range_ = st.segmented_control(
                "Colour scale",
                list(picture.RANGES),
                required=True,
                format_func=lambda name: picture.RANGES[name],
                key=range_key,
                persist_state="session",
                help="From 0 to the next round limit, or over the whole range that the score can take.",
            )
    return str(view or "raw"), str(range_ or "fitted")


def _files(wanted: ParameterAlignment, result: ParameterAlignmentResult, drawn: picture.Picture) -> None:
    note = words.takeaway(wanted, result)
    stem = f"{wanted.group} {drawn.axes.rows} {drawn.axes.columns}".replace("layer of ", "")
    exports.downloads(
        result,
        stem,
        "alignment.files",
        {kind: functools.partial(picture.export, drawn, note, kind) for kind in ("png", "svg")},
    )
    with st.expander("Numbers"):
        frame = result.to_frame()
        decimals = {name: st.column_config.NumberColumn(format="%.4f") for name in frame.select_dtypes("float").columns}
        st.dataframe(frame, hide_index=True, height=320, column_config=decimals)


def _about(wanted: ParameterAlignment, result: ParameterAlignmentResult) -> None:
    st.subheader("About these numbers", anchor=False)
    left, right = st.columns(2, gap="small")
    with left.container(border=True, height="stretch"):
        st.markdown(words.score_card(wanted.score))
    with right.container(border=True, height="stretch"):
        st.markdown(words.group_card(wanted.group))
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        exports.cite()
    with st.expander("Where the numbers come from"):
        exports.provenance(result)
