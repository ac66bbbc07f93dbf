"""What maps between layers will cost: capture, closed forms, and networks epoch by epoch, which may stop early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embcompare.experiments import estimate
from embcompare.experiments.bijection_answers import why_none
from embcompare.experiments.estimate import (
    FORWARD,
    GIVEN_WIDTH,
    TOKENS_A_SENTENCE,
    WORDS_A_SENTENCE,
    Estimate,
    capture_seconds,
)
from embcompare.experiments.estimate_stitching import ENTRY_SECONDS, block_products
from embcompare.maps.catalogue import MAPS, MapDeclaration

if TYPE_CHECKING:
    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.bijection_depths import BijectionDepths
    from embcompare.experiments.map_pairs import MapPairs
    from embcompare.models import ModelInfo

Sides = tuple["ModelInfo | None", "ModelInfo | None"]

# From the processor time of one thread of a 2-core machine (49 and 25 GFLOP/s in float32 and float64), widths 32 to
# 768, 600 to 4,000 rows. A map of a pair of layers: products with n p q, with the cube of the narrower width for a
# rotation, and seconds for each number of B's layer, which is brought about its mean for every pair.
PAIR_PRODUCTS, SVD_PRODUCTS, NUMBER_SECONDS = 2.0, 22.0, 25e-9
# Of a layer, once for each pass: its eigenvectors, and scaling each of its numbers.
EIGEN_PRODUCTS, SCALE_SECONDS = 14.0, 25e-9
# A network's step beyond its products, and what these take beyond the machine's rate; before it is trained, the linear
# start in the cube of the width, and after it the Jacobians at a few rows.
STEP_SECONDS, LEARNING, START_PRODUCTS, FIXED_SECONDS, PROBED, JACOBIAN = 2e-3, 1.4, 110.0, 0.4, 4, 6.0
# A map in closed form on one pair of layers; passes through a network when it is scored; and before anything runs.
CLOSED_PRODUCTS, SCORED, BEGIN_SECONDS = 6.0, 5.0, 0.3
# Copies of the rows, and of a network's weights (gradient, Adam's two, the best, a checkpoint of all), held at once.
_ROW_BYTES, _WEIGHT_BYTES, _RETRIEVAL_ROWS = 60, 32, 2048


@dataclass(frozen=True)
class UpperBound(Estimate):
    """An estimate of the longest that a run may take; trainings that stop early make it shorter."""

    def sentence(self) -> str:
        """Say it as a person would: ``at most 40 s and 0.4 GB of memory``."""
        return super().sentence().replace("about ", "at most ", 1)


def bijection_cost(
    settings: Bijection,
    a: ModelInfo | None,
    b: ModelInfo | None,
    sentences: int,
    device: str = "cpu",
    widths: tuple[int, int] = (0, 0),
) -> UpperBound:
    """Estimate a :class:`Bijection` on a corpus of so many sentences, or so many given rows; no training stops early.

    ``None`` is a side of given vectors, whose width is its entry of ``widths`` (A, B), or that of the other side.
    """
    p, q = _widths(settings, (a, b), widths)
    rows, training, test = _rows(settings, (a, b), sentences)
    declared = [MAPS[name] for name in settings.map_names()]
    wide = estimate.product_rate("cpu", "float64")
    seconds = BEGIN_SECONDS + _captures(settings, (a, b), sentences, device) + SCALE_SECONDS * rows * (p + q)
    for each in declared:
        one = 2.0 * (training**2 + test**2) * q / wide + SCALE_SECONDS * (training + test) * (p + q)
        if each.trained:
            weights, uses = network_weights(each.name, p, q)
            one += _training_seconds(settings, weights * uses, training, max(p, q), device)
            one += SCORED * 2.0 * weights * uses * (training + test) / wide
            one += PROBED * JACOBIAN * 2.0 * weights * max(p, q) / wide if each.bijective else 0.0
            seconds += settings.runs * one
        else:
            seconds += one + (CLOSED_PRODUCTS * training * p * q + EIGEN_PRODUCTS * max(p, q) ** 3) / wide
    asked = _asked(settings, declared)
    if asked and a is not None and b is not None:
        seconds += _answer_seconds(settings, a, b, asked, min(settings.downstream, sentences), device)
    largest = max((network_weights(each.name, p, q)[0] for each in declared if each.trained), default=0.0)
    held = _ROW_BYTES * rows * (p + q) + _WEIGHT_BYTES * largest
    states = sum(4 * sentences * TOKENS_A_SENTENCE * info.width for info in (a, b) if info is not None)
    return UpperBound(seconds, int(held + states + 16 * _RETRIEVAL_ROWS * training))


def depths_cost(
    settings: BijectionDepths,
    a: ModelInfo | None,
    b: ModelInfo | None,
    sentences: int,
    device: str = "cpu",
    widths: tuple[int, int] = (0, 0),
    layers: tuple[int, int] = (1, 1),
) -> UpperBound:
    """Estimate a :class:`BijectionDepths`: one bijection a depth; states are captured once."""
    from embcompare.experiments.bijection_depths import parse_layers

    one = bijection_cost(settings.at(0, 0), a, b, sentences, device, widths)
    captured = _captures(settings, (a, b), sentences, device)
    states = int(settings.what == "hidden")
    own = a.layers + states if a is not None else layers[0]
    depths = len(parse_layers(settings.layers)) or own
    return UpperBound(captured + depths * (one.seconds - captured), one.bytes)


def map_pairs_cost(
    settings: MapPairs,
    a: ModelInfo | None,
    b: ModelInfo | None,
    sentences: int,
    device: str = "cpu",
    widths: tuple[int, int] = (0, 0),
    layers: tuple[int, int] = (1, 1),
) -> Estimate:
    """Estimate a :class:`MapPairs`, sides as for :func:`bijection_cost`; ``layers`` are those of given vectors."""
    p, q = _widths(settings, (a, b), widths)
    states = int(settings.what == "hidden")
    counts = [info.layers + states if info is not None else own for info, own in zip((a, b), layers, strict=True)]
    rows, training, _ = _rows(settings, (a, b), sentences)
    wide = estimate.product_rate("cpu", "float64")
    cells = counts[0] * counts[1]
    one = 0.0
    for name in settings.map_names():
        one += cells * (PAIR_PRODUCTS * rows * p * q / wide + NUMBER_SECONDS * rows * q)
        if name == "orthogonal":
            one += cells * SVD_PRODUCTS * max(p, q) * min(p, q) ** 2 / wide
        else:
            one += counts[0] * (PAIR_PRODUCTS * training * p * p + EIGEN_PRODUCTS * p**3) / wide
    numbers = rows * (counts[0] * p + counts[1] * q)
    passes = settings.splits + settings.null_draws
    seconds = BEGIN_SECONDS + passes * (one + SCALE_SECONDS * numbers) + _captures(settings, (a, b), sentences, device)
    return Estimate(seconds, int(12 * numbers + 40 * rows * (p + q)))


def network_weights(name: str, width_a: int, width_b: int) -> tuple[float, int]:
    """Return how many weights a trained map has between two widths, and how often it uses each."""
    wide = max(width_a, width_b)
    if name == "bert_inn":
        return 48.0 * wide**2, 2
    from embcompare.maps.inn import INN, units

    hidden = units(wide)
    return float(INN.blocks * (hidden * (wide + 2) + 2 * wide * (hidden + 1))), 1


def _training_seconds(settings: Bijection, weights: float, training: float, wide: int, device: str) -> float:
    steps = settings.epochs * max(1.0, training / settings.batch)
    # forward, and backward twice as dear
    products = 6.0 * weights * training * settings.epochs
    begin = FIXED_SECONDS + START_PRODUCTS * float(wide) ** 3 / estimate.product_rate("cpu", "float64")
    return begin + LEARNING * products / estimate.product_rate(device) + STEP_SECONDS * steps


def _asked(settings: Bijection, declared: Sequence[MapDeclaration]) -> int:
    """Return how many fitted maps B goes on from; none where its predictions cannot be asked for."""
    if why_none(settings) or not settings.downstream:
        return 0
    return sum(settings.runs if each.trained else 1 for each in declared)


def _answer_seconds(settings: Bijection, a: ModelInfo, b: ModelInfo, maps: int, texts: float, device: str) -> float:
    tokens, rate = texts * TOKENS_A_SENTENCE, estimate.product_rate(device)
    # a module's output is exchanged in a model that runs whole
    upper = max(0, b.layers - settings.layer_b) if settings.what == "hidden" else b.layers
    blocks = a.layers * block_products(a) + (b.layers + (1 + maps) * upper) * block_products(b)
    heads = (2 + maps) * b.vocabulary * (2.0 * b.width / rate + ENTRY_SECONDS)
    return tokens * (FORWARD * blocks / rate + heads)


def _captures(settings: Bijection | BijectionDepths | MapPairs, sides: Sides, sentences: int, device: str) -> float:
    infos = {name: info for name, info in zip((settings.model_a, settings.model_b), sides, strict=True) if info}
    return sum(capture_seconds(info, sentences * TOKENS_A_SENTENCE, device) for info in infos.values())


def _rows(settings: Bijection | MapPairs, sides: Sides, sentences: int) -> tuple[float, float, float]:
    """Return how many rows there will be at most, and how many of them train and test maps."""
    a_sentence = {"token": TOKENS_A_SENTENCE, "word": WORDS_A_SENTENCE}.get(settings.pooling, 1)
    rows = float(max(3, min(settings.max_rows, sentences * (1 if None in sides else a_sentence))))
    return rows, rows * (1 - settings.validation - settings.test), rows * settings.test


def _widths(settings: Bijection | MapPairs, sides: Sides, given: tuple[int, int]) -> tuple[int, int]:
    width = "heads" if settings.what == "patterns" else "width"
    known = [getattr(info, width) if info is not None else own for info, own in zip(sides, given, strict=True)]
    return known[0] or known[1] or GIVEN_WIDTH, known[1] or known[0] or GIVEN_WIDTH
