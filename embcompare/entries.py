"""How a stored result is called, on a page and in a shell: its sides, and the settings that are not the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from embcompare.errors import EmbcompareError
from embcompare.experiments import settings_type
from embcompare.folders import Item
from embcompare.shelf import digest_of
from embcompare.store import Entry
from embcompare.words import one_line, plural

SIDES = ("model_a", "model_b", "model")
"""Settings that say what is compared or read."""
LONGEST = 40
"""Characters of one setting's value that are shown."""
_DIGITS = 16


def titles(items: list[Item]) -> dict[str, str]:
    """Return what texts and vectors that are kept are called, by name: ``text/…`` and ``vectors/…``.

    Of several under one title each has the first digits of its own content behind it.
    """
    found = {item.name: item.title for item in items if item.title and digest_of(item.name)}
    known = list(found.values())
    return {
        name: title if known.count(title) == 1 else f"{title} ({(digest_of(name) or '')[:6]})"
        for name, title in found.items()
    }


def called(name: str, known: Mapping[str, str] | None = None) -> str:
    """Return how a name in settings is shown: what is kept by its title or first digits, all else as it is."""
    if digest_of(name) is None:
        return name
    return (known or {}).get(name) or f"{name[:_DIGITS]}…"


def sides(entry: Entry, call: Callable[[str], str] = called) -> tuple[str, ...]:
    """Return the models, or own vectors, of a result, each as ``call`` names it; of a series, how many checkpoints."""
    found = tuple(call(str(entry.settings[name])) for name in SIDES if name in entry.settings)
    return found or _series(str(entry.settings.get("runs", "")))


def _series(runs: str) -> tuple[str, ...]:
    from embcompare.experiments.term_runs import read_runs

    try:
        found = read_runs(runs)
    except EmbcompareError:
        return ()
    checkpoints = sum(len(run.checkpoints) for run in found)
    return (f"{plural(len(found), 'run')}, {plural(checkpoints, 'checkpoint')}",)


def changed(entry: Entry) -> dict[str, Any]:
    """Return a result's settings other than its sides and the defaults; all of them where the experiment is unknown."""
    try:
        fields = settings_type(entry.experiment).__dataclass_fields__
    except EmbcompareError:
        fields = {}
    return {
        name: value
        for name, value in entry.settings.items()
        if name not in SIDES and (name not in fields or fields[name].default != value)
    }


def described(entry: Entry, call: Callable[[str], str] = called) -> str:
    """Return :func:`changed` as one line, ``measure=mutual_knn, k=25``, each value short; else ``all defaults``."""
    shown = [f"{name}={one_line(call(text(value)), LONGEST)}" for name, value in changed(entry).items()]
    return ", ".join(shown) or "all defaults"


def text(value: Any) -> str:
    """Return a setting's value as an address or a shell writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
