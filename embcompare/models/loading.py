"""Loads a model: found, checked, sized, read, proved. Safetensors only, never a model's own code."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embcompare.errors import EmbcompareError, ModelDamaged, ModelRefused, SettingsError, UnsupportedFamily
from embcompare.models import hub, memory, policy
from embcompare.models.anatomy import Anatomy
from embcompare.models.configs import build_fault, quiet, read_configuration
from embcompare.models.families import Family, architecture
from embcompare.models.fingerprints import fingerprint, fingerprint_of
from embcompare.models.inspection import ModelInfo, describe, inspect_model
from embcompare.models.reading import read_anatomy
from embcompare.models.spec import ModelSpec
from embcompare.models.tokenizer import read_tokenizer
from embcompare.models.validation import validate
from embcompare.models.weightfiles import check_headers, check_loading, read_headers, top_level
from embcompare.text.tokens import Tokens, tokens_from_tokenizer
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LoadedModel", "ModelInfo", "fingerprint", "inspect_model", "load_model", "quiet"]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory: the module in eval mode without gradients, its anatomy, its tokenizer and tokens.

    ``lock`` is to be held while hooks hang on ``module`` or anything else about it is changed for a while.
    """

    spec: ModelSpec
    info: ModelInfo
    module: nn.Module
    anatomy: Anatomy
    fingerprint: str
    notes: tuple[str, ...] = ()
    maybe_tokenizer: Any = None
    maybe_tokens: Tokens | None = None
    lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; raises ``ModelDamaged`` where the model came without one."""
        if self.maybe_tokenizer is None:
            raise self._without_tokenizer()
        return self.maybe_tokenizer

    @property
    def tokens(self) -> Tokens:
        """The token of each row of E; raises ``ModelDamaged`` where the model came without a tokenizer."""
        if self.maybe_tokens is None:
            raise self._without_tokenizer()
        return self.maybe_tokens

    @property
    def bytes(self) -> int:
        """Bytes the parameters take."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    def _without_tokenizer(self) -> ModelDamaged:
        return ModelDamaged(
            f"{self.spec.label} has no tokenizer files, so nobody knows which token a row of E stands for; "
            "put tokenizer.json into its folder."
        )


def load_model(spec_or_text: ModelSpec | str, *, max_bytes: int | None = None) -> LoadedModel:
    """Load a model, its tokenizer and its anatomy, and prove the anatomy on four tokens.

    ``max_bytes`` bounds the weights in memory and is checked against the config before any weights are read;
    by default ``EMBCOMPARE_MAX_MODEL_BYTES``, or what fits. Raises ``ModelNotFound``, ``ModelRefused``,
    ``ModelDamaged`` or ``UnsupportedFamily``, each with a sentence that names the model, the reason and the way out.
    """
    spec = policy.permitted(ModelSpec.parse(spec_or_text))
    _check_device(spec.device)
    most = memory.limit(spec.device) if max_bytes is None else max_bytes

    def check(found: Path, size: int) -> None:
        _check_info(describe(found, spec), most, found)
        if size > 2 * most:
            raise ModelRefused(
                f"{spec.label} has {memory.in_words(size)} of weights to download, and {memory.in_words(most)} of "
                "memory may be used; choose a smaller model."
            )

    folder = hub.find_model(spec, check)
    info = inspect_model(spec) if spec.kind == "demo" else describe(folder, spec)
    _check_info(info, most, folder)
    raw = policy.read_config(folder, spec.label)
    config, family = read_configuration(raw, spec.label)
    headers = read_headers(policy.weight_files(folder, spec.label), spec.label)
    check_headers(headers, info, family, most)
    has_tokenizer = policy.check_tokenizer(folder, spec.label)
    with quiet():
        module, notes = _read_module(folder, spec, raw, config, family)
        tokenizer = read_tokenizer(folder, spec.label) if has_tokenizer else None
        _check_finite(module, spec.label)
        named = None if tokenizer is None else max(tokenizer.get_vocab().values(), default=-1) + 1
        anatomy = read_anatomy(module, tokens=named, label=spec.label)
        validate(module, anatomy, spec.label)
    if named is not None and named > len(anatomy.embedding):
        notes.append(f"The tokenizer has {plural(named - len(anatomy.embedding), 'token')} for which E has no row.")
    tokens = None if tokenizer is None else tokens_from_tokenizer(tokenizer, int(anatomy.embedding.shape[0]))
    return LoadedModel(
        spec=spec,
        info=info,
        module=module,
        anatomy=anatomy,
        fingerprint=fingerprint_of(folder, spec.label),
        notes=(*notes, *anatomy.notes),
        maybe_tokenizer=tokenizer,
        maybe_tokens=tokens,
    )


def _check_device(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        index = int(device.partition(":")[2] or 0)
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise SettingsError(f"There is no device {device} here; choose cpu.")


def _check_info(info: ModelInfo, most: int, folder: Path) -> None:
    if not info.supported:
        parts = top_level(folder, info.label)
        holds = f" Its weights lie under {', '.join(parts)}." if parts else ""
        raise UnsupportedFamily(info.reason + holds)
    if info.bytes > most:
        raise ModelRefused(
            f"{info.label} has about {info.parameters / 1e6:,.0f} million parameters, "
            f"{memory.in_words(info.bytes)} in memory, and {memory.in_words(most)} may be used; "
            "choose a smaller model, or raise EMBCOMPARE_MAX_MODEL_BYTES if the machine has more."
        )


def _read_module(
    folder: Path, spec: ModelSpec, raw: dict[str, Any], config: Any, family: Family
) -> tuple[Any, list[str]]:
    import torch
    import transformers

    wanted = _class_for(config)
    notes = [] if wanted else ["The config names no class of its family, so the plain model without a head was loaded."]
    reader: Any = wanted or transformers.AutoModel
    dtype = "auto" if spec.dtype == "stored" else getattr(torch, spec.dtype)
    try:
        module, loading = reader.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            # Wrong shapes come back in the loading info, where check_loading tells them apart and refuses.
            ignore_mismatched_sizes=True,
            attn_implementation="eager",
        )
        notes += check_loading(loading, module.config, family, spec.label)
        module = module.requires_grad_(False).eval().to(spec.device)
    except EmbcompareError:
        raise
    # transformers raises whatever it met; all of it means that these files do not make this model.
    except Exception as error:
        if _out_of_memory(error):
            raise ModelRefused(
                f"{spec.label} does not fit into the memory that {spec.device} has free; free some first, or choose a "
                "smaller model."
            ) from error
        build = wanted or transformers.AutoModel.from_config
        raise ModelDamaged(build_fault(raw, error, spec.label, build)) from error
    return module, notes


def _out_of_memory(error: Exception) -> bool:
    import torch

    # torch's CPU allocator has no exception of its own
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _class_for(config: Any) -> Any:
    """Return the class the config asks for, if transformers has it and it is one of the config's family."""
    import transformers

    try:
        wanted: Any = getattr(transformers, architecture(config) or "-")
        return wanted if getattr(wanted, "config_class", None) is type(config) else None
    # Placeholders for classes whose libraries are absent raise ImportError when touched.
    except (AttributeError, ImportError, RuntimeError):
        return None


def _check_finite(module: Any, label: str) -> None:
    import torch

    for name, value in module.named_parameters():
        if value.numel() == 0:
            raise ModelDamaged(f"{label} has an empty tensor, {name}.")
        low, high = torch.aminmax(value)
        if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
            raise ModelDamaged(f"{label} has NaN or infinite values in {name}; its training or saving went wrong.")
