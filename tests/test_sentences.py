"""How sentences name counts, sizes and what somebody typed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embcompare.models import memory
from embcompare.words import agree, apart, in_words, one_line, plural


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "cell", "0 cells"),
        (1, "cell", "1 cell"),
        (2, "cell", "2 cells"),
        (1234, "row", "1,234 rows"),
        (2, "vocabulary", "2 vocabularies"),
        (2, "key", "2 keys"),
        (2, "box", "2 boxes"),
        (2, "match", "2 matches"),
    ],
)
def test_a_count_agrees_with_its_noun(count, noun, text):
    assert plural(count, noun) == text


def test_irregular_plurals_and_verbs_are_given():
    assert plural(2, "index", "indices") == "2 indices"
    assert (agree(1, "is", "are"), agree(0, "is", "are"), agree(5, "is", "are")) == ("is", "are", "are")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (1500, "1.5 kB"), (99_949, "99.9 kB"),
        (99_950, "100 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"), (5 * 2**20, "5.2 MB"), (3 * 2**30, "3.2 GB"),
        (5e13, "50.0 TB"), (10**400, "more than a million TB"),
    ],
)  # fmt: skip
def test_sizes_read_well(count, text):
    assert in_words(count) == text
    assert memory.in_words is in_words


@given(st.integers(0, 10**17))
def test_a_size_is_never_said_as_nothing_nor_with_four_digits(count):
    number, _, unit = in_words(count).partition(" ")
    assert (float(number) > 0) == (count > 0)
    assert float(number) < 1000 or unit == "TB"


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_sizes_that_differ_are_said_apart(a, b):
    one, other = apart(a, b)
    assert (one == other) == (a == b)


def test_sizes_that_read_alike_are_told_byte_by_byte():
    assert apart(1_000_000_001, 1_000_000_000) == ("1,000,000,001 bytes", "1,000,000,000 bytes")
    assert apart(3_000_000, 20) == ("3.0 MB", "20 bytes")


def test_what_was_typed_stays_on_one_line_and_short():
    assert one_line("a\nb\x1b[31m\ud800") == "a?b?[31m?"
    assert one_line("x" * 61) == "x" * 60 + "…"
    assert one_line("x" * 60) == "x" * 60
