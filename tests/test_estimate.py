"""The estimate before a run: it must follow the work, and read like a sentence."""

import dataclasses
import re

import pytest

from embcompare.experiments import estimate
from embcompare.experiments.estimate import MEASURE_COSTS, Estimate, alignment_cost, similarity_cost
from embcompare.experiments.parameters import ParameterAlignment
from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.measures import MEASURES
from embcompare.models import inspect_model

MEASURED = estimate.product_rate


@pytest.fixture(autouse=True)
def known_rate(monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", lambda device="cpu", dtype="float32": 1e11)


@pytest.fixture(scope="module")
def info():
    return inspect_model("demo/gpt2-a")


def test_time_follows_the_number_of_products(info):
    settings = ParameterAlignment("demo/gpt2-a", "demo/gpt2-b", null_draws=0, control=False)
    one = alignment_cost(settings, info, info)
    # 6 layers x 512 keys on each side, 128 wide, and the Gram sums over the vocabulary
    products = 2 * (6 * 512) ** 2 * 128
    grams = 2 * info.vocabulary * (2 * 128) ** 2
    assert one.seconds == pytest.approx((products + grams) / 1e11)
    more = alignment_cost(dataclasses.replace(settings, null_draws=9), info, info)
    assert 5 < more.seconds / one.seconds < 10
    matched = alignment_cost(dataclasses.replace(settings, score="one_to_one"), info, info)
    assert matched.seconds > 10 * one.seconds
    assert matched.bytes > one.bytes
    wide = dataclasses.replace(info, layers=24, ff_width=4096, width=1024)
    assert alignment_cost(settings, wide, wide).seconds > 1000 * products / 1e11


@pytest.mark.parametrize(
    ("seconds", "size", "words"),
    [
        (0.2, 10**6, "about 1 s"),
        (42.4, 4 * 10**8, "about 42 s and 0.4 GB of memory"),
        (600, 0, "about 10 min"),
        (9000, 2 * 10**9, "about 2.5 h and 2.0 GB of memory"),
    ],
)
def test_it_reads_like_a_sentence(seconds, size, words):
    assert Estimate(seconds, size).sentence() == words


def similarity(**settings):
    if settings.get("measure") == "tokenwise_cosine":
        settings.setdefault("space", "embedding")
    return RepresentationSimilarity("demo/gpt2-a", "demo/gpt2-b", **settings)


DONE = (True, True)


def test_every_registered_measure_has_its_cost_and_no_other_has():
    assert set(MEASURE_COSTS) == set(MEASURES)


@pytest.mark.parametrize("measure", MEASURES)
def test_similarity_grows_with_rows_layers_widths_and_draws(measure, info):
    settings = similarity(measure=measure, pooling="token", max_rows=2000, null_draws=4, halves=4)
    one = similarity_cost(settings, info, info, 669, DONE)
    assert one.seconds > 0
    longer = similarity_cost(dataclasses.replace(settings, max_rows=4000), info, info, 669, DONE)
    assert 1.7 < longer.seconds / one.seconds < 6
    assert longer.bytes > 1.7 * one.bytes
    deep = dataclasses.replace(info, layers=13)
    assert 1.3 < similarity_cost(settings, deep, info, 669, DONE).seconds / one.seconds < 4
    wide = dataclasses.replace(info, width=512)
    assert similarity_cost(settings, wide, info, 669, DONE).seconds > one.seconds
    assert similarity_cost(settings, wide, info, 669, DONE).bytes > one.bytes
    drawn = similarity_cost(dataclasses.replace(settings, null_draws=40), info, info, 669, DONE)
    assert 3 < drawn.seconds / one.seconds < 10
    halved = similarity_cost(dataclasses.replace(settings, halves=400), info, info, 669, DONE)
    assert halved.seconds > 10 * one.seconds


def test_similarity_counts_the_products_of_linear_cka_as_they_are(info, monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", lambda device="cpu", dtype="float32": 1.0)
    bare = similarity(pooling="token", max_rows=4000, null_draws=0, halves=0)
    more = dataclasses.replace(bare, null_draws=1)
    one = similarity_cost(more, info, info, 669, DONE).seconds - similarity_cost(bare, info, info, 669, DONE).seconds
    # 7 x 7 pairs, and each layer with itself, of which little more than the upper half is computed
    assert one == pytest.approx(4000 * 128**2 * (2 * 49 + 1.3 * 14), rel=1e-3)


def test_capture_is_counted_for_what_is_not_on_disk_and_once_for_one_model(info):
    settings = similarity(null_draws=0, halves=0)
    neither, first, both = (
        similarity_cost(settings, info, info, 669, captured).seconds
        for captured in ((False, False), (True, False), (True, True))
    )
    capture = (neither - both) / 2
    assert first - both == pytest.approx(capture)
    tokens, blocks = 669 * 22, info.parameters - info.vocabulary * info.width
    assert capture > 2 * blocks * tokens / 1e11
    itself = dataclasses.replace(settings, model_b="demo/gpt2-a")
    assert similarity_cost(itself, info, info, 669).seconds == pytest.approx(first)
    shared = dataclasses.replace(info, parameters=info.parameters // 3)  # blocks that share their weights run as often
    assert similarity_cost(settings, shared, info, 669).seconds > 0.9 * neither


def test_rows_are_those_of_the_pooling_up_to_the_bound(info):
    def cost(sentences=669, **settings):
        return similarity_cost(similarity(measure="rbf_cka", **settings), info, info, sentences, DONE).bytes

    assert cost() == cost(pooling="last", max_rows=669)
    assert cost() < cost(pooling="word", max_rows=10**5) < cost(pooling="token", max_rows=10**5)
    assert cost(pooling="token") == cost(sentences=10**6)
    # states of all layers, n x n in float64
    assert cost(sentences=4000) > 14 * 4000**2 * 8


def test_given_vectors_are_one_layer_of_the_width_that_is_told(info):
    settings = dataclasses.replace(similarity(), model_b="vectors/0123456789abcdef")
    narrow, wide = (similarity_cost(settings, info, None, 3000, widths=(0, width)) for width in (64, 4096))
    assert wide.seconds > 5 * narrow.seconds
    assert (
        similarity_cost(settings, info, None, 3000).bytes
        == similarity_cost(settings, info, None, 3000, widths=(0, info.width)).bytes
    )
    captured = similarity_cost(settings, info, None, 3000, (True, False), widths=(0, 64))
    assert captured.seconds < narrow.seconds
    both = dataclasses.replace(settings, model_a="vectors/fedcba9876543210")
    assert similarity_cost(both, None, None, 3000, widths=(64, 64)).seconds < captured.seconds


def test_given_stacks_cost_their_layers(info):
    settings = dataclasses.replace(similarity(), model_b="vectors/0123456789abcdef")
    one, many = (similarity_cost(settings, info, None, 3000, DONE, layers=(1, count)) for count in (1, 25))
    assert many.bytes > one.bytes + 4 * 3000 * 24 * info.width
    assert many.seconds > 3 * one.seconds
    assert one == similarity_cost(settings, info, None, 3000, DONE)


@pytest.mark.parametrize("measure", ["mutual_knn", "neighbourhood_jaccard", "cknna"])
def test_more_neighbours_cost_more_for_measures_that_count_them(info, measure):
    def cost(**settings):
        return similarity_cost(similarity(pooling="token", max_rows=4000, **settings), info, info, 669, DONE)

    few, many = cost(measure=measure), cost(measure=measure, k=500)
    # 49 pairs, 21 whole matrices and 20 halves: 13 to 37 ns were measured for each of n k
    assert many.seconds - few.seconds == pytest.approx(49 * (21 + 20 / 2) * 4000 * 490 * 22e-9, rel=0.4)
    assert many.bytes - few.bytes == 14 * 12 * 490 * 4000
    assert cost(measure="rsa") == cost(measure="rsa", k=500)
    short = similarity_cost(similarity(measure=measure, k=500), info, info, 400, DONE)
    assert short.seconds < similarity_cost(similarity(measure=measure, k=50), info, info, 400, DONE).seconds


def test_embedding_space_costs_its_gram_matrix(info):
    plain, read = (similarity_cost(similarity(space=s), info, info, 669, DONE) for s in ("feature", "embedding"))
    assert read.seconds - plain.seconds > 2 * info.vocabulary * (2 * info.width) ** 2 / 1e11
    assert read.bytes > plain.bytes + 4 * info.vocabulary * 2 * info.width


def test_undefined_for_want_of_rows_costs_almost_nothing(info):
    wide = dataclasses.replace(info, width=4096)
    settings = similarity(measure="cca", null_draws=100, halves=0)
    without = dataclasses.replace(settings, null_draws=0)
    assert (
        similarity_cost(settings, wide, wide, 669, DONE).seconds
        == similarity_cost(without, wide, wide, 669, DONE).seconds
    )


def test_its_sentence_is_one_that_a_page_can_show(info):
    told = similarity_cost(similarity(measure="rsa", pooling="token"), info, info, 669).sentence()
    assert re.fullmatch(r"about [\d.]+ (s|min|h) and [\d.]+ GB of memory", told)


def test_the_machine_is_really_measured():
    assert 1e8 < MEASURED() < 1e16
    assert MEASURED() == MEASURED()
