"""Corpora: the one that ships, and a user's own text, read within bounds and known by what it holds."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from embcompare.errors import InputError as InputError
from embcompare.errors import SettingsError
from embcompare.text.tables import Rows, csv_rows, jsonl_rows, lines
from embcompare.words import agree, in_words, plural

MAX_BYTES = 5 * 2**20
"""Bytes of text that are read at most."""
MAX_ROWS = 10_000
"""Sentences that a corpus holds at most unless somebody says otherwise; of more, a seeded sample is drawn."""
MAX_CHARACTERS = 2_000
"""Characters of one sentence; longer ones are left out, with a notice."""
SUFFIXES = ("txt", "csv", "tsv", "jsonl")
"""Kinds of text files that can be read."""

_FEW = 4
_MARKS = (
    (b"\xff\xfe\0\0", "UTF-32"),  # begins as UTF-16 does, so it comes first
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


@dataclass(frozen=True)
class Corpus:
    """Sentences in order, each one line of text with single spaces, and where they come from.

    ``labels`` is empty or holds one label a sentence, ``targets`` is empty or holds one translation a sentence.
    ``digest`` (64 hex digits) is the SHA-256 of sentences, labels and translations, ``text_digest`` of the sentences
    alone, order included: hidden states depend on no more than that. Raises :class:`InputError` when there is no
    sentence, or one that is blank or is no Unicode text, and for a blank translation.
    """

    name: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    notices: tuple[str, ...] = field(default=(), compare=False)
    targets: tuple[str, ...] = ()
    text_digest: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.sentences:
            raise InputError(f"{self.name} holds no sentences; give at least one line of text.")
        if self.labels and len(self.labels) != len(self.sentences):
            raise InputError(
                f"{self.name} has {plural(len(self.labels), 'label')} for {plural(len(self.sentences), 'sentence')}; "
                "give one for each."
            )
        if self.targets and len(self.targets) != len(self.sentences):
            raise InputError(
                f"{self.name} has {plural(len(self.targets), 'translation')} for "
                f"{plural(len(self.sentences), 'sentence')}; give one for each."
            )
        for kind, texts in (("Sentence", self.sentences), ("Translation", self.targets)):
            for number, text in enumerate(texts, 1):
                if not text.strip():
                    raise InputError(f"{kind} {number:,} of {self.name} is blank; leave it out.")
        object.__setattr__(self, "text_digest", self._digest(self.sentences))
        more = (self.targets,) if self.targets else ()
        object.__setattr__(self, "digest", self._digest(self.sentences, self.labels, *more))

    def __len__(self) -> int:
        return len(self.sentences)

    def first(self, count: int) -> Corpus:
        """Return the corpus of the first so many sentences, or all there are."""
        kept = {name: getattr(self, name)[:count] for name in ("sentences", "labels", "targets")}
        return dataclasses.replace(self, **kept)

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
    return _corpus(name, ((line, "", number) for number, line in lines(text)), max_rows, seed, {"format": "text"})


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
    needed where there is one column only, or one called text or sentence. Columns may be separated by commas,
    semicolons, tabs or vertical bars, whichever splits every line alike; a notice says so if it is not what the suffix
    promises. White space is made single spaces; blank
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
    text, said = _decoded(data, name), ""
    if kind == "txt":
        if column or label_column:
            raise SettingsError("A txt file has no columns; leave the column empty, or give a csv or jsonl file.")
        rows: Rows = ((line, "", number) for number, line in lines(text))
    elif kind == "jsonl":
        rows = jsonl_rows(text, column, label_column, name)
    else:
        rows, said = csv_rows(text, kind, column, label_column, name)
    provenance = {"format": kind, "column": column, "label_column": label_column}
    return _corpus(name, rows, max_rows, seed, provenance, said)


def _corpus(
    name: str,
    rows: Iterable[tuple[str, str, int]],
    max_rows: int,
    seed: int,
    provenance: dict[str, Any],
    said: str = "",
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
        said,
        f"{plural(long, 'sentence')} of more than {MAX_CHARACTERS:,} characters {agree(long, 'was', 'were')} left out."
        if long
        else "",
        f"{plural(repeated, 'repeated sentence')} {agree(repeated, 'was', 'were')} left out." if repeated else "",
    ]
    if not kept:
        all_long = "the only one is" if long == 1 else f"all {long:,} are"
        why = f"; {all_long} longer than {MAX_CHARACTERS:,} characters" if long else ""
        raise InputError(f"{name} holds no sentences{why}; give at least one line of text.")
    chosen = list(kept.items())
    if len(chosen) > max_rows:
        notices.append(f"Of {len(chosen):,} sentences a sample of {max_rows:,} is used (seed {seed}).")
        order = np.sort(np.random.default_rng(seed).choice(len(chosen), max_rows, replace=False))
        chosen = [chosen[index] for index in order]
    if len(chosen) < _FEW:
        notices.append(
            f"With {plural(len(chosen), 'sentence')} most measures are undefined; {_FEW} are the least, 100 better."
        )
    sentences, labels = zip(*chosen, strict=True)
    provenance |= {"read": len(kept), "used": len(chosen), "seed": seed if len(chosen) < len(kept) else None}
    return Corpus(name, sentences, labels if any(labels) else (), provenance, tuple(filter(None, notices)))


def _decoded(data: bytes, name: str) -> str:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            raise InputError(f"{name} is {encoding}, not UTF-8 text; save it again as UTF-8.")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        at = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            f"{name} is not UTF-8 text: byte {at:,} (line {line:,}) is 0x{data[at]:02X}; save it again as UTF-8."
        ) from error


def _shows(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] not in "CZ" or category == "Cs"  # half a character must not vanish unseen


def _too_large(name: str, max_bytes: int) -> InputError:
    return InputError(f"{name} is larger than {in_words(max_bytes)}, the most that is read; give a part of it.")
