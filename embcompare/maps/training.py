"""One training loop for every network: Adam, a rate that falls, early stopping, and a fit that can be taken up again.

Deterministic: the batches of epoch e come of a generator seeded by the recipe's seed and e, so that a fit that was
stopped after any epoch and taken up from its checkpoint goes on to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import InputError
from embcompare.maps.base import Report, check_choice, check_range
from embcompare.maps.coupling import Network

SCHEDULES = ("cosine", "plateau", "constant")
_LOWEST = 0.01
_BLOCK = 4096


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    ``rate`` is Adam's at the start; "cosine" lets it fall to a hundredth over ``epochs``, "plateau" halves it whenever
    a third of ``patience`` passes without a better validation loss. ``decay`` is AdamW's weight decay. Training ends
    after ``epochs``, or after ``patience`` of them without a better validation loss; the best weights are kept, those
    at the start among them. ``device`` is where it trains, the CPU or a CUDA device.
    Raises :class:`SettingsError` for values that cannot train.
    """

    epochs: int = 200
    patience: int = 20
    batch: int = 256
    rate: float = 1e-3
    schedule: str = "cosine"
    decay: float = 0.0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch"):
            check_range(f"{name} of a training", getattr(self, name), 1)
        check_range("The rate of a training", self.rate, 1e-8, 1)
        check_range("The weight decay of a training", self.decay, 0, 1e3)
        check_range("The seed of a training", self.seed, 0, 2**31)
        check_choice("The schedule of the rate", self.schedule, SCHEDULES)


@dataclass(frozen=True, eq=False)
class Paired32:
    """Rows that a network is trained or validated on, float32: (n, D) and (n, D)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened: losses an epoch, epoch 0 being the start, and why it ended.

    ``train[0]`` is the loss of the whole training set at the start, ``train[e]`` the mean over the batches of epoch e.
    """

    train: Tensor
    validation: Tensor
    best_epoch: int
    ended: str


Checkpoint = dict[str, np.ndarray]


def train(
    network: Network,
    training: Paired32,
    validation: Paired32,
    share: Tensor,
    recipe: Recipe,
    *,
    report: Report | None = None,
    resume: Mapping[str, np.ndarray] | None = None,
    keep: Callable[[Checkpoint], None] | None = None,
    sound: Callable[[], bool] | None = None,
) -> Trace:
    """Train in place and leave the best weights in the network.

    ``share`` (D,) weighs the squared error of each coordinate. After every epoch, and once before the first, ``keep``
    is given a checkpoint and then ``report`` is called; what it raises goes through, with the best weights so far left
    in the network. ``sound`` is asked after every epoch whether the network may be used as it is; an epoch where it
    may not counts as no better, whatever its loss. ``resume`` is a checkpoint of the same fit; raises
    :class:`InputError` for one of another.
    """
    network.to(recipe.device)
    data, held, share = (_on(training, recipe.device), _on(validation, recipe.device), share.to(recipe.device))
    run = _Run(network, recipe, signature(training, validation, share, recipe))
    try:
        if resume is None:
            run.begin(_loss(network, data, share), _loss(network, held, share))
            run.tell(keep, report)
        else:
            run.take_up(resume)
        while not run.ended():
            epoch = len(run.held)
            generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
            order = torch.randperm(len(data.x), generator=generator).to(recipe.device)
            run.set_rate()
            total = data.x.new_zeros((), dtype=torch.float64)
            for rows in order.split(recipe.batch):
                total += network.learn(data.x.index_select(0, rows), data.y.index_select(0, rows), share) * len(rows)
                run.optimiser.step()
            run.note(float(total) / len(data.x), _loss(network, held, share), sound is None or sound())
            run.tell(keep, report)
    finally:
        network.weights.copy_(run.best)
        network.weights.grad = None
        network.to("cpu")
    train_curve, held_curve = (torch.tensor(curve, dtype=torch.float64) for curve in (run.seen, run.held))
    return Trace(train_curve, held_curve, run.best_epoch, run.ended())


class _Run:
    """The state of a training: the optimiser's moments, the best weights and both curves."""

    def __init__(self, network: Network, recipe: Recipe, known: np.ndarray) -> None:
        self.network, self.recipe, self.signature = network, recipe, known
        network.weights.grad = network.gradient
        self.optimiser = torch.optim.AdamW([network.weights], lr=recipe.rate, weight_decay=recipe.decay, fused=True)
        self.best = network.weights.clone()
        self.seen: list[float] = []
        self.held: list[float] = []
        self.unsound: list[int] = []

    def begin(self, seen: float, held: float) -> None:
        self.seen, self.held = [seen], [held]

    @property
    def best_epoch(self) -> int:
        finite = [value if math.isfinite(value) else math.inf for value in self.held]
        for epoch in self.unsound:
            finite[epoch] = math.inf
        return finite.index(min(finite)) if finite else 0

    def note(self, seen: float, held: float, sound: bool) -> None:
        self.unsound += [] if sound else [len(self.held)]
        self.seen.append(seen)
        self.held.append(held)
        if self.best_epoch == len(self.held) - 1:
            self.best.copy_(self.network.weights)

    def ended(self) -> str:
        """Return why training is over, or nothing."""
        epoch = len(self.held) - 1
        if not math.isfinite(self.seen[-1]) or not math.isfinite(self.held[-1]):
            return f"the loss was no longer finite in epoch {epoch}"
        if epoch - self.best_epoch >= self.recipe.patience:
            return f"no better validation loss in {self.recipe.patience} epochs"
        return f"all {self.recipe.epochs} epochs done" if epoch >= self.recipe.epochs else ""

    def set_rate(self) -> None:
        """Set Adam's rate for the next epoch, from what is known: nothing of it needs to be kept."""
        done, recipe = len(self.held) - 1, self.recipe
        rate = recipe.rate
        if recipe.schedule == "cosine":
            rate *= _LOWEST + (1 - _LOWEST) * (1 + math.cos(math.pi * done / recipe.epochs)) / 2
        elif recipe.schedule == "plateau":
            rate = max(rate / 2 ** plateaus(self.held, max(1, recipe.patience // 3)), rate * _LOWEST)
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def tell(self, keep: Callable[[Checkpoint], None] | None, report: Report | None) -> None:
        if keep is not None:
            keep(self.checkpoint())
        if report is not None:
            report(len(self.held) - 1, self.recipe.epochs, self.seen[-1], self.held[-1])

    def checkpoint(self) -> Checkpoint:
        state = self.optimiser.state.get(self.network.weights, {})
        none = torch.zeros(0)
        kept = {"weights": self.network.weights, "best": self.best}
        kept |= {name: state.get(name, none) for name in ("exp_avg", "exp_avg_sq")}
        made = {name: each.detach().cpu().numpy().copy() for name, each in kept.items()}
        made |= {"train": np.array(self.seen), "validation": np.array(self.held), "signature": self.signature}
        made["unsound"] = np.array(self.unsound, dtype=np.int64)
        return made | {"step": np.array(float(state["step"]) if state else 0.0)}

    def take_up(self, given: Mapping[str, np.ndarray]) -> None:
        try:
            arrays = {name: np.asarray(given[name]) for name in (*_KEPT, *_NOTED)}
            same = np.allclose(arrays["signature"], self.signature, rtol=1e-6, atol=1e-6)
        except (KeyError, ValueError) as error:
            raise InputError(f"The checkpoint cannot be read ({error}); fit from the start.") from error
        size = self.network.weights.shape
        if not same or arrays["weights"].shape != size or arrays["best"].shape != size:
            raise InputError("The checkpoint is of another fit: other data, widths or settings; fit from the start.")
        weights = self.network.weights
        weights.copy_(torch.tensor(arrays["weights"]))
        self.best.copy_(torch.tensor(arrays["best"]))
        self.seen, self.held, self.unsound = (arrays[name].tolist() for name in ("train", "validation", "unsound"))
        if float(arrays["step"]) > 0:
            moments: dict[str, Any] = {
                name: torch.tensor(arrays[name]).to(weights.device) for name in ("exp_avg", "exp_avg_sq")
            }
            moments["step"] = torch.tensor(float(arrays["step"]))
            self.optimiser.state[weights] = moments


_KEPT = ("weights", "best", "exp_avg", "exp_avg_sq")
_NOTED = ("train", "validation", "unsound", "signature", "step")


def plateaus(held: list[float], wait: int) -> int:
    """Count how often ``wait`` epochs passed without a better loss, counting anew after each."""
    count, since, best = 0, 0, math.inf
    for value in held:
        since = 0 if value < best else since + 1
        best = min(best, value)
        if since == wait:
            count, since = count + 1, 0
    return count


def signature(training: Paired32, validation: Paired32, share: Tensor, recipe: Recipe) -> np.ndarray:
    """Return numbers by which a checkpoint knows its own data and recipe again, float64."""
    parts = [training.x, training.y, validation.x, validation.y]
    sums = [float(part.double().mean()) for part in parts] + [float(part.double().square().mean()) for part in parts]
    schedule = SCHEDULES.index(recipe.schedule)
    numbers = [recipe.epochs, recipe.patience, recipe.batch, recipe.rate * 1e6, schedule, recipe.decay * 1e6]
    return np.array([*sums, float(share.sum()), len(training.x), len(validation.x), *numbers, recipe.seed], np.float64)


def _on(pair: Paired32, device: str) -> Paired32:
    return Paired32(pair.x.to(device), pair.y.to(device))


@torch.no_grad()
def _loss(network: Network, data: Paired32, share: Tensor) -> float:
    total = 0.0
    for x, y in zip(data.x.split(_BLOCK), data.y.split(_BLOCK), strict=True):
        total += float(torch.mv((network.forward(x) - y).square(), share).double().sum())
    return total / len(data.x)
