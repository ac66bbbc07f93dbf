"""What a user brought: texts and vectors, kept by what they hold, so that settings can name them.

A kept corpus is called ``text/DIGEST`` and kept vectors ``vectors/DIGEST``, wherever a setting asks for a corpus or a
side of a comparison. The digest is the content's own, so equal content has one name and a name never changes meaning.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embcompare import folders
from embcompare.errors import SettingsError, StoreError
from embcompare.folders import Item, reason_in_words
from embcompare.store import Store, write_atomically

if TYPE_CHECKING:
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

SHIPPED = "shipped"
"""Name of the corpus that comes with embcompare."""
REVIEWS = "reviews"
"""Name of the labelled reviews that come with embcompare."""
NUMBERS = "numbers"
"""Name of the numbers and dates with their translations that come with embcompare."""
BUNDLED = (SHIPPED, REVIEWS)
"""Names of the plain texts that come with embcompare."""
TRANSLATIONS = (NUMBERS,)
"""Names of the texts with translations that come with embcompare."""
MAX_BYTES = 512 * 2**20
"""Bytes that kept texts and vectors may take together; the least recently used go first."""

_NAME = re.compile(r"(text|vectors)/([0-9a-f]{64})")
_FILE = re.compile(r"([0-9a-f]{64})\.(json|safetensors)")
_KINDS = {"json": ("text", "text"), "safetensors": ("vectors", "file of vectors")}
_SUFFIXES = {kind: suffix for suffix, (kind, _) in _KINDS.items()}
_HEAD = 1 << 16


def digest_of(name: str) -> str | None:
    """Return the content digest that a kept name carries; None for any other name."""
    found = _NAME.fullmatch(name)
    return found.group(2) if found else None


def bundled_corpus(name: str) -> Corpus:
    """Return the text called ``name``, one of ``BUNDLED`` or ``TRANSLATIONS``."""
    from embcompare.text.corpora import shipped_corpus
    from embcompare.text.labelled import shipped_reviews
    from embcompare.text.translations import shipped_numbers

    return {SHIPPED: shipped_corpus, REVIEWS: shipped_reviews, NUMBERS: shipped_numbers}[name]()


class Shelf:
    """Texts and vectors in the folder ``given`` of the store's folder."""

    def __init__(self, store: Store | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.home = (store if store is not None else Store()).folder
        self.folder = self.home / "given"
        self.max_bytes = max_bytes

    def keep_corpus(self, corpus: Corpus) -> str:
        """Keep a corpus and return its name, ``text/DIGEST``; raises :class:`StoreError` when it cannot be written."""
        content = {
            "name": corpus.name,
            "sentences": corpus.sentences,
            "labels": corpus.labels,
            "provenance": dict(corpus.provenance),
            "notices": corpus.notices,
            **({"targets": corpus.targets} if corpus.targets else {}),
        }
        self._write(f"{corpus.digest}.json", json.dumps(content, ensure_ascii=False).encode())
        return f"text/{corpus.digest}"

    def corpus(self, name: str) -> Corpus:
        """Return the corpus called ``name``: one that comes with embcompare, or was kept; else :class:`SettingsError`.

        A kept one that is not what it was is set aside, and the error says so.
        """
        from embcompare.text.corpora import Corpus, InputError

        if name in (*BUNDLED, *TRANSLATIONS):
            return bundled_corpus(name)
        digest = digest_of(name) if name.startswith("text/") else None
        if digest is None:
            raise SettingsError(
                f"There is no corpus '{name}'; say {', '.join(BUNDLED)} or {NUMBERS}, or give your own text first."
            )
        path = self.folder / f"{digest}.json"
        try:
            content = json.loads(self._read(path))
            corpus = Corpus(
                content["name"],
                tuple(content["sentences"]),
                tuple(content["labels"]),
                content["provenance"],
                tuple(content["notices"]),
                tuple(content.get("targets", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
            raise self._damaged(path) from error
        if corpus.digest != digest:
            raise self._damaged(path)
        return corpus

    def keep_vectors(self, vectors: Vectors) -> str:
        """Keep vectors and return their name, ``vectors/DIGEST``; raises :class:`StoreError`."""
        from safetensors.numpy import save

        header = {"name": vectors.name, "ids": json.dumps(vectors.ids), "notices": json.dumps(vectors.notices)}
        self._write(f"{vectors.digest}.safetensors", save({"values": vectors.values}, metadata=header))
        return f"vectors/{vectors.digest}"

    def vectors(self, name: str) -> Vectors:
        """Return the kept vectors called ``name``; else :class:`SettingsError`, as :meth:`corpus`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        from embcompare.text.corpora import InputError
        from embcompare.text.uploads import Vectors

        digest = digest_of(name) if name.startswith("vectors/") else None
        if digest is None:
            raise SettingsError(f"There are no vectors '{name}'; give your own file first.")
        path = self.folder / f"{digest}.safetensors"
        try:
            data = self._read(path)
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + size])["__metadata__"]
            vectors = Vectors(
                header["name"],
                load(data)["values"],
                tuple(json.loads(header["ids"])),
                tuple(json.loads(header["notices"])),
            )
        except (
            ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError, InputError
        ) as error:  # fmt: skip
            raise self._damaged(path) from error
        if vectors.digest != digest:
            raise self._damaged(path)
        return vectors

    def entries(self) -> list[Item]:
        """Return what is kept, last used first: named as in settings, called as the user's file was.

        Lists what anybody gave; who may see what is for the caller to say.
        """
        found = []
        for path, kind in self._lying():
            with suppress(OSError):
                stat = path.stat()
                title = (_text_title if kind == "text" else _vectors_title)(path)
                found.append(Item(f"{kind}/{path.stem}", kind, title, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda item: item.last_used, reverse=True)

    def delete(self, name: str) -> bool:
        """Remove what is kept under ``name``; True when there was something.

        Raises :class:`SettingsError` for what is no such name and :class:`StoreError` where it cannot be removed.
        """
        digest = digest_of(name)
        if digest is None:
            raise SettingsError(f"'{name}' is not the name of a kept text or of kept vectors.")
        path = self.folder / f"{digest}.{_SUFFIXES[name.partition('/')[0]]}"
        try:
            if not path.exists() and not path.is_symlink():
                return False
            folders.remove(path)
        except OSError as error:
            raise StoreError(f"{name[:20]}… cannot be deleted: {folders.reason(error)}.") from error
        return True

    def clear(self) -> int:
        """Remove all texts and vectors; return how many there were."""
        return sum(self.delete(f"{kind}/{path.stem}") for path, kind in self._lying())

    def size(self) -> int:
        """Return the bytes that kept texts and vectors take."""
        return sum(folders.size(path) for path, _ in self._lying())

    def _lying(self) -> list[tuple[Path, str]]:
        """Return the files of texts and vectors, each with its kind; what is no file is set aside."""
        found = []
        with suppress(OSError):
            for path in self.folder.iterdir():
                named = _FILE.fullmatch(path.name)
                if named and not folders.clear_way(path, "file", self.home):
                    found.append((path, _KINDS[named.group(2)][0]))
        return found

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            folders.own_folder(self.folder, self.home)
            folders.sweep(self.folder)
            folders.clear_way(path, "file", self.home)
            write_atomically(path, data)
        except OSError as error:
            raise StoreError(f"What you gave cannot be kept in {self.folder}: {reason_in_words(error)}") from error
        self._evict(keep=path)

    def _read(self, path: Path) -> bytes:
        try:
            if folders.misplaced(path, "file"):
                raise self._damaged(path)
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SettingsError(
                f"The {self._what(path)} that these settings name is no longer kept here; give it again."
            ) from error
        except OSError as error:
            raise SettingsError(
                f"The {self._what(path)} that these settings name cannot be read ({folders.reason(error)}); check the "
                f"permissions of {self.folder}, or give it again."
            ) from error
        with suppress(OSError):
            os.utime(path)
        return data

    def _damaged(self, path: Path) -> SettingsError:
        """Set aside what is not what it was; return the error that says so."""
        with suppress(OSError):
            folders.set_aside(path, self.home)
        return SettingsError(
            f"The {self._what(path)} that these settings name was damaged on the disk and has been set aside; give it "
            "again."
        )

    def _what(self, path: Path) -> str:
        return _KINDS[path.suffix[1:]][1]

    def _evict(self, keep: Path) -> None:
        files = sorted((path for path, _ in self._lying()), key=folders.used)
        excess = sum(map(folders.size, files)) - self.max_bytes
        for path in files:
            if excess <= 0:
                return
            if path != keep:
                with suppress(OSError):
                    size = folders.size(path)
                    path.unlink()
                    excess -= size


def keep_corpus(corpus: Corpus) -> str:
    """Keep a corpus on the shelf of the usual store and return the name to use in settings."""
    from embcompare.text.corpora import Corpus

    if not isinstance(corpus, Corpus):
        raise SettingsError(
            "keep_corpus takes a Corpus, as embcompare.text.corpora makes it, such as corpus_from_text(text); got "
            f"{type(corpus).__name__}. From a shell a file is kept with: python -m embcompare keep FILE."
        )
    return Shelf().keep_corpus(corpus)


def keep_vectors(vectors: Vectors) -> str:
    """Keep vectors on the shelf of the usual store and return the name to use in settings."""
    from embcompare.text.uploads import Vectors

    if not isinstance(vectors, Vectors):
        raise SettingsError(
            "keep_vectors takes Vectors, such as embcompare.text.uploads.Vectors(name, array); got "
            f"{type(vectors).__name__}. From a shell a file is kept with: python -m embcompare keep FILE."
        )
    return Shelf().keep_vectors(vectors)


def _text_title(path: Path) -> str:
    """Return what a kept text is called, read from the beginning of its file; empty where that is unclear."""
    with path.open("rb") as file:
        head = file.read(_HEAD).decode("utf-8", errors="replace")
    begin = '{"name": '
    try:
        return _title(json.JSONDecoder().raw_decode(head, len(begin))[0] if head.startswith(begin) else "")
    except (ValueError, RecursionError):
        return ""


def _vectors_title(path: Path) -> str:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(min(length, folders.size(path)))
    try:
        return _title(json.loads(head)["__metadata__"]["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _title(found: Any) -> str:
    return found if isinstance(found, str) else ""
