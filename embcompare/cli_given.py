"""A user's own files from a shell: recognised by suffix, bounded, kept on the shelf, and named in settings."""

from __future__ import annotations

import dataclasses
import os
import stat
import typing
from pathlib import Path
from typing import Any

from embcompare.cli_options import takes_vectors
from embcompare.errors import SettingsError
from embcompare.experiments import settings_type
from embcompare.words import plural

if typing.TYPE_CHECKING:
    import argparse

    from embcompare.shelf import Shelf

_TEXT_OPTIONS = ("column", "label_column", "target_column", "max_rows", "seed")
_VECTOR_OPTIONS = ("array", "ids")


@dataclasses.dataclass(frozen=True)
class Kept:
    """A file that was kept: the name to use in settings, what it holds in words, and what was left out of it."""

    name: str
    holds: str
    notices: tuple[str, ...]


def keep_file(path: str, options: dict[str, Any] | None = None, *, shelf: Shelf | None = None) -> Kept:
    """Keep a file of text (txt, csv, tsv, jsonl) or of vectors (npy, npz, safetensors, parquet).

    ``options`` are those of reading: ``column``, ``label_column`` or ``target_column`` (then the text comes with
    translations), ``max_rows`` and ``seed`` of a text, ``array`` and ``ids`` of vectors. Raises ``SettingsError`` for a
    path that is no such file and for an option of the other kind, ``InputError`` for content that cannot be used,
    ``StoreError`` when it cannot be kept.
    """
    from embcompare.shelf import Shelf
    from embcompare.text import uploads
    from embcompare.text.corpora import SUFFIXES

    options = {name: value for name, value in (options or {}).items() if value is not None}
    if not path.strip():
        raise SettingsError("The name of the file is empty; name a file of text or of vectors.")
    file, shown = Path(os.path.expanduser(path)), _shown(path)
    suffix = file.suffix.lower().lstrip(".")
    known = suffix in (*SUFFIXES, *uploads.SUFFIXES)
    if not known and not file.is_dir():
        ending = f"ends in '.{_shown(suffix)}'" if suffix else "has no suffix"
        raise SettingsError(
            f"{shown} {ending}; text is read from {', '.join(SUFFIXES)} and vectors from "
            f"{', '.join(uploads.SUFFIXES)}, so save it as one of these."
        )
    _check_file(file, shown)
    text = suffix in SUFFIXES
    foreign = sorted(set(options) & set(_VECTOR_OPTIONS if text else _TEXT_OPTIONS))
    if foreign:
        flag = f"--{foreign[0].replace('_', '-')}"
        raise SettingsError(
            f"{flag} is for files of {'vectors' if text else 'text'}, and {shown} holds "
            f"{'text' if text else 'vectors'}; leave it out."
        )
    shelf = shelf if shelf is not None else Shelf()
    try:
        return (_keep_text if text else _keep_vectors)(file, suffix, options, shelf)
    except OSError as error:
        raise SettingsError(f"{shown} cannot be read: {_why(error)}; check its permissions.") from error


def with_files(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Put the names of kept files in place of paths in ``arguments``; return what is to be said about them.

    A setting of a corpus takes the path of a text file, one of a model that of a file of vectors, where the
    experiment takes vectors.
    """
    said: list[str] = []
    for item in dataclasses.fields(settings_type(arguments.experiment)):
        value = getattr(arguments, item.name, None)
        if not isinstance(value, str):
            continue
        if item.metadata.get("corpus"):
            wanted = _is_text(value)
            if wanted and _is_vectors(value):
                raise SettingsError(
                    f"{_shown(value)} is a file of vectors, and {item.name} is a text; give a txt, csv, tsv or jsonl "
                    "file."
                )
        elif item.metadata.get("model"):
            wanted = _is_vectors(value)
            if wanted and not takes_vectors(item):
                _check_file(Path(os.path.expanduser(value)), _shown(value))
                raise SettingsError(
                    f"{_shown(value)} is a file of vectors, and {arguments.experiment} compares models; give a demo "
                    "model, a folder or a hub name, or run an experiment on representations."
                )
        else:
            continue
        if wanted:
            try:
                kept = keep_file(value)
            except SettingsError as error:
                if not os.path.isfile(os.path.expanduser(value)):
                    raise
                raise SettingsError(
                    f"{error} Options for reading it are those of: python -m embcompare keep FILE."
                ) from error
            said += kept.notices
            setattr(arguments, item.name, kept.name)
    return tuple(dict.fromkeys(said))


def _is_text(value: str) -> bool:
    from embcompare.shelf import BUNDLED, TRANSLATIONS, digest_of
    from embcompare.text.corpora import SUFFIXES

    if value in (*BUNDLED, *TRANSLATIONS) or digest_of(value) is not None:
        return False
    path = os.path.expanduser(value)
    return value.lower().endswith(tuple(f".{each}" for each in SUFFIXES)) or _exists(path)


def _is_vectors(value: str) -> bool:
    from embcompare.text.uploads import SUFFIXES

    ends = value.lower().endswith(tuple(f".{each}" for each in SUFFIXES))
    return ends and not os.path.isdir(os.path.expanduser(value))


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:
        return False


def _check_file(file: Path, shown: str) -> None:
    try:
        mode = file.stat().st_mode
    except FileNotFoundError as error:
        if file.is_symlink():
            raise SettingsError(f"{shown} is a link to a file that is not there; link it anew.") from error
        raise SettingsError(f"There is no file {shown}; check the path.") from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"There is no file {shown} to read ({_why(error)}); check the path.") from error
    if stat.S_ISDIR(mode):
        raise SettingsError(f"{shown} is a folder, not a file; give one file of text or of vectors.")
    if not stat.S_ISREG(mode):
        raise SettingsError(f"{shown} is no plain file; save what it gives to one first.")


def _keep_text(file: Path, suffix: str, options: dict[str, Any], shelf: Shelf) -> Kept:
    from embcompare.text.corpora import MAX_BYTES, corpus_from_bytes
    from embcompare.text.translations import translations_from_bytes

    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    target = options.pop("target_column", None)
    if target is None:
        corpus = corpus_from_bytes(data, suffix, name=_shown(file.name), **options)
    else:
        if options.pop("label_column", None) is not None:
            raise SettingsError("A text has labels or translations, not both; leave out --label-column.")
        source = options.pop("column", None)
        corpus = translations_from_bytes(data, suffix, source=source, target=target, name=_shown(file.name), **options)
    more = f" with {plural(len(set(corpus.labels)), 'different label')}" if corpus.labels else ""
    more = " with translations" if corpus.targets else more
    return Kept(shelf.keep_corpus(corpus), f"{plural(len(corpus), 'sentence')}{more}", corpus.notices)


def _keep_vectors(file: Path, suffix: str, options: dict[str, Any], shelf: Shelf) -> Kept:
    from embcompare.text.uploads import read_vectors

    vectors = read_vectors(file, suffix, name=_shown(file.name), **options)
    ids = " with ids" if vectors.ids else ""
    layers = f"{plural(vectors.layers, 'layer')} of " if vectors.layers > 1 else ""
    holds = f"{layers}{plural(len(vectors), 'vector')} of {plural(vectors.width, 'number')}{ids}"
    return Kept(shelf.keep_vectors(vectors), holds, vectors.notices)


def _shown(text: str) -> str:
    """Return a path for a sentence: on one line, its end only where it is very long."""
    line = "".join(each if each.isprintable() else "?" for each in text)
    return line if len(line) <= 200 else f"…{line[-200:]}"


def _why(error: Exception) -> str:
    if isinstance(error, ValueError):
        return "it holds a null character"
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
