"""Writing a trained demo model: configuration, float16 weights, tokenizer, and the card that says how it was made."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

from embcompare.demo import DESCRIPTIONS, numbers
from embcompare.demo.finetuning import LABELS, Score, Tuned, make_classifier
from embcompare.demo.recipes import MIX, FineTuning, Recipe
from embcompare.demo.texts import PACKAGES
from embcompare.demo.tokenizer import LENGTH
from embcompare.demo.training import HELD_OUT_MASK_SHARE, Snapshot, Streams, make_model
from embcompare.demo.translating import Checkpoint, Translation, TranslationScore, make_translator
from embcompare.learning import wilson

LICENCE = (
    "Weights: MIT, as the project. Addresses and novel: public domain. Review snippets: third-party text, read at "
    "training time only; none of it is in the repository."
)
DIFFERENCES = (
    "The base is a demo model of a few layers that learnt from a few million tokens, not GPT-2.",
    "The texts are single film review snippets of at most 64 tokens, not whole reviews, about ten thousand of them.",
    "Logits are averaged over all tokens but padding, [CLS] and [SEP] included; there, a batch is one text, unpadded.",
    "The head reads the last state after the final norm where the model has one (frozen); the paper takes it out.",
    "The head begins as the difference of both classes' mean states under the base, not at random; it learns slowly.",
    "Several epochs in batches at a high rate, for the base knows far less of the language than GPT-2.",
    "A share of the text tokens is hidden behind [MASK] while learning (recipe, hide).",
)
"""What is not as in the paper, Dar et al. 2023, in the fine-tuned demo models."""
OPTIMIZER = "AdamW, betas 0.9 and 0.98, gradients clipped to norm 1, no decay of biases and gains"


def describe_texts(
    streams: Mapping[str, Streams], counts: Mapping[str, Mapping[str, int]]
) -> list[dict[str, str | float]]:
    """One entry per source: package, share of the mix, documents and tokens of both parts of the split.

    ``streams`` and ``counts`` (documents) are keyed by "train" and "held_out", then by source.
    """
    return [
        {
            "source": source,
            "package": PACKAGES[source],
            "share": share,
            **{f"{part}_documents": counts[part][source] for part in ("train", "held_out")},
            **{f"{part}_tokens": len(streams[part][source].tokens) for part in ("train", "held_out")},
        }
        for source, share in MIX.items()
    ]


def write_model(
    folder: Path, recipe: Recipe, snapshot: Snapshot, tokenizer: Path, sources: list[dict[str, str | float]]
) -> None:
    """Write one snapshot so that ``from_pretrained(folder)`` loads it; ``sources`` is from ``describe_texts``.

    ``tokenizer`` is the folder that holds the tokenizer's two files.
    """
    model = make_model(recipe)
    model.load_state_dict(snapshot.state)
    model.half().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / file, folder / file)
    name = recipe.shipped[snapshot.step]
    masked = recipe.family == "bert"
    card = {
        "name": name,
        "description": DESCRIPTIONS[name],
        "architecture": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "objective": "masked token" if masked else "next token",
        "seed": recipe.seed,
        "step": snapshot.step,
        "recipe": asdict(recipe),
        "optimizer": OPTIMIZER,
        "schedule": f"linear warm-up over {recipe.warmup} steps, then linear decay to 0 at step {recipe.steps}",
        "sequence_tokens": LENGTH,
        "tokens_read": snapshot.step * recipe.batch * LENGTH,
        "texts": sources,
        "train_minutes": round(snapshot.minutes, 1),
        "held_out_loss": round(snapshot.held_out_loss, 4),
        "unigram_loss": round(snapshot.unigram_loss, 4),
        "loss_unit": "nats per token, float16 weights as shipped, same held-out targets for both losses",
        "held_out_mask_share": HELD_OUT_MASK_SHARE if masked else None,
    }
    _write_card(folder, card)


def write_classifier(
    folder: Path, recipe: FineTuning, tuned: Tuned, base: Path, scores: Mapping[str, Score], split: Mapping[str, Any]
) -> None:
    """Write a fine-tuned model so that ``from_pretrained(folder)`` loads it; its tokenizer is that of ``base``.

    ``scores`` are those of the float16 weights on the "held_out" reviews and on the "shipped" ones, ``split`` is what
    the card says of the training texts.
    """
    model = make_classifier(base)
    model.load_state_dict(tuned.state)
    model.half().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / file, folder / file)
    card = {
        "name": recipe.name,
        "description": DESCRIPTIONS[recipe.name],
        "architecture": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "objective": "class of a review: " + " or ".join(LABELS) + ", from the logits averaged over all tokens",
        "base": recipe.base,
        "base_weights_sha256": _digest(base),
        "seed": recipe.seed,
        "step": tuned.steps,
        "recipe": asdict(recipe),
        "optimizer": OPTIMIZER,
        "schedule": f"linear warm-up over {tuned.steps // 10} steps, then linear decay to 0 at step {tuned.steps}",
        "sequence_tokens": LENGTH,
        "tokens_read": tuned.tokens,
        "texts": [split],
        "trained": list(tuned.trained),
        "trained_parameters": sum(tuned.state[name].numel() for name in tuned.trained),
        "frozen": "all else: bit for bit the base's float16 weights, and the head's bias as it began",
        "head_began_as": "difference of the two classes' mean last states under the base, its bias their middle",
        "train_minutes": round(tuned.minutes, 1),
        "train_loss": round(tuned.train_loss, 4),
        **{name: _describe_score(score) for name, score in scores.items()},
        "measured_on": "float16 weights as shipped, computed in float32; loss in nats per text, interval: Wilson, 95 %",
        "paper": "Dar et al. 2023, Analyzing Transformers in Embedding Space",
        "differences_from_paper": list(DIFFERENCES),
    }
    _write_card(folder, card)


def write_translator(
    folder: Path, recipe: Translation, checkpoint: Checkpoint, tokenizer: Any, score: TranslationScore
) -> None:
    """Write one checkpoint of a number translator so that ``from_pretrained(folder)`` loads it.

    ``score`` is that of the float16 weights on the pairs that ship.
    """
    model = make_translator(recipe, len(tokenizer))
    model.load_state_dict(checkpoint.state)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    name = recipe.shipped[checkpoint.step]
    card = {
        "name": name,
        "description": DESCRIPTIONS[name],
        "architecture": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "objective": "next target token, the source and the target before it given",
        "seed": recipe.seed,
        "step": checkpoint.step,
        "recipe": asdict(recipe),
        "optimizer": "AdamW, betas 0.9 and 0.98, gradients clipped to norm 1",
        "schedule": f"linear warm-up over {recipe.warmup} steps, then linear decay to 0 at step {recipe.steps}",
        "texts": [
            {
                "source": "numbers",
                "package": numbers.PACKAGE,
                "share": 1.0,
                "train_pairs": recipe.pairs,
                "held_out_pairs": score.texts,
            }
        ],
        "split": f"by a hash of each number from 100 up and of each date, {numbers.HELD_OUT:.0%} held out; those of "
        "the pairs that ship are held out",
        "train_minutes": round(checkpoint.minutes, 1),
        "held_out_loss": round(score.loss, 4),
        "held_out_exact_match": round(score.exact, 4),
        "held_out_bleu": round(score.bleu, 2),
        "held_out_chrf": round(score.chrf, 2),
        "loss_unit": "nats per target token with its end, float16 weights as shipped, computed in float32; BLEU and "
        "chrF by sacrebleu's defaults, of greedy output",
    }
    made = {name: version(name) for name in ("num2words", "sacrebleu")}
    licence = "Weights and pairs: MIT, as the project."
    _write_card(folder, card, made=made, licence=licence)


def _describe_score(score: Score) -> dict[str, Any]:
    return {
        "examples": score.examples,
        "right": score.right,
        "accuracy": round(score.accuracy, 4),
        "interval": [round(bound, 4) for bound in wilson(score.right, score.examples)],
        "majority": round(score.majority, 4),
        "loss": round(score.loss, 4),
    }


def _write_card(
    folder: Path, card: dict[str, Any], *, made: Mapping[str, str] | None = None, licence: str = LICENCE
) -> None:
    card |= {
        "weights_sha256": _digest(folder),
        "made_with": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            **(made or {}),
        },
        "licence": licence,
        "command": f"python -m embcompare.demo.build --only {card['name']}",
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
