"""Results: the runs that are kept on this machine."""

from __future__ import annotations

from embcompare import ui
from embcompare.ui import results
from embcompare.ui.page import RESULTS

ui.begin(
    "Results",
    "Every finished run is kept on this machine, so that nothing is computed twice.",
    RESULTS,
)
with ui.guard():
    results.show()
