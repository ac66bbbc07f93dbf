"""Exact linear decompositions: a hidden state as a sum of terms, their indicators, what the head reads in them.

``decompose`` splits every hidden state by the part of the model that a term comes from, ``contributions`` does so part
by part, ``decompose_tokens`` and ``decompose_source_target`` split by where in the input it comes from. ``collect`` and
``measure`` run over a corpus, ``Readout`` reads terms through the model's head, and ``series`` asks whether indicators
follow performance over checkpoints and runs. Every result carries its residual against the model's own state.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "additive": ("Conventions", "decompose"),
    "collecting": ("Collected", "Measured", "collect", "measure"),
    "parts": ("Contribution", "contributions"),
    "indicator": ("INDICATORS", "Summary", "indicators", "summarise"),
    "reading": ("Ablation", "Readout", "decoder_inputs", "next_tokens"),
    "series": (
        *("Correlation", "VarianceComponents", "common_language", "dtw", "same_text_correlation"),
        *("spearman_of_differences", "standardised", "text_correlation", "variance_components"),
    ),
    "terms": ("LayerTerms", "Term", "without"),
    "tokenwise": ("LinearConventions", "decompose_source_target", "decompose_tokens"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: torch comes with most of it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
