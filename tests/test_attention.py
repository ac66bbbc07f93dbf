"""Attention similarity: heads against heads by the plain formulas, the null of position, words, and what is refused."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import jensenshannon
from test_activations_parts import plain_patterns

from embcompare.activations import capture
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments import attention_compare as compare
from embcompare.experiments.attention import AttentionPatterns, AttentionSimilarity
from embcompare.experiments.attention_units import Pattern
from embcompare.text.corpora import Corpus, shipped_corpus

SENTENCES = 24
BARE = {"null_draws": 0, "halves": 0}


class Context:
    device = "cpu"

    def __init__(self, models, states, corpus, stop=None):
        self.models, self.states, self.text, self.stop, self.reports = models, states, corpus, stop, []

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def report(self, done, total, message, partial=None):
        assert 0 <= done <= total
        self.reports.append((done, total, message, partial))
        if self.stop is not None and self.stop in message:
            raise Cancelled("stopped")


@pytest.fixture(scope="module")
def corpus():
    whole = shipped_corpus()
    return dataclasses.replace(whole, sentences=whole.sentences[:SENTENCES], labels=whole.labels[:SENTENCES])


@pytest.fixture(scope="module")
def context(tiny_model, corpus, tmp_path_factory):
    models = {"a": tiny_model("gpt2"), "b": tiny_model("gpt2", 1), "neox": tiny_model("gpt-neox")}
    models |= {"bert": tiny_model("bert-mlm"), "bert2": tiny_model("bert-mlm", 1), "distil": tiny_model("distilbert")}
    return Context(models | {"t5": tiny_model("t5")}, tmp_path_factory.mktemp("states"), corpus)


def plain_pairs(model, corpus, causal):
    """Every text's probabilities between its own tokens, (L H, n, n), and their even attention, by transformers."""
    found = []
    for sentence in corpus.sentences:
        layers, text = plain_patterns(model, sentence[:36])
        p = np.concatenate(layers)[:, text][:, :, text]
        length = len(text)
        seen = np.tril(np.ones((length, length))) if causal else np.ones((length, length))
        found.append((p, (seen / seen.sum(1, keepdims=True))[text][:, text]))
    return found


@pytest.fixture(scope="module")
def short(context):
    """The corpus with sentences cut, so that no tiny model has to cut them."""
    text = context.text
    cut = dataclasses.replace(text, sentences=tuple(s[:36] for s in text.sentences), labels=())
    return Context(context.models, context.states, cut)


@pytest.mark.parametrize("pair", [("a", "b"), ("bert", "bert2"), ("bert", "distil"), ("a", "neox")])
def test_full_pattern_is_the_correlation_of_all_pairs_that_may_attend(pair, short):
    result = AttentionSimilarity(*pair, pattern="full", **BARE).compute(short)
    sides = []
    for name in pair:
        model = short.models[name]
        causal = model.anatomy.blocks[0].attention.causal
        rows = [(p / np.where(e > 0, e, 1))[:, e > 0] for p, e in plain_pairs(model, short.text, causal)]
        sides.append(np.concatenate(rows, axis=1))
    expected = np.corrcoef(*sides)[: len(sides[0]), len(sides[0]) :]
    np.testing.assert_allclose(result.values, expected, atol=2e-4)
    assert result.rows == sides[0].shape[1]
    assert result.heads_a == short.models[pair[0]].anatomy.blocks[0].attention.heads


@pytest.mark.parametrize("pair", [("a", "b"), ("bert", "bert2")])
def test_divergence_is_that_of_scipy_averaged_over_queries(pair, short):
    result = AttentionSimilarity(*pair, pattern="full", measure="jsd", **BARE).compute(short)
    a, b = (plain_pairs(short.models[n], short.text, short.models[n].anatomy.blocks[0].attention.causal) for n in pair)
    total, count = np.zeros(result.values.shape), 0
    for (p, _), (q, _) in zip(a, b, strict=True):
        p, q = (np.concatenate([x, np.clip(1 - x.sum(-1, keepdims=True), 0, None)], -1) for x in (p, q))
        for i, j in np.ndindex(*total.shape):
            total[i, j] += np.nansum([jensenshannon(p[i, t], q[j, t]) ** 2 for t in range(p.shape[1])])
        count += p.shape[1]
    np.testing.assert_allclose(result.values, total / count, atol=2e-5)
    assert result.rows == count
    assert not result.higher_is_closer


@pytest.mark.parametrize("measure", ["pearson", "cosine"])
def test_averaged_pattern_is_the_measure_of_what_is_captured_block_by_block(measure, context):
    result = AttentionSimilarity("a", "bert", measure=measure, rows="word", **BARE).compute(context)
    from embcompare.text.words import align_words

    states = [capture(context.models[n], context.text, what="patterns", folder=context.states) for n in ("a", "bert")]
    words = align_words(context.text.sentences, states[0].index, states[1].index)
    x, y = (
        np.concatenate([s.words(k, w) for k in s.layers], axis=1).astype(np.float64)
        for s, w in zip(states, (words.a, words.b), strict=True)
    )
    if measure == "pearson":
        x, y = x - x.mean(0), y - y.mean(0)
    expected = (x.T @ y) / np.outer(np.linalg.norm(x, axis=0), np.linalg.norm(y, axis=0))
    np.testing.assert_allclose(result.values, expected, atol=1e-10)
    assert result.values.shape == (6, 6)
    assert any("whole in both tokenizers" in notice for notice in result.notices)
    assert any("sees only what stands before a token" in notice for notice in result.notices)


@pytest.mark.parametrize(("pattern", "measure"), [("averaged", "pearson"), ("full", "cosine"), ("full", "jsd")])
def test_a_model_against_itself_is_its_own_best_match_and_the_matrix_is_symmetric(pattern, measure, context):
    result = AttentionSimilarity("a", "a", pattern=pattern, measure=measure, null_draws=2, halves=4).compute(context)
    perfect = 0.0 if measure == "jsd" else 1.0
    np.testing.assert_allclose(np.diag(result.values), perfect, atol=2e-6)
    np.testing.assert_allclose(result.values, result.values.T, atol=2e-6)
    np.testing.assert_array_equal(result.best_a, np.arange(len(result.values)))
    assert result.match_frame()["mutual"].all()
    np.testing.assert_allclose(np.diag(result.layer_values), perfect, atol=2e-6)
    assert result.depth_rate == 1.0
    assert (np.diag(result.z) > 2).all()
    np.testing.assert_allclose(np.diag(result.spread), 0.0, atol=1e-6)


def test_word_attention_is_the_sum_to_and_the_mean_from_its_tokens(context):
    from embcompare.experiments.attention_units import Units, full_patterns

    model = context.models["a"]
    corpus = Corpus("one", ("abcde fghij klmno",))
    states = capture(model, corpus, what="patterns", folder=context.states)
    units = Units.of("word", corpus, states, states)
    ((_, pattern),) = full_patterns(model, corpus, states, units.a, np.array([0]))
    (p, _), groups = (
        plain_patterns(model, corpus.sentences[0]),
        [range(f, f + c) for f, c in zip(units.a.first, units.a.count, strict=True)],
    )
    p = np.concatenate(p)
    assert [len(g) for g in groups] != [1, 1, 1]
    even = np.tril(np.ones(p.shape[1:]))
    even /= even.sum(1, keepdims=True)
    for i, own in enumerate(groups):
        for j, other in enumerate(groups):
            expected = np.mean([[p[:, q, k] for k in other] for q in own], axis=0).sum(0)
            np.testing.assert_allclose(pattern.attention[:, i, j], expected, atol=1e-6)
            flat = np.mean([sum(even[q, k] for k in other) for q in own])
            assert pattern.even[i, j] == pytest.approx(flat, abs=1e-6)
            assert (pattern.even[i, j] > 0) == (j <= i)


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_partners_are_others_of_nearly_the_same_size_and_each_is_taken_once(seed, n):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 40, n)
    found = compare.partners(sizes, np.random.default_rng(seed))
    assert sorted(found.tolist()) == list(range(n))
    assert (found != np.arange(n)).all()


def test_wrong_texts_keep_places_and_nothing_else(context):
    """Two heads that look at the first token of any text agree as much when the texts are wrongly paired."""
    generator = np.random.default_rng(0)
    sizes = np.sort(generator.integers(3, 9, 40))
    text = np.repeat(np.arange(40), sizes)
    place = np.concatenate([np.arange(n) for n in sizes])
    content = generator.standard_normal((len(text), 1))
    noise = generator.standard_normal((2, len(text), 1)) * 0.05
    first = (place == 0).astype(float)[:, None] * 3
    x = np.concatenate([first + noise[0], content], axis=1).astype(np.float32)
    y = np.concatenate([first + noise[1], content], axis=1).astype(np.float32)
    samples = compare.Samples(x, y, text, place + 1, sizes, True)
    wrong = samples.wrong(compare.partners(sizes, generator), print)
    right = samples.values(print)
    assert right[0, 0] > 0.95 < wrong[0, 0]
    assert right[1, 1] > 0.999
    assert abs(wrong[1, 1]) < 0.3
    rows_a, rows_b = compare.same_places(text, place + 1, sizes, compare.partners(sizes, generator))
    np.testing.assert_array_equal(place[rows_a], place[rows_b])
    assert (text[rows_a] != text[rows_b]).all()


def test_wrong_texts_are_paired_place_by_place_up_to_the_shorter(short):
    own = {"pattern": "full", "null_draws": 1, "halves": 0, "seed": 4}
    result = AttentionSimilarity("a", "b", **own).compute(short)
    spread = AttentionSimilarity("a", "b", **own, measure="jsd").compute(short)
    a, b = (plain_pairs(short.models[name], short.text, True) for name in "ab")
    sizes = np.array([len(even) for _, even in a])
    partner = compare.partners(sizes, np.random.default_rng([4, 2]))
    x, y, total, count = [], [], 0.0, 0
    for at, other in enumerate(partner):
        n = min(sizes[at], sizes[other])
        for kept, (p, even) in ((x, a[at]), (y, b[other])):
            kept.append((p / np.where(even > 0, even, 1))[:, :n, :n][:, even[:n, :n] > 0])
        p, q = (each[:, :n, :n] for each in (a[at][0], b[other][0]))
        total = total + np.nansum(jensenshannon(p[:, None], q[None], axis=-1) ** 2, axis=-1)
        count += n
    x, y = np.concatenate(x, axis=1), np.concatenate(y, axis=1)
    np.testing.assert_allclose(result.null_mean, np.corrcoef(x, y)[: len(x), len(x) :], atol=2e-4)
    np.testing.assert_allclose(spread.null_mean, total / count, atol=2e-5)
    assert np.isnan(result.null_sd).all()


matrices = st.integers(2, 12).flatmap(
    lambda n: st.tuples(*[arrays(np.float32, (n, 3), elements=st.floats(0, 4, width=32)) for _ in range(2)])
)


@settings(max_examples=60)
@given(matrices, st.permutations(range(3)))
def test_agreement_is_numpys_and_permuting_heads_permutes_it(pair, order):
    x, y = pair
    found = compare.agreement(x, y, centred=True)
    flat = [np.ptp(each, axis=0) <= 1e-5 * np.abs(each).max(0) for each in (x, y)]
    for i, j in np.ndindex(3, 3):
        if flat[0][i] or flat[1][j]:
            continue
        if np.isfinite(found[i, j]):
            expected = np.corrcoef(x[:, i].astype(float), y[:, j].astype(float))[0, 1]
            assert found[i, j] == pytest.approx(expected, abs=1e-9)
    permuted = compare.agreement(x[:, list(order)], y, centred=True)
    np.testing.assert_allclose(permuted, found[list(order)], atol=1e-12)


distributed = arrays(np.float64, (2, 3, 4, 5), elements=st.floats(0.0, 1.0)).map(
    lambda x: ((x + 1e-9) / (x + 1e-9).sum(-1, keepdims=True)).astype(np.float32)
)


@settings(max_examples=40)
@given(distributed)
def test_divergence_is_symmetric_bounded_and_scipys(pair):
    p, q = pair
    found = compare.divergence(p, q)
    np.testing.assert_allclose(found, compare.divergence(q, p).T, atol=1e-5)
    assert (found >= 0).all()
    assert (found <= 4 * np.log(2) + 1e-6).all()
    for i, j in np.ndindex(3, 3):
        expected = sum(jensenshannon(p[i, t].astype(float), q[j, t].astype(float)) ** 2 for t in range(4))
        assert found[i, j] == pytest.approx(np.nan_to_num(expected), abs=1e-5)


def test_divergence_in_parts_is_the_same(monkeypatch):
    generator = np.random.default_rng(0)
    p, q = (generator.dirichlet(np.ones(6), (4, 9)).astype(np.float32) for _ in range(2))
    whole = compare.divergence(p, q)
    monkeypatch.setattr(compare, "_NUMBERS_AT_ONCE", 50)
    np.testing.assert_allclose(compare.divergence(p, q), whole, atol=1e-9)


def test_the_error_of_a_divergence_is_that_of_a_clustered_mean():
    from embcompare.measures.distributions import clustered_mean

    generator = np.random.default_rng(1)
    patterns = []
    for n in (4, 7, 5, 3, 6):
        attention = [generator.dirichlet(np.ones(n + 1), (2, n))[..., :n].astype(np.float32) for _ in range(2)]
        patterns.append([Pattern(each, np.full((n, n), 1 / (n + 1), np.float32)) for each in attention])
    queries = compare.Queries(*(tuple(side) for side in zip(*patterns, strict=True)))
    mean, error = queries.with_error(lambda share: None)
    sums = np.stack(list(queries._sums(np.arange(5))))
    expected = clustered_mean(sums, queries.sizes.astype(float))
    np.testing.assert_allclose(mean, expected[0], atol=1e-12)
    np.testing.assert_allclose(error, expected[1], atol=1e-9)


def test_layers_are_the_mean_of_heads_matched_one_to_one():
    generator = np.random.default_rng(0)
    values = generator.standard_normal((6, 8))
    for closer, sign in ((True, 1), (False, -1)):
        found = compare.matched_layers(values, (3, 4), higher_is_closer=closer)
        assert found.shape == (2, 2)
        for i, j in np.ndindex(2, 2):
            block = values[3 * i : 3 * i + 3, 4 * j : 4 * j + 4]
            rows, columns = linear_sum_assignment(sign * block, maximize=True)
            assert found[i, j] == pytest.approx(block[rows, columns].mean())
    values[0] = np.nan
    assert np.isfinite(compare.matched_layers(values, (3, 4), higher_is_closer=True)).all()


def test_the_interval_is_as_wide_as_the_statistic_varies_over_samples_of_texts():
    def sample(seed):
        generator = np.random.default_rng(seed)
        sizes = np.full(60, 5)
        text = np.repeat(np.arange(60), sizes)
        shared = np.repeat(generator.standard_normal(60), sizes) + generator.standard_normal(300)
        x, y = ((shared + generator.standard_normal(300)).astype(np.float32)[:, None] for _ in range(2))
        return compare.Samples(x, y, text, np.tile(np.arange(1, 6), 60), sizes, True)

    values = [sample(seed).values(print)[0, 0] for seed in range(300)]
    generator = np.random.default_rng(0)
    found = []
    for seed in range(20):
        samples = sample(seed)
        halves = [samples.half(generator.permutation(60)[:30])[0, 0] for _ in range(60)]
        found.append(np.std(halves, ddof=1))
    assert 0.8 < np.mean(found) / np.std(values) < 1.25


def test_heads_that_look_everywhere_alike_have_no_value_and_a_reason(tiny_folders, corpus, tmp_path):
    import torch

    from embcompare.models import load_model

    model = load_model(str(tiny_folders("gpt2")))
    with torch.no_grad():
        model.anatomy.blocks[0].attention.w_q.zero_()
        model.anatomy.blocks[0].attention.b_q.zero_()
    context = Context({"even": model}, tmp_path, corpus)
    for pattern in ("averaged", "full"):
        result = AttentionSimilarity("even", "even", pattern=pattern, null_draws=2, halves=4).compute(context)
        assert np.isnan(result.values[:3]).all()
        assert np.isfinite(result.values[3:, 3:]).all()
        assert {(side, head) for side, head, _ in result.reasons} == {(s, h) for s in "ab" for h in range(3)}
        assert (result.best_a[:3] == -1).all()
        assert len(result.match_frame()) == 3
        assert np.isnan(result.layer_values[0]).all()


def test_special_tokens_are_no_samples_but_what_they_get_is_told(context, corpus):
    result = AttentionSimilarity("bert", "bert2", **BARE).compute(context)
    states = capture(context.models["bert"], corpus, what="patterns", folder=context.states)
    assert result.rows == len(states.index)
    np.testing.assert_allclose(result.special_a[1], states.special(2).mean(0), atol=1e-6)
    assert (AttentionSimilarity("a", "b", **BARE).compute(context).special_a == 0).all()


def test_whole_texts_are_drawn_and_said(context):
    result = AttentionSimilarity("a", "b", pattern="full", max_rows=2000, **BARE).compute(context)
    assert result.rows <= 2000
    assert 1 <= result.items < SENTENCES
    assert any(f"{result.items:,} of {SENTENCES} texts were drawn" in notice for notice in result.notices)


def test_encoders_of_encoder_decoders_are_compared_too(context):
    result = AttentionSimilarity("t5", "bert", rows="word", null_draws=1, halves=4).compute(context)
    assert np.isfinite(result.values).any()
    assert not result.causal_a
    assert any("encoder's attention patterns" in notice for notice in result.notices)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AttentionSimilarity("a", "b", measure="jsd"), "averaged pattern has no queries left"),
        (lambda: AttentionSimilarity("a", "vectors/" + "0" * 64), "has no attention; choose a model"),
        (lambda: AttentionPatterns("vectors/" + "0" * 64, "b"), "has no attention; choose a model"),
        (lambda: AttentionSimilarity("a", "b", pattern="half"), "choose one of averaged, full"),
    ],
)
def test_settings_that_do_not_fit_say_what_would(make, words):
    with pytest.raises(SettingsError, match=words):
        make()


def test_models_that_cut_texts_differently_are_sent_to_words(context):
    with pytest.raises(
        Incomparable, match=r"different tokens, so tokens cannot be paired; compare words \(rows 'word'\)"
    ):
        AttentionSimilarity("a", "bert").compute(context)


def test_same_settings_give_the_same_bits_and_a_stored_result_is_whole(context):
    settings = AttentionSimilarity("a", "b", null_draws=2, halves=4)
    one, two = settings.compute(context), settings.compute(context)
    np.testing.assert_array_equal(one.null_mean, two.null_mean)
    np.testing.assert_array_equal(one.spread, two.spread)
    back = type(one).unpack(*one.pack())
    assert back.to_frame().equals(one.to_frame())
    frame = one.to_frame()
    row = frame[(frame.layer_a == 2) & (frame.head_a == 1) & (frame.layer_b == 1) & (frame.head_b == 2)].iloc[0]
    assert row["value"] == one.values[4, 2]
    assert one.name("a", 4) == "block 2, head 1"
    assert one.layer_frame().layer_a.min() == 1


def test_cancel_leaves_the_matrix_without_its_null(context):
    stopped = Context(context.models, context.states, context.text, stop="texts wrongly paired 1 of 3")
    with pytest.raises(Cancelled):
        AttentionSimilarity("a", "b", null_draws=3, halves=0).compute(stopped)
    partial = next(p for *_, p in reversed(stopped.reports) if p is not None)
    assert np.isfinite(partial.values).all()
    assert partial.null_mean is None


def test_one_text_has_no_null_and_no_interval(context):
    one = Context(context.models, context.states, Corpus("one", (context.text.sentences[0],)))
    result = AttentionSimilarity("a", "b").compute(one)
    assert result.null_mean is None
    assert result.spread is None
    assert any("One text can be paired with no other" in notice for notice in result.notices)


class TestOneSentence:
    def test_patterns_are_those_of_transformers_with_special_tokens_among_them(self, context):
        result = AttentionPatterns("bert", "a", sentence=3, tokens=128).compute(context)
        expected, text = plain_patterns(context.models["bert"], context.text.sentences[3])
        kept = len(result.tokens_a)
        np.testing.assert_allclose(result.head("a", 2, 1), expected[1][1][:kept, :kept], atol=1e-5)
        np.testing.assert_array_equal(result.special_a, ~text[:kept])
        assert result.tokens_a[0] == "[CLS]"
        assert result.text == context.text.sentences[3]
        assert not result.same_tokens
        assert result.divergence((1, 0), (1, 0)) is None

    def test_two_heads_diverge_by_scipys_number_query_by_query(self, context):
        result = AttentionPatterns("a", "b", sentence=1, tokens=128).compute(context)
        found = result.divergence((1, 2), (2, 0))
        p, q = result.head("a", 1, 2), result.head("b", 2, 0)
        expected = [jensenshannon(p[t].astype(float), q[t].astype(float)) ** 2 for t in range(len(p))]
        np.testing.assert_allclose(found, np.nan_to_num(expected), atol=1e-6)

    def test_a_long_text_is_cut_and_says_so(self, context):
        result = AttentionPatterns("a", "b", sentence=0, tokens=5).compute(context)
        assert result.attention_a.shape == (6, 5, 5)
        assert result.cut_a > 0
        assert any("the first 5 of" in notice for notice in result.notices)
        frame = result.to_frame()
        assert len(frame) == 2 * 6 * 25
        assert frame[(frame.side == "b") & (frame.layer == 2) & (frame["head"] == 1)].attention.iloc[
            5
        ] == pytest.approx(result.head("b", 2, 1)[1, 0])
        assert len(result.pair_frame((1, 0), (2, 2))) == 50

    def test_what_is_not_there_is_said(self, context):
        with pytest.raises(SettingsError, match="numbered from 0"):
            AttentionPatterns("a", "b", sentence=10**6).compute(context)
        result = AttentionPatterns("a", "b").compute(context)
        with pytest.raises(SettingsError, match="has no head 3 in block 1; its blocks are 1 to 2, with heads 0 to 2"):
            result.head("a", 1, 3)
