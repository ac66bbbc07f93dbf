"""Compare transformer language models layer by layer, in feature space and in embedding space.

``embcompare.run(embcompare.ParameterAlignment("demo/gpt2-a", "demo/gpt2-b"))`` is the whole interface:
settings in, a frozen result with its provenance out, computed once and kept on disk.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "run": "embcompare.running",
    "load_model": "embcompare.models",
    "inspect_model": "embcompare.models",
    "ModelSpec": "embcompare.models",
    "FeatureSpace": "embcompare.spaces",
    "EmbeddingSpace": "embcompare.spaces",
    "ParameterAlignment": "embcompare.experiments.parameters",
    "ParameterMatches": "embcompare.experiments.matches",
    "RepresentationSimilarity": "embcompare.experiments.representations",
    "RepresentationPair": "embcompare.experiments.pairs",
    "AttentionSimilarity": "embcompare.experiments.attention",
    "AttentionPatterns": "embcompare.experiments.attention",
    "LogitLens": "embcompare.experiments.lens",
    "TokenReading": "embcompare.experiments.reading",
    "TokenSearch": "embcompare.experiments.token_search",
    "HeadReading": "embcompare.experiments.heads",
    "NearestVectors": "embcompare.experiments.nearest",
    "ParameterDifference": "embcompare.experiments.difference",
    "ParameterAgreement": "embcompare.experiments.agreement",
    "Stitching": "embcompare.experiments.stitching",
    "StitchedText": "embcompare.experiments.stitched_text",
    "Bijection": "embcompare.experiments.bijection",
    "BijectionDepths": "embcompare.experiments.bijection_depths",
    "MapPairs": "embcompare.experiments.map_pairs",
    "Decomposition": "embcompare.experiments.decomposition",
    "SentenceTerms": "embcompare.experiments.term_sentence",
    "TermSeries": "embcompare.experiments.term_series",
    "stitch": "embcompare.stitching",
    "LayerMap": "embcompare.layermaps",
    "fit_layer_map": "embcompare.layermaps",
    "load_layer_map": "embcompare.layermaps",
    "keep_corpus": "embcompare.shelf",
    "keep_vectors": "embcompare.shelf",
    "EmbcompareError": "embcompare.errors",
}

_MODULES = ("measures",)

__all__ = ["__version__", *_PUBLIC, *_MODULES]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import embcompare`` costs no torch."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return import_module(f"embcompare.{name}")
    raise AttributeError(f"module 'embcompare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
