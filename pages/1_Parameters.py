"""Parameters: do two models' parameters say the same things, layer by layer."""

from __future__ import annotations

import streamlit as st

from embcompare import ui
from embcompare.ui import alignment
from embcompare.ui.page import PARAMETERS

ui.begin(
    "Parameters",
    "Every layer of one model against every layer of the other: their parameters read through the vocabulary, "
    "with feature space and a permuted vocabulary beside them for contrast.",
    PARAMETERS,
)
with ui.guard():
    asked = alignment.form()
    if asked is not None:
        arriving = not st.session_state.get("parameters.arrived", False)
        st.session_state["parameters.arrived"] = True
        result = alignment.obtained(*asked, arriving=arriving)
        if result is not None:
            alignment.show(asked[0], result)
