"""What may be loaded at all: the hosted list, safetensors only, no code from a model, nothing outside its folder."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from embcompare import environment
from embcompare.errors import ModelDamaged, ModelNotFound, ModelRefused
from embcompare.models.configs import shown
from embcompare.models.spec import ModelSpec
from embcompare.words import in_words, one_line, plural

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
_LONGEST_NAME = 200
_PINNED = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?@[A-Za-z0-9_./-]+")
_VECTORS = (".npy", ".npz", ".safetensors", ".parquet")


def hosted() -> bool:
    """Say whether this process serves strangers, which ``EMBCOMPARE_HOSTED=1`` declares.

    Anything but a plain yes or no raises ``SettingsError``: a typing error must not open a public server to every
    folder on it.
    """
    return environment.flag("EMBCOMPARE_HOSTED")


def allowed_models() -> list[str]:
    """Return the hub models, ``org/name@commit``, that hosted mode offers beside the demo models.

    Raises ``SettingsError`` for an entry of ``EMBCOMPARE_ALLOWED_MODELS`` that is no such name or is not pinned.
    """
    entries = environment.listed("EMBCOMPARE_ALLOWED_MODELS")
    for entry in entries:
        if not _PINNED.fullmatch(entry):
            raise environment.refused(
                "EMBCOMPARE_ALLOWED_MODELS", entry, "write each model as org/name@commit, with commas between them"
            )
    return entries


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
            if name == spec.name and spec.revision in (None, revision):
                return ModelSpec("hub", name, revision, spec.dtype, spec.device)
    offer = f" and {', '.join(listed)}" if listed else ""
    # a folder is not named: what was typed has been resolved, and would tell of the machine
    what = repr(one_line(spec.name)) if spec.kind == "hub" else "A folder"
    raise ModelRefused(
        f"{what} is not offered here: this public demo runs the demo models{offer}; "
        "install embcompare on your own machine to use any other."
    )


def why(error: OSError) -> str:
    """Return the operating system's reason in lower case, without the path."""
    return (error.strerror or type(error).__name__).lower()


def check_folder(folder: Path) -> None:
    """Raise ``ModelNotFound`` unless ``folder`` is a folder: absent, a file, a link to nothing, a name too long."""
    shown = str(folder) if len(str(folder)) <= 200 else f"{str(folder)[:200]}…"
    try:
        mode = os.stat(folder).st_mode
    except FileNotFoundError as error:
        if folder.is_symlink():
            raise ModelNotFound(f"{shown} is a link to a folder that is not there; link it anew.") from error
        raise ModelNotFound(f"There is no folder {shown}; check the path.") from error
    except (OSError, ValueError) as error:
        reason = why(error) if isinstance(error, OSError) else "it holds a null character"
        raise ModelNotFound(f"There is no folder {shown} to read ({reason}); check the path.") from error
    if stat.S_ISDIR(mode):
        return
    if folder.suffix.lower() in _VECTORS:
        raise ModelNotFound(
            f"{shown} is a file, not a model's folder; give the folder it lies in, or, if it holds vectors, keep it "
            "first (python -m embcompare keep FILE) and give the name that prints."
        )
    raise ModelNotFound(
        f"{shown} is a file, and a model is a folder; give the folder that save_pretrained wrote, with its config.json "
        "and model.safetensors."
    )


def present(path: Path, label: str) -> bool:
    """Say whether ``path`` is a file; raise ``ModelDamaged`` if something that is no file has its name."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not path.is_symlink():
            return False
        problem = "is a link to a file that is not there"
    except NotADirectoryError:
        return False
    except OSError as error:
        problem = f"cannot be reached ({why(error)})"
    else:
        if stat.S_ISREG(mode):
            return True
        problem = "is a folder, not a file" if stat.S_ISDIR(mode) else "is no plain file"
    name = path.name if len(path.name) <= 60 else f"{path.name[:60]}…"
    raise ModelDamaged(
        f"{label} has {_article(name)} that {problem}; put the file itself there, or fetch the model again."
    )


def read_json(path: Path, label: str, most: int = _LARGEST_JSON) -> dict[str, Any]:
    """Return a JSON object from a model's folder, of ``most`` bytes; ``ModelDamaged``, with the place, otherwise."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise ModelDamaged(
            f"{label} has {_article(path.name)} that cannot be read ({why(error)}); check its permissions."
        ) from error
    content: Any = None
    problem = f"has {in_words(size)}, too much to be real"
    if size <= most:
        problem, content = _parsed(data)
    if not problem and not isinstance(content, dict):
        kinds = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
        problem = f"holds {kinds.get(type(content), 'a number')}, not an object of named values"
    if problem:
        raise ModelDamaged(f"{label} has {_article(path.name)} that {problem}; fetch it again.")
    found: dict[str, Any] = content
    return found


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _parsed(data: bytes) -> tuple[str, Any]:
    """Return what is wrong with JSON text, or nothing, and what it holds."""
    if not data.strip():
        return "is empty", None
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return "begins with a byte order mark, where plain UTF-8 is wanted", None
    try:
        return "", json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (byte {error.start:,} is 0x{data[error.start]:02X})", None
    except json.JSONDecodeError as error:
        return f"is not JSON (line {error.lineno:,}, column {error.colno:,})", None
    except RecursionError:
        return "is nested too deep to be real", None
    except ValueError:
        return "holds a number of thousands of digits", None


def read_config(folder: Path, label: str) -> dict[str, Any]:
    """Return ``config.json`` after the checks that need nothing else.

    Raises ``ModelNotFound`` without a folder or a config, ``ModelRefused`` if loading would need code that comes
    with the model, an adapter's base model or a quantisation library, ``ModelDamaged`` if it names no family.
    """
    check_folder(folder)
    if (folder / "adapter_config.json").exists():
        raise ModelRefused(
            f"{label} holds an adapter, not a whole model; merge it into its base model and save that "
            "(merge_and_unload() in peft, then save_pretrained)."
        )
    if not present(folder / "config.json", label):
        place = str(folder) if label == folder.name else label
        raise ModelNotFound(
            f"{place} has no config.json, so it is not a saved transformers model; "
            "give the folder that save_pretrained wrote."
        )
    config = read_json(folder / "config.json", label)
    if config.get("auto_map"):
        raise _own_code(label)
    if config.get("quantization_config"):
        raise ModelRefused(f"{label} holds quantised weights; give the model it was made from, unquantised.")
    if not isinstance(config.get("model_type"), str):
        raise ModelDamaged(
            f"{label} has a config.json without a model_type in words, so its family is not known; fetch it again, or "
            "write the family's name there."
        )
    return config


def check_tokenizer(folder: Path, label: str) -> bool:
    """Say whether the folder holds a tokenizer; raise ``ModelRefused`` if that needs code of its own."""
    settings = folder / "tokenizer_config.json"
    if present(settings, label) and read_json(settings, label).get("auto_map"):
        raise _own_code(label)
    found = [name for name in _VOCABULARIES if present(folder / name, label)]
    return bool(found)


def weight_files(folder: Path, label: str) -> list[Path]:
    """Return the safetensors files that hold the weights, sorted by name.

    Raises ``ModelRefused`` where there are only pickled weights, and ``ModelDamaged`` where there are none, where a
    shard is missing, or where the index points outside the folder.
    """
    if present(folder / WEIGHTS, label):
        return [folder / WEIGHTS]
    if present(folder / INDEX, label):
        placed = read_json(folder / INDEX, label).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise ModelDamaged(f"{label} has a {INDEX} that lists no weights; fetch it again.")
        for name in placed.values():
            if not isinstance(name, str) or not _beside(name):
                raise ModelRefused(
                    f"{label} has a {INDEX} that points to {shown(name)}, which is not a file beside it; "
                    "fetch it again."
                )
        names = sorted(set(placed.values()))
        for name in names:
            if not present(folder / name, label):
                raise ModelDamaged(
                    f"{label} lacks {name}, one of its {plural(len(names), 'weight file')}; download it again."
                )
        return [folder / name for name in names]
    try:
        found = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ModelNotFound(f"The folder {folder} cannot be read ({why(error)}); check its permissions.") from error
    other = [name for name in found if name.endswith(".safetensors")]
    if other:
        raise ModelDamaged(f"{label} has {other[0]} but no {WEIGHTS}, the name transformers saves under; rename it.")
    pickled = [name for name in found if name.endswith(_PICKLED)]
    if pickled:
        raise ModelRefused(
            f"{label} holds only {pickled[0]}, a format that can run code when it is read; load it once with "
            "a tool you trust and save it again with save_pretrained(folder, safe_serialization=True)."
        )
    raise ModelDamaged(f"{label} has no weights: there is no {WEIGHTS} in its folder; fetch it and put it there.")


def _beside(name: str) -> bool:
    """Say whether a name in an index is that of a plain safetensors file in the same folder."""
    plain = Path(name).name == name and "\\" not in name and name.isprintable() and len(name) <= _LONGEST_NAME
    return plain and name.endswith(".safetensors")


def model_files(folder: Path, label: str) -> list[Path]:
    """Return what identifies a model: its weights, config and tokenizer files, sorted by name."""
    read_config(folder, label)
    files = [*weight_files(folder, label), folder / "config.json"]
    files += [folder / name for name in TOKENIZER_FILES if present(folder / name, label)]
    return sorted(files, key=lambda path: path.name)


def _own_code(label: str) -> ModelRefused:
    return ModelRefused(
        f"{label} brings its own code (auto_map), and code from a model is never run here; "
        "choose a model of a family that transformers itself knows."
    )
