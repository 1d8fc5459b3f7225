"""Learning curves of stacked trials compared with single ones: the demo's networks on digits, ``fast`` and ``exact``.

    python -m benchmarks.flotilla.curves [--quick]

Both train the same configurations with the same seeds, rows and visit orders, so each trial has a partner. Rounding
differs, and so do dropout masks; then two curves diverge, as they do with another seed. But they must not diverge
systematically. So the partners' differences (in the loss after the last epoch, and in its mean over all epochs) are
compared with the same differences with random signs: p is how often chance gives a mean at least as large. The distance
between partners is also reported, with the distance that another seed causes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import hopfleet as hop
from benchmarks.__main__ import conclude
from benchmarks.row import Row
from benchmarks.runs import scratch
from hopfleet import demo

NETWORKS = ("mlp", "cnn", "resnet")
LEVEL = 0.01
FLIPS = 20_000


def measure(quick: bool) -> list[Row]:
    networks, trials, epochs = (("mlp",), 6, 2) if quick else (NETWORKS, 32, 5)
    rows: list[Row] = []
    for network in networks:
        exact, fast, other = (
            curves(network, trials, epochs, fuse=fuse, seed=seed)
            for fuse, seed in (("exact", 0), ("fast", 0), ("exact", 1))
        )
        for what, ours, theirs, apart in (
            ("loss after the last epoch", fast[:, -1], exact[:, -1], other[:, -1]),
            ("loss over all epochs", fast.mean(axis=1), exact.mean(axis=1), other.mean(axis=1)),
        ):
            p = chance(ours - theirs)
            spread, usual = (float(np.std(values - theirs)) for values in (ours, apart))
            rows.append(
                Row(
                    "curves",
                    f"{network}, {trials} trials of {epochs} epochs: {what}; p {p:.2f}, {spread:.1e} apart",
                    f"{ours.mean():.5f}",
                    f"{theirs.mean():.5f}: exact; another seed puts them {usual:.1e} apart",
                    float(ours.mean() / theirs.mean()),
                    f"p ≥ {LEVEL}",
                    p >= LEVEL,
                )
            )
    return rows


def curves(network: str, trials: int, epochs: int, *, fuse: Any, seed: int) -> Any:
    """Return the validation loss of each trial, epoch by epoch."""
    train, valid = demo.data()
    rates = np.geomspace(0.001, 0.02, trials).tolist()
    with scratch() as folder:
        results = hop.Experiment(
            demo.Digits(),
            train=train,
            valid=valid,
            space={"network": hop.grid_search([network]), "lr": hop.grid_search(rates)},
            search=hop.Grid(max_epochs=epochs),
            metric="loss",
            mode="min",
            partitions=2,
            batch_size=32,
            name="curves",
            backend="inline",
            seed=seed,
            run_options=hop.RunOptions(folder=folder, order="fixed"),
            worker_options=hop.WorkerOptions(fuse=fuse),
        ).fit(quiet=True)
        return np.array([[row["loss"] for row in trial.history] for trial in results.trials])


def chance(differences: Any) -> float:
    """Return how often random signs give these differences a mean at least as large."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (FLIPS, len(differences)))
    return float(np.mean(np.abs((signs * differences).mean(axis=1)) >= abs(differences.mean()) * (1 - 1e-9)))


def main(options: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few trials: checks the benchmark")
    quick = parser.parse_args(options).quick
    return conclude(measure(quick), os.getloadavg()[0], None)


if __name__ == "__main__":
    sys.exit(main())
