"""A model's tokenizer, and which of its files is at fault where it cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embcompare.errors import ModelDamaged
from embcompare.models import policy
from embcompare.models.configs import shown

_OBJECTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json", "vocab.json")
_LARGEST = 512 * 2**20
_WAY_OUT = "fetch it again, or save the tokenizer anew with save_pretrained"


def read_tokenizer(folder: Path, label: str) -> Any:
    """Return the tokenizer in ``folder``; ``ModelDamaged`` names the file that keeps it from being read."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        words = tokenizer.get_vocab()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    # Files of every kind fail in their own way, and the tokenizers library's panics are no Exceptions.
    except BaseException as error:
        raise ModelDamaged(_fault(folder, error, label)) from error
    if not words:
        raise ModelDamaged(f"{label} has a tokenizer without any tokens, so nothing can be read with it; {_WAY_OUT}.")
    return tokenizer


def _fault(folder: Path, error: BaseException, label: str) -> str:
    contents = {}
    for name in _OBJECTS:
        if (folder / name).is_file():
            try:
                contents[name] = policy.read_json(folder / name, label, _LARGEST)
            except ModelDamaged as damage:
                return str(damage)
    whole = contents.get("tokenizer.json")
    if whole is not None:
        for part, kind in (("model", dict), ("added_tokens", list)):
            if not isinstance(whole.get(part), kind):
                holds = f"a '{part}' that is {shown(whole[part])}" if part in whole else f"no '{part}'"
                return f"{label} has a tokenizer.json with {holds}, so it is not a tokenizer's; {_WAY_OUT}."
        if not _stands_alone(folder / "tokenizer.json"):
            return f"{label} has a tokenizer.json that the tokenizers library cannot make a tokenizer of; {_WAY_OUT}."
    files = [name for name in policy.TOKENIZER_FILES if (folder / name).is_file()]
    at_fault = "tokenizer_config.json" if whole is not None and "tokenizer_config.json" in files else ", ".join(files)
    return (
        f"{label} has tokenizer files that transformers cannot make a tokenizer of ({type(error).__name__}); look at "
        f"{at_fault}, or {_WAY_OUT.replace(' it ', ' them ')}."
    )


def _stands_alone(path: Path) -> bool:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:
        return False
    return True
