"""On a machine with two cores: trials that train together against Ray Tune, and against a plain loop in two processes.

    python -m benchmarks.flotilla.machine [flights short large preprocessing] [--modes exact fast off] [--quick]

Every contender trains the same configurations on the same rows, two at a time with one thread each, in its own process.
Its time runs from the start of that process until the results are available: imports, passing the data, evaluations
after each epoch and (ours alone) durable checkpoints included. Ray Tune gets its data through ``tune.with_parameters``,
once with reused actors and once with a fresh actor for every trial; the better variant counts, so the second one is
stopped when it has taken longer than the first. The plain loop distributes the trials over two processes in advance, by
their expected time. Memory is the sum of the proportional set sizes (PSS) of all processes of a contender, daemons
included, sampled once a second. Files in shared memory that no process has mapped are not in this sum; the growth of
all files there is reported separately.

The accuracy of the models is reported too: all contenders must reach the same accuracy.

The cost of a batch of the last workload is calibrated before the race: four times what one model takes to train on it
in a plain loop. It is measured again after the race.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.__main__ import DOCUMENT, conclude
from benchmarks.processes import PROC, descend, processor, proportional
from benchmarks.row import Row, megabytes

MODES = ("exact", "fast")
REUSED, FRESH = RAY = ("ray-reused", "ray-fresh")
PLAIN = "plain"
WEIGH = "weigh"
"""Not a contender: calibrates the cost of preprocessing."""

BEGIN, END = "<!-- two cores: begin -->", "<!-- two cores: end -->"

TIMES = {
    ("flights", "exact"): 1.3,
    ("flights", "fast"): 3.0,
    ("short", "exact"): 2.0,
    ("large", "exact"): 1.0,
    ("preprocessing", "exact"): 3.0,
}
"""Minimum speed relative to Ray Tune."""

IDEAL = 0.97
"""Minimum speed relative to the plain loop, on the flights."""

MEMORY = 0.5
"""Maximum memory relative to Ray Tune."""

COST_TOLERANCE = 0.5
"""Tolerance of the cost of a batch, in steps of one model."""

TOLERANCE = 0.01
"""Maximum difference between the best accuracies of two contenders."""

LIMIT_SECONDS = 240.0
SAMPLE_SECONDS = 1.0
TMPFS = Path("/dev/shm")
WORKERS = 2


# --------------------------------------------------------------------------------------------------------- contenders


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the training and the validation data of a folder."""
    import numpy as np

    roles = ({path.stem: np.load(path) for path in (folder / role).glob("*.npy")} for role in ("train", "valid"))
    train, valid = roles
    return train, valid


def by_hand(
    workload: Any, config: Mapping[str, Any], data: Any, report: Callable[[float], object], seed: int = 0
) -> None:
    """Train a trial with plain PyTorch."""
    import numpy as np
    import torch

    from benchmarks.flotilla.workloads import accuracy, loss

    train, valid = data
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model, optimizer = workload.build(config)

    def tensors(batch: Mapping[str, Any], chance: Any) -> dict[str, Any]:
        made = batch if workload.transform is None else workload.transform(dict(batch), chance)
        return {key: torch.as_tensor(value) for key, value in made.items()}

    whole = {key: torch.from_numpy(value) for key, value in train.items()}
    count = len(train["y"])
    for _ in range(workload.epochs):
        for rows in torch.split(torch.from_numpy(rng.permutation(count)), workload.batch_size):
            batch: dict[str, Any] = {key: value[rows] for key, value in whole.items()}
            if workload.transform is not None:
                batch = tensors({key: value.numpy() for key, value in batch.items()}, rng)
            error = loss(model, batch)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
        right = 0.0
        with torch.no_grad():
            for start in range(0, len(valid["y"]), 1024):
                some = tensors({key: value[start : start + 1024] for key, value in valid.items()}, None)
                right += float(accuracy(model, some)) * len(some["y"])
        report(right / len(valid["y"]))


def with_plain_loop(workload: Any, folder: Path) -> list[float]:
    import torch
    import torch._dynamo  # else the first optimizer of each process would

    torch.set_num_threads(1)
    data = load(folder)
    weights = [sum(p.numel() for p in workload.build(config)[0].parameters()) for config in workload.configs]
    order = sorted(range(len(weights)), key=lambda number: -weights[number])
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()

    def go(mine: Sequence[int]) -> None:
        for number in mine:
            found: list[float] = []
            by_hand(workload, workload.configs[number], data, found.append, number)
            results.put(found[-1])

    parts = [context.Process(target=go, args=(order[part::WORKERS],)) for part in range(WORKERS)]
    for part in parts:
        part.start()
    best = [results.get() for _ in order]
    for part in parts:
        part.join()
    return best


def with_ray(workload: Any, folder: Path, reuse: bool) -> list[float]:
    import ray
    from ray import tune

    def train(config: dict[str, Any], data: Any) -> None:
        by_hand(workload, config, data, lambda value: tune.report({"accuracy": value}))

    ray.init("local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    space = {key: tune.grid_search(list(values)) for key, values in workload.grid.items()}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train, data=load(folder)), {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(max_concurrent_trials=WORKERS, reuse_actors=reuse),
        run_config=tune.RunConfig(storage_path=str(folder / f"ray-{reuse}"), verbose=0),
    )
    return [result.metrics["accuracy"] for result in tuner.fit()]


def with_hopfleet(workload: Any, folder: Path, fuse: Any) -> list[float]:
    import hopfleet as hop
    from benchmarks.flotilla.workloads import accuracy, loss

    class Task(hop.TorchTask):
        transform = None if workload.transform is None else staticmethod(workload.transform)

        def build(self, config: Mapping[str, Any]) -> Any:
            return workload.build(config)

        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            return loss(model, batch)

        def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
            return {"accuracy": accuracy(model, batch)}

    train, valid = load(folder)
    experiment = hop.Experiment(
        Task(),
        train=train,
        valid=valid,
        space={key: hop.grid_search(list(values)) for key, values in workload.grid.items()},
        search=hop.Grid(max_epochs=workload.epochs),
        metric="accuracy",
        mode="max",
        batch_size=workload.batch_size,
        partitions=workload.partitions,
        workers=WORKERS,
        run_options=hop.RunOptions(folder=folder / f"hopfleet-{fuse}"),
        worker_options=hop.WorkerOptions(fuse=fuse),
    )
    results = experiment.fit(quiet=True)
    return [trial.history[-1]["accuracy"] for trial in results.trials]


def compete(name: str, contender: str, folder: Path, quick: bool) -> None:
    """Train everything; record when it was done and the accuracies."""
    from benchmarks.flotilla import workloads

    weight = folder / WEIGH
    if contender == WEIGH:
        weight.write_text(str(workloads.weigh(name, load(folder)[0])))
    workload = workloads.workload(name, quick, int(weight.read_text()) if weight.exists() else None)
    found: list[float] = []
    if contender == PLAIN:
        found = with_plain_loop(workload, folder)
    elif contender in RAY:
        found = with_ray(workload, folder, contender == REUSED)
    elif contender != WEIGH:
        found = with_hopfleet(workload, folder, contender)
    said: dict[str, Any] = {"done": time.monotonic(), "accuracies": found}
    if contender == PLAIN and workload.transform is not None:
        said["cost"] = workloads.cost_of_transform(workload, load(folder)[0])
    (folder / f"{contender}.json").write_text(json.dumps(said))


# ---------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    peak: float
    #: Approximate processor seconds of all processes.
    busy: float
    accuracies: Sequence[float]
    trouble: str = ""
    #: Peak bytes of files in shared memory, mapped or not.
    files: float = 0.0
    #: Time to make a batch, as a multiple of a step, if measured.
    cost: float | None = None

    @property
    def ok(self) -> bool:
        return not self.trouble


class Watch:
    """A thread that samples all descendants of a process until it is stopped."""

    def __init__(self, root: int) -> None:
        self.peak = self.files = 0.0
        self._before = _shared()
        #: Every process seen so far. Daemons may leave their parents.
        self.family = {root}
        self._busy: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> None:
        there = descend(self.family)
        self.peak = max(self.peak, sum(map(proportional, there)))
        self.files = max(self.files, _shared() - self._before)
        # A process that has just ended keeps its last sample.
        self._busy |= {pid: seconds for pid in there if (seconds := processor(PROC / str(pid)))}

    @property
    def busy(self) -> float:
        """Return the sampled processor seconds."""
        return sum(self._busy.values())


def _shared() -> int:
    """Return the bytes of files in shared memory."""
    return shutil.disk_usage(TMPFS).used if TMPFS.is_dir() else 0


def measured(
    name: str, contender: str, folder: Path, quick: bool, limit: float, checkout: Path | None = None
) -> Outcome:
    """Run a contender alone, of this or another checkout, for at most ``limit`` seconds."""
    command = [sys.executable, "-m", "benchmarks.flotilla.machine", name, "--contender", contender]
    command += ["--folder", str(folder), *(["--quick"] if quick else [])]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "HOPFLEET_HOME": str(folder / "home")}
    if contender in (PLAIN, WEIGH):
        # Libraries below torch start their own threads. The other contenders limit them already.
        variables["OMP_NUM_THREADS"] = "1"
    if checkout is not None:
        variables["PYTHONPATH"] = f"{checkout / 'src'}{os.pathsep}{checkout}"
    log = folder / f"{contender}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=checkout, env={**os.environ, **variables}, stdout=output, stderr=output)
    watch = Watch(process.pid)
    trouble = ""
    try:
        if process.wait(limit):
            trouble = f"exit code {process.returncode}: {log.read_text().strip()[-2000:]}"
    except subprocess.TimeoutExpired:
        trouble = f"not done after {limit:.0f} s"
    finally:
        watch.end()
        for pid in descend(watch.family):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    if trouble:
        return Outcome(0.0, 0.0, 0.0, [], trouble)
    said = json.loads((folder / f"{contender}.json").read_text())
    return Outcome(said["done"] - began, watch.peak, watch.busy, said["accuracies"], "", watch.files, said.get("cost"))


@contextlib.contextmanager
def prepared(name: str, quick: bool) -> Iterator[Path]:
    """Write the data of a workload to a temporary folder, and calibrate its preprocessing."""
    import numpy as np

    from benchmarks.flotilla.workloads import WORKLOADS

    with tempfile.TemporaryDirectory(prefix="hopfleet-bench-") as place:
        folder = Path(place)
        for role, arrays in zip(("train", "valid"), WORKLOADS[name].data(quick), strict=True):
            (folder / role).mkdir()
            for key, array in arrays.items():
                np.save(folder / role / f"{key}.npy", array)
        if WORKLOADS[name].transform is not None:
            weighed = measured(name, WEIGH, folder, quick, LIMIT_SECONDS)
            _say(name, weighed.trouble or f"batches are made of {(folder / WEIGH).read_text()} moments")
        yield folder


def raced(name: str, contenders: Sequence[str], quick: bool) -> dict[str, Outcome]:
    """Run all contenders on one workload, one after the other."""
    found: dict[str, Outcome] = {}
    with prepared(name, quick) as folder:
        for contender in contenders:
            limit = LIMIT_SECONDS
            if contender == FRESH and REUSED in found and found[REUSED].ok:
                limit = found[REUSED].seconds
            one = found[contender] = measured(name, contender, folder, quick, limit)
            best = max(one.accuracies, default=0.0)
            took = f"{one.seconds:6.1f} s ({one.busy:.1f} s of processors)"
            says = one.trouble or f"{took}, {megabytes(one.peak)}, best accuracy {best:.4f}"
            _say(name, f"{contender:10} {says}")
    return found


def _say(name: str, text: str) -> None:
    print(f"{name:13} {text}", file=sys.stderr, flush=True)


def rows_of(name: str, found: Mapping[str, Outcome]) -> Iterator[Row]:
    """Return the rows of a workload."""
    from benchmarks.flotilla.workloads import COST, WORKLOADS

    what = WORKLOADS[name].what
    there = {contender: one for contender, one in found.items() if one.ok}
    ray = min((there[way] for way in RAY if way in there), key=lambda one: one.seconds, default=None)
    ways = " / ".join(f"{found[way].seconds:.1f} s" if found[way].ok else "longer" for way in RAY if way in found)
    for mode, one in found.items():
        if mode in RAY or mode == PLAIN:
            continue
        if not one.ok:
            yield Row(name, f"{mode}: {what}", f"failed: {one.trouble[-200:]}", "", None, "", False)
            continue
        ours = f"{one.seconds:.1f} s"
        if ray is not None:
            bar = TIMES.get((name, mode))
            ratio = ray.seconds / one.seconds
            other = f"{ways}: Ray Tune, reused / fresh actors"
            yield Row(name, f"{mode}: {what}", ours, other, ratio, *_judged(ratio, bar, "≥ {}"))
            ratio = one.peak / ray.peak
            memory = f"{megabytes(ray.peak)}: the quicker Ray Tune (files: {megabytes(ray.files)})"
            mine = f"{megabytes(one.peak)} (files: {megabytes(one.files)})"
            bar = MEMORY if (name, mode) in TIMES else None
            yield Row(name, f"{mode}: peak memory (PSS)", mine, memory, ratio, *_judged(ratio, bar, "≤ {}"))
        if PLAIN in there:
            bar = IDEAL if (name, mode) == ("flights", "exact") else None
            ratio = there[PLAIN].seconds / one.seconds
            other = f"{there[PLAIN].seconds:.1f} s: a plain loop in two processes"
            yield Row(name, f"{mode}: {what}", ours, other, ratio, *_judged(ratio, bar, "≥ {}"))
    for cost in [one.cost for one in there.values() if one.cost is not None]:
        aim = f"{COST:g} ± {COST_TOLERANCE}"
        right = abs(cost - COST) <= COST_TOLERANCE
        yield Row(name, "making a batch, in processor time", f"{cost:.1f}", "1: a step of one model", cost, aim, right)
    accuracies = [max(one.accuracies) for one in there.values()]
    if accuracies:
        same = max(accuracies) - min(accuracies) <= TOLERANCE
        spread = f"{min(accuracies):.4f} to {max(accuracies):.4f}"
        yield Row(name, "best accuracy of each contender", spread, "", None, f"within {TOLERANCE}", same)


def _judged(ratio: float, bar: float | None, text: str) -> tuple[str, bool | None]:
    if bar is None:
        return "", None
    return text.format(bar), ratio >= bar if text.startswith("≥") else ratio <= bar


def main() -> int:
    names = tuple(dict.fromkeys(name for name, _ in TIMES))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flotilla.machine", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=("exact", "fast", "off"), help="how we train")
    others = (*RAY, PLAIN)
    parser.add_argument("--others", nargs="*", default=others, choices=others, help="whom we race")
    parser.add_argument("--quick", action="store_true", help="tiny data: a functional check only")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    for option in ("--contender", "--folder"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"{', '.join(unknown)}: unknown; there are {', '.join(names)}")
    if options.contender:
        compete(options.names[0], options.contender, Path(options.folder), options.quick)
        return 0
    if options.write and (options.quick or options.names or options.others != others):
        parser.error("--write: the document holds complete runs only")
    installed = importlib.util.find_spec("ray") is not None
    others = tuple(other for other in options.others if installed or other not in RAY)
    rows: list[Row] = []
    load = os.getloadavg()[0]
    for name in options.names or names:
        # The most closely compared contenders run next to each other.
        rows += rows_of(name, raced(name, [*others, *options.modes], options.quick))
    status = conclude(rows, load, DOCUMENT if options.write else None, BEGIN, END)
    return 0 if options.quick else status


if __name__ == "__main__":
    sys.exit(main())
