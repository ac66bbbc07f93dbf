"""Fits under way, kept on disk so that a run that was stopped goes on where it was: one safetensors file a fit.

The name of a file is a digest of all that a fit depends on, its rows among them, so that whoever asks for the same fit
finds it. A file is written whole or not at all and removed when the run is done; those of runs that nobody took up
again go when the folder is full, the oldest first.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from embcompare import folders
from embcompare.words import in_words

LOG = logging.getLogger(__name__)

FOLDER = "fits"
"""Name of the folder, beside the hidden states."""
MAX_BYTES = 2**30
"""Bytes that fits under way may take together."""
_SUFFIX = ".safetensors"


def fit_key(identity: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the 64 hexadecimal digits that name a fit: what it is made with, ready for JSON, and its rows."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(_digest(arrays).encode())
    return digest.hexdigest()


class FitFolder:
    """The fits under way in ``states/fits``; ``notices`` collects what a reader should know. Touches nothing at first.

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
            if metadata.get("sha256") != _digest(arrays):
                raise ValueError("its content does not fit its digest")
            return arrays, float(metadata["seconds"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            LOG.warning("The kept fit %s was left aside: %s", path.name, error)
            self.notices.append("A fit that was kept half done was damaged, so it was begun anew.")
            self.remove(key)
            return None

    def write(self, key: str, arrays: Mapping[str, np.ndarray], seconds: float) -> None:
        """Keep a checkpoint, whole or not at all, in place of an earlier one."""
        from safetensors.numpy import save

        data: bytes = save(dict(arrays), {"sha256": _digest(arrays), "seconds": repr(seconds)})
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

    def _say(self, reason: str) -> None:
        said = f"Fits under way could not be kept, so a run that is stopped begins anew: {reason}."
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


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
