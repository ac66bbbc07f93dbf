"""Fine-tuning a demo model into a classifier of review snippets, after Dar et al. 2023.

As in the paper a linear head is put on every token's last state, its logits are averaged over all tokens, and only
weights (no biases) of the last blocks and of the head learn. ``shipping.DIFFERENCES`` says what is not as there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from embcompare.demo.recipes import FineTuning
from embcompare.demo.texts import Review, film_is_held_out
from embcompare.demo.tokenizer import LENGTH, MASK, PAD, SPECIAL
from embcompare.demo.training import Report
from embcompare.learning import batches_by_length, descend, mean_over_tokens, padded

LABELS = ("NEGATIVE", "POSITIVE")
"""Names of the two classes in the order of the head's rows."""


@dataclass(frozen=True)
class Examples:
    """Token ids of each text, [CLS] and [SEP] included and cut to ``LENGTH``, and the label of each, 0 or 1."""

    ids: tuple[tuple[int, ...], ...]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str], labels: Iterable[int], tokenizer: Any) -> Examples:
        """Tokenise ``texts``; ``tokenizer`` is a fast tokenizer of ``transformers``."""
        encoded = tokenizer(list(texts), truncation=True, max_length=LENGTH)["input_ids"]
        return cls(tuple(map(tuple, encoded)), np.array(list(labels), np.int64))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Tuned:
    """A fine-tuned model in float16: its weights, which of them learnt, minutes, mean loss over the last epoch."""

    state: dict[str, Tensor]
    trained: tuple[str, ...]
    steps: int
    tokens: int
    minutes: float
    train_loss: float


@dataclass(frozen=True)
class Score:
    """How a classifier does on examples: number right of all, mean loss in nats, share of the larger class."""

    right: int
    examples: int
    loss: float
    majority: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / self.examples


def split_reviews(reviews: Iterable[Review]) -> tuple[list[Review], list[Review]]:
    """Training and held-out reviews, split by film as for the language models; each text once.

    A held-out snippet that also stands under a training film is left out.
    """
    parts: tuple[dict[str, Review], dict[str, Review]] = ({}, {})
    for review in reviews:
        parts[film_is_held_out(review.film)].setdefault(review.text, review)
    train, held = parts
    return list(train.values()), [review for text, review in held.items() if text not in train]


def make_classifier(base: Path) -> Any:
    """The base's weights in float32 with a head of zeros."""
    from transformers import AutoConfig, AutoModelForTokenClassification

    config = AutoConfig.from_pretrained(base, local_files_only=True)
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {name: index for index, name in config.id2label.items()}
    config.classifier_dropout = 0.0
    model: Any = AutoModelForTokenClassification.from_pretrained(
        base, config=config, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
    return model


def begin_with_centroids(model: Any, examples: Examples, norm: float) -> None:
    """Set the head to tell the mean states of the two classes apart: rows ``-u`` and ``u``, a bias of their middle.

    ``u`` (of length ``norm``) points from the mean of the one class to that of the other, a text being the mean of its
    tokens' last states under the base. A head that begins at random teaches the blocks to write in directions that
    mean nothing; these mean what the base took them to mean.
    """
    base = getattr(model, model.base_model_prefix)
    model.eval()
    means = []
    with torch.no_grad():
        for label in range(len(LABELS)):
            ids = sorted((ids for ids, own in zip(examples.ids, examples.labels, strict=True) if own == label), key=len)
            total = torch.zeros(base.config.hidden_size, dtype=torch.float64)
            for at in range(0, len(ids), 100):
                filled, real = padded(ids[at : at + 100], PAD)
                mask = torch.from_numpy(real)[..., None]
                states = base(torch.from_numpy(filled), attention_mask=mask[..., 0].long()).last_hidden_state.double()
                total += ((states * mask).sum(1) / mask.sum(1)).sum(0)
            means.append(total / len(ids))
        along = means[1] - means[0]
        along *= norm / along.norm()
        middle = along @ (means[0] + means[1]) / 2
        model.classifier.weight.copy_(torch.stack([-along, along]))
        model.classifier.bias.copy_(torch.stack([middle, -middle]))


def trainable(model: Any, recipe: FineTuning) -> dict[str, Tensor]:
    """Let the weights of the last ``recipe.blocks`` blocks and of the head learn, and nothing else; by name."""
    base = getattr(model, model.base_model_prefix)
    blocks = base.h if recipe.family == "gpt2" else base.encoder.layer
    wanted = {id(weight) for part in (*blocks[-recipe.blocks :], model.classifier) for weight in part.parameters()}
    learning = {}
    for name, weight in model.named_parameters():
        weight.requires_grad = id(weight) in wanted and name.endswith(".weight")
        if weight.requires_grad:
            learning[name] = weight
    return learning


def batch_logits(model: Any, ids: Sequence[Sequence[int]], hide: float = 0.0, random: Any = None) -> Tensor:
    """Logits (texts, 2): the head's, averaged over all tokens of a text with [CLS] and [SEP], without padding.

    A share ``hide`` of the text tokens is replaced by [MASK], drawn by ``random`` (a numpy generator).
    """
    filled, real = padded(ids, PAD)
    if hide:
        filled = np.where((filled >= len(SPECIAL)) & (random.random(filled.shape) < hide), MASK, filled)
    mask = torch.from_numpy(real)
    return mean_over_tokens(model(input_ids=torch.from_numpy(filled), attention_mask=mask.long()).logits, mask)


def score(model: Any, examples: Examples) -> Score:
    """Accuracy and loss of a classifier, one text at a time so that nothing depends on padding."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([batch_logits(model, [each]) for each in examples.ids])
    labels = torch.from_numpy(examples.labels)
    right = int((logits.argmax(1) == labels).sum())
    loss = float(cross_entropy(logits.float(), labels))
    share = float(examples.labels.mean())
    return Score(right, len(examples), loss, max(share, 1 - share))


def epoch_batches(examples: Examples, size: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Batches of one epoch in random order, each of texts of similar length; a last, smaller one is left out."""
    return batches_by_length(np.array([len(each) for each in examples.ids]), size, random, every=False)


def fine_tune(recipe: FineTuning, base: Path, examples: Examples, report: Report | None = None) -> Tuned:
    """Fine-tune the model in ``base``; ``report(step, loss)`` is told of all. The same seed gives the same bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random = np.random.default_rng([recipe.seed, 41])
    model = make_classifier(base)
    begin_with_centroids(model, examples, recipe.head_norm)
    learning = trainable(model, recipe)
    model.train()
    head = model.classifier.weight
    body = [weight for weight in learning.values() if weight is not head]
    groups = [
        {"params": [w for w in body if w.ndim > 1], "weight_decay": recipe.weight_decay, "times": 1.0},
        {"params": [w for w in body if w.ndim == 1], "weight_decay": 0.0, "times": 1.0},
        {"params": [head], "weight_decay": 0.0, "times": recipe.head_rate},
    ]
    per_epoch = len(examples) // recipe.batch
    steps, begun, tokens = recipe.epochs * per_epoch, time.perf_counter(), 0

    def forward() -> Iterator[Tensor]:
        nonlocal tokens
        for _ in range(recipe.epochs):
            for batch in epoch_batches(examples, recipe.batch, random):
                texts = [examples.ids[index] for index in batch]
                tokens += sum(map(len, texts))
                logits = batch_logits(model, texts, recipe.hide, random)
                yield cross_entropy(logits, torch.from_numpy(examples.labels[batch]))

    losses: list[float] = []
    for loss in descend(forward(), list(learning.values()), groups, steps, recipe.rate):
        losses.append(loss)
        if report:
            report(len(losses), loss)
    minutes = (time.perf_counter() - begun) / 60
    state = {name: weight.detach().half() for name, weight in model.state_dict().items()}
    return Tuned(state, tuple(learning), steps, tokens, minutes, float(np.mean(losses[-per_epoch:])))
