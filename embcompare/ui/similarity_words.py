"""Sentences about representation similarity, computed from the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from embcompare.experiments.depth import DepthAgreement, closest_at_equal_depth
from embcompare.experiments.sides import VECTORS
from embcompare.ui.page import plain
from embcompare.ui.picture import BEYOND
from embcompare.ui.words import counted, probability
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult
    from embcompare.measures import Indicator, Measure


WHAT = {
    "hidden": "Hidden states",
    "attention": "What self-attention adds",
    "feed_forward": "What the feed-forward adds",
    "patterns": "Attention received, head by head",
}
"""How what is compared is called in a form."""
_OF = {
    "hidden": "",
    "attention": ", of self-attention outputs",
    "feed_forward": ", of feed-forward outputs",
    "patterns": ", of attention patterns",
}


class _Sides(Protocol):
    @property
    def model_a(self) -> str: ...
    @property
    def model_b(self) -> str: ...
    @property
    def pooling(self) -> str: ...


_WAYS = {
    "mean": ("sentence", "the mean of their tokens"),
    "last": ("sentence", "their last token"),
    "cls": ("sentence", "their classification token"),
    "token": ("token", ""),
    "word": ("word", "the mean of their tokens"),
}


def given(settings: _Sides) -> tuple[bool, bool]:
    """Return which sides are a user's own vectors."""
    return settings.model_a.startswith(VECTORS), settings.model_b.startswith(VECTORS)


def of_what(settings: RepresentationSimilarity) -> str:
    """Return what is compared, as it stands behind a measure's name; nothing for hidden states and given vectors."""
    return _OF[settings.what]


def unit(settings: _Sides) -> str:
    """Return what one row is: a sentence, word or token that models read, or a row of given vectors."""
    return "row" if all(given(settings)) else _WAYS[settings.pooling][0]


def item(settings: _Sides) -> str:
    """Return what intervals are over: sentences, or rows where there is no text."""
    return "row" if all(given(settings)) else "sentence"


def rows_of(settings: _Sides, count: int) -> str:
    """Say how many rows there are and what they are: ``600 sentences (the mean of their tokens)``."""
    text = plural(count, unit(settings))
    sides = given(settings)
    if all(sides):
        return text
    way = _WAYS[settings.pooling][1]
    if any(sides):
        own, other = ("A", "B") if sides[0] else ("B", "A")
        return f"{text} ({other}: {way}; {own}: as given)"
    return f"{text} ({way})" if way else text


def agreement_of(result: RepresentationSimilarityResult) -> DepthAgreement:
    """Return the depth agreement that the result carries."""
    return DepthAgreement(result.assignment, result.depth_rate, result.depth_chance, result.depth_p)


def takeaway(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say in two sentences how closeness follows depth, and how many cells leave their null."""
    own, measure = agreement_of(result), settings.declaration
    what = f"{capital(measure.label)}{of_what(settings)} in {settings.space} space on {rows_of(settings, result.rows)}"
    if not len(own.pairs):
        return f"{what}: no pair of layers has a value."
    text = f"{what}: {_closest(settings, result, own)}."
    z = result.z
    if z is None or np.isnan(z).all():
        return text
    defined = np.isfinite(result.values)
    if defined.sum() == 1:
        return f"{text} It lies {z[defined][0]:+.1f} standard deviations from its null."
    beyond = int((z[defined] >= BEYOND).sum())
    cells = plural(int(defined.sum()), "cell")
    return f"{text} {beyond} of {cells} lie at least {BEYOND:g} standard deviations beyond their null."


def _closest(settings: RepresentationSimilarity, result: RepresentationSimilarityResult, own: DepthAgreement) -> str:
    """Say which layers are closest; a side of one layer has no depth."""
    sides = given(settings)
    if result.values.size == 1:
        return f"{result.values[0, 0]:.3f}"
    if any(sides) and result.values.shape[0 if sides[0] else 1] == 1:
        best, side = (result.best_match_a, "B") if sides[0] else (result.best_match_b, "A")
        value, number = result.values.ravel()[best[0]], int(best[0]) + result.start[1 if sides[0] else 0]
        return f"the closest layer of {side} to the given vectors is layer {number}, with {value:.3f}"
    total = len(own.pairs)
    chance = f"{own.chance * total:.1f}".removesuffix(".0")
    tested = f", {probability(own.p_value)}" if np.isfinite(own.p_value) else ""
    closer = result.values if result.higher_is_closer else -result.values
    rowwise, rows = closest_at_equal_depth(closer)
    return (
        f"the assignment that is closest in total joins {counted(own)} layers at equal depth (chance: {chance}"
        f"{tested}); layer by layer, the closest layer of B lies at equal depth for {rowwise} of "
        f"{plural(rows, 'layer')} of A"
    )


def levels(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say in one sentence how close the layers are, and how close the same rows wrongly paired come."""
    parts = []
    between = "between the two sides" if any(given(settings)) else "between the models"
    for where, matrix in ((between, result.values), ("with the rows wrongly paired", result.null_mean)):
        if matrix is not None and not np.isnan(matrix).all():
            low, high = (f"{end(matrix):z.2f}" for end in (np.nanmin, np.nanmax))
            parts.append(f"{low} {where}" if low == high else f"{low} to {high} {where}")
    if not parts:
        return ""
    direction = "higher is closer" if result.higher_is_closer else "lower is closer"
    return f"{capital(settings.declaration.label)} ({direction}): {', '.join(parts)}."


def surprise(settings: RepresentationSimilarity) -> str:
    """Say in one sentence what would be surprising to see."""
    if all(given(settings)):
        return (
            "Two sets of vectors of the same things agree on much, so a value far beyond its null is no surprise; one "
            "at its null would be, unless the rows are paired wrongly."
        )
    if settings.what == "patterns":
        return (
            "Each row is a token and each number how much of one head's attention it receives, so two models can be "
            "close because both look at the first words of any text; the tab Attention tells that apart from content."
        )
    if settings.what != "hidden":
        return (
            "What one block adds need not resemble what the next one adds, so here a sharp diagonal is no surprise; "
            "a broad band as hidden states have it would be one, for those carry all that earlier blocks added."
        )
    if any(given(settings)):
        return (
            "Neighbouring layers of a model are alike, for each only adds to the one before, so values that change "
            "little from layer to layer are no surprise; a value at its null would be one, if row k of the file is the "
            "vector of sentence k."
        )
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


def ends(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say what the first and the last layer of each side are; layers of given vectors are as their file had them."""
    last = [
        f"{side}'s last layer is {names[-1]}"
        for side, names, own in zip("AB", (result.layers_a, result.layers_b), given(settings), strict=True)
        if not own
    ]
    vectors = [
        f"{side} is given vectors, {plural(len(names), 'layer')}"
        for side, names, own in zip("AB", (result.layers_a, result.layers_b), given(settings), strict=True)
        if own
    ]
    first = ["Layer 0 is the embedding output"] if last else []
    if settings.what != "hidden":
        first = ["Layers are blocks, counted from 1: there is none of the embedding output"] if last else []
    return f"{'; '.join(filter(None, [*first, ' and '.join(last), ' and '.join(vectors)]))}."


def interval_note(settings: RepresentationSimilarity, result: RepresentationSimilarityResult) -> str:
    """Say how wide the 95 % intervals are."""
    if result.spread is None or np.isnan(result.spread).all():
        return ""
    half = 1.96 * result.spread
    over = f"over {item(settings)}s"
    if np.isfinite(half).sum() == 1:
        return f"The 95 % interval {over} is ± {np.nanmax(half):.3f}."
    return (
        f"95 % intervals {over} are ± {np.nanmin(half):.3f} to ± {np.nanmax(half):.3f}, by cell; they are "
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
