"""The one shape of every experiment: frozen settings, a run with progress, a frozen result of plain arrays.

An experiment is a subclass of :class:`Settings` with a ``compute`` method and a subclass of :class:`Result`.
It knows models and arrays; it knows no store, no queue and no page. What it needs from outside comes in
through a :class:`Context`: models on lease, a place to report progress, and a way to be stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
import types
import typing
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from embcompare.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors


_SHOWN_FIELDS = 18
"""Lines that a printed result has for its fields, so that it fits a screen."""


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    label: str = "",
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    model: bool = False,
    vectors: bool = False,
    corpus: bool = False,
    added: bool = False,
) -> Any:
    """Declare one setting: a dataclass field whose metadata drive the form, the command line and the checks.

    ``choices`` bounds a setting to a list, ``low`` and ``high`` bound a number, both included;
    ``model=True`` marks the name of a model (``vectors=True``: or of a user's own vectors), ``corpus=True`` the name of
    a corpus: what the name stands for, not the name, enters the result's key. An empty name of a corpus stands for
    none. ``added=True`` marks a setting that came later, whose default is what was computed before: at its default it
    is no part of the key, so that results from before are found.
    """
    metadata = {
        "help": help,
        "label": label,
        "choices": choices,
        "low": low,
        "high": high,
        "model": model,
        "vectors": vectors,
        "corpus": corpus,
        "added": added,
    }
    return field(default=default, metadata=metadata)


def like(kind: type[Settings], name: str, **changes: Any) -> Any:
    """Declare a setting as another experiment does, but for ``changes``, named as in :func:`option`."""
    item = kind.__dataclass_fields__[name]
    return option(**{"default": item.default, **item.metadata, **changes})


class Context(Protocol):
    """What a running experiment may ask of its surroundings."""

    @property
    def device(self) -> str:
        """Where to compute: ``"cpu"`` or ``"cuda"``."""

    def lease(self, name: str) -> AbstractContextManager[LoadedModel]:
        """Give the model called ``name``, loaded and held in memory until the block ends."""

    def corpus(self, name: str) -> Corpus:
        """Give the sentences called ``name``: the shipped corpus, or a text that a user gave."""

    def vectors(self, name: str) -> Vectors:
        """Give the vectors called ``name`` that a user gave instead of a model."""

    @property
    def states(self) -> Path:
        """Folder in which hidden states are kept for all runs."""

    def report(self, done: int, total: int, message: str, partial: Result | None = None) -> None:
        """Say how far the run is; raises :class:`~embcompare.errors.Cancelled` when it should stop."""


@dataclass(frozen=True)
class Settings:
    """What identifies one run: a form edits it, a URL carries it, a shell parses it, the store hashes it."""

    experiment: ClassVar[str] = ""
    """Name in URLs and on the command line, such as ``parameter-alignment``."""
    version: ClassVar[int] = 1
    """Raised whenever the same settings would give other numbers."""
    precision: ClassVar[str] = "float32"
    """What is computed in where no setting ``dtype`` says it."""
    result_type: ClassVar[type[Result]]

    def __post_init__(self) -> None:
        for item, kind in self._kinds():
            value = getattr(self, item.name)
            object.__setattr__(self, item.name, _checked(item, kind, value))

    @classmethod
    def _kinds(cls) -> list[tuple[dataclasses.Field, Any]]:
        hints = typing.get_type_hints(cls)
        return [(item, hints[item.name]) for item in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """Return every setting by name, JSON-ready."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build settings from a mapping; unknown names raise :class:`SettingsError`."""
        known = {item.name for item in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise SettingsError(
                    f"{cls.experiment} has no setting '{name}'; its settings are {', '.join(sorted(known))}."
                )
        missing = [
            item.name
            for item in dataclasses.fields(cls)
            if item.default is dataclasses.MISSING and item.name not in values
        ]
        if missing:
            raise SettingsError(f"{cls.experiment} needs a value for {', '.join(missing)}.")
        return cls(**dict(values))

    @classmethod
    def read_option(cls, name: str, value: Any) -> Any:
        """Return one setting's value as its declaration reads it, whatever the others are; else SettingsError."""
        item, kind = next((item, kind) for item, kind in cls._kinds() if item.name == name)
        return _checked(item, kind, value)

    def models(self) -> tuple[str, ...]:
        """Return the names of the models that the run reads, in order, each once."""
        return self._named("model")

    def corpora(self) -> tuple[str, ...]:
        """Return the names of the corpora that the run reads, in order, each once."""
        return self._named("corpus")

    def _named(self, kind: str) -> tuple[str, ...]:
        names = [getattr(self, i.name) for i in dataclasses.fields(self) if i.metadata.get(kind)]
        # an empty name is a text that is not asked for
        return tuple(dict.fromkeys(name for name in names if name))

    def content(self, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """Return what the settings stand for, JSON-ready: see :func:`canonical`."""
        fields = dataclasses.fields(self)
        added = {item.name: item.default for item in fields if item.metadata.get("added")}
        named = {item.name for item in fields if item.metadata.get("model") or item.metadata.get("corpus")}
        return {
            name: (fingerprints.get(value, value) if value and name in named else value)
            for name, value in self.to_dict().items()
            if name not in added or value != added[name]
        }

    def call(self) -> str:
        """Return the Python call that makes this run again, defaults left out."""
        shown = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in dataclasses.fields(self)
            if item.default is dataclasses.MISSING or getattr(self, item.name) != item.default
        ]
        return f"embcompare.run(embcompare.{type(self).__name__}({', '.join(shown)}))"

    def compute(self, context: Context) -> Result:
        """Run the experiment; the result's provenance is filled in by :func:`execute`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Result:
    """What a run gives: plain arrays and scalars, where they come from, and what the reader should know."""

    provenance: dict[str, Any] = field(kw_only=True, default_factory=dict)
    """Settings, model fingerprints, versions, seed, device, dtype, seconds, time of creation."""
    notices: tuple[str, ...] = field(kw_only=True, default=())
    """Sentences that belong beside the numbers: what was left out, what is undefined and why."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Otherwise the dataclass decorator would give every subclass one that prints whole arrays.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return one screen at most: each array by shape and dtype, each scalar short, and how many notices."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        notices, provenance = values.pop("notices"), values.pop("provenance")
        shown = {name: _brief(value) for name, value in values.items() if value is not None}
        if len(shown) > _SHOWN_FIELDS:
            left_out = len(shown) - _SHOWN_FIELDS
            shown = {**dict(list(shown.items())[:_SHOWN_FIELDS]), "…": f"and {left_out} more fields"}
        absent = [name for name, value in values.items() if value is None]
        if absent:
            shown["none"] = ", ".join(absent)
        if provenance.get("models"):
            shown["made from"] = ", ".join(map(str, provenance["models"]))
        shown["notices"] = str(len(notices))
        width = max(map(len, shown))
        lines = [f"  {name:{width}}  {text}" for name, text in shown.items()]
        return "\n".join([type(self).__name__, *(line if len(line) <= 100 else line[:99] + "…" for line in lines)])

    def to_frame(self) -> pd.DataFrame:
        """Return the result as a tidy table, one row a cell."""
        raise NotImplementedError

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Split into arrays and JSON-ready values; ``unpack`` puts them together again."""
        arrays: dict[str, np.ndarray] = {}
        scalars: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                arrays[item.name] = value
            elif value is not None:
                scalars[item.name] = value
        return arrays, scalars

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, Any]) -> Self:
        """Rebuild what ``pack`` took apart; lists become tuples again; a field in neither is None."""
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            if item.name in arrays:
                values[item.name] = arrays[item.name]
            elif item.name in scalars:
                values[item.name] = _tuples(scalars[item.name]) if item.name != "provenance" else scalars[item.name]
            else:
                values[item.name] = None
        return cls(**values)


def execute(settings: Settings, context: Context, fingerprints: Mapping[str, str]) -> Result:
    """Run ``settings`` in ``context`` and sign the result with its provenance."""
    began = time.perf_counter()
    result = settings.compute(context)
    provenance = {
        "experiment": settings.experiment,
        "version": settings.version,
        "settings": settings.to_dict(),
        "call": settings.call(),
        "models": dict(fingerprints),
        "device": context.device,
        "dtype": settings.to_dict().get("dtype", settings.precision),
        "seed": settings.to_dict().get("seed"),
        "seconds": round(time.perf_counter() - began, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": {
            "embcompare": embcompare_version(),
            "torch": installed_version("torch"),
            "numpy": installed_version("numpy"),
            "transformers": installed_version("transformers"),
            "python": platform.python_version(),
        },
    }
    return dataclasses.replace(result, provenance=provenance)


def embcompare_version() -> str:
    """Return embcompare's own version number."""
    from embcompare import __version__

    return __version__


def canonical(settings: Settings, fingerprints: Mapping[str, str]) -> str:
    """Return the text that identifies a result: equal text, equal numbers.

    Holds the experiment and its version, every setting but those added later that are at their defaults, and the
    fingerprint (content, not name) of every model and corpus.
    """
    identity = {
        "experiment": settings.experiment,
        "version": settings.version,
        "settings": settings.content(fingerprints),
    }
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _brief(value: Any) -> str:
    """Return a field of a result in a few words, on one line."""
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype}"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, tuple | list | dict):
        if not value:
            return "empty"
        first = repr(next(iter(value)))
        return (
            f"{len(value):,} × {type(next(iter(value))).__name__}, first {first[:60]}{'…' if len(first) > 60 else ''}"
        )
    return " ".join(repr(value).split())


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _checked(item: dataclasses.Field, kind: Any, value: Any) -> Any:
    """Return ``value`` as ``kind``, or say which setting is wrong, why, and what would do."""
    optional = isinstance(kind, types.UnionType) and type(None) in typing.get_args(kind)
    if optional:
        if value is None:
            return None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    name = item.metadata.get("label") or item.name
    value = _converted(name, kind, value)
    choices, low, high = (item.metadata.get(key) for key in ("choices", "low", "high"))
    if choices is not None and value not in choices:
        raise SettingsError(f"{name} cannot be {value!r}; choose one of {', '.join(map(str, choices))}.")
    if low is not None and value < low:
        raise SettingsError(f"{name} cannot be {value}; the smallest value is {low}.")
    if high is not None and value > high:
        raise SettingsError(f"{name} cannot be {value}; the largest value is {high}.")
    if item.metadata.get("model") and not value.strip():
        raise SettingsError(f"{name} is empty; give a demo model, a folder or a hub name.")
    return value


def _converted(name: str, kind: Any, value: Any) -> Any:
    """Accept the type itself and its plain text form, as URLs and shells give it; nothing else."""
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise SettingsError(f"{name} cannot be {value!r}; say true or false.")
    if kind in (int, float):
        if isinstance(value, bool):
            raise SettingsError(f"{name} cannot be {value!r}; give a number.")
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise SettingsError(f"{name} cannot be {value!r}; give a number.") from None
        if not math.isfinite(number) or (kind is int and isinstance(value, float) and number != value):
            raise SettingsError(f"{name} cannot be {value!r}; give a {'whole ' if kind is int else ''}number.")
        return number
    if not isinstance(value, str):
        raise SettingsError(f"{name} cannot be {value!r}; give text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"{name} holds half a character (U+{ord(value[error.start]):04X}), which is no Unicode text; write it anew."
        ) from error
    return value
