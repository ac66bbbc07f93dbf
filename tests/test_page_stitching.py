"""The page Stitching in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from test_page_representations import stored
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

from embcompare.experiments.stitched_text import StitchedText
from embcompare.experiments.stitching import DEFAULT_KERNELS, Stitching
from embcompare.experiments.stitching_result import StitchingResult
from embcompare.maps.registry import KERNELS
from embcompare.ui import pair, results, stitching_cell, stitching_fit, stitching_form, stitching_picture
from embcompare.ui import stitching_verdict as verdicts
from embcompare.ui import stitching_words as say

PAGE = "pages/4_Stitching.py"
KEY = "stitching."
QUICK = {"sentences": "6", "kernels": "pseudo_inverse permuted identity"}


def said(at) -> dict[str, str]:
    values = dict(at.query_params).items()
    return {name: value[-1] if isinstance(value, list) else value for name, value in values}


def made(accuracy: bool = False, runs: int = 1, seed: int = 0) -> StitchingResult:
    """A result of 3 x 4 cells in which the map is near B, the control near the base rate, but for the first cut."""
    random = np.random.default_rng(seed)
    scores = ("accuracy", "loss", "kl", "agreement") if accuracy else ("loss", "kl", "agreement")
    maps, texts, shape = ("pseudo_inverse", "permuted"), 20, (3, 4)
    values = random.uniform(0.3, 0.4, (runs, len(maps), len(scores), *shape))
    main = np.where(np.arange(3)[:, None] == 0, 7.0, [5.4, 5.3, 5.2, 5.6]) if not accuracy else 0.0
    if accuracy:
        main = np.where(np.arange(3)[:, None] == 0, 0.5, [0.9, 0.95, 1.0, 0.9])
    values[:, 0, 0] = main + random.normal(0, 0.001, (runs, 1, 1)) * (runs > 1)
    values[:, 1, 0] = 0.5 if accuracy else 7.1
    loss = np.full((2, texts, *shape), 7.1) + random.normal(0, 0.05, (2, texts, 1, 1))
    loss[0] -= 1.5
    own = np.array([1.0 if accuracy else 5.0, *[0.35] * (len(scores) - 1)])
    base = np.array([0.5 if accuracy else 6.5, *[0.39] * (len(scores) - 1)])
    return StitchingResult(
        kernels=maps,
        scores=scores,
        values=values,
        errors=np.full_like(values, 0.01),
        own_a=np.full((runs, len(scores)), np.nan),
        own_b=np.tile(own, (runs, 1)),
        own_b_errors=np.full((runs, len(scores)), 0.01),
        base=np.tile(base, (runs, 1)),
        gain_errors=np.full((runs, len(maps), *shape), 0.01),
        distinct_texts=400 if accuracy else texts,
        run_texts=np.full(runs, 400 if accuracy else texts, dtype=np.int64),
        base_name="majority class" if accuracy else "unigram",
        task="classes" if accuracy else "next token",
        run_names=tuple(f"b, seed {run}" for run in range(runs)),
        counts=np.full(runs, 400, dtype=np.int64),
        texts=tuple(f"text {number}" for number in range(texts)),
        labels=("good", "bad") * (texts // 2) if accuracy else (),
        text_counts=np.full(texts, 1 if accuracy else 20, dtype=np.int64),
        text_loss=loss,
        text_hits=np.full_like(loss, 0.5),
        text_own_loss=np.full(texts, 5.0),
        text_own_hits=np.full(texts, 0.5),
        condition=np.array([10.0, 11.0]),
        explained=np.array([0.9, 0.1]),
        held_out=np.full((2, *shape), np.nan),
        identity_error=np.full(4, 3e-7),
        by="tokens",
        shared=100,
    )


def test_arriving_shows_verdict_grid_numbers_and_lines(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    assert_sound(at, caplog)
    assert at.title[0].value == "Stitching"
    (result,) = stored("stitching")
    text = sentences(at)
    assert verdicts.verdict(result, "pseudo_inverse") in text
    assert f"gives its own logits to {result.identity_error.max():.0e}" in text
    alts = [proto.alt for proto in charts_of(at)]
    assert alts[0] == say.described(result, "pseudo_inverse", "loss")
    assert any(alt.startswith("Lines along the cuts of A: loss of pseudo-inverse kernel") for alt in alts)
    rows = [cell.replace("\\", "") for cell in at.table[0].value.iloc[:, 0]]
    assert rows[:3] == ["B alone", "A alone", "base rate: unigram"]
    assert rows[3:] == ["pseudo-inverse kernel", "vocabulary permuted (control)", "as it is (control)"]


def test_the_grid_says_what_its_axes_are_and_is_anchored_at_b_alone_and_the_control(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    assert_sound(at, caplog)
    (result,) = stored("stitching")
    spec = json.loads(charts_of(at)[0].spec)
    cells = spec["layer"][0]["layer"][0]["encoding"]
    assert cells["y"]["title"].startswith("after i blocks of A: ")
    assert cells["x"]["title"].startswith("into layer k of B: ")
    assert cells["x"]["title"].endswith("(2 − k blocks left)")
    ends = stitching_picture.anchors(result, "loss")
    assert cells["color"]["scale"]["domain"] == sorted([ends.near, ends.far])


def test_another_map_or_score_is_shown_without_another_run(twins, monkeypatch, caplog):  # noqa: F811
    computed = []
    original = Stitching.compute
    monkeypatch.setattr(Stitching, "compute", lambda s, c: computed.append(s) or original(s, c))
    at = opened(PAGE, **twins, **QUICK)
    box(at, f"{KEY}map").set_value("permuted")
    box(at, f"{KEY}score").set_value("kl")
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("stitching")
    assert charts_of(at)[0].alt == say.described(result, "permuted", "kl")
    assert verdicts.verdict(result, "permuted", "kl") in sentences(at)
    assert (said(at)["map"], said(at)["score"]) == ("permuted", "kl")
    assert len(computed) == 1


def test_a_click_opens_the_cell_and_enters_the_address_and_close_takes_it_away(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.session_state["stitching.grid.0"] = {"selection": {"cell": [{"layer_a": 1, "layer_b": 2}]}}
    settled(at)
    assert_sound(at, caplog)
    assert "After 1 block of A, into layer 2 of B" in [header.value for header in at.subheader]
    assert (said(at)["cut"], said(at)["entry"]) == ("1", "2")
    (result,) = stored("stitching")
    frame = next(element.value for element in at.dataframe if "worse_by" in element.value)
    expected = result.example_frame("pseudo_inverse", 1, 2)
    assert frame["worse_by"].tolist() == pytest.approx(sorted(expected["worse_by"]))
    gain, error = result.advantage("pseudo_inverse", "permuted")
    assert f"{abs(gain[1, 2]):.2f} ± {error[1, 2]:.2f} nats a token" in sentences(at)
    button(at, "stitching.close").click()
    settled(at)
    assert "cut" not in said(at)
    assert not [element for element in at.dataframe if "worse_by" in element.value]


def test_a_click_outside_the_grid_changes_nothing(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.session_state["stitching.grid.0"] = {"selection": {"cell": [{"layer_a": 7, "layer_b": 0}]}}
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}cut").value == "none"


def test_a_cell_that_the_models_do_not_have_is_dropped_with_a_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, cut="9", entry="1")
    assert_sound(at, caplog)
    assert "A cannot be cut after 9 blocks; it has 0 to 2 here." in sentences(at)
    assert "cut" not in said(at)


def test_a_text_is_continued_by_all_three_side_by_side(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, cut="1", entry="1")
    at.text_area(key=f"{KEY}prompt").set_value("ab cd")
    at.number_input(key=f"{KEY}tokens").set_value(3)
    next(found for found in at.button if found.label == "Continue").click()
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("stitched-text")
    assert result.tokens.shape == (3, 3)
    alt = next(proto.alt for proto in charts_of(at) if proto.alt.startswith("Tokens added by each side"))
    for token in result.tokens[2]:
        assert result.name(int(token)) in alt
    assert (said(at)["prompt"], said(at)["tokens"]) == ("ab cd", "3")
    table = next(element.value for element in at.dataframe if "step" in element.value)
    assert table["stitched "].tolist() == [result.name(int(token)) for token in result.tokens[2]]
    assert table["p 1"].tolist() == pytest.approx(result.probabilities[1].tolist())


def test_a_text_can_be_continued_before_the_grid_is_computed(twins, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, **twins, **QUICK, cut="1", entry="1")
    assert_sound(at, caplog)
    assert not stored("stitching")
    assert at.text_area(key=f"{KEY}prompt")
    assert say.promise("next token") in sentences(at)
    assert "Not computed yet: about" in sentences(at)


def test_an_empty_text_is_answered_with_one_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, cut="1", entry="1")
    next(found for found in at.button if found.label == "Continue").click()
    settled(at)
    assert_sound(at, caplog)
    (error,) = at.error
    assert "The text is empty" in error.value


def test_an_over_long_text_in_a_link_is_refused_with_one_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, prompt="a" * 6000)
    assert_sound(at, caplog)
    (warning,) = at.warning
    assert "6,000 characters; at most 5,000" in warning.value
    assert "prompt" not in said(at)


def test_a_map_of_states_continues_no_text_and_says_so(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, sentences="6", kernels="ridge", cut="1", entry="1")
    assert_sound(at, caplog)
    assert "is fitted on hidden states of many texts" in sentences(at)
    assert f"{KEY}prompt" not in [area.key for area in at.text_area]


def test_several_runs_are_all_shown_with_mean_and_standard_deviation(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, sentences="5", kernels="pseudo_inverse permuted", runs="3")
    assert_sound(at, caplog)
    (result,) = stored("stitching")
    table = next(element.value for element in at.dataframe if "run" in element.value and "map" not in element.value)
    assert table["run"].tolist() == [*result.run_names, "mean", "standard deviation"]
    own = result.own_b[:, 0]
    assert table["B alone"].tolist() == pytest.approx([*own, own.mean(), own.std(ddof=1)])


def test_a_classifier_above_takes_the_reviews_and_a_language_model_the_corpus_again(monkeypatch, caplog):
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, model_b="demo/gpt2-a-sentiment")
    assert_sound(at, caplog)
    assert box(at, f"{KEY}corpus").value == "reviews"
    assert "the labelled reviews are taken" in sentences(at)
    box(at, "model_b").set_value("demo/gpt2-b")
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}corpus").value == "shipped"


def test_the_paper_s_protocol_is_one_click(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    button(at, "stitching.paper").click()
    settled(at)
    assert_sound(at, caplog)
    now = said(at)
    assert {name: now[name] for name in ("runs", "corpus", "sentences")} == {
        "runs": "11",
        "corpus": "reviews",
        "sentences": "144",
    }
    assert now["tuned_blocks"] == "3"
    assert "has 2 blocks, so 3 cannot be tuned" in sentences(at), "these tiny models are too shallow, and it is said"
    assert not [found for found in at.button if found.label == "Run"]


def test_examples_set_pair_and_texts(twins, caplog, monkeypatch):  # noqa: F811
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, **twins, **QUICK)
    button(at, "stitching.example.reviews").click()
    settled(at)
    assert_sound(at, caplog)
    now = said(at)
    assert (now["model_a"], now["model_b"], now["corpus"]) == ("demo/gpt2-wide", "demo/gpt2-a-sentiment", "reviews")
    assert say.promise("classes") in sentences(at)
    assert "A is 160 wide and B 128, so ‘as it is’ is left out." in sentences(at)


REFUSED = [
    ("gpt2", "bert-mlm", {}, "cut text into different tokens"),
    ("gpt2", "t5", {}, "is an encoder-decoder"),
    ("marian", "gpt2", {}, "is an encoder-decoder"),
    ("gpt2", "bert-plain", {}, "different tokens"),
    ("gpt2", "gpt2", {"also": "demo/gpt2-a"}, "so their grids do not go together"),
    ("gpt2", "gpt2", {"also": "demo/nobody"}, "nobody"),
    ("gpt2", "gpt2", {"kernels": "nonsense"}, "no map 'nonsense'"),
    ("gpt2", "gpt2", {"tuned_blocks": "3", "corpus": "reviews"}, "so 3 cannot be tuned"),
]


@pytest.mark.parametrize(("first", "second", "more", "sentence"), REFUSED)
def test_what_cannot_be_run_is_said_beforehand_in_one_sentence(first, second, more, sentence, tiny_folders, caplog):
    both = {"model_a": str(tiny_folders(first)), "model_b": str(tiny_folders(second, 1))}
    at = opened(PAGE, **both, **{**QUICK, **more})
    assert_sound(at, caplog)
    assert sentence in sentences(at)
    if "kernels" not in more:
        assert not [found for found in at.button if found.label == "Run"]
        assert not charts_of(at)


def test_widths_that_only_the_identity_was_asked_for_are_refused_beforehand(twins, caplog):  # noqa: F811
    at = opened(PAGE, model_a="demo/gpt2-wide", model_b="demo/gpt2-a", kernels="identity", sentences="4")
    assert_sound(at, caplog)
    assert "every map that is chosen needs one width" in sentences(at)
    assert not [found for found in at.button if found.label == "Run"]


def test_no_map_at_all_is_told(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK)
    at.multiselect(key=f"{KEY}kernels").set_value([])
    settled(at)
    assert_sound(at, caplog)
    assert "No map was chosen" in sentences(at)


def test_texts_without_the_classifier_s_labels_end_in_one_sentence(tiny_folders, twins, caplog):  # noqa: F811
    at = opened(PAGE, model_a=twins["model_a"], model_b=str(tiny_folders("gpt2-classifier")), **QUICK)
    box(at, f"{KEY}corpus").set_value("shipped")
    settled(at)
    button(at, "stitching.run").click()
    settled(at)
    assert_sound(at, caplog)
    assert "have the label" in at.error[0].value


def test_a_hostile_link_is_answered_with_a_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **{**QUICK, "cut": "../x", "map": "<script>", "score": "no", "runs": "-3", "left": "1"})
    assert_sound(at, caplog)
    assert "Part of the link cannot be followed" in sentences(at)
    assert set(at.query_params) <= set(stitching_form.DEFAULTS)


def test_the_address_brings_every_setting_back(twins, caplog):  # noqa: F811
    query = {**twins, "sentences": "5", "kernels": "orthogonal, permuted", "seed": "3", "centred": "true"}
    query |= {"map": "permuted", "score": "kl", "depth": "same", "cut": "1", "entry": "2"}
    at = opened(PAGE, **query)
    assert_sound(at, caplog)
    assert said(at) == query
    (result,) = stored("stitching")
    settings = result.provenance["settings"]
    assert (settings["kernels"], settings["seed"], settings["centred"]) == ("orthogonal, permuted", 3, True)


@pytest.mark.parametrize("first", ["gpt2", "bert-mlm", "llama", "gpt2-classifier"])
@pytest.mark.parametrize("second", ["gpt2", "bert-mlm", "gpt2-classifier", "bert-classifier", "opt", "t5"])
def test_every_pair_is_shown_or_refused_without_a_traceback(first, second, tiny_folders, caplog):
    from tiny import TINY

    if second not in TINY or first not in TINY:
        pytest.skip("no such tiny model")
    both = {"model_a": str(tiny_folders(first)), "model_b": str(tiny_folders(second, 1))}
    at = opened(PAGE, **both, sentences="4", kernels="pseudo_inverse", cut="1", entry="1")
    assert_sound(at, caplog)
    assert charts_of(at) or at.error


def test_home_says_whether_the_pair_can_be_stitched(tiny_folders, twins, caplog):  # noqa: F811
    at = opened("app.py", **twins)
    assert "asked for the next token of a text." in sentences(at)
    checks = {
        check.what: check
        for check in pair.checks(
            (twins["model_a"], str(tiny_folders("t5"))),
            tuple(map(pair.inspect_model, (twins["model_a"], str(tiny_folders("t5"))))),
        )
    }
    assert not checks["Stitching"].possible
    assert "encoder-decoder" in checks["Stitching"].sentence


def test_a_stored_grid_and_a_stored_text_open_on_this_page(twins, caplog):  # noqa: F811
    from test_results_page import entry

    wanted = Stitching(**twins, sentences=5, kernels="pseudo_inverse, permuted", seed=2)
    script, link = results.link_of(entry(wanted))
    assert script == PAGE
    at = opened(PAGE, **link)
    assert_sound(at, caplog)
    (result,) = stored("stitching")
    assert result.provenance["settings"] == wanted.to_dict()
    text = StitchedText(**twins, text="ab & cd", cut=1, entry=2, kernel="token_rotation", tokens=2, top=3)
    script, link = results.link_of(entry(text))
    assert script == PAGE
    at = opened(PAGE, **link, sentences="4")
    assert_sound(at, caplog)
    (result,) = stored("stitched-text")
    assert result.provenance["settings"] == text.to_dict()


def test_readers_cover_all_that_the_address_says():
    assert set(stitching_form.readers()) == set(stitching_form.DEFAULTS)
    assert stitching_form.readers()["kernels"]("ridge permuted") == ["ridge", "permuted"]
    assert {item.name for item in dataclasses.fields(Stitching)} <= set(stitching_form.DEFAULTS)


def test_verdict_counts_cells_and_names_the_cuts_that_fail():
    text = verdicts.verdict(made(), "pseudo_inverse")
    assert "after 1 of 2 blocks of A, the stitched model has a loss of 5.20 nats a token" in text
    assert "0.20 more than B alone (5.00)" in text
    assert "1.90 less than the best control there (vocabulary permuted, 7.10)" in text
    assert "Of its 12 cells 8 beat token frequencies (6.50), all cells allowed for" in text
    assert "no cell of a control does" in text
    assert "No cell is better than the base rate at cut 0 of A." in text
    failing = verdicts.verdict(made(), "permuted")
    assert "Of its 12 cells none beats" in failing
    assert "No cell is better than the base rate at any cut of A." in failing
    assert "of a control" not in failing, "the map looked at is a control itself"


def test_verdict_does_not_call_failed_what_the_texts_are_too_few_to_tell():
    text = verdicts.verdict(dataclasses.replace(made(), gain_errors=np.full((1, 2, 3, 4), 2.0)), "pseudo_inverse")
    assert "Of its 12 cells none beats" in text
    assert "No cell is better than the base rate at cut 0 of A." in text
    assert "Cells are better, but not beyond doubt with these 20 texts, at cuts 1 and 2 of A: score more texts." in text
    values = made().values - 1.0
    open_ = dataclasses.replace(made(), values=values, gain_errors=np.full((1, 2, 3, 4), 9.0))
    assert "with these 20 texts, at every cut of A: score more texts." in verdicts.verdict(open_, "pseudo_inverse")
    assert "There is such a cell at every cut of A." in verdicts.verdict(
        dataclasses.replace(made(), values=values), "pseudo_inverse"
    )


def test_verdict_says_where_no_outcome_could_have_passed():
    few = dataclasses.replace(made(accuracy=True), distinct_texts=5)
    assert not few.can_tell
    text = verdicts.verdict(few, "pseudo_inverse")
    assert (
        "With 5 texts no outcome could have passed the test against the majority class (50.0 %), for 12 cells" in text
    )
    assert "none beats" not in text
    assert "Cells are better, but not beyond doubt with these 5 texts, at cuts 1 and 2 of A." in text
    assert "no outcome could be beyond doubt with 5 texts" in verdicts.cell(few, "pseudo_inverse", 1, 2)


@pytest.mark.parametrize("texts", range(1, 16))
@pytest.mark.parametrize("accuracy", [True, False])
def test_a_run_is_warned_of_beforehand_exactly_where_afterwards_it_cannot_tell(texts, accuracy):
    result = dataclasses.replace(made(accuracy=accuracy), distinct_texts=texts)
    assert (verdicts.too_few(result.task, texts, 12) == "") == result.can_tell


def test_so_few_texts_that_no_outcome_can_pass_are_told_before_the_run(monkeypatch, caplog):
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, model_b="demo/gpt2-a-sentiment", sentences="6")
    assert_sound(at, caplog)
    (warning,) = at.warning
    assert "With 6 texts no outcome can pass the test against the majority class" in warning.value
    least = int(warning.value.rpartition("at least ")[2].rstrip("."))
    at.number_input(key=f"{KEY}sentences").set_value(least)
    settled(at)
    assert not at.warning


def test_the_best_cell_is_the_best_of_all_that_the_grid_shows():
    for best in ((1, 0), (0, 0), (2, 3)):
        result = made()
        result.values[0, 1, 0][best] = 4.0
        assert say.best_cell(result, "permuted", "loss") == best
    result = made(accuracy=True)
    result.values[0, 0, 0, 1, 0] = 1.5
    assert say.best_cell(result, "pseudo_inverse", "accuracy") == (1, 0)
    assert result.best_entries("pseudo_inverse", "accuracy")[1] == 2, "the joined line leaves entry 0 out"


def test_the_reference_numbers_are_the_extremes_of_the_grids(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **QUICK, score="kl")
    assert_sound(at, caplog)
    (result,) = stored("stitching")
    rows = at.table[0].value.iloc[-3:, 1]
    for name, row in zip(result.kernels, rows, strict=True):
        assert row.startswith(f"{np.nanmin(result.mean(name, 'kl')):.2f} ± ")
    assert f"the best of all {result.values[0, 0, 0].size} cells of its map, cut 0 and entry 0 included" in sentences(
        at
    )
    assert "above cut 0 entry 0, B's embedding output, is left out" in sentences(at)


def test_headline_and_cell_say_which_score_they_speak_of_and_the_one_shown():
    result = made()
    shown = float(result.mean("pseudo_inverse", "kl")[1, 2])
    sentence = f"The score shown, divergence from B, is {shown:.2f} nats a token in this cell (B alone 0.35)."
    text = verdicts.verdict(result, "pseudo_inverse", "kl")
    assert "has a loss of 5.20 nats a token" in text
    assert f"{sentence} What follows speaks of loss." in text
    cell = verdicts.cell(result, "pseudo_inverse", 1, 2, "kl")
    assert "loss 5.20 nats a token" in cell
    assert sentence in cell
    assert "The score shown" not in verdicts.verdict(result, "pseudo_inverse", "loss")
    assert "The score shown" not in verdicts.cell(result, "pseudo_inverse", 1, 2, "loss")


def test_legend_says_that_grey_is_what_the_test_does_not_tell_from_the_base_rate():
    legend = stitching_picture.legend(made(), "pseudo_inverse", "loss")
    assert "Greyed: not beyond token frequencies (6.50) in loss at 5 % for all cells together." in legend
    assert "no better" not in legend
    assert "per cent" not in legend
    assert "its own number, in whole per cent" in stitching_picture.legend(
        made(accuracy=True), "pseudo_inverse", "accuracy"
    )


@pytest.mark.parametrize("selection", ["", "cell"])
def test_tooltips_call_the_outlined_cells_best_entries(selection):
    result = made()
    drawn = stitching_picture.grid(result, "pseudo_inverse", "loss", ("a", "b"), selection=selection).to_dict()
    tips = [tip for layer in drawn["layer"][0]["layer"] for tip in layer["encoding"].get("tooltip", [])]
    titles = {tip["title"]: tip["field"] for tip in tips}
    assert titles["best entry of this cut"] == "pairing"
    assert "assignment" not in titles
    rows = drawn["datasets"][drawn["layer"][0]["data"]["name"]]
    told = [(row["layer_a"], row["layer_b"]) for row in rows if row["pairing"] == "yes"]
    assert told == list(enumerate(result.best_entries("pseudo_inverse", "loss").tolist()))


@pytest.mark.parametrize(("accuracy", "score", "written"), [(True, "accuracy", "~%"), (False, "loss", "~r")])
def test_the_colour_bar_of_a_share_is_in_per_cent_as_the_cells_are(accuracy, score, written):
    drawn = stitching_picture.bar(made(accuracy=accuracy), score).to_dict()
    assert drawn["layer"][0]["encoding"]["x"]["axis"]["format"] == written


@pytest.mark.parametrize(
    ("share", "decimals", "expected"),
    [(0.125, 0, "13"), (0.375, 0, "38"), (0.625, 0, "63"), (0.0625, 1, "6.3"), (0.285, 0, "29"), (1.0, 1, "100.0")],
)
def test_shares_are_rounded_in_one_way(share, decimals, expected):
    assert say.percent(share, decimals) == expected


def test_only_a_map_that_can_continue_a_text_offers_it(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, sentences="6", kernels="pseudo_inverse ridge")
    assert_sound(at, caplog)
    assert "to see its texts and to continue one of your own." in sentences(at)
    box(at, f"{KEY}map").set_value("ridge")
    settled(at)
    assert "Click a cell, or choose it below the picture, to see its texts." in sentences(at)


@pytest.mark.parametrize(
    ("above", "column", "offered"),
    [
        ("demo/gpt2-a-sentiment", "Sentiment", "Sentiment"),
        ("demo/gpt2-a-sentiment", "score", None),
        ("demo/gpt2-a", "label", None),
    ],
)
def test_a_column_called_label_is_offered_where_labels_matter(above, column, offered, monkeypatch, caplog):
    from test_inputs import element

    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, model_b=above)
    key = f"{KEY}corpus"
    at.session_state[f"{key}.own"] = True
    at.run()
    element(at.segmented_control, f"{key}.how").set_value("File")
    at.run()
    for number in range(2):  # a second file in place of the first is looked at anew
        other = "class" if number and offered else column
        data = f"text,{other}\nab,good\ncd,bad\n".encode()
        element(at.get("file_uploader"), f"{key}.file.0").set_value((f"{number}.csv", data, "text/csv"))
        at.run()
        assert_sound(at, caplog)
        labels = element(at.selectbox, f"{key}.Label column.0")
        assert labels.value == (other if offered else None)
    element(at.selectbox, f"{key}.Label column.0").set_value("text")
    at.run()
    assert element(at.selectbox, f"{key}.Label column.0").value == "text", "what was chosen stays"


def test_verdict_of_classes_is_in_per_cent_of_texts():
    text = verdicts.verdict(made(accuracy=True, runs=3), "pseudo_inverse")
    assert "of 400 texts in each of 3 runs into the right class" in text
    assert "B alone 100.0 %" in text
    assert "the majority class (50.0 %)" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [((), ""), ((3,), "3"), ((0, 1), "0 and 1"), ((0, 1, 2), "0 to 2"), ((0, 2, 3, 4, 7), "0, 2 to 4 and 7")],
)
def test_numbers_are_said_in_a_row(given, expected):
    assert say.numbers(given) == expected


def test_colours_run_from_b_alone_to_the_control_and_to_the_base_rate_without_one():
    result = made()
    ends = stitching_picture.anchors(result, "loss")
    assert (ends.near, ends.far) == (5.0, 7.1)
    scale = stitching_picture.scale_of(result, "loss")
    assert scale.low_is_bright
    assert not stitching_picture.scale_of(made(accuracy=True), "accuracy").low_is_bright
    alone = dataclasses.replace(
        result, kernels=result.kernels[:1], values=result.values[:, :1], errors=result.errors[:, :1]
    )
    assert stitching_picture.anchors(alone, "loss").far == 6.5
    worse = dataclasses.replace(alone, own_b=np.full((1, 3), 9.0))
    ends = stitching_picture.anchors(worse, "loss")
    assert ends.near < ends.far, "B alone is worse than the base rate: the extremes of the cells stand in"


def data_of(chart: dict, mark: str) -> list[dict]:
    layer = next(layer for layer in chart["layer"] if "mark" in layer and layer["mark"]["type"] == mark)
    return chart["datasets"][layer["data"]["name"]]


def test_cells_at_the_base_rate_are_greyed_numbers_written_and_best_entries_joined():
    result = made()
    drawn = stitching_picture.grid(result, "pseudo_inverse", "loss", ("a", "b")).to_dict()
    grey = data_of(drawn, "rect")
    assert sorted((row["layer_a"], row["layer_b"]) for row in grey) == [(0, k) for k in range(4)]
    line = data_of(drawn, "line")
    assert [(row["layer_a"], row["layer_b"]) for row in line] == list(
        enumerate(result.best_entries("pseudo_inverse", "loss").tolist())
    )
    written = {(row["layer_a"], row["layer_b"]): row["number"] for row in data_of(drawn, "text")}
    assert written[1, 2] == "5.20"
    assert written[0, 0] == "7.00", "beyond neither end, and beyond the base rate"


def test_lines_have_controls_dashed_and_levels_as_rules():
    result = made()
    drawn = stitching_picture.lines(result, "loss", "best", "a").to_dict()
    dashes = next(
        layer["encoding"]["strokeDash"]["scale"] for layer in drawn["layer"] if "strokeDash" in layer["encoding"]
    )
    assert dashes["domain"] == [KERNELS[name].label for name in result.kernels]
    assert dashes["range"][0] == [1, 0]
    assert dashes["range"][1] != [1, 0]
    assert stitching_picture.rules_of(result, "loss") == {"B alone": 5.0, "unigram": 6.5}


def test_same_depth_joins_layers_of_equal_share():
    at = stitching_picture.entries_of(made(), "pseudo_inverse", "loss", "same")
    assert at.tolist() == [0, 2, 3]


def test_a_picture_for_a_paper_is_made(monkeypatch):
    svg = stitching_picture.export(made(), "pseudo_inverse", "loss", ("a", "b"), "A note.", "svg").decode()
    assert "Stitching: a below, b above" in svg


@pytest.mark.parametrize(
    ("architecture", "tuned", "task"),
    [
        ("GPT2LMHeadModel", 0, "next token"),
        ("GPT2LMHeadModel", 2, "classes"),
        ("BertForMaskedLM", 0, "masked token"),
        ("GPT2ForTokenClassification", 0, "classes"),
        ("GPT2Model", 0, "next token"),
    ],
)
def test_the_task_is_told_from_the_configuration(architecture, tuned, task):
    from embcompare.experiments.estimate_stitching import task_of
    from embcompare.models import inspect_model

    info = dataclasses.replace(inspect_model("demo/gpt2-a"), architecture=architecture)
    assert task_of(info, tuned) == task


def test_large_models_are_not_loaded_for_the_form(monkeypatch):
    from embcompare.models import inspect_model

    info = dataclasses.replace(inspect_model("demo/gpt2-a"), bytes=10**10)
    monkeypatch.setattr(stitching_fit, "default_pool", lambda: pytest.fail("loaded"))
    assert stitching_fit.fit(("a", "b"), (info, info)) == stitching_fit.Fit("next token", "", "")


def test_a_clicked_cell_outside_is_ignored_and_defaults_are_the_experiment_s(monkeypatch):
    state: dict = {}
    monkeypatch.setattr(stitching_cell.st, "session_state", state)
    stitching_cell.take_click([{"layer_a": 3, "layer_b": 0}], (3, 4))
    assert stitching_cell.chosen((3, 4)) is None
    stitching_cell.take_click([{"layer_a": 2, "layer_b": 3}], (3, 4))
    assert stitching_cell.chosen((3, 4)) == (2, 3)
    assert stitching_form.DEFAULTS["kernels"] == DEFAULT_KERNELS
