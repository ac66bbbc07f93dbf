"""Measured comparisons: each module prints ratios of one run; ``python -m benchmarks`` runs them all."""
