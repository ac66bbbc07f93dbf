"""Estimates of maps between layers: they follow the work, say "at most", and are met within a factor of three."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext

import numpy as np
import pytest

from embcompare.experiments import estimate
from embcompare.experiments.bijection import Bijection
from embcompare.experiments.bijection_depths import BijectionDepths
from embcompare.experiments.estimate_bijection import bijection_cost, depths_cost, map_pairs_cost, network_weights
from embcompare.experiments.map_pairs import MapPairs
from embcompare.maps.catalogue import MAPS
from embcompare.models import inspect_model, load_model
from embcompare.text.corpora import shipped_corpus

MEASURED = estimate.product_rate
TEXTS = 669
CLOSED = "mean, orthogonal, ridge"


@pytest.fixture
def known_rate(monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", lambda device="cpu", dtype="float32": 1e11)


@pytest.fixture(scope="module")
def info():
    return inspect_model("demo/gpt2-a")


@pytest.fixture(scope="module")
def big(info):
    return dataclasses.replace(info, layers=12, width=768, heads=12, ff_width=3072, vocabulary=50_257)


def fit(a, b, texts=TEXTS, **settings):
    settings = {"layer_a": 6, "layer_b": 6, **settings}
    return bijection_cost(Bijection("a", "b", **settings), a, b, texts)


def pairs(a, b, texts=TEXTS, **settings):
    return map_pairs_cost(MapPairs("a", "b", **settings), a, b, texts)


def test_more_of_anything_costs_more(big, known_rate):
    small = fit(big, big)
    for more in (
        {"epochs": 400},
        {"runs": 2},
        {"max_rows": 8000},
        {"maps": "mean, orthogonal, ridge, inn, mlp, bert_inn"},
        {"downstream": 400},
        {"layer_b": 1},
        {"batch": 16},
    ):
        assert fit(big, big, **more).seconds > 1.02 * small.seconds, more
    assert fit(big, big, max_rows=8000).bytes > 1.3 * small.bytes
    grid = pairs(big, big)
    for more in ({"splits": 6}, {"null_draws": 9}, {"max_rows": 8000}, {"maps": "orthogonal, ridge, least_squares"}):
        assert pairs(big, big, **more).seconds > 1.2 * grid.seconds, more
    assert pairs(big, big, max_rows=8000).bytes > 1.9 * grid.bytes


def test_every_depth_costs_a_fit_and_states_are_captured_once(big, known_rate):
    one, three, all_ = (
        depths_cost(BijectionDepths("a", "b", layers=layers, epochs=10), big, big, TEXTS).seconds
        for layers in ("6:6", "1:1, 6:6, 9:9", "")
    )
    step = (three - one) / 2
    assert step > 0
    assert all_ == pytest.approx(one + 12 * step)
    assert one == pytest.approx(fit(big, big, epochs=10, downstream=0, maps=BijectionDepths("a", "b").maps).seconds)


def test_a_network_costs_its_epochs_rows_and_weights(big, known_rate):
    """Forward once and backward twice, on the training rows, for every epoch: six operations a weight and row."""
    ten, twenty = (fit(big, big, maps="inn", epochs=epochs, downstream=0).seconds for epochs in (10, 20))
    weights, uses = network_weights("inn", 768, 768)
    products = 6.0 * weights * uses * 4000 * 0.65 * 10 / 1e11
    assert products < twenty - ten < 2 * products + 10 * 11 * 2e-3
    runs = fit(big, big, maps="inn", epochs=10, runs=5, downstream=0).seconds
    once = fit(big, big, maps="inn", epochs=10, downstream=0).seconds
    bare = fit(big, big, maps="mean", downstream=0).seconds
    assert (runs - bare) / (once - bare) == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize("name", [name for name, declared in MAPS.items() if declared.trained])
@pytest.mark.parametrize("widths", [(24, 24), (24, 40), (40, 24)])
def test_the_weights_are_those_of_the_network_itself(name, widths):
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(60, width)) for width in widths)
    made = MAPS[name].make(epochs=1, seed=0).fit(a[:50], b[:50], a[50:], b[50:])
    assert network_weights(name, *widths)[0] == pytest.approx(made._network.weights.numel(), rel=0.1)


def test_what_is_not_asked_of_b_costs_nothing(big, known_rate):
    asked = fit(big, big, maps=CLOSED, downstream=400).seconds
    silent = fit(big, big, maps=CLOSED, downstream=0).seconds
    assert asked > silent
    assert fit(big, big, maps=CLOSED, downstream=400, pooling="mean").seconds < silent
    patterns = {"maps": CLOSED, "what": "patterns"}
    assert fit(big, big, downstream=400, **patterns) == fit(big, big, downstream=0, **patterns)
    # what a module adds is exchanged in a model that runs whole
    assert fit(big, big, maps=CLOSED, downstream=400, what="attention").seconds > asked


def test_no_more_rows_are_counted_than_there_can_be(big, known_rate):
    few = fit(big, big, texts=50, pooling="mean")
    assert fit(big, big, texts=50, pooling="mean", max_rows=100_000) == few
    assert pairs(big, big, texts=50, pooling="mean", max_rows=100_000) == pairs(big, big, texts=50, pooling="mean")


def test_given_vectors_have_the_widths_and_layers_they_are_told_to_have(big, known_rate):
    settings = MapPairs(f"vectors/{'a' * 64}", "b", pooling="mean")
    one, many = (map_pairs_cost(settings, None, big, TEXTS, widths=(512, 0), layers=(n, 0)) for n in (1, 25))
    assert many.seconds > 2 * one.seconds
    wide = map_pairs_cost(settings, None, big, TEXTS, widths=(4096, 0), layers=(1, 0))
    assert wide.seconds > one.seconds
    both = Bijection(f"vectors/{'a' * 64}", f"vectors/{'b' * 64}", layer_a=0, layer_b=0)
    narrow, broad = (bijection_cost(both, None, None, 3000, widths=(w, w)).seconds for w in (64, 1024))
    assert broad > 4 * narrow


def test_attention_patterns_are_as_wide_as_there_are_heads(big, known_rate):
    assert pairs(big, big, what="patterns").seconds < 0.8 * pairs(big, big).seconds
    assert pairs(big, big, what="attention").seconds < pairs(big, big).seconds


def test_an_upper_bound_says_so(big, known_rate):
    assert fit(big, big).sentence().startswith("at most ")
    assert pairs(big, big).sentence().startswith("about ")


class Context:
    device = "cpu"

    def __init__(self, states, **models):
        self.models, self.states = models, states

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return shipped_corpus()

    def report(self, *_):
        pass


SOME = {"max_rows": 1000, "pooling": "token"}
RUNS = {
    "networks": Bijection("a", "b", layer_a=3, layer_b=3, epochs=15, patience=15, downstream=20, **SOME),
    "closed": Bijection("a", "b", layer_a=3, layer_b=3, maps=CLOSED, downstream=40, **SOME),
    "pairs": MapPairs("a", "b", splits=1, null_draws=1, **SOME),
}


@pytest.mark.parametrize("name", RUNS)
def test_on_the_demo_models_they_are_met_within_a_factor_of_three(name, info, tmp_path):
    asked = RUNS[name]
    models = {short: load_model(f"demo/gpt2-{short}") for short in "ab"}
    warm = Bijection("a", "b", layer_a=0, layer_b=0, maps="inn", epochs=1, max_rows=100, pooling="mean")
    warm.compute(Context(tmp_path / "warm", **models))  # what comes but once
    MEASURED.cache_clear()
    of = bijection_cost if isinstance(asked, Bijection) else map_pairs_cost
    expected = of(asked, info, info, len(shipped_corpus()))
    began = time.process_time()
    asked.compute(Context(tmp_path / "states", **models))
    took = time.process_time() - began
    assert took / 3 - 0.2 < expected.seconds < 3 * took + 0.5, (took, expected.seconds)
