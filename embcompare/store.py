"""Results on disk: one file each, named by what was asked, safe with many processes, bounded in size.

What is in a file is :mod:`embcompare.resultfile`'s; here is where it lies, who may write it and when it goes.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from embcompare.errors import SettingsError, StoreError
from embcompare.experiments import settings_type
from embcompare.experiments.base import Result, Settings, canonical
from embcompare.resultfile import Damaged, arrays_of, described, packed, verified

DEFAULT_BYTES = 2 * 2**30
"""Bytes that stored results may take together unless somebody says otherwise."""

LOG = logging.getLogger(__name__)

_WAY_OUT = "point EMBCOMPARE_CACHE to a folder that can be written."
_KEY = re.compile(r"[0-9a-f]{64}")
_DAMAGED_KEPT = 8
_LEFTOVER_SECONDS = 3600.0


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
        self.max_bytes = max_bytes if max_bytes is not None else _default_bytes()
        self._notices: deque[tuple[str, str]] = deque(maxlen=100)
        self._guard = threading.Lock()

    def key(self, settings: Settings, fingerprints: Mapping[str, str]) -> str:
        """Return the 64 hex digits that name the result of ``settings`` on models of these fingerprints."""
        return hashlib.sha256(canonical(settings, fingerprints).encode()).hexdigest()

    def get(self, key: str) -> Result | None:
        """Return the stored result and mark it as used; None when there is none that can be trusted.

        A damaged file is moved to the folder ``damaged`` and a notice says so. A file that is sound but was written by
        another version of the experiment stays where it is, and a notice says that it cannot be read.
        Arrays are read-only.
        """
        path = self._path(key)
        try:
            with path.open("rb") as file:
                identity = os.fstat(file.fileno())
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._notice(key, f"A stored result could not be read ({_reason(error)}) and was left aside.")
            return None
        try:
            description = verified(data, key)
            result = self._rebuilt(key, data, description)
        except Damaged as error:
            self._set_aside(path, identity, str(error))
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
            self._sweep()
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
        path = self._path(key).with_suffix(".lock")
        lock = FileLock(path, fallback_to_soft=False)

        reasons: list[BaseException] = []

        def give_up() -> bool:
            try:
                if waiting is not None:
                    waiting()
            except BaseException as reason:  # kept apart from the errors of locking itself
                reasons.append(reason)
            return bool(reasons)

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=0.1, cancel_check=give_up)
        except Timeout:
            raise reasons[0] from None
        except OSError as error:
            raise StoreError(f"Runs cannot be locked in {self.folder}: {reason_in_words(error)}") from error
        try:
            yield
        finally:
            # Removed while still held: a waiter that had opened it sees the file is gone and opens a fresh one.
            with suppress(OSError):
                path.unlink()
            lock.release()

    def entries(self) -> list[Entry]:
        """Return what is stored, last used first; files whose header cannot be trusted are set aside."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file, not a folder of results; {_WAY_OUT}")
        found: list[Entry] = []
        for path in self._files():
            try:
                with path.open("rb") as file:
                    identity = os.fstat(file.fileno())
                    description = described(file, identity.st_size, path.stem)
                found.append(_entry(description, identity))
            except OSError:
                continue
            except Damaged as error:
                self._set_aside(path, identity, str(error))
        return sorted(found, key=lambda entry: entry.last_used, reverse=True)

    def find(self, start: str) -> str:
        """Return the one stored key that begins with ``start``; none or several raise :class:`StoreError`."""
        keys = [path.stem for path in self._files() if path.stem.startswith(start)] if start else []
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise StoreError(f"{len(keys)} stored results begin with '{start}'; give more digits of the key.")
        raise StoreError(
            f"No stored result has a key that begins with '{start}'; list them with: python -m embcompare results."
        )

    def delete(self, key: str) -> bool:
        """Remove one result; True when there was one."""
        try:
            self._path(key).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"Result {key[:12]} cannot be deleted: {_reason(error)}.") from error
        return True

    def clear(self) -> int:
        """Remove every result, set-aside file and leftover; return how many results were removed."""
        removed, kept = 0, []
        for path in self._files():
            try:
                removed += self.delete(path.stem)
            except StoreError as error:
                kept.append(str(error))
        for path in self._damaged():
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            self._sweep()
        if kept:
            raise StoreError(f"{removed} results were deleted and {len(kept)} were not. {kept[0]}")
        return removed

    def size(self) -> int:
        """Return the bytes that the stored results take."""
        return sum(_size(path) for path in self._files())

    def notices(self) -> list[str]:
        """Return what happened to stored results that somebody should know, oldest first."""
        with self._guard:
            return [text for _, text in self._notices]

    def take_notices(self, key: str | None = None) -> list[str]:
        """Return the notices, of one key or of all, and forget them."""
        with self._guard:
            taken = [text for owner, text in self._notices if key in (None, owner)]
            left = [item for item in self._notices if key not in (None, item[0])]
            self._notices.clear()
            self._notices.extend(left)
        return taken

    def writable(self) -> str | None:
        """Return None when results can be kept, else the reason in one sentence."""
        probe = _temporary(self.folder)
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

    def _files(self) -> list[Path]:
        try:
            found = self.folder.glob("*.safetensors")
            return [path for path in found if _KEY.fullmatch(path.stem) and path.is_file()]
        except OSError:
            return []

    def _damaged(self) -> list[Path]:
        try:
            return sorted((self.folder / "damaged").glob("*.safetensors"), key=_used)
        except OSError:
            return []

    def _rebuilt(self, key: str, data: bytes, description: dict[str, Any]) -> Result | None:
        try:
            kind = settings_type(description["experiment"])
        except SettingsError:
            kind = None
        if kind is None or kind.version != description["version"]:
            self._notice(
                key,
                f"Result {key[:12]} was computed by version {description['version']} of {description['experiment']}, "
                "which this embcompare cannot read; run it again.",
            )
            return None
        try:
            return kind.result_type.unpack(arrays_of(data, description), description["scalars"])
        except Exception as error:
            raise Damaged(f"its fields are not those of {description['experiment']}: {error}") from error

    def _notice(self, key: str, text: str) -> None:
        LOG.warning(text)
        with self._guard:
            self._notices.append((key, text))

    def _set_aside(self, path: Path, identity: os.stat_result, reason: str) -> None:
        with suppress(OSError):
            # Another process may have put a sound file in its place since it was read.
            if os.path.samestat(identity, path.stat()):
                aside = self.folder / "damaged"
                aside.mkdir(exist_ok=True)
                os.replace(path, aside / path.name)
                for old in self._damaged()[:-_DAMAGED_KEPT]:
                    old.unlink(missing_ok=True)
        self._notice(path.stem, f"The stored result {path.stem[:12]} was damaged ({reason}) and has been set aside.")

    def _evict(self, keep: Path) -> None:
        """Remove set-aside files, then results by last use, until the bound holds; ``keep`` stays whatever its size."""
        sizes = [(path, _size(path)) for path in [*self._damaged(), *sorted(self._files(), key=_used)]]
        excess = sum(size for _, size in sizes) - self.max_bytes
        for path, size in sizes:
            if excess <= 0:
                return
            if path != keep:
                with suppress(OSError):
                    path.unlink()
                    excess -= size

    def _sweep(self) -> None:
        """Remove what killed writers left: their process is gone from this machine, or an hour has passed."""
        for path in self.folder.glob(".embcompare.*.tmp"):
            owner = path.name.split(".")[2:4]
            gone = owner[0] == _host() and owner[1].isdecimal() and not _alive(int(owner[1]))
            with suppress(OSError):
                if gone or time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all: temporary name, flush to disk, rename; raises ``OSError``."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe has no second name to rename from
        path.write_bytes(data)
        return
    temporary = _temporary(path.parent)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):  # not every file system can flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _temporary(folder: Path) -> Path:
    """Return a name that says which process writes there, for the sweep of those that were killed."""
    return folder / f".embcompare.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"


def _entry(description: dict[str, Any], file: os.stat_result) -> Entry:
    names = ("key", "experiment", "version", "settings", "models", "created", "seconds")
    fields = {name: description[name] for name in names}
    return Entry(bytes=file.st_size, last_used=file.st_mtime_ns / 1e9, **fields)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _used(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]


def _alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def reason_in_words(error: OSError) -> str:
    """Return why a write failed and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{_reason(error)}; free some space, or point EMBCOMPARE_CACHE to another disk."
    return f"{_reason(error)}; {_WAY_OUT}"


def _default_folder() -> Path:
    named = os.environ.get("EMBCOMPARE_CACHE", "").strip()
    return Path(named).expanduser() if named else user_cache_path("embcompare", appauthor=False)


def _default_bytes() -> int:
    named = os.environ.get("EMBCOMPARE_CACHE_BYTES", "").strip()
    if not named:
        return DEFAULT_BYTES
    if not named.isdecimal():
        raise StoreError(f"EMBCOMPARE_CACHE_BYTES cannot be '{named}'; give a whole number of bytes.")
    return int(named)
