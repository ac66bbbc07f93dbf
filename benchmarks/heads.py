"""The strongest pairs of tokens of one head: exact over V x V entries, which never exist at once."""

from __future__ import annotations

import math
import sys
import time

import torch

from benchmarks.common import PeakMemory, gemm_rate, report
from embcompare.projections import entry_ends

V, WIDTH, HEAD, TOP = 50_257, 768, 64, 50
CHECKED_ROWS = 512


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    """Return E W_Q and E W_K of a random head of GPT-2's shape, (V, 64) each; token lengths spread as in GPT-2."""
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(V, WIDTH, generator=generator) * (1 + 0.15 * torch.randn(V, 1, generator=generator)).clamp(min=0.3)
    queries, keys = (torch.randn(WIDTH, HEAD, generator=generator) / math.sqrt(WIDTH) for _ in range(2))
    return e @ queries, e @ keys


def main() -> int:
    """Measure both ends of one head, 50 entries each, against the aims: under 500 MB, 60 % of the GEMM rate."""
    left, right = factors()
    rate, fast, most = gemm_rate(), math.inf, 0
    for _ in range(3):
        with PeakMemory() as peak:
            began = time.perf_counter()
            high, low = entry_ends(left, right, TOP)
            fast = min(fast, time.perf_counter() - began)
        rate, most = max(rate, gemm_rate()), max(most, peak.bytes)
    share = 2.0 * V * V * HEAD / fast / rate
    # every row of a sample in float64: none may hold an entry beyond the last one listed that is not listed itself
    rows = torch.randperm(V, generator=torch.Generator().manual_seed(1))[:CHECKED_ROWS]
    rows = torch.cat([rows, high.rows, low.rows]).unique()
    listed = {(int(r), int(c)) for each in (high, low) for r, c in zip(each.rows, each.columns, strict=True)}
    missed = 0
    for row in rows.split(64):
        exact = left[row].double() @ right.double().T
        beyond = torch.nonzero((exact >= high.values[-1]) | (exact <= low.values[-1]))
        missed += sum((int(row[r]), int(c)) not in listed for r, c in beyond.tolist())
    report(
        f"Top and bottom {TOP} of one head's V x V matrix, V = {V:,}, d_h = {HEAD} ({torch.get_num_threads()} threads)",
        [
            ("both ends", f"{fast:.1f} s (best of 3)", ""),
            ("share of this machine's GEMM rate", f"{share:.0%} of {rate / 1e9:.0f} GFLOP/s", "aim: at least 60 %"),
            ("", "counted as if no block were skipped", ""),
            ("peak memory above the factors", f"{most / 1e9:.2f} GB", "aim: under 0.5 GB"),
            ("the matrix itself would be", f"{4 * V * V / 1e9:.1f} GB", ""),
            ("entries missed", f"{missed} in {len(rows)} rows read in float64", "aim: none"),
        ],
    )
    return int(share < 0.6 or most > 0.5e9 or missed > 0)


if __name__ == "__main__":
    sys.exit(main())
