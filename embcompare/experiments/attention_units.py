"""The tokens or words that two models attend between, aligned, and every head's full pattern over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import Incomparable
from embcompare.experiments.sides import check_same_tokens
from embcompare.text.words import WordRows, align_words, pool_words

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.activations import HiddenStates
    from embcompare.experiments.base import Context
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus

BATCH_TOKENS = 512
"""Tokens in a pass for full patterns, padding counted."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """One text as all heads of a model see it, between its n units (tokens or words), float32.

    ``attention`` (H, n, n) is from row to column; what is missing of a row's sum of 1 went to special tokens and to
    whatever is no unit. ``even`` (n, n) is the same of a head that looks everywhere alike; it is 0 exactly where a row
    cannot look.
    """

    attention: np.ndarray
    even: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """(H, n, n) in units of even attention; 0 where a row cannot look."""
        return np.asarray(np.divide(self.attention, self.even, out=np.zeros_like(self.attention), where=self.even > 0))


@dataclass(frozen=True, eq=False)
class Units:
    """The units that both sides have, in order: which text each is of, and which rows of each side make it up."""

    a: WordRows
    b: WordRows
    notices: tuple[str, ...]

    @property
    def items(self) -> np.ndarray:
        """(u,) int64: the text of each unit, ascending."""
        return self.a.sentence

    @classmethod
    def of(cls, rows: str, corpus: Corpus, a: HiddenStates, b: HiddenStates) -> Units:
        """Align tokens or words; raises :class:`Incomparable` where there are none in common."""
        if rows == "word":
            aligned = align_words(corpus.sentences, a.index, b.index)
            return cls(aligned.a, aligned.b, (aligned.sentence(),))
        check_same_tokens(a, b, "words (rows 'word')")
        return cls(_single(a), _single(b), ())


def _single(states: HiddenStates) -> WordRows:
    index = states.index
    n = len(index)
    sentence, start, end = (each.astype(np.int64) for each in (index.sentence, index.start, index.end))
    return WordRows(sentence, start, end, np.arange(n), np.ones(n, dtype=np.int64), n, n)


def captured(model: LoadedModel, corpus: Corpus, context: Context) -> HiddenStates:
    """Return the attention that each token of the corpus receives, from disk or new."""
    from embcompare.activations import capture

    def progress(done: int, total: int, message: str) -> None:
        context.report(0, 1, message)

    return capture(model, corpus, what="patterns", folder=context.states, progress=progress)


def averaged(states: HiddenStates, rows: WordRows) -> np.ndarray:
    """Return what each unit receives from every head, float32 (u, L H), in units of even attention.

    Of a word it is the mean over its tokens: attention to it is their sum, and so is even attention.
    """
    return np.concatenate([pool_words(states.layer(k), rows) for k in states.layers], axis=1)


def special_shares(states: HiddenStates) -> np.ndarray:
    """Return the share of each head's attention that special tokens get, float64 (L, H), over all queries."""
    return np.stack([np.asarray(states.special(k)).mean(0, dtype=np.float64) for k in states.layers])


def draw_texts(items: np.ndarray, cost: Callable[[np.ndarray], np.ndarray], most: int, seed: int) -> np.ndarray:
    """Return which texts are taken, ascending: in a random order until ``cost`` of their sizes adds up to ``most``."""
    names, sizes = np.unique(items, return_counts=True)
    order = np.random.default_rng([seed, 1]).permutation(len(names))
    taken = np.cumsum(cost(sizes)[order]) <= most
    if not taken.any():
        taken[0] = True
    return np.asarray(np.sort(names[order[taken]]))


def full_patterns(
    model: LoadedModel, corpus: Corpus, states: HiddenStates, rows: WordRows, texts: np.ndarray
) -> Iterator[tuple[int, Pattern]]:
    """Yield (text, its pattern) of ``texts``; ``rows`` are all units of this side."""
    from embcompare.activations.forward import batches, longest_input, stack_of
    from embcompare.activations.patterns import is_causal, observe_patterns
    from embcompare.text.encoding import encode

    stack = stack_of(model)
    some = [corpus.sentences[text] for text in texts.tolist()]
    encoded = encode(some, model.tokenizer, model.tokens, longest_input(model, stack))
    bounds = np.searchsorted(rows.sentence, [texts, texts + 1])
    causal = is_causal(model, stack)
    for group in batches(np.array([len(ids) for ids in encoded.ids]), BATCH_TOKENS):
        members = [_members(states, rows, int(bounds[0, at]), int(bounds[1, at]), len(encoded.ids[at])) for at in group]
        found: list[list[np.ndarray]] = [[] for _ in group]

        def see(_: int, probabilities: Tensor, members: list = members, found: list = found) -> None:
            for text, (own, each) in enumerate(zip(members, found, strict=True)):
                each.append(_between(probabilities[text], own))

        observe_patterns(model, [encoded.ids[at] for at in group], see)
        for at, own, each in zip(group, members, found, strict=True):
            yield int(texts[at]), Pattern(np.concatenate(each), _even(own, causal))


def _members(states: HiddenStates, rows: WordRows, low: int, high: int, length: int) -> np.ndarray:
    """Return which places of a model's input make up each unit of a text, (n, t) of 0 and 1."""
    made = np.zeros((high - low, length))
    for unit in range(low, high):
        first, count = int(rows.first[unit]), int(rows.count[unit])
        places = states.index.position[first : first + count]
        if len(places) and int(places[-1]) >= length:
            raise Incomparable(
                f"The tokenizer of {states.label} cuts the text in another way than when its patterns were captured; "
                "start again."
            )
        made[unit - low, places] = 1.0
    return made


def _between(probabilities: Tensor, members: np.ndarray) -> np.ndarray:
    """Return attention between units, float32 (H, n, n): to one the sum over its places, from one the mean."""
    import torch

    to = torch.from_numpy(members).to(probabilities)
    length = to.shape[1]
    found = (to / to.sum(1, keepdim=True)) @ probabilities[:, :length, :length] @ to.T
    return np.asarray(found.cpu().numpy(), dtype=np.float32)


def _even(members: np.ndarray, causal: bool) -> np.ndarray:
    length = members.shape[1]
    visible = np.tril(np.ones((length, length))) if causal else np.ones((length, length))
    even = visible / visible.sum(1, keepdims=True)
    return np.asarray((members / members.sum(1, keepdims=True)) @ even @ members.T, dtype=np.float32)
