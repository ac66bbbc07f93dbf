"""Whether two models' parameters can be subtracted: which layers, which groups, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embcompare.errors import Incomparable
from embcompare.experiments.readout import require_layer
from embcompare.experiments.vectors import GROUPS, require_group
from embcompare.models.anatomy import GROUPS as VECTOR_GROUPS

if TYPE_CHECKING:
    from embcompare.models import Anatomy, LoadedModel


def comparable_layers(layer: int, a: LoadedModel, b: LoadedModel) -> tuple[int, ...]:
    """Return the layers to compare, all of them for -1; raises :class:`Incomparable` where depth or width differ."""
    for what, one, two in (
        ("wide", a.anatomy.width, b.anatomy.width),
        ("layers deep", a.anatomy.n_layers, b.anatomy.n_layers),
    ):
        if one != two:
            raise Incomparable(
                f"{a.spec.label} is {one} {what} and {b.spec.label} {two}, so their parameters cannot be subtracted; "
                "choose a model and one that was trained on from it, or compare them with parameter-alignment."
            )
    kinds = [_kind(model.anatomy) for model in (a, b)]
    if kinds[0] != kinds[1]:
        raise Incomparable(
            f"{a.spec.label} ({a.anatomy.family}: {kinds[0]}) and {b.spec.label} ({b.anatomy.family}: {kinds[1]}) are "
            "built differently, so their parameters cannot be subtracted; compare them with parameter-alignment."
        )
    if layer < 0:
        return tuple(range(a.anatomy.n_layers))
    require_layer(a, layer)
    return (layer,)


def comparable_groups(group: str, a: LoadedModel, b: LoadedModel) -> tuple[tuple[str, ...], list[str]]:
    """Return the groups to compare and notices about those left out.

    A group that only one model has, or whose heads or neurons are not as many or not as wide, raises
    :class:`Incomparable` where it was asked for, and is left out where all were.
    """
    said = []
    if a.anatomy.family != b.anatomy.family:
        said.append(
            f"{a.spec.label} is of the family {a.anatomy.family} and {b.spec.label} of {b.anatomy.family}; their "
            "parameters are paired by what they do."
        )
    if group != "all":
        for model in (a, b):
            require_group(model, group)
        reason = _mismatch(group, a, b)
        if reason:
            raise Incomparable(f"{reason}, so they cannot be subtracted; choose another group or another model.")
        return (group,), said
    kept = []
    for name in VECTOR_GROUPS:
        has = [name in model.anatomy.groups() for model in (a, b)]
        if not any(has):
            continue
        if not all(has):
            lacking = (b if has[0] else a).spec.label
            said.append(f"{lacking} has no {GROUPS[name]}, so they were left out.")
            continue
        reason = _mismatch(name, a, b)
        if reason:
            said.append(f"{reason}; they were left out.")
        else:
            kept.append(name)
    if not kept:
        raise Incomparable(
            f"No group of parameters has the same shape in {a.spec.label} and {b.spec.label}, so nothing can be "
            "subtracted; compare them with parameter-alignment."
        )
    return tuple(kept), said


def _kind(anatomy: Anatomy) -> str:
    """Return in words how the blocks are built: what must agree for two parameters to do the same."""
    block = anatomy.blocks[0]
    reads = "left to right" if block.attention.causal else "both ways"
    gated = "gated" if block.feed_forward.up is not None else "not gated"
    return f"{block.placement}-norm, {block.attention.position} positions, {reads}, {gated}"


def _mismatch(group: str, a: LoadedModel, b: LoadedModel) -> str:
    for layer in range(a.anatomy.n_layers):
        one, two = (_shape(model.anatomy, group, layer) for model in (a, b))
        if one != two:
            return f"The {GROUPS[group]} of layer {layer} are {one} in {a.spec.label} and {two} in {b.spec.label}"
    return ""


def _shape(anatomy: Anatomy, group: str, layer: int) -> str:
    block = anatomy.blocks[layer]
    if group.startswith("ff_"):
        return f"{len(block.feed_forward.values):,} neurons"
    weight = getattr(block.attention, group)
    return f"{weight.shape[0]} heads of {weight.shape[1 if group == 'w_o' else 2]}"
