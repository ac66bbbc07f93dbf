"""One pass of a model over a batch of sentences, its blocks observed by hooks and nothing else touched.

Hooks, not ``output_hidden_states``: only the layers that are wanted are held, models that ignore that flag are
observed all the same, and the last block's own output is seen beside the state after the final norm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.activations.states import CALLED, Kind, What
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
    """What to run and where to look: ``blocks`` and ``norm`` are submodule names of ``owner``.

    ``parts`` names, for what is no hidden state, one submodule a block: the one whose output the block adds to the
    residual stream, and for patterns the one that attends.
    """

    owner: Any
    run: Any
    blocks: tuple[str, ...]
    norm: str | None
    encoder: bool
    parts: Mapping[What, tuple[str, ...]] = field(default_factory=dict)


_ENCODERS: dict[str, dict[What, str]] = {
    "layers": {"attention": "self_attn.out_proj", "feed_forward": "fc2", "patterns": "self_attn"},
    "block": {
        "attention": "layer.0.SelfAttention.o",
        "feed_forward": "layer.1.DenseReluDense.wo",
        "patterns": "layer.0.SelfAttention",
    },
}
"""Where the blocks of an encoder keep what is observed, by what the list of blocks is called there."""


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
    model: LoadedModel, stack: Stack, wanted: set[str], encoded: Encoded, batch: np.ndarray, what: What
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Yield (sentences, states by layer), in one go or, where the GPU's memory does not suffice, in halves."""
    import torch

    try:
        seen = _observe(model, stack, wanted, encoded, batch, what)
    except torch.OutOfMemoryError:
        if len(batch) == 1:
            raise
        seen = None
    if seen is not None:
        yield batch, seen
        return
    torch.cuda.empty_cache()
    for half in np.array_split(batch, 2):
        yield from forward(model, stack, wanted, encoded, half, what)


def _observe(
    model: LoadedModel, stack: Stack, wanted: set[str], encoded: Encoded, batch: np.ndarray, what: What
) -> dict[str, Tensor]:
    """Run the blocks once and return the wanted states, (b, t, d) each; no hook is left, whatever happens."""
    given = inputs(model, stack, [encoded.ids[number] for number in batch])
    if what == "patterns":
        from embcompare.activations.patterns import received

        seen = received(model, stack, wanted, given, [encoded.is_text[number] for number in batch])
    elif what == "hidden":
        seen = _states(model, stack, wanted, given)
    else:
        seen = added(model, stack, what, wanted, given)
    whole = tuple(given["input_ids"].shape)
    for layer in sorted(wanted):
        shape = tuple(seen[layer].shape) if layer in seen else ()
        if shape[:2] != whole or len(shape) != 3:
            shown, run = ("states", "block") if what == "hidden" else (CALLED[what], "module")
            raise UnsupportedFamily(
                f"{model.spec.label} does not show the {shown} of layer {layer.partition('-')[0]} "
                f"({'shape ' + str(shape) if shape else f'its {run} is not run'}), so they cannot be captured."
            )
    return seen


def inputs(model: LoadedModel, stack: Stack, sentences: list[np.ndarray]) -> dict[str, Any]:
    """Return what ``stack`` is run on: tokens (b, t), padded on the right, and their mask."""
    import torch

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
    return given


def _keeper(seen: dict[str, Tensor], shape: tuple[int, ...] = ()) -> Any:
    """Return what keeps a layer's states in ``seen``, brought to ``shape`` with the width behind it if given."""
    thread = threading.get_ident()

    def keep(layer: str, states: Tensor) -> None:
        if threading.get_ident() == thread:  # another may run the same module without the lock
            seen[layer] = states.reshape(*shape, states.shape[-1]) if shape else states

    return keep


def added(model: LoadedModel, stack: Stack, what: What, wanted: set[str], given: dict[str, Any]) -> dict[str, Tensor]:
    """Return what the wanted blocks' modules add to the residual stream, (b, t, d) each."""
    from embcompare.models.validation import hooked

    seen: dict[str, Tensor] = {}
    # OPT's feed-forward sees all texts as one row of tokens
    keep = _keeper(seen, tuple(given["input_ids"].shape))
    with model.lock, hooked(stack.owner) as hook:
        for number, name in enumerate(stack.parts[what], 1):
            if str(number) in wanted:
                hook.after(name, partial(keep, str(number)))
        stack.run(**given)
    return seen


def _states(model: LoadedModel, stack: Stack, wanted: set[str], given: dict[str, Any]) -> dict[str, Tensor]:
    """Return the wanted hidden states, (b, t, d) each."""
    from embcompare.models.validation import hooked

    seen: dict[str, Tensor] = {}
    keep, last = _keeper(seen), len(stack.blocks)
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
    return seen


def stack_of(model: LoadedModel) -> Stack:
    anatomy = model.anatomy
    module: Any = model.module
    if not (getattr(module.config, "is_encoder_decoder", False) and anatomy.blocks[0].cross_attention is not None):
        sites = [block.sites for block in anatomy.blocks]
        parts: dict[What, tuple[str, ...]] = {
            # a norm between the module and the sum, as in Gemma 2, is part of what is added
            "attention": tuple(each.get("norm.attention_output", each["attention_out"]) for each in sites),
            "feed_forward": tuple(each.get("norm.feed_forward_output", each["feed_forward_out"]) for each in sites),
            "patterns": tuple(each["attention_in"].rpartition(".")[0] for each in sites),
        }
        blocks = tuple(each["block"] for each in sites)
        return Stack(module, module.base_model, blocks, anatomy.sites.get("final_norm"), False, parts)
    encoder = module.get_encoder()
    name = next((name for name in ("block", "layers") if hasattr(encoder, name)), None)
    if name is None:
        raise UnsupportedFamily(
            f"{model.spec.label} has an encoder whose blocks are not known, so nothing is captured."
        )
    blocks = tuple(f"{name}.{number}" for number in range(len(getattr(encoder, name))))
    norm = next((each for each in ("final_layer_norm", "layer_norm") if getattr(encoder, each, None) is not None), None)
    inside = {what: tuple(f"{each}.{path}" for each in blocks) for what, path in _ENCODERS[name].items()}
    return Stack(encoder, encoder, blocks, norm, True, inside)


def longest_input(model: LoadedModel, stack: Stack | None = None) -> int:
    """Return the longest input, special tokens counted, that the model's stack has positions for."""
    return positions.longest_input(model, (stack or stack_of(model)).run, LONGEST)


def heads_of(model: LoadedModel, stack: Stack) -> int:
    """Return the number of heads of each self-attention layer that is captured."""
    return int(stack.run.config.num_attention_heads) if stack.encoder else model.anatomy.blocks[0].attention.heads


def check_observable(model: LoadedModel, stack: Stack, what: What, kind: Kind) -> None:
    """Raise ``SettingsError`` for what is not captured, and ``UnsupportedFamily`` where its module is not known."""
    if what not in CALLED:
        raise SettingsError(f"There is nothing called {what!r} to capture; choose one of {', '.join(CALLED)}.")
    if what == "patterns" and kind != "token":
        raise SettingsError("Attention patterns have one row a token and are not pooled; leave the pooling out.")
    if what == "hidden":
        return
    known = dict(stack.owner.named_modules(remove_duplicate=False))
    missing = [name for name in stack.parts.get(what, ()) if name not in known]
    if missing or not stack.parts.get(what):
        raise UnsupportedFamily(
            f"{model.spec.label} has no module {missing[0] if missing else ''!r}, where its {CALLED[what]} would be "
            "observed; compare its hidden states instead."
        )


def chosen_layers(layers: Sequence[int] | None, blocks: int, label: str, what: What = "hidden") -> tuple[int, ...]:
    first = 0 if what == "hidden" else 1
    numbered = f"{CALLED[what]} are numbered {'0 (embedding output)' if not first else '1 (first block)'} to {blocks}"
    if layers is None:
        return tuple(range(first, blocks + 1))
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not first <= layer <= blocks:
            raise SettingsError(f"There is no layer {layer!r} in {label}; {numbered}.")
    if not len(layers):
        raise SettingsError(f"No layer of {label} was chosen; {numbered}.")
    return tuple(sorted({int(layer) for layer in layers}))
