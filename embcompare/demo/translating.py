"""Training the number translators: Marian models of a few layers that go from English words to Spanish ones."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from embcompare.demo import STEPS
from embcompare.demo.numbers import EOS, LENGTH, PAD, Pair, draw_pairs, padded

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Translation:
    """One training of a number translator; those of the series differ in ``name`` and ``seed`` only.

    ``batch`` pairs out of ``pairs`` make a step; ``rate`` is the peak learning rate after ``warmup`` steps, falling
    linearly to zero at ``steps``. ``std`` is that of the weights at the beginning.
    """

    name: str
    seed: int
    encoder_layers: int = 2
    decoder_layers: int = 4
    width: int = 40
    ff_width: int = 80
    heads: int = 4
    std: float = 0.1
    steps: int = STEPS[-1]
    batch: int = 32
    rate: float = 1e-3
    warmup: int = 200
    weight_decay: float = 0.01
    pairs: int = 30_000
    save_at: tuple[int, ...] = STEPS[:-1]

    @property
    def shipped(self) -> dict[int, str]:
        """Step and name of each model that this training ships."""
        return {step: f"{self.name}-{step}" for step in (*self.save_at, self.steps)}


@dataclass(frozen=True)
class Checkpoint:
    """A translator at one step: float16 ``state``, and minutes of training so far."""

    step: int
    state: dict[str, Tensor]
    minutes: float


@dataclass(frozen=True)
class TranslationScore:
    """How well just the shipped weights translate: ``loss`` in nats per target token with its end, teacher forced;
    ``exact`` the share of texts, ``bleu`` and ``chrf`` (0 to 100) of greedy output.
    """

    texts: int
    loss: float
    exact: float
    bleu: float
    chrf: float


@dataclass(frozen=True)
class Encoded:
    """Pairs as token rows, each with its end."""

    sources: list[list[int]]
    targets: list[list[int]]

    @classmethod
    def of(cls, pairs: Sequence[Pair], tokenizer: Any) -> Encoded:
        """Encode pairs."""
        return cls(
            tokenizer([pair.source for pair in pairs])["input_ids"],
            tokenizer([pair.target for pair in pairs])["input_ids"],
        )

    def batch(self, rows: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """Return sources and targets (b, longest) of some rows."""
        sources, targets = (padded([side[row] for row in rows]) for side in (self.sources, self.targets))
        return torch.from_numpy(sources), torch.from_numpy(targets)


def make_translator(recipe: Translation, vocabulary: int) -> Any:
    """A freshly initialised model; its weights depend on the recipe's shape and seed only."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=vocabulary,
        d_model=recipe.width,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=recipe.ff_width,
        decoder_ffn_dim=recipe.ff_width,
        max_position_embeddings=LENGTH,
        activation_function="swish",
        dropout=0.0,
        scale_embedding=True,
        init_std=recipe.std,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = MarianMTModel(config)
    model.generation_config.bad_words_ids = None
    return model


def translation_loss(model: Any, sources: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats over the target tokens and their ends, given those before."""
    read = torch.cat([torch.full_like(targets[:, :1], PAD), targets[:, :-1]], 1)
    given = {"input_ids": sources, "attention_mask": (sources != PAD).long(), "decoder_input_ids": read}
    logits = model(**given, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def train_translator(recipe: Translation, tokenizer: Any, report: Report | None = None) -> list[Checkpoint]:
    """Train one model; returns a checkpoint for each step in ``recipe.shipped``. ``report(step, loss)`` is told of all.

    An own generator draws the batches, torch runs deterministic algorithms on one thread: the same seed gives the same
    bits. All seeds learn from the same pairs, in other batches.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    known = Encoded.of(draw_pairs(recipe.pairs, held_out=False, seed=0), tokenizer)
    random = np.random.default_rng([recipe.seed, 30])
    model = make_translator(recipe, len(tokenizer)).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    found, begun = [], time.perf_counter()
    for step in range(recipe.steps):
        loss = translation_loss(model, *known.batch(random.integers(len(known.sources), size=recipe.batch)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rising, falling = (step + 1) / recipe.warmup, (recipe.steps - step) / (recipe.steps - recipe.warmup)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, rising, falling)
        optimizer.step()
        if report:
            report(step + 1, float(loss.detach()))
        if step + 1 in recipe.shipped:
            state = {name: weight.detach().half() for name, weight in copy.deepcopy(model).state_dict().items()}
            found.append(Checkpoint(step + 1, state, (time.perf_counter() - begun) / 60))
    return found


@torch.no_grad()
def score_translator(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> TranslationScore:
    """Score a model, in float32, on pairs."""
    from sacrebleu import corpus_bleu, corpus_chrf

    model = model.float().eval()
    sources, targets = Encoded.of(pairs, tokenizer).batch(range(len(pairs)))
    written = model.generate(
        input_ids=sources,
        attention_mask=(sources != PAD).long(),
        do_sample=False,
        num_beams=1,
        max_new_tokens=LENGTH - 1,
    )
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    expected = [pair.target for pair in pairs]
    return TranslationScore(
        texts=len(pairs),
        loss=float(translation_loss(model, sources, targets)),
        exact=float(np.mean([one == other for one, other in zip(texts, expected, strict=True)])),
        bleu=corpus_bleu(texts, [expected]).score,
        chrf=corpus_chrf(texts, [expected]).score,
    )
