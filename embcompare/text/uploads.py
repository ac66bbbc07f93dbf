"""A user's own vectors, from npy, npz, safetensors or parquet: bounded before anything is read, never unpickled.

A file says in its header how much it holds. That is compared with the bound first, so that neither a file of a
gigabyte nor a small archive that unpacks to one takes memory.
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

from embcompare.errors import Incomparable, InputError, SettingsError
from embcompare.text.parquetfiles import read_parquet
from embcompare.text.vectorfiles import ID_CHARACTERS, Read, kind_in_words, read_npy, read_npz, read_safetensors
from embcompare.words import agree, apart, one_line, plural

MAX_VECTOR_BYTES = 256 * 2**20
"""Bytes of a file, and of the vectors in it once unpacked."""

_SHOWN = 5
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


@dataclass(frozen=True, eq=False)
class Vectors:
    """One vector a row, ``values`` (n, d), float32 or float64, finite and read-only.

    ``ids`` is empty or holds a different name for each row; ``digest`` is the SHA-256 of values and ids.
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
        if len(ids) != len(self.values):
            raise InputError(
                f"{self.name} has {plural(len(ids), 'id')} for {plural(len(self.values), 'row')}; give one for each."
            )
        if any(len(each) > ID_CHARACTERS for each in ids):
            raise InputError(f"{self.name} has an id of more than {ID_CHARACTERS:,} characters; give shorter ones.")
        if len(set(ids)) < len(ids):
            seen: set[str] = set()
            twice = next(each for each in ids if each in seen or seen.add(each))  # type: ignore[func-returns-value]
            raise InputError(f"{self.name} has the id '{one_line(twice)}' more than once; each row needs its own.")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over dtype, shape, values and ids."""
        total = hashlib.sha256(f"{self.values.dtype.str}{self.values.shape}".encode())
        total.update(np.ascontiguousarray(self.values).data)
        total.update(json.dumps(self.ids).encode())
        return total.hexdigest()


@dataclass(frozen=True, eq=False)
class Pairing:
    """Rows of two sets that stand for the same thing: ``rows_a`` and ``rows_b`` are int64 of one length.

    ``coverage_a`` is the share of A's rows that have a partner.
    """

    rows_a: np.ndarray
    rows_b: np.ndarray
    by: str
    coverage_a: float
    coverage_b: float

    def __len__(self) -> int:
        return len(self.rows_a)

    def sentence(self) -> str:
        """Return what was paired, for a person."""
        if self.by == "row":
            many = f"All {len(self):,} rows are paired in their order."
            return "The one row of each is paired." if len(self) == 1 else many
        return (
            f"{plural(len(self), 'row')} {agree(len(self), 'is', 'are')} paired by id: {self.coverage_a:.1%} of the "
            f"first and {self.coverage_b:.1%} of the second; the rest is left out."
        )


def pair_vectors(a: Vectors, b: Vectors, by: str = "row") -> Pairing:
    """Pair rows in their order (``"row"``) or by equal ids (``"id"``, in the order of ``a``).

    Raises ``Incomparable`` when the numbers of rows differ, when ids are missing, or when none is shared.
    """
    if by not in ("row", "id"):
        raise SettingsError(f"Rows cannot be paired by {by!r}; choose row or id.")
    if by == "row":
        if len(a) != len(b):
            raise Incomparable(
                f"{a.name} has {plural(len(a), 'row')} and {b.name} has {len(b):,}, so they cannot be paired in their "
                "order; give files with equally many rows, or ids in both."
            )
        rows = np.arange(len(a), dtype=np.int64)
        return Pairing(rows, rows, by, 1.0, 1.0)
    for side in (a, b):
        if not side.ids:
            raise Incomparable(f"{side.name} has no ids to pair by; add an array or column called ids, or pair by row.")
    at_b = {name: row for row, name in enumerate(b.ids)}
    pairs = [(row, at_b[name]) for row, name in enumerate(a.ids) if name in at_b]
    if not pairs:
        raise Incomparable(
            f"{a.name} and {b.name} share no id (the first begins with '{one_line(a.ids[0])}', the second with "
            f"'{one_line(b.ids[0])}'); give both the same names, or pair by row."
        )
    chosen = np.array(pairs, dtype=np.int64)
    return Pairing(chosen[:, 0], chosen[:, 1], by, len(pairs) / len(a), len(pairs) / len(b))


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

    ``array`` names the array of an npz or safetensors file, or the list column of a parquet file; it is not needed
    where only one is fit. ``ids`` names what holds the ids: not needed where it is called ids or id; an npy file has
    none. A parquet file may also hold one numeric column a dimension. Half precision and small integers become
    float32, other integers float64.

    Raises :class:`InputError` when the file is too large, damaged, holds objects, text or complex numbers, has no
    array of two dimensions, or a row with NaN or infinite values; ``SettingsError`` for a name that is not there.
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
        return Vectors(name, values, names)
    except (InputError, SettingsError):
        raise
    except MemoryError as error:
        raise InputError(f"{name} needs more memory than is free; give fewer rows or float32.") from error
    # Every reader has its own way of saying that the bytes are no such file, none of them for people.
    except Exception as error:
        raise InputError(f"{name} cannot be read: {_unreadable(kind, file)}.") from error


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
    """Return ``values`` as read-only float32 or float64 of two dimensions, finite in every row."""
    if values.dtype.kind not in "fiu":
        raise InputError(f"{name} holds {kind_in_words(values.dtype)}, not real numbers; save it as float32.")
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{name} has the shape {values.shape}; vectors need one row each, as in (1000, 768).")
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        shown = ", ".join(f"{row:,}" for row in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
        raise InputError(f"{name} has NaN or infinite values in row {shown}{more} (from 0); leave those rows out.")
    values = values.view()
    values.setflags(write=False)
    return values
