"""Run the command line: ``python -m embcompare``."""

from __future__ import annotations

import sys

from embcompare.cli import main

if __name__ == "__main__":
    sys.exit(main())
