"""What a decomposition gives: named terms of a hidden state, layer by layer, and how exactly they add up to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embcompare.decomposition.norms import FrozenNorm
from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.models.anatomy import NormWeights

Kind = Literal[
    "input",
    "self-attention",
    "cross-attention",
    "feed-forward",
    "correction",
    "token",
    "other tokens",
    "source",
    "target",
]
"""``input`` to ``correction`` are the terms of the additive split, the others those of the token-wise one."""


@dataclass(frozen=True, order=True)
class Term:
    """One term of a hidden state: its kind and, where it was split finer, its layer (the first is 1), head and token.

    ``token`` is the position that was attended to or, for the kind ``token``, the position of the input; heads and
    positions count from 0.
    """

    kind: Kind
    layer: int | None = None
    head: int | None = None
    token: int | None = None

    def __str__(self) -> str:
        parts = [("layer", self.layer), ("head", self.head), ("token", self.token)]
        named = [f"{name} {value}" for name, value in parts if value is not None]
        if self.kind == "token":
            return ", ".join(named)
        return ", ".join([self.kind, *named])


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """A hidden state as the sum of its terms, all float64.

    ``values`` (terms, n, t, d) add up to ``hidden`` (n, t, d), which the model itself computes; both are zero where
    ``mask`` (n, t) is False. ``layer`` 0 is the embedding output; the last state comes a second time ``after_norm``,
    where the model has a final norm. ``residual`` is the largest |sum - hidden| / |hidden| of any token.
    """

    layer: int
    terms: tuple[Term, ...]
    values: Tensor
    hidden: Tensor
    mask: Tensor
    residual: float
    after_norm: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The terms in words."""
        return tuple(map(str, self.terms))

    def at(self, *kinds: Kind) -> Tensor:
        """Return the sum of all terms of the given kinds, (n, t, d); zero where there is none."""
        chosen = [number for number, term in enumerate(self.terms) if term.kind in kinds]
        return self.values[chosen].sum(0)

    def normed(self, norm: NormWeights, *, own_mean: bool = False) -> LayerTerms:
        """Return the terms after a norm in float64, such as the final one, as the lens of a lower layer reads them.

        The norm's shift goes to the correction; ``own_mean`` as in :class:`~embcompare.decomposition.norms.FrozenNorm`.
        Raises :class:`SettingsError` for terms that have passed the final norm.
        """
        if self.after_norm:
            raise SettingsError("These terms have passed the final norm already; give those before it.")
        frozen = FrozenNorm.of(norm, self.hidden, own_mean=own_mean)
        state = dict(zip(self.terms, map(frozen.linear, self.values), strict=True))
        add(state, Term("correction"), frozen.shift())
        return layer_terms(self.layer, state, norm.apply(self.hidden), self.mask, after_norm=True)

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return values (terms, tokens, d) and hidden (tokens, d) of the real tokens, text by text."""
        return self.values[:, self.mask], self.hidden[self.mask]


def add(state: dict[Term, Tensor], term: Term, value: Tensor | None) -> None:
    """Add a value to a term of ``state``; None adds nothing."""
    if value is not None:
        state[term] = state[term] + value if term in state else value


def layer_terms(
    layer: int, state: dict[Term, Tensor], hidden: Tensor, mask: Tensor, *, after_norm: bool = False
) -> LayerTerms:
    """Return the terms of a layer with their residual; padding is zeroed and plays no part."""
    values = hidden.new_zeros(len(state), *hidden.shape)
    for slot, value in zip(values, state.values(), strict=True):
        slot[mask] = value.expand_as(hidden)[mask]
    hidden = torch.where(mask[..., None], hidden, 0)
    found = values.sum(0)
    off = (found - hidden).norm(dim=-1) / hidden.norm(dim=-1)
    # 0/0 where a state and the sum of its terms are both zero: nothing is missing there.
    off = torch.where((found == hidden).all(-1), 0.0, off)
    return LayerTerms(layer, tuple(state), values, hidden, mask, float(off.max()), after_norm)


def without(terms: LayerTerms, *dropped: Kind | Term) -> LayerTerms:
    """Return the terms without some, by kind or one by one; ``hidden`` is what is left, the residual is kept.

    Raises :class:`SettingsError` for a term that is not there.
    """
    for each in dropped:
        if each not in terms.terms and each not in {term.kind for term in terms.terms}:
            raise SettingsError(f"There is no term {str(each)!r}; there are {', '.join(terms.names[:12])}.")
    kept = [i for i, term in enumerate(terms.terms) if term not in dropped and term.kind not in dropped]
    values = terms.values[kept]
    return dataclasses.replace(terms, terms=tuple(terms.terms[i] for i in kept), values=values, hidden=values.sum(0))
