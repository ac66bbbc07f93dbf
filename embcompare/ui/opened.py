"""Which page shows a stored result, and what its address must say: a line here for every experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from embcompare.entries import changed
from embcompare.entries import text as text_of
from embcompare.experiments.vectors import INTERACTIONS
from embcompare.store import Entry
from embcompare.ui import (
    alignment,
    attention,
    bijection_form,
    decomposition_series,
    decomposition_views,
    lens,
    similarity,
    stitching_form,
    vocabulary_views,
)
from embcompare.ui.page import BIJECTION, DECOMPOSITION, PARAMETERS, REPRESENTATIONS, STITCHING, VOCABULARY

NAMES: dict[str, str] = {
    "parameter-alignment": "Parameters, layer by layer",
    "parameter-matches": "Parameters, one pair of layers",
    "representation-similarity": "Representations, layer by layer",
    "representation-pair": "Representations, one pair of layers",
    "attention-similarity": "Attention, heads against heads",
    "attention-patterns": "Attention in one sentence",
    "logit-lens": "Logit lens",
    "token-reading": "Vectors read as tokens",
    "token-search": "A token searched",
    "head-reading": "A head read as token pairs",
    "nearest-vectors": "Nearest vectors",
    "parameter-difference": "What training changed",
    "parameter-agreement": "Agreement of parameters",
    "stitching": "Stitching, every pair of layers",
    "stitched-text": "A text continued by a stitched model",
    "bijection": "Maps between two layers",
    "bijection-depths": "Maps at every depth",
    "map-pairs": "Maps between all pairs of layers",
    "decomposition": "Hidden states as sums, over a text",
    "sentence-terms": "Hidden states as sums, one sentence",
    "term-series": "Hidden states as sums, over trainings",
}
"""What each experiment is called."""
WITHOUT_PAGE: tuple[str, ...] = ()
"""Experiments that are run from Python and from a shell only; their results can be exported."""


@dataclass(frozen=True)
class Opened:
    """Where a result is shown: the page, what its address says beside the settings, and settings it calls otherwise."""

    script: str
    more: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    handled: frozenset[str] = frozenset()
    """Settings that the page is told of in another way."""


def _vocabulary(tab: str, **renamed: str) -> Opened:
    return Opened(VOCABULARY, {"tab": tab}, renamed)


OPENED_ON: dict[str, Opened] = {
    "parameter-alignment": Opened(PARAMETERS),
    "parameter-matches": Opened(PARAMETERS, {}, {"null_draws": "", "seed": ""}),
    "representation-similarity": Opened(REPRESENTATIONS, {"tab": "matrix"}),
    "representation-pair": Opened(REPRESENTATIONS, {"tab": "matrix"}),
    "attention-similarity": Opened(
        REPRESENTATIONS, {"tab": "attention"}, {name: f"attention_{name}" for name in attention.OWN}
    ),
    "attention-patterns": Opened(
        REPRESENTATIONS, {"tab": "attention"}, {name: f"attention_{name}" for name in attention.SENTENCE}
    ),
    "logit-lens": Opened(REPRESENTATIONS, {"tab": "lens"}, {name: f"lens_{name}" for name in lens.OWN}),
    "token-reading": _vocabulary("read", model="model_a", layer="layer_a"),
    "token-search": _vocabulary("search", group="search_group", count="search_count", top=""),
    "head-reading": _vocabulary("heads", model="model_a", layer="head_layer_a", head="head_number_a", top="pairs"),
    "nearest-vectors": Opened(VOCABULARY, {"tab": "read"}, {"layer": "layer_a", "top": ""}, frozenset(("index",))),
    "parameter-difference": _vocabulary(
        "difference", group="changed", layer="changed_layer", top="changed_top", count="changed_count"
    ),
    "parameter-agreement": _vocabulary("agreement", k="set_k", sentences="read_sentences", null_draws="shuffles"),
    "stitching": Opened(STITCHING),
    "stitched-text": Opened(STITCHING, {}, {"text": "prompt", "kernel": "map"}),
    "bijection": Opened(BIJECTION),
    "bijection-depths": Opened(BIJECTION, {}, {"layers": "depths"}),
    "map-pairs": Opened(BIJECTION, {}, {"maps": "linear"}),
    "decomposition": Opened(DECOMPOSITION, {"tab": "layers"}),
    "sentence-terms": Opened(DECOMPOSITION, {"tab": "sentence"}),
    "term-series": Opened(DECOMPOSITION, {"tab": "series"}, decomposition_series.RENAMED),
}
"""The page that shows each experiment's results."""
_KNOWN: dict[str, Mapping[str, Any]] = {
    PARAMETERS: alignment.DEFAULTS,
    REPRESENTATIONS: similarity.DEFAULTS,
    VOCABULARY: vocabulary_views.DEFAULTS,
    STITCHING: stitching_form.DEFAULTS,
    BIJECTION: bijection_form.DEFAULTS,
    DECOMPOSITION: decomposition_views.DEFAULTS,
}


def beyond(entry: Entry) -> dict[str, Any]:
    """Return the settings of a result that its page has at their defaults only and that are others here.

    With such settings the page would show another result than the stored one.
    """
    where = OPENED_ON[entry.experiment]
    known = _KNOWN[where.script]
    return {
        name: value
        for name, value in changed(entry).items()
        if name not in where.handled and where.renamed.get(name, name) not in known
    }


def link_of(entry: Entry) -> tuple[str, dict[str, str]] | None:
    """Return the page that shows a result and what its address must say; None where no page does.

    Every setting that the page knows is named, defaults too: what an address leaves out stays as it was in the session.
    """
    if entry.experiment not in OPENED_ON or beyond(entry):
        return None
    where = OPENED_ON[entry.experiment]
    known = _KNOWN[where.script]
    named = {where.renamed.get(name, name): value for name, value in entry.settings.items()}
    said = {name: text_of(value) for name, value in named.items() if name in known}
    if entry.experiment == "nearest-vectors":
        if entry.settings["group"] in INTERACTIONS:
            said = {**said, "tab": "heads"}
        said["vector"] = "a.{group}.{layer}.{index}".format(**entry.settings)
    if entry.experiment == "stitched-text":
        said["kernels"] = stitching_form.kernels_with(str(entry.settings["kernel"]))
    return where.script, {**where.more, **said}
