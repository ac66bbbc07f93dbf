"""Running one experiment: computed once for equal settings, with progress and a way to stop."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import Cancelled, EmbcompareError, SettingsError, StoreError
from embcompare.experiments.base import Result, Settings, execute
from embcompare.shelf import BUNDLED, TRANSLATIONS, Shelf, bundled_corpus, digest_of
from embcompare.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` steps, and what it is doing; times are ``time.monotonic`` seconds."""

    done: int
    total: int
    message: str
    started: float
    reported: float = field(default_factory=time.monotonic)

    @property
    def fraction(self) -> float:
        """Share of the steps that are done, 0 to 1; 0 while the total is unknown."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds still to go if the steps keep their pace; None before the first one is done."""
        if self.done <= 0 or self.total <= 0:
            return None
        at_report = (self.reported - self.started) * max(0, self.total - self.done) / self.done
        return max(0.0, at_report - (time.monotonic() - self.reported))


class RunContext:
    """What an experiment sees of its surroundings (:class:`~embcompare.experiments.base.Context`).

    ``on_report`` gets each progress and, when there is one, the partial result; ``check`` raises when it is time to
    stop. Both are called from the thread that computes.
    """

    def __init__(
        self,
        device: str,
        on_report: Callable[[Progress, Result | None], None] | None = None,
        check: Callable[[], None] | None = None,
        store: Store | None = None,
    ) -> None:
        self._asked = device
        self._on_report = on_report or (lambda progress, partial: None)
        self._check = check or (lambda: None)
        self._store = store if store is not None else Store()
        self._started = time.monotonic()

    @property
    def device(self) -> str:
        """Where to compute: ``"cpu"`` or ``"cuda"``."""
        return resolve_device(self._asked)

    def lease(self, name: str) -> AbstractContextManager[LoadedModel]:
        """Give the model called ``name`` from the shared pool, on this context's device, until the block ends."""
        from embcompare.models import ModelSpec, default_pool

        self._check()
        return default_pool().lease(ModelSpec.parse(name, device=self.device))

    def corpus(self, name: str) -> Corpus:
        """Give a text that comes with embcompare, or a kept one."""
        return Shelf(self._store).corpus(name)

    def vectors(self, name: str) -> Vectors:
        """Give vectors that a user brought."""
        return Shelf(self._store).vectors(name)

    @property
    def states(self) -> Path:
        """Folder in which hidden states are kept, beside the results."""
        return self._store.folder

    def report(self, done: int, total: int, message: str, partial: Result | None = None) -> None:
        """Pass on how far the run is, then stop it when somebody asked for that."""
        self._on_report(Progress(done, total, message, self._started), partial)
        self._check()

    def start(self) -> None:
        """Count the time of the run from now on, not from when it began to wait."""
        self._started = time.monotonic()

    def waiting(self) -> None:
        """Say that another thread or process computes the same result; stop when somebody asked for that."""
        self.report(0, 0, "Another run is computing this result; waiting for it")


def fingerprints(settings: Settings) -> dict[str, str]:
    """Return what each name in ``settings`` stands for: the content of a model's weights, of a text, of vectors."""
    from embcompare.models import fingerprint

    prints = {name: digest_of(name) or fingerprint(name) for name in settings.models()}
    for name in settings.corpora():
        bundled = name in (*BUNDLED, *TRANSLATIONS)
        prints[name] = bundled_corpus(name).digest if bundled else digest_of(name) or name
    return prints


def resolve_device(name: str) -> str:
    """Return ``"cpu"`` or ``"cuda"`` for ``"auto"``, ``"cpu"`` or ``"cuda"``; what is absent raises SettingsError."""
    if name == "cpu":
        return name
    if name not in ("auto", "cuda"):
        raise SettingsError(f"The device cannot be '{name}'; choose one of auto, cpu, cuda.")
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise SettingsError("The device cannot be 'cuda': this machine has no usable GPU; choose cpu or auto.")
    return "cpu"


def run(
    settings: Settings,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    store: Store | None = None,
    device: str = "auto",
    keep: bool = True,
) -> Result:
    """Return the result of ``settings``: the stored one, or a new one, which is then stored.

    Equal settings on equal weights are computed once over all threads and processes that share the store. Arrays are
    read-only. ``progress`` is called at every step; setting ``cancel`` stops the run at its next step with
    :class:`~embcompare.errors.Cancelled`. With ``keep=False`` nothing is read from or written to a store. A stored
    result carries ``"cached": True`` in its provenance. A result that cannot be stored is returned all the same, and
    one of its notices says why it was not kept.
    """

    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled("The run was cancelled.")

    def on_report(step: Progress, partial: Result | None) -> None:
        if progress is not None:
            progress(step)

    if not isinstance(settings, Settings):
        raise SettingsError(f"run needs settings, such as ParameterAlignment(model_a, model_b), and got {settings!r}.")
    if device != "auto":
        resolve_device(device)
    store = store if store is not None else Store()
    context = RunContext(device, on_report, check, store)
    check()
    prints = fingerprints(settings)
    if not keep:
        return _computed(settings, context, prints)
    return obtain(settings, context, prints, store)


def obtain(settings: Settings, context: RunContext, prints: Mapping[str, str], store: Store) -> Result:
    """Return the result from the store, or compute it under the key's lock and keep it; see :func:`run`."""
    key = store.key(settings, prints)
    found = store.get(key)
    if found is not None:
        return mark_cached(found, settings, prints)
    with ExitStack() as held:
        try:
            held.enter_context(store.lock(key, context.waiting))
        except StoreError as error:  # put() below tells the user, if the folder is as bad for writing
            LOG.info("%s", error)
        found = store.get(key)
        if found is not None:
            return mark_cached(found, settings, prints)
        result = _computed(settings, context, prints)
        notices = dict.fromkeys(store.take_notices(key))
        try:
            if fingerprints(settings) != prints:
                raise StoreError("The weights of a model changed while the run was going; the result was not kept.")
            store.put(key, result, settings)
        except EmbcompareError as error:
            notices[str(error)] = None
    return dataclasses.replace(result, notices=(*result.notices, *notices))


def _computed(settings: Settings, context: RunContext, prints: Mapping[str, str]) -> Result:
    context.start()
    try:
        result = execute(settings, context, prints)
    except Exception as error:
        if _out_of_memory(error):
            raise EmbcompareError(
                f"The run needs more memory than {context.device} has free; choose smaller models or fewer samples, "
                "or close what else uses it."
            ) from error
        raise
    return read_only(result)


def read_only(result: Result, copy: bool = False) -> Result:
    """Return ``result`` with arrays that nobody can change, since all who ask share one object; ``copy`` parts them."""
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(result):
        value = getattr(result, item.name)
        if isinstance(value, np.ndarray):
            changes[item.name] = value.copy() if copy else value.view()
            changes[item.name].setflags(write=False)
    return dataclasses.replace(result, **changes)


def mark_cached(result: Result, settings: Settings, prints: Mapping[str, str]) -> Result:
    """Return a stored result as the answer to ``settings``: marked as not computed now, under the names asked for.

    Two names of the same weights share one stored result, whose provenance has the names of whoever came first.
    """
    asked = {"settings": settings.to_dict(), "call": settings.call(), "models": dict(prints), "cached": True}
    return dataclasses.replace(result, provenance={**result.provenance, **asked})


def _out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)):
        return True
    # torch's CPU allocator has no exception of its own
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def plain_sentence(error: BaseException) -> str:
    """Return one sentence for a person about an exception that nobody foresaw; its traceback belongs in the log."""
    first = (str(error).strip().splitlines() or ["no message"])[0][:200]
    return f"The run failed inside embcompare ({type(error).__name__}: {first}); the log has the details."
