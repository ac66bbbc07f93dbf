"""What the headers of the weight files say, read before any weight is: whole, numbers, as many as the config says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from embcompare.errors import EmbcompareError, ModelDamaged, ModelRefused
from embcompare.models import memory, policy
from embcompare.models.families import Family
from embcompare.models.inspection import ModelInfo
from embcompare.words import plural

Headers = dict[str, tuple[str, tuple[int, ...]]]
"""Name of each tensor: its kind as safetensors writes it, such as ``BF16``, and its shape."""

_READ = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_OTHER = {"I": "int", "U": "uint", "F": "float", "C": "complex", "BOOL": "bool"}
_COUNTERS = ("position_ids", "token_type_ids", "num_batches_tracked")


def read_headers(files: list[Path], label: str) -> Headers:
    """Return kind and shape of every tensor in ``files``; ``ModelDamaged`` for a file that is not whole safetensors."""
    from safetensors import SafetensorError, safe_open

    found: Headers = {}
    for path in files:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    part = file.get_slice(name)
                    found[name] = str(part.get_dtype()), tuple(part.get_shape())
        except (SafetensorError, OSError, ValueError) as error:
            size = path.stat().st_size if path.is_file() else 0
            raise ModelDamaged(
                f"{label} has a {path.name} of {plural(size, 'byte')} that is cut short or not safetensors; fetch "
                "it again."
            ) from error
    return found


def top_level(folder: Path, label: str) -> list[str]:
    """Return the first two parts of the weights' names, where the files are there to look at."""
    try:
        names = read_headers(policy.weight_files(folder, label), label)
    except EmbcompareError:
        return []
    return sorted({".".join(name.split(".")[:2]) for name in names})[:20]


def check_headers(headers: Headers, info: ModelInfo, family: Family, most: int) -> None:
    """Refuse weights that are no floating-point numbers, that need more than ``most`` bytes or fit no such config."""
    _check_kinds(headers, info.label)
    total = sum(math.prod(shape) for _, shape in headers.values())
    held = total * max(info.bytes // max(info.parameters, 1), 2)
    if held > most:
        raise ModelRefused(
            f"{info.label} holds {total / 1e6:,.0f} million numbers, {memory.in_words(held)} in memory, more than its "
            f"config lets expect, and {memory.in_words(most)} may be used; choose a smaller model."
        )
    _check_rows(headers, info, family)
    if info.parameters > 2 * total + 10**6:
        raise ModelDamaged(
            f"{info.label} has a config.json that describes {info.parameters / 1e6:,.1f} million parameters, and its "
            f"files hold {total / 1e6:,.1f} million numbers; they do not belong together, so fetch both again."
        )


def _check_kinds(headers: Headers, label: str) -> None:
    for name, (kind, shape) in headers.items():
        leaf = name.rpartition(".")[2]
        # Older checkpoints keep positions and causal masks beside the weights; nothing reads those.
        mask = leaf == "bias" and len(shape) == 4
        if kind in _READ or leaf in _COUNTERS or mask:
            continue
        raise ModelRefused(
            f"{label} holds {_in_words(kind)} in {name[:80]}, as quantised models do, and only weights in "
            f"{', '.join(_READ.values())} are read here; give the model it was made from, unquantised."
        )


def _in_words(kind: str) -> str:
    """Return a kind that safetensors names, ``I8`` or ``F8_E4M3``, as torch would: ``int8``, ``float8_e4m3``."""
    start = kind if kind in _OTHER else kind[:1]
    return _OTHER.get(start, start) + kind.removeprefix(start).lower()


def _check_rows(headers: Headers, info: ModelInfo, family: Family) -> None:
    """Compare the rows of the token embedding with the vocabulary, where one tensor has that name."""
    name = f"{family.embedding}.weight"
    rows = [shape[0] for key, (_, shape) in headers.items() if f".{key}".endswith(f".{name}") and len(shape) == 2]
    if len(rows) == 1 and rows[0] != info.vocabulary and not family.cross_qkv:
        raise ModelDamaged(
            f"{info.label} has a config.json whose vocab_size is {info.vocabulary:,}, and the embedding in its files "
            f"has {plural(rows[0], 'row')}; correct vocab_size, or fetch both again."
        )


def check_loading(loading: dict[str, Any], config: Any, family: Family, label: str) -> list[str]:
    """Refuse what transformers would fill with random numbers or drop without a word; return what is worth a note."""
    if loading.get("mismatched_keys"):
        name, found, wanted = min(loading["mismatched_keys"], key=lambda each: str(each[0]))
        raise ModelDamaged(
            f"{label} has weights whose shapes do not fit its config, first of all {name}: {_shape(found)} in the file "
            f"and {_shape(wanted)} by config.json; correct the sizes there, or fetch both again."
        )
    missing = sorted(loading.get("missing_keys") or ())
    pooler = [name for name in missing if ".pooler." in f".{name}"]
    lacking = [name for name in missing if name not in pooler]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ModelDamaged(
            f"{label} lacks the weights {lacking[0]}{more}, which would otherwise be random numbers; "
            "fetch it again, or correct the architectures in its config.json."
        )
    marker, layers = f".{family.blocks}.", family.layers(config)
    for name in sorted(loading.get("unexpected_keys") or ()):
        _, found, rest = f".{name}".partition(marker)
        index = rest.partition(".")[0]
        same_stack = not family.root or family.root in name.split(".")
        if found and index.isdecimal() and int(index) >= layers and same_stack:
            raise ModelDamaged(
                f"{label} holds weights of a layer {index}, but its config has {layers} layers; "
                "correct num_hidden_layers."
            )
    return ["The pooler was not in the files; it is not used."] if pooler else []


def _shape(sizes: Any) -> str:
    return " × ".join(f"{size:,}" for size in sizes) or "one number"
