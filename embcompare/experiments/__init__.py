"""One module an experiment: ``Settings`` in, ``Result`` out. Add an experiment by adding a module and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.experiments.base import Settings

EXPERIMENTS: dict[str, tuple[str, str]] = {
    "parameter-alignment": ("embcompare.experiments.parameters", "ParameterAlignment"),
    "parameter-matches": ("embcompare.experiments.matches", "ParameterMatches"),
    "representation-similarity": ("embcompare.experiments.representations", "RepresentationSimilarity"),
    "representation-pair": ("embcompare.experiments.pairs", "RepresentationPair"),
    "attention-similarity": ("embcompare.experiments.attention", "AttentionSimilarity"),
    "attention-patterns": ("embcompare.experiments.attention", "AttentionPatterns"),
    "logit-lens": ("embcompare.experiments.lens", "LogitLens"),
    "token-reading": ("embcompare.experiments.reading", "TokenReading"),
    "token-search": ("embcompare.experiments.token_search", "TokenSearch"),
    "head-reading": ("embcompare.experiments.heads", "HeadReading"),
    "nearest-vectors": ("embcompare.experiments.nearest", "NearestVectors"),
    "parameter-difference": ("embcompare.experiments.difference", "ParameterDifference"),
    "parameter-agreement": ("embcompare.experiments.agreement", "ParameterAgreement"),
    "stitching": ("embcompare.experiments.stitching", "Stitching"),
    "stitched-text": ("embcompare.experiments.stitched_text", "StitchedText"),
    "bijection": ("embcompare.experiments.bijection", "Bijection"),
    "bijection-depths": ("embcompare.experiments.bijection_depths", "BijectionDepths"),
    "map-pairs": ("embcompare.experiments.map_pairs", "MapPairs"),
    "decomposition": ("embcompare.experiments.decomposition", "Decomposition"),
    "sentence-terms": ("embcompare.experiments.term_sentence", "SentenceTerms"),
    "term-series": ("embcompare.experiments.term_series", "TermSeries"),
}
"""Name on the command line and in stored results -> module and class of its settings (imported when first used)."""


def settings_type(name: str) -> type[Settings]:
    """Return the settings class of the experiment called ``name``; an unknown name raises ``SettingsError``."""
    if name not in EXPERIMENTS:
        raise SettingsError(f"There is no experiment '{name}'; there are {', '.join(EXPERIMENTS)}.")
    module, attribute = EXPERIMENTS[name]
    found: type[Settings] = getattr(import_module(module), attribute)
    return found
