"""What taking hidden states apart will cost: the model in float64, its terms, and what they are read by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embcompare.experiments import estimate
from embcompare.experiments.decomposition_texts import BATCH_BYTES
from embcompare.experiments.estimate import Estimate
from embcompare.experiments.estimate_stitching import CHARACTERS_A_TOKEN
from embcompare.experiments.term_run import CHUNK, LONGEST
from embcompare.models.families import FAMILIES

if TYPE_CHECKING:
    from embcompare.experiments.decomposition import Decomposition
    from embcompare.experiments.term_sentence import SentenceTerms
    from embcompare.experiments.term_series import TermSeries
    from embcompare.models import ModelInfo

# Processor seconds, one thread of a 2-core machine, on the demo models and on random ones of width 512 and 768: what a
# pass through all blocks takes beyond its products, for each number of each term in each state (norms, sums, four
# indicators), for each logit that is scored or ranked, for each block of each batch, and before anything runs.
FORWARD, TERM_SECONDS, ENTRY_SECONDS, CALL_SECONDS, START_SECONDS = 1.8, 60e-9, 15e-9, 5e-3, 0.15
WAY_SECONDS = 15e-9
"""For each number of each input token's way through a block."""
BOOTSTRAP_SECONDS = 3e-6
"""For each indicator of each term in each state and each text: resampled a thousand times."""
# Of a series: for each checkpoint that is loaded, for each of its texts, for each text that is translated, for each
# block of each step of a translation, for each change and each text of each correlation, resampled a thousand times.
READ_SECONDS, SCORE_SECONDS, WRITTEN_SECONDS, STEP_SECONDS = 0.3, 5e-4, 3e-3, 1.5e-3
CHANGE_SECONDS, PAIR_SECONDS = 1.2e-4, 1.4e-5


def decomposition_cost(
    settings: Decomposition, a: ModelInfo, b: ModelInfo, texts: int, tokens_a_text: float, device: str = "cpu"
) -> Estimate:
    """Estimate a :class:`Decomposition` of a corpus of so many texts of so many tokens each."""
    read = min(settings.sentences, texts)
    tokens = read * tokens_a_text
    seconds, most = START_SECONDS, 0.0
    for info in (a, b):
        terms = term_count(info, settings.by)
        room = max(1.0, BATCH_BYTES / (8 * terms * info.width))
        batches = max(1.0, tokens / min(2048.0, room))
        seconds += _split_seconds(info, tokens, terms, settings.by, batches, device)
        numbers = 4 * _states(info) * terms
        seconds += BOOTSTRAP_SECONDS * numbers * read + 1e-7 * numbers * tokens
        scored = min(settings.positions, tokens) if settings.ablation else 0.0
        seconds += (1 + terms) * _logit_seconds(info, scored, device)
        held = 8.0 * (numbers * tokens + 3 * min(tokens, 2048.0) * terms * info.width)
        most = max(most, held + _weights(info) + 8.0 * min(scored * info.vocabulary, 2**25))
    return Estimate(seconds, int(most))


def sentence_terms_cost(settings: SentenceTerms, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`SentenceTerms`: both models' states split, read in tokens, and split by input tokens."""
    tokens = min(float(LONGEST), 2 + len(settings.text) / CHARACTERS_A_TOKEN)
    rate = estimate.product_rate(device, "float64")
    seconds, most = START_SECONDS, 0.0
    for info in (a, b):
        terms = term_count(info, settings.by)
        seconds += _split_seconds(info, tokens, terms, settings.by, 1.0, device)
        seconds += (2 * terms + 3) * _logit_seconds(info, tokens, device)
        chunks = -(-tokens // CHUNK)
        ways = min(tokens, CHUNK) + 2
        # attention's weights are held, so that of its matrices each way passes W_V and W_O alone
        one_way = _products(info) - 4.0 * info.layers * info.width**2
        seconds += chunks * tokens * (FORWARD * _products(info) + ways * one_way) / rate
        seconds += chunks * info.layers * (CALL_SECONDS + WAY_SECONDS * ways * tokens * info.width)
        held = 8.0 * tokens * (3 * (max(terms, ways) + 3) * info.width + 4 * _states(info) * terms)
        most = max(most, held + _weights(info) + 8.0 * min(tokens * terms * info.vocabulary, 2**24))
    return Estimate(seconds, int(most))


def term_count(info: ModelInfo, by: str) -> int:
    """Return how many terms a model's states have, split as ``by`` says."""
    attentions = 2 if _translates(info) else 1
    if by == "none":
        return 3 + attentions
    return 2 + info.layers * (1 + attentions * (info.heads if by == "head" else 1))


def _split_seconds(info: ModelInfo, tokens: float, terms: int, by: str, batches: float, device: str) -> float:
    rate = estimate.product_rate(device, "float64")
    # heads' outputs are made one by one, beside the pass itself
    passes = FORWARD * (1.5 if by == "head" else 1.0)
    numbers = tokens * _states(info) * terms * info.width
    calls = batches * info.layers * CALL_SECONDS * (1 + (info.heads / 8 if by == "head" else 0.0))
    return passes * tokens * _products(info) / rate + TERM_SECONDS * numbers + calls


def _logit_seconds(info: ModelInfo, rows: float, device: str) -> float:
    return rows * info.vocabulary * (2.0 * info.width / estimate.product_rate(device, "float64") + ENTRY_SECONDS)


def _products(info: ModelInfo) -> float:
    """Operations of all blocks for one token, cross-attention as much as self-attention."""
    attentions = 2 if _translates(info) else 1
    return 2.0 * info.layers * info.width * (4 * attentions * info.width + 2 * info.ff_width)


def _states(info: ModelInfo) -> int:
    return info.layers + 2


def _weights(info: ModelInfo) -> float:
    """Bytes of the head and of one block in float64."""
    return 8.0 * (info.vocabulary * info.width + info.width * (4 * info.width + 2 * info.ff_width))


def term_series_cost(
    settings: TermSeries, infos: Sequence[ModelInfo], texts: int, tokens_a_text: float, device: str = "cpu"
) -> Estimate:
    """Estimate a :class:`TermSeries` of these checkpoints on a corpus of so many texts of so many tokens each.

    Of an encoder-decoder the tokens are those of its translations.
    """
    read = min(settings.sentences, texts)
    tokens = read * tokens_a_text
    rate = estimate.product_rate(device)
    seconds, most = START_SECONDS, 0.0
    for info in infos:
        terms = 3 if settings.split == "source-target" else term_count(info, "none")
        one = READ_SECONDS + estimate.FORWARD * tokens * (_products(info) + 2.0 * info.vocabulary * info.width) / rate
        one += tokens * info.vocabulary * ENTRY_SECONDS + read * SCORE_SECONDS
        if _translates(info):
            steps = min(256.0, 1.5 * tokens_a_text)
            one += steps * (info.layers * STEP_SECONDS + 2.0 * read * _products(info) / rate) + read * WRITTEN_SECONDS
        one += _split_seconds(info, tokens, terms, "none", max(1.0, tokens / 2048.0), device)
        one += (BOOTSTRAP_SECONDS * read + 1e-7 * tokens) * 4 * _states(info) * terms
        seconds += one
        held = 8.0 * 4 * _states(info) * terms * tokens * (len(settings.series()) + 1)
        most = max(most, held + 8.0 * 3 * min(tokens, 2048.0) * terms * info.width + _weights(info))
    return Estimate(seconds + _statistics_seconds(settings, infos[0], read), int(most))


def _statistics_seconds(settings: TermSeries, info: ModelInfo, texts: int) -> float:
    """Return the seconds of all correlations: of changes, and of texts in each run and between every two."""
    lengths = [len(run.checkpoints) for run in settings.series()]
    pairs = sum(length * (length - 1) for length in lengths)
    metrics, scores = (5, 2) if _translates(info) else (2, 1)
    terms = 3 if settings.split == "source-target" else term_count(info, "none")
    cells = 4 * _states(info) * (terms + 1)
    runs = len(lengths)
    return CHANGE_SECONDS * (cells + metrics) * pairs + PAIR_SECONDS * scores / 2 * cells * texts * runs**2


def _translates(info: ModelInfo) -> bool:
    family = FAMILIES.get(info.family)
    return family is not None and bool(family.cross_qkv)
