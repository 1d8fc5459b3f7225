"""Mistakes in a task: ``build``, ``loss``, ``metrics``, ``train`` and the options of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import CrossEntropyLoss, Linear
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import hopfleet as hop
from hopfleet.errors import TaskError, UsageError
from tests.helpers.mistakes import Mistake, Right, TrialFailed, Warned, fit, rows, shown, task

WIDTH = {"lr": 0.1, "net": {"width": 8}, "width": 8}


def fails(mistake: str, mine: Any, *says: str, **changes: Any) -> Mistake:
    """A task whose trial fails."""
    return Mistake(mistake, lambda: fit(mine, **changes), TrialFailed, says)


def build(mistake: str, function: Any, *says: str, **changes: Any) -> Mistake:
    return fails(mistake, task(build=function), *says, **changes)


def loss(mistake: str, function: Any, *says: str, **changes: Any) -> Mistake:
    return fails(mistake, task(loss=function), *says, **changes)


def metrics(mistake: str, value: Any, *says: str) -> Mistake:
    """``metrics`` that return a value, or what a function makes of model and batch."""

    def hook(self: Any, model: Any, batch: Any) -> Any:
        return value(model, batch) if callable(value) else value

    return fails(mistake, task(metrics=hook), *says)


def data(mistake: str, x: Any, y: Any, *says: str) -> Mistake:
    """Columns that model or loss cannot work with."""
    return fails(mistake, Right(), *says, train={"x": x, "y": y}, valid=None)


def option(name: str, value: Any, *says: str) -> Mistake:
    return fails(f"{name}={value!r}", task(**{name: value}), f"{name}={value!r}", *says)


def model_and_optimizer() -> tuple[Any, Any]:
    model = Linear(4, 2)
    return model, SGD(model.parameters(), lr=0.1)


def plateau(self: Any, config: Any) -> Any:
    model, optimizer = model_and_optimizer()
    return model, optimizer, ReduceLROnPlateau(optimizer, mode="max")


def swapped(self: Any, config: Any) -> Any:
    model, optimizer = model_and_optimizer()
    return optimizer, model


def changed(self: Any, config: Any) -> Any:
    config["lr"] *= 10
    return model_and_optimizer()


def updated(self: Any, config: Any) -> Any:
    config["net"].update(width=9)
    return model_and_optimizer()


def unpacked(self: Any, model: Any, batch: Any) -> Any:
    x, y = batch
    return F.cross_entropy(model(x), y)


def unpacked_and_moved(self: Any, model: Any, batch: Any) -> Any:
    x, _ = batch
    return model(x.to("cpu"))


def own_loop(self: Any, model: Any, batches: Any, config: Any) -> None:
    for batch in batches:
        model(batch["image"])


def transform(self: Any, batch: Any, rng: Any) -> Any:
    return {"x": batch["image"]}


def normed(self: Any, config: Any) -> Any:
    model = torch.nn.Sequential(Linear(4, 2), torch.nn.BatchNorm1d(2))
    return model, SGD(model.parameters(), lr=0.1)


def exploding(self: Any, model: Any, batch: Any) -> Any:
    return model(batch["x"]).exp().exp().mean()


def keeping(self: Any, config: Any) -> Any:
    model, self.optimizer = model_and_optimizer()
    return model, self.optimizer


def updating(self: Any, model: Any, batch: Any) -> Any:
    self.optimizer.step()
    return cross_entropy(model, batch)


def recurrent(self: Any, config: Any) -> Any:
    model, self.state = torch.nn.GRUCell(4, 2), None
    return model, SGD(model.parameters(), lr=0.1)


def remembering(self: Any, model: Any, batch: Any) -> Any:
    self.state = model(batch["x"], self.state)
    return self.state.mean()


def frozen(self: Any, config: Any) -> Any:
    model, optimizer = model_and_optimizer()
    return model.requires_grad_(False), optimizer


def cross_entropy(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch["x"]), batch["y"])


NAN, FLOATS, LABELS = np.full((16, 4), np.nan, "float32"), rows()["x"], rows()["y"]

MISTAKES = [
    # build
    build("build returns nothing", lambda self, config: None, "returned None", "return model, optimizer"),
    build("build returns a class", lambda self, config: Linear, "the class Linear", "Linear(...)", "model, optimizer"),
    build("build returns a dict", lambda self, config: {"model": 1}, "type dict", "return model, optimizer"),
    build("build returns the optimizer first", swapped, "(SGD, Linear)", "return model, optimizer"),
    build(
        "build returns an optimizer's class", lambda self, config: (Linear(4, 2), Adam), "the class Adam", "Adam(...)"
    ),
    build(
        "build returns an optimizer's name", lambda self, config: (Linear(4, 2), "adam"), "str", "expected an optimizer"
    ),
    build(
        "build returns the loss, too",
        lambda self, config: (*model_and_optimizer(), CrossEntropyLoss()),
        *("CrossEntropyLoss", "expected an optimizer, an lr_scheduler"),
    ),
    build("build returns no optimizer", lambda self, config: Linear(4, 2), "no optimizer", "return model, optimizer"),
    build(
        "a schedule of another optimizer",
        lambda self, config: (*model_and_optimizer(), StepLR(model_and_optimizer()[1], 1)),
        *("a StepLR of another optimizer", "an optimizer that build() returns too"),
    ),
    build(
        "a schedule without its optimizer",
        lambda self, config: (model_and_optimizer()[0], StepLR(model_and_optimizer()[1], 1)),
        *("a StepLR of another optimizer", "an optimizer that build() returns too"),
    ),
    build(
        "a plateau in the wrong direction",
        plateau,
        *("ReduceLROnPlateau(mode='max')", "better if it is smaller", "mode='min'"),
    ),
    build(
        "an optimizer of another model",
        lambda self, config: (Linear(4, 2), model_and_optimizer()[1]),
        *("optimizer with parameters that are not the model's own",),
    ),
    build("build without config", lambda self: Linear(4, 2), "2 were given", "Hopfleet calls build(self, config)"),
    build("an attribute of the configuration", lambda self, config: config.lr, "config.lr", "write config['lr']"),
    build("a misspelt key", lambda self, config: config["widht"], "no 'widht'", "did you mean 'width'?", space=WIDTH),
    build(
        "a misspelt nested key",
        lambda self, config: config["net"]["widht"],
        *("config['net'] has no 'widht'", "did you mean 'width'?"),
        space=WIDTH,
    ),
    build("another name for a key", lambda self, config: config["learning_rate"], "no 'learning_rate'", "it has lr"),
    build(
        "a changed configuration", changed, "config['lr'] from 0.1 to 1.0", "tables show 0.1", "a variable of its own"
    ),
    build("a changed nested configuration", updated, "config['net.width'] from 8 to 9", "hop.sample_from", space=WIDTH),
    build("a model on the GPU", lambda self, config: Linear(4, 2).cuda(), "CUDA", "leave the device to Hopfleet"),
    fails("a learning rate as text", None, "'str' and 'float'", "config: lr='0.1'", space={"lr": "0.1"}),
    fails("a negative learning rate", None, "learning rate: -1.0", "config: lr=-1.0", space={"lr": -1.0}),
    build(
        "a float as a width",
        lambda self, config: Linear(4, config["width"]),
        *("float", "width=8.5"),
        space={"lr": 1, "width": 8.5},
    ),
    fails("no build", type("Mine", (hop.TorchTask,), {})(), "Mine", "override build(self, config)"),
    # batches
    loss("unpacking a batch", unpacked, "not str", "x, y = batch", "write batch['x'] and batch['y']"),
    loss("unpacking a batch and moving it", unpacked_and_moved, "'str' object", "write batch['x'] and batch['y']"),
    loss("a batch by position", lambda self, model, batch: model(batch[0]), "KeyError: 0", "the batch has x, y"),
    loss("an attribute of a batch", lambda self, model, batch: model(batch.x), "'dict' object", "write batch['x']"),
    loss("a column that is missing", lambda self, model, batch: model(batch["image"]), "'image'", "the batch has x, y"),
    loss("a misspelt column", lambda self, model, batch: model(batch["X"]), "'X'", "did you mean 'x'?"),
    loss(
        "a whole batch for the model", lambda self, model, batch: model(batch), "not dict", "pass columns: batch['x']"
    ),
    fails("a missing column in a loop", task(train=own_loop), "'image'", "the batch has x, y"),
    fails("a missing column in transform", task(transform=transform), "'image'", "the batch has x, y"),
    # loss
    loss("no loss", lambda self, model, batch: None, "loss() returned None", "return statement"),
    loss(
        "a loss with item()", lambda self, model, batch: cross_entropy(model, batch).item(), "float", "without .item()"
    ),
    loss("a loss for each row", lambda self, model, batch: model(batch["x"]).mean(1), "shape (8,)", "average it"),
    loss("a detached loss", lambda self, model, batch: cross_entropy(model, batch).detach(), "without .detach()"),
    loss("an accuracy as the loss", lambda self, model, batch: model(batch["x"]).argmax(1).float().mean(), "argmax"),
    loss("a loss in a dict", lambda self, model, batch: {"loss": 1}, "returned a dict", "return the loss alone"),
    loss("a loss and outputs", lambda self, model, batch: (1, 2), "returned a tuple", "return the loss alone"),
    loss(
        "a loss module that is not made",
        lambda self, model, batch: CrossEntropyLoss(model(batch["x"]), batch["y"]),
        "CrossEntropyLoss()(outputs, labels)",
    ),
    loss("batch and model swapped", lambda self, batch, model: model(batch["x"]), "subscriptable", "the model first"),
    loss("Lightning's arguments", lambda self, model, x, y: None, "'y'", "Hopfleet calls loss(self, model, batch)"),
    fails(
        "a hidden state that is kept from batch to batch",
        task(build=recurrent, loss=remembering),
        *("a second time", "kept from an earlier batch needs .detach()"),
    ),
    build("a frozen model", frozen, "without gradient", "parameters of the model that require gradients"),
    build(
        "an optimizer of no parameters",
        lambda self, config: (Linear(4, 2), SGD([], lr=0.1)),
        "empty parameter list",
        "config: lr=0.1",
    ),
    loss("a misspelt attribute of the task", lambda self, model, batch: self.cfg["lr"], "no attribute 'cfg'"),
    loss(
        "a backward pass in the loss",
        lambda self, model, batch: (one := cross_entropy(model, batch), one.backward())[0],
        "Hopfleet calls backward()",
    ),
    fails(
        "an update in the loss",
        task(build=keeping, loss=updating),
        *(
            "loss() called SGD.step()",
            "Hopfleet calls backward() and step()",
            "override train(self, model, batches, config)",
        ),
    ),
    loss(
        "a shape that does not fit",
        lambda self, model, batch: model(batch["x"][:, :3]),
        "8x3 and 4x2",
        "x float32 (8, 4)",
        "epoch 1, partition 0",
    ),
    fails(
        "no loss method",
        type("Mine", (Right,), {"loss": hop.TorchTask.loss})(),
        "Mine",
        "override loss(self, model, batch)",
    ),
    # data that does not fit
    data("rows of doubles", np.zeros((16, 4)), LABELS, "dtype", "batch['x'].float()", "x float64 (8, 4)"),
    data("images of bytes", np.zeros((16, 4), "uint8"), LABELS, "dtype", "batch['x'].float()", "x uint8 (8, 4)"),
    data("labels as floats", FLOATS, np.zeros(16), "Long", "batch['y'].long()", "y float64 (8,)"),
    data("labels as text", FLOATS, np.array(["cat"] * 16), "not list", "a column of text", "y list of 8"),
    data("labels that are too large", FLOATS, np.full(16, 5), "Target 5", "less than the number of outputs"),
    data("missing values", NAN, LABELS, "the loss is nan in batch 1 of 2", "column 'x'", "NaN", "clean the data"),
    fails(
        "a last batch of one row", task(build=normed), "drop_last=True", "x float32 (1, 4)", train=rows(17), valid=None
    ),
    fails(
        "a loss that explodes",
        task(loss=exploding, clip_norm=1e9),
        *("the loss is inf in batch", "epoch 1, partition 0", "inputs are finite", "smaller learning rate"),
        space={"lr": 1e3},
    ),
    fails(
        "a loss that explodes without a limit of gradients",
        task(loss=exploding),
        *("the loss is inf in batch", "the update before had gradients of norm 8.4", "inputs are finite", "clip_norm"),
        space={"lr": 1e3},
    ),
    # metrics
    metrics(
        "a metric for each row", lambda model, batch: {"loss": batch["y"].float()}, "'loss'", "shape (8,)", "its mean"
    ),
    metrics("a metric of numpy for each row", {"loss": np.zeros(8)}, "'loss'", "shape (8,)", "return its mean"),
    metrics("a metric that is None", {"loss": None}, "'loss' is None", "must be one number"),
    metrics("a metric that is text", {"loss": "0.3"}, "'loss' is the text '0.3'", "must be one number"),
    metrics("a complex metric", {"loss": 1j}, "'loss' is 1j", "must be one number"),
    metrics("a list as a metric", {"loss": [0.1, 0.2]}, "'loss' is [0.1, 0.2]", "must be one number"),
    metrics("metrics as a tuple", (0.1, 0.2), "metrics() returned (0.1, 0.2)", "must be a dict", "{'accuracy': 0.9}"),
    metrics("metrics as a tensor", torch.zeros(()), "returned a tensor", "must be a dict"),
    metrics("metrics that return nothing", None, "metrics() returned None", "must be a dict"),
    metrics("metrics with numbers as names", {1: 0.5}, "the name 1", "must be text"),
    metrics("a mean of booleans", lambda model, batch: {"loss": (batch["y"] == 1).mean()}, "Bool", ".float().mean()"),
    Mistake(
        "a metric that is NaN",
        lambda: shown(task(metrics=lambda self, model, batch: {"loss": float("nan")})),
        Warned,
        ("t0001: the metric 'loss' is NaN after epoch 1", "worse than every number", "ranked by its other epochs"),
    ),
    Mistake(
        "another metric that is NaN",
        lambda: shown(task(metrics=lambda self, model, batch: {"loss": 0.1, "f1": float("nan")})),
        Warned,
        ("t0001: the metric 'f1' is NaN after epoch 1",),
    ),
    Mistake(
        "metrics that are empty",
        lambda: fit(task(metrics=lambda self, model, batch: {})),
        UsageError,
        ("metric='loss'", "it returns none"),
    ),
    # loops and options
    fails("a loop that returns text", task(train=lambda *_: "ok"), "train() returned 'ok'", "must be a dict"),
    fails("a loop without config", task(train=lambda self, model, batches: None), "Hopfleet calls train(self, model,"),
    option("precision", "float16", "must be one of float32, tf32, bf16, fp16"),
    option("clip_norm", "1", "must be a number greater than 0"),
    option("accumulate", 0, "1 or more"),
    option("ema", 1, "between 0 and 1"),
    option("lr_step", "batches", "'epoch' or 'batch'"),
    option("compile", "yes", "must be True or False"),
    Mistake(
        "functions of the paper that are none",
        lambda: hop.FunctionTask(1, 2, 3),  # type: ignore[arg-type]
        TaskError,
        ("input_fn=1", "must be a function"),
    ),
]
