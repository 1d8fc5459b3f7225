"""A real run on two local workers, one of them four times slower: units sleep, so other load hardly matters.

Nothing is known beforehand. The bound is that of ``benchmarks.unequal``, with the median times of units on each worker.
"""

from __future__ import annotations

from statistics import median

import hopfleet as hop
from benchmarks.row import Row
from benchmarks.runs import scratch, tiny_data
from benchmarks.tasks import Slowed
from hopfleet.monitor.records import Span
from hopfleet.planner.unequal import lower_bound

PARTITIONS = 8
BAR = 1.1


def measure(quick: bool) -> list[Row]:
    rows = []
    for trials in (1, 3) if quick else (1, 2, 3, 5):
        spans = train(trials, epochs=1 if quick else 12, seconds=0.01 if quick else 0.5)
        ratio, slow = _ratio(spans), _slow(spans)
        ran = sum(span.worker == slow for span in spans)
        rows.append(
            Row(
                "unequal_live",
                f"{trials} trials on 2 local workers, one 4 times slower: time by the bound",
                f"{ratio:.3f}; {ran} of {len(spans)} units on the slow worker",
                f"without the time between units: {_busy(spans):.3f}",
                bar="" if quick else f"≤ {BAR}",
                ok=None if quick else ratio <= BAR,
            )
        )
    return rows


def train(trials: int, *, epochs: int, seconds: float) -> list[Span]:
    """Train some trials, and return their units."""
    with scratch() as folder:
        experiment = hop.Experiment(
            Slowed(),
            train=tiny_data(folder, PARTITIONS),
            space={"seconds": seconds, "claim": str(folder / "claim"), "x": hop.grid_search(list(range(trials)))},
            search=hop.Grid(max_epochs=epochs),
            metric="train_loss",
            workers=2,
            run_options=hop.RunOptions(folder=folder / "run"),
            worker_options=hop.WorkerOptions(device="cpu", fuse="off"),
        )
        return [span for span in experiment.fit(quiet=True).history.spans if span.work.name == "TRAIN"]


def _times(spans: list[Span]) -> dict[str, float]:
    """Return the median seconds of a unit on each worker."""
    workers = {span.worker for span in spans}
    return {
        worker: median(span.ended - span.started for span in spans if span.worker == worker)
        for worker in sorted(workers)
    }


def _slow(spans: list[Span]) -> str:
    times = _times(spans)
    return max(times, key=times.__getitem__)


def _busy(spans: list[Span]) -> float:
    """Return the time for which the busier worker ran units, by the bound."""
    taken = max(span.ended for span in spans) - min(span.started for span in spans)
    worked = max(sum(s.ended - s.started for s in spans if s.worker == worker) for worker in _times(spans))
    return _ratio(spans) * worked / taken


def _ratio(spans: list[Span]) -> float:
    """Return the time from the first start to the last end by the bound; a worker without units is 4 times slower."""
    times = [*_times(spans).values()]
    times += [4 * times[0]] * (2 - len(times))
    units: dict[str, int] = {}
    for span in spans:
        units[span.trial] = units.get(span.trial, 0) + 1
    taken = max(span.ended for span in spans) - min(span.started for span in spans)
    return taken / lower_bound(units.values(), [1 / each for each in times])
