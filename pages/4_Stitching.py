"""Stitching: one model's lower half under the other's upper half, with nothing trained."""

from __future__ import annotations

import streamlit as st

from embcompare import ui
from embcompare.ui import stitching
from embcompare.ui.page import STITCHING

ui.begin(
    "Stitching",
    "One model's first blocks under the other's last blocks, joined by a map between their coordinates: does the upper "
    "half read what the lower half wrote? Every cut, several maps, and controls that carry no meaning.",
    STITCHING,
)
with ui.guard():
    asked = stitching.form()
    if asked is not None:
        arriving = not st.session_state.get("stitching.arrived", False)
        st.session_state["stitching.arrived"] = True
        stitching.body(*asked, arriving=arriving)
