"""Models in memory, shared: loaded once, lent out, and dropped when another one needs the room."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from embcompare import environment
from embcompare.errors import ModelRefused, SettingsError
from embcompare.models import memory, policy
from embcompare.models.fingerprints import stamp
from embcompare.models.hub import find_model
from embcompare.models.inspection import inspect_model
from embcompare.models.loading import LoadedModel, load_model
from embcompare.models.spec import ModelSpec

_MODELS = 4


@dataclass(eq=False)
class _Entry:
    spec: ModelSpec
    lock: threading.Lock = field(default_factory=threading.Lock)
    leases: int = 0
    used: float = 0.0
    model: LoadedModel | None = None
    error: Exception | None = None


class ModelPool:
    """Lends loaded models, one copy of each, and evicts the least recently used idle ones to make room.

    A model is known by its name, revision, dtype, device and its files' sizes, times and inodes: a folder written
    anew is loaded anew. Safe to use from many threads: those that ask for the same model wait for one load.
    """

    def __init__(
        self,
        *,
        max_models: int = _MODELS,
        free_bytes: Callable[[str], int] = memory.free_bytes,
        load: Callable[..., LoadedModel] = load_model,
    ) -> None:
        if max_models < 1:
            raise SettingsError(f"A pool cannot hold {max_models} models; the smallest number is 1.")
        self.max_models = max_models
        self._free_bytes = free_bytes
        self._load = load
        self._entries: dict[tuple, _Entry] = {}
        self._coming: dict[tuple, tuple[str, int]] = {}
        self._lock = threading.RLock()
        self._counts = {"hits": 0, "loads": 0, "evictions": 0, "failures": 0}

    @contextmanager
    def lease(self, spec_or_text: ModelSpec | str) -> Iterator[LoadedModel]:
        """Give the model, loaded, and keep it in memory until the block ends, whatever ends it.

        Raises what loading raises, and ``ModelRefused`` if it cannot fit beside the models that are in use.
        """
        spec = policy.permitted(ModelSpec.parse(spec_or_text))
        key = self._key(spec)
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(spec))
            entry.leases += 1
        try:
            yield self._model(key, entry)
        finally:
            with self._lock:
                entry.leases -= 1
                entry.used = time.monotonic()

    def release(self, spec_or_text: ModelSpec | str | None = None) -> int:
        """Drop a model, or all, where nobody uses it; return how many were dropped."""
        spec = None if spec_or_text is None else ModelSpec.parse(spec_or_text)
        with self._lock:
            idle = [key for key, entry in self._idle() if spec is None or entry.spec == spec]
            for key in idle:
                self._drop(key)
        return len(idle)

    def stats(self) -> dict[str, Any]:
        """Return what is held (label, dtype, device, bytes, leases) and how often models were hit, loaded, evicted."""
        with self._lock:
            held = [
                {
                    "label": entry.spec.label,
                    "dtype": entry.spec.dtype,
                    "device": entry.spec.device,
                    "bytes": entry.model.bytes,
                    "leases": entry.leases,
                }
                for entry in self._entries.values()
                if entry.model is not None
            ]
            return {
                "models": held,
                "bytes": sum(m["bytes"] for m in held),
                "max_models": self.max_models,
                **self._counts,
            }

    def _key(self, spec: ModelSpec) -> tuple:
        name = (spec.kind, spec.name, spec.revision, spec.dtype, spec.device)
        return name if spec.kind == "hub" else (*name, stamp(find_model(spec), spec.label))

    def _model(self, key: tuple, entry: _Entry) -> LoadedModel:
        with entry.lock:
            if entry.error is not None:
                raise entry.error
            if entry.model is not None:
                with self._lock:
                    self._counts["hits"] += 1
                return entry.model
            try:
                self._make_room(key, entry.spec)
                entry.model = self._load(entry.spec)
            except BaseException as error:
                # Those who wait for this load get the same answer; those who ask later try again.
                entry.error = error if isinstance(error, Exception) else None
                with self._lock:
                    self._counts["failures"] += 1
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                raise
            finally:
                with self._lock:
                    self._coming.pop(key, None)
            with self._lock:
                self._counts["loads"] += 1
            return entry.model

    def _make_room(self, key: tuple, spec: ModelSpec) -> None:
        """Evict idle models until the new one fits, and reserve its bytes until it is loaded."""
        info = inspect_model(spec)
        with self._lock:
            self._coming[key] = (spec.device, info.bytes)
            while len(self._loaded()) + len(self._coming) > self.max_models and self._evict(None):
                pass
            if len(self._loaded()) + len(self._coming) > self.max_models:
                raise ModelRefused(
                    f"{spec.label} cannot be loaded now: the {self.max_models} models that may be in memory are all in "
                    "use; wait until one is done."
                )
            while not self._fits(spec.device):
                if not self._evict(spec.device):
                    others = ", ".join(entry.spec.label for entry in self._loaded()) or "other programs"
                    raise ModelRefused(
                        f"{spec.label} needs {memory.in_words(info.bytes)} of memory on {spec.device}, where "
                        f"{memory.in_words(self._free_bytes(spec.device))} are free and {others} cannot give way; "
                        "choose a smaller model or wait until running work is done."
                    )

    def _fits(self, device: str) -> bool:
        wanted = sum(size for place, size in self._coming.values() if place == device)
        return wanted <= self._free_bytes(device) * memory.SHARE

    def _loaded(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.model is not None]

    def _idle(self) -> list[tuple[tuple, _Entry]]:
        idle = [(k, e) for k, e in self._entries.items() if e.leases == 0 and e.model is not None]
        return sorted(idle, key=lambda item: item[1].used)

    def _evict(self, device: str | None) -> bool:
        for key, entry in self._idle():
            if device in (None, entry.spec.device):
                self._drop(key)
                self._counts["evictions"] += 1
                return True
        return False

    def _drop(self, key: tuple) -> None:
        device = self._entries.pop(key).spec.device
        gc.collect()
        if device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()


_default: ModelPool | None = None
_default_lock = threading.Lock()


def default_pool() -> ModelPool:
    """Return the pool that everything in this process shares; ``EMBCOMPARE_MAX_MODELS`` bounds it, 4 by default."""
    global _default
    with _default_lock:
        if _default is None:
            _default = ModelPool(max_models=environment.whole_number("EMBCOMPARE_MAX_MODELS", _MODELS, low=1))
        return _default
