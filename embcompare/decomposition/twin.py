"""A copy of a module's structure, its weights shared, that computes in float64; the module itself is never touched.

Each block's weights are brought to float64 for the moment the block runs. Where a family computes a softmax or an RMS
norm in float32 whatever it is given, the copy computes them in float64; all else is the family's own code.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from embcompare.decomposition.norms import double_norm

if TYPE_CHECKING:
    from embcompare.models.anatomy import NormWeights

_ATTENTION = "embcompare_float64"
_SCORES = 2**23
"""Attention scores held at once: 64 MiB."""


def twin(module: nn.Module) -> Any:
    """Return a copy in eval mode whose blocks run in float64 on exact attention; it carries none of the hooks.

    To be called while nobody hangs hooks on ``module`` (see ``LoadedModel.lock``).
    """
    made = on_exact_attention(module)
    head = made.get_output_embeddings()
    names = {id(part): name for name, part in made.named_modules()}
    if head is not None and head is not made.get_input_embeddings() and id(head) in names:
        put(made, names[id(head)], nn.Identity())  # T5 runs it with its blocks, and V rows are many
    _run_in_double(made)
    return made


def on_exact_attention(module: nn.Module) -> Any:
    """Return a copy of a module's structure, in eval mode, that shares every tensor and carries no hook.

    Its attention is computed step by step in the dtype it is given. A part of it that attends keeps its probabilities
    (n, H, t, s) as ``kept`` in its ``__dict__`` where that says ``keeps``.
    """
    shared = {id(each): each for each in [*module.parameters(), *module.buffers()]}
    twin = copy.deepcopy(module, dict(shared))
    _register()
    for part in twin.modules():
        for name, value in part.__dict__.items():
            if "_hooks" in name and isinstance(value, OrderedDict):
                part.__dict__[name] = OrderedDict()
        config = part.__dict__.get("config")
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = _ATTENTION  # type: ignore[union-attr]
        if "_attn_implementation" in part.__dict__:
            part.__dict__["_attn_implementation"] = _ATTENTION
    return twin.eval()


def _run_in_double(module: nn.Module) -> None:
    """Let every block, and every other part that has weights, run in float64; tables are looked up, then converted."""
    for name, part in module.named_children():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(lambda _, __, out: out.double())
        elif isinstance(part, nn.ModuleList):
            for block in part:
                _as_unit(block)
        elif next(part.parameters(recurse=False), None) is not None:
            _as_unit(part)
        elif name:
            _run_in_double(part)


def _as_unit(part: nn.Module) -> None:
    held: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []

    def convert(*_: Any) -> None:
        for each in part.modules():
            held.append((each, each._parameters, each._buffers))
            each._parameters = {
                name: None if value is None else nn.Parameter(value.detach().double(), requires_grad=False)
                for name, value in each._parameters.items()
            }
            each._buffers = {
                name: value.double() if value is not None and value.is_floating_point() else value
                for name, value in each._buffers.items()
            }

    def restore(*_: Any) -> None:
        for each, parameters, buffers in reversed(held):  # a part that stands in two places is converted twice
            each._parameters, each._buffers = parameters, buffers
        held.clear()

    part.register_forward_pre_hook(convert, prepend=True)
    part.register_forward_hook(restore)


class ExactNorm(nn.Module):
    """A norm in float64 throughout."""

    def __init__(self, weights: NormWeights) -> None:
        super().__init__()
        self.__dict__["weights"] = weights

    def forward(self, x: Tensor) -> Tensor:
        return double_norm(self.__dict__["weights"]).apply(x)


def _register() -> None:
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' modules ask for it, every step in the dtype of ``query``."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    texts, heads, length, _width = query.shape
    step = max(1, _SCORES // (heads * length * key.shape[2]))
    outputs, kept = [], []
    for at in range(0, texts, step):
        rows = slice(at, at + step)
        scores = query[rows] @ key[rows].transpose(-1, -2) * scale
        if softcap is not None:
            scores = (scores / softcap).tanh_().mul_(softcap)
        for added in (position_bias, attention_mask):
            if added is not None:
                scores = scores + (added[rows] if len(added) > 1 else added)
        probabilities = scores.softmax(-1)
        outputs.append(probabilities @ value[rows])
        if module.__dict__.get("keeps"):
            kept.append(probabilities)
    if kept:
        module.__dict__["kept"] = torch.cat(kept)
    return torch.cat(outputs).transpose(1, 2).contiguous(), None


def parent(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])


def put(module: nn.Module, name: str, part: nn.Module) -> None:
    parent(module, name)._modules[name.rpartition(".")[2]] = part
