"""A run of the parameter difference: layers subtracted and decomposed, then what carries most read as tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.commons import Common
from embcompare.experiments.difference_fit import comparable_groups, comparable_layers
from embcompare.experiments.difference_read import Row, ratio, read_rows
from embcompare.experiments.difference_result import ParameterDifferenceResult
from embcompare.experiments.readout import Readout, as_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.difference import ParameterDifference
    from embcompare.models import LoadedModel

UNRELATED = 1.0
"""A relative change from which on B is as far from A as weights that never had anything in common."""


class DifferenceRun:
    """One run: the models fitted together, the cells decomposed, the rows read."""

    def __init__(self, settings: ParameterDifference, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        import torch

        from embcompare.text import match_vocabularies

        self.settings, self.context, self.a, self.b = settings, context, a, b
        self.notices: list[str] = []
        self.layers = comparable_layers(settings.layer, a, b)
        self.groups, said = comparable_groups(settings.group, a, b)
        self.notices += said
        context.report(0, 100, "reading the embedding")
        self.match = match_vocabularies(a.tokens, b.tokens, override=settings.small_overlap)
        self.notices.append(self.match.sentence())
        # the model that has a head is read with it, whichever it is
        by_b = settings.embedding == "output" and a.anatomy.unembedding is None and b.anatomy.unembedding is not None
        self.reader, self.reading = ("B", b) if by_b else ("A", a)
        self.readout = Readout(settings, self.reading, context.device)
        self.readout.note_exact(self.groups, "FF values and rows of W_O")
        self.common = Common(self.readout, settings.common)
        shared = torch.zeros(len(self.readout.E), dtype=torch.bool)
        shared[torch.from_numpy(self.match.rows_b if by_b else self.match.rows_a)] = True
        self.usable = self.readout.usable(context, among=shared)
        self.total = 2 * len(self.groups) * len(self.layers) + 2
        self.done = 0
        shape = (len(self.groups), len(self.layers))
        self.change, self.norm, self.rank = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
        self.base_norm, self.unchanged = np.zeros(shape), np.zeros(shape, dtype=bool)
        self.share = np.full((*shape, settings.directions), np.nan)

    def result(self) -> ParameterDifferenceResult:
        """Subtract, decompose, read."""
        import torch

        width = self.a.anatomy.width
        gram = torch.zeros(width, width, dtype=torch.float64)
        found: dict[tuple[int, int], tuple[np.ndarray, Tensor]] = {}
        for g, at, moved in self._cells("subtracting"):
            whole, seen = self._decompose(g, at, moved)
            found[g, at] = (whole, seen)
            if self.base_norm[g, at] and not self.unchanged[g, at]:
                part = self.common.taken_out(moved)
                gram += (part.T @ part).cpu() / self.base_norm[g, at] ** 2
        share, directions, carried = self._leading(gram)
        rows = [*self._classifier(), *self._model_rows(share, directions, carried)]
        rows += self._layer_rows(found, directions, carried)
        rows += self._vector_rows(directions, carried)
        self._note()
        return read_rows(self, rows, share, directions)

    def _cells(self, what: str) -> Iterator[tuple[int, int, Tensor]]:
        for g, group in enumerate(self.groups):
            for at, layer in enumerate(self.layers):
                one, two = (model.anatomy.vectors(group, layer) for model in (self.a, self.b))
                wide = one.double()
                self.base_norm[g, at] = float(wide.square().sum()) ** 0.5
                yield g, at, two.to(one.device).double() - wide
                self.done += 1
                self.context.report(self.done, self.total, f"{what} layer {layer}")

    def _decompose(self, g: int, at: int, moved: Tensor) -> tuple[np.ndarray, Tensor]:
        """Fill in a cell's numbers; return singular values and directions (r, d) of what is seen of it."""
        norm = float(moved.square().sum()) ** 0.5
        base = self.base_norm[g, at]
        self.norm[g, at], self.unchanged[g, at] = norm, norm == 0
        self.change[g, at] = norm / base if base else (0.0 if norm == 0 else math.inf)
        wanted = self.settings.directions
        nothing = np.zeros(0), moved.new_zeros(0, moved.shape[1])
        if norm == 0:
            return nothing
        scaled = moved / norm
        values, vectors = _singular(scaled)
        squares = values.square()
        shares = (squares / squares.sum())[:wanted]
        self.share[g, at] = 0
        self.share[g, at, : len(shares)] = as_numpy(shares)
        singular = values / values.sum()
        self.rank[g, at] = float((-(singular * singular.log()).sum()).exp())
        if self.common.directions is not None:
            values, vectors = _singular(self.common.taken_out(scaled))
        return as_numpy(values[:wanted]) * norm, vectors[:wanted]

    def _leading(self, gram: Tensor) -> tuple[np.ndarray, Tensor, float]:
        """Return shares and directions (r, d) of the whole change, and how much of it they hold together."""
        import torch

        values, vectors = torch.linalg.eigh(gram)
        total = float(values.clamp(min=0).sum())
        wanted = self.settings.directions
        share = np.zeros(wanted)
        if not total:
            return share, gram.new_zeros(0, len(gram)), 0.0
        kept = [at for at in range(len(values) - 1, -1, -1) if float(values[at]) > 1e-14 * total][:wanted]
        share[: len(kept)] = [float(values[at]) / total for at in kept]
        return share, vectors[:, kept].T, float(values[kept].sum())

    def _classifier(self) -> list[Row]:
        """Return the classifier's rows against their mean: what speaks for a label, and not for all alike."""
        heads = [model.anatomy.classifier for model in (self.a, self.b)]
        self.labels = next((m.anatomy.labels for m in (self.b, self.a) if m.anatomy.classifier is not None), ())
        one, two = (None if head is None else _about_mean(head) for head in heads)
        if one is None and two is None:
            return []
        label_a, label_b = self.a.spec.label, self.b.spec.label
        if one is not None and two is not None and self.a.anatomy.labels != self.b.anatomy.labels:
            self.notices.append(
                f"The classifiers of {label_a} and {label_b} have different labels; that of {label_b} is read alone."
            )
            one = None
        elif one is None:
            self.notices.append(f"{label_a} has no classifier, so that of {label_b} is read as it is.")
        elif two is None:
            self.notices.append(f"{label_b} has no classifier, so that of {label_a} is read as it is.")
            two, one = one, None
        assert two is not None
        moved = two if one is None else two - one.to(two.device)
        total = float(moved.square().sum())
        if not total:
            self.notices.append(f"The classifiers of {label_a} and {label_b} tell their labels apart alike.")
            return []
        return [
            Row("classifier", "", -1, i, each, float(each.norm()), ratio(float(each.square().sum()), total), math.nan)
            for i, each in enumerate(moved)
        ]

    def _model_rows(self, share: np.ndarray, directions: Tensor, carried: float) -> list[Row]:
        held = float(share.sum())
        return [
            Row(
                "model", "", -1, i, direction, float(share[i] * carried / held) ** 0.5, float(share[i]), share[i] / held
            )
            for i, direction in enumerate(directions)
        ]

    def _layer_rows(
        self, found: dict[tuple[int, int], tuple[np.ndarray, Tensor]], leading: Tensor, carried: float
    ) -> list[Row]:
        rows = []
        for (g, at), (values, directions) in found.items():
            for i, value in enumerate(values):
                inside = float((leading @ directions[i].cpu()).square().sum()) * value**2
                carries = ratio(inside, self.base_norm[g, at] ** 2 * carried)
                share = float(value / self.norm[g, at]) ** 2
                row = Row("layer", self.groups[g], int(self.layers[at]), i, directions[i], value, share, carries)
                rows.append(row)
        return sorted(rows, key=_by_what_it_carries)

    def _vector_rows(self, leading: Tensor, carried: float) -> list[Row]:
        """Return the vectors whose changes are the largest parts of the change along the strongest directions."""
        best: list[Row] = []
        count = self.settings.count
        for g, at, moved in self._cells("ranking the vectors of"):
            if not count or self.unchanged[g, at]:
                continue
            inside = (self.common.taken_out(moved) @ leading.T.to(moved.device)).square().sum(1)
            order = inside.argsort(descending=True, stable=True)[:count]
            for row in order.tolist():
                size = float(moved[row].norm())
                carries = ratio(float(inside[row]), self.base_norm[g, at] ** 2 * carried)
                share = (size / self.norm[g, at]) ** 2
                group, layer = self.groups[g], int(self.layers[at])
                best.append(Row("vector", group, layer, row, moved[row].clone(), size, share, carries))
            best = sorted(best, key=_by_what_it_carries)[:count]
        return best

    def _note(self) -> None:
        changed = self.change[~self.unchanged]
        finite = changed[np.isfinite(changed)]
        label_a, label_b = self.a.spec.label, self.b.spec.label
        if not len(changed):
            self.notices.append(f"All compared parameters of {label_a} and {label_b} are equal number for number.")
        elif len(finite) and float(np.median(finite)) > UNRELATED:
            self.notices.append(
                f"{label_b} differs from {label_a} by as much as weights that have nothing in common "
                f"({float(np.median(finite)):.2f} of their own size); a difference says something only where one "
                "model was trained on from the other."
            )
        if not np.isfinite(self.change).all():
            self.notices.append("Some parameters of the base are zero, so their relative change is infinite.")


def _by_what_it_carries(row: Row) -> tuple[bool, float]:
    return math.isnan(row.carries), -row.carries


def _singular(moved: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular values (r,), largest first, and right singular vectors (r, d) of (n, d) float64.

    From the Gram matrix of the shorter side; values below 1e-7 of the largest are its rounding and are left out.
    """
    import torch

    n, d = moved.shape
    squares, vectors = torch.linalg.eigh(moved.T @ moved if n >= d else moved @ moved.T)
    squares, vectors = squares.flip(0), vectors.flip(1)
    kept = squares > squares[0].clamp(min=0) * 1e-14
    values, vectors = squares[kept].sqrt(), vectors[:, kept]
    return values, vectors.T if n >= d else (vectors / values).T @ moved


def _about_mean(head: Tensor) -> Tensor:
    wide = head.double()
    return wide - wide.mean(0) if len(wide) > 1 else wide
