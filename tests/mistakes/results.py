"""Mistakes in reading the results."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import hopfleet as hop
from hopfleet.errors import JournalError, NotFound, UsageError
from tests.helpers.mistakes import Mistake, Right, copy_finished, experiment, finished, fit, task


def attribute(name: str, owner: Callable[[], Any], *says: str) -> Mistake:
    """A name that another library has."""
    return Mistake(
        f"the attribute {name}", lambda: getattr(owner(), name), AttributeError, (f"attribute '{name}'", *says)
    )


def division(self: Any, config: Any) -> Any:
    return 1 / 0


def best_of_none() -> object:
    return experiment(task(build=division)).fit(quiet=True).best


def without(file: str) -> None:
    """Delete a file of a finished run, and run it again."""
    (fit(name="mine").folder.path / file).unlink()
    fit(name="mine")


def here() -> None:
    """Move a run to the current directory, and open it by its name alone."""
    shutil.move(fit(name="mine").folder.path, "mine")
    hop.load("mine")


def edited() -> None:
    """Change a value in the definition by hand."""
    path = fit(name="mine").folder.definition_file
    path.write_text(path.read_text().replace('"mode": "min"', '"mode": "least"'))
    hop.load("mine")


MISTAKES = [
    Mistake("a trial that does not exist", lambda: finished()["t0009"], NotFound, ("'t0009'", "no such trial")),
    Mistake("a trial by its position", lambda: finished()[0], NotFound, ("0: no such trial", "results.trials[0]")),  # type: ignore[index]
    Mistake("a misspelt trial", lambda: finished()["t001"], NotFound, ("'t001'", "did you mean 't0001'?")),
    Mistake("the best of failed trials", best_of_none, NotFound, ("the trial failed", "results.trials[0].error")),
    Mistake("results of an unknown name", lambda: (copy_finished(), hop.load("f")), NotFound, ("'f'", "there are: e")),
    Mistake("results of a number", lambda: hop.load(3), UsageError, ("name=3", "name of an experiment", "'digits'")),  # type: ignore[arg-type]
    Mistake("results of nothing", lambda: hop.load(""), UsageError, ("name=''", "name of an experiment", "'digits'")),
    Mistake("results without a name", lambda: hop.load(), TypeError, ("'name'", "it is called as load(name, ...)")),  # type: ignore[call-arg]
    Mistake("Results by name", lambda: hop.Results("e"), UsageError, ("Results('e')", "hop.load(NAME)")),  # type: ignore[arg-type]
    Mistake("a slice of results", lambda: finished()[0:2], NotFound, ("slice(0, 2", "results.trials is a list")),  # type: ignore[misc]
    Mistake(
        "a chart in a folder that does not exist",
        lambda: finished().plot("curves", "charts/curves.png"),
        UsageError,
        ("charts/curves.png: cannot be written", "make the folder charts first"),
    ),
    Mistake("a chart in a number", lambda: finished().plot("curves", 3), UsageError, ("path=3", "name of a file")),  # type: ignore[arg-type]
    Mistake("charts in a list", lambda: finished().plot(["curves"]), UsageError, ("kind=['curves']", "must be one of")),  # type: ignore[arg-type]
    Mistake(
        "one metric of a front",
        lambda: finished().plot("pareto", metrics="loss"),
        UsageError,
        ("metrics='loss'", "must be a list of two or three names"),
    ),
    Mistake(
        "an export to a folder",
        lambda: finished().best.export("."),
        UsageError,
        ("path='.'", "the name of a file to write", "model.safetensors"),
    ),
    Mistake(
        "an export to a folder that does not exist",
        lambda: finished().best.export("models/best.safetensors", Right()),
        UsageError,
        ("models/best.safetensors: cannot be written", "make the folder models first"),
    ),
    Mistake(
        "weights from a file that does not exist",
        lambda: hop.state_dict("best.pt"),
        UsageError,
        ("state_dict('best.pt')", "no such file or folder"),
    ),
    attribute("fit", finished, "write experiment.fit()"),
    attribute("predict", finished, "write results.best.predict(DATA)"),
    attribute("loss", lambda: finished().best, "write trial.metrics['loss']"),
    attribute("lr", lambda: finished().best, "write trial.config['lr']"),
    Mistake(
        "a value of a trial by its name",
        lambda: finished().best["lr"],
        TypeError,
        ("not subscriptable", "config['lr']"),
    ),
    Mistake(
        "an unknown value of a trial", lambda: finished().best["f1"], TypeError, ("not subscriptable", "metrics[NAME]")
    ),
    Mistake("the best by its name", lambda: finished()["best"], NotFound, ("'best': no such trial", "results.best")),
    Mistake(
        "an export in another format",
        lambda: finished().best.export("model.onnx", Right()),
        UsageError,
        ("path='model.onnx'", "in the format .safetensors", "trial.model()"),
    ),
    attribute("save", finished, "write results.dataframe().to_csv(PATH)"),
    attribute("bset", finished, "did you mean 'best'?"),
    Mistake("results before any run", lambda: hop.load("digits"), NotFound, ("'digits'", "there are: none")),
    Mistake(
        "a model for another task's class",
        lambda: finished().best.model(Right),  # type: ignore[arg-type]
        UsageError,
        ("Right", "must be an instance, Right()"),
    ),
    Mistake(
        "a finished run without its journal",
        lambda: without("journal.sqlite"),
        JournalError,
        ("journal.sqlite: is missing", "hopfleet recover mine", "overwrite=True"),
    ),
    Mistake(
        "a finished run without its definition",
        lambda: without("experiment.json"),
        JournalError,
        ("experiment.json: is missing", "hopfleet recover mine", "overwrite=True"),
    ),
    Mistake("a definition edited by hand", edited, JournalError, ("differs from its digest", "hopfleet recover mine")),
    Mistake("a run folder that was moved, by its name", here, NotFound, ("'mine'", "use ./mine")),
    Mistake(
        "a chart that does not exist",
        lambda: finished().plot("curve"),
        UsageError,
        ("kind='curve'", "did you mean 'curves'?", "curves, gantt, importance"),
    ),
    Mistake(
        "a file in place of the kind of a chart",
        lambda: finished().plot("curves.png"),
        UsageError,
        ("kind='curves.png'", "to name a file, give path='curves.png'"),
    ),
    Mistake(
        "a chart in a format that cannot be written",
        lambda: finished().plot("curves", "curves.jpg"),
        UsageError,
        ("path='curves.jpg'", "must end in one of .pdf, .png, .svg"),
    ),
    Mistake(
        "a chart of a metric that no trial reports",
        lambda: finished().plot("curves", metric="los"),
        UsageError,
        ("metric='los'", "no trial reports it", "loss"),
    ),
    Mistake(
        "a chart with an option of another one",
        lambda: finished().plot("gantt", metric="loss"),
        UsageError,
        ("metric='loss'", "not an option of kind='gantt'", "remove it"),
    ),
    Mistake(
        "rungs without promotions",
        lambda: finished().plot("rungs"),
        UsageError,
        ("kind='rungs'", "no trial of this experiment was promoted", "kind='curves'"),
    ),
    Mistake(
        "a lineage without clones",
        lambda: finished().plot("lineage"),
        UsageError,
        ("kind='lineage'", "has no clones", "kind='curves'"),
    ),
    Mistake(
        "a front of one metric",
        lambda: finished().plot("pareto"),
        UsageError,
        ("kind='pareto'", "needs two or three metrics, not loss", "metrics="),
    ),
    Mistake(
        "parallel coordinates of equal configurations",
        lambda: finished().plot("parallel"),
        UsageError,
        ("kind='parallel'", "at least two trials with different configurations"),
    ),
    Mistake(
        "a metric that the task does not return",
        lambda: finished().best.metrics["lss"],
        LookupError,
        ("metrics['lss']", "did you mean 'loss'?", "there are: "),
    ),
    attribute("best_params", finished, "results.best.config"),
    attribute("best_trial", finished, "results.best"),
    attribute("get_best_result", finished, "results.best"),
    attribute("trials_dataframe", finished, "results.dataframe()"),
    attribute("params", lambda: finished().best, "trial.config"),
    attribute("value", lambda: finished().best, "trial.metrics"),
    attribute("export", finished, "results.best.export(PATH) for the model"),
    attribute("optimize", experiment, "results = experiment.fit()"),
    attribute("best", experiment, "experiment.fit(), then results.best"),
    Mistake(
        "the weights of an empty folder",
        lambda: hop.state_dict("."),
        UsageError,
        ("best/model.safetensors", "hop.load"),
    ),
    Mistake("the weights of a number", lambda: hop.state_dict(3), UsageError, ("state_dict(3)", "pass a file")),
]
