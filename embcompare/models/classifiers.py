"""A token classifier around the body of a loaded model: its weights shared, but for those that are to learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embcompare.errors import UnsupportedFamily
from embcompare.models.configs import quiet
from embcompare.models.families import FAMILIES

if TYPE_CHECKING:
    import torch
    from torch import nn

    from embcompare.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class Classifier:
    """A module that classifies tokens, in eval mode, and its linear head over the last hidden states.

    ``learning`` are the matrices and gains of the last blocks by name, float32 and owned by ``module`` alone; nothing
    has a gradient yet. The head is all zeros.
    """

    module: nn.Module
    head: nn.Linear
    learning: dict[str, torch.Tensor]


def classifier_class(model: LoadedModel) -> Any:
    """Return the class that transformers has for token classifiers of the model's family.

    Raises ``UnsupportedFamily`` for encoder-decoders, and where there is no such class.
    """
    from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING as KINDS

    module: Any = model.module
    if getattr(module.config, "is_encoder_decoder", False):
        raise UnsupportedFamily(
            f"{model.spec.label} is an encoder-decoder, whose decoder reads a second text, so it is not fine-tuned "
            "here; choose an encoder or a decoder-only model."
        )
    try:
        return KINDS[type(module.config)]
    except KeyError:
        raise _unsupported(model) from None


def make_classifier(model: LoadedModel, kind: Any, classes: Sequence[str], blocks: int, device: str) -> Classifier:
    """Build a classifier of class ``kind`` around the model's body, in float32 on ``device``.

    All modules are new, so that hooks on one model are not seen by the other. Of the weights only matrices and gains
    of the last ``blocks`` blocks are copied; all others are the model's own tensors where dtype and device are those
    wanted. No random number is drawn.
    """
    import torch

    module: Any = model.module
    body = module.base_model
    last = [block.sites["block"] for block in model.anatomy.blocks[model.anatomy.n_layers - blocks :]]
    with model.lock:  # no hook may hang on what is copied
        wanted = {
            id(weight)
            for name in last
            for label, weight in module.get_submodule(name).named_parameters()
            if label.endswith("weight")
        }
        tensors = {id(each): each for each in (*body.parameters(), *body.buffers())}
        # what deepcopy finds here it takes as it is
        memo: dict[int, Any] = {key: _placed(each, device, key in wanted) for key, each in tensors.items()}
        learning = {id(memo[key]) for key in wanted}
        config = copy.deepcopy(body.config, memo)
        config.id2label = dict(enumerate(classes))
        config.label2id = {name: index for index, name in enumerate(classes)}
        body = copy.deepcopy(body, memo)
    if "use_cache" in config.to_dict():
        config.use_cache = False
    with quiet(), torch.device("meta"):
        built: Any = kind(config)
    fresh = built.base_model
    if type(fresh) is not type(body):
        raise _unsupported(model)
    for name, _ in list(body.named_children()):
        if getattr(fresh, name, None) is None:  # a pooler, which classifiers of tokens do without
            setattr(body, name, None)
    setattr(built, built.base_model_prefix, body)
    slot = "score" if hasattr(built, "score") else "classifier"
    shape = (len(classes), model.anatomy.width)
    if tuple(getattr(getattr(built, slot, None), "weight", torch.empty(0)).shape) != shape:
        raise _unsupported(model)
    head = torch.nn.utils.skip_init(torch.nn.Linear, shape[1], shape[0], device=device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    setattr(built, slot, head)
    built.requires_grad_(False).eval()
    names = {name: weight for name, weight in built.named_parameters() if id(weight) in learning}
    return Classifier(built, head, names)


def _placed(tensor: torch.Tensor, device: str, own: bool) -> torch.Tensor:
    """Return a tensor in float32 on ``device``: itself where it is that already and need not be ``own``."""
    import torch

    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    plain = tensor.detach()
    moved = plain.to(device, dtype, copy=own)
    if not isinstance(tensor, torch.nn.Parameter):
        return tensor if moved is plain else moved
    return tensor if moved is plain else torch.nn.Parameter(moved, requires_grad=False)


def _unsupported(model: LoadedModel) -> UnsupportedFamily:
    from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES as NAMES

    there = ", ".join(name for name, family in FAMILIES.items() if name in NAMES and not family.cross_qkv)
    return UnsupportedFamily(
        f"transformers has no classifier of tokens around {model.spec.label} (family '{model.anatomy.family}'), so it "
        f"cannot be fine-tuned into one here; choose a model of one of the families {there}."
    )
