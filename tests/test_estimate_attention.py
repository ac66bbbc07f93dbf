"""The estimate of attention similarity: it must follow the work, and a run must take about as long."""

import dataclasses
import time

import pytest

import embcompare
from embcompare.experiments import estimate
from embcompare.experiments.attention import AttentionPatterns, AttentionSimilarity
from embcompare.experiments.estimate_attention import MIXED, attention_cost, patterns_cost
from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.models import inspect_model

PAIR = ("demo/gpt2-a", "demo/gpt2-b")


@pytest.fixture(scope="module")
def infos():
    return tuple(map(inspect_model, PAIR))


def seconds(infos, **settings):
    return attention_cost(AttentionSimilarity(*PAIR, **settings), *infos, 600).seconds


def test_time_and_memory_follow_the_work(infos, monkeypatch):
    monkeypatch.setattr("embcompare.experiments.estimate_attention.product_rate", lambda *_: 1e13)
    monkeypatch.setattr(estimate, "product_rate", lambda *_: 1e13)
    bare = seconds(infos, null_draws=0, halves=0)
    assert bare < seconds(infos) < seconds(infos, null_draws=50)
    jsd = {"pattern": "full", "measure": "jsd", "max_rows": 200_000}
    more = seconds(infos, **jsd, null_draws=8) - seconds(infos, **jsd, null_draws=2)
    texts = 200_000 // 22**2
    assert more == pytest.approx(6 * MIXED * 24 * 24 * texts * 22 * 23, rel=0.1)
    deep = dataclasses.replace(infos[0], layers=24, heads=16)
    settings = AttentionSimilarity(*PAIR, **jsd)
    assert attention_cost(settings, deep, deep, 600).seconds > 30 * attention_cost(settings, *infos, 600).seconds
    sizes = [
        attention_cost(AttentionSimilarity(*PAIR, pattern="full", max_rows=rows), *infos, 5000).bytes
        for rows in (10_000, 100_000)
    ]
    assert sizes[1] > 5 * sizes[0]
    assert attention_cost(settings, None, infos[1], 600).seconds == 0.0


def test_modules_and_patterns_cost_what_their_widths_make_them(infos):
    costs = {
        what: estimate.similarity_cost(
            RepresentationSimilarity(*PAIR, measure="cca", what=what, pooling="token", max_rows=20_000), *infos, 600
        )
        for what in ("hidden", "attention", "patterns")
    }
    assert costs["patterns"].bytes < costs["attention"].bytes < costs["hidden"].bytes
    assert costs["patterns"].seconds < costs["attention"].seconds < costs["hidden"].seconds


@pytest.mark.parametrize(
    "settings", [{}, {"pattern": "full"}, {"pattern": "full", "measure": "jsd", "max_rows": 200_000, "null_draws": 2}]
)
def test_a_real_run_takes_about_as_long(settings, infos, tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    asked = AttentionSimilarity(*PAIR, **settings)
    found = attention_cost(asked, *infos, 669).seconds
    began = time.process_time()
    embcompare.run(asked)
    taken = time.process_time() - began
    assert found / 5 < taken < 5 * found + 1


def test_one_sentence_is_quick_and_small(infos):
    cost = patterns_cost(AttentionPatterns(*PAIR), *infos)
    assert cost.seconds < 5
    assert cost.bytes == 2 * 4 * 24 * 48**2
