"""Representations: do two models' hidden states say the same things, layer by layer."""

from __future__ import annotations

import streamlit as st

from embcompare import ui
from embcompare.ui import similarity
from embcompare.ui.page import REPRESENTATIONS

ui.begin(
    "Representations",
    "Every layer's hidden states of one model are compared with every layer's of the other on the same text, by the "
    "measure you choose, with wrongly paired rows beside them for contrast. Your own vectors can take a model's place.",
    REPRESENTATIONS,
)
with ui.guard():
    asked = similarity.form()
    if asked is not None:
        arriving = not st.session_state.get("representations.arrived", False)
        st.session_state["representations.arrived"] = True
        similarity.body(*asked, arriving=arriving)
