"""Every measure against what independent packages say about the same seeded arrays (tests/golden/measures.json)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from embcompare.measures import GEOMETRY, MEASURES
from tests.golden.make_measures import arrays, fold_labels

GOLDEN = json.loads((Path(__file__).parent / "golden" / "measures.json").read_text(encoding="utf-8"))
CELLS = [(case, name) for case, content in GOLDEN["cases"].items() for name in content["values"]]
# A generic tolerance, and the two oracles that work in float32 somewhere inside.
TOLERANCE = {"IsoScore": 1e-6}
FORMULA_ONLY = {"cknna"}  # no package under a usable licence computes it


def value(name, x, y):
    if name.startswith("geometry/"):
        return GEOMETRY[name.removeprefix("geometry/")].function(x)
    options = {"groups": fold_labels(len(x))} if name in ("regression_r2", "ridge_r2") else {}
    return MEASURES[name](x, y, **options)


@pytest.mark.parametrize(("case", "name"), CELLS)
def test_measure_agrees_with_every_oracle(case, name):
    x, y = arrays(**GOLDEN["cases"][case]["recipe"])
    ours = value(name, x, y)
    for package, theirs in GOLDEN["cases"][case]["values"][name].items():
        assert ours == pytest.approx(theirs, abs=TOLERANCE.get(package, 1e-9), rel=1e-9), package


def test_every_measure_has_two_oracles_somewhere():
    oracles = {}
    for content in GOLDEN["cases"].values():
        for name, by in content["values"].items():
            oracles.setdefault(name.removeprefix("geometry/"), set()).update(by)
    assert set(oracles) == set(MEASURES) | set(GEOMETRY)
    lacking = {name for name, packages in oracles.items() if len(packages) < 2}
    # an angle's cosine and a mean of norms have one package; their formulas are one line, checked below
    assert lacking == FORMULA_ONLY | {"mean_cosine", "norm_spread"}


def test_one_line_geometry_equals_its_formula():
    x, _ = arrays(**GOLDEN["cases"]["offset"]["recipe"])
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(len(x)) for j in range(len(x)) if i != j]
    assert GEOMETRY["mean_cosine"].function(x) == pytest.approx(np.mean(pairs), abs=1e-12)
    lengths = np.sqrt((x**2).sum(1))
    assert GEOMETRY["norm_spread"].function(x) == pytest.approx(lengths.std() / lengths.mean(), abs=1e-12)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_and_numpy_of_any_precision_are_read_as_stored(name, dtype):
    x, y = (torch.from_numpy(z).to(dtype) for z in arrays(**GOLDEN["cases"]["offset"]["recipe"]))
    stored = MEASURES[name](x.double().numpy(), y.double().numpy())
    assert MEASURES[name](x, y.requires_grad_()) == pytest.approx(stored, abs=1e-9)
    assert type(MEASURES[name](x, y)) is float
