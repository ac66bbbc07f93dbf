"""What changed between a model and its fine-tuned version: how much, where, and what the change says in tokens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts, grids
from embcompare.experiments.difference import ParameterDifference, ParameterDifferenceResult
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import exports, links, pair, runs, settings
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import PAGE, Look, Vector
from embcompare.ui.vocabulary_read import picked
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

SLOT = "tuned"
DEFAULTS: dict[str, Any] = {"changed": "all", "changed_layer": -1, "changed_top": 20, "changed_count": 25}
"""What an address need not say of this view."""
_FIELDS = {"changed": "group", "changed_layer": "layer", "changed_top": "top", "changed_count": "count"}
EXAMPLE = ("demo/gpt2-a", "demo/gpt2-a-sentiment")
"""A base model and its fine-tuned version that ship."""
UNRELATED = 0.7
"""Beyond this relative change in the median of all layers, two models are no base and child of it."""


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of this view."""
    return {name: links.reader(ParameterDifference, field) for name, field in _FIELDS.items()}


def show(look: Look) -> None:
    """Show what changed from model A, the base, to model B."""
    st.markdown(
        "Choose a base as model A and, as model B, what was trained on from it. Their parameters are subtracted, and "
        "what differs is read as tokens: those that gained most and those that lost most."
    )
    if look.names != EXAMPLE:
        st.button(
            f"Compare {EXAMPLE[0]} with {EXAMPLE[1]}",
            icon=":material/science:",
            key="difference.example",
            on_click=_take_example,
            help="A small GPT-2 and the same model after it learnt to tell good film reviews from bad ones.",
        )
    chosen: dict[str, Any] = {}
    names = {"group": {"all": "All", **GROUPS}}
    for column, (name, field) in zip(st.columns(4, gap="small"), _FIELDS.items(), strict=True):
        with column:
            if field == "layer":
                chosen[field] = _layer(look.infos[0].layers)
                continue
            chosen[field] = settings.single(
                ParameterDifference, field, links.key(PAGE, name), default=DEFAULTS[name], names=names.get(field)
            )
    wanted = look.of(ParameterDifference, model_a=look.names[0], model_b=look.names[1], **chosen)
    if wanted is None:
        return
    result = runs.obtained(wanted, ParameterDifferenceResult, SLOT, lambda: cost(wanted, look.infos), arriving=True)
    if result is not None:
        _show(wanted, result)


def _layer(count: int) -> int:
    key = links.key(PAGE, "changed_layer")
    options = [-1, *range(count)]
    if st.session_state.get(key) not in options:
        if key in st.session_state:
            st.warning(f"There is no layer {st.session_state[key]}; the last is {count - 1}, and all are shown.")
        st.session_state[key] = DEFAULTS["changed_layer"]
    return int(
        st.selectbox(
            "Layer",
            options,
            format_func=lambda layer: "All" if layer < 0 else str(layer),
            key=key,
            persist_state="session",
            on_change=links.forget,
        )
    )


def _take_example() -> None:
    for key, name in zip(pair.DEFAULT_PAIR, EXAMPLE, strict=True):
        st.session_state[key] = name
    links.forget()


def cost(wanted: ParameterDifference, infos: tuple[Any, Any]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import difference_cost

    return difference_cost(wanted, *infos, device=frame.device())


def sentence(result: ParameterDifferenceResult) -> str:
    """Say how many layers changed, where most, and how few directions the change has."""
    known = ~np.isnan(result.change)
    same, all_ = int(result.unchanged[known].sum()), int(known.sum())
    if not all_:
        return "Nothing could be compared."
    if same == all_:
        return "All parameters that were compared are equal, number for number."
    at = np.unravel_index(int(np.nanargmax(np.where(known, result.change, np.nan))), result.change.shape)
    most = result.change[at]
    how = f"by {most:.0%} of their norm" if np.isfinite(most) else "which were all zero in the base"
    text = (
        f"{same} of {all_} groups of parameters (a group in one layer) are equal number for number; most changed are "
        f"the {GROUPS[result.groups[at[0]]]} of layer {result.layers[at[1]]}, {how}."
    )
    if len(result.model_share) and np.isfinite(result.model_share[0]):
        text += f" One direction holds {result.model_share[0]:.0%} of the whole change."
    return text


def _show(wanted: ParameterDifference, result: ParameterDifferenceResult) -> None:
    st.markdown(plain(sentence(result)))
    finite = result.change[np.isfinite(result.change)]
    if finite.size and float(np.median(finite)) > UNRELATED:
        st.warning(
            "These two models differ in nearly all of their parameters, as separate trainings do: the difference of "
            "their coordinates says nothing of what one learnt beyond the other. Compare such a pair on the page "
            "Parameters."
        )
    for notice in result.notices:
        st.caption(plain(notice))
    _where(result)
    st.subheader("What the change is about", anchor=False)
    _about(result)
    st.subheader("Vectors that changed most", anchor=False)
    _vectors(wanted, result)
    exports.downloads(result, f"difference {wanted.model_a} {wanted.model_b}", "difference.files")
    with st.expander("The strongest directions of each layer's change"):
        _readings(result, "layer", "difference.layers")
        if wanted.common:
            st.caption(
                f"Read, and their shares counted, with {plural(wanted.common, 'common direction')} left out; "
                "the picture above counts the whole change."
            )
    with st.expander("Parameters that could not be paired"):
        _unpaired(result)
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        exports.cite()
    with st.expander("Where the numbers come from"):
        exports.provenance(result)


def _where(result: ParameterDifferenceResult) -> None:
    rows = [GROUPS[group] for group in result.groups]
    layers = [int(layer) for layer in result.layers]
    tables = (
        ("change", "Relative change", result.change, None),
        ("rank", "Share of the strongest direction", result.singular_share[..., 0], 1.0),
    )
    for column, (name, title, table, high) in zip(st.columns(2, gap="medium"), tables, strict=True):
        finite = table[np.isfinite(table)]
        largest = max(1.0, float(np.ceil(finite.max(initial=1.0))))
        # what was zero in the base has changed by more than any scale holds
        shown = np.where(result.unchanged, np.nan, np.where(np.isposinf(table), largest, table))
        scale = charts.sequential_scale(title, [shown], high=high or largest)
        with column:
            chart = grids.by_layer(shown, scale, rows, title, layers=layers)
            ends = f"{finite.min():.3f} to {finite.max():.3f}" if finite.size else "nothing defined"
            st.altair_chart(
                chart, key=f"difference.{name}", width="content", alt=f"{title} by group and layer: {ends}."
            )
            bar = charts.colour_bar(scale).properties(autosize="pad")
            limits = f"Colour scale from {scale.low:g} to {scale.high:g}."
            st.altair_chart(bar, key=f"difference.{name}.bar", width="content", alt=limits)
    st.caption(
        "Left: |W_B − W_A| / |W_A|. Right: how much of the squared change lies along one direction; near 1, all "
        "vectors of the layer moved the same way. Grey: nothing changed."
    )


def _about(result: ParameterDifferenceResult) -> None:
    _readings(result, "classifier", "difference.classifier")
    _readings(result, "model", "difference.model")
    st.caption(
        "Rows of the classifier are read as they are. A direction is a singular vector of all changes together, each "
        "layer in units of its own weights; its sign means nothing by itself, and with a classifier of two "
        "labels it is turned to speak for the second."
    )


def _readings(result: ParameterDifferenceResult, kind: str, key: str) -> None:
    at = result.rows(kind)
    if not len(at):
        if kind == "classifier":
            st.caption("Neither model has a classification head to read.")
        return
    if kind == "classifier":
        names = [f"classifier: {result.labels[int(i)]}" for i in result.index[at]]
    elif kind == "model":
        names = [f"direction {int(i) + 1} of the whole change" for i in result.index[at]]
    else:
        names = [
            f"{GROUPS[result.groups[int(g)]]}, layer {int(layer)}, direction {int(i) + 1}"
            for g, layer, i in zip(result.group[at], result.layer[at], result.index[at], strict=True)
        ]
    ends = ("top", "bottom") if kind == "classifier" else ("gained", "lost")
    # two rows a reading, so that both ends are seen at once
    table = pd.DataFrame(
        {
            "what": [name for name in names for _ in ends],
            "share": np.repeat(result.share[at], 2),
            "z": np.repeat(result.z[at], 2),
            "end": list(ends) * len(at),
            "tokens": [list(row[place]) for place in at for row in (result.top_tokens, result.bottom_tokens)],
        }
    )
    number, text, listed = st.column_config.NumberColumn, st.column_config.TextColumn, st.column_config.ListColumn
    st.dataframe(
        table.drop(columns=["share"] if kind == "classifier" else []),
        hide_index=True,
        row_height=32,
        height="content" if len(table) <= 12 else 420,
        key=key,
        column_config={
            "what": text("", width="medium", pinned=True),
            "share": number("share", format="percent", width="small", help="Of the squared change."),
            "z": number("z", format="%+.1f", width="small", help="Of the more extreme end; negative: the lower one."),
            "end": text("", width=70, pinned=True),
            "tokens": listed("tokens", width=frame.lists_width(table["tokens"])),
        },
        alt=f"{plural(len(at), 'reading')} with the tokens at both ends.",
    )


def _vectors(wanted: ParameterDifference, result: ParameterDifferenceResult) -> None:
    at = result.rows("vector")
    if not len(at):
        st.caption("No vector changed." if result.unchanged.all() else "No vectors were asked for.")
        return
    groups = [result.groups[int(g)] for g in result.group[at]]
    columns = {
        "what": [frame.ONE[group] for group in groups],
        "index": result.index[at],
        "layer": result.layer[at],
        "carries": result.carries[at],
        "along": result.along[at],
        "z": result.z[at],
        "top": [list(row) for row in result.top_tokens[at]],
        "bottom": [list(row) for row in result.bottom_tokens[at]],
        "size": result.size[at],
    }
    found = [
        Vector("b", group, int(layer), int(index))
        for group, layer, index in zip(groups, result.layer[at], result.index[at], strict=True)
    ]
    number, text, listed = st.column_config.NumberColumn, st.column_config.TextColumn, st.column_config.ListColumn
    key = frame.table_key("difference.vectors", wanted)
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=380,
        row_height=32,
        key=key,
        on_select=functools.partial(picked, "difference.vectors", key, found),
        selection_mode="single-row",
        column_config={
            "what": text("vector", width=110, pinned=True),
            "index": number("", width=50, pinned=True),
            "layer": number("layer", width=50, pinned=True),
            "carries": number(
                "carries", format="percent", width="small", help="Of the change along the strongest directions of all."
            ),
            "along": number("along", format="%+.2f", width="small", help="Cosine with the strongest direction of all."),
            "z": number("z", format="%+.1f", width="small"),
            "top": listed("gained", width=frame.lists_width(columns["top"])),
            "bottom": listed("lost", width=frame.lists_width(columns["bottom"])),
            "size": number("size", format="%.3f", width="small", help="Norm of the vector's change."),
        },
        alt=f"{plural(len(at), 'vector')} whose change carries most, with the tokens that gained and lost most.",
    )
    st.caption(
        "Ranked by how much of the change along the whole model's strongest directions each vector carries; along: the "
        "cosine of its change with the first of them. z: how far its more extreme end lies from the mean of all "
        "tokens, in standard deviations, negative where that is what it lost. Choose a row to see the vector of B "
        "beside its nearest in A."
    )


def _unpaired(result: ParameterDifferenceResult) -> None:
    st.markdown(f"{plural(len(result.parameters), 'parameter is', 'parameters are')} in both models in one shape.")
    for label, names in (
        ("Only in A", result.only_a),
        ("Only in B", result.only_b),
        ("In another shape", result.other_shape),
    ):
        st.markdown(f"**{label}:** {plain(', '.join(names)) if names else 'none'}")
    if len(result.moved):
        tokens = ", ".join(str(token) for token in result.moved_tokens)
        st.markdown(f"**Input embeddings that moved farthest:** {plain(tokens)}")
    else:
        st.markdown("The input embeddings are the same.")
