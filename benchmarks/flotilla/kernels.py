"""On a GPU: what each kernel and each rule of stacked models brings to ordinary tasks.

    python -m benchmarks.flotilla.kernels [gpt gpt2 bert mlp mixed tabular vit] [--trials 12] [--repeat 2] [--parts ...]

Each row trains the same configurations with ``fast``, with one kernel or rule left out. Figures are samples per second
after the first epoch, and how many times as fast the whole is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.flotilla import unseen
from benchmarks.flotilla.ordinary import WORKLOADS as ORDINARY
from benchmarks.flotilla.ordinary import figures, prepare
from benchmarks.flotilla.padding import stacked_at_once
from hopfleet.frameworks.torch.engines.stacked import (
    attention,
    dropout,
    gradients,
    linear,
    norm_kernel,
    operations,
    products,
    stack,
)

WORKLOADS = {**unseen.WORKLOADS, **ORDINARY}

FUNCTION = partial(mock.patch.object, new=lambda *_, **__: None)
"""Replace a function by one that finds no kernel."""


def rules(of: str, *functions: object) -> Callable[[], Any]:
    """Leave out the rules of a table for some functions of torch."""
    table = {name: rule for name, rule in getattr(operations, of).items() if name not in functions}
    return lambda: mock.patch.object(operations, of, table)


def attention_of_torch() -> Any:
    changed = {**operations.KERNELS, functional.scaled_dot_product_attention: attention.attend}
    return mock.patch.object(operations, "KERNELS", changed)


@contextmanager
def norms_of_torch() -> Iterator[None]:
    with FUNCTION(norm_kernel, "layer_norm"), rules("FOLDED", functional.layer_norm)():
        yield


def never_deferred() -> Any:
    whole = operations.StackedOperations
    return mock.patch.object(gradients, "StackedOperations", lambda kernels, certain, _: whole(kernels, certain, False))


PARTS: dict[str, Callable[[], Any]] = {
    "attention kernel": attention_of_torch,
    "linear kernel": lambda: FUNCTION(linear, "kernels"),
    "waiting for what follows": never_deferred,
    "norm kernel": lambda: FUNCTION(norm_kernel, "layer_norm"),
    "norm kernel and rule": norms_of_torch,
    "unbinding in place": rules("KERNELS", torch.unbind, torch.Tensor.unbind),
    "turned weights": lambda: FUNCTION(products, "turn"),
    "dropout kernel": lambda: FUNCTION(dropout, "kernel"),
    "Adam kernel": lambda: FUNCTION(stack, "adam_kernel"),
    "rule of cross entropy": rules("FOLDED", functional.cross_entropy),
    "rule of embeddings": rules("FOLDED", functional.embedding),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["gpt", "gpt2", "bert", "mlp"])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), help="kernels and rules to leave out, one at a time")
    parser.add_argument("--repeat", type=int, default=2, help="runs of the whole, before the others")
    options = parser.parse_args()
    for name in options.names:
        with tempfile.TemporaryDirectory() as place, stacked_at_once():
            folder = Path(place)
            os.environ["HOPFLEET_HOME"] = str(folder / "home")
            prepare(WORKLOADS[name], folder)

            def rate(workload: str = name, where: Path = folder) -> float:
                return figures(WORKLOADS[workload], "fast", options.trials, options.epochs, where, "inline").later

            whole = [rate() for _ in range(options.repeat)]
            print(f"{name:6} {'everything':26} " + ", ".join(f"{one:,.0f}" for one in whole), flush=True)
            for part in options.parts:
                with PARTS[part]():
                    found = rate()
                print(f"{name:6} {part:26} {found:12,.0f}  {max(whole) / found:.2f} x", flush=True)


if __name__ == "__main__":
    main()
