"""One result as the bytes of one safetensors file, and back, with every byte under a digest.

The header of the file holds a description in JSON (settings, provenance, whatever is not an array) and two digests:
one over the description, so that a listing need not read the arrays, and one over the whole file, so that no flipped
bit is ever shown as a number. There is no pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, BinaryIO

import numpy as np
from safetensors.numpy import load, save

from embcompare.errors import StoreError
from embcompare.experiments.base import Result, Settings

_FORMAT = 1
_BLANK = "0" * 64
# What safetensors writes as it is; any other dtype goes as raw bytes, its name and shape in the description.
_NATIVE = {np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8")}
_DESCRIBED = {"key", "experiment", "version", "settings", "models", "seconds", "created", "raw", "scalars"}


class Damaged(Exception):
    """A file does not hold what its name and digests promise; the text is the reason, to follow 'damaged'."""


def packed(key: str, result: Result, settings: Settings) -> bytes:
    """Return the file that holds ``result`` under ``key``; a field that it cannot hold raises :class:`StoreError`."""
    arrays, scalars = result.pack()
    raw: dict[str, Any] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.dtype.kind in "OV":
            raise StoreError(f"The result cannot be kept: its field {name} holds {array.dtype}, not numbers or text.")
        # Not ascontiguousarray, which would turn a scalar array into a vector; save() would mix up other orders.
        plain = np.array(array, order="C", copy=None)
        if array.dtype not in _NATIVE or not array.dtype.isnative:
            raw[name] = {"dtype": array.dtype.str, "shape": array.shape}
            plain = np.frombuffer(plain.tobytes(), np.uint8)
        tensors[name] = plain
    description = {
        "format": _FORMAT,
        "key": key,
        "experiment": settings.experiment,
        "version": settings.version,
        "settings": settings.to_dict(),
        "models": result.provenance.get("models", {}),
        "seconds": result.provenance.get("seconds"),
        "created": time.time(),
        "raw": raw,
        "scalars": scalars,
    }
    try:
        text = json.dumps(description, default=_plain, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"The result cannot be kept: {error}.") from error
    metadata = {"description": text, "description_sha256": _sha256(text.encode()), "file_sha256": _BLANK}
    data: bytes = save(tensors, metadata)
    return data.replace(_mark(_BLANK), _mark(_sha256(data)), 1)


def verified(data: bytes, key: str) -> dict[str, Any]:
    """Return the description of a file whose every byte is as it was written under ``key``, else raise ``Damaged``."""
    end = 8 + _header_bytes(data[:8], len(data))
    header = _header(data[8:end], len(data) - end)
    digest = header["__metadata__"].get("file_sha256")
    if not isinstance(digest, str) or data[:end].count(_mark(digest)) != 1:
        raise Damaged("it has no digest")
    if _sha256(data[:end].replace(_mark(digest), _mark(_BLANK)), data[end:]) != digest:
        raise Damaged("its content does not fit its digest")
    return _description(header, key)


def described(file: BinaryIO, size: int, key: str) -> dict[str, Any]:
    """Return the description of an open file of ``size`` bytes, reading its header only; ``Damaged`` as above."""
    start = file.read(8)
    length = _header_bytes(start, size)
    return _description(_header(file.read(length), size - 8 - length), key)


def arrays_of(data: bytes, description: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of a verified file, read-only, bit for bit and in the dtypes they were given in."""
    found: dict[str, np.ndarray] = {}
    for name, array in load(data).items():
        raw = description["raw"].get(name)
        if raw is not None:
            array = np.frombuffer(array.tobytes(), np.dtype(raw["dtype"])).reshape(raw["shape"])
        array.setflags(write=False)
        found[name] = array
    return found


def _header_bytes(start: bytes, size: int) -> int:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or 8 + length > size:
        raise Damaged("it is cut off")
    return length


def _header(text: bytes, payload: int) -> dict[str, Any]:
    """Parse the JSON header of a file whose tensors take ``payload`` bytes."""
    try:
        header: dict[str, Any] = json.loads(text)
        end = max((item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"), default=0)
        if not isinstance(header["__metadata__"], dict):
            raise TypeError("no metadata")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise Damaged("its header cannot be read") from error
    if end != payload:
        raise Damaged("its length is not what its header says")
    return header


def _description(header: dict[str, Any], key: str) -> dict[str, Any]:
    metadata = header["__metadata__"]
    text = metadata.get("description")
    if not isinstance(text, str) or metadata.get("description_sha256") != _sha256(text.encode(errors="replace")):
        raise Damaged("its description does not fit its digest")
    try:
        description: dict[str, Any] = json.loads(text)
        complete = description["format"] == _FORMAT and description.keys() >= _DESCRIBED
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged("its description cannot be read") from error
    if not complete:
        raise Damaged("its description is of another format")
    if description["key"] != key:
        raise Damaged("it holds another result")
    return description


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither a number, text, nor a list of them")


def _mark(digest: str) -> bytes:
    return b'"file_sha256":"' + digest.encode(errors="replace") + b'"'


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
