"""What is compared beside hidden states, in every experiment that reads rows: numbers, numbering, keys, refusals."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from test_representations import Context

from embcompare.activations import capture
from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.base import canonical
from embcompare.experiments.bijection import Bijection
from embcompare.experiments.bijection_modules import ModuleReplaced, module_output
from embcompare.experiments.map_pairs import MapPairs
from embcompare.experiments.pairs import RepresentationPair
from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult
from embcompare.experiments.sides import WHAT
from embcompare.measures import linear_cka, tokenwise_cosine
from embcompare.text.corpora import shipped_corpus
from embcompare.text.uploads import Vectors
from embcompare.text.vocabulary import match_vocabularies

BARE = {"null_draws": 0, "halves": 0}
OTHER = tuple(what for what in WHAT if what != "hidden")


@pytest.fixture(scope="module")
def corpus():
    whole = shipped_corpus()
    return dataclasses.replace(whole, sentences=whole.sentences[:40], labels=whole.labels[:40])


@pytest.fixture(scope="module")
def context(tiny_model, corpus, tmp_path_factory):
    models = {"a": tiny_model("gpt2", 1), "b": tiny_model("gpt2", 2), "bert": tiny_model("bert-mlm", 1)}
    return Context(models, tmp_path_factory.mktemp("states"), corpus=corpus)


def captured(context, name, what):
    return capture(context.models[name], context.text, what=what, folder=context.states)


@pytest.mark.parametrize("what", OTHER)
def test_similarity_is_the_measure_of_what_is_captured_and_layers_are_numbered_from_one(context, what):
    result = RepresentationSimilarity("a", "b", what=what, pooling="token", null_draws=2, halves=2).compute(context)
    a, b = (captured(context, name, what) for name in "ab")
    assert result.values.shape == (2, 2)
    for i, j in np.ndindex(2, 2):
        assert result.values[i, j] == pytest.approx(linear_cka(a.layer(i + 1), b.layer(j + 1)), abs=1e-6)
    assert result.start == (1, 1)
    assert result.layers_a == tuple(a.layer_label(k) for k in (1, 2))
    frame = result.to_frame()
    assert sorted(set(frame.layer_a)) == sorted(set(frame.layer_b)) == [1, 2]
    assert frame[(frame.layer_a == 1) & (frame.layer_b == 2)].value.iloc[0] == result.values[0, 1]


def test_hidden_states_are_numbered_from_zero_also_in_results_from_before(context):
    result = RepresentationSimilarity("a", "b", **BARE).compute(context)
    assert result.start == (0, 0)
    arrays, scalars = result.pack()
    del scalars["numbered_from"]
    before = RepresentationSimilarityResult.unpack(arrays, scalars)
    assert before.start == (0, 0)
    assert before.to_frame().equals(result.to_frame())


@pytest.mark.parametrize("what", ["attention", "feed_forward"])
def test_outputs_are_read_through_the_vocabulary_as_hidden_states_are(context, what):
    settings = RepresentationSimilarity("a", "b", "tokenwise_cosine", "embedding", what=what, centred=False, **BARE)
    result = settings.compute(context)
    match = match_vocabularies(context.models["a"].tokens, context.models["b"].tokens)
    a, b = (
        captured(context, name, what).pooled(2, "mean").astype(np.float64)
        @ context.models[name].anatomy.unembedding.double().numpy()[rows].T
        for name, rows in (("a", match.rows_a), ("b", match.rows_b))
    )
    assert result.values[1, 1] == pytest.approx(tokenwise_cosine(a, b), abs=1e-5)


def test_words_of_patterns_work_across_tokenizers(context):
    result = RepresentationSimilarity("a", "bert", what="patterns", pooling="word", **BARE).compute(context)
    assert np.isfinite(result.values).all()
    with pytest.raises(Incomparable, match=r"compare words \(pooling 'word'\)\."):
        RepresentationSimilarity("a", "bert", what="patterns", pooling="token", **BARE).compute(context)


@pytest.mark.parametrize("what", OTHER)
def test_a_pair_of_layers_is_named_and_numbered_as_it_is_captured(context, what):
    result = RepresentationPair("a", "b", 1, 2, what=what, pooling="token").compute(context)
    a, b = (captured(context, name, what) for name in "ab")
    assert (result.name_a, result.name_b) == (a.layer_label(1), b.layer_label(2))
    with pytest.raises(SettingsError, match=f"has {WHAT[what]} in blocks 1 to 2, and 0 is none of them"):
        RepresentationPair("a", "b", 0, 1, what=what, pooling="token").compute(context)


def test_a_models_modules_beside_given_vectors(context):
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    given = Context(context.models, context.states, [Vectors("x", x)], context.text)
    result = RepresentationSimilarity("a", "vectors/x", what="feed_forward", **BARE).compute(given)
    assert result.start == (1, 0)
    assert result.values.shape == (2, 1)
    expected = linear_cka(captured(context, "a", "feed_forward").pooled(2, "mean"), x)
    assert result.values[1, 0] == pytest.approx(expected, abs=1e-6)


REFUSED = [
    ({"what": "patterns"}, "have one row a token"),
    ({"what": "patterns", "pooling": "token", "space": "embedding"}, "numbers of heads, not vectors"),
    ({"what": "patterns", "pooling": "token", "model_b": "vectors/x"}, "a file of vectors has one a sentence"),
    ({"what": "attention", "space": "embedding", "final_norm": True}, "only part of one"),
    ({"what": "attention", "model_a": "vectors/x", "model_b": "vectors/y"}, "'attention' is for models"),
    ({"what": "mlp"}, "choose one of hidden, attention, feed_forward, patterns"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_does_not_go_together_is_said_beforehand(changes, words):
    with pytest.raises(SettingsError, match=words):
        RepresentationSimilarity(**{"model_a": "a", "model_b": "b", **changes})


@pytest.mark.parametrize(
    "settings",
    [
        RepresentationSimilarity("a", "b"),
        RepresentationPair("a", "b", 1, 2),
        Bijection("a", "b", 1, 2),
        MapPairs("a", "b"),
    ],
)
def test_the_default_leaves_the_key_as_it_was_before_there_was_a_choice(settings):
    prints = {"a": "print of a", "b": "print of b", "shipped": "digest"}
    found = json.loads(canonical(settings, prints))
    assert "what" not in found["settings"]
    assert set(found["settings"]) == set(settings.to_dict()) - {"what"}
    for what in ("attention", "feed_forward"):
        other = canonical(dataclasses.replace(settings, what=what), prints)
        assert json.loads(other)["settings"]["what"] == what
        assert other != canonical(settings, prints)
    assert "what" not in settings.call()


@pytest.mark.parametrize("what", OTHER)
def test_map_pairs_are_the_maps_of_what_is_captured(context, what):
    settings = MapPairs("a", "b", maps="ridge", what=what, splits=1, null_draws=1, max_rows=600)
    result = settings.compute(context)
    assert result.test.shape == (1, 1, 2, 2)
    assert result.start == (1, 1)
    assert set(result.to_frame().layer_a) == {1, 2}
    single = Bijection("a", "b", 1, 2, maps="ridge", what=what, max_rows=600, downstream=0).compute(context)
    assert single.mean("ridge", "r2") == pytest.approx(result.mean("ridge")[0, 1], abs=1e-4)


@pytest.mark.parametrize("name", ["a", "bert"])
@pytest.mark.parametrize("what", ["attention", "feed_forward"])
def test_b_goes_on_from_a_modules_given_output_as_a_hook_would_make_it(context, name, what):
    model = context.models[name]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 300, (2, 7), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    own = module_output(model, what, 2, ids, mask)
    given = own + torch.randn(own.shape, generator=generator, dtype=own.dtype)
    with torch.no_grad():
        found = ModuleReplaced(model, what, 2).states(given, ids, mask)
        same = ModuleReplaced(model, what, 2).states(own, ids, mask)
        plain = model.module.base_model(input_ids=ids, attention_mask=mask)[0]
        site = model.module.get_submodule(model.anatomy.blocks[1].sites[f"{what}_out"])
        handle = site.register_forward_hook(lambda *_: given)
        hooked = model.module.base_model(input_ids=ids, attention_mask=mask)[0]
        handle.remove()
    real = mask.bool()
    torch.testing.assert_close(same[real], plain[real])
    torch.testing.assert_close(found[real], hooked[real])
    assert not torch.allclose(found[real], plain[real], atol=1e-3)


@pytest.mark.parametrize("what", ["attention", "feed_forward"])
def test_predictions_from_a_models_own_mapped_outputs_are_its_own(context, what):
    settings = Bijection(
        "a", "a", 2, 2, maps="mean, least_squares", what=what, downstream=5, max_rows=700, standardise=False
    )
    result = settings.compute(context)
    assert result.answer_scores == ("loss", "kl", "agreement")
    exact = dict(zip(result.answer_scores, result.answers[1, 0], strict=True))
    worse = dict(zip(result.answer_scores, result.answers[0, 0], strict=True))
    assert exact["kl"] < 1e-3 < worse["kl"]
    assert exact["agreement"] > 0.99
    assert result.answers_own[1] == pytest.approx(0.0, abs=1e-6)
    label = {"attention": "attention of block 2", "feed_forward": "feed-forward of block 2"}[what]
    assert result.name_a == label


def test_patterns_have_no_predictions_and_say_why(context):
    result = Bijection("a", "b", 1, 1, maps="mean, ridge", what="patterns", max_rows=500).compute(context)
    assert result.answers is None
    assert any("no vectors that a model could go on from" in notice for notice in result.notices)
