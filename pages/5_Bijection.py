"""Bijection: whether two models' representations are the same up to an invertible map."""

from __future__ import annotations

from embcompare import ui
from embcompare.ui import bijection
from embcompare.ui.page import BIJECTION

ui.begin(
    "Bijection",
    "Are two models' representations the same up to an invertible map? First a linear map between every two layers, "
    "then one pair of layers in full: a rotation, linear maps, an invertible network, and a perceptron that owes "
    "nothing to invertibility, all judged on texts that none of them saw.",
    BIJECTION,
)
with ui.guard():
    bijection.show()
