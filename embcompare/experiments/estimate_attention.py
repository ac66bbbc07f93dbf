"""What attention similarity will cost: forward passes, pairs of heads, and again for each wrong pairing and half."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embcompare.experiments.estimate import (
    TOKENS_A_SENTENCE,
    WORDS_A_SENTENCE,
    Estimate,
    capture_seconds,
    product_rate,
)

if TYPE_CHECKING:
    from embcompare.experiments.attention import AttentionPatterns, AttentionSimilarity
    from embcompare.models import ModelInfo

# Measured on one core with the demo models (24 and 16 heads) and random ones of 144 heads, texts of 22 tokens: seconds
# for each probability of a pass that keeps them, each number of a sample that is copied and centred, and each number
# of a mixed distribution.
PROBABILITY, SAMPLE, MIXED = 1.2e-8, 1.2e-8, 6e-9
PASS = 2.2
"""Times a capture of hidden states: attention step by step, in a copy of the model's structure."""
_MATCHING = 4e-5
"""Seconds to match the heads of two blocks one to one."""


def attention_cost(
    settings: AttentionSimilarity,
    a: ModelInfo | None,
    b: ModelInfo | None,
    sentences: int,
    *,
    length: int = TOKENS_A_SENTENCE,
    device: str = "cpu",
) -> Estimate:
    """Estimate an :class:`~embcompare.experiments.attention.AttentionSimilarity` on texts of ``length`` tokens.

    ``None`` is a side of given vectors, which the run itself refuses.
    """
    if a is None or b is None:
        return Estimate(0.0, 0)
    units = max(1, round(length * (WORDS_A_SENTENCE / TOKENS_A_SENTENCE if settings.rows == "word" else 1)))
    full = settings.pattern == "full"
    each = units * units if full else units
    texts = max(1, min(sentences, settings.max_rows // each))
    infos = {settings.model_a: a, settings.model_b: b}
    heads = [info.layers * info.heads for info in (a, b)]
    seconds = 0.0
    for info in infos.values():
        seconds += PASS * capture_seconds(info, sentences * length, device)
        seconds += PROBABILITY * info.layers * info.heads * sentences * length**2
    rows, passes = texts * each, 1.0 + settings.null_draws
    if full:
        for info in (a, b):
            seconds += PASS * capture_seconds(info, texts * length, device)
            seconds += 2 * PROBABILITY * info.layers * info.heads * texts * length**2
    if settings.measure == "jsd":
        seconds += passes * MIXED * heads[0] * heads[1] * texts * units * (units + 1)
    else:
        passes += settings.halves / 2
        work = SAMPLE * rows * sum(heads) + 2.0 * rows * heads[0] * heads[1] / product_rate("cpu", "float64")
        seconds += passes * work
    seconds += (1 + settings.null_draws) * a.layers * b.layers * _MATCHING * (1 + a.heads / 12)
    samples = 4.0 * rows * sum(heads) * (3 if full else 2)
    matrices = 8.0 * heads[0] * heads[1] * (6 + settings.null_draws)
    return Estimate(seconds, int(samples + matrices))


def patterns_cost(settings: AttentionPatterns, a: ModelInfo | None, b: ModelInfo | None) -> Estimate:
    """Estimate an :class:`~embcompare.experiments.attention.AttentionPatterns`: one text, and what is kept of it."""
    infos = [info for info in (a, b) if info is not None]
    kept = sum(4 * info.layers * info.heads * settings.tokens**2 for info in infos)
    return Estimate(sum(PASS * capture_seconds(info, 2 * settings.tokens, "cpu") for info in infos) + 0.2, kept)
