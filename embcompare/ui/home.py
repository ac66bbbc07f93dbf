"""Home: the pair, a first picture of it, what each model is, and what can be compared."""

from __future__ import annotations

import streamlit as st

from embcompare.experiments.parameters import ParameterAlignment
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import alignment, links, pair, picture, words
from embcompare.ui.page import PARAMETERS, plain

PAGE = "home"
FIRST_GROUP = "ff_values"


def show() -> None:
    """Show the page below its lead."""
    links.arrive(PAGE, dict.fromkeys(pair.DEFAULT_PAIR, pair.read), pair.DEFAULT_PAIR)
    names = pair.choose()
    links.publish(PAGE, dict(zip(pair.DEFAULT_PAIR, names, strict=True)), pair.DEFAULT_PAIR)
    infos = pair.informed(names)
    if infos is None:
        return
    _first_picture(ParameterAlignment(*names, group=FIRST_GROUP), infos)
    st.subheader("The two models", anchor=False)
    for column, side, info in zip(st.columns(2, gap="small"), "AB", infos, strict=True):
        with column:
            pair.card(side, info)
    st.subheader("What can be compared", anchor=False)
    pair.show_checks(pair.checks(names, infos))


def _first_picture(wanted: ParameterAlignment, infos: tuple) -> None:
    st.subheader(f"A first picture: {GROUPS[wanted.group]}", anchor=False)
    arrivals = st.session_state.setdefault("home.arrivals", set())
    arriving = wanted.models() not in arrivals
    arrivals.add(wanted.models())
    result = alignment.obtained(wanted, infos, arriving=arriving)
    if result is None:
        return
    st.markdown(plain(f"{words.takeaway(wanted, result)} {words.levels(wanted, result)}"))
    # what bright rows and columns have in common would hide the diagonal at first sight
    st.session_state.setdefault("view", "centred")
    seen = dict(zip(("view", "range"), alignment.views(result), strict=True))
    drawn = picture.compose(wanted, result, seen["view"], seen["range"])
    picture.show(drawn, key="first")
    st.caption(picture.legend(drawn, wanted.null_draws))
    st.markdown(plain(words.surprise(wanted, result)))
    st.page_link(
        PARAMETERS,
        label="Look closer at this pair",
        icon=":material/arrow_forward:",
        # the whole state, so that the page needs not rewrite its address and Back leads here
        query_params={
            **{name: getattr(wanted, name) for name in ("model_a", "model_b", "group")},
            **{name: value for name, value in seen.items() if value != alignment.DEFAULTS[name]},
        },
    )
