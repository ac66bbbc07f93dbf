"""Vocabulary: what two models' parameters say in tokens, and what fine-tuning changed."""

from __future__ import annotations

from embcompare import ui
from embcompare.ui import vocabulary_views
from embcompare.ui.page import VOCABULARY

ui.begin(
    "Vocabulary",
    "What two models' neurons and heads say, read as tokens side by side; which of them score one token highest; "
    "what training changed between a model and its fine-tuned version; and whether parameters agree with their "
    "partners and with the states they act on.",
    VOCABULARY,
)
with ui.guard():
    vocabulary_views.show()
