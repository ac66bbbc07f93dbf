"""From sentences to a model's input, with a record of what each token stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.errors import InputError
from embcompare.text.tokens import Tokens
from embcompare.text.words import Span, TokenIndex, offsets_by_surface

_AT_ONCE = 512
_UNLIMITED = 10**6


UNKNOWN_REFUSED = 0.5
"""Share of a text's tokens that the vocabulary lacks, above which there is nothing to compare."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Sentences as a model reads them.

    ``ids`` holds one int64 array a sentence, special tokens included; ``is_text`` the mask of those that are not
    special. ``index`` tells of the text tokens alone, in the order of the corpus. ``cut`` counts the sentences that
    were cut to the longest input; ``empty`` lists those without a text token. ``has_cls`` says that every input
    begins with the tokenizer's classification token, ``exact_offsets`` that the tokenizer itself told the characters.
    ``unknown`` counts the text tokens that stand for something the vocabulary lacks.
    """

    ids: list[np.ndarray]
    is_text: list[np.ndarray]
    index: TokenIndex
    cut: int
    empty: tuple[int, ...]
    has_cls: bool
    exact_offsets: bool
    unknown: int = 0

    def __len__(self) -> int:
        return len(self.ids)


def encode(sentences: Sequence[str], tokenizer: Any, tokens: Tokens, longest: int) -> Encoded:
    """Encode sentences with the special tokens the tokenizer adds; of more than ``longest`` tokens keep the first.

    Where a sentence is cut, the special tokens at its end stay. A control token that is spelt out in the text is
    special as well; an unknown token is text. Neither padding nor the tokenizer's settings for it play a part.
    """
    lacking = getattr(tokenizer, "unk_token_id", None)
    control = set(tokenizer.all_special_ids) - {lacking}
    ids: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    cut, exact, has_cls = 0, bool(tokenizer.is_fast), tokenizer.cls_token_id is not None
    for low in range(0, len(sentences), _AT_ONCE):
        some = list(sentences[low : low + _AT_ONCE])
        encoded = tokenizer(
            some,
            add_special_tokens=True,
            padding=False,
            truncation=False,
            return_offsets_mapping=exact,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for at, sentence in enumerate(some):
            row = np.asarray(encoded["input_ids"][at], dtype=np.int64)
            added = np.asarray(encoded["special_tokens_mask"][at], dtype=bool)
            is_text = ~added & ~np.isin(row, list(control))
            spans = encoded["offset_mapping"][at] if exact else _spans(sentence, row, is_text, tokens)
            has_cls = has_cls and (not len(row) or (bool(added[0]) and int(row[0]) == tokenizer.cls_token_id))
            if len(row) > longest:
                cut += 1
                keep = _kept(added, longest)
                row, is_text, spans = row[keep], is_text[keep], [spans[place] for place in keep]
            ids.append(row)
            masks.append(is_text)
            columns.append(_columns(len(ids) - 1, row, is_text, spans))
    table = np.concatenate(columns) if columns else np.empty((0, 5), np.int32)
    index = TokenIndex(*(np.ascontiguousarray(column) for column in table.T))
    empty = tuple(number for number, mask in enumerate(masks) if not mask.any())
    unknown = 0 if lacking is None else int((index.token == lacking).sum())
    return Encoded(ids, masks, index, cut, empty, has_cls, exact, unknown)


def tokenizer_limit(tokenizer: Any) -> int | None:
    """Return the longest input the tokenizer declares, in tokens, or None where it declares none."""
    limit = int(min(getattr(tokenizer, "model_max_length", None) or _UNLIMITED, _UNLIMITED))
    return limit if limit < _UNLIMITED else None


def _kept(added: np.ndarray, longest: int) -> np.ndarray:
    """Return which positions stay: the added tokens at both ends, and the first of the text between them."""
    text = np.flatnonzero(~added)
    if not len(text):
        return np.arange(longest)
    lead, trail = int(text[0]), len(added) - 1 - int(text[-1])
    room = max(1, longest - lead - trail)
    return np.concatenate([np.arange(lead + room), np.arange(len(added) - trail, len(added))])


def _columns(sentence: int, row: np.ndarray, is_text: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    places = np.flatnonzero(is_text)
    table = np.empty((len(places), 5), dtype=np.int32)
    table[:, 0] = sentence
    table[:, 1] = places
    table[:, 2] = row[places]
    table[:, 3:] = np.asarray(spans, dtype=np.int32).reshape(-1, 2)[places]
    return table


def _spans(sentence: str, row: np.ndarray, is_text: np.ndarray, tokens: Tokens) -> list[Span]:
    spans: list[Span] = [(-1, -1)] * len(row)
    places = np.flatnonzero(is_text)
    pieces = [(tokens.text[at], bool(tokens.starts_word[at])) for at in row[places].tolist()]
    for place, span in zip(places.tolist(), offsets_by_surface(sentence, pieces, lower=tokens.uncased), strict=True):
        spans[place] = span
    return spans


def refuse_unknown(encoded: Encoded, label: str, name: str) -> None:
    """Raise :class:`InputError` where the vocabulary lacks most of the text called ``name``."""
    tokens = len(encoded.index)
    if encoded.unknown > UNKNOWN_REFUSED * tokens:
        raise InputError(
            f"The vocabulary of {label} lacks {encoded.unknown:,} of the {tokens:,} tokens of {name}, which would all "
            "be read as the one unknown token; give a text in the model's language, or give the model the tokenizer it "
            "was trained with."
        )
