"""What a run of stitching will cost: A's cuts through B's upper blocks, B's head, fits and tuning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

from embcompare.experiments import estimate
from embcompare.experiments.estimate import FORWARD, TOKENS_A_SENTENCE, Estimate
from embcompare.experiments.stitching_tasks import LOGIT_BYTES
from embcompare.experiments.stitching_texts import BATCH_TOKENS
from embcompare.maps.registry import KERNELS
from embcompare.models.families import FAMILIES
from embcompare.stitching.bridges import parse_kernels
from embcompare.stitching.tails import CLASSIFIERS

if TYPE_CHECKING:
    from embcompare.experiments.stitched_text import StitchedText
    from embcompare.experiments.stitching import Stitching
    from embcompare.models import ModelInfo

Task = Literal["next token", "masked token", "classes"]

CHARACTERS_A_TOKEN = 3.4
"""Of the shipped corpora, as the demo tokenizers cut them."""
# Processor seconds, one thread of a 2-core machine, on the demo models: for each probability that is scored, for each
# text that is encoded, before anything runs, and for each pass through an upper part whatever its size.
ENTRY_SECONDS, TEXT_SECONDS, START_SECONDS, CALL_SECONDS = 4e-9, 1e-3, 0.3, 4e-3
# Products with the states, each rows × d², and with d³, of a map that is fitted on them; passes over the texts that a
# classifier is tuned in, and what a step takes beyond its products.
FIT_PRODUCTS, EIGEN_PRODUCTS, EPOCHS, LEARNING = 5.0, 15.0, 4, 1.2
# Copies of a block's widest activations that live at once, and of a batch's probabilities.
_COPIES, _PROBABILITIES = 4, 3


def task_of(b: ModelInfo, tuned_blocks: int = 0) -> Task:
    """Return what a stitched model is asked for, as far as the configuration of the upper one tells."""
    if tuned_blocks or b.architecture.endswith(CLASSIFIERS):
        return "classes"
    if b.architecture.endswith(("LMHeadModel", "ForCausalLM", "DoubleHeadsModel")):
        return "next token"
    if b.architecture.endswith(("ForMaskedLM", "ForPreTraining")) or b.family not in FAMILIES:
        return "masked token"
    return "next token" if FAMILIES[b.family].causal(SimpleNamespace()) else "masked token"


def stitching_cost(
    settings: Stitching,
    a: ModelInfo,
    b: ModelInfo,
    texts: int,
    device: str = "cpu",
    tokens_a_text: float = TOKENS_A_SENTENCE,
) -> Estimate:
    """Estimate a :class:`Stitching` on a corpus of so many texts of so many tokens each.

    Models that are named in ``also`` are taken to be like B.
    """
    task = task_of(b, settings.tuned_blocks)
    scored = min(settings.sentences, texts)
    tokens = scored * tokens_a_text
    places = 0.0 if task == "classes" else tokens * (settings.mask_share if task == "masked token" else 1.0)
    names = parse_kernels(settings.kernels)
    names = tuple(name for name in names if not KERNELS[name].equal_widths or a.width == b.width)
    rate, wide = estimate.product_rate(device), estimate.product_rate(device, "float64")
    cuts, entries = a.layers + 1, b.layers + 1
    of_a, of_b = block_products(a), block_products(b)
    passes = max(1.0, tokens / BATCH_TOKENS) * entries
    blocks = cuts * tokens * of_b * b.layers * (b.layers + 1) / 2
    cells = places * cuts * entries
    one_map = FORWARD * blocks / rate + passes * CALL_SECONDS
    one_map += cells * b.vocabulary * (2.0 * b.width / rate + ENTRY_SECONDS)
    one_map += cuts * entries * tokens * 2.0 * a.width * b.width / rate
    own = FORWARD * tokens * (of_a * a.layers + of_b * b.layers * 2) / rate
    seconds = len(names) * one_map + own + texts * TEXT_SECONDS
    seconds += _maps_seconds(settings, names, a, b, (texts - scored) * tokens_a_text, wide, rate)
    if settings.tuned_blocks:
        learnt = EPOCHS * max(0, texts - scored) * tokens_a_text
        seconds += LEARNING * learnt * of_b * (b.layers + 2 * min(settings.tuned_blocks, b.layers)) / rate
    runs = settings.runs * len(settings.uppers())
    batch = min(tokens, BATCH_TOKENS)
    states = batch * (cuts * (a.width + _COPIES * max(b.ff_width, 3 * b.width)) + entries * b.width)
    logits = 0.0 if task == "classes" else _PROBABILITIES * (min(places, batch) * b.vocabulary * 4 + LOGIT_BYTES)
    kept = 8.0 * runs * scored * len(names) * cuts * entries * (3 if places else 4)
    tuned = b.parameters * 16.0 if settings.tuned_blocks else 0.0
    return Estimate(START_SECONDS + runs * seconds, int(4 * states + logits + kept + tuned))


def continuation_cost(settings: StitchedText, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`StitchedText`: three models, each from the first token at every step, and the map."""
    rate = estimate.product_rate(device)
    tokens = len(settings.text) / CHARACTERS_A_TOKEN + settings.tokens / 2
    upper = max(0, b.layers - settings.entry)
    blocks = block_products(a) * (a.layers + a.layers) + block_products(b) * (b.layers + upper)
    heads = 2.0 * (a.vocabulary * a.width + 2 * b.vocabulary * b.width) + 3 * b.vocabulary * settings.top
    seconds = settings.tokens * ((FORWARD * tokens * blocks + heads) / rate + 4 * CALL_SECONDS)
    seconds += settings.tokens * 3 * b.vocabulary * 1e-7  # all tokens are sorted at every step
    seconds += _embedding_products(a, b) / estimate.product_rate(device, "float64")
    memory = 4.0 * tokens * _COPIES * max(a.ff_width, b.ff_width) + 16.0 * b.vocabulary
    return Estimate(START_SECONDS + seconds, int(memory + 8.0 * b.vocabulary * (a.width + b.width)))


def _maps_seconds(
    settings: Stitching, names: tuple[str, ...], a: ModelInfo, b: ModelInfo, rest: float, wide: float, rate: float
) -> float:
    """Seconds of making the maps of one run: of the embeddings once, of states for each pair of layers."""
    seconds = 0.0
    rows = min(settings.fit_rows, max(0.0, rest))
    fitted = [name for name in names if KERNELS[name].fitted_on == "states"]
    if fitted:
        seconds += FORWARD * rows * (block_products(a) * a.layers + block_products(b) * b.layers) / rate
    for name in names:
        if name in fitted:
            one = FIT_PRODUCTS * 2.0 * rows * a.width * max(a.width, b.width) + EIGEN_PRODUCTS * a.width**3
            seconds += (a.layers + 1) * (b.layers + 1) * (one / wide + CALL_SECONDS)
        elif KERNELS[name].fitted_on != "widths":
            seconds += _embedding_products(a, b) / wide
    return seconds


def _embedding_products(a: ModelInfo, b: ModelInfo) -> float:
    vocabulary = min(a.vocabulary, b.vocabulary)
    return 2.0 * vocabulary * (a.width + b.width) ** 2 + EIGEN_PRODUCTS * (a.width**3 + b.width**3)


def block_products(info: ModelInfo) -> float:
    """Operations of one block for one token; what attention does between places is small beside them."""
    return 2.0 * info.width * (4 * info.width + 2 * info.ff_width)
