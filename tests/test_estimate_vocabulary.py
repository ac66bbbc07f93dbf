"""Estimates of what reads parameters in tokens: they follow the work, and are met within a small factor."""

import dataclasses
import time
from contextlib import nullcontext

import pytest

from embcompare.experiments import estimate
from embcompare.experiments.agreement import ParameterAgreement
from embcompare.experiments.difference import ParameterDifference
from embcompare.experiments.estimate_vocabulary import (
    agreement_cost,
    difference_cost,
    heads_cost,
    nearest_cost,
    reading_cost,
    search_cost,
)
from embcompare.experiments.heads import HeadReading
from embcompare.experiments.nearest import NearestVectors
from embcompare.experiments.reading import TokenReading
from embcompare.experiments.token_search import TokenSearch
from embcompare.models import inspect_model, load_model
from embcompare.text.corpora import shipped_corpus

MEASURED = estimate.product_rate
SENTENCES = 669


@pytest.fixture
def known_rate(monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", lambda device="cpu", dtype="float32": 1e11)


@pytest.fixture(scope="module")
def info():
    return inspect_model("demo/gpt2-a")


def costs(info, only=None, **changes):
    """Every estimate for one shape of model, by name, or one of them with other settings."""
    named = {
        "reading": (reading_cost, TokenReading("a", 0)),
        "search": (search_cost, TokenSearch("a", "b", "dog")),
        "heads": (heads_cost, HeadReading("a", 0, 0)),
        "nearest": (nearest_cost, NearestVectors("a", "b", 0, 0)),
        "difference": (difference_cost, ParameterDifference("a", "b")),
        "agreement": (agreement_cost, ParameterAgreement("a", "b")),
    }
    found = {}
    for name, (cost, settings) in named.items():
        settings = dataclasses.replace(settings, **changes) if name == only else settings
        infos = (info,) if name in ("reading", "heads") else (info, info)
        more = (SENTENCES,) if name == "agreement" else ()
        found[name] = cost(settings, *infos, *more)
    return found


NAMES = ("reading", "search", "heads", "nearest", "difference", "agreement")


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_vocabulary_costs_time_and_a_larger_width_memory_too(info, known_rate, name):
    small = costs(info)[name]
    assert small.seconds > 0
    many = costs(dataclasses.replace(info, vocabulary=12 * info.vocabulary))[name]
    wide = costs(dataclasses.replace(info, width=6 * info.width, ff_width=6 * info.ff_width))[name]
    assert min(many.seconds, wide.seconds) > small.seconds
    assert wide.bytes > small.bytes > 0
    # blocks of the vocabulary are as large for a large one
    assert many.bytes >= small.bytes


@pytest.mark.parametrize("name", ["search", "nearest", "difference", "agreement"])
def test_twice_the_layers_cost_up_to_twice_as_much(info, known_rate, name):
    wide = dataclasses.replace(info, width=1024, ff_width=4096, vocabulary=50_000, layers=12)
    one, two = (costs(dataclasses.replace(wide, layers=layers))[name].seconds for layers in (12, 24))
    assert 1.05 < two / one < 2.05


def test_layers_do_not_matter_to_what_reads_one_layer(info, known_rate):
    deep = costs(dataclasses.replace(info, layers=48))
    for name in ("reading", "heads"):
        assert deep[name] == costs(info)[name]


def test_products_with_the_vocabulary_are_counted(info, known_rate):
    wide = dataclasses.replace(info, width=4096, ff_width=16_384, vocabulary=100_000)
    assert costs(wide)["reading"].seconds > 2 * 16_384 * 4096 * 100_000 / 1e11
    assert costs(wide)["agreement"].seconds > 2 * info.layers * 5 * 2 * 1000 * 4096 * 100_000 / 1e11
    shared = dataclasses.replace(wide, kv_heads=1, heads=32)
    reading = TokenReading("a", 0, "w_k")
    assert reading_cost(reading, shared).seconds < reading_cost(reading, wide).seconds / 5


def test_settings_that_mean_less_work_cost_less(info, known_rate):
    big = dataclasses.replace(info, width=1024, ff_width=4096, vocabulary=50_000, layers=12)
    for name, less in (
        ("reading", {"count": 10}),
        ("reading", {"combination": "3:1"}),
        ("search", {"top": 0}),
        ("search", {"group": "w_q"}),
        ("nearest", {"null_draws": 0}),
        ("difference", {"layer": 0}),
        ("difference", {"group": "w_q"}),
        ("difference", {"common": 0}),
        ("agreement", {"keep_vectors": 0}),
        ("agreement", {"pairs": 100}),
        ("agreement", {"sentences": 8}),
    ):
        assert costs(big, name, **less)[name].seconds < costs(big)[name].seconds, (name, less)
    for name in ("reading", "search", "heads"):
        assert costs(big, name, common=1)[name].seconds > costs(big, name, common=0)[name].seconds
    assert costs(big, "reading", inverse="exact")["reading"].seconds > costs(big)["reading"].seconds
    assert costs(big, "agreement", pairs=0)["agreement"].seconds > costs(big)["agreement"].seconds


def test_one_model_twice_is_measured_once(info, known_rate):
    two, one = (agreement_cost(ParameterAgreement("a", b), info, info, SENTENCES) for b in "ba")
    assert two.seconds / one.seconds == pytest.approx(2, rel=0.1)
    assert two.bytes == one.bytes
    few = agreement_cost(ParameterAgreement("a", "a", sentences=2000), info, info, 3)
    assert few.seconds < one.seconds


class Context:
    device = "cpu"

    def __init__(self, **models):
        self.models = models

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return shipped_corpus()

    def report(self, *_):
        pass


def test_on_the_demo_models_they_are_met_within_a_small_factor(info, monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", MEASURED)
    a, b = load_model("demo/gpt2-a"), load_model("demo/gpt2-b")
    settings = {
        "reading": TokenReading("a", 0),
        "search": TokenSearch("a", "b", "dog" if "dog" in a.tokens.text else a.tokens.text[300]),
        "heads": HeadReading("a", 0, 0),
        "nearest": NearestVectors("a", "b", 0, 0),
        "difference": ParameterDifference("a", "b"),
        "agreement": ParameterAgreement("a", "b", pairs=300, sentences=16, keep_vectors=60),
    }
    expected = costs(info) | costs(info, "agreement", pairs=300, sentences=16, keep_vectors=60)
    for name, asked in settings.items():
        began = time.process_time()
        asked.compute(Context(a=a, b=b))
        took = time.process_time() - began
        assert took / 8 - 0.1 < expected[name].seconds < 8 * took + 0.5, (name, took, expected[name].seconds)
