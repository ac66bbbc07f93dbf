"""Run every benchmark, or those named: ``python -m benchmarks [NAME ...]``."""

import subprocess
import sys

NAMES = (
    "alignment",
    "allpairs",
    "cka",
    "decomposition",
    "hidden_states",
    "first_picture",
    "heads",
    "inn",
    "kernel",
    "stitching",
    "vectors",
)


def main() -> int:
    """Run each benchmark in a process of its own, so that none sees another's memory; 1 if one missed its aim."""
    chosen = sys.argv[1:] or NAMES
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        print(f"There is no benchmark '{unknown[0]}'; there are {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    return max(subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in chosen)


if __name__ == "__main__":
    sys.exit(main())
