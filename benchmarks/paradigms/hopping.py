"""Hopfleet itself on the same hosts: a Ray node on each, the head and the driver on a separate host.

The data sets are read by URL, and durable versions go to an object store on one more host (moto, which speaks S3), so
all traffic goes over counted links. Hosts fetch partitions while their workers start. Before the first unit, when all
are ready, the driver waits for a signal to continue, as hosts do in other paradigms: bytes moved until then are
loading, and all bytes of models and control after that are training.

A *cut* takes a host's link down for longer than any health check, restores it, and starts the host's Ray node again if
Ray has given it up, as an init system would.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import hopfleet
from benchmarks.paradigms.harness import HEAD, STORAGE, Lab, Mark, Measured, Phase, SteppedProcesses, Watch, measured
from benchmarks.paradigms.host import say
from benchmarks.paradigms.site import on_interface
from benchmarks.paradigms.workload import WHOLE, Images, Workload
from benchmarks.runs import tiny_data, units_of
from benchmarks.tasks import Freight
from hopfleet.domain.messages import Message, UnitFinished, WorkerLost
from hopfleet.errors import JournalError
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal

GCS, S3 = 6379, 8001
RUN = "run"
NEEDS = ("ray", "aiohttp", "moto", "s3fs")
STORE_BYTES = 400_000_000
"""Bytes of Ray's object store on each host."""

START_SECONDS = 120.0

TOKEN = secrets.token_hex(16)
"""The token required to join the cluster."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A host whose link goes down after some units of the run, for some seconds."""

    host: str
    units: int
    seconds: float


def run(lab: Lab, cut: Cut | None = None) -> Measured:
    """Measure an experiment with the workload's task, data and grid. With a cut, visit orders follow from the seed."""
    lab.wipe()
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(lab))
        nodes = stack.enter_context(cluster(lab))
        stack.enter_context(object_store(lab))
        told = {
            "address": f"{lab.network.addresses[HEAD]}:{GCS}",
            "hosts": len(lab.hosts),
            "source": lab.source,
            "folder": str(lab.disk(HEAD)),
            "workload": asdict(lab.workload),
            "order": "fixed" if cut else "open",
        }
        words = [sys.executable, "-u", "-m", "benchmarks.paradigms.hopping", json.dumps(told)]
        processes = SteppedProcesses([lab.network.start(HEAD, words, env=environment(lab, HEAD), stdin=-1, stdout=-1)])
        stack.callback(processes.end)
        processes.all_say("ready")
        ready = Mark.now(lab)
        processes.go_on()
        (fetching,) = processes.all_say("loaded")
        loaded = Mark.now(lab)
        processes.go_on()
        if cut is not None:
            stack.enter_context(_while_cut(lab, nodes, cut))
        (said,) = processes.all_say("trained")
        trained = Mark.now(lab)
        processes.go_on()
    loading, training = ready.until(loaded), loaded.until(trained)
    storage, head = (trained.traffic[host] - loaded.traffic[host] for host in (STORAGE, HEAD))
    # Processes that have ended have no parent any more.
    marks = [watch.processor(when) for when in (ready.when, loaded.when, math.inf)]
    epochs = {int(number): history for number, history in said.pop("epochs").items()}
    return measured(
        watch,
        loading.seconds - fetching,
        replace(loading, seconds=fetching, processor=marks[1] - marks[0]),
        replace(training, processor=marks[2] - marks[1]),
        epochs,
        **said,
        stored=storage.received,
        restored=storage.sent,
        head=head.sent + head.received,
    )


def hop(lab: Lab, megabytes: int, hops: int) -> Measured:
    """Measure hops of one large model between hosts, and the bare transfer of as many bytes over the same link."""
    lab.wipe()
    first, second = lab.hosts[:2]
    bare = median(_transfer(lab, first, second, megabytes * 1_000_000) for _ in range(3))
    with cluster(lab, (first, second)):
        told = {
            "address": f"{lab.network.addresses[HEAD]}:{GCS}",
            "hosts": 2,
            "folder": str(lab.disk(HEAD)),
            "megabytes": megabytes,
            "hops": hops,
        }
        words = [sys.executable, "-u", "-m", "benchmarks.paradigms.hopping", json.dumps(told)]
        processes = SteppedProcesses([lab.network.start(HEAD, words, env=environment(lab, HEAD), stdin=-1, stdout=-1)])
        try:
            (times,) = processes.all_say("hopped")
            processes.go_on()
        finally:
            processes.end()
    nothing = Phase(0.0, 0.0, 0, 0)
    notes = {"megabytes": megabytes, "hop": median(times), "bare": bare, "times": times}
    return Measured(0.0, nothing, replace(nothing, seconds=median(times)), 0, 0, 0.0, [], os.getloadavg()[0], notes)


SEND = """
import socket, sys
with socket.create_server(("0.0.0.0", 9000)) as listener:
    print("ready", flush=True)
    with listener.accept()[0] as peer:
        peer.sendall(bytes(int(sys.argv[1])))
"""
RECEIVE = """
import socket, sys, time
began = time.perf_counter()
with socket.create_connection((sys.argv[1], 9000)) as peer:
    while peer.recv(1 << 20):
        pass
print(time.perf_counter() - began)
"""


def _transfer(lab: Lab, sender: str, receiver: str, size: int) -> float:
    with lab.python(sender, "-c", SEND, str(size), stdout=subprocess.PIPE) as sending:
        assert sending.stdout is not None
        sending.stdout.readline()
        address = lab.network.addresses[sender]
        with lab.python(receiver, "-c", RECEIVE, address, stdout=subprocess.PIPE) as receiving:
            assert receiving.stdout is not None
            return float(receiving.stdout.read())


# ------------------------------------------------------------------------------------------------- the cluster


class Nodes:
    """The Ray nodes of all hosts, each started when the one before it has joined: they share a folder and its locks."""

    def __init__(self, lab: Lab, folder: Path, hosts: Sequence[str]) -> None:
        self._lab = lab
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}
        for host in (HEAD, *hosts):
            self.start(host)

    def start(self, host: str) -> None:
        address = self._lab.network.addresses[host]
        head = ("--head", f"--port={GCS}", "--include-dashboard=false", f"--temp-dir={self._folder}")
        others = (f"--address={self._lab.network.addresses[HEAD]}:{GCS}",)
        words = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            *(f"--node-ip-address={address}", f"--num-cpus={0 if host == HEAD else 1}"),
            # The output of workers is not read; the output of trials goes to the run folder.
            "--include-log-monitor=false",
            f"--object-store-memory={STORE_BYTES}",
            *(head if host == HEAD else others),
        ]
        process = self._lab.network.start(
            host, words, env=environment(self._lab, host), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._running[host] = process
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "--block" in line:  # printed when all its processes are up
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return
        raise RuntimeError(f"Ray did not start on {host}:\n{''.join(lines)}")

    def restart_if_gone(self, host: str, seconds: float) -> bool:
        """Restart a host's node if it ends within some seconds."""
        try:
            self._running[host].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        self.start(host)
        return True

    def end(self) -> None:
        for host, process in reversed(self._running.items()):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            self._lab.network.clear(host)


@contextlib.contextmanager
def cluster(lab: Lab, hosts: Sequence[str] = ()) -> Iterator[Nodes]:
    # A short path, because it holds sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        nodes = Nodes(lab, Path(folder), hosts or lab.hosts)
        try:
            yield nodes
        finally:
            nodes.end()


@contextlib.contextmanager
def object_store(lab: Lab) -> Iterator[None]:
    words = ["-m", "moto.server", "-H", "0.0.0.0", "-p", str(S3)]
    process = lab.python(STORAGE, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def environment(lab: Lab, host: str) -> dict[str, str]:
    store = f"http://{lab.network.addresses[STORAGE]}:{S3}"
    return {
        **on_interface("eth0"),
        "HOPFLEET_HOME": str(lab.disk(host)),
        # By default its workers would yield to everything else on this machine, which runs all hosts.
        "RAY_worker_niceness": "0",
        # Turn off Ray's reports on nodes, processes and tasks: there is no dashboard.
        "REPORTER_UPDATE_INTERVAL_MS": "3600000",
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "AWS_ENDPOINT_URL": store,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextlib.contextmanager
def _while_cut(lab: Lab, nodes: Nodes, cut: Cut) -> Iterator[None]:
    def pull() -> None:
        _wait(lambda: _units_of(lab.disk(HEAD) / RUN) >= cut.units)
        lab.network.cut(cut.host)
        time.sleep(cut.seconds)
        lab.network.mend(cut.host)
        nodes.restart_if_gone(cut.host, cut.seconds)

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    yield
    thread.join()


# -------------------------------------------------------------------------------------------------- the driver


def main() -> None:
    import fsspec
    import ray

    told = json.loads(sys.argv[1])
    ray.init(address=told["address"], log_to_driver=False, logging_level="ERROR")
    _wait(lambda: sum(node["Alive"] for node in ray.nodes()) > told["hosts"])
    if "megabytes" in told:
        say("hopped", _hops(told))
        return
    workload = Workload(**told["workload"])
    fsspec.filesystem("s3").mkdir("hopfleet")
    experiment = hopfleet.Experiment(
        Images(workload.waits),
        train=f"{told['source']}/train",
        valid=f"{told['source']}/{WHOLE}",
        space=workload.space,
        search=hopfleet.Grid(max_epochs=workload.epochs),
        metric="accuracy",
        mode="max",
        seed=workload.seed,
        workers=told["hosts"],
        backend=_Announced(told["address"], storage="s3://hopfleet"),
        batch_size=workload.batch_size,
        run_options=hopfleet.RunOptions(folder=Path(told["folder"]) / RUN, order=told["order"]),
        worker_options=hopfleet.WorkerOptions(device="cpu"),
    )
    say("ready")
    results = experiment.fit(quiet=True)
    said = _happened(experiment.folder.journal_file)
    said["fetched"] = len(list(experiment.folder.checkpoints.rglob("*.safetensors")))
    said["epochs"] = {number: trial.history for number, trial in enumerate(results.trials)}
    say("trained", said)


class _Announced(hopfleet.Ray):
    """An observer that reports, once all are ready and before the first unit, the loading time of the slowest node.

    Workers start meanwhile, so loading is part of the start; and so is profiling, in which the first worker measures
    how long units take.
    """

    def _reset(self) -> None:
        super()._reset()
        self.fetched: dict[str, float] = {}
        self.said = False

    def send(self, command: Any, trial: Any) -> None:
        if not self.said:
            self.said = True
            while not all(handle.joined for handle in self._workers.values()):
                self._pump(0.1)
            say("loaded", max(self.fetched.values()))
        super().send(command, trial)

    def _fetch(self, node: Any) -> None:
        self.fetched[node.node.id] = -time.monotonic()
        super()._fetch(node)

    def _admit(self, handle: Any) -> None:
        for name, node in self._nodes.items():
            if node.ready and self.fetched[name] < 0:
                self.fetched[name] += time.monotonic()
        super()._admit(handle)


def _hops(told: dict[str, Any]) -> list[float]:
    """Return seconds from the end of a unit to the start of the next one on the other host, without the first hop."""
    folder = Path(told["folder"])
    config = {"megabytes": told["megabytes"], "optimizer": "sgd", "seconds": 0.2}
    data, epochs = tiny_data(folder, 2), told["hops"] + 1
    backend = hopfleet.Ray(told["address"], elastic=False)
    units = units_of(Freight(), data, [config], folder / RUN, epochs=epochs, workers=2, backend=backend)
    mean = [(a.sums["train_ended"].mean, b.sums["train_began"].mean) for (_, a), (_, b) in pairwise(units) if b.hopped]
    return [began - ended for ended, began in mean[1:]]


def _happened(journal_file: Path) -> dict[str, Any]:
    """Count units and hops, and return the share of the time that workers were busy."""
    messages = _messages(journal_file)
    work = [message for message in messages if isinstance(message, UnitFinished)]
    units = [message for message in work if message.unit.trains]
    first = min(message.started for message in work)
    workers = len({message.worker for message in work})
    span = max(message.ended for message in work) - first
    return {
        "units": len(units),
        "unit": [quantiles([unit.ended - unit.started for unit in units], n=10)[tenths - 1] for tenths in (1, 5, 9)],
        "hops": sum(unit.hopped for unit in units),
        "busy": sum(message.share * (message.ended - message.started) for message in work) / (workers * span),
        "lost workers": [message.reason for message in messages if isinstance(message, WorkerLost)],
    }


def _messages(journal_file: Path) -> list[Message]:
    with contextlib.closing(Journal(journal_file)) as journal:
        return [message for _, _, message in journal.read()]


def _units_of(folder: Path) -> int:
    """Count the finished units of a run."""
    try:
        messages = _messages(RunFolder(folder).journal_file)
    except JournalError:
        return 0  # not created yet
    return sum(isinstance(message, UnitFinished) and message.unit.trains for message in messages)


def _wait(ready: Any) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {START_SECONDS:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
