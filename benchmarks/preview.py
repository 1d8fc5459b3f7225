"""The forecast of a preview compared with the run: the demo's 16 trials on 2 workers.

Makespans run from the start of the first unit to the end of the last. A preview profiles configurations alone on the
machine; other load during the experiment makes the run slower than any preview can know.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch
from hopfleet import demo

BAR = 0.2


def measure(quick: bool) -> list[Row]:
    repeats = 1 if quick else 3
    predicted, actual, took, in_fit = [], [], [], []
    for number in range(repeats):
        with scratch() as folder:
            experiment = demo.experiment(name="preview", folder=folder / f"run{number}", workers=2)
            if quick:
                experiment.search.max_epochs = 1
            began = time.perf_counter()
            preview = experiment.preview(quiet=True)
            took.append(time.perf_counter() - began)
            results = experiment.fit(quiet=True)
            spans = results.history.spans
            predicted.append(preview.makespan)
            actual.append(max(span.ended for span in spans) - min(span.started for span in spans))
            kept = results.folder.prediction()
            in_fit += [kept["makespan"] / actual[-1]] if kept is not None else []
    ratios = [mine / real for mine, real in zip(predicted, actual, strict=True)]
    ratio = median(ratios)
    listed = ", ".join(f"{each:.2f}" for each in ratios)
    own = ", ".join(f"{each:.2f}" for each in in_fit) or "none was made"
    return [
        Row(
            "preview",
            f"makespan of the demo, predicted, median of {repeats} (predicted by actual: {listed})",
            milliseconds(median(predicted)),
            f"{milliseconds(median(actual))}: what it then took",
            ratio,
            f"within {BAR:.0%}",
            abs(ratio - 1) <= BAR,
        ),
        Row("preview", "the same from the profiling of `fit()`, predicted by actual", own),
        Row(
            "preview",
            "seconds that a preview takes, starting a worker and importing torch included",
            milliseconds(median(took)),
        ),
    ]
