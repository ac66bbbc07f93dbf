"""Parameter alignment against the plain V-wide formulas, on small models whose truth is known."""

import dataclasses
import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.base import canonical, execute
from embcompare.experiments.matches import (
    ParameterMatches,
    ParameterMatchesResult,
    leading_directions,
    match_vectors,
)
from embcompare.experiments.matches_result import overlaps_of
from embcompare.experiments.parameters import ParameterAlignment, ParameterAlignmentResult
from embcompare.experiments.vectors import GROUPS
from embcompare.models.anatomy import Anatomy, AttentionWeights, BlockWeights, FeedForwardWeights
from embcompare.text import Tokens

V = 1100
VECTOR_GROUPS = ("ff_keys", "ff_values", "w_q", "w_k", "w_v", "w_o")


def gaussian(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(name="m", layers=3, width=8, inner=10, heads=4, kv_heads=2, head_width=3, seed=0, gated=False, special=5):
    """A random model in the shape of the anatomy, with grouped heads and a head width that is not width / heads."""
    seeds = itertools.count(1000 * seed)

    def draw(*shape):
        return gaussian(*shape, seed=next(seeds))

    blocks = tuple(
        BlockWeights(
            index,
            "pre",
            AttentionWeights(
                draw(heads, width, head_width),
                draw(kv_heads, width, head_width),
                draw(kv_heads, width, head_width),
                draw(heads, head_width, width),
                None,
                None,
                None,
                None,
                "absolute",
                1.0,
            ),
            None,
            FeedForwardWeights(
                draw(inner, width), draw(inner, width) if gated else None, draw(inner, width), None, None, None, "gelu"
            ),
            {},
        )
        for index in range(layers)
    )
    e = draw(V, width) + 1
    anatomy = Anatomy("test", width, blocks, draw(V, width), e, False, 1.0, None, None, 0, ())
    names = tuple(f"w{k}" for k in range(V))
    flags = np.arange(V) < special
    tokens = Tokens(names, names, np.ones(V, dtype=bool), flags)
    return SimpleNamespace(anatomy=anatomy, tokens=tokens, spec=SimpleNamespace(label=name), fingerprint=name)


class Context:
    device = "cpu"

    def __init__(self, *models, stop_after=None):
        self.models = {m.spec.label: m for m in models}
        self.reports = []
        self.stop_after = stop_after

    def lease(self, name):
        return nullcontext(self.models[name])

    def report(self, done, total, message, partial=None):
        self.reports.append((done, total, message, partial))
        if self.stop_after is not None and len(self.reports) > self.stop_after:
            raise Cancelled("stopped")


def wide_correlations(x, y, e_a, e_b, order=None):
    a, b = x @ e_a.T, y @ e_b.T
    return np.corrcoef(a.numpy(), (b if order is None else b[:, order]).numpy())[: len(x), len(x) :]


def plain_score(name, rho):
    from scipy.optimize import linear_sum_assignment

    strength = np.abs(rho)
    if name == "mean_abs":
        return strength.mean()
    if name == "best_match":
        return (strength.max(0).mean() + strength.max(1).mean()) / 2
    return strength[linear_sum_assignment(strength, maximize=True)].mean()


@pytest.fixture
def pair():
    return model("a", layers=3, width=8, seed=1), model("b", layers=4, width=11, heads=6, kv_heads=3, seed=2)


@pytest.mark.parametrize("group", VECTOR_GROUPS)
@pytest.mark.parametrize("score", ["mean_abs", "best_match", "one_to_one"])
def test_matrix_equals_pearson_over_the_vocabulary(pair, group, score):
    a, b = pair
    settings = ParameterAlignment("a", "b", group=group, score=score, null_draws=0, dtype="float64")
    result = settings.compute(Context(a, b))
    e_a, e_b = a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    expected = [
        [
            plain_score(score, wide_correlations(a.anatomy.vectors(group, i), b.anatomy.vectors(group, j), e_a, e_b))
            for j in range(4)
        ]
        for i in range(3)
    ]
    np.testing.assert_allclose(result.values, expected, atol=1e-10)
    in_float32 = dataclasses.replace(settings, dtype="float32").compute(Context(a, b)).values
    np.testing.assert_allclose(in_float32, expected, atol=2e-6)


def dense(factors, e):
    """The V x V matrix of one head, both sides centred: what is never built in the package."""
    left, right = (factor @ (e - e.mean(0)).T for factor in factors)
    return (left.T @ right).numpy()


@pytest.mark.parametrize("group", ["w_qk", "w_vo"])
def test_interaction_matrices_equal_the_cosine_of_dense_v_by_v_matrices(pair, group):
    a, b = pair
    settings = ParameterAlignment("a", "b", group=group, null_draws=0, dtype="float64", score="best_match")
    values = settings.compute(Context(a, b)).values

    def heads(m, layer):
        attention = m.anatomy.blocks[layer].attention
        for h in range(attention.heads):
            if group == "w_qk":
                yield attention.w_q[h].T, attention.head_k(h).T
            else:
                yield attention.head_v(h).T, attention.w_o[h]

    e_a, e_b = a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    for i, j in [(0, 0), (2, 3)]:
        rho = np.array(
            [
                [
                    (x := dense(fa, e_a)).ravel()
                    @ (y := dense(fb, e_b)).ravel()
                    / np.linalg.norm(x)
                    / np.linalg.norm(y)
                    for fb in heads(b, j)
                ]
                for fa in heads(a, i)
            ]
        )
        assert values[i, j] == pytest.approx(plain_score("best_match", rho), abs=1e-10)


def test_null_is_the_score_under_permuted_vocabularies(pair):
    a, b = pair
    result = ParameterAlignment("a", "b", null_draws=3, seed=7, dtype="float64").compute(Context(a, b))
    generator = torch.Generator().manual_seed(7)
    e_a, e_b = a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    x, y = a.anatomy.vectors("ff_keys", 1), b.anatomy.vectors("ff_keys", 2)
    draws = [
        plain_score("mean_abs", wide_correlations(x, y, e_a, e_b, torch.randperm(V - 5, generator=generator)))
        for _ in range(3)
    ]
    assert result.null_mean[1, 2] == pytest.approx(np.mean(draws), abs=1e-10)
    assert result.null_sd[1, 2] == pytest.approx(np.std(draws, ddof=1), abs=1e-10)
    np.testing.assert_allclose(result.z, (result.values - result.null_mean) / result.null_sd)


def test_feature_space_control_is_pearson_over_features_and_lies_at_chance():
    a, b = (model(name, width=64, inner=200, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    result = ParameterAlignment("a", "b", null_draws=2, dtype="float64").compute(Context(a, b))
    x, y = a.anatomy.vectors("ff_keys", 0), b.anatomy.vectors("ff_keys", 1)
    expected = np.abs(np.corrcoef(x.numpy(), y.numpy())[:200, 200:]).mean()
    assert result.control[0, 1] == pytest.approx(expected, abs=1e-12)
    assert result.control_chance == pytest.approx(np.sqrt(2 / np.pi / 64))
    np.testing.assert_allclose(result.control, result.control_chance, rtol=0.05)
    in_feature_space = ParameterAlignment("a", "b", space="feature", null_draws=2, dtype="float64").compute(
        Context(a, b)
    )
    np.testing.assert_allclose(in_feature_space.values, result.control, atol=1e-12)
    assert in_feature_space.control is None
    assert in_feature_space.tokens is None


def turned(m, name, order):
    """The same function in another basis, with another layer order: embedding space must see through both."""
    width = m.anatomy.width
    basis = torch.linalg.qr(gaussian(width, width, seed=99))[0] * torch.linspace(0.5, 2, width, dtype=torch.float64)
    back = torch.linalg.inv(basis).T

    def block(old):
        ff = dataclasses.replace(
            old.feed_forward, keys=old.feed_forward.keys @ back, values=old.feed_forward.values @ basis
        )
        return dataclasses.replace(old, feed_forward=ff)

    anatomy = dataclasses.replace(
        m.anatomy, blocks=tuple(block(m.anatomy.blocks[i]) for i in order), unembedding=m.anatomy.unembedding @ back
    )
    return SimpleNamespace(anatomy=anatomy, tokens=m.tokens, spec=SimpleNamespace(label=name), fingerprint=name)


def test_same_function_in_another_basis_and_layer_order_is_found():
    a = model("a", layers=5, width=16, inner=40, seed=3)
    order = [3, 0, 4, 1, 2]
    b = turned(a, "b", order)
    result = ParameterAlignment("a", "b", group="ff_values", score="one_to_one", null_draws=5).compute(Context(a, b))
    found = dict(result.assignment.tolist())
    assert [found[layer] for layer in order] == [0, 1, 2, 3, 4]
    assert all(result.values[i, j] > 0.999 for i, j in found.items())
    assert all(result.z[i, j] > 20 for i, j in found.items())
    assert result.control.max() < 0.7
    assert result.depth_rate == 0.0
    matched = ParameterMatches("a", "b", layer_a=3, layer_b=0, group="ff_values").compute(Context(a, b))
    assert (matched.index_a == matched.index_b).all()
    assert matched.correlation.min() > 0.999
    assert matched.tokens_a == matched.tokens_b
    assert matched.shared_tokens.tolist() == [1.0] * 40


def test_model_with_itself_matches_itself_in_both_spaces():
    a = model("a", seed=4)
    for space in ("embedding", "feature"):
        result = ParameterAlignment("a", "a", space=space, score="one_to_one", null_draws=0).compute(Context(a))
        np.testing.assert_allclose(np.diag(result.values), 1.0, atol=1e-5)
        assert result.depth_rate == 1.0


def test_swapping_the_models_transposes_everything(pair):
    forth = ParameterAlignment("a", "b", null_draws=0, dtype="float64").compute(Context(*pair))
    back = ParameterAlignment("b", "a", null_draws=0, dtype="float64").compute(Context(*pair))
    np.testing.assert_allclose(forth.values, back.values.T, atol=1e-12)


def test_same_settings_give_the_same_bits_and_another_seed_another_null(pair):
    settings = ParameterAlignment("a", "b", null_draws=2)
    first, second = (settings.compute(Context(*pair)) for _ in range(2))
    for name in ("values", "null_mean", "null_sd"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert dataclasses.replace(settings, seed=1).compute(Context(*pair)).null_mean[0, 0] != first.null_mean[0, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group", "ff_values"),
        ("space", "feature"),
        ("score", "best_match"),
        ("centred", False),
        ("embedding", "input"),
        ("common", 1),
        ("dtype", "float64"),
        ("null_draws", 4),
    ],
)
def test_every_setting_changes_the_numbers(name, value):
    a, b = model("a", seed=1), model("b", seed=2)
    base = ParameterAlignment("a", "b", null_draws=2)
    other = dataclasses.replace(base, **{name: value})
    first, second = base.compute(Context(a, b)), other.compute(Context(a, b))
    changed = [k for k in ("values", "null_mean") if getattr(first, k).tobytes() != getattr(second, k).tobytes()]
    assert changed
    assert canonical(base, {}) != canonical(other, {})


def test_constant_vectors_are_left_out_with_a_notice_and_a_constant_layer_is_undefined():
    a, b = model("a", seed=1), model("b", seed=2)
    keys = a.anatomy.blocks[1].feed_forward.keys
    keys[:4] = 0
    a.anatomy.blocks[2].feed_forward.keys.zero_()
    result = ParameterAlignment("a", "b", null_draws=2, dtype="float64").compute(Context(a, b))
    assert result.vectors_a.tolist() == [10, 6, 0]
    assert np.isnan(result.values[2]).all()
    assert np.isfinite(result.values[:2]).all()
    e_a, e_b = a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    expected = np.abs(wide_correlations(keys[4:], b.anatomy.vectors("ff_keys", 0), e_a, e_b)).mean()
    assert result.values[1, 0] == pytest.approx(expected, abs=1e-10)
    assert any("14 of the FF keys are constant" in notice for notice in result.notices)
    for group in ("w_qk", "w_vo"):
        a.anatomy.blocks[0].attention.w_q[2] = 0
        a.anatomy.blocks[0].attention.w_o[2] = 0
        heads = ParameterAlignment("a", "b", group=group, null_draws=0).compute(Context(a, b))
        assert heads.vectors_a.tolist() == [3, 4, 4]
        assert np.isfinite(heads.values).all()


def test_special_tokens_do_not_enter():
    a, b = model("a", seed=1), model("b", seed=2)
    before = ParameterAlignment("a", "b", null_draws=0).compute(Context(a, b))
    a.anatomy.unembedding[:5] = 1e6
    after = ParameterAlignment("a", "b", null_draws=0).compute(Context(a, b))
    assert before.values.tobytes() == after.values.tobytes()
    assert before.tokens == V - 5


def test_progress_counts_up_to_its_total_and_partial_rows_are_real_rows(pair):
    context = Context(*pair)
    result = ParameterAlignment("a", "b", null_draws=2).compute(context)
    done = [report[0] for report in context.reports]
    assert done == sorted(done)
    assert done[-1] == context.reports[-1][1]
    partials = [report[3] for report in context.reports if report[3] is not None]
    assert len(partials) == 3
    np.testing.assert_array_equal(partials[0].values[0], result.values[0])
    assert np.isnan(partials[0].values[1:]).all()


def test_cancel_stops_within_one_layer(pair):
    context = Context(*pair, stop_after=2)
    with pytest.raises(Cancelled):
        ParameterAlignment("a", "b", null_draws=50).compute(context)
    assert len(context.reports) == 3


def test_models_of_different_width_say_why_there_is_no_control_and_refuse_feature_space(pair):
    result = ParameterAlignment("a", "b", null_draws=0).compute(Context(*pair))
    assert result.control is None
    assert any("8 and 11 wide and share no coordinates" in notice for notice in result.notices)
    with pytest.raises(Incomparable, match="8 and 11 wide; embedding space"):
        ParameterAlignment("a", "b", space="feature").compute(Context(*pair))


def test_a_group_that_a_model_lacks_is_named_with_what_it_has(pair):
    with pytest.raises(Incomparable, match=r"a \(test\) has no FF up-projections .*; it has FF keys"):
        ParameterAlignment("a", "b", group="ff_up").compute(Context(*pair))
    gated = model("a", gated=True), model("b", gated=True, seed=1)
    assert ParameterAlignment("a", "b", group="ff_up", null_draws=0).compute(Context(*gated)).values.shape == (3, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group": "ff_kyes"}, "Parameters cannot be 'ff_kyes'; choose one of ff_keys"),
        ({"null_draws": -1}, "smallest value is 0"),
        ({"null_draws": 10**9}, "largest value is 1000"),
        ({"null_draws": "many"}, "give a number"),
        ({"null_draws": float("nan")}, "give a number"),
        ({"null_draws": 2.5}, "whole number"),
        ({"null_draws": True}, "give a number"),
        ({"centred": "perhaps"}, "say true or false"),
        ({"seed": 2**40}, "largest value"),
        ({"model_a": "  "}, "Model A is empty"),
        ({"dtype": "float16"}, "choose one of float32, float64"),
        ({"space": ["embedding"]}, "give text"),
    ],
)
def test_bad_settings_are_one_clear_sentence(changes, words):
    with pytest.raises(SettingsError, match=words):
        ParameterAlignment.from_dict({"model_a": "a", "model_b": "b", **changes})


def test_unknown_and_missing_settings_are_named():
    with pytest.raises(SettingsError, match="no setting 'colour'"):
        ParameterAlignment.from_dict({"model_a": "a", "model_b": "b", "colour": 1})
    with pytest.raises(SettingsError, match="needs a value for model_b"):
        ParameterAlignment.from_dict({"model_a": "a"})


def test_settings_read_from_text_are_the_settings_themselves():
    text = {"model_a": "a", "model_b": "b", "null_draws": "3", "centred": "false", "seed": "7"}
    assert ParameterAlignment.from_dict(text) == ParameterAlignment("a", "b", null_draws=3, centred=False, seed=7)
    settings = ParameterAlignment("a", "b", group="w_o")
    assert ParameterAlignment.from_dict(settings.to_dict()) == settings
    assert settings.call() == ("embcompare.run(embcompare.ParameterAlignment(model_a='a', model_b='b', group='w_o'))")


def test_the_key_follows_content_not_names():
    settings = ParameterAlignment("a", "b")
    assert canonical(settings, {"a": "x", "b": "y"}) == canonical(ParameterAlignment("c", "d"), {"c": "x", "d": "y"})
    assert canonical(settings, {"a": "x", "b": "y"}) != canonical(settings, {"a": "y", "b": "x"})


def test_provenance_says_where_a_result_comes_from(pair):
    result = execute(ParameterAlignment("a", "b", null_draws=0), Context(*pair), {"a": "x", "b": "y"})
    assert result.provenance["models"] == {"a": "x", "b": "y"}
    assert result.provenance["settings"]["group"] == "ff_keys"
    assert result.provenance["device"] == "cpu"
    assert result.provenance["seconds"] >= 0
    assert set(result.provenance["software"]) == {"embcompare", "torch", "numpy", "transformers", "python"}


@pytest.mark.parametrize("settings", [ParameterAlignment("a", "b", null_draws=2), ParameterMatches("a", "b", 0, 1)])
def test_results_survive_being_taken_apart(pair, settings):
    result = settings.compute(Context(*pair))
    again = type(result).unpack(*result.pack())
    for item in dataclasses.fields(result):
        before, after = getattr(result, item.name), getattr(again, item.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
        else:
            assert before == after


def test_the_table_has_one_row_a_cell_and_the_same_numbers(pair):
    result = ParameterAlignment("a", "b", null_draws=2).compute(Context(*pair))
    table = result.to_frame()
    assert len(table) == 12
    row = table[(table.layer_a == 2) & (table.layer_b == 1)].iloc[0]
    assert row.value == result.values[2, 1]
    assert row.z == result.z[2, 1]
    assert np.isnan(row.control)
    assert table.assigned.sum() == 3


def test_matches_read_a_partner_of_negative_correlation_with_its_sign():
    a = model("a", width=16, inner=20, seed=5)
    b = turned(a, "b", [0, 1, 2])
    b.anatomy.blocks[1].feed_forward.values.neg_()
    matched = ParameterMatches("a", "b", layer_a=1, layer_b=1, group="ff_values", pairs=20).compute(Context(a, b))
    assert matched.correlation.max() < -0.999
    assert matched.tokens_a == matched.tokens_b
    assert len(matched.to_frame()) == 20


def test_matches_are_the_best_matching_strongest_first(pair):
    a, b = pair
    matched = ParameterMatches("a", "b", layer_a=0, layer_b=2, group="w_v", dtype="float64").compute(Context(a, b))
    rho = wide_correlations(
        a.anatomy.vectors("w_v", 0), b.anatomy.vectors("w_v", 2), a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    )
    assert matched.values.mean() == pytest.approx(plain_score("one_to_one", rho))
    np.testing.assert_allclose(matched.correlation, rho[matched.index_a, matched.index_b], atol=1e-10)
    assert (np.diff(np.abs(matched.correlation)) <= 1e-12).all()


def plain_matched(rho):
    from scipy.optimize import linear_sum_assignment

    return np.abs(rho)[linear_sum_assignment(np.abs(rho), maximize=True)]


@pytest.mark.parametrize("space", ["embedding", "feature"])
def test_the_null_of_matches_is_the_same_matching_under_permutations(space):
    a, b = model("a", width=8, seed=1), model("b", width=8, layers=4, seed=2)
    settings = ParameterMatches("a", "b", 0, 2, space=space, null_draws=4, seed=3, dtype="float64")
    context = Context(a, b)
    result = settings.compute(context)
    generator = torch.Generator().manual_seed(3)
    x, y = a.anatomy.vectors("ff_keys", 0), b.anatomy.vectors("ff_keys", 2)
    e_a, e_b = (m.anatomy.unembedding[5:] if space == "embedding" else torch.eye(8).double() for m in (a, b))
    draws = [
        plain_matched(wide_correlations(x, y, e_a, e_b, torch.randperm(len(e_a), generator=generator)))
        for _ in range(4)
    ]
    np.testing.assert_allclose(result.null_median, [np.median(each) for each in draws], atol=1e-10)
    np.testing.assert_allclose(result.null_strongest, [each.max() for each in draws], atol=1e-10)
    beyond = plain_matched(wide_correlations(x, y, e_a, e_b)) > max(each.max() for each in draws)
    assert result.beyond_null == beyond.mean()
    told = {0: "none of the 10", 10: "all 10"}.get(beyond.sum(), f"{beyond.sum()} of the 10")
    assert any(f"; {told} matched pairs here" in notice for notice in result.notices)
    assert [report[:2] for report in context.reports] == [(k, 7) for k in range(7)]
    assert list(result.to_frame().columns)[:3] == ["index_a", "index_b", "correlation"]
    assert len(result.to_frame().columns) == 8
    without = dataclasses.replace(settings, null_draws=0).compute(context)
    assert without.null_median is without.null_strongest is None
    assert np.isnan(without.beyond_null)
    assert without.values.tobytes() == result.values.tobytes()
    assert not any("permuted" in notice for notice in without.notices)


def test_the_null_of_wide_layers_is_matched_by_best_partners_as_they_are(pair, monkeypatch):
    monkeypatch.setattr("embcompare.experiments.matches.EXACT_MATCHING", 3)
    a, b = pair
    result = ParameterMatches("a", "b", 0, 0, null_draws=2, seed=1, dtype="float64").compute(Context(a, b))
    generator = torch.Generator().manual_seed(1)
    x, y = a.anatomy.vectors("ff_keys", 0), b.anatomy.vectors("ff_keys", 0)
    e_a, e_b = a.anatomy.unembedding[5:], b.anatomy.unembedding[5:]
    for draw in range(2):
        order = torch.randperm(V - 5, generator=generator)
        rho = np.abs(wide_correlations(x, y, e_a, e_b, order))
        best = [rho[i, j] for i in range(10) for j in range(10) if rho[i, j] == rho[i].max() == rho[:, j].max()]
        assert result.null_median[draw] == pytest.approx(np.median(best), abs=1e-10)
        assert result.null_strongest[draw] == pytest.approx(max(best), abs=1e-10)
    assert sum("each other's best partner" in notice for notice in result.notices) == 1


def test_matches_of_one_function_in_two_bases_are_beyond_their_null():
    a = model("a", width=16, inner=20, seed=5)
    result = ParameterMatches("a", "b", 1, 1, group="ff_values").compute(Context(a, turned(a, "b", [0, 1, 2])))
    assert result.beyond_null == 1.0
    assert any("; all 20 matched pairs here are stronger than that." in notice for notice in result.notices)
    assert result.null_strongest.max() < 0.9
    assert result.shared_chance < 0.2
    np.testing.assert_allclose(result.shared_tokens, 1.0)
    assert ParameterMatches("a", "b", 0, 0).null_draws == 5


def test_the_chance_of_shared_tokens_is_the_mean_over_wrong_partners(pair):
    result = ParameterMatches("a", "b", 0, 1, top=60, null_draws=0).compute(Context(*pair))

    def jaccard(i, j):
        own = {(0, t) for t in result.tokens_a[i]} | {(1, t) for t in result.bottom_a[i]}
        other = {(0, t) for t in result.tokens_b[j]} | {(1, t) for t in result.bottom_b[j]}
        return len(own & other) / len(own | other)

    k = len(result.index_a)
    table = np.array([[jaccard(i, j) for j in range(k)] for i in range(k)])
    np.testing.assert_allclose(result.shared_tokens, np.diag(table))
    assert result.shared_chance == pytest.approx(table[~np.eye(k, dtype=bool)].mean())
    assert result.shared_chance > 0
    one = ParameterMatches("a", "b", 0, 1, pairs=1, null_draws=0).compute(Context(*pair))
    assert np.isnan(one.shared_chance)
    nothing = overlaps_of([((), ()), (("x",), ())], [((), ()), (("x",), ("x",))])
    np.testing.assert_allclose(nothing, [[np.nan, 0.0], [0.0, 0.5]])


@pytest.mark.parametrize("group", ["w_qk", "w_vo"])
def test_heads_have_a_null_too(pair, group):
    result = ParameterMatches("a", "b", 0, 0, group=group, null_draws=2).compute(Context(*pair))
    assert result.null_median.shape == result.null_strongest.shape == (2,)
    assert (result.null_median <= result.null_strongest).all()


def test_top_tokens_are_those_of_the_largest_projection_without_special_ones(pair):
    a, b = pair
    matched = ParameterMatches("a", "b", layer_a=0, layer_b=0, top=7, pairs=1).compute(Context(a, b))
    projection = a.anatomy.unembedding @ a.anatomy.vectors("ff_keys", 0)[int(matched.index_a[0])]
    projection[:5] = -np.inf
    expected = [f"w{k}" for k in projection.argsort(descending=True)[:7].tolist()]
    assert [token.lstrip("#") for token in matched.tokens_a[0]] == expected


def test_more_tokens_than_the_vocabulary_lists_all_and_more_pairs_than_vectors_lists_all(pair):
    matched = ParameterMatches("a", "b", layer_a=0, layer_b=0, top=100, pairs=500).compute(Context(*pair))
    assert len(matched.index_a) == 10
    assert len(matched.tokens_a[0]) == 100


@pytest.mark.parametrize("group", ["w_qk", "w_vo"])
def test_heads_are_read_through_their_leading_direction(group):
    a = model("a", width=16, seed=6)
    result = ParameterMatches("a", "a", layer_a=1, layer_b=1, group=group, top=4).compute(Context(a))
    assert isinstance(result, ParameterMatchesResult)
    assert (result.index_a == result.index_b).all()
    np.testing.assert_allclose(result.correlation, 1, atol=1e-5)
    assert all(row[2] == "→" and len(row) == 5 for row in result.tokens_a)


def test_leading_directions_are_those_of_the_dense_matrix():
    left, right = gaussian(3, 4, 9, seed=1), gaussian(3, 4, 9, seed=2)
    reads, writes = leading_directions(left, right)
    for head in range(3):
        u, _, vh = torch.linalg.svd(left[head].T @ right[head])
        assert abs(float(u[:, 0] @ reads[head].double())) == pytest.approx(1, abs=1e-6)
        assert float(u[:, 0] @ reads[head].double()) * float(vh[0] @ writes[head].double()) == pytest.approx(
            1, abs=1e-6
        )


def test_wide_layers_are_matched_by_mutual_best_partners_and_say_so(monkeypatch):
    monkeypatch.setattr("embcompare.experiments.matches.EXACT_MATCHING", 3)
    strength = np.array([[0.9, 0.1, 0.0, 0.2], [0.8, 0.3, 0.1, 0.0], [0.0, 0.0, 0.7, 0.1], [0.1, 0.6, 0.2, 0.0]])
    rows, columns, notes = match_vectors(strength)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 0), (2, 2), (3, 1)]
    assert "each other's best partner" in notes[0]


def test_a_layer_that_does_not_exist_is_named_with_those_that_do(pair):
    with pytest.raises(SettingsError, match=r"Model B \(b\) has no layer 4; its layers are 0 to 3"):
        ParameterMatches("a", "b", layer_a=0, layer_b=4).compute(Context(*pair))


def test_every_group_has_a_name_for_people():
    assert set(GROUPS) == {"ff_keys", "ff_up", "ff_values", "w_q", "w_k", "w_v", "w_o", "w_qk", "w_vo"}
    assert issubclass(ParameterAlignment.result_type, ParameterAlignmentResult)
