"""The rows of a parameter difference read as tokens, each direction turned, and all put into the result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.difference_result import ROWS, ParameterDifferenceResult
from embcompare.experiments.readout import as_numpy, list_tokens
from embcompare.experiments.weight_pairs import pair_weights

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.difference_run import DifferenceRun


@dataclass(frozen=True, eq=False)
class Row:
    """One thing to read: its vector (d,) float64 and what is known of it."""

    kind: str
    group: str
    layer: int
    index: int
    vector: Tensor
    size: float
    share: float
    carries: float


def read_rows(run: DifferenceRun, rows: list[Row], share: np.ndarray, leading: Tensor) -> ParameterDifferenceResult:
    """Read every row at both ends and put the result of the run together."""
    import torch

    from embcompare.projections import token_ends

    width = run.a.anatomy.width
    seen = [run.common.taken_out(row.vector[None].double().to(run.readout.E.device)) for row in rows]
    along = np.array([_cosine(each[0].cpu(), leading[0]) if len(leading) else math.nan for each in seen])
    # what meets the stream in a product is read by the exact inverse where that is asked for; so is a classifier
    groups = ["w_q" if row.kind == "classifier" else row.group for row in rows]
    read = [
        run.common.taken_out(run.readout.vectors(row.vector[None].double(), group)).double()
        for row, group in zip(rows, groups, strict=True)
    ]
    y = torch.cat(read) if read else run.readout.E.new_zeros(0, width).double()
    ends = token_ends(
        y,
        run.readout.E,
        run.settings.top,
        usable=run.usable,
        tick=lambda *_: run.context.report(run.done, run.total, "reading what changed"),
    )
    shift = run.readout.shift(y)[:, None]
    top, bottom = as_numpy(ends.top), as_numpy(ends.bottom)
    high, low = as_numpy(ends.top_scores - shift), as_numpy(ends.bottom_scores - shift)
    mean, sd = as_numpy(ends.mean - shift[:, 0]), as_numpy(ends.sd)
    turned = _turned(run, rows, seen, high, low)
    top[turned], bottom[turned] = bottom[turned], top[turned]
    high[turned], low[turned] = -low[turned], -high[turned]
    mean[turned] *= -1
    first = next((at for at, row in enumerate(rows) if row.kind == "model"), 0)
    along = along * np.where(turned, -1.0, 1.0) * (-1.0 if rows and turned[first] else 1.0)
    moved, moved_by, embedding_change = _embeddings(run)
    listed = list_tokens(run.reading.tokens, top, bottom, moved)
    pairs = pair_weights(run.a, run.b)
    _note_unpaired(run, len(pairs.only_a), len(pairs.only_b), len(pairs.other_shape))
    run.context.report(run.total, run.total, "done")
    return ParameterDifferenceResult(
        groups=run.groups,
        layers=np.array(run.layers, dtype=np.int64),
        change=run.change,
        norm=run.norm,
        unchanged=run.unchanged,
        effective_rank=run.rank,
        singular_share=run.share,
        model_share=share,
        kind=np.array([ROWS.index(row.kind) for row in rows], dtype=np.int64),
        group=np.array([run.groups.index(r.group) if r.group else -1 for r in rows], dtype=np.int64),
        layer=np.array([row.layer for row in rows], dtype=np.int64),
        index=np.array([row.index for row in rows], dtype=np.int64),
        size=np.array([row.size for row in rows], dtype=np.float64),
        share=np.array([row.share for row in rows], dtype=np.float64),
        carries=np.array([row.carries for row in rows], dtype=np.float64),
        along=along,
        z=_extremes(high, low, mean, sd),
        top=top,
        top_scores=high,
        bottom=bottom,
        bottom_scores=low,
        listed=listed.rows,
        tokens=listed.names,
        usable=int(run.usable.sum()),
        labels=tuple(run.labels),
        reader=run.reader,
        embedding_change=embedding_change,
        moved=moved,
        moved_by=moved_by,
        parameters=pairs.names,
        parameter_change=pairs.change,
        parameter_same=pairs.same,
        only_a=pairs.only_a,
        only_b=pairs.only_b,
        other_shape=pairs.other_shape,
        notices=tuple(dict.fromkeys((*run.notices, *run.readout.notices))),
    )


def _turned(run: DifferenceRun, rows: list[Row], seen: list[Tensor], high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return which directions to turn round: a direction has no sign of its own.

    With a classifier of two labels it points to the second; without, its more extreme end is the top.
    """
    toward = _toward(run)
    turned = np.zeros(len(rows), dtype=bool)
    for at, row in enumerate(rows):
        if row.kind not in ("model", "layer") or not high.shape[1]:
            continue
        turned[at] = -low[at, 0] > high[at, 0] if toward is None else float(seen[at][0].cpu() @ toward) < 0
    if toward is not None and any(row.kind == "model" for row in rows):
        run.notices.append(f"Directions are turned so that their top speaks for {run.labels[1]}.")
    return turned


def _embeddings(run: DifferenceRun) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the tokens whose own embeddings moved farthest, how far, and how much all moved together."""
    import torch

    one, two = run.a.anatomy.embedding, run.b.anatomy.embedding
    rows_a, rows_b = (torch.from_numpy(each) for each in (run.match.rows_a, run.match.rows_b))
    by = torch.empty(len(rows_a), dtype=torch.float64)
    size = torch.empty_like(by)
    for at in range(0, len(rows_a), 8192):
        here = slice(at, at + 8192)
        wide = one[rows_a[here].to(one.device)].double()
        other = two[rows_b[here].to(two.device)].double().to(wide.device)
        by[here], size[here] = (other - wide).norm(dim=1).cpu(), wide.norm(dim=1).cpu()
    change = float(by.norm()) / float(size.norm()) if float(size.norm()) else math.nan
    relative = torch.where(size > 0, by / size, torch.where(by > 0, math.inf, 0.0))
    order = relative.argsort(descending=True, stable=True)[: run.settings.top]
    order = order[relative[order] > 0]
    mine = run.match.rows_b if run.reader == "B" else run.match.rows_a
    if change:
        run.notices.append(
            f"The input embedding moved as well, by {change:.1%}; all is read with that of {run.reading.spec.label}."
        )
    return mine[as_numpy(order)].astype(np.int64), as_numpy(relative[order]), change


def _note_unpaired(run: DifferenceRun, only_a: int, only_b: int, shapes: int) -> None:
    for count, what in (
        (only_a, f"only {run.a.spec.label} has"),
        (only_b, f"only {run.b.spec.label} has"),
        (shapes, "the models have in different shapes"),
    ):
        if count:
            run.notices.append(f"{count} parameters could not be paired, for {what} them; the result names them.")


def _toward(run: DifferenceRun) -> Tensor | None:
    """Return the direction of states that speaks for the second of two labels, or None."""
    for model in (run.b, run.a):
        head, norm = model.anatomy.classifier, model.anatomy.final_norm
        if head is not None:
            if len(head) != 2:
                return None
            along = (head[1].double() - head[0].double()).cpu()
            return along if norm is None else along * norm.gain.double().cpu()
    return None


def ratio(part: float, whole: float) -> float:
    """Return a part of a whole; NaN where there is no whole."""
    return part / whole if whole else math.nan


def _cosine(one: Tensor, other: Tensor) -> float:
    return ratio(float(one @ other), float(one.norm() * other.norm()))


def _extremes(high: np.ndarray, low: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    if not high.shape[1]:
        return np.full(len(high), np.nan)
    scale = np.maximum(np.abs(high), np.abs(low)).max(1, initial=0.0)
    up, down = high[:, 0] - mean, low[:, 0] - mean
    with np.errstate(all="ignore"):
        return np.asarray(np.where(sd > 1e-6 * scale, np.where(up >= -down, up, down) / sd, np.nan))
