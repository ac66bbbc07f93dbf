"""Sentences about attention similarity, computed from the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.attention_result import MEASURES
from embcompare.ui import words
from embcompare.ui.picture import BEYOND
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.attention import AttentionSimilarity, AttentionSimilarityResult
    from embcompare.experiments.attention_shown import AttentionPatternsResult

NAMES = {
    "pattern": {"averaged": "Averaged over queries", "full": "Full: every query and key"},
    "measure": MEASURES,
    "rows": {"token": "Tokens", "word": "Words"},
}
"""How choices are called in the form."""


def samples(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> str:
    """Say what a head is as a vector: ``15,117 tokens in 669 texts``."""
    if asked.measure == "jsd":
        what = plural(result.rows, "query", "queries")
    elif asked.pattern == "full":
        what = plural(result.rows, f"pair of {asked.rows}s", f"pairs of {asked.rows}s")
    else:
        what = plural(result.rows, asked.rows)
    return f"{what} in {plural(result.items, 'text')}"


def takeaway(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> str:
    """Say how close the closest heads are, how much of that is position, and how many pairs are mutual."""
    best = result.best_a
    known = np.flatnonzero(best >= 0)
    if not len(known):
        return "No head has a value: every one of a model looks everywhere alike."
    at = (known, best[known])
    label = MEASURES[asked.measure] + ("" if result.higher_is_closer else " (lower is closer)")
    text = (
        f"{label} on {samples(asked, result)}: with its closest head of B, a head of A reaches "
        f"{result.values[at].mean():.2f} on average"
    )
    if result.null_mean is not None:
        text += f"; the same pairs of heads reach {result.null_mean[at].mean():.2f} by position alone, on wrong texts"
    frame = result.match_frame()
    mutual = int(frame["mutual"].sum())
    text += f". {mutual} of {len(known)} {agree(mutual, 'is', 'are')} each other's closest"
    if result.z is not None and np.isfinite(frame["z"]).any():
        beyond = int((frame["mutual"] & (frame["z"] >= BEYOND)).sum())
        text += f", {beyond} of them at least {BEYOND:g} standard deviations beyond position alone"
    return text + "."


def layers(result: AttentionSimilarityResult) -> str:
    """Say how blocks are assigned by their matched heads, against chance."""
    total = len(result.assignment)
    if not total:
        return ""
    hits = round(result.depth_rate * total)
    chance = f"{result.depth_chance * total:.1f}".removesuffix(".0")
    return (
        f"Block by block, heads matched one to one: the assignment that is closest in total joins {hits} of {total} "
        f"blocks at equal depth (chance: {chance}, {words.probability(result.depth_p)})."
    )


def surprise() -> str:
    """Say what would be surprising."""
    return (
        "Heads have no order, so a head's partner may stand anywhere in a block: look for bright cells, not for a "
        "diagonal. Heads that look at the first token or at the one before agree on any text; a pair that stays close "
        "beyond its null follows what the text says, which is more than two separate trainings owe each other."
    )


def unit(asked: AttentionSimilarity) -> str:
    """Say what a number of a pattern is, and how words are read."""
    what = (
        "Attention counts in units of even attention, so that texts of different lengths can be put together: 1 is "
        "what a token would get from queries that look alike at all they can see; queries that cannot see it do not "
        "count."
    )
    if asked.measure == "jsd":
        what = (
            "Each query of the text spreads its attention over the text's tokens and, taken together, special tokens "
            "and all else; two heads differ there by 0 (the same) to ln 2 = 0.69 (nothing in common)."
        )
    if asked.rows == "word":
        what += " Attention to a word is the sum over its tokens, and from a word the mean."
    return f"{what} Special tokens are neither rows nor queries, and nothing is rescaled for what they get."


def special(result: AttentionSimilarityResult) -> str:
    """Say how much of each model's attention special tokens get."""
    shares = [result.special_a.mean(), result.special_b.mean()]
    if not any(shares):
        return ""
    return f"Special tokens get {shares[0]:.0%} of A's attention and {shares[1]:.0%} of B's."


def pair(result: AttentionSimilarityResult, heads: tuple[int, int], label: str) -> str:
    """Say what is known of two heads over the whole text."""
    value = result.values[heads]
    named = f"{result.name('a', heads[0])} of A and {result.name('b', heads[1])} of B"
    named = named[:1].upper() + named[1:]
    if np.isnan(value):
        return f"{named}: no value, for one of them looks everywhere alike."
    text = f"{named}: {label} {value:.3f}"
    if result.low is not None and result.high is not None and np.isfinite(result.low[heads]):
        text += f" (95 % interval over texts {result.low[heads]:.3f} to {result.high[heads]:.3f})"
    if result.null_mean is not None:
        text += f"; by position alone {result.null_mean[heads]:.3f}"
    return f"{text}."


def in_sentence(shown: AttentionPatternsResult, a: tuple[int, int], b: tuple[int, int]) -> str:
    """Say how differently two heads look in the sentence that is shown."""
    found = shown.divergence(a, b)
    if found is None:
        return "The models read this sentence as different tokens, so its two patterns cannot be laid over each other."
    own = np.flatnonzero(~shown.special_a)
    if not len(own):
        return ""
    worst = int(own[found[own].argmax()])
    return (
        f"In this sentence they differ by {found[own].mean():.3f} nats a query (Jensen-Shannon, at most 0.693), most "
        f"from “{shown.tokens_a[worst]}”, by {found[worst]:.3f}."
    )
