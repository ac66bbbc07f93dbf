"""The stitched model: A's first blocks, a map, B's last blocks and head, to be called like any model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embcompare.errors import Incomparable, InputError, SettingsError
from embcompare.stitching.bridges import Bridge, BridgeOptions, bridge_from_weights
from embcompare.stitching.tails import Tail, check_runs_alone, is_classifier, observe

if TYPE_CHECKING:
    from embcompare.models.heads import Head
    from embcompare.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class StitchedModel:
    """``lower``'s hidden state ``cut`` carried by ``bridge`` to ``upper``'s hidden state ``entry``, and on from there.

    ``cut`` blocks of the one run and ``upper``'s blocks from ``entry`` on; both read the same tokens.
    ``positions_again`` does as the official notebook of Dar et al. 2023: ``upper``'s positions are added once more (see
    :class:`~embcompare.stitching.Tail`), and the last state of ``lower`` is taken after its final norm.
    """

    lower: LoadedModel
    upper: LoadedModel
    bridge: Bridge
    cut: int
    entry: int
    positions_again: bool = False

    def __post_init__(self) -> None:
        check_runs_alone(self.lower)
        for name, value in (("cut", self.cut), ("entry", self.entry)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise SettingsError(f"{name} is a whole number of layers; got {value!r}.")
        if not 0 <= self.cut <= self.lower.anatomy.n_layers:
            raise SettingsError(
                f"{self.lower.spec.label} cannot be cut after {self.cut} blocks; it has {self.lower.anatomy.n_layers}, "
                "and 0 takes its embedding output."
            )
        Tail(self.upper, self.entry)

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the last hidden state (n, t, d), after the final norm, for tokens (n, t) padded on the right."""
        carried, mask = self._carried(ids, mask)
        return Tail(self.upper, self.entry, self.positions_again).states(carried, ids, mask)

    def logits(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits: (n, t, V) of a language model, (n, labels) of a classifier.

        ``mask`` (n, t) is 1 for tokens and 0 for padding on the right; without it all are tokens. Raises
        :class:`Incomparable` where ``upper`` has no head.
        """
        if is_classifier(self.upper):
            carried, mask = self._carried(ids, mask)
            return Tail(self.upper, self.entry, self.positions_again).class_logits(carried, ids, mask)
        with torch.inference_mode():
            return self._head.logits(self.states(ids, mask), normed=True)

    @functools.cached_property
    def _head(self) -> Head:
        from embcompare.models.heads import read_head

        return read_head(self.upper, self.upper.anatomy.embedding.dtype)

    @functools.cached_property
    def _longest(self) -> tuple[int, int]:
        from embcompare.activations.forward import longest_input

        return longest_input(self.lower), longest_input(self.upper)

    def _carried(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mask = torch.ones_like(ids) if mask is None else mask
        for model, longest in zip((self.lower, self.upper), self._longest, strict=True):
            _check_tokens(model, longest, ids, mask)
        with torch.inference_mode():
            seen = observe(self.lower, ids, mask)
            normed = self.positions_again and self.cut == self.lower.anatomy.n_layers
            state = seen.last if normed else seen.states[self.cut]
            carried = self.bridge.carried(state, self.cut, self.entry).to(self.upper.anatomy.embedding.dtype)
            return without_padding(carried, mask), mask


def stitch(
    lower: LoadedModel,
    upper: LoadedModel,
    *,
    cut: int,
    entry: int | None = None,
    kernel: str = "pseudo_inverse",
    options: BridgeOptions | None = None,
    positions_again: bool = False,
) -> StitchedModel:
    """Stitch two loaded models without any training.

    ``cut`` is how many blocks of ``lower`` run; ``entry`` the hidden state of ``upper`` that is replaced, the same
    number where nothing is said. ``kernel`` is a map that needs no text (see :data:`embcompare.maps.KERNELS`).
    Raises :class:`SettingsError` and :class:`Incomparable`.
    """
    from embcompare.models.loading import LoadedModel
    from embcompare.text.vocabulary import match_vocabularies

    for model in (lower, upper):
        if not isinstance(model, LoadedModel):
            raise SettingsError(f"Two loaded models are stitched, and {model!r} is none; use embcompare.load_model.")
    if options is not None and not isinstance(options, BridgeOptions):
        raise SettingsError(f"options are embcompare.stitching.BridgeOptions(...); got {options!r}.")
    same_tokens(lower, upper)
    match = functools.partial(match_vocabularies, lower.tokens, upper.tokens)
    bridge = bridge_from_weights(kernel, lower, upper, match, options or BridgeOptions())
    return StitchedModel(lower, upper, bridge, cut, cut if entry is None else entry, positions_again)


def have_same_tokens(a: LoadedModel, b: LoadedModel) -> bool:
    """Return whether the two vocabularies are one, row by row."""
    return a.tokens.raw == b.tokens.raw and a.tokens.scheme == b.tokens.scheme


def same_tokens(a: LoadedModel, b: LoadedModel) -> None:
    """Raise :class:`Incomparable` unless the two vocabularies are one: a state of A must stand for a token of B."""
    rows = [len(model.tokens) for model in (a, b)]
    short = min(rows)
    if rows[0] != rows[1] and a.tokens.raw[:short] == b.tokens.raw[:short]:
        raise Incomparable(
            f"{a.spec.label} knows {rows[0]:,} tokens and {b.spec.label} {rows[1]:,} of one tokenizer, so a token of "
            "the one may mean nothing to the other; choose models with the same number of tokens."
        )
    if not have_same_tokens(a, b):
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} cut text into different tokens, so a state of the one stands for no "
            "token that the other could go on from; choose models of one tokenizer, or a classifier as the upper one: "
            "that can be run word by word."
        )


def without_padding(states: Tensor, mask: Tensor) -> Tensor:
    """Return states (..., n, t, d) with zeros where ``mask`` (n, t) is 0: nothing there may be NaN and spread."""
    return states.masked_fill((mask == 0)[..., None], 0.0)


def _check_tokens(model: LoadedModel, longest: int, ids: Tensor, mask: Tensor) -> None:
    """Raise :class:`InputError` for what is no batch of tokens of ``model``, padded on the right."""
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        raise InputError("Tokens are a tensor of whole numbers, (texts, tokens), with at least one token.")
    if mask.shape != ids.shape:
        raise InputError(f"The mask is of the tokens' shape {tuple(ids.shape)}; got {tuple(mask.shape)}.")
    size = len(model.anatomy.embedding)
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"{model.spec.label} has no token {wrong}; its tokens are 0 to {size - 1:,}.")
    if ids.shape[1] > longest:
        raise InputError(
            f"{model.spec.label} reads {longest:,} tokens at most, and these are {ids.shape[1]:,}; cut them."
        )
