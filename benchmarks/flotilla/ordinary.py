"""On a GPU: ordinary tasks, with optimizers as their constructors make them, one at a time and together.

    python -m benchmarks.flotilla.ordinary [mixed sizes mlp gpt resnet gpt2 bert] [--modes off exact fast compiled]
    python -m benchmarks.flotilla.ordinary [mixed sizes mlp gpt resnet gpt2 bert] --steps 1000 [--turns 2]

``mixed``: perceptrons of 1 to 3 layers of 128 to 1024 with dropout, trained by Adam, AdamW or SGD in batches of 64, 128
or 256; ``sizes``: the same in batches of 32 to 512; ``mlp``: 1024-1000-500-2, Adam, tf32, 4 partitions; ``gpt``: AdamW
and OneCycleLR; ``resnet``: SGD with momentum; ``gpt2``: a GPT-2 of Hugging Face with 10 million parameters, AdamW,
batches of 8; ``bert``: one of their BERTs with 3 million, masks and batches of 16. All run through Experiment on one
worker, with evaluation and a checkpoint after each epoch. ``off`` trains the same configurations one at a time, for
fewer epochs and, where they are alike, fewer of them. ``compiled`` is ``fast`` with a task that sets ``compile =
True``; it is not among the modes by default, since compiling takes minutes. Figures are samples per second, without
start-up; the same after the first epoch, in which models are built and steps are captured or compiled; how long the
worker waits between two units, in the median (if there are several partitions, until it goes on with the next one of an
epoch); and how long after ``fit()`` the first unit begins.

With ``--steps``, trials make about that many updates (with several batch sizes: those with the largest ones), in four
epochs, with ``exact`` and ``fast`` in turns. Figures are seconds from the begin of the first unit, in which models are
built and steps are captured, to the end of the last; and how much faster ``fast`` is, by the least and by the median.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import hopfleet as hop
from benchmarks.flotilla.device import GPT, VALID, Letters, Pictures, data
from hopfleet.domain.unit import Work
from hopfleet.monitor.records import Span

torch.set_float32_matmul_precision("high")


class Layers(hop.TorchTask):
    """Perceptrons with optimizers as most people write them."""

    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        layers: list[nn.Module] = []
        inside = 1024
        for _ in range(config["depth"]):
            layers += [nn.Linear(inside, config["width"]), nn.ReLU(), nn.Dropout(config["dropout"])]
            inside = config["width"]
        model = nn.Sequential(*layers, nn.Linear(inside, 2))
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[config["optimizer"]]
        return model, kind(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Perceptron(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        model = nn.Sequential(nn.Linear(1024, 1000), nn.ReLU(), nn.Linear(1000, 500), nn.ReLU(), nn.Linear(500, 2))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Cycle(Letters):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_float32_matmul_precision("high")
        model = GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=10_000)


class Momentum(Pictures):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = super().build(config)[0]
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


class HuggingFace(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.set_float32_matmul_precision("high")
        shape = GPT2Config(vocab_size=256, n_positions=128, n_embd=384, n_layer=5, n_head=6, use_cache=False)
        model = GPT2LMHeadModel(shape)
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"][:, :128].long()
        return model(input_ids=x, labels=x).loss


class Classifier(hop.TorchTask):
    """A BERT as people fine-tune it: dropout everywhere, and sequences of different lengths."""

    def build(self, config: Mapping[str, Any]) -> Any:
        from transformers import BertConfig, BertForSequenceClassification

        torch.set_float32_matmul_precision("high")
        shape = BertConfig(vocab_size=256, hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
        shape.intermediate_size = 1024
        model = BertForSequenceClassification(shape)
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"][:, :128].long()
        there = torch.arange(128, device=x.device) < 64 + x[:, :1] % 65
        return model(input_ids=x, attention_mask=there, labels=x[:, 0] % 2).loss


RATE = {"lr": hop.loguniform(1e-5, 1e-3)}


def layers(sizes: list[int]) -> dict[str, Any]:
    return {
        **RATE,
        "optimizer": hop.choice(["adam", "adamw", "sgd"]),
        "width": hop.choice([128, 256, 512, 1024]),
        "depth": hop.choice([1, 2, 3]),
        "dropout": hop.uniform(0.0, 0.5),
        "batch_size": hop.choice(sizes),
    }


class Workload(NamedTuple):
    task: type[hop.TorchTask]
    kind: str
    rows: int
    batch_size: int
    space: dict[str, Any]
    partitions: int
    #: Epochs together and one at a time, and the number of configurations one at a time.
    epochs: int
    fewer: int
    some: int


WORKLOADS = {
    "mixed": Workload(Layers, "mlp", 32768, 256, layers([64, 128, 256]), 1, 8, 1, 32),
    "sizes": Workload(Layers, "mlp", 32768, 256, layers([32, 64, 128, 256, 512]), 1, 8, 1, 32),
    "mlp": Workload(Perceptron, "mlp", 262144, 256, RATE, 4, 20, 2, 2),
    "gpt": Workload(Cycle, "gpt", 8192, 16, RATE, 1, 5, 1, 2),
    "resnet": Workload(Momentum, "resnet", 4096, 32, RATE, 1, 6, 2, 2),
    "gpt2": Workload(HuggingFace, "gpt", 4096, 8, RATE, 1, 5, 1, 2),
    "bert": Workload(Classifier, "gpt", 4096, 16, RATE, 1, 5, 1, 2),
}


class Figures(NamedTuple):
    rate: float
    later: float
    gap: float
    start: float


def prepare(work: Workload, folder: Path) -> None:
    """Write the data of a workload."""
    hop.partition(data(work.kind, work.rows, 0), folder / "train", partitions=work.partitions)
    hop.partition(data(work.kind, work.rows // VALID, 1), folder / "valid", partitions=1)


def figures(
    work: Workload, mode: Any, trials: int, most: int, folder: Path, backend: str = "local", workers: Any = 1
) -> Figures:
    """Train in one mode, for a number of epochs at most; return samples per second, and seconds.

    One at a time, there is one worker.
    """
    alone = mode == "off"
    count, epochs = (min(work.some, trials), work.fewer) if alone else (trials, min(work.epochs, most))
    task = work.task()
    task.compile = mode == "compiled"
    experiment = hop.Experiment(
        task,
        train=folder / "train",
        valid=folder / "valid",
        space=work.space,
        search=hop.Random(trials=count, max_epochs=epochs),
        metric="loss",
        mode="min",
        batch_size=work.batch_size,
        name=f"run-{mode}",
        workers=1 if alone else workers,
        backend=backend,
        run_options=hop.RunOptions(policy="longest-remaining"),
        worker_options=hop.WorkerOptions(fuse="fast" if mode == "compiled" else mode),
    )
    called = time.time()
    results = experiment.fit(quiet=True)
    failed = [trial for trial in results.trials if trial.state.value != "completed"]
    assert not failed, f"{len(failed)} of {count} trials failed, the first: {failed[0].error}"
    lines = [line for log in results.folder.logs.glob("*.log") for line in log.read_text().splitlines()]
    for line in dict.fromkeys(line for line in lines if line.startswith("hopfleet:")):
        print(f"  {line}", flush=True)
    spans = sorted(results.history.spans, key=lambda span: span.started)
    # One at a time, the first unit, in which CUDA initialises, is left out.
    started = spans[0].ended if alone else spans[0].started
    samples = work.rows * count * epochs - (work.rows // work.partitions if alone else 0)
    shutil.rmtree(results.folder.path)
    ended = max(span.ended for span in spans)
    first = [span.ended for span in spans if span.epoch == 1]
    later = work.rows * count * (epochs - 1) / (ended - max(first)) if epochs > 1 and not alone else 0.0
    return Figures(samples / (ended - started), later, waited(spans), spans[0].started - called)


def waited(spans: Sequence[Span]) -> float:
    """Return how long the worker waits from unit to unit, in the median; if there are several partitions, in an epoch.

    The units of a flotilla begin at the same time.
    """
    units: dict[float, list[Span]] = {}
    for span in spans:
        units.setdefault(span.started, []).append(span)
    pairs = list(itertools.pairwise(sorted(units.items())))
    inside = [(one, other) for one, other in pairs if _next_partition(one[1][0], other[1][0])]
    gaps = [began - max(span.ended for span in some) for (_, some), (began, _) in inside or pairs]
    return statistics.median(gaps or [0.0])


def _next_partition(one: Span, other: Span) -> bool:
    """Whether a unit trains on another partition in the epoch of the unit before."""
    return one.work is other.work is Work.TRAIN and one.epoch == other.epoch


EPOCHS = 4
"""The epochs of a run with a number of steps."""


def compare(name: str, work: Workload, steps: int, turns: int, trials: int) -> None:
    """Train some steps with ``exact`` and ``fast`` in turns; print the seconds, and how much faster ``fast`` is."""
    found: dict[str, list[float]] = {"exact": [], "fast": []}
    rows = steps // EPOCHS // work.partitions * work.partitions * work.batch_size
    work = work._replace(rows=rows, epochs=EPOCHS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["HOPFLEET_HOME"] = str(folder / "home")
        prepare(work, folder)
        for turn in range(turns):
            for mode in list(found)[:: -1 if turn % 2 else 1]:
                rate = figures(work, mode, trials, EPOCHS, folder).rate
                found[mode].append(rows * trials * EPOCHS / rate)
    texts = [f"{mode} {', '.join(f'{one:.2f}' for one in some)} s" for mode, some in found.items()]
    least, usual = (of(found["exact"]) / of(found["fast"]) for of in (min, statistics.median))
    print(f"{name:13} {steps} steps: {'; '.join(texts)}; fast is {least:.2f} x, {usual:.2f} x exact", flush=True)


def main(workloads: Mapping[str, Workload] = WORKLOADS, text: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(workloads))
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1000, help="together, at most")
    parser.add_argument("--modes", nargs="*", default=["off", "exact", "fast"])
    parser.add_argument("--workers", type=int, default=1, help="that train together")
    parser.add_argument("--steps", type=int, help="compare exact and fast in runs of this many updates")
    parser.add_argument("--turns", type=int, default=2, help="runs with exact and fast each, for --steps")
    options = parser.parse_args()
    for name in options.names:
        work = workloads[name]
        if options.steps:
            compare(name, work, options.steps, options.turns, options.trials)
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            os.environ["HOPFLEET_HOME"] = str(folder / "home")
            prepare(work, folder)
            off = exact = 0.0
            for mode in options.modes:
                try:
                    found = figures(work, mode, options.trials, options.epochs, folder, workers=options.workers)
                except Exception as error:
                    print(f"{name:7} {mode:6} failed: {error!r}", flush=True)
                    continue
                off = found.rate if mode == "off" else off
                exact = found.rate if mode == "exact" else exact
                times = f"{found.rate / off:.2f} x off, later {found.later / off:.2f} x; " if off else ""
                times += f"{found.rate / exact:.2f} x exact; " if exact and mode == "fast" else ""
                print(
                    f"{name:7} {mode:6} {found.rate:12,.0f} samples/s, later {found.later:,.0f}; {times}"
                    f"{1e3 * found.gap:.1f} ms between units; starts after {found.start:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
