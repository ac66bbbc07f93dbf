"""Estimates of sums: they follow the work, and are met within a factor of three."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext

import pytest

from embcompare.experiments import estimate
from embcompare.experiments.decomposition import Decomposition
from embcompare.experiments.estimate_decomposition import (
    decomposition_cost,
    sentence_terms_cost,
    term_count,
    term_series_cost,
)
from embcompare.experiments.term_sentence import SentenceTerms
from embcompare.experiments.term_series import TermSeries
from embcompare.models import inspect_model, load_model
from embcompare.shelf import bundled_corpus

MEASURED = estimate.product_rate
TEXTS, TOKENS = 669, 25.0
SENTENCE = "The whale was white and the captain was mad with rage at the sea. "


@pytest.fixture
def known_rate(monkeypatch):
    monkeypatch.setattr(estimate, "product_rate", lambda device="cpu", dtype="float32": 1e11)


@pytest.fixture(scope="module")
def info():
    return inspect_model("demo/gpt2-a")


@pytest.fixture(scope="module")
def big(info):
    return dataclasses.replace(info, layers=12, width=768, heads=12, ff_width=3072, vocabulary=50_257)


def cost(a, b, texts=TEXTS, **settings):
    return decomposition_cost(Decomposition("a", "b", **settings), a, b, texts, TOKENS)


def sentence(a, b, text=SENTENCE, **settings):
    return sentence_terms_cost(SentenceTerms("a", "b", text=text, **settings), a, b)


def test_terms_are_counted_as_the_split_makes_them(big, tiny_model):
    from embcompare.decomposition.additive import all_terms

    assert [term_count(big, by) for by in ("none", "layer", "head")] == [4, 2 + 24, 2 + 12 + 144]
    marian = dataclasses.replace(big, family="marian", layers=4, heads=2)
    assert [term_count(marian, by) for by in ("none", "layer", "head")] == [5, 2 + 12, 2 + 4 + 16]
    for name in ("gpt2", "marian", "llama"):
        model, by = tiny_model(name), (("none", ()), ("layer", ("layer",)), ("head", ("layer", "head")))
        shape = dataclasses.replace(
            big,
            family=model.module.config.model_type,
            layers=model.anatomy.n_layers,
            heads=model.anatomy.blocks[0].attention.heads,
        )
        for asked, splits in by:
            assert term_count(shape, asked) == len(all_terms(model, splits, 0)), (name, asked)


def test_more_of_anything_costs_more(big, known_rate):
    small = cost(big, big, sentences=20)
    for more in ({"sentences": 80}, {"sentences": 20, "by": "layer"}, {"sentences": 20, "by": "head"}):
        assert cost(big, big, **more).seconds > 1.3 * small.seconds, more
    assert cost(big, big, sentences=20, by="head").bytes > 2 * small.bytes
    assert cost(big, big, sentences=20, ablation=False).seconds < 0.9 * small.seconds
    assert cost(big, big, sentences=20, positions=10).seconds < small.seconds


def test_no_more_texts_are_read_than_there_are(big, known_rate):
    assert cost(big, big, texts=50, sentences=50) == cost(big, big, texts=50, sentences=2000)


def test_a_longer_text_costs_more_until_it_is_cut(big, known_rate):
    short, long, longer = (sentence(big, big, SENTENCE * times) for times in (1, 5, 10))
    assert long.seconds > 5 * short.seconds
    assert sentence(big, big, SENTENCE * 60) == sentence(big, big, SENTENCE * 40)
    assert longer.seconds < 2.5 * long.seconds
    assert sentence(big, big, by="head").seconds > short.seconds


def test_a_series_costs_by_its_checkpoints_and_texts(big, known_rate):
    def series(checkpoints, **more):
        wanted = TermSeries("one: " + ", ".join(f"m{at}" for at in range(checkpoints)), corpus="shipped", **more)
        return term_series_cost(wanted, [big] * checkpoints, TEXTS, TOKENS)

    assert series(10).seconds > 1.8 * series(5).seconds
    assert series(5, sentences=400).seconds > 3 * series(5, sentences=100).seconds
    marian = dataclasses.replace(big, family="marian")
    wanted = TermSeries("one: m1, m2")
    both = term_series_cost(wanted, [marian, marian], 400, 9.0)
    assert both.seconds > term_series_cost(wanted, [big, big], 400, 9.0).seconds, "it also writes translations"


class Context:
    device = "cpu"

    def __init__(self, **models):
        self.models = models

    def lease(self, name):
        return nullcontext(self.models[name]) if name in self.models else nullcontext(load_model(name))

    def corpus(self, name):
        return bundled_corpus(name)

    def report(self, *_):
        pass


GPT2 = "seed 4: demo/gpt2-series-50, demo/gpt2-series-400, demo/gpt2-series-2000"
RUNS = {
    "corpus": Decomposition("demo/gpt2-a", "demo/gpt2-b", sentences=40),
    "heads": Decomposition("demo/gpt2-a", "demo/bert-a", sentences=20, by="head", positions=100),
    "sentence": SentenceTerms("demo/gpt2-a", "demo/gpt2-b", text=SENTENCE * 2),
    "translators": TermSeries.demo(seeds=[1, 2], sentences=60),
    "language models": TermSeries(GPT2, corpus="shipped", sentences=60),
}


@pytest.mark.parametrize("name", RUNS)
def test_on_the_demo_models_they_are_met_within_a_factor_of_three(name):
    asked = RUNS[name]
    infos = [inspect_model(model) for model in asked.models()]
    context = Context(**({} if isinstance(asked, TermSeries) else {m: load_model(m) for m in asked.models()}))
    warm = SentenceTerms("demo/gpt2-series-50", "demo/gpt2-series-50", text="The whale")
    warm.compute(Context())  # what comes but once
    MEASURED.cache_clear()
    if isinstance(asked, SentenceTerms):
        expected = sentence_terms_cost(asked, *infos)
    else:
        corpus = context.corpus(asked.corpus)
        texts = (corpus.targets or corpus.sentences)[: asked.sentences]
        length = sum(map(len, texts)) / len(texts) / 3.4 + 2
        if isinstance(asked, TermSeries):
            expected = term_series_cost(asked, infos, len(corpus), length)
        else:
            expected = decomposition_cost(asked, *infos, len(corpus), length)
    began = time.process_time()
    asked.compute(context)
    took = time.process_time() - began
    assert took / 3 - 0.2 < expected.seconds < 3 * took + 0.5, (took, expected.seconds)
