"""Sentences about representation similarity, computed from the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.depth import DepthAgreement, closest_at_equal_depth
from embcompare.ui.page import plain
from embcompare.ui.picture import BEYOND
from embcompare.ui.words import counted, probability

if TYPE_CHECKING:
    from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult
    from embcompare.measures import Indicator, Measure

ROWS = {
    "mean": "sentences (the mean of their tokens)",
    "last": "sentences (their last token)",
    "cls": "sentences (their classification token)",
    "token": "tokens",
    "word": "words (the mean of their tokens)",
}


def agreement_of(result: RepresentationSimilarityResult) -> DepthAgreement:
    """Return the depth agreement that the result carries."""
    return DepthAgreement(result.assignment, result.depth_rate, result.depth_chance, result.depth_p)


def takeaway(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say in two sentences how closeness follows depth, and how many cells leave their null."""
    own, measure = agreement_of(result), settings.declaration
    what = f"{capital(measure.label)} in {settings.space} space on {result.rows:,} {ROWS[settings.pooling]}"
    if not len(own.pairs):
        return f"{what}: no pair of layers has a value."
    total = len(own.pairs)
    chance = f"{own.chance * total:.1f}".removesuffix(".0")
    tested = f", {probability(own.p_value)}" if np.isfinite(own.p_value) else ""
    closer = result.values if result.higher_is_closer else -result.values
    rowwise, rows = closest_at_equal_depth(closer)
    text = (
        f"{what}: the assignment that is closest in total joins {counted(own)} layers at equal depth (chance: {chance}"
        f"{tested}); layer by layer, the closest layer of B lies at equal depth for {rowwise} of {rows} layers of A."
    )
    z = result.z
    if z is None or np.isnan(z).all():
        return text
    defined = np.isfinite(result.values)
    beyond = int((z[defined] >= BEYOND).sum())
    return (
        f"{text} {beyond} of {int(defined.sum())} cells lie at least {BEYOND:g} standard deviations beyond their null."
    )


def levels(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say in one sentence how close the layers are, and how close the same rows wrongly paired come."""
    parts = []
    for where, matrix in (("between the models", result.values), ("with the rows wrongly paired", result.null_mean)):
        if matrix is not None and not np.isnan(matrix).all():
            low, high = (f"{end(matrix):z.2f}" for end in (np.nanmin, np.nanmax))
            parts.append(f"{low} {where}" if low == high else f"{low} to {high} {where}")
    if not parts:
        return ""
    direction = "higher is closer" if result.higher_is_closer else "lower is closer"
    return f"{capital(settings.declaration.label)} ({direction}): {', '.join(parts)}."


def surprise(settings: RepresentationSimilarity) -> str:
    """Say in one sentence what would be surprising to see."""
    if settings.space == "embedding":
        return (
            "Neighbouring layers of one model are alike, for each only adds to the one before, so a broad band along "
            "the diagonal is no surprise; a cell that does not leave its null would be one, for both models read the "
            "same text through the same vocabulary."
        )
    return (
        "Neighbouring layers of one model are alike, for each only adds to the one before, so a broad band along the "
        "diagonal is no surprise; a single sharp line would be one, and so would a cell that does not leave its null: "
        "two models of one language that have read the same sentences agree on much."
    )


def interval_note(result: RepresentationSimilarityResult) -> str:
    """Say how wide the 95 % intervals are."""
    if result.spread is None or np.isnan(result.spread).all():
        return ""
    half = 1.96 * result.spread
    return (
        f"95 % intervals over sentences are ± {np.nanmin(half):.3f} to ± {np.nanmax(half):.3f} wide, by cell; they are "
        "in the tooltips and the table."
    )


def measure_card(measure: Measure) -> str:
    """Return the card of a measure in Markdown: formula, meaning, range, what it sees and does not see, source."""
    direction = "higher is closer" if measure.higher_is_closer else "lower is closer"
    low, high = (_bound(value) for value in (measure.low, measure.high))
    blind = "; ".join(sorted(change.value for change in measure.invariances)) or "nothing"
    sees = "; ".join(sorted(change.value for change in measure.non_invariances)) or "nothing"
    return (
        f"**{plain(measure.label)}**\n\n{plain(measure.formula)}\n\n{plain(measure.meaning)}\n\n"
        f"Range: {low} to {high}; {direction}.  \nDoes not see: {plain(blind)}.  \nSees: {plain(sees)}.  \n"
        f"Needs: {plain(measure.needs)}.  \nCost: {plain(measure.cost)}.  \nSource: {plain(measure.source)}."
    )


def indicator_card(indicator: Indicator) -> str:
    """Return one line of Markdown on an indicator of a layer's geometry."""
    said = f"{indicator.meaning} {indicator.formula} ({indicator.source})"
    return f"**{plain(indicator.label)}**: {plain(said)}"


def _bound(value: float) -> str:
    if np.isinf(value):
        return "no bound" if value > 0 else "no lower bound"
    return "π/2" if abs(value - np.pi / 2) < 1e-9 else f"{value:g}"


def capital(text: str) -> str:
    """Return a text with its first letter large."""
    return text[:1].upper() + text[1:]
