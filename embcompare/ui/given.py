"""What this session brought, or followed a link to: texts and vectors, by name, with how they are called.

The things themselves are kept by what they hold (:mod:`embcompare.shelf`); which of them are offered is each session's
own affair, so that nobody sees in a list what somebody else has brought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from embcompare.errors import SettingsError
from embcompare.models import policy
from embcompare.shelf import BUNDLED, TRANSLATIONS, Shelf, digest_of
from embcompare.ui import runs
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

TEXTS, VECTORS = "given.texts", "given.vectors"
"""Where a session remembers its own: label by name, ``text/DIGEST`` and ``vectors/DIGEST``."""
_KIND = {TEXTS: "text", VECTORS: "vectors"}


def shelf() -> Shelf:
    """Return where texts and vectors are kept, beside the results."""
    return Shelf(runs.queue().store)


def own(kind: str) -> dict[str, str]:
    """Return what this session brought or followed a link to, ``TEXTS`` or ``VECTORS``, label by name.

    On one's own machine all that is kept there is one's own.
    """
    known: dict[str, str] = st.session_state.setdefault(kind, {})
    listed = f"{kind}.listed"
    if listed not in st.session_state and not policy.hosted():
        st.session_state[listed] = True
        for item in shelf().entries():
            if item.kind == _KIND[kind] and item.name not in known:
                known[item.name] = item.title or f"{item.name[:16]}…"
    return known


def called(name: str) -> str:
    """Return how a text or vectors are called in this session; the start of the digest where they are not its own."""
    label = own(TEXTS).get(name) or own(VECTORS).get(name)
    return label or (f"{name[:16]}…" if digest_of(name) else name)


def keep_text(found: Corpus) -> str:
    """Keep a text, remember it as this session's own, and return its name."""
    name = shelf().keep_corpus(found)
    remember_text(name, found)
    return name


def keep_vectors(found: Vectors) -> str:
    """Keep vectors, remember them as this session's own, and return their name."""
    name = shelf().keep_vectors(found)
    remember_vectors(name, found)
    return name


def read_corpus(text: str) -> str:
    """Read the name of a text as a link gives it; raises :class:`SettingsError` when this machine has no such text.

    Whoever follows a link to a text has it among the session's own from then on.
    """
    if text not in (*BUNDLED, *TRANSLATIONS):
        if not text.startswith("text/") or digest_of(text) is None:
            raise SettingsError(
                f"it can be {' or '.join(BUNDLED)}, or text/ and the 64 digits that name a text you gave"
            )
        remember_text(text, shelf().corpus(text))
    return text


def read_kept_vectors(text: str) -> str:
    """Read the name of kept vectors as a link gives it; raises :class:`SettingsError` when this machine has none."""
    if not text.startswith("vectors/") or digest_of(text) is None:
        raise SettingsError("it can be vectors/ and the 64 digits that name a file you gave")
    remember_vectors(text, shelf().vectors(text))
    return text


def remember_text(name: str, found: Corpus) -> None:
    """Remember a kept text as this session's own."""
    _remember(TEXTS, name, f"{found.name} · {sentences(len(found))}")


def remember_vectors(name: str, found: Vectors) -> None:
    """Remember kept vectors as this session's own."""
    _remember(VECTORS, name, f"{found.name} · {found.size_in_words()}")


def sentences(count: int) -> str:
    """Say a number of sentences."""
    return plural(count, "sentence")


def _remember(kind: str, name: str, label: str) -> None:
    others = [known for other, known in own(kind).items() if other != name]
    digest = digest_of(name) or ""
    own(kind)[name] = label if label not in others else f"{label} ({digest[:6]})"
