"""Which terms a state is split into, and the stream of its states: by part of the model, or by where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from embcompare.decomposition import (
    Conventions,
    LayerTerms,
    LinearConventions,
    Term,
    decompose,
    decompose_source_target,
)
from embcompare.decomposition.additive import all_terms
from embcompare.errors import Incomparable

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models import LoadedModel

SOURCE_TARGET = (Term("target"), Term("source"), Term("correction"))
"""The terms of the split by where a state comes from, in order."""


class AnySplit(Protocol):
    """The settings that name a split and its conventions."""

    @property
    def split(self) -> str:
        """``"additive"`` or ``"source-target"``."""

    @property
    def mean(self) -> str:
        """See :class:`~embcompare.decomposition.additive.Conventions`, as the next two."""

    @property
    def attention_bias(self) -> str:
        """Who receives attention's biases."""

    @property
    def norm_bias(self) -> str:
        """Who receives what comes of the bias of the norm before attention."""

    @property
    def token_mean(self) -> str:
        """See :class:`~embcompare.decomposition.tokenwise.LinearConventions`, as the next."""

    @property
    def gate(self) -> str:
        """How gated feed-forward layers are linearised."""


def split_terms(model: LoadedModel, settings: AnySplit, by: Sequence[str] = ()) -> tuple[Term, ...]:
    """Return the terms in order; raises :class:`Incomparable` for a model that has no source to be split by."""
    if settings.split == "additive":
        return all_terms(model, by, 0)
    if model.anatomy.blocks[0].cross_attention is None:
        raise Incomparable(
            f"{model.spec.label} reads one text only, so its states are not split by source and target; split them by "
            "part of the model (additive), or choose an encoder-decoder."
        )
    return SOURCE_TARGET


def split_states(
    model: LoadedModel, settings: AnySplit, ids: Tensor, mask: Tensor, given: dict[str, Any], by: Sequence[str] = ()
) -> Iterator[LayerTerms]:
    """Yield the terms of all hidden states of a batch; ``given`` is what an encoder-decoder reads beside it."""
    if settings.split == "additive":
        options = Conventions(settings.mean, settings.attention_bias, settings.norm_bias)  # type: ignore[arg-type]
        yield from decompose(model, ids, mask, by=by, options=options, **given)
    else:
        linear = LinearConventions(settings.token_mean, settings.gate)  # type: ignore[arg-type]
        yield from decompose_source_target(model, ids, mask, options=linear, **given)
