"""On a GPU: 32 configurations one at a time, together, and in parallel processes, end to end.

    python -m benchmarks.flotilla.device [mlp gpt resnet] [--modes off packed mps exact fast compiled]

``off``, ``exact`` and ``fast`` are this project's modes, through Experiment, with one worker, which needs only one
partition; ``compiled`` is ``fast`` with a task that sets ``compile = True``. ``packed`` is a plain loop in 14 processes
that share the GPU, each with one configuration and the data on the device; ``mps`` is the same under NVIDIA's
Multi-Process Service. Data, evaluation and checkpoints after each epoch are included everywhere; start-up, mostly the
import of PyTorch, is reported separately. Figures are samples per second.

A run takes about a minute; a compiled one takes three, because compiling is meant for long runs. ``off``, ``packed``
and ``mps`` are slow and steady, so fewer configurations and epochs are enough: 14 configurations, one for each process,
so that none waits for another at the end, and 2 one at a time (--some). Their first steps, in which CUDA initialises,
are left out; those of the others, with captures and compiling, count.

For our own modes, the processor time of the busiest thread (the one that feeds the GPU and waits for it) and of all
processes (including those that write checkpoints) is reported too, with start-up.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

import hopfleet as hop
from benchmarks.processes import PROC, descend, processor

torch.set_float32_matmul_precision("high")


class Perceptron(hop.TorchTask):
    """1024-1000-500-2."""

    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        model = nn.Sequential(nn.Linear(1024, 1000), nn.ReLU(), nn.Linear(1000, 500), nn.ReLU(), nn.Linear(500, 2))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"], fused=True)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        rows, tokens, width = x.shape
        parts = self.attend(self.before(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(found.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.think(self.after(x))


class GPT(nn.Module):
    """4 layers of 256."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, 256), nn.Embedding(128, 256)
        self.blocks = nn.Sequential(*(Block(256, 4) for _ in range(4)))
        self.last, self.head = nn.LayerNorm(256), nn.Linear(256, 256, bias=False)

    def forward(self, x: Any) -> Any:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.last(self.blocks(self.tokens(x) + self.places(places))))


class Letters(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        model = GPT()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"], fused=True)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"].long()
        return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.calm, self.calmer = nn.GroupNorm(8, outside), nn.GroupNorm(8, outside)
        same = stride == 1 and inside == outside
        self.short = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.short(x) + self.calmer(self.two(torch.relu(self.calm(self.one(x))))))


class Pictures(hop.TorchTask):
    """ResNet-18 with group norms, for 32 x 32."""

    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.ReLU()]
        inside = 64
        for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Residual(inside, outside, stride), Residual(outside, outside, 1)]
            inside = outside
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"], fused=True)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def data(name: str, rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    if name == "mlp":
        x = rng.standard_normal((rows, 1024), np.float32)
        return {"x": x, "y": (x[:, 0] > 0).astype("int64")}
    if name == "gpt":
        return {"x": rng.integers(0, 256, (rows, 129)).astype("uint8")}
    if name == "tokens":
        return {"x": rng.integers(0, 32000, (rows, 512))}
    x = rng.standard_normal((rows, 3, 32, 32), np.float32)
    return {"x": x, "y": rng.integers(0, 10, rows)}


class Workload(NamedTuple):
    task: type[hop.TorchTask]
    rows: int
    batch_size: int
    epochs: int
    #: Epochs of the steady modes, and of the compiled mode.
    fewer: int
    more: int


WORKLOADS = {
    "mlp": Workload(Perceptron, 262144, 256, 40, 2, 40),
    "gpt": Workload(Letters, 8192, 16, 5, 1, 22),
    "resnet": Workload(Pictures, 4096, 32, 6, 2, 6),
}
VALID = 16
"""Training rows per validation row."""

PROCESSES = 14
OURS = ("off", "exact", "fast", "compiled")


class Figure(NamedTuple):
    samples: int
    #: From the first step to the last checkpoint, and with start-up.
    training: float
    whole: float
    #: Processor time of the busiest thread, and of all of them.
    dispatch: float = 0.0
    processors: float = 0.0

    @property
    def rate(self) -> float:
        return self.samples / self.training


def ours(name: str, mode: Any, trials: int, folder: Path) -> Figure:
    task, rows, batch_size, *numbers = WORKLOADS[name]
    steady = mode == "off"
    epochs = numbers[{"off": 1, "compiled": 2}.get(mode, 0)]
    began = time.perf_counter()
    model = task()
    model.compile = mode == "compiled"
    experiment = hop.Experiment(
        model,
        train=folder / "train",
        valid=folder / "valid",
        space={"lr": hop.loguniform(1e-5, 1e-3)},
        search=hop.Random(trials=trials, max_epochs=epochs),
        metric="loss",
        mode="min",
        batch_size=batch_size,
        name=f"{name}-{mode}",
        workers=1,
        run_options=hop.RunOptions(policy="longest-remaining"),
        worker_options=hop.WorkerOptions(fuse="fast" if mode == "compiled" else mode),
    )
    with Busy() as busy:
        results = experiment.fit(quiet=True)
    took = time.perf_counter() - began
    failed = [trial for trial in results.trials if trial.state.value != "completed"]
    assert not failed, failed[0].error
    if mode != "off":
        lines = [line for log in results.folder.logs.glob("*.log") for line in log.read_text().splitlines()]
        for line in dict.fromkeys(line for line in lines if line.startswith("hopfleet:")):
            print(f"  {line}", flush=True)
    spans = sorted(results.history.spans, key=lambda span: span.started)
    shutil.rmtree(results.folder.path)
    samples = rows * trials * epochs - (rows if steady else 0)
    started = spans[0].ended if steady else spans[0].started
    return Figure(samples, max(span.ended for span in spans) - started, took, *busy.seconds)


class Busy:
    """A thread that samples this process and its descendants, twice a second."""

    def __init__(self) -> None:
        self._threads: dict[tuple[int, int], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> tuple[float, float]:
        """Return the processor time of the busiest thread and of all threads."""
        return max(self._threads.values(), default=0.0), sum(self._threads.values())

    def _watch(self) -> None:
        family = {os.getpid()}
        while not self._over.wait(0.5):
            for pid in descend(family):
                with contextlib.suppress(OSError):
                    for task in (PROC / str(pid) / "task").iterdir():
                        if seconds := processor(task):
                            self._threads[pid, int(task.name)] = seconds


def packed(name: str, trials: int, folder: Path, *, mps: bool) -> Figure:
    """Run a plain loop in several processes."""
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    control = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], stdout=quiet, stderr=quiet) if mps else None
    try:
        if mps:
            time.sleep(2)
        context = multiprocessing.get_context("spawn")
        ready, barrier = context.Queue(), context.Barrier(PROCESSES + 1)
        rates = np.exp(np.random.default_rng(0).uniform(np.log(1e-5), np.log(1e-3), trials)).tolist()
        workers = [
            context.Process(target=plain, args=(name, rates[one::PROCESSES], folder, one, barrier, ready))
            for one in range(PROCESSES)
        ]
        for worker in workers:
            worker.start()
        barrier.wait(timeout=300)
        started = time.perf_counter()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0, f"a process ended with {worker.exitcode}"
        ended = time.perf_counter()
    finally:
        if control is not None:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, timeout=30)
            control.wait(timeout=30)
    workload = WORKLOADS[name]
    return Figure(workload.rows * workload.fewer * trials, ended - started, ended - began)


def plain(name: str, rates: list[float], folder: Path, number: int, barrier: Any, ready: Any) -> None:
    task_of, rows, batch_size, _, epochs, _ = WORKLOADS[name]
    task = task_of()
    train, valid = (
        {column: torch.from_numpy(value).cuda() for column, value in data(name, count, seed).items()}
        for count, seed in ((rows, 0), (rows // VALID, 1))
    )

    def step(model: Any, optimizer: Any, some: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        task.loss(model, {column: value[some] for column, value in train.items()}).backward()
        optimizer.step()

    def begin(rate: float) -> tuple[Any, Any]:
        model = task.build({"lr": rate})[0].cuda()
        return model, torch.optim.Adam(model.parameters(), lr=rate, fused=True)

    step(*begin(rates[0]), torch.arange(batch_size, device="cuda"))
    torch.cuda.synchronize()
    barrier.wait(timeout=300)
    for trial, rate in enumerate(rates):
        torch.manual_seed(trial)
        model, optimizer = begin(rate)
        for epoch in range(epochs):
            model.train()
            for some in torch.split(torch.randperm(rows, device="cuda"), batch_size):
                step(model, optimizer, some)
            model.eval()
            with torch.no_grad():
                parts = {column: torch.split(value, 256) for column, value in valid.items()}
                losses = [
                    task.loss(model, dict(zip(parts, some, strict=True))) for some in zip(*parts.values(), strict=True)
                ]
                torch.stack(losses).mean().item()
            path = folder / f"plain-{number}-{trial}-{epoch}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            (folder / f"plain-{number}-{trial}-{epoch - 1}.pt").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--some", type=int, default=2, help="number of configurations to train one at a time")
    parser.add_argument("--modes", nargs="*", default=["off", "packed", "mps", "exact", "fast", "compiled"])
    options = parser.parse_args()
    for name in options.names:
        workload = WORKLOADS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            os.environ["HOPFLEET_HOME"] = str(folder / "home")
            hop.partition(data(name, workload.rows, 0), folder / "train", partitions=1)
            hop.partition(data(name, workload.rows // VALID, 1), folder / "valid", partitions=1)
            figures: dict[str, Figure] = {}
            for mode in options.modes:
                try:
                    if mode in OURS:
                        trials = options.some if mode == "off" else options.trials
                        figures[mode] = ours(name, mode, trials, folder)
                    else:
                        figures[mode] = packed(name, PROCESSES, folder, mps=mode == "mps")
                except Exception as error:
                    print(f"{name:7} {mode:7} failed: {error!r}", flush=True)
                    continue
                one = figures[mode]
                ratios = ", ".join(
                    f"{one.rate / figures[other].rate:.2f} x {other}"
                    for other in ("off", "packed", "mps")
                    if other in figures and other != mode
                )
                print(
                    f"{name:7} {mode:7} {one.rate:12,.0f} samples/s ({one.training:.1f} s, {one.whole:.1f} s with "
                    f"start-up; processors: {one.dispatch:.1f} and {one.processors:.1f} s) {ratios}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
