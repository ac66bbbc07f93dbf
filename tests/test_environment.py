"""Each variable is read in one way, and a wrong value is refused by name."""

import re
from pathlib import Path

import pytest

from embcompare import environment
from embcompare.activations.files import StateFolder
from embcompare.errors import SettingsError
from embcompare.models import memory, policy
from embcompare.store import Store

NAME = "EMBCOMPARE_TRIED"
ROOT = Path(__file__).parent.parent


def refusal(act):
    with pytest.raises(SettingsError) as caught:
        act()
    text = str(caught.value)
    assert re.fullmatch(r"EMBCOMPARE_[A-Z_]+ cannot be '[^']*'; [^.]+(\.\d[^.]*)?\.", text), text
    return text


@pytest.mark.parametrize("value", ["", "  "])
def test_what_is_not_set_or_blank_is_the_default(monkeypatch, value):
    monkeypatch.setenv(NAME, value)
    assert environment.text(NAME) == ""
    assert environment.whole_number(NAME, 4) == 4
    assert environment.number_of_bytes(NAME, None) is None
    assert environment.positive_seconds(NAME, 2.5) == 2.5
    assert environment.flag(NAME) is False
    assert environment.listed(NAME) == []
    assert environment.folder(NAME) is None
    monkeypatch.delenv(NAME)
    assert environment.whole_number(NAME, 4) == 4


def test_what_is_well_said_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv(NAME, " 12 ")
    assert environment.whole_number(NAME, 4) == environment.number_of_bytes(NAME, 0) == 12
    assert environment.positive_seconds(NAME, None) == 12.0
    monkeypatch.setenv(NAME, "0.25")
    assert environment.positive_seconds(NAME, None) == 0.25
    monkeypatch.setenv(NAME, "a, b,,c ")
    assert environment.listed(NAME) == ["a", "b", "c"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(NAME, "~/x")
    assert environment.folder(NAME) == tmp_path / "x"
    for value, said in (("1", True), ("Yes", True), ("ON", True), ("true", True), ("0", False), ("off", False)):
        monkeypatch.setenv(NAME, value)
        assert environment.flag(NAME) is said


@pytest.mark.parametrize(
    "value", ["2 GB", "-1", "1.5", "1e9", "0x10", "many", "٣", "²", "9" * 6000, "1_000", "+1", "nan", "1\n2"]
)
def test_what_is_no_whole_number_is_refused(monkeypatch, value):
    monkeypatch.setenv(NAME, value)
    assert "give a whole number from 1 up" in refusal(lambda: environment.whole_number(NAME, 4, low=1))
    assert "give a whole number of bytes from 0 up" in refusal(lambda: environment.number_of_bytes(NAME, 4))


def test_a_number_below_the_least_is_refused(monkeypatch):
    monkeypatch.setenv(NAME, "0")
    assert environment.whole_number(NAME, 4) == 0
    assert "cannot be '0'; give a whole number from 1 up" in refusal(lambda: environment.whole_number(NAME, 4, low=1))


@pytest.mark.parametrize("value", ["0", "0.0", "-5", "5 min", "1e3", "inf", "nan", ".", "5.", "9" * 400])
def test_what_is_no_time_above_zero_is_refused(monkeypatch, value):
    monkeypatch.setenv(NAME, value)
    assert "give a number of seconds above 0" in refusal(lambda: environment.positive_seconds(NAME, None))


@pytest.mark.parametrize("value", ["maybe", "2", "y", "enabled"])
def test_a_flag_that_is_neither_yes_nor_no_is_refused(monkeypatch, value):
    monkeypatch.setenv(NAME, value)
    assert "say 1, true, yes or on, or 0, false, no or off" in refusal(lambda: environment.flag(NAME))


def test_the_folder_of_somebody_who_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(NAME, "~nobody-of-that-name/cache")
    assert "there is no such user" in refusal(lambda: environment.folder(NAME))


@pytest.mark.parametrize(
    ("name", "value", "act"),
    [
        ("EMBCOMPARE_CACHE_BYTES", "2 GB", Store),
        ("EMBCOMPARE_CACHE", "~nobody-of-that-name", Store),
        ("EMBCOMPARE_STATES_BYTES", "plenty", lambda: StateFolder(Path("x"))),
        ("EMBCOMPARE_MAX_MODEL_BYTES", "0", memory.limit),
        ("EMBCOMPARE_HOSTED", "public", policy.hosted),
        ("EMBCOMPARE_ALLOWED_MODELS", "org/unpinned", policy.allowed_models),
        ("EMBCOMPARE_ALLOWED_MODELS", "org/name@", policy.allowed_models),
        ("EMBCOMPARE_ALLOWED_MODELS", "a b@c", policy.allowed_models),
    ],
)
def test_every_variable_is_refused_by_name(monkeypatch, name, value, act):
    monkeypatch.setenv(name, value)
    text = refusal(act)
    assert text.startswith(f"{name} cannot be '{value}'; ")


def test_nothing_else_reads_these_variables():
    for path in ROOT.glob("embcompare/**/*.py"):
        if path.name == "environment.py":
            continue
        read = re.findall(r"(?:os\.environ|getenv)[^\n]*EMBCOMPARE_", path.read_text(encoding="utf-8"))
        assert not read, path
