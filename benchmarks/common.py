"""What the benchmarks share: the machine's own rate, the memory a block of code needs, and a plain table."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch


def gemm_rate(size: int = 2048, seconds: float = 3.0) -> float:
    """Return the float32 matrix-product rate that this machine sustains for ``seconds``, in FLOP/s."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    torch.mm(a, b, out=out)
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        torch.mm(a, b, out=out)
        count += 1
    return 2 * size**3 * count / passed


def resident() -> int:
    """Return this process's resident memory in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the memory benchmark reads /proc, which only Linux has")


class PeakMemory:
    """``with PeakMemory() as peak: ...`` then ``peak.bytes``: the most resident memory above that at the start."""

    def __enter__(self) -> PeakMemory:
        self._start = self._most = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = self._most - self._start

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, resident())


def report(title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print a table of (what, measured, aim)."""
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
