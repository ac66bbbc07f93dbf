"""A GPT-2-shaped model's hidden states split into terms: time against its plain forward pass, and memory."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from benchmarks.common import gemm_rate, report
from embcompare.decomposition import decompose, decompose_tokens
from embcompare.models import ModelSpec
from embcompare.models.loading import LoadedModel
from embcompare.models.reading import read_anatomy

V, WIDTH, LAYERS, TEXTS, LENGTH = 5_000, 768, 12, 16, 125
AIM = 4.0


def model() -> LoadedModel:
    """Return a random GPT-2 of 12 layers, 768 wide, in float32; its vocabulary, which plays no part, is small."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=V, n_embd=WIDTH, n_layer=LAYERS, n_head=12, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    module = GPT2LMHeadModel._from_config(config).eval().requires_grad_(False)
    none: Any = None
    return LoadedModel(ModelSpec.parse("demo/gpt2-a"), none, module, read_anatomy(module, label="random GPT-2"), "0")


def seconds(work: Callable[[], Any]) -> float:
    """Return how long ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that torch held at once during ``work``, above those before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = most = 0
    results: Any = profile.profiler
    for event in sorted(results.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def drain(stream: Iterator[Any]) -> float:
    """Run through a stream of results and return the largest residual."""
    return max(each.residual for each in stream)


def main() -> int:
    """Measure both in one run and compare with the aims: 4 times the forward pass, memory linear in tokens."""
    subject = model()
    ids = torch.randint(1, V, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    rate = gemm_rate()
    doubled: Any = copy.deepcopy(subject.module).double()
    residual = 0.0

    def plain() -> None:
        with torch.inference_mode():
            doubled.base_model(ids, attention_mask=mask, use_cache=False)

    def split(**arguments: Any) -> None:
        nonlocal residual
        residual = max(residual, drain(decompose(subject, ids, mask, **arguments)))

    plain_s = min(seconds(plain) for _ in range(2))
    split_s = min(seconds(split) for _ in range(2))
    by_head_s = seconds(lambda: split(by=("head",)))
    sizes = [peak(lambda n=n: drain(decompose(subject, ids[:n], mask[:n]))) for n in (4, 8, 16)]
    growth = (sizes[2] - sizes[1]) / (sizes[1] - sizes[0])

    def first_chunk(length: int, chunk: int) -> Callable[[], None]:
        def run() -> None:
            stream = decompose_tokens(subject, ids[:1, :length], mask[:1, :length], layers=(LAYERS,), chunk=chunk)
            drain(islice(stream, 2))

        return run

    chunked = {(length, chunk): peak(first_chunk(length, chunk)) for length, chunk in ((60, 8), (120, 8), (120, 16))}
    token_s = seconds(first_chunk(60, 8))
    report(
        f"Decomposition of a {LAYERS}-layer model, {WIDTH} wide, {TEXTS * LENGTH:,} tokens, float64 "
        f"({torch.get_num_threads()} threads, {rate / 1e9:.0f} GFLOP/s in float32)",
        [
            ("plain forward pass in float64", f"{plain_s:.2f} s", ""),
            ("terms of all 14 states", f"{split_s:.2f} s", ""),
            ("times the forward pass", f"{split_s / plain_s:.2f}", f"aim: at most {AIM:.0f}"),
            ("terms by head", f"{by_head_s:.2f} s, {by_head_s / plain_s:.2f} times", ""),
            ("largest residual", f"{residual:.1e}", "aim: at most 1e-10"),
            ("peak memory for 500, 1,000 and 2,000 tokens", ", ".join(f"{each / 1e6:.0f} MB" for each in sizes), ""),
            ("growth of the second doubling over the first", f"{growth:.2f}", "aim: 2, linear"),
            *(
                (
                    f"input tokens, {chunk} of {length} at a time: peak memory",
                    f"{size / 1e6:.0f} MB",
                    "linear in the length",
                )
                for (length, chunk), size in chunked.items()
            ),
            ("input tokens, first 8 of 60", f"{token_s:.2f} s", ""),
        ],
    )
    return int(split_s / plain_s > AIM or not 1.8 < growth < 2.2 or residual > 1e-10)


if __name__ == "__main__":
    sys.exit(main())
