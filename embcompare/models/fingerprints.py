"""What a model is known by: the content of its files, never its path."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from embcompare.errors import ModelDamaged
from embcompare.models import hub, policy
from embcompare.models.spec import ModelSpec

Identity = tuple[int, int, int, int]
"""Size, time of writing, time of the last change of any kind, and inode of a file.

The time of writing alone can be set by whoever writes: a copy that keeps it, of equal size, is another file.
"""

_known: dict[tuple[str, Identity], str] = {}
_lock = threading.Lock()


def fingerprint(spec_or_text: ModelSpec | str) -> str:
    """Return the SHA-256, in hex, over a model's weight files, config and tokenizer files.

    The same content under another path or name has the same fingerprint; a changed byte gives another. File
    digests are remembered by path, size, times and inode. Raises what finding the model raises.
    """
    spec = policy.permitted(ModelSpec.parse(spec_or_text))
    return fingerprint_of(hub.find_model(spec), spec.label)


def fingerprint_of(folder: Path, label: str) -> str:
    """Return the fingerprint of the model in ``folder``."""
    total = hashlib.sha256()
    for path in policy.model_files(folder, label):
        total.update(f"{path.name}\0{_digest(path)}\n".encode())
    return total.hexdigest()


def stamp(folder: Path, label: str) -> tuple[tuple[str, Identity], ...]:
    """Return names, sizes, times and inodes of a model's files: cheap, and changed when they are."""
    return tuple((path.name, _identity(path)) for path in policy.model_files(folder, label))


def _identity(path: Path) -> Identity:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _digest(path: Path) -> str:
    try:
        return _read_digest(path)
    except OSError as error:
        raise ModelDamaged(
            f"{path.parent.name} has a {path.name} that cannot be read ({policy.why(error)}); check its permissions, "
            "or fetch it again."
        ) from error


def _read_digest(path: Path) -> str:
    key = (str(path.resolve()), _identity(path))
    with _lock:
        if key in _known:
            return _known[key]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with _lock:
        _known[key] = digest
    return digest
