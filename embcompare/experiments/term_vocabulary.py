"""Terms read through a model's vocabulary: the tokens at both ends of each term's logits, and what the sum's are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.decomposition import LayerTerms, Readout

NUMBERS = 2**24
"""Logits held at once: 128 MiB."""


@dataclass(frozen=True, eq=False)
class VocabularyReading:
    """K terms and their sum at T tokens, k entries of the vocabulary each: ``top`` and ``bottom`` (K + 1, T, k).

    ``parts`` (K + 1, T, k) is what each term, and last the output bias, gives to the sum's top entries. ``residual`` is
    the largest difference between the parts' sum and the head's own logit, over the largest logit.
    """

    top: np.ndarray
    top_logits: np.ndarray
    bottom: np.ndarray
    bottom_logits: np.ndarray
    parts: np.ndarray
    residual: float


def read_terms(readout: Readout, terms: LayerTerms, k: int, *, own_mean: bool) -> VocabularyReading:
    """Read the terms of one text's state, (K, 1, T, d); ``own_mean`` as in the split that they come from.

    Listed are entries that the tokenizer has; the residual is over all rows of E. A term that gives every entry the
    same, as one that is zero does, lists none: -1.
    """
    head, rows = readout.head, readout.model.anatomy.embedding.shape[0]
    values, _ = readout.before_embedding(terms, own_mean=own_mean).tokens()
    own = terms.hidden[terms.mask]
    bias = head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias
    step = max(1, NUMBERS // (len(head.weight) * (len(values) + 4)))
    found: list[tuple[Tensor, ...]] = []
    off, largest = 0.0, 0.0
    for part, state in zip(values.split(step, dim=1), own.split(step), strict=True):
        shares = part @ head.weight.T * head.scale
        total = shares.sum(0) + bias
        expected = head.logits(state, normed=terms.after_norm)
        made = total if head.softcap is None else head.softcap * torch.tanh(total / head.softcap)
        off = max(off, float((made - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
        every = torch.cat([shares, total[None]])[..., :rows]
        top_logits, top = every.topk(k)
        bottom_logits, bottom = every.topk(k, largest=False)
        chosen = top[-1]
        parts = torch.cat([shares.gather(-1, chosen.expand(len(shares), -1, -1)), bias[chosen][None]])
        silent = every[:-1].amax(-1, keepdim=True) == every[:-1].amin(-1, keepdim=True)
        for ends in (top, bottom):
            ends[:-1].masked_fill_(silent, -1)
        found.append((top, top_logits, bottom, bottom_logits, parts))
    names = ("top", "top_logits", "bottom", "bottom_logits", "parts")
    joined = (torch.cat(each, 1).numpy(force=True) for each in zip(*found, strict=True))
    return VocabularyReading(**dict(zip(names, joined, strict=True)), residual=off / largest if largest else off)
