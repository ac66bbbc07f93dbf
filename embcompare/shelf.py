"""What a user brought: texts and vectors, kept by what they hold, so that settings can name them.

A kept corpus is called ``text/DIGEST`` and kept vectors ``vectors/DIGEST``, wherever a setting asks for a corpus or a
side of a comparison. The digest is the content's own, so equal content has one name and a name never changes meaning.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from embcompare.errors import SettingsError, StoreError
from embcompare.store import Store, reason_in_words, write_atomically

if TYPE_CHECKING:
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

SHIPPED = "shipped"
"""Name of the corpus that comes with embcompare."""
REVIEWS = "reviews"
"""Name of the labelled reviews that come with embcompare."""
BUNDLED = (SHIPPED, REVIEWS)
"""Names of all texts that come with embcompare."""
MAX_BYTES = 512 * 2**20
"""Bytes that kept texts and vectors may take together; the least recently used go first."""

_NAME = re.compile(r"(text|vectors)/([0-9a-f]{64})")


def digest_of(name: str) -> str | None:
    """Return the content digest that a kept name carries; None for any other name."""
    found = _NAME.fullmatch(name)
    return found.group(2) if found else None


def bundled_corpus(name: str) -> Corpus:
    """Return the text called ``name``, one of ``BUNDLED``."""
    from embcompare.text.corpora import shipped_corpus
    from embcompare.text.labelled import shipped_reviews

    return {SHIPPED: shipped_corpus, REVIEWS: shipped_reviews}[name]()


class Shelf:
    """Texts and vectors in the folder ``given`` of the store's folder."""

    def __init__(self, store: Store | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = (store if store is not None else Store()).folder / "given"
        self.max_bytes = max_bytes

    def keep_corpus(self, corpus: Corpus) -> str:
        """Keep a corpus and return its name, ``text/DIGEST``; raises :class:`StoreError` when it cannot be written."""
        content = {
            "name": corpus.name,
            "sentences": corpus.sentences,
            "labels": corpus.labels,
            "provenance": dict(corpus.provenance),
            "notices": corpus.notices,
        }
        self._write(f"{corpus.digest}.json", json.dumps(content, ensure_ascii=False).encode())
        return f"text/{corpus.digest}"

    def corpus(self, name: str) -> Corpus:
        """Return the corpus called ``name``: one of ``BUNDLED``, or one that was kept; else :class:`SettingsError`."""
        from embcompare.text.corpora import Corpus, InputError

        if name in BUNDLED:
            return bundled_corpus(name)
        digest = digest_of(name) if name.startswith("text/") else None
        if digest is None:
            raise SettingsError(
                f"There is no corpus '{name}'; say {' or '.join(BUNDLED)}, or give your own text first."
            )
        try:
            content = json.loads(self._read(f"{digest}.json", "text"))
            corpus = Corpus(
                content["name"],
                tuple(content["sentences"]),
                tuple(content["labels"]),
                content["provenance"],
                tuple(content["notices"]),
            )
        except (ValueError, KeyError, TypeError, InputError) as error:
            raise self._damaged("text") from error
        if corpus.digest != digest:
            raise self._damaged("text")
        return corpus

    def keep_vectors(self, vectors: Vectors) -> str:
        """Keep vectors and return their name, ``vectors/DIGEST``; raises :class:`StoreError`."""
        from safetensors.numpy import save

        header = {"name": vectors.name, "ids": json.dumps(vectors.ids), "notices": json.dumps(vectors.notices)}
        self._write(f"{vectors.digest}.safetensors", save({"values": vectors.values}, metadata=header))
        return f"vectors/{vectors.digest}"

    def vectors(self, name: str) -> Vectors:
        """Return the kept vectors called ``name``; else :class:`SettingsError`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        from embcompare.text.corpora import InputError
        from embcompare.text.uploads import Vectors

        digest = digest_of(name) if name.startswith("vectors/") else None
        if digest is None:
            raise SettingsError(f"There are no vectors '{name}'; give your own file first.")
        data = self._read(f"{digest}.safetensors", "file of vectors")
        try:
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + size])["__metadata__"]
            vectors = Vectors(
                header["name"],
                load(data)["values"],
                tuple(json.loads(header["ids"])),
                tuple(json.loads(header["notices"])),
            )
        except (ValueError, KeyError, TypeError, SafetensorError, InputError) as error:
            raise self._damaged("file of vectors") from error
        if vectors.digest != digest:
            raise self._damaged("file of vectors")
        return vectors

    def _write(self, name: str, data: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, data)
        except OSError as error:
            raise StoreError(f"What you gave cannot be kept in {self.folder}: {reason_in_words(error)}") from error
        self._evict(keep=name)

    def _read(self, name: str, what: str) -> bytes:
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SettingsError(
                f"The {what} that these settings name is no longer kept here; give it again."
            ) from error
        with suppress(OSError):
            os.utime(path)
        return data

    def _damaged(self, what: str) -> SettingsError:
        return SettingsError(f"The {what} that these settings name was damaged on the disk; give it again.")

    def _evict(self, keep: str) -> None:
        with suppress(OSError):
            files = sorted((p for p in self.folder.iterdir() if p.is_file()), key=lambda path: path.stat().st_mtime)
            excess = sum(path.stat().st_size for path in files) - self.max_bytes
            for path in files:
                if excess <= 0:
                    return
                if path.name != keep:
                    excess -= path.stat().st_size
                    path.unlink()


def keep_corpus(corpus: Corpus) -> str:
    """Keep a corpus on the shelf of the usual store and return the name to use in settings."""
    return Shelf().keep_corpus(corpus)


def keep_vectors(vectors: Vectors) -> str:
    """Keep vectors on the shelf of the usual store and return the name to use in settings."""
    return Shelf().keep_vectors(vectors)
