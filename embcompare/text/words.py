"""Words: the unit that two tokenizers have in common, found from character offsets alone.

A word is a run of letters, digits, marks and underscores, with apostrophes inside; a run of anything else that is
not white space is a word of its own. A token belongs to the word that holds all its characters. A word counts only
where its tokens cover it whole and none of them reaches into a neighbour, so that nothing is compared with a part.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.words import agree, plural

Pooling = Literal["mean", "last"]
Span = tuple[int, int]

_APOSTROPHES = "'’"
_BLOCK = 1 << 22


@dataclass(frozen=True, eq=False)
class TokenIndex:
    """What each row of hidden states belongs to: int arrays (n,), in the order of the corpus.

    ``sentence`` counts from 0; ``position`` is the place in the model's input, special tokens counted;
    ``start`` and ``end`` are characters of the sentence, -1 where the tokenizer does not tell.
    """

    sentence: np.ndarray
    position: np.ndarray
    token: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __post_init__(self) -> None:
        sizes = {name.name: len(getattr(self, name.name)) for name in fields(self)}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"the columns of an index differ in length: {sizes}")

    def __len__(self) -> int:
        return len(self.sentence)

    def bounds(self, n_sentences: int) -> np.ndarray:
        """Return int64 (n_sentences + 1,): the rows of sentence i are ``bounds[i]`` to ``bounds[i + 1]``."""
        return np.searchsorted(self.sentence, np.arange(n_sentences + 1)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class WordRows:
    """Which rows of hidden states make up each word: those from ``first[i]`` up to ``first[i] + count[i]``.

    ``sentence``, ``start`` and ``end`` (int64, (w,)) say where the words stand, in the order of the corpus; ``total``
    is the number of words in the corpus, and ``of_rows`` that of the rows the words were found in.
    """

    sentence: np.ndarray
    start: np.ndarray
    end: np.ndarray
    first: np.ndarray
    count: np.ndarray
    total: int
    of_rows: int

    def __len__(self) -> int:
        return len(self.first)

    @property
    def coverage(self) -> float:
        """Share of the corpus's words that these are; NaN where it has none."""
        return len(self) / self.total if self.total else float("nan")

    def only(self, chosen: np.ndarray) -> WordRows:
        """Return the chosen words (a mask or positions)."""
        names = ("sentence", "start", "end", "first", "count")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """The words that both tokenizers cover whole: word i of ``a`` and word i of ``b`` are the same characters.

    ``coverage_a`` and ``coverage_b`` are the shares of the corpus's words that each tokenizer covers alone,
    ``coverage`` the share that both do.
    """

    a: WordRows
    b: WordRows
    coverage_a: float
    coverage_b: float

    def __len__(self) -> int:
        return len(self.a)

    @property
    def coverage(self) -> float:
        """Share of the corpus's words that are aligned."""
        return self.a.coverage

    def sentence(self) -> str:
        """Return what was aligned, for a person."""
        whole = f"{len(self):,} of {plural(self.a.total, 'word')} ({self.coverage:.1%})"
        return (
            f"{whole} {agree(len(self), 'is', 'are')} whole in both tokenizers ({self.coverage_a:.1%} in the first, "
            f"{self.coverage_b:.1%} in the second); the rest is left out."
        )


def word_spans(text: str) -> list[Span]:
    """Return start and end (exclusive) of every word of ``text``, in order; see the module's docstring."""
    spans: list[Span] = []
    before = ""
    last = len(text) - 1
    for at, character in enumerate(text):
        kind = _kind(character)
        inside = before == "word" and character in _APOSTROPHES and at < last and _kind(text[at + 1]) == "word"
        if kind == "mark" or inside:
            kind = before if before in ("word", "other") else "word"
        if kind == before and kind != "space":
            spans[-1] = (spans[-1][0], at + 1)
        elif kind != "space":
            spans.append((at, at + 1))
        before = kind
    return spans


def words_of_tokens(text: str, tokens: Sequence[Span]) -> list[tuple[int, int, int, int]]:
    """Return the words of ``text`` that tokens cover whole: (start, end, first token, number of tokens).

    ``tokens`` are (start, end) in characters, white space at their ends does not count; empty spans belong to no
    word. Characters that a tokenizer may drop (marks, invisible ones) need not be covered.
    """
    spans = word_spans(text)
    owner = [-1] * len(text)
    for index, (start, end) in enumerate(spans):
        owner[start:end] = [index] * (end - start)
    members: dict[int, list[int]] = {}
    spoilt: set[int] = set()
    covered = [False] * len(text)
    for token, (start, end) in enumerate(tokens):
        touched = set(owner[start:end]) - {-1} if 0 <= start < end <= len(text) else set()
        if len(touched) > 1:
            spoilt |= touched
        elif touched:
            members.setdefault(touched.pop(), []).append(token)
            covered[start:end] = [True] * (end - start)
    found = []
    for index, (start, end) in enumerate(spans):
        own = members.get(index)
        if not own or index in spoilt or own[-1] - own[0] + 1 != len(own):
            continue
        if all(covered[at] or _droppable(text[at]) for at in range(start, end)):
            found.append((start, end, own[0], len(own)))
    return found


def word_rows(sentences: Sequence[str], index: TokenIndex) -> WordRows:
    """Return the words of a corpus that one tokenizer covers whole, and the rows that make up each."""
    bounds = index.bounds(len(sentences)).tolist()
    starts, ends = index.start.tolist(), index.end.tolist()
    rows: list[tuple[int, int, int, int, int]] = []
    total = 0
    for number, text in enumerate(sentences):
        low, high = bounds[number], bounds[number + 1]
        total += len(word_spans(text))
        tokens = list(zip(starts[low:high], ends[low:high], strict=True))
        rows.extend((number, s, e, low + at, count) for s, e, at, count in words_of_tokens(text, tokens))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    columns = [np.ascontiguousarray(column) for column in table.T]
    return WordRows(columns[0], columns[1], columns[2], columns[3], columns[4], total, len(index))


def align_words(sentences: Sequence[str], a: TokenIndex, b: TokenIndex) -> WordAlignment:
    """Pair the words that two tokenizers both cover whole on the same sentences.

    Raises ``Incomparable`` where there is none.
    """
    rows_a, rows_b = word_rows(sentences, a), word_rows(sentences, b)
    where_a, where_b = (list(zip(r.sentence.tolist(), r.start.tolist(), strict=True)) for r in (rows_a, rows_b))
    at_b = {where: position for position, where in enumerate(where_b)}
    pairs = [(position, at_b[where]) for position, where in enumerate(where_a) if where in at_b]
    if not pairs:
        raise Incomparable(
            f"The two tokenizers have no whole word in common on this corpus (the first covers {len(rows_a):,} of "
            f"{plural(rows_a.total, 'word')}, the second {len(rows_b):,}); pool to sentences instead."
        )
    chosen = np.array(pairs, dtype=np.int64)
    return WordAlignment(rows_a.only(chosen[:, 0]), rows_b.only(chosen[:, 1]), rows_a.coverage, rows_b.coverage)


def pool_words(values: np.ndarray, rows: WordRows, how: Pooling = "mean") -> np.ndarray:
    """Return one vector a word, float32 (w, d), from hidden states ``values`` (n, d).

    ``"mean"`` averages a word's tokens in float64, ``"last"`` takes its last one. ``values`` may lie on disk: they
    are read in blocks. Raises ``Incomparable`` when the words were found in another number of rows.
    """
    if how not in ("mean", "last"):
        raise SettingsError(f"Words cannot be pooled by {how!r}; choose mean or last.")
    if len(values) != rows.of_rows:
        raise Incomparable(
            f"These words were found in {plural(rows.of_rows, 'token')} but the states have {len(values):,}; "
            "align the words of this model and this corpus."
        )
    out = np.empty((len(rows), values.shape[1]), dtype=np.float32)
    step = max(1, _BLOCK // max(1, 8 * values.shape[1]))
    for low in range(0, len(rows), step):
        first, count = rows.first[low : low + step], rows.count[low : low + step]
        if how == "last":
            out[low : low + step] = values[first + count - 1]
        else:
            out[low : low + step] = segment_means(values, first, count)
    return out


def segment_means(values: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the float64 means (s, d) of the runs of rows that begin at ``first`` and are ``count`` >= 1 long."""
    taken = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    picked = np.asarray(values[taken], dtype=np.float64)
    sums = np.add.reduceat(picked, np.cumsum(count) - count, axis=0) if len(picked) else picked
    means: np.ndarray = sums / count[:, None]
    return means


def offsets_by_surface(text: str, pieces: Iterable[tuple[str, bool]], *, lower: bool = False) -> list[Span]:
    """Return where each piece stands in ``text``, for tokenizers that do not tell; (-1, -1) where that is not certain.

    ``pieces`` are (surface, whether it begins a word). Each must stand at the very place where the last one ended,
    white space skipped and case ignored with ``lower``. After one that does not, such as an unknown token, nothing is
    certain until a piece begins the next word.
    """
    hay = _lowered(text) if lower else text
    begins = [at for at, letter in enumerate(text) if not letter.isspace() and (at == 0 or text[at - 1].isspace())]
    spans: list[Span] = []
    at, lost = 0, False
    for piece, starts in pieces:
        if lost and starts:
            at, lost = next((begin for begin in begins if begin > at), len(text)), False
        while at < len(text) and text[at].isspace():
            at += 1
        needle = (_lowered(piece) if lower else piece).strip()
        fits = bool(needle) and not lost and hay.startswith(needle, at)
        spans.append((at, at + len(needle)) if fits else (-1, -1))
        if fits:
            at += len(needle)
        elif needle:
            lost = True
    return spans


def _lowered(text: str) -> str:
    """Return ``text`` in lower case, letter by letter where that keeps its length."""
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


@functools.lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return "mark"
    return "word" if character.isalnum() or character == "_" else "other"


@functools.lru_cache(maxsize=4096)
def _droppable(character: str) -> bool:
    return unicodedata.category(character)[0] in "MC"
