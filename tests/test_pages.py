"""The pages in Streamlit's own test runner: no browser, the real scripts, the real core."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from embcompare.errors import EmbcompareError
from embcompare.experiments.parameters import ParameterAlignment
from embcompare.store import Store
from embcompare.ui import exports, links, picture, runs, words

ROOT = Path(__file__).parent.parent
PARAMETERS, RESULTS = "pages/1_Parameters.py", "pages/9_Results.py"
QUICK = {"null_draws": "2"}


@pytest.fixture(autouse=True)
def own_process(tmp_path, monkeypatch):
    """Give every test its own store and queue, as a fresh server has them."""
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    st.cache_data.clear()
    st.cache_resource.clear()
    yield
    runs.queue().shutdown(timeout=20)
    st.cache_resource.clear()


@pytest.fixture
def twins(tiny_folders) -> dict[str, str]:
    return {"model_a": str(tiny_folders("gpt2", 0)), "model_b": str(tiny_folders("gpt2", 1))}


def opened(page: str = "app.py", **query: str) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    if page != "app.py":
        at.switch_page(page)
    at.query_params.update(query)
    return settled(at)


def settled(at: AppTest) -> AppTest:
    """Run the page until nothing is computed any more, as the polling browser does."""
    at.run()
    for _ in range(400):
        if not at.get("progress"):
            return at
        time.sleep(0.05)
        at.run()
    raise AssertionError("the page never came to rest")


def sentences(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error)
    return re.sub(r"\\(.)", r"\1", "\n".join(element.value for kind in kinds for element in kind))


def charts_of(at: AppTest) -> list:
    return [element.proto for element in at.get("vega_lite_chart")]


def assert_sound(at: AppTest, caplog) -> None:
    """No traceback on the page, none in the log, no sentence that hides one."""
    assert not at.exception
    assert "Something went wrong" not in sentences(at)
    assert not [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR]


def button(at: AppTest, key: str):
    return next(found for found in at.button if found.key == key)


def box(at: AppTest, key: str):
    return next(found for found in at.selectbox if found.key == key)


PAIRS = [
    ("gpt2", 0, "gpt2", 1),
    ("bert-mlm", 0, "bert-mlm", 1),
    ("bert-mlm", 0, "electra-generator", 0),
    ("bert-plain", 0, "distilbert", 0),
    ("gpt2", 0, "bert-mlm", 0),
    ("gpt2-classifier", 0, "gpt2", 0),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[2]}")
@pytest.mark.parametrize("page", ["app.py", PARAMETERS, RESULTS])
def test_every_page_shows_every_pair_without_a_traceback(page, pair, tiny_folders, caplog):
    query = {"model_a": str(tiny_folders(*pair[:2])), "model_b": str(tiny_folders(*pair[2:]))}
    at = opened(page, **(query if page != RESULTS else {}))
    assert_sound(at, caplog)
    assert at.title[0].value
    assert charts_of(at) or page == RESULTS or at.error


def test_home_shows_the_demo_twins_without_a_click(caplog):
    at = opened()
    assert_sound(at, caplog)
    alts = [proto.alt for proto in charts_of(at)]
    assert [alt.split(":")[0] for alt in alts[:3]] == [
        "Embedding space",
        "Feature space, control",
        "Permuted vocabulary, null",
    ]
    assert re.search(r"\d of 6 layers are assigned to the layer of equal depth \(chance: 1 of 6", sentences(at))
    assert "urpris" in sentences(at)
    assert "demo/gpt2-a" in sentences(at)
    assert "demo/gpt2-b" in sentences(at)


def test_the_three_panels_share_one_fixed_sequential_scale(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    assert_sound(at, caplog)
    scales = [json.loads(proto.spec)["layer"][0]["encoding"]["color"]["scale"] for proto in charts_of(at)[:3]]
    assert scales[0] == scales[1] == scales[2]
    assert scales[0]["scheme"] == "viridis"
    assert scales[0]["domain"][0] == 0
    encoding = json.loads(charts_of(at)[0].spec)["layer"][0]["encoding"]
    assert encoding["x"]["title"].startswith("layer of B: ")
    assert encoding["y"]["title"].startswith("layer of A: ")


@pytest.mark.parametrize(("view", "panels"), [("centred", 3), ("z", 1)])
def test_signed_views_use_a_diverging_scale_about_zero(view, panels, twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK, view=view)
    assert_sound(at, caplog)
    heat_maps = [proto for proto in charts_of(at) if "heat map" in proto.alt]
    assert len(heat_maps) == panels
    scale = json.loads(heat_maps[0].spec)["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"][0] == -scale["domain"][1]
    assert scale["domainMid"] == 0


def test_alt_texts_state_what_the_matrix_says(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    (entry,) = [e for e in Store().entries() if e.experiment == "parameter-alignment"]
    result = Store().get(entry.key)
    row, column = np.unravel_index(result.values.argmax(), result.values.shape)
    alt = charts_of(at)[0].alt
    assert f"largest at layer {row} of A and layer {column} of B" in alt
    assert f"{result.values.max():.3f}" in alt


def test_changing_the_view_or_the_cell_never_computes_the_matrix_again(twins, monkeypatch, caplog):
    computed = []
    original = ParameterAlignment.compute
    monkeypatch.setattr(ParameterAlignment, "compute", lambda s, c: computed.append(s) or original(s, c))
    at = opened(PARAMETERS, **twins, **QUICK)
    for view in ("centred", "z", "raw"):
        at.session_state["view"] = view
        settled(at)
    box(at, "layer_a").set_value("1")
    box(at, "layer_b").set_value("0")
    settled(at)
    assert_sound(at, caplog)
    assert "Layer 1 of A and layer 0 of B" in sentences(at)
    assert len(computed) == 1


def test_a_clicked_cell_becomes_the_chosen_layers_and_part_of_the_link(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    at.session_state["matrix"] = {"selection": {"cell": [{"layer_a": 1, "layer_b": 0}]}}
    settled(at)
    assert_sound(at, caplog)
    assert (box(at, "layer_a").value, box(at, "layer_b").value) == ("1", "0")
    assert (at.query_params["layer_a"], at.query_params["layer_b"]) in (("1", "0"), (["1"], ["0"]))
    frame = next(f.value for f in at.dataframe if "tokens_a" in f.value)
    assert frame["rho"].abs().is_monotonic_decreasing
    assert frame["tokens_a"].str.len().gt(0).all()


def test_a_click_outside_the_matrix_changes_nothing(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    at.session_state["matrix"] = {"selection": {"cell": [{"layer_a": 40, "layer_b": 0}]}}
    settled(at)
    assert_sound(at, caplog)
    assert box(at, "layer_a").value == "none"


def test_a_chosen_layer_that_the_next_pair_lacks_is_dropped_with_a_sentence(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK, layer_a="9", layer_b="1")
    assert_sound(at, caplog)
    assert "A has no layer 9; its layers here are 0 to 1." in sentences(at)


BAD = [
    ({"group": "ff_nonsense"}, "ff_nonsense"),
    ({"null_draws": "99999999"}, "1000"),
    ({"null_draws": "many"}, "number"),
    ({"centred": "perhaps"}, "true or false"),
    ({"view": "<script>alert(1)</script>"}, "one of raw, centred, z"),
    ({"layer_a": "-1"}, "counted from 0"),
    ({"layer_a": "٣"}, "counted from 0"),
    ({"left_over": "1"}, "no such setting"),
    ({"model_a": "../../etc/no-such-model"}, "no folder"),
    ({"model_b": "demo/nobody"}, "nobody"),
    ({"model_b": "$(rm -rf /)"}, "not a model's name"),
]


@pytest.mark.parametrize(("query", "said"), BAD, ids=["=".join(next(iter(query.items()))) for query, _ in BAD])
def test_what_a_link_asks_in_vain_is_said_in_one_sentence_and_left_at_its_default(query, said, twins, caplog):
    others = {} if "model" in next(iter(query)) else twins  # a default model meets its own twin
    at = opened(PARAMETERS, **{**others, **QUICK, **query})
    assert_sound(at, caplog)
    (warning,) = at.warning
    assert "Part of the link cannot be followed" in warning.value
    assert said in re.sub(r"\\(.)", r"\1", warning.value)
    assert charts_of(at), "the page goes on with the defaults"
    (name,) = query
    assert name not in at.query_params


def test_the_sentence_about_the_link_goes_once_the_reader_changes_a_setting(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK, group="ff_nonsense")
    assert at.warning
    box(at, "group").set_value("w_v")
    settled(at)
    assert not at.warning
    assert_sound(at, caplog)


def test_settings_survive_leaving_the_page_and_coming_back(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    box(at, "group").set_value("w_o")
    at.toggle(key="centred").set_value(False)
    at.number_input(key="seed").set_value(7)
    settled(at)
    at.query_params.clear()
    at.switch_page(RESULTS)
    settled(at)
    at.query_params.clear()
    at.switch_page(PARAMETERS)
    settled(at)
    assert_sound(at, caplog)
    assert box(at, "group").value == "w_o"
    assert box(at, "model_a").value == twins["model_a"]
    assert at.toggle(key="centred").value is False
    assert at.number_input(key="seed").value == 7
    assert at.query_params["group"] in ("w_o", ["w_o"])


def test_the_link_says_every_setting_that_is_not_a_default_and_no_other(twins, caplog):
    at = opened(PARAMETERS, **twins, group="w_v", null_draws="2", view="raw")
    assert at.query_params["view"] in ("raw", ["raw"]), "an address that says the same is not rewritten"
    at.number_input(key="seed").set_value(3)
    settled(at)
    said = {name: value[-1] if isinstance(value, list) else value for name, value in dict(at.query_params).items()}
    assert said == {**twins, "group": "w_v", "seed": "3", "null_draws": "2"}


def test_nothing_runs_on_a_change_of_settings_and_the_estimate_is_there_first(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    before = len(Store().entries())
    box(at, "score").set_value("one_to_one")
    settled(at)
    assert len(Store().entries()) == before
    assert "Not computed yet: about" in sentences(at)
    assert not charts_of(at)
    button(at, "alignment.run").click()
    settled(at)
    assert_sound(at, caplog)
    assert len(Store().entries()) == before + 1
    assert charts_of(at)


def test_incomparable_models_are_told_as_one_sentence_with_the_way_out(tiny_folders, caplog):
    narrow, wide = tiny_folders("bert-mlm", 0), tiny_folders("electra-generator", 0)
    at = opened(PARAMETERS, model_a=str(narrow), model_b=str(wide), group="ff_up", **QUICK)
    assert_sound(at, caplog)
    (error,) = at.error
    assert "has no FF up-projections" in error.value
    assert "it has FF keys" in error.value


def test_home_says_what_cannot_be_compared_and_what_can(tiny_folders, monkeypatch, caplog):
    monkeypatch.setattr("embcompare.text.vocabulary.SMALLEST_MATCH", 10**6)
    at = opened(model_a=str(tiny_folders("gpt2", 0)), model_b=str(tiny_folders("bert-mlm", 0)))
    assert_sound(at, caplog)
    assert "block" in sentences(at)
    assert "use feature space" in sentences(at)


def test_an_unexpected_failure_is_a_friendly_sentence_and_goes_to_the_log(twins, monkeypatch, caplog):
    def broken(*_, **__):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(picture, "compose", broken)
    at = opened(PARAMETERS, **twins, **QUICK)
    assert not at.exception
    (error,) = at.error
    assert "Something went wrong inside embcompare (ZeroDivisionError)" in error.value
    assert "secret detail" not in sentences(at)
    assert "secret detail" in caplog.text


def test_a_failing_run_is_told_once_and_can_be_asked_for_again(twins, monkeypatch, caplog):
    def refused(*_):
        raise EmbcompareError("The weights of *this* model hold NaN.")

    with monkeypatch.context() as patch:
        patch.setattr(ParameterAlignment, "compute", refused)
        at = opened(PARAMETERS, **twins, **QUICK)
        assert "The weights of *this* model hold NaN." in sentences(at)
        assert not at.exception
    button(at, "alignment.run").click()
    settled(at)
    assert charts_of(at)


def test_a_cancelled_run_keeps_its_partial_result_labelled_as_such(twins, monkeypatch, caplog):
    reported, go_on = threading.Event(), threading.Event()
    original = ParameterAlignment.compute

    class Slow:
        def __init__(self, context) -> None:
            self.context = context

        def __getattr__(self, name):
            return getattr(self.context, name)

        def report(self, done, total, message, partial=None):
            self.context.report(done, total, message, partial)
            if partial is not None:
                reported.set()
                assert go_on.wait(60)
                self.context.report(done, total, message)

    monkeypatch.setattr(ParameterAlignment, "compute", lambda s, c: original(s, Slow(c)))
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    at.switch_page(PARAMETERS)
    at.query_params.update({**twins, **QUICK})
    at.run()
    assert reported.wait(60)
    at.run()
    assert at.get("progress")
    assert "Partial result" in sentences(at)
    assert charts_of(at)
    button(at, "alignment.cancel").click()
    at.run()
    go_on.set()
    settled(at)
    assert_sound(at, caplog)
    assert "Cancelled." in sentences(at)
    assert "Partial result" in sentences(at)
    assert charts_of(at)
    assert not Store().entries()


def test_two_sessions_that_ask_the_same_share_one_run(twins, monkeypatch):
    computed = []
    original = ParameterAlignment.compute

    both_asked = threading.Event()

    def slow(settings, context):
        computed.append(settings)
        assert both_asked.wait(60)
        return original(settings, context)

    monkeypatch.setattr(ParameterAlignment, "compute", slow)
    first = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    second = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for at in (first, second):
        at.switch_page(PARAMETERS)
        at.query_params.update({**twins, **QUICK})
        at.run()
    both_asked.set()
    assert first.session_state["watcher"] != second.session_state["watcher"]
    settled(first)
    settled(second)
    assert charts_of(first)
    assert charts_of(second)
    assert len(computed) == 1


def test_hosted_pages_offer_the_list_only(monkeypatch, twins, caplog):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    at = opened("app.py", model_a=twins["model_a"])
    assert_sound(at, caplog)
    assert "not offered here" in sentences(at)
    assert all(option.startswith("demo/") for option in box(at, "model_a").options)
    assert not box(at, "model_a").proto.accept_new_options
    assert "results.clear" not in [found.key for found in opened(RESULTS).button]


def select_row(at: AppTest, row: int) -> AppTest:
    at.session_state["results.table"] = {"selection": {"rows": [row], "columns": [], "cells": []}}
    return settled(at)


def test_results_lists_opens_and_deletes_what_is_kept(twins, caplog):
    opened(PARAMETERS, **twins, **QUICK, group="w_v")
    opened(PARAMETERS, **twins, **QUICK, group="w_o")
    at = opened(RESULTS)
    assert_sound(at, caplog)
    table = at.dataframe[0].value
    assert sorted(table["settings"]) == ["group=w_o, null_draws=2", "group=w_v, null_draws=2"]
    assert "2 results" in sentences(at)
    select_row(at, int(table.index[table["settings"].str.contains("w_v")][0]))
    link = next(e.proto for e in at.get("page_link") if e.proto.label == "Open")
    assert "group=w_v" in link.query_string
    assert "null_draws=2" in link.query_string
    button(at, "results.delete").click()
    settled(at)
    assert_sound(at, caplog)
    assert [entry.settings["group"] for entry in Store().entries()] == ["w_o"]
    assert "The result was deleted." in sentences(at)


def test_a_deleted_result_is_gone_from_the_pages_of_the_same_session(twins, caplog):
    at = opened(PARAMETERS, **twins, **QUICK)
    at.query_params.clear()
    at.switch_page(RESULTS)
    settled(at)
    select_row(at, 0)
    button(at, "results.delete").click()
    settled(at)
    at.query_params.clear()
    at.switch_page(PARAMETERS)
    settled(at)
    assert "Not computed yet" in sentences(at)


def test_results_deletes_everything_only_after_the_second_button(twins, caplog):
    opened(PARAMETERS, **twins, **QUICK)
    at = opened(RESULTS)
    assert "can be computed again, but not brought back" in sentences(at)
    button(at, "results.clear").click()
    settled(at)
    assert not Store().entries()
    assert "1 result was deleted." in sentences(at)
    assert_sound(at, caplog)


def test_a_damaged_file_is_set_aside_and_said(twins, caplog):
    opened(PARAMETERS, **twins, **QUICK)
    (file,) = Store().folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    at = opened(RESULTS)
    assert not at.exception
    assert "was damaged" in sentences(at)
    assert "0 results" in sentences(at)


def test_the_shell_command_and_the_python_call_make_the_same_run(twins):
    from embcompare.cli import _parser, _settings

    wanted = ParameterAlignment(**twins, group="w_v", centred=False, null_draws=3, small_overlap=True)
    command = exports.shell(wanted)
    import shlex

    said = shlex.split(command)
    assert said[:3] == ["python", "-m", "embcompare"]
    assert _settings(_parser(said[3:]).parse_args(said[3:])) == wanted
    import embcompare

    scope = {"embcompare": type("", (), {"run": staticmethod(lambda s: s), "ParameterAlignment": ParameterAlignment})}
    assert embcompare.ParameterAlignment is ParameterAlignment
    assert eval(wanted.call(), scope) == wanted


def test_every_group_has_a_card_and_every_score_its_formula():
    from embcompare.experiments.vectors import GROUPS
    from embcompare.measures.matching import SCORES

    assert set(words.GROUP_MEANINGS) == set(GROUPS)
    for name in SCORES:
        assert SCORES[name].source in words.score_card(name)


def test_names_and_messages_cannot_smuggle_markup():
    from embcompare.ui.page import plain

    hostile = "[x](javascript:alert(1)) <b>`$y$` :red[z] **w** #h"
    assert not re.search(r"(?<!\\)[\[\]<>`$*#:]", plain(hostile))


def test_a_reader_takes_what_the_settings_take():
    assert links.reader(ParameterAlignment, "null_draws")("12") == 12
    assert links.reader(ParameterAlignment, "centred")("false") is False
    with pytest.raises(EmbcompareError):
        links.reader(ParameterAlignment, "group")("nonsense")


def test_a_time_limit_that_is_none_is_named_with_what_is_allowed(monkeypatch, twins):
    try:
        with monkeypatch.context() as wrong:
            wrong.setenv("EMBCOMPARE_MAX_SECONDS", "5m")
            runs.queue.clear()
            at = opened(PARAMETERS, **twins, **QUICK)
        assert "cannot be '5m'; give a number of seconds above 0" in at.error[0].value
    finally:
        runs.queue.clear()


def test_the_style_of_pages_holds_nothing_that_a_browser_would_take_for_a_tag():
    """Streamlit cleans what it is given, and a style with such a sign in it is dropped whole."""
    from embcompare.ui.page import _STYLE

    inside = _STYLE.removeprefix("<style>").removesuffix("</style>")
    assert len(inside) == len(_STYLE) - len("<style></style>")
    assert "<" not in inside
