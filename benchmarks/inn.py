"""Training an invertible network at d = 768: own couplings against the same network of three libraries of flows."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import gemm_rate, report
from embcompare.maps.coupling import CouplingStack
from embcompare.maps.inn import INN, units

BATCH, ROWS, STEPS, ROUNDS = 256, 2048, 2, 12
BLOCKS, CLIP = INN.blocks, INN.clip
OWN = "embcompare"
Step = Callable[[Tensor, Tensor], object]


@dataclass(frozen=True)
class Contender:
    """One way to train the network: a step on a batch, and how many weights it trains."""

    step: Step
    weights: int


def through_autograd(forward: Callable[[Tensor], Tensor], parameters: Iterable[nn.Parameter], fused: bool) -> Contender:
    """Train a library's network as its users do: mean squared error, backward, Adam."""
    given = list(parameters)
    optimiser = torch.optim.Adam(given, lr=1e-4, fused=True) if fused else torch.optim.Adam(given, lr=1e-4)

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        (forward(x) - y).square().mean().backward()
        optimiser.step()

    return Contender(step, sum(each.numel() for each in given))


def own(width: int, hidden: int) -> Contender:
    """The couplings of embcompare, trained as embcompare trains them."""
    network = CouplingStack(width, BLOCKS, hidden, CLIP, 0)
    network.weights.grad = network.gradient
    optimiser = torch.optim.AdamW([network.weights], lr=1e-4, weight_decay=0.0, fused=True)
    share = torch.full((width,), 1 / width)

    def step(x: Tensor, y: Tensor) -> None:
        network.learn(x, y, share)
        optimiser.step()

    return Contender(step, len(network.weights))


def with_freia(width: int, hidden: int, fused: bool) -> Contender:
    """FrEIA: blocks of two couplings with joint networks, tanh-clipped, random permutations between."""
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import GLOWCouplingBlock, PermuteRandom

    def conditioner(given: int, made: int) -> nn.Module:
        return nn.Sequential(nn.Linear(given, hidden), nn.ReLU(), nn.Linear(hidden, made))

    network = SequenceINN(width)
    for k in range(BLOCKS):
        network.append(PermuteRandom, seed=k)
        network.append(GLOWCouplingBlock, subnet_constructor=conditioner, clamp=CLIP, clamp_activation="TANH")
    return through_autograd(lambda x: network(x, jac=False)[0], filter(_trained, network.parameters()), fused)


def with_normflows(width: int, hidden: int, fused: bool) -> Contender:
    """normflows: its couplings by halves with exponential scales (it has no tanh clip), permutations between."""
    from normflows.flows import AffineCouplingBlock, Permute
    from normflows.nets import MLP

    flows = nn.ModuleList()
    for _ in range(2 * BLOCKS):
        flows += [AffineCouplingBlock(MLP([width - width // 2, hidden, 2 * (width // 2)])), Permute(width)]

    def forward(x: Tensor) -> Tensor:
        for flow in flows:
            x, _ = flow(x)
        return x

    return through_autograd(forward, flows.parameters(), fused)


def with_zuko(width: int, hidden: int, fused: bool) -> Contender:
    """zuko: its RealNVP with random masks; scales are soft-clipped in its own way."""
    from zuko.flows import RealNVP

    flow = RealNVP(width, transforms=2 * BLOCKS, randmask=True, hidden_features=(hidden,))
    return through_autograd(lambda x: flow().transform(x), flow.parameters(), fused)


PEERS = {"FrEIA": with_freia, "normflows": with_normflows, "zuko": with_zuko}


def _trained(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def seconds(width: int, hidden: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return seconds a sample of each contender, one number a round, and its number of weights.

    All take their turn in every round, so that a busy moment of the machine does not fall on one of them alone.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(ROWS, width, generator=generator) for _ in range(2))
    contenders = {OWN: own(width, hidden)}
    for name, make in PEERS.items():
        try:
            contenders[f"{name}, fused Adam"] = make(width, hidden, True)
            contenders[f"{name}, Adam as it comes"] = make(width, hidden, False)
        except ImportError:
            continue
    taken = {name: np.empty(ROUNDS) for name in contenders}
    batches = list(torch.arange(ROWS).split(BATCH))
    for k in range(ROUNDS):
        for name, contender in contenders.items():
            contender.step(x[batches[-1]], y[batches[-1]])
            began = time.perf_counter()
            for rows in batches[:STEPS]:
                contender.step(x[rows], y[rows])
            taken[name][k] = (time.perf_counter() - began) / (BATCH * STEPS)
    return taken, {name: each.weights for name, each in contenders.items()}


def measured(width: int, hidden: int, aim: str) -> float:
    """Print the table of one size and return how many times the best library's rate the own one is; NaN without any.

    A ratio is the median over rounds of two times taken one after the other; a rate is that of the best round.
    """
    taken, weights = seconds(width, hidden)
    mine = taken.pop(OWN)
    size = weights[OWN]
    # forward, and backward twice, but for the first coupling's input
    flop = 6.0 * size - 2.0 * (width - width // 2) * hidden
    rows = [(OWN, f"{1 / mine.min():,.0f} samples/s, {flop / mine.min() / gemm_rate():.0%} of the GEMM rate", "")]
    ratios = {name: float(np.median(each / mine)) for name, each in taken.items()}
    for name, ratio in ratios.items():
        if abs(weights[name] - size) > 0.01 * size:
            raise RuntimeError(f"{name} trains {weights[name]:,} weights and embcompare {size:,}: not the same network")
        rows.append((name, f"{1 / taken[name].min():,.0f} samples/s, a ratio of {ratio:.2f}", ""))
    least = min(ratios.values(), default=math.nan)
    rows.append(("against the best library", f"{least:.2f} times" if ratios else "none installed", aim))
    title = f"{2 * BLOCKS} couplings of {hidden} hidden units, d = {width}, batch {BATCH}, {size:,} weights"
    report(f"{title} ({torch.get_num_threads()} threads)", rows)
    return least


def main() -> int:
    """Measure the default network at d = 768 against the aim, 1.3 times the best; and two others, to say why."""
    ratio = measured(768, units(768), "aim: at least 1.3 times")
    measured(768, 128, "")
    measured(128, units(128), "")
    return int(ratio < 1.3)


if __name__ == "__main__":
    sys.exit(main())
