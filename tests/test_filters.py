"""Which tokens are listed: one's own list, the words of a text, and that a text that is not asked for is not sought."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from readings import Context

import embcompare
from embcompare import shelf
from embcompare.cli import main
from embcompare.errors import SettingsError
from embcompare.experiments import EXPERIMENTS, settings_type
from embcompare.experiments.agreement import ParameterAgreement
from embcompare.experiments.base import canonical
from embcompare.experiments.difference import ParameterDifference, ParameterDifferenceResult
from embcompare.experiments.filters import Filters, spelt, word_list, words_in
from embcompare.experiments.heads import HeadReading
from embcompare.experiments.nearest import NearestVectors
from embcompare.experiments.reading import TokenReading
from embcompare.experiments.token_search import TokenSearch
from embcompare.running import fingerprints
from embcompare.text import Tokens

LISTED = ("aa", "AB", "##ab", "ba", "é", "ing", "##ing", "zz")
TEXT = {"mine": ("Aa ab, ba ca.", "zz AC da-dd, zz9")}
ASKED = {
    "reading": TokenReading("a", 1, top=200),
    "heads": HeadReading("a", 1, 0, top=2000, identical="none", null_draws=1),
    "search": TokenSearch("a", "b", "ea", top=50, count=5),
    "nearest": NearestVectors("a", "b", 1, 3, top=100, null_draws=0),
    "difference": ParameterDifference("a", "b", top=200),
}


def changed(settings, **values):
    return type(settings).from_dict({**settings.to_dict(), **values})


def listed(result):
    """Every token that a result shows, as it is written."""
    if isinstance(result, ParameterDifferenceResult):  # tokens whose embeddings moved are no reading
        return {*result.top_tokens.ravel(), *result.bottom_tokens.ravel()}
    if hasattr(result, "listed"):
        return set(result.tokens)
    lists = result.tokens if hasattr(result, "searched_a") else (result.tokens_a, result.bottom_a, *result.tokens_b)
    return {token for row in lists for token in row}


def tokens(texts, starts, special=(), uncased=False):
    flags = np.isin(np.arange(len(texts)), list(special))
    return Tokens(tuple(texts), tuple(texts), np.array(starts), flags, uncased, "wordpiece")


@pytest.mark.parametrize("name", ASKED)
def test_a_list_and_a_text_keep_their_tokens_and_no_others_in_every_reading(tiny_model, name):
    a, b = tiny_model("gpt2"), tiny_model("gpt2", seed=1)
    context = Context(a=a, b=b, texts=TEXT)
    whole = listed(ASKED[name].compute(context))
    assert len(whole) > 30
    of_text = changed(ASKED[name], words_of="mine").compute(context)
    words = {"aa", "ab", "ba", "ca", "zz", "ac", "da", "dd"}  # zz9 is no token of these models
    real = {a.tokens.display(row) for row in range(len(a.tokens)) if a.tokens.starts_word[row]}
    expected = {token for token in real if token.casefold() in words}
    assert listed(of_text) == expected
    assert len(expected) == 8
    said = [note for note in of_text.notices if "kept to 8 words" in note and "by the 9 words of mine" in note]
    assert len(said) == len({"search": "ab", "nearest": "ab"}.get(name, "a"))
    mine = changed(ASKED[name], only="AB, ba;xyzzy\nqqqq").compute(context)
    assert listed(mine) == {a.tokens.display(r) for r, text in enumerate(a.tokens.text) if text in ("ab", "ba")}
    assert any(
        "by a list of 4 words" in note and "of the list 2 are no tokens: xyzzy, qqqq" in note for note in mine.notices
    )
    both = changed(ASKED[name], only="ab ba ea", words_of="mine", stop_words="BA").compute(context)
    assert listed(both) == {"ab"}
    with pytest.raises(
        SettingsError,
        match=r"no token of .* \(of those to keep 1 is no token: xyzzy\); shorten the stop list "
        "or keep other tokens",
    ):
        changed(ASKED[name], only="xyzzy", stop_words="ab").compute(context)
    with pytest.raises(SettingsError, match="keep other tokens or keep the words of another text"):
        changed(ASKED[name], only="ea", words_of="mine").compute(context)


def test_what_is_kept_scores_as_it_does_in_the_whole_list(tiny_model):
    context = Context(a=tiny_model("llama"), texts=TEXT)
    whole = changed(ASKED["reading"], top=200, common=1).compute(context)
    kept = changed(ASKED["reading"], common=1, words_of="mine").compute(context)
    for row in range(len(whole.index)):
        scores = dict(zip(whole.top[row], whole.top_scores[row], strict=True))
        scores |= dict(zip(whole.bottom[row], whole.bottom_scores[row], strict=True))
        for token, score in zip(kept.top[row], kept.top_scores[row], strict=True):
            if token in scores:
                assert score == pytest.approx(scores[token], rel=1e-9)
    assert kept.usable == kept.top.shape[1] == 8


def test_agreement_of_a_few_tokens_is_that_of_sets_among_them(tiny_model):
    from embcompare.experiments.agreement_pairs import partners

    a, b = tiny_model("gpt2"), tiny_model("llama")
    texts = {"shipped": ("aa ab ba ca", "ea eb", "da db dc"), "mine": TEXT["mine"]}
    asked = ParameterAgreement("a", "b", k=3, words_of="mine", common=0, keep_vectors=5, null_draws=1)
    result = asked.compute(Context(a=a, b=b, texts=texts))
    e = a.anatomy.readout("output")[0].double()
    e = e - e[~a.tokens.special[: len(e)]].mean(0)
    rows = [
        r for r, t in enumerate(a.tokens.text) if a.tokens.starts_word[r] and t.casefold() in words_in(TEXT["mine"])
    ]
    sets = [
        np.argsort(-np.abs((a.anatomy.vectors(group, 1).double() @ e[rows].T).numpy()), axis=1)[:, :3]
        for group in ("ff_keys", "ff_values")
    ]
    one, other = partners(a.anatomy, 1, "ff")
    shared = [len({*sets[0][i]} & {*sets[1][j]}) for i, j in zip(one, other, strict=True)]
    assert result.sim[0, result.pairs.index("ff"), 1] == pytest.approx(np.mean([n / (6 - n) for n in shared]))
    assert sum("kept to 8 words" in note for note in result.notices) == 2
    assert result.k.tolist() == [3, 3]
    every = changed(asked, k=50, only="ab ba", words_of="").compute(Context(a=a, b=b, texts=texts))
    assert np.nanmin(every.sim) == 1
    assert any("all agree whatever they say" in note for note in every.notices)
    assert np.isfinite(every.keep_inverse[every.keep_inverse == every.keep_inverse]).all()


def test_one_token_alone_can_be_read(tiny_model):
    context = Context(a=tiny_model("gpt2"), b=tiny_model("gpt2", seed=1))
    reading = changed(ASKED["reading"], only="ab", words_only=True).compute(context)
    assert reading.usable == 1
    assert np.isnan(reading.z).all()
    head = changed(ASKED["heads"], only="ab", words_only=True, identical="token").compute(context)
    assert head.top_values.shape == (0,)
    assert np.isnan(head.null).all()
    assert len(head.to_frame()) == 0


def test_a_kept_token_that_the_models_do_not_share_is_not_listed(tiny_folders, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from embcompare.models import ModelSpec, load_model

    folder = tiny_folders("gpt2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["brandnew"])
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    a, b = (load_model(ModelSpec.parse(str(each))) for each in (tmp_path, folder))
    with pytest.raises(SettingsError, match="leave no token of .*; keep other tokens"):
        ParameterDifference("a", "b", only="brandnew").compute(Context(a=a, b=b))
    assert "brandnew" in TokenReading("a", 0, only="brandnew").compute(Context(a=a)).tokens[0]


@given(st.lists(st.sampled_from(LISTED), max_size=8), st.permutations(range(8)))
@hypothesis_settings(max_examples=80, deadline=None)
def test_a_list_means_the_same_in_any_order_case_and_form(words, order):
    vocabulary = tokens(["aa", "ab", "ab", "ba", "é", "ing", "x"], [True, True, False, True, True, False, True], [6])
    shuffled = [words[at] for at in order if at < len(words)]
    spelling = " ".join(unicodedata.normalize("NFD", word.swapcase()) for word in shuffled)
    kept = spelt(vocabulary, word_list(", ".join(words)))
    np.testing.assert_array_equal(kept, spelt(vocabulary, word_list(spelling)))
    expected = [
        any(w.casefold() == t or (w.startswith("##") and w[2:].casefold() == t and not s) for w in words)
        for t, s in zip(vocabulary.text, vocabulary.starts_word, strict=True)
    ]
    assert kept.tolist() == expected
    # what is kept and what is stopped part the vocabulary
    rest = ~vocabulary.special & ~kept
    if rest.any():
        np.testing.assert_array_equal(Filters(stop=word_list(spelling)).kept(vocabulary, 7, "m")[0], rest)
    if words and (kept & ~vocabulary.special).any():
        np.testing.assert_array_equal(Filters(only=word_list(spelling)).kept(vocabulary, 7, "m")[0], kept)


def test_words_of_a_text_are_whole_and_punctuation_is_none():
    assert words_in(("The cat's Dog-house, 3 times…", "É e\u0301")) == {
        "the",
        "cat's",
        "dog",
        "house",
        "3",
        "times",
        "é",
    }
    vocabulary = tokens(["dog", "do", "dog", ",", "The"], [True, True, False, True, True])
    kept, said = Filters(words=words_in(("the dog,",)), text="a text").kept(vocabulary, 5, "m")
    assert kept.tolist() == [True, False, False, False, True]
    assert said.startswith("m: kept to 2 words (of 5 tokens) by the 2 words of a text.")
    assert Filters().kept(vocabulary, 5, "m")[1] == ""


def test_many_absent_words_are_counted_and_the_first_named():
    absent = word_list(" ".join(f"w{n}" for n in range(30)) + " dog " + "y" * 90)
    _, said = Filters(only=absent).kept(tokens(["dog"], [True]), 1, "m")
    assert "of the list 31 are no tokens: w0, w1, w2, w3, w4 and 26 more" in said


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if "words_of" in settings_type(n).__dataclass_fields__])
def test_an_empty_name_of_a_text_is_not_looked_up_and_a_name_stands_for_its_content(name):
    kind = settings_type(name)
    needed = {"model": "m", "model_a": "m", "model_b": "m", "token": "x", "layer": 0, "index": 0, "head": 0}
    plain = kind(**{key: value for key, value in needed.items() if key in kind.__dataclass_fields__})
    assert "" not in plain.corpora()
    # a stray print of an empty name makes no difference: it names nothing
    assert canonical(plain, {"m": "1", "": "stray"}) == canonical(plain, {"m": "1"})
    chosen = changed(plain, words_of="reviews")
    assert "reviews" in chosen.corpora()
    assert canonical(chosen, {"m": "1", "reviews": "0"}) != canonical(chosen, {"m": "1", "reviews": "1"})
    assert canonical(chosen, {"m": "1", "reviews": "0"}) != canonical(plain, {"m": "1"})


def test_prints_of_a_run_name_the_text_by_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    bare = TokenReading("demo/gpt2-a", 0)
    assert set(fingerprints(bare)) == {"demo/gpt2-a"}
    assert fingerprints(changed(bare, words_of="reviews"))["reviews"] == shelf.bundled_corpus("reviews").digest
    result = embcompare.run(changed(bare, count=3, top=5, words_of="reviews"))
    assert set(result.tokens) <= words_in(shelf.bundled_corpus("reviews").sentences)
    again = embcompare.run(changed(bare, count=3, top=5, words_of="reviews"))
    assert again.tokens == result.tokens
    with pytest.raises(SettingsError, match="There is no corpus 'elsewhere'"):
        embcompare.run(changed(bare, words_of="elsewhere"))


def test_from_a_shell_a_list_and_a_file_are_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "own.txt"
    own.write_text("film movie\nwhale\n", encoding="utf-8")
    words = ["run", "token-reading", "--model", "demo/gpt2-a", "--layer", "3", "--count", "2", "--quiet", "--csv", "-"]
    assert main([*words, "--only", "film, whale nosuchword"]) == 0
    out, said = capsys.readouterr()
    assert "of the list 1 is no token: nosuchword" in said
    assert {*out.splitlines()[1].split(",")[5].split()} == {"film", "whale"}
    assert main([*words, "--words-of", str(own)]) == 0
    out, said = capsys.readouterr()
    assert "kept to 3 words (of 4,091 tokens) by the 3 words of own.txt" in said
    assert main([*words, "--words-of="]) == 0
    assert "kept to" not in capsys.readouterr().err
    assert main([*words, "--only", "nosuchword"]) == 2
    assert "keep other tokens" in capsys.readouterr().err


def test_a_token_of_two_dashes_is_text_on_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    pair = ["--model-a", "demo/gpt2-a", "--model-b", "demo/gpt2-b", "--quiet", "--csv", "-"]
    assert main(["run", "token-search", "--token=--", *pair]) == 2
    assert (
        "has no token '--'; it is written - -, and each of these can be searched; the nearest it has are ##-, -."
        in capsys.readouterr().err
    )
    assert main(["run", "token-search", "--token=-", "--count", "1", *pair]) == 0


def test_few_tokens_are_warned_of_with_the_largest_z_there_can_be():
    scores = np.array([1.0, 0, 0, 0, 0])
    assert (scores.max() - scores.mean()) / scores.std() == pytest.approx(2)
    words = ["good", "bad", "great", "dull", "film", *(f"w{at}" for at in range(60))]
    vocabulary = tokens(words, [True] * len(words))
    for only, few in (("good bad great dull film", True), (" ".join(words[:50]), False)):
        asked = changed(ASKED["reading"], only=only)
        said = Filters.of(asked, None).kept(vocabulary, len(words), "demo")[1]
        assert ("no z is beyond 2.0" in said) == few
