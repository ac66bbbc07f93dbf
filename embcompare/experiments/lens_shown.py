"""One sentence under the lens, token by token: what each model would say at every layer, and where the two meet.

Shown are the distributions that are compared: over the tokens that both vocabularies have, renormalised. What a model
gives to others, special tokens among them, stands beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.experiments.lens_pairing import equal_depths
from embcompare.experiments.lens_sides import LensSide, of_targets
from embcompare.measures import distributions

if TYPE_CHECKING:
    from torch import Tensor

LISTED = 5
"""Tokens listed at each place of the shown sentence."""
SHOWN = 128
"""Tokens of the shown sentence at most."""


def shown_sentence(
    sides: tuple[LensSide, LensSide],
    shared: list[Tensor],
    pairs: tuple[np.ndarray, np.ndarray],
    sentence: int,
    step: int,
) -> tuple[dict[str, Any], list[str]]:
    """Look at one sentence: each model's own lists, then the two where they meet, ``step`` positions at once.

    ``shared`` holds each model's rows of the shared tokens, ``pairs`` all rows of A and of B at which the two are
    compared. Returns the result's fields ``shown_...`` and ``depth_pairs``, and what the reader should know.
    """
    a, b = sides
    notices: list[str] = []
    rows, shown = [], []
    for side, own in zip(sides, shared, strict=True):
        low, high = (int(each) for each in side.states.index.bounds(sentence + 1)[-2:])
        rows.append(np.arange(low, min(high, low + SHOWN)))
        shown.append(_shown(side, rows[-1], step, own))
        if high - low > SHOWN:
            notices.append(f"{side.label}: of the shown sentence the first {SHOWN} tokens are shown.")
        if high == low:
            notices.append(f"{side.label} finds no token in the shown sentence.")
    if any(len(own) < side.rows for side, own in zip(sides, shared, strict=True)):
        notices.append(
            "Token by token the sentence is shown with the distributions that are compared, over shared tokens only."
        )
    pair_a, pair_b = pairs
    inside = np.isin(pair_a, rows[0]) & np.isin(pair_b, rows[1])
    pair_a, pair_b = pair_a[inside], pair_b[inside]
    depths = equal_depths(a.layers - 1, b.layers - 1)
    found = np.empty((len(depths), len(pair_a)))
    for low in range(0, len(pair_a), step):
        part = slice(low, low + step)
        p, q = a.restricted(pair_a[part], shared[0]), b.restricted(pair_b[part], shared[1])
        for at, (i, j) in enumerate(depths.tolist()):
            found[at, part] = distributions.jsd(p[i], q[j]).cpu().numpy()
    starts = [int(each[0]) if len(each) else 0 for each in rows]
    fields = {
        **{f"{name}_{side}": value for side, each in zip("ab", shown, strict=True) for name, value in each.items()},
        "shown_pairs": np.stack([pair_a - starts[0], pair_b - starts[1]], axis=1).astype(np.int64),
        "shown_jsd": found,
        "depth_pairs": depths,
    }
    return fields, notices


def _shown(side: LensSide, rows: np.ndarray, step: int, shared: Tensor) -> dict[str, Any]:
    """Return what the result says of one model at the tokens ``rows`` of the shown sentence, over ``shared`` tokens."""
    own = shared.cpu().numpy()
    place = np.full(side.rows, -1, dtype=np.int64)
    place[own] = np.arange(len(own))
    target = np.where(side.target[rows] >= 0, place[side.target[rows]], -1)
    tokens = np.empty((side.layers, len(rows), min(LISTED, len(own))), dtype=np.int64)
    probability = np.empty(tokens.shape)
    entropy, of_target, left_out = (np.empty(tokens.shape[:2]) for _ in range(3))
    for low in range(0, len(rows), step):
        part = slice(low, low + step)
        log_p, mass = distributions.restrict(side.logits(rows[part]).log_softmax(-1), shared)
        top = distributions.top_tokens(log_p, tokens.shape[2])
        tokens[:, part] = own[top.cpu().numpy()]
        probability[:, part] = log_p.gather(-1, top).double().exp().cpu().numpy()
        entropy[:, part] = distributions.entropy(log_p).cpu().numpy()
        of_target[:, part] = np.exp(of_targets(log_p, target[part]))
        left_out[:, part] = 1.0 - mass.cpu().numpy()
    return {
        "shown": tuple(side.name(int(token)) for token in side.states.index.token[rows]),
        "shown_target": tuple(side.name(int(token)) if token >= 0 else "" for token in side.target[rows]),
        "shown_top": tuple(tuple(tuple(map(side.name, row)) for row in layer) for layer in tokens.tolist()),
        "shown_probability": probability,
        "shown_entropy": entropy,
        "shown_target_probability": of_target,
        "shown_left_out": left_out,
    }
