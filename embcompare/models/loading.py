"""Loads a model: found, checked, sized, read, proved. Safetensors only, never a model's own code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embcompare.errors import EmbcompareError, ModelDamaged, ModelRefused, SettingsError, UnsupportedFamily
from embcompare.models import hub, memory, policy
from embcompare.models.anatomy import Anatomy
from embcompare.models.families import family_of
from embcompare.models.fingerprints import fingerprint, fingerprint_of
from embcompare.models.inspection import ModelInfo, architecture, describe, inspect_model, read_configuration
from embcompare.models.reading import read_anatomy
from embcompare.models.spec import ModelSpec
from embcompare.models.validation import validate
from embcompare.text.tokens import Tokens, tokens_from_tokenizer

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LoadedModel", "ModelInfo", "fingerprint", "inspect_model", "load_model"]

_quiet_lock = threading.RLock()


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
    _check_files(policy.weight_files(folder, spec.label), spec, info, most)
    has_tokenizer = policy.check_tokenizer(folder, spec.label)
    with quiet():
        module, notes = _read_module(folder, spec, info)
        tokenizer = _read_tokenizer(folder, spec.label) if has_tokenizer else None
        _check_finite(module, spec.label)
        named = None if tokenizer is None else max(tokenizer.get_vocab().values(), default=-1) + 1
        anatomy = read_anatomy(module, tokens=named, label=spec.label)
        validate(module, anatomy, spec.label)
    if named is not None and named > len(anatomy.embedding):
        notes.append(f"The tokenizer has {named - len(anatomy.embedding):,} tokens for which E has no row.")
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
        parts = _top_level(folder, info.label)
        holds = f" Its weights lie under {', '.join(parts)}." if parts else ""
        raise UnsupportedFamily(info.reason + holds)
    if info.bytes > most:
        raise ModelRefused(
            f"{info.label} has about {info.parameters / 1e6:,.0f} million parameters, "
            f"{memory.in_words(info.bytes)} in memory, and {memory.in_words(most)} may be used; "
            "choose a smaller model, or raise EMBCOMPARE_MAX_MODEL_BYTES if the machine has more."
        )


def _top_level(folder: Path, label: str) -> list[str]:
    """Return the first two parts of the weights' names, where the files are there to look at."""
    from safetensors import SafetensorError, safe_open

    found: set[str] = set()
    try:
        for path in policy.weight_files(folder, label):
            with safe_open(path, framework="numpy") as file:
                found |= {".".join(name.split(".")[:2]) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (EmbcompareError, SafetensorError, OSError):
        return []
    return sorted(found)[:20]


def _check_files(files: list[Path], spec: ModelSpec, info: ModelInfo, most: int) -> None:
    """Read every file's header: whole, safetensors, and no larger than allowed whatever the config says."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for path in files:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    shape = file.get_slice(name).get_shape()
                    count = 1
                    for size in shape:
                        count *= size
                    total += count
        except (SafetensorError, OSError) as error:
            raise ModelDamaged(
                f"{spec.label} has a {path.name} that is cut short or not safetensors ({error}); fetch it again."
            ) from error
    held = total * max(info.bytes // max(info.parameters, 1), 2)
    if held > most:
        raise ModelRefused(
            f"{spec.label} holds {total / 1e6:,.0f} million numbers, {memory.in_words(held)} in memory, more than its "
            f"config lets expect, and {memory.in_words(most)} may be used; choose a smaller model."
        )


def _read_module(folder: Path, spec: ModelSpec, info: ModelInfo) -> tuple[Any, list[str]]:
    import torch
    import transformers

    raw = policy.read_config(folder, spec.label)
    config = read_configuration(folder, raw, spec.label)
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
            attn_implementation="eager",
        )
    except torch.OutOfMemoryError as error:
        raise ModelRefused(f"{spec.label} does not fit into the memory of {spec.device}; free some first.") from error
    # transformers raises whatever it met; all of it means that these files do not make this model.
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelDamaged(f"{spec.label} could not be put together from its files: {first}") from error
    notes += _check_loading(loading, module, spec.label)
    module.requires_grad_(False).eval()
    return module.to(spec.device), notes


def _class_for(config: Any) -> Any:
    """Return the class the config asks for, if transformers has it and it is one of the config's family."""
    import transformers

    try:
        wanted: Any = getattr(transformers, architecture(config) or "-")
        return wanted if getattr(wanted, "config_class", None) is type(config) else None
    # Placeholders for classes whose libraries are absent raise ImportError when touched.
    except (AttributeError, ImportError, RuntimeError):
        return None


def _check_loading(loading: dict[str, Any], module: Any, label: str) -> list[str]:
    """Refuse what transformers would fill with random numbers or drop without a word."""
    if loading.get("mismatched_keys"):
        name = sorted(str(entry[0]) for entry in loading["mismatched_keys"])[0]
        raise ModelDamaged(f"{label} has weights whose shapes do not fit its config, first of all {name}.")
    missing = sorted(loading.get("missing_keys") or ())
    pooler = [name for name in missing if ".pooler." in f".{name}"]
    lacking = [name for name in missing if name not in pooler]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ModelDamaged(
            f"{label} lacks the weights {lacking[0]}{more}, which would otherwise be random numbers; "
            "fetch it again, or correct the architectures in its config.json."
        )
    family = family_of(module.config)
    if family is not None:
        marker = f".{family.blocks}."
        for name in sorted(loading.get("unexpected_keys") or ()):
            _, found, rest = f".{name}".partition(marker)
            index = rest.partition(".")[0]
            if found and index.isdecimal() and int(index) >= family.layers(module.config) and _same_stack(name, family):
                raise ModelDamaged(
                    f"{label} holds weights of a layer {index}, but its config has {family.layers(module.config)} "
                    "layers; correct num_hidden_layers."
                )
    return ["The pooler was not in the files; it is not used."] if pooler else []


def _same_stack(name: str, family: Any) -> bool:
    return not family.root or family.root in name.split(".")


def _check_finite(module: Any, label: str) -> None:
    import torch

    for name, value in module.named_parameters():
        if value.numel() == 0:
            raise ModelDamaged(f"{label} has an empty tensor, {name}.")
        low, high = torch.aminmax(value)
        if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
            raise ModelDamaged(f"{label} has NaN or infinite values in {name}; its training or saving went wrong.")


def _read_tokenizer(folder: Path, label: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except EmbcompareError:
        raise
    # Tokenizer files of every kind fail in their own way; each means the same to the user.
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelDamaged(f"{label} has tokenizer files that cannot be read: {first}") from error


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
