"""Looking after what is stored, from a shell: results, and what is kept beside them."""

from __future__ import annotations

import typing
from datetime import datetime

from embcompare.cli_outputs import outputs_of, tell, write
from embcompare.cli_show import duration, say
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.words import in_words, one_line, plural

if typing.TYPE_CHECKING:
    import argparse

    from embcompare.store import Store


def results(arguments: argparse.Namespace) -> None:
    """List, export or delete stored results."""
    from embcompare.store import Store

    store = Store()
    outputs = outputs_of(arguments)
    if outputs and arguments.export is None:
        raise SettingsError("A file was named but no result; say which with --export KEY.")
    if arguments.clear:
        count = store.clear()
        say(f"{plural(count, 'result')} deleted.")
    elif arguments.delete is not None:
        key = store.find(arguments.delete)
        gone = "was gone already; nothing was deleted"
        say(f"Result {key[:12]} deleted." if store.delete(key) else f"Result {key[:12]} {gone}.")
    elif arguments.export is not None:
        if not outputs:
            raise SettingsError("Say where to write the result with --json, --csv or --npz FILE; - is standard output.")
        key = store.find(arguments.export)
        result = store.get(key)
        if result is None:
            raise EmbcompareError(" ".join(store.take_notices(key)) or f"Result {key[:12]} is gone.")
        write(result, outputs)
    else:
        _list(store)
        for notice in store.take_notices():
            say(notice)


def _list(store: Store) -> None:
    """Print a line a result: key, time, size, experiment, sides, settings other than the defaults, computing time."""
    from embcompare import entries, kept

    found = store.entries()
    known = entries.titles(kept.items(store)) if found else {}

    def called(name: str) -> str:
        return one_line(entries.called(name, known), 80)

    for entry in found:
        took = "" if entry.seconds is None else f"  {duration(entry.seconds)}"
        tell(
            f"{entry.key[:12]}  {_when(entry.created)}  {in_words(entry.bytes):>8}  {entry.experiment}"
            f"  {' × '.join(entries.sides(entry, called)) or '–'}  {entries.described(entry, called)}{took}"
        )


def kept(arguments: argparse.Namespace) -> None:
    """List or delete kept texts, vectors, hidden states and trained maps."""
    from embcompare import kept

    if arguments.clear is not None:
        count = kept.clear(None if arguments.clear == "all" else arguments.clear)
        say(f"{plural(count, 'kept thing')} deleted.")
    elif arguments.delete is not None:
        name = kept.find(arguments.delete)
        say(f"{name} deleted." if kept.delete(name) else f"{name} was gone already; nothing was deleted.")
    else:
        for item in kept.items():
            tell(f"{item.name}  {_when(item.last_used)}  {in_words(item.bytes):>8}  {one_line(item.title)}".rstrip())


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
