"""The labelled reviews that ship: balanced, all different, of many lengths, and without a tell-tale."""

import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from embcompare.shelf import BUNDLED, REVIEWS, Shelf, bundled_corpus
from embcompare.store import Store
from embcompare.text.corpora import shipped_corpus
from embcompare.text.labelled import shipped_reviews

# fmt: off
OF_FILMS = {
    "film", "films", "cinema", "screen", "picture", "camera", "actor", "actors", "acting", "director", "cast", "script",
    "screenplay", "dialogue", "plot", "comedy", "drama", "thriller", "western", "sequel", "remake", "trailer", "jokes",
    "villain", "hero", "heroine", "documentary", "scene", "scenes", "story", "ending", "twist", "epic", "animation",
    "editing",
    "effects", "performance", "performances", "chemistry", "suspense", "romance", "humor", "action",
}
# fmt: on


def words_of(sentence):
    return set(re.findall(r"\w+", sentence.lower()))


def by_label(label):
    corpus = shipped_reviews()
    return [text for text, mark in zip(corpus.sentences, corpus.labels, strict=True) if mark == label]


def test_it_holds_what_its_docstring_says():
    corpus = shipped_reviews()
    assert len(corpus) == 480
    assert Counter(corpus.labels) == {"positive": 240, "negative": 240}
    lengths = [len(sentence.split()) for sentence in corpus.sentences]
    assert (min(lengths), max(lengths)) == (5, 37)
    films = sum(bool(words_of(text) & OF_FILMS) for text in corpus.sentences)
    assert films > 0.35 * len(corpus)  # others are plainly of films without such a word


def test_labels_take_turns_so_that_a_beginning_is_balanced_too():
    assert set(zip(shipped_reviews().labels[::2], shipped_reviews().labels[1::2], strict=True)) == {
        ("positive", "negative")
    }


def test_lengths_are_spread_and_do_not_give_the_label_away():
    good, bad = ([len(text.split()) for text in by_label(label)] for label in ("positive", "negative"))
    for lengths in (good, bad):
        assert np.percentile(lengths, 10) <= 9
        assert np.percentile(lengths, 95) >= 22
        assert np.std(lengths) > 4
    assert np.mean(good) == pytest.approx(np.mean(bad), abs=0.5)


def test_every_review_is_clean_and_none_is_like_another():
    corpus = shipped_reviews()
    for sentence in corpus.sentences:
        assert sentence == " ".join(sentence.split())
        assert sentence.isascii()
        assert sentence[-1] in ".?!"
    words = [words_of(sentence) for sentence in corpus.sentences]
    for at, left in enumerate(words):
        for right in words[at + 1 :]:
            assert len(left & right) <= 0.4 * len(left | right)


def test_none_is_like_a_sentence_of_the_other_corpus_that_ships():
    others = [words_of(sentence) for sentence in shipped_corpus().sentences]
    for sentence in shipped_reviews().sentences:
        words = words_of(sentence)
        assert max(len(words & other) / len(words | other) for other in others) < 0.6


def test_no_review_names_its_label_and_no_opening_or_ending_tells_it():
    for sentence in shipped_reviews().sentences:
        assert not words_of(sentence) & {"positive", "negative", "label", "rating", "sentiment"}
    for place in (0, -1):
        good, bad = (Counter(text.split()[place].lower() for text in by_label(x)) for x in ("positive", "negative"))
        for word in good | bad:
            assert max(good[word], bad[word]) < 15 or min(good[word], bad[word]) > 3, word


def test_words_are_many_and_no_single_word_sorts_the_reviews():
    good, bad = (Counter(w for text in by_label(x) for w in words_of(text)) for x in ("positive", "negative"))
    assert len(good | bad) > 1500
    for word in good | bad:
        right = 240 + abs(good[word] - bad[word])
        assert right / 480 < 0.6, word


def test_it_is_a_corpus_by_name_wherever_settings_ask_for_one(tmp_path):
    assert REVIEWS in BUNDLED
    assert Shelf(Store(tmp_path)).corpus("reviews") is shipped_reviews()
    assert bundled_corpus("reviews") is shipped_reviews()
    assert bundled_corpus("shipped") is shipped_corpus()


def test_a_run_is_known_by_the_content_of_the_reviews():
    from embcompare.experiments.representations import RepresentationSimilarity
    from embcompare.running import fingerprints

    prints = fingerprints(RepresentationSimilarity("demo/gpt2-a", "demo/gpt2-b", corpus="reviews"))
    assert prints["reviews"] == shipped_reviews().digest != shipped_corpus().digest


def test_reading_it_costs_no_torch():
    code = "import sys, embcompare.text.labelled as x; x.shipped_reviews(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
