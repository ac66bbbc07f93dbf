"""The page Decomposition in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from test_page_representations import alts, stored
from test_page_stitching import said
from test_pages import (  # noqa: F401
    ROOT,
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

from embcompare.decomposition.indicator import INDICATORS
from embcompare.experiments.decomposition import Decomposition
from embcompare.experiments.decomposition_result import DecompositionResult
from embcompare.experiments.term_sentence import SentenceTerms
from embcompare.experiments.term_series import TermSeries
from embcompare.store import Store
from embcompare.ui import decomposition_about as about
from embcompare.ui import decomposition_blocks as blocks
from embcompare.ui import decomposition_parts as parts
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_sentence as sentence_view
from embcompare.ui import decomposition_words as say
from embcompare.ui import inputs, results

PAGE = "pages/6_Decomposition.py"
KEY = "decomposition."
TEXT = "ab cd ef"
SENTENCE = {"text": TEXT}
LAYERS = {"tab": "layers", "sentences": "6", "positions": "20"}
SERIES = {
    "tab": "series",
    "series_sentences": "4",
    "series_runs": "one: demo/numbers-1-100, demo/numbers-1-300, demo/numbers-1-600; "
    "two: demo/numbers-2-100, demo/numbers-2-300, demo/numbers-2-600",
}
NUMBERS = {"model_a": "demo/numbers-1-600", "model_b": "demo/numbers-2-600"}


def tokens_chart(at, side: str) -> str:
    """The key under which a click on a side's tokens is reported."""
    import hashlib

    (result,) = stored("sentence-terms")[-1:]
    digest = hashlib.sha256(repr(getattr(result, f"tokens_{side}")).encode()).hexdigest()[:10]
    return f"{KEY}tokens.{side}.{digest}"


def computed(monkeypatch, kind) -> list:
    """Every run of an experiment from here on."""
    runs, original = [], kind.compute
    monkeypatch.setattr(kind, "compute", lambda s, c: runs.append(s) or original(s, c))
    return runs


def made(mean_a, mean_b=None, *, width: float = 0.01, items: int = 9, kinds=None) -> DecompositionResult:
    """A result of two states whose importance is given, (2, K); its intervals are so wide on either side."""
    kinds = kinds or ("input", "self-attention", "feed-forward", "correction")[: len(mean_a[0])]
    means = [np.asarray(mean_a, dtype=float), np.asarray(mean_a if mean_b is None else mean_b, dtype=float)]
    fields = {}
    for side, mean in zip("ab", means, strict=True):
        table = np.stack([mean] * 4)
        fields |= {
            f"states_{side}": ("embedding output", "block 1"),
            f"layers_{side}": np.arange(2),
            f"terms_{side}": kinds,
            f"kinds_{side}": kinds,
            f"term_layers_{side}": np.full(len(kinds), -1),
            f"term_heads_{side}": np.full(len(kinds), -1),
            f"mean_{side}": table,
            f"sd_{side}": np.full_like(table, 0.1),
            f"low_{side}": table - width,
            f"high_{side}": table + width,
            f"undefined_{side}": np.zeros(table.shape, dtype=np.int64),
            f"residual_{side}": 1e-16,
            f"tokens_{side}": 40,
            f"target_{side}": "next token",
            f"scored_{side}": 0,
            f"dropped_{side}": (),
            f"loss_{side}": None,
            f"rise_{side}": None,
        }
    return DecompositionResult(indicators=tuple(INDICATORS), items=items, **fields)


# One text


def test_arriving_shows_verdict_bars_tokens_and_parts(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE)
    assert_sound(at, caplog)
    assert at.title[0].value == "Decomposition"
    (result,) = stored("sentence-terms")
    for side in "ab":
        assert say.of_token(result, side, len(result.states_a) - 1, result.position_a) in sentences(at)
    assert f"Terms add up to the states to {say.exactness(result.residual_a, result.residual_b)}" in sentences(at)
    last = pictures.by_kind(result.of("a", "importance"), result.kinds_a, 1)[-1][:, ~result.special_a].mean(1)
    assert f"last state: {say.shares(last, pictures.kinds_of(result.kinds_a))}." in alts(at)[0]
    tables = [element.value for element in at.dataframe if "importance" in element.value and "top" in element.value]
    assert len(tables) == 2
    assert tables[0]["importance"].sum() == pytest.approx(2, abs=1e-9), "shares sum to 1, beside the sum's own 1"
    for place, row in enumerate(tables[1]["top"].tolist()):
        expected = result.top_b[place, result.position_b]
        assert list(row) == [result.name("b", int(token)) for token in expected if token >= 0]


def test_the_bars_are_signed_share_one_scale_and_have_a_rule_at_one(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE, over="token")
    assert_sound(at, caplog)
    specs = [json.loads(proto.spec) for proto in charts_of(at)[:2]]
    domains = [spec["layer"][0]["encoding"]["y"]["scale"]["domain"] for spec in specs]
    assert domains[0] == domains[1]
    (result,) = stored("sentence-terms")
    values = [
        pictures.by_kind(result.of(side, "importance"), getattr(result, f"kinds_{side}"), 1)[
            :, :, getattr(result, f"position_{side}")
        ]
        for side in "ab"
    ]
    assert domains[0] == pytest.approx(list(pictures.extent(*values)))
    assert specs[0]["layer"][0]["encoding"]["y"]["stack"] == "zero"
    assert specs[0]["layer"][0]["encoding"]["color"]["scale"]["domain"] == list(pictures.kinds_of(result.kinds_a))
    assert specs[1]["layer"][1]["mark"]["type"] == "rule"


def test_a_click_on_a_token_changes_every_panel_and_enters_the_address(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE)
    at.session_state[tokens_chart(at, "a")] = {"selection": {"token": [{"place": 1}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (said(at)["position_a"], said(at)["position_b"]) == ("1", "1"), "both read the same tokens"
    result = stored("sentence-terms")[-1]
    assert result.position_a == 1
    assert say.of_token(result, "a", result.state_a, 1) in sentences(at)
    token = result.tokens_a[1]
    assert sum(f"· ‘{token}’" in text for text in sentences(at).splitlines()) == 6, "two sides, three panels"
    assert result.sources_a.shape[1] == 3, "tokens 0 and 1, and the correction"


def test_a_click_beside_the_tokens_changes_nothing(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE)
    at.session_state[tokens_chart(at, "a")] = {"selection": {"token": [{"place": 99}]}}
    settled(at)
    assert_sound(at, caplog)
    assert "position_a" not in said(at)


def test_another_text_goes_to_its_own_last_token(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE, position_a="3", position_b="3")
    at.text_area(key=f"{KEY}text").set_value("xy")
    next(found for found in at.button if found.label == "Take apart").click()
    settled(at)
    assert_sound(at, caplog)
    assert not at.error
    assert said(at)["text"] == "xy"
    assert "position_a" not in said(at)


def test_a_token_that_the_text_does_not_have_is_told_and_the_last_one_offered(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE, position_a="90")
    assert_sound(at, caplog)
    assert "it has no token 90" in at.error[0].value
    button(at, "decomposition.last").click()
    settled(at)
    assert_sound(at, caplog)
    assert charts_of(at)
    assert not at.error


def test_a_layer_that_the_model_does_not_have_is_dropped_with_a_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE, layer_b="40")
    assert_sound(at, caplog)
    assert "B has no layer 40; its layers are 0 to 2." in sentences(at)
    assert "layer_b" not in said(at)


def test_an_empty_text_is_answered_with_one_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE)
    at.text_area(key=f"{KEY}text").set_value("  ")
    next(found for found in at.button if found.label == "Take apart").click()
    settled(at)
    assert_sound(at, caplog)
    (error,) = at.error
    assert "The text is empty" in error.value


def test_a_model_without_a_head_is_shown_without_what_is_read_in_tokens(tiny_folders, caplog):
    both = {"model_a": str(tiny_folders("bert-plain")), "model_b": str(tiny_folders("bert-mlm"))}
    at = opened(PAGE, **both, **SENTENCE, brought="logit")
    assert_sound(at, caplog)
    assert sentences(at).count("This model has no head that predicts tokens") == 2
    assert len([alt for alt in alts(at) if "logit" in alt]) == 2, "B's parts and B's input tokens"


def test_split_by_head_the_terms_are_listed_and_their_shares_still_sum_to_one(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **SENTENCE, by="head")
    assert_sound(at, caplog)
    (result,) = stored("sentence-terms")
    table = next(element.value for element in at.dataframe if "top" in element.value)
    assert table["term"].tolist() == [*result.terms_a, "sum"]
    assert table["importance"][:-1].sum() == pytest.approx(1)


def test_an_encoder_decoder_shows_what_it_writes_and_five_terms(caplog):
    at = opened(PAGE, **NUMBERS)
    assert_sound(at, caplog)
    (result,) = stored("sentence-terms")
    assert f"A writes: {result.translation_a}" in sentences(at)
    assert at.text_area(key=f"{KEY}text").value == sentence_view.EXAMPLE_NUMBER
    assert "cross-attention" in alts(at)[0]
    at.text_area(key=f"{KEY}target").set_value("cuatrocientos")
    next(found for found in at.button if found.label == "Take apart").click()
    settled(at)
    assert_sound(at, caplog)
    assert "B reads, as given: cuatrocientos" in sentences(at)
    assert said(at)["target"] == "cuatrocientos"
    box(at, "model_a").set_value("demo/gpt2-a")
    box(at, "model_b").set_value("demo/gpt2-b")
    settled(at)
    assert_sound(at, caplog)
    assert at.text_area(key=f"{KEY}text").value == sentence_view.EXAMPLE


# A corpus


def test_layers_show_verdict_profiles_and_dropped_terms(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS)
    assert_sound(at, caplog)
    (result,) = stored("decomposition")
    from embcompare.ui import pair

    labels = tuple(map(pair.label_of, twins.values()))
    text = sentences(at)
    for side, label in zip("ab", labels, strict=True):
        assert say.carries(result, side, label) in text
    assert say.apart(result) in text
    assert say.ablated(result, labels) in text
    assert not [element for element in at.dataframe if "rise_low" in element.value], "made once they are asked for"
    at.session_state[about.NUMBERS] = True
    at.session_state[f"{KEY}others"] = True
    settled(at)
    assert_sound(at, caplog)
    assert len([alt for alt in alts(at) if "norm ratio of each term" in alt]) == 2
    frame = next(element.value for element in at.dataframe if "rise_low" in element.value)
    assert frame["rise"].tolist() == pytest.approx(result.ablation_frame()["rise"].tolist())


def test_another_indicator_or_drawing_needs_no_other_run(twins, monkeypatch, caplog):  # noqa: F811
    ran = computed(monkeypatch, Decomposition)
    at = opened(PAGE, **twins, **LAYERS)
    for name, value in (("indicator", "cosine"), ("indicator", "importance"), ("drawn", "stacked"), ("spread", True)):
        at.session_state[f"{KEY}{name}"] = value
        settled(at)
        assert_sound(at, caplog)
    assert len(ran) == 1
    assert (said(at)["drawn"], said(at)["spread"]) == ("stacked", "true")


def test_split_by_layer_every_block_s_term_is_drawn_and_what_does_not_add_up_is_said(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, by="head", indicator="cosine")
    assert_sound(at, caplog)
    assert "Cosine of several terms together is not the sum of theirs" in sentences(at)
    assert any("of self-attention terms" in alt for alt in alts(at))
    at.session_state[f"{KEY}indicator"] = "importance"
    settled(at)
    assert_sound(at, caplog)
    assert len([alt for alt in alts(at) if "of self-attention terms" in alt]) == 4, "blocks and heads of both models"


def test_translators_take_the_shipped_numbers_and_can_be_split_by_source_and_target(monkeypatch, caplog):
    at = opened(PAGE, **NUMBERS, **LAYERS, split="source-target")
    assert_sound(at, caplog)
    (result,) = stored("decomposition")
    assert result.kinds_a == ("target", "source", "correction")
    assert said(at)["corpus"] == "numbers"
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    box(at, "model_a").set_value("demo/gpt2-a")
    box(at, "model_b").set_value("demo/gpt2-b")
    settled(at)
    assert_sound(at, caplog)
    assert box(at, f"{KEY}corpus").value == "shipped"
    assert "so terms are by part of the model" in sentences(at)
    assert "Not computed yet: about" in sentences(at)


def test_a_text_without_translations_is_not_taken_for_translators(caplog):
    at = opened(PAGE, **NUMBERS, **LAYERS, corpus="reviews")
    assert_sound(at, caplog)
    assert "has no translations, so the shipped numbers are taken" in sentences(at)
    assert said(at)["corpus"] == "numbers"


def test_own_vectors_are_refused_with_one_sentence(caplog):
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    at.switch_page(PAGE)
    at.session_state["model_b"] = "vectors/" + "0" * 64
    at.run()
    assert_sound(at, caplog)
    assert "vectors of your own" in at.error[0].value


PAIRS = [
    ("gpt2", "marian"),
    ("t5", "marian"),
    ("bert-plain", "gpt-neox"),
    ("gemma2", "opt"),
    ("llama", "electra-generator"),
]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("query", [SENTENCE, LAYERS, {**LAYERS, "by": "head", "sentences": "1"}], ids=str)
def test_every_family_is_shown_beside_every_other(query, pair, tiny_folders, caplog):
    both = {"model_a": str(tiny_folders(pair[0], 0)), "model_b": str(tiny_folders(pair[1], 1))}
    at = opened(PAGE, **both, **query)
    assert_sound(at, caplog)
    assert not at.error
    expected = 8 - ("bert-plain" in pair) if "tab" not in query else 7 if "by" in query else 3
    assert len(charts_of(at)) == expected, "a model without a head has no logits to take apart"


# Trainings


def test_series_show_what_goes_with_performance_and_what_so_few_runs_can_tell(caplog):
    at = opened(PAGE, **SERIES)
    assert_sound(at, caplog)
    (result,) = stored("term-series")
    text = sentences(at)
    assert result.sentence("BLEU", result.state) in text
    assert result.limits() in text
    table = next(element.value for element in at.dataframe if "alike" in element.value)
    frame = result.correlation_frame()
    own = frame[(frame["metric"] == "BLEU") & (frame["state"] == result.states[result.state])]
    assert sorted(table["rho"].dropna()) == pytest.approx(sorted(own["rho"].dropna()))
    assert "term" not in said(at), "what nobody chose is not in the address"
    assert "metric" not in said(at)
    at.session_state[f"{KEY}metric"] = "loss"
    at.session_state[f"{KEY}term"] = "correction"
    at.session_state[f"{KEY}state"] = "1"
    settled(at)
    assert_sound(at, caplog)
    assert (said(at)["metric"], said(at)["term"], said(at)["state"]) == ("loss", "correction", "1")
    assert result.sentence("loss", 1) in sentences(at)
    assert "what goes with better models is negative" in sentences(at)
    assert any(alt.startswith("importance of correction against loss") for alt in alts(at))


def test_one_run_of_language_models_works_and_says_what_it_cannot_tell(caplog):
    runs = "only: demo/gpt2-series-50, demo/gpt2-series-400, demo/gpt2-series-2000"
    at = opened(PAGE, tab="series", series_runs=runs, series_sentences="6")
    assert_sound(at, caplog)
    (result,) = stored("term-series")
    assert said(at)["series_corpus"] == "shipped"
    assert "One run cannot tell" in sentences(at)
    assert result.limits() in sentences(at)


@pytest.mark.parametrize(
    ("runs", "more"),
    [
        ("one: demo/numbers-1-100; two: demo/numbers-2-100", {}),
        ("one: demo/numbers-1-100, demo/numbers-1-600; two: demo/numbers-2-600", {"series_sentences": "1"}),
        (SERIES["series_runs"], {"series_split": "source-target", "series_mode": "generated", "term": "source"}),
        (SERIES["series_runs"], {"term": "all terms", "state": "0", "indicator": "norm_ratio"}),
    ],
)
def test_short_and_uneven_series_are_shown_with_what_they_cannot_tell(runs, more, caplog):
    at = opened(PAGE, **{**SERIES, "series_runs": runs, **more})
    assert_sound(at, caplog)
    (result,) = stored("term-series")
    assert result.limits() in sentences(at)
    for name, value in more.items():
        assert str(at.session_state[f"{KEY}{name}"]) == value


def test_a_series_of_unlike_models_ends_in_one_sentence(caplog):
    at = opened(PAGE, tab="series", series_runs="one: demo/gpt2-a; two: demo/numbers-1-600", series_sentences="3")
    assert_sound(at, caplog)
    (error,) = at.error
    assert "need the same terms and states" in error.value


def test_runs_that_cannot_be_read_stay_in_the_box_with_the_reason(caplog, monkeypatch):
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, tab="series")
    at.text_area(key=f"{KEY}series.box").set_value("one: demo/gpt2-a\none: demo/gpt2-b")
    next(found for found in at.button if found.label == "Use these runs").click()
    settled(at)
    assert_sound(at, caplog)
    assert "Two runs are called 'one'" in sentences(at)
    assert at.text_area(key=f"{KEY}series.box").value.startswith("one: demo/gpt2-a")
    at.text_area(key=f"{KEY}series.box").set_value("one: demo/gpt2-a\ntwo: demo/nobody")
    next(found for found in at.button if found.label == "Use these runs").click()
    settled(at)
    assert_sound(at, caplog)
    assert "nobody" in at.error[0].value
    assert said(at)["series_runs"] == "one: demo/gpt2-a; two: demo/nobody"


def test_a_shipped_series_is_one_click(caplog, monkeypatch):
    monkeypatch.setattr("embcompare.ui.runs.QUICK_SECONDS", -1.0)
    at = opened(PAGE, tab="series")
    assert "Not computed yet: about" in sentences(at)
    button(at, "decomposition.preset.gpt2").click()
    settled(at)
    assert_sound(at, caplog)
    assert "demo/gpt2-series-2000" in said(at)["series_runs"]
    assert said(at)["series_corpus"] == "shipped"


# Addresses, stored results, own pairs


def test_a_hostile_link_is_answered_with_a_sentence(twins, caplog):  # noqa: F811
    bad = {"by": "<b>", "layer_a": "../x", "k": "-3", "tab": "none", "series_runs": ";;", "state": "x", "left": "1"}
    at = opened(PAGE, **twins, **SENTENCE, **bad)
    assert_sound(at, caplog)
    assert "Part of the link cannot be followed" in sentences(at)
    for name in bad:
        assert name not in said(at), name


def test_the_address_brings_every_setting_back(twins, caplog):  # noqa: F811
    query = {**twins, "text": TEXT, "layer_a": "1", "position_b": "2", "k": "4", "by": "layer", "mean": "own"}
    query |= {"attention_bias": "attention", "token_mean": "correction", "over": "token", "brought": "logit"}
    at = opened(PAGE, **query)
    assert_sound(at, caplog)
    assert said(at) == query


@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        (SentenceTerms, {"text": TEXT, "layer_a": 1, "position_b": 2, "by": "layer"}),
        (Decomposition, {"sentences": 5, "by": "layer", "ablation": False, "seed": 3}),
    ],
)
def test_a_stored_result_opens_here_without_another_run(wanted, more, twins, monkeypatch, caplog):  # noqa: F811
    from embcompare.running import run

    run(wanted(**twins, **more), store=Store())
    ran = computed(monkeypatch, wanted)
    (entry,) = [entry for entry in Store().entries() if entry.experiment == wanted.experiment]
    script, address = results.link_of(entry)
    assert script == PAGE
    at = opened(PAGE, **address)
    assert_sound(at, caplog)
    assert charts_of(at)
    assert not ran


def test_a_stored_series_opens_here_without_another_run(monkeypatch, caplog):
    from embcompare.running import run

    run(TermSeries(SERIES["series_runs"], sentences=3, layer=2, mean="own"), store=Store())
    ran = computed(monkeypatch, TermSeries)
    (entry,) = Store().entries()
    _, address = results.link_of(entry)
    at = opened(PAGE, **address)
    assert_sound(at, caplog)
    assert charts_of(at)
    assert not ran
    assert results.described(entry)


def test_own_pairs_are_kept_and_offered_to_translators_alone():
    from embcompare.text.translations import translations_from_text
    from embcompare.ui import given

    name = given.keep_text(translations_from_text("one\tuno\ntwo\tdos"))
    plain = given.keep_text(dataclasses.replace(translations_from_text("one\tuno\ntwo\tdos"), targets=()))
    assert name in inputs.offered_pairs()
    assert plain not in inputs.offered_pairs()
    assert name in inputs.offered_texts(), "its sources are a text"


def test_own_pairs_are_pasted_and_refused_with_the_reason(caplog):
    at = opened(PAGE, **NUMBERS, **LAYERS)
    key = f"{KEY}corpus"
    at.session_state[f"{key}.own"] = True
    at.run()
    at.text_area(key=f"{key}.pasted.0").set_value("no tab in this line")
    button(at, f"{key}.take").click()
    settled(at)
    assert "has 0 tabs; write source, one tab, translation" in sentences(at)
    at.text_area(key=f"{key}.pasted.0").set_value("forty-two\tcuarenta y dos\nnineteen\tdiecinueve")
    button(at, f"{key}.take").click()
    settled(at)
    assert_sound(at, caplog)
    assert said(at)["corpus"].startswith("text/")
    result = stored("decomposition")[-1]
    assert result.items == 2
    assert "forty-two → cuarenta y dos" in [text.value for text in at.text]


# What is said and drawn


def test_what_carries_the_last_state_is_said_with_its_interval():
    result = made([[1, 0, 0, 0], [0.1, 0.6, 0.2, 0.1]])
    text = say.carries(result, "a", "M")
    assert text.startswith("M: self-attention carries more than half of the last state (block 1), 0.60")
    assert "0.59 to 0.61" in text
    assert say.carries(made([[1, 0, 0, 0], [0.1, 0.4, 0.3, 0.2]]), "a", "M").startswith(
        "M: self-attention carries the largest share"
    )
    alike = say.carries(made([[1, 0, 0, 0], [0.1, 0.41, 0.4, 0.09]], width=0.05), "a", "M")
    assert "self-attention and feed-forward carry the last state (block 1) about alike" in alike


def test_where_two_models_part_is_said_only_where_intervals_are_apart():
    one, other = [[1, 0, 0, 0], [0.1, 0.6, 0.2, 0.1]], [[1, 0, 0, 0], [0.2, 0.3, 0.4, 0.1]]
    assert "in self-attention (block 1): 0.60 in A, 0.30 in B" in say.apart(made(one, other))
    assert say.apart(made(one, other, width=0.2)) == (
        "Nowhere along the depth are the intervals of the two models apart."
    )
    assert "cannot be told" in say.apart(made(one, other, width=np.nan, items=1))


def test_states_of_unequal_depth_are_matched_at_the_same_relative_depth():
    assert say.matched(3, 5) == [(0, 0), (1, 2), (2, 4)]
    assert say.matched(5, 3) == [(0, 0), (2, 1), (4, 2)]
    assert say.matched(2, 2) == [(0, 0), (1, 1)]


def test_kinds_are_summed_in_the_order_they_are_drawn():
    kinds = ("correction", "self-attention", "self-attention", "input")
    values = np.arange(8.0).reshape(2, 4)
    assert pictures.kinds_of(kinds) == ("input", "self-attention", "correction")
    np.testing.assert_array_equal(pictures.by_kind(values, kinds, 1), [[3, 3, 0], [7, 11, 4]])


def test_limits_hold_every_stack_and_zero_and_one():
    low, high = pictures.extent(np.array([[0.7, -0.3, 0.6]]))
    assert low < -0.3
    assert high > 1.3
    low, high = pictures.extent(np.array([[0.5, 0.5]]))
    assert low == 0
    assert high > 1


def test_parts_that_are_gathered_keep_their_sum():
    values = np.random.default_rng(0).normal(size=(40, 5))
    table, names = parts.gathered(values, [f"part {at}" for at in range(40)])
    assert len(table) == len(names) == parts.ROWS
    assert names[-1] == "29 others together"
    np.testing.assert_allclose(table.sum(0), values.sum(0))
    assert np.abs(table[:-1]).max() == np.abs(values).max()
    assert parts.gathered(values[:5], list("abcde"))[1] == list("abcde")


def test_blocks_are_sums_over_their_heads_and_heads_are_the_last_state_s():
    kinds = ("input", *["self-attention"] * 4, "correction")
    values = np.array([[1.0, 0, 0, 0, 0, 0], [0.5, 0.1, 0.2, 0.05, 0.05, 0.1]])
    result = dataclasses.replace(
        made(values, kinds=kinds),
        term_layers_a=np.array([-1, 1, 1, 2, 2, -1]),
        term_heads_a=np.array([-1, 0, 1, 0, 1, -1]),
    )
    matrix, rows, columns, _ = blocks.by_block(result, "a", "importance", "self-attention")
    assert rows == ["block 1", "block 2"]
    assert columns == ["0", "1"]
    np.testing.assert_allclose(matrix, [[np.nan, 0.3], [np.nan, np.nan]])
    heads, rows, columns, _ = blocks.by_head(result, "a", "importance", "self-attention")
    np.testing.assert_allclose(heads, [[0.1, 0.2], [0.05, 0.05]])
    assert blocks.by_block(result, "a", "cosine", "self-attention") is None
    assert blocks.by_head(result, "a", "importance", "feed-forward") is None


def test_numbers_are_written_with_a_true_minus_and_without_a_signed_zero():
    assert [pictures.number(value) for value in (-0.001, 0.004, -0.5)] == ["0.00", "0.00", "−0.50"]
    assert pictures.number(0.25, 1, "+") == "+0.2"


def test_the_pictures_can_be_taken_away(twins, caplog):  # noqa: F811
    result = made([[1, 0, 0, 0], [0.1, 0.6, 0.2, 0.1]])
    kinds = pictures.kinds_of(result.kinds_a)
    mean = result.of("a", "importance")
    panels = [
        pictures.stacked(mean, kinds, ["0", "1"], result.states_a, (0.0, 1.1), title="A"),
        pictures.lines(mean, result.low_a[0], result.high_a[0], kinds, ["0", "1"], result.states_a, "importance"),
    ]
    text = pictures.export(panels, "Terms", "A note.", "svg").decode()
    assert "<svg" in text
    assert "A note." in text
    assert pictures.export(panels[:1], "Terms", "A note.", "png").startswith(b"\x89PNG")
