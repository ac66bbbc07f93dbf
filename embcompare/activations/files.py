"""Hidden states on disk: one folder a (model, corpus, dtype), one npy file an array, whole or not at all.

A manifest lists the arrays with their digests and is written last; what it does not list does not exist. Whoever
writes holds the key's lock, works in the key's own temporary folder, and renames. A writer that is killed leaves only
that folder, which the next one removes. Nothing is forced onto the disk: a file that a power cut spoilt does not fit
its digest and is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from embcompare import environment, folders
from embcompare.errors import SettingsError, StoreError
from embcompare.folders import Item, reason_in_words
from embcompare.words import apart

DEFAULT_BYTES = 20 * 2**30
"""Bytes that stored hidden states may take together unless ``EMBCOMPARE_STATES_BYTES`` says otherwise."""

LOG = logging.getLogger(__name__)

_FORMAT = 1
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"states/([0-9a-f]{64})")
_verified: set[tuple[str, int, int, int]] = set()
_guard = threading.Lock()


class ArrayWriter:
    """Writes rows of a float32 array (rows, width) to an npy file, in any order, without holding them in memory."""

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self._row_bytes = 4 * width
        self._file: BinaryIO = path.open("xb", buffering=0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._start = self._file.tell()
        self._file.truncate(self._start + rows * self._row_bytes)

    def write(self, row: int, values: np.ndarray) -> None:
        """Put ``values`` (k, width) at rows ``row`` to ``row + k``."""
        data = np.ascontiguousarray(values, dtype="<f4").data.cast("B")
        self._file.seek(self._start + row * self._row_bytes)
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StateFolder:
    """The hidden states under ``root``, shared by all processes, the least recently used dropped beyond a bound.

    Arrays that are open stay readable when another process drops them. Making one touches nothing on disk. What is of
    the wrong kind at a path of ours goes to the folder ``damaged`` beside ``root``.
    """

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        self.root = Path(root)
        self.home = self.root.parent
        if max_bytes is None:
            max_bytes = environment.number_of_bytes("EMBCOMPARE_STATES_BYTES", DEFAULT_BYTES)
        self.max_bytes = max_bytes
        self._replaced = ""

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the description stored under ``key``, its arrays' digests in ``arrays``, and mark it as used.

        None when there is none; ``ValueError`` when what is there cannot be trusted.
        """
        if self._replaced:  # told to whoever reads first
            reason, self._replaced = self._replaced, ""
            raise ValueError(reason)
        description = self._described(key)
        if description is not None:
            with suppress(OSError):
                os.utime(self._path(key) / _MANIFEST)
        return description

    def open(self, key: str, description: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return stored arrays by name, read-only and read from disk as they are used.

        Each is compared with its digest when this process first opens it; ``ValueError`` or ``OSError`` where one is
        not what it was.
        """
        found: dict[str, np.ndarray] = {}
        for name in names:
            path = self._path(key) / f"{name}.npy"
            reason = folders.misplaced(path, "file")
            if reason:
                raise ValueError(reason)
            entry = description["arrays"][name]
            stat = path.stat()
            identity = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
            with _guard:
                known = identity in _verified
            if not known:
                if stat.st_size != entry["bytes"] or _digest_of_file(path) != entry["sha256"]:
                    raise ValueError(f"{name} does not fit its digest")
                with _guard:
                    _verified.add(identity)
            found[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    def discard(self, key: str, reason: str) -> str:
        """Remove what is stored under ``key`` and return the notice that says so; to be called under the lock.

        What is no folder is set aside instead.
        """
        text = f"Stored hidden states {key[:12]} were damaged ({reason}) and have been computed again."
        LOG.warning(text)
        try:
            if not folders.clear_way(self._path(key), "folder", self.home):
                self._remove(self._path(key))
        except OSError as error:
            raise self._failed(error) from error
        return text

    @contextmanager
    def lock(self, key: str, waiting: Callable[[], object] | None = None) -> Iterator[None]:
        """Hold the right to write ``key``, alone among threads and processes; a killed owner frees it.

        ``waiting`` is called about ten times a second while another holds it, and may raise to give up. Raises
        :class:`~embcompare.errors.StoreError` when the folder cannot hold a lock.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self._replaced = folders.own_folder(self.root, self.home)
        except OSError as error:
            raise self._failed(error) from error
        with folders.held(self._lock(key), self.home, self._failed, waiting):
            yield

    @contextmanager
    def writing(
        self,
        key: str,
        description: Mapping[str, Any],
        arrays: Mapping[str, tuple[int, int]],
        plain: dict[str, np.ndarray],
    ) -> Iterator[dict[str, ArrayWriter]]:
        """Give a writer for each of ``arrays`` (name: rows, width); keep all when the block ends well, else none.

        ``plain`` arrays are written as they are. What ``description["arrays"]`` lists already stays. To be called
        under the lock. Raises ``StoreError`` when it does not fit the bound or the disk.
        """
        needed = sum(4 * rows * width for rows, width in arrays.values()) + sum(each.nbytes for each in plain.values())
        temporary = self.root / f".{key}.tmp"
        writers: dict[str, ArrayWriter] = {}
        try:
            self._remove(temporary)
            self._make_room(needed, keep=key)
            temporary.mkdir(parents=True)
            for name, array in plain.items():
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
            for name, (rows, width) in arrays.items():
                writers[name] = ArrayWriter(temporary / f"{name}.npy", rows, width)
            yield writers
            for writer in writers.values():
                writer.close()
            self._commit(key, temporary, description)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            for writer in writers.values():
                writer.close()
            self._remove(temporary)

    def size(self) -> int:
        """Return the bytes that stored hidden states take."""
        return sum(map(folders.size, self._kept()))

    def entries(self) -> list[Item]:
        """Return what is stored, last used first, each capture as ``states/KEY``; damaged ones have no title."""
        found = []
        for path in self._kept():
            try:
                description = self._described(path.name) or {}
            except ValueError:
                description = {}
            title = " on ".join(str(description[part]) for part in ("model", "corpus") if part in description)
            found.append(Item(f"states/{path.name}", "hidden states", title, folders.size(path), _used(path)))
        return sorted(found, key=lambda item: item.last_used, reverse=True)

    def delete(self, name: str) -> bool:
        """Remove one capture, ``states/KEY``; True when there was one.

        Raises ``SettingsError`` for what is no such name and ``StoreError`` while somebody is writing it.
        """
        key = _NAME.fullmatch(name)
        if key is None:
            raise SettingsError(f"'{name}' is not the name of stored hidden states.")
        path = self._path(key.group(1))
        if not path.exists() and not path.is_symlink():
            return False
        if not self._drop(path):
            raise StoreError(
                f"The hidden states {path.name[:12]} cannot be deleted: a run is writing them, or {self.root} cannot "
                "be changed; try again when no run is going."
            )
        return True

    def clear(self) -> int:
        """Remove all hidden states that nobody is writing; return how many captures were removed."""
        return sum(self._drop(path) for path in self._kept())

    def _described(self, key: str) -> dict[str, Any] | None:
        """Return the description stored under ``key``, None where nothing is; ``ValueError`` where it is not sound."""
        try:
            reason = folders.misplaced(self.root, "folder") or folders.misplaced(self._path(key), "folder")
            path = self._path(key) / _MANIFEST
            reason = reason or folders.misplaced(path, "file")
            if reason:
                raise ValueError(reason)
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ValueError("its manifest cannot be read") from error
        try:
            content = json.loads(text)
            description: dict[str, Any] = content["description"]
            sound = content["sha256"] == _digest_of(description) and description["key"] == key
            sound = sound and description["format"] == _FORMAT
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("its manifest is no longer whole") from error
        if not sound:
            raise ValueError("its manifest does not fit its digest")
        return description

    def _commit(self, key: str, temporary: Path, description: Mapping[str, Any]) -> None:
        entries = {
            path.stem: {"sha256": _digest_of_file(path), "bytes": path.stat().st_size}
            for path in sorted(temporary.glob("*.npy"))
        }
        whole = {**description, "format": _FORMAT, "key": key, "arrays": {**description.get("arrays", {}), **entries}}
        text = json.dumps({"sha256": _digest_of(whole), "description": whole}, separators=(",", ":"))
        (temporary / _MANIFEST).write_text(text, encoding="utf-8")
        target = self._path(key)
        if not (target / _MANIFEST).exists():
            self._remove(target)
            os.rename(temporary, target)
            return
        for name in entries:
            os.replace(temporary / f"{name}.npy", target / f"{name}.npy")
        os.replace(temporary / _MANIFEST, target / _MANIFEST)

    def _make_room(self, needed: int, keep: str) -> None:
        """Drop the least recently used, and what killed writers left, until ``needed`` bytes fit the bound."""
        if needed > self.max_bytes:
            wanted, allowed = apart(needed, self.max_bytes)
            raise StoreError(
                f"These hidden states need {wanted}, but {allowed} may be kept; choose fewer layers or sentences, pool "
                "them, or raise EMBCOMPARE_STATES_BYTES."
            )
        for leftover in self.root.glob(".*.tmp"):
            if _KEY.fullmatch(leftover.name[1:-4]):
                self._drop(leftover)
        kept = sorted(self._kept(), key=_used)
        excess = sum(map(folders.size, kept)) + needed - self.max_bytes
        free = _free_bytes(self.root)
        for path in kept:
            if excess <= 0 and free >= needed:
                break
            size = folders.size(path)
            if path.name != keep and self._drop(path):
                excess -= size
                free = _free_bytes(self.root)
        if free < needed:
            wanted, left = apart(needed, free)
            raise StoreError(
                f"These hidden states need {wanted} and the disk of {self.root} has {left} free; free some space, or "
                "point EMBCOMPARE_CACHE to another disk."
            )

    def _drop(self, path: Path) -> bool:
        """Remove a capture or a leftover unless somebody is writing it; True when it is gone."""
        with folders.held_now(self._lock(path.name.strip(".").removesuffix(".tmp")), self.home) as held:
            if held:
                self._remove(path)
                return not path.exists() and not path.is_symlink()
        return False

    def _remove(self, path: Path) -> None:
        """Remove a folder; its manifest goes first, so that a half-removed capture is none."""
        with suppress(OSError):
            (path / _MANIFEST).unlink()
        with suppress(OSError):
            folders.remove(path)

    def _kept(self) -> list[Path]:
        try:
            return [path for path in self.root.iterdir() if _KEY.fullmatch(path.name)]
        except OSError:
            return []

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreError(f"'{key}' is not the key of hidden states; a key has 64 hexadecimal digits.")
        return self.root / key

    def _lock(self, key: str) -> Path:
        return self._path(key).with_suffix(".lock")

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(f"Hidden states cannot be kept in {self.root}: {reason_in_words(error)}")


def _digest_of(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _used(folder: Path) -> float:
    with suppress(OSError):
        return (folder / _MANIFEST).stat().st_mtime
    return 0.0


def _free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
