"""The stitched model: A's first blocks, a map, B's last blocks and head, to be called like any model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embcompare.errors import Incomparable, SettingsError
from embcompare.stitching.bridges import Bridge, BridgeOptions, bridge_from_weights
from embcompare.stitching.tails import Tail, check_runs_alone, is_classifier, observe

if TYPE_CHECKING:
    from embcompare.models.heads import Head
    from embcompare.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class StitchedModel:
    """``lower``'s hidden state ``cut`` carried by ``bridge`` to ``upper``'s hidden state ``entry``, and on from there.

    ``cut`` blocks of the one run and ``upper``'s blocks from ``entry`` on; both read the same tokens.
    ``positions_again`` does as the official notebook of Dar et al. 2023 (see :class:`~embcompare.stitching.Tail`).
    """

    lower: LoadedModel
    upper: LoadedModel
    bridge: Bridge
    cut: int
    entry: int
    positions_again: bool = False

    def __post_init__(self) -> None:
        check_runs_alone(self.lower)
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

    def _carried(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mask = torch.ones_like(ids) if mask is None else mask
        with torch.inference_mode():
            state = observe(self.lower, ids, mask).states[self.cut]
            return self.bridge.carried(state, self.cut, self.entry).to(self.upper.anatomy.embedding.dtype), mask


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
    from embcompare.text.vocabulary import match_vocabularies

    same_tokens(lower, upper)
    match = functools.partial(match_vocabularies, lower.tokens, upper.tokens)
    bridge = bridge_from_weights(kernel, lower, upper, match, options or BridgeOptions())
    return StitchedModel(lower, upper, bridge, cut, cut if entry is None else entry, positions_again)


def same_tokens(a: LoadedModel, b: LoadedModel) -> None:
    """Raise :class:`Incomparable` unless the two vocabularies are one: a state of A must stand for a token of B."""
    if a.tokens.raw != b.tokens.raw or a.tokens.scheme != b.tokens.scheme:
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} cut text into different tokens, so a state of the one stands for no "
            "token that the other could go on from; choose models of one tokenizer, or a classifier as the upper one: "
            "that can be run word by word."
        )
