"""On a GPU: 32 configurations, one at a time and together, end to end.

    python -m benchmarks.flotilla.device [mlp gpt resnet] [--epochs N] [--modes off exact fast]

Data, evaluation and checkpoints are included; start-up is told beside. Every mode runs the same trials on the same
data. Models that are the same as in the first mode are counted; visit orders are fixed for that with --fixed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hopfleet as hop

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
    x = rng.standard_normal((rows, 3, 32, 32), np.float32)
    return {"x": x, "y": rng.integers(0, 10, rows)}


#: Task, rows of training data, batch size.
WORKLOADS: dict[str, tuple[type[hop.TorchTask], int, int]] = {
    "mlp": (Perceptron, 65536, 256),
    "gpt": (Letters, 4096, 16),
    "resnet": (Pictures, 4096, 32),
}


def run(name: str, fuse: str, epochs: int, trials: int, order: str, folder: Path) -> tuple[float, float, list[bytes]]:
    """Seconds from the first unit to the last, seconds of fit() in all, and the models."""
    task, _, batch_size = WORKLOADS[name]
    began = time.perf_counter()
    experiment = hop.Experiment(
        task(),
        train=folder / "train",
        valid=folder / "valid",
        space={"lr": hop.loguniform(1e-5, 1e-3)},
        search=hop.Random(trials=trials, max_epochs=epochs),
        metric="loss",
        mode="min",
        batch_size=batch_size,
        name=f"{name}-{fuse}",
        fuse=fuse,
        workers=1,
        order=order,
        policy="longest-remaining",
    )
    results = experiment.fit(quiet=True)
    took = time.perf_counter() - began
    spans = results.history.spans
    busy = max(span.ended for span in spans) - min(span.started for span in spans)
    failed = [trial for trial in results.trials if trial.state.value != "completed"]
    assert not failed, failed[0].error
    return busy, took, [trial.last_checkpoint.read_bytes() for trial in results.trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--modes", nargs="*", default=["off", "exact", "fast"])
    parser.add_argument("--fixed", action="store_true")
    options = parser.parse_args()
    order = "fixed" if options.fixed else "open"
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            os.environ["HOPFLEET_HOME"] = str(folder / "home")
            rows = WORKLOADS[name][1]
            hop.partition(data(name, rows, 0), folder / "train", partitions=4)
            hop.partition(data(name, rows // 16, 1), folder / "valid", partitions=1)
            samples = rows * options.epochs * options.trials
            first: tuple[float, list[bytes]] | None = None
            for fuse in options.modes:
                busy, took, models = run(name, fuse, options.epochs, options.trials, order, folder)
                first = first or (busy, models)
                same = sum(a == b for a, b in zip(models, first[1], strict=True))
                print(
                    f"{name} {fuse:6} {busy:7.2f} s training ({took:.1f} s in all), {samples / busy:12,.0f} samples/s, "
                    f"{first[0] / busy:5.1f} times; {same} of {len(models)} models the same",
                    flush=True,
                )


if __name__ == "__main__":
    main()
