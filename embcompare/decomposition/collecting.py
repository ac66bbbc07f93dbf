"""Whole corpora, a few texts at a time: the terms of all tokens, or only their indicators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embcompare.decomposition.additive import Conventions, decompose
from embcompare.decomposition.indicator import indicators
from embcompare.decomposition.terms import LayerTerms, Term
from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.models.loading import LoadedModel

BATCH_TOKENS = 2048
"""Tokens, padding counted, that are decomposed at once."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Terms of all real tokens of a corpus: ``values`` (states, terms, tokens, d) and ``hidden`` (states, tokens, d).

    ``states`` names the hidden states: (layer, after the final norm). ``texts`` and ``positions`` (tokens,) say where
    each token stands; tokens are in order of the texts. ``residual`` is the largest of any state and token.
    """

    states: tuple[tuple[int, bool], ...]
    terms: tuple[Term, ...]
    values: Tensor
    hidden: Tensor
    texts: np.ndarray
    positions: np.ndarray
    residual: float


@dataclass(frozen=True, eq=False)
class Measured:
    """Indicators of all real tokens of a corpus, each (states, terms, tokens) of float64; the rest as in
    :class:`Collected`.
    """

    states: tuple[tuple[int, bool], ...]
    terms: tuple[Term, ...]
    indicators: dict[str, np.ndarray]
    texts: np.ndarray
    positions: np.ndarray
    residual: float


def collect(model: LoadedModel, ids: Tensor, mask: Tensor, **arguments: Any) -> Collected:
    """Return the terms of all tokens; memory is 8 · states · (terms + 1) · tokens · d bytes, and one batch's.

    Arguments are those of :func:`measure`.
    """
    batches = list(_batches(model, ids, mask, _packed, **arguments))
    return Collected(
        batches[0].states,
        batches[0].terms,
        torch.cat([torch.stack([values for values, _ in batch.kept]) for batch in batches], 2),
        torch.cat([torch.stack([hidden for _, hidden in batch.kept]) for batch in batches], 1),
        *_places(mask),
        max(batch.residual for batch in batches),
    )


def measure(model: LoadedModel, ids: Tensor, mask: Tensor, **arguments: Any) -> Measured:
    """Return the indicators of all tokens; of the terms themselves one batch is held at a time.

    ``ids`` and ``mask`` (n, t), and by name ``source`` and ``source_mask`` (n, s), ``layers``, ``options`` and ``by``
    are as for :func:`~embcompare.decomposition.additive.decompose`, but not by ``"token"``, whose terms differ from
    text to text; ``batch_tokens`` bounds a batch, and ``report(done, total)`` hears of texts that are done.
    """
    batches = list(_batches(model, ids, mask, _measured, **arguments))
    names = batches[0].kept[0]
    return Measured(
        batches[0].states,
        batches[0].terms,
        {name: np.concatenate([np.stack([kept[name] for kept in each.kept]) for each in batches], 2) for name in names},
        *_places(mask),
        max(batch.residual for batch in batches),
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    states: tuple[tuple[int, bool], ...]
    terms: tuple[Term, ...]
    kept: list[Any]
    residual: float


def _batches(
    model: LoadedModel,
    ids: Tensor,
    mask: Tensor,
    keep: Callable[[LayerTerms], Any],
    *,
    by: Sequence[str] = (),
    options: Conventions | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    layers: Sequence[int] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    report: Callable[[int, int], None] | None = None,
) -> Iterator[_Batch]:
    if "token" in by:
        raise SettingsError("Terms split by token differ from text to text; decompose one text for them.")
    step = max(1, batch_tokens // max(1, ids.shape[1]))
    if source is not None and source_mask is None:
        source_mask = torch.ones_like(source)
    for at in range(0, len(ids), step):
        rows = slice(at, at + step)
        given: dict[str, Any] = {}
        if source is not None and source_mask is not None:
            given = {"source": source[rows], "source_mask": source_mask[rows]}
        longest = int(mask[rows].sum(1).max())
        states, kept, residual, terms = [], [], 0.0, ()  # type: tuple[list, list, float, tuple[Term, ...]]
        for each in decompose(
            model, ids[rows, :longest], mask[rows, :longest], by=by, options=options, layers=layers, **given
        ):
            states.append((each.layer, each.after_norm))
            kept.append(keep(each))
            residual, terms = max(residual, each.residual), each.terms
        if report is not None:
            report(min(at + step, len(ids)), len(ids))
        yield _Batch(tuple(states), terms, kept, residual)


def _packed(terms: LayerTerms) -> tuple[Tensor, Tensor]:
    return terms.tokens()


def _measured(terms: LayerTerms) -> dict[str, np.ndarray]:
    return {name: value.numpy(force=True) for name, value in indicators(*terms.tokens()).items()}


def _places(mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    texts, positions = np.nonzero(mask.numpy(force=True))
    return texts, positions
