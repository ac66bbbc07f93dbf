"""Texts, word starts and special tokens, whatever way a tokenizer marks words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import bytes_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer

from embcompare.text import Tokens, tokens_from_tokenizer
from embcompare.text.tokens import _decode_bytes, visible


@pytest.fixture(scope="module")
def wordpiece():
    return tokens_from_tokenizer(wordpiece_tokenizer(), 1300)


@pytest.fixture(scope="module")
def byte_level():
    return tokens_from_tokenizer(bytes_tokenizer(), 1300)


@pytest.fixture(scope="module")
def sentencepiece():
    return tokens_from_tokenizer(sentencepiece_tokenizer(), 1300)


def at(tokens, raw):
    index = tokens.raw.index(raw)
    return tokens.text[index], bool(tokens.starts_word[index]), bool(tokens.special[index]), tokens.display(index)


def test_wordpiece_marks_the_rest_of_a_word(wordpiece):
    assert wordpiece.scheme == "wordpiece"
    assert wordpiece.uncased
    assert at(wordpiece, "ab") == ("ab", True, False, "ab")
    assert at(wordpiece, "##ab") == ("ab", False, False, "##ab")
    assert at(wordpiece, "[PAD]") == ("[PAD]", False, True, "[PAD]")
    assert at(wordpiece, "[unused0]")[2], "unused rows are special"


def test_byte_level_marks_the_space_before_a_word(byte_level):
    assert byte_level.scheme == "bytes"
    assert not byte_level.uncased
    assert at(byte_level, "Ġab") == ("ab", True, False, "ab")
    assert at(byte_level, "a") == ("a", False, False, "##a")
    assert at(byte_level, "Ċ") == ("\n", False, False, "⏎")
    assert at(byte_level, "Ġ") == ("", True, False, "␠")
    assert at(byte_level, ",") == (",", False, False, ",")
    assert at(byte_level, "<|endoftext|>")[2]


def test_bytes_that_are_no_text_alone_stay_apart(byte_level):
    texts = [byte_level.text[byte_level.raw.index(c)] for c in ("Â", "Ã", "ł")]
    assert texts[:2] == ["\\xc2", "\\xc3"]
    assert len(set(texts)) == 3
    assert _decode_bytes("Ã©") == "é"
    assert _decode_bytes("ĠÃ©tÃ©") == " été"


def test_sentencepiece_marks_the_space_before_a_word(sentencepiece):
    assert sentencepiece.scheme == "sentencepiece"
    assert at(sentencepiece, "▁ab") == ("ab", True, False, "ab")
    assert at(sentencepiece, "a") == ("a", False, False, "##a")
    assert at(sentencepiece, "▁") == ("", True, False, "␠")
    assert at(sentencepiece, "<0x0A>")[0] == "<0x0A>"
    assert at(sentencepiece, "<pad>")[2]
    assert at(sentencepiece, "</s>")[2]


def test_a_word_level_vocabulary_has_no_marks():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "ing": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = tokens_from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]"), 3)
    assert tokens.scheme == "words"
    assert [tokens.display(i) for i in range(3)] == ["[UNK]", "the", "ing"]
    assert tokens.starts_word.tolist() == [False, True, True]


def test_the_four_schemes_agree_on_a_word(wordpiece, byte_level, sentencepiece):
    for tokens, raw in ((wordpiece, "ab"), (byte_level, "Ġab"), (sentencepiece, "▁ab")):
        assert at(tokens, raw)[:2] == ("ab", True)


def test_rows_are_cut_or_filled_to_what_is_asked():
    tokenizer = wordpiece_tokenizer()
    assert len(tokens_from_tokenizer(tokenizer, 100)) == 100
    longer = tokens_from_tokenizer(tokenizer, 1310)
    assert len(longer) == 1310
    assert longer.special[1300:].all(), "rows without a token are special"
    assert longer.display(1305) == "[row 1305]"


def test_added_tokens_are_plain_text():
    tokenizer = bytes_tokenizer()
    tokenizer.add_tokens([" Ġhello", "wörld"])
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokens = tokens_from_tokenizer(tokenizer, len(tokenizer))
    assert at(tokens, "wörld")[:2] == ("wörld", False)
    assert at(tokens, " Ġhello")[:2] == ("Ġhello", True)
    assert at(tokens, "<|mask|>")[2]


@pytest.mark.parametrize(
    "raw",
    [
        "[unused17]",
        "<unused3>",
        "<extra_id_99>",
        "madeupword0001",
        "<|reserved_special_token_7|>",
        "<s>",
        "</s>",
        "<pad>",
    ],
)
def test_unused_and_control_spellings_are_special(raw):
    class Fake:
        all_special_ids = ()

        def get_vocab(self):
            return {raw: 0, "plain": 1}

    assert tokens_from_tokenizer(Fake(), 2).special.tolist() == [True, False]


def test_a_slow_tokenizer_is_read_by_its_spellings():
    class Fake:
        all_special_ids = ()
        do_lower_case = True

        def get_vocab(self):
            return {"▁the": 0, "ing": 1, "▁a": 2}

    tokens = tokens_from_tokenizer(Fake(), 3)
    assert tokens.scheme == "sentencepiece"
    assert tokens.uncased
    assert tokens.text == ("the", "ing", "a")


def test_canonically_equal_spellings_become_one():
    class Fake:
        all_special_ids = ()

        def get_vocab(self):
            return {"e\u0301": 0, "é": 1}

    assert set(tokens_from_tokenizer(Fake(), 2).text) == {"é"}


@given(st.text(max_size=20))
def test_every_text_survives_byte_level_spelling(text):
    from tokenizers import pre_tokenizers

    spelt = "".join(
        piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    )
    assert _decode_bytes(spelt) == text


@given(st.text(max_size=20))
def test_what_is_shown_can_be_seen(text):
    shown = visible(text)
    assert all(c == " " or c.isprintable() for c in shown)
    assert bool(shown) == bool(text)
    assert shown.strip() == shown


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="differ in length"):
        Tokens(("a",), ("a", "b"), np.zeros(1, bool), np.zeros(1, bool))


def test_punctuation_inside_a_word_is_marked_where_the_tokenizer_marks_it():
    def made(scheme):
        return Tokens(
            ("##-", "-", "##s"), ("-", "-", "s"), np.array([False, True, False]), np.zeros(3, bool), False, scheme
        )

    assert made("wordpiece").displays == ("##-", "-", "##s")
    # where a mark says what starts a word, nearly all punctuation stands without one
    assert made("bytes").displays == made("sentencepiece").displays == ("-", "-", "##s")


def test_display_of_all_is_display_of_each(wordpiece):
    assert wordpiece.displays == tuple(wordpiece.display(i) for i in range(len(wordpiece)))
