"""Texts with translations: what ships, what a user gives, and that both are known by all that they hold."""

import dataclasses
import hashlib

import pytest

from embcompare import running
from embcompare.cli_given import keep_file
from embcompare.errors import InputError, SettingsError
from embcompare.experiments.term_series import TermSeries
from embcompare.shelf import BUNDLED, NUMBERS, TRANSLATIONS, Shelf, bundled_corpus
from embcompare.store import Store
from embcompare.text.corpora import MAX_CHARACTERS, Corpus
from embcompare.text.translations import (
    shipped_numbers,
    targets_of,
    translations_from_bytes,
    translations_from_text,
)

PAIRS = "one\tuno\n\ntwo hundred\tdoscientos\n"


def test_shipped_numbers_are_pairs_without_labels():
    corpus = shipped_numbers()
    assert len(corpus) == len(corpus.targets) == 400
    assert corpus.labels == ()
    assert bundled_corpus(NUMBERS) is corpus
    assert NUMBERS in TRANSLATIONS
    assert NUMBERS not in BUNDLED
    assert any(source.startswith("the ") for source in corpus.sentences[:20])


def test_a_corpus_without_translations_is_known_by_the_same_digest_as_before():
    plain = Corpus("a", ("one", "two"))
    assert plain.digest == hashlib.sha256(b'[["one","two"],[]]').hexdigest()
    assert Corpus("a", ("one", "two"), targets=("uno", "dos")).digest != plain.digest
    assert Corpus("a", ("one", "two"), targets=("uno", "dos")).text_digest == plain.text_digest


def test_translations_are_checked():
    with pytest.raises(InputError, match="1 translation for 2 sentences"):
        Corpus("mine", ("one", "two"), targets=("uno",))
    with pytest.raises(InputError, match="Translation 2 of mine is blank"):
        Corpus("mine", ("one", "two"), targets=("uno", " "))
    with pytest.raises(InputError, match="mine holds no translations"):
        targets_of(Corpus("mine", ("one",)))


def test_the_first_of_a_corpus_keeps_its_translations():
    corpus = Corpus("mine", ("one", "two"), ("a", "b"), targets=("uno", "dos")).first(1)
    assert (corpus.sentences, corpus.labels, corpus.targets) == (("one",), ("a",), ("uno",))
    assert len(corpus.first(9)) == 1


def test_pasted_pairs_are_read_line_by_line():
    corpus = translations_from_text(PAIRS)
    assert corpus.sentences == ("one", "two hundred")
    assert corpus.targets == ("uno", "doscientos")
    quoted = translations_from_text('say "no"\tdi "no"\n')
    assert quoted.targets == ('di "no"',)
    with pytest.raises(InputError, match="Line 2 of pasted pairs has 0 tabs; write source, one tab, translation"):
        translations_from_text("one\tuno\ntwo dos\n")
    with pytest.raises(InputError, match="larger than"):
        translations_from_text(PAIRS, max_bytes=10)
    with pytest.raises(InputError, match="holds no"):
        translations_from_text("\n")


@pytest.mark.parametrize(
    ("data", "suffix", "columns"),
    [
        (b"source,target\none,uno\ntwo,dos\n", "csv", {}),
        (b"English\tSpanish\none\tuno\ntwo\tdos\n", "tsv", {}),
        (b"id,es,en\n1,uno,one\n2,dos,two\n", "csv", {"source": "en", "target": "es"}),
        (b'{"source": "one", "target": "uno"}\n{"source": "two", "target": "dos"}\n', "jsonl", {}),
        (b'{"en": "one", "es": "uno"}\n{"en": "two", "es": "dos"}\n', "jsonl", {"source": "en", "target": "es"}),
        (b"\xef\xbb\xbfsource;target\none;uno\ntwo;dos\n", "csv", {}),
    ],
)
def test_uploaded_pairs_are_read_by_their_columns(data, suffix, columns):
    corpus = translations_from_bytes(data, suffix, **columns)
    assert corpus.sentences == ("one", "two")
    assert corpus.targets == ("uno", "dos")
    assert corpus.labels == ()


def test_pairs_that_lack_a_side_are_left_out_and_said():
    long = "x" * (MAX_CHARACTERS + 1)
    data = f"source\ttarget\none\tuno\ntwo\t\nthree\t{long}\n".encode()
    corpus = translations_from_bytes(data, "tsv", name="mine")
    assert corpus.sentences == ("one",)
    assert any("1 sentence without a translation was left out" in each for each in corpus.notices)
    assert any("1 translation of more than 2,000 characters was left out" in each for each in corpus.notices)
    with pytest.raises(InputError, match="mine holds no pair"):
        translations_from_bytes(b"source\ttarget\ntwo\t\n", "tsv", name="mine")
    with pytest.raises(InputError, match="not UTF-8"):
        translations_from_bytes(b"source\ttarget\none\t\xff\n", "tsv")
    with pytest.raises(SettingsError, match="cannot be read from a 'txt' file"):
        translations_from_bytes(b"one", "txt")
    with pytest.raises(SettingsError, match="has no column 'de'"):
        translations_from_bytes(b"source,target\none,uno\n", "csv", target="de")


def test_kept_pairs_come_back_whole_under_their_digest(tmp_path):
    shelf = Shelf(Store(tmp_path))
    corpus = translations_from_text(PAIRS)
    name = shelf.keep_corpus(corpus)
    assert name == f"text/{corpus.digest}"
    found = shelf.corpus(name)
    assert found == corpus
    assert found.targets == corpus.targets
    other = dataclasses.replace(corpus, targets=("uno", "200"))
    assert shelf.keep_corpus(other) != name
    assert shelf.corpus(NUMBERS) is shipped_numbers()
    with pytest.raises(SettingsError, match="say shipped, reviews or numbers"):
        shelf.corpus("elsewhere")


def test_a_shell_keeps_pairs(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("en,es\none,uno\n")
    shelf = Shelf(Store(tmp_path / "store"))
    kept = keep_file(str(file), {"column": "en", "target_column": "es"}, shelf=shelf)
    assert kept.holds == "1 sentence with translations"
    assert shelf.corpus(kept.name).targets == ("uno",)
    with pytest.raises(SettingsError, match="labels or translations, not both"):
        keep_file(str(file), {"column": "en", "target_column": "es", "label_column": "es"}, shelf=shelf)


def test_the_shipped_pairs_enter_a_results_key_by_their_content():
    found = running.fingerprints(TermSeries("demo/numbers-1-100"))
    assert found[NUMBERS] == shipped_numbers().digest
