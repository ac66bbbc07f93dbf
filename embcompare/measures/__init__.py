"""Measures: pure functions on arrays, each with a declaration that drives documentation, colours and tests.

``linear_cka(X, Y)`` and its siblings compare two layers' (n, p) and (n, q) hidden states of the same n samples;
``effective_rank(X)`` and its siblings describe one. ``MEASURES`` and ``GEOMETRY`` hold their declarations by name,
``layer_matrix`` compares all layers of two models, ``StreamingPair`` reads batches.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "canonical": ("cca", "canonical_correlations", "canonical_variates", "pwcca", "svcca"),
    "cka": ("linear_cka", "linear_cka_matrix", "rbf_cka"),
    "declaration": ("BadInput", "Invariance", "Measure", "UndefinedMeasure"),
    "dissimilarity": ("dissimilarities", "rsa"),
    "geometry": (
        "GEOMETRY",
        "Indicator",
        "effective_rank",
        "iso_score",
        "mean_cosine",
        "mean_norm",
        "norm_spread",
        "norms",
        "top_dimension_share",
    ),
    "matrix": ("LayerMatrix", "layer_matrix"),
    "neighbours": ("cknna", "mutual_knn", "neighbourhood_jaccard"),
    "registry": ("MEASURES", "get_measure", "why_undefined"),
    "regression": ("BothWays", "fold_numbers", "regression_r2", "regression_r2_both"),
    "shape": ("aligning_rotation", "procrustes"),
    "streaming": ("StreamingPair",),
    "tokenwise": ("tokenwise_cosine",),
}
_PUBLIC = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import embcompare.measures`` costs neither torch nor scipy."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
