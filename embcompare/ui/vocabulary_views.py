"""The page Vocabulary put together: its views, what an address says of each, and the vector that is looked at."""

from __future__ import annotations

from typing import Any

from embcompare.experiments.reading import TokenReading
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


def readers() -> dict[str, Any]:
    """Return the readers of what an address says."""
    found: dict[str, Any] = {
        "model_a": pair.read,
        "model_b": pair.read,
        "tab": links.choice(*frame.TABS),
        "vector": frame.read_vector,
        **{name: links.reader(TokenReading, name) for name in frame.READING},
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
    VIEWS[tab].show(look)
    frame.publish(DEFAULTS)
    looked = frame.chosen_vector()
    heads_only = tab == "heads" and looked is not None and looked.group not in INTERACTIONS
    if tab != "agreement" and not heads_only:
        vector.show(look)
