"""Writing a trained demo model: configuration, float16 weights, tokenizer, and the card that says how it was made."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from embcompare.demo import DESCRIPTIONS
from embcompare.demo.recipes import MIX, Recipe
from embcompare.demo.texts import PACKAGES
from embcompare.demo.tokenizer import LENGTH
from embcompare.demo.training import HELD_OUT_MASK_SHARE, Snapshot, Streams, make_model

LICENCE = (
    "Weights: MIT, as the project. Addresses and novel: public domain. Review snippets: third-party text, read at "
    "training time only; none of it is in the repository."
)
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
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "made_with": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
        },
        "licence": LICENCE,
        "command": f"python -m embcompare.demo.build --only {name}",
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
