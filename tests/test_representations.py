"""Representation similarity: pairing of rows, spaces, nulls, intervals, against the plain formulas."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.experiments.sides import POOLINGS, standardised
from embcompare.measures import GEOMETRY, MEASURES, linear_cka, mutual_knn, tokenwise_cosine
from embcompare.text.corpora import shipped_corpus
from embcompare.text.uploads import Vectors

SENTENCES = 60


class Context:
    device = "cpu"

    def __init__(self, models, states, vectors=(), corpus=None, stop_after=None):
        self.models, self.states = models, states
        self.given = {f"vectors/{v.name}": v for v in vectors}
        self.text = corpus
        self.reports = []
        self.stop_after = stop_after

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def vectors(self, name):
        return self.given[name]

    def report(self, done, total, message, partial=None):
        self.reports.append((done, total, message, partial))
        if self.stop_after is not None and len(self.reports) > self.stop_after:
            raise Cancelled("stopped")


@pytest.fixture(scope="module")
def corpus():
    whole = shipped_corpus()
    return dataclasses.replace(whole, sentences=whole.sentences[:SENTENCES], labels=whole.labels[:SENTENCES])


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


@pytest.fixture
def context(tiny_model, states, corpus):
    """Two models of one vocabulary, one of another tokenizer."""
    models = {"a": tiny_model("gpt2", 1), "b": tiny_model("gpt2", 2), "bert": tiny_model("bert-mlm", 1)}
    return Context(models, states, corpus=corpus)


def rows(model, corpus, states, kind):
    from embcompare.activations import capture

    captured = capture(model, corpus, folder=states)
    return [captured.pooled(k, kind) for k in captured.layers]


@pytest.mark.parametrize("kind", ["mean", "last", "token"])
def test_matrix_is_the_measure_of_the_captured_states(context, corpus, states, kind):
    settings = RepresentationSimilarity("a", "b", pooling=kind, null_draws=0, halves=0)
    result = settings.compute(context)
    a, b = (rows(context.models[name], corpus, states, kind) for name in "ab")
    assert result.rows == len(a[0])
    assert result.items == SENTENCES
    for i, j in [(0, 0), (1, 2), (2, 1)]:
        assert result.values[i, j] == pytest.approx(linear_cka(a[i], b[j], debiased=True), abs=1e-6)
    assert result.values.shape == (len(a), len(b))


def test_embedding_space_is_the_measure_of_v_wide_projections(context, corpus, states):
    settings = RepresentationSimilarity("a", "b", space="embedding", measure="mutual_knn", null_draws=0, halves=0)
    result = settings.compute(context)
    a, b = (rows(context.models[name], corpus, states, "mean") for name in "ab")
    from embcompare.text import match_vocabularies

    models = [context.models[name] for name in "ab"]
    match = match_vocabularies(models[0].tokens, models[1].tokens)

    def wide(x, model, chosen):
        e = model.anatomy.readout("output")[0][torch.as_tensor(chosen)].double()
        projection = torch.as_tensor(np.array(x)).double() @ e.T
        return (projection - projection.mean(1, keepdim=True)).numpy()

    for i, j in [(0, 0), (2, 1)]:
        x, y = wide(a[i], models[0], match.rows_a), wide(b[j], models[1], match.rows_b)
        assert result.values[i, j] == pytest.approx(mutual_knn(x, y), abs=1e-9)
    tokenwise = dataclasses.replace(settings, measure="tokenwise_cosine").compute(context)
    x, y = wide(a[1], models[0], match.rows_a), wide(b[1], models[1], match.rows_b)
    assert tokenwise.values[1, 1] == pytest.approx(tokenwise_cosine(x, y), abs=1e-8)


def test_a_model_with_itself_is_one_on_the_diagonal_and_far_beyond_its_null(context):
    result = RepresentationSimilarity("a", "a", null_draws=5, halves=5).compute(context)
    np.testing.assert_allclose(np.diag(result.values), 1.0, atol=1e-6)
    assert result.depth_rate == 1.0
    assert (np.diag(result.z) > 10).all()
    assert (np.diag(result.values) > np.diag(result.null_best)).all()
    assert result.best_match_a.tolist() == list(range(len(result.values)))
    assert np.nanmax(np.abs(np.diag(result.spread))) < 1e-6


def test_unrelated_states_lie_within_their_null(states, corpus):
    rng = np.random.default_rng(0)
    given = [Vectors(name, rng.normal(size=(300, 20))) for name in ("x", "y")]
    result = RepresentationSimilarity("vectors/x", "vectors/y", null_draws=60, halves=40).compute(
        Context({}, states, given, corpus)
    )
    assert abs(result.z[0, 0]) < 4
    assert abs(result.values[0, 0]) < 0.05
    assert result.low[0, 0] < 0 < result.high[0, 0]


def test_the_interval_is_as_wide_as_the_statistic_really_varies(states, corpus):
    """Halves must give the spread over new samples, not that of a half: checked on fresh draws of one population."""
    mix = np.random.default_rng(1).normal(size=(8, 8))

    def sample(seed, n=400):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 8))
        return x, x @ mix + 3 * rng.normal(size=(n, 8))

    truth = np.std([linear_cka(*sample(seed), debiased=True) for seed in range(100, 200)], ddof=1)
    x, y = sample(5)
    given = [Vectors("x", x), Vectors("y", y)]
    result = RepresentationSimilarity("vectors/x", "vectors/y", null_draws=0, halves=100).compute(
        Context({}, states, given, corpus)
    )
    assert 0.7 < result.spread[0, 0] / truth < 1.4


def test_whole_sentences_are_drawn_and_pairs_stay_pairs(context):
    settings = RepresentationSimilarity("a", "a", pooling="token", max_rows=200, null_draws=0, halves=0)
    result = settings.compute(context)
    assert result.rows <= 200
    assert result.items < SENTENCES
    np.testing.assert_allclose(np.diag(result.values), 1.0, atol=1e-6)
    assert any("rows were drawn, whole sentences at a time" in notice for notice in result.notices)
    other = dataclasses.replace(settings, seed=1).compute(context)
    assert other.items != result.items or other.values[0, 1] != result.values[0, 1]


def test_different_tokenizers_compare_words_and_sentences_and_say_so_for_tokens(context):
    with pytest.raises(Incomparable, match="different tokens.*pooling 'word'"):
        RepresentationSimilarity("a", "bert", pooling="token", null_draws=0, halves=0).compute(context)
    words = RepresentationSimilarity("a", "bert", pooling="word", null_draws=2, halves=2).compute(context)
    assert words.rows > SENTENCES
    assert any("words" in notice and "whole in both tokenizers" in notice for notice in words.notices)
    assert np.isfinite(words.values).all()
    sentences = RepresentationSimilarity("a", "bert", null_draws=0, halves=0).compute(context)
    assert sentences.rows == SENTENCES


def test_word_rows_of_one_model_twice_are_the_same_rows(context):
    result = RepresentationSimilarity("bert", "bert", pooling="word", null_draws=0, halves=0).compute(context)
    np.testing.assert_allclose(np.diag(result.values), 1.0, atol=1e-6)


def test_cls_is_refused_with_the_reason_where_there_is_none(context):
    with pytest.raises(Incomparable, match="cls|CLS|classification"):
        RepresentationSimilarity("a", "b", pooling="cls", null_draws=0, halves=0).compute(context)


def test_own_vectors_pair_by_row_or_id_with_a_model_or_with_each_other(context, states, corpus):
    mean = rows(context.models["a"], corpus, states, "mean")[2]
    ids = tuple(f"s{k}" for k in range(SENTENCES))
    order = np.random.default_rng(0).permutation(SENTENCES)
    straight = Vectors("straight", np.array(mean), ids)
    shuffled = Vectors("shuffled", np.array(mean)[order], tuple(ids[k] for k in order))
    given = Context(context.models, states, [straight, shuffled], corpus)
    plain = {"null_draws": 0, "halves": 0}
    for pairing in ("id", "auto"):
        settings = RepresentationSimilarity("vectors/straight", "vectors/shuffled", pairing=pairing, **plain)
        by_id = settings.compute(given)
        assert by_id.values[0, 0] == pytest.approx(1.0, abs=1e-6)
        assert by_id.notices[0] == "All 60 rows are paired by id."
    assert RepresentationSimilarity("a", "b").pairing == "auto"
    by_row = RepresentationSimilarity("vectors/straight", "vectors/shuffled", pairing="row", **plain).compute(given)
    assert by_row.values[0, 0] < 0.5
    assert by_row.notices[0] == "All 60 rows are paired in their order."
    assert "rows are paired against their ids: row 0 is 's0' in straight and" in by_row.notices[1]
    assert by_row.notices[1].endswith("pair by id.")
    beside = RepresentationSimilarity("a", "vectors/straight", **plain).compute(given)
    assert beside.values.shape[1] == 1
    assert beside.values[2, 0] == pytest.approx(1.0, abs=1e-6)
    assert any("Row k of straight is paired with sentence k of the text" in notice for notice in beside.notices)
    with pytest.raises(Incomparable, match="no embedding space"):
        RepresentationSimilarity("a", "vectors/straight", space="embedding", **plain).compute(given)
    with pytest.raises(SettingsError, match="one row a sentence"):
        RepresentationSimilarity("a", "vectors/straight", pooling="token", **plain).compute(given)
    short = Vectors("short", np.array(mean)[:10])
    with pytest.raises(Incomparable, match="10 rows and the corpus 60 sentences"):
        RepresentationSimilarity("a", "vectors/short", **plain).compute(
            Context(context.models, states, [short], corpus)
        )


def test_ids_on_one_side_only_are_said_to_play_no_part(states, corpus):
    rng = np.random.default_rng(0)
    given = [Vectors("x", rng.normal(size=(9, 3)), tuple("abcdefghi")), Vectors("y", rng.normal(size=(9, 3)))]
    settings = RepresentationSimilarity("vectors/x", "vectors/y", null_draws=0, halves=0)
    result = settings.compute(Context({}, states, given, corpus))
    assert result.notices[0] == "All 9 rows are paired in their order. x has ids and y has none to pair by."
    bare = [dataclasses.replace(v, ids=()) for v in given]
    assert settings.compute(Context({}, states, bare, corpus)).notices[0] == "All 9 rows are paired in their order."
    given[1] = Vectors("y", rng.normal(size=(9, 3)), tuple("ABCDEFGHI"))
    with pytest.raises(Incomparable, match="share no id.*or pair by row"):
        settings.compute(Context({}, states, given, corpus))


def test_a_stack_of_given_layers_is_compared_layer_by_layer(context, states, corpus):
    """A model's own states, brought as a stack, give the very matrix that the model gives."""
    stack = np.stack(rows(context.models["a"], corpus, states, "mean"))
    ids = tuple(f"s{k}" for k in range(SENTENCES))
    order = np.random.default_rng(0).permutation(SENTENCES)
    given = Context(
        context.models,
        states,
        [Vectors("stack", stack, ids), Vectors("mixed", stack[:, order], tuple(ids[k] for k in order))],
        corpus,
    )
    plain = {"null_draws": 2, "halves": 2}
    own = RepresentationSimilarity("a", "b", **plain).compute(given)
    brought = RepresentationSimilarity("vectors/stack", "b", **plain).compute(given)
    np.testing.assert_allclose(brought.values, own.values, atol=1e-12)
    np.testing.assert_allclose(brought.null_mean, own.null_mean, atol=1e-12)
    assert brought.layers_a == ("given layer 0", "given layer 1", "given layer 2")
    assert brought.layers_b == own.layers_b
    turned = RepresentationSimilarity("b", "vectors/stack", **plain).compute(given)
    np.testing.assert_allclose(turned.values, own.values.T, atol=1e-12)
    itself = RepresentationSimilarity("vectors/stack", "vectors/mixed", null_draws=0, halves=0).compute(given)
    np.testing.assert_allclose(np.diag(itself.values), 1.0, atol=1e-6)
    assert itself.depth_rate == 1.0
    for i, j in [(0, 1), (2, 0)]:
        assert itself.values[i, j] == pytest.approx(linear_cka(stack[i], stack[j], debiased=True), abs=1e-6)


def test_a_stack_with_the_rows_first_is_told_apart_where_it_shows(context, states, corpus):
    rows_first = Vectors("wrong", np.random.default_rng(0).normal(size=(SENTENCES, 3, 8)))
    with pytest.raises(Incomparable, match="3 rows and the corpus 60 sentences; its first axis, that of the layers"):
        RepresentationSimilarity("a", "vectors/wrong").compute(Context(context.models, states, [rows_first], corpus))


def plain_shared(x, y, k):
    """Share of the k nearest by cosine that both have, row by row, from the formula."""
    found = []
    for z in (x, y):
        unit = np.asarray(z, dtype=np.float64) / np.linalg.norm(np.asarray(z, dtype=np.float64), axis=1, keepdims=True)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, -np.inf)
        found.append([set(row[:k]) for row in np.argsort(-cosine, axis=1, kind="stable").tolist()])
    return [len(one & other) for one, other in zip(*found, strict=True)]


@pytest.mark.parametrize("k", [1, 7, 25])
def test_as_many_neighbours_are_counted_as_are_asked_for(states, corpus, k):
    rng = np.random.default_rng(k)
    x = rng.normal(size=(60, 8))
    y = x + rng.normal(size=(60, 8))
    given = Context({}, states, [Vectors("x", x), Vectors("y", y)], corpus)
    shared = np.array(plain_shared(x, y, k))
    expected = {"mutual_knn": np.mean(shared / k), "neighbourhood_jaccard": np.mean(shared / (2 * k - shared))}
    for measure, value in expected.items():
        settings = RepresentationSimilarity("vectors/x", "vectors/y", measure=measure, k=k, null_draws=1, halves=2)
        result = settings.compute(given)
        assert result.values[0, 0] == pytest.approx(value, abs=1e-12)
        assert result.k == k
        assert any(f"{k} nearest row" in notice for notice in result.notices)
        assert f"k = {k}, by" in settings.declaration.formula
        assert settings.declaration.min_samples(8, 8) == k + 2
        assert (result.spread is not None) == (2 * (k + 2) <= 60)
    near = RepresentationSimilarity("vectors/x", "vectors/y", measure="cknna", k=k, null_draws=0, halves=0)
    assert near.compute(given).values[0, 0] == pytest.approx(MEASURES["cknna"](x, y, k=k), abs=1e-12)


def test_other_measures_count_no_neighbours_and_do_not_say_so(context):
    plain = {"null_draws": 0, "halves": 0}
    one, other = (RepresentationSimilarity("a", "b", k=k, **plain).compute(context) for k in (10, 500))
    assert one.values.tobytes() == other.values.tobytes()
    assert one.k is other.k is None
    assert not any("nearest" in notice for notice in other.notices)
    few = RepresentationSimilarity("a", "b", k=500, measure="linear_cka_biased", **plain)
    assert few.declaration is MEASURES["linear_cka_biased"]


def test_more_neighbours_than_others_are_refused_with_how_many_do(states, corpus):
    rng = np.random.default_rng(0)
    given = Context({}, states, [Vectors(name, rng.normal(size=(20, 4))) for name in ("x", "y")], corpus)

    def computed(k):
        settings = RepresentationSimilarity("vectors/x", "vectors/y", measure="mutual_knn", k=k, null_draws=0, halves=4)
        return settings.compute(given)

    for k in (19, 20, 500):
        with pytest.raises(Incomparable, match=f"Neighbours cannot be {k}: with 20 rows .* choose 18 or fewer"):
            computed(k)
    result = computed(18)
    assert np.isfinite(result.values[0, 0])
    assert result.spread is None
    assert any("Half of 20 rows are too few for 18 neighbours" in notice for notice in result.notices)
    assert computed(8).spread is not None
    with pytest.raises(SettingsError, match="Neighbours cannot be 501; the largest value is 500"):
        computed(501)
    two = Context({}, states, [Vectors(name, rng.normal(size=(2, 4))) for name in ("x", "y")], corpus)
    with pytest.raises(Incomparable, match="everybody's neighbour; give more rows"):
        RepresentationSimilarity("vectors/x", "vectors/y", measure="cknna", k=1).compute(two)


def test_one_exploding_dimension_is_named_and_standardising_takes_its_say_away(states, corpus):
    rng = np.random.default_rng(0)
    loud = 50 * rng.normal(size=(400, 1))
    given = [Vectors(name, np.hstack([loud, rng.normal(size=(400, 20))])) for name in ("x", "y")]
    settings = RepresentationSimilarity("vectors/x", "vectors/y", null_draws=0, halves=0)
    raw = settings.compute(Context({}, states, given, corpus))
    assert raw.values[0, 0] > 0.99
    assert any("one dimension holds more than half" in notice for notice in raw.notices)
    fair = dataclasses.replace(settings, standardise=True).compute(Context({}, states, given, corpus))
    assert fair.values[0, 0] < 0.3
    assert not any("one dimension" in notice for notice in fair.notices)


def test_few_rows_for_a_biased_measure_are_named(states, corpus):
    rng = np.random.default_rng(0)
    given = [Vectors(name, rng.normal(size=(60, 40))) for name in ("x", "y")]
    settings = RepresentationSimilarity("vectors/x", "vectors/y", measure="linear_cka_biased", null_draws=0, halves=0)
    result = settings.compute(Context({}, states, given, corpus))
    assert result.values[0, 0] > 0.3
    assert any("60 rows for vectors 40 wide are few" in notice for notice in result.notices)


def test_constant_layers_and_too_few_rows_are_undefined_with_their_reason(states, corpus):
    rng = np.random.default_rng(0)
    given = [Vectors("x", np.ones((50, 5))), Vectors("y", rng.normal(size=(50, 5)))]
    result = RepresentationSimilarity("vectors/x", "vectors/y", null_draws=2, halves=2).compute(
        Context({}, states, given, corpus)
    )
    assert np.isnan(result.values[0, 0])
    assert "constant" in result.reasons[0][2]
    assert result.to_frame().reason[0] == result.reasons[0][2]
    wide = [Vectors(name, rng.normal(size=(20, 30))) for name in ("x", "y")]
    cca = RepresentationSimilarity("vectors/x", "vectors/y", measure="cca", null_draws=0, halves=0)
    undefined = cca.compute(Context({}, states, wide, corpus))
    assert np.isnan(undefined.values[0, 0])
    assert "needs" in undefined.reasons[0][2]


@pytest.mark.parametrize("measure", sorted(MEASURES))
def test_every_measure_runs_and_finds_a_model_closest_to_itself(context, measure):
    space = "embedding" if MEASURES[measure].needs_shared_coordinates else "feature"
    settings = RepresentationSimilarity("a", "a", measure=measure, space=space, pooling="token", null_draws=2, halves=2)
    result = settings.compute(context)
    assert result.best_match_a.tolist() == list(range(len(result.values)))
    assert (np.diag(result.z) > 3).all()
    assert result.geometry == tuple(GEOMETRY)
    assert result.geometry_a.shape == (len(result.values), len(GEOMETRY))


def test_same_settings_give_the_same_bits(context):
    settings = RepresentationSimilarity("a", "b", measure="ridge_r2", pooling="token", null_draws=2, halves=2)
    first, second = settings.compute(context), settings.compute(context)
    for name in ("values", "null_mean", "null_sd", "spread"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


def test_cancel_leaves_a_partial_matrix(context):
    context.stop_after = 1000
    settings = RepresentationSimilarity("a", "b", null_draws=200, halves=0, pooling="token")
    with pytest.raises(Cancelled):
        settings.compute(context)
    partial = [report[3] for report in context.reports if report[3] is not None]
    assert len(partial) == 1
    assert np.isfinite(partial[0].values).all()
    assert partial[0].null_mean is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measure": "cka"}, "There is no measure 'cka'; there are linear_cka"),
        ({"standardise": True, "space": "embedding"}, "Standardising scales features"),
        ({"final_norm": True}, "choose embedding space"),
        ({"measure": "tokenwise_cosine"}, "share none in feature space; choose embedding space"),
        ({"pooling": "sum"}, f"Rows cannot be 'sum'; choose one of {', '.join(POOLINGS)}"),
        ({"max_rows": 3}, "smallest value is 4"),
    ],
)
def test_settings_that_do_not_fit_say_what_would(changes, words):
    with pytest.raises(SettingsError, match=words.replace("(", r"\(")):
        RepresentationSimilarity("a", "b", **changes)


def test_standardised_features_have_unit_variance_and_constant_ones_are_zero():
    x = np.hstack([np.random.default_rng(0).normal(3, 5, size=(50, 3)), np.full((50, 1), 0.1)])
    z = standardised(x.astype(np.float32))
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(z[:, :3].std(0), 1, atol=1e-12)
    assert (z[:, 3] == 0).all()
    again = standardised(z)
    np.testing.assert_allclose(again, z, atol=1e-12)


def test_final_norm_in_embedding_space_is_the_models_own(context, corpus, states):
    settings = RepresentationSimilarity("a", "a", space="embedding", final_norm=True, null_draws=0, halves=0)
    with_norm = settings.compute(context)
    without = dataclasses.replace(settings, final_norm=False).compute(context)
    last = len(with_norm.values) - 1
    assert "final norm" in with_norm.layers_a[last]
    assert with_norm.values[1, last] != without.values[1, last]
    # the last state has passed the norm already and must not pass it twice
    assert with_norm.geometry_a[last].tolist() == without.geometry_a[last].tolist()
