"""Which rows of two models' E stand for the same token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from embcompare.errors import Incomparable
from embcompare.text.tokens import Tokens
from embcompare.words import agree, plural

SMALLEST_MATCH = 1000
"""Fewer shared tokens than this do not carry a comparison."""
SMALLEST_SHARE = 0.1
"""Nor does a smaller part of the smaller vocabulary than this."""


@dataclass(frozen=True, eq=False)
class VocabularyMatch:
    """Rows of A's and B's E that stand for the same token, pair by pair.

    ``rows_a`` and ``rows_b`` are int64 of the same length, each row at most once, in the order of ``rows_a``.
    ``coverage_a`` is the part of A's tokens (special ones not counted, unless included) that has a partner.
    """

    rows_a: np.ndarray
    rows_b: np.ndarray
    identical: bool
    coverage_a: float
    coverage_b: float
    lowercased: bool
    left_out: int = 0

    @property
    def n(self) -> int:
        """Number of shared tokens."""
        return len(self.rows_a)

    def sentence(self) -> str:
        """Return what was matched, for a person."""
        if self.identical:
            left = plural(self.left_out, "special or unused one")
            rest = f"; {left} {agree(self.left_out, 'is', 'are')} left out" if self.left_out else ""
            return f"Both models have the same vocabulary, {plural(self.n, 'token')}{rest}."
        case = ", compared in lower case" if self.lowercased else ""
        return (
            f"The models share {plural(self.n, 'token')}{case}: {self.coverage_a:.0%} of the first vocabulary "
            f"and {self.coverage_b:.0%} of the second; all else is left out."
        )


def match_vocabularies(
    a: Tokens, b: Tokens, *, include_special: bool = False, override: bool = False
) -> VocabularyMatch:
    """Pair the rows of two vocabularies.

    Identical vocabularies are paired row by row. Others are paired by text and by whether the token starts a
    word, in lower case only if both tokenizers lower-case, and only where that is unique on each side. Special
    tokens are left out unless ``include_special``.

    Raises ``Incomparable`` below 1,000 shared tokens or a tenth of the smaller vocabulary, unless ``override`` is
    set, and always where nothing is shared.
    """
    identical = a.raw == b.raw and a.scheme == b.scheme
    if identical:
        keep = np.ones(len(a), dtype=bool) if include_special else ~(a.special | b.special)
        rows_a = rows_b = np.flatnonzero(keep).astype(np.int64)
        lowercased, usable_a, usable_b = False, int(keep.sum()), int(keep.sum())
    else:
        lowercased = a.uncased and b.uncased
        names_a, usable_a = _unique(a, lowercased, include_special)
        names_b, usable_b = _unique(b, lowercased, include_special)
        pairs = [(row, names_b[name]) for name, row in names_a.items() if name in names_b]
        paired = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        rows_a, rows_b = paired[:, 0], paired[:, 1]
    _check(len(rows_a), usable_a, usable_b, override)
    return VocabularyMatch(
        rows_a=rows_a,
        rows_b=rows_b,
        identical=identical,
        coverage_a=len(rows_a) / usable_a,
        coverage_b=len(rows_b) / usable_b,
        lowercased=lowercased,
        left_out=len(a) - len(rows_a),
    )


def _unique(tokens: Tokens, lower: bool, include_special: bool) -> tuple[dict[tuple[str, bool, bool], int], int]:
    """Return the row of every name that only one token has, and how many tokens were looked at."""
    names = [
        (text.lower() if lower and not special else text, bool(starts), bool(special))
        for text, starts, special in zip(tokens.text, tokens.starts_word, tokens.special, strict=True)
    ]
    seen = [(name, row) for row, name in enumerate(names) if include_special or not name[2]]
    counts = Counter(name for name, _ in seen)
    return {name: row for name, row in seen if counts[name] == 1}, len(seen)


def _check(shared: int, usable_a: int, usable_b: int, override: bool) -> None:
    smaller = min(usable_a, usable_b)
    needed = max(SMALLEST_MATCH, SMALLEST_SHARE * smaller)
    if shared >= needed or (override and shared > 0):
        return
    counts = f"The vocabularies share {plural(shared, 'token')} (the first has {usable_a:,}, the second {usable_b:,})"
    if shared == 0:
        raise Incomparable(
            f"{counts}, so the models cannot be compared in embedding space; use feature space (parameters: models "
            "of one width only; hidden states: any two)."
        )
    raise Incomparable(
        f"{counts}, and fewer than {needed:,.0f} do not carry a comparison in embedding space; "
        "use feature space, or allow a small overlap (--small-overlap; in Python small_overlap=True) and read the "
        "numbers with care."
    )
