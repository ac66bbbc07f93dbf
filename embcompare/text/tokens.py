"""What each row of E stands for: its text, whether it starts a word, whether it is a special token.

Tokenizers mark words in four ways: byte-level BPE writes the space before a word as ``Ġ`` and every byte as a
letter, sentencepiece writes it as ``▁``, WordPiece marks the rest of a word with ``##``, and a word-level
vocabulary marks nothing. Here all four become the same two things: a text and a flag.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Scheme = Literal["bytes", "sentencepiece", "wordpiece", "words"]

_UNUSED = re.compile(
    r"^(\[unused\d+\]|<unused\d+>|<extra_id_\d+>|madeupword\d+|<\|reserved_special_token_\d+\|>|<reserved_\d+>"
    r"|</?s>|<(unk|pad|mask|bos|eos|cls|sep)>)$"
)
_VISIBLE = {" ": "␠", "\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\u00a0": "⍽", "\u00ad": "‑?"}


@dataclass(frozen=True, eq=False)
class Tokens:
    r"""The vocabulary of a model, row by row of E.

    ``raw`` is the tokenizer's own spelling; ``text`` the readable one (Unicode NFC), without word marks; bytes that
    are no text alone are written ``\xNN``. ``starts_word`` says that the token begins a word; ``special`` marks
    control tokens, unused ones and rows without a token. ``uncased`` says that the tokenizer lower-cases its input.
    """

    raw: tuple[str, ...]
    text: tuple[str, ...]
    starts_word: np.ndarray
    special: np.ndarray
    uncased: bool = False
    scheme: Scheme = "words"

    def __post_init__(self) -> None:
        sizes = {len(self.raw), len(self.text), len(self.starts_word), len(self.special)}
        if len(sizes) != 1:
            raise ValueError(f"raw, text, starts_word and special differ in length: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.raw)

    def display(self, index: int) -> str:
        """Return token ``index`` as a person reads it: ``word``, ``##ing`` inside a word, white space visible.

        Where the tokenizer marks what starts a word, punctuation stands bare; where it marks what does not, as
        WordPiece does, ``##-`` is another token than ``-`` and shown so. In a vocabulary without word marks nothing is
        prefixed; special tokens are shown as the tokenizer spells them.
        """
        if self.special[index]:
            return visible(self.raw[index]) or f"[row {index}]"
        shown = visible(self.text[index])
        if self.starts_word[index]:
            return shown or "␠"
        marked = self.scheme == "wordpiece" or any(c.isalnum() for c in self.text[index])
        inside = self.scheme != "words" and marked
        return f"##{shown}" if inside else shown

    @functools.cached_property
    def displays(self) -> tuple[str, ...]:
        """:meth:`display` of every token."""
        return tuple(self.display(i) for i in range(len(self)))


def visible(text: str) -> str:
    """Return ``text`` with white space and control characters replaced by signs that can be seen.

    A space inside other text stays a space.
    """
    bare = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    if not bare:
        return "␠" * len(text)
    tail = len(text) - lead - len(bare)
    return "␠" * lead + "".join(_sign(c) for c in bare) + "␠" * tail


def tokens_from_tokenizer(tokenizer: Any, n_rows: int) -> Tokens:
    """Return the tokens of the first ``n_rows`` rows of E from a transformers tokenizer.

    A row the tokenizer has no token for is special and has an empty spelling.
    """
    raw = [""] * n_rows
    for token, index in tokenizer.get_vocab().items():
        if 0 <= index < n_rows:
            raw[index] = token
    scheme, uncased, prefix = _scheme(tokenizer, raw)
    special = np.array([not token or bool(_UNUSED.match(token)) for token in raw], dtype=bool)
    control = set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    control |= {index for index, token in added.items() if getattr(token, "special", False)}
    for index in control:
        if 0 <= index < n_rows:
            special[index] = True
    text, starts = [], np.zeros(n_rows, dtype=bool)
    for index, token in enumerate(raw):
        if special[index]:
            text.append(token)
            continue
        plain = index in added
        shown, starts[index] = _add_flag(token) if plain else _surface(token, scheme, prefix)
        text.append(unicodedata.normalize("NFC", shown))
    return Tokens(tuple(raw), tuple(text), starts, special, uncased, scheme)


def _add_flag(token: str) -> tuple[str, bool]:
    """Read a token that was added by hand: it is spelt as plain text."""
    return (token[1:], True) if token.startswith(" ") else (token, False)


def _surface(token: str, scheme: Scheme, prefix: str) -> tuple[str, bool]:
    if scheme == "words":
        return token, True
    if scheme == "wordpiece":
        inside = token.startswith(prefix) and len(token) > len(prefix)
        return (token.removeprefix(prefix), False) if inside else (token, True)
    if scheme == "sentencepiece":
        starts = token.startswith("▁")
        return token.removeprefix("▁").replace("▁", " "), starts
    decoded = _decode_bytes(token)
    return decoded.removeprefix(" "), decoded.startswith(" ")


@functools.cache
def _byte_of() -> dict[str, int]:
    """Return which byte each letter of a byte-level vocabulary stands for.

    Printable bytes stand for themselves; the others were given the code points from 256 on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + i): byte for i, byte in enumerate(rest)}


def _decode_bytes(token: str) -> str:
    table = _byte_of()
    if any(c not in table for c in token):
        return token
    return bytes(table[c] for c in token).decode("utf-8", errors="backslashreplace")


def _scheme(tokenizer: Any, raw: list[str]) -> tuple[Scheme, bool, str]:
    """Return how the tokenizer marks words, whether it lower-cases, and the mark of a word's rest."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = {name: _state(getattr(backend, name, None)) for name in ("decoder", "pre_tokenizer", "normalizer")}
    written = parts["decoder"] + parts["pre_tokenizer"] + parts["normalizer"]
    lowers = '"type":"Lowercase"' in parts["normalizer"] or '"lowercase":true' in parts["normalizer"]
    uncased = lowers if backend is not None else bool(getattr(tokenizer, "do_lower_case", False))
    prefix = "##"
    model = getattr(backend, "model", None)
    if type(model).__name__ == "WordPiece":
        prefix = getattr(model, "continuing_subword_prefix", None) or "##"
        return "wordpiece", uncased, prefix
    if '"type":"ByteLevel"' in written:
        return "bytes", uncased, prefix
    if '"type":"Metaspace"' in written or "▁" in written:
        return "sentencepiece", uncased, prefix
    counts: dict[Scheme, int] = {
        "sentencepiece": sum(token.startswith("▁") for token in raw),
        "bytes": sum(token.startswith("Ġ") for token in raw),
        "wordpiece": sum(token.startswith("##") for token in raw),
    }
    best = max(counts, key=lambda name: counts[name])
    return (best if counts[best] > len(raw) // 100 else "words"), uncased, prefix


def _state(part: Any) -> str:
    """Return a tokenizer component's settings as compact JSON text; empty where there is none."""
    if part is None or not hasattr(part, "__getstate__"):
        return ""
    state = part.__getstate__()
    if not isinstance(state, bytes):
        return ""
    return json.dumps(json.loads(state), ensure_ascii=False, separators=(",", ":"))


def _sign(character: str) -> str:
    if character == " ":
        return character
    if character in _VISIBLE:
        return _VISIBLE[character]
    if ord(character) < 32:
        return chr(0x2400 + ord(character))
    return character if character.isprintable() else f"\\u{ord(character):04x}"
