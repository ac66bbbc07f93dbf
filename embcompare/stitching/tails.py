"""The upper part of a model, run on hidden states that came from elsewhere.

The module itself is never touched, for others may be running it: the few modules that hold the blocks are copied
shallowly, all weights shared, and in the copy the blocks below are replaced by ones that hand the given states on. The
model's own code does the rest, so masks, positions inside attention and all that a family does are as they are there.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from embcompare.errors import Incomparable, SettingsError

if TYPE_CHECKING:
    from embcompare.models.loading import LoadedModel

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
"""How the classes of models that classify texts end."""


@dataclass(frozen=True, eq=False)
class Tail:
    """Blocks ``entry`` to the last of ``model``, and what stands above them.

    ``entry`` counts hidden states: 0 is the embedding output, so that all L blocks run, and L runs none of them: then
    the states meet the final norm, where there is one, and the head. With ``positions_again`` the states are given to
    the model as if they were token embeddings, with positions (and, in BERT, segments and a norm) added to them once
    more and the lower blocks skipped: so did the official notebook of Dar et al. 2023.

    Raises :class:`SettingsError` for an entry that does not exist and :class:`Incomparable` for models of which an
    upper part does not run alone (see :func:`check_runs_alone`).
    """

    model: LoadedModel
    entry: int
    positions_again: bool = False

    def __post_init__(self) -> None:
        check_runs_alone(self.model)
        last = self.model.anatomy.n_layers
        if not 0 <= self.entry <= last:
            raise SettingsError(
                f"States cannot enter {self.model.spec.label} at layer {self.entry}; its hidden states are 0 "
                f"(embedding output) to {last}."
            )

    def states(self, given: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the last hidden state (n, t, d), after the final norm where there is one.

        ``given`` (n, t, d) are the states at ``entry``; ``ids`` and ``mask`` (n, t) the tokens they stand for, padded
        on the right: of the tokens nothing is read, but they tell where a text ends.
        """
        seen: list[Tensor] = []
        self._copy(given, seen).base_model(**_inputs(self.model, ids, mask))
        return seen[-1]

    def class_logits(self, given: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits (n, labels) of a classifier, averaged over all tokens if it classifies tokens."""
        return _class_logits(self.model, self._copy(given, []), ids, mask)

    def _copy(self, given: Tensor, seen: list[Tensor]) -> Any:
        """Return a copy of the module around the same weights that runs the upper part on ``given``."""
        anatomy, module = self.model.anatomy, self.model.module
        blocks = [block.sites["block"] for block in anatomy.blocks]
        last = anatomy.sites.get("final_norm") or blocks[-1]
        instead: dict[str, nn.Module] = {name: _fused(module.get_submodule(name)) for name in blocks[self.entry :]}
        handed = None if self.positions_again else given
        instead |= {name: _Passes(module.get_submodule(name), handed) for name in blocks[: self.entry]}
        if self.positions_again:
            instead[anatomy.sites["embedding"]] = _Gives(given)
        elif not self.entry:
            instead[blocks[0]] = _Begins(instead[blocks[0]], given)
        instead[last] = _Tells(instead.get(last) or module.get_submodule(last), seen)
        return with_replaced(module, instead)


@dataclass(frozen=True, eq=False)
class Observed:
    """What a model computes for a batch: ``states`` are its L + 1 hidden states (n, t, d), all before the final norm;
    ``last`` is the last one after it (the same where there is none); ``class_logits`` (n, labels) are a classifier's.
    """

    states: tuple[Tensor, ...]
    last: Tensor
    class_logits: Tensor | None


def observe(model: LoadedModel, ids: Tensor, mask: Tensor, *, classes: bool = False) -> Observed:
    """Run a model on a batch of tokens (n, t), padded on the right, and return all its hidden states.

    With ``classes`` a classifier gives its logits too.
    """
    anatomy, seen = model.anatomy, []  # type: tuple[Any, list[Tensor]]
    blocks = [block.sites["block"] for block in anatomy.blocks]
    instead: dict[str, nn.Module] = {name: _Tells(model.module.get_submodule(name), seen) for name in blocks}
    instead[blocks[0]] = _Hears(instead[blocks[0]], seen)
    if norm := anatomy.sites.get("final_norm"):
        instead[norm] = _Tells(model.module.get_submodule(norm), seen)
    module = with_replaced(model.module, instead)
    logits = None
    if classes and is_classifier(model):
        logits = _class_logits(model, module, ids, mask)
    else:
        module.base_model(**_inputs(model, ids, mask))
    return Observed(tuple(seen[: len(blocks) + 1]), seen[-1], logits)


def _class_logits(model: LoadedModel, module: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return a classifier's logits (n, labels); ``module`` is a copy of its own.

    A causal one looks for the last token that is no padding, and does not run on a batch if its config names none:
    then a token that the batch does not hold is padding.
    """
    if getattr(module.config, "pad_token_id", None) is None and len(ids) > 1:
        held = ids[mask.bool()].unique()
        absent = next(each for each in range(len(held) + 1) if each >= len(held) or int(held[each]) != each)
        module.config = copy.copy(module.config)
        module.config.pad_token_id = absent
        ids = ids.masked_fill(mask == 0, absent)
    return pooled(module(**_inputs(model, ids, mask)).logits, mask)


def _inputs(model: LoadedModel, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    module: Any = model.module
    if "use_cache" in module.config.to_dict() and model.anatomy.blocks[0].attention.causal:
        given["use_cache"] = False
    return given


def check_runs_alone(model: LoadedModel) -> None:
    """Raise :class:`Incomparable` for a model whose upper blocks need more than states: encoder-decoders and T5."""
    label = model.spec.label
    if getattr(model.module.config, "is_encoder_decoder", False):
        raise Incomparable(
            f"{label} is an encoder-decoder, whose upper blocks read a second text as well, so it cannot be stitched; "
            "choose a model that is one stack of blocks."
        )
    if model.anatomy.blocks[0].attention.position == "relative":
        raise Incomparable(
            f"{label} computes in its first block the position biases that all its blocks use, so its upper blocks do "
            "not run alone; choose a model with absolute or rotary positions."
        )


def is_classifier(model: LoadedModel) -> bool:
    """Return whether the model classifies texts, or tokens, whose logits are then averaged."""
    return type(model.module).__name__.endswith(CLASSIFIERS)


def pooled(logits: Tensor, mask: Tensor) -> Tensor:
    """Return logits (n, labels): given ones, or the mean of a token classifier's (n, t, labels) where ``mask``."""
    if logits.ndim == 2:
        return logits
    kept = mask.to(logits)[..., None]
    return (logits * kept).sum(1) / kept.sum(1)


def with_replaced(module: nn.Module, instead: Mapping[str, nn.Module]) -> Any:
    """Return a shallow copy of ``module`` in which the submodules named in ``instead`` are others.

    Only the modules on the way to them are copied, without their hooks; every weight and every other module is shared.
    """
    top = _shallow(module)
    copied: dict[str, nn.Module] = {"": top}
    for name, replacement in instead.items():
        *path, leaf = name.split(".")
        above, at = top, ""
        for part in path:
            at = f"{at}.{part}" if at else part
            if at not in copied:
                copied[at] = above._modules[part] = _shallow(above.get_submodule(part))
            above = copied[at]
        above._modules[leaf] = replacement
    return top


def _fused(block: nn.Module) -> nn.Module:
    """Return a block with the GELUs that transformers computes in eight passes as torch's own, equal to rounding."""
    from transformers.activations import NewGELUActivation

    slow = [name for name, part in block.named_modules() if isinstance(part, NewGELUActivation)]
    fused: nn.Module = with_replaced(block, dict.fromkeys(slow, nn.GELU(approximate="tanh")))
    return fused


def _shallow(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin.__dict__ = {
        name: OrderedDict() if "_hooks" in name and isinstance(value, OrderedDict) else value
        for name, value in module.__dict__.items()
    }
    twin._modules = dict(module._modules)
    return twin


class _Stands(nn.Module):
    """Stands where another module was, and has that module's attributes: families ask their blocks for some."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.__dict__["original"] = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


class _Gives(nn.Module):
    """Gives the states in place of a token embedding."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.__dict__["given"] = given

    def forward(self, *_: Any, **__: Any) -> Tensor:
        given: Tensor = self.__dict__["given"]
        return given


class _Passes(_Stands):
    """Hands on what it is given, or, where there is any, the states in its place."""

    def __init__(self, original: nn.Module, given: Tensor | None = None) -> None:
        super().__init__(original)
        self.__dict__["given"] = given

    def forward(self, *args: Any, **named: Any) -> Tensor:
        given: Tensor | None = self.__dict__["given"]
        if given is not None:
            return given
        handed: Tensor = args[0] if args else named["hidden_states"]
        return handed


class _Begins(_Stands):
    """Runs the block on the states in place of what it is given."""

    def __init__(self, original: nn.Module, given: Tensor) -> None:
        super().__init__(original)
        self.__dict__["given"] = given

    def forward(self, *args: Any, **named: Any) -> Any:
        if args:
            return self.original(self.given, *args[1:], **named)
        return self.original(**{**named, "hidden_states": self.given})


class _Hears(_Stands):
    """Runs the module and keeps what it was given first."""

    def __init__(self, original: nn.Module, seen: list[Tensor]) -> None:
        super().__init__(original)
        self.__dict__["seen"] = seen

    def forward(self, *args: Any, **named: Any) -> Any:
        self.__dict__["seen"].append(args[0] if args else named["hidden_states"])
        return self.original(*args, **named)


class _Tells(_Stands):
    """Runs the module and keeps what it gave."""

    def __init__(self, original: nn.Module, seen: list[Tensor]) -> None:
        super().__init__(original)
        self.__dict__["seen"] = seen

    def forward(self, *args: Any, **named: Any) -> Any:
        out = self.original(*args, **named)
        self.__dict__["seen"].append(out)
        return out
