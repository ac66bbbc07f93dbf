"""Heads that predict tokens: a model's way from a hidden state to logits, read from its module and proved on it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embcompare.errors import Incomparable, UnsupportedFamily

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.models.loading import LoadedModel

_HEADS: dict[str, tuple[str, ...]] = {
    "bert": ("cls.predictions.transform",),
    "roberta": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "xlm-roberta": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "camembert": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "distilbert": ("vocab_transform", "config.activation", "vocab_layer_norm"),
    "electra": ("generator_predictions",),
}
"""Family: what stands between the last state and the output embedding, submodules and activations in order."""
_TOLERANCE = {"torch.float64": 1e-4, "torch.float32": 2e-3, "torch.float16": 3e-2, "torch.bfloat16": 1e-1}


@dataclass(frozen=True, eq=False)
class Head:
    """A model's way from a hidden state to logits over all rows of its output embedding, in one dtype.

    ``norm`` is the final norm, None where there is none; ``steps`` are the MLM head's transform, or a projection to
    a narrower embedding. Logits are ``scale · E step(norm(x)) + bias``, squeezed by ``c tanh(·/c)`` with a softcap c.
    """

    norm: Callable[[Tensor], Tensor] | None
    steps: tuple[Callable[[Tensor], Tensor], ...]
    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    note: str

    def logits(self, states: Tensor, *, normed: bool) -> Tensor:
        """Return logits (..., V) for states (..., d); ``normed`` says that they have passed the final norm."""
        from torch.nn.functional import linear

        x = states if normed or self.norm is None else self.norm(states)
        for step in self.steps:
            x = step(x)
        z = linear(x * self.scale if self.scale != 1.0 else x, self.weight, self.bias)
        return z if self.softcap is None else z.div_(self.softcap).tanh_().mul_(self.softcap)


def read_head(model: LoadedModel, dtype: torch.dtype) -> Head:
    """Read a model's head, bring it to ``dtype``, and prove on four tokens that it gives the model's own logits.

    A causal model that was loaded without its head has the input embedding for one where its config ties the two.
    Raises ``Incomparable`` where there is no head, and ``UnsupportedFamily`` where it does something unknown.
    """
    module: Any = model.module
    anatomy, output = model.anatomy, module.get_output_embeddings()
    tied = anatomy.blocks[0].attention.causal and bool(getattr(module.config, "tie_word_embeddings", False))
    note = ""
    if output is None and not tied:
        raise Incomparable(
            f"{model.spec.label} has no head that predicts tokens, so its layers give no distributions; choose a "
            "version with a language-model head, or compare hidden states with representation-similarity."
        )
    if output is None:
        output = module.get_input_embeddings()
        note = f"{model.spec.label} came without its head; its config ties it to the input embedding, which is used."
    with model.lock:
        norm = anatomy.sites.get("final_norm")
        bias = getattr(output, "bias", None)
        head = Head(
            norm=None if norm is None else copy.deepcopy(module.get_submodule(norm)).to(dtype),
            steps=tuple(_steps(model, dtype)),
            weight=output.weight.to(dtype),
            bias=None if bias is None else bias.to(dtype),
            scale=anatomy.unembedding_scale,
            softcap=anatomy.unembedding_softcap,
            note=note,
        )
    if not note:
        _prove(model, head)
    return head


def _steps(model: LoadedModel, dtype: torch.dtype) -> Iterator[Callable[[Tensor], Tensor]]:
    from transformers.activations import ACT2FN

    from embcompare.models.families import FAMILIES
    from embcompare.models.reading import stack_of

    module: Any = model.module
    for name in _HEADS.get(model.anatomy.family, ()):
        if name == "gelu":
            yield ACT2FN[name]
        elif name.startswith("config."):
            yield ACT2FN[getattr(module.config, name.removeprefix("config."))]
        else:
            try:
                part = module.get_submodule(name)
            except AttributeError as error:
                raise UnsupportedFamily(
                    f"{model.spec.label} has no {name}, which heads of the family '{model.anatomy.family}' have, so "
                    "its predictions cannot be read; load it with its masked-language-model head."
                ) from error
            yield copy.deepcopy(part).to(dtype)
    family = FAMILIES[model.anatomy.family]
    project = getattr(stack_of(module, family), family.project_out, None) if family.project_out else None
    if project is not None:
        yield copy.deepcopy(project).to(dtype)


def _prove(model: LoadedModel, head: Head) -> None:
    """Compare the head on the last state of four tokens with the logits that the module gives for them."""
    import torch

    from embcompare.models.validation import hooked

    anatomy, module = model.anatomy, model.module
    ids = torch.randint(0, len(anatomy.embedding), (1, 4), generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"input_ids": ids.to(anatomy.embedding.device)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    last = anatomy.sites.get("final_norm") or anatomy.blocks[-1].sites["block"]
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def keep(states: Tensor) -> None:
        if threading.get_ident() == thread:  # another may run the same module without the lock
            seen.append(states)

    with model.lock, hooked(module) as hook:
        hook.after(last, keep)
        out = module(**given)
    expected = out.logits if "logits" in out else out.prediction_logits
    found = head.logits(seen[-1].to(head.weight.dtype), normed=True)
    error = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    if not error <= _TOLERANCE.get(str(anatomy.embedding.dtype), 1e-1):
        raise UnsupportedFamily(
            f"{model.spec.label} does not compute its logits as the family '{anatomy.family}' does (relative error "
            f"{error:.1e}), so its layers cannot be read through its head; compare hidden states instead."
        )
