"""What each demo model is and how it is trained: all numbers in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from embcompare.demo.tokenizer import CLS, LENGTH, PAD, SEP, VOCABULARY

MIX = {"sotu": 0.5, "moby-dick": 0.2, "reviews": 0.3}
"""Share of each source in every training batch and in the held-out windows."""


@dataclass(frozen=True)
class Recipe:
    """One training. Twins are two recipes that differ in ``name`` and ``seed`` only.

    ``batch`` windows of ``LENGTH`` tokens make a step. ``rate`` is the peak learning rate after ``warmup`` steps,
    falling linearly to zero at ``steps``. For BERT, ``mask_share`` of the text tokens is hidden. ``save_at`` names
    checkpoints to ship besides the end. ``offsets`` are the neighbours that the heads of a BERT's first layer begin by
    looking at, one a head.
    """

    name: str
    family: Literal["gpt2", "bert"]
    layers: int
    width: int
    heads: int
    seed: int
    steps: int
    batch: int = 32
    rate: float = 3e-3
    warmup: int = 150
    weight_decay: float = 0.05
    mask_share: float = 0.0
    save_at: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()

    @property
    def shipped(self) -> dict[int, str]:
        """Step and name of each model this training ships."""
        if not self.save_at:
            return {self.steps: self.name}
        return {step: f"{self.name}-{step}" for step in (*self.save_at, self.steps)}


GPT2_A = Recipe("gpt2-a", "gpt2", layers=6, width=128, heads=4, seed=1, steps=2000)
GPT2_WIDE = Recipe("gpt2-wide", "gpt2", layers=8, width=160, heads=5, seed=3, steps=2400, batch=16, rate=2e-3)
GPT2_SERIES = Recipe(
    "gpt2-series", "gpt2", layers=4, width=96, heads=4, seed=4, steps=2000, batch=16, save_at=(50, 150, 400, 1000)
)
BERT_A = Recipe(
    "bert-a",
    "bert",
    layers=4,
    width=128,
    heads=4,
    seed=1,
    steps=3000,
    batch=24,
    rate=1e-3,
    warmup=100,
    mask_share=0.2,
    offsets=(-1, -1, 1, 1),
)

RECIPES: tuple[Recipe, ...] = (
    GPT2_A,
    replace(GPT2_A, name="gpt2-b", seed=2),
    GPT2_WIDE,
    GPT2_SERIES,
    BERT_A,
    replace(BERT_A, name="bert-b", seed=2),
)
"""All trainings, in the order in which they are run."""


@dataclass(frozen=True)
class FineTuning:
    """One fine-tuning of a demo model, ``base``, into a classifier of review snippets.

    The weights of the last ``blocks`` blocks and of the head learn for ``epochs`` passes over the training reviews in
    batches of ``batch``; ``rate`` is the peak learning rate, reached after a tenth of the steps and falling linearly to
    zero; the head's is ``head_rate`` times that, and its rows begin with length ``head_norm``. ``hide`` is the share of
    text tokens that training replaces with [MASK], so that no single word is relied on.
    """

    name: str
    base: str
    family: Literal["gpt2", "bert"]
    blocks: int
    seed: int
    epochs: int
    batch: int = 16
    rate: float = 1e-3
    head_rate: float = 0.3
    head_norm: float = 1.5
    weight_decay: float = 0.05
    hide: float = 0.0


GPT2_A_SENTIMENT = FineTuning("gpt2-a-sentiment", "gpt2-a", "gpt2", blocks=3, seed=1, epochs=4, hide=0.1)

FINE_TUNINGS: tuple[FineTuning, ...] = (
    GPT2_A_SENTIMENT,
    replace(GPT2_A_SENTIMENT, name="gpt2-b-sentiment", base="gpt2-b", seed=2),
    # all four blocks, much hidden: with fewer, or with less, it learns its training reviews by heart
    FineTuning(
        "bert-a-sentiment",
        "bert-a",
        "bert",
        blocks=4,
        seed=1,
        epochs=8,
        batch=64,
        head_norm=1.0,
        weight_decay=0.2,
        hide=0.3,
    ),
)
"""All fine-tunings; each begins with the weights of a training above."""


def make_config(recipe: Recipe) -> Any:
    """The ``transformers`` configuration of a recipe's model: no dropout, tied embeddings, ``LENGTH`` positions."""
    from transformers import BertConfig, GPT2Config

    if recipe.family == "gpt2":
        return GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=recipe.width,
            n_layer=recipe.layers,
            n_head=recipe.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=CLS,
            eos_token_id=SEP,
            pad_token_id=PAD,
        )
    return BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=recipe.width,
        intermediate_size=4 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        type_vocab_size=2,
        pad_token_id=PAD,
    )
