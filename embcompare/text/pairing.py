"""Which rows of two sets of vectors stand for the same thing: by their ids, or by their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.words import agree, one_line, plural

if TYPE_CHECKING:
    from embcompare.text.uploads import Vectors

PAIRINGS = ("auto", "row", "id")
"""Ways to pair the rows of two sets: by id where both have ids, else in their order; in their order; by id."""


@dataclass(frozen=True, eq=False)
class Pairing:
    """Rows of two sets that stand for the same thing: ``rows_a`` and ``rows_b`` are int64 of one length.

    ``by`` is what paired them, ``"row"`` or ``"id"``; ``coverage_a`` is the share of A's rows that have a partner.
    ``warning`` says that rows are paired in their order though their ids say otherwise; else it is empty.
    """

    rows_a: np.ndarray
    rows_b: np.ndarray
    by: str
    coverage_a: float
    coverage_b: float
    warning: str = ""

    def __len__(self) -> int:
        return len(self.rows_a)

    def sentence(self) -> str:
        """Return what was paired, for a person."""
        if self.by == "row":
            many = f"All {len(self):,} rows are paired in their order."
            return "The one row of each is paired." if len(self) == 1 else many
        if self.coverage_a == self.coverage_b == 1:
            return f"All {len(self):,} rows are paired by id." if len(self) > 1 else "The one row of each is paired."
        return (
            f"{plural(len(self), 'row')} {agree(len(self), 'is', 'are')} paired by id: {self.coverage_a:.1%} of the "
            f"first and {self.coverage_b:.1%} of the second; the rest is left out."
        )


def pair_vectors(a: Vectors, b: Vectors, by: str = "auto") -> Pairing:
    """Pair rows in their order (``"row"``), by equal ids (``"id"``, in the order of ``a``), or as they can be.

    ``"auto"`` pairs by id where both sides have ids, else in their order. Raises ``Incomparable`` when the numbers of
    rows differ, when ids are missing, or when none is shared.
    """
    if by not in PAIRINGS:
        raise SettingsError(f"Rows cannot be paired by {by!r}; choose auto, row or id.")
    if by == "auto":
        by = "id" if a.ids and b.ids else "row"
    if by == "row":
        if len(a) != len(b):
            raise Incomparable(
                f"{a.name} has {plural(len(a), 'row')} and {b.name} has {len(b):,}, so they cannot be paired in their "
                "order; give files with equally many rows, or ids in both."
            )
        rows = np.arange(len(a), dtype=np.int64)
        return Pairing(rows, rows, by, 1.0, 1.0, _against_ids(a, b))
    for side in (a, b):
        if not side.ids:
            raise Incomparable(f"{side.name} has no ids to pair by; add an array or column called ids, or pair by row.")
    at_b = {name: row for row, name in enumerate(b.ids)}
    pairs = [(row, at_b[name]) for row, name in enumerate(a.ids) if name in at_b]
    if not pairs:
        raise Incomparable(
            f"{a.name} and {b.name} share no id (the first begins with '{one_line(a.ids[0])}', the second with "
            f"'{one_line(b.ids[0])}'); give both the same names, or pair by row."
        )
    chosen = np.array(pairs, dtype=np.int64)
    return Pairing(chosen[:, 0], chosen[:, 1], by, len(pairs) / len(a), len(pairs) / len(b))


def _against_ids(a: Vectors, b: Vectors) -> str:
    """Return what to know of rows paired in their order, whose ids say otherwise; empty where they do not."""
    if not (a.ids and b.ids):
        return ""
    differ = [row for row, (one, other) in enumerate(zip(a.ids, b.ids, strict=True)) if one != other]
    if not differ:
        return ""
    first, many = differ[0], f"{len(differ):,} of {plural(len(a), 'row')} {agree(len(differ), 'is', 'are')}"
    return (
        f"{many} paired against {agree(len(differ), 'its id', 'their ids')}: row {first:,} is "
        f"'{one_line(a.ids[first])}' in {a.name} and '{one_line(b.ids[first])}' in {b.name}. Unless the ids mean "
        "nothing, pair by id."
    )
