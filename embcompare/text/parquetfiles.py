"""Reader of parquet files of vectors: what the footer announces is checked first, and apart from this process."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from typing import Any, BinaryIO

import numpy as np

from embcompare.errors import InputError, SettingsError
from embcompare.text.vectorfiles import ID_CHARACTERS, Read, find_ids, named, too_much
from embcompare.words import one_line, plural

_MAGIC = b"PAR1"
_FOOTER = 32 * 2**20
_PATIENCE = 60.0
# Every value counts as eight bytes, so that columns packed into almost nothing are counted as they unpack.
_LOOK = """
import io, json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
import pyarrow.parquet as pq
found = {}
data = pq.read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for at in range(data.num_row_groups):
    group = data.row_group(at)
    for place in range(group.num_columns):
        chunk = group.column(place)
        name = chunk.path_in_schema.split(".")[0]
        found[name] = found.get(name, 0) + max(chunk.num_values * 8, chunk.total_uncompressed_size)
json.dump(found, sys.stdout)
"""


def read_parquet(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read a parquet file: one column of lists, or one numeric column a dimension."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("Parquet needs the package pyarrow, which is not installed; give an npy file.") from error
    schema = pq.read_schema(file)
    file.seek(0)
    id_key = find_ids(schema.names, ids, name)
    fixed = [item.name for item in schema if _list_of_numbers(item.type, pa)]
    plain = [item.name for item in schema if _number(item.type, pa) and item.name != id_key]
    if array is not None and array not in schema.names:
        raise SettingsError(f"{name} has no column '{one_line(array)}'; its columns are {named(schema.names)}.")
    if array is None and len(fixed) > 1:
        raise SettingsError(f"{name} has {len(fixed)} columns of lists; say which holds the vectors: {named(fixed)}.")
    lists = array if array is not None else fixed[0] if fixed else None
    if lists is not None and lists not in fixed:
        raise InputError(
            f"Column '{one_line(lists)}' of {name} holds no lists of numbers; choose one that does: {named(fixed)}."
        )
    wanted = [lists] if lists is not None else plain
    if not wanted:
        raise InputError(
            f"{name} has no column of numbers or of lists of numbers; its columns are {named(schema.names)}."
        )
    if id_key is not None and not _names_rows(schema.field(id_key).type, pa):
        raise InputError(
            f"Column '{one_line(id_key)}' of {name} holds neither text nor whole numbers, so it cannot name the rows; "
            "save the ids as text."
        )
    columns = [*wanted, id_key] if id_key is not None else wanted
    text = id_key is not None and pa.types.is_string(schema.field(id_key).type)
    claimed = sum(most for column, most in _claims(file, name).items() if column in columns)
    if claimed > 2 * max_bytes:
        raise too_much(name, claimed, 2 * max_bytes)
    file.seek(0)
    table = pq.ParquetFile(file, read_dictionary=[id_key] if text else None)
    parts: list[np.ndarray] = []
    names: list[str] = []
    for batch in table.iter_batches(batch_size=4096, columns=columns):
        parts.append(_batch_values(batch, wanted, lists, name, pa))
        if id_key is not None:
            names.extend(_batch_ids(batch.column(columns.index(id_key)), name))
        if sum(part.nbytes for part in parts) > max_bytes:
            raise too_much(name, sum(part.nbytes for part in parts), max_bytes)
    if not parts:
        raise InputError(f"{name} has no rows; give at least one.")
    if len({part.shape[1] for part in parts}) > 1:
        raise _ragged(name)
    return np.concatenate(parts), tuple(names)


def _claims(file: BinaryIO, name: str) -> dict[str, int]:
    """Return the bytes that each column may unpack to, by name, as the end of the file says."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read()
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != _MAGIC or not 0 < length <= min(size - 12, _FOOTER):
        raise _damaged(name)
    file.seek(size - 8 - length)
    try:
        return dict(_looked_at(file.read(length)))
    except ValueError as error:
        raise _damaged(name) from error


@functools.lru_cache(maxsize=8)
def _looked_at(footer: bytes) -> tuple[tuple[str, int], ...]:
    """Return columns and bytes out of a footer; ``ValueError`` where it is damaged.

    In a process of its own: of some damaged footers pyarrow's own code ends the process that looks at them.
    """
    whole = _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK], input=whole, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError("it takes too long") from error
    if done.returncode:
        raise ValueError("it cannot be read")
    return tuple(json.loads(done.stdout).items())


def _damaged(name: str) -> InputError:
    return InputError(f"{name} cannot be read: it is damaged or no parquet file; save it again.")


def _batch_values(batch: Any, wanted: list[str], lists: str | None, name: str, pa: Any) -> np.ndarray:
    if lists is None:
        columns = [batch.column(batch.schema.get_field_index(each)) for each in wanted]
        return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)
    column = batch.column(batch.schema.get_field_index(lists))
    if column.null_count:
        raise InputError(
            f"Column '{lists}' of {name} has {plural(column.null_count, 'empty row')} or more; leave them out."
        )
    flat = column.flatten()
    widths = (
        {column.type.list_size} if pa.types.is_fixed_size_list(column.type) else set(column.value_lengths().to_pylist())
    )
    if len(widths) > 1:
        raise _ragged(name)
    values: np.ndarray = flat.to_numpy(zero_copy_only=False).reshape(len(column), widths.pop())
    return values


def _batch_ids(column: Any, name: str) -> list[str]:
    if column.null_count:
        raise InputError(f"{name} has rows without an id; give every row one.")
    if hasattr(column, "dictionary"):
        table = [str(each) for each in column.dictionary.to_pylist()]
        if any(len(each) > ID_CHARACTERS for each in table):
            raise InputError(f"{name} has an id of more than {ID_CHARACTERS:,} characters; give shorter ones.")
        return [table[at] for at in column.indices.to_pylist()]
    return [str(each) for each in column.to_pylist()]


def _names_rows(kind: Any, pa: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def _number(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _list_of_numbers(kind: Any, pa: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and _number(kind.value_type, pa))


def _ragged(name: str) -> InputError:
    return InputError(f"{name} has rows of different lengths; vectors of one set must all have the same.")
