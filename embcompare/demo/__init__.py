"""The small models that ship with embcompare, and the scripts that trained them.

This module is light: it names the models and finds their folders. ``texts``, ``tokenizer``, ``recipes``, ``training``,
``finetuning``, ``numbers``, ``translating`` and ``build`` make them again from scratch: ``python -m
embcompare.demo.build``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embcompare.errors import ModelNotFound

SEEDS = (1, 2, 3, 4, 5)
"""Seeds of the number translators."""
STEPS = (100, 200, 250, 300, 400, 600)
"""Steps of training at which each of them ships."""
NUMBERS: dict[int, tuple[str, ...]] = {seed: tuple(f"numbers-{seed}-{step}" for step in STEPS) for seed in SEEDS}
"""Names of the number translators by seed, each in the order of its training."""


def _describe_numbers(seed: int, step: int) -> str:
    what = f"Marian, 2 encoder and 4 decoder layers, 40 wide, seed {seed}: numbers and dates from English to Spanish"
    if step < STEPS[-1]:
        return f"{what}, seen after {step} steps"
    earlier = ", ".join(str(each) for each in STEPS[:-1])
    return f"{what}, at its end, {step} steps; numbers-{seed}-… also ship after {earlier}"


DESCRIPTIONS: dict[str, str] = {
    "gpt2-a": "GPT-2, 6 layers, 128 wide, seed 1: twin of gpt2-b",
    "gpt2-b": "GPT-2, 6 layers, 128 wide, seed 2: twin of gpt2-a",
    "gpt2-wide": "GPT-2, 8 layers, 160 wide, seed 3: same vocabulary and texts as the twins, another shape",
    "bert-a": "BERT, masked language model, 4 layers, 128 wide, seed 1: twin of bert-b",
    "bert-b": "BERT, masked language model, 4 layers, 128 wide, seed 2: twin of bert-a",
    "gpt2-series-50": "GPT-2, 4 layers, 96 wide, seed 4: one training seen after 50 steps",
    "gpt2-series-150": "GPT-2, 4 layers, 96 wide, seed 4: the same training after 150 steps",
    "gpt2-series-400": "GPT-2, 4 layers, 96 wide, seed 4: the same training after 400 steps",
    "gpt2-series-1000": "GPT-2, 4 layers, 96 wide, seed 4: the same training after 1,000 steps",
    "gpt2-series-2000": "GPT-2, 4 layers, 96 wide, seed 4: the same training at its end, 2,000 steps",
    "gpt2-a-sentiment": "gpt2-a with its last 3 blocks fine-tuned to tell good film reviews from bad ones, seed 1",
    "gpt2-b-sentiment": "gpt2-b with its last 3 blocks fine-tuned to tell good film reviews from bad ones, seed 2",
    "bert-a-sentiment": "bert-a with all blocks fine-tuned to tell good film reviews from bad ones, seed 1",
    **{f"numbers-{seed}-{step}": _describe_numbers(seed, step) for seed in SEEDS for step in STEPS},
}
"""Name of each demo model and one line on what it is."""

SOURCES: dict[str, str] = {
    "sotu": "State of the Union addresses",
    "moby-dick": "Moby Dick",
    "reviews": "film review snippets",
}
"""What each source in a card's ``texts`` is called among people."""

NAMES: tuple[str, ...] = tuple(DESCRIPTIONS)
"""Names of the demo models, twins first."""
OFFERED: tuple[str, ...] = tuple(name for name in NAMES if not any(name in names[:-1] for names in NUMBERS.values()))
"""Names that a list of models shows: of each number translator the last checkpoint alone."""
TUNED: tuple[str, ...] = ("gpt2-a-sentiment", "gpt2-b-sentiment", "bert-a-sentiment")
"""Names of those that were fine-tuned; ``base`` in the card of each names the demo model it began with."""

_WEIGHTS = Path(__file__).parent / "weights"


def weights_folder(name: str) -> Path:
    """Folder of a demo model, loadable with ``from_pretrained``.

    Raises ``ModelNotFound`` when no demo has that name or its files are absent from the installation.
    """
    if name not in DESCRIPTIONS:
        raise ModelNotFound(f"There is no demo model named {name!r}; choose one of {', '.join(OFFERED)}.")
    folder = _WEIGHTS / name
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFound(
            f"The weights of the demo model {name!r} are not installed; "
            f"make them with: python -m embcompare.demo.build --only {name}"
        )
    return folder


def read_card(name: str) -> dict[str, Any]:
    """Provenance of a demo model: architecture, texts, seed, schedule, minutes and losses (in nats per token).

    The card of a fine-tuned one has accuracies with their intervals instead of losses per token.

    Raises ``ModelNotFound`` as ``weights_folder`` does.
    """
    card: dict[str, Any] = json.loads((weights_folder(name) / "card.json").read_text(encoding="utf-8"))
    return card
