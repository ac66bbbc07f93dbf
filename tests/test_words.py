from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import bytes_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer

from embcompare.errors import Incomparable, SettingsError
from embcompare.text import words as module
from embcompare.text.corpora import shipped_corpus
from embcompare.text.encoding import encode, tokenizer_limit
from embcompare.text.tokens import tokens_from_tokenizer
from embcompare.text.words import (
    TokenIndex,
    align_words,
    offsets_by_surface,
    pool_words,
    segment_means,
    word_rows,
    word_spans,
    words_of_tokens,
)

TOKENIZERS = {"wordpiece": wordpiece_tokenizer, "bytes": bytes_tokenizer, "sentencepiece": sentencepiece_tokenizer}
TEXT = st.text(st.sampled_from("abé1_ ,.'’-\t\u0301\u200d日本☃"), max_size=30)
CUTS = st.lists(st.integers(0, 30))


def index_of(spans):
    """An index of the tokens of several sentences, given by their characters alone."""
    flat = [(number, start, end) for number, some in enumerate(spans) for start, end in some]
    table = np.array(flat, dtype=np.int64).reshape(-1, 3)
    places = np.concatenate([np.arange(len(some)) for some in spans]) if spans else np.empty(0)
    return TokenIndex(table[:, 0], places, np.zeros(len(table), int), table[:, 1], table[:, 2])


def cuts(text, places):
    """Tokens that cut ``text`` at these places."""
    bounds = sorted({0, len(text), *(place for place in places if place < len(text))})
    return list(pairwise(bounds))


class TestSpans:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("The cat, it's fat!", ["The", "cat", ",", "it's", "fat", "!"]),
            ("don’t -- stop...", ["don’t", "--", "stop", "..."]),
            ("'tis the dogs' bed", ["'", "tis", "the", "dogs", "'", "bed"]),
            ("well-known snake_case x2", ["well", "-", "known", "snake_case", "x2"]),
            ("nai\u0308ve café", ["nai\u0308ve", "café"]),
            ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
            ("日本語 です。", ["日本語", "です", "。"]),
            ("a\u00a0b\tc\u2003d", ["a", "b", "c", "d"]),
            ("👩‍👩‍👧 ok", ["👩‍👩‍👧", "ok"]),
            ("", []),
            ("   ", []),
        ],
    )
    def test_words_are_runs_of_letters_and_runs_of_the_rest(self, text, words):
        assert [text[start:end] for start, end in word_spans(text)] == words

    @given(TEXT)
    def test_words_cover_all_that_is_not_white_space_once_and_in_order(self, text):
        spans = word_spans(text)
        inside = [at for start, end in spans for at in range(start, end)]
        assert inside == [at for at, letter in enumerate(text) if not letter.isspace()]
        assert all(start < end for start, end in spans)

    @given(TEXT, TEXT)
    def test_words_do_not_depend_on_what_stands_behind_a_space(self, left, right):
        spans = word_spans(f"{left} {right}")
        shift = len(left) + 1
        assert spans[: len(word_spans(left))] == word_spans(left)
        assert spans[len(word_spans(left)) :] == [(s + shift, e + shift) for s, e in word_spans(right)]


class TestWordsOfTokens:
    def test_tokens_are_gathered_into_the_words_that_hold_them(self):
        text = "unhappy cat, go"
        tokens = [(0, 2), (2, 7), (7, 11), (11, 12), (12, 15)]  # a space belongs to the token behind it
        assert words_of_tokens(text, tokens) == [(0, 7, 0, 2), (8, 11, 2, 1), (11, 12, 3, 1), (13, 15, 4, 1)]

    def test_a_word_that_a_token_shares_with_a_neighbour_does_not_count_nor_does_the_neighbour(self):
        assert words_of_tokens("cat, go on", [(0, 4), (5, 7), (8, 10)]) == [(5, 7, 1, 1), (8, 10, 2, 1)]
        assert words_of_tokens("go on up", [(0, 5), (6, 8)]) == [(6, 8, 1, 1)]

    def test_a_word_that_is_covered_in_part_does_not_count(self):
        assert words_of_tokens("long word", [(0, 4), (5, 7)]) == [(0, 4, 0, 1)]  # cut in the middle of the last word
        assert words_of_tokens("ab cd", [(0, 1), (-1, -1), (3, 5)]) == [(3, 5, 2, 1)]
        assert words_of_tokens("abc", [(0, 1), (-1, -1), (1, 3)]) == []  # an unplaced token stands between

    def test_several_tokens_of_one_character_and_empty_ones_are_allowed(self):
        assert words_of_tokens("é x", [(0, 1), (0, 1), (2, 3)]) == [(0, 1, 0, 2), (2, 3, 2, 1)]
        assert words_of_tokens("a b", [(0, 1), (1, 1), (1, 2), (2, 3)]) == [(0, 1, 0, 1), (2, 3, 3, 1)]

    def test_marks_that_a_tokenizer_drops_need_no_cover(self):
        assert words_of_tokens("nai\u0308ve", [(0, 3), (4, 6)]) == [(0, 6, 0, 2)]

    def test_offsets_beyond_the_text_cover_nothing(self):
        assert words_of_tokens("ab", [(0, 9)]) == []
        assert words_of_tokens("", [(0, 0)]) == []

    @given(TEXT, st.lists(st.integers(0, 30)))
    @example("a b", [1])
    def test_every_word_found_is_whole_and_its_tokens_lie_in_it(self, text, places):
        tokens = cuts(text, places)
        spans = word_spans(text)
        for start, end, first, count in words_of_tokens(text, tokens):
            assert (start, end) in spans
            own = tokens[first : first + count]
            assert text[own[0][0] : own[-1][1]].strip() == text[start:end]

    @given(TEXT, st.lists(st.integers(0, 30)))
    def test_cutting_finer_never_loses_a_word(self, text, places):
        coarse = {word[:2] for word in words_of_tokens(text, cuts(text, places))}
        fine = {word[:2] for word in words_of_tokens(text, cuts(text, range(len(text))))}
        assert coarse <= fine
        assert fine == set(word_spans(text))


class TestAlignment:
    @settings(deadline=None)
    @given(
        st.lists(st.tuples(TEXT, st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30))), min_size=1, max_size=4)
    )
    def test_aligned_words_are_those_that_both_cover_in_corpus_order(self, sentences):
        texts = [text for text, _, _ in sentences]
        a, b = (index_of([cuts(s[0], s[side]) for s in sentences]) for side in (1, 2))
        expected = [
            (number, start, end)
            for number, (text, left, right) in enumerate(sentences)
            for start, end in word_spans(text)
            if all((start, end) in {w[:2] for w in words_of_tokens(text, cuts(text, side))} for side in (left, right))
        ]
        try:
            found = align_words(texts, a, b)
        except Incomparable:
            assert expected == []
            return
        for rows in (found.a, found.b):
            assert list(zip(rows.sentence.tolist(), rows.start.tolist(), rows.end.tolist(), strict=True)) == expected
        total = sum(len(word_spans(text)) for text in texts)
        assert found.coverage == len(expected) / total
        assert found.coverage <= min(found.coverage_a, found.coverage_b) <= 1

    def test_a_tokenizer_aligned_with_itself_covers_every_word_it_can(self):
        texts = ["a b, c", "d"]
        index = index_of([[(0, 1), (1, 3), (3, 4), (4, 6)], [(0, 1)]])
        found = align_words(texts, index, index)
        assert np.array_equal(found.a.first, found.b.first)
        assert found.coverage == 1.0
        assert "5 of 5 words (100.0%)" in found.sentence()

    def test_swapping_sides_swaps_the_alignment(self):
        texts = ["ab cd ef"]
        a, b = index_of([[(0, 2), (3, 8)]]), index_of([cuts(texts[0], range(8))])
        one, other = align_words(texts, a, b), align_words(texts, b, a)
        assert np.array_equal(one.a.first, other.b.first)
        assert (one.coverage_a, one.coverage_b) == (other.coverage_b, other.coverage_a) == (1 / 3, 1.0)
        assert "1 of 3 words (33.3%)" in one.sentence()

    def test_tokenizers_with_nothing_in_common_are_refused_in_a_sentence(self):
        texts = ["ab cd", "ef gh"]
        whole, pieces = index_of([[(0, 5)], [(0, 5)]]), index_of([cuts(text, range(5)) for text in texts])
        with pytest.raises(
            Incomparable, match="no whole word in common .*covers 0 of 4 words, the second 4.*pool to sentences"
        ):
            align_words(texts, whole, pieces)

    @pytest.mark.parametrize("left", TOKENIZERS)
    @pytest.mark.parametrize("right", TOKENIZERS)
    def test_tokenizers_of_every_scheme_share_all_words_of_the_shipped_corpus(self, left, right):
        # In lower case: the tiny sentencepiece vocabulary has no capitals and fuses them with a quotation mark before.
        texts = [text.lower() for text in shipped_corpus().sentences[:40]]
        indexes = []
        for name in (left, right):
            tokenizer = TOKENIZERS[name]()
            indexes.append(encode(texts, tokenizer, tokens_from_tokenizer(tokenizer, 1300), 10_000).index)
        found = align_words(texts, *indexes)
        assert found.coverage == 1.0
        for rows, index in ((found.a, indexes[0]), (found.b, indexes[1])):
            assert rows.count.sum() <= len(index)
            for word in range(0, len(rows), 17):
                text = texts[rows.sentence[word]]
                own = slice(rows.first[word], rows.first[word] + rows.count[word])
                assert (index.sentence[own] == rows.sentence[word]).all()
                covered = text[index.start[own].min() : index.end[own].max()]
                assert covered.strip() == text[rows.start[word] : rows.end[word]]


class TestPooling:
    def rows(self):
        return word_rows(["abc de f"], index_of([[(0, 1), (1, 3), (3, 6), (6, 8)]]))

    def test_mean_and_last_are_the_plain_formulas(self):
        values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
        mean, last = (pool_words(values, self.rows(), how) for how in ("mean", "last"))
        assert mean.dtype == last.dtype == np.float32
        expected = np.stack([values[:2].astype(np.float64).mean(0), values[2], values[3]])
        assert np.array_equal(mean, expected.astype(np.float32))
        assert np.array_equal(last, values[1:])

    def test_blocks_give_the_same_as_one_go(self, monkeypatch):
        texts = shipped_corpus().sentences[:30]
        tokenizer = bytes_tokenizer()
        index = encode(texts, tokenizer, tokens_from_tokenizer(tokenizer, 1300), 10_000).index
        rows = word_rows(texts, index)
        values = np.random.default_rng(0).standard_normal((len(index), 6)).astype(np.float32)
        whole = pool_words(values, rows)
        monkeypatch.setattr(module, "_BLOCK", 8 * 6 * 7)
        assert np.array_equal(pool_words(values, rows), whole)

    @given(st.lists(st.integers(1, 6), max_size=12), st.integers(0, 5))
    def test_means_of_runs_are_means_of_runs(self, counts, gap):
        counts = np.array(counts, dtype=np.int64)
        first = np.cumsum(counts + gap) - counts
        values = np.random.default_rng(1).standard_normal((int((counts + gap).sum()) + 1, 3))
        means = segment_means(values, first, counts)
        expected = [values[low : low + n].mean(0) for low, n in zip(first, counts, strict=True)]
        assert np.allclose(means, np.array(expected).reshape(-1, 3), rtol=1e-14)

    def test_another_models_words_and_other_ways_to_pool_are_refused(self):
        with pytest.raises(Incomparable, match="found in 4 tokens but the states have 5"):
            pool_words(np.zeros((5, 2), np.float32), self.rows())
        with pytest.raises(SettingsError, match="choose mean or last"):
            pool_words(np.zeros((4, 2), np.float32), self.rows(), "max")

    def test_columns_of_an_index_must_be_equally_long(self):
        with pytest.raises(ValueError, match="differ in length"):
            TokenIndex(np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(3))


class TestSurface:
    def test_pieces_are_found_one_behind_the_other(self):
        pieces = [("the", True), ("ca", True), ("t", False), (",", False)]
        assert offsets_by_surface("the cat,", pieces) == [(0, 3), (4, 6), (6, 7), (7, 8)]
        assert offsets_by_surface("THE Cat", [("the", True), ("cat", True)], lower=True) == [(0, 3), (4, 7)]
        assert offsets_by_surface("The", [("the", True)]) == [(-1, -1)]

    def test_behind_an_unknown_piece_nothing_is_certain_until_the_next_word(self):
        pieces = [("a", True), ("<unk>", False), ("a", False), ("a", True)]
        assert offsets_by_surface("a§a a", pieces) == [(0, 1), (-1, -1), (-1, -1), (4, 5)]
        pieces = [("<unk>", True), ("b", True), ("<unk>", True), ("c", True)]
        assert offsets_by_surface("§b b §§ c", pieces) == [(-1, -1), (3, 4), (-1, -1), (8, 9)]

    def test_pieces_beyond_the_text_are_nowhere(self):
        assert offsets_by_surface("", [("a", True)]) == [(-1, -1)]
        assert offsets_by_surface("a", [("a", True), ("a", True), ("", False)]) == [(0, 1), (-1, -1), (-1, -1)]

    @given(st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1), st.integers(1, 3))
    def test_a_text_cut_into_its_own_pieces_is_found_exactly(self, chunks, size):
        text, pieces, expected = " ".join(chunks), [], []
        start = 0
        for chunk in chunks:
            for low in range(0, len(chunk), size):
                pieces.append((chunk[low : low + size], low == 0))
                expected.append((start + low, start + min(low + size, len(chunk))))
            start += len(chunk) + 1
        assert offsets_by_surface(text, pieces) == expected

    @settings(deadline=None)
    @given(TEXT, st.lists(st.tuples(TEXT, st.booleans()), max_size=8))
    def test_what_is_found_stands_where_it_is_said_to(self, text, pieces):
        spans = offsets_by_surface(text, pieces)
        assert len(spans) == len(pieces)
        before = 0
        for (piece, _), (start, end) in zip(pieces, spans, strict=True):
            if start >= 0:
                assert text[start:end] == piece.strip()
                assert start >= before
                before = end


class TestEncoding:
    def test_the_longest_input_is_what_the_tokenizer_declares_if_anything(self):
        tokenizer = wordpiece_tokenizer()
        assert tokenizer_limit(tokenizer) is None
        tokenizer.model_max_length = 64
        assert tokenizer_limit(tokenizer) == 64

    def test_a_cut_sentence_keeps_its_special_tokens_and_loses_the_end_of_its_text(self):
        tokenizer = wordpiece_tokenizer()
        tokens = tokens_from_tokenizer(tokenizer, 1300)
        whole, cut = (encode(["ab cd ef gh", "ab"], tokenizer, tokens, longest) for longest in (6, 5))
        assert (whole.cut, cut.cut) == (0, 1)
        assert cut.ids[0].tolist() == [*whole.ids[0][:4].tolist(), 3]
        assert cut.is_text[0].tolist() == [False, True, True, True, False]
        assert cut.ids[1].tolist() == whole.ids[1].tolist()
        assert cut.has_cls
        assert cut.index.end.tolist() == [2, 5, 8, 2]

    def test_the_tokenizer_is_left_as_it_was(self):
        tokenizer = wordpiece_tokenizer()
        tokenizer.padding_side = "left"
        tokenizer.backend_tokenizer.enable_truncation(3)
        tokenizer.backend_tokenizer.no_truncation()
        encode(["ab cd ef gh"] * 600, tokenizer, tokens_from_tokenizer(tokenizer, 1300), 5)
        assert tokenizer.padding_side == "left"
        assert tokenizer("ab cd ef gh")["input_ids"] == tokenizer("ab cd ef gh", padding=False)["input_ids"]
        assert len(tokenizer("ab cd ef gh")["input_ids"]) == 6

    def test_bounds_give_the_rows_of_each_sentence_also_of_empty_ones(self):
        index = index_of([[(0, 1), (1, 2)], [], [(0, 1)]])
        assert index.bounds(3).tolist() == [0, 2, 2, 3]
