"""Files and folders that embcompare owns: written whole, held by one at a time, and set aside where they are no such.

Whatever lies at a path of ours may be of the wrong kind, by somebody's hand or a broken disk. It is never written
over or emptied on the way: it goes to the folder ``damaged``, where the last few such things stay.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

LOG = logging.getLogger(__name__)

WAY_OUT = "point EMBCOMPARE_CACHE to a folder that can be written."
DAMAGED = "damaged"
"""Name of the folder, beside the results, of what was set aside."""

KINDS = ("text", "vectors", "states", "fits")
"""What the name of an :class:`Item` begins with, before the slash."""

_DAMAGED_KEPT = 8
_LEFTOVER_SECONDS = 3600.0


@dataclass(frozen=True)
class Item:
    """One thing that is kept: its whole name, its kind in words, what it is called, bytes, and when it was last used.

    ``last_used`` is in seconds since 1970. ``title`` is empty where nothing says what it is.
    """

    name: str
    kind: str
    title: str
    bytes: int
    last_used: float


def misplaced(path: Path, wanted: Literal["file", "folder"]) -> str:
    """Return what lies at ``path`` in place of what is wanted, as a reason; empty where it is right or nothing is.

    Links are followed. Raises ``OSError`` where it cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"a link to nothing lies where its {wanted} belongs" if path.is_symlink() else ""
    except OSError as error:
        if error.errno != errno.ELOOP or not path.is_symlink():
            raise
        mode = 0
    if stat.S_ISREG(mode) if wanted == "file" else stat.S_ISDIR(mode):
        return ""
    found = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "something that is no file"
    return f"{found} lies where its {wanted} belongs"


def set_aside(path: Path, home: Path) -> None:
    """Move what lies at ``path`` to the folder ``damaged`` of ``home``; of more than a few the oldest go.

    Raises ``OSError`` where it cannot be moved.
    """
    aside = home / DAMAGED
    if misplaced(aside, "folder"):
        other = home / f"{DAMAGED}.{secrets.token_hex(4)}"
        os.rename(aside, other)
        aside.mkdir()
        os.rename(other, aside / other.name)
    aside.mkdir(parents=True, exist_ok=True)
    target = aside / path.name
    remove(target)
    os.rename(path, target)
    for old in damaged(home)[:-_DAMAGED_KEPT]:
        with suppress(OSError):
            remove(old)


def damaged(home: Path) -> list[Path]:
    """Return what was set aside in ``home``, the oldest first."""
    try:
        return sorted((home / DAMAGED).iterdir(), key=used)
    except OSError:
        return []


def clear_way(path: Path, wanted: Literal["file", "folder"], home: Path) -> str:
    """Set aside what lies at ``path`` in place of what is wanted; return the reason, empty where nothing had to go."""
    reason = misplaced(path, wanted)
    if reason:
        set_aside(path, home)
        LOG.warning("At %s %s; it was moved to %s.", path, reason, home / DAMAGED)
    return reason


def own_folder(folder: Path, home: Path) -> str:
    """Make a folder of ours in ``home`` unless it is there; return what had to be set aside for it, as a reason.

    A link to a folder that is not there may be a disk that is not: it stays, and ``OSError`` is raised.
    """
    if folder.is_symlink() and not folder.exists():
        raise OSError(errno.ENOENT, "it is a link to a folder that is not there")
    reason = clear_way(folder, "folder", home)
    folder.mkdir(parents=True, exist_ok=True)
    return reason


def remove(path: Path) -> None:
    """Remove whatever lies at ``path``, a folder with all that is in it; nothing there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(NotADirectoryError):
            path.unlink(missing_ok=True)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all the files in a folder; 0 where it cannot be looked at."""
    total = 0
    with suppress(OSError):
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        for each in path.iterdir():
            total += size(each)
    return total


def used(path: Path) -> int:
    """Return when ``path`` was last used, in nanoseconds since 1970; 0 where it cannot be looked at."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def held(
    path: Path,
    home: Path,
    failed: Callable[[OSError], Exception],
    waiting: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Hold the lock file ``path``, alone among all threads and processes; a killed owner frees it.

    ``waiting`` is called about ten times a second while another holds it, and may raise to give up. Raises what
    ``failed`` makes of the error where the folder cannot hold a lock.
    """
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
        clear_way(path, "file", home)
        lock.acquire(poll_interval=0.1, cancel_check=give_up)
    except Timeout:
        raise reasons[0] from None
    except OSError as error:
        raise failed(error) from error
    try:
        yield
    finally:
        _free(lock, path)


@contextmanager
def held_now(path: Path, home: Path) -> Iterator[bool]:
    """Hold the lock file ``path`` if nobody else does: gives whether it is held, and never waits."""
    lock = FileLock(path, fallback_to_soft=False)
    try:
        clear_way(path, "file", home)
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        yield False
        return
    try:
        yield True
    finally:
        _free(lock, path)


def _free(lock: FileLock, path: Path) -> None:
    # Removed while still held: a waiter that had opened it sees the file is gone and opens a fresh one.
    with suppress(OSError):
        path.unlink()
    lock.release()


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all: temporary name, flush to disk, rename; raises ``OSError``."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe has no second name to rename from
        path.write_bytes(data)
        return
    temporary = temporary_name(path.parent)
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


def temporary_name(folder: Path) -> Path:
    """Return a name that says which process writes there, for the sweep of those that were killed."""
    return folder / f".embcompare.{host()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"


def sweep(folder: Path) -> None:
    """Remove what killed writers left: their process is gone from this machine, or an hour has passed."""
    for path in folder.glob(".embcompare.*.tmp"):
        owner = path.name.split(".")[2:4]
        gone = owner[0] == host() and owner[1].isdecimal() and not _alive(int(owner[1]))
        with suppress(OSError):
            if gone or time.time() - path.lstat().st_mtime > _LEFTOVER_SECONDS:
                remove(path)


def host() -> str:
    """Return this machine's name, fit for a file's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]


def reason(error: OSError) -> str:
    """Return the operating system's reason in lower case, without the path."""
    return (error.strerror or type(error).__name__).lower()


def reason_in_words(error: OSError) -> str:
    """Return why a write failed and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason(error)}; free some space, or point EMBCOMPARE_CACHE to another disk."
    return f"{reason(error)}; {WAY_OUT}"


def _alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
