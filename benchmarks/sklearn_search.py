"""scikit-learn: 64 linear classifiers on flights, against scikit-learn's own searches with two processes.

All searches draw the same 64 candidates and score them on the same held-out rows. Each runs in a process of its own;
memory is the peak of the whole family of processes, shared pages counted once. Imports and reading the data do not
count. Scores are those of the best candidate on the held-out rows.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.flotilla.workloads import flights
from benchmarks.processes import descend, proportional
from benchmarks.row import Row, megabytes

CANDIDATES = 64
JOBS = 2
SEARCHES = ("hopfleet", "randomized", "halving")
SAMPLE_SECONDS = 0.05

Found = tuple[float, float, float]
"""Seconds, peak bytes, best score."""


def measure(quick: bool) -> list[Row]:
    found = {name: _apart(name, quick) for name in SEARCHES}
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


def _apart(name: str, quick: bool) -> Found:
    """Run a search in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(name, quick, theirs))
    process.start()
    theirs.close()
    found: Found = ours.recv()
    process.join()
    print(f"{name}: {found[0]:.1f} s, {megabytes(found[1])}, score {found[2]:.4f}", file=sys.stderr, flush=True)
    return found


def _run(name: str, quick: bool, connection: Connection) -> None:
    train, valid = flights(quick)
    x, y = np.concatenate([train["x"], valid["x"]]), np.concatenate([train["y"], valid["y"]])
    rows = np.arange(len(x))
    cv = [(rows[: len(train["x"])], rows[len(train["x"]) :])]
    del train, valid
    search = _search(name, cv)
    peak = Peak()
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # candidates that do not converge
        search.fit(x, y)
    seconds = time.perf_counter() - began
    connection.send((seconds, peak.stop(), float(search.best_score_)))


def _search(name: str, cv: Any) -> Any:
    from scipy.stats import loguniform
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import HalvingRandomSearchCV, RandomizedSearchCV

    import hopfleet as hop

    params = {"alpha": loguniform(1e-6, 1e-1), "loss": ["hinge", "log_loss", "modified_huber"]}
    estimator = SGDClassifier(random_state=0)
    options = {"cv": cv, "n_jobs": JOBS, "random_state": 0, "refit": False}
    if name == "randomized":
        return RandomizedSearchCV(estimator, params, n_iter=CANDIDATES, **options)
    if name == "halving":
        # Its default begins with so few rows that none is left to score them.
        rows = sum(map(len, cv[0])) // 27
        return HalvingRandomSearchCV(estimator, params, n_candidates=CANDIDATES, min_resources=rows, **options)
    hopping = {"n_iter": CANDIDATES, "epochs": 9, "halving": True, "batch_size": 10_000, **options}
    return hop.HopSearchCV(estimator, params, **hopping)


class Peak:
    """The largest memory of this process and all its descendants, sampled in a thread."""

    def __init__(self) -> None:
        self._most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._most = max(self._most, sum(map(proportional, descend({os.getpid()}))))

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self._most
