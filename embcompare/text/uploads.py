"""A user's own vectors, from npy, npz, safetensors or parquet: bounded before anything is read, never unpickled.

One layer is an array of (rows, width), several are a stack of (layers, rows, width). A file says in its header how
much it holds. That is compared with the bound first, so that neither a file of a gigabyte nor a small archive that
unpacks to one takes memory.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from embcompare.errors import InputError, SettingsError
from embcompare.text.parquetfiles import read_parquet
from embcompare.text.vectorfiles import ID_CHARACTERS, Read, kind_in_words, read_npy, read_npz, read_safetensors
from embcompare.words import apart, one_line, plural

MAX_VECTOR_BYTES = 256 * 2**20
"""Bytes of a file, and of the vectors in it once unpacked."""

MAX_LAYERS = 512
"""Layers of a stack; more are rows whose axis stands in the wrong place."""

_SHOWN = 5
_SWAP = "save the array with its first two axes swapped, as numpy.swapaxes(x, 0, 1) does"
_READERS: dict[str, Callable[..., Read]] = {
    "npy": read_npy,
    "npz": read_npz,
    "safetensors": read_safetensors,
    "parquet": read_parquet,
}

_MAGIC = {
    b"\x93NUMPY": ("npy", "an npy file"),
    b"PK\x03\x04": ("npz", "a zip archive, as npz files are"),
    b"PAR1": ("parquet", "a parquet file"),
    b"\x89HDF": ("", "an HDF5 file"),
    b"ARROW1": ("", "an Arrow file"),
    b"\x1f\x8b": ("", "a gzip archive"),
    b"\x80\x02": ("", "a pickle, which could run code and is never read"),
    b"\x80\x03": ("", "a pickle, which could run code and is never read"),
    b"\x80\x04": ("", "a pickle, which could run code and is never read"),
    b"\x80\x05": ("", "a pickle, which could run code and is never read"),
    b"version https://git-lfs": ("", "a pointer of Git LFS, and the file itself has to be fetched"),
    b"<!DOCTYPE": ("", "a web page"),
    b"<html": ("", "a web page"),
}

SUFFIXES = tuple(_READERS)
"""Kinds of files that vectors can be read from."""


@dataclass(frozen=True, eq=False, repr=False)
class Vectors:
    """One vector a row, ``values`` (n, d) or, for several layers, (L, n, d): float32 or float64, finite, read-only.

    ``ids`` is empty or holds a different name for each row; ``digest`` is the SHA-256 of values and ids. A stack of
    one layer becomes (n, d).
    """

    name: str
    values: np.ndarray
    ids: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _checked(self.name, np.asarray(self.values)))
        ids = tuple(str(each) for each in self.ids)
        object.__setattr__(self, "ids", ids)
        if not ids:
            return
        if len(ids) != len(self):
            way = "give one for each"
            if len(ids) == self.layers > 1:
                way = f"they fit the first axis, which is that of the layers: {_SWAP}"
            raise InputError(f"{self.name} has {plural(len(ids), 'id')} for {plural(len(self), 'row')}; {way}.")
        if any(len(each) > ID_CHARACTERS for each in ids):
            raise InputError(f"{self.name} has an id of more than {ID_CHARACTERS:,} characters; give shorter ones.")
        if len(set(ids)) < len(ids):
            seen: set[str] = set()
            twice = next(each for each in ids if each in seen or seen.add(each))  # type: ignore[func-returns-value]
            raise InputError(f"{self.name} has the id '{one_line(twice)}' more than once; each row needs its own.")

    def __len__(self) -> int:
        return int(self.values.shape[-2])

    def __repr__(self) -> str:
        """Return name, shape in words and dtype; never the numbers."""
        ids = ", with ids" if self.ids else ""
        return f"Vectors({self.name!r}, {self.size_in_words()}, {self.values.dtype}{ids})"

    @property
    def layers(self) -> int:
        """Layers of the stack, L; 1 where ``values`` is (n, d)."""
        return len(self.values) if self.values.ndim == 3 else 1

    @property
    def width(self) -> int:
        """Numbers of a vector, d."""
        return int(self.values.shape[-1])

    @property
    def layer_names(self) -> tuple[str, ...]:
        """(L,): what each layer is called; a single one is ``given vectors``."""
        if self.layers == 1:
            return ("given vectors",)
        return tuple(f"given layer {k}" for k in range(self.layers))

    def layer(self, k: int) -> np.ndarray:
        """Return the vectors (n, d) of layer ``k``, counted from 0; raises :class:`SettingsError` for no such layer."""
        if not 0 <= k < self.layers:
            own = "given vectors are layer 0" if self.layers == 1 else f"its layers are 0 to {self.layers - 1}"
            raise SettingsError(f"{self.name} has no layer {k}; {own}.")
        found: np.ndarray = self.values[k] if self.values.ndim == 3 else self.values
        return found

    def size_in_words(self) -> str:
        """Return how many vectors of how many numbers: ``1,000 × 768``, ``13 layers of 1,000 × 768``."""
        layers = f"{self.layers:,} layers of " if self.layers > 1 else ""
        return f"{layers}{len(self):,} × {self.width:,}"

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over dtype, shape, values and ids."""
        total = hashlib.sha256(f"{self.values.dtype.str}{self.values.shape}".encode())
        total.update(np.ascontiguousarray(self.values).data)
        total.update(json.dumps(self.ids).encode())
        return total.hexdigest()


def read_vectors(
    source: bytes | Path | BinaryIO,
    suffix: str,
    *,
    array: str | None = None,
    ids: str | None = None,
    name: str = "uploaded vectors",
    max_bytes: int = MAX_VECTOR_BYTES,
) -> Vectors:
    """Return the vectors of a file, ``suffix`` being npy, npz, safetensors or parquet.

    An array of two dimensions is one layer, (rows, width), one of three a stack of layers, (layers, rows, width); a
    notice says how a stack was read. ``array`` names the array of an npz or safetensors file, or the list column of a
    parquet file, which has no stacks; it is not needed where only one is fit. With a star, as in ``layer_*``, it names
    several arrays of one shape (rows, width), which are stacked in the order of their numbers. ``ids`` names what holds
    the ids: not needed where it is called ids or id; an npy file has none. A parquet file may also hold one numeric
    column a dimension. Half precision and small integers become float32, other integers float64.

    Raises :class:`InputError` when the file is too large, damaged, holds objects, text or complex numbers, has no
    array of two or three dimensions, more than ``MAX_LAYERS`` layers, or a row with NaN or infinite values;
    ``SettingsError`` for a name that is not there.
    """
    kind = suffix.lower().lstrip(".")
    if kind not in SUFFIXES:
        raise SettingsError(f"Vectors cannot be read from a '{kind}' file; choose one of {', '.join(SUFFIXES)}.")
    if isinstance(source, Path):
        with source.open("rb") as file:
            return _read(kind, file, array, ids, name, max_bytes)
    return _read(kind, io.BytesIO(source) if isinstance(source, bytes) else source, array, ids, name, max_bytes)


def _read(kind: str, file: BinaryIO, array: str | None, ids: str | None, name: str, max_bytes: int) -> Vectors:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size > max_bytes:
        has, most = apart(size, max_bytes)
        raise InputError(f"{name} has {has}; at most {most} are read, so give fewer rows or float32.")
    try:
        values, names = _READERS[kind](file, size, array, ids, name, max_bytes)
        return Vectors(name, values, names, _how_read(name, values.shape, array))
    except (InputError, SettingsError):
        raise
    except MemoryError as error:
        raise InputError(f"{name} needs more memory than is free; give fewer rows or float32.") from error
    # Every reader has its own way of saying that the bytes are no such file, none of them for people.
    except Exception as error:
        raise InputError(f"{name} cannot be read: {_unreadable(kind, file)}.") from error


def _how_read(name: str, shape: tuple[int, ...], array: str | None) -> tuple[str, ...]:
    """Say which axis of a stack was taken for what, and what to do where that looks wrong."""
    if len(shape) != 3:
        return ()
    layers, rows, width = shape
    read = f"read as {plural(layers, 'layer')} of {plural(rows, 'row')}, {plural(width, 'number')} wide"
    if array is not None and "*" in array:
        return (f"The arrays '{one_line(array)}' of {name}, in the order of their numbers, are {read}.",)
    said = f"{name} has the shape {shape} and is {read}."
    if layers > rows:
        said += f" There are more layers than rows; if the first axis is that of the rows, {_SWAP}."
    return (said,)


def _unreadable(kind: str, file: BinaryIO) -> str:
    """Return why a file is none of its kind, as far as its first bytes tell, and what to do."""
    file.seek(0)
    start = file.read(32)
    if not start:
        return "it is empty; save it again"
    for magic, (which, called) in _MAGIC.items():
        if start.startswith(magic) and which != kind:
            return f"it begins like {called}; give it the suffix of what it is, or save it as {kind}"
    return f"it is damaged or no {kind} file; save it again"


def _checked(name: str, values: np.ndarray) -> np.ndarray:
    """Return ``values`` as read-only float32 or float64, (n, d) or (L, n, d) with L > 1, finite in every row."""
    if values.dtype.kind not in "fiu":
        raise InputError(f"{name} holds {kind_in_words(values.dtype)}, not real numbers; save it as float32.")
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise InputError(
            f"{name} has the shape {values.shape}; vectors need one row each, as in (1000, 768), and layers of them an "
            "axis before the rows, as in (13, 1000, 768)."
        )
    if values.ndim == 3 and len(values) > MAX_LAYERS:
        raise InputError(
            f"{name} has the shape {values.shape}, which would be {len(values):,} layers, and at most {MAX_LAYERS} are "
            f"read; if the first axis is that of the rows, {_SWAP}."
        )
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    finite = np.isfinite(values).all(axis=-1)
    bad = np.flatnonzero(~finite.reshape(-1, finite.shape[-1]).all(axis=0))
    if len(bad):
        shown = ", ".join(f"{row:,}" for row in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
        raise InputError(f"{name} has NaN or infinite values in row {shown}{more} (from 0); leave those rows out.")
    values = values.view()
    values.setflags(write=False)
    return values
