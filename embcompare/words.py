"""How a sentence names a count, a size or what somebody typed."""

from __future__ import annotations

_MOST = 10**18
_SCALES = ((10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: ``1 cell``, ``1,200 cells``; ``many`` where the plural is not regular."""
    return f"{count:,} {agree(count, noun, many)}"


def agree(count: int, one: str, many: str = "") -> str:
    """Return the word that goes with ``count``, without the count; ``many`` where the plural is not regular."""
    if count == 1:
        return one
    if many:
        return many
    if one.endswith("y") and one[-2:-1] not in "aeiou":
        return f"{one[:-1]}ies"
    return f"{one}es" if one.endswith(("s", "x", "ch", "sh")) and one != "epoch" else f"{one}s"


def in_words(count: float) -> str:
    """Return a number of bytes as a person reads it: ``1 byte``, ``1.2 GB``."""
    if count >= _MOST:  # also what is too large for a float
        return "more than a million TB"
    if count < 1000:
        return plural(int(count), "byte")
    said = ""
    for scale, unit in _SCALES:
        amount = count / scale
        text = f"{amount:.0f}" if amount >= 99.95 else f"{amount:.1f}"
        said = f"{text} {unit}"
        if float(text) < 1000:
            break
    return said


def apart(*counts: int) -> tuple[str, ...]:
    """Return numbers of bytes as :func:`in_words` does, or byte by byte where different ones would read the same."""
    said = tuple(map(in_words, counts))
    if len(set(said)) == len(set(counts)):
        return said
    return tuple(plural(count, "byte") for count in counts)


def one_line(text: object, most: int = 60) -> str:
    """Return what somebody typed, or a name in a file, for a sentence: printable, on one line, cut where it is long."""
    whole = str(text)
    line = "".join(each if each.isprintable() else "?" for each in whole[: most + 1])
    return line if len(whole) <= most else f"{line[:most]}…"
