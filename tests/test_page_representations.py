"""The page Representations in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from test_pages import (  # noqa: F401
    PARAMETERS,
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

from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.measures import MEASURES
from embcompare.store import Store
from embcompare.ui import difference, lens, similarity

PAGE = "pages/2_Representations.py"
QUICK = {"null_draws": "2", "halves": "2", "max_rows": "150"}
KEY = "representations."


def stored(experiment: str = "representation-similarity") -> list:
    entries = [entry for entry in Store().entries() if entry.experiment == experiment]
    return [Store().get(entry.key) for entry in sorted(entries, key=lambda entry: entry.created)]


def alts(at) -> list[str]:
    return [proto.alt for proto in charts_of(at)]


def matrix_of(proto) -> np.ndarray:
    """Read the values back from a heat map's own data."""
    import pyarrow as pa

    table = pa.ipc.open_stream(proto.data.data if proto.data.data else proto.datasets[0].data.data).read_all()
    frame = table.to_pandas()
    return frame.pivot(index="layer_a", columns="layer_b", values="value").to_numpy(dtype=float)


def test_arriving_shows_matrix_null_profiles_and_geometry(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    assert_sound(at, caplog)
    assert at.title[0].value == "Representations"
    (result,) = stored()
    heat_maps = [alt for alt in alts(at) if "heat map" in alt]
    assert [alt.split(":")[0] for alt in heat_maps] == ["Feature space", "Rows wrongly paired, null"]
    row, column = np.unravel_index(result.values.argmax(), result.values.shape)
    assert f"largest at layer {row} of A and layer {column} of B" in heat_maps[0]
    assert len([alt for alt in alts(at) if "by layer" in alt]) == len(result.geometry)
    assert any("closest layers of B for the layers of A" in alt for alt in alts(at))
    said = sentences(at)
    assert "Linear CKA, debiased in feature space on 150 sentences" in said
    assert "95 % intervals over sentences" in said
    assert "Layer 0 is the embedding output" in said
    assert "after final norm" in said


@pytest.mark.parametrize("measure", [*MEASURES])
def test_every_measure_has_a_picture_or_a_reason_and_a_card(measure, twins, caplog):  # noqa: F811
    space = "embedding" if MEASURES[measure].needs_shared_coordinates else "feature"
    at = opened(PAGE, **twins, **QUICK, measure=measure, space=space)
    assert_sound(at, caplog)
    assert any("heat map" in alt for alt in alts(at))
    (result,) = stored()
    assert np.isfinite(result.values).any() or "have no value" in " ".join(e.label for e in at.expander)
    own = f"**{MEASURES[measure].label}"
    (card,) = [m.value for m in at.markdown if m.value.startswith(own) and "Range" in m.value]
    assert ("higher is closer" in card) == MEASURES[measure].higher_is_closer


def test_a_measure_that_needs_shared_coordinates_is_refused_in_feature_space_with_the_way_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, measure="tokenwise_cosine")
    assert_sound(at, caplog)
    assert "choose embedding space" in sentences(at)


def test_settings_that_belong_together_may_come_in_one_link(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, space="embedding", final_norm="true", common="1", pooling="token")
    assert_sound(at, caplog)
    assert not at.warning
    (result,) = stored()
    assert result.provenance["settings"]["final_norm"] is True
    assert result.provenance["settings"]["common"] == 1


BAD = [
    ({"measure": "nonsense"}, "no measure 'nonsense'"),
    ({"tab": "<script>"}, "one of matrix, difference, lens"),
    ({"corpus": "text/" + "0" * 64}, "text"),
    ({"corpus": "../../etc/passwd"}, "shipped or reviews, or text/"),
    ({"model_a": "vectors/" + "0" * 64}, "vectors"),
    ({"other_measure": "nonsense"}, "no measure 'nonsense'"),
    ({"lens_k": "0"}, "smallest value is 1"),
    ({"lens_measure": "wasserstein"}, "one of jsd"),
    ({"max_rows": "3"}, "smallest value is 4"),
    ({"halves": "inf"}, "number"),
]


@pytest.mark.parametrize(("query", "said"), BAD, ids=["=".join(next(iter(query.items()))) for query, _ in BAD])
def test_what_a_link_asks_in_vain_is_said_in_one_sentence(query, said, twins, caplog):  # noqa: F811
    at = opened(PAGE, **{**twins, **QUICK, **query})
    assert_sound(at, caplog)
    warnings = [re.sub(r"\\(.)", r"\1", warning.value) for warning in at.warning]
    assert any(said in warning for warning in warnings), warnings
    assert charts_of(at), "the page goes on with the defaults"


def test_a_clicked_cell_shows_neighbours_spectra_and_both_clouds(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.session_state["similarity.matrix"] = {"selection": {"cell": [{"layer_a": 1, "layer_b": 2}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (box(at, f"{KEY}layer_a").value, box(at, f"{KEY}layer_b").value) == ("1", "2")
    (result,) = stored("representation-pair")
    assert f"keeps {result.mean_kept:.0%} on average" in sentences(at)
    assert any(alt.startswith("Scatter plot of 150 rows") for alt in alts(at))
    assert any(alt.startswith("Variance by principal component") for alt in alts(at))
    table = next(f.value for f in at.dataframe if "kept" in f.value and "text" in f.value)
    assert len(table) == 150
    assert table["kept"].is_monotonic_increasing


def test_a_chosen_row_shows_its_neighbours_in_both_models(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, layer_a="1", layer_b="1")
    at.session_state["rowpairs.table.1.1"] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    settled(at)
    assert_sound(at, caplog)
    tables = [f.value for f in at.dataframe if "in both" in f.value]
    assert len(tables) == 2
    assert tables[0]["in both"].sum() == tables[1]["in both"].sum()
    (result,) = stored("representation-pair")
    chosen = int(np.argsort(result.kept[result.listed], kind="stable")[0])
    assert tables[0]["neighbour"].tolist() == [result.text(n) for n in result.neighbours_a[chosen].tolist()]


def test_nothing_runs_on_a_change_of_settings_and_the_estimate_is_there_first(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    box(at, f"{KEY}measure").set_value("procrustes")
    settled(at)
    assert len(stored()) == 1
    assert "Not computed yet: about" in sentences(at)
    button(at, "similarity.run").click()
    settled(at)
    assert_sound(at, caplog)
    assert len(stored()) == 2
    assert "lower is closer" in sentences(at)


def test_the_view_never_computes_the_matrix_again(twins, monkeypatch, caplog):  # noqa: F811
    computed = []
    original = RepresentationSimilarity.compute
    monkeypatch.setattr(RepresentationSimilarity, "compute", lambda s, c: computed.append(s) or original(s, c))
    at = opened(PAGE, **twins, **QUICK)
    for view in ("centred", "z", "raw"):
        at.session_state[f"{KEY}view"] = view
        settled(at)
    assert_sound(at, caplog)
    assert len(computed) == 1


def test_pages_keep_their_own_settings_and_share_the_pair(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    box(at, f"{KEY}space").set_value("embedding")
    at.number_input(key=f"{KEY}seed").set_value(5)
    settled(at)
    at.query_params.clear()
    at.switch_page(PARAMETERS)
    settled(at)
    assert at.number_input(key="seed").value == 0
    assert box(at, "model_a").value == twins["model_a"]
    at.query_params.clear()
    at.switch_page(PAGE)
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}space").value == "embedding"
    assert at.number_input(key=f"{KEY}seed").value == 5


def test_the_difference_is_first_less_second_cell_by_cell(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, tab="difference", other_pooling="token")
    assert_sound(at, caplog)
    by_pooling = {result.provenance["settings"]["pooling"]: result.values for result in stored()}
    gap = by_pooling["mean"] - by_pooling["token"]
    (chart,) = [proto for proto in charts_of(at) if proto.alt.startswith("Difference")]
    np.testing.assert_allclose(matrix_of(chart), gap)
    row, column = np.unravel_index(np.abs(gap).argmax(), gap.shape)
    assert f"They differ most at layer {row} of A and layer {column} of B, by {abs(gap[row, column]):.3f}" in sentences(
        at
    )
    scale = json.loads(chart.spec)["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"][0] == -scale["domain"][1]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "Change at least one setting"),
        ({"other_measure": "procrustes"}, "different ranges or directions"),
        ({"other_space": "embedding", "standardise": "true"}, "Standardising scales features"),
    ],
    ids=["same", "other unit", "refused"],
)
def test_a_difference_that_means_nothing_is_not_drawn(query, said, twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, tab="difference", **query)
    assert_sound(at, caplog)
    assert said in sentences(at)
    assert not any(alt.startswith("Difference") for alt in alts(at))


def test_the_lens_shows_both_models_by_layer_and_by_token(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, tab="lens", lens_sentences="8", lens_null_draws="2")
    assert_sound(at, caplog)
    (result,) = stored("logit-lens")
    assert f"{result.of('jsd')[-1, -1]:.3f} nats between the two models' own predictions" in sentences(at)
    assert len([alt for alt in alts(at) if alt.startswith("Best token of each layer")]) == 2
    for label, _ in lens.INDICATORS.values():
        assert any(alt.startswith(label) for alt in alts(at)), label
    assert result.text in sentences(at)
    at.session_state[f"{KEY}lens_measure"] = "overlap"
    settled(at)
    assert_sound(at, caplog)
    assert len(stored("logit-lens")) == 1
    assert "Top tokens shared over" in sentences(at)


def test_the_lens_refuses_models_that_predict_different_things_with_the_way_out(tiny_folders, caplog):
    at = opened(PAGE, model_a=str(tiny_folders("gpt2", 0)), model_b=str(tiny_folders("bert-mlm", 0)), tab="lens")
    assert_sound(at, caplog)
    assert "next token" in sentences(at)
    assert at.error


@pytest.mark.parametrize("tab", [*similarity.TABS])
@pytest.mark.parametrize(
    ("a", "b"), [("gpt2", "bert-mlm"), ("bert-plain", "distilbert"), ("electra-generator", "bert-mlm")]
)
def test_every_tab_shows_every_pair_without_a_traceback(tab, a, b, tiny_folders, caplog):
    pair = {"model_a": str(tiny_folders(a, 0)), "model_b": str(tiny_folders(b, 0))}
    at = opened(PAGE, **pair, **QUICK, tab=tab, lens_sentences="6", pooling="word")
    assert_sound(at, caplog)


def test_the_link_says_every_setting_that_is_not_a_default_and_no_other(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, measure="rsa", tab="lens", lens_sentences="4", view="raw")
    at.number_input(key=f"{KEY}seed").set_value(3)
    settled(at)
    assert_sound(at, caplog)
    said = {name: value[-1] if isinstance(value, list) else value for name, value in dict(at.query_params).items()}
    assert said == {**twins, **QUICK, "measure": "rsa", "tab": "lens", "lens_sentences": "4", "seed": "3"}


def test_a_stored_result_opens_on_this_page(twins, caplog):  # noqa: F811
    opened(PAGE, **twins, **QUICK)
    at = opened(RESULTS)
    at.session_state["results.table"] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    settled(at)
    assert_sound(at, caplog)
    links = [element.proto for element in at.get("page_link")]
    assert any("Representations" in link.page and "null_draws=2" in str(link) for link in links) or any(
        "null_draws" in str(link) for link in links
    )


def test_every_default_of_the_difference_is_what_the_first_matrix_has():
    names = {field.name for field in RepresentationSimilarity.__dataclass_fields__.values()}
    assert set(difference.CHANGED) <= names
