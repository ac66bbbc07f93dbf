"""Numbers and dates in English and in Spanish: an endless translation task whose answers are known exactly.

Both sides are written by num2words, which is needed to make the demo models and never to use them. A tenth of all
numbers from 100 up and of all dates is held out by a hash, so no training sees them and the split never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from typing import Any

import numpy as np

from embcompare.demo.texts import is_held_out

PACKAGE = "PyPI num2words==0.5.14"
"""What writes the words."""
MOST = 999_999
"""The largest number."""
YEARS = range(1000, 2100)
"""Years of the dates."""
DATES = 1 / 3
"""Share of dates among all pairs."""
HELD_OUT = 0.1
"""Share of numbers, and of dates, that no training sees."""
SPECIAL = ("</s>", "<unk>", "<pad>")
"""Special tokens; their ids are 0 to 2 in this order. The decoder starts with <pad>, as Marian models do."""
EOS, UNK, PAD = range(3)
LENGTH = 48
"""Positions of the models; the longest text has 15 tokens with its end."""

_MONTHS_EN = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_MONTHS_ES = (
    *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio"),
    *("agosto", "septiembre", "octubre", "noviembre", "diciembre"),
)
_EPOCH = date(YEARS[0], 1, 1).toordinal()
_DAYS = date(YEARS[-1], 12, 31).toordinal() - _EPOCH + 1


@dataclass(frozen=True)
class Pair:
    """A number or a date in both languages."""

    source: str
    target: str


def number_pair(number: int) -> Pair:
    """Return a number in words, such as ``one hundred and five`` and ``ciento cinco``."""
    from num2words import num2words

    return Pair(num2words(number, lang="en"), _shortened(num2words(number, lang="es")))


def _shortened(text: str) -> str:
    """Write *uno* before *mil* as Spanish does, *veintiún mil* and *treinta y un mil*; num2words leaves it whole."""
    return text.replace("veintiuno mil", "veintiún mil").replace(" uno mil", " un mil")


def date_pair(day: date) -> Pair:
    """Return a date in words, such as ``the second of May, nineteen oh-eight`` and ``dos de mayo de mil …``."""
    from num2words import num2words

    ordinal, year = num2words(day.day, lang="en", to="ordinal"), num2words(day.year, lang="en", to="year")
    day_es, year_es = num2words(day.day, lang="es"), num2words(day.year, lang="es")
    return Pair(
        f"the {ordinal} of {_MONTHS_EN[day.month - 1]}, {year}",
        f"{day_es} de {_MONTHS_ES[day.month - 1]} de {year_es}",
    )


def number_is_held_out(number: int) -> bool:
    """Whether no training sees this number; all below 100, of which the others are made, are seen."""
    return number >= 100 and is_held_out(f"number:{number}", HELD_OUT)


def date_is_held_out(day: date) -> bool:
    """Whether no training sees this date."""
    return is_held_out(f"date:{day.isoformat()}", HELD_OUT)


def draw_pairs(count: int, held_out: bool, seed: int) -> list[Pair]:
    """Draw different pairs of one part of the split: numbers of one to six digits alike often, and dates."""
    random = np.random.default_rng([seed, int(held_out)])
    found: dict[Pair, None] = {}
    while len(found) < count:
        if random.random() < DATES:
            day = date.fromordinal(_EPOCH + int(random.integers(_DAYS)))
            if date_is_held_out(day) == held_out:
                found[date_pair(day)] = None
        else:
            digits = int(random.integers(1, 7))
            number = int(random.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits))
            # so few are short that a training that asks for many would never end
            if number_is_held_out(number) == held_out and (digits > 2 or not held_out):
                found[number_pair(number)] = None
    return list(found)


def shipped_pairs() -> list[Pair]:
    """Return the held-out pairs that ship with embcompare (``embcompare.text.translations``)."""
    table = (files("embcompare") / "text" / "numbers.tsv").read_text(encoding="utf-8")
    return [Pair(*line.split("\t")) for line in table.splitlines()]


def all_words() -> Iterator[str]:
    """Yield texts in which every word of either language occurs."""
    numbers = [
        *range(100),
        *range(100, 1000, 50),
        *range(101, 1000, 100),
        1000,
        1001,
        2000,
        31_000,
        100_000,
        121_531,
        MOST,
    ]
    for number in numbers:
        pair = number_pair(number)
        yield from (pair.source, pair.target)
    for day in (*(date(2024, month, 1) for month in range(1, 13)), *(date(1901, 1, day) for day in range(1, 32))):
        pair = date_pair(day)
        yield from (pair.source, pair.target)


def make_tokenizer() -> Any:
    """Return the tokenizer of sources and targets, a ``transformers.PreTrainedTokenizerFast``: words, ``-`` and ``,``.

    A word after a space is written with ``▁`` before it, as sentencepiece does, so that decoding gives back the text;
    upper case is lost. Encoded text ends with ``</s>``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
            pre_tokenizers.Split(Regex("[-,]"), behavior="isolated"),
        ]
    )
    pieces = sorted(
        {
            piece
            for text in all_words()
            for piece, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
        }
    )
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *pieces))}
    backend.model = models.WordLevel(vocabulary, unk_token="<unk>")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=LENGTH,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return token rows as one table (n, longest) of int64, padded on the right with <pad>."""
    table = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
