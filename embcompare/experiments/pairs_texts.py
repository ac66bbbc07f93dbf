"""The texts of paired rows, each kept once: of all rows, or of those that are looked at where rows are many."""

from __future__ import annotations

from typing import Any

import numpy as np

from embcompare.experiments.base import Context
from embcompare.experiments.sides import Pair, SideSettings

ALL_TEXTS = 5000
"""Up to so many rows the text of every row is kept with the result; beyond, of those listed and their neighbours."""


def row_texts(settings: SideSettings, context: Context, pair: Pair, referenced: np.ndarray) -> dict[str, Any]:
    """Return the result's fields that hold texts: of all rows, or of the ``referenced`` ones where rows are many."""
    n = len(pair.rows)
    rows = np.arange(n) if n <= ALL_TEXTS else referenced[referenced >= 0]
    spans = np.full((n, 2), -1, dtype=np.int64)
    sentence_of = np.full(n, -1, dtype=np.int64)
    if pair.names:
        sentence_of[rows] = np.arange(len(rows))
        texts, labels = [pair.names[row] for row in rows.tolist()], []
    else:
        corpus = context.corpus(settings.corpus)
        numbers, sentence_of[rows] = np.unique(pair.items[rows], return_inverse=True)
        texts = [corpus.sentences[number] for number in numbers.tolist()]
        labels = [corpus.labels[number] for number in numbers.tolist()] if corpus.labels else []
        if pair.spans is not None:
            spans[rows] = pair.spans[rows]
            nowhere = rows[spans[rows, 0] < 0]
            if len(nowhere) and pair.tokens is not None:
                with context.lease(settings.model_a) as model:
                    names = [model.tokens.display(int(token)) for token in pair.tokens[nowhere]]
                _nowhere(nowhere, names, sentence_of, texts, labels)
    return {
        "sentences": tuple(texts),
        "sentence_labels": tuple(labels),
        "sentence_of": sentence_of,
        "spans": spans,
    }


def _nowhere(rows: np.ndarray, tokens: list[str], sentence_of: np.ndarray, texts: list[str], labels: list[str]) -> None:
    """Give tokens whose place in the sentence is not known a text of their own: the token, then the sentence."""
    for row, token in zip(rows.tolist(), tokens, strict=True):
        at = int(sentence_of[row])
        sentence_of[row] = len(texts)
        texts.append(f"{token} — {texts[at]}")
        if labels:
            labels.append(labels[at])
