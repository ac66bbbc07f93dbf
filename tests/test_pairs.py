"""One layer against one, row by row: every number against its plain float64 formula or another library."""

import dataclasses
import json
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from sklearn.neighbors import NearestNeighbors

from embcompare import keep_corpus
from embcompare.activations import capture
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments import clouds, pairs, pairs_run, pairs_texts, sides
from embcompare.experiments.clouds import evenly_drawn, leading_plane, nearest, shared_counts, turned
from embcompare.experiments.pairs import RepresentationPair, RepresentationPairResult
from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.experiments.sides import standardised
from embcompare.measures import effective_rank, mutual_knn, neighbourhood_jaccard, procrustes
from embcompare.resultfile import arrays_of, packed, verified
from embcompare.text import match_vocabularies
from embcompare.text.corpora import shipped_corpus
from embcompare.text.uploads import Vectors
from embcompare.text.words import align_words

SENTENCES = 60


class Context:
    device = "cpu"

    def __init__(self, models, states, vectors=(), corpus=None, stop_after=None):
        self.models, self.states, self.text, self.stop_after = models, states, corpus, stop_after
        self.given = {f"vectors/{v.name}": v for v in vectors}
        self.reports = []

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def vectors(self, name):
        return self.given[name]

    def report(self, done, total, message, partial=None):
        self.reports.append((done, total, message))
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


def of_vectors(x, y, **options):
    """Compare two arrays as a user's own vectors."""
    context = Context({}, None, [Vectors("x", x), Vectors("y", y)])
    return RepresentationPair("vectors/x", "vectors/y", 0, 0, **options).compute(context)


def clouds_of(n=80, p=6, q=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) + 1.0
    return x, x @ rng.normal(size=(p, q)) + 0.5 * rng.normal(size=(n, q))


def plain_neighbours(x, k, metric="cosine"):
    """For each row, the k others of least distance by the definition, one pair at a time."""
    x = np.asarray(x, dtype=np.float64)
    table = []
    for i in range(len(x)):
        if metric == "cosine":
            far = [1 - x[i] @ y / (np.linalg.norm(x[i]) * np.linalg.norm(y)) for y in x]
        else:
            far = [np.linalg.norm(x[i] - y) for y in x]
        table.append(sorted((j for j in range(len(x)) if j != i), key=lambda j: (far[j], j))[:k])
    return np.array(table)


def plain_kept(a, b):
    return np.array([len(set(i) & set(j)) / len(i) for i, j in zip(a.tolist(), b.tolist(), strict=True)])


def normed(x):
    """Centre, and scale to a root-mean-square distance of 1 from the centre."""
    moved = np.asarray(x, dtype=np.float64) - np.mean(x, axis=0, dtype=np.float64)
    return moved / np.linalg.norm(moved) * np.sqrt(len(moved))


def plain_plane(a, b):
    """Project on the two leading right singular vectors of the stacked points."""
    directions = np.linalg.svd(np.concatenate([a, b]))[2][:2].T
    xy_a, xy_b = a @ directions, b @ directions
    signs = np.sign([xy_a[np.abs(xy_a[:, c]).argmax(), c] for c in (0, 1)])
    return xy_a * signs, xy_b * signs


def assert_same(first, second):
    """Every field the same, bit for bit, NaN included."""
    for item in dataclasses.fields(RepresentationPairResult):
        one, other = getattr(first, item.name), getattr(second, item.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, item.name
            assert one.shape == other.shape, item.name
            assert one.tobytes() == other.tobytes(), item.name
        elif item.name != "provenance":
            assert one == other or (one != one and other != other), item.name


# Neighbours


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_neighbours_are_those_of_the_definition_and_of_sklearn(metric):
    x, y = clouds_of()
    result = of_vectors(x, y, k=7, metric=metric)
    np.testing.assert_array_equal(result.neighbours_a, plain_neighbours(x, 7, metric))
    np.testing.assert_array_equal(result.neighbours_b, plain_neighbours(y, 7, metric))
    for values, found in ((x, result.neighbours_a), (y, result.neighbours_b)):
        searcher = NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(values)
        np.testing.assert_array_equal(found, searcher.kneighbors(return_distance=False))
    expected = plain_kept(plain_neighbours(x, 7, metric), plain_neighbours(y, 7, metric))
    np.testing.assert_allclose(result.kept, expected, atol=1e-15)
    np.testing.assert_allclose(result.jaccard, expected / (2 - expected), atol=1e-15)
    assert result.mean_kept == pytest.approx(mutual_knn(x, y, k=7, metric=metric), abs=1e-12)
    assert result.jaccard.mean() == pytest.approx(neighbourhood_jaccard(x, y, k=7, metric=metric), abs=1e-12)
    assert result.kept_chance == 7 / 79


def test_neighbours_do_not_depend_on_the_blocks_they_are_found_in(monkeypatch):
    x, y = clouds_of(n=101)
    whole = of_vectors(x, y)
    monkeypatch.setattr(pairs_run, "BLOCK_ENTRIES", 101 * 7)
    parts = of_vectors(x, y)
    np.testing.assert_array_equal(whole.neighbours_a, parts.neighbours_a)
    np.testing.assert_array_equal(whole.kept, parts.kept)


def test_blocks_bound_the_memory(monkeypatch):
    asked = []
    real = clouds.squared_distances

    def watched(x, start, stop):
        asked.append((stop - start) * len(x))
        return real(x, start, stop)

    monkeypatch.setattr(clouds, "squared_distances", watched)
    monkeypatch.setattr(pairs_run, "BLOCK_ENTRIES", 10_000)
    of_vectors(*clouds_of(n=300))
    assert max(asked) <= 10_000
    assert sum(asked) == 2 * 300 * 300


def test_duplicated_rows_are_each_others_neighbours_and_the_first_rows_win_the_ties():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(5, 4))
    x = np.repeat(points, 8, axis=0)
    y = (3 * points @ np.linalg.qr(rng.normal(size=(4, 4)))[0])[np.repeat(np.arange(5), 8)]
    result = of_vectors(x, y, k=3)
    for row in range(40):
        group = [j for j in range(row // 8 * 8, row // 8 * 8 + 8) if j != row][:3]
        assert result.neighbours_a[row].tolist() == group
        assert result.neighbours_b[row].tolist() == group
    assert (result.kept == 1).all()
    assert sum("equally near" in notice for notice in result.notices) == 2
    assert any("40 rows have several others equally near" in notice for notice in result.notices)


def test_ties_are_shared_out_exactly_as_the_slack_of_the_measures_says():
    # a row at 0, and others whose distances differ by less than the slack, by more, and not at all
    line = np.array([0.0, 1.0, 1.0 + 1e-11, 1.0 + 1e-5, -1.0, 5.0, 9.0])[:, None]
    found, ties = nearest(line, 2, 3)
    assert found[0].tolist() == [1, 2]
    assert ties >= 1
    far = plain_neighbours(line[[0, 1, 3, 5, 6]], 2, "euclidean")
    np.testing.assert_array_equal(nearest(line[[0, 1, 3, 5, 6]], 2, 3)[0], far)


def test_a_model_with_itself_keeps_all_neighbours_and_every_point_its_place(context):
    for pooling in ("mean", "token", "word"):
        for space in ("feature", "embedding"):
            result = RepresentationPair("a", "a", 2, 2, pooling=pooling, space=space).compute(context)
            assert (result.kept == 1).all()
            assert (result.jaccard == 1).all()
            np.testing.assert_allclose(result.residual, 0, atol=1e-6)
            np.testing.assert_allclose(result.xy_a, result.xy_b, atol=1e-6)
            assert result.fit == pytest.approx(1, abs=1e-12)
            assert result.plane_share_a == pytest.approx(result.plane_share_b, abs=1e-9)


def test_wrongly_paired_rows_keep_what_chance_keeps():
    x, _ = clouds_of(n=600, p=12)
    kept = [of_vectors(x, x[np.random.default_rng(seed).permutation(600)]).mean_kept for seed in range(5)]
    chance = 10 / 599
    assert np.mean(kept) == pytest.approx(chance, abs=4 * np.sqrt(chance / (10 * 600 * 5)))
    wrong = of_vectors(x, x[np.random.default_rng(9).permutation(600)])
    assert wrong.fit == pytest.approx(wrong.fit_chance, abs=0.05)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scale=st.floats(1e-3, 1e3),
    width=st.integers(4, 8),
    metric=st.sampled_from(["cosine", "euclidean"]),
)
def test_rotated_and_scaled_copies_keep_everything(seed, scale, width, metric):
    x, _ = clouds_of(p=4, seed=seed)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0][:4]
    shift = 5.0 if metric == "euclidean" else 0.0
    result = of_vectors(x, scale * (x @ turn + shift), metric=metric)
    assert (result.kept == 1).all()
    np.testing.assert_allclose(result.residual, 0, atol=1e-6)
    np.testing.assert_allclose(result.xy_a, result.xy_b, atol=1e-6)
    np.testing.assert_allclose(result.spectrum_a, result.spectrum_b[:4], atol=1e-9)
    np.testing.assert_allclose(result.spectrum_b[4:], 0, atol=1e-20)
    assert result.fit == pytest.approx(1, abs=1e-12)


def test_few_rows_bound_the_number_of_neighbours_and_say_so():
    x, y = clouds_of(n=8)
    result = of_vectors(x, y, k=10)
    assert result.k == 6
    assert result.neighbours_a.shape == (8, 6)
    assert result.kept_chance == 6 / 7
    assert any(
        "With 8 rows 10 neighbours would be" in notice and "6 are counted" in notice for notice in result.notices
    )
    assert of_vectors(x, y, k=6).k == 6
    assert not any("equally near" in notice for notice in result.notices)
    assert not any("neighbours would be" in notice for notice in of_vectors(x, y, k=6).notices)
    assert of_vectors(x[:3], y[:3]).k == 1
    with pytest.raises(Incomparable, match="Only 2 rows can be paired, and neighbours need at least 3"):
        of_vectors(x[:2], y[:2])


# Spectra


@pytest.mark.parametrize(("n", "p"), [(80, 6), (12, 30)])
def test_spectra_are_the_eigenvalues_of_the_covariance(n, p):
    x, y = clouds_of(n, p, p + 3)
    result = of_vectors(x, y)
    for values, spectrum, rank, count in (
        (x, result.spectrum_a, result.effective_rank_a, result.components_a),
        (y, result.spectrum_b, result.effective_rank_b, result.components_b),
    ):
        eigenvalues = np.linalg.eigvalsh(np.cov(values.T))[::-1]
        expected = eigenvalues / eigenvalues.sum()
        assert len(spectrum) == min(n - 1, values.shape[1])
        np.testing.assert_allclose(spectrum, expected[: len(spectrum)], atol=1e-12)
        assert rank == effective_rank(values)
        assert rank == pytest.approx(np.exp(-np.sum(np.log(s := np.sqrt(spectrum) / np.sqrt(spectrum).sum()) * s)))
        assert spectrum[:count].sum() >= 0.9 > spectrum[: count - 1].sum()


def test_exactly_ninety_percent_counts_as_ninety_percent():
    x = np.zeros((4, 2))
    x[0, 0], x[1, 0], x[2, 1], x[3, 1] = 3, -3, 1, -1
    result = of_vectors(x, x, metric="euclidean")
    np.testing.assert_allclose(result.spectrum_a, [0.9, 0.1])
    assert result.components_a == 1


# Both clouds in one plane


@pytest.mark.parametrize(("n", "p", "q"), [(80, 6, 6), (80, 6, 9), (80, 9, 6), (15, 40, 30), (15, 8, 40)])
def test_rotation_residuals_and_plane_are_those_of_the_plain_formulas(n, p, q):
    x, y = clouds_of(n, p, q)
    result = of_vectors(x, y, k=3)
    width = max(p, q)
    a, b = (np.pad(normed(v), ((0, 0), (0, width - v.shape[1]))) for v in (x, y))
    b = b @ orthogonal_procrustes(b, a)[0]
    residual = np.linalg.norm(a - b, axis=1)
    np.testing.assert_allclose(result.residual, residual, atol=1e-9)
    assert result.fit == pytest.approx(1 - np.mean(residual**2) / 2, abs=1e-12)
    assert result.fit == pytest.approx(np.cos(procrustes(x, y)), abs=1e-10)
    assert result.fit == pytest.approx(np.sum(a * b) / n, abs=1e-12)
    xy_a, xy_b = plain_plane(a, b)
    np.testing.assert_allclose(result.xy_a, xy_a, atol=1e-8)
    np.testing.assert_allclose(result.xy_b, xy_b, atol=1e-8)
    assert result.plane_share_a == pytest.approx(np.sum(xy_a**2) / np.sum(a**2))
    assert result.plane_share_b == pytest.approx(np.sum(xy_b**2) / np.sum(b**2))
    assert result.aligned_by == "rotation"


def test_no_other_rotation_fits_better():
    x, y = clouds_of()
    best = of_vectors(x, y).fit
    a, b = normed(x), normed(y)
    rng = np.random.default_rng(0)
    others = [np.sum(a * (b @ np.linalg.qr(rng.normal(size=(6, 6)))[0])) / len(a) for _ in range(200)]
    assert max(others) < best


def test_the_planes_axes_hold_most_of_the_variance_of_both():
    a, b = turned(*(normed(v) / np.sqrt(80) for v in clouds_of()))
    xy_a, xy_b = leading_plane(a, b)
    shown = np.sum(xy_a**2) + np.sum(xy_b**2)
    rng = np.random.default_rng(0)
    for _ in range(100):
        plane = np.linalg.qr(rng.normal(size=(6, 2)))[0]
        assert np.sum((a @ plane) ** 2) + np.sum((b @ plane) ** 2) < shown
    assert np.sum(xy_a[:, 0] ** 2) + np.sum(xy_b[:, 0] ** 2) > np.sum(xy_a[:, 1] ** 2) + np.sum(xy_b[:, 1] ** 2)


def test_the_plane_is_the_same_where_there_are_more_dimensions_than_points():
    a, b = (normed(np.random.default_rng(seed).normal(size=(7, 40))) for seed in (0, 1))
    for found, expected in zip(leading_plane(a, b), plain_plane(a, b), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_one_dimension_lies_on_a_line():
    x = np.random.default_rng(0).normal(size=(30, 1))
    result = of_vectors(x, -2 * x, metric="euclidean")
    assert result.xy_a.shape == (30, 2)
    np.testing.assert_allclose(result.xy_a[:, 1], 0, atol=1e-12)
    np.testing.assert_allclose(np.abs(result.xy_a[:, 0]), np.abs(normed(x)[:, 0]), atol=1e-12)
    np.testing.assert_allclose(result.residual, 0, atol=1e-12)


def test_chance_of_the_fit_is_that_of_unrelated_clouds():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 20)), rng.normal(size=(60, 20))
    result = of_vectors(x, y)
    assert result.fit > 0.3
    assert result.fit == pytest.approx(result.fit_chance, abs=0.05)
    assert any("60 rows for vectors 20 wide are few for a rotation" in notice for notice in result.notices)
    x, y = clouds_of(n=400)
    related = of_vectors(x, y)
    rng = np.random.default_rng(1)
    wrong = [of_vectors(x, y[rng.permutation(400)]).fit for _ in range(10)]
    assert related.fit > 0.7
    assert related.fit_chance == pytest.approx(np.mean(wrong), abs=4 * np.std(wrong))
    enough = of_vectors(*(rng.normal(size=(600, 20)) for _ in "xy"))
    assert enough.fit_chance < 0.2
    assert not any("few for a rotation" in notice for notice in enough.notices)


# Models


@pytest.mark.parametrize("pooling", ["mean", "last", "token"])
def test_the_layers_asked_for_are_those_compared(context, corpus, states, pooling):
    result = RepresentationPair("a", "b", 1, 2, pooling=pooling, k=5).compute(context)
    x, y = (
        capture(context.models[name], corpus, folder=states).pooled(layer, pooling)
        for name, layer in (("a", 1), ("b", 2))
    )
    assert (result.rows, result.items) == (len(x), SENTENCES)
    assert (result.name_a, result.name_b) == ("block 1", "block 2, after final norm")
    assert result.mean_kept == pytest.approx(mutual_knn(x, y, k=5), abs=2e-3 if pooling == "token" else 1e-12)
    assert result.fit == pytest.approx(np.cos(procrustes(x, y)), abs=1e-9)
    assert result.effective_rank_b == effective_rank(y)


def test_words_pair_two_tokenizers(context, corpus, states):
    result = RepresentationPair("a", "bert", 2, 1, pooling="word").compute(context)
    captured = [capture(context.models[name], corpus, folder=states) for name in ("a", "bert")]
    aligned = align_words(corpus.sentences, captured[0].index, captured[1].index)
    x, y = captured[0].words(2, aligned.a), captured[1].words(1, aligned.b)
    assert result.rows == len(x)
    assert result.fit == pytest.approx(np.cos(procrustes(x, y)), abs=1e-9)
    with pytest.raises(Incomparable, match="different tokens.*pooling 'word'"):
        RepresentationPair("a", "bert", 0, 0, pooling="token").compute(context)


def test_the_rows_are_those_of_the_layer_matrix(context):
    same = {"pooling": "token", "max_rows": 200, "seed": 3}
    pair = RepresentationPair("a", "b", 1, 2, **same).compute(context)
    matrix = RepresentationSimilarity("a", "b", measure="procrustes", null_draws=0, halves=0, **same).compute(context)
    assert (pair.rows, pair.items) == (matrix.rows, matrix.items)
    assert pair.fit == pytest.approx(np.cos(matrix.values[1, 2]), abs=1e-9)
    assert (pair.name_a, pair.name_b) == (matrix.layers_a[1], matrix.layers_b[2])
    embedded = dataclasses.replace(
        RepresentationPair("a", "b", 1, 2, **same), space="embedding", common=1, final_norm=True
    ).compute(context)
    cells = RepresentationSimilarity(
        "a",
        "b",
        measure="linear_cka_biased",
        null_draws=0,
        halves=0,
        space="embedding",
        common=1,
        final_norm=True,
        **same,
    ).compute(context)
    assert embedded.effective_rank_a == pytest.approx(cells.geometry_a[1, 0], rel=1e-6)
    assert embedded.effective_rank_b == pytest.approx(cells.geometry_b[2, 0], rel=1e-6)


def test_only_the_two_layers_are_brought_into_the_space(context, monkeypatch):
    seen = []
    real = sides._projected

    def watched(side, *rest):
        seen.append(len(side.layers))
        return real(side, *rest)

    monkeypatch.setattr(sides, "_projected", watched)
    RepresentationPair("a", "b", 1, 2, space="embedding").compute(context)
    assert seen == [1, 1]


def test_embedding_space_is_the_plain_comparison_of_v_wide_projections(context, corpus, states):
    result = RepresentationPair("a", "b", 1, 2, space="embedding", k=5).compute(context)
    models = [context.models[name] for name in "ab"]
    match = match_vocabularies(models[0].tokens, models[1].tokens)
    wide = []
    for model, chosen, layer in zip(models, (match.rows_a, match.rows_b), (1, 2), strict=True):
        e = model.anatomy.readout("output")[0][torch.as_tensor(chosen)].double()
        x = capture(model, corpus, folder=states).pooled(layer, "mean")
        projection = torch.as_tensor(np.array(x)).double() @ e.T
        wide.append((projection - projection.mean(1, keepdim=True)).numpy())
    near = [plain_neighbours(x, 5) for x in wide]
    np.testing.assert_array_equal(result.neighbours_a, near[0])
    np.testing.assert_array_equal(result.neighbours_b, near[1])
    np.testing.assert_allclose(result.kept, plain_kept(*near))
    a, b = (normed(x) for x in wide)
    np.testing.assert_allclose(result.residual, np.linalg.norm(a - b, axis=1), atol=1e-7)
    assert result.fit == pytest.approx(np.sum(a * b) / len(a), abs=1e-9)
    xy_a, xy_b = plain_plane(a, b)
    np.testing.assert_allclose(result.xy_a, xy_a, atol=1e-6)
    np.testing.assert_allclose(result.xy_b, xy_b, atol=1e-6)
    shares = np.linalg.svd(a, compute_uv=False) ** 2
    np.testing.assert_allclose(result.spectrum_a, (shares / shares.sum())[: len(result.spectrum_a)], atol=1e-9)
    assert result.aligned_by == "shared coordinates"
    assert abs(result.fit_chance) < 0.3
    assert not any("few for a rotation" in notice for notice in result.notices)


def test_standardising_gives_every_feature_the_same_say():
    rng = np.random.default_rng(0)
    loud = 50 * rng.normal(size=(200, 1))
    x, y = (np.hstack([loud, rng.normal(size=(200, 10))]) for _ in "xy")
    raw, fair = of_vectors(x, y), of_vectors(x, y, standardise=True)
    assert raw.fit > 0.95
    assert sum("one dimension holds more than half" in notice for notice in raw.notices) == 2
    assert fair.fit == pytest.approx(np.cos(procrustes(standardised(x), standardised(y))), abs=1e-9)
    assert fair.fit < 0.5
    assert not any("one dimension" in notice for notice in fair.notices)


# What cannot be


def test_a_constant_layer_is_undefined_with_its_reason_and_the_other_side_is_still_described():
    x, _ = clouds_of()
    result = of_vectors(np.ones((80, 4)), x)
    assert np.isnan(result.kept).all()
    assert np.isnan(result.jaccard).all()
    assert np.isnan([result.mean_kept, result.fit, result.fit_chance, result.plane_share_a, result.plane_share_b]).all()
    assert np.isnan(result.residual).all()
    assert np.isnan(result.xy_a).all()
    assert np.isnan(result.xy_b).all()
    assert (result.neighbours_a == -1).all()
    assert len(result.spectrum_a) == 0
    assert np.isnan(result.effective_rank_a)
    assert result.components_a is None
    np.testing.assert_array_equal(result.neighbours_b, plain_neighbours(x, 10))
    assert result.effective_rank_b == effective_rank(x)
    assert any("all rows are equally far" in notice and "x (A, given vectors)" in notice for notice in result.notices)
    assert any("the layer is constant" in notice for notice in result.notices)
    frame = result.to_frame()
    assert frame.kept.isna().all()
    assert (frame.neighbours_a == "").all()
    assert_same(result, RepresentationPairResult.unpack(*result.pack()))


def test_zero_vectors_have_no_cosine_but_a_distance():
    x, y = clouds_of()
    x[3] = 0
    result = of_vectors(x, y)
    assert np.isnan(result.mean_kept)
    assert any("1 of 80 samples has no direction" in notice for notice in result.notices)
    assert np.isfinite(result.fit)
    assert np.isfinite(of_vectors(x, y, metric="euclidean").mean_kept)


def test_a_layer_that_does_not_exist_names_those_that_do(context, states):
    with pytest.raises(SettingsError, match=r"Model A \(.*\) has no layer 3; its layers are 0, .* to 2, after"):
        RepresentationPair("a", "b", 3, 0).compute(context)
    with pytest.raises(SettingsError, match=r"Model B \(.*\) has no layer 9; its layers are 0"):
        RepresentationPair("a", "b", 0, 9).compute(context)
    assert not any("layer 9" in message for _, _, message in context.reports)
    vectors = Vectors("mine", np.random.default_rng(0).normal(size=(SENTENCES, 5)))
    mixed = Context(context.models, states, [vectors], context.text)
    with pytest.raises(SettingsError, match=r"Side B \(mine\) has no layer 1; given vectors are layer 0"):
        RepresentationPair("a", "vectors/mine", 0, 1).compute(mixed)
    with pytest.raises(SettingsError, match=r"Side A \(mine\) has no layer 2"):
        RepresentationPair("vectors/mine", "vectors/mine", 2, 0).compute(mixed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"standardise": True, "space": "embedding"}, "Standardising scales features"),
        ({"final_norm": True}, "choose embedding space"),
        ({"layer_a": -1}, "Layer of A cannot be -1; the smallest value is 0"),
        ({"k": 0}, "Neighbours cannot be 0"),
        ({"metric": "manhattan"}, "choose one of cosine, euclidean"),
    ],
)
def test_settings_that_do_not_fit_say_what_would(changes, words):
    with pytest.raises(SettingsError, match=words):
        RepresentationPair(**{"model_a": "a", "model_b": "b", "layer_a": 0, "layer_b": 0, **changes})


def test_both_layers_must_be_named():
    with pytest.raises(SettingsError, match="needs a value for layer_a, layer_b"):
        RepresentationPair.from_dict({"model_a": "a", "model_b": "b"})


def test_every_row_setting_is_that_of_the_layer_matrix():
    own = {item.name: item for item in dataclasses.fields(RepresentationPair)}
    for item in dataclasses.fields(RepresentationSimilarity):
        if item.name in ("measure", "null_draws", "halves"):
            continue
        assert own[item.name].default == item.default
        assert own[item.name].metadata["choices"] == item.metadata["choices"]


def test_cancelling_stops_between_blocks(monkeypatch):
    monkeypatch.setattr(pairs_run, "BLOCK_ENTRIES", 800)
    x, y = clouds_of()
    context = Context({}, None, [Vectors("x", x), Vectors("y", y)], stop_after=4)
    with pytest.raises(Cancelled):
        RepresentationPair("vectors/x", "vectors/y", 0, 0).compute(context)


def test_progress_counts_every_block_and_ends_below_its_total(monkeypatch):
    monkeypatch.setattr(pairs_run, "BLOCK_ENTRIES", 800)
    x, y = clouds_of()
    context = Context({}, None, [Vectors("x", x), Vectors("y", y)])
    RepresentationPair("vectors/x", "vectors/y", 0, 0).compute(context)
    assert [done for done, _, _ in context.reports] == list(range(2 * 8 + 3))
    assert {total for _, total, _ in context.reports} == {2 * 8 + 3}


# Own vectors


def test_one_layer_of_a_given_stack_is_looked_at(context, corpus, states):
    captured = capture(context.models["a"], corpus, folder=states)
    stack = np.stack([captured.pooled(k, "mean") for k in captured.layers])
    here = Context(context.models, states, [Vectors("stack", stack)], corpus)
    result = RepresentationPair("a", "vectors/stack", 1, 2).compute(here)
    own = RepresentationPair("a", "a", 1, 2).compute(context)
    assert result.name_b == "given layer 2"
    assert np.array_equal(result.neighbours_b, own.neighbours_b)
    assert np.array_equal(result.kept, own.kept)
    assert result.fit == pytest.approx(own.fit, abs=1e-12)
    both = RepresentationPair("vectors/stack", "vectors/stack", 2, 2).compute(here)
    assert (both.mean_kept, both.name_a) == (1.0, "given layer 2")
    for names, layers, which in ((("vectors/stack", "a"), (3, 0), "A"), (("a", "vectors/stack"), (0, 7), "B")):
        with pytest.raises(SettingsError, match=rf"Side {which} \(stack\) has no layer .; its layers are 0 to 2"):
            RepresentationPair(*names, *layers).compute(here)


def test_own_vectors_stand_beside_a_model_or_each_other(context, corpus, states):
    mean = np.array(capture(context.models["a"], corpus, folder=states).pooled(2, "mean"))
    order = np.random.default_rng(0).permutation(SENTENCES)
    ids = [f"s{k}" for k in range(SENTENCES)]
    straight = Vectors("straight", mean, tuple(ids))
    shuffled = Vectors("shuffled", mean[order], tuple(ids[k] for k in order))
    here = Context(context.models, states, [straight, shuffled], corpus)
    by_id = RepresentationPair("vectors/straight", "vectors/shuffled", 0, 0, pairing="id").compute(here)
    assert by_id.mean_kept == 1
    assert by_id.texts == tuple(ids)
    assert by_id.labels == ()
    assert RepresentationPair("vectors/straight", "vectors/shuffled", 0, 0).compute(here).mean_kept == 1
    by_row = RepresentationPair("vectors/straight", "vectors/shuffled", 0, 0, pairing="row").compute(here)
    assert any("are paired against their ids" in notice for notice in by_row.notices)
    assert by_row.mean_kept < 0.5
    for beside in (
        RepresentationPair("a", "vectors/straight", 2, 0).compute(here),
        RepresentationPair("vectors/straight", "a", 0, 2).compute(here),
    ):
        assert beside.mean_kept == 1
        assert beside.fit == pytest.approx(1, abs=1e-9)
        assert beside.texts == corpus.sentences
        assert beside.labels == corpus.labels
    with pytest.raises(Incomparable, match="no embedding space"):
        RepresentationPair("a", "vectors/straight", 0, 0, space="embedding").compute(here)
    with pytest.raises(SettingsError, match="one row a sentence"):
        RepresentationPair("a", "vectors/straight", 0, 0, pooling="token").compute(here)


def test_given_vectors_without_ids_are_known_by_their_row_and_one_sides_ids_serve_both():
    x, y = clouds_of(n=20)
    assert of_vectors(x, y).texts[:2] == ("row 0", "row 1")
    named = Context({}, None, [Vectors("x", x), Vectors("y", y, tuple(f"id {k}" for k in range(20)))])
    result = RepresentationPair("vectors/x", "vectors/y", 0, 0).compute(named)
    assert result.texts[:2] == ("id 0", "id 1")
    assert result.to_frame().neighbours_a[0].split(" | ")[0] == f"id {result.neighbours_a[0, 0]}"


# Texts and the rows listed


def test_texts_are_the_sentences_and_words_are_marked_where_they_stand(context, corpus, states):
    sentences = RepresentationPair("a", "b", 1, 1).compute(context)
    assert sentences.texts == corpus.sentences
    assert sentences.labels == corpus.labels
    assert sentences.word(4) == corpus.sentences[4]
    captured = capture(context.models["a"], corpus, folder=states)
    tokens = RepresentationPair("a", "b", 1, 1, pooling="token", shown=5000).compute(context)
    assert len(tokens.sentences) == SENTENCES
    for row in (0, 7, len(captured.index) - 1):
        at, start, end = (int(getattr(captured.index, name)[row]) for name in ("sentence", "start", "end"))
        sentence = corpus.sentences[at]
        word = sentence[start:end]
        assert tokens.text(row) == f"{word} — {sentence[:start]}[{word}]{sentence[end:]}"
        assert tokens.word(row) == word
        assert tokens.label(row) == corpus.labels[at]
    words = RepresentationPair("a", "bert", 1, 1, pooling="word").compute(context)
    first = words.text(0)
    assert first.split(" — ")[1].replace("[", "").replace("]", "") == corpus.sentences[0]
    assert words.word(0) == first.split(" — ")[0]


def test_many_rows_keep_the_texts_of_those_listed_and_of_their_neighbours_only(context, monkeypatch):
    asked = RepresentationPair("a", "b", 1, 1, pooling="token", shown=3, k=2)
    everything = asked.compute(context)
    monkeypatch.setattr(pairs_texts, "ALL_TEXTS", 100)
    few = asked.compute(context)
    needed = set(few.listed.tolist()) | set(few.neighbours_a.ravel().tolist()) | set(few.neighbours_b.ravel().tolist())
    assert set(np.flatnonzero(few.sentence_of >= 0).tolist()) == needed
    assert len(few.sentences) <= len(needed)
    for row in needed:
        assert few.text(row) == everything.text(row)
        assert few.label(row) == everything.label(row)
    other = next(row for row in range(few.rows) if row not in needed)
    assert few.text(other) == few.word(other) == f"row {other}"
    assert few.label(other) == ""
    pd.testing.assert_frame_equal(few.to_frame(), everything.to_frame())
    given_vectors = of_vectors(*clouds_of(n=120), shown=2, k=2)
    assert given_vectors.texts == tuple(f"row {row}" for row in given_vectors.listed)
    assert len(given_vectors.sentences) <= 2 * 5


def test_tokens_whose_place_is_not_known_are_shown_before_their_sentence(context, corpus, monkeypatch):
    real = pairs.read_pair

    def without_places(*arguments, **options):
        pair = real(*arguments, **options)
        spans = pair.spans.copy()
        spans[[2, 5]] = -1
        return dataclasses.replace(pair, spans=spans)

    whole = RepresentationPair("a", "b", 1, 1, pooling="token").compute(context)
    monkeypatch.setattr(pairs, "read_pair", without_places)
    result = RepresentationPair("a", "b", 1, 1, pooling="token").compute(context)
    captured = capture(context.models["a"], corpus, folder=context.states)
    for row in (2, 5):
        shown = context.models["a"].tokens.display(int(captured.index.token[row]))
        assert result.text(row) == f"{shown} — {corpus.sentences[0]}"
        assert result.label(row) == corpus.labels[0]
    assert result.text(3) == whole.text(3)


def test_rows_are_listed_evenly_by_seed_and_counted_all():
    x, y = clouds_of(n=300)
    everything = of_vectors(x, y)
    some = of_vectors(x, y, shown=50)
    assert everything.listed.tolist() == list(range(300))
    assert len(some.listed) == 50
    assert (some.listed // 6).tolist() == list(range(50))
    assert not np.array_equal(of_vectors(x, y, shown=50, seed=1).listed, some.listed)
    np.testing.assert_array_equal(some.kept, everything.kept)
    np.testing.assert_array_equal(some.residual, everything.residual)
    np.testing.assert_array_equal(some.neighbours_a, everything.neighbours_a[some.listed])
    np.testing.assert_array_equal(some.xy_b, everything.xy_b[some.listed])
    assert some.mean_kept == everything.mean_kept


@given(n=st.integers(1, 5000), shown=st.integers(1, 400), seed=st.integers(0, 99))
def test_rows_listed_are_different_rows_in_order(n, shown, seed):
    listed = evenly_drawn(n, shown, seed)
    assert len(listed) == min(n, shown)
    assert (np.diff(listed) > 0).all()
    assert listed[0] >= 0
    assert listed[-1] < n


@given(st.integers(0, 999))
def test_shared_counts_are_those_of_sets(seed):
    rng = np.random.default_rng(seed)
    a, b = (np.array([rng.permutation(12)[:5] for _ in range(7)]) for _ in "ab")
    np.testing.assert_allclose(shared_counts(a, b) / 5, plain_kept(a, b))


# The result as a whole


def test_the_table_has_one_row_a_listed_row(context, corpus):
    result = RepresentationPair("a", "b", 1, 2, shown=20, k=3).compute(context)
    frame = result.to_frame()
    assert list(frame.columns) == [
        "row", "text", "label", "kept", "jaccard", "neighbours_a", "neighbours_b",
        "x_a", "y_a", "x_b", "y_b", "residual",
    ]  # fmt: skip
    assert frame.row.tolist() == result.listed.tolist()
    np.testing.assert_array_equal(frame.kept, result.kept[result.listed])
    np.testing.assert_array_equal(frame.residual, result.residual[result.listed])
    for at, row in enumerate(result.neighbours_b):
        shown = frame.neighbours_b[at].split(" | ")
        assert len(shown) == 3
        for text, neighbour in zip(shown, row, strict=True):
            sentence = corpus.sentences[neighbour]
            assert text == sentence if len(sentence) <= 60 else text == f"{sentence[:59]}…"


def test_same_settings_give_the_same_bits(context):
    asked = RepresentationPair("a", "b", 1, 2, pooling="token", shown=30, space="embedding")
    assert_same(asked.compute(context), asked.compute(context))


@pytest.mark.parametrize("pooling", ["mean", "token"])
def test_a_result_survives_its_file(context, pooling):
    asked = RepresentationPair("a", "b", 1, 2, pooling=pooling, shown=30)
    result = asked.compute(context)
    assert_same(result, RepresentationPairResult.unpack(*result.pack()))
    data = packed("ab" * 32, result, asked)
    description = verified(data, "ab" * 32)
    assert_same(result, RepresentationPairResult.unpack(arrays_of(data, description), description["scalars"]))
    empty = of_vectors(np.ones((9, 2)), clouds_of(9)[0])
    data = packed("ab" * 32, empty, asked)
    description = verified(data, "ab" * 32)
    assert_same(empty, RepresentationPairResult.unpack(arrays_of(data, description), description["scalars"]))


def test_the_command_line_runs_it_on_the_demo_pair(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    whole = shipped_corpus()
    name = keep_corpus(dataclasses.replace(whole, sentences=whole.sentences[:24], labels=whole.labels[:24]))
    words = ["--model-a", "demo/gpt2-a", "--model-b", "demo/gpt2-b", "--layer-a", "3", "--layer-b", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "embcompare", "run", "representation-pair", *words, "--corpus", name, "--json", "-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["result"]
    assert found["rows"] == 24
    # twins are closer than chance in both respects
    assert found["mean_kept"] > found["kept_chance"] + 0.1
    assert found["fit"] > found["fit_chance"] + 0.1
    assert tuple(found["sentences"]) == whole.sentences[:24]
