"""The training loop of the demo models: one thread, and the same seed gives the same bits."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from embcompare.demo.corpus import Ids, Stream, held_out_windows, sample_batch, unigram_log_probabilities
from embcompare.demo.recipes import MIX, Recipe, make_config
from embcompare.demo.tokenizer import LENGTH, MASK, SPECIAL, VOCABULARY

HELD_OUT_WINDOWS = 400
HELD_OUT_MASK_SHARE = 0.15
SHARPNESS = 3.0
"""Scale of the attention scores with which a BERT begins: a token at its head's offset gets most of the weight."""
TOKEN_STD = 0.05
Streams = Mapping[str, Stream]
Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Snapshot:
    """A model at one step: float16 ``state``, minutes of training so far, held-out loss of just these weights."""

    step: int
    state: dict[str, Tensor]
    minutes: float
    held_out_loss: float
    unigram_loss: float


def make_model(recipe: Recipe) -> Any:
    """A freshly initialised model; its weights depend on the recipe's shape and seed only."""
    from transformers import BertForMaskedLM, GPT2LMHeadModel

    config = make_config(recipe)
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if recipe.family == "gpt2":
            return GPT2LMHeadModel(config)
        model = BertForMaskedLM(config)
        open_with_neighbours(model, recipe)
        return model


def open_with_neighbours(model: Any, recipe: Recipe) -> None:
    """Start a BERT whose first layer already shows every token its neighbours at ``recipe.offsets``, one a head.

    A masked token knows nothing of itself, so until some head finds its neighbours only word frequencies can be
    learnt, and at this size that takes most of a training. Positions begin as sinusoids turned by a random rotation;
    each head of the first layer begins by looking at its offset (the queries are the keys, turned by that offset) and
    copies its own part of a random basis of what it sees. Rotation and basis are drawn from the seed, so that twins
    share neither. All of it goes on learning.
    """
    half, head = recipe.width // 2, recipe.width // recipe.heads
    rates = torch.pi * (torch.arange(half) + 0.5) / half
    angles = torch.arange(LENGTH)[:, None] * rates
    turn = torch.linalg.qr(torch.randn(recipe.width, recipe.width)).Q
    basis = torch.linalg.qr(torch.randn(recipe.width, recipe.width)).Q
    embeddings, first = model.bert.embeddings, model.bert.encoder.layer[0].attention
    with torch.no_grad():
        embeddings.word_embeddings.weight.normal_(std=TOKEN_STD)
        embeddings.token_type_embeddings.weight.zero_()
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        embeddings.position_embeddings.weight.copy_(waves @ turn * TOKEN_STD * 2**0.5)
        for index, offset in enumerate(recipe.offsets):
            own = torch.arange(index, half, recipe.heads)  # each head has its own wavelengths
            sine, cosine = torch.eye(recipe.width)[own], torch.eye(recipe.width)[own + half]
            across, along = torch.sin(rates[own] * offset)[:, None], torch.cos(rates[own] * offset)[:, None]
            keys = torch.cat([sine, cosine])
            queries = torch.cat([along * sine + across * cosine, along * cosine - across * sine])
            rows = slice(index * head, (index + 1) * head)
            first.self.key.weight[rows] = SHARPNESS**0.5 * keys @ turn
            first.self.query.weight[rows] = SHARPNESS**0.5 * queries @ turn
            first.self.value.weight[rows] = basis[rows]
            first.output.dense.weight[:, rows] = basis[rows].T


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rate at a step (from 0): linear warm-up, then linear decay to zero at ``recipe.steps``."""
    rising = (step + 1) / recipe.warmup
    falling = (recipe.steps - step) / max(1, recipe.steps - recipe.warmup)
    return recipe.rate * min(1.0, rising, falling)


def mask_tokens(ids: Ids, share: float, random: np.random.Generator, corrupt: bool) -> tuple[Ids, Ids]:
    """Hide a ``share`` of the text tokens; returns the input and the targets (-100 where nothing is asked).

    With ``corrupt``, a tenth of the chosen become random tokens and a tenth stay as they are (Devlin et al. 2019);
    otherwise all become [MASK].
    """
    chosen = (random.random(ids.shape) < share) & (ids >= len(SPECIAL))
    kind = random.random(ids.shape) if corrupt else np.zeros(ids.shape)
    hidden = np.where(chosen & (kind < 0.8), MASK, ids)
    other = random.integers(len(SPECIAL), VOCABULARY, ids.shape)
    hidden = np.where(chosen & (kind >= 0.9), other, hidden)
    return hidden, np.where(chosen, ids, -100)


def causal_loss(model: Any, ids: Tensor) -> Tensor:
    """Mean next-token loss in nats."""
    logits = model(ids[:, :-1]).logits
    return cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def masked_loss(model: Any, ids: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats over the positions whose target is not -100; the head is run on those only."""
    asked = targets != -100
    states = model.bert(ids).last_hidden_state[asked]
    return cross_entropy(model.cls(states), targets[asked])


def held_out(model: Any, recipe: Recipe, train: Streams, held: Streams) -> tuple[float, float]:
    """Held-out loss of a model, and the unigram loss on just the same targets, in nats per token."""
    windows = held_out_windows(held, MIX, HELD_OUT_WINDOWS, recipe.family)
    unigram = unigram_log_probabilities(train, MIX)
    losses, sizes = [], []
    random = np.random.default_rng(0)
    expected: list[Ids] = []
    model.eval()
    with torch.no_grad():
        for rows in np.array_split(windows, max(1, len(windows) // 50)):
            if recipe.family == "gpt2":
                loss, asked = causal_loss(model, torch.from_numpy(rows)), rows[:, 1:].ravel()
            else:
                hidden, targets = mask_tokens(rows, HELD_OUT_MASK_SHARE, random, corrupt=False)
                loss = masked_loss(model, torch.from_numpy(hidden), torch.from_numpy(targets))
                asked = targets[targets != -100]
            losses.append(float(loss))
            sizes.append(len(asked))
            expected.append(asked)
    model.train()
    return float(np.average(losses, weights=sizes)), float(-unigram[np.concatenate(expected)].mean())


def make_optimizer(recipe: Recipe, model: Any) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves biases and gains alone."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)


def batch_loss(model: Any, recipe: Recipe, streams: Streams, random: np.random.Generator) -> Tensor:
    """Loss on the next batch that ``random`` draws, masked by it as well for BERT."""
    ids = sample_batch(streams, MIX, recipe.batch, recipe.family, random)
    if recipe.family == "gpt2":
        return causal_loss(model, torch.from_numpy(ids))
    hidden, targets = mask_tokens(ids, recipe.mask_share, random, corrupt=False)
    return masked_loss(model, torch.from_numpy(hidden), torch.from_numpy(targets))


def train(recipe: Recipe, train: Streams, held: Streams, report: Report | None = None) -> list[Snapshot]:
    """Train one model; returns a snapshot for each step in ``recipe.shipped``. ``report(step, loss)`` is told of all.

    Own generators give the windows and masks, torch runs deterministic algorithms on one thread.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random = np.random.default_rng([recipe.seed, 20])
    model = make_model(recipe)
    model.train()
    optimizer = make_optimizer(recipe, model)
    snapshots, begun = [], time.perf_counter()
    for step in range(recipe.steps):
        loss = batch_loss(model, recipe, train, random)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimizer.step()
        if report:
            report(step + 1, float(loss.detach()))
        if step + 1 in recipe.shipped:
            minutes = (time.perf_counter() - begun) / 60
            rounded = copy.deepcopy(model).half().float()
            losses = held_out(rounded, recipe, train, held)
            state = {name: weight.detach().half() for name, weight in rounded.state_dict().items()}
            snapshots.append(Snapshot(step + 1, state, minutes, *losses))
    return snapshots
