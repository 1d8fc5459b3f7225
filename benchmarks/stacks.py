"""JAX: 16 small networks in one experiment, stacked against one after another.

Both experiments are the same except for ``fuse``, and each runs in a process of its own. The time is that of ``fit``:
compiling, the journal, saved versions and evaluations count, and with workers in processes of their own, also their
start. One worker with two threads has one trial at a time, or stacks in two threads; two workers with one thread each,
as an experiment has by default on two cores, have two trials at a time, or a stack each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row, milliseconds

TRIALS = 16
BATCH = 64
BAR = 3.0


WORKERS = {"one worker, 2 threads": ("inline", 1, 2), "two workers": ("local", 2, 1)}
"""Cases, with the backend, the number of workers and the threads of each."""


def measure(quick: bool) -> list[Row]:
    rows, epochs, rounds = (512, 1, 1) if quick else (16384, 20, 3)
    tries = [
        {(case, fuse): _apart(case, fuse, rows, epochs) for case in WORKERS for fuse in ("off", "fast")}
        for _ in range(rounds)
    ]
    best = {key: min(each[key] for each in tries) for key in tries[0]}
    return [_row(case, rows, epochs, best[case, "off"], best[case, "fast"]) for case in WORKERS]


def _row(case: str, rows: int, epochs: int, alone: float, stacked: float) -> Row:
    barred = WORKERS[case][1] == 1
    return Row(
        "stacks",
        f"JAX, {TRIALS} MLPs 32-64-10, Adam, {rows} rows in batches of {BATCH}, {epochs} epochs in an experiment, "
        f"{case}: stacked against one at a time" + ("" if barred else " on each"),
        milliseconds(stacked),
        milliseconds(alone),
        stacked / alone,
        f"≥ {BAR:.0f} × as fast (ratio ≤ {1 / BAR:.2f})" if barred else "",
        alone / stacked >= BAR if barred else None,
    )


def _apart(case: str, fuse: Any, rows: int, epochs: int) -> float:
    command = [sys.executable, "-m", "benchmarks.stacks", case, fuse, str(rows), str(epochs)]
    seconds, loss = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    print(f"{case}, fuse={fuse!r}: {seconds:.2f} s, loss {loss:.4f}", file=sys.stderr, flush=True)
    return float(seconds)


def run(case: str, fuse: Any, rows: int, epochs: int) -> None:
    """Print the seconds of an experiment and the loss of its best trial."""
    import jax
    import optax

    import hopfleet as hop

    class Mlp(hop.JaxTask):
        def init(self, config: Mapping[str, Any], key: Any) -> Any:
            first, second = jax.random.split(key)
            return {"a": jax.random.normal(first, (32, 64)) * 0.1, "b": jax.random.normal(second, (64, 10)) * 0.1}

        def optimizer(self, config: Mapping[str, Any]) -> Any:
            return optax.adam(config["lr"])

        def loss(self, params: Any, batch: Any, key: Any) -> Any:
            logits = jax.nn.relu(batch["x"] @ params["a"]) @ params["b"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    backend, workers, threads = WORKERS[case]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 32)).astype("float32")
    data = {"x": x, "y": np.argmax(x @ rng.normal(size=(32, 10)), axis=1)}
    with tempfile.TemporaryDirectory() as place:
        experiment = hop.Experiment(
            Mlp(),
            train=hop.partition(data, Path(place) / "train", partitions=1),
            valid=hop.partition({name: column[: rows // 8] for name, column in data.items()}, Path(place) / "valid"),
            space={"lr": hop.grid_search([1e-3 * 1.1**n for n in range(TRIALS)])},
            search=hop.Grid(max_epochs=epochs),
            batch_size=BATCH,
            backend=backend,
            workers=workers,
            worker_options=hop.WorkerOptions(fuse=fuse, threads=threads),
            run_options=hop.RunOptions(folder=Path(place) / "run"),
        )
        began = time.perf_counter()
        results = experiment.fit(quiet=True)
        print(json.dumps((time.perf_counter() - began, results.best.metrics["loss"])))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
