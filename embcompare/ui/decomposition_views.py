"""The page Decomposition put together: its views, and what an address says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_layers as layers
from embcompare.ui import decomposition_sentence as sentence
from embcompare.ui import decomposition_series as series
from embcompare.ui import links, settings, warm

DEFAULTS: dict[str, Any] = {**frame.DEFAULTS, **sentence.DEFAULTS, **layers.DEFAULTS, **series.DEFAULTS}
"""What an address need not say."""


def readers() -> dict[str, Callable[[str], Any]]:
    """Return the readers of what an address says."""
    return {**frame.readers(), **sentence.readers(), **layers.readers(), **series.readers()}


def show() -> None:
    """Show the page below its lead."""
    warm.ready()
    links.arrive(frame.PAGE, readers(), DEFAULTS)
    tab = settings.tab(frame.PAGE, frame.TABS, frame.DEFAULTS["tab"])
    publish()
    if tab == "series":
        series.show()
    else:
        look = frame.look()
        if look is not None:
            {"sentence": sentence, "layers": layers}[tab].show(look)
    publish()


def publish() -> None:
    """Make the address say what is looked at."""
    values = {name: st.session_state.get(links.key(frame.PAGE, name), default) for name, default in DEFAULTS.items()}
    values |= {name: "" for name, first in series.firsts().items() if values[name] == first}
    links.publish(frame.PAGE, values, DEFAULTS)
