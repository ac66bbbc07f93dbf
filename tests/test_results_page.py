"""The list of results: readable names, links that bring the whole state back, and what strangers may see of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from embcompare import kept
from embcompare.experiments import EXPERIMENTS, settings_type
from embcompare.experiments.base import Settings
from embcompare.experiments.lens import LogitLens
from embcompare.experiments.pairs import RepresentationPair
from embcompare.experiments.parameters import ParameterAlignment, ParameterAlignmentResult
from embcompare.experiments.representations import RepresentationSimilarity
from embcompare.shelf import Shelf
from embcompare.store import Entry, Store
from embcompare.text.corpora import corpus_from_text
from embcompare.ui import (
    alignment,
    bijection_form,
    decomposition_views,
    keptlist,
    links,
    results,
    runs,
    similarity,
    stitching_form,
    vocabulary_views,
)
from embcompare.ui import opened as opened_on
from embcompare.ui.page import BIJECTION, DECOMPOSITION, PARAMETERS, REPRESENTATIONS, STITCHING, VOCABULARY

ROOT = Path(__file__).parent.parent
PAIR = {"model_a": "demo/gpt2-a", "model_b": "demo/gpt2-b"}


@pytest.fixture(autouse=True)
def own_process(tmp_path, monkeypatch):
    """Give every test its own store, as a fresh server has it."""
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    st.cache_data.clear()
    st.cache_resource.clear()
    yield
    runs.queue().shutdown(timeout=20)
    st.cache_resource.clear()


def entry(settings, **changed) -> Entry:
    values = {"key": "a" * 64, "version": 1, "models": {}, "bytes": 1, "created": 0.0, "last_used": 0.0, "seconds": 1.0}
    return Entry(experiment=settings.experiment, settings=settings.to_dict(), **{**values, **changed})


def stored(number: int, wanted: Settings | None = None, **settings) -> str:
    """Put a small result into the store, as a run does; ``wanted`` says that it is of another experiment."""
    wanted = wanted or ParameterAlignment(**PAIR, seed=number, **settings)
    key = f"{number:064x}"
    result = ParameterAlignmentResult(
        values=np.eye(2),
        control=None,
        control_chance=None,
        null_mean=None,
        null_sd=None,
        assignment=np.zeros((0, 2), dtype=np.int64),
        depth_rate=0.0,
        depth_chance=0.5,
        depth_p=1.0,
        vectors_a=np.ones(2, dtype=np.int64),
        vectors_b=np.ones(2, dtype=np.int64),
        tokens=4000,
        provenance={"models": {}, "seconds": 1.0},
    )
    Store().put(key, result, wanted)
    return key


def opened() -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.switch_page("pages/9_Results.py")
    return at.run()


def test_every_experiment_has_a_readable_name_and_those_with_a_page_open_there():
    assert set(opened_on.OPENED_ON) | set(opened_on.WITHOUT_PAGE) == set(results.NAMES) == set(EXPERIMENTS)
    assert not set(opened_on.OPENED_ON) & set(opened_on.WITHOUT_PAGE)
    assert all("-" not in name for name in results.NAMES.values())


EXAMPLES = {
    "parameter-matches": {**PAIR, "layer_a": 1, "layer_b": 2},
    "representation-pair": {**PAIR, "layer_a": 1, "layer_b": 2},
    "token-reading": {"model": "demo/gpt2-b", "layer": 2, "group": "w_o", "combination": "1:2"},
    "token-search": {**PAIR, "token": "whale", "group": "ff_keys", "count": 7},
    "head-reading": {"model": "demo/gpt2-b", "layer": 2, "head": 3, "top": 9},
    "nearest-vectors": {**PAIR, "layer": 2, "index": 3, "group": "w_o"},
    "parameter-difference": {**PAIR, "group": "w_o", "layer": 4, "top": 5, "count": 6},
    "parameter-agreement": {**PAIR, "k": 9, "sentences": 12, "null_draws": 3},
    "stitching": {**PAIR, "kernels": "ridge, permuted", "sentences": 12, "runs": 3},
    "stitched-text": {**PAIR, "text": "The whale", "cut": 2, "entry": 3, "kernel": "anchors", "tokens": 4},
    "bijection": {**PAIR, "layer_a": 2, "layer_b": 3, "maps": "mean, ridge", "epochs": 9},
    "bijection-depths": {**PAIR, "layers": "1:1, 2:3", "maps": "mean, ridge", "epochs": 9},
    "map-pairs": {**PAIR, "maps": "least_squares", "splits": 2},
    "decomposition": {**PAIR, "by": "layer", "sentences": 12, "ablation": False},
    "sentence-terms": {**PAIR, "text": "The whale", "layer_a": 2, "position_b": 1, "token_mean": "correction"},
    "term-series": {"runs": "one: demo/gpt2-a, demo/gpt2-b", "corpus": "shipped", "sentences": 7, "layer": 2},
}


@pytest.mark.parametrize("experiment", opened_on.OPENED_ON)
def test_a_link_says_every_setting_that_its_page_knows_and_only_those(experiment):
    wanted = settings_type(experiment).from_dict(EXAMPLES.get(experiment, PAIR))
    where = opened_on.OPENED_ON[experiment]
    script, said = results.link_of(entry(wanted))
    known = {
        PARAMETERS: alignment.DEFAULTS,
        REPRESENTATIONS: similarity.DEFAULTS,
        VOCABULARY: vocabulary_views.DEFAULTS,
        STITCHING: stitching_form.DEFAULTS,
        BIJECTION: bijection_form.DEFAULTS,
        DECOMPOSITION: decomposition_views.DEFAULTS,
    }[script]
    assert set(said) <= set(known)
    for name, value in wanted.to_dict().items():
        called = where.renamed.get(name, name)
        if called in known:
            assert said[called] == links.text(value)
    assert "model_a" in said or experiment == "term-series", "which names its models in its runs"


def test_what_the_page_decomposition_shows_comes_back_from_its_link():
    readers = decomposition_views.readers()
    for experiment, expected in (
        ("decomposition", {"tab": "layers", "by": "layer", "sentences": 12, "ablation": False}),
        ("sentence-terms", {"tab": "sentence", "text": "The whale", "layer_a": "2", "layer_b": "last"}),
        ("term-series", {"tab": "series", "series_runs": "one: demo/gpt2-a, demo/gpt2-b", "series_layer": 2}),
    ):
        script, said = results.link_of(entry(settings_type(experiment).from_dict(EXAMPLES[experiment])))
        assert script == DECOMPOSITION
        read = {name: readers[name](text) for name, text in said.items()}
        assert {name: read[name] for name in expected} == expected


def test_what_the_page_vocabulary_shows_comes_back_from_its_link():
    readers = vocabulary_views.readers()
    for experiment, expected in (
        ("token-reading", {"tab": "read", "model_a": "demo/gpt2-b", "layer_a": 2, "combination": "1:2"}),
        ("token-search", {"tab": "search", "token": "whale", "search_group": "ff_keys", "search_count": 7}),
        ("head-reading", {"tab": "heads", "head_layer_a": 2, "head_number_a": 3, "pairs": 9}),
        ("nearest-vectors", {"tab": "read", "vector": "a.w_o.2.3"}),
        ("parameter-difference", {"tab": "difference", "changed": "w_o", "changed_layer": 4, "changed_top": 5}),
        ("parameter-agreement", {"tab": "agreement", "set_k": 9, "read_sentences": 12, "shuffles": 3}),
    ):
        wanted = settings_type(experiment).from_dict(EXAMPLES[experiment])
        script, said = results.link_of(entry(wanted))
        assert script == VOCABULARY
        read = {name: readers[name](text) for name, text in said.items()}
        assert {name: read[name] for name in expected} == expected


def test_a_result_whose_page_would_show_another_one_has_no_link():
    for experiment, more in (
        ("nearest-vectors", {"count": 3}),
        ("token-reading", {"start": 5}),
        ("parameter-difference", {"directions": 5}),
        ("parameter-agreement", {"seed": 4}),
        ("parameter-matches", {"null_draws": 9}),
    ):
        wanted = settings_type(experiment).from_dict({**EXAMPLES[experiment], **more})
        assert results.link_of(entry(wanted)) is None
        assert opened_on.beyond(entry(wanted)) == more


def test_similarity_comes_back_whole_from_its_link():
    wanted = RepresentationSimilarity("demo/bert-a", "demo/bert-b", pooling="word", halves=3, seed=5)
    script, said = results.link_of(entry(wanted))
    assert script == REPRESENTATIONS
    assert said.pop("tab") == "matrix"
    read = {name: links.reader(RepresentationSimilarity, name)(text) for name, text in said.items()}
    assert RepresentationSimilarity(**read) == wanted


def test_a_pair_of_layers_opens_at_its_cell_and_a_lens_at_the_lens():
    _, said = results.link_of(entry(RepresentationPair(**PAIR, layer_a=3, layer_b=4, pooling="token")))
    assert (said["tab"], said["layer_a"], said["layer_b"], said["pooling"]) == ("matrix", "3", "4", "token")
    _, said = results.link_of(entry(LogitLens(**PAIR, sentence=7, null_draws=3)))
    assert (said["tab"], said["lens_sentence"], said["lens_null_draws"]) == ("lens", "7", "3")
    assert "null_draws" not in said, "that would be the one of the matrix"


def test_an_unknown_experiment_has_no_link_and_keeps_its_own_name():
    unknown = dataclasses.replace(entry(ParameterAlignment(**PAIR)), experiment="from-the-future")
    assert results.link_of(unknown) is None
    assert results.name_of(unknown) == "from-the-future"


def test_own_texts_and_vectors_are_told_by_name_or_by_the_start_of_their_digest():
    wanted = RepresentationSimilarity(f"vectors/{'ab' * 32}", "demo/gpt2-b", corpus=f"text/{'cd' * 32}")
    assert results.pair_of(entry(wanted)) == "vectors/abababab… and demo/gpt2-b"
    assert results.described(entry(wanted)) == "corpus=text/cdcdcdcdcdc…"


def test_table_and_list_show_the_same_results_each_with_its_link():
    keys = [stored(number) for number in range(3)]
    at = opened()
    assert not at.exception
    table = at.dataframe[0].value
    assert set(table["experiment"]) == {"Parameters, layer by layer"}
    assert sorted(table["settings"]) == ["all defaults", "seed=1", "seed=2"]
    links_ = [each.proto for each in at.get("page_link") if each.proto.label == "**Parameters, layer by layer**"]
    assert len(links_) == len(keys)
    assert sorted("seed=0" in link.query_string for link in links_) == [False, False, True]
    assert not [each for each in at.get("page_link") if each.proto.label == "Open"], "nothing is chosen yet"


def test_results_of_every_experiment_are_listed_beside_each_other():
    for number, experiment in enumerate(EXPERIMENTS):
        stored(number, settings_type(experiment).from_dict(EXAMPLES.get(experiment, PAIR)))
    at = opened()
    assert not at.exception
    assert not at.error
    table = at.dataframe[0].value
    assert set(table["experiment"]) == {results.NAMES[experiment] for experiment in EXPERIMENTS}
    assert table.loc[table["experiment"] == results.NAMES["term-series"], "A"].tolist() == ["1 run, 2 checkpoints"]
    assert set(table["B"]) == {"demo/gpt2-b", "–"}


def test_files_of_a_listed_result_come_at_the_press_of_a_button_and_it_can_be_deleted():
    keys = [stored(number) for number in range(3)]
    at = opened()
    next(each for each in at.button if each.key == f"results.{keys[1]}.more").click()
    at.run()
    assert not at.exception
    assert len(at.get("download_button")) == 3
    next(each for each in at.button if each.key == "results.delete").click()
    at.run()
    assert not at.exception
    assert sorted(each.key for each in Store().entries()) == sorted([keys[0], keys[2]])
    assert not at.get("download_button")


def test_a_chosen_row_stays_the_same_result_however_often_the_page_runs():
    for number in range(3):
        stored(number)
    at = opened()
    before = list(at.dataframe[0].value["settings"])
    at.session_state["results.table"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    for _ in range(2):
        at.run()
        link = next(each.proto for each in at.get("page_link") if each.proto.label == "Open")
        assert list(at.dataframe[0].value["settings"]) == before
        assert link.query_string.endswith("seed=0")


def test_a_long_list_grows_by_a_button(monkeypatch):
    monkeypatch.setattr(results, "LISTED", 2)
    for number in range(5):
        stored(number)
    at = opened()

    def listed() -> int:
        return len([each for each in at.get("page_link") if each.proto.label.startswith("**Parameters, ")])

    assert listed() == 2
    next(each for each in at.button if each.key == "results.show_more").click()
    at.run()
    assert listed() == 4
    next(each for each in at.button if each.key == "results.show_more").click()
    at.run()
    assert listed() == 5
    assert not [each for each in at.button if each.key == "results.show_more"]


def test_strangers_see_only_results_of_texts_that_are_their_own(monkeypatch):
    name = Shelf().keep_corpus(corpus_from_text("One.\nTwo.\nThree.\nFour."))
    at = AppTest.from_string(
        "import streamlit as st\nfrom embcompare.ui import given, results\n"
        f"if st.session_state.get('mine'): given.read_corpus({name!r})\n"
        "st.session_state['seen'] = results.seen(st.session_state['entry'])"
    )
    at.session_state["entry"] = entry(RepresentationSimilarity(**PAIR, corpus=name))
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    assert not at.run().session_state["seen"]
    at.session_state["mine"] = True
    assert at.run().session_state["seen"]
    monkeypatch.delenv("EMBCOMPARE_HOSTED")
    at.session_state["mine"] = False
    assert at.run().session_state["seen"], "on one's own machine everything is one's own"
    at.session_state["entry"] = entry(RepresentationSimilarity(**PAIR))
    assert at.run().session_state["seen"]


def test_a_kept_thing_is_deleted_by_its_name_whatever_was_used_meanwhile():
    shelf = Shelf()
    names = {
        title: shelf.keep_corpus(corpus_from_text(f"{title}.\nTwo.\nThree.\nFour.", name=title)) for title in "abc"
    }
    at = opened()
    table = next(each for each in at.dataframe if "what it is" in str(each.proto.columns))
    assert table.value["title"].tolist() == ["a", "b", "c"]
    shelf.corpus(names["c"])  # use changes what was used last, not the order
    at.run()
    table = next(each for each in at.dataframe if "what it is" in str(each.proto.columns))
    assert table.value["title"].tolist() == ["a", "b", "c"]
    keptlist._delete(Store(), [names["b"]])
    assert {item.title for item in kept.items(Store())} == {"a", "c"}
