"""Two models made one: the lower blocks of A, a map, the upper blocks and the head of B."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Bridge": "bridges",
    "BridgeOptions": "bridges",
    "StitchedModel": "stitched",
    "Tail": "tails",
    "stitch": "stitched",
}

__all__ = ["Bridge", "BridgeOptions", "StitchedModel", "Tail", "stitch"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: torch comes with it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
