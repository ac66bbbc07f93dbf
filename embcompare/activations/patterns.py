"""Attention patterns: the probabilities of every self-attention head, and how much of them each token receives.

A token's attention is counted in units of even attention: 1 is what it would get from queries that look at all they
may see alike. Query i of n_i visible keys (itself and special tokens among them) gives key j n_i p_ij, and what j
receives is the mean over the queries of the text that see it: all of them, or in a causal model those from j on. So
texts of different lengths can be put in one table, and a head that looks everywhere alike is constant. Special tokens
are neither rows nor queries, but nothing is rescaled for them: what a query spends on [SEP] is missing elsewhere.
Ren et al. 2023 average probabilities over the queries too, of texts padded to 128 tokens, pads among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.activations.forward import Stack, check_observable, inputs, stack_of
from embcompare.errors import Incomparable, UnsupportedFamily

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from embcompare.models.loading import LoadedModel

_LEAKS = 1e-3
"""Attention that may go where a query cannot look: rounding of bfloat16."""


def is_causal(model: LoadedModel, stack: Stack) -> bool:
    """Return whether queries see no key behind them."""
    return not stack.encoder and model.anatomy.blocks[0].attention.causal


def observe_patterns(model: LoadedModel, sentences: list[np.ndarray], see: Callable[[int, Tensor], object]) -> None:
    """Run a model on tokens, special ones included, and call ``see(block, probabilities)`` for each block from 1.

    Probabilities are (b, heads, t, t), a text a row, padded on the right: rows and columns of pads mean nothing. They
    are in the model's dtype, float32 where that is half as wide, and nothing holds them afterwards. Raises
    ``UnsupportedFamily`` where the heads cannot be observed, and ``Incomparable`` for texts longer than what a model
    sees at a time.
    """
    stack = stack_of(model)
    check_observable(model, stack, "patterns", "token")
    _run(model, stack, inputs(model, stack, sentences), see)


def received(
    model: LoadedModel, stack: Stack, wanted: set[str], given: dict[str, Any], is_text: list[np.ndarray]
) -> dict[str, Tensor]:
    """Return, by layer, the attention that each token receives, (b, t, heads), in units of even attention.

    ``3-special`` is, for each token as a query, the share that it spends on special tokens. ``is_text`` masks the
    tokens of the texts; rows of others mean nothing.
    """
    import torch

    real = given["attention_mask"].bool()
    text = np.zeros(tuple(real.shape), dtype=bool)
    for at, row in enumerate(is_text):
        text[at, : len(row)] = row
    queries = torch.from_numpy(text).to(real.device)
    causal, seen = is_causal(model, stack), {}  # type: bool, dict[str, Tensor]
    length = real.shape[1]
    visible = torch.arange(1, length + 1, device=real.device).expand_as(real) if causal else real.sum(1, keepdim=True)
    # how many queries see each key
    watched = queries.flip(1).cumsum(1).flip(1) if causal else queries.sum(1, keepdim=True).expand_as(real)
    special = real & ~queries

    def reduce(number: int, probabilities: Tensor) -> None:
        if not {str(number), f"{number}-special"} & wanted:
            return
        weight = (visible * queries).to(probabilities.dtype)
        total = torch.einsum("bhij,bi->bjh", probabilities, weight)
        seen[str(number)] = total / watched.clamp(min=1).to(total.dtype)[..., None]
        seen[f"{number}-special"] = torch.einsum("bhij,bj->bih", probabilities, special.to(total.dtype))

    _run(model, stack, given, reduce)
    return {layer: each for layer, each in seen.items() if layer in wanted}


def _run(model: LoadedModel, stack: Stack, given: dict[str, Any], see: Callable[[int, Tensor], object]) -> None:
    """Run a copy of the stack that keeps its probabilities, and hand each block's to ``see``."""
    import torch

    from embcompare.decomposition.twin import on_exact_attention

    _check_window(model, stack, given["input_ids"].shape[1])
    with model.lock:
        owner = on_exact_attention(stack.owner)
    real, label = given["attention_mask"].bool(), model.spec.label
    allowed = real[:, None, None, :]
    if is_causal(model, stack):
        allowed = allowed & torch.ones(real.shape[1], real.shape[1], dtype=torch.bool, device=real.device).tril()

    def hook(number: int) -> Any:
        def after(module: Any, *_: Any) -> None:
            found = module.__dict__.pop("kept", None)
            if found is None:
                raise UnsupportedFamily(
                    f"{label} does not attend in block {number} as its family does, so its patterns cannot be seen."
                )
            found = found.float() if found.element_size() < 4 else found
            leaks = (found.masked_fill(allowed, 0).sum(-1) * real[:, None]).max()
            if float(leaks) > _LEAKS:
                raise UnsupportedFamily(
                    f"{label} lets tokens of block {number} attend where its family does not, so its patterns cannot "
                    "be read; compare hidden states instead."
                )
            see(number, found)

        return after

    for number, name in enumerate(stack.parts["patterns"], 1):
        part = owner.get_submodule(name)
        part.__dict__["keeps"] = True
        part.register_forward_hook(hook(number))
    with torch.inference_mode():
        (owner if stack.encoder else owner.base_model)(**given)


def _check_window(model: LoadedModel, stack: Stack, length: int) -> None:
    config = stack.run.config
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window and length > window and (kinds is None or "sliding_attention" in kinds):
        raise Incomparable(
            f"{model.spec.label} sees {window:,} tokens back at a time, and a text here has {length:,}; give shorter "
            "texts for attention patterns."
        )
