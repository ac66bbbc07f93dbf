"""The texts of a stitched run: encoded for both models, and which of B's places each state of A stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.activations.forward import batches, longest_input
from embcompare.errors import Incomparable, InputError
from embcompare.learning import padded
from embcompare.text.corpora import shipped_corpus
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.text.encoding import Encoded
    from embcompare.text.words import WordRows

BATCH_TOKENS = 2048
"""Tokens of a batch, padding included; every cut of A goes through B's upper part at once."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some texts as tensors: as A reads them, as B reads them, and as the stitched model's upper part does.

    ``texts`` (b,) says which texts they are. ``pool`` is None where A's places are B's; else (b, w, t) weights that
    make a word's state of its tokens' states.
    """

    texts: np.ndarray
    ids_a: Tensor
    mask_a: Tensor
    ids_b: Tensor
    mask_b: Tensor
    ids: Tensor
    mask: Tensor
    pool: Tensor | None = None

    def placed(self, states: Tensor) -> Tensor:
        """Return A's states (b, t, d) at the places that the upper part reads, (b, w, d)."""
        return states if self.pool is None else self.pool.to(states.dtype) @ states


class Texts:
    """Texts encoded for two models of one tokenizer, or, ``by_words``, word by word for two of different ones."""

    def __init__(self, sentences: Sequence[str], a: LoadedModel, b: LoadedModel, *, by_words: bool) -> None:
        self.sentences, self.a, self.b, self.by_words = tuple(sentences), a, b, by_words
        longest = [longest_input(model) for model in (a, b)]
        if not by_words:
            longest = [min(longest)] * 2
        self.longest = longest
        self.encoded_a = _encode(self.sentences, a, longest[0])
        self.encoded_b = _encode(self.sentences, b, longest[1])
        self._check_empty()
        self.device = a.anatomy.embedding.device
        if by_words:
            self._places, self._words = _by_words(self, longest[1])
        else:
            self._check_same()

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def shipped(self) -> np.ndarray | None:
        """The tokens of the texts that ship, as B reads them; None where they are these texts themselves."""
        sentences = shipped_corpus().sentences
        return None if self.sentences == sentences else _encode(sentences, self.b, 10**6).index.token

    def batches(self, texts: np.ndarray) -> list[np.ndarray]:
        """Return the texts in groups of similar length, longest first."""
        lengths = np.array([max(len(self.encoded_a.ids[text]), len(self.encoded_b.ids[text])) for text in texts])
        return [texts[group] for group in batches(lengths, BATCH_TOKENS)]

    def batch(self, texts: np.ndarray) -> Batch:
        """Return the tensors of some texts."""
        ids_a, mask_a = self._padded([self.encoded_a.ids[text] for text in texts], self.a)
        ids_b, mask_b = self._padded([self.encoded_b.ids[text] for text in texts], self.b)
        if not self.by_words:
            return Batch(texts, ids_a, mask_a, ids_b, mask_b, ids_b, mask_b)
        ids, mask = self._padded([self._words[text] for text in texts], self.b)
        pool = _pool([self._places[text] for text in texts], ids.shape[1], ids_a.shape[1]).to(self.device)
        return Batch(texts, ids_a, mask_a, ids_b, mask_b, ids, mask, pool)

    def _padded(self, rows: list[np.ndarray], model: LoadedModel) -> tuple[Tensor, Tensor]:
        import torch

        config: Any = model.module.config
        fill = getattr(config, "pad_token_id", None)
        fill = model.tokenizer.pad_token_id if fill is None else fill
        ids, real = padded(rows, 0 if fill is None else fill)
        mask = real.astype(np.int64)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def _check_same(self) -> None:
        for number, (one, other) in enumerate(zip(self.encoded_a.ids, self.encoded_b.ids, strict=True)):
            if not np.array_equal(one, other):
                raise Incomparable(
                    f"{self.a.spec.label} and {self.b.spec.label} have one vocabulary but cut text {number + 1:,} "
                    f"({self.sentences[number][:40]!r}…) into different tokens, so a state of the one stands for no "
                    "token of the other; use one tokenizer's files for both."
                )

    def _check_empty(self) -> None:
        for model, encoded in ((self.a, self.encoded_a), (self.b, self.encoded_b)):
            if len(encoded.empty):
                raise InputError(
                    f"Text {encoded.empty[0] + 1:,} ({self.sentences[encoded.empty[0]][:40]!r}) has no token for "
                    f"{model.spec.label}; leave it out."
                )

    def notices(self, texts: np.ndarray, upper: str) -> list[str]:
        """Return what is to be said of some texts: those that were cut, and tokens that a vocabulary lacks.

        ``upper`` is what B is called.
        """
        said = []
        sides = (self.a, self.encoded_a, self.a.spec.label), (self.b, self.encoded_b, upper)
        for (model, encoded, label), longest in zip(sides, self.longest, strict=True):
            cut = sum(self._whole(model, text) > longest for text in texts) if encoded.cut else 0
            if cut:
                said.append(
                    f"{label}: {plural(cut, 'text')} {agree(cut, 'was', 'were')} cut to the {longest:,} "
                    "tokens that are read at most."
                )
            lacking = getattr(model.tokenizer, "unk_token_id", None)
            unknown = sum(int((encoded.ids[text] == lacking).sum()) for text in texts) if encoded.unknown else 0
            if unknown:
                said.append(
                    f"{label}: {plural(unknown, 'token')} of the texts {agree(unknown, 'is', 'are')} "
                    "unknown to its vocabulary."
                )
        return list(dict.fromkeys(said))

    def _whole(self, model: LoadedModel, text: int) -> int:
        return len(model.tokenizer(self.sentences[text], verbose=False)["input_ids"])


def text_rows(encoded: Encoded, texts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (row of the batch, position) of every token of text, in order."""
    for row, text in enumerate(texts):
        for position in np.flatnonzero(encoded.is_text[text]):
            yield row, int(position)


def _encode(sentences: Sequence[str], model: LoadedModel, longest: int) -> Encoded:
    from embcompare.text.encoding import encode

    return encode(sentences, model.tokenizer, model.tokens, longest)


def _by_words(texts: Texts, longest: int) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Return, text by text, the positions of A that make up each place of B, and a token of B for each place.

    A word's place is what B reads instead of its tokens; special tokens of B at the beginning and the end take the
    states of A's own, one for one from the outside in.
    """
    from embcompare.text.words import word_rows

    a, b = texts.encoded_a, texts.encoded_b
    words: WordRows = word_rows(texts.sentences, a.index)
    causal = texts.a.anatomy.blocks[0].attention.causal
    place = int(np.flatnonzero(~texts.b.tokens.special)[0])
    bounds = np.searchsorted(words.sentence, np.arange(len(texts) + 1))
    every, ids, missing = [], [], 0
    for text in range(len(texts)):
        ends_a, ends_b = _specials(a.is_text[text]), _specials(b.is_text[text])
        lead, trail = (min(one, other) for one, other in zip(ends_a, ends_b, strict=True))
        missing += ends_b[0] - lead
        size, own = len(a.ids[text]), b.ids[text]
        places = [np.array([at]) for at in range(lead)]
        for word in range(bounds[text], bounds[text + 1]):
            rows = np.arange(words.first[word], words.first[word] + words.count[word])
            places.append(a.index.position[rows[-1:] if causal else rows].astype(np.int64))
        if len(places) == lead:
            raise InputError(
                f"Text {text + 1:,} ({texts.sentences[text][:40]!r}) has no word that {texts.a.spec.label} cuts at its "
                "ends, so it cannot be handed over word by word; leave it out."
            )
        places = places[: longest - trail] + [np.array([size - trail + at]) for at in range(trail)]
        row = np.full(len(places), place, dtype=np.int64)
        row[:lead] = own[:lead]
        row[len(row) - trail :] = own[len(own) - trail :]
        every.append(places)
        ids.append(row)
    if missing and not texts.b.anatomy.blocks[0].attention.causal:
        raise Incomparable(
            f"{texts.b.spec.label} reads a special token at the beginning of every text, for which "
            f"{texts.a.spec.label} has no state; choose a lower model whose tokenizer adds one too."
        )
    return every, ids


def _specials(is_text: np.ndarray) -> tuple[int, int]:
    """Return how many special tokens stand before the first and behind the last token of text."""
    inside = np.flatnonzero(is_text)
    return int(inside[0]), len(is_text) - 1 - int(inside[-1])


def _pool(places: list[list[np.ndarray]], width: int, tokens: int) -> Tensor:
    import torch

    pool = np.zeros((len(places), width, tokens), dtype=np.float32)
    for row, own in enumerate(places):
        for at, positions in enumerate(own):
            pool[row, at, positions] = 1 / len(positions)
    return torch.from_numpy(pool)
