"""How several trainings are written in one setting, and what their checkpoints' names tell of steps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from embcompare.errors import SettingsError
from embcompare.words import one_line, plural

MOST_RUNS = 30
"""Runs of one series at most."""
MOST_CHECKPOINTS = 300
"""Checkpoints of all runs together at most."""
_NAME = re.compile(r"([^/\\:,;]{1,60}):(?!\\)(.*)", re.DOTALL)
_STEP = re.compile(r"(?:^|[^0-9])(\d{1,12})$")


@dataclass(frozen=True)
class Run:
    """One training: what it is called, and the names of its checkpoints' models in the order of training."""

    name: str
    checkpoints: tuple[str, ...]


def read_runs(text: str) -> tuple[Run, ...]:
    """Return the runs that a text names, one a line or with semicolons between: ``name: model, model``.

    A run without a name is called ``run 1`` by its place. Raises :class:`SettingsError` for no run, a run without a
    checkpoint, two runs of one name, one checkpoint named twice, or more than is read.
    """
    found: list[Run] = []
    for part in re.split(r"[;\n\r]", text):
        if not part.strip():
            continue
        named = _NAME.fullmatch(part.strip())
        name, listed = (named.group(1), named.group(2)) if named else (f"run {len(found) + 1}", part)
        name = " ".join(name.split())
        checkpoints = tuple(each for each in map(str.strip, listed.split(",")) if each)
        if not checkpoints:
            raise SettingsError(
                f"The run '{one_line(name)}' names no checkpoint; give its models, with commas between."
            )
        found.append(Run(name, checkpoints))
    if not found:
        raise SettingsError(
            "No run is named; write one a line: a name, a colon, and its checkpoints with commas between."
        )
    _check(found)
    return tuple(found)


def _check(runs: list[Run]) -> None:
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"Two runs are called '{one_line(twice)}'; give each a name of its own.")
    models = [name for run in runs for name in run.checkpoints]
    again = next((name for name in models if models.count(name) > 1), None)
    if again is not None:
        raise SettingsError(f"The checkpoint {one_line(again)} is named twice; name each once.")
    for count, most, what in ((len(runs), MOST_RUNS, "run"), (len(models), MOST_CHECKPOINTS, "checkpoint")):
        if count > most:
            raise SettingsError(f"The series has {plural(count, what)}, and {most} are read at most; leave some out.")


def written(runs: Iterable[Run]) -> str:
    """Return runs as :func:`read_runs` reads them, on one line."""
    return "; ".join(f"{run.name}: {', '.join(run.checkpoints)}" for run in runs)


def step_of(name: str) -> int:
    """Return the step of training at the end of a checkpoint's name, such as 500 of ``out/checkpoint-500``; else -1."""
    found = _STEP.search(name.rstrip("/"))
    return int(found.group(1)) if found else -1
