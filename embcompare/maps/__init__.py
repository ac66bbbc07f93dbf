"""Maps: matrices that take model A's coordinates to model B's, and the controls that say what they are worth.

A map is a :class:`Kernel`: ``kernel(x)`` takes row vectors (n, d_a) of A to (n, d_b) of B, ``x K + c``. It is read off
the two embedding matrices alone (``pseudo_inverse``, ``orthogonal``, ``anchors``), fitted on paired hidden states
(``least_squares``, ``ridge``, ``orthogonal_fit``), or a control that carries nothing on purpose (``permuted``,
``random_rotation``, ``identity``). ``KERNELS`` holds their declarations by name. Arrays only: no model, no text.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "controls": ("identity", "permuted", "random_rotation"),
    "embedding": ("anchors", "draw_anchors", "orthogonal", "pseudo_inverse"),
    "kernel": ("Kernel", "SingularEmbedding", "TooFewRows"),
    "registry": ("KERNELS", "Declaration", "get_kernel"),
    "states": ("least_squares", "orthogonal_fit", "ridge", "split_items"),
}
_PUBLIC = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import on first use, so that the declarations can be read without torch."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
