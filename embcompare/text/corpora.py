"""Corpora: the one that ships, and a user's own text, read within bounds and known by what it holds."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from embcompare.errors import EmbcompareError, SettingsError

MAX_BYTES = 5 * 2**20
"""Bytes of text that are read at most."""
MAX_ROWS = 10_000
"""Sentences that a corpus holds at most unless somebody says otherwise; of more, a seeded sample is drawn."""
MAX_CHARACTERS = 2_000
"""Characters of one sentence; longer ones are left out, with a notice."""
SUFFIXES = ("txt", "csv", "tsv", "jsonl")
"""Kinds of text files that can be read."""

_FEW = 4
_USUAL = ("text", "sentence")
_BREAK = re.compile(r"\r\n|\n|\r")


class InputError(EmbcompareError):
    """Text or vectors that a user gave cannot be used; the message says where, why and what would do."""


@dataclass(frozen=True)
class Corpus:
    """Sentences in order, each one line of text with single spaces, and where they come from.

    ``labels`` is empty or holds one label a sentence. ``digest`` (64 hex digits) is the SHA-256 of sentences and
    labels, ``text_digest`` of the sentences alone, order included: hidden states depend on no more than that.
    Raises :class:`InputError` when there is no sentence, or one that is blank or is no Unicode text.
    """

    name: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    notices: tuple[str, ...] = field(default=(), compare=False)
    text_digest: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.sentences:
            raise InputError(f"{self.name} holds no sentences; give at least one line of text.")
        if self.labels and len(self.labels) != len(self.sentences):
            raise InputError(
                f"{self.name} has {len(self.labels):,} labels for {len(self.sentences):,} sentences; give one for each."
            )
        for number, sentence in enumerate(self.sentences, 1):
            if not sentence.strip():
                raise InputError(f"Sentence {number:,} of {self.name} is blank; leave it out.")
        object.__setattr__(self, "text_digest", self._digest(self.sentences))
        object.__setattr__(self, "digest", self._digest(self.sentences, self.labels))

    def __len__(self) -> int:
        return len(self.sentences)

    def _digest(self, *content: tuple[str, ...]) -> str:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        try:
            return hashlib.sha256(text.encode()).hexdigest()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{self.name} holds half a character (U+{ord(text[error.start]):04X}), which is no Unicode text; "
                "save it again as UTF-8."
            ) from error


@functools.cache
def shipped_corpus() -> Corpus:
    """Return the corpus that ships: 669 English sentences of 4 to 49 words in 14 genres, which are the labels.

    Written for embcompare. Genres take turns, so the first sentences of it are as mixed as the whole.
    """
    text = (files("embcompare.text") / "corpus.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    genres, sentences = zip(*rows, strict=True)
    return Corpus("shipped corpus", sentences, genres, {"source": "written for embcompare", "license": "MIT"})


def corpus_from_text(
    text: str, *, name: str = "pasted text", max_rows: int = MAX_ROWS, seed: int = 0, max_bytes: int = MAX_BYTES
) -> Corpus:
    """Return the corpus of pasted text: one sentence a line, blank lines left out; see :func:`corpus_from_bytes`."""
    if len(text) > max_bytes or len(text.encode(errors="surrogatepass")) > max_bytes:
        raise _too_large(name, max_bytes)
    return _corpus(name, ((line, "", number) for number, line in _lines(text)), max_rows, seed, {"format": "text"})


def corpus_from_bytes(
    data: bytes,
    suffix: str,
    *,
    column: str | None = None,
    label_column: str | None = None,
    name: str = "uploaded text",
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
) -> Corpus:
    """Return the corpus of an uploaded file, ``suffix`` being txt, csv, tsv or jsonl.

    Text must be UTF-8, with or without a byte order mark. A txt file holds one sentence a line; csv and tsv begin with
    a row of column names; a line of jsonl is an object, or a text. ``column`` names what holds the sentences: not
    needed where there is one column only, or one called text or sentence. White space is made single spaces; blank
    sentences are left out; repeated ones and those beyond ``MAX_CHARACTERS`` too, with a notice; of more than
    ``max_rows`` a sample is drawn with ``seed``, in the order of the file.

    Raises :class:`InputError` for anything that cannot be read as it says, with the line or byte, and
    ``SettingsError`` for a suffix, column or number of rows that cannot be.
    """
    kind = suffix.lower().lstrip(".")
    if kind not in SUFFIXES:
        raise SettingsError(f"Text cannot be read from a '{kind}' file; choose one of {', '.join(SUFFIXES)}.")
    if len(data) > max_bytes:
        raise _too_large(name, max_bytes)
    text = _decoded(data, name)
    if kind == "txt":
        if column or label_column:
            raise SettingsError("A txt file has no columns; leave the column empty, or give a csv or jsonl file.")
        rows: Iterator[tuple[str, str, int]] = ((line, "", number) for number, line in _lines(text))
    elif kind == "jsonl":
        rows = _jsonl(text, column, label_column, name)
    else:
        rows = _csv(text, "\t" if kind == "tsv" else ",", column, label_column, name)
    return _corpus(name, rows, max_rows, seed, {"format": kind, "column": column, "label_column": label_column})


def _corpus(
    name: str, rows: Iterable[tuple[str, str, int]], max_rows: int, seed: int, provenance: dict[str, Any]
) -> Corpus:
    """Clean, bound and sample (sentence, label, line number) rows; labels that are all empty are dropped."""
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
        raise SettingsError(f"max_rows cannot be {max_rows!r}; give a whole number from 1 up.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SettingsError(f"The seed cannot be {seed!r}; give a whole number from 0 up.")
    kept: dict[str, str] = {}
    repeated = long = 0
    for sentence, label, number in rows:
        if "\0" in sentence:
            raise InputError(f"Line {number:,} of {name} holds a null character, so it is no text; save it as UTF-8.")
        clean = " ".join(sentence.split())
        if not any(map(_shows, clean)):
            continue
        if len(clean) > MAX_CHARACTERS:
            long += 1
        elif clean in kept:
            repeated += 1
        else:
            kept[clean] = " ".join(label.split())
    notices = [
        f"{long:,} sentence(s) of more than {MAX_CHARACTERS:,} characters were left out." if long else "",
        f"{repeated:,} repeated sentence(s) were left out." if repeated else "",
    ]
    if not kept:
        why = f"; all {long:,} are longer than {MAX_CHARACTERS:,} characters" if long else ""
        raise InputError(f"{name} holds no sentences{why}; give at least one line of text.")
    chosen = list(kept.items())
    if len(chosen) > max_rows:
        notices.append(f"Of {len(chosen):,} sentences a sample of {max_rows:,} is used (seed {seed}).")
        order = np.sort(np.random.default_rng(seed).choice(len(chosen), max_rows, replace=False))
        chosen = [chosen[index] for index in order]
    if len(chosen) < _FEW:
        notices.append(f"With {len(chosen)} sentence(s) most measures are undefined; {_FEW} are the least, 100 better.")
    sentences, labels = zip(*chosen, strict=True)
    provenance |= {"read": len(kept), "used": len(chosen), "seed": seed if len(chosen) < len(kept) else None}
    return Corpus(name, sentences, labels if any(labels) else (), provenance, tuple(filter(None, notices)))


def _decoded(data: bytes, name: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name} is UTF-16, not UTF-8 text; save it again as UTF-8.")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        at = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            f"{name} is not UTF-8 text: byte {at:,} (line {line:,}) is 0x{data[at]:02X}; save it again as UTF-8."
        ) from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(_BREAK.split(text), 1)


def _csv(
    text: str, delimiter: str, column: str | None, label_column: str | None, name: str
) -> Iterator[tuple[str, str, int]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [cell.strip() for cell in next((row for row in reader if row), [])]
        at = _column(header, column, name)
        label_at = None if label_column is None else _column(header, label_column, name)
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(
                    f"Line {reader.line_num:,} of {name} has {len(row)} fields, the first line {len(header)}; "
                    "quote fields that hold the separator."
                )
            if row:
                yield row[at], "" if label_at is None else row[label_at], reader.line_num
    except csv.Error as error:
        raise InputError(f"Line {reader.line_num:,} of {name} is not proper CSV: {error}.") from error


def _jsonl(text: str, column: str | None, label_column: str | None, name: str) -> Iterator[tuple[str, str, int]]:
    for number, line in _lines(text):
        if not line.strip():
            continue
        try:
            item = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(f"Line {number:,} of {name} is not proper JSON: {error}.") from error
        if isinstance(item, str) and column is None and label_column is None:
            yield item, "", number
            continue
        if not isinstance(item, dict):
            raise InputError(f"Line {number:,} of {name} is {_kind(item)}, not an object with named fields.")
        if column is None:
            texts = [key for key, value in item.items() if isinstance(value, str)]
            column = texts[_column(texts, None, name)]
        yield _field(item, column, number, name), _label(item, label_column, number, name), number


def _field(item: dict[str, Any], column: str, number: int, name: str) -> str:
    if column not in item:
        raise InputError(f"Line {number:,} of {name} has no field '{column}'; its fields are {_named(item)}.")
    value = item[column]
    if not isinstance(value, str):
        raise InputError(f"Line {number:,} of {name} has {_kind(value)} in the field '{column}' where text belongs.")
    return value


def _label(item: dict[str, Any], label_column: str | None, number: int, name: str) -> str:
    if label_column is None:
        return ""
    value = item.get(label_column)
    if isinstance(value, int):
        return str(value)
    return _field(item, label_column, number, name)


def _column(header: list[str], wanted: str | None, name: str) -> int:
    """Return the position of the wanted column, or of the one that is meant where none is named."""
    if wanted is not None:
        found = [at for at, cell in enumerate(header) if cell == wanted.strip()]
        if not found:
            raise SettingsError(f"{name} has no column '{wanted}'; its columns are {_named(header)}.")
        if len(found) > 1:
            raise SettingsError(f"{name} has {len(found)} columns called '{wanted}'; rename all but one.")
        return found[0]
    if not header:
        raise InputError(f"{name} holds no sentences; give at least one line of text.")
    usual = [at for at, cell in enumerate(header) if cell.lower() in _USUAL]
    if len(header) != 1 and len(usual) != 1:
        raise SettingsError(f"{name} has {len(header)} columns; say which holds the sentences: {_named(header)}.")
    return 0 if len(header) == 1 else usual[0]


def _named(names: Iterable[str]) -> str:
    listed = [str(each)[:40] for each in names]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "") or "none"


def _kind(value: Any) -> str:
    kinds = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return "nothing (null)" if value is None else kinds.get(type(value), "an object")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


def _shows(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] not in "CZ" or category == "Cs"  # half a character must not vanish unseen


def _too_large(name: str, max_bytes: int) -> InputError:
    return InputError(f"{name} is larger than {max_bytes:,} bytes, the most that is read; give a part of it.")
