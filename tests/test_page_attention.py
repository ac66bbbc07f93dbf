"""The tab Attention, and what is compared beside hidden states, in Streamlit's own test runner."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_page_representations import KEY, PAGE, QUICK, alts, stored
from test_pages import RESULTS, assert_sound, box, button, opened, own_process, sentences, settled, twins  # noqa: F401

from embcompare.store import Store
from embcompare.ui import attention
from embcompare.ui.opened import link_of

SMALL = {"tab": "attention", "attention_null_draws": "2", "attention_halves": "4"}


def found(experiment: str = "attention-similarity"):
    (result,) = stored(experiment)
    return result


def test_arriving_shows_heads_blocks_the_null_and_the_closest_pair(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SMALL)
    assert_sound(at, caplog)
    result = found()
    said = sentences(at)
    best = result.match_frame()
    assert f"a head of A reaches {best.value.mean():.2f} on average" in said
    assert f"reach {best.null_mean.mean():.2f} by position alone" in said
    row, column = np.unravel_index(result.values.argmax(), result.values.shape)
    assert any(alt.startswith("Heads: heat map") and f"closest {result.name('a', row)} of A" in alt for alt in alts(at))
    assert [alt.split(":")[0] for alt in alts(at) if alt.startswith("Blocks, ")] == [
        "Blocks, found",
        "Blocks, position",
    ]
    assert f"Pearson correlation {result.values[row, column]:.3f}" in said
    shown = found("attention-patterns")
    assert shown.text in said
    patterns = [alt for alt in alts(at) if alt.startswith("Attention of")]
    assert len(patterns) == 2
    assert f"{shown.head('a', row // result.heads_a + 1, row % result.heads_a).max():.2f}" in patterns[0]
    tables = [f.value for f in at.dataframe if "mutual" in f.value]
    assert [len(t) for t in tables] == [len(result.values), result.values.shape[1]]


def test_a_clicked_cell_or_a_row_of_the_table_chooses_two_heads_and_enters_the_address(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SMALL)
    result = found()
    at.session_state["attention.heads"] = {"selection": {"heads": [{"row": 1, "column": result.heads_b}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (box(at, f"{KEY}attention_a").value, box(at, f"{KEY}attention_b").value) == ("1.1", "2.0")
    assert "Block 1, head 1 of A and block 2, head 0 of B" in sentences(at)
    assert at.query_params["attention_b"] in ("2.0", ["2.0"])
    at.session_state["attention.matches.b"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    settled(at)
    assert_sound(at, caplog)
    row = result.match_frame("b").iloc[2]
    assert box(at, f"{KEY}attention_b").value == f"{int(row.layer)}.{int(row['head'])}"
    assert box(at, f"{KEY}attention_a").value == f"{int(row.closest_layer)}.{int(row.closest_head)}"


def test_nothing_runs_on_a_change_of_settings_that_takes_long(twins, caplog, monkeypatch):  # noqa: F811
    from embcompare.experiments.estimate import Estimate

    monkeypatch.setattr(attention, "cost", lambda *_: Estimate(60.0, 10**9))
    at = opened(PAGE, **twins, **SMALL)
    assert_sound(at, caplog)
    assert not stored("attention-similarity")
    assert "Not computed yet: about 60 s and 1.0 GB" in sentences(at)
    button(at, "attention.run").click()
    settled(at)
    assert_sound(at, caplog)
    assert found().items


def test_jensen_shannon_of_the_averaged_pattern_is_refused_with_the_way_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SMALL, attention_measure="jsd")
    assert_sound(at, caplog)
    assert "choose the full pattern" in sentences(at)
    box(at, f"{KEY}attention_pattern").set_value("full")
    settled(at)
    assert_sound(at, caplog)
    assert "lower is closer" in sentences(at)


def test_different_tokenizers_are_sent_to_words_and_compared_by_them(tiny_folders, caplog):
    pair = {"model_a": str(tiny_folders("gpt2", 0)), "model_b": str(tiny_folders("bert-mlm", 0))}
    at = opened(PAGE, **pair, **SMALL)
    assert_sound(at, caplog)
    assert "compare words" in sentences(at)
    at = opened(PAGE, **pair, **SMALL, attention_rows="word")
    assert_sound(at, caplog)
    said = sentences(at)
    assert "Attention to a word is the sum over its tokens" in said
    assert "cannot be laid over each other" in said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"attention_a": "1"}, "a head is its block"),
        ({"attention_pattern": "half"}, "averaged, full"),
        ({"attention_sentence": "-1"}, "smallest value is 0"),
    ],
)
def test_what_a_link_asks_in_vain_is_said(query, said, twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SMALL, **query)
    assert_sound(at, caplog)
    warnings = [re.sub(r"\\(.)", r"\1", warning.value) for warning in at.warning]
    assert any(said in warning for warning in warnings), warnings


def test_a_head_or_a_sentence_that_is_not_there_is_said(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SMALL, attention_a="99.0", attention_sentence="99999")
    assert_sound(at, caplog)
    said = sentences(at)
    assert "A has no head 99.0; its blocks are 1 to" in said
    assert "Sentence cannot be 99999" in said


def test_a_large_model_shows_one_pair_of_blocks_at_a_time(twins, caplog, monkeypatch):  # noqa: F811
    monkeypatch.setattr(attention, "MOST_CELLS", 20)
    at = opened(PAGE, **twins, **SMALL, attention_a="2.0", attention_b="1.1")
    assert_sound(at, caplog)
    result = found()
    assert any(
        f"heat map of {result.heads_a} heads of A by {result.heads_b} of B" in alt and "block 2, head" in alt
        for alt in alts(at)
    )
    assert "Heads of block 2 of A and block 1 of B" in sentences(at).replace("**", "")
    at.session_state["attention.heads"] = {"selection": {"heads": [{"row": result.heads_a + 1, "column": 0}]}}
    settled(at)
    assert (box(at, f"{KEY}attention_a").value, box(at, f"{KEY}attention_b").value) == ("2.1", "1.0")
    at.session_state["attention.found"] = {"selection": {"blocks": [{"layer_a": 1, "layer_b": 2}]}}
    settled(at)
    assert_sound(at, caplog)
    block = result.values[: result.heads_a, result.heads_b :]
    row, column = np.unravel_index(block.argmax(), block.shape)
    assert box(at, f"{KEY}attention_a").value == f"1.{row}"
    assert box(at, f"{KEY}attention_b").value == f"2.{column}"


def test_stored_results_open_on_this_tab(twins, caplog):  # noqa: F811
    opened(PAGE, **twins, **SMALL)
    for experiment in ("attention-similarity", "attention-patterns"):
        (entry,) = [entry for entry in Store().entries() if entry.experiment == experiment]
        script, said = link_of(entry)
        assert script == PAGE
        assert said["tab"] == "attention"
    at = opened(PAGE, **said)
    assert_sound(at, caplog)
    assert len(stored("attention-patterns")) == 1


def test_pictures_are_files_too(twins):  # noqa: F811
    from embcompare.experiments.attention import AttentionSimilarity

    opened(PAGE, **twins, **SMALL)
    result = found()
    asked = AttentionSimilarity(**result.provenance["settings"])
    assert attention.export(asked, result, "png")[:4] == b"\x89PNG"
    svg = attention.export(asked, result, "svg")
    assert b"Heads" in svg
    assert b"Blocks, heads matched" in svg


@pytest.mark.parametrize("what", ["attention", "feed_forward", "patterns"])
def test_layers_of_what_blocks_add_are_numbered_from_one_everywhere(what, twins, caplog):  # noqa: F811
    more = {"what": what, "pooling": "token"}
    at = opened(PAGE, **twins, **QUICK, **more)
    assert_sound(at, caplog)
    result = found("representation-similarity")
    row, column = np.unravel_index(result.values.argmax(), result.values.shape)
    assert any(f"largest at layer {row + 1} of A and layer {column + 1} of B" in alt for alt in alts(at))
    assert "Layers are blocks, counted from 1" in sentences(at)
    assert box(at, f"{KEY}layer_a").options[1] == "1"
    last = str(len(result.layers_a))
    at.session_state["similarity.matrix"] = {"selection": {"cell": [{"layer_a": 1, "layer_b": int(last)}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (box(at, f"{KEY}layer_a").value, box(at, f"{KEY}layer_b").value) == ("1", last)
    pair = found("representation-pair")
    assert (pair.name_a, pair.name_b) == (result.layers_a[0], result.layers_b[-1])


def test_patterns_of_sentences_are_refused_with_the_way_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, what="patterns")
    assert_sound(at, caplog)
    assert "choose rows of tokens or of words" in sentences(at)


def test_the_difference_of_attention_and_feed_forward_numbers_its_layers_from_one(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, tab="difference", what="attention", other_what="feed_forward")
    assert_sound(at, caplog)
    by_what = {result.provenance["settings"]["what"]: result.values for result in stored()}
    gap = by_what["attention"] - by_what["feed_forward"]
    row, column = np.unravel_index(np.abs(gap).argmax(), gap.shape)
    assert f"They differ most at layer {row + 1} of A and layer {column + 1} of B" in sentences(at)
    at = opened(PAGE, **twins, **QUICK, tab="difference", what="attention", other_what="hidden")
    assert_sound(at, caplog)
    assert "cannot be subtracted" in sentences(at)
