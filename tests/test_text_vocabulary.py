"""Which rows are the same token: pairs are true, unique, symmetric, and too few are refused."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from embcompare.errors import Incomparable
from embcompare.text import Tokens, match_vocabularies


def tokens(entries, uncased=False, scheme="wordpiece"):
    """Make a vocabulary of (text, starts word, special) entries."""
    text = tuple(e[0] for e in entries)
    raw = tuple(f"{i}:{e}" for i, e in enumerate(entries))
    starts = np.array([e[1] for e in entries], dtype=bool)
    special = np.array([e[2] for e in entries], dtype=bool)
    return Tokens(raw, text, starts, special, uncased, scheme)


def plain(words):
    return tokens([(w, True, False) for w in words])


ENTRY = st.tuples(st.text("abAB", min_size=1, max_size=3), st.booleans(), st.sampled_from([False, False, False, True]))
VOCABULARY = st.lists(ENTRY, min_size=1, max_size=40)


@given(VOCABULARY, VOCABULARY, st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_pairs_are_true_unique_and_symmetric(left, right, uncased_a, uncased_b, include_special):
    a, b = tokens(left, uncased_a), tokens(right, uncased_b)
    options = {"override": True, "include_special": include_special}
    try:
        match = match_vocabularies(a, b, **options)
    except Incomparable:
        with pytest.raises(Incomparable):
            match_vocabularies(b, a, **options)
        return
    swapped = match_vocabularies(b, a, **options)
    assert set(zip(match.rows_a.tolist(), match.rows_b.tolist(), strict=True)) == set(
        zip(swapped.rows_b.tolist(), swapped.rows_a.tolist(), strict=True)
    )
    assert (match.coverage_a, match.coverage_b) == (swapped.coverage_b, swapped.coverage_a)
    assert len(set(match.rows_a.tolist())) == len(set(match.rows_b.tolist())) == match.n > 0
    assert match.rows_a.dtype == match.rows_b.dtype == np.int64
    assert (np.diff(match.rows_a) > 0).all()
    assert match.lowercased == ((uncased_a and uncased_b) and not match.identical)
    for i, j in zip(match.rows_a, match.rows_b, strict=True):
        x, y = (a.text[i], b.text[j])
        assert x == y or (match.lowercased and x.lower() == y.lower())
        assert a.starts_word[i] == b.starts_word[j]
        assert a.special[i] == b.special[j]
        assert include_special or not a.special[i]


@given(VOCABULARY, st.randoms())
@settings(deadline=None)
def test_a_shuffled_vocabulary_matches_all_that_is_unique(entries, random):
    order = list(range(len(entries)))
    random.shuffle(order)
    a, b = tokens(entries), tokens([entries[k] for k in order])
    assume(a.raw != b.raw)
    usable = [e for e in entries if not e[2]]
    unique = [e for e in usable if usable.count(e) == 1]
    if not unique:
        with pytest.raises(Incomparable):
            match_vocabularies(a, b, override=True)
        return
    match = match_vocabularies(a, b, override=True)
    assert match.n == len(unique)
    assert all(entries[i] == entries[order[j]] for i, j in zip(match.rows_a, match.rows_b, strict=True))


def many(n, prefix="w"):
    return [f"{prefix}{k}" for k in range(n)]


def test_identical_vocabularies_pair_every_row_even_duplicates_but_no_special_ones():
    entries = [("same", True, False)] * 3 + [("x", True, True)] + [(w, True, False) for w in many(1000)]
    a = tokens(entries)
    match = match_vocabularies(a, tokens(entries))
    assert match.identical
    assert match.rows_a.tolist() == match.rows_b.tolist() == [0, 1, 2, *range(4, 1004)]
    assert (match.coverage_a, match.coverage_b) == (1.0, 1.0)
    assert (
        match.sentence() == "Both models have the same vocabulary, 1,003 tokens; 1 special or unused one is left out."
    )
    assert match_vocabularies(a, a, include_special=True).n == 1004


def test_the_word_start_is_part_of_the_token():
    a = tokens([("ing", False, False), ("ing", True, False), *((w, True, False) for w in many(1000))])
    b = tokens([("ing", True, False), *((w, True, False) for w in many(1000))])
    match = match_vocabularies(a, b)
    assert match.rows_a[match.rows_b == 0].tolist() == [1]
    assert match.n == 1001


def test_case_is_dropped_only_if_both_drop_it():
    lower, upper = [(w, True, False) for w in many(1200)], [(w.upper(), True, False) for w in many(1200)]
    both = match_vocabularies(tokens(lower, True), tokens(upper, True))
    assert both.n == 1200
    assert both.lowercased
    assert "lower case" in both.sentence()
    for flags in ((True, False), (False, True), (False, False)):
        with pytest.raises(Incomparable):
            match_vocabularies(tokens(lower, flags[0]), tokens(upper, flags[1]))


def test_lower_casing_that_makes_tokens_alike_drops_both():
    words = [(w, True, False) for w in many(1000)]
    a = tokens([("It", True, False), ("it", True, False), *words], True)
    b = tokens([*words, ("it", True, False)], True)
    match = match_vocabularies(a, b)
    assert match.n == 1000
    assert 0 not in match.rows_a


def test_too_few_shared_tokens_are_refused_with_counts_and_the_way_out():
    a, b = plain(many(999) + many(500, "a")), plain(many(999) + many(700, "b"))
    with pytest.raises(Incomparable, match=r"share 999 tokens .*1,499.*1,699.*fewer than 1,000") as caught:
        match_vocabularies(a, b)
    assert "allow a small overlap (--small-overlap; in Python small_overlap=True)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert match_vocabularies(a, b, override=True).n == 999


def test_a_tenth_of_the_smaller_vocabulary_is_needed():
    shared = many(1500)
    a, b = plain(shared + many(18_500, "a")), plain(shared + many(30_000, "b"))
    with pytest.raises(Incomparable, match="fewer than 2,000"):
        match_vocabularies(a, b)
    assert match_vocabularies(plain(shared + many(13_000, "a")), b).n == 1500


def test_nothing_shared_is_refused_even_if_overridden():
    with pytest.raises(Incomparable, match="share 0 tokens"):
        match_vocabularies(plain(many(5, "a")), plain(many(5, "b")), override=True)


def test_small_identical_vocabularies_are_refused_too():
    a = plain(many(300))
    with pytest.raises(Incomparable, match="share 300"):
        match_vocabularies(a, a)


def test_coverage_is_of_ordinary_tokens():
    a = tokens([("[x]", False, True), *((w, True, False) for w in many(2000))])
    b = plain(many(1000) + many(3000, "b"))
    match = match_vocabularies(a, b)
    assert (match.coverage_a, match.coverage_b) == (0.5, 0.25)
    assert "1,000 tokens: 50% of the first vocabulary and 25% of the second" in match.sentence()


def test_tiny_models_of_three_schemes_share_their_words(tiny_model):
    names = ("bert-mlm", "gpt2", "llama")
    for one in names:
        for other in names:
            a, b = tiny_model(one).tokens, tiny_model(other).tokens
            match = match_vocabularies(a, b, override=True)
            assert match.identical == (one == other)
            for i, j in list(zip(match.rows_a, match.rows_b, strict=True))[::50]:
                assert a.display(i) == b.display(j)
