"""The settings that both experiments on terms share: what is split, how finely, and by which conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from embcompare.experiments.base import option

if TYPE_CHECKING:
    from embcompare.decomposition import Conventions

SPLITS: dict[str, tuple[str, ...]] = {"none": (), "layer": ("layer",), "head": ("layer", "head")}
"""How terms are split: not at all, by the block that added them, or by the block and attention's heads."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "by": {
        "default": "none",
        "label": "Split",
        "choices": tuple(SPLITS),
        "help": "Attention and feed-forward terms whole, block by block, or block by block and head by head.",
    },
    "mean": {
        "default": "correction",
        "label": "Mean of a norm",
        "choices": ("correction", "own"),
        "help": "What a LayerNorm subtracts leaves the correction, as in the paper, or each term loses its own mean.",
    },
    "attention_bias": {
        "default": "correction",
        "label": "Bias of attention",
        "choices": ("correction", "attention"),
        "help": "Value and output biases go to the correction, as in the paper, or stay with attention.",
    },
    "norm_bias": {
        "default": "attention",
        "label": "Bias of the norm before attention",
        "choices": ("attention", "correction"),
        "help": "What comes of it through values stays with attention or goes to the correction; pre-norm models only.",
    },
}


class SplitSettings(Protocol):
    """The settings that say how states are split."""

    @property
    def by(self) -> str:
        """One of :data:`SPLITS`."""

    @property
    def mean(self) -> str:
        """Who loses what a LayerNorm subtracts: ``"correction"`` or ``"own"``."""

    @property
    def attention_bias(self) -> str:
        """Who receives attention's biases: ``"correction"`` or ``"attention"``."""

    @property
    def norm_bias(self) -> str:
        """Who receives what comes of the bias of the norm before attention: ``"attention"`` or ``"correction"``."""


def split_option(name: str) -> Any:
    """Declare one of the shared settings, by its name."""
    return option(**_OPTIONS[name])


def conventions(settings: SplitSettings) -> Conventions:
    """Return the conventions that the settings name."""
    from embcompare.decomposition import Conventions

    return Conventions(settings.mean, settings.attention_bias, settings.norm_bias)  # type: ignore[arg-type]
