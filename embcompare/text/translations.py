"""Texts with their translations: numbers and dates that ship, and a user's own pairs, bounded and strictly decoded."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib.resources import files

from embcompare.errors import InputError, SettingsError
from embcompare.text.corpora import MAX_BYTES, MAX_CHARACTERS, MAX_ROWS, Corpus, corpus_from_bytes
from embcompare.text.tables import columns_of, lines
from embcompare.words import agree, in_words, plural

SUFFIXES = ("csv", "tsv", "jsonl")
"""Kinds of files that pairs can be read from."""
SOURCE_NAMES = ("source", "src", "text", "sentence")
"""What a column of sources is called, the likeliest first."""
TARGET_NAMES = ("target", "tgt", "translation", "reference")
"""What a column of translations is called, the likeliest first."""


@functools.cache
def shipped_numbers() -> Corpus:
    """Return the pairs that ship: 400 numbers and dates in English words, and their translations into Spanish.

    The words on both sides are what num2words 0.5.14 writes. No demo model has learnt from any of them.
    """
    text = (files("embcompare.text") / "numbers.tsv").read_text(encoding="utf-8")
    sources, targets = zip(*(line.split("\t") for line in text.splitlines()), strict=True)
    provenance = {"source": "written by num2words 0.5.14 for embcompare", "license": "MIT"}
    return Corpus("shipped numbers", sources, (), provenance, targets=targets)


def translations_from_text(
    text: str, *, name: str = "pasted pairs", max_rows: int = MAX_ROWS, seed: int = 0, max_bytes: int = MAX_BYTES
) -> Corpus:
    """Return the corpus of pasted pairs: a line each, source and translation with a tab between; blank lines are left
    out. Errors and bounds are those of :func:`translations_from_bytes`.
    """
    rows = []
    for number, line in lines(text):
        parts = line.split("\t")
        if line.strip() and len(parts) != 2:
            raise InputError(
                f"Line {number:,} of {name} has {plural(len(parts) - 1, 'tab')}; write source, one tab, translation."
            )
        rows.append(json.dumps(dict(zip(("source", "target"), parts, strict=True))) if line.strip() else "")
    if len(text.encode(errors="surrogatepass")) > max_bytes:
        raise InputError(f"{name} is larger than {in_words(max_bytes)}, the most that is read; give a part of it.")
    data = "\n".join(rows).encode()
    return translations_from_bytes(data, "jsonl", name=name, max_rows=max_rows, seed=seed, max_bytes=len(data))


def translations_from_bytes(
    data: bytes,
    suffix: str,
    *,
    source: str | None = None,
    target: str | None = None,
    name: str = "uploaded pairs",
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
) -> Corpus:
    """Return the corpus of an uploaded file of pairs, ``suffix`` being csv, tsv or jsonl, read as
    :func:`~embcompare.text.corpora.corpus_from_bytes` reads labelled texts.

    ``source`` and ``target`` name the columns: not needed where they are called so, or where there are just two, the
    source first. Sentences without a translation, and those whose translation is longer than ``MAX_CHARACTERS``, are
    left out with a notice. Raises :class:`InputError` where nothing is left or the file is not what it says.
    """
    kind = suffix.lower().lstrip(".")
    if kind not in SUFFIXES:
        raise SettingsError(f"Pairs cannot be read from a '{kind}' file; choose one of {', '.join(SUFFIXES)}.")
    if kind != "jsonl":
        head = data[: 1 << 16].removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")
        names = columns_of(head, kind)
        source = source or _named(names, SOURCE_NAMES, 0)
        target = target or _named(names, TARGET_NAMES, 1)
    read = corpus_from_bytes(
        data,
        kind,
        column=source or SOURCE_NAMES[0],
        label_column=target or TARGET_NAMES[0],
        name=name,
        max_rows=max_rows,
        seed=seed,
        max_bytes=max_bytes,
    )
    return _paired(read)


def _named(names: list[str], known: tuple[str, ...], place: int) -> str | None:
    """Return the column that is called as such columns are, or stands in its place where there are two."""
    lowered = [name.lower() for name in names]
    found = next((names[lowered.index(each)] for each in known if each in lowered), None)
    return found or (names[place] if len(names) == 2 else None)


def _paired(read: Corpus) -> Corpus:
    """Return a corpus whose labels become its translations."""
    labels = read.labels or ("",) * len(read)
    kept = [(text, own) for text, own in zip(read.sentences, labels, strict=True) if 0 < len(own) <= MAX_CHARACTERS]
    blank = sum(not own for own in labels)
    long = len(labels) - len(kept) - blank
    if not kept:
        raise InputError(f"{read.name} holds no pair of a text and its translation; give at least one.")
    most = f"more than {MAX_CHARACTERS:,} characters"
    notices = [
        f"{plural(blank, 'sentence')} without a translation {agree(blank, 'was', 'were')} left out." if blank else "",
        f"{plural(long, 'translation')} of {most} {agree(long, 'was', 'were')} left out." if long else "",
    ]
    sentences, targets = zip(*kept, strict=True)
    return dataclasses.replace(
        read,
        sentences=sentences,
        labels=(),
        targets=targets,
        notices=(*read.notices, *filter(None, notices)),
    )


def targets_of(corpus: Corpus) -> tuple[str, ...]:
    """Return the translations of a corpus; raises :class:`InputError` for one that has none."""
    if not corpus.targets:
        raise InputError(
            f"{corpus.name} holds no translations, and an encoder-decoder's decoder reads one beside each text; choose "
            "the shipped numbers, or give your own pairs."
        )
    return corpus.targets
