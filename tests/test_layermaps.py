"""Fitted maps as files: the experiment's numbers, bound to the weights they were fitted on, and nothing trusted."""

import dataclasses
import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.metrics import r2_score

import embcompare
from embcompare.errors import Cancelled, EmbcompareError, InputError, SettingsError, StoreError
from embcompare.experiments.bijection_fits import digest_of
from embcompare.experiments.bijection_rows import FeatureRows, prepared
from embcompare.experiments.sides import read_pair
from embcompare.layermaps import LayerMap, MapMismatch, fit_layer_map, load_layer_map
from embcompare.maps import MAPS
from embcompare.running import RunContext
from embcompare.store import Store

TWINS = ("demo/gpt2-a", "demo/gpt2-b", 2, 3)
QUICK = {"max_rows": 700, "epochs": 3, "downstream": 0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("results"))


def bijection(maps, **more):
    return embcompare.Bijection(*TWINS, maps=maps, **{**QUICK, **more})


@pytest.fixture(scope="module")
def rows(store):
    """The layers as they are, and which rows are for test."""
    asked = bijection("ridge")
    pair = read_pair(FeatureRows.of(asked), RunContext("cpu", store=store), only=(2, 3))
    return pair.a.layers[0], pair.b.layers[0], prepared(pair, asked).split.test.numpy()


@pytest.fixture(scope="module")
def ridge(store):
    return fit_layer_map(bijection("ridge"), store=store)


def edited(path, change, **metadata):
    with safe_open(path, "numpy") as file:
        held = file.metadata()
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path, {**held, **metadata})


@pytest.mark.parametrize("name", sorted(MAPS))
def test_every_map_comes_back_from_its_file_to_the_bit(name, store, rows, tmp_path):
    path = tmp_path / "map.safetensors"
    fitted = fit_layer_map(bijection(name), name, store=store)
    fitted.save(path)
    again = load_layer_map(path, *TWINS[:2])
    assert np.array_equal(again.transform(rows[0]), fitted.transform(rows[0]))
    assert again.pair == fitted.pair
    assert again.map.options == fitted.map.options
    assert again.invertible == fitted.invertible


@pytest.mark.parametrize("name", ["ridge", "orthogonal", "inn", "mlp"])
def test_it_is_the_map_that_the_experiment_scored(name, store, rows):
    x, y, test = rows
    fitted = fit_layer_map(bijection(name), store=store)
    scored = embcompare.run(bijection(name), store=store)
    assert fitted.pair.r2 == scored.mean(name, "r2")
    spread = y[np.setdiff1d(np.arange(len(y)), test)].std(0)
    own = r2_score(y[test] / spread, fitted.transform(x[test]) / spread, multioutput="variance_weighted")
    assert own == pytest.approx(scored.mean(name, "r2"), abs=0.01)  # the scaling is of the training rows alone


def test_units_are_the_models_own_and_the_way_back_leads_back(ridge, rows):
    x, y, _ = rows
    mapped = ridge.transform(x)
    assert mapped.shape == y.shape
    assert mapped.dtype == np.float32
    assert np.abs(mapped.mean(0) - y.mean(0)).max() < 0.2 * y.std()
    wide = x.astype(np.float64)
    assert np.abs(ridge.inverse_transform(ridge.transform(wide)) - wide).max() < 1e-6 * np.abs(wide).max()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3))
def test_a_linear_map_is_affine_in_the_models_units(ridge, seed, share):
    first, second = np.random.default_rng(seed).normal(size=(2, 5, ridge.map.width_a))
    mixed = ridge.transform(share * first + (1 - share) * second)
    apart = share * ridge.transform(first) + (1 - share) * ridge.transform(second)
    assert np.allclose(mixed, apart, atol=1e-8 * (1 + abs(share)) * np.abs(apart).max())


def test_other_weights_are_refused_and_the_same_under_another_name_are_not(ridge, tmp_path):
    from embcompare.demo import weights_folder

    path = tmp_path / "map.safetensors"
    ridge.save(path)
    with pytest.raises(MapMismatch, match="demo/gpt2-b has other weights"):
        load_layer_map(path, model_a="demo/gpt2-b")
    with pytest.raises(MapMismatch, match="as model B"):
        load_layer_map(path, model_b="demo/gpt2-a")
    load_layer_map(path, model_a=str(weights_folder("gpt2-a")))


def test_runs_of_a_network_differ_by_their_seed(store, rows):
    asked = bijection("inn", runs=2)
    first, second = (fit_layer_map(asked, run=run, store=store) for run in (0, 1))
    assert first.map.seed + 1 == second.map.seed
    assert not np.array_equal(first.transform(rows[0]), second.transform(rows[0]))
    with pytest.raises(SettingsError, match="no run 2; they are 0 to 1"):
        fit_layer_map(asked, run=2, store=store)
    with pytest.raises(SettingsError, match="closed form"):
        fit_layer_map(bijection("ridge", runs=2), run=1, store=store)


def test_a_map_must_be_named_where_there_are_several_and_exist(store):
    with pytest.raises(SettingsError, match="Say which map: ridge, inn"):
        fit_layer_map(bijection("ridge, inn"), store=store)
    with pytest.raises(SettingsError, match="no map 'spline'"):
        fit_layer_map(bijection("ridge"), "spline", store=store)


def test_progress_is_told_and_a_stopped_fit_is_taken_up(store, tmp_path):
    asked, stop, steps = bijection("mlp", epochs=6, seed=7), threading.Event(), []

    def halfway(step):
        steps.append(step.message)
        if "epoch 3" in step.message:
            stop.set()

    with pytest.raises(Cancelled):
        fit_layer_map(asked, progress=halfway, cancel=stop, store=store)
    again = []
    stopped = fit_layer_map(asked, progress=lambda step: again.append(step.message), store=store)
    assert any("epoch 1 " in each for each in steps)
    assert not any("epoch 1 " in each for each in again)
    whole = fit_layer_map(asked, store=Store(tmp_path / "other"))
    x = np.random.default_rng(0).normal(size=(9, whole.map.width_a)).astype(np.float32)
    assert np.array_equal(whole.transform(x), stopped.transform(x))


def test_without_standardising_features_keep_their_scale(store, rows):
    fitted = fit_layer_map(bijection("orthogonal", standardise=False), store=store)
    x = rows[0].astype(np.float64)
    lengths = np.linalg.norm(np.diff(fitted.transform(x), axis=0), axis=1)
    assert np.allclose(lengths, np.linalg.norm(np.diff(x, axis=0), axis=1))


@pytest.mark.parametrize("name", ["layer_scale_a", "layer_mean_b", "matrix"])
def test_a_changed_number_is_noticed(name, ridge, tmp_path):
    path = tmp_path / "map.safetensors"
    ridge.save(path)

    def change(arrays):
        arrays[name] = arrays[name] * 1.5 + 1

    edited(path, change)
    with pytest.raises(InputError, match="does not fit its digest"):
        load_layer_map(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("layer_scale_a"),
        lambda arrays: arrays.update(layer_scale_b=-arrays["layer_scale_b"]),
        lambda arrays: arrays.update(layer_mean_a=arrays["layer_mean_a"][:3]),
        lambda arrays: arrays.update(layer_mean_a=arrays["layer_mean_a"] * np.nan),
        lambda arrays: arrays.pop("matrix"),
        lambda arrays: arrays.update(matrix=arrays["matrix"][:5]),
        lambda arrays: arrays.update(matrix=arrays["matrix"] * np.inf),
    ],
)
def test_a_file_signed_by_somebody_else_is_read_strictly_all_the_same(change, ridge, tmp_path):
    path = tmp_path / "map.safetensors"
    ridge.save(path)
    with safe_open(path, "numpy") as file:
        text = file.metadata()["embcompare_map"]
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path, {"embcompare_map": text, "sha256": digest_of(arrays, text)})
    with pytest.raises(InputError):
        load_layer_map(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "map": [], "pair": {"model_a": "x"}}',
        "[]",
        "{}",
        "null",
        '"x"',
        '{"format": 9}',
        '{"format": 1, "map": {}, "pair": {"model_a": "x"}}',
        "{",
    ],
)
def test_a_description_that_is_none_is_refused(text, ridge, tmp_path):
    path = tmp_path / "map.safetensors"
    ridge.save(path)
    arrays = load_file(path)
    save_file(arrays, path, {"embcompare_map": text, "sha256": digest_of(arrays, text)})
    with pytest.raises(InputError):
        load_layer_map(path)


def test_files_of_other_kinds_are_told_apart(tmp_path):
    for name, content in (("empty", b""), ("text", b"hello"), ("short", (10**9).to_bytes(8, "little") + b"{}")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is not a map that embcompare saved"):
            load_layer_map(tmp_path / name)
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is not a map"):
        load_layer_map(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="There is no file"):
        load_layer_map(tmp_path / "nothing")
    with pytest.raises(InputError, match="is no file"):
        load_layer_map(tmp_path)
    for nothing in (None, "", 3):
        with pytest.raises(InputError, match="takes the path of a file"):
            load_layer_map(nothing)


def test_what_cannot_be_fitted_or_mapped_is_one_sentence(ridge, store):
    with pytest.raises(SettingsError, match="takes settings of a Bijection"):
        fit_layer_map(embcompare.MapPairs(*TWINS[:2]), "ridge", store=store)
    with pytest.raises(SettingsError, match="number of a run"):
        fit_layer_map(bijection("ridge"), run="0", store=store)
    rows = np.zeros((3, ridge.map.width_a), dtype=np.float32)
    rows[1, 2] = np.nan
    with pytest.raises(InputError, match="Row 1 to map holds NaN"):
        ridge.transform(rows)


def test_where_it_cannot_be_written_nothing_is_left(ridge, tmp_path):
    with pytest.raises(StoreError, match="there is no folder"):
        ridge.save(tmp_path / "absent" / "map.safetensors")
    with pytest.raises(StoreError, match="it is a folder"):
        ridge.save(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_file_says_what_it_is_of_without_being_loaded(ridge, tmp_path):
    path = tmp_path / "map.safetensors"
    ridge.save(path)
    with safe_open(path, "numpy") as file:
        described = json.loads(file.metadata()["embcompare_map"])
    assert described["pair"] == dataclasses.asdict(ridge.pair)
    assert described["pair"]["name_a"] == "block 2"
    assert len(described["pair"]["weights_a"]) == 64
    assert described["map"]["map"] == "ridge"


def test_a_wrong_width_is_one_sentence(ridge):
    with pytest.raises(EmbcompareError, match="wide"):
        ridge.transform(np.zeros((2, 5), dtype=np.float32))


def test_vectors_of_ones_own_can_be_mapped(store, tmp_path):
    from embcompare.shelf import Shelf
    from embcompare.text.uploads import Vectors

    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 6)).astype(np.float32)
    y = (x @ np.linalg.qr(generator.normal(size=(6, 6)))[0]).astype(np.float32)
    names = [Shelf(store).keep_vectors(Vectors(name, each)) for each, name in ((x, "x"), (y, "y"))]
    fitted = fit_layer_map(embcompare.Bijection(*names, 0, 0, maps="least_squares"), store=store)
    assert isinstance(fitted, LayerMap)
    assert np.abs(fitted.transform(x) - y).max() < 1e-4
    fitted.check(*names)
    with pytest.raises(MapMismatch):
        fitted.check(model_a=names[1])


def test_from_a_shell_one_map_goes_to_a_file(capsys, monkeypatch, tmp_path):
    from embcompare.cli import main

    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "map.safetensors"
    sides = ["--model-a", TWINS[0], "--model-b", TWINS[1], "--layer-a", "2", "--layer-b", "3", "--max-rows", "700"]
    assert main(["fit-map", *sides, "--maps", "ridge", "--quiet", "--to", str(path)]) == 0
    told = capsys.readouterr().err
    assert f"{load_layer_map(path, *TWINS[:2]).pair.r2:.4f}" in told
    assert str(path) in told
    assert main(["fit-map", *sides, "--quiet", "--to", str(path)]) == 2
    assert "One map goes to a file" in capsys.readouterr().err
    assert main(["fit-map", *sides, "--maps", "ridge", "--to", str(tmp_path / "no" / "map")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit-map", *sides, "--maps", "ridge"])
    assert "--to" in capsys.readouterr().err


def test_a_description_with_facts_of_other_kinds_is_refused(ridge, tmp_path):
    path = tmp_path / "map.safetensors"
    ridge.save(path)
    with safe_open(path, "numpy") as file:
        described = json.loads(file.metadata()["embcompare_map"])
    arrays = load_file(path)
    for name, value in (("weights_a", 7), ("layer_a", "2"), ("settings", []), ("r2", None)):
        text = json.dumps({**described, "pair": {**described["pair"], name: value}})
        save_file(arrays, path, {"embcompare_map": text, "sha256": digest_of(arrays, text)})
        with pytest.raises(InputError, match="its description is incomplete"):
            load_layer_map(path)
    for header in ([], {"map": ["ridge"]}, {**described["map"], "options": {"bend": 1}}):
        text = json.dumps({**described, "map": header})
        save_file(arrays, path, {"embcompare_map": text, "sha256": digest_of(arrays, text)})
        with pytest.raises(InputError):
            load_layer_map(path)


def test_from_a_shell_a_map_goes_to_standard_output(capfdbinary, monkeypatch, tmp_path):
    from embcompare.cli import main

    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    sides = ["--model-a", TWINS[0], "--model-b", TWINS[1], "--layer-a", "2", "--layer-b", "3", "--max-rows", "700"]
    assert main(["fit-map", *sides, "--maps", "ridge", "--quiet", "--to", "-"]) == 0
    (tmp_path / "map.safetensors").write_bytes(capfdbinary.readouterr().out)
    assert load_layer_map(tmp_path / "map.safetensors", *TWINS[:2]).map.name == "ridge"
    assert not (tmp_path / "-").exists()
