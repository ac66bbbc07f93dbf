"""What may be loaded at all: the hosted list, safetensors only, no code from a model, nothing outside its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from embcompare.errors import ModelDamaged, ModelNotFound, ModelRefused
from embcompare.models.spec import ModelSpec

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
)
"""Files a tokenizer may consist of, by name."""

_VOCABULARIES = tuple(
    name
    for name in TOKENIZER_FILES
    if name not in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_LARGEST_JSON = 32 * 2**20
_MOST_LAYERS = 10_000


def hosted() -> bool:
    """Say whether this process serves strangers, which ``EMBCOMPARE_HOSTED=1`` declares.

    Anything but a plain no counts as yes: a typing error must not open a public server to every folder on it.
    """
    return os.environ.get("EMBCOMPARE_HOSTED", "").strip().lower() not in ("", "0", "false", "no", "off")


def allowed_models() -> list[str]:
    """Return the hub models, ``org/name@commit``, that hosted mode offers beside the demo models."""
    return [entry.strip() for entry in os.environ.get("EMBCOMPARE_ALLOWED_MODELS", "").split(",") if entry.strip()]


def permitted(spec: ModelSpec) -> ModelSpec:
    """Return the spec to use, or raise ``ModelRefused``.

    Locally that is ``spec`` itself. In hosted mode demo models pass, folders do not, and a hub name passes only if
    ``EMBCOMPARE_ALLOWED_MODELS`` (comma-separated ``org/name@commit``) lists it, and then at the listed commit.
    """
    if not hosted() or spec.kind == "demo":
        return spec
    listed = allowed_models()
    if spec.kind == "hub":
        for entry in listed:
            name, _, revision = entry.partition("@")
            if name == spec.name and revision and spec.revision in (None, revision):
                return ModelSpec("hub", name, revision, spec.dtype, spec.device)
    offer = f" and {', '.join(listed)}" if listed else ""
    raise ModelRefused(
        f"{spec.label!r} is not offered here: this public demo runs the demo models{offer}; "
        "install embcompare on your own machine to use any other."
    )


def read_json(path: Path, label: str) -> dict[str, Any]:
    """Return a JSON object from a model's folder; ``ModelDamaged`` if it is not one."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelDamaged(f"{label} has a {path.name} of {path.stat().st_size:,} bytes, too large to be real.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelDamaged(f"{label} has a {path.name} that cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelDamaged(f"{label} has a {path.name} that is not a JSON object.")
    return content


def read_config(folder: Path, label: str) -> dict[str, Any]:
    """Return ``config.json`` after the checks that need nothing else.

    Raises ``ModelNotFound`` without a folder or a config, ``ModelRefused`` if loading would need code that comes
    with the model, an adapter's base model or a quantisation library, ``ModelDamaged`` if it names no family.
    """
    if not folder.is_dir():
        raise ModelNotFound(f"There is no folder {folder}; check the path.")
    if (folder / "adapter_config.json").exists():
        raise ModelRefused(
            f"{label} holds an adapter, not a whole model; merge it into its base model and save that "
            "(merge_and_unload() in peft, then save_pretrained)."
        )
    if not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"{label} has no config.json, so it is not a saved transformers model; "
            "give the folder that save_pretrained wrote."
        )
    config = read_json(folder / "config.json", label)
    if config.get("auto_map"):
        raise _own_code(label)
    if config.get("quantization_config"):
        raise ModelRefused(f"{label} holds quantised weights; give the model it was made from, unquantised.")
    for name, value in config.items():
        # transformers builds lists of that length before anybody can look at the sizes.
        if "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
            raise ModelDamaged(f"{label} has a config.json whose {name} is {value:,}, which no model has.")
    if not isinstance(config.get("model_type"), str):
        raise ModelDamaged(f"{label} has a config.json without a model_type, so its family is not known.")
    return config


def check_tokenizer(folder: Path, label: str) -> bool:
    """Say whether the folder holds a tokenizer; raise ``ModelRefused`` if that needs code of its own."""
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and read_json(settings, label).get("auto_map"):
        raise _own_code(label)
    return any((folder / name).is_file() for name in _VOCABULARIES)


def weight_files(folder: Path, label: str) -> list[Path]:
    """Return the safetensors files that hold the weights, sorted by name.

    Raises ``ModelRefused`` where there are only pickled weights, and ``ModelDamaged`` where there are none, where a
    shard is missing, or where the index points outside the folder.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        placed = read_json(folder / INDEX, label).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise ModelDamaged(f"{label} has a {INDEX} that lists no weights.")
        names = sorted({str(name) for name in placed.values()})
        for name in names:
            if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
                raise ModelRefused(f"{label} has a {INDEX} that points to {name!r}, which is not a file beside it.")
            if not (folder / name).is_file():
                raise ModelDamaged(f"{label} lacks {name}, one of its {len(names)} weight files; download it again.")
        return [folder / name for name in names]
    found = sorted(path.name for path in folder.iterdir())
    other = [name for name in found if name.endswith(".safetensors")]
    if other:
        raise ModelDamaged(f"{label} has {other[0]} but no {WEIGHTS}, the name transformers saves under; rename it.")
    pickled = [name for name in found if name.endswith(_PICKLED)]
    if pickled:
        raise ModelRefused(
            f"{label} holds only {pickled[0]}, a format that can run code when it is read; load it once with "
            "a tool you trust and save it again with save_pretrained(folder, safe_serialization=True)."
        )
    raise ModelDamaged(f"{label} has no weights: there is no {WEIGHTS} in its folder.")


def model_files(folder: Path, label: str) -> list[Path]:
    """Return what identifies a model: its weights, config and tokenizer files, sorted by name."""
    files = [*weight_files(folder, label), folder / "config.json"]
    files += [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return sorted(files, key=lambda path: path.name)


def _own_code(label: str) -> ModelRefused:
    return ModelRefused(
        f"{label} brings its own code (auto_map), and code from a model is never run here; "
        "choose a model of a family that transformers itself knows."
    )
