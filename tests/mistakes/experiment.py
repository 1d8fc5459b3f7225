"""Mistakes in the arguments of an experiment."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.linear_model import SGDClassifier

import hopfleet as hop
from hopfleet.errors import DataError, UsageError
from hopfleet.trackers import MLflow, WandB
from tests.helpers.mistakes import Mistake, Right, experiment, fit, task

#: As the adapter of Lightning sees it, without the import of Lightning.
LIGHTNING = type(
    "Digits",
    (type("LightningModule", (), {"__module__": "lightning.pytorch.core.module"}),),
    {"__repr__": lambda self: "Digits()"},
)


def refused(mistake: str, /, *says: str, **changes: Any) -> Mistake:
    """An experiment that is refused at once, or when it starts."""
    return Mistake(mistake, lambda: fit(**changes), UsageError, says)


def unknown(keyword: str, value: Any, *says: str) -> Mistake:
    """A keyword of another library."""
    return Mistake(
        f"the keyword {keyword}", lambda: experiment(**{keyword: value}), TypeError, (f"argument '{keyword}'", *says)
    )


def absent(name: str, *says: str) -> Mistake:
    """A name of another library."""
    return Mistake(f"hop.{name}", lambda: getattr(hop, name), AttributeError, (repr(name), *says))


def two_metrics(self: Any, model: Any, batch: Any) -> Any:
    return {"accuracy": 0.5, "loss": 1.0}


class Misspelt(hop.Callback):
    def on_trail_start(self, trial: Any) -> None: ...


ABSENT = "mps" if torch.cuda.is_available() else "cuda"

MISTAKES = [
    refused("no batch", "batch_size=0", "at least 1", batch_size=0),
    Mistake(
        "a team for an own training loop",
        lambda: experiment(task(train=lambda self, model, batches, config: None), parallelism="ddp:2"),
        UsageError,
        ("parallelism='ddp:2'", "must be 'single' for a task that overrides train", "override loss()"),
    ),
    refused(
        "more stages than blocks",
        *("parallelism='pipeline:3'", "must have a block for each of 3 devices, got 1", "in blocks(self, model)"),
        parallelism="pipeline:3",
        backend="local",
    ),
    refused("a batch size as a float", "batch_size=32.0", "must be an integer", batch_size=32.0),
    refused("a batch size as text", "batch_size='32'", "must be an integer", batch_size="32"),
    refused("several batch sizes", "[16, 32]", "put choice([16, 32]) into the space", batch_size=[16, 32]),
    refused("workers as text", "workers='4'", "must be an integer", "or 'auto'", workers="4"),
    refused("no workers", "workers=0", "at least 1", "or 'auto'", workers=0),
    refused("workers as None", "workers=None", "must be an integer", "or 'auto'", workers=None),
    refused("all workers", "workers='all'", "or 'auto'", workers="all"),
    refused("a seed as text", "seed='0'", "must be an integer", seed="0"),
    refused("no seed", "seed=None", "must be an integer", seed=None),
    refused("no partitions", "partitions=0", "at least 1", partitions=0),
    refused("partitions as a float", "partitions=2.5", "must be an integer", partitions=2.5),
    Mistake(
        "more partitions than rows",
        lambda: fit(partitions=99),
        DataError,
        ("partitions=99", "at most the number of rows, 16"),
    ),
    # The goal
    refused("a mode of Optuna", "mode='maximize'", "'min' or 'max'", metric="accuracy", mode="maximize"),
    refused("a mode that is a number", "mode=1", "must be text", metric="accuracy", mode=1),
    refused("a metric without a mode", "metric='accuracy'", "mode='max' or mode='min'", metric="accuracy"),
    refused("a metric that is a number", "metric=3", "must be text", metric=3),
    refused("a mode without a metric", "mode='max'", "metric='accuracy', mode='max'", mode="max"),
    refused(
        "a metric and its mode in a tuple",
        *("must name metrics alone", "metric='accuracy', mode='max'"),
        metric=("accuracy", "max"),
    ),
    refused(
        "modes by metric",
        *("metric={'accuracy': 'max', 'loss': 'min'}", "metric=['accuracy', 'loss'], mode=['max', 'min']"),
        metric={"accuracy": "max", "loss": "min"},
    ),
    refused("no metric", "metric=[]", "at least one", metric=[]),
    refused("Keras's name of a metric", "metric='val_loss'", "did you mean 'loss'?", metric="val_loss"),
    refused(
        "a misspelt metric",
        *("metric='acuracy'", "did you mean 'accuracy'?", "it returns accuracy, loss"),
        mine=task(metrics=two_metrics),
        metric="acuracy",
        mode="max",
    ),
    refused("a metric that is not computed", "metric='f1'", "it returns loss", metric="f1", mode="max"),
    refused(
        "a metric without validation data",
        *("metric='accuracy'", "no valid=... data", "metric='train_loss'"),
        valid=None,
        metric="accuracy",
        mode="max",
    ),
    refused(
        "a limit with a suffix", "'params < 10k'", "a number", "e.g. 'params <= 100000'", constraints="params < 10k"
    ),
    refused("a limit that is a number", "constraint 3", "function of the configuration", constraints=[3]),
    # Names of things
    refused("a misspelt backend", "backend='lokal'", "did you mean 'local'?", "inline", backend="lokal"),
    refused("a device as the backend", "backend='cuda'", "there are inline, local", backend="cuda"),
    refused("no backend", "backend=None", "must be a backend", "'local'", backend=None),
    refused("a backend that is a number", "backend=3", "must be a backend", "'local'", backend=3),
    refused("a callback that is a number", "callbacks=3", "derived from hop.Callback", callbacks=[3]),
    refused(
        "a misspelt hook of a callback",
        *("Misspelt.on_trail_start: there is no such hook", "did you mean 'on_trial_start'?"),
        callbacks=[Misspelt()],
    ),
    refused("an empty name", "name=''", "is empty", "leave it out", name=""),
    refused(
        "a device that is not there",
        *(f"device='{ABSENT}'", "this machine has", "device='auto'"),
        worker_options=hop.WorkerOptions(device=ABSENT),
    ),
    refused(
        "a device in capitals",
        *("device='CPU'", "lower case, 'cpu'"),
        worker_options=hop.WorkerOptions(device="CPU"),
    ),
    refused("the class of a callback", "Misspelt", "an instance, Misspelt()", callbacks=[Misspelt]),
    refused("a function as a callback", "<function", "derived from hop.Callback", callbacks=[lambda trial: None]),
    refused(
        "a run folder that cannot be written",
        *("/dev/null/runs", "cannot be written", "HOPFLEET_HOME", "RunOptions(folder=...)"),
        run_options=hop.RunOptions(folder="/dev/null/runs"),
    ),
    refused("a callback that is not installed", "callbacks='aim'", "there are csv, jsonl", callbacks="aim"),
    refused("a name with a space", "name='my exp'", "use letters", name="my exp"),
    refused("a name that is a path", "name='runs/a'", "use letters", name="runs/a"),
    refused("options as a dict", "run_options=", "must be hop.RunOptions(...)", run_options={"order": "fixed"}),
    refused("a device as options", "worker_options='cuda'", "hop.WorkerOptions(...)", worker_options="cuda"),
    Mistake(
        "a misspelt policy",
        lambda: experiment(run_options=hop.RunOptions(policy="randm")),
        UsageError,
        ("policy='randm'", "did you mean 'random'?", "match-reserve"),
    ),
    Mistake(
        "an order that does not exist",
        lambda: hop.RunOptions(order="random"),
        UsageError,
        ("order='random'", "must be 'open'", "'fixed'"),
    ),
    Mistake(
        "a time limit with a unit",
        lambda: hop.RunOptions(unit_timeout="5m"),
        UsageError,
        ("unit_timeout='5m'", "seconds above 0"),
    ),
    Mistake(
        "fusing as True", lambda: hop.WorkerOptions(fuse=True), UsageError, ("fuse=True", "'exact', 'fast', 'off'")
    ),  # type: ignore[arg-type]
    Mistake("no threads", lambda: hop.WorkerOptions(threads=0), UsageError, ("threads=0", "at least 1")),
    Mistake(
        "transform workers as text",
        lambda: hop.WorkerOptions(transform_workers="2"),
        UsageError,
        ("transform_workers='2'", "'auto'", "a number of processes"),
    ),
    Mistake(
        "a device that is a number",
        lambda: hop.WorkerOptions(device=0),  # type: ignore[arg-type]
        UsageError,
        ("device=0", "'cpu', 'cuda'"),
    ),
    Mistake(
        "leaving out batches as text",
        lambda: hop.WorkerOptions(drop_last="yes"),  # type: ignore[arg-type]
        UsageError,
        ("drop_last='yes'", "True or False"),
    ),
    Mistake(
        "a run folder that is a number",
        lambda: hop.RunOptions(folder=3),  # type: ignore[arg-type]
        UsageError,
        ("folder=3", "the path of a folder"),
    ),
    Mistake(
        "a run folder in a bucket",
        lambda: hop.RunOptions(folder="s3://bucket/runs"),
        UsageError,
        ("folder='s3://bucket/runs'", "a folder of this machine", "hop.Ray(storage=...)"),
    ),
    Mistake("a misspelt option", lambda: hop.RunOptions(polcy="auto"), TypeError, ("'polcy'", "mean 'policy'?")),  # type: ignore[call-arg]
    Mistake("verbosity of fit", lambda: experiment().fit(verbose=0), TypeError, ("'verbose'", "did you mean 'quiet'?")),  # type: ignore[call-arg]
    Mistake("epochs of fit", lambda: experiment().fit(epochs=3), TypeError, ("'epochs'", "it takes overwrite, quiet")),  # type: ignore[call-arg]
    Mistake("quiet as text", lambda: experiment().fit(quiet="yes"), UsageError, ("quiet='yes'", "True or False")),  # type: ignore[arg-type]
    Mistake(
        "data of fit",
        lambda: experiment().fit([[1.0]], [0]),  # type: ignore[misc]
        TypeError,
        ("3 were given", "it takes overwrite, quiet, ui by name alone"),
    ),
    Mistake(
        "data by position",
        lambda: hop.Experiment(Right(), [[1.0]], [0]),  # type: ignore[call-arg,misc]
        TypeError,
        ("4 were given", "Experiment(task, train=..., space=..., ...)"),
    ),
    Mistake("no arguments", lambda: hop.Experiment(), TypeError, ("'task'", "Experiment(task, train=..., space=")),  # type: ignore[call-arg]
    # The task
    refused("a class as the task", "Right", "must be an instance, e.g. Digits()", mine=Right),
    refused("a model as the task", "task=Linear(", "derived from hop.TorchTask", mine=torch.nn.Linear(1, 1)),
    refused("a LightningModule as the task", "task=Digits()", "derived from hop.LightningTask", mine=LIGHTNING()),
    refused("the class of a LightningModule", "Digits", "derived from hop.LightningTask", mine=LIGHTNING),
    refused("an estimator as the task", "SGDClassifier()", "SklearnTask", "hop.HopSearchCV", mine=SGDClassifier()),
    refused("a function as the task", "task=<function", "derived from hop.TorchTask", mine=lambda config: None),
    # Keywords of other libraries
    unknown("n_trials", 3, "search=hop.Random(trials=16, max_epochs=10)"),
    unknown("epochs", 3, "search=hop.Random(trials=16, max_epochs=10)"),
    unknown("validation_data", {}, "valid=..."),
    unknown("direction", "maximize", "metric='accuracy', mode='max'"),
    unknown("num_workers", 2, "workers=2"),
    unknown("verbose", 0, "fit()"),
    unknown("checkpoint_every", 60, "run_options=hop.RunOptions(checkpoint_every=...)"),
    unknown("serach", "random", "did you mean 'search'?"),
    Mistake(
        "a mode that Weights & Biases does not have",
        lambda: WandB(mode="offlin"),
        UsageError,
        ("mode='offlin'", "did you mean 'offline'?"),
    ),
    Mistake(
        "an MLflow server that does not answer",
        lambda: fit(callbacks=[MLflow(uri="http://127.0.0.1:9")]),
        UsageError,
        ("uri='http://127.0.0.1:9'", "no MLflow server answers", "leave uri out"),
    ),
    Mistake(
        "a dimension of an experiment in HopSearchCV",
        lambda: hop.HopSearchCV(SGDClassifier(), {"alpha": hop.loguniform(1e-4, 1e-1)}).fit([[1.0]] * 8, [0, 1] * 4),
        UsageError,
        ("'alpha'", "loguniform(0.0001, 0.1)", "scipy.stats.loguniform"),
    ),
    absent("tune", "write hop.Experiment(task, train=..., space=..., search=...).fit()"),
    absent("Tune", "write hop.Experiment("),
    absent("create_study", "write hop.Experiment("),
    absent("GridSearchCV", "write hop.HopSearchCV(...)"),
    absent("EarlyStopping", "write stop=hop.Patience(epochs=3)"),
    absent("accuracy_score", "dir(hopfleet) lists all names"),
    Mistake(
        "a name that Hopfleet does not have",
        lambda: hop.log_uniform(1e-4, 1),
        AttributeError,
        ("'log_uniform'", "did you mean 'loguniform'?"),
    ),
]
