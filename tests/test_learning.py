"""Batches, padding, rate and steps of fine-tuning, against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from embcompare import learning

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda each: np.array(each, np.int64))


@given(lengths, st.integers(1, 20), st.integers(1, 3), st.integers(0, 9))
def test_every_text_is_in_one_batch_of_an_epoch_and_no_batch_is_too_large(lengths, size, pool, seed):
    batches = list(learning.batches_by_length(lengths, size, np.random.default_rng(seed), every=True, pool=pool))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // size)
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert max(map(len, batches)) <= size


@given(lengths, st.integers(1, 20), st.integers(0, 9))
def test_without_every_text_batches_are_full_and_hold_no_text_twice(lengths, size, seed):
    batches = list(learning.batches_by_length(lengths, size, np.random.default_rng(seed), every=False))
    used = np.concatenate([np.empty(0, np.int64), *batches])
    assert [len(batch) for batch in batches] == [size] * (len(lengths) // size)
    assert len(set(used)) == len(used)


def test_the_generator_alone_decides_the_order():
    sizes = np.arange(1, 50)
    one, two, other = (
        np.concatenate(list(learning.batches_by_length(sizes, 4, np.random.default_rng(seed), every=True)))
        for seed in (3, 3, 4)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=6))
def test_padding_is_on_the_right_and_says_what_is_real(ids):
    filled, real = learning.padded(ids, 777)
    assert filled.shape == real.shape == (len(ids), max(map(len, ids)))
    assert [list(row[mask]) for row, mask in zip(filled, real, strict=True)] == ids
    assert (filled[~real] == 777).all()
    assert not (np.diff(real.astype(int), axis=1) > 0).any()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 99))
def test_a_mean_over_tokens_is_that_of_each_text_alone(sizes, seed):
    values = torch.randn(len(sizes), max(sizes), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    real = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    found = learning.mean_over_tokens(values, real)
    for row, each, size in zip(found, values, sizes, strict=True):
        assert torch.allclose(row, each[:size].mean(0), rtol=1e-12, atol=1e-12)


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    rates = [learning.share_of_peak(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(1 / 90)
    assert np.all(np.diff(rates[10:]) < 0)
    assert learning.share_of_peak(0, 1) == 1.0


def test_a_step_is_adamws_with_the_gradient_cut_and_the_rate_of_the_schedule():
    start = torch.tensor([3.0, -4.0], dtype=torch.float64)
    weight = start.clone().requires_grad_(True)
    groups = [{"params": [weight], "weight_decay": 0.1, "times": 0.5}]
    losses = list(learning.descend((weight.square().sum() for _ in range(3)), [weight], groups, steps=20, rate=0.02))
    x, mean, square = start.numpy().copy(), np.zeros(2), np.zeros(2)
    for step, loss in enumerate(losses, 1):
        assert loss == pytest.approx((x**2).sum(), rel=1e-9)
        gradient = 2 * x
        gradient = gradient * min(1.0, 1 / np.linalg.norm(gradient))
        rate = 0.5 * 0.02 * min(step / 2, (21 - step) / 18)
        x = x * (1 - rate * 0.1)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        x = x - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.98**step)) + 1e-8)
    assert weight.detach().numpy() == pytest.approx(x, rel=1e-5)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(counts):
    right, examples = counts
    expected = binomtest(right, examples).proportion_ci(0.95, method="wilson")
    assert learning.wilson(right, examples) == pytest.approx((expected.low, expected.high), abs=1e-9)
