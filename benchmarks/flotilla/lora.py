"""On a GPU: 16 LoRA configurations of one frozen language model, against a plain loop that trains them one at a time.

    python -m benchmarks.flotilla.lora [1x512 8x128 4x512] [--modes exact fast] [--steps 40] [--small]

The model has the shape of a Llama with 0.9 billion parameters, random weights in bfloat16, and adapters of ranks 4, 8,
16 and 32, each with four learning rates, on the four projections of the attention. A workload names the rows and tokens
of a batch. The modes run through Experiment, on one worker with two partitions, with evaluation and checkpoints after
each epoch; the plain loop trains one configuration, from warm, and saves nothing. Reported are tokens per second (of
epochs after the first, in which steps are captured), device memory, and bytes of the run folder and of a hop.
``--small`` tries everything out on a tiny model, on any device; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import hopfleet as hop
from hopfleet.domain.messages import UnitFinished, VersionSaved
from hopfleet.store.journal import Journal

# Workers take this setting over: to fill all new memory would cost more than to compute with it.
torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

RANKS, RATES = (4, 8, 16, 32), (1e-5, 3e-5, 1e-4, 3e-4)


class Shape(NamedTuple):
    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int


SHAPES = {"large": Shape(32000, 2048, 16, 16, 5632), "small": Shape(64, 64, 2, 2, 96)}


class Lora(nn.Module):
    def __init__(self, inside: int, outside: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside, bias=False)
        self.down, self.up = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.up(self.down(x))
        return found


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of features by angles that grow with the position."""
    first, second = x.chunk(2, -1)
    cosine, sine = angles.unbind()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class Block(nn.Module):
    def __init__(self, shape: Shape, rank: int) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before, self.after = nn.RMSNorm(shape.width, eps=1e-5), nn.RMSNorm(shape.width, eps=1e-5)
        self.query, self.key, self.value, self.join = (Lora(shape.width, shape.width, rank) for _ in range(4))
        self.gate, self.rise = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.fall = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape

        def split(projection: nn.Module) -> torch.Tensor:
            parts: torch.Tensor = projection(seen).view(rows, tokens, self.heads, width // self.heads)
            return parts.transpose(1, 2)

        seen = self.before(x)
        query, key, value = (split(each) for each in (self.query, self.key, self.value))
        query, key = rotated(query, angles), rotated(key, angles)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(found.transpose(1, 2).reshape(rows, tokens, width))
        seen = self.after(x)
        changed: torch.Tensor = x + self.fall(nn.functional.silu(self.gate(seen)) * self.rise(seen))
        return changed


class Llama(nn.Module):
    def __init__(self, shape: Shape, rank: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, rank) for _ in range(shape.layers))
        self.pairs = shape.width // shape.heads // 2
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        rates = 10000.0 ** (-torch.arange(self.pairs, device=tokens.device) / self.pairs)
        angles = places[:, None] * rates
        turns = torch.stack([angles.cos(), angles.sin()]).to(x.dtype)
        for block in self.blocks:
            x = block(x, turns)
        found: torch.Tensor = self.head(self.norm(x))
        return found


def noise() -> torch.Tensor:
    """A million random numbers, from which all frozen weights are made: drawing 0.9 billion takes a while."""
    return torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()


class Adapters(hop.TorchTask):
    # Attention has a backward pass that differs from run to run, unless it is told not to.
    deterministic = True

    def build(self, config: Mapping[str, Any]) -> Any:
        with torch.device("meta"):
            model = Llama(SHAPES[config["shape"]], config["rank"]).bfloat16()
        model.to_empty(device="cpu")
        numbers = noise()
        for number, (name, weight) in enumerate(model.named_parameters()):
            weight.requires_grad_(".down." in name or ".up." in name)
            with torch.no_grad():
                if ".up." in name:
                    weight.zero_()
                elif ".down." in name:
                    weight.normal_(std=0.02)
                elif weight.ndim == 1:
                    weight.fill_(1.0)
                else:
                    rolled = numbers.roll(number)
                    for piece in torch.split(weight.view(-1), len(numbers)):
                        piece.copy_(rolled[: len(piece)])
        adapter = [weight for weight in model.parameters() if weight.requires_grad]
        return model, torch.optim.AdamW(adapter, lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        found = model(batch["x"][:, :-1])
        return nn.functional.cross_entropy(found.flatten(0, 1).float(), batch["x"][:, 1:].flatten())


def data(rows: int, tokens: int, vocabulary: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).integers(0, vocabulary, (rows, tokens + 1))}


def used() -> int:
    """Return the memory in use on the device, by all processes, in bytes."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Provide a function that returns the peak of memory in use since the beginning, less that of the beginning."""
    idle, peak, over = used(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], used() - idle)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield lambda: peak[0]
    over.set()
    thread.join()


def plain(shape: str, rows: int, tokens: int, steps: int, device: str) -> float:
    """Train one configuration in a plain loop; return tokens per second."""
    task = Adapters()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    model, optimizer = task.build({"shape": shape, "rank": 16, "lr": 1e-4})
    model.to(device)
    whole = torch.from_numpy(data(rows * (steps + 10), tokens, SHAPES[shape].vocabulary)["x"]).to(device)
    began = 0.0
    for number, x in enumerate(torch.split(whole, rows)):
        if number == 10:
            _wait(device)
            began = time.perf_counter()
        loss = task.loss(model, {"x": x})
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    _wait(device)
    return rows * tokens * steps / (time.perf_counter() - began)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def experiment(shape: str, rows: int, tokens: int, steps: int, mode: Any, device: str) -> dict[str, float]:
    """Train all configurations in one mode; return the figures."""
    home = Path(tempfile.mkdtemp())
    os.environ["HOPFLEET_HOME"] = str(home)
    results = hop.Experiment(
        Adapters(),
        train=data(rows * steps, tokens, SHAPES[shape].vocabulary),
        valid=data(rows, tokens, SHAPES[shape].vocabulary),
        space={"rank": hop.grid_search(list(RANKS)), "lr": hop.grid_search(list(RATES)), "shape": shape},
        search=hop.Grid(max_epochs=3),
        metric="loss",
        name="lora",
        partitions=2,
        batch_size=rows,
        workers=1,
        worker_options=hop.WorkerOptions(fuse=mode, device=device),
    ).fit(quiet=True)
    assert all(trial.state is hop.TrialState.COMPLETED for trial in results.trials)
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        messages = [message for _, _, message in journal.read()]
    units = [one for one in messages if isinstance(one, UnitFinished) and one.unit.trains and one.unit.epoch > 1]
    later = [one for one in messages if isinstance(one, UnitFinished) and one.unit.epoch > 1]
    seconds = max(one.ended for one in later) - min(one.started for one in later)
    found = {
        "tokens/s": len(units) * rows * tokens * (steps // 2) / seconds,
        "folder": sum(path.stat().st_size for path in results.folder.path.rglob("*") if path.is_file()),
        "shared": sum(path.stat().st_size for path in results.folder.shared.iterdir()),
        "version": max(one.size for one in messages if isinstance(one, VersionSaved)),
        # Each trial keeps its adapter and the state of its optimizer on the device, which is what a version holds.
        "adapters": sum({one.ref.trial: one.size for one in messages if isinstance(one, VersionSaved)}.values()),
    }
    for line in sorted({line for path in results.folder.logs.glob("*.log") for line in path.read_text().splitlines()}):
        print("   log:", line)
    shutil.rmtree(home)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=["1x512", "8x128", "4x512"])
    parser.add_argument("--modes", nargs="*", default=["exact", "fast"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    shape, device = ("small" if options.small else "large"), ("cuda" if torch.cuda.is_available() else "cpu")
    for workload in options.workloads:
        rows, tokens = map(int, workload.split("x"))
        with watched() as peak, multiprocessing.get_context("spawn").Pool(1) as pool:
            alone = pool.apply(plain, (shape, rows, tokens, options.steps, device))
            memory = peak()
        print(f"{workload}: plain loop {alone:,.0f} tokens/s, {memory / 1e9:.2f} GB", flush=True)
        for mode in options.modes:
            began = time.perf_counter()
            with watched() as peak:
                found = experiment(shape, rows, tokens, options.steps, mode, device)
                taken = peak()
            rate, megabytes = found["tokens/s"], {name: found[name] / 1e6 for name in ("folder", "shared", "version")}
            print(
                f"   {mode}: {rate:,.0f} tokens/s, {rate / alone:.2f} times the plain loop; "
                f"{taken / 1e9:.2f} GB, {taken / (memory or 1):.2f} times, "
                f"{(taken - found['adapters']) / (memory or 1):.2f} times without the adapters; "
                f"run folder {megabytes['folder']:,.1f} MB ({megabytes['shared']:,.1f} shared); "
                f"at most {megabytes['version']:.2f} MB a hop; {time.perf_counter() - began:.0f} s in all",
                flush=True,
            )


if __name__ == "__main__":
    main()
