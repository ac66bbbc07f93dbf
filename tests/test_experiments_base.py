"""A result on the screen: short, whatever it holds."""

from dataclasses import dataclass

import numpy as np
from fakes import Numbers

from embcompare.experiments.base import Result


def test_a_printed_result_names_its_arrays_and_never_their_content():
    result = Numbers(
        np.zeros((400, 300), np.float32),
        names=("x", "y"),
        score=1 / 3,
        label="a\nb" * 500,
        provenance={"models": {"demo/a": "print", "demo/b": "print"}},
        notices=("One.", "Two."),
    )
    lines = repr(result).splitlines()
    assert lines == str(result).splitlines()
    assert lines[0] == "Numbers"
    assert [line.split(maxsplit=1) for line in lines[1:4]] == [
        ["values", "(400, 300) float32"],
        ["names", "2 × str, first 'x'"],
        ["pairs", "empty"],
    ]
    assert "0.333333" in lines[4]
    assert lines[-3].split() == ["none", "extra"]
    assert lines[-2].split(maxsplit=2) == ["made", "from", "demo/a, demo/b"]
    assert lines[-1].split() == ["notices", "2"]
    assert max(map(len, lines)) <= 100


def test_a_result_of_many_fields_still_fits_a_screen():
    many = type("Many", (Result,), {"__annotations__": {f"f{n}": np.ndarray for n in range(60)}})
    made = dataclass(frozen=True, eq=False)(many)(*[np.zeros((1000, 2))] * 60)
    lines = repr(made).splitlines()
    assert len(lines) <= 24
    assert "and 42 more fields" in repr(made)


def test_a_result_that_says_it_otherwise_is_let():
    @dataclass(frozen=True, eq=False)
    class Own(Result):
        def __repr__(self):
            return "mine"

    assert repr(Own()) == "mine"


def test_every_experiments_result_is_printed_this_way():
    from embcompare.experiments import EXPERIMENTS, settings_type

    for name in EXPERIMENTS:
        assert settings_type(name).result_type.__repr__ is Result.__repr__
