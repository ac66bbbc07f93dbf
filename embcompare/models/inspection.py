"""What a model is, from its config alone: shape, size, whether it can be compared. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from embcompare.errors import ModelDamaged, UnsupportedFamily
from embcompare.models import hub, policy
from embcompare.models.configs import FLOATS, check_activation, read_configuration, shown
from embcompare.models.families import Family, architecture, has_head
from embcompare.models.sizes import parameter_count
from embcompare.models.spec import ModelSpec


@dataclass(frozen=True)
class ModelInfo:
    """A model's shape and size as its config states them; 0 where the family is not known.

    ``parameters`` counts every matrix, bias and gain of the class the config asks for, tied matrices once; ``bytes``
    is what they take in the dtype asked for.
    ``supported`` says whether its anatomy is known; otherwise ``reason`` says why not, in one sentence. ``card``
    is what ships with a demo model: how it was trained, from what.
    """

    label: str
    family: str
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ff_width: int
    vocabulary: int
    parameters: int
    bytes: int
    tied: bool
    placement: str
    supported: bool
    reason: str
    card: dict[str, Any] | None = None


def inspect_model(spec_or_text: ModelSpec | str) -> ModelInfo:
    """Return what the config says of a model, without weights and without building it.

    Raises what finding the model raises (``ModelNotFound``, ``ModelRefused``, ``ModelDamaged``); a family that is
    not known is no error here but ``supported=False`` with its reason.
    """
    spec = policy.permitted(ModelSpec.parse(spec_or_text))
    folder = hub.find_config(spec)
    card = folder / "card.json"
    shown = policy.read_json(card, spec.label) if spec.kind == "demo" and card.is_file() else None
    return describe(folder, spec, shown)


def describe(folder: Path, spec: ModelSpec, card: dict[str, Any] | None = None) -> ModelInfo:
    """Return the info of the model whose ``config.json`` lies in ``folder``."""
    raw = policy.read_config(folder, spec.label)
    try:
        config, family = read_configuration(raw, spec.label)
    except UnsupportedFamily as error:
        return _unknown(spec, raw, str(error), card)
    sizes = _Sizes.read(config, family, spec.label)
    check_activation(raw, config, family, spec.label)
    reason = family.unread(config)
    tied = bool(getattr(config, "tie_word_embeddings", True)) and raw.get("tie_word_embeddings") is not False
    parameters = parameter_count(config, family, tied)
    tied = tied and has_head(config)
    stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    per = FLOATS.get(stored if spec.dtype == "stored" else spec.dtype, 4)
    return ModelInfo(
        label=spec.label,
        family=config.model_type,
        architecture=architecture(config),
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ff_width=sizes.ff_width,
        vocabulary=sizes.vocabulary,
        parameters=parameters,
        bytes=parameters * per,
        tied=tied,
        placement=family.placement(config),
        supported=not reason,
        reason=f"{spec.label} cannot be read: {reason}." if reason else "",
        card=card,
    )


@dataclass(frozen=True)
class _Sizes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    ff_width: int
    vocabulary: int

    @classmethod
    def read(cls, config: Any, family: Family, label: str) -> _Sizes:
        """Return the sizes by the family's entry, each a whole number from 1 up, or refuse the config."""
        readers = {
            "num_hidden_layers": family.layers,
            "hidden_size": lambda config: config.hidden_size,
            "num_attention_heads": family.heads,
            "num_key_value_heads": family.kv_heads,
            "intermediate_size": family.ff_width,
            "vocab_size": family.vocabulary,
            "head_dim": family.head_width,
            "embedding_size": family.embedding_width,
        }
        values = []
        for name, read in readers.items():
            try:
                value = read(config)
            except (AttributeError, TypeError, ArithmeticError):
                value = None
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                own = config.attribute_map.get(name, name)
                raise ModelDamaged(
                    f"{label} has a config.json by which {own} is {shown(value)}; it must be a whole number from 1 up, "
                    "so correct it, or fetch config.json again."
                )
            values.append(value)
        return cls(*values[:6])


def _unknown(spec: ModelSpec, raw: dict[str, Any], reason: str, card: dict[str, Any] | None) -> ModelInfo:
    first = architecture(SimpleNamespace(architectures=raw.get("architectures")))
    return ModelInfo(spec.label, str(raw["model_type"]), first, 0, 0, 0, 0, 0, 0, 0, 0, False, "", False, reason, card)
