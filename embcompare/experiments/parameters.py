"""Parameter alignment: do two models' parameters say the same things, layer by layer.

Every layer of model A against every layer of model B, by one group of parameters read in one space: Dar et al.
2023, section 4.1 and appendix, with the null that the paper lacks (a permuted vocabulary) and its feature-space
control beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.depth import RANDOM_ASSIGNMENTS, cell_table, depth_agreement, double_centred
from embcompare.experiments.vectors import (
    GROUPS,
    INTERACTIONS,
    Prepared,
    correlations,
    meet,
    open_space,
    prepare,
    require_group,
)
from embcompare.measures.matching import SCORES

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.models import LoadedModel
    from embcompare.spaces import EmbeddingSpace, FeatureSpace, Space


@dataclass(frozen=True, eq=False)
class ParameterAlignmentResult(Result):
    """Layer-by-layer agreement of one group of parameters; axis 0 is the layer of A, axis 1 the layer of B."""

    values: np.ndarray
    """(L_a, L_b) float64 scores; NaN where undefined (see notices)."""
    null_mean: np.ndarray | None
    """(L_a, L_b) mean of the score under a permuted vocabulary (feature space: permuted features)."""
    null_sd: np.ndarray | None
    """(L_a, L_b) standard deviation over the permutations, with n - 1."""
    control: np.ndarray | None
    """(L_a, L_b) the same score in feature space; None where widths differ or feature space is the space itself."""
    control_chance: float | None
    """Expected feature-space score of unrelated vectors, sqrt(2/(π d)); None where no closed form holds."""
    assignment: np.ndarray
    """(k, 2) int64: the one-to-one assignment of layers with the largest total score."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    vectors_a: np.ndarray
    """(L_a,) int64: vectors (heads, for W_QK and W_VO) that entered, per layer of A."""
    vectors_b: np.ndarray
    """(L_b,) int64: likewise for B."""
    tokens: int | None
    """Shared tokens that the embedding space is read through; None in feature space."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    @property
    def centred(self) -> np.ndarray:
        """(L_a, L_b): row and column means taken out, so that a diagonal shows beside bright rows or columns."""
        return double_centred(self.values)

    @property
    def z(self) -> np.ndarray | None:
        """(L_a, L_b): distance from the null in its standard deviations; None without a null, NaN where sd is 0."""
        if self.null_mean is None or self.null_sd is None:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(np.where(self.null_sd > 0, (self.values - self.null_mean) / self.null_sd, np.nan))

    def to_frame(self) -> pd.DataFrame:
        """Return one row a cell: both layers, score, double-centred score, null, z, control, assigned or not."""
        import pandas as pd

        more = {name: getattr(self, name) for name in ("null_mean", "null_sd", "z", "control")}
        return pd.DataFrame(cell_table(self.values, self.assignment, more))


@dataclass(frozen=True)
class ParameterAlignment(Settings):
    """Compare two models' parameters layer by layer. Layers count from 0, the first block."""

    experiment: ClassVar[str] = "parameter-alignment"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = ParameterAlignmentResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder, or hub name with optional @revision.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder, or hub name with optional @revision.")
    group: str = option(
        "ff_keys", label="Parameters", choices=tuple(GROUPS), help="Which vectors of each layer are compared."
    )
    space: str = option(
        "embedding",
        label="Space",
        choices=("embedding", "feature"),
        help="Read every vector through the vocabulary, or in the model's own coordinates (needs equal widths).",
    )
    score: str = option(
        "mean_abs", label="Score", choices=tuple(SCORES), help="How two layers' sets of vectors are scored."
    )
    centred: bool = option(
        True, label="Centred", help="Subtract each vector's mean (Pearson); off compares plain cosines."
    )
    common: int = option(
        0,
        label="Common directions left out",
        low=0,
        high=64,
        help="Strongest directions of each embedding to leave out; the first is mostly token frequency. The paper: 0.",
    )
    embedding: str = option(
        "output",
        label="Embedding",
        choices=("output", "input"),
        help="Read through the unembedding (the paper's choice) or the input embedding, where they differ.",
    )
    null_draws: int = option(
        10, label="Null draws", low=0, high=1000, help="Random permutations of the vocabulary; 0 leaves the null out."
    )
    control: bool = option(True, label="Feature-space control", help="Also score in feature space where widths agree.")
    small_overlap: bool = option(
        False, label="Allow a small overlap", help="Go on below 1,000 shared tokens or 10 % of the vocabulary."
    )
    dtype: str = option("float32", label="Precision", choices=("float32", "float64"), help="Of the large products.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the permutations.")

    def compute(self, context: Context) -> ParameterAlignmentResult:
        """Run in blocks: no array of all pairs of vectors, nor of vectors by tokens, ever exists."""
        import torch

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            return _Run(self, context, a, b).result()


class _Run:
    """One run's moving parts: prepared layers, the work counted for progress, the cells finished so far."""

    def __init__(self, settings: ParameterAlignment, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        self.settings, self.context, self.a, self.b = settings, context, a, b
        for model in (a, b):
            require_group(model, settings.group)
        self.with_control = settings.control and settings.space == "embedding" and a.anatomy.width == b.anatomy.width
        self.shape = (a.anatomy.n_layers, b.anatomy.n_layers)
        self.total = self.shape[0] * (1 + settings.null_draws + self.with_control) + 1
        self.done = 0
        self.notices: list[str] = []

    def result(self) -> ParameterAlignmentResult:
        settings, context = self.settings, self.context
        context.report(0, self.total, "reading both models through the vocabulary")
        space, notes = open_space(settings, self.a, self.b, context.device)
        self.notices += notes
        self.tokens = space.size if settings.space == "embedding" else None
        layers_a, layers_b = self._prepared(space)
        self.vectors = [np.array([p.heads for p in side], dtype=np.int64) for side in (layers_a, layers_b)]
        self._note_undefined(layers_a, layers_b)
        self.done = 1
        values = self._matrix(space, layers_a, layers_b, "scoring", partial=True)
        control = self._control() if self.with_control else None
        null_mean, null_sd = self._null(space, layers_a, layers_b)
        self._note_control(control)
        if settings.null_draws == 1:
            self.notices.append("One null draw has no standard deviation, so there is no z; take two or more.")
        return self._assemble(values, control, null_mean, null_sd)

    def _prepared(self, space: Space) -> tuple[list[Prepared], list[Prepared]]:
        def side(model: LoadedModel, name: str) -> list[Prepared]:
            s = self.settings
            return [
                prepare(model.anatomy, s.group, layer, space, name, self.context.device, s.dtype)
                for layer in range(model.anatomy.n_layers)
            ]

        return side(self.a, "a"), side(self.b, "b")

    def _matrix(
        self, space: Space, layers_a: list[Prepared], layers_b: list[Prepared], what: str, *, partial: bool = False
    ) -> np.ndarray:
        """Score every pair of layers; report after each layer of A, with the rows so far if ``partial``."""
        score = SCORES[self.settings.score].function
        met_b = meet(layers_b, space, "b")
        values = np.full(self.shape, np.nan)
        for i, layer in enumerate(layers_a):
            met_a = meet([layer], space, "a")[0]
            for j, other in enumerate(met_b):
                values[i, j] = score(correlations(met_a, other))
            self.done += 1
            so_far = self._assemble(values.copy(), None, None, None) if partial else None
            self.context.report(self.done, self.total, f"{what}: layer {i + 1} of {len(layers_a)}", so_far)
        return values

    def _control(self) -> np.ndarray:
        from embcompare.spaces import FeatureSpace

        space = FeatureSpace(self.a.anatomy.width, self.b.anatomy.width, centred=self.settings.centred)
        return self._matrix(space, *self._prepared(space), "feature-space control")

    def _null(
        self, space: FeatureSpace | EmbeddingSpace, layers_a: list[Prepared], layers_b: list[Prepared]
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        import torch

        draws = self.settings.null_draws
        if not draws:
            return None, None
        generator = torch.Generator().manual_seed(self.settings.seed)
        matrices = []
        for draw in range(draws):
            permuted = space.permuted(torch.randperm(space.size, generator=generator))
            matrices.append(self._matrix(permuted, layers_a, layers_b, f"null {draw + 1} of {draws}"))
        stack = np.stack(matrices)
        return stack.mean(0), stack.std(0, ddof=1) if draws > 1 else np.full(self.shape, np.nan)

    def _assemble(
        self,
        values: np.ndarray,
        control: np.ndarray | None,
        null_mean: np.ndarray | None,
        null_sd: np.ndarray | None,
    ) -> ParameterAlignmentResult:
        # a partial matrix changes with every layer: its p-value is not worth sampling
        sampled = 0 if np.isnan(values).any() and self.done < self.total else RANDOM_ASSIGNMENTS
        depth = depth_agreement(values, self.settings.seed, sampled)
        return ParameterAlignmentResult(
            values=values,
            null_mean=null_mean,
            null_sd=null_sd,
            control=control,
            control_chance=self._chance(),
            assignment=depth.pairs,
            depth_rate=depth.rate,
            depth_chance=depth.chance,
            depth_p=depth.p_value,
            vectors_a=self.vectors[0],
            vectors_b=self.vectors[1],
            tokens=self.tokens,
            notices=tuple(self.notices),
        )

    def _chance(self) -> float | None:
        """Only the mean over unrelated vectors has a closed form; a maximum or a matching has none."""
        from embcompare.spaces import FeatureSpace

        s = self.settings
        if s.score != "mean_abs" or s.group in INTERACTIONS or self.a.anatomy.width != self.b.anatomy.width:
            return None
        return FeatureSpace(self.a.anatomy.width, self.b.anatomy.width).chance

    def _note_control(self, control: np.ndarray | None) -> None:
        s = self.settings
        if control is None and s.control and s.space == "embedding":
            widths = f"{self.a.anatomy.width} and {self.b.anatomy.width}"
            self.notices.append(f"No feature-space control: the models are {widths} wide and share no coordinates.")

    def _note_undefined(self, layers_a: list[Prepared], layers_b: list[Prepared]) -> None:
        for model, layers in ((self.a, layers_a), (self.b, layers_b)):
            lost = {i: p.undefined for i, p in enumerate(layers) if p.undefined}
            if lost:
                where = ", ".join(f"{count} in layer {layer}" for layer, count in lost.items())
                self.notices.append(
                    f"{model.spec.label}: {sum(lost.values())} of the {GROUPS[self.settings.group]} are constant in "
                    f"this space and have no correlation; they were left out ({where})."
                )
