"""The page Vocabulary put together: its views, what an address says of each, and the vector that is looked at."""

from __future__ import annotations

from typing import Any

import streamlit as st

from embcompare.experiments.vectors import INTERACTIONS
from embcompare.ui import links, pair, settings
from embcompare.ui import vocabulary as frame
from embcompare.ui import vocabulary_agreement as agreement
from embcompare.ui import vocabulary_difference as difference
from embcompare.ui import vocabulary_heads as heads
from embcompare.ui import vocabulary_read as read
from embcompare.ui import vocabulary_search as search
from embcompare.ui import vocabulary_vector as vector

VIEWS = {"read": read, "search": search, "heads": heads, "difference": difference, "agreement": agreement}
DEFAULTS: dict[str, Any] = {**frame.DEFAULTS}
for _view in VIEWS.values():
    DEFAULTS.update(_view.DEFAULTS)

# What is put above a table must push it down: a browser would keep the table in its place and scroll past what is new.
_STYLE = '<style>[data-testid="stMain"] { overflow-anchor: none; }</style>'


def readers() -> dict[str, Any]:
    """Return the readers of what an address says."""
    found: dict[str, Any] = {
        "model_a": pair.read,
        "model_b": pair.read,
        "tab": links.choice(*frame.TABS),
        "vector": frame.read_vector,
        **{name: frame.read_setting(name) for name in frame.READING},
    }
    for view in VIEWS.values():
        found.update(view.readers())
    return found


def show() -> None:
    """Show the page below its lead."""
    look = frame.form(readers(), DEFAULTS)
    if look is None:
        return
    tab = settings.tab(frame.PAGE, frame.TABS, frame.DEFAULTS["tab"])
    frame.publish(DEFAULTS)
    looked = frame.chosen_vector()
    heads_only = tab == "heads" and looked is not None and looked.group not in INTERACTIONS
    # above the tables it was chosen in, which may be longer than the window; the place is kept when there is none
    st.html(_STYLE)
    with st.container():
        if looked is not None and tab != "agreement" and not heads_only:
            vector.show(look)
    VIEWS[tab].show(look)
    frame.publish(DEFAULTS)
