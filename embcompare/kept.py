"""Everything kept beside the results: texts and vectors that users gave, captured hidden states, and trained maps.

These functions know no sessions: they list and delete what anybody gave. Where strangers are served, the face shows
each only what is their own.
"""

from __future__ import annotations

from embcompare.activations.files import StateFolder
from embcompare.errors import StoreError
from embcompare.experiments.bijection_fits import FitFolder
from embcompare.folders import KINDS, Item
from embcompare.shelf import Shelf
from embcompare.store import Store

__all__ = ["KINDS", "Item", "clear", "delete", "find", "items", "size"]


def items(store: Store | None = None) -> list[Item]:
    """Return all of it, last used first; names are ``text/…``, ``vectors/…``, ``states/…`` and ``fits/…``."""
    found = [item for place in _places(store) for item in place.entries()]
    return sorted(found, key=lambda item: item.last_used, reverse=True)


def find(start: str, store: Store | None = None) -> str:
    """Return the one kept name that begins with ``start``, or whose digits do; else :class:`StoreError`."""
    names = [item.name for item in items(store)]
    found = [name for name in names if name.startswith(start) or name.partition("/")[2].startswith(start)]
    if not start or not found:
        raise StoreError(
            f"Nothing that is kept has a name that begins with '{start}'; list it with: python -m embcompare kept."
        )
    if len(found) > 1:
        raise StoreError(f"{len(found):,} kept names begin with '{start}'; give more of the name.")
    return found[0]


def delete(name: str, store: Store | None = None) -> bool:
    """Remove what is kept under its whole ``name``; True when there was something.

    Raises ``SettingsError`` for what is no such name, and :class:`StoreError` where it cannot be removed, as hidden
    states that are being written.
    """
    shelf, states, fits = _places(store)
    places: dict[str, StateFolder | FitFolder] = {"states": states, "fits": fits}
    return places.get(name.partition("/")[0], shelf).delete(name)


def clear(kind: str | None = None, store: Store | None = None) -> int:
    """Remove all that is kept, or all of one of ``KINDS``; return how many things went.

    Raises :class:`StoreError` where some of it could not be removed, as hidden states that are being written.
    """
    wanted = [item.name for item in items(store) if kind in (None, item.name.partition("/")[0])]
    removed, problems = 0, []
    for name in wanted:
        try:
            removed += delete(name, store)
        except StoreError as error:
            problems.append(str(error))
    if problems:
        raise StoreError(f"{removed:,} of {len(wanted):,} were deleted. {problems[0]}")
    return removed


def size(store: Store | None = None) -> int:
    """Return the bytes that all of it takes."""
    return sum(place.size() for place in _places(store))


def _places(store: Store | None) -> tuple[Shelf, StateFolder, FitFolder]:
    store = store if store is not None else Store()
    return Shelf(store), StateFolder(store.folder / "states"), FitFolder(store.folder)
