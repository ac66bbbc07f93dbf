"""The page Bijection: a linear map between every two layers, and below it one pair of layers in full."""

from __future__ import annotations

import functools

import streamlit as st

from embcompare import charts
from embcompare.experiments.map_pairs import CLOSED, MapPairs, MapPairsResult
from embcompare.maps.catalogue import MAPS
from embcompare.ui import bijection_depths as depths
from embcompare.ui import bijection_fit as fits
from embcompare.ui import bijection_form as forms
from embcompare.ui import bijection_grid as pictures
from embcompare.ui import bijection_layers as layers
from embcompare.ui import bijection_result as about
from embcompare.ui import bijection_table as tables
from embcompare.ui import bijection_words as say
from embcompare.ui import exports, links, pair, runs
from embcompare.ui.bijection_form import PAGE, Sides
from embcompare.ui.page import plain
from embcompare.words import plural

SLOT = "map_pairs"


def show() -> None:
    """Show the page below its lead."""
    asked = forms.form()
    if asked is None:
        return
    wanted, sides = asked
    arriving = not st.session_state.get("bijection.arrived", False)
    st.session_state["bijection.arrived"] = True
    gone_to = st.session_state.pop(tables.GO, None)
    if gone_to is not None:
        layers.go_to(gone_to)
    st.markdown(say.PROMISE, help=say.GLOSSARY)
    st.subheader("A linear map between every two layers", anchor=False)
    result = _obtained(wanted, sides, arriving=arriving)
    offered = layers.numbers(wanted, sides.infos, sides.layers, result)
    if result is not None:
        _grid(wanted, result, offered)
    st.subheader("One pair of layers, every kind of map", anchor=False)
    fit, found = fits.show(wanted, sides, offered, () if result is None else result.notices)
    if fit is not None:
        depths.show(fit, sides)
        if found is not None:
            about.about(fit, found)
    forms.publish()


def _obtained(wanted: MapPairs, sides: Sides, *, arriving: bool) -> MapPairsResult | None:
    key = links.key(PAGE, "linear")
    st.multiselect(
        "Linear maps",
        list(CLOSED),
        format_func=lambda name: MAPS[name].label,
        key=key,
        persist_state="session",
        on_change=links.forget,
        width=420,
        help="What is fitted from every layer of A to every layer of B, in closed form.",
    )

    def draw(partial: MapPairsResult) -> None:
        name = forms.looked_at(partial.maps, "look")
        start = _start(layers.numbers(wanted, sides.infos, sides.layers, partial))
        st.altair_chart(
            pictures.grid(partial, name, "test", _labels(wanted), start=start),
            key="bijection.grid.partial",
            width="content",
            alt=say.described_grid(partial, name, "test", start),
        )

    return runs.obtained(
        wanted, MapPairsResult, SLOT, lambda: forms.grid_cost(wanted, sides), arriving=arriving, draw=draw
    )


def _grid(wanted: MapPairs, result: MapPairsResult, offered: layers.Numbers) -> None:
    name = forms.looked_at(result.maps, "look")
    look, shown = links.key(PAGE, "look"), links.key(PAGE, "show")
    st.session_state[look] = name
    st.session_state.setdefault(shown, forms.DEFAULTS["show"])
    st.markdown(plain(say.grid_verdict(result, name)))
    st.caption(plain(" ".join([say.ends(result), *result.notices])))
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        name = str(
            st.selectbox(
                "Map",
                result.maps,
                format_func=say.plainly,
                key=look,
                persist_state="session",
                on_change=links.forget,
                width=220,
            )
            or name
        )
        show = str(
            st.segmented_control(
                "Show",
                list(forms.SHOWN),
                required=True,
                format_func=lambda each: forms.SHOWN[each],
                key=shown,
                persist_state="session",
            )
            or "test"
        )
    names, start = _labels(wanted), _start(offered)
    before = layers.chosen(offered)
    left, right = st.columns([9, 12], gap="large")
    with left:
        with st.container(key="scrolled_bijection"):
            event = st.altair_chart(
                pictures.grid(result, name, show, names, start=start, chosen=before, selection="cell"),
                key=f"bijection.grid.{layers.turn()}",
                width="content",
                on_select="rerun",
                alt=say.described_grid(result, name, show, start),
            )
            scale = pictures.scale_of(result, show, [name])
            bar = charts.colour_bar(scale, width=pictures.SIDE).properties(autosize="pad")
            limits = f"Colour scale from {scale.low:g} to {scale.high:g}: {scale.title}."
            st.altair_chart(bar, key="bijection.bar", width="content", alt=limits)
        layers.take_click(event["selection"].get("cell"), offered)
        st.caption(plain(say.grid_legend(wanted, result, show)))
    with right:
        _along(result, names[0], start[0])
    if layers.chosen(offered) != before:
        forms.publish()
        st.rerun()
    _reasons(result)
    note = f"{say.grid_verdict(result, name)} {say.grid_legend(wanted, result, show)}"
    kinds = {
        kind: functools.partial(pictures.export_grid, result, show, names, start, note, kind) for kind in ("png", "svg")
    }
    exports.downloads(result, f"map pairs {' '.join(names)}", "bijection.grid.files", kinds)
    with st.expander("Numbers and the call of this map of layers"):
        frame = result.to_frame()
        decimals = {each: st.column_config.NumberColumn(format="%.4f") for each in frame.select_dtypes("float").columns}
        st.dataframe(frame, hide_index=True, height=320, column_config=decimals, key="bijection.grid.numbers")
        exports.again(wanted)
        exports.provenance(result)


def _along(result: MapPairsResult, a: str, start: int) -> None:
    st.markdown("**At the same depth**")
    shape = (result.test.shape[2], result.test.shape[3])
    path = say.same_depth_path(shape)
    spoken = "; ".join(
        f"{MAPS[name].label} {', '.join(say.said(float(result.mean(name)[i, j]), 2) for i, j in enumerate(path))}"
        for name in result.maps
    )
    alt = f"Lines along the layers of A, R² on test rows at the same depth of B: {spoken}."
    st.altair_chart(pictures.along(result, a, start), key="bijection.along", alt=alt)
    shaded = " Shaded: one standard deviation over splits." if result.test.shape[1] > 1 else ""
    st.caption(f"Where the lines part, a rotation of axes is not all that lies between the two models.{shaded}")


def _reasons(result: MapPairsResult) -> None:
    if not result.reasons:
        return
    why: dict[str, int] = {}
    for *_, text in result.reasons:
        why[text] = why.get(text, 0) + 1
    with st.expander(f"Why {plural(len(result.reasons), 'cell')} of these maps have no value"):
        for text, count in why.items():
            st.markdown(f"- {plain(text)} ({plural(count, 'cell')})")


def _labels(wanted: MapPairs) -> tuple[str, str]:
    return pair.label_of(wanted.model_a), pair.label_of(wanted.model_b)


def _start(offered: layers.Numbers) -> tuple[int, int]:
    return offered[0].start, offered[1].start
