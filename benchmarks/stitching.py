"""Two GPT-2-shaped models stitched at every pair of layers: all cuts as one batch, against cell by cell."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn.functional import kl_div

from benchmarks.common import PeakMemory, gemm_rate, report
from embcompare.experiments.stitching import Stitching
from embcompare.models import ModelSpec
from embcompare.models.loading import LoadedModel
from embcompare.models.reading import read_anatomy
from embcompare.text.corpora import Corpus
from embcompare.text.tokens import tokens_from_tokenizer

V, WIDTH, LAYERS, TEXTS, WORDS = 50_257, 768, 12, 4, 24
AIM = 3.0


def tokenizer() -> Any:
    """Return a tokenizer of 50,257 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "<pad>", *(f"w{number}" for number in range(V - 2))]
    core = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>")


def model(seed: int, words: Any) -> LoadedModel:
    """Return a random GPT-2 of 12 layers, 768 wide."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=V, n_embd=WIDTH, n_layer=LAYERS, n_head=12, n_positions=128, pad_token_id=1)
    module = GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    spec, anatomy = ModelSpec.parse("demo/gpt2-a"), read_anatomy(module, tokens=V, label="random GPT-2")
    none: Any = None
    return LoadedModel(spec, none, module, anatomy, str(seed), (), words, tokens_from_tokenizer(words, V))


class Lent:
    """What a run asks of its surroundings."""

    device = "cpu"

    def __init__(self, text: Corpus, **models: LoadedModel) -> None:
        self.text, self.models = text, models

    def lease(self, name: str) -> Any:
        """Lend a model."""
        return nullcontext(self.models[name])

    def corpus(self, name: str) -> Corpus:
        """Give the text."""
        return self.text

    def report(self, *_: Any) -> None:
        """Hear how far it is."""


def scores(logits: torch.Tensor, own: torch.Tensor, target: torch.Tensor) -> list[float]:
    """Return loss, KL and agreement, as one would write them."""
    log_q = logits.log_softmax(-1)
    loss = -log_q.gather(-1, target[..., None]).mean()
    kl = kl_div(log_q, own, log_target=True, reduction="none").sum(-1).mean()
    return [float(loss), float(kl), float((log_q.argmax(-1) == own.argmax(-1)).float().mean())]


def by_hooks(a: Any, b: Any, ids: torch.Tensor, own: torch.Tensor) -> np.ndarray:
    """One forward of each model per cell, B's state replaced by a hook: the usual way."""
    found = np.zeros((3, LAYERS + 1, LAYERS + 1))
    for cut in range(LAYERS + 1):
        for entry in range(LAYERS + 1):
            seen: list[torch.Tensor] = []
            first, last = a.transformer.h[min(cut, LAYERS - 1)], b.transformer.h[min(entry, LAYERS - 1)]
            if cut < LAYERS:
                hear = first.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
            else:
                hear = first.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
            a(ids, use_cache=False)
            hear.remove()
            if entry < LAYERS:
                put = last.register_forward_pre_hook(lambda _, args, seen=seen: (seen[0], *args[1:]))
            else:
                put = last.register_forward_hook(lambda _, __, out, seen=seen: seen[0])
            logits = b(ids, use_cache=False).logits
            put.remove()
            found[:, cut, entry] = scores(logits[:, :-1], own, ids[:, 1:])
    return found


def by_blocks(a: Any, b: Any, ids: torch.Tensor, own: torch.Tensor) -> np.ndarray:
    """One forward of the stitched model per cell, and of no block beside: as sparing as a cell alone can be."""
    found = np.zeros((3, LAYERS + 1, LAYERS + 1))
    length = ids.shape[1]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    start = a.transformer.wte(ids) + a.transformer.wpe(torch.arange(length))
    for cut in range(LAYERS + 1):
        for entry in range(LAYERS + 1):
            x = start
            for block in (*a.transformer.h[:cut], *b.transformer.h[entry:]):
                x = block(x, attention_mask=mask)
            logits = b.lm_head(b.transformer.ln_f(x))
            found[:, cut, entry] = scores(logits[:, :-1], own, ids[:, 1:])
    return found


def one_by_one(a: Any, b: Any, ids: torch.Tensor, own: torch.Tensor) -> np.ndarray:
    """One forward of each model per cell and text, as the official notebook of Dar et al. 2023 does."""
    rows = [by_hooks(a, b, ids[at : at + 1], own[at : at + 1]) for at in range(len(ids))]
    return np.mean(rows, axis=0)


def main() -> int:
    """Measure all three in one run, compare their numbers, and the ratio with the aim: 3 times."""
    words = tokenizer()
    a, b = model(0, words), model(1, words)
    drawn = np.random.default_rng(0).integers(0, V - 2, (TEXTS, WORDS))
    text = Corpus("random words", tuple(" ".join(f"w{number}" for number in row) for row in drawn))
    settings = Stitching("a", "b", kernels="identity", sentences=TEXTS)
    rate = gemm_rate()
    with PeakMemory() as peak:
        began = time.perf_counter()
        result = settings.compute(Lent(text, a=a, b=b))  # type: ignore[arg-type]
        fast = time.perf_counter() - began
    ids = torch.from_numpy(drawn) + 2
    with torch.inference_mode():
        module: Any = b.module
        own = module(ids).logits[:, :-1].log_softmax(-1)
        took, worst = {}, 0.0
        for name, way in (("hooks", by_hooks), ("blocks", by_blocks), ("texts", one_by_one)):
            began = time.perf_counter()
            found = way(a.module, b.module, ids, own)
            took[name] = time.perf_counter() - began
            worst = max(worst, float(np.abs(found - result.values[0, 0]).max()))
    tokens, cells = TEXTS * WORDS, (LAYERS + 1) ** 2
    products = tokens * 2 * (cells * (V * WIDTH + LAYERS / 2 * 12 * WIDTH**2) + LAYERS * 24 * WIDTH**2)
    report(
        f"Stitching grid of two {LAYERS}-layer models, {WIDTH} wide, V = {V:,}: {cells} cells, {tokens} tokens "
        f"({torch.get_num_threads()} threads, {rate / 1e9:.0f} GFLOP/s)",
        [
            ("embcompare", f"{fast:.1f} s, {products / fast / rate:.0%} of the rate", ""),
            ("one forward of each model per cell, by hooks", f"{took['hooks']:.1f} s", ""),
            ("times faster", f"{took['hooks'] / fast:.1f}", f"aim: at least {AIM:.0f}"),
            ("… and per text, as the official notebook", f"{took['texts']:.1f} s", ""),
            ("times faster", f"{took['texts'] / fast:.1f}", ""),
            ("only the blocks needed, cell by cell", f"{took['blocks']:.1f} s", ""),
            ("times faster", f"{took['blocks'] / fast:.1f}", "both run B's blocks for every cut"),
            ("largest difference of any score", f"{worst:.1e}", "aim: at most 1e-3"),
            ("peak memory above the models", f"{peak.bytes / 1e9:.2f} GB", ""),
        ],
    )
    return int(took["hooks"] / fast < AIM or worst > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
