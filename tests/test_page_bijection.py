"""The page Bijection in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from test_page_representations import matrix_of, stored
from test_pages import (  # noqa: F401
    RESULTS,
    assert_sound,
    box,
    button,
    charts_of,
    opened,
    own_process,
    sentences,
    settled,
    twins,
)

from embcompare.experiments.bijection import Bijection
from embcompare.experiments.bijection_depths import BijectionDepths
from embcompare.experiments.bijection_result import METRICS, BijectionResult
from embcompare.experiments.map_pairs import MapPairs
from embcompare.experiments.map_pairs_result import MapPairsResult
from embcompare.maps.catalogue import MAPS
from embcompare.running import run
from embcompare.shelf import Shelf
from embcompare.store import Store
from embcompare.text.corpora import corpus_from_text
from embcompare.text.uploads import read_vectors
from embcompare.ui import bijection_fit, bijection_form, bijection_layers, results
from embcompare.ui import bijection_grid as grids
from embcompare.ui import bijection_picture as pictures
from embcompare.ui import bijection_words as say

PAGE = "pages/5_Bijection.py"
KEY = "bijection."
QUICK = {"max_rows": "200", "splits": "2", "null_draws": "1", "epochs": "3", "downstream": "4", "shown": "50"}


def said(at) -> dict[str, str]:
    values = dict(at.query_params).items()
    return {name: value[-1] if isinstance(value, list) else value for name, value in values}


def fitted(pair, **changed):
    """Compute and keep the fit that the page asks for with ``QUICK``."""
    numbers = {name: int(value) for name, value in QUICK.items() if name not in ("splits", "null_draws")}
    return run(Bijection(**pair, **{"layer_a": 1, "layer_b": 1, **numbers, **changed}))


def made(seeds: int = 1, kind: str = "bijection", answers: bool = True) -> BijectionResult:
    """A result of five maps whose numbers are known: an invertible network better than ridge, a perceptron like it."""
    maps = ("mean", "orthogonal", "ridge", "inn", "mlp")
    r2 = np.array([0.0, 0.5, 0.7, 0.8, 0.81])
    scores = np.full((5, seeds, 2, 5), np.nan)
    for run_ in range(seeds):
        for part, more in ((0, 0.05), (1, 0.0)):
            scores[:, run_, part, METRICS.index("r2")] = r2 + more + 0.01 * run_
            scores[:, run_, part, METRICS.index("mse")] = 1 - r2 - more
            scores[1:, run_, part, METRICS.index("cosine")] = 0.9
    if seeds > 1:
        scores[:3, 1:] = np.nan
    curves = np.full((5, seeds, 6, 2), np.nan)
    curves[3, :, :6] = np.stack([np.geomspace(1, 0.05, 6), np.geomspace(1, 0.2, 6)], axis=1)
    curves[4, :, :4] = np.stack([np.linspace(0.5, 0.2, 4), np.linspace(0.5, 0.25, 4)], axis=1)
    best = np.full((5, seeds), -1, dtype=np.int64)
    best[3], best[4] = 5, 3
    random = np.random.default_rng(0)
    target = random.normal(size=(30, 3))
    steps = (("mean", "linear"), ("mean", "inn"), ("mean", "mlp"), ("orthogonal", "linear"), ("linear", "inn"))
    steps += (("linear", "mlp"), ("inn", "mlp"))
    gaps = np.array([[g, g - 0.02, g + 0.02] for g in (0.7, 0.8, 0.81, 0.2, 0.1, 0.11, 0.01)])
    loss = np.array([8.0, 5.4, 5.2, 5.1, 5.1])
    return BijectionResult(
        maps=maps,
        seeds=tuple(range(seeds)),
        name_a="block 1",
        name_b="block 2",
        width_a=8,
        width_b=8,
        rows=(100, 20, 30),
        texts_in=(10, 3, 5),
        scores=scores,
        reasons=(("mean", "test", "cosine", "30 mapped rows of length 0 point nowhere."),),
        curves=curves,
        best_epoch=best,
        start=("", "", "", "ridge", "ridge"),
        ended=("", "", "", "epochs", "epochs"),
        log_determinant=np.zeros((5, seeds)),
        condition=np.ones((5, seeds)),
        seconds=np.ones((5, seeds)),
        text_numbers=np.arange(5),
        texts=tuple(f"text {number}" for number in range(5)),
        text_rows=np.full(5, 6),
        text_errors=np.stack([np.linspace(0.1, 0.5, 5) * (1 - value) for value in r2]),
        sample_texts=tuple(f"row {number}" for number in range(30)),
        sample_labels=("news", "law") * 15,
        sample_target=target,
        sample_mapped=np.stack([target * value for value in r2]),
        sample_errors=np.full((5, 30), 0.1),
        sample_shares=np.array([0.5, 0.2, 0.1]),
        kind=kind,
        sentence="The invertible network finds more." if kind else "",
        rotation="orthogonal",
        linear="ridge",
        gap_names=steps if kind else (),
        gaps=gaps if kind else np.empty((0, 3)),
        answer_scores=("loss", "kl", "agreement") if answers else (),
        answers=np.repeat(np.stack([loss, loss - 5, loss / 10], axis=1)[:, None], seeds, axis=1) if answers else None,
        answer_errors=np.full((5, seeds, 3), 0.1) if answers else None,
        answers_own=np.array([5.0, 0.0, 1.0]) if answers else None,
        answers_base=np.array([6.5, 2.0, 0.2]) if answers else None,
        answer_task="next token" if answers else "",
        answer_texts=4 if answers else 0,
        answer_places=40 if answers else 0,
    )


def made_grid(beyond: bool = True) -> MapPairsResult:
    """Two maps between 3 and 4 layers: ridge is best at the same depth, and the last cell of the rotation undefined."""
    test = np.array([[[0.5, 0.3, 0.2, 0.1], [0.2, 0.6, 0.3, 0.2], [0.1, 0.2, 0.3, 0.7]]])
    rotation = test - 0.2
    rotation[0, 2, 0] = np.nan
    best = np.full((2, 3, 4), 0.05)
    if not beyond:
        best[1, 0, 3] = 0.15
    return MapPairsResult(
        maps=("orthogonal", "ridge"),
        test=np.stack([np.stack([rotation[0]] * 2), np.stack([test[0], test[0] + 0.02])]),
        train=np.stack([np.stack([rotation[0] + 0.05] * 2), np.stack([test[0] + 0.05] * 2)]),
        strength=np.full((2, 2, 3, 4), np.nan),
        null_mean=np.zeros((2, 3, 4)),
        null_sd=np.full((2, 3, 4), 0.01),
        null_best=best,
        layers_a=("embedding output", "block 1", "block 2"),
        layers_b=("embedding output", "block 1", "block 2", "block 3"),
        widths=(8, 10),
        rows=(100, 20),
        texts=12,
        seeds=(0, 1),
        reasons=(("orthogonal", 2, 0, "A layer is constant over the training rows."),),
    )


def test_arriving_shows_the_map_of_layers_and_asks_before_the_fit(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    assert_sound(at, caplog)
    assert at.title[0].value == "Bijection"
    (result,) = stored("map-pairs")
    assert say.grid_verdict(result, "ridge") in sentences(at)
    assert np.allclose(matrix_of(charts_of(at)[0]), result.mean("ridge"), equal_nan=True)
    alts = [proto.alt for proto in charts_of(at)]
    assert alts[0] == say.described_grid(result, "ridge", "test", (0, 0))
    assert any(alt.startswith("Lines along the layers of A, R² on test rows") for alt in alts)
    assert "Not computed yet: at most " in sentences(at)
    assert not stored("bijection")
    assert said(at).keys() == {*twins, *QUICK}, "what is looked at by default needs no place in the address"


def test_a_fit_shows_verdict_table_curves_rows_and_how_it_came_about(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    button(at, f"{KEY}run").click()
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("bijection")
    text = sentences(at)
    assert say.fit_verdict(result) in text
    assert "Layer 1 of A (block 1) to layer 1 of B (block 1)" in text
    alts = [proto.alt for proto in charts_of(at)]
    assert say.described_fit(result) in alts
    assert any(alt.startswith("Learning curves: invertible network, ") for alt in alts)
    assert any(alt.startswith("R² added by each step: rotation to ") for alt in alts)
    assert any(alt.startswith("Loss of B's predictions by map: ") for alt in alts)
    assert any(alt.startswith("Scatter of ") and "by invertible network" in alt for alt in alts)
    table = next(frame.value for frame in at.dataframe if "retrieval_train" in frame.value)
    assert table["map"].tolist() == [MAPS[name].label for name in result.maps]
    assert table["r2"].tolist() == pytest.approx([result.mean(name, "r2") for name in result.maps])
    texts = next(frame.value for frame in at.dataframe if "beside" in frame.value)
    assert texts["mse"].is_monotonic_decreasing
    assert f"{result.rows[0]:,} rows of {result.texts_in[0]} texts to fit on" in text
    assert say.PUBLISHED in text
    call = next(code.value for code in at.code if "embcompare.Bijection(" in code.value)
    assert "layer_a=1, layer_b=1" in call
    assert any("ren2023roads" in code.value for code in at.code)


def test_what_is_looked_at_changes_without_another_run(twins, monkeypatch, caplog):  # noqa: F811
    fitted(twins)
    computed = []
    for kind in (MapPairs, Bijection):
        original = kind.compute
        monkeypatch.setattr(kind, "compute", lambda s, c, original=original: computed.append(s) or original(s, c))
    at = opened(PAGE, **twins, **QUICK)
    assert len(computed) == 1
    (grid,), (fit,) = stored("map-pairs"), stored("bijection")
    for show in ("train", "spread"):
        at.session_state[f"{KEY}show"] = show
        box(at, f"{KEY}look").set_value("orthogonal")
        settled(at)
        assert np.allclose(matrix_of(charts_of(at)[0]), say.grid_matrix(grid, "orthogonal", show), equal_nan=True)
    box(at, f"{KEY}map").set_value("ridge")
    box(at, f"{KEY}direction").set_value(2)
    settled(at)
    assert_sound(at, caplog)
    shown = len(fit.sample_texts)
    assert f"Scatter of {shown} test rows: mapped by ridge against B's own, along direction 2." in [
        proto.alt for proto in charts_of(at)
    ]
    assert {"look": "orthogonal", "show": "spread", "map": "ridge", "direction": "2"}.items() <= said(at).items()
    assert len(computed) == 1


def test_a_click_on_a_cell_chooses_the_layers_of_the_fit_and_the_address_remembers(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.session_state[f"{KEY}grid.0"] = {"selection": {"cell": [{"layer_a": 0, "layer_b": 2}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (box(at, f"{KEY}layer_a").value, box(at, f"{KEY}layer_b").value) == ("0", "2")
    assert (said(at)["layer_a"], said(at)["layer_b"]) == ("0", "2")
    spec = json.loads(charts_of(at)[0].spec)
    assert "datum.layer_a == 0 && datum.layer_b == 2" in json.dumps(spec)


def test_a_click_outside_the_map_changes_nothing(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.session_state[f"{KEY}grid.0"] = {"selection": {"cell": [{"layer_a": 40, "layer_b": 0}]}}
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}layer_a").value == "middle"


def test_a_click_on_a_dot_chooses_the_map_that_is_looked_at(twins, caplog):  # noqa: F811
    fitted(twins)
    at = opened(PAGE, **twins, **QUICK)
    at.session_state[f"{KEY}reached.inn"] = {"selection": {"dot": [{"map": "mlp"}]}}
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}map").value == "mlp"
    assert said(at)["map"] == "mlp"
    assert any("mapped by perceptron" in proto.alt for proto in charts_of(at))


def test_steps_go_to_the_pairs_before_and_after_at_the_same_depth(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    button(at, f"{KEY}step.1").click()
    settled(at)
    assert (box(at, f"{KEY}layer_a").value, box(at, f"{KEY}layer_b").value) == ("2", "2")
    assert button(at, f"{KEY}step.1").disabled
    button(at, f"{KEY}step.-1").click()
    settled(at)
    assert_sound(at, caplog)
    assert (said(at)["layer_a"], said(at)["layer_b"]) == ("1", "1")


def test_pairs_fitted_before_with_these_settings_are_listed_and_a_row_opens_its_pair(twins, caplog):  # noqa: F811
    for layer in (0, 1, 2):
        fitted(twins, layer_a=layer, layer_b=layer)
    fitted(twins, layer_a=0, layer_b=1)
    fitted(twins, layer_a=2, layer_b=0, seed=3)
    at = opened(PAGE, **twins, **QUICK)
    frame = next(frame.value for frame in at.dataframe if "layer_a" in frame.value and "kind" in frame.value)
    assert list(zip(frame["layer_a"], frame["layer_b"], strict=True)) == [(0, 0), (0, 1), (1, 1), (2, 2)]
    (middle,) = [r for r in stored("bijection") if r.name_a == "block 1"]
    assert frame["inn"][2] == pytest.approx(middle.mean("inn", "r2"))
    at.session_state[f"{KEY}before.1.1"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    settled(at)
    assert_sound(at, caplog)
    assert (said(at)["layer_a"], said(at)["layer_b"]) == ("0", "1")
    assert "Layer 0 of A (embedding output) to layer 1 of B (block 1)" in sentences(at)


def test_a_layer_that_does_not_exist_is_dropped_with_a_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, layer_a="9", layer_b="1")
    assert_sound(at, caplog)
    assert "A has no layer 9 here; its layers are 0 to 2." in sentences(at)
    assert "layer_a" not in said(at)
    assert said(at)["layer_b"] == "1"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"maps": "nonsense"}, "There is no map 'nonsense'"),
        ({"linear": "inn"}, "is not fitted between all layers"),
        ({"layer_a": "-1"}, "a layer is a number, or middle"),
        ({"layer_b": "middle"}, "a layer is a number, or same"),
        ({"direction": "99"}, "it can be 1 to 8"),
        ({"show": "everything"}, "it can be one of test, train, spread"),
        ({"rate": "2"}, "Rate"),
        ({"what": "dreams"}, "What"),
    ],
)
def test_an_address_that_cannot_be_followed_is_told_and_left_at_the_default(query, reason, twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **{**QUICK, **query})
    assert_sound(at, caplog)
    assert "Part of the link cannot be followed" in sentences(at)
    assert reason in sentences(at)
    assert not any(name in said(at) for name in query)


def test_settings_that_contradict_each_other_are_told_in_one_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, validation="0.5", test="0.5")
    assert_sound(at, caplog)
    assert [error.value for error in at.error]
    assert "leave less than a tenth of the rows" in sentences(at)
    at = opened(PAGE, **twins, **QUICK, rate="0.000000001")
    assert_sound(at, caplog)
    assert "give at least 1e-8" in sentences(at)


def test_tokens_of_two_tokenizers_are_refused_beforehand_and_words_are_not(tiny_folders, caplog):
    pair = {"model_a": str(tiny_folders("gpt2", 0)), "model_b": str(tiny_folders("bert-mlm", 0))}
    at = opened(PAGE, **pair, **QUICK)
    assert_sound(at, caplog)
    assert "cut this text into different tokens" in at.error[0].value
    assert "choose words or sentences" in at.error[0].value
    assert not charts_of(at)
    box(at, f"{KEY}pooling").set_value("word")
    settled(at)
    assert_sound(at, caplog)
    assert not at.error
    assert charts_of(at)


def test_few_texts_are_refused_beforehand(twins, caplog):  # noqa: F811
    name = Shelf().keep_corpus(corpus_from_text("The whale.\nThe sea."))
    at = opened(PAGE, **twins, **QUICK, corpus=name)
    assert_sound(at, caplog)
    assert "There are 2 sentences, and training, validation and test need a text each" in at.error[0].value


def test_maps_that_cannot_be_fitted_are_said_beforehand(tiny_folders, caplog):
    """Between widths 24 and 32 there is no identity, and of 12 sentences too few are left for a rotation."""
    text = Shelf().keep_corpus(
        corpus_from_text("\n".join(f"Sentence number {number} of a text." for number in range(12)))
    )
    pair = {"model_a": str(tiny_folders("gpt2", 0)), "model_b": str(tiny_folders("distilbert", 0))}
    at = opened(PAGE, **pair, **QUICK, pooling="mean", corpus=text, maps="mean, identity, orthogonal, ridge")
    assert_sound(at, caplog)
    a, b = bijection_form.similarity.informed((pair["model_a"], pair["model_b"]))
    if a.width != b.width:
        assert f"A is {a.width} wide and B {b.width}, so ‘as it is’ is left out." in sentences(at)
    assert f"‘rotation’ needs {min(a.width, b.width) + 1} training rows, and there are about 8." in sentences(at)
    assert "‘ridge’ needs" not in sentences(at)


def given_vectors(rows: int, width: int, layers: int = 0, seed: int = 0) -> str:
    shape = (layers, rows, width) if layers else (rows, width)
    file = io.BytesIO()
    np.save(file, np.random.default_rng(seed).normal(size=shape).astype(np.float32))
    file.seek(0)
    return Shelf().keep_vectors(read_vectors(file, "npy", name=f"vectors {rows} {layers} {seed}"))


def test_two_files_of_vectors_are_mapped_row_by_row(caplog):
    a, b = given_vectors(120, 6, layers=3), given_vectors(120, 6, seed=1)
    at = opened(PAGE, model_a=a, model_b=b, **QUICK)
    assert_sound(at, caplog)
    (grid,) = stored("map-pairs")
    assert grid.test.shape[2:] == (3, 1)
    button(at, f"{KEY}run").click()
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("bijection")
    assert result.answers is None
    assert say.fit_verdict(result) in sentences(at)
    assert result.kind == "unrelated", "the two are independent"


def test_vectors_beside_a_model_need_rows_of_sentences_as_many_as_the_text_has(twins, caplog):  # noqa: F811
    text = Shelf().keep_corpus(
        corpus_from_text("\n".join(f"Sentence number {number} of a text." for number in range(40)))
    )
    vectors = given_vectors(40, 6)
    query = {"model_a": twins["model_a"], "model_b": vectors, "corpus": text, **QUICK}
    at = opened(PAGE, **query)
    assert_sound(at, caplog)
    assert "choose their mean, last or classification token under Rows" in at.error[0].value
    at = opened(PAGE, **query, pooling="mean")
    assert_sound(at, caplog)
    assert not at.error
    (grid,) = stored("map-pairs")
    assert grid.test.shape[2:] == (3, 1)
    at = opened(PAGE, **{**query, "model_b": given_vectors(39, 6)}, pooling="mean")
    assert_sound(at, caplog)
    assert "has 39 rows and the text 40 sentences" in at.error[0].value


@pytest.mark.parametrize(
    "pair",
    [
        ("bert-mlm", "electra-generator"),
        ("gpt2-classifier", "gpt2"),
        ("t5", "mt5"),
        ("marian", "llama"),
        ("opt", "gpt2"),
    ],
    ids="-".join,
)
def test_every_pair_is_shown_or_refused_without_a_traceback(pair, tiny_folders, caplog):
    at = opened(PAGE, model_a=str(tiny_folders(pair[0])), model_b=str(tiny_folders(pair[1], 1)), **QUICK)
    assert_sound(at, caplog)
    assert at.error or charts_of(at)
    if not at.error:
        button(at, f"{KEY}run").click()
        settled(at)
        assert_sound(at, caplog)
        assert at.error or "R² on test rows" in sentences(at)


def test_every_depth_is_fitted_at_a_click_and_a_row_opens_its_pair(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    assert "Every depth" in [header.value for header in at.subheader]
    button(at, "bijection_depths.run").click()
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("bijection-depths")
    assert result.layers.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert result.sentence in sentences(at)
    alts = [proto.alt for proto in charts_of(at)]
    assert any(alt.startswith("R² added by layer of A: linear → invertible network ") for alt in alts)
    assert any(alt.startswith("R² on test rows by layer of A: mean ") for alt in alts)
    frame = next(frame.value for frame in at.dataframe if "kind" in frame.value)
    assert frame["ridge"].tolist() == pytest.approx(result.of("ridge").tolist())
    at.session_state[f"{KEY}depths.table.1.1"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    settled(at)
    assert_sound(at, caplog)
    assert (said(at)["layer_a"], said(at)["layer_b"]) == ("2", "2")


def test_chosen_pairs_of_layers_open_from_a_link_and_give_way_to_every_layer(twins, caplog):  # noqa: F811
    numbers = {name: int(value) for name, value in QUICK.items() if name in ("max_rows", "epochs")}
    run(BijectionDepths(**twins, layers="0:1, 2:2", maps="mean, orthogonal, ridge, inn, mlp", **numbers))
    ((script, query),) = [results.link_of(e) for e in Store().entries() if e.experiment == "bijection-depths"]
    assert script == PAGE
    at = opened(script, **query, splits="1", null_draws="0")
    assert_sound(at, caplog)
    (result,) = stored("bijection-depths")
    assert "Pairs of layers, A's before B's: 0:1, 2:2." in sentences(at)
    assert result.sentence in sentences(at)
    button(at, f"{KEY}depths.all").click()
    settled(at)
    assert_sound(at, caplog)
    assert "depths" not in said(at)
    assert "Every layer of A to the layer of B at the same depth" in sentences(at)


@pytest.mark.parametrize("what", ["attention", "feed_forward", "patterns"])
def test_what_blocks_add_is_mapped_from_layer_1_on(what, twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, what=what)
    assert_sound(at, caplog)
    (grid,) = stored("map-pairs")
    assert grid.test.shape[2:] == (2, 2)
    alt = charts_of(at)[0].alt
    assert "2 layers of A by 2 layers of B" in alt
    best = [int(each) + 1 for each in grid.best_b("ridge")]
    assert f"the best layers of B for the layers of A in turn: {best[0]}, {best[1]}." in alt
    assert box(at, f"{KEY}layer_a").options == ["2 · the middle", "1", "2"]
    at.session_state[f"{KEY}grid.0"] = {"selection": {"cell": [{"layer_a": 1, "layer_b": 2}]}}
    settled(at)
    assert (said(at)["layer_a"], said(at)["layer_b"]) == ("1", "2")
    button(at, f"{KEY}run").click()
    settled(at)
    assert_sound(at, caplog)
    assert say.fit_verdict(stored("bijection")[0]) in sentences(at)


def test_stored_results_open_on_this_page_without_another_run(twins, monkeypatch, caplog):  # noqa: F811
    fitted(twins, layer_a=0, layer_b=2, maps="mean, ridge", seed=4)
    run(MapPairs(**twins, max_rows=200, splits=1, null_draws=0, maps="ridge, least_squares", seed=4))
    links = {e.experiment: results.link_of(e) for e in Store().entries()}
    monkeypatch.setattr(MapPairs, "compute", lambda *_: pytest.fail("computed again"))
    monkeypatch.setattr(Bijection, "compute", lambda *_: pytest.fail("computed again"))
    script, query = links["map-pairs"]
    assert script == PAGE
    at = opened(script, **query)
    assert_sound(at, caplog)
    assert say.grid_verdict(stored("map-pairs")[0], "ridge") in sentences(at)
    monkeypatch.setattr(MapPairs, "compute", lambda *_: pytest.fail("computed again"))
    script, query = links["bijection"]
    at = opened(script, **{**links["map-pairs"][1], **query})
    assert_sound(at, caplog)
    assert say.fit_verdict(stored("bijection")[0]) in sentences(at)
    assert "There is no verdict" in sentences(at)


def test_results_lists_both_experiments_with_links(twins, caplog):  # noqa: F811
    fitted(twins, maps="mean, ridge")
    at = opened(RESULTS)
    assert_sound(at, caplog)
    links = [each.proto for each in at.get("page_link") if each.proto.label == "**Maps between two layers**"]
    assert len(links) == 1
    assert "layer_a=1" in links[0].query_string


def test_a_partial_result_shows_curves_and_the_maps_that_are_done(twins, monkeypatch, caplog):  # noqa: F811
    """The run waits half way until the page has been looked at."""
    reached, go_on = threading.Event(), threading.Event()
    original = Bijection.compute

    def slow(settings, context):
        def report(done, total, message, partial=None):
            context_report(done, total, message, partial)
            if partial is not None and "epoch 2 of" in message and not reached.is_set():
                reached.set()
                go_on.wait(30)

        context_report = context.report
        monkeypatch.setattr(context, "report", report)
        return original(settings, context)

    monkeypatch.setattr(Bijection, "compute", slow)
    monkeypatch.setattr("embcompare.experiments.bijection_run.PARTIAL_SECONDS", 0.0)
    at = opened(PAGE, **twins, **QUICK)
    button(at, f"{KEY}run").click()
    at.run()
    assert reached.wait(30)
    at.run()
    assert_sound(at, caplog)
    alts = [proto.alt for proto in charts_of(at)]
    assert any(alt.startswith("Learning curves: invertible network, 2 epochs") for alt in alts)
    table = next(frame.value for frame in at.dataframe if "retrieval" in frame.value)
    assert table["map"].tolist() == [
        MAPS[name].label for name in ("mean", "orthogonal", "least_squares", "ridge", "cca_matched")
    ]
    button(at, f"{KEY}cancel").click()
    go_on.set()
    settled(at)
    assert_sound(at, caplog)
    text = sentences(at)
    assert "Cancelled." in text
    assert "Stopped in invertible network, run 1 of 1 after epoch 3; Run takes it up from there." in text
    monkeypatch.setattr(Bijection, "compute", original)
    button(at, f"{KEY}run").click()
    settled(at)
    assert_sound(at, caplog)
    assert say.fit_verdict(stored("bijection")[0]) in sentences(at)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("invertible network, run 2 of 3: epoch 17 of 200, loss 0.1 in training, 0.2 in validation", 17),
        ("perceptron, run 1 of 1: taken up after epoch 5", 5),
        ("ridge", None),
        ("Hidden states of demo/gpt2-a", None),
    ],
)
def test_where_a_run_was_stopped_is_read_from_what_it_said_last(message, expected):
    found = say.stopped_at(SimpleNamespace(progress=SimpleNamespace(message=message)))
    assert (found and found[1]) == expected
    assert say.stopped_at(None) is None


def test_layers_begin_in_the_middle_at_the_same_depth():
    offered = (range(7), range(13))
    assert [bijection_layers.same_depth(offered, layer) for layer in (0, 3, 6)] == [0, 6, 12]
    assert bijection_layers.stepped(offered, (3, 6), 1) == (4, 8)
    assert bijection_layers.stepped(offered, (3, 5), 1) == (4, 6), "off the same depth both go one on"
    assert bijection_layers.stepped(offered, (6, 12), 1) is None
    assert bijection_layers.stepped((range(1, 5), range(1, 5)), (1, 1), -1) is None
    assert bijection_layers.same_depth((range(1), range(5)), 0) == 2
    assert say.same_depth_path((7, 13)).tolist() == [bijection_layers.same_depth(offered, k) for k in range(7)]


def test_the_map_of_layers_outlines_the_best_and_greys_what_is_at_chance():
    result = made_grid(beyond=False)
    drawn = grids.grid(result, "ridge", "test", ("a", "b"), start=(1, 1), chosen=(2, 3), selection="cell").to_dict()
    frames = list(drawn["datasets"].values())
    cells = next(frame for frame in frames if "pairing" in frame[0])
    best = [(row["layer_a"], row["layer_b"]) for row in cells if row["pairing"] == "yes"]
    assert best == [(1, 1), (2, 2), (3, 4)]
    veiled = next(frame for frame in frames if "grey" in frame[0] and all(row["grey"] for row in frame))
    assert [(row["layer_a"], row["layer_b"]) for row in veiled] == [(1, 4)]
    assert "datum.layer_a == 2 && datum.layer_b == 3" in json.dumps(drawn)
    spread = grids.grid(result, "ridge", "spread", ("a", "b")).to_dict()
    assert not [f for f in spread["datasets"].values() if f and "grey" in f[0] and all(row["grey"] for row in f)]


def test_colours_have_round_limits_that_hold_every_value_of_a_map():
    result = made_grid()
    scale = grids.scale_of(result, "test", ["ridge"])
    assert (scale.low, scale.high) == (0.1, 0.8)
    both = grids.scale_of(result, "test", result.maps)
    assert (both.low, both.high) == (0.0, 0.8)
    narrow = dataclasses.replace(result, test=np.full((2, 2, 3, 4), 0.95), train=np.full((2, 2, 3, 4), 0.96))
    assert grids.scale_of(narrow, "test", ["ridge"]).low == pytest.approx(0.7)
    empty = dataclasses.replace(result, test=np.full((2, 2, 3, 4), np.nan), train=np.full((2, 2, 3, 4), np.nan))
    assert grids.scale_of(empty, "test", ["ridge"]).high == 1.0
    assert "no pair of layers at the same depth has a value" in say.grid_verdict(empty, "ridge")


def test_the_verdict_on_the_map_of_layers_holds_rotation_against_ridge():
    result = made_grid()
    text = say.grid_verdict(result, "ridge")
    assert "at the same depth it predicts 0.31 to 0.71" in text
    assert "That is 0.21 more than a rotation (0.10 to 0.50)." in text
    assert "All 12 cells lie beyond every wrong pairing." in text
    assert "less than ridge" in say.grid_verdict(result, "orthogonal")
    assert "11 of 12 cells" in say.grid_verdict(made_grid(beyond=False), "ridge")


def test_learning_curves_dash_training_and_take_logarithms_where_losses_fall_far():
    result = made(seeds=2)
    drawn = pictures.learning(result.curve_frame(), pictures.kept_epochs(result)).to_dict()
    line = drawn["layer"][0]["encoding"]
    assert line["y"]["scale"]["type"] == "log"
    assert line["strokeDash"]["scale"]["domain"] == ["validation", "train"]
    assert line["strokeDash"]["scale"]["range"][0] == [1, 0]
    lines = {row["line"] for frame in drawn["datasets"].values() for row in frame if "line" in row}
    assert len(lines) == 2 * 2 * 2, "a network, a run and a part each have one"
    flat = result.curve_frame()
    flat = flat[flat["map"] == "mlp"]
    assert "type" not in pictures.learning(flat).to_dict()["layer"][0]["encoding"]["y"]["scale"]
    kept = pictures.kept_epochs(result)
    assert sorted(set(zip(kept["map"], kept["epoch"], strict=True))) == [("inn", 5), ("mlp", 3)]


def test_each_map_has_a_filled_dot_for_test_a_hollow_one_for_training_and_an_interval_over_runs():
    result = made(seeds=3)
    drawn = pictures.reached(result, "inn", "dot").to_dict()
    rows = {row["map"]: row for frame in drawn["datasets"].values() for row in frame}
    assert rows["inn"]["test"] == pytest.approx(0.81)
    assert rows["inn"]["train"] == pytest.approx(0.86)
    assert rows["inn"]["low"] < 0.81 < rows["inn"]["high"]
    assert rows["ridge"]["low"] is None
    assert [row["map"] for row in rows.values() if row["chosen"]] == ["inn"]
    assert not any(len(str(layer)) == 0 for layer in drawn["layer"])
    alone = made()
    assert "runs_half" not in say.table(alone)
    assert say.table(result)["runs_half"][3] == pytest.approx((rows["inn"]["high"] - rows["inn"]["low"]) / 2)


def test_steps_are_drawn_from_rotation_to_perceptron_with_zero_and_margin():
    drawn = pictures.gaps(made(), 0.05).to_dict()
    rows = [row for frame in drawn["datasets"].values() for row in frame if "step" in row]
    assert [row["step"] for row in rows[:3]] == [
        "rotation → ridge",
        "ridge → invertible network",
        "invertible network → perceptron",
    ]
    assert [row["gap"] for row in rows[:3]] == [0.2, 0.1, 0.01]
    marks = [row["at"] for frame in drawn["datasets"].values() for row in frame if "at" in row]
    assert marks == [0.0, 0.05]


def test_b_s_predictions_stand_beside_its_own_and_token_frequencies():
    result = made()
    drawn = pictures.answers(result).to_dict()
    levels = [row for frame in drawn["datasets"].values() for row in frame if "name" in row]
    assert {row["name"]: row["at"] for row in levels} == {"B's own states": 5.0, "token frequencies": 6.5}
    assert say.answer(result, "inn", "loss") == pytest.approx(5.1)
    assert np.isnan(say.answer(made(answers=False), "inn", "loss"))
    assert "b_loss" in say.table(result)
    assert "b_loss" not in say.table(made(answers=False))


def test_a_scatter_lies_on_its_line_where_mapped_is_own_and_tells_the_text():
    result = made()
    drawn = pictures.scatter(result, "mlp", 1).to_dict()
    points = [row for frame in drawn["datasets"].values() for row in frame if "said" in row]
    assert len(points) == 30
    assert [row["target"] for row in points] == pytest.approx(result.sample_target[:, 1].tolist())
    assert drawn["layer"][1]["encoding"]["color"]["field"] == "label"
    assert drawn["layer"][1]["encoding"]["tooltip"][0]["field"] == "said"
    assert drawn["layer"][0]["encoding"]["x"]["scale"] == drawn["layer"][0]["encoding"]["y"]["scale"]


def test_pictures_are_files_too():
    assert pictures.export_fit(made(), 0.01, "A to B", "A note.", "svg").startswith(b"<svg")
    assert pictures.export_fit(made(kind=""), 0.01, "A to B", "A note.", "png").startswith(b"\x89PNG")
    assert grids.export_grid(made_grid(), "test", ("a", "b"), (0, 0), "A note.", "svg").startswith(b"<svg")


@pytest.mark.parametrize("name", MAPS)
def test_every_map_says_what_it_is_and_whether_it_can_be_undone(name):
    card = say.map_card(name, 8, 8)
    assert say.plainly(name) in card.replace("\\", "")
    assert ("no inverse" in card) != MAPS[name].bijective
    assert ("control" in card) == MAPS[name].control or MAPS[name].control
    assert say.invertible("ridge", 8, 10) == "one-to-one into the wider side"
    assert say.invertible("ridge", 10, 8) == "no inverse into the narrower side"


def test_a_fit_without_all_maps_says_that_there_is_no_verdict():
    result = made(kind="")
    assert say.fit_verdict(result).startswith("There is no verdict here. R² on test rows: rotation 0.500, ridge 0.700")


def test_the_protocol_names_its_rows_and_what_networks_start_from():
    text = say.protocol(Bijection("a", "b", layer_a=1, layer_b=1, epochs=7, patience=3), made(seeds=2))
    assert "100 rows of 10 texts to fit on, 20 of 3 texts to stop trainings by, and 30 of 5 texts" in text
    assert "for at most 7 epochs" in text
    assert "Each is trained 2 times" in text
    assert "Invertible network and perceptron start as the best linear map" in text
    plain = say.protocol(Bijection("a", "b", layer_a=1, layer_b=1, standardise=False, pooling="mean"), made())
    assert "features are taken as they are" in plain
    assert "are the same sentence" in plain


def test_kinds_and_defaults_cover_what_there_is():
    from embcompare.maps.reading import Kind

    assert set(say.KINDS) == {*map(str, Kind), ""}
    fields = {item.name for kind in (Bijection, MapPairs) for item in dataclasses.fields(kind)}
    assert fields <= set(bijection_form.DEFAULTS)
    assert set(bijection_form.readers()) == set(bijection_form.DEFAULTS)
    assert bijection_fit.SLOT != "map_pairs"
