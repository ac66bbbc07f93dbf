"""A fitted pair of layers on the page Bijection: verdict, what each map reaches, one map row by row, files."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_form as forms
from embcompare.ui import bijection_picture as pictures
from embcompare.ui import bijection_table as tables
from embcompare.ui import bijection_words as say
from embcompare.ui import exports, links, pair, words
from embcompare.ui.bijection_form import PAGE
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.bijection_result import BijectionResult


def show(wanted: Bijection, result: BijectionResult, told: tuple[str, ...] = ()) -> None:
    """Show a result: the verdict, what each map reaches, the table, one map row by row; not notices ``told``."""
    st.markdown(f"**{plain(say.pair_named(result, wanted))}.** {plain(say.fit_verdict(result))}")
    notices = [notice for notice in result.notices if notice not in told]
    if notices:
        st.caption(plain(" ".join(notices)))
    left, right = st.columns([11, 10], gap="large")
    with left:
        name = _reached(result)
        _answers(result)
    with right:
        if len(result.gaps):
            st.markdown("**What each richer kind of map adds**")
            chart = pictures.gaps(result, wanted.margin)
            st.altair_chart(chart, key="bijection.gaps", alt=_described_gaps(result))
            st.caption(
                f"Bars: 95 % interval over {plural(result.texts_in[2], 'test text')}. Dashed: the margin of "
                f"{wanted.margin:g} from which a step counts; solid: nothing added."
            )
        curves = result.curve_frame()
        if len(curves):
            st.markdown("**How the networks learned**")
            drawn = pictures.learning(curves, pictures.kept_epochs(result))
            st.altair_chart(drawn, key="bijection.learning", alt=described_curves(result))
            st.caption("Solid: validation rows; dashed: training rows; dot: the epoch whose weights were kept.")
    _numbers(result)
    _files(wanted, result)
    _rows(result, name)


def described_curves(result: BijectionResult) -> str:
    """Describe learning curves for those who cannot see them."""
    parts = []
    for at, name in enumerate(result.maps):
        held = result.curves[at, :, :, 1]
        if np.isfinite(held).any():
            epochs = int(np.isfinite(held).any(0).sum()) - 1
            parts.append(
                f"{MAPS[name].label}, {plural(epochs, 'epoch', 'epochs')}, validation loss from {held[0][0]:.3f} to at "
                f"best {np.nanmin(held):.3f}"
            )
    return f"Learning curves: {'; '.join(parts)}."


def _described_gaps(result: BijectionResult) -> str:
    called = say.gap_labels(result)
    parts = []
    for first, second in pictures.STEPS:
        value, low, high = result.gap(first, second)
        parts.append(f"{called[first]} to {called[second]} {value:+.3f} ({low:+.3f} to {high:+.3f})")
    return f"R² added by each step: {'; '.join(parts)}."


def _reached(result: BijectionResult) -> str:
    """Draw what each map reaches, and return the one that is looked at: by a click on its dot, or from a list."""
    name = forms.looked_at(_fitted(result), "map")
    st.markdown("**What each map predicts**")
    event = st.altair_chart(
        pictures.reached(result, name, "dot"),
        # with each other map a picture without a chosen dot
        key=f"bijection.reached.{name}",
        on_select="rerun",
        alt=say.described_fit(result),
    )
    clicked = event["selection"].get("dot")
    now = str(clicked[0].get("map", "")) if clicked else ""
    if now in _fitted(result) and now != name:
        st.session_state[links.key(PAGE, "map")] = now
        forms.publish()
        st.rerun()
    interval = " Thick: 95 % interval over runs." if len(result.seeds) > 1 else ""
    st.caption(f"Filled: test rows; hollow: training rows.{interval} Click a dot to look at its map row by row.")
    return name


def _answers(result: BijectionResult) -> None:
    if result.answers is None or result.answers_own is None or result.answers_base is None:
        return
    at = result.answer_scores.index("loss")
    means = [f"{MAPS[name].label} {say.said(say.answer(result, name, 'loss'), 2)}" for name in result.maps]
    st.markdown("**What B predicts from mapped states**")
    st.altair_chart(
        pictures.answers(result),
        key="bijection.answers",
        alt=f"Loss of B's predictions by map: {', '.join(means)}; with its own states {result.answers_own[at]:.2f}, by "
        f"token frequencies {result.answers_base[at]:.2f}.",
    )
    st.caption(plain(say.answers_note(result)))


def _fitted(result: BijectionResult) -> tuple[str, ...]:
    known = np.isfinite(result.text_errors).any(1)
    return tuple(name for name, there in zip(result.maps, known, strict=True) if there)


def _numbers(result: BijectionResult) -> None:
    tables.maps(say.table(result), key="bijection.table")
    missing = {reason: name for name, part, _, reason in result.reasons if not part}
    for reason, name in missing.items():
        st.caption(plain(f"‘{MAPS[name].label}’ has no values: {reason}"))
    others = [each for each in result.reasons if each[1]]
    if others:
        with st.expander(f"Why {plural(len(others), 'number')} of the table are empty"):
            why: dict[str, list[str]] = {}
            for name, part, metric, reason in others:
                why.setdefault(reason, []).append(f"{MAPS[name].label}, {metric} on {part} rows")
            for reason, where in why.items():
                st.markdown(f"- {plain(reason)} ({plain('; '.join(where))})")


def _files(wanted: Bijection, result: BijectionResult) -> None:
    names = (pair.label_of(wanted.model_a), pair.label_of(wanted.model_b))
    heading = f"{names[0]}, layer {wanted.layer_a}, to {names[1]}, layer {wanted.layer_b}"
    kinds = {
        kind: functools.partial(pictures.export_fit, result, wanted.margin, heading, say.fit_verdict(result), kind)
        for kind in ("png", "svg")
    }
    exports.downloads(
        result, f"bijection {' '.join(names)} {wanted.layer_a} {wanted.layer_b}", "bijection.files", kinds
    )


def _rows(result: BijectionResult, name: str) -> None:
    """Show one map row by row: mapped against target along a direction, and the texts that fare worst."""
    st.subheader("One map, row by row", anchor=False)
    map_, direction_ = links.key(PAGE, "map"), links.key(PAGE, "direction")
    st.session_state[map_] = name
    count = result.sample_target.shape[1]
    if int(st.session_state.setdefault(direction_, 1)) > count:
        st.session_state[direction_] = 1
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        shared: dict[str, Any] = {"persist_state": "session", "on_change": links.forget}
        st.selectbox("Map", _fitted(result), format_func=say.plainly, key=map_, width=220, **shared)
        direction = int(
            st.selectbox(
                "Principal direction of B",
                list(range(1, count + 1)),
                format_func=lambda k: f"{k} · {100 * result.sample_shares[k - 1]:.1f} % of the variance",
                key=direction_,
                width=240,
                help="Directions in which B's training rows vary most, the strongest first.",
                **shared,
            )
            or 1
        )
    left, right = st.columns([10, 11], gap="large")
    with left:
        chart = pictures.scatter(result, name, direction - 1)
        shown = plural(len(result.sample_texts), "test row")
        alt = f"Scatter of {shown}: mapped by {MAPS[name].label} against B's own, along direction {direction}."
        st.altair_chart(chart, key="bijection.scatter", alt=alt)
        once = ", in the first run" if len(result.seeds) > 1 else ""
        st.caption(f"{shown}{once}; on the dashed line mapped and own are equal. Hover for the text.")
    with right:
        _texts(result, name)


def _texts(result: BijectionResult, name: str) -> None:
    frame = result.text_frame(name)
    beside = result.linear if result.linear and result.linear != name else ""
    if beside:
        other = dict(zip(result.text_numbers.tolist(), result.text_errors[result.at(beside)].tolist(), strict=True))
        frame.insert(2, "beside", frame["number"].map(other))
    number = st.column_config.NumberColumn
    st.markdown("**Texts that fare worst**")
    st.dataframe(
        frame,
        hide_index=True,
        height=pictures.SIDE - 20,
        key=f"bijection.texts.{name}",
        column_config={
            "text": st.column_config.TextColumn("text", width=300),
            "mse": number("MSE", format="%.3f", width=70, help="Over its rows, all features and runs."),
            "beside": number(MAPS[beside].label if beside else "", format="%.3f", width=100, help="The same, by it."),
            "rows": number("rows", width=60),
            "number": number("number", width=70, help="Which text of the corpus it is, counted from 0."),
        },
        alt=f"{plural(len(frame), 'test text')} with the error of {MAPS[name].label}, the worst first.",
    )
    st.caption("Worst first; click a heading to sort.")
    st.download_button(
        "Texts as CSV",
        lambda: frame.rename(columns={"beside": f"mse_{beside}"}).to_csv(index=False).encode(),
        f"bijection-{name}-texts.csv",
        "text/csv",
        key="bijection.texts.csv",
        on_click="ignore",
        icon=":material/download:",
    )


def about(wanted: Bijection, result: BijectionResult) -> None:
    """Show the protocol, what the maps are, every number, the call, how to cite, and where the numbers come from."""
    st.subheader("About these numbers", anchor=False)
    st.markdown(plain(say.protocol(wanted, result)))
    st.caption(say.PUBLISHED)
    with st.expander("What the maps are"):
        for name in result.maps:
            st.markdown(say.map_card(name, result.width_a, result.width_b))
    with st.expander("Every run and part in numbers"):
        frame = result.to_frame()
        decimals = {each: st.column_config.NumberColumn(format="%.4f") for each in frame.select_dtypes("float").columns}
        st.dataframe(frame, hide_index=True, height=320, column_config=decimals, key="bijection.numbers")
        st.download_button(
            "Learning curves as CSV",
            lambda: result.curve_frame().to_csv(index=False).encode(),
            "bijection-learning-curves.csv",
            "text/csv",
            key="bijection.curves.csv",
            on_click="ignore",
            icon=":material/download:",
        )
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        st.markdown(
            "The bijection hypothesis, and invertible networks between the representations of two models: Ren et al. "
            "(2023), *All Roads Lead to Rome? Exploring the Invariance of Transformers' Representations*. The network, "
            "its linear start, the protocol and the verdict are embcompare's own."
        )
        st.code(words.CITATION_BIJECTION, language="bibtex", wrap_lines=True)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)
