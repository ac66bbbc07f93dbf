"""Readers of vector files: what a header announces is checked first, and only then are the values read.

Each takes an open file, its size, the names of the array (or a pattern of several) and of the ids or None, what to
call the file in messages, and the most bytes that the values may take; each gives the values and the ids.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

import numpy as np

from embcompare.errors import InputError, SettingsError
from embcompare.words import apart, in_words, one_line

ID_CHARACTERS = 500
"""Characters of the longest id."""

Read = tuple[np.ndarray, tuple[str, ...]]

_RATIO = 200
_MEMBERS = 1_000
_HEADER = 1 << 20
_PLAIN_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_TENSORS = {"F16": "f2", "BF16": "f2", "F32": "f4", "F64": "f8", "I8": "i1", "U8": "u1", "I16": "i2", "I32": "i4"} | {
    "U16": "u2", "U32": "u4", "I64": "i8", "U64": "u8", "BOOL": "?"
}  # fmt: skip
_KINDS = {
    "b": "truth values",
    "c": "complex numbers",
    "O": "Python objects",
    "S": "text",
    "U": "text",
    "M": "dates",
    "m": "spans of time",
    "V": "records",
}


@dataclass(frozen=True)
class Announced:
    """What a header says of an array: its shape, its dtype, None where numpy has none, and its kind in words."""

    shape: tuple[int, ...]
    dtype: np.dtype | None
    kind: str


def kind_in_words(dtype: np.dtype) -> str:
    """Return what an array holds: ``float32``, ``text``, ``records``."""
    return _KINDS.get(dtype.kind, dtype.name)


def read_npy(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read an npy file: one array and no ids."""
    if array is not None or ids is not None:
        raise SettingsError("An npy file holds one array and no ids; leave both names empty, or give an npz file.")
    header = _npy_header(file, name)
    if _fit(header, name, max_bytes) != size - file.tell():
        raise InputError(f"{name} is cut off or has too much at its end; save it again.")
    file.seek(0)
    return np.load(file, allow_pickle=False), ()


def _npy_header(file: Any, name: str) -> Announced:
    major, minor = np.lib.format.read_magic(file)
    if (major, minor) not in ((1, 0), (2, 0)):
        raise InputError(f"{name} is npy version {major}.{minor}; save a plain array of numbers.")
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return Announced(shape, dtype, kind_in_words(dtype))


def read_npz(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read an npz archive; its members are measured before they are unpacked."""
    with zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if len(archive.infolist()) > _MEMBERS:
            raise InputError(f"{name} has {len(archive.infolist()):,} members; at most {_MEMBERS:,} are looked at.")
        named = {info.filename.removesuffix(".npy"): info for info in members}
        headers: dict[str, Announced] = {}
        for key, info in named.items():
            _check_member(info, name, max_bytes)
            with archive.open(info) as member:
                headers[key] = _npy_header(member, f"{one_line(key)} in {name}")
        keys, id_key = _pick(headers, array, ids, name)
        _bound_together(headers, keys, name, max_bytes)

        def load(which: str) -> np.ndarray:
            called = f"{one_line(which)} in {name}"
            if _fit(headers[which], called, max_bytes, text=which == id_key) > named[which].file_size:
                raise InputError(f"{called} is cut off; save it again.")
            with archive.open(named[which]) as member:
                loaded: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # the checksum is compared at the end
            return loaded

        return _together([load(key) for key in keys]), () if id_key is None else _as_ids(load(id_key), name)


def _check_member(info: zipfile.ZipInfo, name: str, max_bytes: int) -> None:
    called = f"{one_line(info.filename)} in {name}"
    if info.flag_bits & 1:
        raise InputError(f"{called} is encrypted; save it without a password.")
    if info.compress_type not in _PLAIN_ZIP:
        raise InputError(f"{called} is packed in an unusual way; save it with numpy.savez.")
    packed = max(1, info.compress_size)
    if info.file_size > max_bytes or info.file_size > _RATIO * packed + 4096:
        raise InputError(
            f"{called} would unpack from {in_words(packed)} to {in_words(info.file_size)}, which is refused; at most "
            f"{in_words(max_bytes)} and {_RATIO} times the packed size are read."
        )


def read_safetensors(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read a safetensors file; bfloat16 becomes float32."""
    headers = _tensors(file, size, name)
    keys, id_key = _pick(headers, array, ids, name)
    _bound_together(headers, keys, name, max_bytes)
    for which in filter(None, (*keys, id_key)):
        _fit(headers[which], f"{one_line(which)} in {name}", max_bytes, text=which == id_key)
    file.seek(0)
    data = file.read()
    if any(headers[key].kind == "BF16" for key in keys):
        from safetensors.torch import load as load_torch

        tensors = load_torch(data)
        whole = [tensors[key].float() if headers[key].kind == "BF16" else tensors[key] for key in keys]
        values = _together([each.numpy() for each in whole])
        return values, () if id_key is None else _as_ids(tensors[id_key].numpy(), name)
    from safetensors import deserialize

    found = {each: item for each, item in deserialize(data) if each in (*keys, id_key)}

    def plain(which: str) -> np.ndarray:
        return np.frombuffer(found[which]["data"], headers[which].dtype).reshape(headers[which].shape)

    return _together([plain(key) for key in keys]), () if id_key is None else _as_ids(plain(id_key), name)


def _tensors(file: BinaryIO, size: int, name: str) -> dict[str, Announced]:
    """Return what the header of a safetensors file announces; every part of it is looked at before it is believed."""
    length = int.from_bytes(file.read(8), "little")
    damaged = InputError(f"{name} cannot be read: it is no safetensors file, or its header is damaged; save it again.")
    if not 2 <= length <= min(size - 8, _HEADER):
        raise damaged
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise damaged from error
    if not isinstance(header, dict):
        raise damaged
    found: dict[str, Announced] = {}
    for key, item in header.items():
        if key == "__metadata__":
            continue
        kind, shape = (item.get("dtype"), item.get("shape")) if isinstance(item, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(shape, list) or not all(type(side) is int for side in shape):
            raise damaged
        dtype = np.dtype(_TENSORS[kind]) if kind in _TENSORS else None
        named = "BF16" if kind == "BF16" else one_line(kind, 20) if dtype is None else kind_in_words(dtype)
        found[key] = Announced(tuple(shape), dtype, named)
    return found


Picked = tuple[tuple[str, ...], str | None]


def _pick(headers: dict[str, Announced], array: str | None, ids: str | None, name: str) -> Picked:
    """Return which arrays hold the vectors, several where ``array`` is a pattern, and which the ids, if any."""
    id_key = find_ids(list(headers), ids, name)
    listed = named([f"{one_line(key)} {_shape(item.shape)} {item.kind}" for key, item in headers.items()])
    if array is not None:
        if array in headers:
            return (array,), id_key
        if "*" in array:
            return _layers(headers, array, id_key, name, listed), id_key
        raise SettingsError(f"{name} has no array '{one_line(array)}'; it holds {listed}.")
    fit = [key for key, item in headers.items() if len(item.shape) in (2, 3) and key != id_key]
    if len(fit) != 1:
        flat = bool(fit) and all(len(headers[key].shape) == 2 for key in fit)
        of = "of two dimensions" if flat else "of two or three dimensions"
        what = f"no array {of}" if not fit else f"{len(fit)} arrays {of}; say which to use"
        raise (SettingsError if fit else InputError)(f"{name} holds {what}: it holds {listed}.")
    return (fit[0],), id_key


def _layers(headers: dict[str, Announced], pattern: str, id_key: str | None, name: str, listed: str) -> tuple[str, ...]:
    """Return the arrays of two dimensions that a pattern such as ``layer_*`` means, in the order of their numbers."""
    found = [
        key
        for key, item in headers.items()
        if fnmatchcase(key, pattern.replace("[", "[[]")) and len(item.shape) == 2 and key != id_key
    ]
    if not found:
        raise SettingsError(f"{name} has no array of two dimensions like '{one_line(pattern)}'; it holds {listed}.")
    if len({headers[key].shape for key in found}) > 1:
        raise InputError(
            f"The arrays like '{one_line(pattern)}' in {name} have different shapes, and layers of one stack have the "
            f"same; it holds {listed}."
        )
    return tuple(sorted(found, key=_by_number))


def _by_number(key: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", key) if part]


def _bound_together(headers: dict[str, Announced], keys: tuple[str, ...], name: str, max_bytes: int) -> None:
    """Refuse arrays that are small enough one by one and together are not."""
    if len(keys) > 1:
        total = sum(_fit(headers[key], f"{one_line(key)} in {name}", max_bytes) for key in keys)
        total = max(total, 4 * sum(math.prod(headers[key].shape) for key in keys))
        if total > max_bytes:
            raise too_much(name, total, max_bytes)


def _together(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)


def find_ids(names: Sequence[str], ids: str | None, name: str) -> str | None:
    """Return what the ids are called: as asked for, else ids or id where there is one; ``SettingsError`` where not."""
    if ids is not None and ids not in names:
        raise SettingsError(f"{name} has nothing called '{one_line(ids)}' to take ids from; it holds {named(names)}.")
    return ids if ids is not None else next((each for each in ("ids", "id") if each in names), None)


def _as_ids(array: np.ndarray, name: str) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise InputError(
            f"The ids of {name} are {kind_in_words(array.dtype)} of shape {_shape(array.shape)}; give a text or whole "
            "number a row."
        )
    if array.dtype.kind == "S":
        try:
            return tuple(each.decode("utf-8", errors="strict") for each in array.tolist())
        except UnicodeDecodeError as error:
            raise InputError(f"The ids of {name} are bytes that are no UTF-8 text; save them as text.") from error
    return tuple(str(each) for each in array.tolist())


def _fit(header: Announced, name: str, max_bytes: int, text: bool = False) -> int:
    """Return the bytes that a header announces, after refusing what cannot be used before any of it is read."""
    dtype, shape = header.dtype, header.shape
    wanted = "text or whole numbers; give one a row" if text else "real numbers; save it as float32"
    if dtype is None:
        way = "text or whole numbers" if text else "float32"
        raise InputError(f"{name} holds {header.kind}, which cannot be read here; save it as {way}.")
    if dtype.hasobject:
        raise InputError(f"{name} holds Python objects, which could run code when read; save plain numbers or text.")
    if dtype.kind not in ("iuUS" if text else "fiu"):
        raise InputError(f"{name} holds {header.kind}, not {wanted}.")
    if any(not isinstance(side, int) or side < 0 for side in shape):
        raise InputError(f"{name} has the impossible shape {_shape(shape)}; save it again.")
    if math.prod(shape) * max(dtype.itemsize, 4) > max_bytes:
        raise too_much(name, math.prod(shape) * max(dtype.itemsize, 4), max_bytes)
    return math.prod(shape) * dtype.itemsize


def _shape(shape: tuple[int, ...]) -> str:
    """Return a shape as it is usually written; a side of more digits than anybody reads is cut."""
    sides = [str(side) if abs(side) < 10**18 else "more than 10^18" for side in shape[:8]]
    sides += ["…"] if len(shape) > 8 else []
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"


def named(names: Sequence[str]) -> str:
    """Return the names in a file for a sentence."""
    return ", ".join(one_line(each) for each in names[:12]) + (" and more" if len(names) > 12 else "") or "nothing"


def too_much(name: str, claimed: int, bound: int) -> InputError:
    """Return the error of a file that would take more than the bound."""
    takes, most = apart(claimed, bound)
    return InputError(f"{name} would take {takes}; at most {most} are read, so give fewer rows or float32.")
