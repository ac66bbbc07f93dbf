"""What the demo twins must show: they find each other's layers in embedding space, by nothing but their weights."""

import functools

import numpy as np
import pytest

import embcompare


@functools.cache
def alignment(a, b, group):
    return embcompare.run(embcompare.ParameterAlignment(a, b, group=group), keep=False, device="cpu")


@pytest.mark.parametrize("group", ["ff_keys", "ff_values"])
def test_gpt2_twins_are_assigned_layer_by_layer_far_beyond_their_null(group):
    result = alignment("demo/gpt2-a", "demo/gpt2-b", group)
    on_diagonal = int((result.assignment[:, 0] == result.assignment[:, 1]).sum())
    assert result.values.shape == (6, 6)
    assert on_diagonal >= 5
    assert result.depth_rate == on_diagonal / 6
    assert result.depth_p < 0.01
    assert (np.diag(result.z) > 5).all()
    assert (np.diag(result.values) > 10 * np.diag(result.null_mean)).all()


@pytest.mark.parametrize("group", ["ff_keys", "ff_values"])
def test_gpt2_twins_lie_at_chance_in_feature_space(group):
    result = alignment("demo/gpt2-a", "demo/gpt2-b", group)
    assert result.control_chance == pytest.approx(np.sqrt(2 / (np.pi * 128)))
    # the vectors of one layer are not independent of one another, so the mean of 512 x 512 pairs keeps some noise
    np.testing.assert_allclose(result.control, result.control_chance, rtol=0.06)
    assert result.control.mean() == pytest.approx(result.control_chance, rel=0.02)
    assert result.control.std() < 0.05 * result.values.std()


def test_a_wider_and_deeper_sibling_follows_the_twins_by_relative_depth():
    result = alignment("demo/gpt2-a", "demo/gpt2-wide", "ff_values")
    assert result.values.shape == (6, 8)
    assert result.control is None
    assert (result.z > 5).all()
    assert (np.diff(result.assignment[np.argsort(result.assignment[:, 0]), 1]) > 0).mean() >= 0.6


def test_bert_twins_share_the_vocabulary_space_whatever_the_assignment_says():
    for group in ("ff_keys", "ff_values"):
        result = alignment("demo/bert-a", "demo/bert-b", group)
        assert result.values.shape == (4, 4)
        assert (np.diag(result.z) > 5).all()
        np.testing.assert_allclose(result.control, result.control_chance, rtol=0.1)


def test_matched_neurons_of_the_twins_say_similar_things():
    matched = embcompare.run(
        embcompare.ParameterMatches("demo/gpt2-a", "demo/gpt2-b", layer_a=5, layer_b=5, group="ff_values"),
        keep=False,
        device="cpu",
    )
    assert np.abs(matched.correlation).min() > 0.5
    assert matched.shared_tokens.mean() > 0.1
    crossed = [
        len(set(a) & set(b)) / len(set(a) | set(b))
        for a, b in zip(matched.tokens_a, matched.tokens_b[1:] + matched.tokens_b[:1], strict=True)
    ]
    assert matched.shared_tokens.mean() > 1.5 * np.mean(crossed)
