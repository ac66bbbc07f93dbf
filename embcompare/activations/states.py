"""Captured hidden states: what each row is, layer by layer, and pooled to sentences or words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.text.words import Pooling, TokenIndex, WordRows, pool_words, segment_means

Kind = Literal["token", "mean", "last", "cls"]
What = Literal["hidden", "attention", "feed_forward", "patterns"]

KINDS: tuple[Kind, ...] = ("token", "mean", "last", "cls")
"""How states can be given: one a token, or one a sentence."""
CALLED: dict[What, str] = {
    "hidden": "hidden states",
    "attention": "self-attention outputs",
    "feed_forward": "feed-forward outputs",
    "patterns": "attention patterns",
}
"""What can be captured of each block, and how it is called."""
AFTER_NORM = "after final norm"
"""What :attr:`HiddenStates.last` says where the model has a final norm; elsewhere ``"block output"``."""


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The captured states of one model on one corpus; arrays lie on disk and are read as they are used.

    ``n_layers`` is the number of blocks, so that states are numbered 0 to ``n_layers``; ``layers`` are those
    captured. ``what`` is captured of each block, see :func:`~embcompare.activations.capture`: all but hidden states
    are numbered from 1, for there is none of the embedding output; of patterns ``width`` is the number of heads.
    ``index`` says which sentence and characters each row belongs to; ``last`` whether the last state is
    ``"after final norm"`` or ``"block output"``; ``notices`` what a reader should know.
    """

    label: str
    key: str
    n_layers: int
    width: int
    layers: tuple[int, ...]
    n_sentences: int
    index: TokenIndex
    last: str
    cls_reason: str
    notices: tuple[str, ...]
    provenance: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(repr=False)
    what: What = "hidden"

    def layer(self, k: int, *, before_norm: bool = False) -> np.ndarray:
        """Return the states of layer ``k``, float32 (n, d), read-only, one row a token of :attr:`index`.

        ``before_norm`` gives the last block's own output where the last state is after the final norm; elsewhere it
        changes nothing. Raises ``SettingsError`` for a layer that was not captured, or not token by token.
        """
        name = self._name("token", k, before_norm)
        if name not in self.arrays:
            raise SettingsError(
                f"Layer {k} of {self.label} was captured pooled; capture it without pooling for tokens."
            )
        return self.arrays[name]

    def layer_label(self, k: int) -> str:
        """Return what layer ``k`` is: ``embedding output``, ``block 3``, ``block 6, after final norm``.

        Of what is no hidden state: ``attention of block 3``, ``feed-forward of block 3``, ``heads of block 3``.
        """
        self._captured(k)
        if self.what != "hidden":
            return f"{_PARTS[self.what]} of block {k}"
        if k == 0:
            return "embedding output"
        return f"block {k}, after final norm" if k == self.n_layers and self.last == AFTER_NORM else f"block {k}"

    def pooled(self, k: int, kind: Kind, *, before_norm: bool = False) -> np.ndarray:
        """Return layer ``k`` pooled, float32: ``"token"`` as :meth:`layer`, else one row a sentence.

        ``"mean"`` averages a sentence's text tokens in float64, ``"last"`` takes the last of them, ``"cls"`` the
        classification token before them. A sentence without text tokens has a row of NaN; a notice says so. Raises
        ``SettingsError`` for another kind and ``Incomparable`` for ``"cls"`` where there is none, with the reason.
        """
        check_kind(kind)
        if kind == "token":
            return self.layer(k, before_norm=before_norm)
        if kind == "cls" and self.cls_reason:
            raise Incomparable(self.cls_reason)
        name = self._name(kind, k, before_norm)
        if name in self.arrays:
            return self.arrays[name]
        values, bounds = self.layer(k, before_norm=before_norm), self.index.bounds(self.n_sentences)
        out = np.full((self.n_sentences, self.width), np.nan, dtype=np.float32)
        for rows in _blocks(bounds, self.width):
            some = rows[bounds[rows + 1] > bounds[rows]]
            out[some] = pool(values, bounds[some], bounds[some + 1] - bounds[some], kind)
        out.setflags(write=False)
        return out

    def special(self, k: int) -> np.ndarray:
        """Return how much each head of block ``k`` attends to special tokens, float32 (n, heads), 0 to 1: patterns.

        One row a token of :attr:`index`, the one that attends. Raises ``SettingsError`` where no patterns were
        captured.
        """
        self._captured(k)
        if self.what != "patterns":
            raise SettingsError(f"Of {self.label} {CALLED[self.what]} were captured, which attend to nothing.")
        return self.arrays[array_name("token", k, special=True)]

    def words(self, k: int, rows: WordRows, how: Pooling = "mean", *, before_norm: bool = False) -> np.ndarray:
        """Return layer ``k`` pooled to words, float32 (w, d): :func:`embcompare.text.words.pool_words`.

        ``rows`` is this model's side of an :func:`~embcompare.text.words.align_words` on the same corpus.
        """
        return pool_words(self.layer(k, before_norm=before_norm), rows, how)

    def _name(self, kind: str, k: int, before_norm: bool) -> str:
        self._captured(k)
        block = before_norm and k == self.n_layers and self.last == AFTER_NORM
        return array_name(kind, k, block)

    def _captured(self, k: int) -> None:
        if k not in self.layers:
            raise SettingsError(
                f"Layer {k} of {self.label} was not captured; captured are {', '.join(map(str, self.layers))}."
            )


def array_name(kind: str, layer: int, block: bool = False, *, special: bool = False) -> str:
    """Return what the states of a layer are called on disk.

    ``block`` is for the last block's own output, ``special`` for the attention that special tokens get.
    """
    return f"{kind}-{layer}{'-block' if block else ''}{'-special' if special else ''}"


def pool(values: np.ndarray, first: np.ndarray, count: np.ndarray, kind: str) -> np.ndarray:
    """Return the mean or last row, float32 (s, d), of the runs of rows that begin at ``first``, ``count`` >= 1 long."""
    pooled = values[first + count - 1] if kind == "last" else segment_means(values, first, count)
    return pooled.astype(np.float32, copy=False)


_PARTS = {"attention": "attention", "feed_forward": "feed-forward", "patterns": "heads"}


def check_kind(kind: str) -> None:
    """Raise ``SettingsError`` unless ``kind`` is one of ``KINDS``."""
    if kind not in KINDS:
        raise SettingsError(f"States cannot be pooled by {kind!r}; choose one of {', '.join(KINDS)}.")


def _blocks(bounds: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Yield sentence numbers in groups whose states take about 32 MB as float64."""
    step = max(1, (1 << 22) // max(1, width))
    low = 0
    while low < len(bounds) - 1:
        high = max(low + 1, int(np.searchsorted(bounds, bounds[low] + step, "right")) - 1)
        yield np.arange(low, min(high, len(bounds) - 1))
        low = high
