"""All measures of two layers by name, and why one of them has no value."""

from __future__ import annotations

from typing import Any

from embcompare.errors import SettingsError
from embcompare.measures import canonical, cka, dissimilarity, neighbours, regression, shape, tokenwise
from embcompare.measures.declaration import Measure, UndefinedMeasure, check_pairing

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for module in (cka, canonical, shape, dissimilarity, neighbours, regression, tokenwise)
    for measure in module.MEASURES
}
"""Measures by name; add one by writing its function and its declaration, and a line here for a new module."""


def get_measure(name: str) -> Measure:
    """Return a measure's declaration; raises :class:`SettingsError` that lists the names there are."""
    if name not in MEASURES:
        raise SettingsError(f"There is no measure '{name}'; there are {', '.join(MEASURES)}.")
    return MEASURES[name]


def why_undefined(X: Any, Y: Any, measure: Measure | str, **options: Any) -> str | None:
    """Return the reason that a measure has no value for (n, p) and (n, q), or None where it has one.

    Raises :class:`~embcompare.measures.declaration.BadInput` for malformed input.
    """
    chosen = get_measure(measure) if isinstance(measure, str) else measure
    check_pairing(X, Y)
    options = {**chosen.options, **options}
    try:
        chosen.compare(chosen.prepare(X, **options), chosen.prepare(Y, **options))
    except UndefinedMeasure as reason:
        return str(reason)
    return None
