"""Which row of E a person means by a piece of text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import SettingsError
from embcompare.text.tokens import visible
from embcompare.words import one_line

if TYPE_CHECKING:
    from embcompare.text import Tokens

_NEAREST = 5
_PIECES = 8

Pieces = Callable[[str], Sequence[int]]
"""How a tokenizer writes a text: the rows of its tokens, no special ones added."""


def find_token(tokens: Tokens, text: str, label: str, size: int, pieces: Pieces | None = None) -> tuple[int, str]:
    """Return the row of E, among the first ``size``, of the token that ``text`` spells, and a notice or "".

    Word marks are read in every tokenizer's spelling: a leading space, ``Ġ`` or ``▁`` asks for a token that starts a
    word, a leading ``##`` for one that does not; without a mark the one that starts a word comes first. Tokenizers that
    lower-case their input match in lower case. The tokenizer's own spelling always works. An absent token raises
    :class:`SettingsError` that names the nearest there are, and with ``pieces`` those that the text is written with.
    """
    if not text.strip(" "):
        raise SettingsError("Token is empty; give a token as text, such as dog.")
    for own in (text, text.strip(" ")):
        if own in tokens.raw[:size]:
            row = tokens.raw.index(own)
            # plain text is read as text below, so that a bare word finds its token at the start of a word first
            if own != tokens.text[row] or tokens.starts_word[row] or tokens.special[row]:
                return row, ""
    wanted, starts = _parsed(text)
    wanted = wanted.lower() if tokens.uncased else wanted
    rows = [row for row in range(size) if tokens.text[row] == wanted and not tokens.special[row]]
    fitting = [row for row in rows if starts is None or bool(tokens.starts_word[row]) is starts]
    if not fitting:
        raise SettingsError(_absent(tokens, text, wanted, rows, label, size, pieces))
    chosen = max(fitting, key=lambda row: bool(tokens.starts_word[row]))
    others = [tokens.display(row) for row in rows if row != chosen]
    if starts is not None or not others:
        return chosen, ""
    return chosen, (
        f"{label} reads {text.strip()} as {tokens.display(chosen)}; written alike are {', '.join(others[:_NEAREST])}."
    )


def _parsed(text: str) -> tuple[str, bool | None]:
    """Return the bare text, and whether a mark says that it starts a word; None where none says."""
    for mark in (" ", "Ġ", "▁", "␠"):
        if text.startswith(mark) and len(text) > len(mark):
            return text.removeprefix(mark).strip(" "), True
    if text.startswith("##") and len(text) > 2:
        return text[2:].strip(" "), False
    return text.strip(" "), None


def _absent(
    tokens: Tokens, text: str, wanted: str, alike: list[int], label: str, size: int, pieces: Pieces | None
) -> str:
    said = f"{label} has no token '{one_line(visible(text))}'"
    if alike:
        kind = "inside a word" if not tokens.starts_word[alike[0]] else "at the start of a word"
        return f"{said}; it has {', '.join(tokens.display(row) for row in alike)} {kind}, so give that."
    written = "" if pieces is None else _written(tokens, text, size, pieces)
    if written:
        said += f"; it is written {written}, and each of these can be searched"
    near = nearest_tokens(tokens, wanted, size)
    if not near:
        return f"{said}." if written else f"{said} and none that is spelt alike; give another."
    return f"{said}; the nearest it has are {', '.join(tokens.display(row) for row in near)}."


def _written(tokens: Tokens, text: str, size: int, pieces: Pieces) -> str:
    """Return the tokens that a word is written with; "" where they are unknown or no more than one."""
    bare, starts = _parsed(text)
    if starts is False:
        return ""
    # whether a word that begins the text is written as behind a space is each tokenizer's own affair
    forms = [list(pieces(form)) for form in (bare, f" {bare}")]
    if any(row >= size for rows in forms for row in rows):
        return ""
    rows = next((rows for rows in forms if rows and tokens.starts_word[rows[0]] and tokens.text[rows[0]]), forms[0])
    if len(rows) < 2 or tokens.special[rows].any():
        return ""
    return " ".join([tokens.display(row) for row in rows[:_PIECES]] + (["…"] if len(rows) > _PIECES else []))


def nearest_tokens(tokens: Tokens, wanted: str, size: int, count: int = _NEAREST) -> list[int]:
    """Return the rows of the tokens spelt most like ``wanted``, the likest first, case aside."""
    wanted = wanted.casefold()
    plain = [text.casefold() for text in tokens.text[:size]]
    # difflib takes seconds over a whole vocabulary: only what begins or ends alike and is not much shorter or longer
    candidates = [
        row
        for row, text in enumerate(plain)
        if not tokens.special[row]
        and text
        and (
            (abs(len(text) - len(wanted)) <= 2 and (text[0] == wanted[:1] or text[-2:] == wanted[-2:]))
            or (len(text) > 2 and wanted.startswith(text))
        )
    ]
    likeness = np.array([difflib.SequenceMatcher(None, wanted, plain[row]).ratio() for row in candidates])
    order = np.argsort(-likeness, kind="stable")
    return [candidates[place] for place in order[:count] if likeness[place] > 0.3]
