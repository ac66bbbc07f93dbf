"""What a model is, from its config alone: shape, size, whether it can be compared. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embcompare.errors import EmbcompareError, ModelDamaged, UnsupportedFamily
from embcompare.models import hub, policy
from embcompare.models.families import Family, family_of
from embcompare.models.reading import unknown_family
from embcompare.models.spec import ModelSpec

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_LIMIT = 10**7


@dataclass(frozen=True)
class ModelInfo:
    """A model's shape and size as its config states them; 0 where the family is not known.

    ``parameters`` and ``bytes`` (in the dtype asked for) are estimates from the shape, within a few percent.
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
        config = read_configuration(folder, raw, spec.label)
    except UnsupportedFamily as error:
        return _unknown(spec, raw, str(error), card)
    family = family_of(config)
    if family is None:
        return _unknown(spec, raw, unknown_family(spec.label, config.model_type), card)
    sizes = _Sizes.read(config, family, spec.label)
    reason = family.unread(config)
    tied = bool(getattr(config, "tie_word_embeddings", True)) and raw.get("tie_word_embeddings") is not False
    parameters = sizes.parameters(has_head(config), tied)
    tied = tied and has_head(config)
    stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    per = _BYTES.get(stored if spec.dtype == "stored" else spec.dtype, 4)
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


def read_configuration(folder: Path, raw: dict[str, Any], label: str) -> Any:
    """Return the transformers configuration in ``folder``; runs no code that comes with the model.

    Raises ``UnsupportedFamily`` for a type that transformers does not know, ``ModelDamaged`` for values it
    cannot make sense of.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if raw["model_type"] not in CONFIG_MAPPING:
        raise UnsupportedFamily(unknown_family(label, str(raw["model_type"])))
    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except EmbcompareError:
        raise
    # The configuration classes check themselves and raise whatever fits their field.
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelDamaged(f"{label} has a config.json that makes no sense: {first}.") from error


def architecture(config: Any) -> str:
    """Return the class name the config asks for, or an empty text."""
    names = getattr(config, "architectures", None) or [""]
    return str(names[0])


def has_head(config: Any) -> bool:
    """Say whether the class the config asks for ends in a linear head over the vocabulary."""
    name = architecture(config)
    heads = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "MTModel", "DoubleHeadsModel")
    return name.endswith(heads) or (name.endswith("ForPreTraining") and not name.startswith("Electra"))


@dataclass(frozen=True)
class _Sizes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ff_width: int
    vocabulary: int
    embedding_width: int
    positions: int
    gated: bool
    encoder: tuple[int, int] | None
    cross: bool

    @classmethod
    def read(cls, config: Any, family: Family, label: str) -> _Sizes:
        try:
            values: dict[str, Any] = {
                "layers": family.layers(config),
                "width": config.hidden_size,
                "heads": family.heads(config),
                "kv_heads": family.kv_heads(config),
                "head_width": family.head_width(config),
                "ff_width": family.ff_width(config),
                "vocabulary": family.vocabulary(config),
                "embedding_width": family.embedding_width(config),
            }
        except (AttributeError, TypeError, ZeroDivisionError) as error:
            raise ModelDamaged(f"{label} has a config.json whose sizes cannot be read: {error}.") from error
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LIMIT:
                raise ModelDamaged(
                    f"{label} has a config.json whose {name.replace('_', ' ')} is {value!r}; "
                    "it must be a whole number from 1 up."
                )
        if values["heads"] % values["kv_heads"]:
            raise ModelDamaged(
                f"{label} has {values['heads']} heads that cannot share {values['kv_heads']} key and value heads."
            )
        absolute = family.position == "absolute"
        positions = int(getattr(config, "max_position_embeddings", 0) or 0) if absolute else 0
        return cls(
            **values,
            positions=positions,
            gated=bool(family.gated(config)),
            encoder=family.encoder(config),
            cross=bool(family.cross_qkv),
        )

    def parameters(self, head: bool, tied: bool) -> int:
        attention = self.width * self.head_width * 2 * (self.heads + self.kv_heads)
        matrices = 3 if self.gated else 2
        block = attention * (2 if self.cross else 1) + matrices * self.width * self.ff_width + 9 * self.width
        total = self.layers * block + (self.vocabulary + self.positions) * self.embedding_width
        if self.embedding_width != self.width:
            total += 2 * self.embedding_width * self.width
        if head and not tied:
            total += self.vocabulary * self.embedding_width
        if self.encoder is not None:
            layers, ff_width = self.encoder
            total += layers * (attention + matrices * self.width * ff_width + 9 * self.width)
            total += self.positions * self.width
        return total


def _unknown(spec: ModelSpec, raw: dict[str, Any], reason: str, card: dict[str, Any] | None) -> ModelInfo:
    names = raw.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    return ModelInfo(spec.label, str(raw["model_type"]), first, 0, 0, 0, 0, 0, 0, 0, 0, False, "", False, reason, card)
