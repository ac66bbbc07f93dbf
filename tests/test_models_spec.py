"""How a model is named, and what a name can never do."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embcompare.errors import EmbcompareError, ModelNotFound, SettingsError
from embcompare.models.spec import ModelSpec


@pytest.mark.parametrize(
    ("text", "kind", "name", "revision"),
    [
        ("demo/gpt2-a", "demo", "gpt2-a", None),
        ("gpt2", "hub", "gpt2", None),
        ("  org/some.model_1-b ", "hub", "org/some.model_1-b", None),
        ("org/name@abc123", "hub", "org/name", "abc123"),
        ("org/name@refs/pr/1", "hub", "org/name", "refs/pr/1"),
        ("/tmp/models/x", "folder", "/tmp/models/x", None),
        ("/tmp/models/../x/", "folder", "/tmp/x", None),
    ],
)
def test_names_are_read(text, kind, name, revision):
    spec = ModelSpec.parse(text)
    assert (spec.kind, spec.name, spec.revision) == (kind, name, revision)


def test_a_relative_folder_needs_its_dot_and_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ModelSpec.parse("./gpt2") == ModelSpec("folder", str(tmp_path / "gpt2"))
    assert ModelSpec.parse("gpt2").kind == "hub", "a bare name is never a folder by surprise"
    assert ModelSpec.parse("~/x").name == os.path.join(os.path.expanduser("~"), "x")


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "org/../name",
        "org/name/third",
        "org\\name",
        "-name",
        "org/name@",
        "org/name@../x",
        "demo/",
        "demo/../x",
        "demo/a/b",
        "name;rm",
        "org/nam\u0435",
        "x" * 2000,
        "a\x00b",
        "..name",
        "http://hub/x",
        "name@a@b",
    ],
)
def test_what_is_not_a_name_is_refused_in_one_sentence(text):
    with pytest.raises(ModelNotFound) as caught:
        ModelSpec.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("settings", "named"), [({"dtype": "int8"}, "int8"), ({"device": "tpu"}, "tpu")])
def test_a_wrong_dtype_or_device_is_named(settings, named):
    with pytest.raises(SettingsError, match=named):
        ModelSpec.parse("gpt2", **settings)


def test_an_empty_name_is_refused():
    with pytest.raises(SettingsError, match="empty"):
        ModelSpec.parse("   ")


def test_labels_are_short_and_text_is_whole():
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert ModelSpec.parse("demo/gpt2-a").label == "demo/gpt2-a"
    assert ModelSpec.parse("/models/mine").label == "mine"
    assert ModelSpec.parse(f"org/name@{commit}").label == "org/name@0123456"
    assert ModelSpec.parse("org/name@main").label == "org/name@main"
    for text in ("demo/gpt2-a", "/models/mine", f"org/name@{commit}", "gpt2"):
        assert ModelSpec.parse(text).text == text
        assert ModelSpec.parse(ModelSpec.parse(text)) == ModelSpec.parse(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_and_never_climbs(text):
    try:
        spec = ModelSpec.parse(text)
    except EmbcompareError:
        return
    if spec.kind == "folder":
        assert os.path.isabs(spec.name)
    else:
        assert ".." not in spec.name
        assert not spec.name.startswith(("/", ".", "-"))
    assert ModelSpec.parse(spec.text) == spec


def test_naming_a_model_imports_no_torch():
    code = "import sys, embcompare.models.spec, embcompare.models; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
