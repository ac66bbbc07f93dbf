"""The estimate before a run: it must follow the work, and read like a sentence."""

import dataclasses

import pytest

from embcompare.experiments import estimate
from embcompare.experiments.estimate import Estimate, alignment_cost
from embcompare.experiments.parameters import ParameterAlignment
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


def test_the_machine_is_really_measured():
    assert 1e8 < MEASURED() < 1e16
    assert MEASURED() == MEASURED()
