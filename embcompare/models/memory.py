"""How much memory a model may take."""

from __future__ import annotations

import os
from pathlib import Path

from embcompare import environment
from embcompare.words import in_words as in_words

SHARE = 0.9
"""The part of free memory that a model's weights may fill."""


def free_bytes(device: str = "cpu") -> int:
    """Return the bytes that can be allocated now on ``device``."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _cgroup_free())
    try:
        import psutil  # type: ignore[import-untyped, import-not-found]

        return int(psutil.virtual_memory().available)
    except ImportError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def limit(device: str = "cpu") -> int:
    """Return the most bytes a model's weights may take: ``EMBCOMPARE_MAX_MODEL_BYTES``, or what fits now."""
    most = environment.number_of_bytes("EMBCOMPARE_MAX_MODEL_BYTES", None, low=1)
    return int(free_bytes(device) * SHARE) if most is None else most


def _cgroup_free() -> int:
    """Return what a container's own limit leaves, which MemAvailable does not know of."""
    root = Path("/sys/fs/cgroup")
    for most, used in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(int(most.read_text()) - int(used.read_text()), 0)
        except (OSError, ValueError):
            continue
    return 2**63
