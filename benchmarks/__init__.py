"""Benchmarks: one file each, each with ``measure(quick) -> rows``; see docs/benchmarks.md."""
