"""The table: what each paradigm moved, beside what the formula says, and what else it took."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.paradigms.catalogue import HOPPING, PARADIGMS, Formula, Sizes
from benchmarks.paradigms.harness import Measured

TITLES: dict[str, tuple[str, Formula]] = {
    "hopping": ("**hopping (Hopfleet on Ray)**", HOPPING),
    **{name: (paradigm.title, paradigm.formula) for name, paradigm in PARADIGMS.items()},
}

HEADER = (
    "paradigm",
    "formula",
    "by formula, MB",
    "training, MB",
    "loading, MB",
    "training, s",
    "CPU, s",
    "link, s",
    "loading, s",
    "disk per host, MB",
    "memory per host, MB",
    "best accuracy",
    "load",
)


def table(results: Mapping[str, Measured], sizes: Sizes, *, rate: float) -> str:
    """All rows that were measured, as Markdown."""
    lines = [HEADER, *(_cells(name, results[name], sizes, rate) for name in TITLES if name in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    padded.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(padded)


def _cells(name: str, found: Measured, sizes: Sizes, rate: float) -> tuple[str, ...]:
    title, formula = TITLES[name]
    return (
        title,
        formula.text,
        _megabytes(formula.count(sizes)),
        _megabytes(found.training.bytes),
        _megabytes(found.loading.bytes),
        f"{found.training.seconds:.1f}",
        "–" if math.isnan(found.training.processor) else f"{found.training.processor:.1f}",
        f"{found.training.busiest * 8 / 1e6 / rate:.1f}",
        f"{found.loading.seconds:.1f}",
        _megabytes(found.storage),
        _megabytes(found.memory),
        f"{found.best:.3f}",
        f"{found.load:.0f}",
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}" if count < 1e9 else f"{count / 1e6:,.0f}"


def summary(sizes: Sizes, *, rate: float) -> str:
    """What was trained, in one paragraph."""
    return (
        f"S = {sizes.S} configurations, k = {sizes.k} epochs, p = {sizes.p} hosts with {rate:g} Mbit/s each; "
        f"m = {sizes.m / 1e6:.3f} MB, D = {sizes.D / 1e6:.1f} MB, ⌈D/bp⌉ = {sizes.b} batches per host and epoch."
    )
