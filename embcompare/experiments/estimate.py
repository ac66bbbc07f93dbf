"""What a run will cost, before it runs: products to be done, over the rate this machine was just measured at."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from embcompare.measures.cka_matrix import SMALL_WORK
from embcompare.measures.matching import BLOCK_ROWS

if TYPE_CHECKING:
    from embcompare.experiments.lens import LogitLens
    from embcompare.experiments.parameters import ParameterAlignment
    from embcompare.experiments.representations import RepresentationSimilarity
    from embcompare.measures import Measure
    from embcompare.models import ModelInfo

# A Hungarian matching of m vectors takes c m^2.5 seconds (m from 512 to 3,072): c is 2e-9 for unrelated vectors and
# 1.2e-8 for vectors that share a strong direction.
MATCHING_SECONDS = 8e-9

# Of the shipped corpus, as the demo tokenizers cut it.
TOKENS_A_SENTENCE, WORDS_A_SENTENCE = 22, 16
# Capturing took 1.6 to 2 times its products at the machine's rate, and this for every number of every state, on the
# demo models and on random ones of width 512 and 768.
FORWARD, STATE_SECONDS = 1.8, 40e-9
# What copying rows takes a number, and comparing two prepared layers beyond their numbers.
COPY_SECONDS, CALL_SECONDS = 6e-9, 1e-4
GIVEN_WIDTH = 768


@dataclass(frozen=True)
class MeasureCost:
    """What one measure takes for n rows of width p, and q: floating-point operations, and nanoseconds beside them.

    ``of_layer`` counts operations in n p min(n, p), ``of_kernel`` in n² p, ``of_pair`` in n p q and ``of_overlap`` in
    p q min(p, q). The others are nanoseconds: a layer's ``entry`` for each of n², ``sorted_entry`` for each of n² √n,
    ``number`` for each of n p; ``pair_entry`` and ``pair_number`` the same of a pair, and ``pair_neighbour`` for each
    of n k. ``entry_bytes`` is the memory that preparing a layer needs for each of n², or of n times ``rows_at_once``
    where it goes by blocks.
    """

    of_layer: float = 0.0
    of_kernel: float = 0.0
    of_pair: float = 0.0
    of_overlap: float = 0.0
    entry: float = 0.0
    sorted_entry: float = 0.0
    number: float = 0.0
    pair_entry: float = 0.0
    pair_number: float = 0.0
    pair_neighbour: float = 0.0
    entry_bytes: float = 0.0
    rows_at_once: int = 10**9


_LINEAR = MeasureCost(of_layer=1.3, of_pair=2, number=12)
_RBF = MeasureCost(of_kernel=2, entry=45, pair_entry=0.7, entry_bytes=34)
_CCA = MeasureCost(of_layer=22, of_pair=2, of_overlap=16)
_RANKED = MeasureCost(of_kernel=2, entry=18, sorted_entry=3.8, pair_entry=0.35, entry_bytes=39)
_UNRANKED = replace(_RANKED, sorted_entry=0)
_NEIGHBOURS = MeasureCost(of_kernel=2, entry=24, pair_neighbour=16, entry_bytes=34, rows_at_once=1024)
_REGRESSION = MeasureCost(of_layer=88, of_pair=20, pair_number=45)

# From the processor time of preparing one layer and comparing two, one thread of a 2-core machine (38 GFLOP/s in
# float64), n 335 to 4,000, p 128 to 768: what outweighs the rest is met within a factor of two there.
MEASURE_COSTS = {
    "linear_cka": _LINEAR,
    "linear_cka_biased": _LINEAR,
    "rbf_cka": _RBF,
    "rbf_cka_biased": _RBF,
    "cca": _CCA,
    "cca_r2": _CCA,
    "svcca": replace(_CCA, of_pair=1, of_overlap=4),
    "pwcca": replace(_CCA, of_overlap=30),
    "procrustes": MeasureCost(number=6, of_pair=2, of_overlap=16),
    "rsa": _RANKED,
    "rsa_pearson": _UNRANKED,
    "rsa_cosine": _UNRANKED,
    "rsa_euclidean": _RANKED,
    "mutual_knn": _NEIGHBOURS,
    "neighbourhood_jaccard": _NEIGHBOURS,
    "cknna": MeasureCost(of_kernel=4, entry=32, pair_neighbour=28, entry_bytes=24),
    "regression_r2": _REGRESSION,
    "ridge_r2": _REGRESSION,
    "tokenwise_cosine": MeasureCost(number=6.4, pair_number=0.6),
}
# The indicators of one layer: two singular value decompositions without vectors, and passes over the numbers.
_GEOMETRY = MeasureCost(of_layer=20, number=12)


# Seconds for each probability of one layer (softmax, entropy, top tokens), and for each that two layers are compared
# by, on one core, for the GPT-2 twins: 512 positions, 4,091 tokens.
LENS_ENTRY, LENS_PAIR_ENTRY = 5e-8, 6e-9


@dataclass(frozen=True)
class Estimate:
    """Seconds and peak bytes of a run, beside the two models themselves; right within a small factor."""

    seconds: float
    bytes: int

    def sentence(self) -> str:
        """Say it as a person would: ``about 40 s and 0.4 GB of memory``."""
        if self.seconds < 90:
            time_text = f"{max(1, round(self.seconds))} s"
        elif self.seconds < 5400:
            time_text = f"{round(self.seconds / 60)} min"
        else:
            time_text = f"{self.seconds / 3600:.1f} h"
        size = self.bytes / 1e9
        return f"about {time_text} and {size:.1f} GB of memory" if size >= 0.1 else f"about {time_text}"


@cache
def product_rate(device: str = "cpu", dtype: str = "float32") -> float:
    """Measure the device's matrix-product rate in FLOP/s, once a process, in about a tenth of a second."""
    kind = getattr(torch, dtype)
    a = torch.ones(768, 768, dtype=kind, device=device)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - began)
    return 2 * 768.0**3 / best


def alignment_cost(settings: ParameterAlignment, a: ModelInfo, b: ModelInfo, device: str = "cpu") -> Estimate:
    """Estimate a :class:`ParameterAlignment` from what the two configurations say."""
    rows_a, rows_b = (_rows(settings.group, info) for info in (a, b))
    width = min(a.width, b.width)
    passes = 1 + settings.null_draws + int(settings.control and settings.space == "embedding" and a.width == b.width)
    pairs = float(rows_a * a.layers) * (rows_b * b.layers)
    products = 2.0 * pairs * width * passes * (2 if settings.group in ("w_qk", "w_vo") else 1)
    vocabulary = min(a.vocabulary, b.vocabulary)
    grams = 2.0 * vocabulary * ((a.width + b.width) ** 2 + settings.null_draws * a.width * b.width)
    if settings.space == "feature":
        grams = 0.0
    seconds = products / product_rate(device, settings.dtype) + grams / product_rate(device, "float64")
    if settings.score == "one_to_one" and settings.group not in ("w_qk", "w_vo"):
        seconds += MATCHING_SECONDS * max(rows_a, rows_b) ** 2.5 * a.layers * b.layers * passes
    number = 4 if settings.dtype == "float32" else 8
    stacks = (rows_a * a.layers * a.width + 2 * rows_b * b.layers * b.width) * number
    block = (
        (rows_a if settings.score == "one_to_one" else min(rows_a, BLOCK_ROWS))
        * rows_b
        * (3 if settings.score == "one_to_one" else 2)
    )
    embeddings = vocabulary * (a.width + b.width) * 4 * (settings.space == "embedding")
    return Estimate(seconds, int(stacks + block * number + embeddings))


def similarity_cost(
    settings: RepresentationSimilarity,
    a: ModelInfo | None,
    b: ModelInfo | None,
    sentences: int,
    captured: tuple[bool, bool] = (False, False),
    device: str = "cpu",
    widths: tuple[int, int] | None = None,
    layers: tuple[int, int] | None = None,
) -> Estimate:
    """Estimate a :class:`RepresentationSimilarity`: capture, matrix, wrong pairings, halves, geometry.

    ``None`` is a side of given vectors, whose width is its entry of ``widths`` (A, B); without it, that of the other
    side, or 768. Its entry of ``layers`` is how many it has; without it, one. ``sentences`` is how many the corpus has,
    or the rows of given vectors; ``captured`` says whose hidden states are on disk already.
    """
    measure, cost = settings.declaration, MEASURE_COSTS[settings.measure]
    known = zip((a, b), (b, a), widths or (0, 0), layers or (1, 1), strict=True)
    sides = [_shape(info, other, width, own) for info, other, width, own in known]
    if settings.what != "hidden":  # blocks only, and of patterns as many features as heads
        sides = [
            side if info is None else (info.layers, info.heads if settings.what == "patterns" else info.width)
            for side, info in zip(sides, (a, b), strict=True)
        ]
    given = a is None or b is None
    a_sentence = 1 if given else {"token": TOKENS_A_SENTENCE, "word": WORDS_A_SENTENCE}.get(settings.pooling, 1)
    rows = max(2, min(settings.max_rows, sentences * a_sentence))
    to_capture = {
        name: info
        for name, info, done in zip((settings.model_a, settings.model_b), (a, b), captured, strict=True)
        if info is not None and not done
    }
    seconds = sum(capture_seconds(info, sentences * TOKENS_A_SENTENCE, device) for info in to_capture.values())
    vocabulary = 0
    if settings.space == "embedding" and a is not None and b is not None:
        vocabulary = min(a.vocabulary, b.vocabulary)
        both = a.width + b.width
        products = 2.0 * vocabulary * both**2 + 2.0 * rows * sum(count * width**2 for count, width in sides)
        seconds += products / product_rate(device, "float64")
        if measure.needs_shared_coordinates:
            sides = [(count, both) for count, _ in sides]
    seconds += sum(count * _seconds(_GEOMETRY, rows, width, width, pairs=0) for count, width in sides)
    halves = settings.halves if sentences >= 4 else 0
    for n, times in ((rows, 1 + settings.null_draws), (rows // 2, halves)):
        seconds += times * _matrix_seconds(measure, cost, n, sides)
    numbers = sum(count * width for count, width in sides)
    number = 8 if settings.standardise or settings.space == "embedding" else 4
    copies = 2 if settings.null_draws or halves else 1
    memory = copies * number * rows * numbers + _matrix_bytes(measure, cost, rows, sides)
    return Estimate(seconds, int(memory + 4 * vocabulary * sum(width for _, width in sides)))


def lens_cost(settings: LogitLens, a: ModelInfo | None, b: ModelInfo | None, device: str = "cpu") -> Estimate:
    """Estimate a :class:`LogitLens`: capture, logits of every layer, every layer with every layer, wrong pairings.

    ``None`` is a side of given vectors, which the run itself refuses.
    """
    infos = [info for info in (a, b) if info is not None]
    if len(infos) < 2:
        return Estimate(0.0, 0)
    tokens = settings.sentences * TOKENS_A_SENTENCE
    positions = min(settings.positions, tokens)
    seconds = sum(capture_seconds(info, tokens, device) for info in infos)
    shared = min(info.vocabulary for info in infos)
    states = [(info.layers + 1) * positions for info in infos]
    rate = product_rate(device, settings.dtype)
    for info, rows in zip(infos, states, strict=True):
        seconds += rows * info.vocabulary * (2.0 * info.width / rate + LENS_ENTRY)
    pairs = (infos[0].layers + 1) * (infos[1].layers + 1) * positions
    seconds += pairs * shared * LENS_PAIR_ENTRY * (1 + settings.null_draws)
    weights = sum(info.vocabulary * info.width for info in infos) * 4
    return Estimate(seconds, int(weights + 400e6 * min(1.0, sum(states) * shared * 4 / 400e6)))


def _shape(info: ModelInfo | None, other: ModelInfo | None, width: int, layers: int) -> tuple[int, int]:
    """Layers and width of one side; hidden states have one layer more than the model has blocks."""
    if info is not None:
        return info.layers + 1, info.width
    return layers, width or (other.width if other is not None else GIVEN_WIDTH)


def capture_seconds(info: ModelInfo, tokens: int, device: str) -> float:
    """Return the seconds that capturing all hidden states of so many tokens takes."""
    embeddings = info.vocabulary * info.width * (1 if info.tied else 2)
    # the second where blocks share their weights, or where there is no head to leave out
    body = max(info.parameters - embeddings, info.layers * info.width * (4 * info.width + 2 * info.ff_width))
    states = tokens * (info.layers + 1) * info.width
    return FORWARD * 2.0 * body * tokens / product_rate(device) + STATE_SECONDS * states


def _matrix_seconds(measure: Measure, cost: MeasureCost, n: int, sides: list[tuple[int, int]]) -> float:
    """Seconds that all layers of A with all layers of B take; almost none where so few rows leave them undefined."""
    (layers_a, p), (layers_b, q) = sides
    if n < measure.min_samples(p, q):
        return 0.0
    if measure.matrix is not None:
        own = cost.of_layer * (layers_a * p**2 + layers_b * q**2)
        products = n * (cost.of_pair * layers_a * p * layers_b * q + own)
        products = min(products, 1.5 * n * n * (layers_a * p + layers_b * q))
        rate = product_rate("cpu", "float64" if products < SMALL_WORK else "float32")
        passes = replace(cost, of_layer=0.0)
        return products / rate + sum(layers * _seconds(passes, n, width, width, pairs=0) for layers, width in sides)
    layers = sum(layers * _seconds(cost, n, width, width, pairs=0) for layers, width in sides)
    return layers + _seconds(cost, n, p, q, pairs=layers_a * layers_b, k=measure.k or 0)


def _seconds(cost: MeasureCost, n: int, p: int, q: int, pairs: int, k: int = 0) -> float:
    """Seconds of preparing one layer, or of comparing ``pairs`` of prepared ones."""
    if pairs:
        products = cost.of_pair * n * p * q + cost.of_overlap * p * q * min(p, q)
        beside = cost.pair_entry * n * n + cost.pair_number * n * max(p, q) + cost.pair_neighbour * n * k
        return float(pairs * (products / product_rate("cpu", "float64") + beside * 1e-9 + CALL_SECONDS))
    products = cost.of_layer * n * p * min(n, p) + cost.of_kernel * n * n * p
    beside = (cost.entry + cost.sorted_entry * math.sqrt(n)) * n * n + cost.number * n * p
    return float(products / product_rate("cpu", "float64") + beside * 1e-9 + COPY_SECONDS * n * p)


def _matrix_bytes(measure: Measure, cost: MeasureCost, n: int, sides: list[tuple[int, int]]) -> float:
    """Peak memory of one matrix: the states of all layers, and what preparing the last of them needs."""
    states = sum(layers * measure.state_bytes(n, width) for layers, width in sides)
    widest = max(width for _, width in sides)
    return float(states + cost.entry_bytes * n * min(n, cost.rows_at_once) + 32.0 * n * widest)


def _rows(group: str, info: ModelInfo) -> int:
    """Vectors of one layer; attention groups have about as many as the model is wide."""
    return info.ff_width if group.startswith("ff_") else info.width
