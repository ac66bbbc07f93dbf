"""Decomposition: what a hidden state is the sum of, and whether it tells how good a model is."""

from __future__ import annotations

from embcompare import ui
from embcompare.ui import decomposition_views
from embcompare.ui.page import DECOMPOSITION

ui.begin(
    "Decomposition",
    "Hidden states as exact sums of what the embedding, attention and feed-forward layers put into them: one text in "
    "two models side by side, every layer over a corpus, and whole trainings, held against performance.",
    DECOMPOSITION,
)
with ui.guard():
    decomposition_views.show()
