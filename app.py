"""Home: the pair of models, what can be compared, and a first picture."""

from __future__ import annotations

from embcompare import ui
from embcompare.ui import home
from embcompare.ui.page import HOME

ui.begin(
    "Compare two language models",
    "Layer by layer, whether or not they share a width, a depth or a training run: their parameters read through the "
    "vocabulary they have in common, their hidden states on a text, and what their neurons say.",
    HOME,
)
with ui.guard():
    home.show()
