"""Adapters of other frameworks: a unit against a plain loop of each, stacks of JAX models, Lightning with a Trainer.

All works of one comparison take turns in one process, after a first turn in which everything is compiled; the best time
of each counts. Keras runs on PyTorch.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import jax
import keras
import lightning.pytorch as lightning
import numpy as np
import optax
import torch
import transformers
from sklearn.linear_model import SGDClassifier

import hopfleet as hop
from benchmarks.row import Row, milliseconds
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
        self.rows = len(next(iter(columns.values())))
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
    """A network for classes."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        first, second = jax.random.split(key)
        inputs, width = config.get("inputs", 32), config.get("width", 64)
        return {"a": jax.random.normal(first, (inputs, width)) * 0.1, "b": jax.random.normal(second, (width, 10)) * 0.1}

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return optax.adam(config["lr"])

    def loss(self, params: Any, batch: Batch, key: Any) -> Any:
        logits = jax.nn.relu(batch["x"] @ params["a"]) @ params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


class Net(lightning.LightningModule):  # type: ignore[misc]
    """The same network for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class LightningMlp(hop.LightningTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        return Net()


class KerasMlp(hop.KerasTask):
    """The same network for Keras."""

    def build(self, config: Mapping[str, Any]) -> Any:
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((32,)), dense(64, activation="relu"), dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
        return model


class Bert(hop.TransformersTask):
    """A small classifier of Transformers."""

    def build(self, config: Mapping[str, Any]) -> Any:
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(
                vocab_size=64,
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=128,
                num_labels=10,
            )
        )


class Linear(hop.SklearnTask):
    """A linear classifier for scikit-learn."""

    classes = range(10)

    def build(self, config: Mapping[str, Any]) -> Any:
        return SGDClassifier(random_state=0)


def data(rows: int, inputs: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(rows, inputs)).astype("float32"), "y": rng.integers(0, 10, rows)}


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
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return [
        _stacked(rows, repeats),
        _alone(rows, repeats, inputs=32, width=64),
        _alone(rows * 4, repeats, inputs=784, width=128),
        *_lightning(rows // 8, repeats),
        *_lightning(rows * 2, repeats),
        _transformers(rows // 8, repeats),
        _keras(rows // 4, repeats),
        _sklearn(rows, repeats),
    ]


def beyond(what: str, ours: float, bare: float, loop: str = "a plain loop") -> Row:
    """Return the row of a unit that took ``ours`` seconds, and another ``loop`` ``bare`` seconds."""
    return Row(
        "adapters",
        f"{what}: time beyond {loop}",
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


def _alone(rows: int, repeats: int, **shape: int) -> Row:
    task = Mlp()
    session = task.framework.open({"lr": 1e-3, **shape}, seed=0, placement=CPU, threads=2)
    batches = Batches(session, data(rows, shape["inputs"]))
    optimizer = optax.adam(1e-3)
    params = task.init(shape, jax.random.key(0))
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
    layers = f"{shape['inputs']}-{shape['width']}-10"
    return beyond(f"a unit of {len(batches)} batches of a JAX model {layers}", ours, bare)


def _lightning(rows: int, repeats: int) -> list[Row]:
    columns = data(rows)
    session = LightningMlp().framework.open({}, seed=0, placement=CPU, threads=1)
    batches = Batches(session, columns)
    plain, module = Net(), Net()
    optimizer = plain.configure_optimizers()
    pairs: Any = [(batch["x"], batch["y"]) for batch in batches]

    def loop() -> None:
        for x, y in pairs:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(plain.net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def trainer() -> None:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        made = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
        made.fit(module, torch.utils.data.DataLoader(pairs, batch_size=None))

    bare, ours, theirs = timed(loop, lambda: session.train(batches, last=True), trainer, repeats=repeats)
    unit = f"a unit of {len(pairs)} batches of a LightningModule"
    # The loop by hand calls no hooks and logs nothing; Lightning's own loop is that of its Trainer.
    by_hand = beyond(unit, ours, bare, "a loop by hand without logging")
    return [beyond(unit, ours, theirs, "a Trainer that is started for it"), replace(by_hand, bar="", ok=None)]


def _transformers(rows: int, repeats: int) -> Row:
    rng = np.random.default_rng(0)
    columns = {"input_ids": rng.integers(1, 64, (rows, 16)), "labels": rng.integers(0, 10, rows)}
    task = Bert()
    session = task.framework.open({"learning_rate": 1e-3}, seed=0, placement=CPU, threads=1)
    batches, model = Batches(session, columns), task.build({}).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    def loop() -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    bare, ours = timed(loop, lambda: session.train(batches, last=True), repeats=repeats)
    return beyond(f"a unit of {len(batches)} batches of a BertForSequenceClassification", ours, bare)


def _keras(rows: int, repeats: int) -> Row:
    task = KerasMlp()
    session = task.framework.open({}, seed=0, placement=CPU, threads=1)
    batches, model = Batches(session, data(rows)), task.build({})

    def loop() -> None:
        for batch in batches:
            model.train_on_batch(batch["x"], batch["y"], return_dict=True)

    bare, ours = timed(loop, lambda: session.train(batches, last=True), repeats=repeats)
    return beyond(f"a unit of {len(batches)} batches of a Keras model", ours, bare)


def _sklearn(rows: int, repeats: int) -> Row:
    task = Linear()
    session = task.framework.open({}, seed=0, placement=CPU, threads=1)
    batches, model = Batches(session, data(rows)), task.build({})

    def loop() -> None:
        for batch in batches:
            model.partial_fit(batch["x"], batch["y"], classes=np.arange(10))

    bare, ours = timed(loop, lambda: session.train(batches, last=True), repeats=repeats)
    return beyond(f"a unit of {len(batches)} batches of an SGDClassifier", ours, bare)
