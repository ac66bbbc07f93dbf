"""What an uploaded file says it holds, so that a form can offer it; nothing is judged here, the readers do that."""

from __future__ import annotations

import codecs
import json
import re
import zipfile
from typing import Any, BinaryIO

from embcompare.errors import EmbcompareError
from embcompare.text import tables

MOST = 200
"""Names that are offered at most."""
_HEAD = 1 << 16
_HEADER = 1 << 20


def columns(file: BinaryIO, suffix: str) -> list[str]:
    """Return the names in the first line of a csv, tsv or jsonl file; none where there are none or they are unclear.

    Only the first 64 KiB are read. ``file`` is left at its start.
    """
    file.seek(0)
    head = file.read(_HEAD)
    file.seek(0)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
        if suffix == "jsonl":
            item = json.loads(next(line for line in text.splitlines() if line.strip()))
            names = list(item) if isinstance(item, dict) else []
        else:
            names = tables.columns_of(text, suffix) if suffix in ("csv", "tsv") else []
    except (ValueError, StopIteration, RecursionError, EmbcompareError):
        return []
    return [name for name in dict.fromkeys(names) if name][:MOST]


def arrays(file: BinaryIO, suffix: str) -> list[str]:
    """Return the names of the arrays, or columns, in an npz, safetensors or parquet file; none where it has no names.

    Only headers are read. ``file`` is left at its start.
    """
    readers = {"npz": _npz, "safetensors": _safetensors, "parquet": _parquet}
    try:
        names = readers[suffix](file)[:MOST] if suffix in readers else []
        return [*_stacks(names), *names] if suffix in ("npz", "safetensors") else names
    # A damaged file has no names to offer; its reader says what is wrong with it.
    except Exception:
        return []
    finally:
        file.seek(0)


def _stacks(names: list[str]) -> list[str]:
    """Return what several numbered arrays can be asked for by: ``layer_*`` for layer_0, layer_1, ..."""
    stems = [match[1] for name in names if (match := re.fullmatch(r"(.*?[^0-9])\d+", name))]
    return [f"{stem}*" for stem in dict.fromkeys(stems) if stems.count(stem) > 1]


def _npz(file: BinaryIO) -> list[str]:
    with zipfile.ZipFile(file) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _safetensors(file: BinaryIO) -> list[str]:
    length = int.from_bytes(file.read(8), "little")
    header: dict[str, Any] = json.loads(file.read(min(length, _HEADER)))
    return [name for name in header if name != "__metadata__"]


def _parquet(file: BinaryIO) -> list[str]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    return [str(name) for name in pq.read_schema(file).names]
