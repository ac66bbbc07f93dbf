"""One pass of a model over a batch of sentences, its blocks observed by hooks and nothing else touched.

Hooks, not ``output_hidden_states``: only the layers that are wanted are held, models that ignore that flag are
observed all the same, and the last block's own output is seen beside the state after the final norm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import SettingsError, UnsupportedFamily
from embcompare.models import positions
from embcompare.text.encoding import Encoded

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models.loading import LoadedModel

LONGEST = 2048
"""Tokens of the longest input, whatever the model could read."""


@dataclass(frozen=True, eq=False)
class Stack:
    """What to run and where to look: ``blocks`` and ``norm`` are submodule names of ``owner``."""

    owner: Any
    run: Any
    blocks: tuple[str, ...]
    norm: str | None
    encoder: bool


def batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield positions of ``lengths``, longest first, in groups that take at most ``batch_tokens`` when padded.

    A group has at least one; lengths of zero are left out.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    at = 0
    while at < len(order):
        size = max(1, batch_tokens // int(lengths[order[at]]))
        yield order[at : at + size]
        at += size


def forward(
    model: LoadedModel, stack: Stack, wanted: set[str], encoded: Encoded, batch: np.ndarray
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Yield (sentences, states by layer), in one go or, where the GPU's memory does not suffice, in halves."""
    import torch

    try:
        seen = _observe(model, stack, wanted, [encoded.ids[number] for number in batch])
    except torch.OutOfMemoryError:
        if len(batch) == 1:
            raise
        seen = None
    if seen is not None:
        yield batch, seen
        return
    torch.cuda.empty_cache()
    for half in np.array_split(batch, 2):
        yield from forward(model, stack, wanted, encoded, half)


def _observe(model: LoadedModel, stack: Stack, wanted: set[str], sentences: list[np.ndarray]) -> dict[str, Tensor]:
    """Run the blocks once and return the wanted states, (b, t, d) each; no hook is left, whatever happens."""
    import torch

    from embcompare.models.validation import hooked

    config, device = stack.run.config, model.anatomy.embedding.device
    longest = max(map(len, sentences))
    fill = next((v for v in (getattr(config, "pad_token_id", None), model.tokenizer.pad_token_id) if v is not None), 0)
    ids = np.full((len(sentences), longest), fill, dtype=np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(sentences):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    given: dict[str, Any] = {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }
    if not stack.encoder and "use_cache" in config.to_dict():
        given["use_cache"] = False
    seen: dict[str, Tensor] = {}
    last, thread = len(stack.blocks), threading.get_ident()

    def keep(layer: str, states: Tensor) -> None:
        if threading.get_ident() == thread:  # another may run the same module without the lock
            seen[layer] = states

    with model.lock, hooked(stack.owner) as hook:
        if "0" in wanted:
            hook.before(stack.blocks[0], partial(keep, "0"))
        for number, name in enumerate(stack.blocks, 1):
            layer = f"{number}-block" if number == last and stack.norm else str(number)
            if layer in wanted:
                hook.after(name, partial(keep, layer))
        if stack.norm and str(last) in wanted:
            hook.after(stack.norm, partial(keep, str(last)))
        stack.run(**given)
    for layer in sorted(wanted):
        shape = tuple(seen[layer].shape) if layer in seen else ()
        if shape[:2] != ids.shape or len(shape) != 3:
            raise UnsupportedFamily(
                f"{model.spec.label} does not show the states of layer {layer.removesuffix('-block')} "
                f"({'shape ' + str(shape) if shape else 'its block is not run'}), so they cannot be captured."
            )
    return seen


def stack_of(model: LoadedModel) -> Stack:
    anatomy = model.anatomy
    module: Any = model.module
    if not (getattr(module.config, "is_encoder_decoder", False) and anatomy.blocks[0].cross_attention is not None):
        blocks = tuple(block.sites["block"] for block in anatomy.blocks)
        return Stack(module, module.base_model, blocks, anatomy.sites.get("final_norm"), False)
    encoder = module.get_encoder()
    name = next((name for name in ("block", "layers") if hasattr(encoder, name)), None)
    if name is None:
        raise UnsupportedFamily(
            f"{model.spec.label} has an encoder whose blocks are not known, so nothing is captured."
        )
    blocks = tuple(f"{name}.{number}" for number in range(len(getattr(encoder, name))))
    norm = next((each for each in ("final_layer_norm", "layer_norm") if getattr(encoder, each, None) is not None), None)
    return Stack(encoder, encoder, blocks, norm, True)


def longest_input(model: LoadedModel, stack: Stack | None = None) -> int:
    """Return the longest input, special tokens counted, that the model's stack has positions for."""
    return positions.longest_input(model, (stack or stack_of(model)).run, LONGEST)


def chosen_layers(layers: Sequence[int] | None, blocks: int, label: str) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(blocks + 1))
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 0 <= layer <= blocks:
            raise SettingsError(
                f"There is no layer {layer!r} in {label}; hidden states are numbered 0 (embedding output) to {blocks}."
            )
    if not len(layers):
        raise SettingsError(f"No layer of {label} was chosen; hidden states are numbered 0 to {blocks}.")
    return tuple(sorted({int(layer) for layer in layers}))
