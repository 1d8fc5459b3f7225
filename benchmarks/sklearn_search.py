"""scikit-learn: 64 linear classifiers on flights, against scikit-learn's own searches with two processes.

All searches draw the same 64 candidates and score them on the same held-out rows. Each runs as a program of its own;
memory is the peak of the whole family of processes, shared pages counted once. Imports and reading the data do not
count. Scores are those of the best candidate on the held-out rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flights import flights
from benchmarks.processes import descend, proportional
from benchmarks.row import Row, megabytes

CANDIDATES = 64
JOBS = 2
SEARCHES = ("hopfleet", "randomized", "halving")
SAMPLE_SECONDS = 0.1

Found = tuple[float, float, float]
"""Seconds, peak bytes, best score."""


def measure(quick: bool) -> list[Row]:
    rounds = 1 if quick else 3
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "flights.npz"
        train, valid = flights(quick)
        x, y = (np.concatenate([train[name], valid[name]]) for name in ("x", "y"))
        np.savez(data, x=x, y=y, held=len(valid["x"]))
        tries = [{name: _apart(name, data) for name in SEARCHES} for _ in range(rounds)]
    found = {name: min(each[name] for each in tries) for name in SEARCHES}
    seconds, memory, score = found["hopfleet"]
    rows = []
    for name, their in (("RandomizedSearchCV", found["randomized"]), ("HalvingRandomSearchCV", found["halving"])):
        same = score >= their[2] - 0.001
        what = f"{CANDIDATES} SGD classifiers on flights, {JOBS} processes, {name}: "
        rows += [
            Row(
                "sklearn_search",
                f"{what}time (score {score:.4f}, theirs {their[2]:.4f})",
                f"{seconds:.1f} s",
                f"{their[0]:.1f} s",
                seconds / their[0],
                "≥ 2 × as fast to the same score (ratio ≤ 0.5)",
                same and seconds <= their[0] / 2,
            ),
            Row(
                "sklearn_search",
                f"{what}peak memory",
                megabytes(memory),
                megabytes(their[1]),
                memory / their[1],
                "at most half",
                memory <= their[1] / 2,
            ),
        ]
    return rows


def _apart(name: str, data: Path) -> Found:
    """Run a search as a program of its own: joblib ends its processes when a program ends, but not before."""
    command = [sys.executable, "-m", "benchmarks.sklearn_search", name, str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak = Peak(process.pid)
        line = process.stdout.readline()
        most = peak.stop()
    if process.returncode:
        raise RuntimeError(f"the search {name!r} ended with exit status {process.returncode}")
    seconds, score = json.loads(line)
    print(f"{name}: {seconds:.1f} s, {megabytes(most)}, score {score:.4f}", file=sys.stderr, flush=True)
    return seconds, most, score


def run(name: str, data: Path) -> None:
    """Print a line when the data are there, and a line with seconds and score after the search."""
    with np.load(data) as loaded:
        x, y, held = loaded["x"], loaded["y"], int(loaded["held"])
    rows = np.arange(len(x))
    search = _search(name, [(rows[:-held], rows[-held:])])
    print(flush=True)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # candidates that do not converge
        search.fit(x, y)
    print(json.dumps((time.perf_counter() - began, float(search.best_score_))), flush=True)


def _search(name: str, cv: Any) -> Any:
    from scipy.stats import loguniform
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import HalvingRandomSearchCV, RandomizedSearchCV

    params = {"alpha": loguniform(1e-6, 1e-1), "loss": ["hinge", "log_loss", "modified_huber"]}
    estimator = SGDClassifier(random_state=0)
    options = {"cv": cv, "n_jobs": JOBS, "random_state": 0, "refit": False}
    if name == "randomized":
        return RandomizedSearchCV(estimator, params, n_iter=CANDIDATES, **options)
    if name == "halving":
        # Its default begins with so few rows that none is left to score them.
        rows = sum(map(len, cv[0])) // 27
        return HalvingRandomSearchCV(estimator, params, n_candidates=CANDIDATES, min_resources=rows, **options)
    import hopfleet as hop

    hopping: dict[str, Any] = {
        "n_iter": CANDIDATES,
        "epochs": 1,
        "halving": True,
        "min_epochs": 1 / 9,
        "batch_size": 25_000,
    }
    return hop.HopSearchCV(estimator, params, **hopping, **options)


class Peak:
    """The largest memory of a process and all its descendants, sampled in a thread."""

    def __init__(self, process: int) -> None:
        self._family, self._most, self._done = {process}, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._most = max(self._most, sum(map(proportional, descend(self._family))))

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self._most


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
