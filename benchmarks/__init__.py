"""What Hopfleet costs: one file per benchmark, each with ``measure(quick) -> rows``; see docs/benchmarks.md."""
