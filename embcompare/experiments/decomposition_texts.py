"""What is decomposed: texts as a model's tokens in batches, the states and terms there will be, and what is scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from embcompare.activations.forward import batches, longest_input, stack_of
from embcompare.decomposition.reading import IGNORED, Readout
from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments.decomposition_targets import Labels, labels_of, padded, start_token
from embcompare.experiments.sides import VECTORS
from embcompare.text.encoding import Encoded, encode, refuse_unknown
from embcompare.words import agree, in_words, plural

if TYPE_CHECKING:
    from embcompare.decomposition import LayerTerms, Term
    from embcompare.models import LoadedModel

BATCH_TOKENS = 2048
"""Tokens of a batch at most, padding included."""
BATCH_BYTES = 2**27
"""Bytes that one state's terms take at most in a batch of more than one text."""
TEXT_BYTES = 2**31
"""Bytes that the terms of one text's state may take."""


def check_names(*names: str) -> None:
    """Raise ``Incomparable`` for a user's own vectors, which no known parts add up to."""
    for name in names:
        if name.startswith(VECTORS):
            raise Incomparable(
                f"{name} is a file of vectors, and nobody knows what they are sums of; choose a model, or compare the "
                "vectors with representation-similarity."
            )


def translates(model: LoadedModel) -> bool:
    """Return whether the model is an encoder-decoder, whose decoder reads one text beside another."""
    return model.anatomy.blocks[0].cross_attention is not None


def states_of(model: LoadedModel) -> tuple[tuple[int, bool], ...]:
    """Return the hidden states in order as (layer, after the final norm): 0 to L, and L again after a final norm."""
    last = model.anatomy.n_layers
    states = [(layer, False) for layer in range(last + 1)]
    return (*states, (last, True)) if model.anatomy.final_norm is not None else tuple(states)


def state_name(layer: int, after_norm: bool) -> str:
    """Return what a hidden state is: ``embedding output``, ``block 3``, ``block 6, after final norm``."""
    if layer == 0:
        return "embedding output"
    return f"block {layer}, after final norm" if after_norm else f"block {layer}"


def readout_of(model: LoadedModel) -> tuple[Readout | None, str]:
    """Return a model's head as it acts on terms, and what is to be said of it; None where there is none to read."""
    label = model.spec.label
    try:
        readout = Readout.of(model)
    except Incomparable:
        return None, f"{label} has no head that predicts tokens, so its terms are not read through the vocabulary."
    except UnsupportedFamily as error:
        return None, str(error)
    return readout, readout.head.note


def term_places(terms: Sequence[Term]) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer (from 1) and the head (from 0) of each term, int64 (k,) each; -1 where it was not split."""
    places = [[-1 if place is None else place for place in (term.layer, term.head)] for term in terms]
    layers, heads = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return layers.copy(), heads.copy()


def could_be_there(terms: Sequence[Term], states: Sequence[tuple[int, bool]]) -> np.ndarray:
    """Return whether anything is to be expected in a term by a state, (states, terms) bool: parts of blocks below it,
    and of the embedding output the input alone (or the target text's), since few families have a norm there.
    """
    table = np.ones((len(states), len(terms)), dtype=bool)
    for column, term in enumerate(terms):
        if term.kind not in ("input", "target"):
            table[:, column] = [layer >= (term.layer or 1) for layer, _ in states]
    return table


def at_tokens(terms: LayerTerms, at: Tensor) -> LayerTerms:
    """Return the terms of the tokens that ``at`` (n, t) marks, as one text of m tokens: values (terms, 1, m, d)."""
    mask = torch.ones_like(terms.mask[at])[None]
    return dataclasses.replace(terms, values=terms.values[:, at][:, None], hidden=terms.hidden[at][None], mask=mask)


@dataclass(frozen=True, eq=False)
class Scored:
    """Tokens at which a prediction is scored, (m,) each, in order: their text, position and what should be predicted.

    ``candidates`` says how many there were to draw from.
    """

    texts: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    candidates: int

    def of(self, texts: np.ndarray, length: int) -> tuple[Tensor, np.ndarray]:
        """Return the targets (b, length) of some texts, :data:`IGNORED` where none, and which (m,) they are, in order.

        The order is that of the texts as given, and of positions within each.
        """
        row = np.full(int(self.texts.max(initial=-1)) + 1, -1)
        inside = texts < len(row)
        row[texts[inside]] = np.flatnonzero(inside)
        chosen = np.flatnonzero(row[self.texts] >= 0)
        chosen = chosen[np.lexsort((self.positions[chosen], row[self.texts[chosen]]))]
        targets = np.full((len(texts), length), IGNORED, dtype=np.int64)
        targets[row[self.texts[chosen]], self.positions[chosen]] = self.targets[chosen]
        return torch.from_numpy(targets), chosen


def longest_source(model: LoadedModel, most: int | None = None) -> int:
    """Return how many tokens of a text the model reads, special ones included: those of the encoder if it has one."""
    longest = longest_input(model, stack_of(model))
    return longest if most is None else min(most, longest)


@dataclass(frozen=True, eq=False)
class TextsOf:
    """Texts as one model reads them; ``longest`` is the most tokens it was given of any.

    Of an encoder-decoder ``sources`` are the texts, ``encoded`` what its decoder reads, its start token first, which
    counts as a special token, and ``labels`` what it should give there, token by token; both None for other models.
    """

    model: LoadedModel
    encoded: Encoded
    longest: int
    sources: Encoded | None = None
    labels: Labels | None = None

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        sentences: Sequence[str],
        most: int | None = None,
        *,
        targets: Sequence[str] | None = None,
    ) -> TextsOf:
        """Encode sentences, of each as many tokens as the model has positions for, or ``most`` where that is fewer.

        An encoder-decoder needs ``targets``, their translations, which others do not read.
        """
        longest = longest_source(model, most)
        encoded = encode(sentences, model.tokenizer, model.tokens, longest)
        if not translates(model):
            return cls(model, encoded, longest)
        assert targets is not None
        return cls.translated(model, encoded, labels_of(model, targets, most), longest)

    @classmethod
    def translated(cls, model: LoadedModel, sources: Encoded, labels: Labels, longest: int) -> TextsOf:
        """Return what an encoder-decoder reads that should give ``labels`` for ``sources``."""
        start = start_token(model)
        shifted = [np.concatenate([[start], row])[: max(1, len(row))].astype(np.int64) for row in labels.ids]
        is_text = [np.concatenate([[False], own])[: max(1, len(own))].astype(bool) for own in labels.is_text]
        empty = [number for number, own in enumerate(is_text) if not own.any()]
        decoder = dataclasses.replace(
            sources,
            ids=shifted,
            is_text=is_text,
            empty=tuple(sorted({*sources.empty, *empty})),
            cut=sources.cut + labels.cut,
            unknown=sources.unknown + labels.unknown,
        )
        return cls(model, decoder, longest, sources, labels)

    @property
    def causal(self) -> bool:
        """Whether the model predicts the next token; else it is asked for the token it stands on."""
        return self.model.anatomy.blocks[0].attention.causal

    @cached_property
    def starts(self) -> np.ndarray:
        """(n + 1,) int64: where each text's tokens begin among the tokens of all texts, special ones not counted."""
        return np.concatenate([[0], np.cumsum([mask.sum() for mask in self.encoded.is_text])]).astype(np.int64)

    @cached_property
    def token_texts(self) -> np.ndarray:
        """(tokens,) int64: which text each token is of."""
        return np.repeat(np.arange(len(self.encoded)), np.diff(self.starts))

    def columns(self, texts: np.ndarray) -> np.ndarray:
        """Return the places of some texts' tokens among the tokens of all, text by text."""
        return np.concatenate([np.arange(self.starts[text], self.starts[text + 1]) for text in texts])

    def batch(self, texts: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, mask and which tokens are no special ones, (b, t) each, padded on the right."""
        ids, mask = padded(self.model, [self.encoded.ids[text] for text in texts])
        is_text = torch.zeros_like(mask, dtype=torch.bool)
        for at, text in enumerate(texts):
            own = self.encoded.is_text[text]
            is_text[at, : len(own)] = torch.from_numpy(own)
        return ids, mask, is_text

    def source(self, texts: np.ndarray) -> dict[str, Tensor]:
        """Return, for an encoder-decoder, ``source`` and ``source_mask`` (b, s) of some texts, and else nothing."""
        if self.sources is None:
            return {}
        ids, mask = padded(self.model, [self.sources.ids[text] for text in texts])
        return {"source": ids, "source_mask": mask}

    def batches(self, terms: int) -> list[np.ndarray]:
        """Return the texts in groups of similar length, longest first, that split into so many terms fit the memory."""
        lengths = np.array([len(row) for row in self.encoded.ids])
        room = BATCH_BYTES // (8 * terms * self.model.anatomy.width)
        return list(batches(lengths, min(BATCH_TOKENS, room)))

    def check_terms(self, terms: int, kept_bytes: float, most: float, fewer: str) -> None:
        """Raise :class:`SettingsError` where so many terms need too much memory; ``fewer`` says what to give less of.

        ``kept_bytes`` are those that all numbers of the result take, ``most`` what they may.
        """
        width, longest = self.model.anatomy.width, max(map(len, self.encoded.ids))
        taken = 8 * terms * width * longest
        over = next(((a, b) for a, b in ((taken, TEXT_BYTES), (kept_bytes, most)) if a > b), None)
        if over is not None:
            raise SettingsError(
                f"{self.model.spec.label} split this way has {terms:,} terms, which take {in_words(over[0])} where "
                f"{in_words(over[1])} may be used; {fewer}, or split by layer or not at all."
            )

    def scored(self, most: int, seed: int) -> Scored:
        """Draw at most so many of the tokens that have something to predict: the next token, or the token itself.

        Neither special tokens nor what follows them from nowhere are predicted: both tokens are of the text. An
        encoder-decoder knows its source, so the first token of the target is predicted as well.
        """
        found = list(self._candidates())
        texts, positions, targets = (np.concatenate(each) for each in zip(*found, strict=True))
        chosen = np.arange(len(texts))
        if len(chosen) > most:
            chosen = np.sort(np.random.default_rng([seed, 1]).choice(len(chosen), most, replace=False))
        return Scored(texts[chosen], positions[chosen], targets[chosen], len(texts))

    def _candidates(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        if self.labels is not None:
            for text, (ids, is_text) in enumerate(zip(self.labels.ids, self.labels.is_text, strict=True)):
                at = np.flatnonzero(is_text)
                yield np.full(len(at), text), at, ids[at]
            return
        for text, (ids, is_text) in enumerate(zip(self.encoded.ids, self.encoded.is_text, strict=True)):
            at = np.flatnonzero(is_text[:-1] & is_text[1:] if self.causal else is_text)
            yield np.full(len(at), text), at, ids[at + 1] if self.causal else ids[at]

    def check_known(self, name: str) -> None:
        """Raise :class:`InputError` where the vocabulary lacks most of the text called ``name``."""
        refuse_unknown(self.encoded if self.sources is None else self.sources, self.model.spec.label, name)

    def notices(self) -> list[str]:
        """Return what is to be said of the texts: those that were cut, and tokens that the vocabulary lacks."""
        said, label, encoded = [], self.model.spec.label, self.encoded
        if self.labels is not None and self.labels.own and self.labels.cut:
            many = self.labels.cut
            said.append(f"{label}: {plural(many, 'translation')} had no end and {agree(many, 'was', 'were')} stopped.")
            encoded = dataclasses.replace(encoded, cut=encoded.cut - many)
        if encoded.cut:
            said.append(
                f"{label}: {plural(encoded.cut, 'text')} {agree(encoded.cut, 'was', 'were')} cut to the "
                f"{self.longest:,} tokens that are read at most."
            )
        if encoded.unknown:
            said.append(
                f"{label}: {plural(encoded.unknown, 'token')} {agree(encoded.unknown, 'is', 'are')} unknown to its "
                "vocabulary."
            )
        return said
