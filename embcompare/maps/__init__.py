"""Maps: matrices that take model A's coordinates to model B's, and the controls that say what they are worth.

A map is a :class:`Kernel`: ``kernel(x)`` takes row vectors (n, d_a) of A to (n, d_b) of B, ``x K + c``. It is read off
the two embedding matrices alone (``pseudo_inverse``, ``orthogonal``, ``anchors``), fitted on paired hidden states
(``least_squares``, ``ridge``, ``orthogonal_fit``), or a control that carries nothing on purpose (``permuted``,
``random_rotation``, ``identity``). ``KERNELS`` holds their declarations by name.

``MAPS`` holds those of the maps that compare two representations: fitted on paired rows with scikit-learn's verbs, in
closed form or trained (:class:`Map`), scored alike (``evaluate``, ``run_protocol``), read against each other
(``read_maps``), and for all pairs of layers at once (``all_pairs``). Arrays only: no model, no text.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "affine": ("Identity", "LeastSquares", "MeanPredictor", "Orthogonal", "Ridge"),
    "allpairs": ("PairScores", "all_pairs"),
    "base": ("Map", "NotFitted", "NotInvertible"),
    "catalogue": ("MAPS", "MapDeclaration", "get_map", "load_map"),
    "controls": ("identity", "permuted", "random_rotation"),
    "embedding": ("anchors", "draw_anchors", "orthogonal", "pseudo_inverse"),
    "inn": ("INN", "BertINN"),
    "kernel": ("Kernel", "SingularEmbedding", "TooFewRows"),
    "mlp": ("MLP",),
    "protocol": (
        *("Prepared", "Scores", "Split", "Standardiser"),
        *("evaluate", "interval", "prepare", "run_protocol", "split_three"),
    ),
    "reading": ("Gap", "Kind", "Reading", "r2_gap", "read_maps"),
    "registry": ("KERNELS", "Declaration", "get_kernel"),
    "states": ("least_squares", "orthogonal_fit", "ridge", "split_items"),
    "training": ("Recipe", "Trace"),
    "variates": ("CCAMap", "PWCCAMap", "SVCCAMap"),
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
