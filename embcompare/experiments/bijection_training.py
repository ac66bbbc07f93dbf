"""Training one network of a run: from the start or from where the same fit was stopped, with checkpoints on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import InputError
from embcompare.experiments.bijection_fits import FitFolder, fit_key

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.sides import Side
    from embcompare.maps.base import Report

KEEP_SECONDS = 20.0
"""How often a fit under way is kept on disk; it is kept as well when it is stopped, and when it is done."""

Rows = tuple["Tensor", "Tensor"]


@dataclass(eq=False)
class _Watch:
    """Follows one training: passes on how far it is, and keeps checkpoints."""

    made: Any
    fits: FitFolder
    key: str
    learnt: Report
    before: float
    title: str
    began: float = field(default_factory=time.perf_counter)
    kept: float = field(default_factory=time.monotonic)
    stopped: BaseException | None = None

    @property
    def seconds(self) -> float:
        """Time that went into the fit, earlier parts of it included."""
        return self.before + time.perf_counter() - self.began

    def keep(self) -> None:
        """Keep the state of the training."""
        if self.made.checkpoint is not None:
            self.fits.write(self.key, self.made.checkpoint, self.seconds, self.title)
        self.kept = time.monotonic()

    def __call__(self, epoch: int, epochs: int, loss: float, held: float) -> None:
        try:
            self.learnt(epoch, epochs, loss, held)
        except BaseException as reason:
            self.stopped = reason
            self.keep()
            raise
        if time.monotonic() - self.kept > KEEP_SECONDS:
            self.keep()


def train_kept(
    made: Any,
    training: Rows,
    validation: Rows,
    fits: FitFolder,
    key: str,
    learnt: Report,
    taken_up: Callable[[dict[str, np.ndarray]], None],
    anew: Callable[[], None],
    title: str = "",
) -> float:
    """Fit a trained map and return the seconds that it took, those before it was stopped included.

    ``fits`` is looked through for the same fit; ``taken_up(checkpoint)`` is called before it goes on, and ``anew()``
    where its checkpoint turned out not to fit. ``learnt`` is the map's ``report``: what it raises goes through, with
    the fit kept. A fit that is done is kept too, under ``title``: the next to ask for the same need not wait.
    """
    found = fits.read(key)
    if found is not None:
        taken_up(found[0])
        watch = _Watch(made, fits, key, learnt, found[1], title)
        try:
            made.fit(*training, *validation, report=watch, resume=found[0])
        except InputError as error:
            if error is watch.stopped:
                raise
            anew()
            found = None
    if found is None:
        watch = _Watch(made, fits, key, learnt, 0.0, title)
        made.fit(*training, *validation, report=watch)
    watch.keep()
    return watch.seconds


def seed_of(settings: Bijection, run: int) -> int:
    """Return the seed of a run's trainings."""
    return (settings.seed + run) % 2**31


def network_options(settings: Bijection, run: int, device: str) -> dict[str, Any]:
    """Return the options that the networks of a run are made with."""
    options: dict[str, Any] = {name: getattr(settings, name) for name in ("epochs", "patience", "batch")}
    return {**options, "seed": seed_of(settings, run), "rate": settings.rate or None, "device": device}


def title_of(label: str, a: Side, b: Side) -> str:
    """Return what a fit between two layers is called among people."""
    return f"{label}, {a.label} {a.names[0]} to {b.label} {b.names[0]}"


def key_of(name: str, made: Any, training: Rows, validation: Rows, version: int) -> str:
    """Return the name under which a fit is kept: what it is, how it is made, its rows, and the software."""
    import torch

    from embcompare.experiments.base import embcompare_version

    identity = {"map": name, "options": made.options, "torch": torch.__version__, "version": version}
    identity["embcompare"] = embcompare_version()
    rows = dict(zip(("x", "y", "x_val", "y_val"), (each.numpy() for each in (*training, *validation)), strict=True))
    return fit_key(identity, rows)
