"""Labelled texts that ship: short reviews, in favour or against, on which a classifier can be tried."""

from __future__ import annotations

import functools
from importlib.resources import files

from embcompare.text.corpora import Corpus


@functools.cache
def shipped_reviews() -> Corpus:
    """Return the reviews that ship: 480 of 5 to 37 words, half labelled ``positive`` and half ``negative``.

    Written for embcompare, so no model has seen them. Rather more than half are about films; the others about books,
    meals, hotels, shops, concerts, apps, courses and the like, most subjects with either label. Labels take turns, so
    any even number of reviews from the beginning is balanced too.
    """
    text = (files("embcompare.text") / "reviews.tsv").read_text(encoding="utf-8")
    labels, sentences = zip(*(line.split("\t") for line in text.splitlines()), strict=True)
    return Corpus("shipped reviews", sentences, labels, {"source": "written for embcompare", "license": "MIT"})
