"""``python -m benchmarks.paradigms``: all paradigms on separate hosts, and one table. Needs root and Linux.

Hosts are network namespaces; see ``network.py``. ``--results`` keeps measurements, so that paradigms can be measured
one at a time; ``--write`` puts the table of all kept measurements into docs/cluster.md. All paradigms together take
about a quarter of an hour on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine, write
from benchmarks.paradigms import hopping
from benchmarks.paradigms.catalogue import HOPPING, PARADIGMS, Sizes
from benchmarks.paradigms.harness import SOURCE, Lab, Measured, Phase, in_the_middle, laboratory, run, size_of
from benchmarks.paradigms.network import missing
from benchmarks.paradigms.report import as_in_plain_training, bars, remarks, summary, table
from benchmarks.paradigms.workload import Images, Workload
from hopfleet.domain.placement import CPU

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cluster.md"
NAMES = ("hopping", *PARADIGMS, "hopping-large", "hopping-cut", "hop")
EXTRA = "ps-async-one"
"""The paradigm that runs only on request: four minutes for a row that the others do not need."""

CUT_SECONDS = 20.0
"""Seconds that a link is cut: longer than Ray's own health checks."""

LONGER, QUICK_LONGER = 3, 15
"""Factor on the epochs when a link is cut: the host must return before the run ends."""

LARGE, LARGE_EPOCHS = 10, 1
"""Factor on the width, and epochs, to measure the share of the bytes that does not grow with the model."""

QUICK = Workload(rows=2_560, valid_rows=256, trials=4, epochs=2)
"""A tiny workload: a functional check only."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paradigms", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="of each host's link, in Mbit/s (default: 200)")
    parser.add_argument("--hosts", type=int, default=4, help="how many (default: 4)")
    parser.add_argument("--batches", type=int, default=200, help="per host and epoch (default: 200)")
    parser.add_argument(
        "--waits",
        type=float,
        default=0.0,
        help="milliseconds that a batch takes besides its processor time, as if every host had its own device; "
        "otherwise hosts slow each other down on a machine with few cores (default: 0)",
    )
    parser.add_argument("--epochs", type=int, default=3, help="how many (default: 3)")
    parser.add_argument(
        "--some",
        type=int,
        help="number of configurations to train where they are trained one at a time, all taking equally long; "
        "seconds and bytes are extrapolated to all (default: all)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        help="number of measurements of each, in turn; the run with the median time is shown (default: 1)",
    )
    parser.add_argument("--only", choices=NAMES, action="append", help="measure this paradigm only; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a tiny workload: a functional check only")
    parser.add_argument("--results", type=Path, help="a JSON file to add the measurements to")
    parser.add_argument("--write", action="store_true", help=f"replace the table in {DOCUMENT.name}")
    options = parser.parse_args()
    if lacks := missing():
        print("make cluster creates its own hosts, and this machine lacks\n  " + "\n  ".join(lacks), file=sys.stderr)
        return 2
    # Remove hosts and their processes in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = list(options.only or (name for name in NAMES if name != EXTRA))
    absent = [package for package in hopping.NEEDS if importlib.util.find_spec(package) is None]
    if absent and not set(names) <= set(PARADIGMS):
        names = [name for name in names if name in PARADIGMS]
        print(f"hopping: left out; install {', '.join(absent)}", file=sys.stderr)
    workload = replace(QUICK if options.quick else Workload(), partitions=options.hosts)
    if not options.quick:
        rows = options.batches * options.hosts * workload.batch_size
        workload = replace(workload, rows=rows, epochs=options.epochs, waits=options.waits / 1e3)
    kept = _read(options.results)
    with (
        tempfile.TemporaryDirectory(prefix="hopfleet-cluster-") as place,
        laboratory(Path(place), workload, hosts=options.hosts, rate=options.rate) as lab,
    ):
        found: dict[str, list[Measured]] = {}
        for name in options.repeat * names:
            found.setdefault(name, []).append(_measure(lab, name, options.some))
            kept[name] = in_the_middle(found[name])
            print(_news(name, kept), file=sys.stderr, flush=True)
            _keep(options.results, kept)
        sizes = _sizes(lab)
    said = summary(sizes, rate=options.rate, waits=1e3 * workload.waits)
    parts = (machine(), said, table(kept, sizes, rate=options.rate), bars(kept, sizes), *remarks(kept, sizes))
    results = "\n\n".join(filter(None, parts))
    print(results)
    if options.write:
        write(results, DOCUMENT)
    return 0


def _measure(lab: Lab, name: str, some: int | None) -> Measured:
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.perf_counter()
    if name in PARADIGMS and PARADIGMS[name].in_turn and some is not None:
        few = run(replace(lab, workload=replace(lab.workload, trials=some)), name)
        found = replace(few, training=few.training.times(lab.workload.trials / some))
    elif name in PARADIGMS:
        found = run(lab, name)
    elif name == "hopping":
        found = hopping.run(lab)
    elif name == "hop":
        quick = lab.workload.rows == QUICK.rows
        found = hopping.hop(lab, 5 if quick else 100, 2 if quick else 6)
    elif name == "hopping-large":
        larger = replace(lab.workload, width=LARGE * lab.workload.width, epochs=LARGE_EPOCHS)
        found = hopping.run(large := replace(lab, workload=larger))
        sizes = _sizes(large)
        found.notes.update(model=sizes.m, formula=HOPPING.count(sizes))
    else:
        times = QUICK_LONGER if lab.workload.rows == QUICK.rows else LONGER
        longer = replace(lab, workload=replace(lab.workload, epochs=times * lab.workload.epochs))
        found = hopping.run(longer, hopping.Cut(lab.hosts[1], units=2 * len(lab.hosts), seconds=CUT_SECONDS))
        many = longer.workload
        found.notes.update(cut=CUT_SECONDS, wanted=many.trials * many.epochs * many.partitions)
    found.notes["seconds with start-up"] = time.perf_counter() - began
    return found


def _news(name: str, kept: dict[str, Measured]) -> str:
    """Print the results of a paradigm, in one line."""
    found = kept[name]
    news = f"{name}: {found.training.bytes / 1e6:,.1f} MB in {found.training.seconds:.1f} s; {found.notes}"
    if name == "hopping-cut":
        news += f"; {as_in_plain_training(kept)}"
    return news


def _sizes(lab: Lab) -> Sizes:
    workload = lab.workload
    session = Images().framework.open(workload.configs[0], seed=0, placement=CPU, threads=1)
    data = size_of(lab.folder / SOURCE / "train")
    return Sizes.of(workload, hosts=len(lab.hosts), model=session.size, data=data)


def _read(path: Path | None) -> dict[str, Measured]:
    if path is None or not path.exists():
        return {}
    return {name: _measured(found) for name, found in json.loads(path.read_text()).items()}


def _measured(found: dict[str, Any]) -> Measured:
    loading, training = (Phase(**found.pop(name)) for name in ("loading", "training"))
    return Measured(loading=loading, training=training, **found)


def _keep(path: Path | None, kept: dict[str, Measured]) -> None:
    if path is not None:
        path.write_text(json.dumps({name: asdict(found) for name, found in kept.items()}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
