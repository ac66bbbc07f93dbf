"""Parameter alignment of two BERT-base-shaped models: the Gram factorisation against the V-wide projection."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from benchmarks.common import PeakMemory, gemm_rate, report
from embcompare.experiments.parameters import ParameterAlignment
from embcompare.models.anatomy import Anatomy
from embcompare.models.reading import read_anatomy
from embcompare.text import Tokens

V, LAYERS, WIDTH, INNER = 30_522, 12, 768, 3_072
SLOW_PAIRS = 2


def random_bert(seed: int) -> Anatomy:
    """Return the anatomy of a random model of BERT-base's shape; keys of unit variance, so that all digits count."""
    torch.manual_seed(seed)
    module = BertForMaskedLM(BertConfig()).eval().requires_grad_(False)
    return read_anatomy(module)


def wide_pair(x: torch.Tensor, y: torch.Tensor, e_a: torch.Tensor, e_b: torch.Tensor) -> float:
    """Score one layer pair the plain way: project on every token, centre, normalise, multiply, mean |.|."""
    a, b = x @ e_a.T, y @ e_b.T
    for projection in (a, b):
        projection -= projection.mean(1, keepdim=True)
        projection /= torch.linalg.vector_norm(projection, dim=1, keepdim=True)
    return float((a @ b.T).abs().mean(dtype=torch.float64))


class _Context:
    """The least a run needs: two models at hand, nobody to report to."""

    device = "cpu"

    def __init__(self, models: dict[str, SimpleNamespace]) -> None:
        self.models = models

    def lease(self, name: str) -> AbstractContextManager[SimpleNamespace]:

        return nullcontext(self.models[name])

    def report(self, *_: object) -> None:
        return None


def main() -> int:
    """Measure both forms in one run and compare with the aims: 30 times faster, 60 % of the rate, under 1 GB."""
    names = tuple(f"token{k}" for k in range(V))
    tokens = Tokens(names, names, np.ones(V, dtype=bool), np.zeros(V, dtype=bool))
    models = {
        name: SimpleNamespace(anatomy=random_bert(seed), tokens=tokens, spec=SimpleNamespace(label=name))
        for seed, name in enumerate("AB")
    }
    context = _Context(models)
    settings = ParameterAlignment("A", "B", null_draws=0, control=False)
    rate_before = gemm_rate()
    with PeakMemory() as peak:
        began = time.perf_counter()
        result = settings.compute(context)
        fast = time.perf_counter() - began
    rate = max(rate_before, gemm_rate())
    e_a, e_b = (models[name].anatomy.readout("output")[0] for name in "AB")
    began, worst = time.perf_counter(), 0.0
    for layer in range(SLOW_PAIRS):
        x, y = (models[name].anatomy.vectors("ff_keys", layer) for name in "AB")
        worst = max(worst, abs(wide_pair(x, y, e_a, e_b) / result.values[layer, layer] - 1))
    slow = (time.perf_counter() - began) / SLOW_PAIRS * LAYERS**2
    flops = 2.0 * (LAYERS * INNER) ** 2 * WIDTH
    ratio, share = slow / fast, flops / fast / rate
    report(
        f"FF keys, 12 x 12 layers of 3,072 vectors, 768 wide, V = {V:,} (float32, {torch.get_num_threads()} threads)",
        [
            ("whole matrix, embcompare", f"{fast:.1f} s", ""),
            ("whole matrix, V-wide projection", f"{slow:,.0f} s (from {SLOW_PAIRS} of 144 pairs)", ""),
            ("times faster", f"{ratio:.0f}", "aim: at least 30"),
            ("share of this machine's GEMM rate", f"{share:.0%} of {rate / 1e9:.0f} GFLOP/s", "aim: at least 60 %"),
            ("peak memory above the weights", f"{peak.bytes / 1e9:.2f} GB", "aim: under 1 GB"),
            ("largest relative difference", f"{worst:.1e}", ""),
        ],
    )
    return int(ratio < 30 or share < 0.6 or peak.bytes > 1e9)


if __name__ == "__main__":
    sys.exit(main())
