"""Adapters of other frameworks: a unit against a plain loop of each, stacks of JAX models, Trainers that are started.

All works of one comparison take turns in one process, after a first turn in which everything is compiled; the best time
of each counts. Each backend of Keras has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import lightning.pytorch as lightning
import numpy as np
import optax
import torch
import transformers
from sklearn.linear_model import SGDClassifier

import hopfleet as hop
from benchmarks.row import Row, milliseconds
from benchmarks.units import Repeated, measured, overhead_rows
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import Batch, EngineCache, Session

TRIALS = 16
BATCH = 64
STACK_BAR = 3.0
FIXED_BAR, SHARE_BAR = 10e-3, 0.05
"""A unit may take this many seconds, and this share of its time, longer than a plain loop."""


class Batches:
    """Rows in memory, as batches that are prepared for a session."""

    def __init__(self, session: Session, columns: Mapping[str, Any]) -> None:
        self.rows = len(columns["y"])
        starts = range(0, self.rows, BATCH)
        self._batches = [
            session.prepare({name: column[start : start + BATCH] for name, column in columns.items()}, {})
            for start in starts
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class Mlp(hop.JaxTask):
    """A small network for classes."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        first, second = jax.random.split(key)
        return {"a": jax.random.normal(first, (32, 64)) * 0.1, "b": jax.random.normal(second, (64, 10)) * 0.1}

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return optax.adam(config["lr"])

    def loss(self, params: Any, batch: Batch, key: Any) -> Any:
        logits = jax.nn.relu(batch["x"] @ params["a"]) @ params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


class Net(lightning.LightningModule):  # type: ignore[misc]
    """A network for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class LightningMlp(hop.LightningTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        return Net()


class Bert(hop.TransformersTask):
    """A small transformer for classes."""

    def build(self, config: Mapping[str, Any]) -> Any:
        shape = transformers.BertConfig(
            vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
        )
        return transformers.BertForSequenceClassification(shape)


class Linear(hop.SklearnTask):
    """A linear classifier for scikit-learn."""

    classes = range(10)

    def build(self, config: Mapping[str, Any]) -> Any:
        return SGDClassifier(random_state=0)


def data(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(rows, 32)).astype("float32"), "y": rng.integers(0, 10, rows)}


def timed(*works: Callable[[], object], repeats: int) -> list[float]:
    """Return the best time of each work; all are warmed up first and then take turns."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(repeats + 1):
        for work, spent in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            if number:
                spent.append(time.perf_counter() - began)
    return [min(spent) for spent in times]


def measure(quick: bool) -> list[Row]:
    rows, repeats = (512, 1) if quick else (16384, 7)
    seconds = 0.01 if quick else 1.0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return [
        _stacked(rows, repeats),
        _alone(rows, repeats),
        *_lightning(seconds, repeats),
        *_transformers(seconds, repeats),
        *_keras(seconds, repeats),
        _sklearn(rows, repeats),
    ]


def beyond(what: str, ours: float, bare: float) -> Row:
    """Return the row of a unit that took ``ours`` seconds, and a plain loop ``bare``."""
    return Row(
        "adapters",
        f"{what}: time beyond a plain loop",
        milliseconds(ours - bare),
        f"{milliseconds(ours)} against {milliseconds(bare)}",
        None,
        "≤ 10 ms + 5%",
        ours - bare <= FIXED_BAR + SHARE_BAR * bare,
    )


def _stacked(rows: int, repeats: int) -> Row:
    task, cache = Mlp(), EngineCache()
    alone, together = (
        [
            task.framework.open({"lr": 1e-3 * 1.1**n}, seed=n, placement=CPU, threads=2, cache=cache)
            for n in range(TRIALS)
        ]
        for _ in range(2)
    )
    batches = Batches(alone[0], data(rows))
    one, stack = timed(
        lambda: [session.train(batches, last=True) for session in alone],
        lambda: task.framework.flotilla(together, fast=True).train(batches, last=[True] * TRIALS),
        repeats=repeats,
    )
    return Row(
        "adapters",
        f"JAX, {TRIALS} MLPs 32-64-10, Adam, {rows} rows in batches of {BATCH}: stacked against one at a time",
        f"{one / stack:.1f}×",
        f"{milliseconds(stack)} against {milliseconds(one)}",
        None,
        f"≥ {STACK_BAR:.0f}×",
        one / stack >= STACK_BAR,
    )


def _alone(rows: int, repeats: int) -> Row:
    task = Mlp()
    session = task.framework.open({"lr": 1e-3}, seed=0, placement=CPU, threads=2)
    batches = Batches(session, data(rows))
    optimizer = optax.adam(1e-3)
    params = task.init({}, jax.random.key(0))
    state = optimizer.init(params)

    def step(params: Any, state: Any, batch: Batch) -> Any:
        loss, gradients = jax.value_and_grad(task.loss)(params, batch, None)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    compiled = jax.jit(step)

    def loop() -> None:
        nonlocal params, state
        losses = []
        for batch in batches:
            params, state, loss = compiled(params, state, batch)
            losses.append(loss)
        [float(loss) for loss in losses]

    bare, ours = timed(loop, lambda: session.train(batches, last=True), repeats=repeats)
    return beyond(f"a unit of {len(batches)} batches of a JAX model", ours, bare)


def _lightning(seconds: float, repeats: int) -> list[Row]:
    session = LightningMlp().framework.open({}, seed=0, placement=CPU, threads=1)
    plain, module = Net(), Net()
    optimizer = plain.configure_optimizers()

    def loop(batches: Repeated) -> None:
        for batch in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(plain.net(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def ours(batches: Repeated) -> None:
        session.train(batches, last=True)

    def trainer(batches: Repeated) -> None:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        made = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
        made.fit(module, _loader([(batch["x"], batch["y"]) for batch in batches]))

    times = measured(session, 256, [loop, ours, trainer], seconds=seconds, repeats=repeats)
    started = "a Trainer of Lightning that is started for the unit"
    return [
        *overhead_rows("a unit of a LightningModule", "a plain loop", times),
        *overhead_rows(started, "a plain loop", times, 2, bars=False),
    ]


def _transformers(seconds: float, repeats: int) -> list[Row]:
    task = Bert()
    session = task.framework.open({}, seed=0, placement=CPU, threads=1)
    plain, other = task.build({}).train(), task.build({})
    optimizer = torch.optim.AdamW(plain.parameters(), lr=5e-5, weight_decay=0.0)

    def loop(batches: Repeated) -> None:
        for batch in batches:
            optimizer.zero_grad()
            plain(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()

    def ours(batches: Repeated) -> None:
        session.train(batches, last=True)

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return _loader(self.train_dataset)

    def trainer(batches: Repeated) -> None:
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder, max_steps=len(batches), use_cpu=True, optim="adamw_torch", **quiet
            )
            Trainer(other, arguments, train_dataset=list(batches)).train()

    rng = np.random.default_rng(0)
    columns = {"input_ids": rng.integers(0, 512, (32, 32)), "labels": rng.integers(0, 2, 32)}
    times = measured(session, 32, [loop, ours, trainer], seconds=seconds, repeats=repeats, columns=columns)
    started = "a Trainer of Transformers that is started for the unit"
    return [
        *overhead_rows("a unit of a transformer", "a plain loop", times),
        *overhead_rows(started, "a plain loop", times, 2, bars=False),
    ]


def _loader(batches: Any) -> Any:
    """Return a loader of batches that are ready."""
    return torch.utils.data.DataLoader(batches, batch_size=None)


def _keras(seconds: float, repeats: int) -> list[Row]:
    found: list[Row] = []
    for backend in ("torch", "tensorflow", "jax"):
        command = [sys.executable, "-m", "benchmarks.keras_units", str(seconds), str(repeats)]
        done = subprocess.run(
            command, env={**os.environ, "KERAS_BACKEND": backend}, stdout=subprocess.PIPE, text=True, check=True
        )
        times = json.loads(done.stdout.splitlines()[-1])
        found += overhead_rows(f"a unit of a Keras model on {backend}", "model.fit", times)
        found += overhead_rows(f"train_on_batch on {backend}", "model.fit", times, 2, bars=False)
    return found


def _sklearn(rows: int, repeats: int) -> Row:
    task = Linear()
    session = task.framework.open({}, seed=0, placement=CPU, threads=1)
    batches, model = Batches(session, data(rows)), task.build({})

    def loop() -> None:
        for batch in batches:
            model.partial_fit(batch["x"], batch["y"], classes=np.arange(10))

    bare, ours = timed(loop, lambda: session.train(batches, last=True), repeats=repeats)
    return beyond(f"a unit of {len(batches)} batches of an SGDClassifier", ours, bare)
