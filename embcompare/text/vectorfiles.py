"""Readers of vector files: what a header announces is checked first, and only then are the values read.

Each takes an open file, its size, the names of the array and of the ids or None, what to call the file in messages,
and the most bytes that the values may take; each gives the values and the ids.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from embcompare.errors import SettingsError
from embcompare.text.corpora import InputError

ID_CHARACTERS = 500
"""Characters of the longest id."""

Read = tuple[np.ndarray, tuple[str, ...]]

_RATIO = 200
_MEMBERS = 1_000
_HEADER = 1 << 20
_PLAIN_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npy(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read an npy file: one array and no ids."""
    if array is not None or ids is not None:
        raise SettingsError("An npy file holds one array and no ids; leave both names empty, or give an npz file.")
    shape, dtype = _npy_header(file, name)
    _fit(shape, dtype, name, max_bytes)
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise InputError(f"{name} is cut off or has too much at its end; save it again.")
    file.seek(0)
    return np.load(file, allow_pickle=False), ()


def _npy_header(file: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    major, minor = np.lib.format.read_magic(file)
    if (major, minor) not in ((1, 0), (2, 0)):
        raise InputError(f"{name} is npy version {major}.{minor}; save a plain array of numbers.")
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def read_npz(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read an npz archive; its members are measured before they are unpacked."""
    with zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if len(archive.infolist()) > _MEMBERS:
            raise InputError(f"{name} has {len(archive.infolist()):,} members; at most {_MEMBERS:,} are looked at.")
        named = {info.filename.removesuffix(".npy"): info for info in members}
        headers: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        for key, info in named.items():
            _check_member(info, name, max_bytes)
            with archive.open(info) as member:
                headers[key] = _npy_header(member, f"{key} in {name}")
        key, id_key = _pick(headers, array, ids, name)

        def load(which: str) -> np.ndarray:
            shape, dtype = headers[which]
            _fit(shape, dtype, f"{which} in {name}", max_bytes, text=which == id_key)
            if math.prod(shape) * dtype.itemsize > named[which].file_size:
                raise InputError(f"{which} in {name} is cut off; save it again.")
            with archive.open(named[which]) as member:
                loaded: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # the checksum is compared at the end
            return loaded

        return load(key), () if id_key is None else _as_ids(load(id_key), name)


def _check_member(info: zipfile.ZipInfo, name: str, max_bytes: int) -> None:
    if info.flag_bits & 1:
        raise InputError(f"{info.filename} in {name} is encrypted; save it without a password.")
    if info.compress_type not in _PLAIN_ZIP:
        raise InputError(f"{info.filename} in {name} is packed in an unusual way; save it with numpy.savez.")
    packed = max(1, info.compress_size)
    if info.file_size > max_bytes or info.file_size > _RATIO * packed + 4096:
        raise InputError(
            f"{info.filename} in {name} would unpack from {packed:,} to {info.file_size:,} bytes, which is refused; "
            f"at most {max_bytes:,} bytes and {_RATIO} times the packed size are read."
        )


def read_safetensors(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read a safetensors file; bfloat16 becomes float32."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, _HEADER):
        raise InputError(f"{name} is no safetensors file, or its header is cut off; save it again.")
    header = json.loads(file.read(length))
    kinds = {"F16": "f2", "BF16": "f2", "F32": "f4", "F64": "f8", "I8": "i1", "U8": "u1", "I16": "i2", "I32": "i4"}
    kinds |= {"U16": "u2", "U32": "u4", "I64": "i8", "U64": "u8"}
    headers = {
        key: (tuple(item["shape"]), np.dtype(kinds.get(item["dtype"], "V1")))
        for key, item in header.items()
        if key != "__metadata__"
    }
    key, id_key = _pick(headers, array, ids, name)
    for which in filter(None, (key, id_key)):
        _fit(*headers[which], f"{which} in {name}", max_bytes, text=which == id_key)
    file.seek(0)
    data = file.read()
    if header[key]["dtype"] == "BF16":
        from safetensors.torch import load as load_torch

        tensors = load_torch(data)
        values = tensors[key].float().numpy()
        return values, () if id_key is None else _as_ids(tensors[id_key].numpy(), name)
    from safetensors import deserialize

    found = {each: item for each, item in deserialize(data) if each in (key, id_key)}

    def plain(which: str) -> np.ndarray:
        shape, dtype = headers[which]
        return np.frombuffer(found[which]["data"], dtype).reshape(shape)

    return plain(key), () if id_key is None else _as_ids(plain(id_key), name)


def read_parquet(file: BinaryIO, size: int, array: str | None, ids: str | None, name: str, max_bytes: int) -> Read:
    """Read a parquet file: one column of lists, or one numeric column a dimension."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("Parquet needs the package pyarrow, which is not installed; give an npy file.") from error
    schema = pq.read_schema(file)
    file.seek(0)
    id_key = _id_key(schema.names, ids, name)
    fixed = [item.name for item in schema if _list_of_numbers(item.type, pa)]
    plain = [item.name for item in schema if _number(item.type, pa) and item.name != id_key]
    if array is not None and array not in schema.names:
        raise SettingsError(f"{name} has no column '{array}'; its columns are {_named(schema.names)}.")
    if array is None and len(fixed) > 1:
        raise SettingsError(f"{name} has {len(fixed)} columns of lists; say which holds the vectors: {_named(fixed)}.")
    lists = array if array is not None else fixed[0] if fixed else None
    if lists is not None and lists not in fixed:
        raise InputError(f"Column '{lists}' of {name} holds no lists of numbers; choose one of {_named(fixed)}.")
    wanted = [lists] if lists is not None else plain
    if not wanted:
        raise InputError(
            f"{name} has no column of numbers or of lists of numbers; its columns are {_named(schema.names)}."
        )
    columns = [*wanted, id_key] if id_key is not None else wanted
    text = id_key is not None and pa.types.is_string(schema.field(id_key).type)
    table = pq.ParquetFile(file, read_dictionary=[id_key] if text else None)
    # Every value counts as eight bytes, so that columns packed into almost nothing are counted as they unpack.
    claimed = 0
    for group in range(table.metadata.num_row_groups):
        chunks = table.metadata.row_group(group)
        for at in range(chunks.num_columns):
            chunk = chunks.column(at)
            if chunk.path_in_schema.split(".")[0] in columns:
                claimed += max(chunk.num_values * 8, chunk.total_uncompressed_size)
    if claimed > 2 * max_bytes:
        raise _too_much(name, claimed, 2 * max_bytes)
    parts: list[np.ndarray] = []
    names: list[str] = []
    for batch in table.iter_batches(batch_size=4096, columns=columns):
        parts.append(_batch_values(batch, wanted, lists, name, pa))
        if id_key is not None:
            names.extend(_batch_ids(batch.column(columns.index(id_key)), name))
        if sum(part.nbytes for part in parts) > max_bytes:
            raise _too_much(name, sum(part.nbytes for part in parts), max_bytes)
    if not parts:
        raise InputError(f"{name} has no rows; give at least one.")
    if len({part.shape[1] for part in parts}) > 1:
        raise _ragged(name)
    return np.concatenate(parts), tuple(names)


def _batch_values(batch: Any, wanted: list[str], lists: str | None, name: str, pa: Any) -> np.ndarray:
    if lists is None:
        columns = [batch.column(batch.schema.get_field_index(each)) for each in wanted]
        return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)
    column = batch.column(batch.schema.get_field_index(lists))
    if column.null_count:
        raise InputError(f"Column '{lists}' of {name} has {column.null_count:,} empty rows or more; leave them out.")
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
        table = column.dictionary.to_pylist()
        if any(len(each) > ID_CHARACTERS for each in table):
            raise InputError(f"{name} has an id of more than {ID_CHARACTERS} characters; give shorter ones.")
        return [table[at] for at in column.indices.to_pylist()]
    return [str(each) for each in column.to_pylist()]


def _number(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _list_of_numbers(kind: Any, pa: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and _number(kind.value_type, pa))


def _pick(
    headers: dict[str, tuple[tuple[int, ...], np.dtype]], array: str | None, ids: str | None, name: str
) -> tuple[str, str | None]:
    """Return which array holds the vectors and which the ids, if any."""
    id_key = _id_key(list(headers), ids, name)
    listed = _named([f"{key} {shape} {dtype}" for key, (shape, dtype) in headers.items()])
    if array is not None:
        if array not in headers:
            raise SettingsError(f"{name} has no array '{array}'; it holds {listed}.")
        return array, id_key
    flat = [key for key, (shape, _) in headers.items() if len(shape) == 2 and key != id_key]
    if len(flat) != 1:
        what = "no array of two dimensions" if not flat else f"{len(flat)} arrays of two dimensions; say which to use"
        raise (SettingsError if flat else InputError)(f"{name} holds {what}: it holds {listed}.")
    return flat[0], id_key


def _id_key(names: Sequence[str], ids: str | None, name: str) -> str | None:
    if ids is not None and ids not in names:
        raise SettingsError(f"{name} has nothing called '{ids}' to take ids from; it holds {_named(names)}.")
    return ids if ids is not None else next((each for each in ("ids", "id") if each in names), None)


def _as_ids(array: np.ndarray, name: str) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise InputError(
            f"The ids of {name} are {array.dtype} of shape {array.shape}; give a text or whole number a row."
        )
    if array.dtype.kind == "S":
        return tuple(each.decode("utf-8", errors="strict") for each in array.tolist())
    return tuple(str(each) for each in array.tolist())


def _fit(shape: tuple[int, ...], dtype: np.dtype, name: str, max_bytes: int, text: bool = False) -> None:
    """Refuse what a header announces before any of it is read."""
    if dtype.hasobject:
        raise InputError(f"{name} holds Python objects, which could run code when read; save plain numbers or text.")
    if dtype.kind not in ("iuUS" if text else "fiu"):
        wanted = "text or whole numbers; give one a row" if text else "real numbers; save it as float32"
        raise InputError(f"{name} holds {dtype}, not {wanted}.")
    if any(not isinstance(side, int) or side < 0 for side in shape):
        raise InputError(f"{name} has the impossible shape {shape}; save it again.")
    if math.prod(shape) * max(dtype.itemsize, 4) > max_bytes:
        raise _too_much(name, math.prod(shape) * max(dtype.itemsize, 4), max_bytes)


def _named(names: Sequence[str]) -> str:
    return ", ".join(str(each)[:60] for each in names[:12]) + (" and more" if len(names) > 12 else "") or "nothing"


def _too_much(name: str, claimed: int, bound: int) -> InputError:
    return InputError(
        f"{name} would take {claimed:,} bytes; at most {bound:,} are read, so give fewer rows or float32."
    )


def _ragged(name: str) -> InputError:
    return InputError(f"{name} has rows of different lengths; vectors of one set must all have the same.")
