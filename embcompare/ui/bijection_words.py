"""What the page Bijection says: verdicts, what each map is, and the table of what maps reach."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from embcompare.experiments.depth import closest_at_equal_depth
from embcompare.maps.catalogue import MAPS
from embcompare.ui.page import plain
from embcompare.ui.similarity_words import capital
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.bijection_result import BijectionResult
    from embcompare.experiments.map_pairs import MapPairs, MapPairsResult
    from embcompare.jobs import Job

KINDS = {
    "unrelated": "Nothing to be predicted",
    "rotation": "Nothing beyond a rotation is shown",
    "linear": "Nothing beyond a linear map is shown",
    "bijection": "An invertible network finds more than a linear map",
    "beyond": "The perceptron finds more than the invertible network",
    "": "No verdict",
}
"""What is needed, in a few words, by :class:`embcompare.maps.Kind`."""
PROMISE = (
    "If two models differ only in their axes, a rotation takes one's states to the other's; if they hold the same "
    "information in other shapes, some invertible map does. Between two separate trainings it would be surprising if a "
    "rotation did as well as any linear map, and more so if a perceptron, which may merge rows, found much that an "
    "invertible network of its size does not."
)
"""What the page asks, and what would be surprising."""
GLOSSARY = (
    "**R²**: share of the variance of B's states that a map predicts, over all features together, against the mean of "
    "the rows scored; 1 is all of it, 0 no more than the mean. **Retrieval**: share of test rows whose own target is "
    "the nearest, by cosine, to what the map makes of them. **Cycle error**: how far from where they started rows come "
    "back when they are mapped there and back, in units of their spread."
)
"""What the words of this page mean."""
PUBLISHED = (
    "The code published with the paper is not run again here, and no figure made with it is quoted. Its learning rate "
    "falls by 1 % with every step, from 10⁻⁶ on, so that networks hardly leave where they begin; its two models draw "
    "their batches from one iterator, so that rows are no pairs; and its CCA map does not take canonical variates to "
    "their partners. The paper's question is asked here anew."
)
"""Why the comparison of the published code is not repeated."""
_EPOCH = re.compile(r"(.+): (?:epoch (\d+) of \d+|taken up after epoch (\d+))")


def plainly(name: str) -> str:
    """Return a map's label, with a capital."""
    return capital(MAPS[name].label)


def same_depth_path(shape: tuple[int, int]) -> np.ndarray:
    """Return for every layer of A the layer of B at the same relative depth, (L_a,) int64, counted from 0."""
    share = np.arange(shape[0]) / (shape[0] - 1) if shape[0] > 1 else np.full(1, 0.5)
    return np.floor(share * (shape[1] - 1) + 0.5).astype(np.int64)


def grid_verdict(result: MapPairsResult, name: str) -> str:
    """Say how far a linear map predicts along the depth, what a rotation leaves, and which layers belong together."""
    mean = result.mean(name)
    rows, path = np.arange(len(mean)), same_depth_path((mean.shape[0], mean.shape[1]))
    own = mean[rows, path]
    if not np.isfinite(own).any():
        return f"{plainly(name)}: no pair of layers at the same depth has a value."
    text = (
        f"{plainly(name)}: at the same depth it predicts {_range(own)} of the variance of B's layers (R²) on "
        f"{_texts(result)} that no map saw."
    )
    for other in ("orthogonal",) if name != "orthogonal" else tuple(each for each in result.maps if each != name):
        if other in result.maps:
            there = result.mean(other)[rows, path]
            apart = (own - there) if name != "orthogonal" else (there - own)
            what = "more than a rotation" if name != "orthogonal" else f"less than {MAPS[other].label}"
            text += f" That is {_range(apart)} {what} ({_range(there)})."
            break
    if mean.size > 1:
        closest, of = closest_at_equal_depth(mean)
        text += (
            f" The layer of B that is predicted best lies at equal depth for {closest} of {plural(of, 'layer')} of A."
        )
    return f"{text} {_null(result, name)}".strip()


def _texts(result: MapPairsResult) -> str:
    return "rows" if result.texts == sum(result.rows) else "texts"


def _null(result: MapPairsResult, name: str) -> str:
    beyond = result.beyond_null(name)
    if beyond is None:
        return ""
    defined = int(np.isfinite(result.mean(name)).sum())
    many = int(beyond.sum())
    if many == defined:
        return f"All {plural(defined, 'cell')} lie beyond every wrong pairing."
    count = f"{many:,}" if many else "None"
    return f"{count} of {plural(defined, 'cell')} {agree(many, 'lies', 'lie')} beyond every wrong pairing."


def _range(values: np.ndarray) -> str:
    low, high = (f"{end(values):.2f}" for end in (np.nanmin, np.nanmax))
    return low if low == high else f"{low} to {high}"


def grid_legend(wanted: MapPairs, result: MapPairsResult, show: str) -> str:
    """Say what colours, squares and grey mean."""
    what = {
        "test": f"Numbers: R² on test rows, the mean over {plural(wanted.splits, 'split')} of the texts.",
        "train": "Numbers: R² on the rows that maps were fitted on; what exceeds the test rows' is chance.",
        "spread": "Numbers: standard deviation of test R² over splits, which share rows: how much the choice of texts "
        "matters, no standard error.",
    }[show]
    parts = [what, "Squares, joined: the layer of B that each layer of A predicts best. Ring: the pair fitted below."]
    if result.null_best is not None:
        parts.append(
            f"Greyed: no better than 0 or than the best of {plural(wanted.null_draws, 'wrong pairing')} of the rows."
        )
    if np.isnan(result.test).any():
        parts.append("Grey without a number: undefined.")
    return " ".join(parts)


def ends(result: MapPairsResult) -> str:
    """Say what the first and the last layer of each side are."""
    a, b = result.layers_a, result.layers_b
    wide = result.widths
    return f"A runs from {a[0]} to {a[-1]}, B from {b[0]} to {b[-1]}; their rows are {wide[0]} and {wide[1]} wide."


def described_grid(result: MapPairsResult, name: str, show: str, start: tuple[int, int]) -> str:
    """Describe the map of layers for those who cannot see it."""
    matrix = grid_matrix(result, name, show)
    layers = [plural(count, "layer") for count in matrix.shape]
    text = f"{plainly(name)}: heat map of {layers[0]} of A by {layers[1]} of B"
    if np.isnan(matrix).all():
        return f"{text}, no cell defined."
    row, column = np.unravel_index(int(np.nanargmax(matrix)), matrix.shape)
    best = ", ".join("none" if each < 0 else str(each + start[1]) for each in result.best_b(name).tolist())
    return (
        f"{text}, {'spread' if show == 'spread' else f'R² on {show} rows'} from {np.nanmin(matrix):.3f} to "
        f"{np.nanmax(matrix):.3f}, largest at layer {row + start[0]} of A and layer {column + start[1]} of B; the best "
        f"layers of B for the layers of A in turn: {best}."
    )


def grid_matrix(result: MapPairsResult, name: str, show: str) -> np.ndarray:
    """Return what the map of layers shows, (L_a, L_b)."""
    return result.sd(name) if show == "spread" else result.mean(name, show)


def pair_named(result: BijectionResult, wanted: Bijection) -> str:
    """Say which layers were fitted: ``Layer 3 of A (block 3) to layer 3 of B (block 3)``."""
    return f"Layer {wanted.layer_a} of A ({result.name_a}) to layer {wanted.layer_b} of B ({result.name_b})"


def fit_verdict(result: BijectionResult) -> str:
    """Say what kind of map it takes, and how much of B the maps predict."""
    levels = []
    for name in dict.fromkeys(filter(None, (result.rotation, result.linear, *_there(result, "inn", "mlp")))):
        levels.append(f"{MAPS[name].label} {said(result.mean(name, 'r2'))}")
    text = f" R² on test rows: {', '.join(levels)}." if levels else ""
    if not result.sentence:
        return f"There is no verdict here.{text}"
    return f"{result.sentence}{text}"


def _there(result: BijectionResult, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name in result.maps and np.isfinite(result.mean(name, "r2")))


def said(value: float, decimals: int = 3) -> str:
    """Return a number as a sentence says it."""
    return f"{value:.{decimals}f}" if np.isfinite(value) else "–"


def gap_labels(result: BijectionResult) -> dict[str, str]:
    """Return how the maps of the reading are called here, by their names there."""
    names = {"mean": "mean", "orthogonal": result.rotation, "linear": result.linear, "inn": "inn", "mlp": "mlp"}
    return {role: MAPS[name].label for role, name in names.items() if name}


def table(result: BijectionResult) -> pd.DataFrame:
    """Return one row a map: what it reaches on test rows beside training rows, and what is known of it."""
    rows = []
    for at, name in enumerate(result.maps):
        low, high = result.interval(name, "r2")
        row: dict[str, object] = {"map": MAPS[name].label, "r2": result.mean(name, "r2")}
        row |= {"r2_train": result.mean(name, "r2", "train"), "runs_half": (high - low) / 2}
        for metric in ("mse", "cosine", "retrieval", "cycle"):
            row |= {metric: result.mean(name, metric), f"{metric}_train": result.mean(name, metric, "train")}
        row |= {f"b_{score}": answer(result, name, score) for score in result.answer_scores}
        epochs = result.best_epoch[at][result.best_epoch[at] >= 0]
        row |= {
            "condition": _mean(result.condition[at]),
            "log_determinant": _mean(result.log_determinant[at]),
            "start": MAPS[result.start[at]].label if result.start[at] in MAPS else result.start[at],
            "best_epoch": float(epochs.mean()) if len(epochs) else float("nan"),
            "seconds": float(np.nansum(result.seconds[at])) if np.isfinite(result.seconds[at]).any() else float("nan"),
        }
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame if len(result.seeds) > 1 else frame.drop(columns="runs_half")


def _mean(values: np.ndarray) -> float:
    """Return the mean of what is defined, infinite where a value is; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def answer(result: BijectionResult, name: str, score: str) -> float:
    """Return what B's predictions from a map's states score, the mean over runs; NaN where they could not be had."""
    if result.answers is None:
        return float("nan")
    return _mean(result.answers[result.at(name), :, result.answer_scores.index(score)])


def answers_note(result: BijectionResult) -> str:
    """Say what B was asked with mapped states in place of its own."""
    return (
        f"The {result.answer_task} of {plural(result.answer_texts, 'test text')} "
        f"({plural(result.answer_places, 'token')}), predicted by B when the states of its layer are those that a map "
        "makes of A's. Bars: one standard error over texts."
    )


def protocol(wanted: Bijection, result: BijectionResult) -> str:
    """Say how the numbers came about."""
    train, validation, test = result.rows
    texts = result.texts_in
    scaled = (
        "each feature is scaled by its mean and spread over the training rows"
        if wanted.standardise
        else "features are taken as they are"
    )
    trained = [name for name in result.maps if MAPS[name].trained]
    text = (
        f"Row k of A and row k of B are the same {_row(wanted)}. Whole texts are set apart: {train:,} rows of "
        f"{plural(texts[0], 'text')} to fit on, {validation:,} of {plural(texts[1], 'text')} to stop trainings by, and "
        f"{test:,} of {plural(texts[2], 'text')} that no map sees before it is judged; {scaled}."
    )
    if trained:
        text += (
            f" Networks are trained with Adam for at most {plural(wanted.epochs, 'epoch')}, at a rate that "
            f"falls to a hundredth, until {plural(wanted.patience, 'epoch')} in a row brought no better "
            f"validation loss; the best weights are kept. Each is trained {plural(len(result.seeds), 'time')}, every "
            "time with a seed of its own."
        )
        begun = [MAPS[name].label for name, start in zip(result.maps, result.start, strict=True) if start in MAPS]
        if begun:
            text += (
                f" {capital(' and '.join(begun))} {agree(len(begun), 'starts', 'start')} as the best linear map on "
                "validation rows (an invertible one for an invertible network) and can only improve on it there."
            )
    return (
        f"{text} A step to a richer kind of map counts where R² rises by at least {wanted.margin:g} on the same test "
        "rows and the 95 % interval of the rise, a bootstrap over whole test texts, lies above 0."
    )


def _row(wanted: Bijection) -> str:
    return {"token": "token of the same text", "word": "word of the same text"}.get(wanted.pooling, "sentence")


def map_card(name: str, width_a: int, width_b: int) -> str:
    """Return what a map is, in Markdown, from its declaration: formula, meaning, whether it can be undone, source."""
    declared = MAPS[name]
    source = f" Source: {declared.source}." if declared.source else ""
    control = " · control" if declared.control else ""
    return (
        f"**{plain(plainly(name))}**{control} · {invertible(name, width_a, width_b)}\n\n"
        f"{plain(declared.formula)}\n\n{plain(declared.meaning)} Direction: {plain(declared.direction)}. Needs: "
        f"{plain(declared.needs)}.{plain(source)}"
    )


def invertible(name: str, width_a: int, width_b: int) -> str:
    """Say whether a map can be undone between two widths."""
    if not MAPS[name].bijective:
        return "merges rows: no inverse"
    if width_a == width_b:
        return "invertible, unless its matrix is singular"
    return "one-to-one into the wider side" if width_a < width_b else "no inverse into the narrower side"


def stopped_at(job: Job | None) -> tuple[str, int] | None:
    """Return which training a run was in when it last said something, and after which epoch; None for no training."""
    message = job.progress.message if job is not None and job.progress is not None else ""
    found = _EPOCH.match(message)
    return None if found is None else (found[1], int(found[2] or found[3]))


def described_fit(result: BijectionResult) -> str:
    """Describe the dots for those who cannot see them."""
    values = [f"{MAPS[name].label} {said(result.mean(name, 'r2'))}" for name in result.maps]
    return f"R² on test rows of each map: {', '.join(values)}."
