"""Stitching: A's first blocks, a map, B's last blocks and head, at every pair of layers, with nothing trained.

Dar et al. 2023, section 4 (the kernel ``E_A E_B⁺``), with what makes it an experiment: maps side by side, controls that
carry no meaning, A and B alone, the base rate, repeated runs, and a check that a model stitched to itself is itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.stitching_result import StitchingResult
from embcompare.maps.registry import KERNELS

__all__ = ["DEFAULT_KERNELS", "Stitching", "StitchingResult"]

DEFAULT_KERNELS = "pseudo_inverse, orthogonal, permuted, identity"


@dataclass(frozen=True)
class Stitching(Settings):
    """Run A's first blocks, a map and B's last blocks at every pair of layers, and score what comes out."""

    experiment: ClassVar[str] = "stitching"
    version: ClassVar[int] = 2
    result_type: ClassVar[type[Result]] = StitchingResult

    model_a: str = option(
        model=True, label="Model A, below", help="Its first blocks run. Demo model, folder or hub name."
    )
    model_b: str = option(model=True, label="Model B, above", help="Its last blocks and its head run.")
    also: str = option(
        "", label="Also above", help="More models B of the same depth, each a run: twins, seeds; commas between them."
    )
    corpus: str = option(
        "shipped", corpus=True, label="Texts", help="shipped, reviews (labelled), or text/DIGEST of a text you gave."
    )
    kernels: str = option(DEFAULT_KERNELS, label="Maps", help=f"With commas; there are {', '.join(KERNELS)}.")
    sentences: int = option(100, label="Texts scored", low=4, high=5000, help="Drawn anew for each run.")
    runs: int = option(1, label="Runs", low=1, high=50, help="Each with texts, maps and tuning of its own seed.")
    tuned_blocks: int = option(
        0,
        label="Blocks of B tuned",
        low=0,
        high=200,
        help="Make a classifier of B in every run: its last so many blocks learn the texts that are not scored.",
    )
    embedding: str = option(
        "output", label="Embedding", choices=("output", "input"), help="Which embedding the maps are made of."
    )
    centred: bool = option(False, label="Centred", help="Subtract the mean token from both embeddings. The paper: no.")
    anchors: int = option(512, label="Anchor tokens", low=2, high=50_000, help="Of the relative representation.")
    fit_rows: int = option(
        4000, label="States fitted on", low=10, high=100_000, help="At most, for maps fitted on states of other texts."
    )
    mask_share: float = option(0.15, label="Tokens masked", low=0.01, high=0.9, help="Of each text, in masked models.")
    paper_faithful: bool = option(
        False,
        label="As the official notebook",
        help="Add B's positions to the states once more and take A's last state after its final norm.",
    )
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of texts, controls, fits and tuning.")

    def __post_init__(self) -> None:
        from embcompare.stitching.bridges import parse_kernels

        super().__post_init__()
        # written in one way, so that the same maps are the same run
        object.__setattr__(self, "kernels", ", ".join(parse_kernels(self.kernels)))
        object.__setattr__(self, "also", ", ".join(self.uppers()[1:]))
        if len({_place(name) for name in self.uppers()}) < len(self.uppers()):
            raise SettingsError("A model stands twice among those above; name each once, and raise the number of runs.")

    @classmethod
    def paper(cls, model_a: str, model_b: str, corpus: str = "reviews", **others: object) -> Self:
        """Return the protocol of Dar et al. 2023: a classifier of B's last three blocks, in 11 runs."""
        made = cls(model_a=model_a, model_b=model_b, corpus=corpus)
        return replace(made, **{"runs": 11, "tuned_blocks": 3, "sentences": 144, **others})  # type: ignore[arg-type]

    def uppers(self) -> tuple[str, ...]:
        """Return the models B, in order."""
        return (self.model_b, *(name.strip() for name in self.also.split(",") if name.strip()))

    def models(self) -> tuple[str, ...]:
        """Return the names of all models that the run reads, each once."""
        return tuple(dict.fromkeys((self.model_a, *self.uppers())))

    def compute(self, context: Context) -> StitchingResult:
        """Compute A's states once for all cuts, and put all cuts through each of B's upper parts as one batch."""
        import torch

        from embcompare.experiments.stitching_run import StitchingRun

        with context.lease(self.model_a) as a, torch.inference_mode():
            return StitchingRun(self, context, a).result()


def _place(name: str) -> object:
    """Return what a name of a model stands for, however it is written."""
    from embcompare.models.spec import ModelSpec

    try:
        spec = ModelSpec.parse(name)
    except EmbcompareError:  # what is wrong with a name is said when the model is loaded
        return name
    return spec.kind, spec.name, spec.revision
