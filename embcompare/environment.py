"""What the environment says: each variable read in one way, and refused by name where it says what cannot be."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from embcompare.errors import SettingsError
from embcompare.words import one_line

D = TypeVar("D")

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_WHOLE = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def text(name: str) -> str:
    """Return the variable without the space around it; empty where it is not set."""
    return os.environ.get(name, "").strip()


def whole_number(name: str, default: D, *, low: int = 0, of: str = "") -> int | D:
    """Return a whole number from ``low`` up, or ``default`` where none is set; else :class:`SettingsError`.

    ``of`` says what is counted, for the sentence.
    """
    value = text(name)
    if not value:
        return default
    if not _WHOLE.fullmatch(value) or int(value) < low:
        raise refused(name, value, f"give a whole number{f' of {of}' if of else ''} from {low} up")
    return int(value)


def number_of_bytes(name: str, default: D, *, low: int = 0) -> int | D:
    """Return a number of bytes from ``low`` up, or ``default`` where none is set; else :class:`SettingsError`."""
    return whole_number(name, default, low=low, of="bytes")


def positive_seconds(name: str, default: D) -> float | D:
    """Return a number of seconds above 0, or ``default`` where none is set; else :class:`SettingsError`."""
    value = text(name)
    if not value:
        return default
    if not _SECONDS.fullmatch(value) or float(value) == 0:
        raise refused(name, value, "give a number of seconds above 0, such as 300 or 2.5")
    return float(value)


def flag(name: str) -> bool:
    """Return whether the variable says yes; no where it is not set; :class:`SettingsError` for anything unclear."""
    value = text(name)
    if value.lower() in _YES:
        return True
    if value.lower() in ("", *_NO):
        return False
    raise refused(name, value, f"say {', '.join(_YES[:-1])} or {_YES[-1]}, or {', '.join(_NO[:-1])} or {_NO[-1]}")


def listed(name: str) -> list[str]:
    """Return the entries of a comma-separated list, without empty ones."""
    return [entry.strip() for entry in text(name).split(",") if entry.strip()]


def folder(name: str) -> Path | None:
    """Return the folder that is named, ``~`` filled in; None where none is set; else :class:`SettingsError`."""
    value = text(name)
    if not value:
        return None
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise refused(name, value, "there is no such user; give the whole path of a folder") from error


def refused(name: str, value: str, allowed: str) -> SettingsError:
    """Return the error that names the variable, what it says and what it may say."""
    return SettingsError(f"{name} cannot be '{one_line(value)}'; {allowed}.")
