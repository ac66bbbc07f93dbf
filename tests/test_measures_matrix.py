"""Whole layer matrices and streams against the one-pair formula in float64."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import embcompare.measures as measures
from embcompare.errors import EmbcompareWarning, SettingsError
from embcompare.measures import MEASURES, BadInput, StreamingPair, layer_matrix
from embcompare.measures import cka_matrix as cka_module
from embcompare.measures.cka_matrix import cka_matrix
from tests.golden.make_measures import plain_cka

SIDES = ["features", "samples"]


def chain(n, widths, seed=0, offset=0.0, outlier=1.0):
    """Layers that grow out of one another, in float32, with an offset and one wide dimension."""
    rng = np.random.default_rng(seed)
    layers, state = [], rng.standard_normal((n, widths[0]))
    for width in widths:
        state = np.tanh(state @ rng.standard_normal((state.shape[1], width)) / 3) + 0.5 * rng.standard_normal(
            (n, width)
        )
        layer = state + offset
        layer[:, 0] *= outlier
        layers.append(layer.astype(np.float32))
    return layers


def plain(layers_a, layers_b, debiased):
    kernels = [[z.astype(np.float64) @ z.astype(np.float64).T for z in layers] for layers in (layers_a, layers_b)]
    return np.array([[plain_cka(k, l, debiased) for l in kernels[1]] for k in kernels[0]])  # noqa: E741


@pytest.mark.parametrize("debiased", [True, False])
@pytest.mark.parametrize("side", [*SIDES, "auto"])
@pytest.mark.parametrize(("n", "widths"), [(300, (48, 32, 40)), (60, (128, 96, 200)), (4, (6, 3, 8)), (200, (4, 2, 1))])
def test_cka_matrix_is_within_1e_minus_6_of_the_float64_formula(side, debiased, n, widths):
    layers_a, layers_b = chain(n, widths, outlier=20.0), chain(n, widths[:2], seed=1)
    layers_b.append(layers_a[1] + np.float32(0.1) * layers_a[1][::-1])
    result = cka_matrix(layers_a, layers_b, side=side, debiased=debiased, dtype=torch.float32)
    np.testing.assert_allclose(result.values, plain(layers_a, layers_b, debiased), atol=1e-6)
    assert result.reasons == {}
    own = cka_matrix(layers_a, layers_a, side=side, debiased=debiased, dtype=torch.float32)
    np.testing.assert_allclose(own.values, plain(layers_a, layers_a, debiased), atol=1e-6)
    np.testing.assert_allclose(np.diag(own.values), 1.0, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_cka_matrix_at_a_realistic_width_keeps_its_digits(side):
    # an offset, a dimension that holds nearly all variance in one layer and a sample that holds it in another
    layers = [*chain(900, (192, 192), offset=30.0), *chain(900, (192, 192), outlier=50.0)]
    layers[1][17] *= 300
    expected = [[measures.linear_cka(a, b) for b in layers] for a in layers]
    result = cka_matrix(layers, list(layers), side=side, dtype=torch.float32)
    np.testing.assert_allclose(result.values, expected, atol=1e-6)
    np.testing.assert_allclose(cka_matrix(layers, layers, side=side, dtype=torch.float64).values, expected, atol=1e-12)


@pytest.mark.parametrize("side", SIDES)
def test_trap_scales_far_apart_give_the_same_matrix(side):
    layers = chain(80, (10, 12))
    scaled = [layers[0] * np.float32(1e6), layers[1] * np.float32(1e-6)]
    np.testing.assert_allclose(cka_matrix(scaled, layers, side=side).values, plain(layers, layers, True), atol=1e-6)
    extreme = [layers[0].astype(np.float64) * 1e150, layers[1] * np.float32(1e-30)]
    np.testing.assert_allclose(cka_matrix(extreme, layers, side=side).values, plain(layers, layers, True), atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_trap_rows_are_the_layers_of_a_in_the_order_given(side):
    layers_a, layers_b = chain(50, (5, 6, 7)), chain(50, (4, 8), seed=1)
    forth = cka_matrix(layers_a, layers_b, side=side).values
    assert forth.shape == (3, 2)
    back = cka_matrix(layers_a[::-1], layers_b[::-1], side=side).values
    np.testing.assert_allclose(back, forth[::-1, ::-1], atol=1e-7)
    np.testing.assert_allclose(cka_matrix(layers_b, layers_a, side=side).values, forth.T, atol=1e-7)


@pytest.mark.parametrize("side", SIDES)
def test_cka_matrix_with_small_kernel_blocks_is_the_same(side, monkeypatch):
    layers = chain(53, (5, 6, 7))
    expected = cka_matrix(layers, layers[:2], side=side).values
    monkeypatch.setattr(cka_module, "KERNEL_BYTES", 4 * 5 * 53 * 10)
    np.testing.assert_allclose(cka_matrix(layers, layers[:2], side=side).values, expected, atol=1e-7)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("debiased", [True, False])
def test_reading_by_small_blocks_of_rows_and_of_columns_gives_the_same(side, debiased, monkeypatch):
    layers = chain(53, (5, 6, 7), offset=30.0, outlier=20.0)
    layers[1][17] *= 300
    other = chain(53, (9, 1), seed=1)
    expected = plain(layers, other, debiased)
    monkeypatch.setattr(cka_module, "BLOCK_ENTRIES", 21)
    monkeypatch.setattr(cka_module, "OWN_COLUMNS", 3)
    for dtype in (torch.float32, torch.float64):
        result = cka_matrix(layers, other, side=side, debiased=debiased, dtype=dtype)
        np.testing.assert_allclose(result.values, expected, atol=1e-6 if dtype is torch.float32 else 1e-12)


@pytest.mark.parametrize("side", SIDES)
def test_heavy_samples_beyond_those_that_are_set_apart_cost_no_digits(side, monkeypatch):
    # more heavy samples than may be set apart, some of them in one layer only
    layers = chain(700, (40, 40), offset=5.0)
    layers[0][::140] *= 500
    layers[1][1::175] *= 2000
    expected = [[measures.linear_cka(a, b) for b in layers] for a in layers]
    for most in (64, 3, 0):
        monkeypatch.setattr(cka_module, "MOST_HEAVY", most)
        result = cka_matrix(layers, list(layers), side=side, dtype=torch.float32)
        np.testing.assert_allclose(result.values, expected, atol=1e-6)


def test_threads_do_not_change_a_bit_of_the_features():
    layers = chain(900, (48, 32, 40), offset=3.0)
    layers[1][17] *= 300
    threads, made = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            moments, reasons = cka_module._read(layers)
            heavy = cka_module._heavy_samples(list(moments.values()), 900)
            made.append(cka_module._prepare(layers, moments, reasons, heavy, torch.float32, "cpu"))
    finally:
        torch.set_num_threads(threads)
    for name in ("features", "squares", "sums", "heavy"):
        assert torch.equal(getattr(made[0], name), getattr(made[1], name))
    assert made[0].heavy.shape[1] == 1


def test_the_layers_given_stay_as_they_are_whatever_their_kind():
    given = np.random.default_rng(0).integers(-9, 9, (40, 5))
    expected = cka_matrix([given.astype(np.float64)], [given[:, ::-1].astype(np.float64) ** 2]).values
    kinds = [given, given.astype(np.int8), given.astype(np.float16), given.astype(">f4"), given.astype(np.longdouble)]
    kinds += [np.asfortranarray(given), np.repeat(given, 2, axis=0)[::2], torch.from_numpy(given)]
    for kind in kinds:
        before = kind.clone() if isinstance(kind, torch.Tensor) else kind.copy()
        if isinstance(kind, np.ndarray):
            kind.flags.writeable = False
        result = cka_matrix([kind], [given[:, ::-1].astype(np.float32) ** 2])
        np.testing.assert_allclose(result.values, expected, atol=1e-12)
        assert bool((kind == before).all())
    with torch.inference_mode():
        watched = torch.from_numpy(given.astype(np.float32)).requires_grad_()
        np.testing.assert_allclose(cka_matrix([watched], [given**2]).values, cka_matrix([given], [given**2]).values)


@pytest.mark.parametrize("value", [0.1, 1e200, 1e-200, 12345.678])
def test_a_layer_of_many_equal_rows_is_constant_at_any_scale(value):
    flat = np.full((30_000, 2), value)
    result = cka_matrix([flat], [np.random.default_rng(0).standard_normal((30_000, 2))])
    assert "constant" in result.reasons[0, 0]


@pytest.mark.parametrize("side", [*SIDES, "auto"])
@pytest.mark.parametrize("same", [True, False])
def test_a_constant_layer_is_a_row_of_nan_with_its_reason_and_spoils_no_other(side, same):
    layers = chain(40, (5, 6, 7))
    layers[1] = np.full((40, 6), 2.5, dtype=np.float32)
    other = layers if same else list(layers)
    result = cka_matrix(layers, other, side=side)
    assert np.isnan(result.values[1]).all()
    assert np.isnan(result.values[:, 1]).all()
    kept = np.ix_([0, 2], [0, 2])
    np.testing.assert_allclose(
        result.values[kept], plain([layers[0], layers[2]], [layers[0], layers[2]], True), atol=1e-6
    )
    assert set(result.reasons) == {(i, j) for i in range(3) for j in range(3) if 1 in (i, j)}
    assert "layer 1 of A: the layer is constant" in result.reasons[1, 0]
    assert "layer 1 of B" in result.reasons[0, 1]


def test_orthonormal_samples_and_too_few_samples_have_reasons_too():
    result = cka_matrix([np.eye(8), chain(8, (3,))[0]], [chain(8, (3,))[0]])
    assert np.isnan(result.values[0, 0])
    assert "equally similar" in result.reasons[0, 0]
    assert np.isnan(cka_matrix([np.eye(8)], [chain(8, (3,))[0]], dtype=torch.float32).values).all()
    assert np.isfinite(result.values[1, 0])
    few = cka_matrix(chain(3, (3, 4)), chain(3, (3,)))
    assert np.isnan(few.values).all()
    assert all("at least 4 samples" in reason for reason in few.reasons.values())
    assert np.isfinite(cka_matrix(chain(3, (3, 4)), chain(3, (3,)), debiased=False).values).all()


def test_cka_matrix_of_constant_layers_only_is_all_nan():
    flat = [np.ones((9, 3)), np.zeros((9, 2))]
    assert np.isnan(cka_matrix(flat, flat).values).all()
    assert len(cka_matrix(flat, chain(9, (3,))).reasons) == 2


def test_cka_matrix_refuses_what_is_malformed():
    layers = chain(20, (3, 4))
    with pytest.raises(BadInput, match="one has 20 and another 19"):
        cka_matrix(layers, [layers[0][:19]])
    with pytest.raises(BadInput, match="1 of 20 rows of A layer"):
        cka_matrix([np.where(np.arange(20)[:, None] == 2, np.nan, layers[0])], layers)
    with pytest.raises(BadInput, match="no layer"):
        cka_matrix([], [])
    with pytest.raises(SettingsError, match="side"):
        cka_matrix(layers, layers, side="both")
    with pytest.raises(SettingsError, match="dtype"):
        cka_matrix(layers, layers, dtype=torch.bfloat16)
    with pytest.raises(BadInput, match="real array"):
        cka_matrix([layers[0].astype(str)], layers)


def test_cka_matrix_reads_torch_of_any_precision_and_memory_maps(tmp_path):
    layers = chain(60, (5, 6))
    expected = cka_matrix(layers, layers).values
    path = tmp_path / "layer.npy"
    np.save(path, layers[0])
    mapped = [np.load(path, mmap_mode="r"), torch.from_numpy(layers[1])]
    np.testing.assert_allclose(cka_matrix(mapped, layers).values, expected, atol=1e-7)
    half = [torch.from_numpy(layer).bfloat16() for layer in layers]
    rounded = [layer.float().numpy() for layer in half]
    np.testing.assert_allclose(cka_matrix(half, half).values, plain(rounded, rounded, True), atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_progress_rises_to_one_and_may_stop_the_work(side):
    told = []
    cka_matrix(chain(60, (5, 6, 7)), chain(60, (5, 6)), side=side, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cka_matrix(chain(60, (5, 6, 7)), chain(60, (5, 6)), side=side, progress=stop)


@pytest.mark.parametrize("name", MEASURES)
def test_layer_matrix_is_the_public_function_cell_by_cell(name):
    layers_a, layers_b = chain(60, (6, 6, 6)), chain(60, (6, 6), seed=1)
    measure = MEASURES[name]
    result = layer_matrix(measure, layers_a, layers_b)
    expected = [[measure(a, b) for b in layers_b] for a in layers_a]
    np.testing.assert_allclose(result.values, expected, atol=1e-6)
    own = layer_matrix(measure, layers_a, layers_a)
    np.testing.assert_allclose(own.values, [[measure(a, b) for b in layers_a] for a in layers_a], atol=1e-6)


@pytest.mark.parametrize("name", ["rsa", "cca", "mutual_knn", "regression_r2", "linear_cka"])
def test_layer_matrix_keeps_going_past_an_undefined_layer(name):
    layers = chain(60, (6, 6, 6))
    layers[2] = np.ones((60, 6))
    told = []
    result = layer_matrix(MEASURES[name], layers, layers, progress=told.append)
    assert np.isfinite(result.values[:2, :2]).all()
    assert np.isnan(result.values[2]).all()
    assert set(result.reasons) == {(i, j) for i in range(3) for j in range(3) if 2 in (i, j)}
    assert told


def test_layer_matrix_gives_cell_reasons_where_only_the_pair_is_undefined():
    wide, narrow = chain(20, (18,))[0], chain(20, (3,))[0]
    result = layer_matrix(MEASURES["regression_r2"], [wide, narrow], [narrow, wide])
    assert np.isnan(result.values[0]).all()
    assert np.isfinite(result.values[1]).all()
    assert "use ridge" in result.reasons[0, 0]
    with pytest.raises(BadInput, match="same samples"):
        layer_matrix(MEASURES["rsa"], [narrow], [narrow[:10]])


def test_layer_matrix_passes_options():
    layers = chain(60, (6, 6))
    assert layer_matrix(MEASURES["mutual_knn"], layers, layers, k=3).values[0, 1] == pytest.approx(
        measures.mutual_knn(*layers, k=3)
    )


# ------------------------------------------------------------------ streams


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 59), max_size=8), log=st.floats(-4, 4))
@settings(deadline=None, max_examples=40)
def test_any_split_into_batches_gives_the_one_shot_value(seed, cuts, log):
    x, y = (layer.astype(np.float64) * 10**log for layer in chain(60, (5, 7), seed=seed, offset=4.0))
    stream = StreamingPair()
    for rows in np.split(np.arange(60), sorted(set(cuts))):
        stream.partial_fit(x[rows], y[rows])
    assert stream.n == 60
    assert stream.linear_cka() == pytest.approx(measures.linear_cka(x, y), abs=1e-10)
    assert stream.linear_cka(debiased=False) == pytest.approx(measures.linear_cka(x, y, debiased=False), abs=1e-10)
    assert stream.procrustes() == pytest.approx(measures.procrustes(x, y), abs=1e-9)
    assert stream.cca() == pytest.approx(measures.cca(x, y), abs=1e-9)
    assert stream.cca(summary="r2") == pytest.approx(measures.cca(x, y, summary="r2"), abs=1e-9)


def test_trap_300_batches_of_very_different_scale_stay_finite_and_equal_the_one_shot_value():
    x, y = chain(300 * 16, (12, 9))
    x, y = x.astype(np.float64) * 1e4, y.astype(np.float64) * 1e-4
    stream = StreamingPair()
    for start in range(0, len(x), 16):
        stream.partial_fit(x[start : start + 16], y[start : start + 16])
    for debiased in (True, False):
        value = stream.linear_cka(debiased=debiased)
        assert np.isfinite(value)
        assert value == pytest.approx(measures.linear_cka(x, y, debiased=debiased), abs=1e-12)


def test_trap_last_batch_does_not_replace_those_before_and_a_trailing_row_of_two_or_one_counts():
    x, y = chain(35, (4, 5))
    stream, prefixes = StreamingPair(), []
    for rows in (slice(0, 16), slice(16, 32), slice(32, 34), slice(34, 35)):
        stream.partial_fit(x[rows], y[rows])
        prefixes.append(stream.linear_cka())
        assert prefixes[-1] == pytest.approx(measures.linear_cka(x[: rows.stop], y[: rows.stop]), abs=1e-12)
    assert len({round(value, 9) for value in prefixes}) == 4
    assert stream.partial_fit(x[:0], y[:0]).linear_cka() == prefixes[-1]


def test_streams_merge_in_any_order():
    x, y = chain(50, (4, 5), offset=100.0)
    parts = [StreamingPair().partial_fit(x[rows], y[rows]) for rows in (slice(0, 7), slice(7, 30), slice(30, 50))]
    forth, back = StreamingPair(), StreamingPair()
    for part in parts:
        forth.merge(part)
    for part in parts[::-1]:
        back.merge(part)
    expected = measures.linear_cka(x, y)
    assert forth.linear_cka() == pytest.approx(expected, abs=1e-10)
    assert back.linear_cka() == pytest.approx(expected, abs=1e-10)
    assert parts[0].n == 7


def test_a_first_batch_unlike_the_rest_costs_no_digits():
    x, y = chain(2000, (4, 5))
    x, y = x.astype(np.float64), y.astype(np.float64)
    x[:3] += 1e5
    stream = StreamingPair()
    for rows in (slice(0, 3), slice(3, 500), slice(500, 2000)):
        stream.partial_fit(x[rows], y[rows])
    assert stream.linear_cka() == pytest.approx(measures.linear_cka(x, y), abs=1e-10)


def test_undefined_streams_say_why():
    stream = StreamingPair()
    for call in (stream.linear_cka, stream.procrustes, stream.cca):
        with pytest.warns(EmbcompareWarning, match="and there are 0"):
            assert np.isnan(call())
    stream.partial_fit(np.full((10, 3), 0.1), chain(10, (4,))[0])
    stream.partial_fit(np.full((10, 3), 0.1), chain(10, (4,), seed=1)[0])
    for call in (stream.linear_cka, stream.procrustes, stream.cca):
        with pytest.warns(EmbcompareWarning, match="constant"):
            assert np.isnan(call())


def test_streams_refuse_unpaired_batches_and_a_change_of_width():
    stream = StreamingPair().partial_fit(*chain(10, (3, 4)))
    with pytest.raises(BadInput, match="samples"):
        stream.partial_fit(np.ones((5, 3)), np.ones((4, 4)))
    with pytest.raises(BadInput, match="wide"):
        stream.partial_fit(np.ones((5, 4)), np.ones((5, 4)))


def test_memory_of_a_stream_does_not_grow_with_its_samples():
    x, y = chain(64, (8, 8))

    def peak(batches):
        tracemalloc.start()
        stream = StreamingPair()
        for _ in range(batches):
            stream.partial_fit(x, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(40) < 1.5 * peak(4)
