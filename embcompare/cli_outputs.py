"""Where numbers go: files that are checked beforehand, and standard output, which may be full or closed."""

from __future__ import annotations

import io
import os
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from embcompare.cli_show import silence
from embcompare.errors import SettingsError, StoreError

if typing.TYPE_CHECKING:
    import argparse

    from embcompare.experiments.base import Result

FORMATS = ("json", "csv", "npz")
"""What a result can be written as; each is the name of its option."""


def ready() -> None:
    """Make sure of two streams to write to, whatever the shell has closed and whatever letters it knows."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="backslashreplace")


def tell(text: str) -> None:
    """Print a line of what was asked for on standard output."""
    with writing():
        print(text)


@contextmanager
def writing() -> Iterator[None]:
    """Write to standard output inside the block: where it cannot be written, :class:`StoreError` says why.

    A reader that has gone raises ``BrokenPipeError``, which is no error of anybody's.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
        raise
    except OSError as error:
        silence(sys.stdout)
        why = (error.strerror or "it is closed").lower()
        raise StoreError(f"Standard output cannot be written: {why}; send it somewhere else.") from error


def outputs_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return format -> path of what is to be written, checked before anybody waits for the numbers."""
    from embcompare.export import check_target

    outputs = {kind: path for kind in FORMATS if (path := getattr(arguments, kind)) is not None}
    if list(outputs.values()).count("-") > 1:
        raise SettingsError(
            "Only one of --json, --csv and --npz can go to standard output; name a file for the others."
        )
    files = [path for path in outputs.values() if path != "-"]
    for path in files:
        check_target(path)
    real = [os.path.realpath(os.path.expanduser(path)) for path in files]
    for path, target in zip(files, real, strict=True):
        if real.count(target) > 1 and os.path.isfile(target) | (not os.path.exists(target)):
            raise SettingsError(f"Two of --json, --csv and --npz would write the same file {path}; name one for each.")
    return outputs


def write(result: Result, outputs: dict[str, str]) -> None:
    from embcompare import export

    makers: dict[str, Any] = {"json": export.to_json, "csv": export.to_csv, "npz": export.to_npz}
    for kind, path in outputs.items():
        data = makers[kind](result)
        if path != "-":
            export.write_file(path, data)
        elif isinstance(data, bytes):
            with writing():
                sys.stdout.buffer.write(data)
        else:
            tell(data.removesuffix("\n"))
