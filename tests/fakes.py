"""An experiment of the smallest kind, for the tests of what runs and keeps experiments; needs no model and no torch."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from embcompare.experiments import EXPERIMENTS
from embcompare.experiments.base import Result, Settings, option

GATES: dict[str, threading.Event] = {}
"""A run whose setting ``gate`` names one of these stops before each step until the event is set."""

WEIGHTS = {"a": "fingerprint of a", "b": "fingerprint of b", "copy of a": "fingerprint of a"}


@dataclass(frozen=True, eq=False)
class Numbers(Result):
    values: np.ndarray
    extra: np.ndarray | None = None
    names: tuple[str, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    score: float | None = None
    label: str | None = None

    def to_frame(self):
        return pd.DataFrame({"step": range(self.values.size), "value": self.values.ravel()})


@dataclass(frozen=True)
class Count(Settings):
    """Count to a number of steps."""

    experiment: ClassVar[str] = "count"
    result_type: ClassVar[type[Result]] = Numbers

    model_a: str = option(help="First model.", model=True)
    model_b: str = option("b", help="Second model.", model=True)
    steps: int = option(3, help="How far to count, 100 % whole.", low=0, high=10_000)
    kind: str = option("up", help="Which way.", choices=("up", "down"))
    centred: bool = option(True, help="A switch.")
    limit: float | None = option(None, help="A bound or none.", low=0.0)
    pause: float = option(0.0, help="Seconds a step.", low=0.0)
    gate: str = option("", help="Name of an event to wait for.")
    log: str = option("", help="File that gets a line a computation.")
    fail: str = option("", help="Raise this.")

    def compute(self, context):
        if self.log:
            with Path(self.log).open("a") as log:
                log.write("computed\n")
        if self.fail == "value":
            raise ValueError("first line\nsecond line")
        if self.fail == "memory":
            raise MemoryError
        if self.fail == "allocator":
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        if self.fail == "exit":
            raise SystemExit(3)
        if self.fail == "interrupt":
            raise KeyboardInterrupt
        gate = GATES.get(self.gate)
        values = np.full(self.steps, np.nan)
        for step in range(self.steps):
            if gate is not None:
                assert gate.wait(20)
            time.sleep(self.pause)
            values[step] = step if self.kind == "up" else -step
            context.report(step + 1, self.steps, f"step {step + 1}", Numbers(values))
        return Numbers(values, names=("x", "y"), score=float("inf"), notices=("One notice.",))


def fingerprints(settings):
    return {name: WEIGHTS.get(name, f"fingerprint of {name}") for name in settings.models()}


def register(setitem=None, setattribute=None):
    """Make the experiment known and give its models fingerprints, through monkeypatch or, in a subprocess, for good."""
    from embcompare import running

    if setitem is None or setattribute is None:
        EXPERIMENTS["count"] = ("fakes", "Count")
        running.fingerprints = fingerprints
    else:
        setitem(EXPERIMENTS, "count", ("fakes", "Count"))
        setattribute(running, "fingerprints", fingerprints)
