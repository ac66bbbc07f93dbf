"""Representations: do two models' hidden states, modules and heads do the same things, layer by layer."""

from __future__ import annotations

import streamlit as st

from embcompare import ui
from embcompare.ui import similarity
from embcompare.ui.page import REPRESENTATIONS

ui.begin(
    "Representations",
    "Every layer of one model is compared with every layer of the other on the same text: hidden states, what "
    "attention and feed-forward add to them, or what heads attend to, with wrong pairings beside them for contrast. "
    "Your own vectors can take a model's place.",
    REPRESENTATIONS,
)
with ui.guard():
    asked = similarity.form()
    if asked is not None:
        arriving = not st.session_state.get("representations.arrived", False)
        st.session_state["representations.arrived"] = True
        similarity.body(*asked, arriving=arriving)
