"""What every fitted map says about itself: drives the choice on the pages, the command line and the documentation.

Needs no torch. The maps that join two models for stitching have a registry of their own, ``KERNELS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from embcompare.errors import InputError, SettingsError


@dataclass(frozen=True)
class MapDeclaration:
    """One map: how it is called, what it is, what it needs, and the class that fits it.

    ``bijective`` says whether it is a bijection between representations of one width, wherever its matrix is not
    singular; ``trained`` whether it needs validation rows and a seed and reports its progress. ``least_rows(d_a, d_b)``
    is the fewest training rows it takes. ``direction`` says in which sense it is asymmetric. ``options`` are what this
    entry fixes and can be overridden. ``control`` maps are there to be beaten or to be missed.
    """

    name: str
    label: str
    formula: str
    meaning: str
    bijective: bool
    trained: bool
    needs: str
    least: Literal["1", "3", "wider", "narrower", "first"]
    source: str
    direction: str
    home: str
    cls: str
    options: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False
    equal_widths: bool = False

    def least_rows(self, width_a: int, width_b: int) -> int:
        """Return the fewest training rows that it can be fitted on between these widths."""
        return {
            "1": 1, "3": 3, "wider": max(width_a, width_b) + 1, "narrower": min(width_a, width_b) + 1,
            "first": width_a + 1,
        }[self.least]  # fmt: skip

    @property
    def type(self) -> Any:
        """The class of the map; imports torch."""
        return getattr(import_module(f"embcompare.maps.{self.home}"), self.cls)

    def make(self, **options: Any) -> Any:
        """Make the map, not fitted; raises :class:`SettingsError` for an option that it does not have."""
        try:
            return self.type(**{**self.options, **options})
        except TypeError as error:
            given = ", ".join(options)
            known = ", ".join(self.type().options) or "none"
            raise SettingsError(f"The map '{self.name}' was given {given}; its options are {known}.") from error


_ONE_WAY = "first to second; another map the other way"
_OWN_INVERSE = "first to second, and back by its inverse"

_ALL = (
    MapDeclaration(
        "mean", "mean", "y = ȳ", "Every row becomes the mean of the second model's: what any map must beat.",
        False, False, "1 training row", "1", "", _ONE_WAY, "affine", "MeanPredictor", control=True,
    ),
    MapDeclaration(
        "identity", "as it is", "y = x", "Rows as they are: works only as far as two models share coordinates.",
        True, False, "models of one width", "1", "", _OWN_INVERSE, "affine", "Identity", control=True,
        equal_widths=True,
    ),
    MapDeclaration(
        "orthogonal", "rotation", "y = x U Vᵀ + c, where U S Vᵀ = XᵀY, centred",
        "The rotation that brings the first closest to the second: are they one shape, seen in other coordinates?",
        True, False, "more training rows than the narrower model is wide", "narrower", "Schönemann 1966",
        _OWN_INVERSE, "affine", "Orthogonal",
    ),
    MapDeclaration(
        "scaled_rotation", "rotation and scale", "y = s x U Vᵀ + c, s = tr S / ‖X‖²",
        "The rotation, times the one number that fits best.",
        True, False, "more training rows than the narrower model is wide", "narrower", "Schönemann 1966",
        _OWN_INVERSE, "affine", "Orthogonal", options={"scale": True},
    ),
    MapDeclaration(
        "least_squares", "least squares", "y = x (XᵀX)⁻¹ XᵀY + c, centred",
        "The linear map of least error on the training rows.",
        True, False, "more training rows than the first model is wide", "first", "least squares", _OWN_INVERSE,
        "affine", "LeastSquares",
    ),
    MapDeclaration(
        "ridge", "ridge", "y = x (XᵀX + λ I)⁻¹ XᵀY + c, centred, λ by generalised cross-validation",
        "As least squares, for few rows: directions that they hardly show are held back.",
        True, False, "3 training rows", "3", "Hoerl & Kennard 1970; Golub, Heath & Wahba 1979", _OWN_INVERSE,
        "affine", "Ridge",
    ),
    MapDeclaration(
        "cca", "CCA", "y = Σᵢ ρᵢ (x aᵢ) pᵢ + c, pᵢ = Yᵀ Y bᵢ, corr(X aᵢ, Y bᵢ) = ρᵢ",
        "Each canonical variate of the first predicts its partner in the second. With all of them, least squares.",
        True, False, "more training rows than the wider model is wide", "wider", "Hotelling 1936", _OWN_INVERSE,
        "variates", "CCAMap",
    ),
    MapDeclaration(
        "cca_matched", "CCA, matched", "y = Σᵢ (x aᵢ) pᵢ + c, pᵢ = Yᵀ Y bᵢ",
        "Each canonical variate of the first becomes its partner in the second, however weakly the two correlate.",
        True, False, "more training rows than the wider model is wide", "wider", "Hotelling 1936", _OWN_INVERSE,
        "variates", "CCAMap", options={"shrink": False},
    ),
    MapDeclaration(
        "svcca", "SVCCA", "as CCA, over the principal directions that hold 99 % of each side's variance",
        "The CCA map with the directions of least variance left out as noise.",
        False, False, "more training rows than the wider model is wide", "wider", "Raghu et al. 2017", _ONE_WAY,
        "variates", "SVCCAMap",
    ),
    MapDeclaration(
        "pwcca", "PWCCA", "as CCA, over the variates with 99 % of Σᵢ αᵢ, αᵢ = Σⱼ |⟨X aᵢ, xⱼ⟩|",
        "The CCA map with the variates left out that carry least of the first model's features.",
        False, False, "more training rows than the wider model is wide", "wider",
        "Morcos et al. 2018, for the weights; the map is this project's own", _ONE_WAY, "variates", "PWCCAMap",
    ),
    MapDeclaration(
        "inn", "invertible network", "y = (couplings ∘ linear)(x): b ← b exp(s(a)) + t(a), a and b in turn",
        "Starts as the best invertible linear map and bends it, one-to-one throughout: what a bijection can reach.",
        True, True, "3 training rows, 1 for validation, 2 features on one side", "3",
        "Dinh, Sohl-Dickstein & Bengio 2017; Ren et al. 2023, for the question", _OWN_INVERSE, "inn", "INN",
    ),
    MapDeclaration(
        "bert_inn", "BERT-INN block", "y = b x + (1 - b) (x (exp(tanh f(b x)) + 1e-8) + g(b x)), b even, then odd",
        "The single block of the official code, without linear start: its shape, not its training schedule.",
        True, True, "3 training rows, 1 for validation, 2 features on one side", "3", "Ren et al. 2023",
        _OWN_INVERSE, "inn", "BertINN",
    ),
    MapDeclaration(
        "mlp", "perceptron", "y = x K + c + W₃ gelu(W₂ gelu(W₁ x))",
        "As many weights as the invertible network and no inverse: what a map that may merge rows can reach.",
        False, True, "3 training rows, 1 for validation", "3", "Ren et al. 2023, for the control", _ONE_WAY,
        "mlp", "MLP", control=True,
    ),
)  # fmt: skip

MAPS: dict[str, MapDeclaration] = {each.name: each for each in _ALL}
"""Fitted maps by name; add one by writing its class and its declaration."""


def get_map(name: str) -> MapDeclaration:
    """Return a map's declaration; raises :class:`SettingsError` that lists the names there are."""
    if name not in MAPS:
        raise SettingsError(f"There is no map '{name}'; there are {', '.join(MAPS)}.")
    return MAPS[name]


def load_map(arrays: Mapping[str, Any], header: Mapping[str, Any]) -> Any:
    """Make the fitted map that ``to_arrays`` described; raises :class:`InputError` where they do not fit."""
    for declared in MAPS.values():
        if declared.type.name == header.get("map"):
            return declared.type.from_arrays(arrays, header)
    raise InputError(f"The header names a map '{header.get('map')}' that is not known here.")
