"""What every map says about itself: drives the choice on the pages, the cards and the documentation. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from embcompare.errors import SettingsError


@dataclass(frozen=True)
class Declaration:
    """One map: how it is called, what it is, what it needs, and the function that makes it.

    ``fitted_on`` says what ``make`` takes first: ``"E"`` two embedding matrices (V, d_a) and (V, d_b), ``"states"`` two
    arrays of paired states (n, d_a) and (n, d_b), ``"kernel"`` another kernel, ``"widths"`` the two widths.
    ``explained`` says which variance ``Kernel.explained`` is a share of, empty where there is none. ``options`` are
    what this entry fixes and can be overridden. ``control`` maps carry nothing on purpose.
    """

    name: str
    label: str
    formula: str
    meaning: str
    fitted_on: Literal["E", "states", "kernel", "widths"]
    needs: str
    source: str
    home: str
    function: str
    explained: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False
    linear: bool = True
    equal_widths: bool = False
    stochastic: bool = False

    def make(self, *given: Any, **options: Any) -> Any:
        """Make the :class:`~embcompare.maps.kernel.Kernel`; arguments and errors are those of the function."""
        maker = getattr(import_module(f"embcompare.maps.{self.home}"), self.function)
        return maker(*given, **{**self.options, **options})


_TOKENS = "more shared tokens than the wider model is wide, and every direction of both seen by them"
_READ = "E_A's over the shared tokens, by B's reading of the mapped vectors"
_R2 = "the second model's states about their mean (R²), training and held-out"
_DAR = "Dar et al. 2023, section 4"

_ALL = (
    Declaration(
        "pseudo_inverse", "pseudo-inverse kernel", "K = E_A E_B⁺",
        "The vector of B that reads most like the vector of A on every shared token. No text, no training.",
        "E", _TOKENS, _DAR, "embedding", "pseudo_inverse", _READ,
    ),
    Declaration(
        "orthogonal", "orthogonal factor of the kernel", "K = U Vᵀ, where U S Vᵀ = E_A E_B⁺",
        "The rotation nearest to the kernel: keeps lengths and angles, and cannot blow up a weak direction.",
        "E", _TOKENS, "Schönemann 1966; Dar et al. 2023, section 4, for the kernel", "embedding", "orthogonal", _READ,
        options={"of": "kernel"},
    ),
    Declaration(
        "token_rotation", "rotation between the tokens", "K = U Vᵀ, where U S Vᵀ = E_Aᵀ E_B",
        "The rotation that brings A's token vectors closest to B's (Procrustes).",
        "E", _TOKENS, "Schönemann 1966", "embedding", "orthogonal",
        "E_B's over the shared tokens, by the mapped E_A", options={"of": "tokens"},
    ),
    Declaration(
        "anchors", "relative representation", "y = x/‖x‖ Â_Aᵀ (Â_Bᵀ)⁺",
        "Cosines to chosen anchor tokens of A, undone by the same anchors of B. Not linear: the length of x is lost.",
        "E", "2 anchor tokens; as many as the wider model is wide, to carry every direction",
        "Moschella et al. 2023; undoing the cosines by a pseudo-inverse is this project's own",
        "embedding", "anchors", "the anchors' directions in A, by B's reading of the mapped vectors", linear=False,
    ),
    Declaration(
        "least_squares", "least squares on states", "K = (XᵀX)⁻¹ XᵀY, centred",
        "The affine map that comes closest to B's states on text that both models read: what any map could reach.",
        "states", "more training states than the first model is wide", "least squares", "states", "least_squares", _R2,
        stochastic=True,
    ),
    Declaration(
        "ridge", "ridge on states", "K = (XᵀX + λ I)⁻¹ XᵀY, centred, λ by generalised cross-validation",
        "As least squares, for few states: directions that they hardly show are held back.",
        "states", "3 training states", "Hoerl & Kennard 1970; Golub, Heath & Wahba 1979", "states", "ridge", _R2,
        stochastic=True,
    ),
    Declaration(
        "orthogonal_fit", "rotation of states", "K = U Vᵀ, where U S Vᵀ = XᵀY, centred",
        "The rotation that brings A's states closest to B's: are they one shape, seen in other coordinates?",
        "states", "more training states than the narrower model is wide", "Schönemann 1966", "states", "orthogonal_fit",
        _R2, stochastic=True,
    ),
    Declaration(
        "permuted", "vocabulary permuted", "K = E_A (E_B P)⁺, P a random permutation of the tokens",
        "The kernel of the same two models with every token of B taken for another: keeps all but the meaning.",
        "E", _TOKENS, _DAR, "controls", "permuted", _READ, control=True, stochastic=True,
    ),
    Declaration(
        "random_rotation", "random rotation", "K = ‖K₀‖ Q / √min(d_A, d_B), Q drawn evenly (Haar)",
        "A rotation that knows neither model, as large as the map it stands beside.",
        "kernel", "a map to stand beside", "Mezzadri 2007", "controls", "random_rotation",
        control=True, stochastic=True,
    ),
    Declaration(
        "identity", "as it is", "K = I",
        "Vectors handed over without any map: works only as far as two models share coordinates.",
        "widths", "models of one width", "", "controls", "identity", control=True, equal_widths=True,
    ),
)  # fmt: skip

KERNELS: dict[str, Declaration] = {each.name: each for each in _ALL}
"""Maps by name; add one by writing its function and its declaration."""


def get_kernel(name: str) -> Declaration:
    """Return a map's declaration; raises :class:`SettingsError` that lists the names there are."""
    if name not in KERNELS:
        raise SettingsError(f"There is no map '{name}'; there are {', '.join(KERNELS)}.")
    return KERNELS[name]
