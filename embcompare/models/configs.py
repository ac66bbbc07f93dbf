"""config.json value by value: what cannot be is named, with its value, the reason and the way out.

Bounds are looked at before transformers sees a value, since it makes lists as long as a config says.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from embcompare.errors import ModelDamaged, ModelRefused, UnsupportedFamily
from embcompare.models.families import FAMILIES, Family, family_of

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""The kinds of numbers that weights may be stored in, and their bytes."""

_MOST_LAYERS = 10_000
_MOST = 10_000_000
_BOUNDS: dict[str, int] = {
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_decoder_layers"), _MOST_LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), _MOST_LAYERS),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads", "num_key_value_heads"), 100_000),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_labels"), 100_000),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "type_vocab_size", "n_positions"), _MOST),
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "d_model", "embedding_size", "word_embed_proj_dim"), _MOST),
    **dict.fromkeys(("d_kv", "head_dim", "n_inner", "intermediate_size", "hidden_dim", "d_ff", "ffn_dim"), _MOST),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "relative_attention_num_buckets"), _MOST),
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
}
_TRIAL_SECONDS = 3.0
_WAY_OUT = "correct it, or fetch config.json again"
_quiet_lock = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and log lines off the terminal while a model is read."""
    from transformers.utils import logging

    with _quiet_lock:
        before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            if bars:
                logging.enable_progress_bar()


def shown(value: Any) -> str:
    """Return a value from a file for a sentence: short, on one line, numbers grouped."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"
    words = {"True": "true", "False": "false", "None": "null"}
    if isinstance(value, str) and len(value) > 40:
        return f"{value[:40]!r} and so on ({len(value):,} characters)"
    text = repr(value)
    return words.get(text, text) if len(text) <= 70 else f"{text[:70]}…"


def read_configuration(raw: dict[str, Any], label: str) -> tuple[Any, Family]:
    """Return the transformers configuration of ``raw`` and its family's entry; runs no code that comes with a model.

    Raises ``UnsupportedFamily`` for a family that is not known and ``ModelDamaged`` for the first value that no
    model has or that does not go with the others.
    """
    from transformers import CONFIG_MAPPING

    if raw["model_type"] not in FAMILIES:
        raise UnsupportedFamily(unknown_family(label, raw["model_type"]))
    kind = CONFIG_MAPPING[raw["model_type"]]
    _check_names(raw, kind, label)
    _check_bounds(raw, kind, label)
    _check_dtype(raw, label)
    _check_heads(raw, kind, label)
    with quiet():
        try:
            config = make(raw)
        # The configuration classes check themselves and raise whatever fits their field.
        except Exception as error:
            raise ModelDamaged(_fault(raw, error, label, make)) from error
    family = family_of(config)
    assert family is not None
    return config, family


def make(raw: dict[str, Any]) -> Any:
    """Return the transformers configuration of ``raw``; raises whatever transformers does."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[raw["model_type"]]
    return kind.from_dict(copy.deepcopy({key: value for key, value in raw.items() if key != "model_type"}))


def unknown_family(label: str, model_type: str, modules: list[str] | None = None) -> str:
    """Return the sentence that says a family is not known and which are."""
    holds = f", whose top-level modules are {', '.join(modules)}," if modules else ""
    return (
        f"{label} is of the family {shown(model_type)}{holds} which is not one whose anatomy is known; "
        f"known are {', '.join(sorted(FAMILIES))}."
    )


def check_activation(raw: dict[str, Any], config: Any, family: Family, label: str) -> None:
    """Raise ``ModelDamaged`` where the feed-forward's function is not one that transformers has."""
    from transformers.activations import ACT2FN

    name = family.activation(config)
    if isinstance(name, str) and name in ACT2FN:
        return
    key = next(
        (key for key, value in raw.items() if isinstance(value, str) and value.endswith(str(name))), "hidden_act"
    )
    raise ModelDamaged(
        f"{label} has a config.json whose {key} is {shown(raw.get(key, name))}, an activation function that "
        f"transformers does not have; it has gelu, gelu_new, relu, silu, tanh and others, so {_WAY_OUT}."
    )


def build_fault(raw: dict[str, Any], error: BaseException, label: str, build: Callable[[Any], Any]) -> str:
    """Return the sentence for a configuration of which ``build(config)`` makes no module: the value that is at fault.

    ``build`` is tried without memory for weights, leaving out one value after the other, for a few seconds at most.
    """
    import torch

    def trial(values: dict[str, Any]) -> None:
        with torch.device("meta"):
            build(make(values))

    with quiet():
        try:
            trial(raw)
        except Exception as again:
            return _fault(raw, again, label, trial)
    return (
        f"{label} could not be put together from its files ({type(error).__name__} in transformers), though its "
        "config.json makes sense; fetch its weights again."
    )


def _fault(raw: dict[str, Any], error: BaseException, label: str, trial: Callable[[dict[str, Any]], Any]) -> str:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[raw["model_type"]]
    said = re.search(r"error for field '(\w+)'", str(error))
    key = said and next((k for k in raw if k == said[1] or kind.attribute_map.get(k) == said[1]), None)
    if said and key is not None and _works_without(raw, key, trial):
        wanted = _wanted(kind, said[1], raw[key])
        return f"{label} has a config.json whose {key} is {shown(raw[key])}; it must be {wanted}, so {_WAY_OUT}."
    end = time.monotonic() + _TRIAL_SECONDS
    for key in raw:
        if key == "model_type":
            continue
        if time.monotonic() > end:
            break
        if not _works_without(raw, key, trial):
            continue
        return (
            f"{label} has a config.json whose {_short(key)} is {shown(raw[key])}, which transformers cannot make a "
            f"'{raw['model_type']}' with, alone or beside its other values; {_WAY_OUT}."
        )
    return (
        f"{label} has a config.json from which transformers cannot make a '{raw['model_type']}' "
        f"({type(error).__name__}), and no single value of it is to blame; fetch config.json again."
    )


def _works_without(raw: dict[str, Any], key: str, trial: Callable[[dict[str, Any]], Any]) -> bool:
    try:
        trial({k: v for k, v in raw.items() if k != key})
    except Exception:
        return False
    return True


def _check_names(raw: dict[str, Any], kind: Any, label: str) -> None:
    for key in raw:
        if key.startswith("__") or key == "attribute_map" or callable(getattr(kind, key, None)):
            raise ModelDamaged(
                f"{label} has a config.json with a value called {_short(key)}, which is the name of a part of "
                "transformers itself; leave it out, or fetch config.json again."
            )


def _check_bounds(raw: dict[str, Any], kind: Any, label: str) -> None:
    known = {*_fields(kind), *kind.attribute_map, "num_labels"}
    bounds = dict(_BOUNDS)
    if FAMILIES[raw["model_type"]].position == "absolute":
        bounds["max_position_embeddings"] = _MOST
    for name, most in bounds.items():
        value = raw.get(name)
        if value is None or name not in known:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ModelDamaged(
                f"{label} has a config.json whose {name} is {shown(value)}; it must be a whole number "
                f"from 1 to {most:,}, so {_WAY_OUT}."
            )


def _check_dtype(raw: dict[str, Any], label: str) -> None:
    for key in ("dtype", "torch_dtype"):
        value = raw.get(key)
        if value is None or (isinstance(value, str) and value.removeprefix("torch.") in FLOATS):
            continue
        if isinstance(value, str) and re.match(r"(torch\.)?(u?int|float|fp|q)\d", value):
            raise ModelRefused(
                f"{label} has a config.json whose {key} is {shown(value)}, as quantised models do, and only weights in "
                f"{', '.join(FLOATS)} are read here; give the model it was made from."
            )
        raise ModelDamaged(
            f"{label} has a config.json whose {key} is {shown(value)}; it must be one of {', '.join(FLOATS)}, "
            f"so {_WAY_OUT}."
        )


def _check_heads(raw: dict[str, Any], kind: Any, label: str) -> None:
    """Refuse heads that cannot share the width or the keys and values; what is missing or None is left to others."""
    view = _view(raw, kind)
    heads_at = [n for n in ("encoder_attention_heads", "decoder_attention_heads") if hasattr(view, n)]
    for name in heads_at or ["num_attention_heads"]:
        width, heads = getattr(view, "hidden_size", None), getattr(view, name, None)
        if not isinstance(width, int) or not isinstance(heads, int) or getattr(view, "head_dim", None) is not None:
            continue
        if width % heads:
            raise ModelDamaged(
                f"{label} has a config.json whose {_written(raw, kind, name)} is {heads:,} and whose "
                f"{_written(raw, kind, 'hidden_size')} is {width:,}; heads must share the width evenly, so {_WAY_OUT}."
            )
    heads, shared = getattr(view, "num_attention_heads", None), getattr(view, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise ModelDamaged(
            f"{label} has a config.json whose num_attention_heads is {heads:,} and whose num_key_value_heads is "
            f"{shared:,}; heads must share keys and values evenly, so {_WAY_OUT}."
        )


def _view(raw: dict[str, Any], kind: Any) -> SimpleNamespace:
    """Return the values of ``raw`` over the class's defaults, under both names where there are two."""
    values = {item.name: item.default for item in dataclasses.fields(kind)}
    values |= {kind.attribute_map.get(key, key): value for key, value in raw.items()}
    values |= {other: values[own] for other, own in kind.attribute_map.items() if own in values}
    return SimpleNamespace(**{k: v for k, v in values.items() if isinstance(k, str)})


def _written(raw: dict[str, Any], kind: Any, name: str) -> str:
    return name if name in raw else kind.attribute_map.get(name, name)


def _fields(kind: Any) -> dict[str, Any]:
    return {item.name: item.type for item in dataclasses.fields(kind)}


def _wanted(kind: Any, field: str, value: Any) -> str:
    """Return in words what a field of a configuration class may hold."""
    text = str(_fields(kind).get(field, ""))
    kinds = [each for each in re.findall(r"\b[a-z]+\b", re.sub(r"\[[^\]]*\]", "", text)) if each in _KINDS]
    words = " or ".join(dict.fromkeys(_KINDS[each] for each in kinds)) or "of another kind"
    if kinds == ["float"]:
        words = "a number with a decimal point"
    return f"{words} within the bounds transformers sets" if type(value).__name__ in kinds else words


def _short(key: str) -> str:
    return key if len(key) <= 60 and key.isprintable() else shown(key)
