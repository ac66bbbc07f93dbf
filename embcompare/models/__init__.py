"""Models: how they are named, found, checked, loaded, held in memory, and read in one uniform way."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embcompare.models.anatomy import (
        GROUPS,
        Anatomy,
        AttentionWeights,
        BlockWeights,
        FeedForwardWeights,
        NormWeights,
    )
    from embcompare.models.families import FAMILIES
    from embcompare.models.hub import demo_names
    from embcompare.models.inspection import ModelInfo, inspect_model
    from embcompare.models.loading import LoadedModel, fingerprint, load_model
    from embcompare.models.pool import ModelPool, default_pool
    from embcompare.models.reading import read_anatomy
    from embcompare.models.spec import ModelSpec
    from embcompare.models.validation import hooked, validate

_PUBLIC = {
    "GROUPS": "anatomy",
    "Anatomy": "anatomy",
    "AttentionWeights": "anatomy",
    "BlockWeights": "anatomy",
    "FeedForwardWeights": "anatomy",
    "NormWeights": "anatomy",
    "FAMILIES": "families",
    "demo_names": "hub",
    "ModelInfo": "inspection",
    "inspect_model": "inspection",
    "LoadedModel": "loading",
    "fingerprint": "fingerprints",
    "load_model": "loading",
    "ModelPool": "pool",
    "default_pool": "pool",
    "read_anatomy": "reading",
    "ModelSpec": "spec",
    "hooked": "validation",
    "validate": "validation",
}

__all__ = [
    "FAMILIES",
    "GROUPS",
    "Anatomy",
    "AttentionWeights",
    "BlockWeights",
    "FeedForwardWeights",
    "LoadedModel",
    "ModelInfo",
    "ModelPool",
    "ModelSpec",
    "NormWeights",
    "default_pool",
    "demo_names",
    "fingerprint",
    "hooked",
    "inspect_model",
    "load_model",
    "read_anatomy",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that naming a model costs no torch."""
    if name in _PUBLIC:
        return getattr(import_module(f"embcompare.models.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'embcompare.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
