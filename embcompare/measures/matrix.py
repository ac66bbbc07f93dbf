"""A measure between all layers of two models: each layer prepared once, then compared pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.measures.declaration import BadInput, Matrix, Measure, UndefinedMeasure, as_matrix


@dataclass(frozen=True)
class LayerMatrix:
    """Values (L_A, L_B), NaN where undefined, and for every NaN its reason by (layer of A, layer of B)."""

    values: Matrix
    reasons: Mapping[tuple[int, int], str]

    @classmethod
    def undefined(cls, shape: tuple[int, int], reason: str) -> LayerMatrix:
        """Return a matrix of NaN, all for one reason."""
        return cls(np.full(shape, np.nan), dict.fromkeys(np.ndindex(shape), reason))

    @classmethod
    def of_layers(cls, values: Matrix, of_a: Mapping[int, str], of_b: Mapping[int, str]) -> LayerMatrix:
        """Spread the reasons that layers of A and of B are undefined over their rows and columns."""
        reasons = {}
        for i, j in np.ndindex(values.shape):
            told = [f"layer {k} of {m}: {of[k]}" for m, of, k in (("A", of_a, i), ("B", of_b, j)) if k in of]
            if told:
                reasons[i, j] = " ".join(told)
        return cls(values, reasons)


def layer_matrix(
    measure: Measure,
    layers_a: Sequence[Any],
    layers_b: Sequence[Any],
    *,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> LayerMatrix:
    """Return the measure of every layer of A, (n, p_i), with every layer of B, (n, q_j).

    Pass the same sequence twice for one model with itself. ``progress`` is told the share done, and may raise to
    stop. Undefined cells are NaN with a reason; only malformed input raises (:class:`BadInput`).
    """
    options = {**measure.options, **options}
    if measure.matrix is not None:
        result: LayerMatrix = measure.matrix(layers_a, layers_b, progress=progress, **options)
        return result
    same = layers_b is layers_a
    sizes = {len(as_matrix(layer, f"layer {k}")) for k, layer in enumerate((*layers_a, *(() if same else layers_b)))}
    if len(sizes) > 1:
        raise BadInput(f"All layers need the same samples in one order; there are layers of {sorted(sizes)} samples.")
    states_a, reasons_a = _prepare(measure, layers_a, options)
    states_b, reasons_b = (states_a, reasons_a) if same else _prepare(measure, layers_b, options)
    values = np.full((len(layers_a), len(layers_b)), np.nan)
    reasons: dict[tuple[int, int], str] = {}
    for done, i in enumerate(states_a, 1):
        for j in states_b:
            if same and measure.symmetric and (j, i) in reasons:
                reasons[i, j] = reasons[j, i]
            elif same and measure.symmetric and j < i:
                values[i, j] = values[j, i]
            else:
                try:
                    values[i, j] = measure.compare(states_a[i], states_b[j])
                except UndefinedMeasure as reason:
                    reasons[i, j] = str(reason)
        if progress:
            progress(done / len(states_a))
    spread = LayerMatrix.of_layers(values, reasons_a, reasons_b)
    return LayerMatrix(values, {**spread.reasons, **reasons})


def _prepare(measure: Measure, layers: Sequence[Any], options: dict[str, Any]) -> tuple[dict[int, Any], dict[int, str]]:
    states, reasons = {}, {}
    for index, layer in enumerate(layers):
        try:
            states[index] = measure.prepare(layer, **options)
        except UndefinedMeasure as reason:
            reasons[index] = str(reason)
    return states, reasons
