"""What the command line prints: progress, tables of what is known, sizes and times for people."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import textwrap
import time
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

from embcompare.words import in_words

if typing.TYPE_CHECKING:
    from embcompare.running import Progress

_NAMES = {
    "label": "name",
    "architecture": "class",
    "width": "residual width",
    "heads": "attention heads",
    "kv_heads": "key and value heads",
    "ff_width": "FF width",
    "vocabulary": "tokens",
    "bytes": "memory",
    "tied": "tied embeddings",
    "placement": "norm placement",
    "supported": "can be compared",
    "reason": "why not",
}
_WIDEST = 120


class ProgressLine:
    """Progress on a stream: one line rewritten on a terminal, elsewhere a line a second at most, and the last."""

    def __init__(self, stream: TextIO, terminal: bool | None = None) -> None:
        self._stream = stream
        self._terminal = stream.isatty() if terminal is None else terminal
        self._last_message = ""
        self._last_time = 0.0
        self._open = False

    def __call__(self, step: Progress) -> None:
        """Show ``step``."""
        text = progress_text(step)
        with suppress(OSError):  # a run goes on where nobody can be told how
            self._show(text, step)

    def _show(self, text: str, step: Progress) -> None:
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._stream.write(f"\r{text[:width]}\x1b[K")
            self._open = True
        else:
            now = time.monotonic()
            last = step.total > 0 and step.done >= step.total
            fresh = step.message != self._last_message and step.total <= 0
            if not (last or fresh or now - self._last_time >= 1.0):
                return
            self._last_message, self._last_time = step.message, now
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Wipe the line, so that what follows begins on a clean one."""
        if self._open:
            with suppress(OSError):
                self._stream.write("\r\x1b[K")
                self._stream.flush()
            self._open = False


def progress_text(step: Progress) -> str:
    """Return one line: percentage, steps, what is being done, time to go."""
    if step.total <= 0:
        return step.message
    eta = step.eta_seconds
    left = f", {duration(eta)} left" if eta is not None and step.done < step.total else ""
    return f"{step.fraction:4.0%} {step.done}/{step.total} {step.message}{left}"


def duration(seconds: float) -> str:
    """Return a time span for people: ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def say(text: str) -> None:
    """Say something about the numbers: on standard error, where it is in nobody's way."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # there is nowhere left to say that it cannot be said
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Send what still waits to be written to nowhere, or closing the stream would fail once more."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def described(found: Any, width: int | None = None) -> str:
    """Return what is known of a model, a dataclass, as an aligned table; empty fields are left out.

    A field that holds named values gets its own heading and is set in; one that holds rows of them becomes a small
    table. Lines are folded at ``width`` characters, by default those of the terminal.
    """
    values = {item.name: getattr(found, item.name) for item in dataclasses.fields(found)}
    if isinstance(values.get("bytes"), int):
        values["bytes"] = in_words(values["bytes"]) if values["bytes"] else None
    sizes = {name for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    values = {name: None if name in sizes and values[name] == 0 else value for name, value in values.items()}
    width = width or min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    return "\n".join(_lines(values, "", max(width, 40)))


def _lines(values: dict[str, Any], indent: str, width: int) -> Iterator[str]:
    shown = {_named(name): value for name, value in values.items() if value not in (None, "", [], (), {})}
    left = max((len(name) for name, value in shown.items() if not _nested(value)), default=0)
    for name, value in shown.items():
        if isinstance(value, dict):
            yield f"{indent}{name}"
            yield from _lines({str(key): each for key, each in value.items()}, indent + "  ", width)
        elif _nested(value):
            yield f"{indent}{name}"
            yield from (f"{indent}  {line}" for line in _grid(value))
        else:
            begin = f"{indent}{name:{left}}  "
            room = max(20, width - len(begin))
            folded = textwrap.wrap(_text(value), room, break_on_hyphens=False) or [""]
            yield begin + folded[0]
            yield from (" " * len(begin) + line for line in folded[1:])


def _nested(value: Any) -> bool:
    rows = isinstance(value, list | tuple) and bool(value) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict) or rows


def _grid(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield rows of named values under a line of names, numbers flush right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_named(name) for name in names], *([_text(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    right = [all(isinstance(row.get(name), int | float) for row in rows) for name in names]
    for line in cells:
        parts = (
            cell.rjust(size) if flush else cell.ljust(size)
            for cell, size, flush in zip(line, widths, right, strict=True)
        )
        yield "  ".join(parts).rstrip()


def _named(name: str) -> str:
    return _NAMES.get(name, str(name).replace("_", " "))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{_named(name)} {_text(item)}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
