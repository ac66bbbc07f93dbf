"""Trained maps, kept on disk so that a run that was stopped goes on where it was: one safetensors file a fit.

The name of a file is a digest of all that a fit depends on, its rows among them, so that whoever asks for the same fit
finds it, half done or done. A file is written whole or not at all; the least recently used go when the folder is full.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from embcompare import folders
from embcompare.errors import SettingsError, StoreError
from embcompare.folders import Item
from embcompare.words import in_words

LOG = logging.getLogger(__name__)

FOLDER = "fits"
"""Name of the folder, beside the hidden states."""
MAX_BYTES = 2**30
"""Bytes that fits may take together."""
_SUFFIX = ".safetensors"
_NAME = re.compile(r"fits/([0-9a-f]{64})")
_TITLE = 200


def fit_key(identity: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the 64 hexadecimal digits that name a fit: what it is made with, ready for JSON, and its rows."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(digest_of(arrays).encode())
    return digest.hexdigest()


class FitFolder:
    """The fits in ``states/fits``; ``notices`` collects what a reader should know. Touches nothing at first.

    A fit that cannot be kept or read is none: the run goes on without.
    """

    def __init__(self, states: Path, max_bytes: int = MAX_BYTES) -> None:
        self.home, self.root, self.max_bytes = Path(states), Path(states) / FOLDER, max_bytes
        self.notices: list[str] = []

    def read(self, key: str) -> tuple[dict[str, np.ndarray], float] | None:
        """Return a checkpoint and the seconds that went into it; None where there is none that can be trusted."""
        from safetensors import SafetensorError, safe_open
        from safetensors.numpy import load

        path = self._path(key)
        try:
            if folders.misplaced(path, "file"):
                return None
            data = path.read_bytes()
            arrays: dict[str, np.ndarray] = {name: np.array(each) for name, each in load(data).items()}
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
            if metadata.get("sha256") != digest_of(arrays):
                raise ValueError("its content does not fit its digest")
            with suppress(OSError):
                os.utime(path)
            return arrays, float(metadata["seconds"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            LOG.warning("The kept fit %s was left aside: %s", path.name, error)
            self.notices.append("A fit that was kept half done was damaged, so it was begun anew.")
            self.remove(key)
            return None

    def write(self, key: str, arrays: Mapping[str, np.ndarray], seconds: float, title: str = "") -> None:
        """Keep a checkpoint, whole or not at all, in place of an earlier one; ``title`` tells people what it is of."""
        from safetensors.numpy import save

        facts = {"sha256": digest_of(arrays), "seconds": repr(seconds), "title": title[:_TITLE]}
        data: bytes = save(dict(arrays), facts)
        if len(data) > self.max_bytes:
            self._say(f"a checkpoint takes {in_words(len(data))} and {in_words(self.max_bytes)} may be kept")
            return
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            folders.own_folder(self.root, self.home)
            folders.sweep(self.root)
            path = self._path(key)
            folders.clear_way(path, "file", self.home)
            self._make_room(len(data), path)
            folders.write_atomically(path, data)
        except OSError as error:
            self._say(folders.reason_in_words(error).rstrip("."))

    def remove(self, key: str) -> None:
        """Remove a checkpoint, if there is one."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def entries(self) -> list[Item]:
        """Return the kept fits, last used first, each as ``fits/KEY``; damaged ones have no title."""
        found = [Item(f"fits/{p.stem}", "trained map", _title(p), folders.size(p), _used(p)) for p in self._kept()]
        return sorted(found, key=lambda item: item.last_used, reverse=True)

    def size(self) -> int:
        """Return the bytes that kept fits take."""
        return sum(map(folders.size, self._kept()))

    def delete(self, name: str) -> bool:
        """Remove one fit, ``fits/KEY``; True when there was one.

        Raises :class:`SettingsError` for what is no such name and :class:`StoreError` where it cannot be removed.
        """
        key = _NAME.fullmatch(name)
        if key is None:
            raise SettingsError(f"'{name}' is not the name of a kept fit.")
        path = self._path(key.group(1))
        if not path.exists() and not path.is_symlink():
            return False
        try:
            folders.remove(path)
        except OSError as error:
            raise StoreError(f"The fit {path.stem[:12]} cannot be deleted: {folders.reason_in_words(error)}") from error
        return True

    def _kept(self) -> list[Path]:
        try:
            return [
                path for path in self.root.iterdir() if _NAME.fullmatch(f"fits/{path.stem}") and path.suffix == _SUFFIX
            ]
        except OSError:
            return []

    def _say(self, reason: str) -> None:
        said = f"Fits could not be kept, so a run that is stopped begins anew: {reason}."
        if said not in self.notices:
            self.notices.append(said)

    def _make_room(self, needed: int, keep: Path) -> None:
        kept = sorted((path for path in self.root.glob(f"*{_SUFFIX}") if path != keep), key=folders.used)
        excess = sum(map(folders.size, kept)) + needed - self.max_bytes
        for path in kept:
            if excess <= 0:
                break
            excess -= folders.size(path)
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.root / f"{key}{_SUFFIX}"


def _title(path: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        if folders.misplaced(path, "file"):
            return ""
        with safe_open(path, "numpy") as file:
            return str((file.metadata() or {}).get("title", ""))
    except (OSError, SafetensorError, ValueError):
        return ""


def _used(path: Path) -> float:
    return folders.used(path) / 1e9


def digest_of(arrays: Mapping[str, np.ndarray], start: str = "") -> str:
    """Return the SHA-256 of arrays, their names, types and shapes, after a text that belongs to them."""
    digest = hashlib.sha256(start.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
