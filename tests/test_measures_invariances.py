"""Each declared invariance holds and each declared non-invariance does not, on random layers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embcompare.measures import GEOMETRY, MEASURES, Invariance

N, P = 48, 6
SEEN = 1e-5  # a change that counts as one; rounding stays below 1e-8


def layers(seed):
    """Two related layers of one width, with directions small enough that SVCCA drops some."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((N, P)) * [3.0, 2.0, 1.5, 1.0, 0.3, 0.1] + rng.standard_normal(P)
    y = x @ rng.standard_normal((P, P)) * 0.4 + rng.standard_normal((N, P)) * [2.0, 1.0, 1.0, 0.5, 0.3, 0.1]
    return x, y


def orthogonal(rng):
    return np.linalg.qr(rng.standard_normal((P, P)))[0]


def changed(x, y, invariance, rng, side):
    """Apply a transformation to the first layer, the second, or both where it is a joint one."""
    if invariance is Invariance.SAMPLE_ORDER:
        order = rng.permutation(N)
        return x[order], y[order]
    if invariance is Invariance.JOINT_ORTHOGONAL:
        q = orthogonal(rng)
        return x @ q, y @ q
    move = {
        Invariance.ORTHOGONAL: lambda z: z @ orthogonal(rng),
        Invariance.SCALING: lambda z: z * 10 ** rng.uniform(-6, 6),
        Invariance.TRANSLATION: lambda z: z + 5 * rng.standard_normal(P),
        Invariance.LINEAR: lambda z: z @ orthogonal(rng) @ np.diag(np.exp(rng.uniform(-1, 1, P))) @ orthogonal(rng),
        Invariance.FEATURE_SCALING: lambda z: z * np.exp(rng.uniform(-1.5, 1.5, P)),
        Invariance.SAMPLE_SCALING: lambda z: z * np.exp(rng.uniform(-1.5, 1.5, (N, 1))),
    }[invariance]
    return (move(x), y) if side == "first" else (x, move(y))


def held(measure, side):
    return measure.invariances | (measure.of_first if side == "first" else measure.of_second)


@pytest.mark.parametrize("side", ["first", "second"])
@pytest.mark.parametrize("name", MEASURES)
@given(seed=st.integers(0, 100_000))
@settings(deadline=None, max_examples=12)
def test_declared_invariances_hold(name, side, seed):
    measure, rng = MEASURES[name], np.random.default_rng(seed)
    x, y = layers(seed)
    before = measure(x, y)
    for invariance in held(measure, side):
        after = measure(*changed(x, y, invariance, rng, side))
        assert after == pytest.approx(before, abs=1e-8), invariance


@pytest.mark.parametrize("side", ["first", "second"])
@pytest.mark.parametrize("name", MEASURES)
def test_what_is_not_declared_is_not_invariant(name, side):
    measure = MEASURES[name]
    for invariance in frozenset(Invariance) - held(measure, side):
        differences = []
        for seed in range(4):
            x, y = layers(seed)
            moved = changed(x, y, invariance, np.random.default_rng(seed), side)
            differences.append(abs(measure(*moved) - measure(x, y)))
        assert max(differences) > SEEN, invariance


def test_non_invariances_are_the_rest():
    for measure in MEASURES.values():
        assert not measure.non_invariances & (measure.invariances | measure.of_first | measure.of_second)
        assert measure.non_invariances | measure.invariances | measure.of_first | measure.of_second == set(Invariance)


@pytest.mark.parametrize("name", MEASURES)
@given(seed=st.integers(0, 100_000))
@settings(deadline=None, max_examples=8)
def test_symmetry_is_as_declared_and_a_layer_agrees_with_itself(name, seed):
    measure = MEASURES[name]
    x, y = layers(seed)
    if measure.symmetric:
        assert measure(x, y) == pytest.approx(measure(y, x), abs=1e-9)
    else:
        assert abs(measure(x, y) - measure(y, x)) > SEEN
    best = measure.high if measure.higher_is_closer else measure.low
    assert measure(x, x) == pytest.approx(best, abs=1e-6 if name == "ridge_r2" else 1e-9)
    assert measure.low - 1e-12 <= measure(x, y) <= measure.high + 1e-12


@pytest.mark.parametrize("name", GEOMETRY)
@given(seed=st.integers(0, 100_000))
@settings(deadline=None, max_examples=12)
def test_geometry_is_invariant_as_declared(name, seed):
    indicator, rng = GEOMETRY[name], np.random.default_rng(seed)
    x, _ = layers(seed)
    for invariance in indicator.invariances:
        after = indicator.function(changed(x, x, invariance, rng, "first")[0])
        assert after == pytest.approx(indicator.function(x), rel=1e-8, abs=1e-8), invariance


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_sees_what_it_does_not_declare(name):
    indicator = GEOMETRY[name]
    for invariance in indicator.non_invariances:
        x, _ = layers(1)
        after = indicator.function(changed(x, x, invariance, np.random.default_rng(1), "first")[0])
        assert abs(after - indicator.function(x)) > SEEN, invariance


@pytest.mark.parametrize("declared", [*MEASURES.values(), *GEOMETRY.values()], ids=lambda d: d.name)
def test_every_declaration_is_complete(declared):
    for text in (declared.label, declared.formula, declared.meaning, declared.source):
        assert text.strip()
    assert declared.low < declared.high
    assert declared.function.__doc__
    if declared.name in MEASURES:
        assert declared.needs
        assert declared.cost
        assert declared.min_samples(6, 4) >= 1
        assert declared.state_bytes(100, 6) > 0
    for invariance in declared.invariances:
        assert invariance.meaning.endswith(".")


def test_procrustes_obeys_the_triangle_inequality_and_lies_between_the_same_and_a_right_angle():
    distance = MEASURES["procrustes"]
    assert not distance.higher_is_closer
    assert distance.high == pytest.approx(math.pi / 2)
    x, y = layers(3)
    z = layers(4)[1]
    assert distance(x, z) <= distance(x, y) + distance(y, z) + 1e-12
    # equal shapes are at 0 to full precision, not to the 1e-8 of an arccos
    assert distance(x, 3 * x @ orthogonal(np.random.default_rng(0)) + 1) < 1e-13
    assert distance(x, np.pad(x, ((0, 0), (0, 3)))) < 1e-13


def test_procrustes_sees_a_small_angle_to_many_digits():
    x, y = layers(5)
    step = 1e-6
    near = MEASURES["procrustes"](x, x + step * y) / step
    nearer = MEASURES["procrustes"](x, x + step / 10 * y) / (step / 10)
    assert near == pytest.approx(nearer, rel=1e-4)
