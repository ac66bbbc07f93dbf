"""Flags from settings, and settings from flags: what a field declares drives the help, the check and the call."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from typing import Any

from embcompare.experiments import EXPERIMENTS, settings_type

if typing.TYPE_CHECKING:
    from embcompare.experiments.base import Settings


def summary(name: str) -> str:
    """Return in one sentence what the experiment called ``name`` does."""
    text = " ".join((settings_type(name).__doc__ or "").strip().partition("\n\n")[0].split())
    sentence, dot, _ = text.partition(". ")
    return sentence + dot.strip()


def summaries(words: typing.Sequence[str]) -> dict[str, str]:
    """Return the sentence of each experiment; only where ``words`` ask for the list, since it imports them all."""
    listed = "run" in words and not any(name in words for name in EXPERIMENTS)
    return {name: summary(name).replace("%", "%%") if listed else "" for name in EXPERIMENTS}


def add_settings(parser: argparse.ArgumentParser, kind: type[Settings]) -> None:
    """Add one flag a setting; values stay text, since the settings themselves check and convert them."""
    parser.description = " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())
    hints = typing.get_type_hints(kind)
    needed = parser.add_argument_group("what is compared")
    others = parser.add_argument_group("settings")
    usage = [f"{parser.prog}"]
    for item in dataclasses.fields(kind):
        flag = f"--{item.name.replace('_', '-')}"
        missing = item.default is dataclasses.MISSING
        compared = item.metadata.get("model") or (item.metadata.get("corpus") and item.default)
        group = needed if missing or compared else others
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "required": missing, "help": _help(item)}
        if hints[item.name] is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag, metavar=item.name.upper(), **options)
        if missing:
            usage.append(f"{flag} {item.name.upper()}")
    parser.usage = " ".join([*usage, "[OPTION ...]"]).replace("%", "%%")


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings that ``arguments`` spell out; raises ``SettingsError`` for a value that cannot be."""
    kind = settings_type(arguments.experiment)
    given = vars(arguments)
    hints = typing.get_type_hints(kind)
    values = {item.name: given[item.name] for item in dataclasses.fields(kind) if item.name in given}
    for name, value in values.items():
        optional = isinstance(hints[name], types.UnionType) and type(None) in typing.get_args(hints[name])
        if optional and isinstance(value, str) and value.lower() == "none":
            values[name] = None
    return kind.from_dict(values)


def _help(item: dataclasses.Field) -> str:
    text = item.metadata.get("help", "").rstrip(".")
    choices, low, high = (item.metadata.get(key) for key in ("choices", "low", "high"))
    if item.name == "measure" and choices is None:
        from embcompare.measures import MEASURES

        text, choices = "How two layers are compared", tuple(MEASURES)
    if item.metadata.get("corpus"):
        text += "; or a txt, csv, tsv or jsonl file"
    if takes_vectors(item):
        text += "; or an npy, npz, safetensors or parquet file"
    parts = [text]
    if choices is not None:
        parts.append(f"one of {', '.join(map(str, choices))}")
    if low is not None or high is not None:
        bounds = (f"from {low}" if low is not None else "", f"up to {high}" if high is not None else "")
        parts.append(" ".join(filter(None, bounds)))
    text = "; ".join(filter(None, parts))
    if item.default is not dataclasses.MISSING:
        words = {None: "none", True: "yes", False: "no", "": "empty"}
        plain = item.default is None or isinstance(item.default, bool | str)
        text += f" (default: {words.get(item.default, item.default) if plain else item.default})"
    return text.replace("%", "%%")


def takes_vectors(item: dataclasses.Field) -> bool:
    """Say whether a setting that names a model may name a user's own vectors instead."""
    return bool(item.metadata.get("vectors"))
