"""What people bring, as the pages take it: every file is read within bounds, refused in one sentence, and private."""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from hypothesis import given, settings
from hypothesis import strategies as some
from streamlit.testing.v1 import AppTest

from embcompare.errors import SettingsError
from embcompare.shelf import Shelf
from embcompare.text import corpora
from embcompare.text.corpora import corpus_from_text
from embcompare.text.uploads import Vectors
from embcompare.ui import contents, inputs, runs

ROOT = Path(__file__).parent.parent
PAGE = """
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx
from embcompare import ui
from embcompare.ui import inputs, links

with ui.guard():
    links.arrive("parameters", {"corpus": inputs.read_corpus}, {"corpus": "shipped"})
    found = st.session_state["found"] = inputs.corpus()
    inputs.vectors()
    st.session_state["offered"] = inputs.offered_vectors()
    links.publish("parameters", {"corpus": found}, {"corpus": "shipped"})
held = get_script_run_ctx().uploaded_file_mgr.file_storage
st.session_state["held"] = sum(len(file.data) for files in held.values() for file in files.values())
"""
SENTENCES = "One short sentence.\nAnother one, with ünïcode.\nA third.\nAnd a fourth, the last.\n"
TABLE = "stars,review,kind\n" + "".join(f'{i},"Review, number {i}.",k{i % 2}\n' for i in range(9))


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


def opened(**query: str) -> AppTest:
    at = AppTest.from_string(PAGE, default_timeout=60)
    at.query_params.update(query)
    return at.run()


def sentences(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.text)
    return re.sub(r"\\(.)", r"\1", "\n".join(element.value for kind in kinds for element in kind))


def element(found, key: str):
    return next(each for each in found if each.key == key)


def pasted(at: AppTest, text: str) -> AppTest:
    element(at.text_area, f"corpus.pasted.{at.session_state['corpus.turn']}").set_value(text)
    return pressed(at, "corpus")


def uploaded(at: AppTest, key: str, name: str, data: bytes) -> AppTest:
    if key == "corpus":
        at.session_state["corpus.how"] = "File"
        at.run()
    turn = at.session_state[f"{key}.turn"]
    element(at.get("file_uploader"), f"{key}.file.{turn}").set_value((name, data, "application/octet-stream"))
    return at.run()


def pressed(at: AppTest, key: str) -> AppTest:
    element(at.button, f"{key}.take").click()
    return at.run()


def kept() -> list[str]:
    folder = Shelf().folder
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_sound(at: AppTest, caplog) -> None:
    assert not at.exception
    assert "Something went wrong" not in sentences(at)
    assert not [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR]


def assert_refused(at: AppTest, said: str, caplog) -> None:
    """One sentence says why, nothing is kept, the choice stays as it was, and the file waits to be mended."""
    assert_sound(at, caplog)
    (error,) = at.error
    assert said in re.sub(r"\\(.)", r"\1", error.value)
    assert error.value.count("\n") == 0
    assert not kept()
    assert at.session_state["found"] == "shipped"


def npy(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return data.getvalue()


def rows(n: int = 6, d: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)


def test_the_shipped_corpus_is_read_unless_somebody_says_otherwise(caplog):
    at = opened()
    assert_sound(at, caplog)
    assert at.session_state["found"] == "shipped"
    assert element(at.selectbox, "corpus").options == [
        "Shipped corpus · 669 sentences in 14 genres",
        "Shipped reviews · 480 sentences, good or bad",
    ]
    assert "669 sentences, 14 labels" in sentences(at)
    shown = [each.value for each in at.text]
    assert shown == list(corpora.shipped_corpus().sentences[: inputs.PREVIEWED])
    assert "and 661 more." in sentences(at)


def test_pasted_text_is_kept_chosen_and_previewed(caplog):
    at = pasted(opened(), SENTENCES)
    assert_sound(at, caplog)
    name = at.session_state["found"]
    assert Shelf().corpus(name).sentences == corpus_from_text(SENTENCES).sentences
    assert element(at.selectbox, "corpus").value == name
    assert element(at.selectbox, "corpus").options[2] == "pasted text · 4 sentences"
    assert [each.value for each in at.text] == SENTENCES.splitlines()
    assert at.session_state["corpus.own"] is False, "the form closes"


def test_nothing_that_was_given_stays_in_the_session_or_in_the_servers_memory(caplog):
    at = pasted(opened(), SENTENCES)
    uploaded(at, "corpus", "a.txt", SENTENCES.encode() + b"One more.")
    assert at.session_state["held"] > 0
    pressed(at, "corpus")
    uploaded(at, "vectors", "v.npy", npy(rows()))
    pressed(at, "vectors")
    at.run()
    assert_sound(at, caplog)
    assert at.session_state["held"] == 0
    values = {key: at.session_state[key] for key in at.session_state._state.filtered_state}
    assert not [key for key, value in values.items() if "Another one, with" in str(value)]
    assert not [key for key, value in values.items() if isinstance(value, (bytes, io.BytesIO))]


def test_what_was_refused_stays_in_the_form_to_be_mended(caplog):
    at = pressed(uploaded(opened(), "corpus", "reviews.csv", TABLE.encode()), "corpus")
    assert_refused(at, "reviews.csv has 3 columns; say which holds the sentences: stars, review, kind.", caplog)
    column = element(at.selectbox, "corpus.Column.0")
    assert column.options == ["stars", "review", "kind"]
    column.set_value("review")
    element(at.selectbox, "corpus.Label column.0").set_value("kind")
    at.run()
    assert not at.error, "the reason goes once something has been changed"
    pressed(at, "corpus")
    assert_sound(at, caplog)
    found = Shelf().corpus(at.session_state["found"])
    assert found.sentences[2] == "Review, number 2."
    assert found.labels[:3] == ("k0", "k1", "k0")


BAD_TEXTS = [
    ("a.txt", b"", "holds no sentences"),
    ("a.txt", b" \n\t\n", "holds no sentences"),
    ("a.txt", b"caf\xe9\n", "is not UTF-8 text: byte 3 (line 1) is 0xE9"),
    ("a.txt", SENTENCES.encode("utf-16"), "is UTF-16, not UTF-8 text"),
    ("a.csv", SENTENCES.encode("utf-16"), "is UTF-16, not UTF-8 text"),
    ("a.txt", b"one\0two", "null character"),
    ("a.csv", b"text,n\nfine,1\nnot,fine,2\n", "Line 3 of a.csv has 3 fields"),
    ("a.csv", b'text\n"open', "is not proper CSV"),
    ("a.jsonl", b'{"text": "fine"}\n{"text": ', "Line 2 of a.jsonl is not proper JSON"),
    ("a.jsonl", b"[" * 60_000, "is not proper JSON"),
    ("a.jsonl", b'{"text": 7}', "holds no sentences"),
    ("a.tsv", b"a\tb\n1\t2\n", "say which holds the sentences: a, b"),
    ("a.exe", b"MZ", "cannot be read from a 'exe' file"),
    ("text", b"no suffix", "cannot be read from a"),
    ("a.txt", b"x" * (corpora.MAX_BYTES + 1), "at most 5,242,880 bytes are taken here"),
]


@pytest.mark.parametrize(("name", "data", "said"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_a_text_that_cannot_be_read_is_refused_in_one_sentence(name, data, said, caplog):
    assert_refused(pressed(uploaded(opened(), "corpus", name, data), "corpus"), said, caplog)


def test_a_wrong_column_is_refused_by_the_server_whatever_the_list_offers(caplog):
    at = uploaded(opened(), "corpus", "reviews.csv", TABLE.encode())
    element(at.selectbox, "corpus.Column.0").set_value("stars")
    element(at.selectbox, "corpus.Label column.0").set_value("kind")
    at.run()
    at.session_state["corpus.Column.0"] = "stars"
    uploaded(at, "corpus", "other.jsonl", b'{"review": "fine"}\n{"reviw": "a slip"}')
    element(at.selectbox, "corpus.Column.0").set_value("review")
    at.run()
    assert_refused(pressed(at, "corpus"), "Line 2 of other.jsonl has no field 'review'", caplog)


def test_nothing_pasted_and_nothing_uploaded_is_said(caplog):
    assert_refused(pressed(opened(), "corpus"), "holds no sentences", caplog)
    at = opened()
    at.session_state["corpus.how"] = "File"
    assert_refused(pressed(at.run(), "corpus"), "No file has been uploaded", caplog)
    assert_refused(pressed(opened(), "vectors"), "No file has been uploaded", caplog)


def test_a_text_that_is_cut_off_is_refused_not_shortened(monkeypatch, caplog):
    monkeypatch.setattr(inputs, "PASTED_CHARACTERS", 20)
    assert_refused(pasted(opened(), SENTENCES), "The pasted text has 20 characters or more; give it as a file.", caplog)


def test_one_word_is_a_text_with_a_warning(caplog):
    at = pasted(opened(), "word")
    assert_sound(at, caplog)
    assert at.session_state["found"].startswith("text/")
    assert "most measures are undefined" in sentences(at)
    assert element(at.selectbox, "corpus").options[2] == "pasted text · 1 sentence"


def test_a_sample_is_drawn_with_its_seed_and_said(caplog):
    lines = [f"This is sentence {i}." for i in range(50)]
    names = set()
    for seed in (0, 1, 1):
        at = opened()
        element(at.number_input, "corpus.rows.0").set_value(10)
        element(at.number_input, "corpus.seed.0").set_value(seed)
        pasted(at, "\n".join(lines))
        assert_sound(at, caplog)
        assert f"Of 50 sentences a sample of 10 is used (seed {seed})." in sentences(at)
        names.add(at.session_state["found"])
    assert len(names) == 2, "the same seed draws the same sample"


@pytest.mark.parametrize("name", ["../../etc/passwd.txt", "C:\\folder\\**[x](javascript:1)**.txt", "a\nb\u202e\0.txt"])
def test_a_file_name_is_a_label_and_never_a_path(name, caplog):
    at = pressed(uploaded(opened(), "corpus", name, SENTENCES.encode()), "corpus")
    assert_sound(at, caplog)
    digest = at.session_state["found"].removeprefix("text/")
    assert kept() == [f"{digest}.json"]
    label = Shelf().corpus(at.session_state["found"]).name
    assert label == inputs._title(name)
    assert label.isprintable()
    assert not re.search(r"[/\\]", label)
    assert "[x](" not in "".join(each.value for each in at.markdown)


def test_long_file_names_keep_both_ends():
    title = inputs._title("corpus-" + "x" * 300 + "-final.csv")
    assert len(title) <= 60
    assert title.startswith("corpus-")
    assert title.endswith("-final.csv")
    assert inputs._title("\n") == "uploaded file"


def test_two_texts_of_one_name_and_size_are_told_apart(caplog):
    at = pasted(opened(), "One.\nTwo.\nThree.\nFour.")
    pasted(at, "Five.\nSix.\nSeven.\nEight.")
    assert_sound(at, caplog)
    first, second = element(at.selectbox, "corpus").options[2:]
    assert first == "pasted text · 4 sentences"
    assert second == f"{first} ({at.session_state['found'][5:11]})"


def test_where_strangers_are_served_nobody_sees_in_a_list_what_somebody_else_brought(caplog, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    mine = pasted(opened(), SENTENCES)
    pressed(uploaded(mine, "vectors", "v.npy", npy(rows())), "vectors")
    yours = opened()
    assert len(element(yours.selectbox, "corpus").options) == 2
    assert yours.session_state["offered"] == {}
    assert len(mine.session_state["offered"]) == 1


def test_on_ones_own_machine_what_is_kept_is_offered_in_the_next_session(caplog):
    mine = pasted(opened(), SENTENCES)
    pressed(uploaded(mine, "vectors", "v.npy", npy(rows())), "vectors")
    later = opened()
    assert_sound(later, caplog)
    assert element(later.selectbox, "corpus").options[2] == "pasted text"
    assert list(later.session_state["offered"].values()) == ["v.npy"]


def test_a_link_to_a_kept_text_chooses_it(caplog):
    name = Shelf().keep_corpus(corpus_from_text(SENTENCES, name="linked"))
    at = opened(corpus=name)
    assert_sound(at, caplog)
    assert not at.warning
    assert at.session_state["found"] == name
    assert element(at.selectbox, "corpus").options[2] == "linked · 4 sentences"
    element(at.selectbox, "corpus").set_value("shipped")
    assert at.run().session_state["found"] == "shipped"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (f"text/{'0' * 64}", "is no longer kept here; give it again"),
        ("text/../../../etc/passwd", "the 64 digits that name a text"),
        ("/etc/passwd", "the 64 digits that name a text"),
        (f"vectors/{'0' * 64}", "the 64 digits that name a text"),
        ("<script>", "the 64 digits that name a text"),
    ],
)
def test_a_link_to_a_text_that_is_not_here_is_answered_in_one_sentence(asked, said, caplog):
    at = opened(corpus=asked)
    assert_sound(at, caplog)
    (warning,) = at.warning
    assert said in warning.value
    assert at.session_state["found"] == "shipped"


def test_a_chosen_text_that_nobody_knows_falls_back_with_a_sentence(caplog):
    at = AppTest.from_string(PAGE, default_timeout=60)
    at.session_state["corpus"] = f"text/{'1' * 64}"
    at.session_state["link.published"] = ("parameters", {})
    at.run()
    assert_sound(at, caplog)
    (warning,) = at.warning
    assert "The shipped corpus is used" in warning.value
    assert at.session_state["found"] == "shipped"


def test_a_text_that_has_gone_is_none_with_a_sentence(caplog):
    at = pasted(opened(), SENTENCES)
    for path in Shelf().folder.iterdir():
        path.unlink()
    at.run()
    assert_sound(at, caplog)
    assert at.session_state["found"] is None
    (error,) = at.error
    assert "no longer kept here; give it again" in error.value


def test_a_folder_that_cannot_be_written_is_said(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "file"))
    st.cache_resource.clear()
    at = pasted(opened(), SENTENCES)
    assert_sound(at, caplog)
    (error,) = at.error
    assert "cannot be kept in" in error.value


@pytest.mark.parametrize("side", ["model_a", "model_b"])
def test_vectors_are_kept_offered_and_take_their_side(side, caplog):
    at = uploaded(opened(), "vectors", "mine.npy", npy(rows(6, 3)))
    at.session_state["vectors.as"] = side
    pressed(at.run(), "vectors")
    assert_sound(at, caplog)
    ((name, label),) = at.session_state["offered"].items()
    assert label == "mine.npy · 6 × 3"
    assert at.session_state[side] == name
    np.testing.assert_array_equal(Shelf().vectors(name).values, rows(6, 3))


def test_the_array_and_the_ids_are_chosen_by_name(caplog):
    data = npz(first=rows(4), second=rows(5, 2), names=np.array(list("abcde")))
    at = pressed(uploaded(opened(), "vectors", "two.npz", data), "vectors")
    assert_refused(at, "2 arrays of two dimensions; say which to use", caplog)
    assert element(at.selectbox, "vectors.Array.0").options == ["first", "second", "names"]
    element(at.selectbox, "vectors.Array.0").set_value("second")
    element(at.selectbox, "vectors.Ids.0").set_value("names")
    pressed(at.run(), "vectors")
    assert_sound(at, caplog)
    (name,) = at.session_state["offered"]
    found = Shelf().vectors(name)
    assert found.values.shape == (5, 2)
    assert found.ids == tuple("abcde")


def bomb() -> bytes:
    """An archive of some kilobytes that says, and holds, 64 MiB of zeros."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(np.zeros((2**13, 2**10))))
    return data.getvalue()


def holed() -> np.ndarray:
    values = rows()
    values[[1, 4], 0] = np.nan
    return values


BAD_VECTORS = [
    ("v.npy", npy(np.array([[{"a": 1}]], dtype=object)), "Python objects, which could run code"),
    ("v.npy", npy(holed()), "NaN or infinite values in row 1, 4"),
    ("v.npz", bomb(), "would unpack from"),
    ("v.npy", npy(rows())[:-4], "is cut off"),
    ("v.npy", npy(np.zeros(5)), "has the shape (5,)"),
    ("v.npy", npy(np.zeros((5, 2), dtype=complex)), "holds complex numbers, not real numbers"),
    ("v.npy", b"", "cannot be read"),
    ("v.npz", b"PK\x03\x04 not an archive", "cannot be read"),
    ("v.safetensors", b"\xff" * 64, "is no safetensors file"),
    ("v.safetensors", (20).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}', "cannot be read"),
    ("v.parquet", b"PAR1 not one PAR1", "cannot be read"),
    ("v.pkl", b"\x80\x04.", "cannot be read from a 'pkl' file"),
    ("v.npy", b"\x93NUMPY\x01\x00" + b" " * (6 << 20), "are taken here"),
]


@pytest.mark.parametrize(("name", "data", "said"), BAD_VECTORS, ids=range(len(BAD_VECTORS)))
def test_vectors_that_cannot_be_read_are_refused_in_one_sentence(name, data, said, monkeypatch, caplog):
    monkeypatch.setattr(inputs, "_megabytes", lambda: 5)
    assert_refused(pressed(uploaded(opened(), "vectors", name, data), "vectors"), said, caplog)


def test_a_link_to_kept_vectors_is_read_and_one_to_none_refused(caplog):
    name = Shelf().keep_vectors(Vectors("linked", rows()))
    at = AppTest.from_string(PAGE.replace("inputs.vectors()", f"inputs.read_kept_vectors({name!r})"))
    assert at.run().session_state["offered"] == {name: "linked · 6 × 3"}
    for asked in (f"vectors/{'0' * 64}", "vectors/../../etc/passwd", "text/" + "0" * 64):
        with pytest.raises(SettingsError):
            inputs.read_kept_vectors(asked)


def test_strangers_get_less_room_and_a_plain_word_about_who_can_see_it(monkeypatch, caplog):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    monkeypatch.setattr(st, "get_option", lambda name: 64)
    at = opened()
    assert "whoever has a link to your results can see it" in sentences(at)
    assert element(at.number_input, "corpus.rows.0").max == inputs.HOSTED_SENTENCES
    uploader = element(at.get("file_uploader"), "vectors.file.0")
    assert uploader.proto.max_upload_size_mb == inputs.HOSTED_MEGABYTES
    large = npy(np.zeros((6 << 17, 2)))
    assert_refused(pressed(uploaded(at, "vectors", "v.npy", large), "vectors"), "at most 5.2 MB", caplog)


def test_on_ones_own_machine_a_file_may_be_as_large_as_the_server_takes(monkeypatch, caplog):
    monkeypatch.setattr(inputs, "_megabytes", lambda: 64)
    at = pressed(uploaded(opened(), "vectors", "v.npy", npy(np.ones((6 << 17, 2)))), "vectors")
    assert_sound(at, caplog)
    assert list(at.session_state["offered"].values()) == ["v.npy · 786,432 × 2"]
    assert "kept on this machine" in sentences(at)


def test_hosted_bounds_hold_whatever_the_browser_sends(monkeypatch, caplog):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    monkeypatch.setattr(inputs, "HOSTED_SENTENCES", 3)
    at = opened()
    pasted(at, SENTENCES)
    assert_sound(at, caplog)
    assert len(Shelf().corpus(at.session_state["found"])) == 3


def test_a_text_brought_to_the_real_page_survives_leaving_it_and_stands_in_its_address(tiny_folders):
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    at.switch_page("pages/2_Representations.py")
    at.query_params.update({f"model_{side}": str(tiny_folders("gpt2", i)) for i, side in enumerate("ab")})
    at.query_params.update({"null_draws": "1", "halves": "0"})
    at.run()
    key = "representations.corpus"
    element(at.text_area, f"{key}.pasted.0").set_value(SENTENCES)
    element(at.button, f"{key}.take").click()
    at.run()
    name = element(at.selectbox, key).value
    assert name == f"text/{corpus_from_text(SENTENCES).digest}"
    assert at.query_params["corpus"] in (name, [name])
    at.query_params.clear()
    at.switch_page("pages/9_Results.py").run()
    at.query_params.clear()
    at.switch_page("pages/2_Representations.py").run()
    assert not at.exception
    assert element(at.selectbox, key).value == name


def test_vectors_can_be_brought_in_the_row_of_the_text(caplog):
    at = AppTest.from_string("from embcompare.ui import inputs\ninputs.corpus(with_vectors=True)").run()
    assert_sound(at, caplog)
    assert element(at.button, "vectors.take")


@pytest.mark.parametrize(
    ("data", "suffix", "names"),
    [
        (b"a,b , c\n1,2,3", "csv", ["a", "b", "c"]),
        (b"\xef\xbb\xbfa\tb\n1\t2", "tsv", ["a", "b"]),
        (b'\n\n"x,y",z', "csv", ["x,y", "z"]),
        (b'{"text": "t", "n": 1}\n', "jsonl", ["text", "n"]),
        (b'"only a text"\n', "jsonl", []),
        (b"a,b\n", "txt", []),
        ("é".encode() * 40_000, "csv", ["é" * 32_768]),
        (b"\xff\xfea\x00", "csv", []),
        (b"", "csv", []),
    ],
    ids=range(9),
)
def test_columns_are_those_of_the_first_line(data, suffix, names):
    assert contents.columns(io.BytesIO(data), suffix) == names


def test_arrays_are_listed_for_every_kind_of_file():
    import pandas as pd
    from safetensors.numpy import save

    table = io.BytesIO()
    pd.DataFrame({"id": ["a"], "x": [1.0]}).to_parquet(table)
    assert contents.arrays(io.BytesIO(npz(one=rows(), two=rows())), "npz") == ["one", "two"]
    assert contents.arrays(io.BytesIO(save({"a": rows()}, {"made": "by us"})), "safetensors") == ["a"]
    assert contents.arrays(table, "parquet") == ["id", "x"]
    assert contents.arrays(io.BytesIO(npy(rows())), "npy") == []


@settings(max_examples=60, deadline=None)
@given(
    some.binary(max_size=300),
    some.sampled_from(["csv", "tsv", "jsonl", "txt", "npz", "safetensors", "parquet", "npy", "exe", ""]),
)
def test_no_bytes_make_the_listing_fail_and_the_file_is_left_at_its_start(data, suffix):
    for listed in (contents.columns, contents.arrays):
        file = io.BytesIO(data)
        assert all(isinstance(name, str) for name in listed(file, suffix))
        assert file.tell() == 0


@settings(max_examples=60, deadline=None)
@given(some.dictionaries(some.text(min_size=1, max_size=8).filter(str.strip), some.text(max_size=8), min_size=1))
def test_every_field_of_a_json_line_is_offered(item):
    data = json.dumps(item).encode()
    assert contents.columns(io.BytesIO(data), "jsonl") == list(item)
