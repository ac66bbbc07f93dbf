"""The page Vocabulary in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_page_representations import stored
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

from embcompare.errors import SettingsError
from embcompare.ui import vocabulary, vocabulary_agreement, vocabulary_difference, vocabulary_heads, vocabulary_views
from embcompare.ui.vocabulary import Vector, parse_vector

PAGE = "pages/3_Vocabulary.py"
KEY = "vocabulary."
LAYERS = {"layer_a": "1", "layer_b": "0"}
ALL = {"words_only": "false", "common": "0"}


def tables(at) -> list:
    return [element.value for element in at.dataframe]


def test_arriving_shows_a_layer_of_each_model_with_the_tokens_of_every_vector(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL)
    assert_sound(at, caplog)
    assert at.title[0].value == "Vocabulary"
    results = stored("token-reading")
    assert len(results) == 2
    for table in tables(at)[:2]:
        result = next(
            r
            for r in results
            if np.array_equal(r.index[r.order], table["index"]) and r.z[r.order][0] == table["z"].iloc[0]
        )
        first = result.order[0]
        ends = (result.top_tokens, result.bottom_tokens)
        clear = ends[int(result.z[first] < 0)][first]
        assert list(table["clear"].iloc[0]) == list(clear)
        assert (np.abs(table["z"].to_numpy()[:-1]) >= np.abs(table["z"].to_numpy()[1:]) - 1e-12).all()


def test_by_default_words_are_listed_and_the_strongest_common_direction_is_left_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS)
    assert_sound(at, caplog)
    assert "words_only=True" in " ".join(code.value for code in at.code)
    assert "common=1" in " ".join(code.value for code in at.code)


def test_a_vector_in_the_address_is_shown_beside_its_nearest(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL, vector="b.ff_values.1.3")
    assert_sound(at, caplog)
    assert "FF value 3 of layer 1 in B" in [header.value for header in at.subheader]
    (result,) = stored("nearest-vectors")
    assert result.provenance["settings"]["model_a"] == twins["model_b"]
    assert f"vector {result.index[0]} of layer {result.layer[0]}" in sentences(at)
    nearest = tables(at)[0]  # above the layers' tables, where it is seen without scrolling
    assert nearest["rho"].tolist() == pytest.approx(result.correlation.tolist())
    assert charts_of(at)[0].alt.startswith("Strongest correlation in each layer")
    button(at, "vector.close").click()
    settled(at)
    assert "vector" not in at.query_params
    assert len(tables(at)) == 2


def test_choosing_a_row_looks_at_that_vector(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL)
    wanted = int(tables(at)[0]["index"].iloc[2])
    at.session_state["vocabulary.vector"] = str(Vector("a", "ff_values", 1, wanted))
    settled(at)
    assert_sound(at, caplog)
    assert at.query_params["vector"] in (f"a.ff_values.1.{wanted}", [f"a.ff_values.1.{wanted}"])
    assert f"FF value {wanted} of layer 1 in A" in [header.value for header in at.subheader]


def test_a_token_is_searched_in_both_models(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **ALL, tab="search")
    assert "Type a token" in sentences(at)
    field = next(found for found in at.text_input if found.key == f"{KEY}token")
    field.set_value("ab").run()
    settled(at)
    assert_sound(at, caplog)
    (result,) = stored("token-search")
    assert at.query_params["token"] in ("ab", ["ab"])
    assert f"of {result.searched_a:,} vectors" in sentences(at)
    shown = [table["z"].tolist() for table in tables(at)]
    both = [(result.model == side) & (result.promotes == end) for side in (0, 1) for end in (True, False)]
    assert shown == [result.z[rows].tolist() for rows in both]
    assert sentences(at).count("Scored highest") == sentences(at).count("Scored lowest") == 2


def test_a_token_that_no_vocabulary_has_is_told_with_a_way_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, tab="search", token="qqqqzzzz")
    assert_sound(at, caplog)
    assert "qqqqzzzz" in at.error[0].value
    assert "it is written qq ##" in at.error[0].value.replace("\\", "")
    assert not tables(at)
    assert not [found for found in at.button if found.label == "Try again"]


def test_heads_are_read_as_pairs_in_both_models(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **ALL, tab="heads", head_layer_a="1", head_number_b="1", pairs="7")
    assert_sound(at, caplog)
    results = stored("head-reading")
    assert sorted((r.provenance["settings"]["layer"], r.provenance["settings"]["head"]) for r in results) == [
        (0, 1),
        (1, 0),
    ]
    assert [len(table) for table in tables(at)] == [7, 7, 7, 7]
    for result in results:
        assert vocabulary_heads.chance(result) in sentences(at)
    button(at, "heads.nearest.a").click()
    settled(at)
    assert_sound(at, caplog)
    assert "W_VO of head 0 of layer 1 in A" in [header.value for header in at.subheader]


def test_the_difference_of_a_model_and_itself_says_that_nothing_changed(twins, caplog):  # noqa: F811
    at = opened(PAGE, model_a=twins["model_a"], model_b=twins["model_a"], **ALL, tab="difference")
    assert_sound(at, caplog)
    assert "are equal, number for number" in sentences(at)


def test_the_difference_of_separate_trainings_comes_with_a_warning(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **ALL, tab="difference")
    assert_sound(at, caplog)
    assert any("separate trainings" in found.value for found in at.warning)


def test_the_sentiment_model_is_one_click_away(caplog):
    at = opened(PAGE, tab="difference")
    button(at, "difference.example").click()
    settled(at)
    assert_sound(at, caplog)
    assert at.query_params["model_b"] in ("demo/gpt2-a-sentiment", ["demo/gpt2-a-sentiment"])
    (result,) = [r for r in stored("parameter-difference") if r.provenance["settings"]["model_b"].endswith("sentiment")]
    assert "18 of 36 groups of parameters (a group in one layer) are equal number for number" in sentences(at)
    assert result.unchanged.sum() == 18
    assert any("classifier: POSITIVE" in table.iloc[:, 0].tolist() for table in tables(at))


def test_agreement_says_where_it_is_beyond_chance_and_where_not(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **ALL, tab="agreement", read_sentences="12", set_k="10", shuffles="2")
    assert_sound(at, caplog)
    (result,) = stored("parameter-agreement")
    for side in (0, 1):
        assert vocabulary_agreement.verdict(result, "sim", (0,), side) in sentences(at)
    alts = [proto.alt for proto in charts_of(at)]
    assert sum(alt.startswith("Jaccard index of 10 by layer") for alt in alts) == 2
    assert sum(alt.startswith("By entries kept") for alt in alts) == 2


def test_verdict_names_the_layers_that_are_not_beyond_chance():
    class Made:
        layers = np.array([4, 4])
        sim_gap_low = np.array([[[0.1, -0.1, -0.3, np.nan]]])
        sim_gap_high = np.array([[[0.2, 0.1, -0.1, np.nan]]])

    said = vocabulary_agreement.verdict(Made(), "sim", (0,), 0)
    assert said == "Above chance in 1 of 3 layers; not in layers 1, 2 (below chance in 2)."


@pytest.mark.parametrize(
    ("exact", "said"),
    [
        ([0.1, 0.2, 0.3], "however many"),
        ([0.9, 0.9, 0.9], "however few"),
        ([0.1, 0.2, 0.9], "up to 50 entries, the exact inverse from 100 on"),
    ],
)
def test_where_the_exact_inverse_takes_over_is_computed(exact, said):
    kept = np.array([10, 50, 100])
    assert said in vocabulary_agreement.crossing(kept, np.full(3, 0.5), np.array(exact))


@pytest.mark.parametrize(
    "wrong",
    [
        "a",
        "a.ff_values.1",
        "c.ff_values.1.2",
        "a.nothing.1.2",
        "a.ff_values.-1.2",
        "a.ff_values.1.99999999",
        "a.b.c.d.e",
    ],
)
def test_a_vector_that_a_link_spells_wrongly_is_refused(wrong):
    with pytest.raises(SettingsError, match="a vector is written as"):
        parse_vector(wrong)
    assert vocabulary.read_vector("none") == "none"


def test_a_hostile_link_is_answered_with_a_sentence(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, vector="../x", tab="<script>", layer_a="77", group="no", token="x" * 5000, pairs="-3")
    assert_sound(at, caplog)
    said = sentences(at)
    assert "Part of the link cannot be followed" in said
    assert "has no 77; the last is 1" in said
    assert set(at.query_params) <= set(vocabulary_views.DEFAULTS)


@pytest.mark.parametrize("tab", ["read", "search", "heads", "difference", "agreement"])
@pytest.mark.parametrize(
    ("first", "second"), [("gpt2", "bert-mlm"), ("bert-plain", "t5"), ("llama", "gpt2-classifier")]
)
def test_every_view_shows_every_pair_without_a_traceback(tab, first, second, tiny_folders, caplog):
    pair = {"model_a": str(tiny_folders(first)), "model_b": str(tiny_folders(second))}
    small = {"read_sentences": "8", "set_k": "10", "shuffles": "1"}
    at = opened(PAGE, **pair, **LAYERS, **ALL, tab=tab, token="ab", vector="a.ff_values.1.2", **small)
    assert_sound(at, caplog)
    assert tables(at) or charts_of(at) or at.error


def test_matched_vectors_lead_to_this_page(twins, caplog):  # noqa: F811
    at = opened(PARAMETERS, **twins, null_draws="2", layer_a="1", layer_b="1")
    assert_sound(at, caplog)
    assert re.search("Choose a row to look at its two vectors on the page Vocabulary", sentences(at))


def test_ticks_go_where_other_rows_are_shown_or_another_table_is_used(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL)
    before = [element.key for element in at.dataframe][:2]
    box_ = next(found for found in at.toggle if found.key == f"{KEY}words_only")
    box_.set_value(True)
    settled(at)
    assert_sound(at, caplog)
    other = [element.key for element in at.dataframe][:2]
    assert not set(before) & set(other)
    at.session_state["vocabulary.vector"] = "a.ff_values.1.2"
    settled(at)
    button(at, "vector.close").click()
    settled(at)
    assert not set(other) & {element.key for element in at.dataframe}


def test_a_change_from_zero_is_said_to_be_one():
    class Made:
        change = np.array([[0.0, np.inf]])
        unchanged = np.array([[True, False]])
        groups = ("w_o",)
        layers = np.array([0, 1])
        model_share = np.array([np.nan])

    said = vocabulary_difference.sentence(Made())
    assert said.startswith("1 of 2 groups of parameters")
    assert "the W_O rows of layer 1, which were all zero in the base" in said


def test_the_link_from_matched_vectors_carries_how_they_were_matched(monkeypatch):
    from embcompare.experiments.matches import ParameterMatches
    from embcompare.ui import layers

    said = []
    monkeypatch.setattr(layers.st, "page_link", lambda page, **more: said.append(more["query_params"]))

    class Made:
        index_a, index_b = np.array([4]), np.array([7])

    matched = ParameterMatches("demo/gpt2-a", "demo/gpt2-b", layer_a=2, layer_b=3, group="w_o", common=3, centred=False)
    layers._onward(matched, Made(), [0])
    assert [link["vector"] for link in said] == ["a.w_o.2.4", "b.w_o.3.7"]
    readers = vocabulary_views.readers()
    for link in said:
        assert {name: readers[name](link[name]) for name in ("common", "centred")} == {"common": 3, "centred": False}


def test_a_shell_command_passes_values_that_begin_with_a_dash():
    from embcompare.experiments.token_search import TokenSearch
    from embcompare.ui import exports

    assert "--token=-x" in exports.shell(TokenSearch("demo/gpt2-a", "demo/gpt2-b", token="-x"))


@pytest.mark.parametrize("tab", ["read", "search", "heads", "difference", "agreement"])
def test_a_list_and_a_text_filter_every_view_and_say_so(tab, twins, caplog):  # noqa: F811
    small = {"read_sentences": "8", "set_k": "2", "shuffles": "1", "token": "ab", "pairs": "5"}
    at = opened(
        PAGE, **twins, **LAYERS, **ALL, **small, tab=tab, only="aa ab ba xyzzy", words_of="reviews", stop_words=""
    )
    # the tiny models share no word with the reviews
    assert_sound(at, caplog)
    assert any("keep other tokens or keep the words of another text" in found.value for found in at.error)
    field = next(found for found in at.selectbox if found.key == f"{KEY}words_of")
    field.set_value("").run()
    settled(at)
    assert_sound(at, caplog)
    assert not at.error
    assert "words_of" not in at.query_params
    assert at.query_params["only"] in ("aa ab ba xyzzy", ["aa ab ba xyzzy"])
    said = sentences(at).replace("\\", "")
    assert "by a list of 4 words; of the list 1 is no token: xyzzy" in said
    kinds = {"read": "token-reading", "search": "token-search", "heads": "head-reading"}
    kinds |= {"difference": "parameter-difference", "agreement": "parameter-agreement"}
    assert {r.provenance["settings"]["only"] for r in stored(kinds[tab])} == {"aa ab ba xyzzy"}
    assert {r.provenance["settings"]["words_of"] for r in stored(kinds[tab])} == {""}


def test_a_text_brought_on_the_page_keeps_its_words_and_its_name_is_in_the_address(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL)
    turn = at.session_state[f"{KEY}words_of.turn"]
    next(found for found in at.text_area if found.key == f"{KEY}words_of.pasted.{turn}").set_value("ab, ba!\nzz ea\n")
    button(at, f"{KEY}words_of.take").click()
    settled(at)
    assert_sound(at, caplog)
    name = at.session_state[f"{KEY}words_of"]
    assert name.startswith("text/")
    assert at.query_params["words_of"] in (name, [name])
    assert "kept to 4 words" in sentences(at)
    newest = [r for r in stored("token-reading") if r.provenance["settings"]["words_of"] == name]
    assert len(newest) == 2
    for result in newest:
        assert {token.removeprefix("##") for token in result.tokens} <= {"ab", "ba", "zz", "ea"}


def test_a_text_that_is_not_there_is_told_and_left_out(twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL, words_of=f"text/{'0' * 64}")
    assert_sound(at, caplog)
    assert "no longer kept here" in sentences(at)
    assert len(tables(at)) == 2
    at = opened(PAGE, **twins, **LAYERS, **ALL, words_of="")
    assert_sound(at, caplog)
    assert "Part of the link" not in sentences(at)


def test_a_combination_says_whose_vectors_it_sums_and_who_lacks_one(twins, tiny_folders, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL, combination="12:1, 40:-0.5")
    assert_sound(at, caplog)
    said = sentences(at).replace("\\", "")
    assert "1 × FF value 12 − 0.5 × FF value 40 of layer 1 of A, this model's own." in said
    assert "1 × FF value 12 − 0.5 × FF value 40 of layer 0 of B, this model's own." in said
    assert "equal numbers mean the same only" in said
    assert [table["index"].tolist() for table in tables(at)] == [["combination"]] * 2
    other = {"model_a": twins["model_a"], "model_b": str(tiny_folders("opt"))}
    at = opened(PAGE, **other, **LAYERS, **ALL, combination="12:1, 90:-0.5")
    assert_sound(at, caplog)
    assert len(tables(at)) == 1
    (fault,) = at.error
    assert "names vector 90, and layer 0 of" in fault.value
    assert "has 40 FF values, 0 to 39" in fault.value


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        ("a.ff_values.1.9999", "has no FF value 9999 in layer 1; they are numbered 0 to 95."),
        ("b.ff_keys.9.3", "has no layer 9; its layers are 0 to 1."),
        ("a.w_q.1.9999", "W_Q columns, 0 to 23, and none numbered 9999."),
        ("a.w_vo.1.7", "has no W_VO of head 7 in layer 1; they are numbered 0 to 2."),
    ],
)
def test_a_vector_that_is_not_there_names_the_range_and_nothing_is_tried_again(vector, said, twins, caplog):  # noqa: F811
    at = opened(PAGE, **twins, **LAYERS, **ALL, vector=vector)
    assert_sound(at, caplog)
    assert any(said in found.value.replace("\\", "") for found in at.error), [found.value for found in at.error]
    assert not [found for found in at.button if found.label == "Try again"]
    assert len(tables(at)) == 2
    button(at, "vector.close").click()
    settled(at)
    assert not at.error


def test_a_column_of_lists_is_as_wide_as_its_longest():
    assert vocabulary.lists_width([["ab"] * 10, ["a"]]) > vocabulary.lists_width([["ab"] * 7])
    assert vocabulary.lists_width([]) > 0


def test_chance_of_a_head_counts_what_lies_beyond_all_draws():
    class Made:
        null = np.array([[0.5, -0.4], [0.6, -0.3]])
        top_values = np.array([0.9, 0.61, 0.6])
        bottom_values = np.array([-0.3])

    assert vocabulary_heads.chance(Made()) == (
        "Chance, by 2 random heads with the same singular values in random directions: the largest of such a head "
        "reaches 0.500 to 0.600, and 2 of the 3 largest entries listed here lie beyond; the smallest of such a head "
        "reaches −0.300 to −0.400, and 0 of the 1 smallest entry listed here lie beyond."
    )
    Made.null = None
    assert vocabulary_heads.chance(Made()) == ""


def test_both_ends_of_a_change_are_rows_of_their_own(caplog):
    at = opened(PAGE, model_a="demo/gpt2-a", model_b="demo/gpt2-a-sentiment", tab="difference", words_of="reviews")
    assert_sound(at, caplog)
    (result,) = [r for r in stored("parameter-difference") if r.provenance["settings"]["words_of"] == "reviews"]
    table = next(table for table in tables(at) if table.iloc[0, 0].startswith("classifier"))
    assert table["end"].tolist() == ["top", "bottom"] * 2
    assert list(table["tokens"].iloc[1]) == list(result.bottom_tokens[result.rows("classifier")[0]])
    assert "kept to 693 words (of 4,091 tokens) by the 1,686 words of shipped reviews" in sentences(at)
