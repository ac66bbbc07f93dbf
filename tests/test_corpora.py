import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.errors import EmbcompareError, SettingsError
from embcompare.text.corpora import (
    MAX_BYTES,
    MAX_CHARACTERS,
    Corpus,
    InputError,
    corpus_from_bytes,
    corpus_from_text,
    shipped_corpus,
)
from embcompare.text.tables import columns_of

# What only a programmer would say.
INSIDE = re.compile(
    r"Error|Exception|Expecting|delimiter|codec|invalid|\bint\(|literal|None|line 1 column|recursion", re.I
)


def plain(text):
    """Whether a sentence is fit for a person: one line, whole, and without a word from inside."""
    return text.endswith((".", "?")) and "\n" not in text and not INSIDE.search(text) and len(text) < 700


# What cleaning leaves alone: one line of visible words with single spaces between them.
WORD = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
SENTENCE = st.lists(WORD, min_size=1, max_size=8).map(" ".join)
SENTENCES = st.lists(SENTENCE, min_size=1, max_size=20, unique=True)


SOUND = {
    "csv": b'id,text,y\n1,"Hello, you",a\n2,"Say ""hi"" now",b\n3,Third one,c\n',
    "tsv": b"id\ttext\n1\tHello, you\n2\tmore\n",
    "jsonl": b'{"text": "One.", "y": 1}\n{"text": "Two", "y": true, "z": [1.5, null, {"a": "b"}]}\n',
    "txt": "Line one.\nLine two, ünï.\n\nfour words in here\n".encode(),
}
PIECES = [b"", b"\0", b"\xff\xfe", b"\n", b'"', b"{", b"[" * 2000, b"9" * 5000, b"NaN", b"1e999", b"\\ud800", b";",
          b"|", b"\t", b",", b"null", b"true", b"{}", b"\r", b"\xef\xbb\xbf", b"sep=;\n"]  # fmt: skip


class TestShipped:
    def test_it_holds_what_its_docstring_says(self):
        corpus = shipped_corpus()
        assert len(corpus) == 669 >= 600
        lengths = [len(sentence.split()) for sentence in corpus.sentences]
        assert (min(lengths), max(lengths)) == (4, 49)
        genres = Counter(corpus.labels)
        assert len(genres) == 14
        assert min(genres.values()) >= 45

    def test_every_sentence_is_clean_and_none_is_like_another(self):
        corpus = shipped_corpus()
        assert len({re.sub(r"\W+", " ", sentence).lower() for sentence in corpus.sentences}) == len(corpus)
        for sentence in corpus.sentences:
            assert sentence == " ".join(sentence.split())
            assert sentence.isascii()
            assert sentence[-1] in '.?!"'
        words = [set(re.findall(r"\w+", sentence.lower())) for sentence in corpus.sentences]
        for at, left in enumerate(words):
            for right in words[at + 1 :]:
                assert len(left & right) <= 0.5 * len(left | right)

    def test_its_beginning_is_as_mixed_as_the_whole(self):
        assert len(set(shipped_corpus().labels[:14])) == 14

    def test_it_is_read_once_and_its_reading_costs_no_torch(self):
        assert shipped_corpus() is shipped_corpus()
        code = "import sys, embcompare.text.corpora as c; c.shipped_corpus(); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "False", done.stderr


class TestCorpus:
    def test_it_is_frozen_and_equal_content_is_equal(self):
        one = Corpus("x", ("a b", "c"))
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "y"
        assert one == Corpus("x", ("a b", "c"), notices=("seen",))

    def test_its_digest_knows_content_and_order_and_not_the_name(self):
        base = Corpus("x", ("a", "b"), ("1", "2"))
        assert base.digest == Corpus("y", ("a", "b"), ("1", "2"), {"from": "elsewhere"}).digest
        others = [Corpus("x", ("b", "a"), ("1", "2")), Corpus("x", ("a", "b"), ("2", "1")), Corpus("x", ("ab",))]
        assert len({base.digest, *(other.digest for other in others)}) == 4
        assert base.text_digest == Corpus("x", ("a", "b"), ("2", "1")).text_digest
        assert Corpus("x", ('a","b',)).digest != Corpus("x", ("a", "b")).digest

    @pytest.mark.parametrize("sentences", [(), ("a", " "), ("a", "")])
    def test_nothing_and_blanks_are_refused(self, sentences):
        with pytest.raises(InputError, match=r"no sentences|is blank"):
            Corpus("x", sentences)

    def test_labels_of_another_number_and_half_characters_are_refused(self):
        with pytest.raises(InputError, match="has 1 label for 2 sentences"):
            Corpus("x", ("a", "b"), ("1",))
        with pytest.raises(InputError, match=r"U\+D800"):
            Corpus("x", ("a\ud800",))


class TestText:
    def test_a_sentence_a_line_whatever_ends_the_line(self):
        corpus = corpus_from_text("One.\r\nTwo  and\ta half.\rThree.\n\n  \nFour.")
        assert corpus.sentences == ("One.", "Two and a half.", "Three.", "Four.")
        assert corpus.labels == ()
        assert corpus.notices == ()

    def test_repeated_and_overlong_sentences_are_left_out_with_a_notice(self):
        text = "\n".join(["a", "b", "a ", "c", "d", "x" * (MAX_CHARACTERS + 1), "x" * MAX_CHARACTERS])
        corpus = corpus_from_text(text)
        assert len(corpus) == 5
        assert corpus.notices == (
            "1 sentence of more than 2,000 characters was left out.",
            "1 repeated sentence was left out.",
        )

    def test_of_too_many_a_seeded_sample_in_order_is_drawn_with_a_notice(self):
        text = "\n".join(f"sentence {n}" for n in range(500))
        one, again, other = (corpus_from_text(text, max_rows=50, seed=seed) for seed in (1, 1, 2))
        assert one.sentences == again.sentences != other.sentences
        numbers = [int(sentence.split()[1]) for sentence in one.sentences]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 50
        assert max(numbers) > 250
        assert "a sample of 50" in one.notices[0]
        assert one.provenance["seed"] == 1
        assert corpus_from_text(text, seed=5).provenance["seed"] is None

    @pytest.mark.parametrize("text", ["", " \n\t\r\n", "\u200b\n\u2028"])
    def test_empty_text_is_refused(self, text):
        with pytest.raises(InputError, match="holds no sentences; give at least one line"):
            corpus_from_text(text)

    def test_one_word_is_a_corpus_with_a_warning(self):
        corpus = corpus_from_text("word")
        assert corpus.sentences == ("word",)
        assert "most measures are undefined" in corpus.notices[0]

    def test_nothing_but_overlong_sentences_is_refused_with_the_reason(self):
        with pytest.raises(InputError, match="the only one is longer than 2,000 characters"):
            corpus_from_text("x" * 3000)

    def test_null_characters_and_half_characters_are_refused(self):
        with pytest.raises(InputError, match="Line 2 of pasted text holds a null character"):
            corpus_from_text("a\nb\0c")
        with pytest.raises(InputError, match="half a character"):
            corpus_from_text("a\ud800b")

    @pytest.mark.parametrize(("max_rows", "seed"), [(0, 0), (-1, 0), (True, 0), (2.5, 0), (5, -1), (5, "x")])
    def test_rows_and_seed_are_checked(self, max_rows, seed):
        with pytest.raises(SettingsError, match="cannot be"):
            corpus_from_text("a\nb", max_rows=max_rows, seed=seed)

    def test_pasted_text_is_bounded_in_bytes(self):
        with pytest.raises(InputError, match="larger than 10 bytes"):
            corpus_from_text("éééééé", max_bytes=10)
        assert len(corpus_from_text("ééééé", max_bytes=10)) == 1


class TestFiles:
    def test_txt_with_a_byte_order_mark(self):
        assert corpus_from_bytes(b"\xef\xbb\xbfOne.\nTwo.", ".TXT").sentences == ("One.", "Two.")

    def test_undecodable_bytes_are_named(self):
        for mark in (b"", b"\xef\xbb\xbf"):
            data = mark + "fine\nn\u00e4mlich".encode() + b"\nan \xe9t\xe9"
            with pytest.raises(
                InputError, match=rf"byte {data.index(0xE9):,} \(line 3\) is 0xE9; save it again as UTF-8"
            ):
                corpus_from_bytes(data, "txt")
        for encoding, called in (
            ("utf-16", "UTF-16"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32"), ("utf-32-be", "UTF-32")
        ):  # fmt: skip
            marked = "hello" if encoding in ("utf-16", "utf-32") else "\ufeffhello"
            for suffix in ("txt", "csv", "jsonl"):
                with pytest.raises(InputError, match=f"is {called}, not UTF-8 text; save it again as UTF-8"):
                    corpus_from_bytes(marked.encode(encoding), suffix)
        with pytest.raises(InputError, match="byte 0"):
            corpus_from_bytes(b"\xed\xa0\x80", "txt")  # half a character is no UTF-8

    def test_a_file_beyond_the_bound_is_refused_before_it_is_decoded(self):
        with pytest.raises(InputError, match="larger than 5.2 MB"):
            corpus_from_bytes(b"\xff" * (MAX_BYTES + 1), "txt")

    @pytest.mark.parametrize("suffix", ["exe", "npy", "", "../txt", "xlsx"])
    def test_other_suffixes_are_refused(self, suffix):
        with pytest.raises(SettingsError, match="choose one of txt, csv, tsv, jsonl"):
            corpus_from_bytes(b"x", suffix)

    def test_csv_column_and_labels_are_chosen(self):
        data = b'id,words,kind\n1,"One, two.",a\n2,"Three ""four""\nfive.",b\n\n3,,c\n4,Six.,\n'
        corpus = corpus_from_bytes(data, "csv", column="words", label_column="kind")
        assert corpus.sentences == ("One, two.", 'Three "four" five.', "Six.")
        assert corpus.labels == ("a", "b", "")

    def test_csv_needs_no_column_where_it_is_plain_which_is_meant(self):
        assert corpus_from_bytes(b"whatever\na\nb\n", "csv").sentences == ("a", "b")
        assert corpus_from_bytes(b"id\tText\n1\ta\n", "tsv").sentences == ("a",)
        with pytest.raises(SettingsError, match="has 2 columns; say which holds the sentences: id, words"):
            corpus_from_bytes(b"id,words\n1,a\n", "csv")
        with pytest.raises(SettingsError, match="has no column 'text'; its columns are id, words"):
            corpus_from_bytes(b"id,words\n1,a\n", "csv", column="text")
        with pytest.raises(SettingsError, match="2 columns called 'w'"):
            corpus_from_bytes(b"w,w\n1,a\n", "csv", column="w")
        with pytest.raises(SettingsError, match="no columns"):
            corpus_from_bytes(b"a", "txt", column="text")

    @pytest.mark.parametrize(
        ("data", "where"),
        [
            (b"text,b\nfine,x\none,two,three\n", r"Line 3 of .* has 3 fields, the first line 2"),
            (b"text\nfine\nmore,here\n", "Line 3"),
            (b'text\n"never closed\n', "Line 2 .* is not proper CSV: a quote that is opened in it or above is never"),
            (b'text\n"a"b\n', "Line 2 .* is not proper CSV: something follows a closing quote; write"),
            (b"text\n" + b"x" * 200_000, "the only one is longer than 2,000 characters"),
            (b"", "no sentences"),
            (b"text\n", "no sentences"),
            (b"\n\n", "no sentences"),
        ],
    )
    def test_damaged_csv_is_refused_with_the_line(self, data, where):
        with pytest.raises(InputError, match=where):
            corpus_from_bytes(data, "csv")

    def test_a_cell_as_long_as_a_book_is_left_out_with_a_notice_as_any_long_sentence(self):
        for length in (131_072, 131_073, 3_000_000):
            data = b'text,n\nOne.,1\n"' + b"x" * length + b'",2\nTwo.,3\n'
            corpus = corpus_from_bytes(data, "csv")
            assert corpus.sentences == ("One.", "Two.")
            assert corpus.notices[0] == "1 sentence of more than 2,000 characters was left out."
        labels = b'text,notes\nOne.,"' + b"x" * 200_000 + b'"\nTwo.,b\n'
        assert len(corpus_from_bytes(labels, "csv", column="text", label_column="notes").labels[0]) == 200_000

    @pytest.mark.parametrize(
        ("separator", "called"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"), (",", "")]
    )
    @pytest.mark.parametrize("quoted", [False, True])
    def test_the_separator_is_found_and_said(self, separator, called, quoted):
        table = io.StringIO(newline="")
        writer = csv.writer(table, delimiter=separator, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
        rows = [(str(n), f"Sentence {n}, with a comma; and more | of\tthese.", f"{n},5") for n in range(5)]
        writer.writerows([("id", "text", "score"), *rows])
        data = table.getvalue().encode()
        corpus = corpus_from_bytes(data, "csv", label_column="score", name="t.csv")
        assert corpus.sentences == tuple(" ".join(row[1].split()) for row in rows)
        assert corpus.labels == tuple(row[2] for row in rows)
        said = (f"The columns of t.csv are taken to be separated by {called}.",) if called else ()
        assert corpus.notices == said
        assert columns_of(data.decode(), "csv") == ["id", "text", "score"]

    def test_a_tsv_of_commas_or_semicolons_is_no_single_column_either(self):
        for separator in ",;":
            data = "\n".join(separator.join(row) for row in (("id", "text"), ("1", "a b"), ("2", "c d"))).encode()
            assert corpus_from_bytes(data, "tsv").sentences == ("a b", "c d")
        data = b"id\ttext, cleaned\n1\tHello, you\n2\tAnd, me\n"
        assert corpus_from_bytes(data, "tsv", column="text, cleaned").sentences == ("Hello, you", "And, me")

    def test_a_separator_that_is_declared_as_spreadsheets_do_counts(self):
        corpus = corpus_from_bytes(b"\xef\xbb\xbfsep=;\r\ntext;n,m\r\nOne, two.;1\r\n", "csv")
        assert corpus.sentences == ("One, two.",)
        with pytest.raises(
            InputError, match="Line 3 of .* has 1 field, the first line 2, with semicolons between them"
        ):
            corpus_from_bytes(b"sep=;\ntext;n\nOne.\n", "csv")

    def test_where_several_separators_would_do_it_is_refused_unless_a_column_tells(self):
        data = b"text;en,lang\nHello;a,b\nBye;c,d\n"
        with pytest.raises(
            InputError, match="may be separated by commas or semicolons: every line can be read either way"
        ):
            corpus_from_bytes(data, "csv")
        assert corpus_from_bytes(data, "csv", column="lang").sentences == ("b", "d")
        assert corpus_from_bytes(data, "csv", column="text").sentences == ("Hello", "Bye")
        assert columns_of(data.decode(), "csv") == []

    def test_one_column_stays_one_column_and_a_bad_line_is_named_by_its_real_separator(self):
        assert corpus_from_bytes(b"what; or who\nfine\nalso\n", "csv").sentences == ("fine", "also")
        assert corpus_from_bytes(b"text\none; two | three\n", "csv").sentences == ("one; two | three",)
        with pytest.raises(
            InputError, match="Line 3 of .* has 3 fields, the first line 2, with semicolons between them"
        ):
            corpus_from_bytes(b"id;text\n1;a\n2;b;c\n3;d\n", "csv")
        with pytest.raises(InputError, match="Line 3 of .* has 1 field, the first line 2, with commas between them"):
            corpus_from_bytes(b"id,text\n1,a\n2\n", "csv")

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(SENTENCE, WORD, WORD), min_size=1, max_size=8, unique_by=lambda row: row[0]),
        st.sampled_from(",;\t|"),
    )
    def test_any_table_comes_back_whatever_separates_its_columns(self, rows, separator):
        table = io.StringIO(newline="")
        csv.writer(table, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([("text", "b", "c"), *rows])
        corpus = corpus_from_bytes(table.getvalue().encode(), "csv", label_column="c")
        assert corpus.sentences == tuple(row[0] for row in rows)

    def test_jsonl_of_objects_and_of_texts(self):
        data = b'{"text": "One.", "y": 1}\n\n{"text": "Two.", "y": true}\n'
        corpus = corpus_from_bytes(data, "jsonl", label_column="y")
        assert corpus.sentences == ("One.", "Two.")
        assert corpus.labels == ("1", "True")
        assert corpus_from_bytes(b'"One."\n"Two."', "jsonl").sentences == ("One.", "Two.")
        assert corpus_from_bytes(b'{"n": 1, "said": "One."}', "jsonl").sentences == ("One.",)

    @pytest.mark.parametrize(
        ("line", "where"),
        [
            (b'{"text": "a"', "is not proper JSON"),
            (b'{"text": 5}', "has a number in the field 'text' where text belongs"),
            (b'{"text": null}', "has nothing"),
            (b'{"other": "a"}', "has no field 'text'; its fields are other"),
            (b"[1]", "is a list, not an object"),
            (b"NaN", "NaN is no JSON value"),
            (b"[" * 100_000, "is not proper JSON: it is nested too deeply"),
            (b'{"a":' * 100_000, "is not proper JSON: it is nested too deeply"),
            (b"1" * 6_000, "is not proper JSON: it holds a number of thousands of digits"),
            (b'{"text": "a", "n": -' + b"1" * 6_000 + b"}", "it holds a number of thousands of digits"),
            (b'{"text": "a",}', "is not proper JSON: it cannot be read from column 1[34] on"),
            (b'{"text": "\\ud800"}', "half a character"),
        ],
    )
    def test_damaged_jsonl_is_refused_with_the_line(self, line, where):
        with pytest.raises(InputError, match=where) as caught:
            corpus_from_bytes(b'{"text": "fine"}\n' + line, "jsonl")
        assert "half" in where or "Line 2" in str(caught.value)

    def test_jsonl_with_two_texts_needs_a_column(self):
        with pytest.raises(SettingsError, match="has 2 columns; say which"):
            corpus_from_bytes(b'{"a": "x", "b": "y"}', "jsonl")

    @settings(deadline=None)
    @given(SENTENCES)
    def test_every_format_gives_back_the_sentences_that_were_written(self, sentences):
        table = io.StringIO(newline="")
        csv.writer(table).writerows([["text"], *([sentence] for sentence in sentences)])
        written = {
            "txt": "\n".join(sentences),
            "csv": table.getvalue(),
            "jsonl": "\n".join(json.dumps({"text": sentence}) for sentence in sentences),
        }
        found = {kind: corpus_from_bytes(text.encode(), kind).sentences for kind, text in written.items()}
        assert found == dict.fromkeys(written, tuple(sentences))
        assert corpus_from_text(written["txt"]).sentences == tuple(sentences)

    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=200), st.sampled_from(["txt", "csv", "tsv", "jsonl"]))
    def test_hostile_bytes_give_a_corpus_or_a_sentence_for_a_person(self, data, kind):
        self.check(data, kind)

    @settings(max_examples=300, deadline=None)
    @given(
        st.text(st.sampled_from('",\n\r\t{}[]:\\ u0aé\0\u2028\x85'), max_size=40),
        st.sampled_from(["txt", "csv", "jsonl"]),
    )
    def test_hostile_text_gives_a_corpus_or_a_sentence_for_a_person(self, text, kind):
        self.check(text.encode(), kind)

    @settings(max_examples=400, deadline=None)
    @given(st.data(), st.sampled_from(["txt", "csv", "tsv", "jsonl"]))
    def test_a_spoilt_file_gives_a_corpus_or_a_sentence_for_a_person(self, draw, kind):
        data = bytearray(SOUND[kind])
        for _ in range(draw.draw(st.integers(1, 3))):
            at = draw.draw(st.integers(0, len(data)))
            end = at + draw.draw(st.sampled_from([0, 0, 1, 3, 20]))
            data[at:end] = draw.draw(st.sampled_from(PIECES) | st.binary(max_size=3))
        self.check(bytes(data), kind)

    def check(self, data, kind):
        try:
            corpus = corpus_from_bytes(data, kind)
        except EmbcompareError as error:
            assert plain(str(error)), error
            return
        assert corpus.sentences
        for sentence in corpus.sentences:
            assert sentence == " ".join(sentence.split())
            assert sentence.encode().decode() == sentence
