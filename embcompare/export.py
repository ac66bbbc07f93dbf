"""Results as files for other programs: JSON, CSV and npz; the pages and the command line share these."""

from __future__ import annotations

import io
import json
import math
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from embcompare.errors import StoreError
from embcompare.experiments.base import Result
from embcompare.folders import reason, write_atomically


def to_json(result: Result) -> str:
    """Return strict JSON with ``provenance``, ``notices`` and, under ``result``, every field.

    Arrays are nested lists; JSON knows neither NaN nor infinity, so both are null; complex numbers are pairs of real
    and imaginary part.
    """
    arrays, scalars = result.pack()
    fields = {**{name: array.tolist() for name, array in arrays.items()}, **scalars}
    document = {
        "provenance": fields.pop("provenance", {}),
        "notices": fields.pop("notices", ()),
        "result": fields,
    }
    return json.dumps(_strict(document), indent=1, allow_nan=False)


def to_csv(result: Result) -> str:
    """Return the result's tidy table, one row a cell, numbers with all the digits that tell them apart."""
    text: str = result.to_frame().to_csv(index=False, lineterminator="\n")
    return text


def to_npz(result: Result) -> bytes:
    """Return a NumPy archive of every array, and ``provenance``: a text array of JSON with all the rest.

    ``numpy.load(..., allow_pickle=False)`` reads it; an array of Python objects raises :class:`StoreError`.
    """
    arrays, scalars = result.pack()
    text = json.dumps(_strict(scalars), allow_nan=False)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # Not numpy.savez, which takes a field called "file" for its own argument.
        for name, array in {**arrays, "provenance": np.array(text)}.items():
            member = io.BytesIO()
            try:
                np.lib.format.write_array(member, array, allow_pickle=False)
            except ValueError as error:
                raise StoreError(f"The field {name} holds {array.dtype} and cannot go into an npz file.") from error
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def write_file(path: str | Path, data: str | bytes) -> None:
    """Write an export to ``path``, whole or not at all; :class:`StoreError` says in one sentence why not."""
    target = Path(path).expanduser()
    try:
        write_atomically(target, data.encode(errors="backslashreplace") if isinstance(data, str) else data)
    except OSError as error:
        raise StoreError(
            f"Cannot write {target}: {reason(error)}; name a file in a folder that can be written."
        ) from error


def check_target(path: str | Path) -> None:
    """Raise :class:`StoreError` now if ``path`` cannot be written, before anybody waits for a result to put there."""
    if not str(path):
        raise StoreError("The name of the file to write is empty; name a file, or - for standard output.")
    target = Path(path).expanduser()
    folder = target.parent
    if target.is_dir():
        raise StoreError(f"Cannot write {target}: it is a folder; name a file in it.")
    if not folder.is_dir():
        raise StoreError(f"Cannot write {target}: there is no folder {folder}; make it or name another.")
    if target.exists() and not target.is_file():
        return  # a device or a pipe
    probe = folder / f".embcompare.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise StoreError(f"Cannot write {target}: the folder {folder} cannot be written; name another.") from error


def _strict(value: Any) -> Any:
    """Return ``value`` in what strict JSON can say."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [_strict(value.real), _strict(value.imag)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
