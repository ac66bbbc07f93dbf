"""Results on disk: one file each, named by what was asked, safe with many processes, bounded in size.

What is in a file is :mod:`embcompare.resultfile`'s; here is where it lies, who may write it and when it goes.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from embcompare import environment, folders
from embcompare.errors import SettingsError, StoreError
from embcompare.experiments import settings_type
from embcompare.experiments.base import Result, Settings, canonical
from embcompare.folders import reason, reason_in_words, write_atomically
from embcompare.notices import Notices
from embcompare.resultfile import Damaged, arrays_of, described, packed, verified
from embcompare.words import agree, plural

__all__ = ["DEFAULT_BYTES", "Entry", "Store", "reason_in_words", "write_atomically"]

DEFAULT_BYTES = 2 * 2**30
"""Bytes that stored results may take together unless somebody says otherwise."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One stored result, as its header describes it; times are seconds since 1970, ``seconds`` the computing time."""

    key: str
    experiment: str
    version: int
    settings: dict[str, Any]
    models: dict[str, str]
    bytes: int
    created: float
    last_used: float
    seconds: float | None


class Store:
    """Finished results in one folder, shared by all processes, the least recently used dropped beyond ``max_bytes``.

    ``folder`` is, unless given, the environment's ``EMBCOMPARE_CACHE`` or the user's cache folder; ``max_bytes`` is,
    unless given, ``EMBCOMPARE_CACHE_BYTES`` or 2 GiB. Making a store touches nothing on disk.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int | None = None) -> None:
        self.folder = Path(folder) if folder is not None else _default_folder()
        if max_bytes is None:
            max_bytes = environment.number_of_bytes("EMBCOMPARE_CACHE_BYTES", DEFAULT_BYTES)
        self.max_bytes = max_bytes
        self._notices = Notices()

    def key(self, settings: Settings, fingerprints: Mapping[str, str]) -> str:
        """Return the 64 hex digits that name the result of ``settings`` on models of these fingerprints."""
        return hashlib.sha256(canonical(settings, fingerprints).encode()).hexdigest()

    def get(self, key: str) -> Result | None:
        """Return the stored result and mark it as used; None when there is none that can be trusted.

        A damaged file, or what is no file, is moved to the folder ``damaged`` and a notice says so. A file that is
        sound but was written by another version of the experiment stays where it is, and a notice says that it cannot
        be read. Arrays are read-only.
        """
        path = self._path(key)
        try:
            if self._is_misplaced(path):
                return None
            with path.open("rb") as file:
                identity = os.fstat(file.fileno())
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._notices.add(key, f"A stored result could not be read ({reason(error)}) and was left aside.")
            return None
        try:
            description = verified(data, key)
            result = self._rebuilt(key, data, description)
        except Damaged as error:
            self._set_aside(path, str(error), identity)
            return None
        if result is not None:
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(),) * 2)
        return result

    def put(self, key: str, result: Result, settings: Settings) -> None:
        """Keep ``result`` under ``key``, whole or not at all, and drop the least recently used beyond the bound.

        Raises :class:`StoreError` when the folder cannot be written, the disk is full, or a field is of a kind that a
        safetensors file cannot hold.
        """
        path = self._path(key)
        data = packed(key, result, settings)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            folders.sweep(self.folder)
            folders.clear_way(path, "file", self.folder)
            write_atomically(path, data)
        except OSError as error:
            raise StoreError(f"The result cannot be kept in {self.folder}: {reason_in_words(error)}") from error
        self._evict(keep=path)

    @contextmanager
    def lock(self, key: str, waiting: Callable[[], object] | None = None) -> Iterator[None]:
        """Hold the right to compute ``key``, alone among all threads and processes; a killed owner frees it.

        ``waiting`` is called about ten times a second while another holds it, and may raise to give up. Raises
        :class:`StoreError` when the folder cannot hold a lock.
        """

        def failed(error: OSError) -> StoreError:
            return StoreError(f"Runs cannot be locked in {self.folder}: {reason_in_words(error)}")

        path = self._path(key).with_suffix(".lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise failed(error) from error
        with folders.held(path, self.folder, failed, waiting):
            yield

    def entries(self) -> list[Entry]:
        """Return what is stored, last used first; files whose header cannot be trusted are set aside."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file, not a folder of results; {folders.WAY_OUT}")
        found: list[Entry] = []
        for path in self._named():
            try:
                if self._is_misplaced(path):
                    continue
                with path.open("rb") as file:
                    identity = os.fstat(file.fileno())
                    description = described(file, identity.st_size, path.stem)
                found.append(_entry(description, identity))
            except OSError:
                continue
            except Damaged as error:
                self._set_aside(path, str(error), identity)
        return sorted(found, key=lambda entry: entry.last_used, reverse=True)

    def find(self, start: str) -> str:
        """Return the one stored key that begins with ``start``; none or several raise :class:`StoreError`."""
        keys = [path.stem for path in self._files() if path.stem.startswith(start)] if start else []
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise StoreError(f"{len(keys):,} stored results begin with '{start}'; give more digits of the key.")
        raise StoreError(
            f"No stored result has a key that begins with '{start}'; list them with: python -m embcompare results."
        )

    def delete(self, key: str) -> bool:
        """Remove one result; True when there was one. What is no file is set aside instead."""
        path = self._path(key)
        try:
            if self._is_misplaced(path):
                return False
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"Result {key[:12]} cannot be deleted: {reason(error)}.") from error
        return True

    def clear(self) -> int:
        """Remove every result, set-aside file and leftover; return how many results were removed."""
        removed, kept = 0, []
        for path in self._named():
            try:
                removed += self.delete(path.stem)
            except StoreError as error:
                kept.append(str(error))
        for path in folders.damaged(self.folder):
            with suppress(OSError):
                folders.remove(path)
        with suppress(OSError):
            folders.sweep(self.folder)
        if kept:
            raise StoreError(
                f"{plural(removed, 'result')} {agree(removed, 'was', 'were')} deleted and {len(kept):,} "
                f"{agree(len(kept), 'was', 'were')} not. {kept[0]}"
            )
        return removed

    def size(self) -> int:
        """Return the bytes that the stored results take."""
        return sum(map(folders.size, self._files()))

    def notices(self) -> list[str]:
        """Return what happened to stored results and has not been told yet, oldest first; see :meth:`take_notices`."""
        return self._notices.all()

    def take_notices(self, key: str | None = None) -> list[str]:
        """Return what happened to one result, or to all, and forget it: whoever asks for a result is told once.

        A hundred notices wait at most.
        """
        return self._notices.take(key)

    def writable(self) -> str | None:
        """Return None when results can be kept, else the reason in one sentence."""
        probe = folders.temporary_name(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                probe.write_bytes(b"embcompare")
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            return f"Results cannot be kept in {self.folder}: {reason_in_words(error)}"
        return None

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreError(f"'{key}' is not the key of a result; a key has 64 hexadecimal digits.")
        return self.folder / f"{key}.safetensors"

    def _named(self) -> list[Path]:
        """Return whatever lies where results do."""
        try:
            return [path for path in self.folder.glob("*.safetensors") if _KEY.fullmatch(path.stem)]
        except OSError:
            return []

    def _files(self) -> list[Path]:
        with suppress(OSError):
            return [path for path in self._named() if path.is_file()]
        return []

    def _rebuilt(self, key: str, data: bytes, description: dict[str, Any]) -> Result | None:
        try:
            kind = settings_type(description["experiment"])
        except SettingsError:
            kind = None
        if kind is None or kind.version != description["version"]:
            self._notices.add(
                key,
                f"Result {key[:12]} was computed by version {description['version']} of {description['experiment']}, "
                "which this embcompare cannot read; run it again.",
            )
            return None
        try:
            return kind.result_type.unpack(arrays_of(data, description), description["scalars"])
        except Exception as error:
            raise Damaged(f"its fields are not those of {description['experiment']}") from error

    def _is_misplaced(self, path: Path) -> bool:
        """Set aside what is no file where a result belongs; say whether there was such a thing."""
        reason = folders.misplaced(path, "file")
        if reason:
            self._set_aside(path, reason)
        return bool(reason)

    def _set_aside(self, path: Path, reason: str, identity: os.stat_result | None = None) -> None:
        """Move a damaged file out of the way, unless another process has put a sound one in its place since."""
        begin = f"The stored result {path.stem[:12]} was damaged ({reason})"
        try:
            if identity is not None and not os.path.samestat(identity, path.stat()):
                return
            folders.set_aside(path, self.folder)
        except FileNotFoundError:  # another process was quicker
            return
        except OSError as error:
            self._notices.add(path.stem, f"{begin} and cannot be moved away: {reason_in_words(error)}")
            return
        self._notices.add(path.stem, f"{begin} and has been set aside.")

    def _evict(self, keep: Path) -> None:
        """Remove set-aside files, then results by last use, until the bound holds; ``keep`` stays whatever its size."""
        lying = [*folders.damaged(self.folder), *sorted(self._files(), key=folders.used)]
        sizes = [(path, folders.size(path)) for path in lying]
        excess = sum(size for _, size in sizes) - self.max_bytes
        for path, size in sizes:
            if excess <= 0:
                return
            if path != keep:
                with suppress(OSError):
                    folders.remove(path)
                    excess -= size


def _entry(description: dict[str, Any], file: os.stat_result) -> Entry:
    names = ("key", "experiment", "version", "settings", "models", "created", "seconds")
    fields = {name: description[name] for name in names}
    return Entry(bytes=file.st_size, last_used=file.st_mtime_ns / 1e9, **fields)


def _default_folder() -> Path:
    named = environment.folder("EMBCOMPARE_CACHE")
    return named if named is not None else user_cache_path("embcompare", appauthor=False)
