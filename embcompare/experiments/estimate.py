"""What a run will cost, before it runs: products to be done, over the rate this machine was just measured at."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from embcompare.measures.matching import BLOCK_ROWS

if TYPE_CHECKING:
    from embcompare.experiments.parameters import ParameterAlignment
    from embcompare.models import ModelInfo

# A Hungarian matching of m vectors takes c m^2.5 seconds (m from 512 to 3,072): c is 2e-9 for unrelated vectors and
# 1.2e-8 for vectors that share a strong direction.
MATCHING_SECONDS = 8e-9


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


def _rows(group: str, info: ModelInfo) -> int:
    """Vectors of one layer; attention groups have about as many as the model is wide."""
    return info.ff_width if group.startswith("ff_") else info.width
