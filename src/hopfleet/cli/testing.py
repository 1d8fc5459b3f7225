"""The commands that go on with trained models: test, predict, ensemble and refit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.checking import WhereWorkersRun, Workers, task_and_train
from hopfleet.cli.experiments import Json, Name
from hopfleet.cli.render import echo, json_alone, print_json
from hopfleet.cli.runs import find_trial
from hopfleet.store.folder import find_run

TARGET = "The .parquet, .csv or .arrow file, or the folder of Parquet files,"

Data = Annotated[str, typer.Option(metavar="PATH", help="The folder of a data set, a file, a quoted glob, or a URL.")]


def test(
    name: Name,
    data: Data,
    top: Annotated[int, typer.Option(metavar="N", help="Number of trials to test, the best first.")] = 1,
    trial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRIAL",
            help="Test this trial instead, e.g. t0003 or 3; can be repeated.",
            show_default=False,
            autocompletion=completing.trials,
        ),
    ] = None,
    workers: Workers = None,
    backend: WhereWorkersRun = "local",
    json: Json = False,
) -> int:
    """Test the best trials on new data.

    Raw files pass through the recipe that prepared the training data.

    Example: hopfleet test demo --data data/test --top 5
    """
    from hopfleet.runs.results import Results

    results = Results(find_run(name))
    chosen = [find_trial(results, one).id for one in trial or []]
    with json_alone(json):
        task, _ = task_and_train(results)
        found = results.test(
            data, chosen, top=top, task=task, workers="auto" if workers is None else workers, backend=backend
        )
    if json:
        print_json(found)
    else:
        for each, metrics in found.items():
            echo(f"{each}  " + "  ".join(f"{metric} {value:.6g}" for metric, value in metrics.items()))
    return 0


def refit(
    name: Name,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="TRIAL",
            help="Train the configuration of this trial, e.g. t0003 or 3, instead of the best.",
            show_default=False,
            autocompletion=completing.trials,
        ),
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="DATA", help="train+valid, or the folder of another data set.")
    ] = "train+valid",
    epochs: Annotated[str, typer.Option(metavar="N", help="Epochs, or best: until the best epoch.")] = "best",
    new: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="Name of the new experiment (NAME-refit).")
    ] = None,
    workers: Workers = None,
    backend: WhereWorkersRun = "local",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an experiment of the new name.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> int:
    """Train the best configuration anew on training and validation data.

    Example: hopfleet refit demo --as demo-final
    """
    from hopfleet.runs.results import Results

    results = Results(find_run(name))
    chosen = results.best if trial is None else find_trial(results, trial)
    task, _ = task_and_train(results)
    made = results.refit(
        chosen.id,
        on=on,
        epochs=int(epochs) if epochs.isdecimal() else epochs,
        name=new,
        task=task,
        workers="auto" if workers is None else workers,
        backend=backend,
        overwrite=overwrite,
        quiet=quiet,
    )
    echo(f"{made.best.id} of {made.name}: the configuration of {chosen.id}, trained for {made.best.best_epoch} epochs")
    return 0


def predict(
    name: Name,
    to: Annotated[str, typer.Option(metavar="PATH", help=f"{TARGET} to write.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A data set, a file, a quoted glob, or a URL, instead of the rows that validated the trial.",
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="TRIAL",
            help="Predict with this trial, e.g. t0003 or 3, instead of the best.",
            show_default=False,
            autocompletion=completing.trials,
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="NAME,...", help="Columns of the rows to write before the predictions.")
    ] = "",
    on_error: Annotated[
        str, typer.Option(metavar="HOW", help="Rows that fail: raise, skip, or null for missing predictions.")
    ] = "raise",
    workers: Workers = None,
    backend: WhereWorkersRun = "local",
) -> int:
    """Write the predictions of the best trial for new rows, in the order of the rows.

    Raw files pass through the recipe that prepared the training data; they may lack its labels. With folds, the rows
    that validated the trial are all training rows, each predicted by the model that has not seen it. A command that is
    killed goes on where it was when it is given again.

    Example: hopfleet predict demo --data raw.csv --to predictions.parquet
    """
    from hopfleet.runs.results import Results

    results = Results(find_run(name))
    chosen = results.best if trial is None else find_trial(results, trial)
    task, _ = task_and_train(results)
    columns = [column.strip() for column in keep.split(",") if column.strip()]
    how: Any = {"workers": "auto" if workers is None else workers, "backend": backend, "on_error": on_error}
    rows = chosen.predict(data, to=to, task=task, keep=columns, **how)
    echo(f"{rows:,} predictions of {chosen.id} in {to}")
    return 0


def ensemble(
    name: Name,
    top: Annotated[int, typer.Option(metavar="N", help="Number of trials to choose from, the best first.")] = 8,
    weights: Annotated[
        str, typer.Option(metavar="HOW", help="greedy (chosen with validation data) or uniform.")
    ] = "greedy",
    logits: Annotated[
        bool, typer.Option("--logits", help="The models return logits of classes; average their probabilities.")
    ] = False,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Test on this data instead of the validation data.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="PATH", help=f"{TARGET} for predictions; it is not tested then.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the ensemble as a bundle for hop.load_bundle.")
    ] = None,
    workers: Workers = None,
    backend: WhereWorkersRun = "local",
    json: Json = False,
) -> int:
    """Test an ensemble of the best trials, predict with it, and export it as one model.

    Raw files pass through the recipe that prepared the training data.

    Example: hopfleet ensemble demo --top 5 --export models/demo
    """
    from hopfleet.runs.ensemble import Ensemble
    from hopfleet.runs.results import Results

    results = Results(find_run(name))
    place: dict[str, Any] = {"workers": "auto" if workers is None else workers, "backend": backend}
    with json_alone(json):
        task, _ = task_and_train(results)
        made = Ensemble(results, top=top, weights=weights, logits=logits, task=task)
        metrics = made.test(data, **place) if to is None else {}
        rows = 0 if to is None else made.predict(data, to=to, **place)
        written = None if export is None else made.export(export)
    if json:
        print_json({"weights": made.weights, "metrics": metrics})
        return 0
    for trial, weight in made.weights.items():
        echo(f"{trial}  weight {weight:.3g}")
    if to is None:
        echo("ensemble  " + "  ".join(f"{metric} {value:.6g}" for metric, value in metrics.items()))
    else:
        echo(f"{rows:,} predictions of the ensemble in {to}")
    if written is not None:
        echo(written)
    return 0
