"""Sentences about hidden states as sums, computed from the numbers: what carries a state, and where two models part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embcompare.decomposition.indicator import INDICATORS
from embcompare.ui import decomposition_picture as pictures
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.decomposition import DecompositionResult
    from embcompare.experiments.term_result import SentenceTermsResult

CITATION = """@inproceedings{mickus2023bother,
  title     = {Why Bother with Geometry? On the Relevance of Linear Decompositions of Transformer Embeddings},
  author    = {Mickus, Timothee and V{\\'a}zquez, Ra{\\'u}l},
  booktitle = {Proceedings of the 6th BlackboxNLP Workshop: Analyzing and Interpreting Neural Networks for NLP},
  year      = {2023}
}"""
"""The paper behind the additive split of two models, its indicators and the series."""
SPOKEN = {"importance": "importance", "cosine": "cosine", "distance": "distance", "norm_ratio": "norm ratio"}
TERMS = {
    "input": "what the embedding gave: token and position",
    "self-attention": "what all self-attention layers so far have added",
    "cross-attention": "what the decoder's attention to the source has added",
    "feed-forward": "what all feed-forward layers so far have added",
    "correction": "what belongs to no part: biases, and the means that norms take out",
    "source": "what reached the state from the source text",
    "target": "what reached the state from the target text so far",
}
"""What each kind of term is."""
PROMISE = (
    "Every hidden state is an exact sum of what the parts of the model have put into it. It would be surprising to see "
    "two trainings of one kind carried by different parts."
)


def meaning(indicator: str) -> str:
    """Return what an indicator is, as the experiment declares it."""
    return INDICATORS[indicator]


def glossary(kinds: tuple[str, ...]) -> str:
    """Say what each term is, in Markdown."""
    return "\n".join(f"- **{kind}**: {TERMS[kind]}" for kind in kinds)


def exactness(*residuals: float | None) -> str:
    """Say how far sums are from what they should be: the largest of some relative residuals."""
    known = [each for each in residuals if each is not None]
    return f"{max(known):.0e}" if max(known, default=0.0) > 0 else "0"


def shares(values: np.ndarray, kinds: tuple[str, ...], most: int = 0) -> str:
    """Say importance by kind, the largest first: ``feed-forward 0.52, input 0.31``; all, or the first ``most``."""
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
    order = order[: most or len(order)]
    return ", ".join(f"{kinds[at]} {pictures.number(float(values[at]))}" for at in order)


def of_token(result: SentenceTermsResult, side: str, state: int, place: int) -> str:
    """Say what one state of one token is the sum of."""
    kinds = pictures.kinds_of(getattr(result, f"kinds_{side}"))
    values = pictures.by_kind(result.of(side, "importance")[state], getattr(result, f"kinds_{side}"), 0)[:, place]
    token, name = getattr(result, f"tokens_{side}")[place], getattr(result, f"states_{side}")[state]
    if not np.isfinite(values).any():
        return f"{side.upper()}: the state of ‘{token}’ ({name}) is zero, so nothing has a share in it."
    against = [kinds[at] for at in np.flatnonzero(values < -0.005)]
    pulls = f"; {' and '.join(against)} {agree(len(against), 'points', 'point')} against it" if against else ""
    return f"{side.upper()}, ‘{token}’, {name}: {shares(values, kinds)}{pulls}."


def carries(result: DecompositionResult, side: str, label: str) -> str:
    """Say in one sentence which kind of term carries a model's last state, and whether that is beyond doubt."""
    kinds = pictures.kinds_of(getattr(result, f"kinds_{side}"))
    values = pictures.by_kind(result.of(side, "importance")[-1], getattr(result, f"kinds_{side}"), 0)
    name = getattr(result, f"states_{side}")[-1]
    if not np.isfinite(values).all():
        return f"{label}: importance is undefined in its last state, which is zero."
    order = np.argsort(-values, kind="stable")
    first, second = (kinds[at] for at in order[:2])
    low, high = ends(result, side)
    said = f"{label}: "
    if low is None or high is None or not np.isfinite([low[-1, order[0]], high[-1, order[1]]]).all():
        return f"{said}{first} has the largest share of the last state ({name}): {shares(values, kinds)}."
    interval = f"95 % interval {low[-1, order[0]]:.2f} to {high[-1, order[0]]:.2f}"
    rest = shares(values[order[1:]], tuple(kinds[at] for at in order[1:]))
    if low[-1, order[0]] > high[-1, order[1]]:
        share = "more than half" if low[-1, order[0]] > 0.5 else "the largest share"
        return f"{said}{first} carries {share} of the last state ({name}), {values[order[0]]:.2f} ({interval}); {rest}."
    return (
        f"{said}{first} and {second} carry the last state ({name}) about alike: {values[order[0]]:.2f} ({interval}); "
        f"{rest}."
    )


def ends(result: DecompositionResult, side: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the interval of importance (S, G) by kind; None where kinds are sums of terms, which have none."""
    kinds = getattr(result, f"kinds_{side}")
    if len(set(kinds)) < len(kinds):
        return None, None
    at = result.at("importance")
    low, high = (pictures.by_kind(getattr(result, f"{end}_{side}")[at], kinds, 1) for end in ("low", "high"))
    return low, high


def matched(depth_a: int, depth_b: int) -> list[tuple[int, int]]:
    """Return states of A and of B at the same relative depth, one pair for each of the shallower model."""
    fewer, more = min(depth_a, depth_b), max(depth_a, depth_b)
    at = np.round(np.linspace(0, more - 1, fewer)).astype(int)
    pairs = list(zip(range(fewer), at.tolist(), strict=True))
    return pairs if depth_a <= depth_b else [(b, a) for a, b in pairs]


IMPORTANCE = (
    "Importance e·d/|e|² of a term d in a state e, both vectors: how much of the state's length lies in the term, "
    "along the state's own direction. Over the terms it sums to 1."
)
"""What importance is, where it is first named."""


def apart(result: DecompositionResult) -> str:
    """Say where the two models' terms differ most, among those whose intervals do not overlap."""
    names = [pictures.kinds_of(result.kinds_a), pictures.kinds_of(result.kinds_b)]
    common = [kind for kind in names[0] if kind in names[1]]
    means = [pictures.by_kind(result.of(side, "importance"), getattr(result, f"kinds_{side}"), 1) for side in "ab"]
    bounds = [ends(result, side) for side in "ab"]
    found: list[tuple[float, str]] = []
    looked = len(matched(len(means[0]), len(means[1]))) * len(common)
    known = all(each is not None for pair in bounds for each in pair)
    for a, b in matched(len(means[0]), len(means[1])):
        for kind in common:
            at = names[0].index(kind), names[1].index(kind)
            one, other = float(means[0][a, at[0]]), float(means[1][b, at[1]])
            if known and not _separate(bounds, (a, b), at):
                continue
            where = (
                result.states_a[a]
                if result.states_a[a] == result.states_b[b]
                else (f"{result.states_a[a]} of A and {result.states_b[b]} of B")
            )
            found.append((abs(one - other), f"{kind} ({where}): {one:.2f} in A, {other:.2f} in B"))
    found = [each for each in found if np.isfinite(each[0])]
    if not found:
        if result.items < 2:
            return "With one text there are no intervals, so whether the two differ cannot be told."
        return "Nowhere along the depth are the intervals of the two models apart."
    gap, said = max(found, key=lambda each: each[0])
    of = f"Of {looked} terms of states compared, the two differ most"
    how = f"{of} (95 % intervals apart, each for itself) in" if known else f"{of} in"
    return f"{how} {said}." if gap >= 0.005 else "The two models' terms hardly differ at any depth."


def _separate(
    bounds: list[tuple[np.ndarray | None, np.ndarray | None]], states: tuple[int, int], at: tuple[int, int]
) -> bool:
    (low_a, high_a), (low_b, high_b) = bounds
    assert low_a is not None
    assert high_a is not None
    assert low_b is not None
    assert high_b is not None
    a, b = (states[0], at[0]), (states[1], at[1])
    return bool(low_a[a] > high_b[b] or low_b[b] > high_a[a])


def ablated(result: DecompositionResult, labels: tuple[str, str]) -> str:
    """Say which term's absence costs each model most."""
    parts = []
    for side, label in zip("ab", labels, strict=True):
        rise, dropped = getattr(result, f"rise_{side}"), getattr(result, f"dropped_{side}")
        if rise is None or len(dropped) < 2:
            continue
        worst = 1 + int(np.nanargmax(rise[0, 1:]))
        rises, low, high = (pictures.number(float(each)) for each in rise[:, worst])
        what = named(dropped[worst])
        parts.append(f"with the {what} term left out of it the loss of {label} rises by {rises} nats ({low} to {high})")
    text = "; ".join(parts)
    return f"What a term gives directly to the last state: {text}, more than without any other term." if text else ""


def axis(*states: tuple[str, ...]) -> str:
    """Say what the ends of an axis of states are."""
    norm = any("norm" in each[-1] for each in states)
    return f"0 is the embedding output{', norm the last state after the final norm' if norm else ''}."


def named(term: str) -> str:
    """Return a term's name for a sentence: one that says where it was added in quotation marks."""
    return f"‘{term}’" if "," in term else term


def read(result: DecompositionResult) -> str:
    """Say what was read."""
    tokens = (
        plural(result.tokens_a, "token")
        if result.tokens_a == result.tokens_b
        else f"{result.tokens_a:,} tokens of A, {result.tokens_b:,} of B"
    )
    return (
        f"{plural(result.items, 'text')}, {tokens}; sums differ from the states by at most "
        f"{exactness(result.residual_a, result.residual_b)} of their length."
    )
