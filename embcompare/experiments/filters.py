"""Which tokens a reading may list: words alone, a stop list, a list of one's own, the words of a text.

Dar et al. 2023 list only what occurs in the reviews that a model learnt from. Filters say among which tokens ends,
pairs and sets are sought, and over which tokens a vector's mean and spread are taken. What is done to E beforehand (the
mean token, common directions, the inverse) and correlations of vectors are over the whole vocabulary.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embcompare.errors import SettingsError
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.base import Context
    from embcompare.text import Tokens

_SHOWN = 5


class FilterSettings(Protocol):
    """The settings that say which tokens may be listed."""

    @property
    def words_only(self) -> bool:
        """Whether only tokens that start a word and consist of letters are listed."""

    @property
    def stop_words(self) -> str:
        """Tokens that are left out."""

    @property
    def only(self) -> str:
        """Tokens that are kept; empty keeps all."""

    @property
    def words_of(self) -> str:
        """A text whose words are kept; empty keeps all."""


FEW = 40
"""Tokens that are too few for their spread to say much."""


@dataclass(frozen=True)
class Filters:
    """What may be listed: ``stop`` and ``only`` in the order they were given, ``words`` of the text ``text``."""

    words_only: bool = False
    stop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    words: frozenset[str] | None = None
    text: str = ""

    @classmethod
    def of(cls, settings: FilterSettings, context: Context) -> Filters:
        """Read the filters of an experiment's settings; a text that cannot be had raises SettingsError."""
        corpus = context.corpus(settings.words_of) if settings.words_of else None
        return cls(
            settings.words_only,
            word_list(settings.stop_words),
            word_list(settings.only),
            None if corpus is None else words_in(corpus.sentences),
            "" if corpus is None else corpus.name,
        )

    def kept(self, tokens: Tokens, size: int, label: str, among: np.ndarray | None = None) -> tuple[np.ndarray, str]:
        """Return which of the first ``size`` tokens may be listed, (size,) bool, and a notice or "".

        Special tokens never may; ``among`` (size,) bool leaves out others beforehand. None left raises
        :class:`SettingsError` with the way out.
        """
        keep = ~tokens.special[:size]
        keep = keep if among is None else keep & among
        of = int(keep.sum())
        if self.words_only:
            keep &= whole_words(tokens)[:size]
        if self.stop:
            keep &= ~spelt(tokens, self.stop)[:size]
        if self.only:
            keep &= spelt(tokens, self.only)[:size]
        if self.words is not None:
            keep &= np.fromiter((text.casefold() in self.words for text in tokens.text[:size]), bool, size)
            keep &= tokens.starts_word[:size]
        lacking = self._lacking(tokens, size)
        if not keep.any():
            raise SettingsError(self._none_left(label, lacking))
        return keep, self._sentence(label, int(keep.sum()), of, lacking)

    def _lacking(self, tokens: Tokens, size: int) -> list[str]:
        """Return the words of the list to keep that are no token of the vocabulary, in order."""
        if not self.only:
            return []
        real = [row for row in range(size) if not tokens.special[row]]
        known = {tokens.text[row].casefold() for row in real}
        inside = {f"##{tokens.text[row].casefold()}" for row in real if not tokens.starts_word[row]}
        return [word for word in self.only if word not in known and word not in inside]

    def _sentence(self, label: str, kept: int, of: int, lacking: list[str]) -> str:
        by = [f"a list of {plural(len(self.only), 'word')}"] if self.only else []
        if self.words is not None:
            by.append(f"the {plural(len(self.words), 'word')} of {self.text}")
        if not by:
            return ""
        what = "words" if self.words_only or self.words is not None else "tokens"
        said = f"{label}: kept to {kept:,} {agree(kept, what[:-1], what)} (of {of:,} tokens) by {' and '.join(by)}"
        said = f"{said}; of the list {_absent(lacking)}." if lacking else f"{said}."
        if kept < FEW:
            said += f" Among so few both ends may hold the same ones, and no z is beyond {(kept - 1) ** 0.5:.1f}."
        return said

    def _none_left(self, label: str, lacking: list[str]) -> str:
        ways = []
        if self.stop:
            ways.append("shorten the stop list")
        if self.words_only:
            ways.append("list more than whole words")
        if self.only:
            ways.append("keep other tokens")
        if self.words is not None:
            ways.append("keep the words of another text")
        way = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else "".join(ways) or "choose another model"
        why = f" (of those to keep {_absent(lacking)})" if lacking else ""
        return f"The filters leave no token of {label} to list{why}; {way}."


def _absent(lacking: list[str]) -> str:
    shown = ", ".join(word if len(word) <= 40 else f"{word[:39]}…" for word in lacking[:_SHOWN])
    more = len(lacking) - _SHOWN
    said = f"{len(lacking):,} {agree(len(lacking), 'is no token', 'are no tokens')}: {shown}"
    return f"{said} and {more:,} more" if more > 0 else said


def word_list(text: str) -> tuple[str, ...]:
    """Return the words of a list, case folded, each once, in order; spaces, commas, semicolons, line ends part them."""
    words = re.split(r"[\s,;]+", unicodedata.normalize("NFC", text))
    return tuple(dict.fromkeys(word.casefold() for word in words if word))


def spelt(tokens: Tokens, words: Iterable[str]) -> np.ndarray:
    """Return which tokens have one of the case-folded ``words`` as their text, (V,) bool.

    A word that begins with ``##``, as pages show it, means tokens inside a word only.
    """
    anywhere = frozenset(words)
    inside = frozenset(word[2:] for word in anywhere if word.startswith("##") and len(word) > 2)
    folded = [text.casefold() for text in tokens.text]
    found = np.fromiter((text in anywhere for text in folded), bool, len(folded))
    if inside:
        found |= np.fromiter((text in inside for text in folded), bool, len(folded)) & ~tokens.starts_word
    return found


def whole_words(tokens: Tokens) -> np.ndarray:
    """Return which tokens start a word and consist of letters alone, (V,) bool."""
    letters = np.array([text.isalpha() for text in tokens.text], dtype=bool)
    whole: np.ndarray = letters & tokens.starts_word & ~tokens.special
    return whole


@functools.lru_cache(maxsize=4)
def words_in(sentences: tuple[str, ...]) -> frozenset[str]:
    """Return the words of a text, case folded: runs of letters, digits and apostrophes; punctuation is none."""
    from embcompare.text.words import word_spans

    return frozenset(
        word.casefold()
        for sentence in (unicodedata.normalize("NFC", each) for each in sentences)
        for start, end in word_spans(sentence)
        if any(map(str.isalnum, word := sentence[start:end]))
    )
