"""The settings that the experiments on terms share: what is split, how finely, and by which conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from embcompare.experiments.base import option

if TYPE_CHECKING:
    from embcompare.decomposition import Conventions

SPLITS: dict[str, tuple[str, ...]] = {"none": (), "layer": ("layer",), "head": ("layer", "head")}
"""How terms are split: not at all, by the block that added them, or by the block and attention's heads."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "split": {
        "default": "additive",
        "label": "Terms",
        "choices": ("additive", "source-target"),
        "help": "By the part of the model that adds a term, or, for encoder-decoders, by the text that it comes from.",
    },
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
    "token_mean": {
        "default": "own",
        "label": "Mean of a norm, by tokens",
        "choices": ("own", "correction"),
        "help": "Split by input tokens, each part loses its own mean at a LayerNorm, or the correction the whole one.",
    },
    "gate": {
        "default": "tangent",
        "label": "Gated feed-forward, by tokens",
        "choices": ("tangent", "held"),
        "help": "By the tangent of the product, or with the gate held as attention is.",
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


def split_option(name: str, *, added: bool = False) -> Any:
    """Declare one of the shared settings, by its name; ``added`` as for :func:`~embcompare.experiments.base.option`."""
    return option(**_OPTIONS[name], added=added)


def conventions(settings: SplitSettings) -> Conventions:
    """Return the conventions that the settings name."""
    from embcompare.decomposition import Conventions

    return Conventions(settings.mean, settings.attention_bias, settings.norm_bias)  # type: ignore[arg-type]
